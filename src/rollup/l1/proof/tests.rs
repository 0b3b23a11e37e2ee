//! Proofs of the unsafe block signer's slot, from honest and hostile endpoints.

use super::super::{
    L1Client, L1Config, L1Error, L1Tag, UNSAFE_BLOCK_SIGNER_SLOT,
    fake::{self, FakeL1},
};
use super::*;
use alloy_primitives::U256;
use alloy_trie::EMPTY_ROOT_HASH;
use serde_json::{Value, json};

const CONTRACT: Address = Address::repeat_byte(0x5c);
const SIGNER: Address = Address::repeat_byte(0x55);
const ATTACKER: Address = Address::repeat_byte(0xee);

/// An L1 whose newest block has `signer` in its state, with a valid proof. Unproven responses
/// contain the attacker.
async fn l1_with(signer: Address) -> FakeL1 {
    let l1 = FakeL1::start().await;
    l1.set_with_storage(
        fake::chain(5, 100, 2, 1),
        CONTRACT,
        UNSAFE_BLOCK_SIGNER_SLOT,
        signer.into_word(),
    );
    l1.state
        .lock()
        .answers
        .insert("eth_getStorageAt", Ok(json!(ATTACKER.into_word())));
    l1
}

async fn read_with(config: L1Config) -> Result<Address, L1Error> {
    let client = L1Client::new(&config).unwrap();
    let block = client.block(L1Tag::Latest).await?.expect("a head");
    client.unsafe_block_signer(CONTRACT, &block).await
}

async fn read(l1: &FakeL1) -> Result<Address, L1Error> {
    read_with(L1Config::new(l1.url())).await
}

/// The `eth_getProof` response of an honest endpoint.
fn truth(l1: &FakeL1) -> Value {
    l1.state.lock().answers["eth_getProof"]
        .clone()
        .expect("a proof")
}

/// The signer that the client reads if the endpoint sends this `eth_getProof` response.
async fn said(l1: &FakeL1, answer: Value) -> Result<Address, RpcCause> {
    l1.state.lock().answers.insert("eth_getProof", Ok(answer));
    read(l1).await.map_err(|error| error.cause)
}

/// Whether the result is [`RpcCause::Untrue`] with a short text, which quotes none of the
/// endpoint's response.
fn is_untrue(result: &Result<Address, RpcCause>) -> bool {
    matches!(result, Err(RpcCause::Untrue(text)) if text.contains("state root") && text.len() < 400)
}

#[tokio::test]
async fn the_signer_is_proven_unless_the_endpoint_is_trusted() {
    for signer in [SIGNER, Address::ZERO] {
        let l1 = l1_with(signer).await;
        assert_eq!(read(&l1).await.unwrap(), signer);
        assert_eq!(l1.calls("eth_getStorageAt"), 0);
        let trusting = L1Config {
            trust: true,
            ..L1Config::new(l1.url())
        };
        assert_eq!(read_with(trusting).await.unwrap(), ATTACKER);
        assert_eq!(l1.calls("eth_getProof"), 1);
    }
}

#[tokio::test]
async fn an_l1_that_lies_in_storage_but_not_in_its_header_is_found_out() {
    let l1 = l1_with(SIGNER).await;
    let truth = truth(&l1);
    let (_, other) = fake::prove(CONTRACT, UNSAFE_BLOCK_SIGNER_SLOT, ATTACKER.into_word());
    let mut value = truth.clone();
    value["storageProof"][0]["value"] = json!(ATTACKER.into_word());
    let mut nobody = truth.clone();
    nobody["storageProof"][0]["value"] = json!("0x0");
    // The storage proof of another state, first with the true account proof, then with an account
    // that contains that storage.
    let mut storage = truth.clone();
    storage["storageProof"] = other["storageProof"].clone();
    let mut root = storage.clone();
    root["storageHash"] = other["storageHash"].clone();
    let mut empty = nobody.clone();
    empty["storageHash"] = json!(EMPTY_ROOT_HASH);
    empty["storageProof"][0]["proof"] = json!([]);
    for lie in [value, nobody, storage, root, empty, other] {
        let result = said(&l1, lie.clone()).await;
        assert!(is_untrue(&result), "{result:?} of {lie}");
    }
    assert_eq!(said(&l1, truth).await.unwrap(), SIGNER);
}

#[tokio::test]
async fn a_truncated_proof_proves_nothing() {
    for (signer, claims) in [
        (SIGNER, [SIGNER, Address::ZERO]),
        (Address::ZERO, [Address::ZERO, ATTACKER]),
    ] {
        let l1 = l1_with(signer).await;
        let truth = truth(&l1);
        for claim in claims {
            let mut cut = truth.clone();
            cut["storageProof"][0]["value"] = json!(U256::from_be_bytes(claim.into_word().0));
            for list in ["/accountProof", "/storageProof/0/proof"] {
                let nodes = truth
                    .pointer(list)
                    .and_then(Value::as_array)
                    .expect("nodes")
                    .clone();
                assert!(nodes.len() > 1, "{nodes:?}");
                for length in 0..nodes.len() {
                    let mut cut = cut.clone();
                    *cut.pointer_mut(list).expect("nodes") = json!(nodes[..length]);
                    let result = said(&l1, cut).await;
                    assert!(is_untrue(&result), "{result:?} of {length} nodes in {list}");
                }
            }
        }
    }
}

