//! Blob transactions: the network encoding, hostile sidecars, and the rules that only apply to
//! them.

use super::*;
use crate::chain::{
    evm::tests::{ethereum, sign},
    kzg,
    tests::blobs::{blob, blob_tx, network_form, raw, raw_with},
};
use alloy_consensus::TxEip4844;
use alloy_eips::eip4844::{BlobTransactionSidecar, Bytes48};

/// Time at which Osaka becomes active. Cancun is active from genesis on.
const OSAKA: u64 = 2_000;

fn l1_spec() -> ChainSpec {
    let mut spec = ethereum();
    if let Rules::Ethereum { forks, .. } = &mut spec.rules {
        (forks.prague, forks.osaka) = (None, Some(OSAKA));
    }
    spec
}

fn l1_pool() -> Pool {
    Pool::new(&l1_spec())
}

fn admission(nonce: u64) -> Admission {
    Admission {
        l1_cost: U256::ZERO,
        balance: U256::from(10u128.pow(20)),
        ..at(nonce)
    }
}

/// The result of sending a raw transaction, where the sender's nonce in the state is `nonce`.
fn send_at(pool: &Pool, raw: Bytes, nonce: u64) -> Result<B256, String> {
    let added = pool
        .decode(raw)
        .and_then(|tx| pool.add(tx, &admission(nonce)));
    added.map_err(|error| error.to_string())
}

fn send(pool: &Pool, raw: Bytes) -> Result<B256, String> {
    send_at(pool, raw, 0)
}

fn two_blobs() -> BlobTransactionSidecar {
    let sidecar = kzg::sidecar(vec![blob(1), blob(2)]).unwrap();
    sidecar.into_eip4844().unwrap()
}

#[test]
fn a_blob_transaction_is_admitted_with_its_blobs() {
    let (pool, sidecar) = (l1_pool(), TxSidecar::from(two_blobs()));
    let (_, mined) = sign(1, blob_tx(0, &sidecar));
    let hash = send(&pool, raw(1, 0, sidecar.clone())).unwrap();
    let pooled = pool.get(&hash).unwrap();
    assert_eq!(pooled.raw, mined, "blocks hold the form without blobs");
    assert_eq!(hash, alloy_primitives::keccak256(&mined));
    assert_eq!(pooled.sidecar.as_deref(), Some(&sidecar));
    assert_eq!(pooled.sender(), address_of(1));
    // The cost is 21,000 gas at 100 gwei, and two blobs of 131,072 gas at 1 gwei.
    let cost = 21_000 * 100 * GWEI + 2 * 131_072 * GWEI;
    assert_eq!(pooled.cost(), U256::from(cost));
    assert_eq!(
        send(&pool, raw(1, 0, sidecar)).unwrap_err(),
        "already known"
    );
}

#[test]
fn a_false_sidecar_is_refused_and_told_why() {
    let pool = l1_pool();
    let good = two_blobs();
    let tx = blob_tx(0, &good.clone().into());
    // The transaction's blob hashes are those of `good`.
    let refused = |sidecar: BlobTransactionSidecar| {
        send(&pool, raw_with(1, tx.clone(), sidecar.into())).unwrap_err()
    };
    let change = |change: &dyn Fn(&mut BlobTransactionSidecar)| {
        let mut sidecar = good.clone();
        change(&mut sidecar);
        refused(sidecar)
    };
    for wrong in [
        change(&|sidecar| sidecar.proofs.swap(0, 1)),
        change(&|sidecar| sidecar.blobs.swap(0, 1)),
        change(&|sidecar| sidecar.blobs[1].0[40] ^= 1),
        change(&|sidecar| sidecar.blobs[1].0[32] = 0xff),
        change(&|sidecar| sidecar.proofs[0] = Bytes48::repeat_byte(0xff)),
    ] {
        assert!(wrong.starts_with("KZG verification error: "), "{wrong}");
    }
    let swapped = change(&|sidecar| sidecar.commitments.swap(0, 1));
    assert!(
        swapped.starts_with("blob 0: computed hash 0x01"),
        "{swapped}"
    );
    assert!(swapped.contains("mismatches transaction one 0x01"));
    assert_eq!(
        change(&|sidecar| sidecar.blobs.truncate(1)),
        "invalid number of 1 blobs, expected 2"
    );
    assert_eq!(
        change(&|sidecar| sidecar.commitments.truncate(1)),
        "invalid number of 1 blob commitments, expected 2"
    );
    assert_eq!(
        change(&|sidecar| sidecar.proofs.push(Bytes48::ZERO)),
        "invalid number of 3 blob proofs, expected 2"
    );
    assert_eq!(pool.stats(), PoolStats::default());
}

