//! The engine's methods on a real chain in a temporary directory.

use super::*;
use crate::chain::tests::{attributes, build, datadir, open};

#[tokio::test(flavor = "multi_thread")]
async fn a_promotion_moves_safe_and_finalized_and_never_the_head() {
    let datadir = datadir();
    let (chain, _threads) = open(datadir.path());
    let engine = Engine::Local(chain.clone());
    let genesis = chain.view().head();
    let mut blocks = vec![genesis];
    for salt in 1..=3 {
        let parent = blocks[blocks.len() - 1].hash;
        blocks.push(build(&chain, parent, salt, []).await.payload.id());
        engine
            .forkchoice(blocks[blocks.len() - 1].hash, None, None)
            .await
            .unwrap();
    }
    let (head, heads) = (blocks[3], engine.heads());
    engine
        .promote(Some(blocks[2].hash), Some(blocks[1].hash))
        .await
        .unwrap();
    let promoted = *heads.borrow();
    assert_eq!(promoted.head, head);
    assert_eq!(
        (promoted.safe, promoted.finalized),
        (Some(blocks[2]), Some(blocks[1]))
    );
    // A block on a side branch cannot become safe. No head moves.
    let side = build(&chain, blocks[1].hash, 9, []).await.payload.id();
    let refused = engine.promote(Some(side.hash), None).await;
    assert!(
        matches!(
            refused,
            Err(CoreError::Chain(ChainError::NotOnBranch { .. }))
        ),
        "{refused:?}"
    );
    let refused = engine.promote(None, Some(head.hash)).await;
    assert!(
        matches!(
            refused,
            Err(CoreError::Chain(ChainError::FinalizedAboveSafe { .. }))
        ),
        "{refused:?}"
    );
    assert_eq!(*heads.borrow(), promoted);
    engine.promote(Some(head.hash), None).await.unwrap();
    assert_eq!(heads.borrow().safe, Some(head));
    assert_eq!(heads.borrow().head, head);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_derived_block_and_the_sequencers_block_do_not_displace_each_other() {
    let datadir = datadir();
    let (chain, _threads) = open(datadir.path());
    let engine = Engine::Local(chain.clone());
    let (genesis, parent) = (chain.view().header().clone(), chain.view().head().hash);
    let id = engine
        .start(parent, attributes(&genesis, 1, []))
        .await
        .unwrap();
    let derived = engine
        .derive(parent, attributes(&genesis, 2, []), None)
        .await
        .unwrap();
    assert_eq!(chain.view().head(), derived.id());
    let sequenced = engine.seal(id).await.unwrap();
    assert!(chain.knows(sequenced.hash) && derived.hash != sequenced.hash);
    let displaces = engine.forkchoice(sequenced.hash, None, None).await;
    assert!(
        matches!(
            displaces,
            Err(CoreError::Chain(ChainError::NotOnBranch { .. }))
        ),
        "{displaces:?}"
    );
    let undecodable = alloy_primitives::Bytes::from_static(&[0x02, 0xc0]);
    let invalid = attributes(&genesis, 3, [undecodable]);
    assert!(matches!(
        engine.derive(parent, invalid, None).await,
        Err(CoreError::Chain(ChainError::Build(_)))
    ));
    assert_eq!(chain.view().head(), derived.id(), "no head has moved");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_derived_block_that_is_canonical_leaves_the_head_above_it() {
    let datadir = datadir();
    let (chain, _threads) = open(datadir.path());
    let engine = Engine::Local(chain.clone());
    let (genesis, parent) = (chain.view().header().clone(), chain.view().head().hash);
    let sequenced = build(&chain, parent, 1, []).await.payload.clone();
    let head = build(&chain, sequenced.hash, 1, []).await.payload.id();
    engine.forkchoice(head.hash, None, None).await.unwrap();
    let derived = engine
        .derive(parent, attributes(&genesis, 1, []), None)
        .await
        .unwrap();
    assert_eq!((derived.hash, chain.view().head()), (sequenced.hash, head));
    let side = build(&chain, parent, 2, []).await.payload.hash;
    let displaces = engine.forkchoice(side, None, None).await;
    assert!(
        matches!(
            displaces,
            Err(CoreError::Chain(ChainError::NotOnBranch { .. }))
        ),
        "{displaces:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_the_swarm_nor_a_sequencer_displaces_a_derived_block() {
    let datadir = datadir();
    let (chain, _threads) = open(datadir.path());
    let engine = Engine::Local(chain.clone());
    let genesis = chain.view().head();
    let derived = build(&chain, genesis.hash, 1, []).await.payload.clone();
    let mut higher = vec![build(&chain, genesis.hash, 2, []).await.payload.clone()];
    for _ in 0..2 {
        let parent = higher[higher.len() - 1].hash;
        higher.push(build(&chain, parent, 2, []).await.payload.clone());
    }
    let head = || engine.heads().borrow().head;
    let follow = async |payload: &Arc<Payload>| {
        let signed = Provenance::Signed(alloy_primitives::Address::ZERO);
        let executed = engine.queue_follow(payload.clone(), signed).await.unwrap();
        assert_eq!(executed.await.unwrap(), Inserted::Valid);
    };
    engine.forkchoice(derived.hash, None, None).await.unwrap();
    let protect = async |derived| engine.protect(derived).await;
    protect(Some(derived.hash)).await.unwrap();
    for payload in &higher {
        follow(payload).await;
        assert_eq!(head(), derived.id(), "a block of the swarm");
    }
    let sequenced = engine.forkchoice(higher[0].hash, None, None).await;
    assert!(
        matches!(
            sequenced,
            Err(CoreError::Chain(ChainError::NotOnBranch { .. }))
        ),
        "{sequenced:?}"
    );
    // A block that is not on the chain cannot be protected, and the protected block remains
    // protected.
    let refused = protect(Some(higher[1].hash)).await;
    assert!(
        matches!(
            refused,
            Err(CoreError::Chain(ChainError::NotOnBranch { .. }))
        ),
        "{refused:?}"
    );
    follow(&higher[2]).await;
    assert_eq!(head(), derived.id());
    // The head follows blocks above the protected one.
    let child = build(&chain, derived.hash, 3, []).await.payload.clone();
    follow(&child).await;
    assert_eq!(head(), child.id());
    assert_eq!(
        engine.heads().borrow().safe,
        None,
        "it is not the safe head"
    );
    protect(None).await.unwrap();
    follow(&higher[2]).await;
    assert_eq!(head(), higher[2].id());
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_read_by_place_and_on_any_branch() {
    let datadir = datadir();
    let (chain, _threads) = open(datadir.path());
    let engine = Engine::Local(chain.clone());
    let genesis = chain.view().head();
    let first = build(&chain, genesis.hash, 1, []).await.payload.id();
    let side = build(&chain, genesis.hash, 2, []).await.payload.id();
    engine.forkchoice(first.hash, None, None).await.unwrap();
    let id = async |at| {
        let block = engine.block(at).await.unwrap();
        block.map(|block| block.id())
    };
    assert_eq!(id(BlockAt::Head).await, Some(first));
    assert_eq!(id(BlockAt::Number(0)).await, Some(genesis));
    assert_eq!(id(BlockAt::Number(1)).await, Some(first));
    assert_eq!(id(BlockAt::Number(2)).await, None);
    assert_eq!(id(BlockAt::Hash(side.hash)).await, Some(side));
    assert_eq!(id(BlockAt::Hash(genesis.hash)).await, Some(genesis));
    assert_eq!(id(BlockAt::Hash(B256::ZERO)).await, None);
}
