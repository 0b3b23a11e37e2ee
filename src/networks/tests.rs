use super::*;
use crate::chain::{Chain, Options, genesis, tests::datadir};
use serde_json::{Value, json};
use starling_proto::fork::{Fork, ForkSchedule};

/// Parses a file of the registry: tables, and keys with strings, numbers and booleans. Any other
/// form is an error.
fn toml(text: &str) -> Value {
    let mut root = json!({});
    let mut table = String::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            let name = name.strip_suffix(']').expect(line);
            table = format!("/{}", name.replace('.', "/"));
            let mut at = &mut root;
            for part in name.split('.') {
                let object = at.as_object_mut().expect(line);
                at = object.entry(part).or_insert_with(|| json!({}));
            }
            continue;
        }
        let (key, value) = line.split_once(" = ").expect(line);
        let value = match value.strip_prefix('"') {
            Some(text) => json!(text.split('"').next().expect(line)),
            None => {
                let plain = value.split('#').next().expect(line).trim();
                serde_json::from_str(plain).expect(line)
            }
        };
        root.pointer_mut(&table).expect(line)[key] = value;
    }
    root
}

/// The known keys of `[hardforks]`: any other key would be a rule that we do not implement.
const HARDFORKS: [&str; 11] = [
    "canyon_time",
    "delta_time",
    "ecotone_time",
    "fjord_time",
    "granite_time",
    "holocene_time",
    "pectra_blob_schedule_time",
    "isthmus_time",
    "jovian_time",
    "karst_time",
    "keep_karst_upgrade_gas",
];

/// Adds the DA challenge contract of a registry chain to its rollup.json, in both forms that
/// op-node writes.
fn add_alt_da(config: &mut Value, alt_da: &Value) {
    let address = lower(&alt_da["da_challenge_contract_address"]);
    let [challenge, resolve] =
        ["da_challenge_window", "da_resolve_window"].map(|name| &alt_da[name]);
    config["alt_da"] = json!({
        "da_challenge_contract_address": address,
        "da_commitment_type": alt_da["da_commitment_type"],
        "da_challenge_window": challenge,
        "da_resolve_window": resolve,
    });
    config["da_challenge_address"] = address;
    config["da_challenge_window"] = challenge.clone();
    config["da_resolve_window"] = resolve.clone();
    config["use_plasma"] = json!(true);
}

fn lower(text: &Value) -> Value {
    json!(text.as_str().unwrap().to_lowercase())
}

/// The rollup.json of a chain, in the format of the dump, by op-node's mapping of the registry.
fn mapped(chain: &Value, l1_chain_id: &Value) -> Value {
    let (genesis, addresses) = (&chain["genesis"], &chain["addresses"]);
    let system = &genesis["system_config"];
    assert_eq!(system.as_object().unwrap().len(), 4, "{system}");
    let mut config = json!({
        "genesis": {
            "l1": { "hash": genesis["l1"]["hash"], "number": genesis["l1"]["number"] },
            "l2": { "hash": genesis["l2"]["hash"], "number": genesis["l2"]["number"] },
            "l2_time": genesis["l2_time"],
            "system_config": {
                "batcherAddr": lower(&system["batcherAddress"]),
                "overhead": system["overhead"],
                "scalar": system["scalar"],
                "gasLimit": system["gasLimit"],
                "eip1559Params": format!("0x{}", "00".repeat(8)),
                "operatorFeeParams": format!("0x{}", "00".repeat(32)),
                "minBaseFee": 0,
                "daFootprintGasScalar": 0,
            },
        },
        "block_time": chain["block_time"],
        "max_sequencer_drift": chain["max_sequencer_drift"],
        "seq_window_size": chain["seq_window_size"],
        "channel_timeout": 300,
        "l1_chain_id": l1_chain_id,
        "l2_chain_id": chain["chain_id"],
        "regolith_time": 0,
        "batch_inbox_address": lower(&chain["batch_inbox_addr"]),
        "deposit_contract_address": lower(&addresses["OptimismPortalProxy"]),
        "l1_system_config_address": lower(&addresses["SystemConfigProxy"]),
        "da_challenge_address": format!("0x{}", "00".repeat(20)),
        "da_challenge_window": 0,
        "da_resolve_window": 0,
        "use_plasma": false,
        "chain_op_config": {
            "eip1559Elasticity": chain["optimism"]["eip1559_elasticity"],
            "eip1559Denominator": chain["optimism"]["eip1559_denominator"],
            "eip1559DenominatorCanyon": chain["optimism"]["eip1559_denominator_canyon"],
        },
    });
    for (name, value) in chain["hardforks"].as_object().unwrap() {
        assert!(HARDFORKS.contains(&name.as_str()), "{name}");
        if *value != json!(false) {
            config[name] = value.clone();
        }
    }
    if let Some(alt_da) = chain.get("alt_da") {
        add_alt_da(&mut config, alt_da);
    }
    config
}

