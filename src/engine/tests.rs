use super::*;
use crate::chain::{
    driver,
    evm::tests::{deposit, deposited},
    executor::Limits,
    tests::{attributes, datadir, killed, open_within},
    tree,
};
use alloy_primitives::{Address, Bytes, U256, keccak256};
use op_alloy_consensus::TxDeposit;
use starling_proto::payload::Payload;
use std::time::Duration;
use tempfile::TempDir;

struct World {
    engine: Engine,
    _dir: TempDir,
}

impl World {
    fn new() -> Self {
        Self::within(Limits::default())
    }

    fn within(limits: Limits) -> Self {
        let dir = datadir();
        Self {
            engine: Engine::new(open_within(dir.path(), limits).0, None),
            _dir: dir,
        }
    }

    fn head(&self) -> B256 {
        self.engine.chain.view().head().hash
    }

    /// Builds on a block and inserts what was built; no head moves.
    async fn make(&self, parent: &Payload, salt: u64) -> Arc<Payload> {
        // Each block makes an account of its own.
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

/// A driver may have published it; but it has not chosen it.
#[tokio::test]
async fn what_a_driver_was_given_survives_a_kill_and_is_not_the_head() {
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
            engine: Engine::new(open_within(dir.path(), Limits::default()).0, None),
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

#[tokio::test]
async fn what_stands_on_an_invalid_block_is_invalid_too() {
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
    // Both wait when the bad one comes.
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
async fn the_head_goes_where_it_is_told() {
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

#[tokio::test]
async fn safe_and_finalized_stay_on_the_branch() {
    let world = World::new();
    let genesis = world.genesis();
    let trunk = world.chain(&genesis, 6, 0).await;
    let branch = world.chain(&trunk[2], 2, 1).await;
    let hash = |block: &Arc<Payload>| block.hash;
    world
        .choose(hash(&trunk[5]), hash(&trunk[4]), hash(&trunk[1]))
        .await
        .unwrap();
    assert_eq!(
        world.marked(),
        [Some(hash(&trunk[4])), Some(hash(&trunk[1]))]
    );
    // Not named, they fall back to what the branches share.
    world.make_head(hash(&branch[1])).await;
    assert_eq!(
        world.marked(),
        [Some(hash(&trunk[2])), Some(hash(&trunk[1]))]
    );
    world.make_head(genesis.hash).await;
    assert_eq!(world.marked(), [Some(genesis.hash); 2]);

    // A name that is wrong is an error, and the head has moved all the same.
    for (safe, finalized, reason) in [
        (
            B256::repeat_byte(7),
            B256::ZERO,
            "safe block not available in database",
        ),
        (
            hash(&branch[0]),
            B256::ZERO,
            "safe block not in canonical chain",
        ),
        (
            B256::ZERO,
            B256::repeat_byte(7),
            "final block not available in database",
        ),
        (
            hash(&trunk[5]),
            hash(&branch[1]),
            "final block not in canonical chain",
        ),
        (
            hash(&trunk[1]),
            hash(&trunk[3]),
            "final block is above the safe block",
        ),
    ] {
        world.make_head(genesis.hash).await;
        let error = world
            .choose(hash(&trunk[5]), safe, finalized)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, EngineError::Forkchoice(have) if have == reason),
            "{error}"
        );
        assert_eq!(world.head(), hash(&trunk[5]));
        assert_eq!(world.marked(), [Some(genesis.hash); 2]);
    }
    // Named alone, each takes the other with it.
    world
        .choose(hash(&trunk[5]), B256::ZERO, hash(&trunk[3]))
        .await
        .unwrap();
    assert_eq!(world.marked(), [Some(hash(&trunk[3])); 2]);
    world
        .choose(hash(&trunk[5]), hash(&trunk[1]), B256::ZERO)
        .await
        .unwrap();
    assert_eq!(world.marked(), [Some(hash(&trunk[1])); 2]);
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
    // The second build took the builder: the first is made again.
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

#[tokio::test]
async fn wrong_attributes_are_named_and_the_head_stays_applied() {
    let world = World::new();
    let blocks = world.chain(&world.genesis(), 2, 0).await;
    let good = || attributes(&blocks[1].header, 0, []);
    let broke = crate::chain::evm::tests::sign(77, crate::chain::evm::tests::transfer(0)).1;
    let cases: [(OpPayloadAttributes, &str); 8] = [
        (
            OpPayloadAttributes {
                gas_limit: None,
                ..good()
            },
            "gasLimit",
        ),
        (
            OpPayloadAttributes {
                eip_1559_params: None,
                ..good()
            },
            "eip1559Params",
        ),
        (
            OpPayloadAttributes {
                eip_1559_params: Some([0, 0, 0, 0, 0, 0, 0, 1].into()),
                ..good()
            },
            "denominator",
        ),
        (
            OpPayloadAttributes {
                eip_1559_params: Some([0, 0, 0, 1, 0, 0, 0, 0].into()),
                ..good()
            },
            "elasticity",
        ),
        (
            OpPayloadAttributes {
                min_base_fee: None,
                ..good()
            },
            "minBaseFee",
        ),
        (
            OpPayloadAttributes {
                transactions: Some([good().transactions.unwrap(), vec![broke]].concat()),
                ..good()
            },
            "failed to force-include",
        ),
        (
            OpPayloadAttributes {
                transactions: Some(vec![]),
                ..good()
            },
            "missing L1 attributes deposit transaction",
        ),
        (attributes(&blocks[0].header, 0, []), "timestamp"),
    ];
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
    // What was dropped is in the log, and comes back when it is asked for; the head was never dropped.
    assert!(world.engine.chain.knows(first.hash));
    let dropped = world.make(&genesis, 1).await;
    world.make_head(dropped.hash).await;
    assert_ne!(Bytes::from(dropped.hash), Bytes::from(first.hash));
}

#[tokio::test]
async fn blocks_that_were_unwound_come_back_from_the_log() {
    let world = World::new();
    let genesis = world.genesis();
    let trunk = world.chain(&genesis, tree::RETAINED as usize + 60, 0).await;
    let tip = trunk.last().unwrap();
    world.make_head(tip.hash).await;
    // All of them are in the store before the head goes down.
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

/// Some blocks fit into these, and not all.
const SMALL: Limits = Limits {
    overlays: 60_000,
    way_back: 6_500,
};

/// A branch that is too long to be executed beside ours, one payload after the other: none of them is refused, and the fork choice goes
/// there. The memory for it is bounded all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_of_any_length_is_brought_and_chosen() {
    let maker = World::new();
    let trunk = maker.chain(&maker.genesis(), 5, 0).await;
    let (ours, theirs) = (
        maker.chain(&trunk[4], 3, 1).await,
        maker.chain(&trunk[1], 60, 2).await,
    );
    let world = World::within(SMALL);
    for block in trunk.iter().chain(&ours) {
        assert_eq!(
            world.engine.new_payload(block.clone()).await.unwrap(),
            valid(block.hash)
        );
    }
    let ours = &ours[2];
    world
        .choose(ours.hash, trunk[4].hash, trunk[0].hash)
        .await
        .unwrap();
    let bring = async || {
        let mut kept = 0;
        for block in &theirs {
            let status = world.engine.new_payload(block.clone()).await.unwrap();
            match kept > 0 || status == accepted() {
                true => assert_eq!(status, accepted(), "block {}", block.number()),
                false => assert_eq!(status, valid(block.hash)),
            }
            kept += usize::from(status == accepted());
        }
        kept
    };
    let kept = bring().await;
    assert!(kept > 10 && kept < 55, "{kept} of 60");
    assert_eq!(bring().await, kept, "again: the same");
    assert_eq!(world.head(), ours.hash, "a new payload moves no head");
    for round in 0..2 {
        assert_eq!(
            world
                .choose(theirs[59].hash, B256::ZERO, B256::ZERO)
                .await
                .unwrap(),
            valid(theirs[59].hash),
            "{round}"
        );
        assert_eq!(
            world.marked(),
            [Some(trunk[1].hash), Some(trunk[0].hash)],
            "{round}"
        );
        // And back, where the safe block is named.
        assert_eq!(
            world
                .choose(ours.hash, trunk[4].hash, B256::ZERO)
                .await
                .unwrap(),
            valid(ours.hash),
            "{round}"
        );
        assert_eq!(
            world.marked(),
            [Some(trunk[4].hash), Some(trunk[0].hash)],
            "{round}"
        );
    }
    assert_eq!(world.head(), ours.hash);
}

/// What turns out to be invalid on the way leaves the heads where they were.
#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_block_far_along_a_branch_leaves_the_heads() {
    let maker = World::new();
    let trunk = maker.chain(&maker.genesis(), 5, 0).await;
    let mut theirs = maker.chain(&trunk[1], 50, 2).await;
    let bad = {
        let header = alloy_consensus::Header {
            state_root: B256::ZERO,
            ..theirs[45].header.clone()
        };
        Arc::new(Payload::sealed(header, theirs[45].transactions.clone()))
    };
    let child = {
        let header = alloy_consensus::Header {
            parent_hash: bad.hash,
            ..theirs[46].header.clone()
        };
        Arc::new(Payload::sealed(header, theirs[46].transactions.clone()))
    };
    theirs.truncate(45);
    let world = World::within(SMALL);
    for block in &trunk {
        world.engine.new_payload(block.clone()).await.unwrap();
    }
    world
        .choose(trunk[4].hash, trunk[3].hash, trunk[0].hash)
        .await
        .unwrap();
    for block in theirs.iter().chain([&bad, &child]) {
        assert!(
            !world
                .engine
                .new_payload(block.clone())
                .await
                .unwrap()
                .is_invalid()
        );
    }
    for (hash, reason) in [(child.hash, REJECTED_BEFORE), (bad.hash, "state root")] {
        let status = world.choose(hash, B256::ZERO, B256::ZERO).await.unwrap();
        let PayloadStatusEnum::Invalid { validation_error } = &status.status else {
            panic!("{status:?}")
        };
        assert!(validation_error.contains(reason), "{status:?}");
        assert_eq!(status.latest_valid_hash, Some(theirs[44].hash));
        assert_eq!(
            (world.head(), world.marked()),
            (trunk[4].hash, [Some(trunk[3].hash), Some(trunk[0].hash)])
        );
    }
    assert_eq!(
        world
            .choose(theirs[44].hash, B256::ZERO, B256::ZERO)
            .await
            .unwrap(),
        valid(theirs[44].hash)
    );
}

/// A sibling of a block far below what is stored: no more is read than is allowed, and the head gets there all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_leaves_far_below_is_stood_on_when_the_head_goes_there() {
    let maker = World::new();
    let trunk = maker.chain(&maker.genesis(), 60, 0).await;
    let theirs = maker.chain(&trunk[9], 2, 1).await;
    let near = maker.chain(&trunk[56], 2, 1).await;
    let world = World::within(SMALL);
    for block in &trunk {
        world.engine.new_payload(block.clone()).await.unwrap();
        world.make_head(block.hash).await;
    }
    let stored = || world.engine.chain.view().stored() == trunk[59].id();
    crate::chain::tests::until("all is stored", stored).await;
    // Beside the newest blocks there is room.
    assert_eq!(
        world.engine.new_payload(near[0].clone()).await.unwrap(),
        valid(near[0].hash)
    );
    for block in &theirs {
        assert_eq!(
            world.engine.new_payload(block.clone()).await.unwrap(),
            accepted()
        );
    }
    assert!(matches!(
        world.engine.chain.view_of(trunk[9].hash).await,
        Err(ChainError::UnknownBlock(_))
    ));
    assert_eq!(world.head(), trunk[59].hash);
    assert!(world.engine.chain.knows(near[0].hash));
    world.make_head(theirs[1].hash).await;
    world.make_head(trunk[59].hash).await;
}

/// Blocks of a file are in no log until the head leaves them.
#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_branch_far_below_leaves_imported_blocks() {
    let maker = World::new();
    let trunk = maker.chain(&maker.genesis(), 60, 0).await;
    let good = maker.make(&trunk[9], 1).await;
    let bad = {
        let header = alloy_consensus::Header {
            state_root: B256::ZERO,
            ..good.header.clone()
        };
        Arc::new(Payload::sealed(header, good.transactions.clone()))
    };
    let world = World::within(SMALL);
    world
        .engine
        .chain
        .import(trunk.clone(), Arc::default())
        .await
        .unwrap()
        .await
        .unwrap();
    let stored = || world.engine.chain.view().stored() == trunk[59].id();
    crate::chain::tests::until("all is stored", stored).await;
    world
        .choose(trunk[59].hash, trunk[50].hash, trunk[9].hash)
        .await
        .unwrap();
    assert_eq!(
        world.engine.new_payload(bad.clone()).await.unwrap(),
        accepted()
    );
    let status = world
        .choose(bad.hash, B256::ZERO, B256::ZERO)
        .await
        .unwrap();
    assert!(
        status.is_invalid() && status.latest_valid_hash == Some(trunk[9].hash),
        "{status:?}"
    );
    assert_eq!(
        (world.head(), world.marked()),
        (trunk[59].hash, [Some(trunk[50].hash), Some(trunk[9].hash)])
    );
}

/// A block of the swarm, as the follower brings it.
async fn gossip(world: &World, block: &Arc<Payload>) {
    let provenance = Provenance::Signed(Address::ZERO);
    let inserted = world
        .engine
        .chain
        .follow(block.clone(), provenance)
        .await
        .unwrap();
    assert_eq!(inserted, Inserted::Valid);
    world
        .engine
        .on_swarm_block(block.hash, provenance, &inserted)
        .await
        .unwrap();
}

#[tokio::test]
async fn blocks_of_the_swarm_do_not_move_the_head_that_a_rollup_node_drives() {
    let (maker, world) = (World::new(), World::new());
    let blocks = maker.chain(&maker.genesis(), 60, 0).await;
    for block in &blocks[..30] {
        gossip(&world, block).await;
        assert_eq!(world.head(), block.hash, "nobody else moves it");
    }
    // Twenty blocks behind.
    for at in 30..40 {
        world.make_head(blocks[at - 20].hash).await;
        gossip(&world, &blocks[at]).await;
        assert_eq!(world.head(), blocks[at - 20].hash);
        assert!(world.engine.chain.knows(blocks[at].hash));
    }
    // In step.
    for block in &blocks[40..50] {
        gossip(&world, block).await;
        assert_ne!(world.head(), block.hash);
        assert_eq!(
            world.engine.new_payload(block.clone()).await.unwrap(),
            valid(block.hash)
        );
        world.make_head(block.hash).await;
    }
    // The rollup node is silent, and then returns.
    let later = |time| {
        world
            .engine
            .chain
            .drive(|driver| driver.on_time(Instant::now() + time))
    };
    later(driver::SILENCE - Duration::from_secs(60));
    gossip(&world, &blocks[50]).await;
    assert_eq!(world.head(), blocks[49].hash);
    later(driver::SILENCE);
    gossip(&world, &blocks[51]).await;
    assert_eq!(world.head(), blocks[51].hash);
    world.make_head(blocks[20].hash).await;
    gossip(&world, &blocks[52]).await;
    assert_eq!(world.head(), blocks[20].hash);
}

#[tokio::test]
async fn a_head_that_was_named_before_it_was_there_becomes_the_head() {
    let (maker, world) = (World::new(), World::new());
    let genesis = maker.genesis();
    let blocks = maker.chain(&genesis, 9, 0).await;
    let zero = B256::ZERO;
    for block in &blocks[5..7] {
        assert_eq!(
            world.engine.new_payload(block.clone()).await.unwrap(),
            syncing()
        );
        assert_eq!(
            world.choose(block.hash, genesis.hash, zero).await.unwrap(),
            syncing()
        );
    }
    let below = Provenance::Ancestor { of: blocks[5].id() };
    let fetched = async |block: &Arc<Payload>, provenance| {
        let inserted = world
            .engine
            .chain
            .follow(block.clone(), provenance)
            .await
            .unwrap();
        world
            .engine
            .on_swarm_block(block.hash, provenance, &inserted)
            .await
            .unwrap();
    };
    for block in &blocks[..4] {
        fetched(block, below).await;
        assert_eq!(world.head(), block.hash, "it goes along");
    }
    fetched(&blocks[4], below).await;
    assert_eq!(
        (world.head(), world.marked()[0]),
        (blocks[6].hash, Some(genesis.hash)),
        "what waited is executed, too"
    );
    // A head that nobody has sent as a payload may still come by gossip; another choice in between ends that.
    assert_eq!(
        world.choose(blocks[7].hash, zero, zero).await.unwrap(),
        syncing()
    );
    gossip(&world, &blocks[7]).await;
    assert_eq!(world.head(), blocks[7].hash);
    assert_eq!(
        world.choose(blocks[8].hash, zero, zero).await.unwrap(),
        syncing()
    );
    world.make_head(blocks[2].hash).await;
    gossip(&world, &blocks[8]).await;
    assert_eq!(world.head(), blocks[2].hash);
}

#[tokio::test]
async fn a_named_head_with_an_invalid_ancestor_is_invalid() {
    let (maker, world) = (World::new(), World::new());
    let genesis = maker.genesis();
    let blocks = maker.chain(&genesis, 2, 0).await;
    let bad = alloy_consensus::Header {
        state_root: B256::ZERO,
        ..blocks[0].header.clone()
    };
    let bad = Arc::new(Payload::sealed(bad, blocks[0].transactions.clone()));
    let on = |parent: &Payload| {
        let header = alloy_consensus::Header {
            parent_hash: parent.hash,
            number: parent.number() + 1,
            ..bad.header.clone()
        };
        Arc::new(Payload::sealed(header, vec![]))
    };
    let child = on(&bad);
    let named = [on(&child)];
    let tip = on(&named[0]);
    for block in [&named[0], &tip] {
        assert_eq!(
            world.engine.new_payload(block.clone()).await.unwrap(),
            syncing()
        );
    }
    assert_eq!(
        world
            .choose(tip.hash, B256::ZERO, B256::ZERO)
            .await
            .unwrap(),
        syncing()
    );
    let provenance = Provenance::Ancestor { of: named[0].id() };
    let inserted = world
        .engine
        .chain
        .follow(bad.clone(), provenance)
        .await
        .unwrap();
    world
        .engine
        .on_swarm_block(bad.hash, provenance, &inserted)
        .await
        .unwrap();
    let status = world
        .choose(tip.hash, B256::ZERO, B256::ZERO)
        .await
        .unwrap();
    assert!(
        status.is_invalid() && status.latest_valid_hash == Some(genesis.hash),
        "{status:?}"
    );
    assert_eq!(world.head(), genesis.hash);
}
