//! Range sync over loopback. A late node fetches many small blocks from two peers into a durable
//! chain, compared with the import of the same blocks from a file. Then serving alone is compared
//! with a bare libp2p stream of the same bytes.
//!
//! Every node is a separate process, so that the late node's processor time can be measured.
//! Processor times cover whole processes, from before the first block until the last block is
//! stored.
//!
//! Sizes: `STARLING_BENCH_BLOCKS` (50000), `STARLING_BENCH_TRANSFERS` per block (10),
//! `STARLING_BENCH_ACCOUNTS` (10000).

#[path = "range_sync/reader.rs"]
mod reader;
mod support;

use starling::{
    chain::{Chain, Options, store::IndexWindow},
    cli::config::HistoryConfig,
    transfer,
};
use starling_p2p::{ChainGenesis, Config};
use starling_proto::{payload::BlockId, sign};
use std::{
    path::Path,
    time::{Duration, Instant},
};
use support::{
    Ground, copy,
    part::{self, Part},
    process, size,
    swarm::{self, ChainSwarm},
};
use tokio_util::sync::CancellationToken;

const CACHE: u64 = 64 << 20;
/// Bar: highest processor time of the late node, as a multiple of an import of the same blocks.
const CLIENT_BAR: f64 = 1.25;
/// Bar: least rate of serving, as a share of the rate of a bare stream.
const SERVING_BAR: f64 = 0.6;
const RATE_BAR: f64 = 1000.0;

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let Some((role, words)) = part::role() else {
        return runtime.block_on(parent());
    };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match (&*role, &words[..]) {
        ("serve", [datadir]) => runtime.block_on(serve(Path::new(datadir))),
        ("sync", [datadir, target, peers @ ..]) => runtime.block_on(sync(
            Path::new(datadir),
            target.parse().expect("a number"),
            peers,
        )),
        ("import", [datadir, file]) => {
            runtime.block_on(import(Path::new(datadir), Path::new(file)))
        }
        ("bare", []) => runtime.block_on(reader::serve_bare()),
        ("read", [address, chain_id, number, hash]) => runtime.block_on(async {
            let chain_id = chain_id.parse().expect("a number");
            reader::read(
                address,
                chain_id,
                number.parse().expect("a number"),
                hash.parse().expect("a hash"),
            )
            .await;
        }),
        ("read-bare", [address, bytes]) => {
            runtime.block_on(reader::read_bare(address, bytes.parse().expect("a number")))
        }
        other => panic!("no such part: {other:?}"),
    }
}

/// The files of all parts: data directories of two equal servers, a file of their blocks, and two
/// data directories without blocks.
struct Scene {
    folder: tempfile::TempDir,
    chain_id: String,
    tip: BlockId,
}

impl Scene {
    async fn new(blocks: usize, transfers: usize, accounts: usize) -> Self {
        let mut ground = Ground::new(time(blocks), accounts);
        let mut scene = Self {
            folder: tempfile::tempdir().expect("a temporary folder"),
            chain_id: ground.rollup.l2_chain_id.to_string(),
            tip: ground.rollup.genesis.l2,
        };
        for name in ["late", "import"] {
            starling::chain::init(Path::new(&scene.path(name)), &ground.genesis)
                .expect("the data directory is made");
        }
        let first = scene.path("first");
        let (source, threads) = ground.open(Path::new(&first));
        let mut bytes = 0;
        for _ in 0..blocks {
            let block = ground.extend(&source, transfers).await;
            scene.tip = block.id();
            bytes += block
                .transactions
                .iter()
                .map(|raw| raw.len())
                .sum::<usize>();
        }
        drop(source);
        threads.stop().expect("the chain is stored");
        copy(Path::new(&first), Path::new(&scene.path("second")));
        transfer::export(
            options(Path::new(&first)),
            Path::new(&scene.path("blocks")),
            Some((1, scene.tip.number)),
            CancellationToken::new(),
        )
        .await
        .expect("the blocks are exported");
        println!(
            "{blocks} blocks of {transfers} transfers, {} bytes of transactions each",
            bytes / blocks.max(1)
        );
        scene
    }

    fn path(&self, name: &str) -> String {
        let path = self.folder.path().join(name);
        path.to_str().expect("a path of this kind").to_owned()
    }

    /// Wall time and processor time, in seconds, of an import of the file.
    fn import(&self) -> [f64; 2] {
        Part::start("import", &[&self.path("import"), &self.path("blocks")]).figures()
    }

    /// Wall time and processor time, in seconds, of range sync from these servers.
    fn sync(&self, servers: &mut [Part; 2], addresses: &[String; 2]) -> [f64; 2] {
        let (late, target) = (self.path("late"), self.tip.number.to_string());
        let mut late = Part::start("sync", &[&late, &target, &addresses[0], &addresses[1]]);
        assert_eq!(late.line(), "ready");
        servers[0].say("publish");
        late.figures()
    }

    /// Seconds in which all blocks are served to a reader, and seconds of the same bytes on a bare
    /// stream.
    fn serve(&self, address: &str) -> [f64; 2] {
        let (number, hash) = (self.tip.number.to_string(), self.tip.hash.to_string());
        let words = [address, &self.chain_id, &number, &hash];
        let [seconds, sent] = Part::start("read", &words).figures();
        let mut bare = Part::start("bare", &[]);
        let bytes = format!("{sent:.0}");
        let [bare_seconds] = Part::start("read-bare", &[&bare.line(), &bytes]).figures();
        println!(
            "  serving alone {:.0} MB/s, a bare stream of the same {:.0} MB {:.0} MB/s",
            sent / seconds / 1e6,
            sent / 1e6,
            sent / bare_seconds / 1e6
        );
        [seconds, bare_seconds]
    }
}

