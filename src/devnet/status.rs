//! Terminal output of a development network: a table of its nodes, and a line that follows their
//! heads.

use super::{NodeRole, accounts, directory::Directory, processes::Process};
use indicatif::{ProgressBar, ProgressStyle};
use jsonrpsee::{core::client::ClientT, http_client::HttpClient, rpc_params};
use std::{process::ExitStatus, time::Duration};
use tokio_util::sync::CancellationToken;

/// Interval between requests for heads.
const INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of a request to a node on this machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The newest block of a node; `None` if it does not respond.
pub async fn head(http: &str) -> Option<u64> {
    let client = HttpClient::builder()
        .request_timeout(ANSWER_LIMIT)
        .build(http)
        .ok()?;
    let number: String = client
        .request("eth_blockNumber", rpc_params![])
        .await
        .ok()?;
    u64::from_str_radix(number.strip_prefix("0x")?, 16).ok()
}

/// Prints a sentence above the status line.
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
            node.http,
            node.ws,
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

/// Report of a node that ended: the end of its log, then the command that restarts it. The command
/// comes last and under a heading, because the log may be long.
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

/// Follows the heads until the token is cancelled, and reports nodes that end.
pub async fn follow(directory: &Directory, processes: &mut [Process], token: &CancellationToken) {
    let line = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
        line.set_style(style);
    }
    while !token.is_cancelled() {
        let heads =
            futures::future::join_all(directory.nodes().iter().map(|node| head(&node.http)));
        let heads = tokio::select! {
            heads = heads => heads,
            _ = token.cancelled() => break,
        };
        for process in processes.iter_mut() {
            if let Some(status) = process.just_ended() {
                line.suspend(|| say(&end_report(process, status)));
            }
        }
        let words: Vec<String> = directory
            .nodes()
            .iter()
            .zip(heads)
            .map(|(node, head)| {
                format!(
                    "{} {}",
                    node.name,
                    head.map_or("does not answer".into(), |number| format!("#{number}"))
                )
            })
            .collect();
        line.set_message(words.join("  "));
        line.tick();
        tokio::select! {
            _ = tokio::time::sleep(INTERVAL) => {}
            _ = token.cancelled() => break,
        }
    }
    line.finish_and_clear();
}

/// The name of a role in a list of nodes.
impl std::fmt::Display for NodeRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NodeRole::L1 => "l1",
            NodeRole::Sequencer => "sequencer",
            NodeRole::Replica => "replica",
        })
    }
}
