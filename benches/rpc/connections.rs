//! The memory of idle connections, and whether a new client is served while they are open.

use super::{Node, client::Client};
use crate::support::{ms, size};
use serde_json::json;
use std::time::{Duration, Instant};

/// Longest wait of a new client for a response.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn run(node: &Node) {
    println!("connections that are idle after one request each");
    let mut idle = Vec::new();
    for count in [
        1280,
        size("STARLING_BENCH_IDLE", 9000),
        2 * size("STARLING_BENCH_IDLE", 9000),
    ] {
        row(node, count, &mut idle);
    }
}

fn row(node: &Node, count: usize, idle: &mut Vec<Client>) {
    let (before, had) = (node.memory(), idle.len());
    let mut refused = 0;
    while idle.len() < count && refused == 0 {
        match connect(node) {
            Ok(client) => idle.push(client),
            Err(_) => refused += 1,
        }
    }
    let each = node.memory().saturating_sub(before) / (idle.len() - had).max(1) as u64;
    let begun = Instant::now();
    let served = connect(node).map(|_| begun.elapsed());
    let served = served.map_or_else(
        |error| format!("fails: {error}"),
        |time| format!("is served after {:.1} ms", ms(time)),
    );
    println!(
        "  {count:>6} wanted, {:>6} opened, {:>5.1} KiB each; a new client {served}",
        idle.len(),
        each as f64 / 1024.0
    );
}

/// Opens a connection and waits for the response to a first request.
fn connect(node: &Node) -> std::io::Result<Client> {
    let mut client = Client::connect(node.http, PATIENCE)?;
    client.call("eth_chainId", &json!([]))?;
    Ok(client)
}
