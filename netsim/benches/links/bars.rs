//! The properties of a link that have bars, measured through a link of each backend: a transfer
//! against its rate, and an echo of 10,000 datagrams against delay and loss.

use crate::{
    net::*,
    path::{BACKENDS, BenchPath},
    size,
};
use starling_netsim::{DirectionConditions, LinkBandwidth, LinkConditions, LinkEnd};
use std::time::Duration;

/// Largest deviation of rate and delay from their conditions, and of the loss as a share of all
/// datagrams.
const DEVIATION: f64 = 0.1;
const LOSS_DEVIATION: f64 = 0.01;

/// Rate of the transfer in bytes per second.
const RATE: u64 = 12_500_000;

/// Measures all bars, prints them, and returns whether all are met.
pub async fn bars() -> bool {
    println!("\nbars: measured of nominal");
    let mut held = true;
    for backend in BACKENDS {
        held &= transfer(backend).await;
        held &= echo(backend).await;
    }
    held
}

fn line(backend: &str, what: &str, measured: f64, nominal: f64, deviation: f64) -> bool {
    let held = (measured - nominal).abs() <= deviation;
    let verdict = if held { "" } else { ", missed" };
    println!(
        "{backend:<8} {what:<28} {measured:>9.3} of {nominal:>9.3}   ratio {:.3} (bar ±{deviation:.3}{verdict})",
        measured / nominal
    );
    held
}

async fn transfer(backend: &str) -> bool {
    let conditions = LinkConditions::symmetric(DirectionConditions {
        delay: ms(10),
        bandwidth: Some(LinkBandwidth::new(RATE, 500_000)),
        ..DirectionConditions::CLEAR
    });
    let Some(path) = BenchPath::new(backend, conditions) else {
        println!("{backend:<8} refused by this machine, so its bars are missed");
        return false;
    };
    let bytes = size("STARLING_BENCH_TRANSFER_MB", 100) * 1_000_000;
    let (address, mut received) = path.sink(LinkEnd::Far).await;
    let stream = path.dial(LinkEnd::Far, address).await;
    let pouring = tokio::spawn(pour_into(stream, bytes));
    let rate = rate_within(&mut received, bytes, Duration::from_secs(60)).await / 1e6;
    pouring.abort();
    let nominal = RATE as f64 / 1e6;
    let what = format!("MB/s of {} MB", bytes / 1_000_000);
    line(backend, &what, rate, nominal, DEVIATION * nominal)
}

async fn echo(backend: &str) -> bool {
    let (delay, loss) = (ms(25), 0.05);
    let conditions = LinkConditions::symmetric(DirectionConditions {
        delay,
        loss,
        ..DirectionConditions::CLEAR
    });
    let Some(path) = BenchPath::new(backend, conditions) else {
        return false;
    };
    let echo = Echo {
        count: 10_000,
        len: 200,
        batch: 2,
        pause: ms(1),
        patience: ms(4_000),
    };
    let mut echoed = echo.run(path.udp_to_echo().await).await;
    let times: Vec<Duration> = echoed.iter().map(|it| it.time).collect();
    let median = percentile(times.clone(), 50).as_secs_f64() * 1e3;
    // A busy machine only makes times longer, so the shorter ones show the link.
    let time = percentile(times, 10).as_secs_f64() * 1e3;
    echoed.sort_by_key(|it| it.number);
    echoed.dedup_by_key(|it| it.number);
    let round_trip = 2.0 * delay.as_secs_f64() * 1e3;
    let lost = 1.0 - echoed.len() as f64 / echo.count as f64;
    let expected = 1.0 - (1.0 - loss) * (1.0 - loss);
    let is_timely = line(
        backend,
        &format!("round trip ms, p50 {median:.1}, p10"),
        time,
        round_trip,
        DEVIATION * round_trip,
    );
    line(
        backend,
        "share lost of 10,000",
        lost,
        expected,
        LOSS_DEVIATION,
    ) && is_timely
}
