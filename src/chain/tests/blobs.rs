//! Tests of an Ethereum chain with blobs, from the pool through a block to the disk, over restarts
//! and reorgs.

use super::*;
use crate::chain::{
    blobs::TxSidecar,
    evm::tests::sign,
    kzg,
    pool::{Admission, PoolTx},
    transaction::ChainTx,
};
use alloy_consensus::{TxEip4844, TxEip4844WithSidecar};
use alloy_eips::{
    eip2718::Encodable2718,
    eip4844::{Blob, DATA_GAS_PER_BLOB},
};
use alloy_primitives::Signature;

/// Activation times of forks after Shanghai, in seconds after genesis. A fork without a time is
/// never active.
#[derive(Clone, Copy, Default)]
pub struct L1Forks {
    pub prague: Option<u64>,
    pub osaka: Option<u64>,
    pub bpo1: Option<u64>,
}

/// The genesis of an Ethereum chain with Cancun active from the first block on, and with funds.
pub fn l1_genesis(
    chain_id: u64,
    forks: L1Forks,
    funded: impl IntoIterator<Item = Address>,
) -> Genesis {
    let funds = |address: Address| {
        let balance = json!({ "balance": "0x56bc75e2d63100000" });
        (address.to_string(), balance)
    };
    let alloc = funded.into_iter().map(funds).collect();
    let mut genesis = crate::devnet::genesis::l1_genesis_of(chain_id, alloc);
    genesis["timestamp"] = GENESIS_TIME.into();
    let later = [
        ("prague", forks.prague, [6, 9, 5_007_716]),
        ("osaka", forks.osaka, [6, 9, 5_007_716]),
        ("bpo1", forks.bpo1, [10, 15, 8_346_193]),
    ];
    for (name, time, [target, max, fraction]) in later {
        if let Some(time) = time {
            genesis["config"][format!("{name}Time")] = (GENESIS_TIME + time).into();
            genesis["config"]["blobSchedule"][name] =
                json!({ "target": target, "max": max, "baseFeeUpdateFraction": fraction });
        }
    }
    genesis::parse(&genesis.to_string()).unwrap()
}

/// Creates and opens a chain with this genesis.
pub fn l1(genesis: &Genesis) -> (TempDir, Chain, Threads) {
    let datadir = tempfile::tempdir().unwrap();
    assert!(init(datadir.path(), genesis).unwrap());
    let (chain, threads) = open(datadir.path());
    (datadir, chain, threads)
}

/// An Ethereum chain with funds for the test keys.
pub fn test_l1(forks: L1Forks) -> (TempDir, Chain, Threads) {
    l1(&l1_genesis(CHAIN, forks, (1..10).map(address_of)))
}

/// A blob whose field elements are a zero and then this byte repeated, except for one other byte.
pub fn blob(fill: u8) -> Blob {
    let mut blob = Blob::repeat_byte(fill);
    blob.0.iter_mut().step_by(32).for_each(|byte| *byte = 0);
    // Change one byte, since all constant polynomials have the same proof.
    blob.0[1] = fill ^ 0x55;
    blob
}

/// A transaction with the blobs of this sidecar.
pub fn blob_tx(nonce: u64, sidecar: &TxSidecar) -> TxEip4844 {
    TxEip4844 {
        chain_id: CHAIN,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 100_000_000_000,
        max_priority_fee_per_gas: 1_000_000_000,
        to: Address::repeat_byte(0x77),
        max_fee_per_blob_gas: 1_000_000_000,
        blob_versioned_hashes: sidecar.versioned_hashes().collect(),
        ..Default::default()
    }
}

/// The network encoding of a signed transaction, which includes its blobs.
pub fn network_form(tx: TxEip4844, signature: Signature, sidecar: TxSidecar) -> Bytes {
    let whole = TxEip4844WithSidecar { tx, sidecar };
    let signed = alloy_consensus::SignableTransaction::into_signed(whole, signature);
    signed.encoded_2718().into()
}

/// The network encoding of a transaction, signed with this key.
pub fn raw_with(key: u8, tx: TxEip4844, sidecar: TxSidecar) -> Bytes {
    let (signed, _) = sign(key, tx.clone());
    network_form(tx, signed.signature().unwrap(), sidecar)
}

/// The network encoding of a transaction with these blobs, signed with this key.
pub fn raw(key: u8, nonce: u64, sidecar: TxSidecar) -> Bytes {
    raw_with(key, blob_tx(nonce, &sidecar), sidecar)
}

/// Adds a raw transaction to the pool as JSON-RPC does, for a block at the head's time.
pub fn submit(chain: &Chain, raw: Bytes) -> Result<B256, crate::chain::pool::PoolError> {
    let tx: PoolTx = chain.pool().decode(raw)?;
    let view = chain.view();
    let account = view.state().account(tx.sender()).unwrap();
    let at = Admission {
        nonce: account.map_or(0, |account| account.nonce),
        balance: account.map_or(U256::ZERO, |account| account.balance),
        delegated: false,
        base_fee: view.header().base_fee_per_gas.unwrap(),
        block_gas_limit: view.header().gas_limit,
        l1_cost: U256::ZERO,
        now: view.header().timestamp + 1,
    };
    chain.pool().add(tx, &at)
}

