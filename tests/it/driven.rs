//! A core with a swarm, driven by a rollup node over the Engine API. Chains and swarms are real,
//! and run in one process.

use crate::late::{Store, Swarm, genesis};
use alloy_primitives::B256;
use alloy_rpc_types_engine::{ForkchoiceState, PayloadStatus, PayloadStatusEnum};
use starling::chain::head_owner::HeadOwner;

use starling_proto::payload::Payload;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Longest wait for any condition: debug builds on busy machines are slow.
const LIMIT: Duration = Duration::from_secs(180);

/// A source of blocks, and a core that is in the source's swarm.
struct World {
    source: Store,
    peer: Swarm,
    core: Store,
    swarm: Swarm,
}

impl World {
    async fn new(blocks: u64) -> Self {
        let genesis = genesis(blocks + 100);
        let (source, core) = (Store::new(&genesis), Store::new(&genesis));
        source.extend_to(blocks).await;
        let peer = source.serve(&[]).await;
        let swarm = core.serve(&[&peer]).await;
        swarm.reports("greeted", |sync| sync.peers == 1).await;
        Self {
            source,
            peer,
            core,
            swarm,
        }
    }

    /// Extends the source by a block and gossips the block.
    async fn gossip(&self) -> Arc<Payload> {
        let block = self.source.extend().await;
        self.peer.publish(&block).await;
        block
    }

    async fn gossip_and_execute(&self) -> Arc<Payload> {
        let block = self.gossip().await;
        self.until("it is executed", || self.core.chain.knows(block.hash))
            .await;
        block
    }

    async fn until(&self, what: &str, done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(
                start.elapsed() < LIMIT,
                "not in {LIMIT:?}: {what}; the head is {}",
                self.head()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn hash(&self, number: u64) -> B256 {
        self.source
            .chain
            .view()
            .hash_of(number)
            .expect("a read")
            .expect("a block")
    }

    fn head(&self) -> u64 {
        self.core.chain.view().head().number
    }

    async fn new_payload(&self, block: &Arc<Payload>) -> PayloadStatus {
        self.swarm
            .engine
            .new_payload(block.clone())
            .await
            .expect("the chain runs")
    }

    async fn choose(&self, head: B256, safe: B256) -> PayloadStatus {
        let state = ForkchoiceState {
            head_block_hash: head,
            safe_block_hash: safe,
            finalized_block_hash: safe,
        };
        self.swarm
            .engine
            .forkchoice(state, None, 3)
            .await
            .expect("the chain runs")
            .0
    }

    /// Sets the time after which a rollup node without fork choices counts as silent to two
    /// seconds, and waits until that time is over.
    async fn wait_for_silence(&self) {
        self.core.chain.update_head_owner(|owner| {
            *owner = HeadOwner::new(Duration::from_secs(2));
            owner.on_forkchoice(Instant::now());
            true
        });
        self.until("the rollup node counts as silent", || {
            !self.core.chain.head_owner().borrow().is_rollup_node()
        })
        .await;
    }

    /// Gossips blocks until the core's head is the source's head. This may take several blocks: the
    /// swarm is notified a moment after the rollup node counts as silent.
    async fn follows_gossip(&self) {
        let start = Instant::now();
        while self.head() < self.source.chain.view().head().number {
            assert!(start.elapsed() < LIMIT, "the head stays at {}", self.head());
            self.gossip().await;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }

    async fn make_head(&self, number: u64) {
        let status = self.choose(self.hash(number), B256::ZERO).await;
        assert!(status.is_valid(), "{status:?}");
        assert_eq!(self.head(), number);
    }

    async fn stop(self) {
        for swarm in [self.swarm, self.peer] {
            swarm.stop().await;
        }
        for store in [self.core, self.source] {
            store.stop();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_behind_in_step_and_silent_moves_the_head_alone_until_it_is_silent() {
    let world = World::new(30).await;
    let tip = world.gossip().await;
    world.core.reaches(tip.number(), LIMIT).await;

    // The driver is twenty blocks behind: the head is rewound once, and then rises with the driver
    // only.
    world.make_head(tip.number() - 20).await;
    for _ in 0..15 {
        let before = world.head();
        let tip = world.gossip_and_execute().await;
        assert_eq!(world.head(), before);
        world.make_head(tip.number() - 20).await;
        assert_eq!(world.head(), before + 1);
    }
    // The driver catches up and keeps pace with the newest block.
    for number in world.head() + 1..=world.source.chain.view().head().number {
        world.make_head(number).await;
    }
    for _ in 0..5 {
        let before = world.head();
        let block = world.gossip_and_execute().await;
        assert_eq!(world.head(), before);
        assert!(world.new_payload(&block).await.is_valid());
        world.make_head(block.number()).await;
    }
    // The driver stops. After the time that this test sets, the core fills gaps by itself again.
    let last = world.head();
    world.gossip_and_execute().await;
    assert_eq!(world.head(), last);
    world.wait_for_silence().await;
    world.source.extend_to(last + 10).await;
    world.follows_gossip().await;
    // The rollup node returns, and only its fork choices move the head.
    world.core.chain.update_head_owner(|owner| {
        *owner = HeadOwner::default();
        false
    });
    world.make_head(last).await;
    world.gossip_and_execute().await;
    assert_eq!(world.head(), last);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollup_node_in_execution_layer_sync_names_heads_that_the_swarm_brings() {
    let world = World::new(300).await;
    let syncing = |status: &PayloadStatus| {
        matches!(
            status.status,
            PayloadStatusEnum::Syncing | PayloadStatusEnum::Accepted
        )
    };
    // Acts like op-node: each new block is sent as a payload and then named by a fork choice. If
    // the block is not VALID, the next block is tried.
    let (mut named, mut rounds) = (world.source.extend().await, 0);
    loop {
        let sent = world.new_payload(&named).await;
        let chosen = world.choose(named.hash, B256::ZERO).await;
        if sent.is_valid() {
            assert!(chosen.is_valid(), "{chosen:?}");
            break;
        }
        assert!(syncing(&sent), "{sent:?}");
        assert!(chosen.is_valid() || syncing(&chosen), "{chosen:?}");
        rounds += 1;
        assert!(
            rounds < 600,
            "it is never reached: the head is {}",
            world.head()
        );
        tokio::time::sleep(Duration::from_millis(300)).await;
        named = world.source.extend().await;
    }
    assert!(rounds > 0 && world.head() == named.number());
    // Once executed, the block can be made safe and finalized.
    assert!(world.choose(named.hash, named.hash).await.is_valid());
    let heads = *world.core.chain.heads().borrow();
    assert_eq!(
        (heads.safe, heads.finalized),
        (Some(named.id()), Some(named.id()))
    );

    // One payload and one fork choice are enough to fill a gap, whether long or short.
    for missing in [40, 3] {
        world.source.extend_to(world.head() + missing).await;
        let tip = world.source.extend().await;
        assert!(
            syncing(&world.new_payload(&tip).await)
                && syncing(&world.choose(tip.hash, B256::ZERO).await)
        );
        world.core.reaches(tip.number(), LIMIT).await;
        assert_eq!(world.core.chain.view().head(), tip.id());
    }
    world.stop().await;
}
