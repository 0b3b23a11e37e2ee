//! Opening, refusing to open, and surviving a kill. The contents of rows are tested through views.

use super::open::{LARGE_GENESIS, OTHER_CLIENTS};
use super::*;
use crate::chain::{
    rows::{Overlay, RowChange, keys},
    view::{UNWIND_DATA, View},
};
use alloy_consensus::Header;
use alloy_primitives::B256;
use starling_proto::payload::Payload;
use std::collections::BTreeMap;
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

pub(super) const CACHE: u64 = 1 << 20;

pub(super) fn genesis() -> Payload {
    Payload::sealed(
        Header {
            extra_data: b"genesis"[..].into(),
            ..Default::default()
        },
        vec![],
    )
}

fn identity() -> Identity {
    Identity {
        chain_id: 901,
        genesis_hash: genesis().hash,
    }
}

pub(super) fn create(dir: &Path) -> Store {
    Store::create(dir, CACHE, identity(), &genesis(), &Overlay::default()).unwrap()
}

/// A block whose rows contain its number.
pub(super) fn block(parent: BlockId) -> Arc<ExecutedBlock> {
    let number = parent.number + 1;
    let header = Header {
        parent_hash: parent.hash,
        number,
        ..Default::default()
    };
    let value = |n: u64| (n > 0).then(|| Bytes::copy_from_slice(&n.to_be_bytes()));
    let mut rows = BTreeMap::new();
    rows.insert(
        keys::account(&B256::ZERO),
        RowChange {
            before: value(number - 1),
            after: value(number),
        },
    );
    rows.insert(
        keys::account(&B256::from(alloy_primitives::U256::from(number))),
        RowChange {
            before: None,
            after: value(number),
        },
    );
    let overlay = Overlay {
        rows,
        codes: vec![],
        names: vec![],
    };
    Arc::new(ExecutedBlock::new(
        Arc::new(Payload::sealed(header, vec![])),
        vec![],
        Arc::default(),
        Arc::new(overlay),
    ))
}

fn check_whole(store: &Store) {
    let snapshot = store.snapshot().unwrap();
    let head = snapshot.head().number;
    let row = snapshot.state_row(&keys::account(&B256::ZERO)).unwrap();
    assert_eq!(
        row.as_deref().map(|r| r.to_vec()),
        (head > 0).then(|| head.to_be_bytes().to_vec())
    );
    assert_eq!(
        snapshot.state_scan(b"a", b"a").count() as u64,
        if head > 0 { head + 1 } else { 0 }
    );
    for number in 0..=head {
        assert!(snapshot.hash_of(number).unwrap().is_some());
        assert_eq!(snapshot.header(number).unwrap().unwrap().number, number);
        assert_eq!(
            snapshot.unwind_record(number).unwrap().is_some(),
            number > 0
        );
    }
    assert_eq!(snapshot.hash_of(head + 1).unwrap(), None);
}

#[test]
fn a_large_genesis_is_not_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let row = |n: u64| {
        let key = keys::account(&B256::from(alloy_primitives::U256::from(n)));
        (
            key,
            RowChange {
                before: None,
                after: Some(vec![1].into()),
            },
        )
    };
    let large = Overlay {
        rows: (0..=LARGE_GENESIS as u64).map(row).collect(),
        codes: vec![],
        names: vec![],
    };
    drop(Store::create(dir.path(), CACHE, identity(), &genesis(), &large).unwrap());
    let store = Store::open(dir.path(), CACHE, None).unwrap();
    assert_eq!(store.buffered(), 0);
    assert_eq!(
        store.snapshot().unwrap().state_scan(b"a", b"a").count(),
        large.rows.len()
    );
}

