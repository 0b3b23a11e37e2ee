//! The engine client with a stand-in for op-geth, which leaves its head in place at fork choices to
//! canonical blocks, and which loses states when it is killed.

use super::{super::testing::GethStandIn, *};

/// A stand-in with these blocks above genesis, all followed by an engine over it.
struct Geth {
    core: RemoteCore,
    geth: GethStandIn,
    engine: Engine,
    blocks: Vec<Arc<Payload>>,
}

impl Geth {
    async fn with_blocks(count: usize) -> Self {
        let core = RemoteCore::new().await;
        let geth = GethStandIn::start(&core.served).await;
        let engine = geth.engine(&core.rollup).await;
        let blocks = core.stranger(&vec![1; count]).await;
        let geth = Self {
            core,
            geth,
            engine,
            blocks,
        };
        for block in &geth.blocks {
            assert_eq!(geth.follow(block).await, Inserted::Valid);
        }
        geth
    }

    async fn follow(&self, block: &Arc<Payload>) -> Inserted {
        let gossip = Provenance::Signed(alloy_primitives::Address::ZERO);
        let followed = self.engine.queue_follow(block.clone(), gossip).await;
        followed.unwrap().await.unwrap()
    }

    /// Compares the client's head with the engine's.
    async fn look(&self) {
        let Engine::Remote(client) = &self.engine else {
            panic!("it is remote")
        };
        client.look().await.unwrap();
    }

    fn known_head(&self) -> BlockId {
        self.engine.heads().borrow().head
    }

    /// Attributes of a block on the block of this index.
    fn attributes_on(&self, index: usize, salt: u64) -> OpPayloadAttributes {
        attributes(&self.blocks[index].header, salt, [])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_the_client_left_in_place_is_no_news() {
    let net = Geth::with_blocks(4).await;
    let (lower, last) = (net.blocks[1].id(), net.blocks[3].id());
    for attempt in 0..2 {
        net.engine.forkchoice(lower.hash, None, None).await.unwrap();
        assert_eq!(net.geth.head().1, last.hash, "the client's head stays");
        net.look().await;
        assert_eq!(net.known_head(), lower, "{attempt}");
        // The client marks the next block too, so its head still stays.
        let next = net.blocks[2].id();
        net.engine.forkchoice(next.hash, None, None).await.unwrap();
        net.look().await;
        assert_eq!(net.known_head(), next, "{attempt}");
    }
    // A block of its own becomes the client's head.
    net.engine.forkchoice(lower.hash, None, None).await.unwrap();
    let started = net.engine.start(lower.hash, net.attributes_on(1, 7)).await;
    let block = net.engine.seal(started.unwrap()).await.unwrap();
    net.engine.forkchoice(block.hash, None, None).await.unwrap();
    assert_eq!(net.geth.head().1, block.hash);
    net.look().await;
    assert_eq!(net.known_head(), block.id());
    // A head that something else moves is news.
    let other = net.geth.engine(&net.core.rollup).await;
    other.forkchoice(last.hash, None, None).await.unwrap();
    net.look().await;
    assert_eq!(net.known_head(), last);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_was_killed_executes_the_blocks_that_it_has_again() {
    let net = Geth::with_blocks(40).await;
    let safe = net.blocks[35].id();
    net.engine.promote(Some(safe.hash), None).await.unwrap();
    for (kept, stored) in [(3, 40), (38, 40), (1, 38)] {
        net.geth.kill(kept, stored);
        net.look().await;
        let top = net.blocks[stored as usize - 1].id();
        assert_eq!((net.known_head(), net.geth.head().1), (top, top.hash));
        assert_eq!(net.engine.heads().borrow().safe, Some(safe));
        for block in &net.blocks[stored as usize..] {
            assert_eq!(net.follow(block).await, Inserted::Valid);
        }
        assert_eq!(net.geth.head().1, net.blocks[39].hash);
    }
    let parent = net.blocks[39].hash;
    let started = net.engine.start(parent, net.attributes_on(39, 1)).await;
    net.engine.seal(started.unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_revival_goes_on() {
    let net = Geth::with_blocks(4).await;
    let twin = super::super::held::twin(&net.blocks[1]);
    net.geth.kill(1, 4);
    // Another process was killed when the twin of block 2 was the client's head.
    let Engine::Remote(client) = &net.engine else {
        panic!("it is remote")
    };
    assert_eq!(
        client.0.rpc.new_payload(&twin).await.unwrap(),
        EngineStatus::Valid
    );
    client.name_head(twin.hash).await.unwrap();
    assert_eq!(net.geth.head(), (2, twin.hash));
    let again = net.geth.engine(&net.core.rollup).await;
    let last = net.blocks[3].id();
    assert_eq!(again.heads().borrow().head, last);
    assert_eq!(net.geth.head().1, last.hash);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_for_a_state_is_told_which_block_to_fetch() {
    let net = Geth::with_blocks(6).await;
    net.geth.kill(0, 4);
    net.look().await;
    // The peer had the newest block, which was named at once.
    net.look().await;
    assert_eq!(net.known_head(), net.blocks[5].id());

    net.geth.kill(0, 4);
    net.geth.remove_peer();
    net.look().await;
    let top = net.blocks[3].id();
    assert_eq!((net.known_head(), net.geth.head().0), (top, 0));
    // The state of the highest block is missing, which says nothing of attributes or blocks on it.
    let refused = net.engine.start(top.hash, net.attributes_on(3, 1)).await;
    assert!(matches!(refused, Err(CoreError::Remote(_))), "{refused:?}");
    let derived = net
        .engine
        .derive(top.hash, net.attributes_on(3, 1), None)
        .await;
    assert!(matches!(derived, Err(CoreError::Remote(_))), "{derived:?}");
    assert_eq!(net.follow(&net.blocks[4]).await, Inserted::Syncing);
    assert_eq!((net.known_head(), net.geth.head().0), (top, 0));
    assert_eq!(net.geth.marked(1), Some(net.blocks[0].hash));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_for_want_of_a_state_is_no_verdict_on_a_payload() {
    let net = Geth::with_blocks(2).await;
    let [parent, head] = [0, 1].map(|index| net.blocks[index].clone());
    let build = build(&net.core.chain, head.hash, 1, []).await;
    let next = build.payload.clone();
    for reason in [
        "missing trie node 12",
        "blockchain is stopped",
        "links to previously rejected block",
    ] {
        net.geth.refuse_payload(reason);
        assert_eq!(net.follow(&next).await, Inserted::NotExecutable, "{reason}");
    }
    net.geth.refuse_payload("invalid merkle root");
    let refused = net.follow(&next).await;
    assert!(matches!(refused, Inserted::Invalid { .. }), "{refused:?}");
    assert_eq!(net.follow(&next).await, Inserted::Valid);
    assert!(net.geth.marked(1) == Some(parent.hash));
}
