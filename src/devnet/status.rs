//! Terminal output of a development network: a table of its nodes, and a status line with their
//! heads.

use super::{
    NodePlan, NodeRole, accounts, directory::Directory, posters::ProposalContract,
    processes::Process,
};
use crate::proposer::contracts;
use alloy_primitives::{Address, Bytes, keccak256};
use indicatif::{ProgressBar, ProgressStyle};
use jsonrpsee::{
    core::{ClientError, client::ClientT, params::ArrayParams},
    http_client::HttpClient,
    rpc_params,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{process::ExitStatus, time::Duration};
use tokio_util::sync::CancellationToken;

/// Interval between requests for heads.
const INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of a request to a node on this machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

async fn request<T: DeserializeOwned>(
    url: &str,
    method: &str,
    params: ArrayParams,
) -> Result<T, ClientError> {
    let client = HttpClient::builder()
        .request_timeout(ANSWER_LIMIT)
        .build(url)?;
    client.request(method, params).await
}

/// Number of a node's newest block; `None` if the node does not respond.
pub async fn head(http: &str) -> Option<u64> {
    let number: String = request(http, "eth_blockNumber", rpc_params![]).await.ok()?;
    u64::from_str_radix(number.strip_prefix("0x")?, 16).ok()
}

/// Whether a node serves its RPC. Batcher and proposer do so only once they have reached L1 and L2.
pub async fn responds(node: &NodePlan) -> bool {
    match &node.rpc {
        Some(rpc) if !node.has_chain() => {
            let answer = request::<Value>(rpc, "health_status", rpc_params![]).await;
            matches!(answer, Ok(_) | Err(ClientError::Call(_)))
        }
        _ => head(&node.http).await.is_some(),
    }
}

/// Unsafe, safe and finalized head of a rollup node, formatted for the status line.
async fn heads(rpc: &str) -> Option<String> {
    let status: Value = request(rpc, "optimism_syncStatus", rpc_params![])
        .await
        .ok()?;
    let number = |name: &str| status[name]["number"].as_u64();
    Some(format!(
        "unsafe #{} safe #{} finalized #{}",
        number("unsafe_l2")?,
        number("safe_l2")?,
        number("finalized_l2")?
    ))
}

async fn ask(l1: &str, to: Address, data: Bytes) -> Option<Bytes> {
    let call = json!({ "to": to, "data": data });
    request(l1, "eth_call", rpc_params![call, "latest"])
        .await
        .ok()
}

fn call(signature: &str) -> Bytes {
    Bytes::copy_from_slice(&keccak256(signature)[..4])
}

/// Number of the newest L2 block whose output is proposed on L1.
async fn proposed(l1: &str, contract: ProposalContract) -> Option<u64> {
    let (to, question) = match contract {
        ProposalContract::OutputOracle(oracle) => (oracle, "latestBlockNumber()"),
        ProposalContract::DisputeGameFactory(factory) => {
            let count = ask(l1, factory, contracts::game_count()).await?;
            let last = contracts::read_u64(&count, 0).ok()?.checked_sub(1)?;
            let game = ask(l1, factory, contracts::game_at_index(last)).await?;
            let game = contracts::read_listed_game(&game).ok()?;
            (game.address, "l2BlockNumber()")
        }
    };
    let number = ask(l1, to, call(question)).await?;
    contracts::read_u64(&number, 0).ok()
}

/// Network-wide part of the status line.
async fn progress(directory: &Directory) -> String {
    let node = |role| directory.nodes().iter().find(|node| node.role == role);
    let mut words = String::new();
    if let Some(rpc) = node(NodeRole::Sequencer).and_then(|node| node.rpc.as_ref()) {
        words = heads(rpc).await.unwrap_or_default();
    }
    if let (Some(l1), Some(contract)) = (node(NodeRole::L1), directory.proposals())
        && let Some(number) = proposed(&l1.http, contract).await
    {
        words += &format!(" proposed #{number}");
    }
    words
}

/// Newest block of each node with a chain, formatted for the status line.
async fn node_heads(directory: &Directory) -> String {
    let nodes = directory.nodes().iter().filter(|node| node.has_chain());
    let words = nodes.map(|node| async move {
        let head = head(&node.http).await;
        let head = head.map_or("does not answer".into(), |number| format!("#{number}"));
        format!("{} {head}", node.name)
    });
    futures::future::join_all(words).await.join("  ")
}

/// Prints a message above the status line.
pub fn say(sentence: &str) {
    println!("{sentence}");
}

/// Prints the endpoints and accounts of the network.
pub fn print_table(directory: &Directory) {
    let nodes = directory.nodes();
    let width = nodes
        .iter()
        .map(|node| node.name.len())
        .max()
        .unwrap_or_default();
    println!(
        "\n{:width$}  {:24}{:24}peer-to-peer",
        "node", "HTTP", "WebSocket"
    );
    for node in nodes {
        println!(
            "{:width$}  {:24}{:24}{}",
            node.name,
            match node.rpc.as_deref() {
                Some(rpc) if !node.has_chain() => rpc,
                _ => &node.http,
            },
            if node.ws.is_empty() { "-" } else { &node.ws },
            node.p2p.as_deref().unwrap_or("-")
        );
    }
    println!(
        "\ndeposits go to {} on L1 (chain {})",
        directory.rollup().deposit_contract_address,
        directory.rollup().l1_chain_id
    );
    if let Some(account) = accounts::all().first() {
        println!(
            "10 accounts have 10000 ether on L1 and on L2 (chain {}), the first:",
            directory.rollup().l2_chain_id
        );
        println!(
            "  address {}\n  key     {}",
            account.address, account.private_key
        );
    }
    println!(
        "\nall of it is in {}; Ctrl-C ends the network
any node may be killed: the command that restarts it is printed then\n",
        directory.description().display()
    );
}

/// Report about a node that ended: the end of its log, then the command that restarts it. The
/// command comes last, under a heading, because the log may be long.
fn end_report(process: &Process, status: ExitStatus) -> String {
    let node = &process.node;
    let log = node.log.display();
    let restart = format!("==> to restart {}, run in another terminal:", node.name);
    format!(
        "{} ended with {status}; its log {log} ends with:\n{}\n\n{restart}\n{}\n",
        node.name,
        process.log_tail(),
        node.command_line()
    )
}

/// Shows the heads until `token` is cancelled, and reports nodes that end.
pub async fn follow(directory: &Directory, processes: &mut [Process], token: &CancellationToken) {
    let line = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
        line.set_style(style);
    }
    while !token.is_cancelled() {
        let words = async { tokio::join!(node_heads(directory), progress(directory)) };
        let (heads, progress) = tokio::select! {
            words = words => words,
            _ = token.cancelled() => break,
        };
        for process in processes.iter_mut() {
            if let Some(status) = process.just_ended() {
                line.suspend(|| say(&end_report(process, status)));
            }
        }
        line.set_message(format!("{heads}  {progress}"));
        line.tick();
        tokio::select! {
            _ = tokio::time::sleep(INTERVAL) => {}
            _ = token.cancelled() => break,
        }
    }
    line.finish_and_clear();
}

/// Name of a role in the table of nodes.
impl std::fmt::Display for NodeRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NodeRole::L1 => "l1",
            NodeRole::Sequencer => "sequencer",
            NodeRole::Replica => "replica",
            NodeRole::Batcher => "batcher",
            NodeRole::Proposer => "proposer",
        })
    }
}