#[test]
fn cell_proofs_are_verified_from_osaka_on_and_only_then() {
    let pool = l1_pool();
    let old = TxSidecar::from(two_blobs());
    let new = kzg::cell_sidecar(old.blobs().to_vec()).unwrap();
    assert_eq!(
        send(&pool, raw(1, 0, new.clone())).unwrap_err(),
        "invalid sidecar version pre-osaka: 1"
    );
    let osaka = |sidecar: &TxSidecar| {
        let tx = pool.decode(raw(1, 0, sidecar.clone()))?;
        let at = Admission {
            now: OSAKA,
            ..admission(0)
        };
        pool.add(tx, &at)
    };
    let version = osaka(&old).unwrap_err().to_string();
    assert_eq!(version, "invalid sidecar version post-osaka: 0");
    let mut forged = new.clone().into_eip7594().unwrap();
    forged.cell_proofs.swap(0, 255);
    let proof = osaka(&forged.clone().into()).unwrap_err();
    assert!(matches!(proof, PoolError::BlobProof(_)), "{proof}");
    forged.cell_proofs.truncate(2);
    let count = osaka(&forged.into()).unwrap_err().to_string();
    assert_eq!(count, "invalid number of 2 blob proofs, expected 256");
    osaka(&new).unwrap();
}

#[test]
fn malformed_blob_transactions_are_refused() {
    let pool = l1_pool();
    let sidecar = TxSidecar::from(two_blobs());
    let (_, mined) = sign(1, blob_tx(0, &sidecar));
    assert_eq!(
        send(&pool, mined).unwrap_err(),
        "missing sidecar in blob transaction"
    );
    let whole = raw(1, 0, sidecar.clone());
    let cut = send(&pool, whole.slice(..whole.len() - 1)).unwrap_err();
    assert_eq!(cut, "rlp: value size exceeds available input length");
    let trailing = [&whole[..], &[0]].concat().into();
    let trailing = send(&pool, trailing).unwrap_err();
    assert_eq!(trailing, "rlp: input contains more than one value");
    // Change the wrapper version, the byte after the inner transaction.
    let cells = raw(1, 0, kzg::cell_sidecar(vec![blob(1)]).unwrap());
    let at = INNER + inner_length(&cells);
    assert_eq!(cells[at], 1);
    let mut version = cells.to_vec();
    version[at] = 2;
    let version = send(&pool, version.into()).unwrap_err();
    assert!(version.starts_with("rlp: "), "{version}");
    // Bytes that exceed the largest possible transaction are refused without decoding.
    let large = [&[3][..], &vec![0; 2_000_000][..]].concat();
    let large = send(&pool, large.into()).unwrap_err();
    assert!(
        large.starts_with("oversized data: transaction size 2000001, limit "),
        "{large}"
    );
    let long = TxEip4844 {
        input: vec![0; 140_000].into(),
        gas_limit: 5_000_000,
        ..blob_tx(0, &sidecar)
    };
    let long = send(&pool, raw_with(1, long, sidecar.clone())).unwrap_err();
    assert!(long.starts_with("oversized data: "), "{long}");
    // A signature with a high `s`.
    let (signed, _) = sign(1, blob_tx(0, &sidecar));
    let signature = signed.signature().unwrap();
    let order = U256::from_be_bytes(secp256k1::constants::CURVE_ORDER);
    let high = Signature::new(signature.r(), order - signature.s(), !signature.v());
    let high = send(&pool, network_form(blob_tx(0, &sidecar), high, sidecar)).unwrap_err();
    assert_eq!(high, "invalid sender: invalid transaction v, r, s values");
    assert_eq!(pool.stats(), PoolStats::default());
}

/// Offset of the inner transaction in a network encoding of more than 64 KiB: one byte of type, and
/// the outer list's header of one byte and a length of three.
const INNER: usize = 5;

/// Bytes of the inner transaction with its RLP header.
fn inner_length(network: &[u8]) -> usize {
    let mut rest = &network[INNER..];
    let before = rest.len();
    let header = alloy_rlp::Header::decode(&mut rest).unwrap();
    before - rest.len() + header.payload_length
}

