use super::*;
use crate::batcher::testing::L2;

#[test]
fn blocks_are_held_in_order_and_bodies_come_and_go() {
    let l2 = L2::new(6);
    let mut held = HeldBlocks::default();
    held.restart(l2.reference(1).id);
    assert!(held.is_empty());
    assert_eq!(held.insert(l2.payload(3)), Insertion::Unwanted);
    for number in 2..=5 {
        assert_eq!(held.first_missing(2), number);
        assert_eq!(held.insert(l2.payload(number)), Insertion::Held);
        assert_eq!(held.insert(l2.payload(number)), Insertion::Unwanted);
    }
    let weight = |numbers: std::ops::RangeInclusive<u64>| -> usize {
        numbers.map(|number| l2.payload(number).weight()).sum()
    };
    assert_eq!(held.body_bytes(), weight(2..=5));
    held.drop_body(3);
    assert_eq!(held.body_bytes(), weight(2..=5) - weight(3..=3));
    assert_eq!((held.first_missing(2), held.first_missing(4)), (3, 6));
    assert_eq!(held.insert(l2.payload(3)), Insertion::Held, "again");
    held.prune(3);
    assert_eq!(held.base(), l2.reference(3).id);
    assert_eq!(held.body_bytes(), weight(4..=5));
    held.prune(9);
    held.prune(1);
    assert_eq!((held.base().number, held.newest().number), (3, 5));
    held.drop_bodies();
    assert_eq!((held.body_bytes(), held.first_missing(4)), (0, 4));
    let totals = held.totals(5);
    assert_eq!(totals.blocks, 1);
    assert_eq!(totals.sizes, BlockSizes::of(&l2.payload(5)));
    assert_eq!(held.totals(0).blocks, 2);
}

#[test]
fn a_block_of_another_branch_is_a_reorg() {
    let l2 = L2::new(6);
    let other = L2::fork(&l2, 2, 6);
    let mut held = HeldBlocks::default();
    held.restart(l2.reference(2).id);
    for number in 3..=4 {
        held.insert(l2.payload(number));
    }
    assert_eq!(held.insert(other.payload(4)), Insertion::Reorg);
    assert_eq!(held.insert(other.payload(5)), Insertion::Reorg);
    assert_eq!(held.insert(other.payload(6)), Insertion::Unwanted);
    held.restart(l2.reference(3).id);
    assert_eq!(
        held.insert(other.payload(4)),
        Insertion::Reorg,
        "on the base"
    );
}
