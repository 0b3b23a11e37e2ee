//! The persister builds the missing indexes of an old data directory between the blocks that it
//! stores. Kills do not damage them.

use super::*;
use crate::{
    chain::{
        store::{IndexWindow, SCHEMA, ValueIndex},
        tests::grow::{grow, grown},
    },
    db::verify::{Samples, verify},
};

const OLD_BLOCKS: u64 = 300;

/// The first indexed block of each index, in a directory that no process uses. Asserts that the
/// indexes are sound.
fn first_indexed(dir: &Path) -> [u64; 2] {
    let store = Store::open(dir, 4 << 20, None).unwrap();
    let samples = Samples {
        unwinds: 1,
        replays: 1,
        proofs: 1,
    };
    let report = verify(&store, samples, &mut |_, _, _| {}).unwrap();
    assert!(report.is_sound(), "{report:#?}");
    let snapshot = store.snapshot().unwrap();
    ValueIndex::ALL.map(|index| snapshot.indexed_from(index))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_indexes_of_an_old_directory_are_built_in_the_background() {
    let old = grown(11, OLD_BLOCKS as usize).await;
    let store = Store::open(old.path(), 4 << 20, None).unwrap();
    store.forget_indexes();
    drop(store);
    let (chain, threads) = open(old.path());
    chain.keep_logs(IndexWindow::All);
    chain.keep_addresses(true);
    assert_eq!(chain.view().head().number, OLD_BLOCKS);
    grow(&chain, 12, 1).await;
    let mut states = BTreeSet::new();
    for salt in 0..200 {
        // After a kill at any moment, each index is complete from its first block on.
        let copy = killed(old.path());
        states.insert(first_indexed(copy.path()));
        if states.contains(&[0, 0]) {
            break;
        }
        grow(&chain, 13 + salt, 1).await;
    }
    assert!(states.contains(&[0, 0]), "{states:?}");
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(first_indexed(old.path()), [0, 0]);
    let store = Store::open(old.path(), 4 << 20, None).unwrap();
    assert_eq!(store.snapshot().unwrap().schema(), SCHEMA);
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_use_a_finished_index_before_the_next_block() {
    let old = grown(12, OLD_BLOCKS as usize).await;
    let store = Store::open(old.path(), 4 << 20, None).unwrap();
    store.forget_indexes();
    drop(store);
    let (chain, threads) = open(old.path());
    grow(&chain, 14, 1).await;
    let first = |index| chain.view().indexed_from(index);
    assert_eq!(first(ValueIndex::Logs), OLD_BLOCKS + 1);
    assert!(first(ValueIndex::Addresses) > OLD_BLOCKS);
    let head = chain.view().head();
    chain.keep_logs(IndexWindow::All);
    chain.keep_addresses(true);
    until("readers use both indexes", || {
        ValueIndex::ALL.map(first) == [0, 0]
    })
    .await;
    assert_eq!(chain.view().head(), head);
    // Blocks are executed and stored on the snapshot with the longer indexes.
    grow(&chain, 15, 20).await;
    assert_eq!(ValueIndex::ALL.map(first), [0, 0]);
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(first_indexed(old.path()), [0, 0]);
}
