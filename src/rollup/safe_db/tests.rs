use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn id(number: u64, salt: u8) -> BlockId {
    let hash = keccak256([&number.to_be_bytes()[..], &[salt]].concat());
    BlockId { number, hash }
}

fn block(l1: u64, l2: u64, salt: u8) -> SafeRecord {
    SafeRecord {
        l2: id(l2, salt),
        derived_from: id(l1, salt),
    }
}

fn temporary() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("safe-heads");
    (folder, path)
}

#[test]
fn the_answer_is_the_newest_record_at_or_below_the_l1_block() {
    let (_folder, path) = temporary();
    let db = SafeDb::open(&path).unwrap();
    let reader = db.clone();
    assert_eq!(reader.at_l1(100).unwrap(), None);
    for (l1, l2) in [(10, 50), (10, 55), (12, 60), (20, 99)] {
        db.record(block(l1, l2, 0)).unwrap();
    }
    let at = |l1| reader.at_l1(l1).unwrap().map(|safe| safe.l2.number);
    assert_eq!(
        [9, 10, 11, 12, 19, 20, u64::MAX].map(at),
        [
            None,
            Some(55),
            Some(55),
            Some(60),
            Some(60),
            Some(99),
            Some(99)
        ]
    );
    drop(db);
    assert_eq!(SafeDb::open(&path).unwrap().last(), Some(block(20, 99, 0)));
}

#[test]
fn the_l1_block_that_made_a_block_safe_is_that_of_the_first_record_from_it_on() {
    let (_folder, path) = temporary();
    let db = SafeDb::open(&path).unwrap();
    let of = |number| match db.l1_of(number) {
        Ok(l1) => l1.number.to_string(),
        Err(error) => error.to_string(),
    };
    let (later, earlier) = (
        "l1 at safe head not found",
        "l1 at safe head history unavailable",
    );
    assert_eq!(of(50), later);
    for (l1, l2) in [(10, 50), (12, 60), (20, 99)] {
        db.record(block(l1, l2, 0)).unwrap();
    }
    let blocks = [49, 50, 51, 60, 61, 99, 100].map(of);
    assert_eq!(blocks, [earlier, "10", "12", "12", "20", "20", later]);
}

/// A record says that everything in its L1 block is applied, which is true of no L1 block whose
/// safe head was above the block that a reset goes to.
#[test]
fn a_reset_keeps_the_records_up_to_its_head_and_writes_none() {
    let (_folder, path) = temporary();
    let db = SafeDb::open(&path).unwrap();
    for n in 1..=10 {
        db.record(block(n, 10 * n, 0)).unwrap();
    }
    let after = |head| {
        db.reset(head).unwrap();
        (db.len(), db.last())
    };
    assert_eq!(after(id(200, 0)), (10, Some(block(10, 100, 0))));
    assert_eq!(after(id(65, 0)), (6, Some(block(6, 60, 0))));
    assert_eq!(after(id(50, 0)), (5, Some(block(5, 50, 0))));
    assert_eq!(after(id(40, 9)), (3, Some(block(3, 30, 0))), "another 40");
    assert_eq!(after(id(3, 0)), (0, None));
}

#[test]
fn a_reset_to_a_recorded_head_keeps_its_record_even_the_only_one() {
    let (_folder, path) = temporary();
    let db = SafeDb::open(&path).unwrap();
    db.record(block(5, 50, 0)).unwrap();
    db.reset(id(50, 0)).unwrap();
    assert_eq!(db.last(), Some(block(5, 50, 0)));
    db.record(block(6, 60, 0)).unwrap();
    db.reset(id(50, 0)).unwrap();
    assert_eq!((db.len(), db.last()), (1, Some(block(5, 50, 0))));
}

#[test]
fn a_record_cut_at_any_byte_is_dropped_and_the_earlier_ones_stay() {
    let (_folder, path) = temporary();
    let db = SafeDb::open(&path).unwrap();
    db.record(block(1, 10, 0)).unwrap();
    db.record(block(2, 20, 0)).unwrap();
    drop(db);
    let whole = std::fs::read(&path).unwrap();
    for cut in 88..176 {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let db = SafeDb::open(&path).unwrap();
        assert_eq!(db.last(), Some(block(1, 10, 0)), "cut at {cut}");
        db.record(block(3, 30, 0)).unwrap();
        assert_eq!(db.last(), Some(block(3, 30, 0)));
    }
    // A torn sector: the file's length is right, and the content is wrong.
    let mut torn = whole.clone();
    torn[120] ^= 1;
    std::fs::write(&path, &torn).unwrap();
    assert_eq!(SafeDb::open(&path).unwrap().last(), Some(block(1, 10, 0)));
    let mut damaged = whole;
    damaged[20] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let reader = SafeDb::open(&path).unwrap();
    assert!(matches!(
        reader.at_l1(1),
        Err(SafeDbError::Damaged { position: 0, .. })
    ));
}

