//! What is bounded: blocks at a height, abandoned branches, the time of a stop, the age of a view.

use super::*;
use crate::chain::verify::tests::grow;

#[tokio::test(flavor = "multi_thread")]
async fn a_crowded_height_says_nothing_about_a_block() {
    let (dir, other) = (datadir(), datadir());
    let (chain, _threads) = open(dir.path());
    let genesis = chain.view().head().hash;
    for salt in 0..tree::MAX_SIBLINGS as u64 {
        build(&chain, genesis, salt, []).await;
    }
    let (elsewhere, _others) = open(other.path());
    let block = build(&elsewhere, genesis, 99, []).await.payload.clone();
    assert_eq!(chain.follow(block.clone(), GOSSIP).await.unwrap(), Inserted::NoRoom);
    assert!(!chain.knows(block.hash));
    assert_eq!(chain.logged(block.hash).unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_branch_is_forgotten_as_a_whole() {
    let dir = datadir();
    let (chain, _threads) = open(dir.path());
    let genesis = chain.view().head().hash;
    // A side branch that begins low and ends high enough to be kept by its height alone.
    let mut side = vec![];
    for _ in 0..15 {
        let parent = side.last().map_or(genesis, |block: &Arc<Payload>| block.hash);
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
    // Offered again from its root, it is taken again, until the next block is stored.
    until("all is stored", || chain.view().stored().hash == head).await;
    assert_eq!(chain.insert(side[14].clone(), GOSSIP).await.unwrap(), Inserted::Syncing);
    for block in &side {
        assert_eq!(chain.insert(block.clone(), GOSSIP).await.unwrap(), Inserted::Valid);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_handles() {
    let dir = datadir();
    let (chain, threads) = open(dir.path());
    let block = build(&chain, chain.view().head().hash, 0, []).await;
    chain.forkchoice(block.payload.hash, None, None).await.unwrap();
    tokio::task::spawn_blocking(|| threads.stop()).await.unwrap().unwrap();
    chain.ended().await;
    assert!(matches!(chain.forkchoice(block.payload.hash, None, None).await, Err(ChainError::Stopped)));
    assert!(matches!(chain.start(block.payload.hash, attributes(&block.payload.header, 0, [])).await, Err(ChainError::Stopped)));
    assert!(matches!(chain.seal(PayloadId::new([1; 8])).await, Err(ChainError::Stopped)));
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
            assert_eq!(view.hash_of(heads.head.number).unwrap(), Some(heads.head.hash));
            assert!(heads.head.number > seen);
            seen = heads.head.number;
            if seen == 60 {
                return;
            }
        }
    });
    for _ in 0..60 {
        let block = build(&chain, chain.view().head().hash, 0, []).await;
        chain.forkchoice(block.payload.hash, None, None).await.unwrap();
    }
    tokio::time::timeout(Duration::from_secs(20), reader).await.unwrap().unwrap();
}

/// A file is authority: the store goes back to where its branch leaves ours, if what is safe allows it.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_from_a_file_that_leaves_far_below_becomes_the_chain() {
    let (dir, other) = (datadir(), datadir());
    let (elsewhere, _others) = open(other.path());
    grow(&elsewhere, 31, 50).await;
    let theirs: Vec<_> = (1..=50).map(|number| elsewhere.view().payload(number).unwrap().unwrap()).collect();
    // Some blocks fit into these, and not all.
    let (chain, _threads) = open_within(dir.path(), Limits { overlays: 150_000, way_back: 10_000 });
    grow(&chain, 32, 40).await;
    let ours = chain.view().head();
    until("it is stored", || chain.view().stored() == ours).await;
    let import = async || chain.import(theirs.clone(), Arc::default()).await.unwrap().await.unwrap();

    let safe = chain.view().hash_of(3).unwrap();
    chain.forkchoice(ours.hash, safe, None).await.unwrap();
    let refused = import().await.refused.expect("it is refused");
    assert!(refused.0 == 0 && refused.1.contains("contradicts"), "{refused:?}");
    assert_eq!(chain.view().head(), ours);

    let genesis = chain.view().hash_of(0).unwrap();
    chain.forkchoice(ours.hash, genesis, None).await.unwrap();
    let imported = import().await;
    assert_eq!((imported.executed, imported.refused), (50, None));
    assert_eq!(chain.view().head(), theirs[49].id());
}
