//! The rows of the log index are those that the receipts need, after commits, unwinds, pruning,
//! kills and upgrades.

use super::*;
use crate::chain::{
    rows::ExecutedBlock,
    store::tests::{CACHE, block, create, genesis},
    tests::killed,
};
use alloy_primitives::{Bytes, Log};
use rand::{Rng, SeedableRng, rngs::StdRng};
use starling_proto::payload::BlockId;
use std::{collections::BTreeSet, sync::Arc};

fn receipt(logs: Vec<Log>) -> Receipt {
    Receipt {
        tx_type: 2,
        success: true,
        cumulative_gas_used: 21_000,
        logs,
        deposit_nonce: None,
        deposit_version: None,
        post_state: None,
    }
}

/// A log of one of a few addresses with a few topics.
fn log(rng: &mut StdRng) -> Log {
    let topics = (0..rng.random_range(0..=4)).map(|_| B256::repeat_byte(rng.random_range(0..4)));
    let topics = topics.collect();
    Log::new_unchecked(
        Address::repeat_byte(rng.random_range(0..4)),
        topics,
        Bytes::new(),
    )
}

/// A block with random logs.
fn logging(parent: BlockId, rng: &mut StdRng) -> Arc<ExecutedBlock> {
    let plain = block(parent);
    let receipts = (0..rng.random_range(0..3))
        .map(|_| receipt((0..rng.random_range(0..3)).map(|_| log(rng)).collect()));
    Arc::new(ExecutedBlock::new(
        plain.payload.clone(),
        vec![],
        Arc::new(receipts.collect()),
        plain.overlay.clone(),
    ))
}

/// Adds blocks to a store, and to `chain`, which holds all of its blocks.
fn grow(store: &Store, chain: &mut Vec<Arc<ExecutedBlock>>, count: usize, rng: &mut StdRng) {
    let from = chain.len();
    for _ in 0..count {
        let parent = chain.last().map_or(genesis().id(), |b| b.payload.id());
        chain.push(logging(parent, rng));
    }
    store.commit(&chain[from..], None, None).unwrap();
}

/// The rows that these blocks need, written down independently of the index.
fn needed(chain: &[Arc<ExecutedBlock>], first: u64) -> BTreeSet<Bytes> {
    let mut rows = BTreeSet::new();
    for block in chain.iter().filter(|b| b.payload.number() >= first) {
        for log in block.receipts.iter().flat_map(|receipt| &receipt.logs) {
            let mut values = vec![[&[0; 13][..], log.address.as_slice()].concat()];
            for (position, topic) in log.topics().iter().enumerate() {
                values.push([&[position as u8 + 1][..], topic.as_slice()].concat());
            }
            for value in values {
                let hash = alloy_primitives::keccak256(value);
                let number = block.payload.number().to_be_bytes();
                rows.insert([&b"L"[..], &hash[..8], &number].concat().into());
            }
        }
    }
    rows
}

fn stored(store: &Store) -> BTreeSet<Bytes> {
    let snapshot = store.snapshot().unwrap();
    let rows = snapshot.rows(Space::History, b"L").map(Result::unwrap);
    rows.map(|(key, value)| {
        assert!(value.is_empty());
        key
    })
    .collect()
}

fn first(store: &Store) -> u64 {
    store.snapshot().unwrap().log_index()
}

/// The index is whole from block `from` on, and has no other rows of these blocks.
fn check(store: &Store, chain: &[Arc<ExecutedBlock>], from: u64) {
    assert_eq!(first(store), from);
    let mut rows = stored(store);
    rows.retain(|key| keys::log_number(key).unwrap() >= from);
    assert_eq!(rows, needed(chain, from));
}

fn build(store: &Store) -> LogIndexStep {
    loop {
        match store.extend_log_index().unwrap() {
            Some(step) if step.first > step.goal => {}
            step => return step.unwrap(),
        }
    }
}

