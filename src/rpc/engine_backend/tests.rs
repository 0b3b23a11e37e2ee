mod branches;
mod swarm;

use super::*;
use crate::chain::{
    evm::tests::{deposit, deposited},
    executor::ExecutorLimits,
    head_owner,
    tests::{attributes, datadir, killed, open_within},
    tree,
};
use alloy_primitives::{Address, Bytes, U256, keccak256};
use op_alloy_consensus::TxDeposit;
use starling_proto::payload::Payload;
use std::time::Duration;
use tempfile::TempDir;

struct World {
    engine: EngineBackend,
    _dir: TempDir,
}

impl World {
    fn new() -> Self {
        Self::within(ExecutorLimits::default())
    }

    fn within(limits: ExecutorLimits) -> Self {
        let dir = datadir();
        Self {
            engine: EngineBackend::new(open_within(dir.path(), limits).0, None),
            _dir: dir,
        }
    }

    fn head(&self) -> B256 {
        self.engine.chain.view().head().hash
    }

    /// Builds a block on `parent` and inserts it; no head moves.
    async fn make(&self, parent: &Payload, salt: u64) -> Arc<Payload> {
        // Each block creates an account of its own.
        let to = Address::from_word(keccak256(
            [parent.number().to_be_bytes(), salt.to_be_bytes()].concat(),
        ));
        let paid = deposited(TxDeposit {
            mint: 1,
            value: U256::from(1),
            ..deposit(to, 50_000)
        })
        .1;
        let attributes = attributes(&parent.header, salt, [paid]);
        let id = self.engine.start(parent.hash, attributes, 3).await.unwrap();
        let block = self.engine.payload(id, |_| true).await.unwrap();
        assert_eq!(
            self.engine
                .new_payload(block.payload.clone())
                .await
                .unwrap(),
            valid(block.payload.hash)
        );
        block.payload.clone()
    }

    fn genesis(&self) -> Arc<Payload> {
        self.engine.chain.view().payload(0).unwrap().unwrap()
    }

    async fn chain(&self, on: &Arc<Payload>, count: usize, salt: u64) -> Vec<Arc<Payload>> {
        let mut blocks = vec![on.clone()];
        for _ in 0..count {
            blocks.push(self.make(blocks.last().unwrap(), salt).await);
        }
        blocks.split_off(1)
    }

    async fn choose(
        &self,
        head: B256,
        safe: B256,
        finalized: B256,
    ) -> Result<PayloadStatus, EngineError> {
        let state = ForkchoiceState {
            head_block_hash: head,
            safe_block_hash: safe,
            finalized_block_hash: finalized,
        };
        self.engine
            .forkchoice(state, None, 3)
            .await
            .map(|(status, _)| status)
    }

    async fn make_head(&self, head: B256) {
        assert_eq!(
            self.choose(head, B256::ZERO, B256::ZERO).await.unwrap(),
            valid(head)
        );
        assert_eq!(self.head(), head);
    }

    fn marked(&self) -> [Option<B256>; 2] {
        let heads = *self.engine.chain.heads().borrow();
        [heads.safe, heads.finalized].map(|id| id.map(|id| id.hash))
    }
}

/// A rollup node may have published the block, but has not made it the head.
#[tokio::test]
async fn a_block_given_to_a_driver_survives_a_kill_and_is_not_the_head() {
    let world = World::new();
    let first = world.make(&world.genesis(), 0).await;
    world.make_head(first.hash).await;
    let id = world
        .engine
        .start(first.hash, attributes(&first.header, 0, []), 3)
        .await
        .unwrap();
    let given = world
        .engine
        .payload(id, |_| true)
        .await
        .unwrap()
        .payload
        .clone();
    let dead = killed(world._dir.path());
    world.engine.new_payload(given.clone()).await.unwrap();
    for dir in [dead, killed(world._dir.path())] {
        let world = World {
            engine: EngineBackend::new(open_within(dir.path(), ExecutorLimits::default()).0, None),
            _dir: dir,
        };
        assert_eq!(world.head(), first.hash);
        world.make_head(given.hash).await;
    }
}

