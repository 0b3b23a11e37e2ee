//! Logged payloads are read back once and in order, and at most one block is built per height,
//! parent and L1 origin.

use super::*;
use proptest::prelude::*;

impl PayloadLog {
    /// Flushes the memtables and waits until the data is in table files.
    pub(crate) fn flush(&self) -> Result<(), LogError> {
        let spaces = [&self.0.payloads, &self.0.index, &self.0.guard];
        Ok(spaces
            .into_iter()
            .try_for_each(|space| space.rotate_memtable_and_wait())?)
    }
}

fn payload(number: u64, parent: B256, salt: u8) -> Payload {
    let header = Header {
        number,
        parent_hash: parent,
        extra_data: vec![salt].into(),
        ..Default::default()
    };
    Payload::sealed(header, vec![vec![salt; 40].into(), vec![1, 2, 3].into()])
}

fn heights(log: &PayloadLog, after: u64) -> Vec<u64> {
    log.after(after)
        .map(|logged| logged.unwrap().payload.number())
        .collect()
}

#[test]
fn payloads_come_back_in_order_of_arrival_also_after_a_reopen() {
    let dir = tempfile::tempdir().unwrap();
    let blocks: Vec<_> = [5u64, 3, 4, 3]
        .iter()
        .zip(0..)
        .map(|(n, salt)| payload(*n, B256::ZERO, salt))
        .collect();
    {
        let log = PayloadLog::open(dir.path()).unwrap();
        for block in &blocks[..3] {
            log.append(block, 7).unwrap();
        }
        log.append(&blocks[0], 9).unwrap();
        assert_eq!(heights(&log, 0), [5, 3, 4]);
    }
    let log = PayloadLog::open(dir.path()).unwrap();
    log.append(&blocks[3], 2).unwrap();
    assert_eq!(heights(&log, 0), [5, 3, 4, 3]);
    assert_eq!(heights(&log, 3), [5, 4]);
    let logged = log.by_hash(blocks[0].hash).unwrap().unwrap();
    assert_eq!((logged.payload, logged.origin), (blocks[0].clone(), 7));
    assert_eq!(log.by_hash(B256::ZERO).unwrap(), None);
    let mut threes: Vec<_> = log
        .by_number(3)
        .unwrap()
        .into_iter()
        .map(|l| l.payload.hash)
        .collect();
    threes.sort();
    let mut want = vec![blocks[1].hash, blocks[3].hash];
    want.sort();
    assert_eq!(threes, want);
    log.prune(4).unwrap();
    assert_eq!(heights(&log, 0), [5, 4]);
    assert!(log.by_number(3).unwrap().is_empty());
    assert_eq!(log.by_hash(blocks[1].hash).unwrap(), None);
    log.prune(100).unwrap();
    drop(log);
    let log = PayloadLog::open(dir.path()).unwrap();
    log.append(&blocks[1], 0).unwrap();
    assert_eq!(heights(&log, 0), [3]);
}

#[test]
fn the_head_is_told_from_what_came_later() {
    let dir = tempfile::tempdir().unwrap();
    let blocks: Vec<_> = (1..=3)
        .map(|salt| payload(salt.into(), B256::ZERO, salt))
        .collect();
    {
        let log = PayloadLog::open(dir.path()).unwrap();
        assert_eq!(log.head().unwrap(), None);
        log.append(&blocks[1], 0).unwrap();
        log.append(&blocks[0], 0).unwrap();
        log.set_head(blocks[1].id()).unwrap();
        log.append(&blocks[2], 0).unwrap();
    }
    let log = PayloadLog::open(dir.path()).unwrap();
    assert_eq!(
        log.head().unwrap(),
        Some(LoggedHead {
            head: blocks[1].id(),
            next: 2
        })
    );
    assert_eq!(
        log.arrivals(0).unwrap(),
        [
            (0, blocks[1].id()),
            (1, blocks[0].id()),
            (2, blocks[2].id())
        ]
    );
    assert_eq!(log.arrivals(2).unwrap(), [(2, blocks[2].id())]);
    assert_eq!(log.at(2).unwrap().unwrap().payload, blocks[2]);
    log.set_head(blocks[2].id()).unwrap();
    log.prune(9).unwrap();
    assert!(log.arrivals(0).unwrap().is_empty() && log.at(2).unwrap().is_none());
    drop(log);
    let log = PayloadLog::open(dir.path()).unwrap();
    log.append(&blocks[0], 0).unwrap();
    assert_eq!(log.arrivals(0).unwrap(), [(3, blocks[0].id())]);
}

