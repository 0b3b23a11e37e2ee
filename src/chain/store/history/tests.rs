//! Rows within the bounds can be read, older rows are pruned, and no row is pruned too early.

use super::*;
use crate::chain::{
    rows::{ExecutedBlock, keys},
    store::{
        Snapshot, Store,
        tests::{CACHE, block, create},
    },
};
use alloy_primitives::B256;

/// Blocks whose state contains their number, from the store's head up to this height.
fn chain(store: &Store, height: usize) -> Vec<Arc<ExecutedBlock>> {
    let mut blocks: Vec<Arc<ExecutedBlock>> = vec![];
    for n in 0..height {
        blocks.push(block(if n == 0 {
            store.head()
        } else {
            blocks[n - 1].payload.id()
        }));
    }
    blocks
}

/// The block number that the state at this block contains.
fn read(snapshot: &Snapshot, number: u64) -> u64 {
    let row = snapshot
        .state_row_at(&keys::account(&B256::ZERO), number)
        .unwrap();
    row.map_or(0, |row| {
        u64::from_be_bytes(row.as_ref().try_into().unwrap())
    })
}

fn history_rows(store: &Store) -> usize {
    store.snapshot().unwrap().rows(Space::History, b"H").count()
}

#[test]
fn states_inside_the_window_stay_and_older_ones_go() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path());
    store.keep_states(Some(100));
    let blocks = chain(&store, 1500);
    for group in blocks.chunks(50) {
        store.commit(group, None, None).unwrap();
        let snapshot = store.snapshot().unwrap();
        let (head, oldest) = (snapshot.head().number, snapshot.oldest_state());
        assert!(
            oldest <= head.saturating_sub(100) && oldest + 102 > head.min(oldest + 101),
            "{oldest} at {head}"
        );
        assert!((oldest..=head).all(|number| read(&snapshot, number) == number));
    }
    let (rows, oldest) = (
        history_rows(&store),
        store.snapshot().unwrap().oldest_state(),
    );
    assert!(oldest >= 1398 && rows >= 2 * 1500, "{oldest}, {rows} rows");
    store.prune().unwrap();
    let left = history_rows(&store);
    // Each block changes two accounts.
    assert_eq!(left as u64, 2 * (1500 - oldest));
    let snapshot = store.snapshot().unwrap();
    assert!((oldest..=1500).all(|number| read(&snapshot, number) == number));
    // Without a finalized head, the state window bounds the unwind records too.
    assert_eq!(snapshot.oldest_unwind(), oldest - UNWIND_MARGIN);
    assert_eq!(
        snapshot.rows(Space::History, b"U").count() as u64,
        1501 - snapshot.oldest_unwind()
    );
    drop((snapshot, store));
    // The bounds are the same after a reopen.
    let store = Store::open(dir.path(), CACHE, None).unwrap();
    let snapshot = store.snapshot().unwrap();
    assert_eq!(snapshot.oldest_state(), oldest);
    assert!((oldest..=1500).all(|number| read(&snapshot, number) == number));
}

#[test]
fn a_snapshot_keeps_what_it_can_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path());
    let blocks = chain(&store, 400);
    store.commit(&blocks[..50], None, None).unwrap();
    let old = store.snapshot().unwrap();
    store.keep_states(Some(10));
    store.commit(&blocks[50..], None, None).unwrap();
    store.prune().unwrap();
    assert!((0..=50).all(|number| read(&old, number) == number));
    assert!(history_rows(&store) >= 2 * 400);
    drop(old);
    store.prune().unwrap();
    assert_eq!(history_rows(&store), 2 * 10);
}

#[test]
fn nothing_goes_before_its_bound_is_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path());
    store.keep_states(Some(10));
    store.commit(&chain(&store, 100), None, None).unwrap();
    let floors = &store.0.history.floors;
    assert_eq!(floors.droppable(), HistoryBounds::default());
    // A sync is not enough: the journal may be lost before the bounds are in a table.
    store.sync().unwrap();
    assert_eq!(floors.droppable(), HistoryBounds::default());
    while store.0.history.pending.lock().is_some() {
        store.sync().unwrap();
    }
    assert_eq!(floors.droppable().states, 90);
}

#[test]
fn a_finalized_state_stays_and_an_archive_keeps_all() {
    for (window, finalized, oldest) in [
        (Some(10), Some(5), 5),
        (Some(10), Some(95), 90),
        (None, Some(95), 0),
        (None, None, 0),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let store = create(dir.path());
        store.keep_states(window);
        let blocks = chain(&store, 100);
        let finalized = finalized.map(|number: usize| blocks[number - 1].payload.id());
        store.commit(&blocks, None, finalized).unwrap();
        store.prune().unwrap();
        let snapshot = store.snapshot().unwrap();
        assert_eq!(snapshot.oldest_state(), oldest, "{window:?} {finalized:?}");
        assert_eq!(history_rows(&store) as u64, 2 * (100 - oldest));
        assert_eq!(snapshot.rows(Space::History, b"U").count(), 100);
    }
}

#[test]
fn only_rows_of_history_are_old() {
    let kept = HistoryBounds {
        states: 10,
        unwinds: 20,
        ..Default::default()
    };
    let key = |tag: u8, number: u64| [&[tag][..], b"a", &number.to_be_bytes()].concat();
    assert!(is_old(&key(b'H', 10), kept) && !is_old(&key(b'H', 11), kept));
    assert!(is_old(&keys::unwind(19), kept) && !is_old(&keys::unwind(20), kept));
    assert!(!is_old(b"_head", kept) && !is_old(b"H", kept) && !is_old(&[], kept));
}
