//! Tests of bounds: the number of blocks at a height, abandoned branches, the duration of a stop,
//! the age of a view.

use super::*;
use crate::chain::tests::{durable::Disk, grow::grow};

/// Memory limits that fit some of a test's blocks, but not all.
const SMALL: ExecutorLimits = ExecutorLimits {
    overlays: 150_000,
    unwind_data: 10_000,
};

/// The blocks of another node's chain.
async fn grown(seed: u64, count: u64) -> Vec<Arc<Payload>> {
    let dir = datadir();
    let (chain, _threads) = open(dir.path());
    grow(&chain, seed, count as usize).await;
    let view = chain.view();
    (1..=count)
        .map(|number| view.payload(number).unwrap().unwrap())
        .collect()
}

/// Follows these blocks as a part of a gap that ends at height `tip`.
async fn follow_all(chain: &Chain, blocks: &[Arc<Payload>], tip: u64) {
    for block in blocks {
        assert_eq!(
            chain
                .follow(block.clone(), Provenance::Linked { tip })
                .await
                .unwrap(),
            Inserted::Valid
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowded_height_says_nothing_about_a_block() {
    let (dir, other) = (datadir(), datadir());
    let (chain, _threads) = open(dir.path());
    let genesis = chain.view().head().hash;
    for salt in 0..tree::MAX_SIBLINGS as u64 {
        let sibling = build(&chain, genesis, salt, []).await.payload.hash;
        chain.forkchoice(sibling, None, None).await.unwrap();
    }
    let (elsewhere, _others) = open(other.path());
    let block = build(&elsewhere, genesis, 99, []).await.payload.clone();
    assert_eq!(
        chain.follow(block.clone(), GOSSIP).await.unwrap(),
        Inserted::NotExecutable
    );
    assert!(!chain.knows(block.hash));
    assert_eq!(chain.logged(block.hash).unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_branch_is_forgotten_as_a_whole() {
    let dir = datadir();
    let (chain, _threads) = open(dir.path());
    let genesis = chain.view().head().hash;
    // A side branch whose tip would stay by its height alone, but not its first block.
    let mut side = vec![];
    for _ in 0..15 {
        let parent = side
            .last()
            .map_or(genesis, |block: &Arc<Payload>| block.hash);
        side.push(build(&chain, parent, 7, []).await.payload.clone());
    }
    let mut head = genesis;
    for _ in 0..tree::RETAINED + 10 {
        head = build(&chain, head, 0, []).await.payload.hash;
        chain.forkchoice(head, None, None).await.unwrap();
    }
    until("it is forgotten", || !chain.knows(side[0].hash)).await;
    for block in &side {
        assert!(!chain.knows(block.hash), "block {}", block.number());
    }
    // Sent again from its first block on, the branch is executed again. It stays until the next
    // block is stored.
    until("all is stored", || chain.view().stored().hash == head).await;
    assert_eq!(
        chain.insert(side[14].clone(), GOSSIP).await.unwrap(),
        Inserted::Syncing
    );
    for block in &side {
        assert_eq!(
            chain.insert(block.clone(), GOSSIP).await.unwrap(),
            Inserted::Valid
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_handles() {
    let dir = datadir();
    let (chain, threads) = open(dir.path());
    let block = build(&chain, chain.view().head().hash, 0, []).await;
    chain
        .forkchoice(block.payload.hash, None, None)
        .await
        .unwrap();
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    chain.ended().await;
    assert!(matches!(
        chain.forkchoice(block.payload.hash, None, None).await,
        Err(ChainError::Stopped)
    ));
    assert!(matches!(
        chain
            .start(block.payload.hash, attributes(&block.payload.header, 0, []))
            .await,
        Err(ChainError::Stopped)
    ));
    assert!(matches!(
        chain.seal(PayloadId::new([1; 8])).await,
        Err(ChainError::Stopped)
    ));
    drop(chain);
    assert_eq!(open(dir.path()).0.view().head(), block.payload.id());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_is_never_older_than_the_heads() {
    let dir = datadir();
    let (chain, _threads) = open(dir.path());
    let mut heads = chain.heads();
    let watched = chain.clone();
    let reader = tokio::spawn(async move {
        let mut seen = 0;
        while heads.changed().await.is_ok() {
            let heads = *heads.borrow_and_update();
            let view = watched.view();
            assert_eq!(
                view.hash_of(heads.head.number).unwrap(),
                Some(heads.head.hash)
            );
            assert!(heads.head.number > seen);
            seen = heads.head.number;
            if seen == 60 {
                return;
            }
        }
    });
    for _ in 0..60 {
        let block = build(&chain, chain.view().head().hash, 0, []).await;
        chain
            .forkchoice(block.payload.hash, None, None)
            .await
            .unwrap();
    }
    tokio::time::timeout(Duration::from_secs(20), reader)
        .await
        .unwrap()
        .unwrap();
}

/// A file takes precedence over our chain: the store unwinds to the fork point of the file's
/// branch, unless the safe head is above that point.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_from_a_file_that_forks_off_far_below_becomes_the_chain() {
    let dir = datadir();
    let theirs = grown(31, 50).await;
    let (chain, _threads) = open_within(dir.path(), SMALL);
    grow(&chain, 32, 40).await;
    let ours = chain.view().head();
    until("it is stored", || chain.view().stored() == ours).await;
    let import = async || {
        chain
            .import(theirs.clone(), Arc::default())
            .await
            .unwrap()
            .await
            .unwrap()
    };

    let safe = chain.view().hash_of(3).unwrap();
    chain.forkchoice(ours.hash, safe, None).await.unwrap();
    let refused = import().await.refused.expect("it is refused");
    assert!(
        refused.0 == 0 && refused.1.contains("contradicts"),
        "{refused:?}"
    );
    assert_eq!(chain.view().head(), ours);

    let genesis = chain.view().hash_of(0).unwrap();
    chain.forkchoice(ours.hash, genesis, None).await.unwrap();
    let imported = import().await;
    assert_eq!((imported.executed, imported.refused), (50, None));
    assert_eq!(chain.view().head(), theirs[49].id());
}

/// Blocks from a file, which are logged only when they are displaced, are reinstated if the branch
/// that displaced them turns out invalid.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_block_from_a_file_far_below_leaves_the_chain() {
    let dir = datadir();
    let ours = grown(33, 40).await;
    let (chain, threads) = open_within(dir.path(), SMALL);
    let import = async |blocks: &[Arc<Payload>]| {
        chain
            .import(blocks.to_vec(), Arc::default())
            .await
            .unwrap()
            .await
            .unwrap()
    };
    assert_eq!(import(&ours).await.executed, 40);
    until("it is stored", || chain.view().stored() == ours[39].id()).await;

    let header = Header {
        state_root: B256::ZERO,
        ..ours[2].header.clone()
    };
    let damaged = Arc::new(Payload::sealed(header, ours[2].transactions.clone()));
    assert_eq!(
        chain.follow(damaged.clone(), GOSSIP).await.unwrap(),
        Inserted::NotExecutable,
        "it is too far below to be looked at"
    );
    let (at, reason) = import(&[ours[0].clone(), ours[1].clone(), damaged])
        .await
        .refused
        .expect("it is refused");
    assert!(at == 2 && reason.contains("state root"), "{at}: {reason}");
    assert_eq!(chain.view().head(), ours[39].id());
    until("it is stored again", || {
        chain.view().stored() == ours[39].id()
    })
    .await;
    assert_eq!(import(&ours).await.known, 40);

    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(open(dir.path()).0.view().head(), ours[39].id());
}

/// After a deep reorg by the sequencer, a node without a rollup node follows the new branch through
/// the swarm.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_ends_higher_is_followed_however_deep_its_fork_point_is() {
    let dir = datadir();
    let (ours, theirs) = (grown(34, 40).await, grown(35, 60).await);
    let (chain, _threads) = open_within(dir.path(), SMALL);
    follow_all(&chain, &ours, 40).await;
    until("it is stored", || chain.view().stored() == ours[39].id()).await;
    assert_eq!(
        chain
            .follow(theirs[0].clone(), Provenance::Linked { tip: 40 })
            .await
            .unwrap(),
        Inserted::NotExecutable,
        "ends no higher"
    );
    assert_eq!(chain.view().head(), ours[39].id());
    follow_all(&chain, &theirs, 60).await;
    assert_eq!(chain.view().head(), theirs[59].id());
    until("it is stored", || chain.view().stored() == theirs[59].id()).await;

    // A branch without the safe head is never followed.
    chain
        .forkchoice(theirs[59].hash, Some(theirs[9].hash), None)
        .await
        .unwrap();
    assert_eq!(
        chain
            .follow(ours[0].clone(), Provenance::Linked { tip: 100 })
            .await
            .unwrap(),
        Inserted::NotExecutable
    );
    assert_eq!(chain.view().head(), theirs[59].id());
}

/// A head is displaced by a branch that is announced to end higher, and reinstated if the branch
/// ends early.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_ends_early_reinstates_the_head() {
    let dir = datadir();
    let (ours, theirs) = (grown(38, 40).await, grown(39, 60).await);
    let (chain, _threads) = open_within(dir.path(), SMALL);
    follow_all(&chain, &ours, 40).await;
    until("it is stored", || chain.view().stored() == ours[39].id()).await;
    follow_all(&chain, &theirs[..10], 60).await;
    assert_eq!(chain.view().head(), theirs[9].id());
    until("it is stored", || chain.view().stored() == theirs[9].id()).await;
    // A kill while the head is displaced: the restart reinstates the head.
    let dead = killed(dir.path());
    assert_eq!(
        open_within(dead.path(), SMALL).0.view().head(),
        ours[39].id()
    );

    let header = Header {
        state_root: B256::ZERO,
        ..theirs[10].header.clone()
    };
    let damaged = Arc::new(Payload::sealed(header, theirs[10].transactions.clone()));
    assert!(matches!(
        chain
            .follow(damaged, Provenance::Linked { tip: 60 })
            .await
            .unwrap(),
        Inserted::Invalid { .. }
    ));
    assert_eq!(chain.view().head(), ours[39].id());
    until("it is stored again", || {
        chain.view().stored() == ours[39].id()
    })
    .await;

    // When the branch is higher, its tip is the head.
    follow_all(&chain, &theirs, 60).await;
    assert_eq!(chain.view().head(), theirs[59].id());
    until("it is stored", || chain.view().stored() == theirs[59].id()).await;
    assert_eq!(
        open_within(killed(dir.path()).path(), SMALL)
            .0
            .view()
            .head(),
        theirs[59].id()
    );
}

/// The head moves along a branch on the way to a fork choice. If the fork choice fails, or a kill
/// comes before it is applied, the heads are reinstated.
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_choice_that_is_not_applied_reinstates_the_heads() {
    let dir = datadir();
    let (ours, theirs) = (grown(42, 40).await, grown(43, 45).await);
    let (chain, _threads) = open_within(dir.path(), SMALL);
    let reopened = || {
        open_within(killed(dir.path()).path(), SMALL)
            .0
            .view()
            .head()
    };
    let switch_to = async |blocks: &[Arc<Payload>]| {
        for block in blocks {
            assert_eq!(
                chain
                    .switch_to(block.clone(), Provenance::Engine)
                    .await
                    .unwrap(),
                Inserted::Valid
            );
        }
        chain.view().head()
    };
    follow_all(&chain, &ours, 40).await;
    until("it is stored", || chain.view().stored() == ours[39].id()).await;
    chain
        .forkchoice(ours[39].hash, Some(ours[30].hash), Some(ours[20].hash))
        .await
        .unwrap();
    let before = *chain.heads().borrow();

    let reached = switch_to(&theirs[..30]).await;
    assert!(theirs.iter().any(|block| block.id() == reached));
    assert_eq!(reopened(), ours[39].id());
    chain.abandon_forkchoice().await.unwrap();
    assert_eq!(*chain.heads().borrow(), before);
    chain.abandon_forkchoice().await.unwrap();
    assert_eq!(*chain.heads().borrow(), before);

    // Once the fork choice is applied, its head stays, even if the head was there already.
    let reached = switch_to(&theirs[..30]).await;
    chain.forkchoice(reached.hash, None, None).await.unwrap();
    chain.abandon_forkchoice().await.unwrap();
    assert_eq!((chain.view().head(), reopened()), (reached, reached));
    switch_to(&theirs).await;
    chain.forkchoice(theirs[44].hash, None, None).await.unwrap();
    assert_eq!(chain.view().head(), theirs[44].id());
    assert_eq!(reopened(), theirs[44].id());
}

/// Blocks of a gap are not logged when they arrive. Blocks of a commit in progress are not in the
/// store's snapshot either.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_is_abandoned_while_it_is_committed_is_logged() {
    let dir = datadir();
    let (ours, theirs) = (grown(40, 60).await, grown(41, 2).await);
    let (chain, _threads) = open(dir.path());
    for block in &theirs {
        assert_eq!(
            chain.insert(block.clone(), GOSSIP).await.unwrap(),
            Inserted::Valid
        );
    }
    follow_all(&chain, &ours, 60).await;
    chain.forkchoice(theirs[1].hash, None, None).await.unwrap();
    for block in &ours {
        assert!(
            chain.logged(block.hash).unwrap().is_some(),
            "block {}",
            block.number()
        );
    }
}

/// A kill after a head on another branch was acknowledged, but before the store has switched to
/// that branch, which may fork off deep below.
#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_head_on_a_branch_far_below_the_stored_one_is_found_again() {
    let Some((disk, dir)) = Disk::mount() else {
        return;
    };
    let (ours, theirs) = (grown(36, 40).await, grown(37, 45).await);
    let (chain, _threads) = open(&dir);
    for block in &ours {
        assert_eq!(
            chain.follow(block.clone(), GOSSIP).await.unwrap(),
            Inserted::Valid
        );
    }
    until("it is stored", || chain.view().stored() == ours[39].id()).await;
    // The disk is too full for the store, so only the payload log gets the blocks.
    let _filler = disk.fill_below_the_floor(&dir);
    for block in &theirs {
        assert_eq!(
            chain.follow(block.clone(), GOSSIP).await.unwrap(),
            Inserted::Valid
        );
    }
    let dead = killed(&dir);
    assert_eq!(chain.view().head(), theirs[44].id());

    let (chain, _threads) = open_within(dead.path(), SMALL);
    assert_eq!(chain.view().head(), theirs[44].id());
    until("it is stored", || chain.view().stored() == theirs[44].id()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_builders_queue_are_refused_and_the_next_one_is_not() {
    let dir = datadir();
    let (chain, _threads) = open(dir.path());
    let unknown = PayloadId::new([7; 8]);
    // All requests are sent before the builder thread has served more than a few.
    let answers = futures::future::join_all((0..1_000).map(|_| chain.seal(unknown))).await;
    let count = |expected: fn(&ChainError) -> bool| {
        let errors = answers.iter().filter_map(|answer| answer.as_ref().err());
        errors.filter(|error| expected(error)).count()
    };
    let busy = count(|error| matches!(error, ChainError::Busy(_)) && !error.is_fatal());
    let answered = count(|error| matches!(error, ChainError::UnknownPayload));
    assert!(busy > 0 && answered > 0, "{busy} and {answered}");
    assert_eq!(busy + answered, 1_000);
    let head = chain.view().head();
    let block = build(&chain, head.hash, 1, []).await;
    assert_eq!(block.payload.number(), head.number + 1);
}