/// A repair that cuts the journal leaves index rows without payloads, if only the index was
/// flushed.
#[test]
fn the_arrival_number_of_a_lost_payload_is_not_assigned_again() {
    let dir = tempfile::tempdir().unwrap();
    let blocks: Vec<_> = (1..=3)
        .map(|salt| payload(salt.into(), B256::ZERO, salt))
        .collect();
    {
        let log = PayloadLog::open(dir.path()).unwrap();
        log.append(&blocks[0], 0).unwrap();
        log.append(&blocks[1], 0).unwrap();
        log.0.payloads.remove(1u64.to_be_bytes()).unwrap();
    }
    let log = PayloadLog::open(dir.path()).unwrap();
    log.append(&blocks[2], 0).unwrap();
    let lost = log.by_hash(blocks[1].hash);
    assert!(matches!(lost, Err(LogError::Damaged { .. })), "{lost:?}");
    assert_eq!(log.at(2).unwrap().unwrap().payload, blocks[2]);
    // Pruning the index rows of the lost payload removes no other payload.
    log.prune(3).unwrap();
    assert_eq!(heights(&log, 0), [3]);
}

#[test]
fn a_lost_payload_is_logged_again() {
    let dir = tempfile::tempdir().unwrap();
    let block = payload(1, B256::ZERO, 1);
    let log = PayloadLog::open(dir.path()).unwrap();
    log.append(&block, 0).unwrap();
    log.0.payloads.remove(0u64.to_be_bytes()).unwrap();
    log.append(&block, 0).unwrap();
    let logged = log.by_hash(block.hash).unwrap().unwrap();
    assert_eq!(logged.payload, block);
    assert_eq!(log.arrivals(0).unwrap(), [(1, block.id())]);
}

#[test]
fn one_block_for_one_height_parent_and_origin() {
    let dir = tempfile::tempdir().unwrap();
    let (parent, l1) = (B256::repeat_byte(1), B256::repeat_byte(2));
    let (first, second) = (payload(8, parent, 1), payload(8, parent, 2));
    {
        let log = PayloadLog::open(dir.path()).unwrap();
        log.append_built(&first, l1, 0).unwrap();
        log.append_built(&first, l1, 0).unwrap();
    }
    let log = PayloadLog::open(dir.path()).unwrap();
    let conflict = log.append_built(&second, l1, 0);
    assert!(matches!(conflict, Err(LogError::GuardConflict { have }) if have == first.hash));
    assert_eq!(log.by_hash(second.hash).unwrap(), None);
    log.append_built(&second, B256::repeat_byte(3), 0).unwrap();
    assert_eq!(heights(&log, 0), [8, 8]);
    log.prune(9).unwrap();
    assert_eq!(hashes(&log, 8, parent), [first.hash, second.hash]);
    log.prune(9 + GUARD_WINDOW).unwrap();
    assert!(hashes(&log, 8, parent).is_empty());
}

fn hashes(log: &PayloadLog, height: u64, parent: B256) -> Vec<B256> {
    log.guards(height, parent)
        .unwrap()
        .into_iter()
        .map(|guard| guard.hash)
        .collect()
}

#[test]
fn the_block_that_was_sent_to_the_signer_last_is_told_from_the_others_of_its_height() {
    let dir = tempfile::tempdir().unwrap();
    let (parent, origin) = (B256::repeat_byte(1), B256::repeat_byte);
    let blocks: Vec<_> = (1..=3).map(|salt| payload(8, parent, salt)).collect();
    {
        let log = PayloadLog::open(dir.path()).unwrap();
        // Guard rows of other heights and parents do not conflict.
        log.append_built(&payload(8, origin(9), 1), origin(2), 0)
            .unwrap();
        log.append_built(&payload(9, parent, 1), origin(2), 0)
            .unwrap();
        // The guard keys are in another order than the calls.
        log.append_built(&blocks[0], origin(4), 0).unwrap();
        log.append_built(&blocks[1], origin(3), 0).unwrap();
        assert_eq!(hashes(&log, 8, parent), [blocks[0].hash, blocks[1].hash]);
        log.append_built(&blocks[0], origin(4), 0).unwrap();
        log.append_built(&blocks[0], origin(4), 0).unwrap();
    }
    let log = PayloadLog::open(dir.path()).unwrap();
    assert_eq!(hashes(&log, 8, parent), [blocks[1].hash, blocks[0].hash]);
    let last = SignGuard {
        l1_origin: origin(4),
        hash: blocks[0].hash,
        sent_order: 3,
    };
    assert_eq!(log.guards(8, parent).unwrap().last(), Some(&last));
    assert!(
        matches!(log.append_built(&blocks[2], origin(3), 0), Err(LogError::GuardConflict { have }) if have == blocks[1].hash)
    );
}

