//! Chains whose upper origins are gone, and whose uppermost are above L1's head.

use super::*;
use proptest::prelude::*;

const GONE: Standing = Standing::Gone {
    canonical: B256::ZERO,
};

/// Origins up to `canonical` are canonical, those above `visible` ahead of L1's head; with the number of requests.
fn run(floor: u64, head: u64, canonical: u64, visible: u64) -> (Retreat, u32) {
    let mut search = Search::new(floor, head);
    let mut asked = 0;
    loop {
        match search.step() {
            Step::Found(found) => return (found, asked),
            Step::Ask(number) => {
                asked += 1;
                search.answer(
                    number,
                    match number {
                        number if number > visible => Standing::Ahead,
                        number if number <= canonical => Standing::Canonical,
                        _ => GONE,
                    },
                );
            }
        }
    }
}

#[test]
fn the_head_goes_back_to_the_last_block_whose_origin_is_canonical() {
    assert_eq!(run(0, 739, 726, 739), (Retreat::To(726), 11));
    assert_eq!(run(700, 739, 739, 739).0, Retreat::Stay);
    assert_eq!(
        run(726, 739, 726, 739).0,
        Retreat::To(726),
        "the safe block itself"
    );
    assert_eq!(
        run(727, 739, 726, 739).0,
        Retreat::FloorGone {
            canonical: B256::ZERO
        }
    );
    assert_eq!(run(739, 739, 739, 739), (Retreat::Stay, 1));
}

#[test]
fn origins_above_the_head_of_l1_may_still_become_canonical() {
    assert_eq!(run(0, 739, 726, 726).0, Retreat::Stay);
    assert_eq!(
        run(0, 739, 726, 730).0,
        Retreat::To(726),
        "some below them are gone"
    );
    assert_eq!(run(5, 9, 9, 4).0, Retreat::Stay);
}

proptest! {
    #[test]
    fn every_reorg_is_answered_in_few_requests(floor in 0u64..1000, above in 0u64..5000, canonical in 0u64..6000, visible in 0u64..6000) {
        let head = floor + above;
        let (found, asked) = run(floor, head, canonical, visible);
        let standing = |n: u64| if n > visible { Standing::Ahead } else if n <= canonical { Standing::Canonical } else { GONE };
        // The result of a linear walk from the head down to the floor.
        let gone = (floor..=head).find(|n| matches!(standing(*n), Standing::Gone { .. }));
        let expected = match gone {
            None => Retreat::Stay,
            Some(gone) if gone == floor => Retreat::FloorGone { canonical: B256::ZERO },
            Some(gone) => Retreat::To(gone - 1),
        };
        prop_assert_eq!(found, expected);
        prop_assert!(asked <= 15);
    }
}
