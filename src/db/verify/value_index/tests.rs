//! Missing and superfluous rows of an index are found and repaired.

use super::*;
use crate::{
    chain::{
        store::{IndexWindow, Store, ValueIndex},
        tests::{grow::grown, killed},
    },
    db::{
        repair::repair,
        verify::tests::{CACHE, check as check_all},
    },
};
use alloy_primitives::Bytes;
use std::path::Path;

/// Keys of index rows, and whether each row is to be written (true) or removed.
type PlantedRows<'a> = Vec<(&'a [u8], bool)>;

fn open(dir: &Path) -> Store {
    Store::open(dir, CACHE, None).unwrap()
}

fn rows(store: &Store, index: ValueIndex) -> Vec<Bytes> {
    let snapshot = store.snapshot().unwrap();
    let rows = snapshot.rows(Space::History, &[index.tag()]);
    rows.map(|row| row.unwrap().0).collect()
}

/// Asserts that one repairable damage with `what` in its description is found, repairs it, and
/// asserts that the rows are those in `before`.
fn damaged(dir: &Path, index: ValueIndex, what: &str, before: &[Bytes]) {
    let report = check_all(dir);
    assert_eq!(report.count, 1, "{report:#?}");
    let damage = &report.damages[0];
    assert!(damage.what.contains(what), "{damage:?}");
    assert!(damage.what.contains(index.name()), "{damage:?}");
    assert_eq!(damage.remedy, Remedy::Repair);
    let store = open(dir);
    let repaired = repair(&store, &mut |_, _, _| {}).unwrap();
    assert_eq!(repaired.indexes, [index]);
    assert_eq!(rows(&store, index), before);
    assert_eq!(store.snapshot().unwrap().indexed_from(index), 0);
    drop(store);
    assert!(check_all(dir).is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_and_superfluous_rows_are_found_and_repaired() {
    let sound = grown(7, 40).await;
    for index in ValueIndex::ALL {
        check_damages(sound.path(), index);
    }
}

fn check_damages(sound: &Path, index: ValueIndex) {
    let before = rows(&open(sound), index);
    assert!(before.len() > 20, "{} rows", before.len());
    let number = keys::value_row_number(&before[5]).unwrap();
    let free = [&[index.tag(); 9][..], &number.to_be_bytes()].concat();
    let above = keys::value_row(&[index.tag(); 9], 999).to_vec();
    let changes: [(&str, PlantedRows<'_>); 5] = [
        ("rows are missing (", vec![(&before[5], false)]),
        ("there are superfluous rows (", vec![(&free, true)]),
        (
            "rows are of other values (",
            vec![(&free, true), (&before[5], false)],
        ),
        ("malformed, or above the head", vec![(&above, true)]),
        ("malformed, or above the head", vec![(&free[..12], true)]),
    ];
    for (what, changes) in changes {
        let dir = killed(sound);
        let store = open(dir.path());
        let mut rewrite = store.rewrite();
        for (key, present) in changes {
            let empty = present.then(Bytes::new);
            rewrite.set(Space::History, key, empty.as_ref()).unwrap();
        }
        rewrite.finish().unwrap();
        drop(store);
        damaged(dir.path(), index, what, &before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_below_the_bound_are_not_checked() {
    let dir = grown(8, 40).await;
    let store = open(dir.path());
    store.keep_logs(IndexWindow::Blocks(10));
    store.commit(&[], None, None).unwrap();
    let old = |key: &Bytes| keys::value_row_number(key).unwrap() < 30;
    let some = rows(&store, ValueIndex::Logs)
        .into_iter()
        .find(old)
        .unwrap();
    let mut rewrite = store.rewrite();
    rewrite.set(Space::History, &some, None).unwrap();
    rewrite.finish().unwrap();
    assert_eq!(store.snapshot().unwrap().indexed_from(ValueIndex::Logs), 30);
    drop(store);
    assert!(check_all(dir.path()).is_sound());
}
