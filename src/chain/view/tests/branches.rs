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

/// Going back far below the store reads each record once, and views of the same snapshot share what
/// was read.
#[test]
fn unwind_records_are_read_once() {
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
    let snapshot = store.snapshot().unwrap();
    let back = |near: &[&View], fork| {
        Arc::new(
            View::near_branch(
                near,
                snapshot.clone(),
                fork,
                vec![],
                None,
                None,
                UNWIND_DATA,
            )
            .unwrap(),
        )
    };
    let deep = back(&[], 20);
    // Each row once, however many of the 500 records have it.
    let rows: std::collections::BTreeSet<Bytes> = (21..=520)
        .flat_map(|number| snapshot.unwind_record(number).unwrap().unwrap())
        .map(|(key, _)| key)
        .collect();
    assert_eq!(deep.unwound.rows.len(), rows.len());
    check_view(&deep, &branch[..=20].to_vec(), &mut dice);
    // The same again costs nothing; deeper reads on from there; above it, or at another snapshot,
    // it is of no use.
    assert!(Arc::ptr_eq(&back(&[&deep], 20).unwound, &deep.unwound));
    let middle = back(&[], 270);
    for near in [&middle, &deep] {
        let deeper = back(&[near], 5);
        assert_eq!(deeper.unwound, back(&[], 5).unwound);
        check_view(&deeper, &branch[..=5].to_vec(), &mut dice);
    }
    assert_eq!(back(&[&deep], 270).unwound, middle.unwound);
    let other = View::near_branch(
        &[&deep],
        store.snapshot().unwrap(),
        20,
        vec![],
        None,
        None,
        UNWIND_DATA,
    )
    .unwrap();
    assert!(other.unwound == deep.unwound && !Arc::ptr_eq(&other.unwound, &deep.unwound));
    // Unwind data is bounded, also where it is shared.
    let bounded = |near: &[&View], fork, most| {
        View::near_branch(near, snapshot.clone(), fork, vec![], None, None, most).map(drop)
    };
    let weight = deep.unwound.weight();
    assert!(weight > rows.len() * 100, "{weight}");
    for near in [&[][..], &[&*middle]] {
        assert!(bounded(near, 20, 2 * weight).is_ok());
        assert!(matches!(
            bounded(near, 20, weight / 2),
            Err(ReadError::Far(20))
        ));
    }
}
