//! The sequencer on a real chain in a temporary directory, with an L1 endpoint that grows in real
//! time.

use super::*;
use crate::{
    chain::{Chain, Options, Threads, executor::ExecutorLimits, genesis},
    rollup::l1::{
        L1Client, L1Config, L1Heads,
        fake::{FakeL1, block, chain as l1_chain},
    },
};
use alloy_consensus::Header;
use alloy_primitives::Address;
use futures::FutureExt;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use serde_json::json;
use starling_proto::{
    config::RollupGenesis,
    fork::{Fork, ForkSchedule},
    payload::BlockId,
    system_config::{FeeScalars, SystemConfig},
};

mod member;
mod remote;
mod reorgs;
mod signing;
mod wallet;

use wallet::wallet;
pub(crate) use wallet::{signed, submit, transfer};

/// The value of a counter with op-node's name.
fn counted(recorder: &PrometheusRecorder, name: &str) -> u64 {
    let text = recorder.handle().render();
    let name = format!("op_node_default_{name} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&name));
    value.unwrap_or("0").parse().unwrap()
}

const ACTIVE: SequencerStatus = SequencerStatus {
    active: true,
    reason: None,
};

/// The genesis of an L2 at `time` (Unix seconds), with all forks through `last` active.
fn l2_genesis(time: u64, last: Fork) -> genesis::Genesis {
    let mut config = json!({
        "chainId": 901,
        "londonBlock": 0,
        "optimism": { "eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250 },
    });
    for fork in &Fork::ALL[1..=last as usize] {
        config[format!("{}Time", fork.name())] = 0.into();
    }
    let extra_data = if last < Fork::Holocene {
        "0x"
    } else {
        "0x01000000fa000000060000000000000000"
    };
    let genesis = json!({
        "config": config,
        "timestamp": time,
        "gasLimit": 30_000_000,
        "difficulty": "0",
        "extraData": extra_data,
        "alloc": { wallet().to_string(): { "balance": "0xde0b6b3a7640000" } },
    });
    genesis::parse(&genesis.to_string()).unwrap()
}

fn system_config() -> SystemConfig {
    let scalar = FeeScalars {
        base_fee: 5,
        blob_base_fee: 6,
    };
    SystemConfig {
        batcher_addr: wallet(),
        scalar: scalar.encode(),
        gas_limit: 30_000_000,
        ..Default::default()
    }
}

fn rollup_config(genesis: RollupGenesis, last: Fork) -> RollupConfig {
    RollupConfig {
        genesis,
        block_time: 2,
        l1_chain_id: 900,
        l2_chain_id: 901,
        forks: ForkSchedule::from_genesis(last),
        ..Default::default()
    }
}

pub(crate) struct World {
    pub(crate) datadir: tempfile::TempDir,
    genesis: genesis::Genesis,
    pub(crate) l1: FakeL1,
    pub(crate) l1_headers: Vec<Header>,
    pub(crate) l1_heads: watch::Sender<L1Heads>,
    pub(crate) rollup: Arc<RollupConfig>,
}

impl World {
    /// An L2 with all forks through Jovian. Its genesis is `age` seconds old and builds on the
    /// first of `count` L1 blocks.
    pub(crate) async fn new(age: u64, count: u64) -> Self {
        Self::through(Fork::Jovian, age, count).await
    }

    /// An L2 with all forks through `last`. Its genesis is `age` seconds old and builds on the
    /// first of `count` L1 blocks.
    pub(crate) async fn through(last: Fork, age: u64, count: u64) -> Self {
        let l2_time = since_epoch().as_secs() - age;
        let l1_headers = l1_chain(10, l2_time - 2, count, 1);
        let l1 = FakeL1::start().await;
        l1.set(&l1_headers);
        let genesis = l2_genesis(l2_time, last);
        let datadir = tempfile::tempdir().unwrap();
        crate::chain::init(datadir.path(), &genesis).unwrap();
        let genesis_of = RollupGenesis {
            l1: block(&l1_headers[0]).id(),
            l2: genesis.payload().id(),
            l2_time,
            system_config: system_config(),
        };
        let rollup = rollup_config(genesis_of, last);
        let heads = L1Heads {
            head: l1_headers.last().map(block),
            ..Default::default()
        };
        Self {
            datadir,
            genesis,
            l1,
            l1_headers,
            l1_heads: watch::Sender::new(heads),
            rollup: Arc::new(rollup),
        }
    }

    /// Sets L1 to these blocks; the last block is the head.
    pub(crate) fn show_l1(&self, headers: &[Header]) {
        self.l1.set(headers);
        self.l1_heads
            .send_modify(|heads| heads.head = headers.last().map(block));
    }

    pub(crate) fn open(&self) -> (Chain, Threads) {
        self.open_in(&self.datadir)
    }

    /// Opens the chain like [`World::open`], with these memory limits.
    pub(crate) fn open_within(&self, limits: ExecutorLimits) -> (Chain, Threads) {
        let options = Options {
            datadir: self.datadir.path().to_owned(),
            cache: 16 << 20,
            commit_interval: Duration::from_millis(50),
        };
        Chain::open_within(&options, Default::default(), limits).unwrap()
    }

    /// Runs a sequencer that builds blocks up to the present time.
    pub(crate) async fn sequence(&self, chain: &Chain) {
        let token = CancellationToken::new();
        let (sequencer, _handle) = self.sequencer(chain, config());
        let task = tokio::spawn(sequencer.run(token.clone()));
        until_time(chain, since_epoch().as_secs()).await;
        token.cancel();
        task.await.unwrap().unwrap();
    }

    /// The same chain at its genesis, in a new directory.
    fn another(&self) -> tempfile::TempDir {
        let datadir = tempfile::tempdir().unwrap();
        crate::chain::init(datadir.path(), &self.genesis).unwrap();
        datadir
    }

    fn open_in(&self, datadir: &tempfile::TempDir) -> (Chain, Threads) {
        let datadir = datadir.path().to_owned();
        Chain::open(&Options {
            datadir,
            cache: 16 << 20,
            commit_interval: Duration::from_millis(100),
        })
        .unwrap()
    }

    pub(crate) fn sequencer(
        &self,
        chain: &Chain,
        config: SequencerConfig,
    ) -> (Sequencer, SequencerHandle) {
        self.sequencer_of(chain, config, key(), None)
    }

    fn sequencer_of(
        &self,
        chain: &Chain,
        config: SequencerConfig,
        signer: Signer,
        network: Option<Network>,
    ) -> (Sequencer, SequencerHandle) {
        let (engine, log) = (
            Engine::Local(chain.clone()),
            SigningLog::Chain(chain.clone()),
        );
        self.sequencer_over(engine, log, config, signer, network)
    }

    fn sequencer_over(
        &self,
        engine: Engine,
        signing_log: SigningLog,
        config: SequencerConfig,
        signer: Signer,
        network: Option<Network>,
    ) -> (Sequencer, SequencerHandle) {
        let l1 = L1Client::new(&L1Config::new(self.l1.url())).unwrap();
        let blobs = BlobSchedule::new(vec![(0, BlobSchedule::CANCUN)]);
        let l1 = FollowedL1 {
            client: l1,
            heads: self.l1_heads.subscribe(),
        };
        let parts = SequencerParts {
            rollup: self.rollup.clone(),
            blobs,
            engine,
            signing_log,
            l1,
            signer,
            network,
        };
        Sequencer::new(config, parts)
    }
}

fn key() -> Signer {
    Signer::from_hex(&"11".repeat(32)).unwrap()
}

fn config() -> SequencerConfig {
    SequencerConfig {
        l1_confs: 0,
        ..Default::default()
    }
}

/// The L1 origin of an L2 block of this world.
fn origin_of(world: &World, payload: &Payload) -> BlockId {
    L2BlockRef::of(payload, &world.rollup.genesis)
        .unwrap()
        .origin
}

/// Waits until the head has the timestamp `time` (Unix seconds).
async fn until_time(chain: &Chain, time: u64) {
    let mut heads = chain.heads();
    tokio::time::timeout(
        Duration::from_secs(60),
        heads.wait_for(|heads| heads.timestamp >= time),
    )
    .await
    .unwrap()
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sequencing_ends_before_lagoon_with_a_sentence() {
    let mut world = World::new(20, 4).await;
    let rollup = Arc::make_mut(&mut world.rollup);
    let lagoon = rollup.genesis.l2_time + 6;
    rollup.forks = rollup.forks.clone().with_lagoon(Some(lagoon));
    let (chain, _threads) = world.open();
    let (sequencer, _handle) = world.sequencer(&chain, config());
    let ended = tokio::time::timeout(
        Duration::from_secs(20),
        sequencer.run(CancellationToken::new()),
    );
    let error = ended.await.unwrap().unwrap_err();
    let sentence = format!("the block at L2 time {lagoon} is in Lagoon (interop)");
    assert!(error.to_string().starts_with(&sentence), "{error}");
    assert!(!error.is_chain_failure());
    assert_eq!(chain.view().header().timestamp, lagoon - 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_sequencer_catches_up_and_then_keeps_time() {
    let world = World::new(40, 4).await;
    let (chain, _threads) = world.open();
    let (sequencer, handle) = world.sequencer(&chain, config());
    let token = CancellationToken::new();
    let task = tokio::spawn(sequencer.run(token.clone()));
    until_time(&chain, since_epoch().as_secs() + 1).await;

    // Twenty blocks are built in less than the time of two, with every timestamp and with advancing
    // origins.
    let view = chain.view();
    let genesis = &world.rollup.genesis;
    let mut origins = vec![];
    for number in 1..=view.head().number {
        let payload = view.payload(number).unwrap().unwrap();
        assert_eq!(payload.timestamp(), genesis.l2_time + 2 * number);
        let l2 = L2BlockRef::of(&payload, genesis).unwrap();
        assert!(
            origins
                .last()
                .is_none_or(|last: &u64| l2.origin.number - last <= 1)
        );
        origins.push(l2.origin.number);
    }
    assert_eq!(origins.last(), Some(&13));
    let (made, time) = (view.head().number, since_epoch());
    until_time(&chain, view.header().timestamp + 4).await;
    let took = since_epoch() - time;
    assert!(
        took > Duration::from_millis(2_500) && took < Duration::from_millis(4_500),
        "{took:?}"
    );

    // The handle stops and starts the sequencer.
    assert!(handle.active());
    let head = handle.stop().await.unwrap();
    assert_eq!(head, chain.view().head().hash);
    assert!(chain.view().head().number >= made + 2);
    assert_eq!(handle.stop().await, Err(SequencerControlError::NotRunning));
    assert!(matches!(
        handle.start(B256::ZERO).await,
        Err(SequencerControlError::WrongHead { .. })
    ));
    handle.start(head).await.unwrap();
    assert_eq!(
        handle.start(head).await,
        Err(SequencerControlError::AlreadyRunning)
    );
    until_time(&chain, since_epoch().as_secs() + 1).await;
    token.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequencer_is_active_from_the_start_of_its_loop_on() {
    let world = World::new(4, 1).await;
    let (chain, _threads) = world.open();
    let (sequencer, handle) = world.sequencer(&chain, config());
    assert!(!handle.active(), "its loop does not run");
    let token = CancellationToken::new();
    let task = tokio::spawn(sequencer.run(token.clone()));
    until_active(&handle).await;
    token.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_whose_callers_have_gone_are_skipped() {
    let world = World::new(4, 1).await;
    let (chain, _threads) = world.open();
    let token = CancellationToken::new();
    let stopped = SequencerConfig {
        stopped: true,
        ..config()
    };
    let (sequencer, handle) = world.sequencer(&chain, stopped);
    abandon(handle.start(chain.view().head().hash));
    let task = tokio::spawn(sequencer.run(token.clone()));
    assert_eq!(handle.stop().await, Err(SequencerControlError::NotRunning));
    assert_eq!(chain.view().head().number, 0);
    token.cancel();
    task.await.unwrap().unwrap();

    let token = CancellationToken::new();
    let (sequencer, handle) = world.sequencer(&chain, config());
    abandon(handle.stop());
    let task = tokio::spawn(sequencer.run(token.clone()));
    assert_eq!(
        handle.start(B256::ZERO).await,
        Err(SequencerControlError::AlreadyRunning)
    );
    // A command is executed if its caller waits.
    assert!(handle.stop().await.is_ok());
    assert!(!handle.active());
    token.cancel();
    task.await.unwrap().unwrap();
}

/// Sends a command and drops the future that waits for its outcome.
fn abandon<T>(command: impl Future<Output = T>) {
    assert!(command.now_or_never().is_none(), "it waits for the loop");
}

async fn until_active(handle: &SequencerHandle) {
    let mut status = handle.watch();
    let active = status.wait_for(|status| status.active);
    tokio::time::timeout(Duration::from_secs(20), active)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_was_signed_before_is_used_again() {
    let world = World::new(4, 1).await;
    let (chain, _threads) = world.open();
    // The state after a kill between log and head. The logged block differs by its randao from the
    // block that would be built now.
    let genesis = chain.view().payload(0).unwrap().unwrap();
    let origin = block(&world.l1_headers[0]);
    let blobs = BlobSchedule::new(vec![(0, BlobSchedule::CANCUN)]);
    let mut derived = attributes(&world.rollup, &blobs, &genesis, &origin, None)
        .unwrap()
        .attributes;
    derived.no_tx_pool = Some(true);
    derived.payload_attributes.prev_randao = B256::repeat_byte(9);
    let id = chain.start(genesis.hash, derived).await.unwrap();
    let signed = chain.seal(id).await.unwrap();
    chain
        .log_before_sign(signed.payload.clone(), origin.hash)
        .await
        .unwrap();

    let (sequencer, _handle) = world.sequencer(&chain, config());
    let token = CancellationToken::new();
    let task = tokio::spawn(sequencer.run(token.clone()));
    until_time(&chain, world.rollup.genesis.l2_time + 4).await;
    assert_eq!(chain.view().hash_of(1).unwrap(), Some(signed.payload.hash));
    token.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_transactions_are_mined_in_order_and_leave_the_pool() {
    let world = World::new(2, 2).await;
    let (chain, _threads) = world.open();
    let (sequencer, _handle) = world.sequencer(&chain, config());
    let token = CancellationToken::new();
    let maintenance = tokio::spawn(crate::chain::pool_maintenance::run(
        chain.clone(),
        token.clone(),
    ));
    let task = tokio::spawn(sequencer.run(token.clone()));
    let hashes: Vec<_> = [2, 0, 1]
        .into_iter()
        .map(|nonce| submit(&chain, transfer(nonce)))
        .collect();
    until_time(&chain, since_epoch().as_secs() + 4).await;
    let places: Vec<_> = hashes
        .iter()
        .map(|hash| chain.view().transaction(*hash).unwrap().expect("mined"))
        .collect();
    assert!(places[1] < places[2] && places[2] < places[0], "{places:?}");
    assert_eq!(
        chain
            .view()
            .state()
            .account(wallet())
            .unwrap()
            .unwrap()
            .nonce,
        3
    );
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(chain.pool().stats(), Default::default());
    token.cancel();
    task.await.unwrap().unwrap();
    maintenance.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn recovering_leaves_the_pool_alone() {
    let world = World::new(2, 2).await;
    let (chain, _threads) = world.open();
    let (sequencer, _handle) = world.sequencer(
        &chain,
        SequencerConfig {
            recover: true,
            ..config()
        },
    );
    let token = CancellationToken::new();
    let hash = submit(&chain, transfer(0));
    let task = tokio::spawn(sequencer.run(token.clone()));
    until_time(&chain, since_epoch().as_secs() + 2).await;
    assert_eq!(chain.view().transaction(hash).unwrap(), None);
    token.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_goes_on_where_the_log_ended() {
    let world = World::new(10, 2).await;
    let mut last = None;
    for _ in 0..2 {
        let (chain, threads) = world.open();
        let head = chain.view().head();
        assert!(last.is_none_or(|last| last == head), "{last:?} {head:?}");
        let (sequencer, handle) = world.sequencer(&chain, config());
        let token = CancellationToken::new();
        let task = tokio::spawn(sequencer.run(token.clone()));
        until_time(&chain, chain.view().header().timestamp + 4).await;
        token.cancel();
        task.await.unwrap().unwrap();
        assert_eq!(handle.stop().await, Err(SequencerControlError::NotEnabled));
        last = Some(chain.view().head());
        assert!(last.unwrap().number >= head.number + 2);
        drop(chain);
        tokio::task::spawn_blocking(|| threads.stop())
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequencer_that_catches_up_can_be_stopped() {
    let world = World::new(20_000, 1700).await;
    let (chain, _threads) = world.open();
    let (sequencer, handle) = world.sequencer(&chain, config());
    let token = CancellationToken::new();
    let task = tokio::spawn(sequencer.run(token.clone()));
    until_time(&chain, world.rollup.genesis.l2_time + 4).await;
    let head = handle.stop().await.unwrap();
    assert_eq!(chain.view().head().hash, head);
    assert!(
        chain.view().header().timestamp + 1000 < since_epoch().as_secs(),
        "stopped on the way"
    );
    token.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_l1_endpoint_that_contradicts_itself_once_does_not_end_sequencing() {
    let world = World::new(20, 2).await;
    let (chain, _threads) = world.open();
    let (sequencer, _handle) = world.sequencer(&chain, config());
    let token = CancellationToken::new();
    let task = tokio::spawn(sequencer.run(token.clone()));
    until_time(&chain, world.rollup.genesis.l2_time + 14).await;
    // For one response, another node behind the same load balancer serves another branch.
    let other = l1_chain(10, world.rollup.genesis.l2_time - 2, 3, 2);
    let asked = world.l1.calls("eth_getBlockByNumber");
    world.l1.set(&other);
    world
        .l1_heads
        .send_modify(|heads| heads.head = other.last().map(block));
    while world.l1.calls("eth_getBlockByNumber") == asked {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    world.l1.set(&world.l1_headers);
    world
        .l1_heads
        .send_modify(|heads| heads.head = world.l1_headers.last().map(block));
    until_time(&chain, since_epoch().as_secs() + 1).await;
    token.cancel();
    task.await.unwrap().unwrap();
}
