//! Converts traces to one form before they are compared: removes parts that cannot be equal, and
//! aligns the results of different methods. `docs/differences.md` lists the changes.

use super::{compare::Answer, contracts::DESTROY};
use crate::exec_blocks::traces::{is_precompile, told};
use alloy_primitives::Address;
use serde_json::{Map, Value, json};

/// Converts the two responses to a request to one form.
pub fn align(method: &str, params: &Value, ours: &mut Answer, theirs: &mut Answer) {
    if let Ok(answer) = ours {
        match method {
            "trace_call" => *answer = calls_of(answer),
            "trace_callMany" => {
                let results = answer.as_array().into_iter().flatten();
                *answer = results.map(output).collect();
            }
            _ => {}
        }
    }
    if let Ok(answer) = theirs
        && (method.starts_with("trace_replay")
            || ["trace_transaction", "trace_block", "trace_filter"].contains(&method))
    {
        hide_precompiles(answer);
    }
    if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
        for answer in [&mut *ours, &mut *theirs] {
            if params[1]["tracer"] == "flatCallTracer" {
                flat(answer);
            }
            match method {
                "trace_filter" => found_frames(answer),
                "eth_createAccessList" => sort_list(answer),
                _ => {}
            }
        }
        hide_stops(theirs);
        own_heirs(ours, theirs);
        costs(ours, theirs);
    }
}

/// Removes the frames of precompiles, which Parity's form omits, from a list of frames or from the
/// lists in several results.
pub fn hide_precompiles(answer: &mut Value) {
    let lists = match answer {
        Value::Object(result) => result.get_mut("trace").into_iter().collect(),
        Value::Array(items) if items.iter().any(|item| item.get("trace").is_some()) => {
            let results = items.iter_mut();
            results.filter_map(|item| item.get_mut("trace")).collect()
        }
        answer => vec![answer],
    };
    for list in lists {
        if let Some(frames) = list.as_array_mut() {
            frames.retain(|frame| !is_hidden(frame));
        }
    }
}

fn is_hidden(frame: &Value) -> bool {
    is_inner_precompile(frame) && frame["action"]["value"] == "0x0"
}

fn is_inner_precompile(frame: &Value) -> bool {
    let to = &frame["action"]["to"];
    frame["type"] == "call" && frame["traceAddress"] != json!([]) && is_precompile(to)
}

/// The output of a call, and its frames in a form that both nodes' methods share.
fn calls_of(answer: &Value) -> Value {
    let frames = answer["trace"].as_array().into_iter().flatten();
    json!({ "output": answer["output"], "calls": frames.map(told).collect::<Vec<_>>() })
}

/// The output of a call, or null if the call failed.
fn output(result: &Value) -> Value {
    if result["trace"][0]["error"].is_null() {
        result["output"].clone()
    } else {
        Value::Null
    }
}

/// Reduces frames to the members that flatCallTracer and Parity's methods share: flatCallTracer
/// counts the gas of the whole transaction in the root frame, and omits calls of precompiles.
fn flat(answer: &mut Value) {
    let Some(frames) = answer.as_array_mut() else {
        return;
    };
    frames.retain(|frame| !is_inner_precompile(frame));
    for frame in frames {
        let root = frame["traceAddress"] == json!([]);
        for part in ["action", "result"] {
            if let Some(members) = frame[part].as_object_mut().filter(|_| root) {
                members.retain(|name, _| name != "gas" && name != "gasUsed");
            }
        }
        let failed = !frame["error"].is_null();
        if let Some(result) = frame["result"].as_object_mut().filter(|_| failed) {
            result.remove("address");
        }
        if let Some(members) = frame.as_object_mut() {
            members.retain(|_, member| !member.is_null());
        }
    }
}

/// Removes from lists of instructions the STOP that anvil executes where there is no code. No
/// contract of the test begins with STOP.
fn hide_stops(answer: &mut Value) {
    let is_stop = |step: &Value| {
        let listed = step["op"] == "STOP" && step["pc"] == 0;
        let script = step.as_array().is_some_and(|step| step.len() == 7);
        listed || script && step[0] == 0 && step[1] == 0
    };
    match answer {
        Value::Array(items) => {
            items.retain(|item| !is_stop(item));
            items.iter_mut().for_each(hide_stops);
        }
        Value::Object(members) => members.values_mut().for_each(hide_stops),
        _ => {}
    }
}

/// Sorts an access list, since op-geth's lists have no fixed order.
fn sort_list(answer: &mut Value) {
    let list = answer.get_mut("accessList").and_then(Value::as_array_mut);
    let Some(list) = list else {
        return;
    };
    for entry in list.iter_mut() {
        if let Some(slots) = entry["storageKeys"].as_array_mut() {
            slots.sort_by_key(Value::to_string);
        }
    }
    list.sort_by_key(|entry| entry["address"].to_string());
}

/// Removes from a search's result the frames of contracts that destroy themselves with themselves
/// as beneficiary. anvil finds these frames under other addresses.
fn found_frames(answer: &mut Value) {
    let heirs = [json!(DESTROY), json!(Address::ZERO)];
    if let Some(frames) = answer.as_array_mut() {
        frames.retain(|frame| !heirs.contains(&frame["action"]["refundAddress"]));
    }
}

/// Removes the addresses of self-destructs whose beneficiary is the contract itself. anvil takes an
/// earlier transfer, if there is one, for the transfer of the SELFDESTRUCT.
fn own_heirs(ours: &mut Value, theirs: &mut Value) {
    match (ours, theirs) {
        (Value::Array(ours), Value::Array(theirs)) => {
            for (ours, theirs) in ours.iter_mut().zip(theirs) {
                own_heirs(ours, theirs);
            }
        }
        (Value::Object(ours), Value::Object(theirs)) => {
            if is_own_heir(ours) {
                for members in [ours, theirs] {
                    members.retain(|name, _| !["action", "from", "to", "value"].contains(&&**name));
                }
                return;
            }
            for (name, ours) in ours.iter_mut() {
                if let Some(theirs) = theirs.get_mut(name) {
                    own_heirs(ours, theirs);
                }
            }
        }
        _ => {}
    }
}

/// Whether a frame, in either form, is a self-destruct with the contract itself as beneficiary.
fn is_own_heir(frame: &Map<String, Value>) -> bool {
    let kind = frame.get("type").and_then(Value::as_str);
    let same = |one: Option<&Value>, other: Option<&Value>| one.is_some() && one == other;
    let action = frame.get("action");
    let part = |name: &str| action.and_then(|action| action.get(name));
    kind.is_some_and(|kind| ["SELFDESTRUCT", "suicide"].contains(&kind))
        && (same(frame.get("from"), frame.get("to"))
            || same(part("address"), part("refundAddress")))
}

/// Removes the gas costs of instructions that fail or create, which anvil counts differently.
fn costs(ours: &mut Value, theirs: &mut Value) {
    let steps = [ours, theirs].map(|answer| answer.get_mut("structLogs")?.as_array_mut());
    let [Some(ours), Some(theirs)] = steps else {
        return;
    };
    for (ours, theirs) in ours.iter_mut().zip(theirs) {
        let op = theirs["op"].as_str().unwrap_or_default();
        if op.starts_with("CREATE") || theirs.get("error").is_some() {
            for step in [ours, theirs] {
                if let Some(members) = step.as_object_mut() {
                    members.remove("gasCost");
                }
            }
        }
    }
}