/// The same records, accessed through another file with some failing operation.
fn through(db: &SafeDb, file: &Path, writable: bool) -> SafeDb {
    let file = OpenOptions::new().read(true).write(writable).open(file);
    SafeDb {
        file: Arc::new(file.unwrap()),
        ..db.clone()
    }
}

fn append(path: &Path, records: &[SafeRecord]) {
    let bytes: Vec<u8> = records.iter().flat_map(encode).collect();
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    io::Write::write_all(&mut file, &bytes).unwrap();
}

#[test]
fn a_record_that_is_not_synced_is_not_published_and_is_written_again() {
    let (_folder, path) = temporary();
    let [first, second] = [block(1, 10, 0), block(2, 20, 0)];
    // `/dev/zero` accepts writes and fails to sync them; `/dev/full` has no space left.
    for device in ["/dev/zero", "/dev/full"] {
        std::fs::write(&path, "").unwrap();
        let db = SafeDb::open(&path).unwrap();
        db.record(first).unwrap();
        let broken = through(&db, Path::new(device), true);
        for _ in 0..3 {
            broken.record(second).unwrap_err();
            assert_eq!((db.len(), db.last()), (1, Some(first)), "{device}");
            assert_eq!(db.at_l1(5).unwrap(), Some(first));
        }
        // The failed writes have left these bytes after the records.
        append(&path, &[block(8, 80, 0), block(9, 90, 0)]);
        db.record(second).unwrap();
        assert_eq!(db.last(), Some(second));
        let reopened = SafeDb::open(&path).unwrap();
        assert_eq!(reopened.newest(9).unwrap(), [first, second], "{device}");
    }
}

#[test]
fn removed_records_do_not_follow_a_new_one_though_their_removal_failed() {
    let (_folder, path) = temporary();
    for repeated in [false, true] {
        std::fs::write(&path, "").unwrap();
        let db = SafeDb::open(&path).unwrap();
        for n in 1..=5 {
            db.record(block(n, 10 * n, 0)).unwrap();
        }
        // The file is not writable, so its size cannot be changed.
        let fixed = through(&db, &path, false);
        fixed.record(block(3, 30, 1)).unwrap_err();
        fixed.truncate(2).unwrap_err();
        fixed.reset(id(200, 0)).unwrap_err();
        assert_eq!(db.last(), Some(block(2, 20, 0)));
        let mut expected = vec![block(1, 10, 0), block(2, 20, 0)];
        if repeated {
            db.reset(id(200, 0)).unwrap();
        } else {
            db.record(block(6, 60, 0)).unwrap();
            expected.push(block(6, 60, 0));
        }
        let reopened = SafeDb::open(&path).unwrap();
        assert_eq!(reopened.newest(9).unwrap(), expected);
    }
}

#[test]
fn the_newest_records_are_read_oldest_first() {
    let (_folder, path) = temporary();
    let db = SafeDb::open(&path).unwrap();
    assert!(db.newest(3).unwrap().is_empty());
    for n in 1..=4 {
        db.record(block(n, 10 * n, 0)).unwrap();
    }
    let newest = |most| db.newest(most).unwrap();
    assert_eq!(newest(2), [3, 4].map(|n| block(n, 10 * n, 0)));
    assert_eq!(newest(9), [1, 2, 3, 4].map(|n| block(n, 10 * n, 0)));
}

proptest! {
    /// Compares records, truncations and reopenings in any order with a map.
    #[test]
    fn the_file_answers_like_a_map(steps in prop::collection::vec((0u64..30, 0u64..300, any::<bool>()), 1..60)) {
        let (_folder, path) = temporary();
        let mut db = SafeDb::open(&path).unwrap();
        let mut map = BTreeMap::new();
        for (l1, l2, reopen) in steps {
            map.retain(|known, _| *known < l1);
            map.insert(l1, block(l1, l2, 1));
            db.record(block(l1, l2, 1)).unwrap();
            if reopen {
                db = SafeDb::open(&path).unwrap();
            }
            for asked in 0..31 {
                let expected = map.range(..=asked).next_back().map(|(_, safe)| *safe);
                prop_assert_eq!(db.at_l1(asked).unwrap(), expected);
            }
        }
    }
}
