//! Bodies of JSON-RPC requests and batches, and parameters of each kind.

use crate::{InputKind, fixtures};
use alloy_primitives::{Address, B256, Bytes};
use futures::{FutureExt, executor::block_on};
use serde_json::value::RawValue;
use starling::rpc::{
    api::Api, error, frame::Session, memory::Allowance, operator::RequestSender, params::Args,
};
use std::{collections::HashMap, sync::LazyLock};

/// Limits of a batch: its calls, and the bytes of its results.
const BATCH: usize = 16;
const RESULTS: usize = 8 << 10;

static API: LazyLock<Api> = LazyLock::new(|| {
    let mut api = Api::default();
    api.insert("t_text", |mut args| {
        async move { error::reply(args.required::<String>()?) }.boxed()
    });
    api.insert("t_none", |args: Args| {
        async move { error::reply(args.at_most(0).is_ok()) }.boxed()
    });
    api.insert("t_bytes", |mut args| {
        async move {
            error::reply((
                args.required::<Address>()?,
                args.optional::<B256>()?,
                args.optional::<Bytes>()?,
            ))
        }
        .boxed()
    });
    api
});
static ALLOWANCE: LazyLock<Allowance> =
    LazyLock::new(|| Allowance::new(BATCH, RESULTS, 1 << 20, 1 << 20));
static SENDER: LazyLock<RequestSender> = LazyLock::new(RequestSender::default);

type JsonMembers<'a> = HashMap<&'a str, &'a RawValue>;

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    let session = Session {
        api: &API,
        allowance: &ALLOWANCE,
        chunked: false,
        metrics: None,
        deadline: None,
        subscriptions: None,
        sender: &SENDER,
    };
    let answer = block_on(session.respond(data));
    let Some(text) = &answer.text else {
        return outcome;
    };
    // A response repeats the ids and texts of the request. An error message adds a few hundred
    // bytes per call.
    assert!(
        text.len() <= 6 * data.len() + 512 * (1 + BATCH),
        "{} bytes for {}",
        text.len(),
        data.len()
    );
    // Keep raw values: an id may be a number that no type here can represent.
    let answers: Vec<JsonMembers> = if text.starts_with('[') {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("no JSON ({error}): {text}"))
    } else {
        vec![serde_json::from_str(text).unwrap_or_else(|error| panic!("no JSON ({error}): {text}"))]
    };
    assert!(!answers.is_empty() && answers.len() <= BATCH, "{text}");
    for answer in &answers {
        assert_eq!(answer["jsonrpc"].get(), "\"2.0\"", "{text}");
        assert!(
            answer.contains_key("result") != answer.contains_key("error"),
            "{text}"
        );
        outcome.add(&answer.get("error").map(|error| error.get()));
    }
    outcome.scale(answers.len());
    outcome
}

pub fn seeds() -> Vec<Vec<u8>> {
    let address = Address::repeat_byte(0xab);
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"t_text","params":["\u00e9\n"]}"#.to_owned();
    let bytes = format!(
        r#"{{"jsonrpc":"2.0","id":"x","method":"t_bytes","params":["{address}",null,"0x00ff"]}}"#
    );
    let none = r#"{"jsonrpc":"2.0","method":"t_none"}"#.to_owned();
    let unknown =
        r#" {"id":null,"jsonrpc":"2.0","params":{"a":1},"method":"eth_unknown","more":[1.5e3]} "#
            .to_owned();
    let large = r#"{"jsonrpc":"2.0","id":1e9991,"method":"t_none"}"#.to_owned();
    let mut seeds = vec![
        large,
        format!("[{text},{bytes},{none},{unknown},1,[]]"),
        format!("[{}]", vec![text.clone(); 20].join(",")),
    ];
    seeds.extend([
        text,
        bytes,
        none,
        unknown,
        "[]".to_owned(),
        "[".repeat(300),
        r#"{"a":"#.repeat(200),
    ]);
    let mut seeds: Vec<Vec<u8>> = seeds.into_iter().map(String::into_bytes).collect();
    seeds.extend(fixtures::file("rpc-json/op-deposit-tx-compat.json").map(String::into_bytes));
    seeds
}
