//! Data from L1 (attributes of blocks, deposit logs, configuration logs) and the rollup
//! configuration in a file.

use crate::{InputKind, fixtures};
use alloy_primitives::{Address, B256, Log, LogData, TxKind, U256};
use op_alloy_consensus::TxDeposit;
use starling_proto::{
    config::RollupConfig,
    config_update::CONFIG_UPDATE_EVENT,
    deposit::{self, deposit_from_log, deposit_to_log},
    l1info::L1BlockInfo,
    system_config::{FeeScalars, SystemConfig},
};

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    match L1BlockInfo::decode(data) {
        Ok(info) => {
            assert_eq!(
                hex::encode(info.encode()),
                hex::encode(data),
                "every byte is accounted for"
            );
            outcome.add(&data.len());
        }
        Err(error) => outcome.add(&error),
    }
    let words: Vec<B256> = data
        .chunks_exact(32)
        .take(3)
        .map(B256::from_slice)
        .collect();
    let rest = data.get(words.len() * 32..).unwrap_or_default();
    if let [first, second, third] = words[..] {
        deposit_log(
            vec![deposit::DEPOSIT_EVENT, first, second, B256::ZERO],
            rest,
            &mut outcome,
        );
        deposit_log(vec![first, second, third], rest, &mut outcome);
        config_log(
            vec![CONFIG_UPDATE_EVENT, B256::ZERO, first],
            rest,
            &mut outcome,
        );
        let kind = B256::with_last_byte(first[31] % 8);
        config_log(
            vec![CONFIG_UPDATE_EVENT, B256::ZERO, kind],
            rest,
            &mut outcome,
        );
        if let Ok(scalars) = FeeScalars::decode(second) {
            assert_eq!(
                FeeScalars::decode(scalars.encode()).expect("our own encoding"),
                scalars
            );
        }
    }
    if let Ok(text) = std::str::from_utf8(data) {
        match RollupConfig::from_json(text) {
            Ok(config) => {
                assert_eq!(
                    RollupConfig::from_json(&config.to_json()).expect("our own encoding"),
                    config
                );
                outcome.add(&"config");
            }
            Err(error) => outcome.add(&error),
        }
    }
    outcome
}

fn deposit_log(topics: Vec<B256>, data: &[u8], outcome: &mut InputKind) {
    let log = Log {
        address: Address::ZERO,
        data: LogData::new_unchecked(topics, data.to_vec().into()),
    };
    match deposit_from_log(&log, B256::ZERO, 3) {
        Ok(deposit) => {
            assert!(deposit.input.len() <= data.len());
            let again = deposit_from_log(&deposit_to_log(Address::ZERO, &deposit), B256::ZERO, 3);
            assert_eq!(again, Ok(deposit));
            outcome.add(&"deposit");
        }
        Err(error) => outcome.add(&error),
    }
}

fn config_log(topics: Vec<B256>, data: &[u8], outcome: &mut InputKind) {
    let log = Log {
        address: Address::ZERO,
        data: LogData::new_unchecked(topics, data.to_vec().into()),
    };
    for ecotone in [false, true] {
        let mut config = SystemConfig::default();
        match config.apply_log(&log, ecotone) {
            Ok(()) => outcome.add(&"config"),
            Err(error) => {
                assert_eq!(config, SystemConfig::default(), "a bad log changes nothing");
                outcome.add(&error);
            }
        }
    }
}

/// A deposit in which every field is set.
pub fn deposit() -> TxDeposit {
    TxDeposit {
        source_hash: B256::repeat_byte(1),
        from: Address::repeat_byte(2),
        to: TxKind::Call(Address::repeat_byte(3)),
        mint: 5,
        value: U256::from(6),
        gas_limit: 100_000,
        is_system_transaction: false,
        input: vec![7; 40].into(),
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = fixtures::bytes(
        &[
            "deposits-fees/l1-attributes-calldata.json",
            "deposits-fees/l1-attributes-calldata-magi.json",
            "deposits-fees/l1-info-decode.json",
            "deposits-fees/system-config-update-logs.json",
        ],
        30,
    );
    seeds.extend(fixtures::file("rpc-json/rollup-config-json.json").map(String::into_bytes));
    let log = deposit_to_log(Address::ZERO, &deposit());
    let words = |topics: &[B256]| topics.iter().flat_map(|word| word.0).collect::<Vec<u8>>();
    seeds.push([words(&log.topics()[1..]), log.data.data.to_vec()].concat());
    for kind in 0..7 {
        let data = [
            B256::with_last_byte(32),
            B256::with_last_byte(64),
            B256::with_last_byte(1),
            B256::with_last_byte(9),
        ];
        let topics = [
            B256::with_last_byte(kind),
            B256::with_last_byte(1),
            B256::ZERO,
        ];
        seeds.push([words(&topics), words(&data[..2 + usize::from(kind == 1)])].concat());
    }
    seeds
}
