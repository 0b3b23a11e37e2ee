//! Tests of rollup.json documents that are read, written and refused.

use super::{json::key, *};
use serde_json::json;

fn document() -> Value {
    json!({
        "genesis": {
            "l1": { "hash": B256::repeat_byte(1), "number": 10 },
            "l2": { "hash": B256::repeat_byte(2), "number": 0 },
            "l2_time": 1_725_557_164,
            "system_config": {
                "batcherAddr": Address::repeat_byte(3),
                "overhead": B256::ZERO,
                "scalar": B256::with_last_byte(4),
                "gasLimit": 30_000_000,
            }
        },
        "block_time": 2,
        "max_sequencer_drift": 600,
        "seq_window_size": 3600,
        "channel_timeout": 300,
        "l1_chain_id": 900,
        "l2_chain_id": 901,
        "regolith_time": 0,
        "canyon_time": 7,
        "delta_time": null,
        "batch_inbox_address": Address::repeat_byte(5),
        "deposit_contract_address": Address::repeat_byte(6),
        "l1_system_config_address": Address::repeat_byte(7),
    })
}

fn read(edit: impl FnOnce(&mut Value)) -> Result<RollupConfig, ConfigError> {
    let mut document = document();
    edit(&mut document);
    RollupConfig::from_json(&document.to_string())
}

#[test]
fn a_document_survives_reading_and_writing() {
    let config = read(|_| {}).unwrap();
    assert_eq!(config.forks.time(Fork::Bedrock), Some(0));
    assert_eq!(config.forks.time(Fork::Canyon), Some(7));
    assert_eq!(config.forks.time(Fork::Delta), None);
    assert_eq!(RollupConfig::from_json(&config.to_json()).unwrap(), config);
}

fn full() -> RollupConfig {
    let mut config = read(|_| {}).unwrap();
    config.forks = ForkSchedule::from_genesis(Fork::Karst);
    config.genesis.system_config.eip1559 = crate::system_config::Eip1559Params {
        denominator: 250,
        elasticity: 6,
    };
    config.genesis.system_config.operator_fee_scalar = 1;
    config.genesis.system_config.operator_fee_constant = u64::MAX;
    config.genesis.system_config.min_base_fee = 2;
    config.genesis.system_config.da_footprint_gas_scalar = 3;
    config.pectra_blob_schedule_time = Some(9);
    config.forks = config.forks.with_lagoon(Some(10));
    config.keep_karst_upgrade_gas = true;
    config.alt_da = Some(AltDaConfig {
        challenge_address: Address::repeat_byte(8),
        commitment_type: "GenericCommitment".to_owned(),
        challenge_window: 11,
        resolve_window: 12,
    });
    config.chain_op_config = Some(ChainOpConfig {
        eip1559_elasticity: 6,
        eip1559_denominator: 50,
        eip1559_denominator_canyon: Some(250),
    });
    config
}

#[test]
fn a_full_configuration_survives_reading_and_writing() {
    let config = full();
    assert_eq!(RollupConfig::from_json(&config.to_json()).unwrap(), config);
}

/// The fields of op-node's `rollup.Config`, by the object that contains them. op-node refuses any
/// other field. Fork times are left out.
const OP_NODE_FIELDS: [(&str, &[&str]); 6] = [
    (
        "",
        &[
            "genesis",
            "block_time",
            "max_sequencer_drift",
            "seq_window_size",
            "channel_timeout",
            "l1_chain_id",
            "l2_chain_id",
            "interop_time",
            "keep_karst_upgrade_gas",
            "batch_inbox_address",
            "deposit_contract_address",
            "l1_system_config_address",
            "chain_op_config",
            "alt_da",
            "pectra_blob_schedule_time",
        ],
    ),
    ("/genesis", &["l1", "l2", "l2_time", "system_config"]),
    ("/genesis/l1", &["hash", "number"]),
    (
        "/genesis/system_config",
        &[
            "batcherAddr",
            "overhead",
            "scalar",
            "gasLimit",
            "eip1559Params",
            "operatorFeeParams",
            "minBaseFee",
            "daFootprintGasScalar",
        ],
    ),
    (
        "/alt_da",
        &[
            "da_challenge_contract_address",
            "da_commitment_type",
            "da_challenge_window",
            "da_resolve_window",
        ],
    ),
    (
        "/chain_op_config",
        &[
            "eip1559Elasticity",
            "eip1559Denominator",
            "eip1559DenominatorCanyon",
        ],
    ),
];

#[test]
fn only_fields_that_op_node_knows_are_written() {
    let written: Value = serde_json::from_str(&full().to_json()).unwrap();
    let forks: Vec<String> = Fork::ALL.into_iter().map(key).collect();
    for (pointer, fields) in OP_NODE_FIELDS {
        let object = written.pointer(pointer).unwrap().as_object().unwrap();
        for name in object.keys() {
            let known =
                fields.contains(&name.as_str()) || pointer.is_empty() && forks.contains(name);
            assert!(known, "{pointer}/{name}");
        }
    }
}

#[test]
fn unknown_fields_are_ignored_and_both_names_of_the_last_fork_are_known() {
    assert_eq!(
        read(|d| d["mystery"] = json!({ "a": 1 })).unwrap(),
        read(|_| {}).unwrap()
    );
    assert_eq!(
        read(|d| d["lagoon_time"] = json!(5))
            .unwrap()
            .forks
            .lagoon(),
        Some(5)
    );
    assert_eq!(
        read(|d| d["interop_time"] = json!(5))
            .unwrap()
            .forks
            .lagoon(),
        Some(5)
    );
}

