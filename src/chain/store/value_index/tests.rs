//! Each index has exactly the rows that its blocks need, after commits, unwinds, pruning, kills and
//! upgrades.

use super::*;
use crate::chain::{
    receipt::Receipt,
    rows::ExecutedBlock,
    store::{
        block_cache_key,
        tests::{CACHE, block, create, genesis},
    },
    tests::killed,
};
use alloy_consensus::Header;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Log, TxKind};
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use rand::{Rng, SeedableRng, rngs::StdRng};
use starling_proto::payload::{BlockId, Payload};
use std::{collections::BTreeSet, sync::Arc};

/// Nonce of the sender in the receipt of each deposit.
const NONCE: u64 = 7;

fn receipt(logs: Vec<Log>) -> Receipt {
    Receipt {
        tx_type: 0x7e,
        success: true,
        cumulative_gas_used: 21_000,
        logs,
        deposit_nonce: Some(NONCE),
        deposit_version: None,
        post_state: None,
    }
}

fn address(rng: &mut StdRng) -> Address {
    Address::repeat_byte(rng.random_range(0..4))
}

/// A log of one of a few addresses with a few topics.
fn log(rng: &mut StdRng) -> Log {
    let topics = (0..rng.random_range(0..=4)).map(|_| B256::repeat_byte(rng.random_range(0..4)));
    let topics = topics.collect();
    Log::new_unchecked(address(rng), topics, Bytes::new())
}

fn deposit(rng: &mut StdRng) -> TxDeposit {
    let to = match rng.random_range(0..4) {
        0 => TxKind::Create,
        _ => TxKind::Call(address(rng)),
    };
    TxDeposit {
        source_hash: rng.random::<[u8; 32]>().into(),
        from: address(rng),
        to,
        ..Default::default()
    }
}

/// A block with random transactions and logs.
struct RandomBlock {
    executed: Arc<ExecutedBlock>,
    deposits: Vec<TxDeposit>,
}

impl RandomBlock {
    fn new(parent: BlockId, rng: &mut StdRng) -> Self {
        let deposits: Vec<_> = (0..rng.random_range(0..3)).map(|_| deposit(rng)).collect();
        let receipts = deposits
            .iter()
            .map(|_| receipt((0..rng.random_range(0..3)).map(|_| log(rng)).collect()));
        let receipts = Arc::new(receipts.collect());
        let raw = deposits.iter().map(|deposit| {
            let envelope = OpTxEnvelope::from(deposit.clone());
            envelope.encoded_2718().into()
        });
        let header = Header {
            parent_hash: parent.hash,
            number: parent.number + 1,
            ..Default::default()
        };
        let payload = Arc::new(Payload::sealed(header, raw.collect()));
        // Missing senders, as in blocks of an older version, are recovered.
        let known = rng.random_range(0..2) == 0;
        let senders = deposits
            .iter()
            .filter(|_| known)
            .map(|deposit| deposit.from);
        let (senders, overlay) = (senders.collect(), block(parent).overlay.clone());
        Self {
            executed: Arc::new(ExecutedBlock::new(payload, senders, receipts, overlay)),
            deposits,
        }
    }

    fn number(&self) -> u64 {
        self.executed.payload.number()
    }

    /// The hashed values of the block, computed independently of the index.
    fn values(&self, index: ValueIndex) -> Vec<Vec<u8>> {
        let word = |address: Address| [&[0; 13][..], address.as_slice()].concat();
        let mut values = vec![];
        for log in self
            .executed
            .receipts
            .iter()
            .flat_map(|receipt| &receipt.logs)
        {
            values.push(word(log.address));
            if index == ValueIndex::Logs {
                for (position, topic) in log.topics().iter().enumerate() {
                    values.push([&[position as u8 + 1][..], topic.as_slice()].concat());
                }
            }
        }
        if index == ValueIndex::Addresses {
            for deposit in &self.deposits {
                values.push(word(deposit.from));
                values.push(word(match deposit.to {
                    TxKind::Call(to) => to,
                    TxKind::Create => deposit.from.create(NONCE),
                }));
            }
        }
        values
    }
}

/// Adds `count` blocks to a store and to `chain`, the list of all its blocks.
fn grow(store: &Store, chain: &mut Vec<RandomBlock>, count: usize, rng: &mut StdRng) {
    let from = chain.len();
    for _ in 0..count {
        let parent = chain
            .last()
            .map_or(genesis().id(), |made| made.executed.payload.id());
        chain.push(RandomBlock::new(parent, rng));
    }
    let blocks: Vec<_> = chain[from..]
        .iter()
        .map(|made| made.executed.clone())
        .collect();
    store.commit(&blocks, None, None).unwrap();
}

