//! Traces of calls that fail: cost and error of each of their last instructions, in scripts, struct
//! logs, call frames and `vmTrace`.

use super::{ask, check, lines, ours, theirs};
use serde_json::{Value, json};

const FILE: &str = "failing_instructions.jsonl";
/// Number of lines of a script that are recorded, the last ones.
const STEPS: usize = 6;
const CALLER: &str = "0xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const CALLED: &str = "0x3333333333333333333333333333333333333333";
/// A tracer that describes each instruction in a line: place, opcode, gas, cost, depth, refund,
/// error.
const SCRIPT: &str = "{
    steps: [],
    step: function (l) {
        this.steps.push([l.getPC(), l.op.toString(), l.getGas(), l.getCost(), l.getDepth(), l.getRefund(),
            l.getError() || ''].join(' ').trim());
    },
    fault: function (l) {
        this.steps.push(['fault', l.getPC(), l.op.toString(), l.getGas(), l.getCost(), l.getDepth(), l.getError()].join(' '));
    },
    result: function () { return this.steps; },
}";

/// A struct log as a line of the script.
fn line(log: &Value) -> String {
    let refund = log.get("refund").cloned().unwrap_or(json!(0));
    let [op, error] = ["op", "error"].map(|name| log[name].as_str().unwrap_or_default());
    let line = format!(
        "{} {op} {} {} {} {refund} {error}",
        log["pc"], log["gas"], log["gasCost"], log["depth"]
    );
    line.trim().to_owned()
}

/// The errors of a frame and of those inside it.
fn errors(frame: &Value) -> Vec<String> {
    let own = frame["error"].as_str().unwrap_or_default().to_owned();
    let inner = frame["calls"].as_array().into_iter().flatten();
    std::iter::once(own).chain(inner.flat_map(errors)).collect()
}

/// Place, opcode and cost of the instructions in a `vmTrace`, in the order in which they ran.
fn vm_costs(trace: &Value) -> Vec<String> {
    let ops = trace["ops"].as_array().into_iter().flatten();
    ops.flat_map(|op| {
        let name = op["op"].as_str().expect("a name");
        let own = format!("{} {name} {}", op["pc"], op["cost"]);
        std::iter::once(own).chain(vm_costs(&op["sub"]))
    })
    .collect()
}

/// Place, opcode and cost in a line of the script. A STOP behind the end of the code is not in a
/// `vmTrace`, and the name of an unknown opcode has several words.
fn cost(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let [pc, op, _, cost, ..] = words[..] else {
        return None;
    };
    (!["STOP", "opcode"].contains(&op)).then(|| format!("{pc} {op} {cost}"))
}

/// A node that traces the calls of the recorded cases.
struct Traces<'a> {
    url: &'a str,
    case: &'a Value,
}

impl Traces<'_> {
    fn call(&self) -> Value {
        json!({ "from": CALLER, "to": CALLED, "gas": self.case["gas"] })
    }

    fn trace(&self, mut options: Value) -> Value {
        options["stateOverrides"] = self.case["accounts"].clone();
        let params = json!([self.call(), "latest", options]);
        ask(self.url, "debug_traceCall", params)
    }

    /// The case with this node's lines and errors. The struct logs must agree with the script.
    fn recorded(&self) -> Value {
        let script = self.trace(json!({ "tracer": SCRIPT }));
        let script: Vec<String> = serde_json::from_value(script).expect("lines");
        let logs = self.trace(json!({ "disableStack": true, "disableStorage": true }));
        let logs: Vec<String> = logs["structLogs"]
            .as_array()
            .expect("logs")
            .iter()
            .map(line)
            .collect();
        let mut logged = script.clone();
        logged.retain(|line| !line.starts_with("fault"));
        assert_eq!(logs, logged, "script and struct logs: {}", self.case);
        let frames = self.trace(json!({ "tracer": "callTracer" }));
        json!({
            "case": self.case["case"],
            "gas": self.case["gas"],
            "accounts": self.case["accounts"],
            "steps": script[script.len().saturating_sub(STEPS)..],
            "errors": errors(&frames),
        })
    }

    /// Whether the `vmTrace` ends with the costs of the case.
    fn has_vm_costs(&self) -> bool {
        let params = json!([self.call(), ["vmTrace"], "latest", self.case["accounts"]]);
        let trace = ask(self.url, "trace_call", params);
        let mut found = vm_costs(&trace["vmTrace"]);
        found.retain(|op| !op.contains("STOP") && !op.contains("opcode"));
        let steps = self.case["steps"].as_array().expect("lines");
        let lines = steps.iter().filter_map(Value::as_str);
        let wanted: Vec<String> = lines
            .filter(|line| !line.starts_with("fault"))
            .filter_map(cost)
            .collect();
        found.ends_with(&wanted)
    }
}

#[test]
fn the_cost_of_an_instruction_that_fails_is_op_geths() {
    let (_dir, _process, url) = ours();
    let cases = lines(FILE);
    assert!(cases.len() > 80);
    for case in &cases[1..] {
        let traces = Traces { url: &url, case };
        assert_eq!(traces.recorded(), *case);
        assert!(traces.has_vm_costs(), "vmTrace: {case}");
    }
}

#[test]
fn recorded_costs_of_instructions_that_fail_are_op_geths() {
    let Some((_dir, node)) = theirs() else {
        return;
    };
    let url = &node.url;
    let cases = lines(FILE);
    let recorded = cases[1..]
        .iter()
        .map(|case| Traces { url, case }.recorded())
        .collect();
    check(FILE, &node, recorded);
}
