//! Measures the throughput of links, as the ratio to a bare loopback copy in the same run (as
//! `netsim bench links` does), whether links of both backends meet their conditions, and the actual
//! figures of each rung of the ladder.
//!
//! A line that misses its bar is marked, and the bench then ends with an error.
//!
//! Settings: `STARLING_BENCH_MB` (512) is the size of a copy, `STARLING_BENCH_ROUNDS` (5) the
//! number of rounds, and `STARLING_BENCH_SECONDS` (3) the duration of a transfer at the rate of a
//! rung. `STARLING_BENCH_TRANSFER_MB` (100) is the size of the transfer with a bar.

#[path = "links/bars.rs"]
mod bars;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../tests/links/net.rs"]
mod net;
#[path = "links/path.rs"]
mod path;

use net::*;
use path::{BACKENDS, BenchPath};
use starling_netsim::{
    DirectionConditions, LinkBandwidth, LinkConditions, LinkEnd,
    bench::{BenchFigures, links, process_time},
    ladder::{LADDER, Rung},
    packet::{ETHERNET_MTU, PacketHostPlan},
};
use std::{process::ExitCode, time::Duration};

fn size(name: &str, default: usize) -> usize {
    links::size(name, default).unwrap_or_else(|error| panic!("{error}"))
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut figures = BenchFigures::default();
    let copied = runtime.block_on(links::copies(&mut figures));
    copied.expect("all copies are whole");
    let held = figures.are_met();
    runtime.block_on(packets());
    let in_bounds = runtime.block_on(bars::bars());
    for backend in BACKENDS {
        runtime.block_on(rungs(backend));
    }
    if held && in_bounds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints the throughput between two hosts of the packet backend without conditions, for packets of
/// Ethernet and for the largest ones.
async fn packets() {
    let bytes = size("STARLING_BENCH_MB", 512) * 1_000_000;
    for mtu in [ETHERNET_MTU, u16::MAX] {
        let host = PacketHostPlan { mtu, nat: None };
        let Some(lab) = PacketLab::new(&[host; 2], LinkConditions::CLEAR) else {
            return;
        };
        let (address, mut received) = lab.sink(1);
        let stream = lab.dial(0, address).await;
        let before = process_time();
        let pouring = tokio::spawn(pour_into(stream, bytes));
        let rate = rate(&mut received, bytes).await;
        drop(pouring.await.expect("a connection"));
        let used = (process_time() - before).as_secs_f64() * 1e3 / (bytes as f64 / 1e6);
        let name = format!("packets of {mtu}");
        println!("{name:<24} {:>8.0}   {:>7}   {used:>15.3}", rate / 1e6, "");
    }
}

async fn rungs(backend: &str) {
    println!("\nladder on {backend}: nominal, measured");
    println!(
        "{:<14} {:>19} {:>19} {:>21} {:>15}",
        "", "MB/s up", "MB/s down", "round trip ms", "lost %"
    );
    for rung in &LADDER {
        let Some(link) = BenchPath::new(backend, rung.conditions) else {
            return;
        };
        let up = transfer(&link, LinkEnd::Far, rung.conditions.up).await;
        let down = transfer(&link, LinkEnd::Near, rung.conditions.down).await;
        drop(link);
        let Some((time, lost)) = echoes(backend, rung).await else {
            return;
        };
        println!(
            "{:<14} {up:>19} {down:>19} {time:>21} {lost:>15}",
            rung.name
        );
    }
    println!("Loss lowers the throughput of a connection: it stalls.");
}

async fn transfer(link: &BenchPath, to: LinkEnd, direction: DirectionConditions) -> String {
    let (address, mut received) = link.sink(to).await;
    let most = size("STARLING_BENCH_MB", 512) * 1_000_000;
    let seconds = size("STARLING_BENCH_SECONDS", 3);
    let nominal = direction.bandwidth.map(|it: LinkBandwidth| it.rate.get());
    let bytes = nominal.map_or(most, |rate| {
        (rate as usize).saturating_mul(seconds).min(most)
    });
    // A connection that stalls does not reach the rate of its rung, so limit the time.
    let limit = Duration::from_secs(2 * seconds as u64);
    let stream = link.dial(to, address).await;
    let pouring = tokio::spawn(pour_into(stream, bytes));
    let measured = rate_within(&mut received, bytes, limit).await / 1e6;
    pouring.abort();
    match nominal {
        Some(rate) => format!("{:>8.3} {measured:>9.3}", rate as f64 / 1e6),
        None => format!("{:>8} {measured:>9.3}", "none"),
    }
}

/// The median round-trip time of small datagrams, and the percentage of datagrams without a reply.
async fn echoes(backend: &str, rung: &Rung) -> Option<(String, String)> {
    let echo = Echo {
        count: 4_000,
        len: 32,
        batch: 1,
        pause: ms(1),
        patience: ms(4_000),
    };
    let link = BenchPath::new(backend, rung.conditions)?;
    let mut echoed = echo.run(link.udp_to_echo().await).await;
    let time = percentile(echoed.iter().map(|it| it.time).collect(), 50);
    echoed.sort_by_key(|it| it.number);
    echoed.dedup_by_key(|it| it.number);
    let (up, down) = (rung.conditions.up, rung.conditions.down);
    let nominal = (up.delay + down.delay).as_secs_f64() * 1e3;
    let lost = 1.0 - (1.0 - up.loss) * (1.0 - down.loss);
    let measured = 1.0 - echoed.len() as f64 / echo.count as f64;
    Some((
        format!("{nominal:>9.3} {:>9.3}", time.as_secs_f64() * 1e3),
        format!("{:>6.2} {:>6.2}", lost * 100.0, measured * 100.0),
    ))
}
