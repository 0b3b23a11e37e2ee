//! Tests of stores whose keyspaces disagree on the head: they are rewound to a common head, or
//! refused.

use super::{cut_journals, repair};
use crate::{
    chain::{
        store::{DATABASE, Space, Store, StoreError},
        tests::{datadir, grow::grow, killed, open},
    },
    db::verify::tests::check,
};
use Space::{Blocks, Code, History, Index, Meta, State};
use starling_proto::payload::BlockId;

const CACHE: u64 = 1 << 20;

/// A store whose journal was cut in the middle, after the keyspaces in `ahead` had written all
/// their data to tables. Also returns the head before the cut.
async fn torn(ahead: &[Space]) -> (tempfile::TempDir, BlockId) {
    torn_after(ahead, false).await
}

/// Like [`torn`], but with `reorg` the data after the cut contains a switch to another branch.
async fn torn_after(ahead: &[Space], reorg: bool) -> (tempfile::TempDir, BlockId) {
    let dir = datadir();
    let (chain, _threads) = open(dir.path());
    grow(&chain, 5, 24).await;
    if reorg {
        let fork = chain.view().hash_of(8).unwrap().unwrap();
        chain.forkchoice(fork, None, None).await.unwrap();
        grow(&chain, 6, 20).await;
    }
    let head = chain.view().head();
    crate::chain::tests::until("it is stored", || chain.view().stored() == head).await;
    let copy = killed(dir.path());
    let store = Store::open(copy.path(), CACHE, None).unwrap();
    for space in ahead {
        store.flush_keyspace(*space);
    }
    drop(store);
    let journal = copy.path().join(DATABASE).join("0.jnl");
    let mut bytes = std::fs::read(&journal).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[used / 2] ^= 0x10;
    std::fs::write(&journal, bytes).unwrap();
    assert_eq!(cut_journals(copy.path()).unwrap().len(), 1);
    (copy, head)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_store_is_taken_back_to_where_its_keyspaces_agree() {
    for ahead in [
        &[History][..],
        &[Blocks],
        &[Index],
        &[Code],
        &[Meta],
        &[State, History],
        &[State, History, Index, Meta],
    ] {
        let (dir, head) = torn(ahead).await;
        let error = Store::open(dir.path(), CACHE, None).map(drop).unwrap_err();
        assert!(
            matches!(error, StoreError::Torn { .. })
                && error.to_string().contains("starling db repair"),
            "{error}"
        );
        let (store, left) = Store::open_to_repair(dir.path(), CACHE).unwrap();
        let left = left.expect("it was torn");
        assert!(left.number > 0 && left.number < head.number, "{left}");
        drop(store);
        // Simulate an interrupted repair: only another repair may open the store.
        let error = Store::open(dir.path(), CACHE, None).map(drop).unwrap_err();
        assert!(
            matches!(error, StoreError::Unproven(_))
                && error.to_string().contains("starling db repair"),
            "{error}"
        );
        let (store, again) = Store::open_to_repair(dir.path(), CACHE).unwrap();
        assert_eq!(again, None);
        repair(&store, &mut |_, _, _| {}).unwrap();
        drop(store);
        let report = check(dir.path());
        assert!(report.is_sound(), "{ahead:?}: {report:#?}");
        // Replaying the payload log restores the head.
        let (chain, _threads) = open(dir.path());
        assert_eq!(chain.view().head(), head, "{ahead:?}");
    }
}

/// Unwind records of another branch must not be applied to this one.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_back_across_a_change_of_branch_is_not_believed_unseen() {
    let mut refused = 0;
    for ahead in [
        &[History][..],
        &[Blocks],
        &[Index],
        &[State, History],
        &[State, History, Blocks, Index],
    ] {
        let (dir, _) = torn_after(ahead, true).await;
        let repaired = match Store::open_to_repair(dir.path(), CACHE) {
            Ok((store, _)) => repair(&store, &mut |_, _, _| {}).is_ok(),
            Err(error) => panic!("{error}"),
        };
        match Store::open(dir.path(), CACHE, None).map(drop) {
            Ok(()) => assert!(repaired && check(dir.path()).is_sound(), "{ahead:?}"),
            Err(error) => {
                assert!(
                    !repaired && matches!(error, StoreError::Unproven(_)),
                    "{ahead:?}: {error}"
                );
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_record_leads_back_from_stays_refused() {
    let (dir, _) = torn(&[State]).await;
    let error = Store::open_to_repair(dir.path(), CACHE)
        .map(drop)
        .unwrap_err();
    assert!(
        matches!(error, StoreError::Damaged { .. })
            && error.to_string().contains("its unwind records"),
        "{error}"
    );
    assert!(
        matches!(
            Store::open(dir.path(), CACHE, None).map(drop),
            Err(StoreError::Torn { .. })
        ),
        "nothing was written"
    );

    // With a false unwind record, the state after the rewind fails verification, and the store
    // stays refused.
    let (dir, _) = torn(&[State, History]).await;
    Store::falsify_unwind_record(dir.path(), CACHE);
    let (store, left) = Store::open_to_repair(dir.path(), CACHE).unwrap();
    assert!(left.is_some() && repair(&store, &mut |_, _, _| {}).is_err());
    drop(store);
    assert!(matches!(
        Store::open(dir.path(), CACHE, None).map(drop),
        Err(StoreError::Unproven(_))
    ));
}