#[test]
fn rows_come_and_go_with_their_block() {
    for seed in 0..8 {
        let mut rng = StdRng::seed_from_u64(seed);
        let dir = tempfile::tempdir().unwrap();
        let (mut store, mut chain) = (create(dir.path()), vec![]);
        for _ in 0..30 {
            if rng.random_range(0..3) == 0 {
                for _ in 0..rng.random_range(0..5).min(chain.len()) {
                    store.unwind_one().unwrap();
                    chain.pop();
                }
            } else {
                let count = rng.random_range(0..5);
                grow(&store, &mut chain, count, &mut rng);
            }
            if rng.random_range(0..6) == 0 {
                store.rotate().unwrap();
            }
            if rng.random_range(0..6) == 0 {
                drop(store);
                store = Store::open(dir.path(), CACHE, None).unwrap();
            }
            check(&store, &chain, 0);
            assert_eq!(stored(&store), needed(&chain, 0), "none of unwound blocks");
        }
    }
}

#[test]
fn a_block_whose_receipts_are_damaged_is_unwound() {
    let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(1));
    let (store, mut chain) = (create(dir.path()), vec![]);
    grow(&store, &mut chain, 20, &mut rng);
    store.0.spaces[Space::Blocks as usize]
        .insert(keys::receipts(20).as_ref(), "?")
        .unwrap();
    store.unwind_one().unwrap();
    chain.pop();
    let mut rows = stored(&store);
    rows.retain(|key| keys::log_number(key) != Some(20));
    assert_eq!(rows, needed(&chain, 0));
}

#[test]
fn rows_outside_of_the_window_go_and_come_again_when_it_is_raised() {
    let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(2));
    let (store, mut chain) = (create(dir.path()), vec![]);
    store.keep_logs(LogWindow::Blocks(100));
    for _ in 0..20 {
        grow(&store, &mut chain, 40, &mut rng);
        let first = first(&store);
        check(&store, &chain, first);
        let head = chain.len() as u64;
        assert_eq!(first, head.saturating_sub(100));
        // The window is in order: there is nothing to build.
        assert_eq!(build(&store).first, first);
    }
    store.prune().unwrap();
    check(&store, &chain, 700);
    assert_eq!(stored(&store), needed(&chain, 700), "older rows are gone");
    let old = store.snapshot().unwrap();
    store.keep_logs(LogWindow::Blocks(300));
    assert_eq!(build(&store).first, 500);
    check(&store, &chain, 500);
    // Nothing that was built goes with the bounds of before.
    grow(&store, &mut chain, 10, &mut rng);
    store.prune().unwrap();
    check(&store, &chain, 510);
    assert_eq!(old.log_index(), 700);
    store.keep_logs(LogWindow::All);
    let LogIndexStep { first, goal, added } = build(&store);
    assert_eq!((first, goal), (0, 0));
    assert!(added > 0);
    store.prune().unwrap();
    check(&store, &chain, 0);
}

#[test]
fn the_index_can_be_turned_off_and_on() {
    let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(3));
    let (store, mut chain) = (create(dir.path()), vec![]);
    store.keep_logs(LogWindow::All);
    grow(&store, &mut chain, 1500, &mut rng);
    store.keep_logs(LogWindow::Off);
    assert_eq!(store.extend_log_index().unwrap(), None);
    store.prune().unwrap();
    assert_eq!((first(&store), stored(&store).len()), (1501, 0));
    grow(&store, &mut chain, 20, &mut rng);
    assert_eq!((first(&store), stored(&store).len()), (1521, 0));
    store.unwind_one().unwrap();
    chain.pop();
    drop(store);

    let store = Store::open(dir.path(), CACHE, None).unwrap();
    store.keep_logs(LogWindow::All);
    grow(&store, &mut chain, 5, &mut rng);
    check(&store, &chain, 1520);
    build(&store);
    check(&store, &chain, 0);
}

