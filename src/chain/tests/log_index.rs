//! The persister builds the log index of an old data directory beside the blocks that it stores, over
//! kills.

use super::*;
use crate::{
    chain::{
        store::{LogWindow, SCHEMA},
        tests::grow::{grow, grown},
    },
    db::verify::{Samples, verify},
};

const OLD_BLOCKS: u64 = 300;

/// The first indexed block in a directory that nothing uses; its index is sound.
fn first_indexed(dir: &Path) -> u64 {
    let store = Store::open(dir, 4 << 20, None).unwrap();
    let samples = Samples {
        unwinds: 1,
        replays: 1,
        proofs: 1,
    };
    let report = verify(&store, samples, &mut |_, _, _| {}).unwrap();
    assert!(report.is_sound(), "{report:#?}");
    store.snapshot().unwrap().log_index()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_index_of_an_old_directory_is_built_in_the_background() {
    let old = grown(11, OLD_BLOCKS as usize).await;
    let store = Store::open(old.path(), 4 << 20, None).unwrap();
    store.forget_log_index();
    drop(store);
    let (chain, threads) = open(old.path());
    chain.keep_logs(LogWindow::All);
    assert_eq!(chain.view().head().number, OLD_BLOCKS);
    grow(&chain, 12, 1).await;
    let mut states = BTreeSet::new();
    for salt in 0..200 {
        // A kill at any moment leaves an index that is whole above its bound.
        let copy = killed(old.path());
        states.insert(first_indexed(copy.path()));
        if states.contains(&0) {
            break;
        }
        grow(&chain, 13 + salt, 1).await;
    }
    assert!(states.contains(&0), "{states:?}");
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(first_indexed(old.path()), 0);
    let store = Store::open(old.path(), 4 << 20, None).unwrap();
    assert_eq!(store.snapshot().unwrap().schema(), SCHEMA);
}

/// Waits until readers use an index that is whole from this block on.
async fn indexed_from(chain: &Chain, first: u64) {
    for _ in 0..600 {
        if chain.view().log_index() == first {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the index begins at {}", chain.view().log_index());
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_use_a_finished_index_before_the_next_block() {
    let old = grown(12, OLD_BLOCKS as usize).await;
    let store = Store::open(old.path(), 4 << 20, None).unwrap();
    store.forget_log_index();
    drop(store);
    let (chain, threads) = open(old.path());
    grow(&chain, 14, 1).await;
    assert_eq!(chain.view().log_index(), OLD_BLOCKS + 1);
    let head = chain.view().head();
    chain.keep_logs(LogWindow::All);
    indexed_from(&chain, 0).await;
    assert_eq!(chain.view().head(), head);
    // Blocks are executed and stored on the new snapshot.
    grow(&chain, 15, 20).await;
    assert_eq!(chain.view().log_index(), 0);
    drop(chain);
    tokio::task::spawn_blocking(|| threads.stop())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(first_indexed(old.path()), 0);
}
