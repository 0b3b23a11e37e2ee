//! Journals as fjall writes them, whole, torn and damaged.

use super::*;
use crate::chain::store::tests::{block, create};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// A database's journal with several batches, and the offset at which each batch ends.
fn journal() -> (Vec<u8>, Vec<usize>) {
    let dir = tempfile::tempdir().unwrap();
    let store = create(dir.path());
    for _ in 0..5 {
        store.commit(&[block(store.head())], None, None).unwrap();
    }
    let path = store.path().join("0.jnl");
    let mut bytes = std::fs::read(path).unwrap();
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1);
    let ends: Vec<_> = (0..=bytes.len())
        .filter(|end| bytes[..*end].ends_with(TRAILER))
        .collect();
    assert!(ends.len() >= 6 && ends.last() == Some(&bytes.len()));
    (bytes, ends)
}

fn look(journals: &[&[u8]]) -> Option<(PathBuf, u64)> {
    let dir = tempfile::tempdir().unwrap();
    for (number, bytes) in journals.iter().enumerate() {
        std::fs::write(dir.path().join(format!("{number}.jnl")), bytes).unwrap();
    }
    std::fs::write(dir.path().join("0.jnl.cut"), "not looked at").unwrap();
    check(dir.path())
        .unwrap()
        .map(|damaged| (damaged.path.file_name().unwrap().into(), damaged.at))
}

#[test]
fn what_a_killed_process_leaves_is_no_damage() {
    let (bytes, _) = journal();
    let zeros = vec![0; 1 << 20];
    assert_eq!(look(&[]), None);
    assert_eq!(look(&[&[]]), None);
    assert_eq!(look(&[&zeros]), None);
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 0..200 {
        let cut = &bytes[..rng.random_range(0..=bytes.len())];
        assert_eq!(look(&[cut]), None);
        assert_eq!(look(&[&[cut, &zeros].concat()]), None);
    }
}

#[test]
fn a_gap_is_found_and_cut_where_it_begins() {
    let (bytes, ends) = journal();
    let last_whole = |at: usize| {
        ends.iter()
            .copied()
            .take_while(|end| *end <= at)
            .last()
            .unwrap_or(0) as u64
    };
    let mut rng = StdRng::seed_from_u64(2);
    for _ in 0..300 {
        // Damage in the last batch may look like a batch that a kill interrupted.
        let at = rng.random_range(0..ends[ends.len() - 2]);
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << rng.random_range(0..8);
        // The low bits of a sequence number may change without changing the order.
        let in_start = at as u64 - last_whole(at) < 13;
        match look(&[&flipped]) {
            Some((path, found)) => {
                assert_eq!(path, Path::new("0.jnl"));
                assert!(found >= last_whole(at), "byte {at}");
                assert!(found == last_whole(at) || in_start, "byte {at}: {found}");
            }
            None => assert!(in_start, "byte {at}"),
        }
    }
}

#[test]
fn only_the_newest_journal_may_end_in_the_middle() {
    let (bytes, ends) = journal();
    let (first, second) = bytes.split_at(ends[2]);
    assert_eq!(look(&[first, second]), None);
    assert_eq!(
        look(&[&first[..first.len() - 5], second]),
        Some((PathBuf::from("0.jnl"), ends[1] as u64))
    );
    assert_eq!(look(&[second, first]), Some((PathBuf::from("1.jnl"), 0)));

    let dir = tempfile::tempdir().unwrap();
    let torn = [&first[..first.len() - 5], &[0; 100]].concat();
    std::fs::write(dir.path().join("0.jnl"), &torn).unwrap();
    std::fs::write(dir.path().join("1.jnl"), second).unwrap();
    let kept = check(dir.path()).unwrap().unwrap().cut().unwrap();
    assert_eq!(std::fs::read(&kept[0]).unwrap(), torn);
    assert_eq!(std::fs::read(&kept[1]).unwrap(), second);
    assert_eq!(
        std::fs::read(dir.path().join("0.jnl")).unwrap(),
        &bytes[..ends[1]]
    );
    assert!(!dir.path().join("1.jnl").exists());
    assert!(check(dir.path()).unwrap().is_none());
}

#[test]
fn a_missing_journal_is_noticed_and_what_builds_on_it_is_cut() {
    let (bytes, ends) = journal();
    let dir = tempfile::tempdir().unwrap();
    for (number, part) in [
        (4, 0..ends[1]),
        (6, ends[2]..ends[3]),
        (7, ends[3]..ends[4]),
    ] {
        std::fs::write(dir.path().join(format!("{number}.jnl")), &bytes[part]).unwrap();
    }
    let damaged = check(dir.path()).unwrap().unwrap();
    assert_eq!(
        (damaged.path.file_name().unwrap(), damaged.at),
        ("6.jnl".as_ref(), 0)
    );
    assert!(damaged.to_string().contains("missing"), "{damaged}");
    assert_eq!(damaged.cut().unwrap().len(), 2);
    assert!(check(dir.path()).unwrap().is_none());
    assert!(
        dir.path().join("4.jnl").exists()
            && !dir.path().join("6.jnl").exists()
            && !dir.path().join("7.jnl").exists()
    );
}