#[test]
fn refusals_say_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("data");
    let open = |want| Store::open(&at, CACHE, want).map(|_| ()).unwrap_err();
    assert!(matches!(open(None), StoreError::Missing(path) if path == at));
    assert!(!at.exists(), "a refusal leaves nothing behind");

    std::fs::create_dir_all(at.join("chain")).unwrap();
    std::fs::write(at.join("chain/CURRENT"), "x").unwrap();
    assert!(matches!(open(None), StoreError::NotStarling(_)));
    assert!(matches!(
        Store::create(&at, CACHE, identity(), &genesis(), &Overlay::default()),
        Err(StoreError::NotStarling(_))
    ));
    std::fs::remove_file(at.join("chain/CURRENT")).unwrap();

    // An initialisation that was cut short can be repeated.
    drop(Database::builder(at.join("chain")).open().unwrap());
    assert!(matches!(open(None), StoreError::Uninitialised(_)));
    drop(create(&at));

    let exists = Store::create(&at, CACHE, identity(), &genesis(), &Overlay::default());
    assert!(matches!(exists, Err(StoreError::Exists(have)) if have == identity()));
    let other = Identity {
        chain_id: 10,
        ..identity()
    };
    assert!(
        matches!(open(Some(other)), StoreError::OtherChain { have, want } if have == identity() && want == other)
    );
    let text = open(Some(other)).to_string();
    assert!(
        text.contains("have: chain id 901") && text.contains("want: chain id 10,"),
        "{text}"
    );
}

#[test]
fn a_database_without_its_version_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    drop(create(dir.path()));
    let version = dir.path().join("chain/version");
    for damage in [
        |path: &Path| std::fs::write(path, "").unwrap(),
        |path: &Path| std::fs::remove_file(path).unwrap(),
    ] {
        damage(&version);
        let error = Store::open(dir.path(), CACHE, None).map(drop).unwrap_err();
        assert!(
            matches!(error, StoreError::Damaged { .. })
                && error.to_string().contains("starling init"),
            "{error}"
        );
    }
}

#[test]
fn another_programs_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::builder(dir.path().join("chain")).open().unwrap();
    db.keyspace("recipes", ::fjall::KeyspaceCreateOptions::default)
        .unwrap();
    drop(db);
    assert!(matches!(
        Store::open(dir.path(), CACHE, None),
        Err(StoreError::NotStarling(_))
    ));
}

#[test]
fn another_clients_directory_is_refused() {
    for (sign, client) in OTHER_CLIENTS {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join(sign)).unwrap();
        let error = Store::open(dir.path(), CACHE, None)
            .map(|_| ())
            .unwrap_err();
        assert!(matches!(error, StoreError::OtherClient { client: have, .. } if have == client));
        assert!(
            Store::create(
                dir.path(),
                CACHE,
                identity(),
                &genesis(),
                &Overlay::default()
            )
            .is_err()
        );
        assert!(!dir.path().join("LOCK").exists() && !dir.path().join(DATABASE).exists());
    }
}

#[test]
fn another_schema_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path());
    store.0.spaces[Space::Meta as usize]
        .insert(SCHEMA_ROW, (SCHEMA + 1).to_be_bytes())
        .unwrap();
    drop(store);
    let error = Store::open(dir.path(), CACHE, None)
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(error, StoreError::Schema { have, want: SCHEMA } if have == SCHEMA + 1));
}

#[test]
fn keyspaces_that_disagree_are_refused() {
    for space in Space::ALL {
        let dir = tempfile::tempdir().unwrap();
        let store = create(dir.path());
        let first = block(store.head());
        store
            .commit(std::slice::from_ref(&first), None, None)
            .unwrap();
        let rows = &store.0.spaces[space as usize];
        match space {
            Space::Blocks => [keys::header(1), keys::body(1), keys::receipts(1)]
                .iter()
                .for_each(|key| rows.remove(key.as_ref()).unwrap()),
            _ => rows.insert(HEAD, codec::encode_id(genesis().id())).unwrap(),
        }
        drop(store);
        let error = Store::open(dir.path(), CACHE, None)
            .map(|_| ())
            .unwrap_err();
        assert!(
            matches!(&error, StoreError::Torn { heads, .. } if heads.contains(&format!("{}: 0", space.name()))),
            "{error}"
        );
    }
}