#[test]
fn guard_rows_without_a_turn_count_as_signed_in_order_of_arrival() {
    let dir = tempfile::tempdir().unwrap();
    let (parent, origin) = (B256::repeat_byte(1), B256::repeat_byte);
    let blocks: Vec<_> = (1..=3).map(|salt| payload(8, parent, salt)).collect();
    let log = PayloadLog::open(dir.path()).unwrap();
    // Guard rows of older versions: the hash without an order number.
    for (block, l1_origin) in [(&blocks[0], origin(4)), (&blocks[1], origin(3))] {
        log.append(block, 1).unwrap();
        log.0
            .guard
            .insert(guard_key(8, &parent, &l1_origin), block.hash.as_slice())
            .unwrap();
    }
    assert_eq!(hashes(&log, 8, parent), [blocks[0].hash, blocks[1].hash]);
    assert!(
        matches!(log.append_built(&blocks[2], origin(4), 0), Err(LogError::GuardConflict { have }) if have == blocks[0].hash)
    );
    log.append_built(&blocks[0], origin(4), 0).unwrap();
    assert_eq!(hashes(&log, 8, parent), [blocks[1].hash, blocks[0].hash]);
    log.0
        .guard
        .insert(guard_key(8, &parent, &origin(5)), [0; 35])
        .unwrap();
    assert!(matches!(
        log.guards(8, parent),
        Err(LogError::Damaged { .. })
    ));
}

#[test]
fn nothing_is_signed_after_a_cut() {
    let dir = tempfile::tempdir().unwrap();
    let log = PayloadLog::open(dir.path()).unwrap();
    mark_cut(dir.path()).unwrap();
    let block = payload(1, B256::ZERO, 1);
    let refused = log.append_built(&block, B256::ZERO, 0);
    assert!(
        matches!(&refused, Err(LogError::GuardsCut(file)) if *file == dir.path().join(GUARDS_CUT))
    );
    log.append(&block, 0).unwrap();
    std::fs::remove_file(dir.path().join(GUARDS_CUT)).unwrap();
    log.append_built(&block, B256::ZERO, 0).unwrap();
}

#[test]
fn damage_and_strangers_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let log = PayloadLog::open(dir.path()).unwrap();
    let block = payload(1, B256::ZERO, 1);
    log.append(&block, 0).unwrap();
    let mut row = encode(&block, 0);
    row[60] ^= 1;
    log.0.payloads.insert(0u64.to_be_bytes(), row).unwrap();
    assert!(matches!(log.at(0), Err(LogError::Damaged { .. })));
    assert!(matches!(
        log.by_hash(block.hash),
        Err(LogError::Damaged { .. })
    ));
    assert!(matches!(
        log.after(0).next(),
        Some(Err(LogError::Damaged { .. }))
    ));
    assert!(matches!(
        PayloadLog::open(dir.path()),
        Err(LogError::Locked)
    ));
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("file"), "x").unwrap();
    assert!(matches!(
        PayloadLog::open(other.path()),
        Err(LogError::NotALog(_))
    ));
}

#[test]
fn nothing_is_logged_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = PayloadLog::open(dir.path()).unwrap();
    Arc::get_mut(&mut log.0).unwrap().floor = u64::MAX;
    assert!(matches!(
        log.append(&payload(1, B256::ZERO, 1), 0),
        Err(LogError::NoSpace {
            floor: u64::MAX,
            ..
        })
    ));
    assert!(heights(&log, 0).is_empty());
}

proptest! {
    #[test]
    fn rows_round_trip(
        number in any::<u64>(), parent in any::<[u8; 32]>(), origin in any::<u8>(), extra in prop::collection::vec(any::<u8>(), 0..40),
        base_fee in prop::option::of(any::<u64>()), transactions in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..5)
    ) {
        let header = Header {
            number, parent_hash: parent.into(), extra_data: extra.into(), base_fee_per_gas: base_fee, ..Default::default()
        };
        let payload = Payload::sealed(header, transactions.into_iter().map(Bytes::from).collect());
        prop_assert_eq!(decode(&encode(&payload, origin)), Some((payload, origin)));
    }

    #[test]
    fn damaged_rows_are_refused(at in any::<prop::sample::Index>(), flip in 1u8.., cut in any::<bool>()) {
        let mut row = encode(&payload(3, B256::ZERO, 5), 1);
        let at = at.index(row.len());
        if cut { row.truncate(at) } else { row[at] ^= flip }
        prop_assert_eq!(decode(&row), None);
    }

    #[test]
    fn hostile_rows_never_panic(row in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(decode(&row), None);
    }
}