fn dumped(name: &str, format: RollupJsonFormat) -> Value {
    serde_json::from_str(&dump(name, format).expect(name)).unwrap()
}

#[test]
fn the_dump_of_each_chain_is_that_of_its_registry_file() {
    let Some(configs) = starling_testkit::fixture("superchain-registry/superchain/configs") else {
        return;
    };
    let read = |path: &Path| toml(&std::fs::read_to_string(path).unwrap());
    let files = |path: &Path| {
        let entries = path.read_dir().unwrap().map(|entry| entry.unwrap().path());
        entries.collect::<Vec<_>>()
    };
    let mut compared = 0;
    for folder in files(&configs).into_iter().filter(|path| path.is_dir()) {
        let superchain = read(&folder.join("superchain.toml"));
        for file in files(&folder) {
            let stem = file.file_stem().unwrap().to_str().unwrap();
            if stem == "superchain" {
                continue;
            }
            let name = format!("{stem}-{}", folder.file_name().unwrap().to_str().unwrap());
            let chain = read(&file);
            let wanted = mapped(&chain, &superchain["l1"]["chain_id"]);
            assert_eq!(dumped(&name, RollupJsonFormat::Legacy), wanted, "{name}");
            let has_alt_da =
                chain["data_availability_type"] == "alt-da" && chain.get("alt_da").is_some();
            assert_eq!(wanted["use_plasma"], json!(has_alt_da), "{name}");
            compared += 1;
        }
    }
    assert_eq!(compared, 53);
    assert_eq!(network::names().count(), 55, "these, and the two of Base");
}

#[test]
fn the_dump_of_base_is_that_of_its_file() {
    let Some(text) = starling_testkit::fixture_text("base-configs/base-mainnet-and-sepolia.json")
    else {
        return;
    };
    let chains: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(chains.len(), 2);
    for entry in chains {
        let (name, chain) = (entry["superchain"].as_str().unwrap(), &entry["chain"]);
        let given = |value: &Value| {
            let object = value.as_object().unwrap().clone();
            Value::Object(
                object
                    .into_iter()
                    .filter(|(_, value)| !value.is_null())
                    .collect(),
            )
        };
        let mut genesis = chain["genesis"].clone();
        let system = given(&genesis["system_config"]);
        genesis["system_config"] = system.clone();
        genesis["system_config"]["batcherAddress"] = system["batcherAddr"].clone();
        genesis["system_config"]
            .as_object_mut()
            .unwrap()
            .remove("batcherAddr");
        let optimism = &chain["optimism"];
        let chain = json!({
            "chain_id": chain["l2_chain_id"],
            "batch_inbox_addr": chain["batch_inbox_address"],
            "block_time": chain["block_time"],
            "seq_window_size": chain["seq_window_size"],
            "max_sequencer_drift": chain["max_sequencer_drift"],
            "hardforks": chain["hardfork_configuration"],
            "optimism": {
                "eip1559_elasticity": optimism["eip1559Elasticity"],
                "eip1559_denominator": optimism["eip1559Denominator"],
                "eip1559_denominator_canyon": optimism["eip1559DenominatorCanyon"],
            },
            "genesis": genesis,
            "addresses": chain["Addresses"],
        });
        let l1_chain_id = if name == "mainnet" { 1 } else { 11_155_111 };
        let wanted = mapped(&chain, &json!(l1_chain_id));
        let name = format!("base-{name}");
        assert_eq!(dumped(&name, RollupJsonFormat::Legacy), wanted, "{name}");
    }
}