#[tokio::test]
async fn payloads_wait_for_their_parents() {
    let (maker, world) = (World::new(), World::new());
    let blocks = maker.chain(&maker.genesis(), 6, 0).await;
    for block in blocks[1..].iter().rev() {
        assert_eq!(
            world.engine.new_payload(block.clone()).await.unwrap(),
            syncing()
        );
        assert_eq!(
            world
                .choose(block.hash, B256::ZERO, B256::ZERO)
                .await
                .unwrap(),
            syncing()
        );
    }
    assert_eq!(world.head(), world.genesis().hash);
    assert_eq!(
        world.engine.new_payload(blocks[0].clone()).await.unwrap(),
        valid(blocks[0].hash)
    );
    assert_eq!(
        world.head(),
        world.genesis().hash,
        "a new payload moves no head"
    );
    world.make_head(blocks[5].hash).await;
}

/// As in op-geth, extra data that is invalid at the block's timestamp is refused before the parent
/// is looked up.
#[tokio::test]
async fn forbidden_extra_data_is_refused_without_a_valid_ancestor() {
    let world = World::new();
    let good = world.make(&world.genesis(), 0).await;
    for timestamp in [good.header.timestamp, world.genesis().header.timestamp] {
        let header = alloy_consensus::Header {
            timestamp,
            extra_data: vec![9].into(),
            ..good.header.clone()
        };
        let bad = Arc::new(Payload::sealed(header, good.transactions.clone()));
        let status = world.engine.new_payload(bad.clone()).await.unwrap();
        assert!(status.is_invalid(), "{status:?}");
        assert_eq!(status.latest_valid_hash, None);
        assert_eq!(
            world
                .choose(bad.hash, B256::ZERO, B256::ZERO)
                .await
                .unwrap(),
            syncing(),
            "it is not remembered"
        );
    }
}

#[tokio::test]
async fn descendants_of_an_invalid_block_are_invalid() {
    let (maker, world) = (World::new(), World::new());
    let genesis = maker.genesis();
    let good = maker.make(&genesis, 0).await;
    let bad = Payload::sealed(
        alloy_consensus::Header {
            state_root: B256::ZERO,
            ..good.header.clone()
        },
        good.transactions.clone(),
    );
    let on = |parent: B256| {
        let header = alloy_consensus::Header {
            parent_hash: parent,
            number: 2,
            ..good.header.clone()
        };
        Arc::new(Payload::sealed(header, vec![]))
    };
    let child = on(bad.hash);
    let grandchild = on(child.hash);
    // Both descendants wait when the bad block arrives.
    for orphan in [&grandchild, &child] {
        assert_eq!(
            world.engine.new_payload(orphan.clone()).await.unwrap(),
            syncing()
        );
    }
    let status = world
        .engine
        .new_payload(Arc::new(bad.clone()))
        .await
        .unwrap();
    assert!(status.is_invalid());
    assert_eq!(status.latest_valid_hash, Some(genesis.hash));
    for hash in [grandchild.hash, child.hash, bad.hash] {
        let status = world.choose(hash, B256::ZERO, B256::ZERO).await.unwrap();
        assert!(status.is_invalid(), "{status:?}");
        assert_eq!(status.latest_valid_hash, Some(genesis.hash));
    }
    let late = on(grandchild.hash);
    assert_eq!(
        world.engine.new_payload(late).await.unwrap(),
        invalid(Some(genesis.hash), REJECTED_BEFORE)
    );
    assert_eq!(world.head(), genesis.hash);
    assert_eq!(
        world.engine.new_payload(good.clone()).await.unwrap(),
        valid(good.hash)
    );
}

#[tokio::test]
async fn the_head_is_the_named_one() {
    let world = World::new();
    let genesis = world.genesis();
    assert!(
        world
            .choose(B256::ZERO, B256::ZERO, B256::ZERO)
            .await
            .unwrap()
            .is_invalid()
    );
    assert_eq!(
        world
            .choose(B256::repeat_byte(1), B256::ZERO, B256::ZERO)
            .await
            .unwrap(),
        syncing()
    );
    let trunk = world.chain(&genesis, 6, 0).await;
    let branch = world.chain(&trunk[2], 2, 1).await;
    for head in [
        trunk[5].hash,
        branch[1].hash,
        trunk[0].hash,
        trunk[5].hash,
        genesis.hash,
        branch[0].hash,
        trunk[3].hash,
    ] {
        world.make_head(head).await;
    }
}

