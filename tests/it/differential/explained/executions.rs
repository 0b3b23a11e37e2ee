//! The kinds of differences in traces, simulations and access lists.

use super::{Difference, HALTS, Kind, RESULT, Seen, kinds};
use crate::differential::contracts::{BASE_FEE, GAS_PRICE, NUMBER, TIMESTAMP};
use serde_json::{Value, json};

/// The vault of the L1 fee, and the vault of the operator fee.
const VAULTS: [&str; 2] = [
    "0x420000000000000000000000000000000000001a",
    "0x420000000000000000000000000000000000001b",
];
/// The block's fee recipient and the vault of the base fee.
const RECIPIENTS: [&str; 2] = [
    "0x4200000000000000000000000000000000000011",
    "0x4200000000000000000000000000000000000019",
];
/// Header members of a simulated block that depend on data that anvil leaves out.
const SIMULATED_HEADER: [&str; 18] = [
    "baseFeePerGas",
    "blobGasUsed",
    "excessBlobGas",
    "hash",
    "logsBloom",
    "mixHash",
    "number",
    "parentBeaconBlockRoot",
    "parentHash",
    "receiptsRoot",
    "requestsHash",
    "size",
    "stateRoot",
    "timestamp",
    "totalDifficulty",
    "transactionsRoot",
    "withdrawals",
    "withdrawalsRoot",
];

/// Lowest intrinsic gas of a transaction.
const INTRINSIC: i128 = 21_000;
/// Reasons for a failed frame: geth's reasons that are not in [`HALTS`], and Parity's words.
const FAILURES: [&str; 13] = [
    "Bad instruction",
    "Bad jump destination",
    "Built-in failed",
    "Out of bounds",
    "Out of gas",
    "Out of stack",
    "Reverted",
    "Stack underflow",
    "contract address collision",
    "execution reverted",
    "insufficient balance for transfer",
    "precompiled failed",
    "stack limit reached",
];

