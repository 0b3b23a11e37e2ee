//! Replicas that missed many blocks, without L1: one that starts late, and one that was cut off
//! from gossip. Chains and swarms are real, and run in one process. One of three serving peers
//! serves wrong blocks.
//!
//! `STARLING_SYNC_BLOCKS` is the number of blocks that the late replica misses (700); the other
//! replica misses a tenth of that. The rates of catching up are printed.

use crate::net::l1_attributes;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B64, B256, Bytes, TxKind, U256};
use alloy_rpc_types_engine::PayloadAttributes;
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use serde_json::json;
use starling::{
    chain::{self, Chain, Options, Threads, genesis},
    clock, follow, rollup,
    rpc::engine::backend::EngineBackend,
};
use starling_p2p::{
    Blocks, ChainGenesis, Config, Keypair, LedgerChange, Multiaddr, Network, PeerId, Policy,
    Scoring, Service, Subject, SyncReport,
};
use starling_proto::{
    fork::{Fork, ForkSchedule},
    payload::{BlockId, Payload},
    sign,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub const CHAIN: u64 = 901;

fn sequencer() -> sign::SecretKey {
    sign::secret_from_hex(&format!("{:064x}", 0xaa)).expect("a key")
}

/// Genesis file of a chain with one block a second, so old that `blocks` blocks are not in the
/// future.
pub fn genesis(blocks: u64) -> String {
    let genesis = json!({
        "config": crate::campaign::world::config(CHAIN),
        "timestamp": clock::unix_now() - blocks - 10_000,
        "gasLimit": 30_000_000,
        "difficulty": "0",
        "baseFeePerGas": "0x3e8",
        "extraData": "0x01000000fa000000060000000000000000",
        "alloc": {},
    });
    genesis.to_string()
}

/// A chain in a temporary data directory.
pub struct Store {
    pub chain: Chain,
    pub threads: Threads,
    _dir: TempDir,
}

impl Store {
    pub fn new(genesis: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        chain::init(dir.path(), &genesis::parse(genesis).expect("a genesis"))
            .expect("an empty folder");
        let options = Options {
            datadir: dir.path().into(),
            cache: 32 << 20,
            commit_interval: Duration::from_millis(500),
        };
        let (chain, threads) = Chain::open(&options).expect("a chain");
        Self {
            chain,
            threads,
            _dir: dir,
        }
    }

    /// Builds the next block, whose timestamp is one second later, and makes it the head.
    pub async fn extend(&self) -> Arc<Payload> {
        let (view, chain) = (self.chain.view(), &self.chain);
        let deposit = TxDeposit {
            source_hash: view.head().hash,
            from: Address::repeat_byte(9),
            to: TxKind::Call(Address::from_word(view.head().hash)),
            mint: 7,
            value: U256::from(7),
            gas_limit: 50_000,
            input: l1_attributes(),
            ..Default::default()
        };
        let attributes = OpPayloadAttributes {
            payload_attributes: PayloadAttributes {
                timestamp: view.header().timestamp + 1,
                suggested_fee_recipient: Address::repeat_byte(0xfe),
                withdrawals: Some(vec![]),
                parent_beacon_block_root: Some(B256::ZERO),
                ..Default::default()
            },
            transactions: Some(vec![OpTxEnvelope::from(deposit).encoded_2718().into()]),
            no_tx_pool: Some(true),
            gas_limit: Some(30_000_000),
            eip_1559_params: Some(B64::ZERO),
            min_base_fee: Some(0),
        };
        let id = chain
            .start(view.head().hash, attributes)
            .await
            .expect("a build begins");
        let block = chain.seal(id).await.expect("a block").payload.clone();
        chain
            .forkchoice(block.hash, None, None)
            .await
            .expect("it can be the head");
        block
    }

    pub async fn extend_to(&self, number: u64) {
        while self.chain.view().head().number < number {
            self.extend().await;
        }
    }

    pub async fn reaches(&self, number: u64, limit: Duration) {
        let mut heads = self.chain.heads();
        let reached = heads.wait_for(|heads| heads.head.number >= number);
        let reached = tokio::time::timeout(limit, reached)
            .await
            .map(|heads| heads.is_ok());
        assert!(
            matches!(reached, Ok(true)),
            "at block {} and not {number} in {limit:?}",
            self.chain.view().head().number
        );
    }

    /// Starts a node that follows and serves this chain, connected to these peers.
    pub async fn serve(&self, peers: &[&Swarm]) -> Swarm {
        Swarm::start(
            &self.chain,
            Arc::new(self.chain.clone()),
            Keypair::generate_secp256k1(),
            Scoring::Light,
            peers,
        )
        .await
    }

    /// Waits until `tip` is the head, and prints the rate at which the `missing` blocks were added.
    async fn catches_up(&self, name: &str, tip: &Payload, missing: u64, limit: Duration) {
        let start = Instant::now();
        self.reaches(tip.number(), limit).await;
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{name}: {missing} blocks in {seconds:.1} s, {:.0} a second",
            missing as f64 / seconds
        );
    }

    /// Checks that the head is `tip`, and that a sample of the blocks equals those of `source`.
    fn has_the_chain_of(&self, source: &Self, tip: &Payload) {
        assert_eq!(self.chain.view().head(), tip.id());
        for number in (0..=tip.number()).step_by(97) {
            assert_eq!(
                self.chain.view().hash_of(number).expect("a read"),
                source.chain.view().hash_of(number).expect("a read"),
                "block {number}"
            );
        }
    }

    pub fn stop(self) {
        let Self {
            chain,
            threads,
            _dir,
        } = self;
        drop(chain);
        threads.stop().expect("it stores what it has");
    }
}