/// Attributes of an Ethereum block `seconds` after `parent`.
pub fn l1_attributes_after(parent: &Header, seconds: u64) -> OpPayloadAttributes {
    OpPayloadAttributes {
        payload_attributes: PayloadAttributes {
            timestamp: parent.timestamp + seconds,
            withdrawals: Some(vec![]),
            parent_beacon_block_root: Some(B256::ZERO),
            ..Default::default()
        },
        ..Default::default()
    }
}

/// Builds a block of pool transactions on the head, `seconds` after it, logs it, and makes it the
/// head.
pub async fn mine(chain: &Chain, seconds: u64) -> Arc<ExecutedBlock> {
    let parent = chain.view();
    let attributes = l1_attributes_after(parent.header(), seconds);
    let block = mine_on(chain, parent.head().hash, attributes).await;
    let change = crate::chain::pool::HeadChange {
        mined: block.transaction_hashes().to_vec(),
        base_fee: block.payload.header.base_fee_per_gas.unwrap(),
        block_gas_limit: block.payload.header.gas_limit,
        now: block.payload.timestamp(),
        ..Default::default()
    };
    let view = chain.view();
    chain.pool().on_head(change, |sender| {
        let account = view.state().account(sender).unwrap()?;
        Some((account.nonce, account.balance))
    });
    block
}

async fn mine_on(
    chain: &Chain,
    parent: B256,
    attributes: OpPayloadAttributes,
) -> Arc<ExecutedBlock> {
    let id = chain.start(parent, attributes).await.unwrap();
    let block = chain.seal(id).await.unwrap();
    chain
        .insert(block.payload.clone(), Provenance::Engine)
        .await
        .unwrap();
    chain
        .forkchoice(block.payload.hash, None, None)
        .await
        .unwrap();
    block
}

