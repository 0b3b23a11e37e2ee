//! Builds the L1's chain config as a separate file, for `--rollup.l1-chain-config`. op-node refuses
//! unknown fields, so only those fields of the genesis file's `config` are kept that geth's current
//! chain config has.

use serde_json::{Map, Value, json};

/// Block-numbered forks in geth's chain config.
pub(super) const BLOCK_FORKS: [&str; 15] = [
    "homestead",
    "daoFork",
    "eip150",
    "eip155",
    "eip158",
    "byzantium",
    "constantinople",
    "petersburg",
    "istanbul",
    "muirGlacier",
    "berlin",
    "london",
    "arrowGlacier",
    "grayGlacier",
    "mergeNetsplit",
];
/// Timestamped forks in geth's chain config, oldest first.
const TIMES: [&str; 10] = [
    "shanghai",
    "cancun",
    "prague",
    "osaka",
    "bpo1",
    "bpo2",
    "bpo3",
    "bpo4",
    "bpo5",
    "amsterdam",
];
const OTHERS: [&str; 7] = [
    "chainId",
    "daoForkSupport",
    "terminalTotalDifficulty",
    "depositContractAddress",
    "ethash",
    "clique",
    "blobSchedule",
];

/// Chain config of an L1 genesis file. Adds missing blob schedule entries for the forks that our
/// own L1 supports.
pub fn of_genesis(genesis: &Value) -> Value {
    let mut config = genesis["config"].as_object().cloned().unwrap_or_default();
    config.retain(|key, value| is_known(key) && !value.is_null());
    let mut schedule = match config.remove("blobSchedule") {
        Some(Value::Object(schedule)) => schedule,
        _ => Map::new(),
    };
    schedule.retain(|fork, entry| TIMES.contains(&fork.as_str()) && !entry.is_null());
    for (fork, target, max, fraction) in [
        ("cancun", 3, 6, 3_338_477),
        ("prague", 6, 9, 5_007_716),
        ("osaka", 6, 9, 5_007_716),
    ] {
        if config.contains_key(&format!("{fork}Time")) {
            let entry =
                || json!({ "target": target, "max": max, "baseFeeUpdateFraction": fraction });
            schedule.entry(fork).or_insert_with(entry);
        }
    }
    config.insert("blobSchedule".into(), schedule.into());
    config.into()
}

fn is_known(key: &str) -> bool {
    let is_one = |names: &[&str], suffix| {
        key.strip_suffix(suffix)
            .is_some_and(|name| names.contains(&name))
    };
    is_one(&BLOCK_FORKS, "Block") || is_one(&TIMES, "Time") || OTHERS.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devnet::genesis::{L1_CHAIN_ID, Plan, build};
    use alloy_primitives::Address;
    use starling_proto::{fork::BlobSchedule, l1_config::L1ChainConfig};

    #[test]
    fn the_l1_chain_config_has_geths_present_fields_only() {
        let plan = Plan {
            time: 1_000,
            l2_block_time: 2,
            sequencer: Address::repeat_byte(0x5e),
        };
        let genesis = build(&plan).expect("files").l1_genesis;
        let config = of_genesis(&genesis);
        let fields = config.as_object().expect("an object");
        assert!(fields.keys().all(|key| is_known(key)), "{config}");
        assert!(
            !fields.contains_key("terminalTotalDifficultyPassed") && fields.len() > 17,
            "{config}"
        );
        let read = L1ChainConfig::from_json(&config.to_string()).expect("a chain config");
        assert_eq!(read.chain_id, L1_CHAIN_ID);
        assert_eq!(
            read.blobs,
            BlobSchedule::new(vec![(0, BlobSchedule::CANCUN)])
        );
    }

    #[test]
    fn a_given_schedule_stays_and_is_completed() {
        let bpo = json!({ "target": 9, "max": 12, "baseFeeUpdateFraction": 99 });
        let genesis = json!({ "config": {
            "chainId": 7, "cancunTime": 0, "pragueTime": 0, "osakaTime": null, "bpo1Time": 5, "eip150Hash": "0x00",
            "blobSchedule": { "prague": bpo, "bpo1": bpo, "someday": bpo, "osaka": null },
        } });
        let schedule = &of_genesis(&genesis)["blobSchedule"];
        let cancun = json!({ "target": 3, "max": 6, "baseFeeUpdateFraction": 3_338_477 });
        assert_eq!(
            *schedule,
            json!({ "cancun": cancun, "prague": bpo, "bpo1": bpo })
        );
    }
}
