//! Requests from reports of operators, with op-geth's answers (`fixtures/reports`), sent to a young
//! chain whose first account of the usual test mnemonic is rich.

use crate::net::{Running, call, starling, wait};
use serde_json::{Value, json};
use starling_testkit::free_port;
use std::time::Duration;

const RICH: &str = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";

/// A node whose genesis is its head.
struct ReportNode {
    _process: Running,
    _folder: tempfile::TempDir,
    url: String,
}

/// A genesis with every fork up to Jovian.
fn genesis() -> Value {
    let mut config = json!({
        "chainId": 901, "terminalTotalDifficulty": 0, "terminalTotalDifficultyPassed": true,
        "optimism": { "eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250 },
    });
    let blocks = [
        "homestead",
        "eip150",
        "eip155",
        "eip158",
        "byzantium",
        "constantinople",
        "petersburg",
        "istanbul",
        "muirGlacier",
        "berlin",
        "london",
        "arrowGlacier",
        "grayGlacier",
        "mergeNetsplit",
        "bedrock",
    ];
    let times = [
        "regolith", "shanghai", "canyon", "cancun", "ecotone", "fjord", "granite", "holocene",
        "prague", "isthmus", "jovian",
    ];
    for (forks, unit) in [(&blocks[..], "Block"), (&times[..], "Time")] {
        for fork in forks {
            config[format!("{fork}{unit}")] = json!(0);
        }
    }
    json!({
        "config": config, "nonce": "0x0", "timestamp": "0x6553f100", "extraData": "0x0100000032000000060000000000000000",
        "gasLimit": "0x1c9c380", "difficulty": "0x0", "mixHash": format!("0x{:064x}", 0), "baseFeePerGas": "0x3b9aca00",
        "coinbase": "0x4200000000000000000000000000000000000011", "excessBlobGas": "0x0", "blobGasUsed": "0x0",
        "alloc": { &RICH[2..]: { "balance": "0x21e19e0c9bab2400000" } },
    })
}

impl ReportNode {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let data = format!("--datadir={}", folder.path().join("data").display());
        let file = folder.path().join("genesis.json");
        std::fs::write(&file, genesis().to_string()).expect("a file");
        let made = starling().args(["init", &data]).arg(&file).output();
        let made = made.expect("a process");
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        let [port, auth] = [free_port(), free_port()];
        let mut command = starling();
        command
            .args(["execution", &data, "--http", "--http.api=eth,debug"])
            .arg(format!("--http.port={port}"))
            .arg(format!("--authrpc.port={auth}"));
        let process = Running::spawn(&mut command);
        let url = format!("http://127.0.0.1:{port}");
        wait("the node's RPC", Duration::from_secs(60), || {
            call(&url, "eth_chainId", json!([])).ok()
        });
        Self {
            _process: process,
            _folder: folder,
            url,
        }
    }
}

#[test]
fn reported_requests_are_answered_as_by_op_geth() {
    let Some(lines) = starling_testkit::fixture_text("reports/rpc-cases.jsonl") else {
        return;
    };
    let cases = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("a case"));
    let cases: Vec<Value> = cases.collect();
    assert!(!cases.is_empty());
    let node = ReportNode::start();
    for case in cases {
        let method = case["method"].as_str().expect("a method");
        let answer = call(&node.url, method, case["params"].clone());
        assert_eq!(answer.as_ref(), Ok(&case["op-geth"]), "{case}");
    }
}