fn blobs_of(block: &ExecutedBlock) -> usize {
    let gas = block.payload.header.blob_gas_used.unwrap();
    assert_eq!(gas % DATA_GAS_PER_BLOB, 0);
    (gas / DATA_GAS_PER_BLOB) as usize
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_takes_blobs_up_to_its_maximum_and_keeps_them() {
    let (datadir, chain, threads) = test_l1(L1Forks::default());
    let sidecars: Vec<TxSidecar> = (1..4)
        .map(|key| kzg::sidecar((0..4).map(|n| blob(16 * key + n)).collect()).unwrap())
        .collect();
    for (key, sidecar) in (1..).zip(&sidecars) {
        submit(&chain, raw(key, 0, sidecar.clone())).unwrap();
    }
    // Each transaction has four blobs and a block at most six, so a block fits one of the three
    // transactions.
    let mut excess = 0;
    for nth in 1..=3 {
        let block = mine(&chain, 12).await;
        assert_eq!(block.payload.transactions.len(), 1, "block {nth}");
        assert_eq!(blobs_of(&block), 4);
        let header = &block.payload.header;
        assert_eq!(header.excess_blob_gas, Some(excess));
        excess += DATA_GAS_PER_BLOB;
        let stored = chain.blobs(&block.payload).unwrap().unwrap();
        assert_eq!(stored.len(), 1);
        assert_eq!(stored[0].transaction, block.transaction_hashes()[0]);
        assert_eq!(*stored[0].sidecar, sidecars[nth - 1]);
        let tx = ChainTx::decode(&block.payload.transactions[0]).unwrap();
        assert!(
            tx.is_blob(),
            "the block holds the transaction without its blobs"
        );
    }
    let empty = mine(&chain, 12).await;
    assert_eq!(empty.payload.header.excess_blob_gas, Some(excess));
    assert_eq!(blobs_of(&empty), 0);
    assert_eq!(chain.blobs(&empty.payload).unwrap(), None);

    // The sender pays for the blobs. The blob base fee, here one wei per blob gas, is burnt.
    let spent = |key| {
        let account = chain.view().state().account(address_of(key)).unwrap();
        U256::from(100_000_000_000_000_000_000u128) - account.unwrap().balance
    };
    let (first, header) = (spent(1), chain.view().header_of(1).unwrap().unwrap());
    let gas = 21_000 * (u128::from(header.base_fee_per_gas.unwrap()) + 1_000_000_000);
    assert_eq!(first, U256::from(gas + 4 * 131_072));

    // The blobs are still there after a restart.
    drop(chain);
    threads.stop().unwrap();
    let (chain, threads) = open(datadir.path());
    assert_eq!(chain.view().head(), empty.payload.id());
    let payload = chain.view().payload(2).unwrap().unwrap();
    let stored = chain.blobs(&payload).unwrap().unwrap();
    assert_eq!(*stored[0].sidecar, sidecars[1]);
    drop(chain);
    threads.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_for_blobs_follow_the_forks() {
    let forks = L1Forks {
        prague: Some(12),
        osaka: Some(24),
        bpo1: Some(36),
    };
    let (_datadir, chain, threads) = test_l1(forks);
    let blobs = |count: u8, first: u8| (0..count).map(|n| blob(first + n)).collect::<Vec<_>>();
    let mut nonces = [0u64; 10];
    let mut send = |key: u8, sidecar: TxSidecar| {
        let sent = submit(&chain, raw(key, nonces[usize::from(key)], sidecar));
        if sent.is_ok() {
            nonces[usize::from(key)] += 1;
        }
        sent.map_err(|error| error.to_string())
    };
    let mut old = kzg::sidecar(blobs(7, 1)).unwrap();
    let refused = send(1, old.clone()).unwrap_err();
    assert_eq!(
        refused,
        "too many blobs in transaction: have 7, permitted 6"
    );
    assert_eq!(blobs_of(&*mine(&chain, 11).await), 0);
    // Prague: nine blobs per block, which may all be in one transaction.
    send(1, old.clone()).unwrap();
    assert_eq!(blobs_of(&*mine(&chain, 1).await), 7);
    assert_eq!(blobs_of(&*mine(&chain, 11).await), 0);
    // Osaka: cell proofs, and at most six blobs per transaction.
    old = kzg::sidecar(blobs(2, 20)).unwrap();
    assert_eq!(
        send(1, old).unwrap_err(),
        "invalid sidecar version post-osaka: 0"
    );
    let many = kzg::sidecar(blobs(7, 1)).unwrap();
    let refused = send(1, many).unwrap_err();
    assert_eq!(
        refused,
        "too many blobs in transaction: have 7, permitted 6"
    );
    for key in 1..=3 {
        send(key, kzg::cell_sidecar(blobs(6, 16 * key)).unwrap()).unwrap();
    }
    assert_eq!(blobs_of(&*mine(&chain, 1).await), 6, "nine are the maximum");
    // BPO1: fifteen blobs per block.
    let block = mine(&chain, 12).await;
    assert_eq!(blobs_of(&block), 12);
    let stored = chain.blobs(&block.payload).unwrap().unwrap();
    assert!(stored.len() == 2 && stored.iter().all(|one| one.sidecar.is_eip7594()));
    drop(chain);
    threads.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn blob_transactions_of_an_abandoned_block_return_with_their_blobs() {
    let (_datadir, chain, threads) = test_l1(L1Forks::default());
    let token = tokio_util::sync::CancellationToken::new();
    let maintenance = tokio::spawn(crate::chain::pool_maintenance::run(
        chain.clone(),
        token.clone(),
    ));
    let genesis = chain.view();
    let sidecar = kzg::sidecar(vec![blob(1)]).unwrap();
    let hash = submit(&chain, raw(1, 0, sidecar.clone())).unwrap();
    let attributes = |seconds| l1_attributes_after(genesis.header(), seconds);
    let abandoned = mine_on(&chain, genesis.head().hash, attributes(12)).await;
    assert_eq!(blobs_of(&abandoned), 1);
    while chain.pool().get(&hash).is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let without = OpPayloadAttributes {
        no_tx_pool: Some(true),
        ..attributes(13)
    };
    mine_on(&chain, genesis.head().hash, without).await;
    while chain.pool().get(&hash).is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let again = mine(&chain, 12).await;
    assert_eq!(blobs_of(&again), 1);
    for block in [&abandoned, &again] {
        let stored = chain.blobs(&block.payload).unwrap().unwrap();
        assert_eq!(*stored[0].sidecar, sidecar);
    }
    token.cancel();
    maintenance.await.unwrap().unwrap();
    drop(chain);
    threads.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_blob_transaction_takes_its_blobs_from_the_pool() {
    let (_datadir, chain, threads) = test_l1(L1Forks::default());
    let sidecar = kzg::sidecar(vec![blob(1), blob(2)]).unwrap();
    let (_, mined) = sign(1, blob_tx(0, &sidecar));
    let view = chain.view();
    let forced = || OpPayloadAttributes {
        transactions: Some(vec![mined.clone()]),
        no_tx_pool: Some(true),
        ..l1_attributes_after(view.header(), 12)
    };
    let missing = chain.start(view.head().hash, forced()).await.unwrap_err();
    assert!(
        missing.to_string().ends_with("are not in the pool"),
        "{missing}"
    );
    submit(&chain, raw(1, 0, sidecar.clone())).unwrap();
    let block = mine_on(&chain, view.head().hash, forced()).await;
    assert_eq!(blobs_of(&block), 2);
    let stored = chain.blobs(&block.payload).unwrap().unwrap();
    assert_eq!(*stored[0].sidecar, sidecar);
    drop(chain);
    threads.stop().unwrap();
}
