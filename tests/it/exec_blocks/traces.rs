//! Traces of the ten OP Sepolia blocks: `trace_block` and callTracer must report the same calls.
//! The differential test uses the same comparison.

use super::{Fixture, files};
use alloy_primitives::{Address, U256};
use serde_json::{Value, json};
use starling::chain::{
    evm::{CallTracerConfig, TracePlace, TraceWriter, Tracer, TracerConfig},
    execute::{BlockExecution, recover},
    view::ExecutedBlock,
};

/// Limit on the bytes of one transaction's trace.
const MAX_TRACE_BYTES: usize = 1 << 28;

/// Traces the transactions of a block, one after the other.
fn trace(
    fixture: &Fixture,
    block: &ExecutedBlock,
    config: &TracerConfig,
    mut text: impl FnMut(Tracer) -> Value,
) -> Vec<Value> {
    let header = &block.payload.header;
    let mut execution = BlockExecution::begin(&fixture.spec, header, fixture.state()).unwrap();
    let transactions = block.payload.transactions.iter().enumerate();
    transactions
        .map(|(index, raw)| {
            let tracer = Tracer::new(config.clone(), TraceWriter::in_memory(MAX_TRACE_BYTES));
            let mut tracer = Some(Box::new(tracer));
            let place = TracePlace::default();
            let tx = recover(index, raw).unwrap();
            execution.trace(&tx, raw, &mut tracer, &place).unwrap();
            text(*tracer.unwrap())
        })
        .collect()
}

fn parsed(tracer: Tracer) -> Value {
    serde_json::from_str(&tracer.finish().unwrap()).unwrap()
}

/// The tracer's frames as a list in Parity's form.
fn frames(mut tracer: Tracer) -> Value {
    let frames = tracer.take_frames();
    let mut separator = "[";
    frames.visit(|frame| {
        tracer.out().raw(std::mem::replace(&mut separator, ","));
        frame.write(None, tracer.out());
    });
    tracer.out().raw("]");
    parsed(tracer)
}

pub fn is_precompile(to: &Value) -> bool {
    let to: Address = serde_json::from_value(to.clone()).unwrap();
    let number = U256::from_be_slice(to.as_slice());
    (1..=0x11).contains(&number.saturating_to::<u64>()) || number == U256::from(0x100)
}

/// Converts a callTracer call, and the calls within it in their order, to Parity's form.
pub fn flatten(call: &Value, address: &[usize], calls: &mut Vec<Value>) {
    let kind = call["type"].as_str().unwrap();
    let lower = kind.to_lowercase();
    let or = |value: &Value, default: &str| {
        if value.is_null() {
            json!(default)
        } else {
            value.clone()
        }
    };
    let value = or(&call["value"], "0x0");
    let output = or(&call["output"], "0x");
    let reverted = call["error"] == "execution reverted";
    let failed = !call["error"].is_null();
    let mut told = match kind {
        "CREATE" | "CREATE2" => {
            json!({ "type": "create", "creationMethod": lower, "init": call["input"] })
        }
        "SELFDESTRUCT" => json!({ "type": "suicide", "to": call["to"] }),
        _ => json!({ "type": "call", "callType": lower, "to": call["to"], "input": call["input"] }),
    };
    told["from"] = call["from"].clone();
    told["value"] = value;
    told["failed"] = json!(failed);
    told["address"] = json!(address);
    if kind != "SELFDESTRUCT" && (!failed || reverted) {
        told["output"] = output;
    }
    // The root frame's gas is not compared, since callTracer reports the gas of the whole
    // transaction.
    if !address.is_empty() && kind != "SELFDESTRUCT" {
        told["gas"] = call["gas"].clone();
        if !failed || reverted {
            told["gasUsed"] = call["gasUsed"].clone();
        }
    }
    calls.push(told);
    let inner = call["calls"].as_array().into_iter().flatten();
    let shown = inner.filter(|inner| {
        let free = or(&inner["value"], "0x0") == "0x0";
        !(free && !inner["to"].is_null() && is_precompile(&inner["to"]))
    });
    for (index, inner) in shown.enumerate() {
        flatten(inner, &[address, &[index]].concat(), calls);
    }
}

/// Reduces a frame of `trace_block` to the members that callTracer has too.
pub fn told(frame: &Value) -> Value {
    let (action, result) = (&frame["action"], &frame["result"]);
    let kind = frame["type"].as_str().unwrap();
    let mut told = match kind {
        "create" => json!({ "creationMethod": action["creationMethod"], "init": action["init"] }),
        "suicide" => json!({ "to": action["refundAddress"] }),
        _ => {
            json!({ "callType": action["callType"], "to": action["to"], "input": action["input"] })
        }
    };
    told["type"] = json!(kind);
    if kind == "suicide" {
        told["from"] = action["address"].clone();
        told["value"] = action["balance"].clone();
    } else {
        told["from"] = action["from"].clone();
        told["value"] = action["value"].clone();
    }
    told["failed"] = json!(!frame["error"].is_null());
    told["address"] = frame["traceAddress"].clone();
    let root = frame["traceAddress"] == json!([]);
    if !result.is_null() {
        let output = if kind == "create" { "code" } else { "output" };
        told["output"] = result[output].clone();
        if !root {
            told["gasUsed"] = result["gasUsed"].clone();
        }
    }
    if !root && kind != "suicide" {
        told["gas"] = action["gas"].clone();
    }
    told
}

#[test]
fn trace_block_and_call_tracer_agree_call_by_call() {
    let Some(files) = files("op-sepolia") else {
        return;
    };
    let mut compared = 0;
    for path in files {
        let fixture = Fixture::read(&path);
        let block = fixture.build().unwrap();
        let call = TracerConfig::Call(CallTracerConfig::default());
        let nested = trace(&fixture, &block, &call, parsed);
        let flat = trace(&fixture, &block, &TracerConfig::Frames, frames);
        assert_eq!(nested.len(), block.payload.transactions.len());
        for (nested, flat) in nested.iter().zip(&flat) {
            let mut calls = Vec::new();
            flatten(nested, &[], &mut calls);
            let frames: Vec<Value> = flat.as_array().unwrap().iter().map(told).collect();
            assert_eq!(frames, calls, "{}", path.display());
            let begun: u64 = (flat.as_array().unwrap().iter())
                .map(|frame| frame["subtraces"].as_u64().unwrap())
                .sum();
            assert_eq!(begun as usize, frames.len() - 1);
            compared += frames.len();
        }
    }
    assert!(compared > 1_000, "{compared} frames");
}
