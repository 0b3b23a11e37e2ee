use super::*;
use crate::chain::evm::tests::fixture;
use serde_json::json;

/// Parses a small genesis file with all forks, modified by `change`.
fn file(change: impl FnOnce(&mut Value)) -> Result<Genesis, GenesisError> {
    let mut file = json!({
        "config": {
            "chainId": 901, "bedrockBlock": 0, "regolithTime": 0, "canyonTime": 0, "shanghaiTime": 0, "ecotoneTime": 0,
            "fjordTime": 0, "graniteTime": 0, "holoceneTime": 0, "isthmusTime": 0, "jovianTime": 0, "karstTime": 2_000,
            "optimism": { "eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250 },
        },
        "timestamp": "0x3e8", "gasLimit": "60000000", "difficulty": 0, "extraData": "0x01000000fa000000060000000000000000",
        "alloc": { "4200000000000000000000000000000000000016": { "balance": "0x0", "code": "0x00", "storage": { "0x1": "0x2", "3": "0" } } },
    });
    change(&mut file);
    parse(&file.to_string())
}

fn refusal(change: impl FnOnce(&mut Value)) -> String {
    file(change).unwrap_err().to_string()
}

#[test]
fn the_jovian_devnet_has_its_genesis_hash() {
    let Some(file) = fixture("devnet/jovian/l2-genesis.json.zst") else {
        return;
    };
    let Some(rollup) = fixture("devnet/jovian/rollup.json") else {
        return;
    };
    let genesis = parse(&file.to_string()).unwrap();
    assert_eq!(
        genesis.spec.genesis_hash.to_string(),
        rollup["genesis"]["l2"]["hash"].as_str().unwrap()
    );
    assert_eq!(genesis.spec.chain_id, 13);
    assert_eq!(
        genesis.spec.at(genesis.spec.genesis_time).op,
        Some(Fork::Jovian)
    );
    assert_eq!(genesis.payload().hash, genesis.spec.genesis_hash);
}

/// op-geth has no such member, so it may have any time.
#[test]
fn a_time_for_delta_is_ignored() {
    let without = file(|_| {}).unwrap();
    for time in [json!(0), json!(5_000), Value::Null] {
        let with = file(|file| file["config"]["deltaTime"] = time.clone()).unwrap();
        assert_eq!(with.spec, without.spec, "{time}");
    }
    let late_canyon = file(|file| {
        file["config"]["canyonTime"] = json!(900);
        file["config"]["shanghaiTime"] = json!(900);
        file["config"]["deltaTime"] = json!(0);
        for fork in [
            "ecotone", "fjord", "granite", "holocene", "isthmus", "jovian",
        ] {
            file["config"][format!("{fork}Time")] = json!(900);
        }
    });
    assert!(late_canyon.is_ok(), "{late_canyon:?}");
}

#[test]
fn published_chains_have_their_genesis_hash() {
    let Some(registry) = starling_testkit::fixture("superchain-registry/superchain") else {
        return;
    };
    let Some(want) = fixture("superchain-registry/GENESIS-HASH-CHECK.json") else {
        return;
    };
    let dictionary = std::fs::read(registry.join("extra/dictionary")).unwrap();
    // Skip the files of chains from before Bedrock, which have no alloc.
    let chains: Vec<_> = want
        .as_object()
        .unwrap()
        .iter()
        .filter(|(_, chain)| chain["ok"] == true)
        .collect();
    assert_eq!(chains.len(), 48);
    for (file, chain) in chains {
        let name = file.strip_suffix(".json.zst").unwrap();
        let packed = std::fs::read(registry.join("extra/genesis").join(file)).unwrap();
        let mut decoder = zstd::bulk::Decompressor::with_dictionary(&dictionary).unwrap();
        let mut file: Value =
            serde_json::from_slice(&decoder.decompress(&packed, 100 << 20).unwrap()).unwrap();
        file["config"] = config(
            &std::fs::read_to_string(registry.join(format!("configs/{name}.toml"))).unwrap(),
        );
        let genesis = parse(&file.to_string()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            genesis.spec.genesis_hash.to_string(),
            chain["expected"].as_str().unwrap(),
            "{name}"
        );
    }
}

/// Converts a chain configuration in the superchain registry's format to a genesis `config`. Reads
/// the numbers in the sections on forks and fees.
fn config(toml: &str) -> Value {
    let mut config = json!({ "regolithTime": 0, "optimism": {} });
    let mut section = "";
    for line in toml.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        }
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        let Ok(value) = value
            .split('#')
            .next()
            .unwrap_or_default()
            .trim()
            .parse::<u64>()
        else {
            continue;
        };
        let camel: String = key.trim().split('_').enumerate().fold(
            String::new(),
            |camel, (index, word)| match index {
                0 => word.to_owned(),
                _ => camel + &word[..1].to_uppercase() + &word[1..],
            },
        );
        match section {
            "" if camel == "chainId" => config[camel] = value.into(),
            "[hardforks]" if !camel.starts_with("pectra") => config[camel] = value.into(),
            "[optimism]" => config["optimism"][camel] = value.into(),
            _ => {}
        }
    }
    config
}