/// A trunk of six blocks, whose fifth block is safe and whose second is finalized. A branch of two
/// blocks forks off after the third block.
struct ForkedWorld {
    world: World,
    genesis: B256,
    trunk: Vec<B256>,
    branch: Vec<B256>,
}

impl ForkedWorld {
    async fn new() -> Self {
        let world = World::new();
        let genesis = world.genesis();
        let trunk = world.chain(&genesis, 6, 0).await;
        let branch = world.chain(&trunk[2], 2, 1).await;
        let hashes = |blocks: &[Arc<Payload>]| blocks.iter().map(|block| block.hash).collect();
        let forked = Self {
            world,
            genesis: genesis.hash,
            trunk: hashes(&trunk),
            branch: hashes(&branch),
        };
        let [_, finalized, _, _, safe, head] = forked.trunk[..] else {
            unreachable!("six blocks")
        };
        forked.world.choose(head, safe, finalized).await.unwrap();
        assert_eq!(forked.world.marked(), [Some(safe), Some(finalized)]);
        forked
    }
}

#[tokio::test]
async fn safe_and_finalized_fall_back_to_the_shared_blocks() {
    let ForkedWorld {
        world,
        genesis,
        trunk,
        branch,
    } = ForkedWorld::new().await;
    world.make_head(branch[1]).await;
    assert_eq!(world.marked(), [Some(trunk[2]), Some(trunk[1])]);
    world.make_head(genesis).await;
    assert_eq!(world.marked(), [Some(genesis); 2]);
}

/// A wrong safe or finalized block is an error, but the head moves all the same.
#[tokio::test]
async fn wrong_safe_and_finalized_blocks_are_refused_after_the_head_moved() {
    let ForkedWorld {
        world,
        genesis,
        trunk,
        branch,
    } = ForkedWorld::new().await;
    for (safe, finalized, reason) in [
        (
            B256::repeat_byte(7),
            B256::ZERO,
            "safe block not available in database",
        ),
        (branch[0], B256::ZERO, "safe block not in canonical chain"),
        (
            B256::ZERO,
            B256::repeat_byte(7),
            "final block not available in database",
        ),
        (trunk[5], branch[1], "final block not in canonical chain"),
        (trunk[1], trunk[3], "final block is above the safe block"),
    ] {
        world.make_head(genesis).await;
        let error = world.choose(trunk[5], safe, finalized).await.unwrap_err();
        assert!(
            matches!(&error, EngineError::Forkchoice(have) if have == reason),
            "{error}"
        );
        assert_eq!(world.head(), trunk[5]);
        assert_eq!(world.marked(), [Some(genesis); 2]);
    }
}

#[tokio::test]
async fn a_safe_or_finalized_block_named_alone_takes_the_other_with_it() {
    let ForkedWorld {
        world,
        genesis,
        trunk,
        ..
    } = ForkedWorld::new().await;
    world.make_head(genesis).await;
    world.choose(trunk[5], B256::ZERO, trunk[3]).await.unwrap();
    assert_eq!(world.marked(), [Some(trunk[3]); 2]);
    world.choose(trunk[5], trunk[1], B256::ZERO).await.unwrap();
    assert_eq!(world.marked(), [Some(trunk[1]); 2]);
}

