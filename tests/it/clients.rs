//! Independent clients against the sequencer and a replica of one network: accounts, deploys,
//! calls, events, filters, subscriptions, reverts, batches, fees. The client scripts are in
//! `tests/clients`; a script exits with status 0 if every response was right.

use crate::net::{Account, Devnet, Node, client, head, installed, script, script_named, wait};
use alloy_primitives::Address;
use serde_json::{Value, json};
use std::{
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

fn network() -> Devnet {
    Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=1"])
}

/// The sequencer and a replica, each with an account that has not been used yet.
fn targets(net: &Devnet) -> [(Node, Account); 2] {
    [
        (net.sequencer(), net.accounts[3].clone()),
        (net.replicas().remove(0), net.accounts[4].clone()),
    ]
}

/// Runs a script against a node. Panics with the script's output unless every response was right.
pub fn passes(mut command: Command, node: &Node, account: &Account, chain_id: u64) {
    // Wait for block 1: the genesis block has no L1 attributes, so that L1 fees are unknown before.
    wait("the first block", Duration::from_secs(60), || {
        head(&node.http).filter(|number| *number > 0)
    });
    let target = json!({
        "http": node.http, "ws": node.ws, "ipc": node.ipc(), "key": account.key_hex(), "chainId": chain_id,
    });
    command.arg(target.to_string());
    let limit = Duration::from_secs(120);
    printed_by(command, limit).unwrap_or_else(|error| panic!("against the {}: {error}", node.role));
}

/// Runs a script and returns its output. `Err` with the output if the script failed or exceeded
/// `limit`.
pub fn printed_by(mut command: Command, limit: Duration) -> Result<String, String> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the script starts");
    // The time limit ends a script whose subscription gets no events.
    let began = Instant::now();
    while child.try_wait().expect("a child").is_none() && began.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(100));
    }
    let _ = child.kill();
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().expect("its output");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&stdout);
    if status.success() {
        Ok(printed)
    } else {
        Err(format!("{command:?}: {status}\n{printed}{}", text(&stderr)))
    }
}

#[test]
fn ethers_against_sequencer_and_replica() {
    if script("ethers").is_none() {
        return;
    }
    let net = network();
    for (node, account) in targets(&net) {
        let Some(command) = script("ethers") else {
            return;
        };
        passes(command, &node, &account, net.l2_chain_id);
    }
}

#[test]
fn viem_and_its_op_stack_actions_against_sequencer_and_replica() {
    if script("viem").is_none() {
        return;
    }
    let net = network();
    for (node, account) in targets(&net) {
        let Some(command) = script("viem") else {
            return;
        };
        passes(command, &node, &account, net.l2_chain_id);
    }
}

/// A withdrawal from the default network on its own contracts: sent, proven, waited for and paid
/// out, as an application with viem does it.
#[test]
fn viem_withdraws_from_a_local_network() {
    if script_named("exit", "viem").is_none() {
        return;
    }
    let net = Devnet::start_whole(&["--l2.block-time=1", "--l1.block-time=2", "--replicas=1"]);
    let (l1, replica) = (net.l1(), net.replicas().remove(0));
    wait("the first block", Duration::from_secs(60), || {
        head(&replica.http).filter(|number| *number > 0)
    });
    let mut target = json!({
        "l1": { "http": l1.http, "chainId": 900 },
        "l2": { "http": replica.http, "chainId": net.l2_chain_id },
        "key": net.accounts[5].key_hex(),
        "to": Address::repeat_byte(0x5e),
        "contracts": { "portal": net.portal, "oracle": net.contract("output_oracle") },
    });
    for step in ["prove", "wait", "finalize"] {
        target["step"] = step.into();
        let mut command = script_named("exit", "viem").expect("it was there before");
        command.arg(target.to_string());
        let printed = printed_by(command, Duration::from_secs(240));
        let printed = printed.unwrap_or_else(|error| panic!("the step {step}: {error}"));
        if step == "prove" {
            let proven: Value = serde_json::from_str(&printed).expect("JSON");
            target["hash"] = proven["hash"].clone();
        }
    }
}

#[test]
fn web3_py_against_sequencer_and_replica() {
    let python = std::env::var("PYTHON").unwrap_or("python3".into());
    let there = Command::new(&python)
        .args(["-c", "import web3"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !installed(
        there,
        "web3.py (run pip install -r tests/clients/requirements.txt)",
    ) {
        return;
    }
    let net = network();
    for (node, account) in targets(&net) {
        let mut command = Command::new(&python);
        command.arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/clients/web3_py.py"
        ));
        passes(command, &node, &account, net.l2_chain_id);
    }
}