#[test]
fn an_ethereum_file_is_read() {
    let Some(file) = fixture("devnet/supersim-l1-900-genesis.json.zst") else {
        return;
    };
    let genesis = parse(&file.to_string()).unwrap();
    let Rules::Ethereum { forks, .. } = &genesis.spec.rules else {
        panic!("{:?}", genesis.spec)
    };
    assert_eq!(
        *forks,
        EthereumSchedule {
            shanghai: Some(0),
            cancun: Some(0),
            prague: None,
            osaka: None
        }
    );
    let header = &genesis.header;
    assert_eq!(
        (header.withdrawals_root, header.parent_beacon_block_root),
        (Some(EMPTY_ROOT_HASH), Some(B256::ZERO))
    );
    assert_eq!(
        (
            header.blob_gas_used,
            header.excess_blob_gas,
            header.requests_hash
        ),
        (Some(0), Some(0), None)
    );
    let mut late = file.clone();
    for fork in ["london", "arrowGlacier", "grayGlacier"] {
        late["config"][format!("{fork}Block")] = 5.into();
    }
    assert!(
        parse(&late.to_string())
            .unwrap_err()
            .to_string()
            .contains("config.londonBlock is not 0")
    );
    let mut order = file;
    order["config"]["osakaTime"] = 0.into();
    assert!(
        parse(&order.to_string())
            .unwrap_err()
            .to_string()
            .contains("fork times are out of order")
    );
}

#[test]
fn numbers_may_be_hex_or_decimal_and_keys_with_or_without_0x() {
    let reference = file(|_| {}).unwrap();
    assert_eq!(
        (reference.header.gas_limit, reference.header.timestamp),
        (60_000_000, 1_000)
    );
    assert_eq!(reference.header.base_fee_per_gas, Some(INITIAL_BASE_FEE));
    let same = file(|f| {
        f["gasLimit"] = "0x3938700".into();
        f["timestamp"] = 1_000.into();
        f["difficulty"] = "0x0".into();
        f["alloc"] = json!({ "0x4200000000000000000000000000000000000016": {
            "balance": 0, "nonce": "0x0", "code": "00",
            "storage": { "0x0000000000000000000000000000000000000000000000000000000000000001": "02" },
        } });
    });
    assert_eq!(same.unwrap().header, reference.header);
    // The withdrawals root is the storage root of `L2ToL1MessagePasser`.
    assert_ne!(reference.header.withdrawals_root, Some(EMPTY_ROOT_HASH));
    let without =
        file(|f| f["alloc"]["4200000000000000000000000000000000000016"]["storage"] = Value::Null)
            .unwrap();
    assert_eq!(without.header.withdrawals_root, Some(EMPTY_ROOT_HASH));
}

