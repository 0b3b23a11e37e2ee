//! Waiting times of honest calls that need a millisecond, while other clients keep the EVM busy.

use super::{Node, client::Client};
use crate::support::{Times, ms, size, verdict};
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Pause between two honest calls.
const PACE: Duration = Duration::from_millis(50);
/// Timeout of an honest client; heavy calls end after 5 s.
const PATIENCE: Duration = Duration::from_secs(6);
const BAR: Duration = Duration::from_millis(500);
const CODE_AT: &str = "0x00000000000000000000000000000000000000c0";

/// Parameters of an `eth_call` that runs this code with this much gas.
fn call(code: &str, gas: u64) -> Value {
    json!([{ "to": CODE_AT, "gas": format!("{gas:#x}") }, "latest", { CODE_AT: { "code": code } }])
}

/// Parameters of an `eth_call` that runs a loop `count` times.
fn rounds(count: u32) -> Value {
    // PUSH4 count, JUMPDEST, PUSH1 1, SWAP1, SUB, DUP1, PUSH1 5, JUMPI, STOP
    call(&format!("0x63{count:08x}5b6001900380600557"), 1_000_000_000)
}

pub fn run(node: &Node) {
    let honest = one_millisecond(node.http);
    let endless = call("0x5b600056", u64::MAX / 4);
    let heavy = call("0x5b600056", 50_000_000);
    println!(
        "an honest eth_call of 1 ms each {} ms, node on one core",
        PACE.as_millis()
    );
    for (name, attackers, attack) in [
        ("alone", 0, &heavy),
        ("20 connections with calls of 50,000,000 gas", 20, &heavy),
        ("20 connections with endless calls", 20, &endless),
        ("100 connections with endless calls", 100, &endless),
    ] {
        row(node.http, name, &honest, attackers, attack);
    }
}

/// A call that executes for about a millisecond, not counting waiting and transport.
fn one_millisecond(addr: SocketAddr) -> Value {
    let mut client = Client::connect(addr, PATIENCE).expect("a connection");
    let mut time = |params: &Value| {
        let mut times = Times::default();
        for _ in 0..30 {
            let begun = Instant::now();
            client.call("eth_call", params).expect("an answer");
            times.push(begun.elapsed());
        }
        times.percentile(50)
    };
    let (few, many) = (time(&rounds(1)), time(&rounds(1_000_000)));
    rounds((1_000_000.0 / ms(many.saturating_sub(few))) as u32)
}

fn row(addr: SocketAddr, name: &str, honest: &Value, attackers: usize, attack: &Value) {
    let over = AtomicBool::new(false);
    let seconds = Duration::from_secs(size("STARLING_BENCH_SECONDS", 15) as u64);
    let (mut times, mut failed) = (Times::default(), 0);
    std::thread::scope(|scope| {
        for _ in 0..attackers {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let Ok(mut client) = Client::connect(addr, 2 * PATIENCE) else {
                        continue;
                    };
                    while !over.load(Ordering::Relaxed) {
                        if client.call("eth_call", attack).is_err() {
                            break;
                        }
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_millis(500).min(seconds));
        let mut client = Client::connect(addr, PATIENCE);
        let begun = Instant::now();
        while begun.elapsed() < seconds {
            let asked = Instant::now();
            let answer = client
                .as_mut()
                .map(|client| client.call("eth_call", honest));
            times.push(asked.elapsed());
            match answer {
                Ok(Ok(answer)) => failed += usize::from(answer.get("result").is_none()),
                _ => {
                    failed += 1;
                    client = Client::connect(addr, PATIENCE);
                }
            }
            std::thread::sleep(PACE.saturating_sub(asked.elapsed()));
        }
        over.store(true, Ordering::Relaxed);
    });
    let [p50, p99, max] = [50, 99, 100].map(|percent| ms(times.percentile(percent)));
    let met = verdict(times.percentile(99) <= BAR && failed == 0);
    let calls = times.len();
    println!(
        "  {name:<46} p50 {p50:>8.1} ms   p99 {p99:>8.1} ms   max {max:>8.1} ms   failed {failed}/{calls}   {met}"
    );
}
