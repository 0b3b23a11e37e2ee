//! WebSocket clients of one node whose connections are cut and resumed, also over a reorg. Each
//! client sees every head and every log once. Clients that do not read are logged and get a close
//! code.
//!
//! `STARLING_SUBSCRIBERS` is the number of clients (100), `STARLING_SUBSCRIBERS_BLOCKS` the number
//! of blocks (40), `STARLING_SEED` repeats the cuts of a run. Full size is 1,000 clients and 100
//! blocks.

mod client;
mod cut;
mod subscriber;
mod trail;

use crate::{
    campaign::{seed, size},
    engine::{BIG_LOGGER, Core, LOGGER, Made, attributes},
    net::post,
};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, TxKind, keccak256};
use client::Socket;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use op_alloy_consensus::TxDeposit;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use starling_proto::payload::BlockId;
use std::{collections::HashSet, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use subscriber::Subscriber;
use tokio::{
    runtime::Runtime,
    sync::{mpsc, watch},
    task::JoinSet,
    time::timeout,
};

/// Number of blocks that the reorg abandons.
const REORG: u64 = 20;
/// Number of logs in each block that match the subscriptions.
const LOGS: usize = 2;
/// Number of clients that do not read, and number of subscriptions of each. Each block has a log of
/// 48 KiB for them.
const SLOW: usize = 4;
const SLOW_SUBSCRIPTIONS: u64 = 8;
/// The log message that reports a slow client.
const NAMED: &str = "dropped a WebSocket client that reads too slowly";

/// The node, and the chain's facts that all clients share.
struct World {
    /// Address of the node's WebSocket server.
    address: SocketAddr,
    log: PathBuf,
    genesis: BlockId,
    /// Number of the fork point, the last block of both branches.
    fork: u64,
    old_tip: BlockId,
    tip: BlockId,
    /// Hashes of the blocks that the reorg abandons.
    old: HashSet<B256>,
    /// Whether the reorg has taken place.
    reorged: watch::Receiver<bool>,
    /// Receives a message from each subscriber that is ready for the reorg.
    ready: mpsc::Sender<()>,
}

/// Two branches of a chain, and their common trunk.
struct Branches {
    trunk: Vec<Made>,
    old: Vec<Made>,
    new: Vec<Made>,
}

impl Branches {
    /// Builds two branches. The new one ends at block `blocks`, the old one somewhat above half of
    /// that.
    fn make(blocks: u64) -> Self {
        let old_tip = (blocks * 6 / 10).max(REORG + 1);
        let fork = old_tip - REORG;
        let mut author = Core::start();
        let genesis = author.genesis();
        let trunk = branch(&mut author, &genesis, fork, 0);
        let base = trunk.last().expect("a block");
        let old = branch(&mut author, base, REORG, 0);
        let new = branch(&mut author, base, blocks - fork, 1);
        Self { trunk, old, new }
    }
}

/// Builds `count` blocks on top of each other, without making them the head.
fn branch(author: &mut Core, on: &Made, count: u64, salt: u64) -> Vec<Made> {
    let mut made: Vec<Made> = vec![];
    for _ in 0..count {
        let parent = made.last().unwrap_or(on);
        made.push(author.build_of(parent, with_logs(parent, salt)));
    }
    made
}

/// Attributes of a block with two logs for subscribers, and a large log for clients that do not
/// read.
fn with_logs(on: &Made, salt: u64) -> Value {
    let mut attributes = attributes(on, salt);
    let list = attributes["transactions"].as_array_mut().expect("a list");
    for (sender, to, gas_limit) in [(1, LOGGER, 50_000), (2, BIG_LOGGER, 600_000)] {
        let deposit = TxDeposit {
            source_hash: keccak256([on.hash.as_slice(), &[sender]].concat()),
            from: Address::repeat_byte(sender),
            to: TxKind::Call(to),
            gas_limit,
            ..Default::default()
        };
        list.push(json!(Bytes::from(deposit.encoded_2718())));
    }
    attributes
}

/// Inserts a block and makes it the head.
fn extend(core: &mut Core, made: &Made) {
    assert_eq!(core.insert(&made.payload)["status"], "VALID");
    core.make_head(made);
}

fn id(made: &Made) -> BlockId {
    let (number, hash) = (made.number, made.hash);
    BlockId { number, hash }
}

/// The subscription parameter for resuming after the block `seen`.
fn from(seen: BlockId) -> Value {
    json!({ "from": { "number": format!("{:#x}", seen.number), "hash": seen.hash } })
}

/// Raises the soft limit of open files, since each client needs one.
fn raise_limit(needed: usize) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("the hard limit");
    assert!(hard > needed as u64 + 100, "{hard} files can be open");
}