#[test]
fn one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path());
    let pid = std::process::id();
    let locked = Store::open(dir.path(), CACHE, None)
        .map(|_| ())
        .unwrap_err();
    assert!(
        matches!(locked, StoreError::Locked { pid: Some(have) } if have == pid),
        "{locked}"
    );
    let snapshot = store.snapshot().unwrap();
    drop(store);
    assert!(
        matches!(
            Store::open(dir.path(), CACHE, None),
            Err(StoreError::Locked { .. })
        ),
        "a snapshot keeps the store open"
    );
    drop(snapshot);
    // The pid of a dead process in the file does not count as a lock.
    std::fs::write(dir.path().join("LOCK"), "1\n").unwrap();
    drop(Store::open(dir.path(), CACHE, None).unwrap());
}

#[test]
fn heads_and_settings_are_kept_and_come_down_with_an_unwind() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path());
    let first = block(store.head());
    let second = block(first.payload.id());
    store
        .commit(
            &[first.clone(), second.clone()],
            Some(second.payload.id()),
            Some(first.payload.id()),
        )
        .unwrap();
    store.commit(&[], None, None).unwrap();
    store.set_setting("genesis", b"{}").unwrap();
    store.rotate().unwrap();
    drop(store);
    let store = Store::open(dir.path(), CACHE, Some(identity())).unwrap();
    check_whole(&store);
    assert_eq!(
        store
            .setting("genesis")
            .unwrap()
            .as_deref()
            .map(|v| v.to_vec()),
        Some(b"{}".to_vec())
    );
    assert_eq!(store.setting("other").unwrap(), None);
    let old = store.snapshot().unwrap();
    assert_eq!(
        (old.safe(), old.finalized()),
        (Some(second.payload.id()), Some(first.payload.id()))
    );
    assert_eq!(store.unwind_one().unwrap(), first.payload.id());
    let new = store.snapshot().unwrap();
    assert_eq!(
        (new.safe(), new.finalized()),
        (Some(first.payload.id()), Some(first.payload.id()))
    );
    assert_eq!(
        (new.head(), old.head()),
        (first.payload.id(), second.payload.id())
    );
    check_whole(&store);
}

#[test]
fn nothing_is_written_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = create(dir.path());
    let first = block(store.head());
    store
        .commit(std::slice::from_ref(&first), None, None)
        .unwrap();
    Arc::get_mut(&mut store.0).unwrap().floor = u64::MAX;
    let refused = store.commit(&[block(first.payload.id())], None, None);
    assert!(matches!(
        refused,
        Err(StoreError::NoSpace {
            floor: u64::MAX,
            ..
        })
    ));
    assert!(matches!(
        store.unwind_one(),
        Err(StoreError::NoSpace { .. })
    ));
    assert_eq!(store.head(), first.payload.id());
    check_whole(&store);
}

#[test]
fn unwind_records_are_dropped_below_the_finalized_head() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path());
    let mut blocks = vec![block(store.head())];
    for n in 1..UNWIND_MARGIN as usize + 20 {
        blocks.push(block(blocks[n - 1].payload.id()));
    }
    let id = |number: u64| blocks[number as usize - 1].payload.id();
    let kept = |number: u64| {
        store
            .snapshot()
            .unwrap()
            .unwind_record(number)
            .unwrap()
            .is_some()
    };
    store.commit(&blocks[..5], None, Some(id(5))).unwrap();
    assert!(kept(1));
    store
        .commit(&blocks[5..], None, Some(id(UNWIND_MARGIN + 10)))
        .unwrap();
    assert!(!kept(1) && !kept(9) && kept(10));
    store
        .commit(&[], None, Some(id(UNWIND_MARGIN + 4)))
        .unwrap();
    store
        .commit(&[], None, Some(id(UNWIND_MARGIN + 12)))
        .unwrap();
    assert!(!kept(11) && kept(12));
    // The bound in the keyspace of the records counts. An older one in `meta` does not matter.
    store.0.spaces[Space::Meta as usize]
        .insert(UNWIND_ROW, 1u64.to_be_bytes())
        .unwrap();
    assert_eq!(store.snapshot().unwrap().oldest_unwind(), 12);
    assert_eq!(store.unwind_one().unwrap(), id(UNWIND_MARGIN + 19));
}

