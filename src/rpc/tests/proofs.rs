//! Proofs of accounts and slots (`eth_getProof`), at every height for which they exist.

use super::chain::{CONTRACT, Chain};
use crate::chain::changes::{AccountChange, Changes, StorageChange};
use crate::chain::view::ExecutedBlock;
use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, address, keccak256};
use alloy_trie::{Nibbles, TrieAccount, proof::verify_proof};
use serde_json::{Value, json};
use starling_proto::{fork::Fork, payload::Payload};
use std::sync::Arc;

/// The message passer, whose slots are the withdrawals.
const PASSER: Address = address!("4200000000000000000000000000000000000016");

fn nodes(value: &Value) -> Vec<Bytes> {
    serde_json::from_value(value.clone()).unwrap()
}

/// State root and hash of a block.
async fn root_and_hash(chain: &Chain, block: &str) -> (B256, Value) {
    let header = chain
        .result("eth_getBlockByNumber", json!([block, false]))
        .await;
    let root = serde_json::from_value(header["stateRoot"].clone()).unwrap();
    (root, header["hash"].clone())
}

/// Verifies a proof that no account has this address.
fn verify_absence(root: B256, address: Address, proof: &Value) {
    let key = Nibbles::unpack(keccak256(address));
    verify_proof(root, key, None, &nodes(&proof["accountProof"])).unwrap();
}

/// Verifies a proof of the contract, and of its slots 1 (named in two forms) and 2 with their
/// values.
fn verify_contract(root: B256, proof: &Value, whole: &str) {
    let account = TrieAccount {
        nonce: 1,
        balance: U256::ZERO,
        storage_root: serde_json::from_value(proof["storageHash"].clone()).unwrap(),
        code_hash: serde_json::from_value(proof["codeHash"].clone()).unwrap(),
    };
    verify_proof(
        root,
        Nibbles::unpack(keccak256(CONTRACT)),
        Some(alloy_rlp::encode(account)),
        &nodes(&proof["accountProof"]),
    )
    .unwrap();
    // A key has the same form as in the request: 32 bytes, or a quantity.
    for (n, key, slot, value) in [(0, "0x1", 1, 0x38), (1, whole, 1, 0x38), (2, "0x2", 2, 0)] {
        let item = &proof["storageProof"][n];
        assert_eq!(
            (&item["key"], &item["value"]),
            (&json!(key), &json!(format!("{value:#x}")))
        );
        let key = Nibbles::unpack(keccak256(B256::with_last_byte(slot)));
        let leaf = (value != 0).then(|| alloy_rlp::encode(U256::from(value)));
        verify_proof(account.storage_root, key, leaf, &nodes(&item["proof"])).unwrap();
    }
}

#[tokio::test]
async fn proofs_hold_against_the_state_root() {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[]);
    chain.store.commit(&chain.blocks, None, None).unwrap();
    chain.add(&[]);
    let whole = format!("0x{:064x}", 1);
    // Above the stored head, at the stored head, and below it by means of unwind records.
    for block in ["0x2", "0x1", "0x0"] {
        let (root, _) = root_and_hash(&chain, block).await;
        let slots = json!([CONTRACT, ["0x01", whole, "0x2"], block]);
        let proof = chain.result("eth_getProof", slots).await;
        verify_contract(root, &proof, &whole);
        let nobody = chain
            .result("eth_getProof", json!([Address::ZERO, ["0x0"], block]))
            .await;
        verify_absence(root, Address::ZERO, &nobody);
        assert_eq!(
            (&nobody["codeHash"], &nobody["storageHash"]),
            (&json!(B256::ZERO), &json!(B256::ZERO))
        );
        assert_eq!(
            nobody["storageProof"],
            json!([{ "key": "0x0", "value": "0x0", "proof": [] }])
        );
    }
    let many = chain
        .error(
            "eth_getProof",
            json!([CONTRACT, vec!["0x1"; 1025], "latest"]),
        )
        .await;
    assert_eq!(many, (-32602, "too many slots (max 1024)".into()));
}

/// Stores one more block, which makes these changes.
fn store_block(chain: &Chain, changes: &Changes) {
    let parent = chain.view.lock().clone();
    let block = chain.block(&parent, &[], "");
    let update = parent.state().update(changes).unwrap();
    let header = Header {
        state_root: update.state_root,
        ..block.payload.header.clone()
    };
    let payload = Payload::sealed(header, block.payload.transactions.clone());
    let (senders, receipts) = (block.senders.clone(), block.receipts.clone());
    let block = ExecutedBlock::new(
        Arc::new(payload),
        senders,
        receipts,
        Arc::new(update.overlay),
    );
    chain.store.commit(&[Arc::new(block)], None, None).unwrap();
    chain.publish();
}

