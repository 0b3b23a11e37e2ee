//! Range sync over loopback: a late node takes many small blocks from two peers into a durable
//! chain, beside the import of the same blocks from a file; and serving alone beside a bare libp2p
//! stream of the same bytes.
//!
//! Every node is a process of its own, so that the processor time of the late one is its own.
//! Processor times are those of whole processes, from before the first block to after the last is
//! stored.
//!
//! Sizes: `STARLING_BENCH_BLOCKS` (50000), `STARLING_BENCH_TRANSFERS` per block (10),
//! `STARLING_BENCH_ACCOUNTS` (10000).

#[path = "range_sync/reader.rs"]
mod reader;
mod support;

use starling::{
    chain::{Chain, Options},
    cli::config::HistoryConfig,
    follow,
    rollup::engine::Engine,
    transfer,
};
use starling_p2p::{ChainGenesis, Config, Keypair, Network, Service};
use starling_proto::sign;
use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use support::{
    Ground,
    part::{self, Part},
    process, size,
};
use tokio_util::sync::CancellationToken;

const CACHE: u64 = 64 << 20;
/// Bar: processor time of the late node as a multiple of an import of the same blocks.
const CLIENT_BAR: f64 = 1.25;
/// Bar: rate of serving as a part of a bare stream's rate.
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

async fn parent() {
    let [blocks, transfers, accounts] =
        [("BLOCKS", 50_000), ("TRANSFERS", 10), ("ACCOUNTS", 10_000)]
            .map(|(name, default)| size(&format!("STARLING_BENCH_{name}"), default));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| {
        folder
            .path()
            .join(name)
            .to_str()
            .expect("a path of this kind")
            .to_owned()
    };
    let mut ground = Ground::new(time(blocks), accounts);
    for name in ["late", "import"] {
        starling::chain::init(Path::new(&path(name)), &ground.genesis)
            .expect("the data directory is made");
    }
    let (source, threads) = ground.open(Path::new(&path("first")));
    let mut bytes = 0;
    let mut tip = source.view().head();
    for _ in 0..blocks {
        let block = ground.extend(&source, transfers).await;
        tip = block.id();
        bytes += block
            .transactions
            .iter()
            .map(|raw| raw.len())
            .sum::<usize>();
    }
    drop(source);
    threads.stop().expect("the chain is stored");
    copy(Path::new(&path("first")), Path::new(&path("second")));
    let file = path("blocks");
    transfer::export(
        options(Path::new(&path("first"))),
        Path::new(&file),
        Some((1, tip.number)),
        CancellationToken::new(),
    )
    .await
    .expect("the blocks are exported");
    println!(
        "{blocks} blocks of {transfers} transfers, {} bytes of transactions each",
        bytes / blocks.max(1)
    );

    let [import_seconds, import_processor] =
        Part::start("import", &[&path("import"), &file]).figures();
    show(
        "import from a file",
        blocks,
        import_seconds,
        import_processor,
    );

    let mut servers = ["first", "second"].map(|name| Part::start("serve", &[&path(name)]));
    let addresses = servers.each_mut().map(Part::line);
    let mut late = Part::start(
        "sync",
        &[
            &path("late"),
            &tip.number.to_string(),
            &addresses[0],
            &addresses[1],
        ],
    );
    assert_eq!(late.line(), "ready");
    servers[0].say("publish");
    let [sync_seconds, sync_processor] = late.figures();
    drop(late);
    show(
        "range sync from two peers",
        blocks,
        sync_seconds,
        sync_processor,
    );

    let chain_id = ground.rollup.l2_chain_id.to_string();
    let [seconds, sent] = Part::start(
        "read",
        &[
            &addresses[0],
            &chain_id,
            &tip.number.to_string(),
            &tip.hash.to_string(),
        ],
    )
    .figures();
    let mut bare = Part::start("bare", &[]);
    let address = bare.line();
    let [bare_seconds] = Part::start("read-bare", &[&address, &format!("{sent:.0}")]).figures();
    println!(
        "  serving alone {:.0} MB/s, a bare stream of the same {:.0} MB {:.0} MB/s",
        sent / seconds / 1e6,
        sent / 1e6,
        sent / bare_seconds / 1e6
    );

    let (rate, processor, serving) = (
        blocks as f64 / sync_seconds,
        sync_processor / import_processor,
        bare_seconds / seconds,
    );
    println!(
        "\n{rate:.0} blocks/s (bar {RATE_BAR}), {processor:.2} x the processor time of an import (bar {CLIENT_BAR}); serving {:.0} % of a bare stream (bar {:.0} %)",
        serving * 100.0,
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

/// Genesis time with which the blocks, a second apart, end about now.
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

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in from.read_dir().expect("a folder").flatten() {
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy")),
        }
    }
}

/// A swarm for the chain of a data directory.
fn swarm(
    chain: &Chain,
    peers: &[&str],
    token: &CancellationToken,
) -> (Network, tokio::task::JoinSet<anyhow::Result<()>>) {
    let genesis = chain.genesis().expect("it has a genesis");
    let header = chain
        .view()
        .header_of(genesis.number)
        .expect("it can be read")
        .expect("it is there");
    // The chains differ in their genesis only.
    let rollup = Ground::new(header.timestamp, 1).rollup;
    let config = Config {
        listen_ip: [127, 0, 0, 1].into(),
        listen_tcp: 0,
        static_peers: peers
            .iter()
            .map(|peer| peer.parse().expect("an address"))
            .collect(),
        unsafe_block_signer: Some(sign::address(&support::sequencer())),
        // The blocks have timestamps of the past.
        gossip_threshold: Duration::from_secs(1 << 30),
        serve_rate: u32::MAX,
        ..Config::new(
            Keypair::generate_secp256k1(),
            rollup.l2_chain_id,
            rollup.forks.clone(),
            ChainGenesis {
                id: genesis,
                time: header.timestamp,
                block_time: rollup.block_time,
            },
        )
    };
    let (service, network, events) =
        Service::new(config, Arc::new(chain.clone())).expect("the swarm starts");
    let mut tasks = tokio::task::JoinSet::new();
    let running = token.clone();
    tasks.spawn(async move {
        service.run(running).await;
        Ok(())
    });
    tasks.spawn(follow::run(
        Engine::Local(chain.clone()),
        None,
        network.clone(),
        events,
        token.clone(),
    ));
    tasks.spawn(follow::report_heads(
        Engine::Local(chain.clone()),
        network.clone(),
        genesis,
        token.clone(),
    ));
    (network, tasks)
}

/// Serves until its input ends. Each line of input requests the head.
async fn serve(datadir: &Path) {
    let (chain, threads) = Chain::open(&options(datadir)).expect("the chain opens");
    let token = CancellationToken::new();
    let (network, tasks) = swarm(&chain, &[], &token);
    println!(
        "{}",
        network
            .listen_addrs()
            .wait_for(|all| !all.is_empty())
            .await
            .expect("the swarm runs")[0]
    );
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
        network.publish(tip.clone(), signature).await;
    }
    token.cancel();
    tasks.join_all().await;
    drop((chain, network));
    threads.stop().expect("the chain is stored");
}

/// Follows these peers up to the block `target`.
async fn sync(datadir: &Path, target: u64, peers: &[&str]) {
    let (chain, threads) = Chain::open(&options(datadir)).expect("the chain opens");
    let token = CancellationToken::new();
    let (network, tasks) = swarm(&chain, peers, &token);
    while network.report().await.expect("the swarm runs").sync.peers < peers.len() as u64 {
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
    tasks.join_all().await;
    drop((chain, network));
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