/// The number in a JSON number or in a hexadecimal quantity.
fn number(text: &str) -> Option<i128> {
    match text.strip_prefix("\"0x") {
        Some(rest) => i128::from_str_radix(rest.strip_suffix('"')?, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Seen<'_> {
    fn is_trace(&self) -> bool {
        self.method.starts_with("debug_trace") || self.method.starts_with("trace_")
    }

    fn is_within(&self, part: &str) -> bool {
        self.difference.place.contains(part)
    }

    fn simulates(&self) -> bool {
        self.of(&["eth_simulateV1"])
    }

    /// Whether a `debug` method's tracer has this name, or a JavaScript text that contains it.
    fn has_tracer(&self, text: &str) -> bool {
        let options = self.params.as_array().and_then(|params| params.last());
        let tracer = options.and_then(|options| options["tracer"].as_str());
        self.method.starts_with("debug_trace") && tracer.is_some_and(|name| name.contains(text))
    }

    fn ours_is(&self, texts: &[&str]) -> bool {
        texts.contains(&self.difference.ours.as_str())
    }

    /// Whether anvil's value is the name of an error in the EVM's source code.
    fn theirs_is_name(&self) -> bool {
        let name = self.difference.theirs.trim_matches('"');
        name.starts_with(char::is_uppercase) && name.chars().all(char::is_alphanumeric)
    }

    fn theirs_is(&self, texts: &[&str]) -> bool {
        texts.contains(&self.difference.theirs.as_str())
    }

    /// Starling's value; null if it is absent.
    fn ours(&self) -> Value {
        serde_json::from_str(&self.difference.ours).unwrap_or_default()
    }

    /// anvil's value; null if it is absent.
    fn theirs(&self) -> Value {
        serde_json::from_str(&self.difference.theirs).unwrap_or_default()
    }

    /// Whether Starling's value is a hexadecimal quantity.
    fn ours_is_quantity(&self) -> bool {
        self.difference.ours.starts_with('"') && number(&self.difference.ours).is_some()
    }

    /// Whether Starling's value is a string of bytes that is not empty.
    fn ours_is_data(&self) -> bool {
        let ours = self.ours();
        let digits = ours.as_str().and_then(|text| text.strip_prefix("0x"));
        digits.is_some_and(|digits| {
            !digits.is_empty()
                && digits.len().is_multiple_of(2)
                && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        })
    }

    /// Whether Starling's value is a string of `count` bytes.
    fn ours_is_bytes(&self, count: usize) -> bool {
        // The quotes and the prefix take four characters.
        self.ours_is_data() && self.difference.ours.len() == 4 + 2 * count
    }

    /// Whether Starling's value is a reason for a failed frame or a failed call.
    fn ours_is_failure(&self) -> bool {
        let ours = self.ours();
        ours.as_str().is_some_and(|reason| {
            let mut known = HALTS.iter().chain(&FAILURES);
            known.any(|known| reason.contains(known))
        })
    }

    /// The amount by which Starling's number exceeds anvil's. `None` if one value is no number.
    fn excess(&self) -> Option<i128> {
        Some(number(&self.difference.ours)? - number(&self.difference.theirs)?)
    }

    fn ours_is_more(&self) -> bool {
        self.excess().is_some_and(|excess| excess > 0)
    }

    fn ours_is_less(&self) -> bool {
        self.excess().is_some_and(|excess| excess < 0)
    }

    /// Whether a frame of a script differs as expected. Starling shows a SELFDESTRUCT as a frame
    /// without gas and input, from the contract to its beneficiary. The gas that a failed frame has
    /// used is all of its gas.
    fn ours_is_script_frame(&self) -> bool {
        let text = &self.difference.theirs;
        let addresses = self.ours_is_bytes(20) && text.len() == self.difference.ours.len();
        self.ours_is(&["\"SELFDESTRUCT\"", "\"0x\"", "0"]) || addresses || self.ours_is_more()
    }

    /// Whether every frame that Starling found comes from an address in the filter's first list and
    /// goes to one in the second list, and anvil found more frames.
    fn ours_matches_both_lists(&self) -> bool {
        let (ours, theirs) = (self.ours(), self.theirs());
        let (Some(ours), Some(theirs)) = (ours.as_array(), theirs.as_array()) else {
            return false;
        };
        let listed = |name: &str, addresses: &[&Value]| {
            let list = self.params[0][name].as_array();
            list.is_some_and(|list| addresses.iter().any(|address| list.contains(address)))
        };
        let matches = |frame: &Value| {
            let (action, result) = (&frame["action"], &frame["result"]);
            let to = [&action["to"], &action["refundAddress"], &result["address"]];
            listed("fromAddress", &[&action["from"], &action["address"]])
                && listed("toAddress", &to)
        };
        ours.len() < theirs.len() && ours.iter().all(matches)
    }

    /// Whether anvil's access list has, beyond Starling's, only addresses without slots.
    fn theirs_adds_plain_addresses(&self) -> bool {
        let (ours, theirs) = (self.ours(), self.theirs());
        let (Some(ours), Some(theirs)) = (ours.as_array(), theirs.as_array()) else {
            return false;
        };
        let mut added = theirs.iter().filter(|entry| !ours.contains(entry));
        ours.iter().all(|entry| theirs.contains(entry))
            && added.all(|entry| entry["storageKeys"] == json!([]))
    }

    /// Whether a member of a simulated header is that of a complete next block.
    fn ours_is_next_header(&self) -> bool {
        if self.member(&["number", "timestamp"]) {
            return self.ours_is_more();
        }
        if self.member(&["logsBloom"]) {
            return self.ours_is_bytes(256);
        }
        if self.member(&["withdrawals"]) {
            return self.ours_is(&["[]"]);
        }
        let hash = self.member(&["hash", "mixHash", "parentBeaconBlockRoot", "requestsHash"])
            || self.member(&[
                "receiptsRoot",
                "stateRoot",
                "transactionsRoot",
                "withdrawalsRoot",
            ]);
        if hash {
            return self.ours_is_bytes(32);
        }
        if self.member(&["parentHash"]) {
            // The first simulated block is on a block of the chain.
            return self.ours_is_bytes(32) || self.difference.ours.starts_with("\"@block:");
        }
        self.ours_is_quantity()
    }

    /// Whether a transaction of a simulated block, or a member of it, is complete. Its gas is that
    /// of a call in the request.
    fn ours_is_simulated_transaction(&self) -> bool {
        if self.member(&["transactions", "hash", "blockHash"]) {
            return self.ours_is_bytes(32);
        }
        if self.member(&["gas"]) {
            let gas = format!("\"gas\":{}", self.difference.ours);
            return self.params.to_string().contains(&gas);
        }
        if self.member(&["chainId"]) {
            return self.ours_is_quantity() && !self.ours_is(&["\"0x1\""]);
        }
        self.ours_is_quantity() || self.ours_is(&["[]"])
    }
}

pub const KINDS: &[Kind] = &[
    // Differences for transactions and blocks that cannot be traced.
    ("trace of an unknown transaction or block", |s| {
        s.is_trace() && (s.difference.ours.contains("not found") || s.values("null", "[]"))
    }),
    ("trace of the genesis block", |s| {
        s.is_trace() && s.one_refused(&["genesis is not traceable"], RESULT)
    }),
    ("trace on the pending block", |s| {
        s.is_trace() && s.one_refused(&["tracing on top of pending"], RESULT)
    }),
    // Differences in struct logs.
    ("refund at an instruction", |s| {
        s.is_within("structLogs[]")
            && s.member(&["refund"])
            && s.theirs_is(&["0"])
            && (s.ours_is(&["absent"]) || s.ours_is_more())
    }),
    ("nothing at an instruction", |s| {
        s.is_within("structLogs[]")
            && s.member(&["memory", "returnData"])
            && s.ours_is(&["absent"])
            && s.theirs_is(&["[]", "\"0x\""])
    }),
    ("error of an instruction", |s| {
        s.is_within("structLogs[]")
            && s.member(&["error"])
            && s.said(
                &[
                    "absent",
                    "out of gas",
                    "stack underflow",
                    "stack limit",
                    "gas uint64 overflow",
                ],
                &["\"Some("],
            )
    }),
    ("name of an unknown instruction", |s| {
        s.is_within("structLogs[]")
            && s.member(&["op"])
            && s.said(&["\"opcode 0x"], &["\"Unknown\""])
            && s.difference.ours.ends_with(" not defined\"")
    }),
    // Differences in call frames.
    ("gas of a traced transaction", |s| {
        // The limit is a quantity named `gas`. The used gas is a number named `gas`, or a quantity
        // named `gasUsed`.
        let limit = s.member(&["gas"]) && s.ours_is_quantity();
        let used = s.member(&["gasUsed"]) || s.member(&["gas"]) && !s.ours_is_quantity();
        s.method.starts_with("debug_trace")
            && !s.is_within("calls[]")
            && !s.is_within("structLogs[]")
            && (limit && s.excess().is_some_and(|excess| excess >= INTRINSIC)
                || used && s.ours_is_less())
    }),
    ("number of a log in a frame", |s| {
        s.is_within("logs[]") && s.member(&["index"]) && s.ours_is(&["absent"])
    }),
    ("frames below the top", |s| {
        let theirs = s.theirs();
        let destroyed = theirs.as_array().is_some_and(|frames| {
            let mut frames = frames.iter();
            frames.all(|frame| frame["type"] == "SELFDESTRUCT")
        });
        let top = s.member(&["calls"]) && s.params.to_string().contains("onlyTopCall");
        top && s.ours_is(&["absent"]) && destroyed
    }),
    ("words for a failed frame", |s| {
        s.is_trace()
            && s.member(&["error"])
            && s.ours_is_failure()
            && (s.theirs_is_name() || s.theirs_is(&["\"invalid opcode\""]))
    }),
    ("selectors of precompiles", |s| {
        let counts = s.has_tracer("4byteTracer") || s.is_within("4byteTracer.");
        counts && s.values("absent", "1")
    }),
    ("frames of a script", |s| {
        s.has_tracer("enter:") && s.is_within("result[][]") && s.ours_is_script_frame()
    }),
    // Differences in prestates.
    ("code hash in a prestate", |s| {
        s.has_tracer("prestateTracer")
            && s.member(&["codeHash"])
            && s.theirs_is(&["absent"])
            && s.ours_is_bytes(32)
    }),
    ("fee vaults in a prestate", |s| {
        s.has_tracer("prestateTracer")
            && s.ours_is(&["absent"])
            && VAULTS.iter().any(|vault| s.is_within(vault))
    }),
    ("fees of a deposit in a prestate", |s| {
        s.has_tracer("prestateTracer")
            && s.said(&["{\"balance\":\"0x"], &["absent"])
            && RECIPIENTS.iter().any(|recipient| s.is_within(recipient))
    }),
    ("empty accounts in a prestate", |s| {
        let has = |name: &str| s.difference.theirs.contains(&format!("\"{name}\":"));
        s.has_tracer("prestateTracer")
            && s.ours_is(&["absent"])
            && s.difference.theirs.starts_with("{\"balance\":\"0x0\"")
            && !has("code")
            && !has("nonce")
    }),
    // Differences in traces in Parity's form.
    ("frames of precompiles", |s| {
        s.is_trace() && s.member(&["subtraces"]) && s.values("0", "1")
    }),
    ("addresses of a frame filter", |s| {
        s.method == "trace_filter" && s.params[0]["mode"].is_null() && s.ours_matches_both_lists()
    }),
    ("accounts that came into being", |s| {
        let zero = "{\"from\":\"0x0";
        s.is_within("stateDiff.")
            && (s.difference.ours.starts_with("{\"+\":") && s.theirs_is(&["\"=\"", "absent"])
                || s.member(&["+"]) && s.said(&["\"0x"], &["absent"])
                || s.member(&["*"])
                    && s.ours_is(&["absent"])
                    && s.difference.theirs.starts_with(zero))
    }),
    ("failed instructions in a vmTrace", |s| {
        s.is_within("vmTrace.") && s.member(&["ex"]) && s.ours_is(&["null"])
    }),
    ("unknown instructions in a vmTrace", |s| {
        s.is_within("vmTrace.") && s.member(&["op"]) && s.said(&["not defined"], &["UNKNOWN("])
    }),
    ("precompiles in a vmTrace", |s| {
        s.member(&["sub", "vmTrace"]) && s.values("null", "{\"code\":\"0x\",\"ops\":[]}")
    }),
    ("delegations in a stateDiff", |s| {
        s.is_within("stateDiff.") && s.member(&["code"]) && s.said(&["0xef0100"], &["\"=\""])
    }),
    ("init code in a vmTrace", |s| {
        s.is_within("vmTrace.")
            && s.member(&["code"])
            && s.theirs_is(&["\"0x\""])
            && s.ours_is_data()
    }),
    ("cost of a creation in a vmTrace", |s| {
        s.is_within("vmTrace.") && s.member(&["cost"]) && s.ours_is(&["32002"])
    }),
    ("cost of a failure in a vmTrace", |s| {
        s.is_within("vmTrace.")
            && s.member(&["cost"])
            && s.excess().is_some_and(|excess| excess > 0)
    }),
    ("results of calls in a vmTrace", |s| {
        let ours = s.ours();
        let count = ours.as_array().map_or(0, Vec::len);
        let pushed = s.member(&["push"]) && count == 1;
        let listed = s.member(&["ops"]) && count > 0;
        s.is_within("vmTrace.") && s.theirs_is(&["[]"]) && (pushed || listed)
    }),
    ("writes in a vmTrace", |s| {
        s.is_within("vmTrace.") && s.member(&["store"]) && s.said(&["{\"key\":\"0x"], &["null"])
    }),
    ("gas in a vmTrace", |s| {
        s.is_within("vmTrace.") && s.member(&["used"]) && s.ours_is_less()
    }),
    ("memory in a vmTrace", |s| {
        let written = s.member(&["data"]) && (s.ours_is(&["\"0x\""]) || s.ours_is_data())
            || s.member(&["off"]) && number(&s.difference.ours).is_some();
        let whole = s.ours_is(&["null"]) || s.said(&["{\"data\":\"0x"], &["null"]);
        s.is_within("vmTrace.") && (s.is_within(".mem.") && written || s.member(&["mem"]) && whole)
    }),
    // Differences in simulations.
    ("header of a simulated block", |s| {
        s.simulates()
            && s.member(&SIMULATED_HEADER)
            && !s.is_within("calls[]")
            && !s.is_within("transactions[]")
            && s.ours_is_next_header()
    }),
    ("transactions of a simulated block", |s| {
        s.simulates() && s.is_within("transactions[]") && s.ours_is_simulated_transaction()
    }),
    ("place of a simulated log", |s| {
        let hash = s.member(&["blockHash", "transactionHash"]) && s.ours_is_bytes(32);
        let number = s.member(&["blockNumber", "blockTimestamp"]) && s.ours_is_quantity();
        s.simulates() && s.is_within("logs[]") && (hash || number)
    }),
    ("transfers of a failed call", |s| {
        let transfers = s.simulates() && s.params[0]["traceTransfers"] == true;
        let logs = s.member(&["logs"]) && s.difference.ours.len() < s.difference.theirs.len();
        transfers && (logs || s.member(&["logIndex"]) && s.ours_is_less())
    }),
    ("most gas of a simulated call", |s| {
        s.simulates()
            && s.member(&["maxUsedGas"])
            && s.theirs_is(&["absent"])
            && s.ours_is_quantity()
    }),
    ("error of a simulated call", |s| {
        let output = s.member(&["returnData"]) && s.ours_is(&["\"0x\""]);
        let error = s.member(&["code"]) && s.ours_is(&["3", "-32015"])
            || s.member(&["message"]) && s.ours_is_failure()
            || s.member(&["data"]) && (s.ours_is(&["\"0x\""]) || s.ours_is_data());
        s.simulates() && (s.is_within("calls[].error.") && error || output)
    }),
    ("checks of a simulation", |s| {
        s.simulates()
            && s.params[0]["validation"] == true
            && s.one_refused(&["\"code\":-3801"], RESULT)
    }),
    ("numbers of simulated blocks", |s| {
        s.simulates() && s.one_refused(&["block numbers must be in order"], RESULT)
    }),
    ("simulation of nothing", |s| {
        s.simulates() && s.one_refused(&["empty input"], RESULT)
    }),
    ("words for a failed call of a bundle", |s| {
        s.method == "eth_callMany"
            && s.member(&["error"])
            && s.theirs_is(&["\"execution failed\""])
            && s.ours_is_failure()
    }),
    ("addresses that an access list leaves out", |s| {
        s.method == "eth_createAccessList"
            && s.difference.place == "result.accessList"
            && s.theirs_adds_plain_addresses()
    }),
    ("environment of a simulated call", |s| {
        s.of(&[
            "eth_simulateV1",
            "eth_callMany",
            "trace_call",
            "trace_callMany",
            "debug_traceCall",
        ]) && s.differs_in_words(&[TIMESTAMP, NUMBER, BASE_FEE, GAS_PRICE])
    }),
];

/// Asserts that a kind explains the predicted value of Starling at a place of the result, but not
/// the other value. `theirs` is anvil's value.
fn assert_explained(
    (method, params): (&str, &Value),
    place: &str,
    [predicted, other]: [&str; 2],
    theirs: &str,
) {
    let explained = |ours: &str| {
        let difference = Difference {
            place: place.to_owned(),
            ours: ours.to_owned(),
            theirs: theirs.to_owned(),
        };
        let seen = Seen {
            method,
            params,
            difference: &difference,
        };
        kinds().any(|(_, explains)| explains(&seen))
    };
    assert!(explained(predicted), "{place}: {predicted}");
    assert!(!explained(other), "{place}: {other}");
}

#[test]
fn kinds_explain_the_predicted_values_of_traces() {
    let of = "debug_traceTransaction";
    let none = json!([]);
    let script = json!(["0x", { "tracer": "{enter: 0}" }]);
    let top = json!(["0x", { "tracerConfig": { "onlyTopCall": true } }]);
    let (gas, frame) = ("result.gas", r#"[{"type":"CALL"}]"#);
    assert_explained((of, &none), gas, ["30000", "50000"], "40000");
    let quantities = [r#""0xea60""#, r#""0x9c40""#];
    assert_explained((of, &none), gas, quantities, r#""0x9858""#);
    let destroyed = r#"[{"type":"SELFDESTRUCT"}]"#;
    assert_explained((of, &top), "result.calls", ["absent", frame], destroyed);
    let types = [r#""SELFDESTRUCT""#, r#""CREATE""#];
    assert_explained((of, &script), "result[][]", types, r#""CALL""#);
}

#[test]
fn kinds_explain_the_predicted_values_of_paritys_methods() {
    let frame = |to: &str| json!({ "action": { "from": "0x01", "to": to } });
    let frames = |to: &[&str]| to.iter().copied().map(frame).collect::<Value>().to_string();
    let [matching, other] = [frames(&["0x02"]), frames(&["0x03"])];
    let found = frames(&["0x02", "0x03"]);
    let lists = json!([{ "fromAddress": ["0x01"], "toAddress": ["0x02"] }]);
    let filter = ("trace_filter", &lists);
    assert_explained(filter, "result", [&matching, &other], &found);
    let none = json!([]);
    let replay = ("trace_replayBlockTransactions", &none);
    let used = "result[].vmTrace.ops[].ex.used";
    assert_explained(replay, used, ["97", "103"], "100");
    let (memory, written) = (
        "result[].vmTrace.ops[].ex.mem",
        r#"{"data":"0x00","off":0}"#,
    );
    assert_explained(replay, memory, ["null", "7"], written);
}

#[test]
fn kinds_explain_the_predicted_values_of_simulations() {
    let params = json!([{ "blockStateCalls": [{ "calls": [{ "gas": "0xea60" }] }] }]);
    let simulate = ("eth_simulateV1", &params);
    let hash = json!(format!("0x{}", "ab".repeat(32))).to_string();
    let numbers = [r#""0x5""#, r#""0x3""#];
    assert_explained(simulate, "result[].number", numbers, r#""0x4""#);
    let roots = [&hash, r#""0x00""#];
    assert_explained(simulate, "result[].stateRoot", roots, "absent");
    let gas = [r#""0xea60""#, r#""0x5208""#];
    assert_explained(simulate, "result[].transactions[].gas", gas, r#""0x0""#);
    let log = "result[].calls[].logs[].blockHash";
    assert_explained(simulate, log, [&hash, "absent"], "null");
}
