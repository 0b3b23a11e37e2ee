//! Rollup and system configurations in JSON.

use crate::list;
use serde_json::Value;
use starling_proto::{
    config::{RollupConfig, RollupGenesis},
    fork::{Fork, ForkSchedule},
    system_config::SystemConfig,
};

/// Checks that every field of `original` is in `written` with the same value. The case of hex, and
/// the fields named in `foreign`, are ignored.
fn assert_kept(original: &Value, written: &Value, path: &str, foreign: &[&str]) {
    match original {
        Value::Object(fields) => {
            for (key, value) in fields
                .iter()
                .filter(|(key, _)| !foreign.contains(&key.as_str()))
            {
                assert_kept(value, &written[key], &format!("{path}.{key}"), foreign);
            }
        }
        Value::String(text) => assert_eq!(
            text.to_lowercase(),
            written.as_str().unwrap().to_lowercase(),
            "{path}"
        ),
        value => assert_eq!(value, written, "{path}"),
    }
}

#[test]
fn rollup_configurations_survive_reading_and_writing() {
    let kona = fixture!("rpc-json/rollup-config-json.json");
    let devnet = fixture!("devnet/jovian/rollup.json");
    // Field names of another implementation, fields that current op-node refuses (we read but do
    // not write these), and an unknown field that must be ignored.
    let foreign = [
        "protocol_versions_address",
        "da_challenge_address",
        "da_challenge_window",
        "da_resolve_window",
        "use_plasma",
        "baseFeeScalar",
        "blobBaseFeeScalar",
        "eip1559_elasticity",
        "eip1559_denominator",
        "eip1559_denominator_canyon",
        "operatorFeeScalar",
        "operatorFeeConstant",
        "unknown_field",
    ];
    let documents = list(&kona["literals"])
        .iter()
        .map(|literal| &literal["json"])
        .chain([&devnet]);
    for document in documents {
        let mut document = document.clone();
        // In the system configuration this key means eight bytes; elsewhere it is a number.
        if let Some(system) = document["genesis"]["system_config"].as_object_mut() {
            system.remove("eip1559Denominator");
            system.remove("eip1559Elasticity");
        }
        let config = RollupConfig::from_json(&document.to_string()).unwrap();
        assert_eq!(RollupConfig::from_json(&config.to_json()).unwrap(), config);
        assert_kept(
            &document,
            &serde_json::from_str(&config.to_json()).unwrap(),
            "rollup",
            &foreign,
        );
    }
    let devnet = RollupConfig::from_json(&devnet.to_string()).unwrap();
    assert_eq!(devnet.forks, ForkSchedule::from_genesis(Fork::Jovian));
    assert_eq!(devnet.genesis.system_config.gas_limit, 60_000_000);
}

#[test]
fn system_configurations_of_every_age_are_read() {
    for literal in list(&fixture!("rpc-json/system-config-json.json")["literals"]) {
        let json = &literal["json"];
        let config: SystemConfig = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(config.gas_limit, 30_000_000);
        assert_eq!(
            u64::from(config.da_footprint_gas_scalar),
            json["daFootprintGasScalar"].as_u64().unwrap_or_default()
        );
        if json["eip1559Params"].is_string() {
            assert_eq!(
                (config.eip1559.denominator, config.eip1559.elasticity),
                (0xab, 0xcd)
            );
        }
    }
    for literal in list(&fixture!("rpc-json/rollup-genesis-json.json")["literals"]) {
        let genesis: RollupGenesis = serde_json::from_value(literal["json"].clone()).unwrap();
        assert_eq!(
            (genesis.l1.number, genesis.l2.number),
            (17_422_590, 105_235_063)
        );
    }
}