async fn parent() {
    let [blocks, transfers, accounts] =
        [("BLOCKS", 50_000), ("TRANSFERS", 10), ("ACCOUNTS", 10_000)]
            .map(|(name, default)| size(&format!("STARLING_BENCH_{name}"), default));
    let scene = Scene::new(blocks, transfers, accounts).await;
    let [import, import_processor] = scene.import();
    show("import from a file", blocks, import, import_processor);
    let mut servers = ["first", "second"].map(|name| Part::start("serve", &[&scene.path(name)]));
    let addresses = servers.each_mut().map(Part::line);
    let [sync, sync_processor] = scene.sync(&mut servers, &addresses);
    show("range sync from two peers", blocks, sync, sync_processor);
    let [serving, bare] = scene.serve(&addresses[0]);
    println!(
        "\n{:.0} blocks/s (bar {RATE_BAR}), {:.2} x the processor time of an import (bar {CLIENT_BAR}); serving {:.0} % of a bare stream (bar {:.0} %)",
        blocks as f64 / sync,
        sync_processor / import_processor,
        bare / serving * 100.0,
        SERVING_BAR * 100.0
    );
}

fn show(what: &str, blocks: usize, seconds: f64, processor: f64) {
    let each = processor * 1e3 / blocks as f64;
    println!(
        "  {what:<28} {:>8.0} blocks/s {each:>8.3} ms of processor a block",
        blocks as f64 / seconds
    );
}

/// A genesis time such that the last of `blocks` blocks, one a second, is recent.
fn time(blocks: usize) -> u64 {
    support::unix_now() - blocks as u64 - 1000
}

fn options(datadir: &Path) -> Options {
    Options {
        datadir: datadir.to_owned(),
        cache: CACHE,
        commit_interval: Duration::from_secs(1),
    }
}

/// A swarm for the chain of a data directory.
fn swarm(chain: &Chain, peers: &[&str], token: &CancellationToken) -> ChainSwarm {
    let genesis = chain.genesis().expect("it has a genesis");
    let header = chain
        .view()
        .header_of(genesis.number)
        .expect("it can be read")
        .expect("it is there");
    // This rollup config fits the chain except for the genesis block, which `start` has.
    let rollup = Ground::new(header.timestamp, 1).rollup;
    let peers = peers.iter().map(|peer| peer.parse().expect("an address"));
    let start = ChainGenesis {
        id: genesis,
        time: header.timestamp,
        block_time: rollup.block_time,
    };
    let config = Config {
        serve_rate: u32::MAX,
        ..swarm::config(&rollup, start, peers.collect())
    };
    ChainSwarm::start(chain, genesis, config, token)
}

/// Serves blocks until standard input ends. Each input line requests the head.
async fn serve(datadir: &Path) {
    let (chain, threads) = Chain::open(&options(datadir)).expect("the chain opens");
    let token = CancellationToken::new();
    let node = swarm(&chain, &[], &token);
    println!("{}", node.address().await);
    let (view, chain_id) = (chain.view(), chain.spec().chain_id);
    let tip = view
        .payload(view.head().number)
        .expect("it can be read")
        .expect("it is there");
    drop(view);
    loop {
        let read = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
        if read.await.expect("reading ends").expect("it can be read") == 0 {
            break;
        }
        let signature = sign::sign(&support::sequencer(), chain_id, &tip.to_wire(tip.version()));
        node.network.publish(tip.clone(), signature).await;
    }
    token.cancel();
    node.ended().await;
    drop(chain);
    threads.stop().expect("the chain is stored");
}

/// Follows the peers `peers` up to block number `target`.
async fn sync(datadir: &Path, target: u64, peers: &[&str]) {
    let (chain, threads) = Chain::open(&options(datadir)).expect("the chain opens");
    let token = CancellationToken::new();
    let node = swarm(&chain, peers, &token);
    while node
        .network
        .report()
        .await
        .expect("the swarm runs")
        .sync
        .peers
        < peers.len() as u64
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (begun, processor) = (Instant::now(), process::processor());
    let threads_before = process::Threads::now();
    println!("ready");
    chain
        .heads()
        .wait_for(|heads| heads.head.number >= target)
        .await
        .expect("the chain runs");
    for (name, spent) in process::Threads::now().since(&threads_before).table() {
        eprintln!("    late: {name:<24} {:>8.1} s", spent.as_secs_f64());
    }
    token.cancel();
    node.ended().await;
    drop(chain);
    threads.stop().expect("the chain is stored");
    println!(
        "{} {}",
        begun.elapsed().as_secs_f64(),
        (process::processor() - processor).as_secs_f64()
    );
}

async fn import(datadir: &Path, file: &Path) {
    let (begun, processor) = (Instant::now(), process::processor());
    let history = HistoryConfig {
        states: None,
        proofs: 0,
        names: false,
        logs: IndexWindow::Blocks(2_350_000),
        addresses: false,
    };
    transfer::import(
        options(datadir),
        history,
        &[file.to_owned()],
        CancellationToken::new(),
    )
    .await
    .expect("the blocks are valid");
    println!(
        "{} {}",
        begun.elapsed().as_secs_f64(),
        (process::processor() - processor).as_secs_f64()
    );
}
