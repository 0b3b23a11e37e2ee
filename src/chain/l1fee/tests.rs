use super::*;
use crate::chain::evm::tests::fixture;
use alloy_primitives::{B256, hex, keccak256};
use proptest::prelude::*;
use serde_json::Value;
use starling_proto::encoder::transaction_da_size;

fn info(vector: &Value) -> L1BlockInfo {
    let number = |name: &str| vector[name].as_u64().unwrap_or(0);
    L1BlockInfo {
        format: if vector["base_fee_scalar"].is_null() {
            L1InfoFormat::Bedrock
        } else {
            L1InfoFormat::Ecotone
        },
        number: 0,
        time: 0,
        base_fee: U256::from(number("l1_base_fee")),
        hash: B256::ZERO,
        sequence_number: 0,
        batcher_addr: Default::default(),
        overhead: B256::from(U256::from(number("overhead"))),
        scalar: B256::from(U256::from(number("scalar"))),
        base_fee_scalar: number("base_fee_scalar") as u32,
        blob_base_fee_scalar: number("blob_base_fee_scalar") as u32,
        blob_base_fee: U256::from(number("blob_base_fee")),
        operator_fee_scalar: number("operator_fee_scalar") as u32,
        operator_fee_constant: number("operator_fee_constant"),
        da_footprint_gas_scalar: 0,
    }
}

#[test]
fn costs_are_those_of_other_clients() {
    let Some(file) = fixture("deposits-fees/l1-cost.json") else {
        return;
    };
    let mut seen = 0;
    for vector in file["vectors"].as_array().unwrap() {
        let fork = Fork::from_name(vector["fork"].as_str().unwrap()).unwrap();
        let info = info(vector);
        if let Some(gas) = vector["gas"].as_u64() {
            assert_eq!(
                operator_fee(&info, fork, gas),
                U256::from(vector["operator_fee"].as_u64().unwrap()),
                "{vector}"
            );
            assert_eq!(operator_fee(&info, Fork::Holocene, gas), U256::ZERO);
            seen += 1;
        }
        // Skip deposits, which are not charged, and vectors without transaction bytes, whose size
        // cannot be set here.
        let Some(raw) = vector["tx"].as_str().filter(|raw| !raw.starts_with("0x7e")) else {
            continue;
        };
        let raw = hex::decode(raw).unwrap();
        let cost = receipt_cost(&info, fork, &raw);
        if let Some(fee) = vector["l1_fee"].as_u64() {
            assert_eq!(cost.fee, U256::from(fee), "{vector}");
        }
        if let Some(gas) = vector["data_gas"].as_u64().filter(|_| fork < Fork::Ecotone) {
            assert_eq!(cost.gas_used, U256::from(gas), "{vector}");
        }
        if let Some(gas) = vector["l1_gas_used"].as_u64() {
            assert_eq!(cost.gas_used, U256::from(gas), "{vector}");
        }
        if let Some(size) = vector["fastlz_size"].as_u64() {
            assert_eq!(
                estimated_size_scaled(&raw),
                (836_500 * size).saturating_sub(42_585_600).max(100_000_000),
                "{vector}"
            );
        }
        seen += 1;
    }
    assert!(seen >= 13, "{seen}");
}

#[test]
fn sizes_are_those_of_fastlz() {
    let Some(file) = fixture("deposits-fees/l1-cost.json") else {
        return;
    };
    let vectors = file["fastlz"].as_array().unwrap();
    assert!(!vectors.is_empty());
    for vector in vectors {
        let input = match vector["input_repeat"].as_array() {
            Some(repeat) => hex::decode(repeat[0].as_str().unwrap())
                .unwrap()
                .repeat(repeat[1].as_u64().unwrap().try_into().unwrap()),
            None => hex::decode(vector["input"].as_str().unwrap()).unwrap(),
        };
        let length = vector["len"].as_u64().unwrap();
        let want = (836_500 * length)
            .saturating_sub(42_585_600)
            .max(100_000_000);
        assert_eq!(estimated_size_scaled(&input), want, "{vector}");
    }
}

#[test]
fn the_footprint_counts_at_least_a_hundred_bytes() {
    assert_eq!(da_footprint(&[2, 1], 400), 40_000);
    assert_eq!(da_footprint(&[2, 1], 0), 0);
    let noise: Vec<u8> = (0..64u8).flat_map(|n| keccak256([n]).0).collect();
    let bytes = estimated_size_scaled(&noise) / 1_000_000;
    assert!(bytes > 1_000);
    assert_eq!(da_footprint(&noise, 400), bytes * 400);
}

proptest! {
    /// The batcher estimates sizes with a crate that has no EVM. The result equals the EVM's
    /// estimate.
    #[test]
    fn the_batcher_estimates_sizes_as_the_fee_does(
        raw in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..400),
            prop::collection::vec(0..3_u8, 0..4_000),
            (prop::collection::vec(any::<u8>(), 1..60), 0..400_usize)
                .prop_map(|(part, times)| part.repeat(times)),
        ],
    ) {
        prop_assert_eq!(da_size(&raw), transaction_da_size(&raw));
    }
}
