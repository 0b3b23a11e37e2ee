//! geth's own test cases of its tracers: a state, a transaction at any fork, and the tracer's
//! output.

use super::*;
use crate::chain::evm::{
    CallTracerConfig, FlatCallConfig, PrestateConfig, TracePlace, TraceWriter, Tracer, TracerConfig,
};
use alloy_evm::EthEvmFactory;
use revm::primitives::hardfork::SpecId;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Cases whose trace differs from the result that geth's case expects, with the reason.
const EXCEPTIONS: [(&str, &str); 3] = [
    (
        "call_tracer_legacy/selfdestruct.json",
        "geth's tracer in JavaScript left out the gas of a SELFDESTRUCT, and printed empty output",
    ),
    (
        "call_tracer_flat/callcode_precompiled_throw.json",
        "revm does not say why a precompile failed",
    ),
    (
        "call_tracer_flat/failed_deposit.json",
        "a deposit that fails before it runs has the frame of its call here",
    ),
];

/// A number in any form that Go accepts: hexadecimal or decimal, as a string or as a JSON number.
fn big(value: &Value) -> U256 {
    match value {
        Value::String(text) if text.is_empty() => U256::ZERO,
        Value::String(text) => text.parse().unwrap(),
        Value::Number(number) => U256::from(number.as_u64().unwrap()),
        _ => U256::ZERO,
    }
}

fn small(value: &Value) -> u64 {
    big(value).to()
}

fn bytes_of(value: &Value) -> Bytes {
    value
        .as_str()
        .map_or(Bytes::new(), |text| text.parse().unwrap())
}

fn alloc(genesis: &Value) -> Vec<(Address, Alloc)> {
    let accounts = genesis["alloc"].as_object().unwrap();
    let account = |(address, account): (&String, &Value)| {
        let slots = account["storage"].as_object().cloned().unwrap_or_default();
        let alloc = Alloc {
            nonce: small(&account["nonce"]),
            balance: big(&account["balance"]),
            code: bytes_of(&account["code"]),
            storage: slots
                .iter()
                .map(|(slot, value)| (slot.parse().unwrap(), big(value)))
                .collect(),
        };
        (address.parse().unwrap(), alloc)
    };
    accounts.iter().map(account).collect()
}

/// The newest fork of a geth configuration.
fn spec_id(config: &Value, number: u64, time: u64) -> SpecId {
    let by_number = |name: &str| config[name].as_u64().is_some_and(|fork| fork <= number);
    let by_time = |name: &str| config[name].as_u64().is_some_and(|fork| fork <= time);
    let forks = [
        (by_time("cancunTime"), SpecId::CANCUN),
        (by_time("shanghaiTime"), SpecId::SHANGHAI),
        (by_number("londonBlock"), SpecId::LONDON),
        (by_number("berlinBlock"), SpecId::BERLIN),
        (by_number("istanbulBlock"), SpecId::ISTANBUL),
        // Go ignores the case of member names, and one file depends on it.
        (by_number("IstanbulBlock"), SpecId::ISTANBUL),
        (by_number("petersburgBlock"), SpecId::PETERSBURG),
        (by_number("constantinopleBlock"), SpecId::CONSTANTINOPLE),
        (by_number("byzantiumBlock"), SpecId::BYZANTIUM),
        (by_number("eip158Block"), SpecId::SPURIOUS_DRAGON),
        (by_number("eip150Block"), SpecId::TANGERINE),
        (by_number("homesteadBlock"), SpecId::HOMESTEAD),
    ];
    let newest = forks.iter().find(|(active, _)| *active);
    newest.map_or(SpecId::FRONTIER, |(_, fork)| *fork)
}

/// An EVM for the block of a test case.
fn vm(case: &Value, ground: &Ground, deposit: bool) -> Vm {
    let (context, config) = (&case["context"], &case["genesis"]["config"]);
    let (number, time) = (small(&context["number"]), small(&context["timestamp"]));
    let fork = spec_id(config, number, time);
    let block = BlockEnv {
        number: U256::from(number),
        timestamp: U256::from(time),
        beneficiary: context["miner"].as_str().unwrap().parse().unwrap(),
        gas_limit: small(&context["gasLimit"]),
        basefee: small(&context["baseFeePerGas"]),
        difficulty: big(&context["difficulty"]),
        prevrandao: (fork >= SpecId::MERGE).then_some(B256::ZERO),
        blob_excess_gas_and_price: Some(BlobExcessGasAndPrice {
            excess_blob_gas: 0,
            blob_gasprice: 1,
        }),
        ..Default::default()
    };
    let reader = StateReader::new(ground.state().into(), None);
    let db = state_of(reader);
    if deposit {
        let spec = op(Fork::Bedrock);
        return Vm(VmKind::Optimism(Box::new(op_evm(
            &spec,
            Fork::Bedrock,
            block,
            db,
            EvmUse::Block,
        ))));
    }
    let cfg = CfgEnv::new_with_spec(fork).with_chain_id(small(&config["chainId"]));
    let env = EvmEnv::new(cfg, block);
    let evm = EthEvmFactory::default().create_evm_with_inspector(db, env, Watcher::default());
    Vm(VmKind::Ethereum(Box::new(evm)))
}