/// Runs cast and returns its output. `Err` with the output if cast failed.
fn cast(program: &Path, node: &Node, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .arg(args[0])
        .args(["--rpc-url", &node.http])
        .args(&args[1..])
        .output()
        .expect("cast starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    // npm does not pass on the exit status of a program that it starts.
    let failed = !output.status.success() || text(&output.stderr).contains("Error: ");
    if failed {
        Err(text(&output.stderr))
    } else {
        Ok(text(&output.stdout))
    }
}

#[test]
fn cast_reads_estimates_and_decodes() {
    let Some(program) = client("cast") else {
        return;
    };
    let net = network();
    for (node, account) in targets(&net) {
        let cast = |args: &[&str]| cast(&program, &node, args);
        let token = deploy_token(&cast, &account);
        estimates_and_sends_a_transfer(&cast, &account, &token);
        decodes_reverts(&cast, &account, &token);
        reads_proofs_and_blocks(&cast, &account, &token);
        assert_eq!(
            cast(&["chain-id"]).as_deref(),
            Ok(net.l2_chain_id.to_string().as_str())
        );
        simulates_and_waits(&cast, &account, &token);
        assert!(
            cast(&["rpc", "eth_nothing"])
                .unwrap_err()
                .contains("does not exist/is not available")
        );
    }
}

/// Runs cast with these arguments against a node.
type Cast<'a> = &'a dyn Fn(&[&str]) -> Result<String, String>;

/// An account that has none of the nine tokens.
const RECEIVER: &str = "0x00000000000000000000000000000000000000bb";

/// Deploys the token contract, which gives the account nine tokens. Returns the contract's address.
fn deploy_token(cast: Cast<'_>, account: &Account) -> String {
    let artifact: Value =
        serde_json::from_str(include_str!("../clients/contracts/Token.json")).expect("JSON");
    let created = cast(&[
        "send",
        "--json",
        "--private-key",
        &account.key_hex(),
        "--create",
        artifact["bytecode"].as_str().expect("bytecode"),
        "constructor(string,uint256)",
        "T",
        "9",
    ]);
    let created: Value = serde_json::from_str(&created.expect("a deployment")).expect("a receipt");
    created["contractAddress"]
        .as_str()
        .expect("an address")
        .to_owned()
}

fn estimates_and_sends_a_transfer(cast: Cast<'_>, account: &Account, token: &str) {
    let own = account.address.to_string();
    let balance =
        |of: &str| cast(&["call", token, "balanceOf(address)(uint256)", of]).expect("a balance");
    let transfer = [token, "transfer(address,uint256)", RECEIVER, "4"];
    assert_eq!(balance(&own), "9");
    let gas: u64 = cast(&[&["estimate", "--from", &own][..], &transfer].concat())
        .expect("an estimate")
        .parse()
        .expect("a number");
    assert!((40_000..80_000).contains(&gas), "{gas}");
    let key = account.key_hex();
    cast(&[&["send", "--private-key", &key][..], &transfer].concat()).expect("a transfer");
    assert_eq!(balance(RECEIVER), "4");
    let logs = cast(&[
        "logs",
        "--json",
        "--from-block",
        "0",
        "--address",
        token,
        "Transfer(address,address,uint256)",
    ]);
    let logs: Value = serde_json::from_str(&logs.expect("logs")).expect("a list");
    assert_eq!(logs.as_array().map(Vec::len), Some(2), "{logs}");
}

/// `eth_simulateV1` reports that a transfer of too many tokens fails and leaves the chain
/// unchanged; `eth_sendRawTransactionSync` returns the receipt.
fn simulates_and_waits(cast: Cast<'_>, account: &Account, token: &str) {
    let own = account.address.to_string();
    // Calldata of transfer(address,uint256)
    let data = |amount: u64| format!("0xa9059cbb{:0>64}{amount:064x}", &RECEIVER[2..]);
    let call = |amount| json!({ "from": own, "to": token, "input": data(amount) });
    let payload = json!({ "blockStateCalls": [{ "calls": [call(1), call(100)] }] }).to_string();
    let blocks = cast(&["rpc", "eth_simulateV1", &payload, "latest"]).expect("blocks");
    let blocks: Value = serde_json::from_str(&blocks).expect("JSON");
    let calls = &blocks[0]["calls"];
    assert_eq!(
        (&calls[0]["status"], &calls[1]["status"]),
        (&json!("0x1"), &json!("0x0"))
    );
    assert_eq!(calls[1]["error"]["code"], 3, "{blocks}");
    let raw = cast(&[
        "mktx",
        "--private-key",
        &account.key_hex(),
        token,
        "transfer(address,uint256)",
        RECEIVER,
        "1",
    ]);
    let receipt = cast(&[
        "rpc",
        "eth_sendRawTransactionSync",
        &raw.expect("a transaction"),
    ]);
    let receipt: Value = serde_json::from_str(&receipt.expect("a receipt")).expect("JSON");
    assert_eq!(receipt["status"], "0x1", "{receipt}");
}

fn decodes_reverts(cast: Cast<'_>, account: &Account, token: &str) {
    let refused = cast(&[
        "call",
        "--from",
        RECEIVER,
        token,
        "transfer(address,uint256)",
        &account.address.to_string(),
        "5",
    ])
    .unwrap_err();
    // Selector of the error InsufficientBalance(4, 5)
    assert!(
        refused.contains("cf479181") || refused.contains("InsufficientBalance"),
        "{refused}"
    );
    let refused = cast(&["call", token, "failWithReason()"]).unwrap_err();
    assert!(refused.contains("not today"), "{refused}");
}

fn reads_proofs_and_blocks(cast: Cast<'_>, account: &Account, token: &str) {
    let own = account.address.to_string();
    let list =
        cast(&["access-list", "--from", &own, token, "totalSupply()"]).expect("an access list");
    assert!(
        list.to_lowercase().contains(&token.to_lowercase()),
        "{list}"
    );
    let proof: Value =
        serde_json::from_str(&cast(&["proof", token, "0x1"]).expect("a proof")).expect("JSON");
    assert_eq!(proof["storageProof"][0]["value"], "0x9", "{proof}");
    let hash = cast(&["block", "latest", "--field", "hash"]).expect("a block");
    let name = wait("the block", Duration::from_secs(5), || {
        cast(&["block", &hash, "--field", "number"]).ok()
    });
    assert!(name.parse::<u64>().is_ok(), "{name}");
}
