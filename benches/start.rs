//! Start, memory and restart of real processes: the time from `starling devnet` to a response, the
//! memory of a replica at the start and after load, and the time from a start after `kill -9` to
//! the first response.
//!
//! Sizes: `STARLING_BENCH_STARTS` (5), `STARLING_BENCH_IDLE` seconds (20), `STARLING_BENCH_LOAD`
//! seconds (20), `STARLING_BENCH_RATE` transfers a second (100), `STARLING_BENCH_KILLS` (10).

#[allow(dead_code, reason = "the integration tests use more of it")]
#[path = "../tests/it/net.rs"]
mod net;
mod support;

use alloy_primitives::{Address, Bytes, TxKind, U256};
use net::{Account, Devnet, Node, Running, ask, call, head, number};
use serde_json::json;
use std::time::{Duration, Instant};
use support::{
    Times, ms, print_times, process,
    program::{time_bare, time_to_answer},
    size,
};

const START_BAR: Duration = Duration::from_secs(2);
const REOPEN_BAR: Duration = Duration::from_secs(1);
const MEMORY_BAR: f64 = 150.0;
const PATIENCE: Duration = Duration::from_secs(30);

fn main() {
    let program = measure_starts(size("STARLING_BENCH_STARTS", 5));
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3"]);
    measure_memory(
        &net,
        Duration::from_secs(size("STARLING_BENCH_IDLE", 20) as u64),
        Duration::from_secs(size("STARLING_BENCH_LOAD", 20) as u64),
    );
    println!(
        "\nfrom a start after kill -9 to the first answer; the bar is {} s",
        REOPEN_BAR.as_secs()
    );
    let mut restarted = Vec::new();
    for node in [net.replicas().remove(0), net.sequencer()] {
        let (times, running) = reopen(&net, &node, size("STARLING_BENCH_KILLS", 10));
        restarted.push(running);
        print_times(&node.name, &times);
        println!(
            "  ratio to the bare program: {:.1}",
            ms(times.percentile(50)) / ms(program.percentile(50))
        );
    }
}

/// Starts networks and prints their times. Returns the times of the bare program.
fn measure_starts(starts: usize) -> Times {
    let (mut all, mut program) = (Times::default(), Times::default());
    for _ in 0..starts {
        program.push(time_bare());
        let begun = Instant::now();
        let net = Devnet::start(&[]);
        ask(&net.replicas()[0].http, "eth_blockNumber", json!([]));
        all.push(begun.elapsed());
    }
    println!(
        "start of a devnet with an L1, a sequencer and two replicas; the bar is {} s",
        START_BAR.as_secs()
    );
    print_times("the program alone (--version)", &program);
    print_times("until every node answers (seen 50 ms late)", &all);
    println!(
        "  ratio to the bare program: {:.1}",
        ms(all.percentile(50)) / ms(program.percentile(50))
    );
    program
}

/// Prints the memory of the nodes at the start and after load.
fn measure_memory(net: &Devnet, idle: Duration, load: Duration) {
    std::thread::sleep(idle);
    println!("\nresident memory, MB; the bar for a fresh replica is {MEMORY_BAR}");
    let table = |name: &str| {
        let nodes = net
            .nodes
            .iter()
            .map(|node| format!("{} {:.1}", node.name, resident(node.pid)));
        println!("  {name:<44} {}", nodes.collect::<Vec<_>>().join("   "));
    };
    table(&format!("fresh, after {} s", idle.as_secs()));
    let sent = pay(&net.sequencer(), &net.accounts[3], net.l2_chain_id, load);
    let load = load.as_secs();
    table(&format!("after {load} s of load, {sent} transfers"));
}

/// Kills the node repeatedly under load and restarts it with its own command line. The returned
/// process is the last restarted node; dropping it stops the node.
fn reopen(net: &Devnet, node: &Node, tries: usize) -> (Times, Option<Running>) {
    let mut times = Times::default();
    let mut running: Option<Running> = None;
    for round in 0..tries {
        // Send transfers before each kill, so that the restarted node has blocks to replay.
        pay(
            node,
            &net.accounts[4 + round % 4],
            net.l2_chain_id,
            Duration::from_secs(2),
        );
        match &mut running {
            Some(process) => process.kill9(),
            None => node.kill9(),
        }
        let begun = Instant::now();
        running = Some(node.restart(&net.dir.join("restarted.log")));
        times.push(time_to_answer(begun, PATIENCE, || {
            head(&node.http).is_some()
        }));
    }
    (times, running)
}

/// Sends transfers at the configured rate; returns how many the node accepted.
fn pay(node: &Node, account: &Account, chain_id: u64, time: Duration) -> usize {
    let pause = Duration::from_secs(1) / size("STARLING_BENCH_RATE", 100).max(1) as u32;
    let (begun, mut sent) = (Instant::now(), 0);
    let mut nonce = number(&ask(
        &node.http,
        "eth_getTransactionCount",
        json!([account.address, "pending"]),
    ));
    while begun.elapsed() < time {
        let to = TxKind::Call(Address::left_padding_from(&nonce.to_be_bytes()));
        let raw = account.sign(chain_id, nonce, to, U256::from(1), Bytes::new(), 21_000);
        if call(&node.http, "eth_sendRawTransaction", json!([raw])).is_ok() {
            nonce += 1;
            sent += 1;
        }
        std::thread::sleep((pause * (sent as u32)).saturating_sub(begun.elapsed()));
    }
    sent
}

/// Resident megabytes of a process, from `/proc`.
fn resident(pid: i32) -> f64 {
    let kib = process::field(&format!("/proc/{pid}/status"), "VmRSS:");
    kib as f64 * 1024.0 / 1e6
}