/// The trace of a case's transaction.
fn trace(case: &Value, config: TracerConfig) -> Value {
    let ground = Ground::new(alloc(&case["genesis"]));
    let (tx, raw) = {
        let raw = bytes_of(&case["input"]);
        (recover(0, &raw).unwrap(), raw)
    };
    let mut vm = vm(case, &ground, tx.is_deposit());
    let out = TraceWriter::in_memory(1 << 30);
    let mut tracer = Some(Box::new(Tracer::new(config, out)));
    vm.trace(&tx, &raw, &mut tracer, &TracePlace::default())
        .unwrap();
    let text = tracer.unwrap().finish().unwrap();
    serde_json::from_str(&text).unwrap()
}

fn options<T: DeserializeOwned + Default>(case: &Value) -> T {
    let options = case.get("tracerConfig").filter(|it| !it.is_null());
    options.map_or_else(T::default, |it| serde_json::from_value(it.clone()).unwrap())
}

/// A value with hexadecimal digits in lower case.
fn lower(value: &Value) -> Value {
    match value {
        Value::String(text) if text.starts_with("0x") => text.to_lowercase().into(),
        Value::Array(items) => items.iter().map(lower).collect(),
        Value::Object(members) => {
            let members = members
                .iter()
                .map(|(name, value)| (name.clone(), lower(value)));
            Value::Object(members.collect())
        }
        other => other.clone(),
    }
}

/// A flat frame as geth's own test compares it: without its place in the chain. A member that is
/// null, zero or empty counts as absent.
fn flat(value: &Value) -> Value {
    let nothing = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text
            .strip_prefix("0x")
            .is_some_and(|it| it.bytes().all(|b| b == b'0')),
        Value::Object(members) => members.is_empty(),
        _ => false,
    };
    let mut frame = value.as_object().cloned().unwrap_or_default();
    if frame.get("subtraces") == Some(&json!(0)) {
        frame.remove("subtraces");
    }
    for name in [
        "blockHash",
        "blockNumber",
        "transactionHash",
        "transactionPosition",
        "time",
    ] {
        frame.remove(name);
    }
    for name in ["action", "result"] {
        let part = frame.remove(name).unwrap_or_default();
        let members = part.as_object().cloned().unwrap_or_default();
        let mut members: Map<String, Value> = members
            .into_iter()
            .filter(|(_, value)| !nothing(value))
            .collect();
        if name == "action" {
            members.remove("gasUsed");
            // Only newer versions of geth print this member.
            members.remove("creationMethod");
        }
        frame.insert(name.into(), Value::Object(members));
    }
    Value::Object(frame)
}

/// A nested frame without members that only older versions of geth print.
fn nested(value: &Value) -> Value {
    let mut frame = value.as_object().cloned().unwrap_or_default();
    frame.remove("time");
    if let Some(Value::Array(calls)) = frame.get("calls") {
        let calls = calls.iter().map(nested).collect();
        frame.insert("calls".into(), calls);
    }
    Value::Object(frame)
}

/// States without the parts in which versions of geth differ: accounts that do not exist, which
/// only older versions print, and hashes of code, which only newer versions print.
fn existing(states: &Value) -> Value {
    let mut states = states.clone();
    let without_empty = |state: &mut Value| {
        if let Value::Object(accounts) = state {
            accounts.retain(|_, account| *account != json!({ "balance": "0x0" }));
            for account in accounts.values_mut().filter_map(Value::as_object_mut) {
                account.remove("codeHash");
            }
        }
    };
    without_empty(&mut states);
    for part in ["pre", "post"] {
        states.get_mut(part).map(without_empty);
    }
    states
}

/// The cases of a folder whose result differs from the expected one, each with both results.
fn differing(
    folder: &str,
    config: impl Fn(&Value) -> TracerConfig,
    form: impl Fn(&Value) -> Value,
) -> Vec<String> {
    let Some(path) = starling_testkit::fixture(&format!("tracers-geth-LGPL/{folder}")) else {
        return vec![];
    };
    let mut files: Vec<_> = std::fs::read_dir(path)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{folder}");
    let mut differing = Vec::new();
    for file in files {
        let name = format!("{folder}/{}", file.file_name().unwrap().display());
        let case: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let have = form(&lower(&trace(&case, config(&case))));
        let want = form(&lower(&case["result"]));
        let excused = EXCEPTIONS.iter().any(|(excepted, _)| *excepted == name);
        assert!(!excused || have != want, "{name} is no exception any more");
        if have != want && !excused {
            let text = |value: &Value| value.to_string().chars().take(1500).collect::<String>();
            differing.push(format!(
                "{name}\n have {}\n want {}",
                text(&have),
                text(&want)
            ));
        }
    }
    differing
}

fn check(folder: &str, config: impl Fn(&Value) -> TracerConfig, form: impl Fn(&Value) -> Value) {
    let differing = differing(folder, config, form);
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn nested_frames_are_geths() {
    let config = |case: &Value| TracerConfig::Call(options::<CallTracerConfig>(case));
    for folder in ["call_tracer", "call_tracer_legacy", "call_tracer_withLog"] {
        check(folder, config, nested);
    }
}

#[test]
fn flat_frames_are_geths() {
    let config = |case: &Value| TracerConfig::FlatCall(options::<FlatCallConfig>(case));
    let form = |frames: &Value| {
        json!(
            frames
                .as_array()
                .unwrap()
                .iter()
                .map(flat)
                .collect::<Vec<_>>()
        )
    };
    check("call_tracer_flat", config, form);
}

#[test]
fn states_before_and_after_are_geths() {
    let config = |case: &Value| TracerConfig::Prestate(options::<PrestateConfig>(case));
    for folder in ["prestate_tracer", "prestate_tracer_with_diff_mode"] {
        check(folder, config, existing);
    }
}