/// The address of the server `name`, read from the node's log.
fn served(core: &Core, name: &str) -> SocketAddr {
    let log = core.log();
    let rest = log
        .split_once(&format!(" {name}="))
        .expect("it is served")
        .1;
    let address = rest.split_whitespace().next().expect("an address");
    address.parse().expect("an address")
}

/// A running test: its clients, and the node that they follow.
struct Run {
    core: Core,
    branches: Branches,
    reorged: watch::Sender<bool>,
    ready: mpsc::Receiver<()>,
    runtime: Runtime,
    subscribers: JoinSet<Subscriber>,
    slow: JoinSet<()>,
    limit: Duration,
}

impl Run {
    fn start(count: usize, blocks: u64) -> Self {
        let branches = Branches::make(blocks);
        let mut core = Core::start_with(&["--ws", "--ws.port=0", "--http", "--http.port=0"]);
        let (reorged, watched) = watch::channel(false);
        let (told, ready) = mpsc::channel(count);
        let world = World {
            address: served(&core, "ws"),
            log: core.log_path(),
            genesis: id(&core.genesis()),
            fork: branches.trunk.len() as u64,
            old_tip: id(branches.old.last().expect("a block")),
            tip: id(branches.new.last().expect("a block")),
            old: branches.old.iter().map(|made| made.hash).collect(),
            reorged: watched,
            ready: told,
        };
        let (world, runtime) = (Arc::new(world), Runtime::new().expect("a runtime"));
        let (mut subscribers, mut slow) = (JoinSet::new(), JoinSet::new());
        let mut rng = StdRng::seed_from_u64(seed());
        for number in 0..count {
            let subscriber = Subscriber::new(number, world.clone(), rng.random());
            subscribers.spawn_on(subscriber.run(), runtime.handle());
        }
        for _ in 0..SLOW {
            slow.spawn_on(slow_reader(world.clone()), runtime.handle());
        }
        Self {
            core,
            branches,
            reorged,
            ready,
            runtime,
            subscribers,
            slow,
            limit: Duration::from_secs(60 + count as u64),
        }
    }

    /// Makes the blocks canonical. Before the reorg it waits until all subscribers are ready.
    fn make_blocks(&mut self, count: usize) {
        let Branches { trunk, old, new } = &self.branches;
        for made in trunk.iter().chain(old) {
            extend(&mut self.core, made);
        }
        let (subscribers, ready) = (&mut self.subscribers, &mut self.ready);
        let prepared = async {
            for _ in 0..count {
                tokio::select! {
                    Some(ended) = subscribers.join_next() => {
                        let number = ended.expect("a subscriber fails").number;
                        panic!("subscriber {number} ends before the reorg");
                    }
                    Some(()) = ready.recv() => {}
                }
            }
        };
        let prepared = async { timeout(self.limit, prepared).await };
        self.runtime
            .block_on(prepared)
            .expect("all subscribers reach the head in time");
        // The reorg: the new branch up to one block above the old tip becomes canonical at once.
        let (side, rest) = new.split_at(REORG as usize + 1);
        for made in side {
            let status = self.core.insert(&made.payload);
            let taken = ["VALID", "ACCEPTED"].map(Value::from);
            assert!(taken.contains(&status["status"]), "{status}");
        }
        self.core.make_head(side.last().expect("a block"));
        self.reorged.send_replace(true);
        for made in rest {
            extend(&mut self.core, made);
        }
    }