/// The keys at one depth of indent, in the order of the text.
fn keys(text: &str) -> Vec<&str> {
    let keys = text.lines().filter_map(|line| line.strip_prefix("  \""));
    keys.map(|line| line.split('"').next().unwrap()).collect()
}

#[test]
fn a_dump_has_two_spaces_and_the_documented_order_of_keys() {
    let text = dump("celo-mainnet", RollupJsonFormat::Legacy).unwrap();
    let documented = [
        "genesis",
        "block_time",
        "max_sequencer_drift",
        "seq_window_size",
        "channel_timeout",
        "l1_chain_id",
        "l2_chain_id",
        "regolith_time",
        "canyon_time",
        "delta_time",
        "ecotone_time",
        "fjord_time",
        "granite_time",
        "holocene_time",
        "isthmus_time",
        "batch_inbox_address",
        "deposit_contract_address",
        "l1_system_config_address",
        "da_challenge_address",
        "da_challenge_window",
        "da_resolve_window",
        "use_plasma",
        "chain_op_config",
    ];
    assert_eq!(keys(&text), documented);
    assert!(text.ends_with("\n}\n") && text.contains("\n    \"l2_time\": 1742957258,\n"));
    let current = dump("celo-mainnet", RollupJsonFormat::Current).unwrap();
    let left_out = &documented[18..22];
    let kept: Vec<_> = documented
        .into_iter()
        .filter(|key| !left_out.contains(key))
        .collect();
    assert_eq!(keys(&current), kept);
    let sepolia = dump("soneium-minato-sepolia", RollupJsonFormat::Current).unwrap();
    assert!(sepolia.contains("\n  \"keep_karst_upgrade_gas\": true,\n"));
}

#[test]
fn names_are_listed_one_per_line() {
    let list = list();
    assert_eq!(list.lines().count(), 55);
    for name in list.lines() {
        assert_eq!(
            RollupSource::named(name).unwrap().to_string(),
            format!("the network {name}")
        );
    }
}

#[test]
fn a_genesis_file_without_config_takes_that_of_its_network() {
    let Some(registry) = starling_testkit::fixture("superchain-registry/superchain/extra") else {
        return;
    };
    let dictionary = std::fs::read(registry.join("dictionary")).unwrap();
    for (folder, stem) in [
        ("mainnet", "mode"),
        ("sepolia", "zora"),
        ("sepolia-devnet-2", "sepolia-devnet-2"),
    ] {
        let packed = registry.join(format!("genesis/{folder}/{stem}.json.zst"));
        let mut decoder = zstd::bulk::Decompressor::with_dictionary(&dictionary).unwrap();
        let packed = std::fs::read(packed).unwrap();
        let text = String::from_utf8(decoder.decompress(&packed, 100 << 20).unwrap()).unwrap();
        let name = format!("{stem}-{folder}");
        let rollup = RollupSource::named(&name).unwrap().read().unwrap();
        let genesis = genesis::parse_with_rollup(&text, &rollup).expect(&name);
        assert_eq!(genesis.spec.genesis_hash, rollup.genesis.l2.hash, "{name}");
        assert_eq!(genesis.spec.chain_id, rollup.l2_chain_id);
    }
}