/// The index rows that the blocks from `first` on need.
fn needed(index: ValueIndex, chain: &[RandomBlock], first: u64) -> BTreeSet<Bytes> {
    let tag: &[u8] = match index {
        ValueIndex::Logs => b"L",
        ValueIndex::Addresses => b"A",
    };
    let mut rows = BTreeSet::new();
    for made in chain.iter().filter(|made| made.number() >= first) {
        for value in made.values(index) {
            let hash = alloy_primitives::keccak256(value);
            let number = made.number().to_be_bytes();
            rows.insert([tag, &hash[..8], &number].concat().into());
        }
    }
    rows
}

fn stored(store: &Store, index: ValueIndex) -> BTreeSet<Bytes> {
    let snapshot = store.snapshot().unwrap();
    let rows = snapshot
        .rows(Space::History, &[index.tag()])
        .map(Result::unwrap);
    rows.map(|(key, value)| {
        assert!(value.is_empty());
        key
    })
    .collect()
}

fn first(store: &Store, index: ValueIndex) -> u64 {
    store.snapshot().unwrap().indexed_from(index)
}

/// The index is complete from block `from` on, and has no other rows of these blocks.
fn check(store: &Store, index: ValueIndex, chain: &[RandomBlock], from: u64) {
    assert_eq!(first(store, index), from, "{index:?}");
    let mut rows = stored(store, index);
    rows.retain(|key| keys::value_row_number(key).unwrap() >= from);
    assert_eq!(rows, needed(index, chain, from), "{index:?}");
}

fn build(store: &Store, index: ValueIndex) -> IndexStep {
    loop {
        match store.extend_index(index).unwrap() {
            Some(step) if step.first > step.goal => {}
            step => return step.unwrap(),
        }
    }
}

/// A new store whose indexes begin with its first block.
fn indexing(dir: &std::path::Path) -> Store {
    let store = create(dir);
    store.keep_addresses(true);
    store.keep_logs(IndexWindow::All);
    store
}

#[test]
fn rows_come_and_go_with_their_block() {
    for seed in 0..8 {
        let mut rng = StdRng::seed_from_u64(seed);
        let dir = tempfile::tempdir().unwrap();
        let (mut store, mut chain) = (indexing(dir.path()), vec![]);
        build(&store, ValueIndex::Addresses);
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
                // Without windows, as tools open the store, both indexes still grow.
                drop(store);
                store = Store::open(dir.path(), CACHE, None).unwrap();
            }
            for index in ValueIndex::ALL {
                check(&store, index, &chain, 0);
                let none_of_unwound = needed(index, &chain, 0);
                assert_eq!(stored(&store, index), none_of_unwound);
            }
        }
    }
}

#[test]
fn addresses_are_indexed_on_request_only() {
    let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(9));
    let (store, mut chain) = (create(dir.path()), vec![]);
    for keep in [None, Some(false)] {
        if let Some(keep) = keep {
            store.keep_addresses(keep);
            assert_eq!(store.extend_index(ValueIndex::Addresses).unwrap(), None);
        }
        grow(&store, &mut chain, 20, &mut rng);
        store.unwind_one().unwrap();
        chain.pop();
        assert!(stored(&store, ValueIndex::Addresses).is_empty());
        let snapshot = store.snapshot().unwrap();
        assert!(snapshot.is_index_off(ValueIndex::Addresses));
        assert!(first(&store, ValueIndex::Addresses) > store.head().number);
        // No bounds of this index are written either.
        let bounds = store
            .0
            .index_bounds(&snapshot.0.snapshot, ValueIndex::Addresses);
        assert_eq!(bounds.unwrap(), IndexBounds::UNBUILT);
    }
    check(&store, ValueIndex::Logs, &chain, 0);
}

#[test]
fn a_block_whose_receipts_are_damaged_is_unwound() {
    let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(1));
    let (store, mut chain) = (indexing(dir.path()), vec![]);
    grow(&store, &mut chain, 20, &mut rng);
    store.0.spaces[Space::Blocks as usize]
        .insert(keys::receipts(20).as_ref(), "?")
        .unwrap();
    store.unwind_one().unwrap();
    chain.pop();
    build(&store, ValueIndex::Addresses);
    for index in ValueIndex::ALL {
        let mut rows = stored(&store, index);
        rows.retain(|key| keys::value_row_number(key) != Some(20));
        assert_eq!(rows, needed(index, &chain, 0));
    }
}