#[test]
fn missing_and_damaged_rows_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path());
    let first = block(store.head());
    store
        .commit(std::slice::from_ref(&first), None, None)
        .unwrap();
    store.0.spaces[Space::History as usize]
        .remove(keys::unwind(1).as_ref())
        .unwrap();
    assert!(matches!(
        store.unwind_one(),
        Err(StoreError::NoUnwindRecord(1))
    ));
    let branch = View::near_branch(
        &[],
        store.snapshot().unwrap(),
        0,
        vec![],
        None,
        None,
        UNWIND_DATA,
    );
    assert!(matches!(branch, Err(ReadError::Pruned(1))));
    store.0.spaces[Space::Blocks as usize]
        .insert(keys::header(first.payload.number()).as_ref(), "?")
        .unwrap();
    let view = View::new(store.snapshot().unwrap(), vec![], None, None);
    assert!(matches!(view, Err(ReadError::Damaged(what)) if what.ends_with("of blocks")));
}

#[test]
fn a_gap_below_the_head_is_found() {
    for (space, gone) in [(Space::Index, 0), (Space::Blocks, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let store = create(dir.path());
        let mut blocks = vec![block(store.head())];
        for n in 0..9 {
            blocks.push(block(blocks[n].payload.id()));
        }
        store.commit(&blocks, None, None).unwrap();
        // Do not read the row before it is removed: it would be cached.
        let id = blocks[5].payload.id();
        let key = [keys::hash_of(id.number), keys::header(id.number)][gone].clone();
        store.0.spaces[space as usize].remove(key.as_ref()).unwrap();
        let refused = store.snapshot().unwrap().check_tip();
        assert!(
            matches!(&refused, Err(StoreError::Gap { block, .. }) if *block == id),
            "{refused:?}"
        );
    }
}

const CHILD: &str = "STARLING_TEST_STORE";

/// Not a test by itself: the process that `a_killed_process_loses_nothing_it_committed` kills.
#[test]
fn child_that_commits_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let store = Store::open(Path::new(&dir), CACHE, None).unwrap();
    check_whole(&store);
    loop {
        let number = store.head().number;
        if number % 7 == 6 {
            store.unwind_one().unwrap();
        }
        let mut blocks = vec![block(store.head())];
        blocks.push(block(blocks[0].payload.id()));
        store.commit(&blocks, None, None).unwrap();
        println!("committed {}", store.head().number);
    }
}

#[test]
fn a_killed_process_loses_nothing_it_committed() {
    let dir = tempfile::tempdir().unwrap();
    drop(create(dir.path()));
    let mut stored = 0;
    for round in 1..=5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "chain::store::tests::child_that_commits_until_it_is_killed",
                "--nocapture",
            ])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut told = stored;
        while told < stored + 10 * round {
            let line = lines.next().expect("the child stopped").unwrap();
            told = line
                .rsplit_once("committed ")
                .map_or(told, |(_, number)| number.parse().unwrap());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let store = Store::open(dir.path(), CACHE, Some(identity())).unwrap();
        stored = store.head().number;
        // One unwind may have been committed but not printed yet.
        assert!(stored + 1 >= told, "{stored} of {told}");
        check_whole(&store);
    }
}

#[test]
fn the_oldest_body_is_the_lowest_that_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path());
    let mut parent = genesis().id();
    for _ in 0..20 {
        let block = block(parent);
        parent = block.payload.id();
        store.commit(&[block], None, None).unwrap();
    }
    assert_eq!(store.snapshot().unwrap().oldest_body().unwrap(), 0);
    // Remove the bodies from the lowest block upward, until only the head's body is left.
    let remove =
        |space: Space, key: Bytes| store.0.spaces[space as usize].remove(key.as_ref()).unwrap();
    for gone in 0..20 {
        remove(Space::Blocks, keys::body(gone));
        assert_eq!(store.snapshot().unwrap().oldest_body().unwrap(), gone + 1);
    }
}
