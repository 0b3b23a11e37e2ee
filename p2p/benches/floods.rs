//! Measures how much later a valid block is accepted during an attack: the time from `publish`
//! until the chain of the publisher's neighbour, the victim, gets the block. Each attack has one
//! line, with the delays before and during the attack, from one run.
//!
//! The attackers are those of the tests. Each has a thread of this process and reconnects under
//! another name whenever it is disconnected. The delays thus include the CPU time of the attackers:
//! on a machine with few cores this is more than the victim's own.
//!
//! Blocks are light, or so heavy that they wait for a permit to be unpacked. If the median of a
//! line is above the bar, the line shows this, and the bench ends with an error.
//!
//! Settings: `STARLING_BENCH_BLOCKS` (24) is the number of blocks for each half of a line;
//! `STARLING_BENCH_ONLY` names a single attack to run.

#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../tests/it/attackers.rs"]
mod attackers;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../tests/it/net.rs"]
mod net;

use attackers::*;
use net::*;
use std::{process::ExitCode, time::Duration};

/// Largest median delay of a block during an attack.
const BAR: Duration = Duration::from_millis(50);
/// Number of incompressible bytes of a light and of a heavy block.
const BYTES: [usize; 2] = [100_000, 600_000];
/// Number of blocks that the victim has before the attack, which attackers may request.
const BEFORE: u64 = 100;
/// Time from the start of an attack until blocks are measured.
const RUN_UP: Duration = Duration::from_millis(300);

fn main() -> ExitCode {
    let only = std::env::var("STARLING_BENCH_ONLY").ok();
    let blocks = std::env::var("STARLING_BENCH_BLOCKS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(24);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    // Build the bomb now, before anything is measured.
    bomb(LARGEST);
    let mut missed = 0;
    for bytes in BYTES {
        println!(
            "a block of {bytes} bytes, publish to accepted: {blocks} without and {blocks} with each attack; ms"
        );
        println!(
            "{:<16} {:^23}   {:^23}   later by (bar {} ms)",
            "",
            "quiet",
            "attacked",
            BAR.as_millis()
        );
        let columns = ["p50", "p99", "max"]
            .map(|name| format!("{name:>7}"))
            .join(" ");
        println!("{:<16} {columns}   {columns}   {columns}", "");
        for attack in ATTACKS
            .iter()
            .filter(|attack| only.as_deref().is_none_or(|only| only == attack.name))
        {
            missed += usize::from(!runtime.block_on(measure(attack, blocks, bytes)));
        }
    }
    println!("{missed} lines missed the bar");
    if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Measures one attack, prints its line, and returns whether the median is within the bar.
async fn measure(attack: &Attack, count: usize, bytes: usize) -> bool {
    let before = heavy_chain(BEFORE, 10_000);
    let mut scene = Scene::new(attack, &before).await;
    // The first blocks are not measured, since caches are cold.
    blocks(&mut scene, 3, bytes).await;
    let quiet = blocks(&mut scene, count, bytes).await;
    let attacking = attack.begin(&scene.victim, &before);
    tokio::time::sleep(RUN_UP).await;
    let attacked = blocks(&mut scene, count, bytes).await;
    attacking.end();
    let charges = scene.charges().await.join(", ");
    scene.end().await;
    let figures = |times: [f64; 3]| times.map(|time| format!("{time:>7.2}")).join(" ");
    let later: [f64; 3] = std::array::from_fn(|i| attacked[i] - quiet[i]);
    let held = later[0] <= BAR.as_secs_f64() * 1e3;
    let verdict = if held { "" } else { "missed  " };
    println!(
        "{:<16} {}   {}   {}   {verdict}{charges}",
        attack.name,
        figures(quiet),
        figures(attacked),
        figures(later)
    );
    held
}

/// Publishes `count` blocks; returns median, 99th percentile and maximum of the delays, in ms.
async fn blocks(scene: &mut Scene, count: usize, bytes: usize) -> [f64; 3] {
    let mut times = Vec::new();
    for _ in 0..count {
        times.push(scene.block(bytes).await.as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    [50, 99, 100].map(|percent: usize| times[(count * percent).div_ceil(100).max(1) - 1])
}