#[tokio::test]
async fn the_proof_of_another_account_is_refused() {
    let l1 = l1_with(SIGNER).await;
    let truth = truth(&l1);
    let (_, other) = fake::prove(ATTACKER, UNSAFE_BLOCK_SIGNER_SLOT, ATTACKER.into_word());
    assert!(is_untrue(&said(&l1, other).await));
    for (field, value) in [
        ("nonce", json!("0x2")),
        ("balance", json!("0x6")),
        ("codeHash", json!(B256::ZERO)),
    ] {
        let mut changed = truth.clone();
        changed[field] = value;
        assert!(is_untrue(&said(&l1, changed).await), "{field}");
    }
    let mut other_slot = truth;
    let (_, proof) = fake::prove(CONTRACT, B256::repeat_byte(1), ATTACKER.into_word());
    other_slot["storageProof"] = proof["storageProof"].clone();
    assert!(is_untrue(&said(&l1, other_slot).await));

    // A valid proof that the account does not exist.
    let (state_root, nodes) = fake::prove_account(CONTRACT, None);
    l1.set(&[alloy_consensus::Header {
        state_root,
        ..fake::header(7, B256::ZERO, 100, 1)
    }]);
    let absent = json!({
        "address": CONTRACT, "balance": "0x0", "nonce": "0x0", "codeHash": B256::ZERO, "storageHash": B256::ZERO, "accountProof": nodes,
        "storageProof": [{ "key": UNSAFE_BLOCK_SIGNER_SLOT, "value": "0x0", "proof": [] }],
    });
    let nobody = said(&l1, absent).await;
    assert!(
        matches!(&nobody, Err(RpcCause::Malformed(text)) if text.starts_with("no contract at")),
        "{nobody:?}"
    );
}

/// An account without code has no storage, so the contract's address is wrong.
#[tokio::test]
async fn an_account_without_code_is_no_contract() {
    let l1 = l1_with(SIGNER).await;
    let account = TrieAccount {
        nonce: 1,
        balance: U256::from(5),
        storage_root: EMPTY_ROOT_HASH,
        code_hash: KECCAK256_EMPTY,
    };
    let (state_root, nodes) = fake::prove_account(CONTRACT, Some(account));
    l1.set(&[alloy_consensus::Header {
        state_root,
        ..fake::header(7, B256::ZERO, 100, 1)
    }]);
    let proof = json!({
        "address": CONTRACT, "balance": "0x5", "nonce": "0x1", "codeHash": KECCAK256_EMPTY, "storageHash": EMPTY_ROOT_HASH,
        "accountProof": nodes, "storageProof": [{ "key": UNSAFE_BLOCK_SIGNER_SLOT, "value": "0x0", "proof": [] }],
    });
    let nobody = said(&l1, proof).await;
    assert!(
        matches!(&nobody, Err(RpcCause::Malformed(text)) if text.starts_with("no contract at")),
        "{nobody:?}"
    );
}

#[tokio::test]
async fn huge_and_malformed_proofs_are_refused() {
    let l1 = l1_with(SIGNER).await;
    let truth = truth(&l1);
    for list in ["/accountProof", "/storageProof/0/proof"] {
        let mut long = truth.clone();
        let nodes = long
            .pointer_mut(list)
            .and_then(Value::as_array_mut)
            .expect("nodes");
        nodes.extend(vec![json!(format!("0x{}", "f8".repeat(500))); 2_000]);
        assert!(is_untrue(&said(&l1, long.clone()).await), "{list}");
        let small = L1Config {
            max_response_bytes: 100_000,
            ..L1Config::new(l1.url())
        };
        let error = read_with(small).await.unwrap_err();
        assert!(matches!(error.cause, RpcCause::TooLarge(_)), "{error}");
    }
    let mut many = truth.clone();
    many["storageProof"] = json!(vec![truth["storageProof"][0].clone(); 3]);
    let mut none = truth.clone();
    none["storageProof"] = json!([]);
    for malformed in [many, none, Value::Null, json!([]), json!("0x"), json!({})] {
        let result = said(&l1, malformed).await;
        assert!(matches!(result, Err(RpcCause::Malformed(_))), "{result:?}");
    }
}

#[tokio::test]
async fn an_endpoint_without_proofs_is_named_with_the_way_on() {
    let l1 = l1_with(SIGNER).await;
    l1.state.lock().answers.insert(
        "eth_getProof",
        Err((-32601, "the method eth_getProof does not exist".into())),
    );
    let error = read(&l1).await.unwrap_err().to_string();
    let start = format!(
        "L1 at {}: eth_getProof: error -32601: the method eth_getProof does not exist: ",
        l1.url()
    );
    assert!(
        error.starts_with(&start) && error.ends_with("or believe this one with --l1.trustrpc"),
        "{error}"
    );
}
