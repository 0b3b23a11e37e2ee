//! Tests of cursors on real chains with reorgs.

use super::*;
use crate::chain::{
    Chain, ExecutedBlock, Provenance,
    evm::tests::{sign, transfer},
    tests::{build, datadir, open, until},
};
use std::sync::Arc;

/// Builds `count` blocks on a block of the chain. No head moves.
async fn branch(chain: &Chain, on: B256, count: usize, salt: u64) -> Vec<Arc<ExecutedBlock>> {
    let (mut blocks, mut parent) = (vec![], on);
    for _ in 0..count {
        let block = build(chain, parent, salt, []).await;
        parent = block.payload.hash;
        chain
            .insert(block.payload.clone(), Provenance::Engine)
            .await
            .unwrap();
        blocks.push(block);
    }
    blocks
}

async fn make_head(chain: &Chain, block: &ExecutedBlock) {
    chain
        .forkchoice(block.payload.hash, None, None)
        .await
        .unwrap();
    until("all is stored", || {
        chain.view().stored() == block.payload.id()
    })
    .await;
}

fn walk(chain: &Chain, cursor: &mut Cursor) -> Result<Vec<(bool, BlockId)>, StepError> {
    let (view, mut steps) = (chain.view(), vec![]);
    while let Some(step) = cursor.step(&view, |hash| chain.abandoned(hash))? {
        steps.push(match step {
            Step::Removed(block) => (false, block.payload.id()),
            Step::Added(id) => (true, id),
        });
    }
    Ok(steps)
}

/// The expected steps from one branch to another: `old` is removed from its highest block down,
/// then `new` is added.
fn over(old: &[Arc<ExecutedBlock>], new: &[Arc<ExecutedBlock>]) -> Vec<(bool, BlockId)> {
    let removed = old.iter().rev().map(|block| (false, block.payload.id()));
    removed
        .chain(new.iter().map(|block| (true, block.payload.id())))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_cursor_walks_a_reorg_of_three_over_the_common_ancestor() {
    let datadir = datadir();
    let (chain, _threads) = open(datadir.path());
    let trunk = branch(&chain, chain.view().head().hash, 4, 0).await;
    let fork = trunk[3].payload.hash;
    let (ours, theirs) = (
        branch(&chain, fork, 3, 1).await,
        branch(&chain, fork, 4, 2).await,
    );
    make_head(&chain, &ours[2]).await;
    let mut cursor = Cursor::new(chain.view().head());
    assert_eq!(walk(&chain, &mut cursor).unwrap(), over(&[], &[]));
    make_head(&chain, &theirs[3]).await;
    assert_eq!(walk(&chain, &mut cursor).unwrap(), over(&ours, &theirs));
    // The head is rewound, without a new branch.
    make_head(&chain, &theirs[0]).await;
    assert_eq!(
        walk(&chain, &mut Cursor::new(theirs[3].payload.id())).unwrap(),
        over(&theirs[1..], &[])
    );
    let view = chain.view();
    assert!(matches!(
        cursor.step(&view, |hash| chain.abandoned(hash)),
        Ok(Some(Step::Removed(_)))
    ));
    make_head(&chain, &ours[2]).await;
    assert_eq!(
        walk(&chain, &mut cursor).unwrap(),
        over(&theirs[..3], &ours)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_made_after_a_restart_finds_abandoned_blocks_and_their_receipts() {
    let datadir = datadir();
    let (chain, threads) = open(datadir.path());
    let pay = sign(1, transfer(0)).1;
    let first = build(&chain, chain.view().head().hash, 0, [pay]).await;
    chain
        .insert(first.payload.clone(), Provenance::Engine)
        .await
        .unwrap();
    let mut ours = vec![first];
    ours.extend(branch(&chain, ours[0].payload.hash, 2, 0).await);
    make_head(&chain, &ours[2]).await;
    drop(chain);
    threads.stop().unwrap();

    let (chain, _threads) = open(datadir.path());
    let mut cursor = Cursor::new(chain.view().head());
    let theirs = branch(&chain, chain.genesis().unwrap().hash, 4, 1).await;
    make_head(&chain, &theirs[3]).await;
    assert_eq!(walk(&chain, &mut cursor).unwrap(), over(&ours, &theirs));
    for block in &ours {
        let kept = chain.abandoned(block.payload.hash).unwrap().unwrap();
        assert_eq!(
            (&kept.payload, kept.receipts.as_ref()),
            (&block.payload, Some(&block.receipts))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_walks_far_down_and_is_lost_where_blocks_are_no_longer_kept() {
    let datadir = datadir();
    let (chain, _threads) = open(datadir.path());
    let genesis = chain.genesis().unwrap().hash;
    let ours = branch(&chain, genesis, 700, 0).await;
    make_head(&chain, &ours[699]).await;
    let mut cursor = Cursor::new(chain.view().head());
    let theirs = branch(&chain, genesis, 2, 1).await;
    make_head(&chain, &theirs[1]).await;
    assert_eq!(walk(&chain, &mut cursor).unwrap(), over(&ours, &theirs));
    // Only recently abandoned blocks still have receipts.
    let receipts = |block: &ExecutedBlock| {
        chain
            .abandoned(block.payload.hash)
            .unwrap()
            .unwrap()
            .receipts
    };
    assert!(receipts(&ours[699]).is_some() && receipts(&ours[100]).is_none());

    let unknown = BlockId {
        number: 2,
        hash: B256::repeat_byte(9),
    };
    let mut lost = Cursor::new(unknown);
    assert!(matches!(walk(&chain, &mut lost), Err(StepError::Lost(at)) if at == unknown));
    assert_eq!(lost.at(), unknown, "it stays lost");
}
