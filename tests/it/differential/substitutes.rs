//! anvil's responses to requests that it does not serve in the same form. Other methods of anvil
//! are called instead, and their results are converted to Starling's form (see
//! [`forms`](super::forms)).

use super::{compare::Answer, forms};
use crate::{
    exec_blocks::traces::flatten,
    net::{call, number},
};
use serde_json::{Map, Value, json};

/// anvil's response to a request, or a converted response of other methods.
pub fn ask(url: &str, method: &str, params: &Value) -> Answer {
    match (method, params[1]["tracer"].as_str()) {
        ("trace_get", _) => frame(url, params),
        ("trace_replayTransaction", _) => replayed(url, params),
        ("trace_call", _) => traced_call(url, params),
        ("trace_callMany", _) => {
            let calls = params[0].as_array().into_iter().flatten();
            let calls = calls.map(|call| call[0].clone()).collect();
            let results = simulated(url, calls, &params[1])?;
            Ok(results.iter().map(output).collect())
        }
        ("eth_callMany", _) => {
            let calls = params[0][0]["transactions"].clone();
            let results = simulated(url, calls, &params[1]["blockNumber"])?;
            let results: Vec<_> = results.iter().map(value_or_error).collect();
            Ok(json!([results]))
        }
        ("debug_traceTransaction", Some("flatCallTracer")) => {
            call(url, "trace_transaction", json!([params[0]]))
        }
        ("debug_traceTransaction", Some("muxTracer")) => parts(url, params),
        _ => call(url, method, params.clone()),
    }
}

/// One frame of a transaction, for `trace_get`.
fn frame(url: &str, params: &Value) -> Answer {
    let mut frames = call(url, "trace_transaction", json!([params[0]]))?;
    forms::hide_precompiles(&mut frames);
    let index = number(&params[1][0]) as usize;
    Ok(frames.get_mut(index).map_or(Value::Null, Value::take))
}

/// The result of one transaction, taken from the replay of its block.
fn replayed(url: &str, params: &Value) -> Answer {
    let tx = call(url, "eth_getTransactionByHash", json!([params[0]]))?;
    if tx.is_null() {
        return Err(json!("transaction not found"));
    }
    let block = json!([tx["blockNumber"], params[1]]);
    let mut results = call(url, "trace_replayBlockTransactions", block)?;
    let mut result = results[number(&tx["transactionIndex"]) as usize].take();
    if let Some(members) = result.as_object_mut() {
        members.remove("transactionHash");
    }
    Ok(result)
}

/// A call traced with callTracer, converted.
fn traced_call(url: &str, params: &Value) -> Answer {
    let options = json!({ "tracer": "callTracer" });
    let traced = call(
        url,
        "debug_traceCall",
        json!([params[0], params[2], options]),
    )?;
    let mut calls = Vec::new();
    flatten(&traced, &[], &mut calls);
    let output = traced.get("output").cloned().unwrap_or(json!("0x"));
    Ok(json!({ "output": output, "calls": calls }))
}

/// The results of the calls in a simulated block.
fn simulated(url: &str, calls: Value, block: &Value) -> Result<Vec<Value>, Value> {
    let payload = json!({ "blockStateCalls": [{ "calls": calls }] });
    let mut blocks = call(url, "eth_simulateV1", json!([payload, block]))?;
    let calls = blocks[0]["calls"].take();
    Ok(serde_json::from_value(calls).expect("a list of calls"))
}

fn is_successful(simulated: &Value) -> bool {
    simulated["status"] == "0x1"
}

/// The output of a call, or null if the call failed.
fn output(simulated: &Value) -> Value {
    if is_successful(simulated) {
        simulated["returnData"].clone()
    } else {
        Value::Null
    }
}

fn value_or_error(simulated: &Value) -> Value {
    if is_successful(simulated) {
        json!({ "value": simulated["returnData"] })
    } else {
        json!({ "error": simulated["error"]["message"] })
    }
}

/// The results of the tracers within muxTracer, requested one by one.
fn parts(url: &str, params: &Value) -> Answer {
    let configs = params[1]["tracerConfig"].as_object().into_iter().flatten();
    let traces = configs.map(|(name, config)| {
        let options = json!({ "tracer": name, "tracerConfig": config });
        let trace = call(url, "debug_traceTransaction", json!([params[0], options]))?;
        Ok::<_, Value>((name.clone(), trace))
    });
    traces.collect::<Result<Map<_, _>, _>>().map(Value::Object)
}
