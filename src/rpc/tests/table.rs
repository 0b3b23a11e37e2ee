//! The table of all methods that op-geth and op-reth serve. A method that this node serves responds
//! if its namespace is listed, and is unknown otherwise. Every other method has a reason why it is
//! not served.

use super::chain::Chain;
use crate::rpc::{AUTH_NAMESPACES, NAMESPACES, api::Api, cost_gate::CostGate};
use serde_json::{Value, json};
use starling_proto::fork::Fork;
use std::collections::BTreeMap;

/// Namespaces of op-node, and our own.
const OF_ROLLUP_NODES: [&str; 5] = ["opp2p", "optimism", "superroot", "starling", "health"];
/// Methods of the `admin` namespace that are op-node's.
const OF_OP_NODE: [&str; 7] = [
    "admin_setUnsafeBlockSigner",
    "admin_unsafeBlockSigner",
    "admin_startSequencer",
    "admin_stopSequencer",
    "admin_sequencerActive",
    "admin_setRecoverMode",
    "admin_resetDerivationPipeline",
];

/// All methods by name. A method that is not served has the reason.
fn table() -> BTreeMap<&'static str, Option<&'static str>> {
    let lines = include_str!("methods.txt").lines();
    let methods = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    methods
        .map(|line| match line.split_once(": ") {
            Some((name, reason)) => (name, Some(reason)),
            None => (line, None),
        })
        .collect()
}

fn namespace(method: &str) -> &str {
    match method.split('_').next().unwrap() {
        // Namespace of a method that Otterscan calls, as in op-reth.
        "erigon" => "ots",
        namespace => namespace,
    }
}

fn chain() -> Chain {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    chain.with(|context| context.conditional_gate = Some(CostGate::new(5000, 1000)))
}

async fn is_unknown(chain: &Chain, method: &str) -> bool {
    let answer = chain.ask(method, json!([])).await;
    answer["error"]["code"] == -32601
}

#[tokio::test]
async fn every_method_is_served_where_its_namespace_is_listed_or_has_a_reason() {
    let mut chain = chain();
    let all: Vec<&str> = NAMESPACES.iter().map(|namespace| namespace.name).collect();
    for (method, reason) in table() {
        let own = namespace(method);
        if own == "engine" {
            continue;
        }
        if let Some(reason) = reason {
            assert!(reason.starts_with("no: "), "{method}: {reason}");
            chain.serve(&all);
            assert!(is_unknown(&chain, method).await, "{method} is served");
            continue;
        }
        let others: Vec<&str> = all.iter().copied().filter(|name| *name != own).collect();
        chain.serve(&others);
        assert!(
            own == "rpc" || is_unknown(&chain, method).await,
            "{method} is served without its namespace"
        );
        chain.serve(&[own]);
        assert!(!is_unknown(&chain, method).await, "{method} is not served");
    }
}

#[test]
fn the_engine_api_serves_what_the_table_says() {
    let chain = chain();
    let names = AUTH_NAMESPACES
        .each_ref()
        .map(|namespace| namespace.name.to_owned());
    let api = Api::new(&names, &AUTH_NAMESPACES, &chain.context, "--authrpc");
    for (method, reason) in table() {
        if namespace(method) == "engine" {
            assert_eq!(api.method(method).is_some(), reason.is_none(), "{method}");
        }
    }
}

#[test]
fn what_is_served_is_in_the_table() {
    let table = table();
    for method in NAMESPACES.iter().flat_map(|namespace| namespace.methods) {
        let own = namespace(method.0);
        let foreign = OF_ROLLUP_NODES.contains(&own);
        let known = table.get(method.0).is_some_and(Option::is_none);
        assert!(
            foreign || known || OF_OP_NODE.contains(&method.0),
            "{} is in no table",
            method.0
        );
    }
}

#[tokio::test]
async fn parameters_of_the_wrong_kind_are_refused_by_every_method() {
    let mut chain = chain();
    let all: Vec<&str> = NAMESPACES.iter().map(|namespace| namespace.name).collect();
    chain.serve(&all);
    let deep: Value = (0..100).fold(json!(0), |inner, _| json!([inner]));
    for method in NAMESPACES.iter().flat_map(|namespace| namespace.methods) {
        for params in [json!([{}]), json!([deep]), json!(["0x", [], {}, null, 7])] {
            let answer = chain.ask(method.0, params).await;
            assert_ne!(answer["error"]["code"], -32603, "{} crashed", method.0);
        }
    }
}
