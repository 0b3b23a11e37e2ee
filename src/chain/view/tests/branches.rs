//! Views of branches: links between blocks, and unwind data.

use super::*;

#[test]
fn blocks_that_do_not_link_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut dice = Dice(StdRng::seed_from_u64(99));
    let mut plain = Plain::default();
    let store = create(dir.path(), CACHES[2], &mut plain, &mut dice);
    let genesis = Arc::new(View::new(store.snapshot().unwrap(), vec![], None, None).unwrap());
    let first = dice.block(&genesis, &mut plain);
    let view =
        Arc::new(View::new(store.snapshot().unwrap(), vec![first.clone()], None, None).unwrap());
    let second = dice.block(&view, &mut plain);
    let new = |blocks| View::new(store.snapshot().unwrap(), blocks, None, None);
    assert!(matches!(
        new(vec![second.clone()]),
        Err(ReadError::Unlinked(0))
    ));
    assert!(matches!(
        genesis.clone().child(second.clone(), None, None),
        Err(ReadError::Unlinked(2))
    ));
    assert!(matches!(
        new(vec![first.clone(), first.clone()]),
        Err(ReadError::Unlinked(1))
    ));
    assert!(matches!(
        View::near_branch(
            &[],
            store.snapshot().unwrap(),
            1,
            vec![],
            None,
            None,
            UNWIND_DATA
        ),
        Err(ReadError::Unlinked(1))
    ));
    assert!(matches!(
        store.commit(std::slice::from_ref(&second), None, None),
        Err(StoreError::Unlinked { .. })
    ));
    assert_eq!(store.head().number, 0);
    store.commit(&[first, second], None, None).unwrap();
    assert_eq!(store.head().number, 2);
}

/// A store of 520 blocks, and views of its blocks at one snapshot.
struct LongStore {
    branch: Branch,
    dice: Dice,
    snapshot: Snapshot,
    store: Store,
    _dir: tempfile::TempDir,
}

impl LongStore {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut dice = Dice(StdRng::seed_from_u64(77));
        let mut plain = Plain::default();
        let store = create(dir.path(), CACHES[2], &mut plain, &mut dice);
        let mut branch: Branch = vec![(None, plain)];
        for _ in 0..520 {
            let view = Arc::new(View::new(store.snapshot().unwrap(), vec![], None, None).unwrap());
            let mut plain = branch.last().unwrap().1.clone();
            let block = dice.block(&view, &mut plain);
            store
                .commit(std::slice::from_ref(&block), None, None)
                .unwrap();
            branch.push((Some(block), plain));
        }
        Self {
            branch,
            dice,
            snapshot: store.snapshot().unwrap(),
            store,
            _dir: dir,
        }
    }

    /// A view at block `fork`, which reads at most `limit` bytes of unwind data.
    fn bounded(&self, near: &[&View], fork: u64, limit: usize) -> Result<Arc<View>, ReadError> {
        let snapshot = self.snapshot.clone();
        View::near_branch(near, snapshot, fork, vec![], None, None, limit).map(Arc::new)
    }

    fn back(&self, near: &[&View], fork: u64) -> Arc<View> {
        self.bounded(near, fork, UNWIND_DATA).unwrap()
    }

    /// Checks that the view has the state of block `number`.
    fn check(&mut self, view: &Arc<View>, number: usize) {
        check_view(view, &self.branch[..=number].to_vec(), &mut self.dice);
    }

    /// The distinct keys of the rows in the unwind records above block `number`.
    fn rows_above(&self, number: u64) -> std::collections::BTreeSet<Bytes> {
        (number + 1..=520)
            .flat_map(|number| self.snapshot.unwind_record(number).unwrap().unwrap())
            .map(|(key, _)| key)
            .collect()
    }
}

/// A view far below the stored head reads each record once, and views of the same snapshot share
/// the unwind data. The data is bounded, even where it is shared.
#[test]
fn unwind_records_are_read_once() {
    let mut long = LongStore::new();
    let deep = long.back(&[], 20);
    // Each row is present once, however many of the 500 records have it.
    let rows = long.rows_above(20).len();
    assert_eq!(deep.unwound.rows.len(), rows);
    long.check(&deep, 20);
    // A view of the same fork point shares the data, and a deeper one reads only the records below.
    // For a higher fork point or another snapshot, the data cannot be shared.
    assert!(Arc::ptr_eq(&long.back(&[&deep], 20).unwound, &deep.unwound));
    let middle = long.back(&[], 270);
    for near in [&middle, &deep] {
        let deeper = long.back(&[near], 5);
        assert_eq!(deeper.unwound, long.back(&[], 5).unwound);
        long.check(&deeper, 5);
    }
    assert_eq!(long.back(&[&deep], 270).unwound, middle.unwound);
    let snapshot = long.store.snapshot().unwrap();
    let first = std::mem::replace(&mut long.snapshot, snapshot);
    let other = long.back(&[&deep], 20);
    assert!(other.unwound == deep.unwound && !Arc::ptr_eq(&other.unwound, &deep.unwound));
    long.snapshot = first;
    let weight = deep.unwound.weight();
    assert!(weight > rows * 100, "{weight}");
    for near in [&[][..], &[&*middle]] {
        assert!(long.bounded(near, 20, 2 * weight).is_ok());
        assert!(matches!(
            long.bounded(near, 20, weight / 2),
            Err(ReadError::Far(20))
        ));
    }
}