/// An old store is read, indexes new blocks, and is indexed downwards; a kill loses no step.
#[test]
fn a_store_of_the_version_before_is_indexed_in_steps() {
    let (mut dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(4));
    let mut chain = vec![];
    let store = create(dir.path());
    grow(&store, &mut chain, 3 * STEP_BLOCKS as usize, &mut rng);
    store.forget_log_index();
    drop(store);
    let mut store = Store::open(dir.path(), CACHE, None).unwrap();
    store.keep_logs(LogWindow::All);
    let head = chain.len() as u64;
    assert_eq!(store.snapshot().unwrap().schema(), SCHEMA - 1);
    check(&store, &chain, head + 1);
    // The program that wrote it may open it again, until a block is written.
    store.commit(&[], None, None).unwrap();
    assert_eq!(store.extend_log_index().unwrap(), None);
    assert_eq!(store.snapshot().unwrap().schema(), SCHEMA - 1);
    store.unwind_one().unwrap();
    chain.pop();
    grow(&store, &mut chain, 3, &mut rng);
    assert_eq!(store.snapshot().unwrap().schema(), SCHEMA);
    assert_eq!(store.snapshot().unwrap().oldest_senders().unwrap(), 0);
    check(&store, &chain, head);
    let (mut kills, mut reached) = (0, head);
    loop {
        let step = store.extend_log_index().unwrap().unwrap();
        check(&store, &chain, step.first);
        if step.first == 0 {
            break;
        }
        assert!(step.first < reached, "each step is one");
        reached = step.first;
        if kills < 4 {
            // Blocks are written and unwound between the steps.
            grow(&store, &mut chain, 2, &mut rng);
            store.unwind_one().unwrap();
            chain.pop();
            let copy = killed(dir.path());
            drop(store);
            (dir, kills) = (copy, kills + 1);
            store = Store::open(dir.path(), CACHE, None).unwrap();
            store.keep_logs(LogWindow::All);
            check(&store, &chain, reached);
        }
    }
    assert!(kills > 1, "{kills} kills");
    assert_eq!(stored(&store), needed(&chain, 0));
}

#[test]
fn an_index_that_was_off_over_an_unwind_is_built_again() {
    let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(8));
    let (store, mut chain) = (create(dir.path()), vec![]);
    store.keep_logs(LogWindow::Off);
    grow(&store, &mut chain, 1500, &mut rng);
    for _ in 0..40 {
        store.unwind_one().unwrap();
        chain.pop();
    }
    store.keep_logs(LogWindow::All);
    grow(&store, &mut chain, 5, &mut rng);
    store.prune().unwrap();
    build(&store);
    check(&store, &chain, 0);
}

#[test]
fn an_unwind_below_the_first_indexed_block_leaves_the_rest_right() {
    let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(5));
    let (store, mut chain) = (create(dir.path()), vec![]);
    grow(&store, &mut chain, 50, &mut rng);
    store.forget_log_index();
    drop(store);
    let store = Store::open(dir.path(), CACHE, None).unwrap();
    grow(&store, &mut chain, 5, &mut rng);
    check(&store, &chain, 51);
    for _ in 0..10 {
        store.unwind_one().unwrap();
        chain.pop();
    }
    check(&store, &chain, 46);
    grow(&store, &mut chain, 30, &mut rng);
    check(&store, &chain, 46);
    build(&store);
    check(&store, &chain, 0);
}

#[test]
fn a_dropped_index_is_built_again_and_missing_receipts_end_it() {
    let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(6));
    let (store, mut chain) = (create(dir.path()), vec![]);
    grow(&store, &mut chain, 100, &mut rng);
    store.drop_log_index().unwrap();
    assert_eq!((first(&store), stored(&store).len()), (101, 0));
    build(&store);
    check(&store, &chain, 0);
    store.drop_log_index().unwrap();
    store.0.spaces[Space::Blocks as usize]
        .remove(keys::receipts(100).as_ref())
        .unwrap();
    assert!(matches!(
        store.extend_log_index(),
        Err(StoreError::Read(ReadError::Damaged(_)))
    ));
}
