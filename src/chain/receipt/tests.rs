use super::*;
use crate::chain::evm::tests::fixture;
use alloy_primitives::{Address, hex};
use proptest::prelude::*;
use serde_json::Value;

fn receipts(file: &Value) -> Vec<Receipt> {
    let read = |json: &Value| Receipt {
        tx_type: json["type"].as_u64().unwrap() as u8,
        success: json["status"] == 1,
        cumulative_gas_used: json["cumulativeGasUsed"].as_u64().unwrap(),
        logs: serde_json::from_value(json["logs"].clone()).unwrap(),
        deposit_nonce: json["depositNonce"].as_u64(),
        deposit_version: None,
        post_state: None,
    };
    file["receipts"]
        .as_array()
        .unwrap()
        .iter()
        .map(read)
        .collect()
}

#[test]
fn a_legacy_receipt_has_no_type_byte() {
    let receipt = Receipt {
        tx_type: 0,
        success: true,
        cumulative_gas_used: 21_000,
        logs: Vec::new(),
        deposit_nonce: None,
        deposit_version: None,
        post_state: None,
    };
    let bytes = receipt.to_bytes();
    assert_eq!(Receipt::decode_2718(&bytes), Ok(receipt));
    assert!(Receipt::decode_2718(&[&[0], &bytes[..]].concat()).is_err());
}

#[test]
fn the_root_leaves_the_deposit_nonce_out_before_canyon() {
    let Some(file) = fixture("deposits-fees/receipts-root-base-sepolia.json") else {
        return;
    };
    let receipts = receipts(&file);
    let want = |case: usize| {
        serde_json::from_value::<B256>(file["cases"][case]["receiptsRoot"].clone()).unwrap()
    };
    assert_eq!(receipts_root(&receipts, Some(Fork::Regolith)), want(0));
    // In the vectors, the nonce is part of the root without Canyon's receipt version.
    assert_eq!(receipts_root(&receipts, Some(Fork::Canyon)), want(1));
    assert_ne!(want(0), want(1));
}

#[test]
fn receipts_of_other_clients_read_and_write_the_same() {
    let files = ["receipt-rlp", "receipt-deposit-rlp", "op-geth-receipt-test"];
    let mut seen = 0;
    for name in files {
        let Some(file) = fixture(&format!("deposits-fees/{name}.json")) else {
            return;
        };
        for literal in file["literals"].as_array().unwrap() {
            let test = literal["test"].as_str().unwrap();
            let mut bytes = hex::decode(literal["hex"].as_str().unwrap()).unwrap();
            match test {
                // Skip literals that are not single receipts.
                "TestTypedReceiptEncodingDecoding"
                | "TestDeriveOptimismBedrockTxReceipts"
                | "TestDeriveOptimismEcotoneTxReceipts" => {
                    continue;
                }
                // Receipts with logs but an empty bloom are refused.
                "encode_legacy_receipt" | "decode_legacy_receipt" => {
                    assert_eq!(
                        Receipt::decode_2718(&bytes),
                        Err(alloy_rlp::Error::Custom(
                            "the bloom is not that of the logs"
                        ))
                    );
                    continue;
                }
                // The receipt is in the network encoding, wrapped as a string.
                _ if bytes[0] == 0xb9 => bytes = bytes[3..].to_vec(),
                // The receipt lacks its type byte.
                "regolith_receipt_roundtrip" | "post_canyon_receipt_roundtrip" => {
                    bytes.insert(0, DEPOSIT_TX_TYPE)
                }
                _ => {}
            }
            let receipt = match Receipt::decode_2718(&bytes) {
                Ok(receipt) => receipt,
                // A receipt from before Byzantium, with an intermediate state root instead of the
                // status.
                Err(_) if test == "TestBedrockDepositReceiptUnchanged" => continue,
                Err(error) => panic!("{name} {test}: {error}"),
            };
            assert_eq!(receipt.to_bytes(), bytes, "{name} {test}");
            let canyon = test.contains("canyon");
            assert_eq!(receipt.deposit_version, canyon.then_some(1), "{test}");
            assert_eq!(
                receipt.deposit_nonce,
                (canyon || test.contains("regolith")).then_some(4_012_991),
                "{test}"
            );
            seen += 1;
        }
    }
    assert_eq!(seen, 10);
}

proptest! {
    #[test]
    fn a_receipt_reads_as_written(
        kind in prop_oneof![Just(0u8), Just(1), Just(2), Just(4), Just(DEPOSIT_TX_TYPE)],
        success: bool,
        cumulative_gas_used: u64,
        logs in prop::collection::vec((any::<[u8; 20]>(), prop::collection::vec(any::<[u8; 32]>(), 0..=4), prop::collection::vec(any::<u8>(), 0..80)), 0..4),
        nonce: Option<u64>,
        version: bool,
    ) {
        let logs = logs.into_iter().map(|(address, topics, data)| {
            Log::new_unchecked(Address::from(address), topics.into_iter().map(B256::from).collect(), data.into())
        });
        let deposit_nonce = nonce.filter(|_| kind == DEPOSIT_TX_TYPE);
        let deposit_version = (version && deposit_nonce.is_some()).then_some(1);
        let receipt = Receipt { tx_type: kind, success, cumulative_gas_used, logs: logs.collect(), deposit_nonce, deposit_version, post_state: None };
        let bytes = receipt.to_bytes();
        prop_assert_eq!(Receipt::decode_2718(&bytes), Ok(receipt));
        prop_assert!(Receipt::decode_2718(&bytes[..bytes.len() - 1]).is_err());
        prop_assert!(Receipt::decode_2718(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        let _ = Receipt::decode_2718(&bytes);
    }
}