/// Stores `blocks` more blocks, each of which changes one account.
fn store_blocks(chain: &Chain, blocks: usize) {
    for _ in 0..blocks {
        let account = AccountChange {
            nonce: chain.head().number,
            balance: U256::ONE,
            code_hash: KECCAK256_EMPTY,
        };
        let changes = Changes {
            accounts: [(keccak256(Address::repeat_byte(7)), Some(account))].into(),
            ..Default::default()
        };
        store_block(chain, &changes);
    }
}

/// Number of the oldest block for which `eth_capabilities` promises proofs.
async fn oldest_proofs(chain: &Chain) -> Value {
    chain.result("eth_capabilities", json!([])).await["stateproofs"]["oldestBlock"].clone()
}

#[tokio::test]
async fn proofs_reach_back_as_far_as_the_window_by_number_hash_and_tag() {
    let chain = Chain::new(Fork::Ecotone);
    store_blocks(&chain, 400);
    for block in ["0x0", "0x1", "0xc8", "0x18f", "latest"] {
        let (root, hash) = root_and_hash(&chain, block).await;
        for named in [json!(block), hash.clone(), json!({ "blockHash": hash })] {
            let proof = chain
                .result("eth_getProof", json!([Address::ZERO, [], named]))
                .await;
            verify_absence(root, Address::ZERO, &proof);
            assert_eq!(
                chain
                    .result("eth_getProof", json!([CONTRACT, ["0x1"], named]))
                    .await["storageProof"][0]["value"],
                "0x38"
            );
        }
    }
    assert_eq!(oldest_proofs(&chain).await, "0x0");
}

#[tokio::test]
async fn pruned_proofs_are_refused_but_for_those_of_withdrawals() {
    let chain = Chain::new(Fork::Ecotone);
    store_blocks(&chain, 400);
    // The smallest number of blocks with proofs.
    chain.store.keep_proofs(1).unwrap();
    store_blocks(&chain, 1);
    assert_eq!(oldest_proofs(&chain).await, "0x111");
    chain
        .result("eth_getProof", json!([CONTRACT, [], "0x111"]))
        .await;
    let pruned = "proofs at block #272 are pruned, the oldest are at block #273";
    assert_eq!(
        chain
            .error("eth_getProof", json!([CONTRACT, [], "0x110"]))
            .await,
        (-32000, pruned.into())
    );
    // A withdrawal can still be proven.
    let (root, _) = root_and_hash(&chain, "0x1").await;
    let proof = chain
        .result("eth_getProof", json!([PASSER, ["0x0"], "0x1"]))
        .await;
    verify_absence(root, PASSER, &proof);
}

/// Outputs are proposed hours after a withdrawal, and then it is proven at the output's block.
#[tokio::test]
async fn a_withdrawal_is_proven_five_thousand_blocks_later_with_the_smallest_window() {
    let chain = Chain::new(Fork::Ecotone);
    chain.store.keep_proofs(1).unwrap();
    let (passer, withdrawal) = (keccak256(PASSER), B256::repeat_byte(5));
    let account = AccountChange {
        nonce: 1,
        balance: U256::ZERO,
        code_hash: KECCAK256_EMPTY,
    };
    let slot = StorageChange {
        wiped: false,
        slots: [(keccak256(withdrawal), U256::ONE)].into(),
    };
    let changes = Changes {
        accounts: [(passer, Some(account))].into(),
        storages: [(passer, slot)].into(),
        ..Default::default()
    };
    store_block(&chain, &changes);
    store_blocks(&chain, 5_000);
    for block in ["0x1", "0x2", "0x9c4", "0x1388", "latest"] {
        let (root, _) = root_and_hash(&chain, block).await;
        let params = json!([PASSER, [withdrawal], block]);
        let proof = chain.result("eth_getProof", params).await;
        let account = TrieAccount {
            nonce: 1,
            balance: U256::ZERO,
            storage_root: serde_json::from_value(proof["storageHash"].clone()).unwrap(),
            code_hash: KECCAK256_EMPTY,
        };
        let (key, leaf) = (Nibbles::unpack(passer), alloy_rlp::encode(account));
        verify_proof(root, key, Some(leaf), &nodes(&proof["accountProof"])).unwrap();
        let item = &proof["storageProof"][0];
        let key = Nibbles::unpack(keccak256(withdrawal));
        let leaf = Some(alloy_rlp::encode(U256::ONE));
        verify_proof(account.storage_root, key, leaf, &nodes(&item["proof"])).unwrap();
    }
}