    /// Waits until all clients have finished.
    fn finish(&mut self) -> Vec<Subscriber> {
        let (subscribers, slow) = (&mut self.subscribers, &mut self.slow);
        let mut done = vec![];
        let all = async {
            while let Some(ended) = subscribers.join_next().await {
                done.push(ended.expect("a subscriber fails"));
            }
            while let Some(ended) = slow.join_next().await {
                ended.expect("a slow reader fails");
            }
        };
        let all = async { timeout(self.limit, all).await };
        let ended = self.runtime.block_on(all);
        ended.expect("all clients are done in time");
        done
    }
}

/// A client that does not read until the node's log reports it; then it must find the close code.
async fn slow_reader(world: Arc<World>) {
    let mut socket = Socket::connect(world.address, false).await;
    for number in 0..SLOW_SUBSCRIPTIONS {
        let params = json!(["logs", { "address": BIG_LOGGER }, from(world.genesis)]);
        socket.subscribe(number, params).await;
    }
    let peer = format!("peer={}", socket.local);
    let line = loop {
        let log = std::fs::read_to_string(&world.log).expect("a log");
        let of_peer = |line: &str| line.split_whitespace().any(|field| field == peer);
        let named = |line: &&str| line.contains(NAMED) && of_peer(line);
        if let Some(line) = log.lines().find(named) {
            break line.to_owned();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let lag = line.split_once(r#" lag=""#).expect(&line).1;
    let lag = lag.split_once(r#" blocks""#).expect(&line).0;
    let lag: u64 = lag.parse().expect(&line);
    assert!((1..=world.tip.number).contains(&lag), "{line}");
    let told = socket.close_reason().await;
    let reason = told.descr.unwrap_or_default();
    assert_eq!(told.code, 1008, "{reason}");
    assert!(reason.contains(&format!("{lag} blocks behind")), "{reason}");
}

/// The logs of the whole chain, as `eth_getLogs` returns them.
fn all_logs(core: &Core) -> Vec<String> {
    #[derive(Deserialize)]
    struct LogsAnswer<'a> {
        #[serde(borrow)]
        result: Vec<&'a RawValue>,
    }
    let filter = json!([{ "address": LOGGER, "fromBlock": "0x0", "toBlock": "latest" }]);
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_getLogs", "params": filter });
    let url = format!("http://{}", served(core, "http"));
    let (_, text) = post(&url, &body.to_string()).expect("an answer");
    let answer: LogsAnswer<'_> = serde_json::from_str(&text).expect(&text);
    let logs = answer.result.iter().map(|log| log.get().to_owned());
    logs.collect()
}

#[test]
fn subscribers_that_are_cut_see_all_heads_and_logs_once_and_slow_ones_are_named() {
    let count = size("STARLING_SUBSCRIBERS", 100);
    let blocks = size("STARLING_SUBSCRIBERS_BLOCKS", 40) as u64;
    raise_limit(count + SLOW);
    let mut run = Run::start(count, blocks);
    run.make_blocks(count);
    let subscribers = run.finish();
    assert_eq!(subscribers.len(), count);

    let Branches { trunk, new, .. } = &run.branches;
    let chain: Vec<_> = trunk.iter().chain(new).map(id).collect();
    let logs = all_logs(&run.core);
    assert_eq!(
        (chain.len() as u64, logs.len()),
        (blocks, chain.len() * LOGS)
    );
    for subscriber in &subscribers {
        let number = subscriber.number;
        assert_eq!(subscriber.heads.above_genesis(), chain, "of {number}");
        assert!(subscriber.logs.all().eq(&logs), "the logs of {number}");
    }
    let sum = |count: fn(&Subscriber) -> usize| subscribers.iter().map(count).sum::<usize>();
    let displaced = sum(|it| it.displaced);
    let (heads, removed) = (sum(|it| it.heads.count()), sum(|it| it.logs.removed));
    let dropped = sum(|it| it.logs.dropped);
    println!(
        "{count} subscribers: {heads} heads, {removed} removed logs, {displaced} resumed after a block that had left the chain, {dropped} in the middle of a block's logs"
    );
    assert!(displaced > count / 4 && removed > 0);
    let named = run.core.log().matches(NAMED).count();
    assert_eq!(named, SLOW, "only slow clients are dropped");
}