#[test]
fn rules_of_the_pool_hold_for_blob_transactions_too() {
    let pool = l1_pool();
    let sidecar = TxSidecar::from(two_blobs());
    let refused = |change: &dyn Fn(&mut TxEip4844)| {
        let mut tx = blob_tx(0, &sidecar);
        change(&mut tx);
        send(&pool, raw_with(1, tx, sidecar.clone())).unwrap_err()
    };
    assert_eq!(
        refused(&|tx| tx.blob_versioned_hashes.clear()),
        "blobless blob transaction"
    );
    assert_eq!(
        refused(&|tx| tx.blob_versioned_hashes = vec![B256::ZERO; 7]),
        "too many blobs in transaction: have 7, permitted 6"
    );
    assert_eq!(
        refused(&|tx| tx.max_fee_per_blob_gas = 0),
        "transaction gas price below minimum: blob fee cap 0, minimum needed 1"
    );
    let costly = refused(&|tx| tx.max_fee_per_blob_gas = 10u128.pow(18));
    assert!(
        costly.starts_with("insufficient funds for gas * price + value: "),
        "{costly}"
    );
    let other = refused(&|tx| tx.chain_id = 7);
    assert_eq!(
        other,
        format!("invalid sender: invalid chain id for signer: have 7 want {CHAIN}")
    );
    assert_eq!(
        refused(&|tx| tx.nonce = 2),
        "nonce too high: tx nonce 2, gapped nonce 0"
    );
    assert_eq!(
        send_at(&pool, raw(1, 0, sidecar.clone()), 1).unwrap_err(),
        "nonce too low: next nonce 1, tx nonce 0"
    );
    let early = Pool::new(&{
        let mut spec = l1_spec();
        if let Rules::Ethereum { forks, .. } = &mut spec.rules {
            forks.cancun = Some(5_000);
        }
        spec
    });
    assert_eq!(
        send(&early, raw(1, 0, sidecar)).unwrap_err(),
        "transaction type not supported: type 3 rejected, pool not yet in Cancun"
    );
    assert_eq!(pool.stats(), PoolStats::default());
}

#[test]
fn a_sender_has_few_blob_transactions_and_no_others_beside_them() {
    let pool = l1_pool();
    let sidecar = TxSidecar::from(two_blobs());
    for nonce in 0..16 {
        send(&pool, raw(1, nonce, sidecar.clone())).unwrap();
    }
    assert_eq!(
        send(&pool, raw(1, 16, sidecar.clone())).unwrap_err(),
        "account limit exceeded: pooled 16 txs"
    );
    let transfer = TxEip1559 {
        max_fee_per_gas: 100 * GWEI,
        ..eip1559(16, 2, 2)
    };
    assert_eq!(
        send(&pool, sign(1, transfer.clone()).1).unwrap_err(),
        "address already reserved"
    );
    send(
        &pool,
        sign(
            2,
            TxEip1559 {
                nonce: 0,
                ..transfer
            },
        )
        .1,
    )
    .unwrap();
    assert_eq!(
        send(&pool, raw(2, 1, sidecar.clone())).unwrap_err(),
        "address already reserved"
    );
    // A replacement must double all three fees.
    let replaced = |change: &dyn Fn(&mut TxEip4844)| {
        let mut tx = blob_tx(3, &sidecar);
        change(&mut tx);
        send(&pool, raw_with(1, tx, sidecar.clone()))
    };
    let double = |tx: &mut TxEip4844| {
        tx.max_fee_per_gas *= 2;
        tx.max_priority_fee_per_gas *= 2;
        tx.max_fee_per_blob_gas *= 2;
    };
    for less in [
        |tx: &mut TxEip4844| tx.max_fee_per_gas -= 1,
        |tx: &mut TxEip4844| tx.max_priority_fee_per_gas -= 1,
        |tx: &mut TxEip4844| tx.max_fee_per_blob_gas -= 1,
    ] {
        let refused = replaced(&|tx| {
            double(tx);
            less(tx);
        });
        assert_eq!(refused.unwrap_err(), "replacement transaction underpriced");
    }
    replaced(&double).unwrap();
    assert_eq!(pool.stats().pending, 17);
}

#[test]
fn blobs_count_against_the_pools_memory() {
    let config = PoolConfig {
        global_slots: 60,
        global_queue: 0,
        account_slots: 1,
        ..Default::default()
    };
    let pool = Pool::with_config(&l1_spec(), config);
    let sidecar = kzg::sidecar(vec![blob(1); 6]).unwrap();
    // A transaction with six blobs uses 25 slots of 32 KiB.
    for key in 1..=2 {
        send(&pool, raw(key, 0, sidecar.clone())).unwrap();
    }
    assert_eq!(
        send(&pool, raw(3, 0, sidecar.clone())).unwrap_err(),
        "transaction underpriced"
    );
    assert_eq!(pool.stats().pending, 2);
}

#[test]
fn an_op_chain_refuses_blobs_by_their_type() {
    let pool = new_pool();
    let sidecar = TxSidecar::from(two_blobs());
    let (_, mined) = sign(1, blob_tx(0, &sidecar));
    for raw in [raw(1, 0, sidecar), mined, Bytes::from_static(&[3, 0xc0])] {
        assert_eq!(
            send(&pool, raw).unwrap_err(),
            "transaction type not supported"
        );
    }
}