fn swarm_config(chain: &Chain, identity: Keypair, scoring: Scoring, peers: &[&Swarm]) -> Config {
    let genesis = chain.genesis().expect("a genesis");
    let time = chain
        .view()
        .header_of(genesis.number)
        .expect("a read")
        .expect("it is there")
        .timestamp;
    Config {
        listen_ip: [127, 0, 0, 1].into(),
        listen_tcp: 0,
        static_peers: peers.iter().map(|peer| peer.address.clone()).collect(),
        unsafe_block_signer: Some(sign::address(&sequencer())),
        policy: Policy {
            scoring,
            ..Policy::default()
        },
        // Accept old blocks by gossip, since the blocks are not built at their timestamps.
        gossip_threshold: Duration::from_secs(1 << 30),
        ..Config::new(
            identity,
            CHAIN,
            ForkSchedule::from_genesis(Fork::Jovian),
            ChainGenesis {
                id: genesis,
                time,
                block_time: 1,
            },
        )
    }
}

/// A running node of the swarm.
pub struct Swarm {
    pub network: Network,
    pub engine: Arc<EngineBackend>,
    address: Multiaddr,
    token: CancellationToken,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Swarm {
    pub async fn start(
        chain: &Chain,
        blocks: Arc<dyn Blocks>,
        identity: Keypair,
        scoring: Scoring,
        peers: &[&Swarm],
    ) -> Self {
        let genesis = chain.genesis().expect("a genesis");
        let config = swarm_config(chain, identity, scoring, peers);
        let (service, network, events) = Service::new(config, blocks).expect("the swarm starts");
        let (token, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let running = token.clone();
        tasks.spawn(async move {
            service.run(running).await;
            Ok(())
        });
        let engine = Arc::new(EngineBackend::new(chain.clone(), Some(network.clone())));
        tasks.spawn(follow::run(
            rollup::engine::Engine::Local(chain.clone()),
            Some(engine.clone()),
            network.clone(),
            events,
            token.clone(),
        ));
        tasks.spawn(follow::report_heads(
            rollup::engine::Engine::Local(chain.clone()),
            network.clone(),
            genesis,
            token.clone(),
        ));
        let mut addresses = network.listen_addrs();
        let address = addresses
            .wait_for(|all| !all.is_empty())
            .await
            .expect("the swarm runs")[0]
            .clone();
        Self {
            network,
            engine,
            address,
            token,
            tasks,
        }
    }

    fn id(&self) -> PeerId {
        self.network.local_peer_id()
    }

    /// Blocks or unblocks the address of this machine, from which all peers connect.
    async fn block_all_addresses(&self, blocked: bool) {
        let address = Subject::Address([127, 0, 0, 1].into());
        self.network
            .block(address, blocked)
            .await
            .expect("the swarm runs");
    }

    /// Disconnects from `peers`, which must be all connected peers, and prevents new connections.
    async fn isolate_from(&self, peers: &[&Swarm]) {
        self.block_all_addresses(true).await;
        for peer in peers {
            self.network
                .disconnect(peer.id())
                .await
                .expect("the swarm runs");
        }
        self.reports("cut off", |sync| sync.peers == 0).await;
    }

    pub async fn publish(&self, block: &Arc<Payload>) {
        let signature = sign::sign(&sequencer(), CHAIN, &block.to_wire(block.version()));
        self.network.publish(block.clone(), signature).await;
    }

    pub async fn reports(&self, what: &str, holds: impl Fn(&SyncReport) -> bool) {
        let start = Instant::now();
        loop {
            let report = self.network.report().await.expect("the swarm runs").sync;
            if holds(&report) {
                return;
            }
            assert!(
                start.elapsed() < Duration::from_secs(120),
                "not {what}: {report:#?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Checks that the lying peer was banned for wrong blocks, and that no other peer was
    /// penalized.
    async fn has_found_out(&self, liar: PeerId, honest: &[&Swarm]) {
        let lines = self
            .network
            .ledger(Some(liar), 100)
            .await
            .expect("the swarm runs");
        let lie = lines
            .iter()
            .find(|line| line.reason == "false_block")
            .expect("it is named");
        assert!(
            lie.evidence
                .contains("the transactions are not those of block"),
            "{lie:?}"
        );
        assert!(
            lines
                .iter()
                .any(|line| matches!(line.change, LedgerChange::Banned { .. })),
            "{lines:#?}"
        );
        println!("  evidence: {}", lie.evidence);
        for peer in honest {
            let lines = self
                .network
                .ledger(Some(peer.id()), 100)
                .await
                .expect("the swarm runs");
            assert!(
                lines.iter().all(
                    |line| !matches!(line.change, LedgerChange::Score(change) if change < 0.0)
                ),
                "{lines:#?}"
            );
        }
    }

    pub async fn stop(self) {
        self.token.cancel();
        for ended in self.tasks.join_all().await {
            ended.expect("it ends in order");
        }
    }
}

/// A source of blocks that has the whole chain, and replaces the transactions of some blocks.
struct Lying(Chain);

impl Blocks for Lying {
    fn knows(&self, hash: B256) -> bool {
        Blocks::knows(&self.0, hash)
    }

    fn block(&self, number: u64) -> Option<Payload> {
        self.0.block(number)
    }

    fn hash(&self, number: u64) -> Option<B256> {
        self.0.hash(number)
    }

    fn headers(&self, from: BlockId, take: &mut dyn FnMut(&[u8]) -> bool) {
        self.0.headers(from, take);
    }

    fn bodies(
        &self,
        first: u64,
        last: BlockId,
        take: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> bool {
        let mut number = first;
        self.0.bodies(first, last, &mut |header, transactions| {
            let lie = alloy_rlp::encode(vec![Bytes::from_static(b"made up")]);
            let lies = number % 10 == 3;
            number += 1;
            take(header, if lies { &lie } else { transactions })
        })
    }
}

/// Starts a peer of `victims` that serves wrong blocks. Its peer id is lower than those of
/// `honest`, since among equal peers the first request goes to the one with the lowest id.
async fn liar(chain: &Chain, honest: &[&Swarm], victims: &[&Swarm]) -> Swarm {
    let is_lowest = |candidate: &Keypair| {
        let id = candidate.public().to_peer_id();
        honest.iter().all(|peer| id < peer.id())
    };
    let identity = std::iter::repeat_with(Keypair::generate_secp256k1)
        .find(is_lowest)
        .expect("an endless supply");
    let blocks = Arc::new(Lying(chain.clone()));
    Swarm::start(chain, blocks, identity, Scoring::None, victims).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_replica_and_one_whose_gossip_was_cut_reach_the_head_from_peers_one_of_which_lies() {
    let blocks: u64 =
        std::env::var("STARLING_SYNC_BLOCKS").map_or(700, |n| n.parse().expect("a number"));
    let missed = blocks / 10;
    // Allow for only fifty blocks a second, since debug builds are slow on a busy machine.
    let limit = Duration::from_secs(120 + blocks / 50);
    let genesis = genesis(blocks);
    let source = Store::new(&genesis);
    let (first, second) = (source.serve(&[]).await, source.serve(&[]).await);
    let honest = [&first, &second];

    source.extend_to(blocks - missed - 1).await;
    let cut_store = Store::new(&genesis);
    let cut_off = cut_store.serve(&honest).await;
    cut_off.reports("greeted", |sync| sync.peers == 2).await;
    first.publish(&source.extend().await).await;
    cut_store.reaches(blocks - missed, limit).await;
    cut_off.isolate_from(&honest).await;
    source.extend_to(blocks).await;
    assert_eq!(cut_store.chain.view().head().number, blocks - missed);

    let late_store = Store::new(&genesis);
    let late = late_store.serve(&honest).await;
    cut_off.block_all_addresses(false).await;
    let behind = [&cut_off, &late];
    let liar = liar(&source.chain, &honest, &behind).await;
    for node in behind {
        node.reports("greeted by all", |sync| sync.peers == 3).await;
    }
    let tip = source.extend().await;
    first.publish(&tip).await;
    tokio::join!(
        cut_store.catches_up("gossip was cut", &tip, missed + 1, limit),
        late_store.catches_up("late", &tip, blocks + 1, limit)
    );
    for node in behind {
        node.has_found_out(liar.id(), &honest).await;
    }

    let next = source.extend().await;
    first.publish(&next).await;
    for store in [&cut_store, &late_store] {
        store.reaches(next.number(), limit).await;
        store.has_the_chain_of(&source, &next);
    }
    for swarm in [liar, cut_off, late, first, second] {
        swarm.stop().await;
    }
    for store in [late_store, cut_store, source] {
        store.stop();
    }
}
