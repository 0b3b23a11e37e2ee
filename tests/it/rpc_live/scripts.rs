//! Hostile JavaScript tracers against a running node. Each script is ended within its time and
//! memory limits, and the node continues.

use super::ImportedNode;
use crate::{derive::Recording, net::call};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Number of script-running child processes of a node process.
fn hosts(node: u32) -> usize {
    let children = format!("/proc/{node}/task");
    let tasks = std::fs::read_dir(children).expect("the node's threads");
    let lists = tasks.filter_map(|task| {
        let path = task.ok()?.path().join("children");
        std::fs::read_to_string(path).ok()
    });
    lists.map(|list| list.split_whitespace().count()).sum()
}

struct HostileScript {
    /// The statements in the tracer's `result` function.
    body: &'static str,
    /// A part of each of the two errors with which the script may end.
    errors: [&'static str; 2],
}

const ENDED: &str = "the process that ran the script ended";
const LATE: &str = "execution timeout";
const LARGE: &str = "larger than 32 MB";

const HOSTILE: [HostileScript; 9] = [
    HostileScript {
        body: "while (true) {}",
        errors: [LATE; 2],
    },
    HostileScript {
        body: "while (true) db.getBalance(ctx.from);",
        errors: [LATE; 2],
    },
    HostileScript {
        body: "try { while (true) {} } catch (e) {} finally { while (true) {} }",
        errors: [LATE; 2],
    },
    HostileScript {
        body: "return (function f() { return f(); })();",
        errors: ["exceeded maximum"; 2],
    },
    HostileScript {
        body: "var a = []; for (var i = 0; i < 1e6; i++) a = [a]; return a;",
        errors: [ENDED, LATE],
    },
    HostileScript {
        body: "var all = []; while (true) all.push(new Array(100000).fill(1.5));",
        errors: [ENDED, LATE],
    },
    HostileScript {
        body: "var s = 'x'; while (true) s += s;",
        errors: [ENDED, "RangeError"],
    },
    HostileScript {
        body: "return 'x'.repeat(40000000);",
        errors: [LARGE, ENDED],
    },
    HostileScript {
        body: "return 'x'.repeat(1000000000);",
        errors: [ENDED, "RangeError"],
    },
];

#[test]
fn hostile_scripts_end_and_the_node_goes_on() {
    let Some(recording) = Recording::of("ladder-singular") else {
        return;
    };
    let node = ImportedNode::start(&recording);
    let trace = |script: &str| {
        let to = format!("0x{:040x}", 0xee);
        let options = json!({ "tracer": script, "timeout": "2s" });
        call(
            &node.url,
            "debug_traceCall",
            json!([{ "to": to }, "latest", options]),
        )
    };
    for HostileScript { body, errors } in HOSTILE {
        let script =
            format!("{{ result: function (ctx, db) {{ {body} }}, fault: function () {{}} }}");
        let begun = Instant::now();
        let error: Value = trace(&script).expect_err(body);
        let message = error["message"].as_str().expect("a message");
        let known = errors.iter().any(|text| message.contains(text));
        assert!(known, "{body}: {message}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{body}");
        assert!(call(&node.url, "eth_blockNumber", json!([])).is_ok());
    }
    let good = "{ result: function () { return 7; }, fault: function () {} }";
    assert_eq!(trace(good), Ok(json!(7)));
    assert_eq!(hosts(node.process.child.id()), 0);
}