#[test]
fn rows_outside_of_the_window_go_and_come_again_when_it_is_raised() {
    let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(2));
    let (store, mut chain, logs) = (create(dir.path()), vec![], ValueIndex::Logs);
    store.keep_logs(IndexWindow::Blocks(100));
    for _ in 0..20 {
        grow(&store, &mut chain, 40, &mut rng);
        let first = first(&store, logs);
        check(&store, logs, &chain, first);
        let head = chain.len() as u64;
        assert_eq!(first, head.saturating_sub(100));
        // The index already covers its window: there is nothing to build.
        assert_eq!(build(&store, logs).first, first);
    }
    store.prune().unwrap();
    check(&store, logs, &chain, 700);
    let left = stored(&store, logs);
    assert_eq!(left, needed(logs, &chain, 700), "older rows are gone");
    let old = store.snapshot().unwrap();
    store.keep_logs(IndexWindow::Blocks(300));
    assert_eq!(build(&store, logs).first, 500);
    check(&store, logs, &chain, 500);
    // The old, higher bounds must not prune the rows built since.
    grow(&store, &mut chain, 10, &mut rng);
    store.prune().unwrap();
    check(&store, logs, &chain, 510);
    assert_eq!(old.indexed_from(logs), 700);
    store.keep_logs(IndexWindow::All);
    let IndexStep { first, goal, added } = build(&store, logs);
    assert_eq!((first, goal), (0, 0));
    assert!(added > 0);
    store.prune().unwrap();
    check(&store, logs, &chain, 0);
}

fn turn(store: &Store, index: ValueIndex, on: bool) {
    match index {
        ValueIndex::Logs if on => store.keep_logs(IndexWindow::All),
        ValueIndex::Logs => store.keep_logs(IndexWindow::Off),
        ValueIndex::Addresses => store.keep_addresses(on),
    }
}

#[test]
fn an_index_can_be_turned_off_and_on() {
    for index in ValueIndex::ALL {
        let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(3));
        let (store, mut chain) = (indexing(dir.path()), vec![]);
        grow(&store, &mut chain, 1500, &mut rng);
        turn(&store, index, false);
        assert_eq!(store.extend_index(index).unwrap(), None);
        store.prune().unwrap();
        let state = |store: &Store| (first(store, index), stored(store, index).len());
        assert_eq!(state(&store), (1501, 0));
        grow(&store, &mut chain, 20, &mut rng);
        assert_eq!(state(&store), (1521, 0));
        assert!(store.snapshot().unwrap().is_index_off(index));
        store.unwind_one().unwrap();
        chain.pop();
        drop(store);

        let store = Store::open(dir.path(), CACHE, None).unwrap();
        turn(&store, index, true);
        assert!(!store.snapshot().unwrap().is_index_off(index));
        grow(&store, &mut chain, 5, &mut rng);
        check(&store, index, &chain, 1520);
        build(&store, index);
        check(&store, index, &chain, 0);
        store.prune().unwrap();
        check(&store, index, &chain, 0);
    }
}

/// A window wider than the chain includes all of its blocks, even if one step is longer than the
/// chain.
#[test]
fn a_wide_window_holds_all_blocks_of_a_short_chain() {
    let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(11));
    let (store, mut chain, logs) = (create(dir.path()), vec![], ValueIndex::Logs);
    store.keep_logs(IndexWindow::Off);
    grow(&store, &mut chain, 30, &mut rng);
    store.keep_logs(IndexWindow::Blocks(2_350_000));
    build(&store, logs);
    check(&store, logs, &chain, 0);
    grow(&store, &mut chain, 30, &mut rng);
    store.prune().unwrap();
    check(&store, logs, &chain, 0);
}

/// Blocks unwound while an index was off leave no rows in it, with or without pruning.
#[test]
fn an_index_that_was_off_over_a_reorg_is_right_again() {
    for (index, prune) in [
        (ValueIndex::Logs, false),
        (ValueIndex::Addresses, false),
        (ValueIndex::Addresses, true),
    ] {
        let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(8));
        let (store, mut chain) = (indexing(dir.path()), vec![]);
        grow(&store, &mut chain, 60, &mut rng);
        build(&store, index);
        turn(&store, index, false);
        grow(&store, &mut chain, 10, &mut rng);
        if prune {
            store.prune().unwrap();
        }
        for _ in 0..40 {
            store.unwind_one().unwrap();
            chain.pop();
        }
        turn(&store, index, true);
        grow(&store, &mut chain, 5, &mut rng);
        if prune {
            store.prune().unwrap();
        }
        build(&store, index);
        check(&store, index, &chain, 0);
        assert_eq!(stored(&store, index), needed(index, &chain, 0));
    }
}