#[test]
fn defaults_and_accounts_without_anything() {
    let genesis = file(|f| {
        f["gasLimit"] = 0.into();
        f["difficulty"] = Value::Null;
        f["alloc"] = json!({ "0000000000000000000000000000000000000001": { "balance": "0" } });
    });
    let genesis = genesis.unwrap();
    assert_eq!(genesis.header.gas_limit, 4_712_388);
    assert_eq!(genesis.header.difficulty, U256::from(131_072));
    assert_ne!(genesis.header.state_root, EMPTY_ROOT_HASH);
    // A state root in the file, for a chain with a state from before Bedrock.
    let root = B256::repeat_byte(5);
    let given = |f: &mut Value| (f["stateHash"], f["alloc"]) = (json!(root), json!({}));
    assert_eq!(file(given).unwrap().header.state_root, root);
    assert!(
        refusal(|f| f["stateHash"] = json!(root)).contains("stateHash is given beside an alloc")
    );
}

/// Asserts that the file modified by `change` is refused, with `words` in the error.
fn assert_refused(change: impl FnOnce(&mut Value), words: &str) {
    let refusal = refusal(change);
    assert!(refusal.contains(words), "{refusal}");
}

#[test]
fn lagoon_is_scheduled_under_either_of_its_names() {
    let lagoon_of = |name: &str, time: Value| {
        let genesis = file(|f| f["config"][name] = time).unwrap();
        match genesis.spec.rules {
            Rules::Optimism { forks, .. } => forks.lagoon(),
            Rules::Ethereum { .. } => None,
        }
    };
    for name in ["lagoonTime", "interopTime"] {
        assert_eq!(lagoon_of(name, 5.into()), Some(5));
        assert_eq!(lagoon_of(name, Value::Null), None);
    }
}

#[test]
fn wrong_fork_times_are_named() {
    assert_refused(
        |f| f["config"]["shanghaiTime"] = 1.into(),
        "config.shanghaiTime is 1 and differs from canyonTime",
    );
    assert_refused(
        |f| f["config"]["pragueTime"] = 1.into(),
        "differs from isthmusTime",
    );
    assert_refused(
        |f| f["config"]["fjordTime"] = 9_000.into(),
        "config.fork times are out of order",
    );
    assert_refused(
        |f| f["config"]["bedrockBlock"] = 1.into(),
        "config.bedrockBlock is after the genesis block",
    );
}

#[test]
fn missing_and_malformed_members_are_named() {
    assert_refused(
        |f| f["config"]["optimism"]["eip1559DenominatorCanyon"] = 0.into(),
        "eip1559DenominatorCanyon is missing or zero",
    );
    assert_refused(
        |f| f["config"]["optimism"]["eip1559Elasticity"] = 0.into(),
        "eip1559Elasticity is missing or zero",
    );
    assert_refused(
        |f| f["config"]["chainId"] = Value::Null,
        "config.chainId is missing",
    );
    assert_refused(|f| f["config"] = Value::Null, "config is missing");
    assert_refused(|f| f["alloc"] = Value::Null, "alloc is missing");
    assert_refused(
        |f| f["extraData"] = "0x".into(),
        "extraData is invalid: extra data has 0 bytes, want 17",
    );
    assert_refused(
        |f| f["gasLimit"] = "ten".into(),
        "gasLimit is \"ten\", not a number",
    );
    assert_refused(
        |f| f["timestamp"] = "0x10000000000000000".into(),
        "timestamp is 18446744073709551616, more than 64 bits",
    );
}

#[test]
fn malformed_accounts_are_named() {
    let address = "0000000000000000000000000000000000000001";
    for (key, account, words) in [
        (
            "01",
            json!({ "balance": "0" }),
            "alloc.01 is not 20 bytes of hex",
        ),
        (
            address,
            json!({}),
            &*format!("alloc.{address}.balance is missing"),
        ),
        (
            address,
            json!({ "balance": 0, "code": "0xzz" }),
            "code is not hex",
        ),
        (
            address,
            json!({ "balance": 0, "storage": { "0x1": 5 } }),
            "storage.0x1 is 5, not a string",
        ),
        (address, json!(5), "is not an object"),
    ] {
        assert_refused(|f| f["alloc"] = json!({ key: account }), words);
    }
}

