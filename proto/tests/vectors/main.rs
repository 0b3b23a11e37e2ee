//! The protocol against vectors from other implementations: `../shared/fixtures/README.md` lists
//! the source of each file.

/// A fixture file as JSON. If the fixtures are absent, the test returns and is recorded as a skip.
macro_rules! fixture {
    ($path:literal) => {
        match $crate::fixture($path) {
            Some(fixture) => fixture,
            None => return,
        }
    };
}

mod configs;
mod deposits;
mod gossip;
mod validator;

use alloy_primitives::{Address, B256, FixedBytes};
use serde_json::Value;
use starling_proto::{
    payload::PayloadVersion,
    sign::{self, SecretKey},
};

/// A fixture file as JSON; `None`, recorded as a skip, if the fixtures are absent.
fn fixture(path: &str) -> Option<Value> {
    Some(serde_json::from_str(&starling_testkit::fixture_text(path)?).unwrap())
}

fn list(value: &Value) -> &[Value] {
    let list = value.as_array().unwrap();
    assert!(!list.is_empty(), "a list of vectors is never empty");
    list
}

/// Decodes hex with or without `0x`, also with an odd number of digits such as `0x123`.
fn bytes(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap().trim_start_matches("0x");
    hex::decode(if text.len() % 2 == 1 {
        format!("0{text}")
    } else {
        text.to_owned()
    })
    .unwrap()
}

fn array<const N: usize>(value: &Value) -> [u8; N] {
    FixedBytes::<N>::left_padding_from(&bytes(value)).0
}

fn b256(value: &Value) -> B256 {
    array(value).into()
}

fn address(value: &Value) -> Address {
    array(value).into()
}

fn version(value: &Value) -> PayloadVersion {
    let digit = value.as_str().unwrap().trim_start_matches('V')[..1]
        .parse::<usize>()
        .unwrap();
    PayloadVersion::ALL[digit - 1]
}

fn secret(value: &Value) -> SecretKey {
    sign::secret_from_hex(value.as_str().unwrap()).unwrap()
}