/// Each network that can be begun has its genesis file at the place that is named.
#[test]
fn genesis_files_are_where_the_sentence_says() {
    let Some(registry) = starling_testkit::fixture("superchain-registry") else {
        return;
    };
    let (mut found, mut elsewhere) = (0, Vec::new());
    for name in list().lines() {
        let said = RollupSource::named(name)
            .unwrap()
            .where_genesis_is()
            .unwrap();
        match said
            .split_whitespace()
            .find(|word| word.ends_with(".json.zst"))
        {
            Some(path) => {
                assert!(registry.join(path).is_file(), "{said}");
                found += 1;
            }
            None => elsewhere.push(name.to_owned()),
        }
    }
    let without_file = [
        "base-mainnet",
        "base-sepolia",
        "boba-mainnet",
        "boba-sepolia",
        "celo-mainnet",
        "op-mainnet",
    ];
    assert_eq!(
        (found, elsewhere),
        (49, without_file.map(str::to_owned).to_vec())
    );
}

#[test]
fn a_misspelt_member_is_named_with_the_nearest_name() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut json: Value =
        serde_json::from_str(&dump("op-mainnet", RollupJsonFormat::Legacy).unwrap()).unwrap();
    let source = RollupSource::File(file.path().to_owned());
    let said = |json: &Value| {
        std::fs::write(file.path(), json.to_string()).unwrap();
        source.unknown_members()
    };
    assert_eq!(said(&json), Vec::<String>::new());
    for (name, nearest) in [
        ("jovain_time", "; did you mean jovian_time?"),
        ("isthmusTime", "; did you mean isthmus_time?"),
        ("holocene_timestamp", "; did you mean holocene_time?"),
        ("somebody_elses_setting", ""),
    ] {
        json[name] = 5.into();
        let sentence = format!("the member {name} is not known, and is ignored{nearest}");
        assert_eq!(said(&json), [sentence]);
        json.as_object_mut().unwrap().remove(name);
    }
    json["genesis"]["system_config"]["minBaseFees"] = 5.into();
    assert_eq!(
        said(&json),
        [
            "the member minBaseFees in genesis.system_config is not known, and is ignored; did you mean minBaseFee?"
        ]
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let said = RollupSource::File("/nowhere/rollup.json".into())
        .read()
        .unwrap_err()
        .to_string();
    assert!(
        said.starts_with("--rollup.config: /nowhere/rollup.json cannot be read"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollup_configuration_stays_once_the_chain_has_passed_a_rule_by_it() {
    let dir = datadir();
    let options = Options {
        datadir: dir.path().to_owned(),
        cache: 4 << 20,
        commit_interval: std::time::Duration::from_millis(20),
    };
    let (chain, threads) = Chain::open(&options).unwrap();
    let head_time = chain.heads().borrow().timestamp;
    let mut first = find("op-mainnet").unwrap().rollup;
    first.genesis.l2_time = head_time - 10;
    first.forks = ForkSchedule::from_genesis(Fork::Jovian).with(Fork::Karst, Some(head_time));
    rules::put_in_force(&chain, &first, None).await.unwrap();
    let mut later = first.clone();
    later.forks = later.forks.with_lagoon(Some(head_time + 1));
    rules::put_in_force(&chain, &later, None).await.unwrap();
    for edit in [
        |config: &mut RollupConfig| config.keep_karst_upgrade_gas = false,
        |config: &mut RollupConfig| config.forks = config.forks.clone().with(Fork::Karst, None),
        |config: &mut RollupConfig| config.forks = config.forks.clone().with_lagoon(Some(0)),
    ] {
        let mut other = later.clone();
        edit(&mut other);
        assert!(rules::put_in_force(&chain, &other, None).await.is_err());
    }
    rules::put_in_force(&chain, &later, None).await.unwrap();
    drop(chain);
    threads.stop().unwrap();
}
