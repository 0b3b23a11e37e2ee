//! Test vectors of ethereum/tests and of the OP repositories for encoded input: RLP, transactions,
//! proofs.

use alloy_consensus::transaction::SignerRecoverable;
use alloy_primitives::{Address, B256, Bytes, U256, hex, keccak256};
use alloy_trie::{Nibbles, TrieAccount, proof::verify_proof};
use serde_json::Value;
use starling_proto::payload::decode_transaction;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn folder(name: &str) -> Option<PathBuf> {
    starling_testkit::fixture(&format!("trie-rlp/{name}"))
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Decodes one RLP item to hex text or a list, the form in which expected values are compared.
fn item(buf: &mut &[u8]) -> Result<Value, alloy_rlp::Error> {
    let header = alloy_rlp::Header::decode(buf)?;
    let (mut payload, rest) = buf.split_at(header.payload_length);
    *buf = rest;
    if !header.list {
        return Ok(Value::from(hex::encode(payload)));
    }
    let mut items = vec![];
    while !payload.is_empty() {
        items.push(item(&mut payload)?);
    }
    Ok(items.into())
}

/// Converts a vector's expected value to hex text or a list, for comparison with [`item`].
fn said(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(said).collect(),
        Value::Number(number) => {
            hex::encode(U256::from(number.as_u64().unwrap()).to_be_bytes_trimmed_vec()).into()
        }
        other => match other.as_str().unwrap() {
            big if big.starts_with('#') && big.len() < 78 => hex::encode(
                U256::from_str_radix(&big[1..], 10)
                    .unwrap()
                    .to_be_bytes_trimmed_vec(),
            )
            .into(),
            // 2^256, the only expected number that does not fit into 256 bits.
            big if big.starts_with('#') => format!("01{}", "00".repeat(32)).into(),
            text => hex::encode(text).into(),
        },
    }
}

#[test]
fn rlp_is_read_exactly_or_not_at_all() {
    let Some(folder) = folder("ethereum-tests/RLPTests") else {
        return;
    };
    let (mut valid, mut invalid) = (0, 0);
    for name in [
        "rlptest.json",
        "invalidRLPTest.json",
        "RandomRLPTests/example.json",
    ] {
        for (case, vector) in json(&folder.join(name)).as_object().unwrap() {
            let encoded = hex::decode(vector["out"].as_str().unwrap()).unwrap();
            let mut buf = encoded.as_slice();
            let read = item(&mut buf).ok().filter(|_| buf.is_empty());
            match vector["in"].as_str() {
                Some("INVALID") => {
                    assert_eq!(read, None, "{case}");
                    invalid += 1;
                }
                Some("VALID") => {
                    assert!(read.is_some(), "{case}");
                    valid += 1;
                }
                _ => {
                    assert_eq!(read, Some(said(&vector["in"])), "{case}");
                    valid += 1;
                }
            }
        }
    }
    assert!(valid > 20 && invalid > 20, "{valid} {invalid}");
}

#[test]
fn transactions_of_ethereum_tests() {
    let Some(folder) = folder("ethereum-tests/TransactionTests") else {
        return;
    };
    /// Faults that decoding does not detect; execution refuses the transaction in a block.
    const IN_A_BLOCK: [&str; 4] = [
        "TransactionException.INTRINSIC_GAS_TOO_LOW",
        "TransactionException.NONCE_TOO_BIG",
        "TransactionException.INITCODE_SIZE_EXCEEDED",
        "TransactionException.INVALID_CHAINID",
    ];
    /// Valid vectors whose gas price needs more than 16 bytes, which no account could pay: we
    /// refuse them.
    const PRICELESS: [&str; 2] = ["V_equals38", "TransactionWithHighGasPrice"];
    let (mut good, mut bad) = (0, 0);
    let mut taken = BTreeSet::new();
    for kind in fs::read_dir(&folder).unwrap() {
        for file in fs::read_dir(kind.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            for (name, vector) in json(&path).as_object().unwrap() {
                let result = ["Cancun", "Shanghai", "London"]
                    .iter()
                    .find_map(|fork| vector["result"].get(*fork))
                    .unwrap();
                // The bytes of some vectors are not even hex.
                let raw = hex::decode(vector["txbytes"].as_str().unwrap()).unwrap_or_default();
                let read = decode_transaction(&raw)
                    .ok()
                    .and_then(|tx| Some((tx.recover_signer().ok()?, *tx.hash())));
                match result.get("exception").and_then(Value::as_str) {
                    None => {
                        let wanted: (Address, B256) = (
                            result["sender"].as_str().unwrap().parse().unwrap(),
                            result["hash"].as_str().unwrap().parse().unwrap(),
                        );
                        let wanted = Some(wanted).filter(|_| !PRICELESS.contains(&name.as_str()));
                        assert_eq!(read, wanted, "{name}");
                        good += 1;
                    }
                    Some(exception) => {
                        bad += 1;
                        if read.is_some() {
                            assert!(IN_A_BLOCK.contains(&exception), "{name}: {exception}");
                            taken.insert(exception.to_owned());
                        }
                    }
                }
            }
        }
    }
    assert!(good >= 37 && bad >= 90, "{good} {bad}");
    assert_eq!(taken.len(), IN_A_BLOCK.len(), "{taken:?}");
}

#[test]
fn proofs_of_a_real_chain() {
    let Some(folder) = folder("eth_getProof") else {
        return;
    };
    let file = json(&folder.join("account_proofs.json"));
    let root: B256 = file["good_state_root"].as_str().unwrap().parse().unwrap();
    let nodes = |list: &Value| -> Vec<Bytes> { serde_json::from_value(list.clone()).unwrap() };
    let key = |of: &[u8]| Nibbles::unpack(keccak256(of));
    let mut proved = 0;
    for proof in file["proofs"].as_array().unwrap() {
        let quantity = |value: &Value| value.as_str().unwrap().parse::<U256>().unwrap();
        let hash = |name: &str| proof[name].as_str().unwrap().parse::<B256>().unwrap();
        let account = TrieAccount {
            nonce: quantity(&proof["nonce"]).to(),
            balance: quantity(&proof["balance"]),
            storage_root: hash("storageHash"),
            code_hash: hash("codeHash"),
        };
        let address: Address = proof["address"].as_str().unwrap().parse().unwrap();
        let verify = |nodes: &[Bytes]| {
            verify_proof(
                root,
                key(address.as_slice()),
                Some(alloy_rlp::encode(account)),
                nodes,
            )
        };
        let whole = nodes(&proof["accountProof"]);
        let truncated = &whole[..whole.len() - 1];
        assert!(verify(truncated).is_err());
        // One of the two recorded proofs is a damaged copy of the other: exactly one must verify.
        let mut good = verify(&whole).is_ok();
        for slot in proof["storageProof"].as_array().unwrap() {
            let at = B256::from(quantity(&slot["key"]));
            let leaf = Some(quantity(&slot["value"]))
                .filter(|value| !value.is_zero())
                .map(alloy_rlp::encode);
            good &= verify_proof(
                account.storage_root,
                key(at.as_slice()),
                leaf,
                &nodes(&slot["proof"]),
            )
            .is_ok();
        }
        proved += usize::from(good);
    }
    assert_eq!(proved, 1);
}