/// An old store can be read, indexes new blocks, and is indexed downwards. A kill loses no step.
#[test]
fn a_store_of_the_version_before_is_indexed_in_steps() {
    for index in ValueIndex::ALL {
        let (mut dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(4));
        let mut chain = vec![];
        let store = create(dir.path());
        grow(&store, &mut chain, 3 * STEP_BLOCKS as usize, &mut rng);
        store.forget_indexes();
        drop(store);
        let mut store = Store::open(dir.path(), CACHE, None).unwrap();
        upgrade(&store, index, &mut chain, &mut rng);
        let (mut kills, mut reached) = (0, chain.len() as u64 - 2);
        loop {
            let step = store.extend_index(index).unwrap().unwrap();
            check(&store, index, &chain, step.first);
            if step.first == 0 {
                break;
            }
            assert!(step.first < reached, "each step is one");
            reached = step.first;
            if kills < 4 {
                // Blocks are committed and unwound between the steps.
                grow(&store, &mut chain, 2, &mut rng);
                store.unwind_one().unwrap();
                chain.pop();
                let copy = killed(dir.path());
                drop(store);
                (dir, kills) = (copy, kills + 1);
                store = Store::open(dir.path(), CACHE, None).unwrap();
                turn(&store, index, true);
                check(&store, index, &chain, reached);
            }
        }
        assert!(kills > 1, "{kills} kills");
        assert_eq!(stored(&store, index), needed(index, &chain, 0));
    }
}

/// The first block written upgrades a store of the previous layout. Replaces one block by three.
fn upgrade(store: &Store, index: ValueIndex, chain: &mut Vec<RandomBlock>, rng: &mut StdRng) {
    turn(store, index, true);
    let head = chain.len() as u64;
    assert_eq!(store.snapshot().unwrap().schema(), SCHEMA - 1);
    check(store, index, chain, head + 1);
    // The older program may open the store again until a block is written.
    store.commit(&[], None, None).unwrap();
    assert_eq!(store.extend_index(index).unwrap(), None);
    assert_eq!(store.snapshot().unwrap().schema(), SCHEMA - 1);
    store.unwind_one().unwrap();
    chain.pop();
    grow(store, chain, 3, rng);
    assert_eq!(store.snapshot().unwrap().schema(), SCHEMA);
    assert_eq!(store.snapshot().unwrap().oldest_senders().unwrap(), 0);
    check(store, index, chain, head);
}

#[test]
fn an_unwind_below_the_first_indexed_block_leaves_the_rest_right() {
    for index in ValueIndex::ALL {
        let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(5));
        let (store, mut chain) = (create(dir.path()), vec![]);
        grow(&store, &mut chain, 50, &mut rng);
        store.forget_indexes();
        drop(store);
        let store = Store::open(dir.path(), CACHE, None).unwrap();
        turn(&store, index, true);
        grow(&store, &mut chain, 5, &mut rng);
        check(&store, index, &chain, 51);
        for _ in 0..10 {
            store.unwind_one().unwrap();
            chain.pop();
        }
        check(&store, index, &chain, 46);
        grow(&store, &mut chain, 30, &mut rng);
        check(&store, index, &chain, 46);
        build(&store, index);
        check(&store, index, &chain, 0);
    }
}

/// After an unwind the address index may begin above the head. A tool without a window then adds
/// blocks without index rows, and the index must not claim them.
#[test]
fn an_index_that_begins_above_the_head_claims_no_block_of_a_tool() {
    let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(10));
    let (store, mut chain, index) = (create(dir.path()), vec![], ValueIndex::Addresses);
    grow(&store, &mut chain, 50, &mut rng);
    store.keep_addresses(true);
    grow(&store, &mut chain, 5, &mut rng);
    check(&store, index, &chain, 51);
    for _ in 0..10 {
        store.unwind_one().unwrap();
        chain.pop();
    }
    drop(store);
    let store = Store::open(dir.path(), CACHE, None).unwrap();
    grow(&store, &mut chain, 20, &mut rng);
    assert_eq!(first(&store, index), 66);
    store.keep_addresses(true);
    grow(&store, &mut chain, 5, &mut rng);
    check(&store, index, &chain, 66);
    build(&store, index);
    check(&store, index, &chain, 0);
}

#[test]
fn a_dropped_index_is_built_again_and_missing_receipts_end_it() {
    for index in ValueIndex::ALL {
        let (dir, mut rng) = (tempfile::tempdir().unwrap(), StdRng::seed_from_u64(6));
        let (store, mut chain) = (indexing(dir.path()), vec![]);
        grow(&store, &mut chain, 100, &mut rng);
        store.drop_index(index).unwrap();
        assert_eq!(
            (first(&store, index), stored(&store, index).len()),
            (101, 0)
        );
        build(&store, index);
        check(&store, index, &chain, 0);
        store.drop_index(index).unwrap();
        let receipts = keys::receipts(100);
        let cached = block_cache_key(Space::Blocks, &receipts);
        let remove = || store.0.spaces[Space::Blocks as usize].remove(receipts.as_ref());
        store.0.block_rows.invalidate(&[cached], remove).unwrap();
        assert!(matches!(
            store.extend_index(index),
            Err(StoreError::Read(ReadError::Damaged(_)))
        ));
    }
}
