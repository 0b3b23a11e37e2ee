//! Branches that exceed the chain's limits: a fork choice switches to them, and reinstates the heads
//! if one of their blocks is invalid.

use super::*;

/// Limits that admit some blocks of the test branches, but not all.
const SMALL: ExecutorLimits = ExecutorLimits {
    overlays: 60_000,
    unwind_data: 6_500,
};

/// Sends the payloads one after another. The first ones are valid, and the rest are kept without
/// execution. Returns the number of kept payloads.
async fn bring(world: &World, payloads: &[Arc<Payload>]) -> usize {
    let mut kept = 0;
    for block in payloads {
        let status = world.engine.new_payload(block.clone()).await.unwrap();
        if kept > 0 || status == accepted() {
            assert_eq!(status, accepted(), "block {}", block.number());
        } else {
            assert_eq!(status, valid(block.hash));
        }
        kept += usize::from(status == accepted());
    }
    kept
}

/// A branch is too long to be executed beside ours. None of its payloads is refused when they
/// arrive one by one, and a fork choice can switch to the branch. Its memory stays bounded.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_of_any_length_is_executed_and_chosen() {
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
    let kept = bring(&world, &theirs).await;
    assert!(kept > 10 && kept < 55, "{kept} of 60");
    assert_eq!(bring(&world, &theirs).await, kept, "again: the same");
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
        // Switch back to our branch, with a safe block named.
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

/// A fork choice whose branch has an invalid block does not change the heads.
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

/// A branch forks off far below the stored head: no more unwind records are read than allowed, and
/// the head can still move to the branch.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_forks_off_far_below_is_executed_when_a_fork_choice_names_it() {
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
    // A branch near the head is within the limits.
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

/// Imported blocks are in no payload log until the head is displaced from them.
#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_branch_far_below_reinstates_imported_blocks() {
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
