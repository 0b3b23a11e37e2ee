//! Messages of a flashblock stream, plain or compressed, one after another.

use crate::{InputKind, fixtures};
use starling::pending::flashblocks::{Assembler, Flashblock};

/// Separates messages in the input. JSON text never contains this byte.
const SEPARATOR: u8 = 0x1e;

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    let mut assembler = Assembler::default();
    for message in data.split(|byte| *byte == SEPARATOR).take(16) {
        match Flashblock::read(message) {
            Ok(part) => outcome.add(&assembler.accept(part)),
            Err(error) => outcome.add(&error),
        }
        if let Some(sequence) = &assembler.current {
            assert!(!sequence.parts.is_empty(), "a block has a first part");
            outcome.scale(sequence.parts.len());
        }
    }
    outcome
}

pub fn seeds() -> Vec<Vec<u8>> {
    let part = |index: u64, base: &str| {
        format!(
            r#"{{"payload_id":"0x0102030405060708","index":{index},"base":{base},"diff":{{"gas_used":"0x1","transactions":["0x02"],"withdrawals":[]}},"metadata":{{}}}}"#
        )
    };
    let zeros = |bytes: usize| format!("\"0x{}\"", "00".repeat(bytes));
    let base = format!(
        r#"{{"parent_hash":{hash},"fee_recipient":{address},"prev_randao":{hash},"block_number":"0x1","gas_limit":"0x1","timestamp":"0x1","extra_data":"0x","base_fee_per_gas":"0x1"}}"#,
        hash = zeros(32),
        address = zeros(20)
    );
    let parts = [part(0, &base), part(1, "null"), part(3, "null")];
    let joined = parts.join("\u{1e}").into_bytes();
    let real = fixtures::file("p2p/flashblocks/unichain-sepolia-35535698.json");
    let real = real.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    let real = real.and_then(|json| Some(json.get("flashblocks")?.get(0)?.to_string()));
    [joined]
        .into_iter()
        .chain(real.map(String::into_bytes))
        .collect()
}