#[test]
fn documents_that_are_no_object_are_refused() {
    assert!(
        parse("[]")
            .unwrap_err()
            .to_string()
            .contains("the document is not an object")
    );
    assert!(matches!(parse("{"), Err(GenesisError::Json(_))));
}

/// The specification of an Ethereum genesis with blob forks at times 10, 20, 30 and 40, modified by
/// `change`.
fn with_blob_forks(change: impl FnOnce(&mut Value)) -> Result<ChainSpec, GenesisError> {
    let mut file = crate::devnet::genesis::l1_genesis_of(900, Default::default());
    let config = &mut file["config"];
    for (fork, time) in [("prague", 10), ("osaka", 20), ("bpo1", 30), ("bpo3", 40)] {
        config[format!("{fork}Time")] = time.into();
    }
    config["blobSchedule"] = json!({
        "cancun": { "target": 1, "max": 2, "baseFeeUpdateFraction": 100 },
        "osaka": { "target": 3, "max": 4, "baseFeeUpdateFraction": 200 },
        "bpo1": { "target": 5, "max": 16, "baseFeeUpdateFraction": 300 },
        "bpo3": { "target": 7, "max": 17, "baseFeeUpdateFraction": 400 },
    });
    change(config);
    parse(&file.to_string()).map(|genesis| genesis.spec)
}

#[test]
fn an_ethereum_file_schedules_its_blobs() {
    let spec = with_blob_forks(|_| ()).unwrap();
    let at = |time| {
        let params = spec.blob_params(time).unwrap();
        let counts = (params.target_blob_count, params.max_blob_count);
        (counts, params.max_blobs_per_tx, params.update_fraction)
    };
    assert_eq!(at(0), ((1, 2), 2, 100));
    assert_eq!(
        at(10),
        ((6, 9), 9, 5_007_716),
        "mainnet's where none is given"
    );
    assert_eq!(at(20), ((3, 4), 6, 200));
    assert_eq!(at(30), ((5, 16), 6, 300));
    assert_eq!(at(40), ((7, 17), 6, 400));
}

#[test]
fn an_invalid_blob_schedule_is_refused() {
    let refused = |change: fn(&mut Value)| with_blob_forks(change).unwrap_err().to_string();
    for (told, refused) in [
        (
            "config.bpo2Time is set, but blobSchedule has no entry for it",
            refused(|config| config["bpo2Time"] = 35.into()),
        ),
        (
            "config.bpo1Time is before Osaka or an earlier blob fork",
            refused(|config| config["bpo1Time"] = 19.into()),
        ),
        (
            "config.bpo3Time is before Osaka or an earlier blob fork",
            refused(|config| config["bpo3Time"] = 29.into()),
        ),
        (
            "config.blobSchedule.osaka is invalid: update fraction must be defined and non-zero",
            refused(|config| config["blobSchedule"]["osaka"]["baseFeeUpdateFraction"] = 0.into()),
        ),
        (
            "config.blobSchedule.cancun is invalid: max is not between the target and 128",
            refused(|config| config["blobSchedule"]["cancun"]["max"] = 0.into()),
        ),
        (
            "config.blobSchedule.bpo3 is invalid: max is not between the target and 128",
            refused(|config| config["blobSchedule"]["bpo3"]["max"] = 129.into()),
        ),
        (
            "config.blobSchedule.bpo1 is invalid: target is missing",
            refused(|config| config["blobSchedule"]["bpo1"]["target"] = Value::Null),
        ),
    ] {
        assert_eq!(refused, format!("invalid genesis file: {told}"));
    }
}
