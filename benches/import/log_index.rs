//! The cost of the log index in an import: separate processes import the same blocks, alternately
//! with and without the index.

use crate::{
    import, open,
    support::{copy, frames, median, process, size},
};
use futures::stream;
use starling::chain::store::IndexWindow;
use std::{
    fs::{self, File},
    io::BufReader,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// Environment variable that makes this program an importing process. Its value is the data
/// directory, the file of blocks, and `off` for an import without the index.
pub const CHILD: &str = "STARLING_BENCH_LOG_INDEX_CHILD";
/// Environment variable for the number of blocks to import from the file.
const COUNT: &str = "STARLING_BENCH_LOG_INDEX_BLOCKS";
/// Bar: highest cost of the index, in percent of an import.
const BAR: f64 = 5.0;

/// Costs of one import: times in seconds, data written in megabytes.
struct Cost {
    wall: f64,
    processor: f64,
    written: f64,
}

/// Selects one figure of an import.
type Figure = fn(&Cost) -> f64;

/// Imports the first `blocks` of the file, alternately with and without the index. Each import ends
/// when all is stored, flushed and closed.
pub fn section(folder: &Path, blocks: usize) {
    let rounds = size("STARLING_BENCH_ROUNDS", 5);
    let mut costs: [Vec<Cost>; 2] = Default::default();
    for round in 0..rounds {
        // The order alternates, since the second import may find more of the files in the page
        // cache.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for with in order {
            costs[with].push(measure(folder, blocks, with == 1));
        }
    }
    println!("\nlog index: {rounds} imports of {blocks} full blocks with it, {rounds} without");
    let figures: [(&str, Figure); 3] = [
        ("seconds", |cost| cost.wall),
        ("seconds of processor", |cost| cost.processor),
        ("MB written", |cost| cost.written),
    ];
    for (name, figure) in figures {
        let [without, with] = [0, 1].map(|with| median(costs[with].iter().map(figure).collect()));
        println!(
            "  {name:<22} {without:>9.2} without, {with:>9.2} with, {:+.1} % (bar {BAR} %)",
            (with / without - 1.0) * 100.0
        );
    }
}

/// Imports the blocks into a fresh copy of the genesis data directory.
fn measure(folder: &Path, blocks: usize, indexed: bool) -> Cost {
    let datadir = folder.join("log-index");
    copy(&folder.join("genesis"), &datadir);
    let mut paths = vec![datadir.clone(), folder.join("blocks")];
    if !indexed {
        paths.push("off".into());
    }
    let program = std::env::current_exe().expect("the bench has a path");
    let output = Command::new(program)
        .env(CHILD, std::env::join_paths(paths).expect("paths"))
        .env(COUNT, blocks.to_string())
        .stderr(std::process::Stdio::inherit())
        .output()
        .expect("it runs");
    assert!(output.status.success(), "an import failed");
    fs::remove_dir_all(&datadir).expect("the copy is removed");
    let output = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = output
        .split_whitespace()
        .filter_map(|figure| figure.parse().ok())
        .collect();
    let [wall, processor, written] = figures[..] else {
        panic!("three figures, not {output}")
    };
    Cost {
        wall,
        processor,
        written,
    }
}

/// The importing process. Prints the figures of [`Cost`].
pub async fn child(paths: &[PathBuf]) {
    let count = size(COUNT, 0);
    let (chain, threads) = open(&paths[0]);
    if paths.get(2).is_some() {
        chain.keep_logs(IndexWindow::Off);
    }
    let mut file = BufReader::new(File::open(&paths[1]).expect("the file of blocks"));
    let (begun, processor) = (Instant::now(), process::processor());
    let blocks = std::iter::from_fn(|| frames::read(&mut file)).take(count);
    import(&chain, stream::iter(blocks)).await;
    drop(chain);
    threads.stop().expect("the chain is stored");
    println!(
        "{} {} {}",
        begun.elapsed().as_secs_f64(),
        (process::processor() - processor).as_secs_f64(),
        process::written() as f64 / 1e6
    );
}