/// op-node's decoder matches names so: a fork whose name has another case would begin there only.
#[test]
fn names_are_matched_without_case() {
    let upper = read(|d| {
        d["Ecotone_Time"] = json!(9);
        d["DELTA_TIME"] = json!(8);
        d.as_object_mut().unwrap().remove("delta_time");
        d["Block_Time"] = d["block_time"].take();
        d.as_object_mut().unwrap().remove("block_time");
        d["genesis"]["system_config"]["minbasefee"] = json!(5);
    });
    let exact = read(|d| {
        d["ecotone_time"] = json!(9);
        d["delta_time"] = json!(8);
        d["genesis"]["system_config"]["minBaseFee"] = json!(5);
    });
    assert_eq!(upper.unwrap(), exact.unwrap());
}

#[test]
fn unknown_members_are_found_at_every_depth() {
    let unknown = |edit: fn(&mut Value)| {
        let mut document = document();
        edit(&mut document);
        let unknown = RollupConfig::unknown_members(&document.to_string());
        let paths = unknown
            .into_iter()
            .map(|member| (member.object, member.name));
        paths.collect::<Vec<_>>()
    };
    assert_eq!(unknown(|_| {}), []);
    assert_eq!(
        unknown(|d| {
            d["jovain_time"] = json!(5);
            d["Jovian_Time"] = json!(5);
            d["genesis"]["system_config"]["minBaseFees"] = json!(5);
        }),
        [
            ("", "jovain_time".to_owned()),
            ("genesis.system_config", "minBaseFees".to_owned())
        ]
    );
    for format in [RollupJsonFormat::Current, RollupJsonFormat::Legacy] {
        let written = full().to_json_as(format);
        assert_eq!(RollupConfig::unknown_members(&written), []);
    }
}

#[test]
fn the_fields_before_alt_da_are_read_as_alt_da() {
    let config = read(|d| {
        d["use_plasma"] = json!(true);
        d["da_challenge_window"] = json!(13);
    });
    assert_eq!(config.unwrap().alt_da.unwrap().challenge_window, 13);
    assert_eq!(
        read(|d| d["use_plasma"] = json!(false)).unwrap().alt_da,
        None
    );
}

type Edit = fn(&mut Value);

/// Edits that each break one rule, with a part of the expected error.
const BROKEN_RULES: [(Edit, &str); 18] = [
    (|d| d["block_time"] = json!(0), "block time cannot be 0"),
    (
        |d| d["channel_timeout"] = json!(0),
        "channel timeout must be set",
    ),
    (
        |d| d["seq_window_size"] = json!(1),
        "sequencing window size must at least be 2",
    ),
    (
        |d| d["genesis"]["l1"]["hash"] = json!(B256::ZERO),
        "genesis L1 hash cannot be empty",
    ),
    (
        |d| d["genesis"]["l2"]["hash"] = json!(B256::ZERO),
        "genesis L2 hash cannot be empty",
    ),
    (
        |d| d["genesis"]["l2"]["hash"] = d["genesis"]["l1"]["hash"].clone(),
        "L1 and L2 genesis cannot be the same",
    ),
    (
        |d| d["genesis"]["l2_time"] = json!(0),
        "missing L2 genesis time",
    ),
    (
        |d| d["genesis"]["system_config"]["batcherAddr"] = json!(Address::ZERO),
        "missing genesis system config batcher address",
    ),
    (
        |d| d["genesis"]["system_config"]["scalar"] = json!(B256::ZERO),
        "missing genesis system config scalar",
    ),
    (
        |d| d["genesis"]["system_config"]["gasLimit"] = json!(0),
        "missing genesis system config gas limit",
    ),
    (
        |d| d["batch_inbox_address"] = json!(Address::ZERO),
        "missing batch inbox address",
    ),
    (
        |d| d["deposit_contract_address"] = json!(Address::ZERO),
        "missing deposit contract address",
    ),
    (
        |d| d["l1_system_config_address"] = json!(Address::ZERO),
        "missing L1 system config address",
    ),
    (
        |d| d["l1_chain_id"] = json!(0),
        "L1 chain ID must be positive",
    ),
    (
        |d| d["l2_chain_id"] = json!(0),
        "L2 chain ID must be positive",
    ),
    (
        |d| d["l2_chain_id"] = json!(900),
        "L1 and L2 chain IDs must be different",
    ),
    (
        |d| d["canyon_time"] = json!("soon"),
        "canyon_time is \"soon\", neither seconds nor null",
    ),
    (
        |d| d["ecotone_time"] = json!(8),
        "fork ecotone set (to 8), but prior fork delta missing",
    ),
];

#[test]
fn every_rule_has_its_sentence() {
    for (edit, sentence) in BROKEN_RULES {
        let error = read(edit).unwrap_err().to_string();
        assert!(
            error.contains(sentence),
            "{error:?} instead of {sentence:?}"
        );
    }
}

#[test]
fn hostile_documents_are_errors() {
    let deep = "[".repeat(100_000);
    for text in [
        "",
        "{}",
        "null",
        "[]",
        "{\"genesis\":",
        "\u{0}",
        deep.as_str(),
    ] {
        assert!(matches!(
            RollupConfig::from_json(text),
            Err(ConfigError::Json(_))
        ));
    }
    assert!(read(|d| d["block_time"] = json!(-1)).is_err());
    assert!(read(|d| d["canyon_time"] = json!(-1)).is_err());
    assert!(read(|d| d["canyon_time"] = json!(1.5)).is_err());
    assert!(read(|d| d["genesis"]["system_config"]["eip1559Params"] = json!("0x00")).is_err());
}