#[tokio::test]
async fn a_payload_is_the_same_every_time_and_outlives_other_builds() {
    let world = World::new();
    let genesis = world.genesis();
    let wanted = |salt| attributes(&genesis.header, salt, []);
    let first = world
        .engine
        .start(genesis.hash, wanted(1), 3)
        .await
        .unwrap();
    let second = world
        .engine
        .start(genesis.hash, wanted(2), 3)
        .await
        .unwrap();
    assert_ne!(first, second);
    // The second build replaced the first in the builder: the first block is built again.
    let block = world.engine.payload(first, |_| true).await.unwrap();
    assert_eq!(block.payload.header.mix_hash, B256::from(U256::from(1)));
    assert_eq!(
        world
            .engine
            .start(genesis.hash, wanted(1), 3)
            .await
            .unwrap(),
        first
    );
    for id in [first, second, first] {
        let again = world.engine.payload(id, |_| true).await.unwrap();
        assert_eq!(again.payload.hash == block.payload.hash, id == first);
    }
    assert!(matches!(
        world.engine.payload(first, |_| false).await,
        Err(EngineError::UnsupportedFork)
    ));
    assert!(matches!(
        world.engine.payload(PayloadId::new([9; 8]), |_| true).await,
        Err(EngineError::UnknownPayload)
    ));
    assert_eq!(world.head(), genesis.hash);
}

/// Attributes with one fault each, and a word that the error contains.
fn wrong_attributes(good: &OpPayloadAttributes) -> [(OpPayloadAttributes, &'static str); 7] {
    let with = |change: fn(&mut OpPayloadAttributes)| {
        let mut attributes = good.clone();
        change(&mut attributes);
        attributes
    };
    [
        (with(|it| it.gas_limit = None), "gasLimit"),
        (with(|it| it.eip_1559_params = None), "eip1559Params"),
        (
            with(|it| it.eip_1559_params = Some([0, 0, 0, 0, 0, 0, 0, 1].into())),
            "denominator",
        ),
        (
            with(|it| it.eip_1559_params = Some([0, 0, 0, 1, 0, 0, 0, 0].into())),
            "elasticity",
        ),
        (with(|it| it.min_base_fee = None), "minBaseFee"),
        (
            with(|it| {
                let broke =
                    crate::chain::evm::tests::sign(77, crate::chain::evm::tests::transfer(0)).1;
                it.transactions.as_mut().unwrap().push(broke);
            }),
            "failed to force-include",
        ),
        (
            with(|it| it.transactions = Some(vec![])),
            "missing L1 attributes deposit transaction",
        ),
    ]
}

#[tokio::test]
async fn wrong_attributes_are_named_and_the_head_stays_applied() {
    let world = World::new();
    let blocks = world.chain(&world.genesis(), 2, 0).await;
    let good = attributes(&blocks[1].header, 0, []);
    let early = (attributes(&blocks[0].header, 0, []), "timestamp");
    let cases = wrong_attributes(&good).into_iter().chain([early]);
    for (wrong, word) in cases {
        world.make_head(blocks[0].hash).await;
        let state = ForkchoiceState {
            head_block_hash: blocks[1].hash,
            ..Default::default()
        };
        let error = world
            .engine
            .forkchoice(state, Some(wrong), 3)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, EngineError::Attributes(reason) if reason.contains(word)),
            "{word}: {error}"
        );
        assert_eq!(world.head(), blocks[1].hash);
    }
}

#[tokio::test]
async fn a_driver_may_fill_a_height_again_and_again() {
    let world = World::new();
    let genesis = world.genesis();
    let first = world.make(&genesis, 0).await;
    world.make_head(first.hash).await;
    for salt in 1..3 * tree::MAX_SIBLINGS as u64 {
        world.make(&genesis, salt).await;
    }
    // A dropped block is in the payload log, and is executed again when a fork choice names it. The
    // head was never dropped.
    assert!(world.engine.chain.knows(first.hash));
    let dropped = world.make(&genesis, 1).await;
    world.make_head(dropped.hash).await;
    assert_ne!(Bytes::from(dropped.hash), Bytes::from(first.hash));
}

#[tokio::test]
async fn unwound_blocks_are_executed_again_from_the_log() {
    let world = World::new();
    let genesis = world.genesis();
    let trunk = world.chain(&genesis, tree::RETAINED as usize + 60, 0).await;
    let tip = trunk.last().unwrap();
    world.make_head(tip.hash).await;
    // Wait until all blocks are in the store, before the head moves down.
    for _ in 0..2_000 {
        if world.engine.chain.view().stored().hash == tip.hash {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    world.make_head(trunk[0].hash).await;
    world.make(&trunk[0], 5).await;
    world.make_head(tip.hash).await;
}
