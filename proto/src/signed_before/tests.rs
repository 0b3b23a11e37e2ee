//! Blocks of one height and parent, with L1 reorgs and a signer whose responses may be lost.

use super::*;
use proptest::prelude::*;

fn guard(origin: u8, hash: u8) -> SignGuard {
    SignGuard {
        l1_origin: B256::repeat_byte(origin),
        hash: B256::repeat_byte(hash),
        sent_order: 0,
    }
}

#[test]
fn a_block_that_was_sent_to_the_signer_is_used_again_while_its_origin_is_canonical() {
    let [epoch, next, other] = [1, 2, 3].map(B256::repeat_byte);
    let [first, second] = [1, 2].map(|hash| SigningChoice::Resign(B256::repeat_byte(hash)));
    assert_eq!(choose(&[], epoch, NextL1::NotFetched), SigningChoice::Build);
    assert_eq!(choose(&[guard(1, 1)], epoch, NextL1::NotFetched), first);
    // The sent block has the next origin: only L1 shows whether that is canonical.
    assert_eq!(
        choose(&[guard(2, 2)], epoch, NextL1::NotFetched),
        SigningChoice::FetchNext
    );
    assert_eq!(choose(&[guard(2, 2)], epoch, NextL1::Known(next)), second);
    assert_eq!(
        choose(&[guard(2, 2)], epoch, NextL1::Known(other)),
        SigningChoice::Build
    );
    assert_eq!(
        choose(&[guard(2, 2)], epoch, NextL1::Missing),
        SigningChoice::OriginUnknown(next)
    );
    // The last guard row with a canonical origin wins.
    assert_eq!(
        choose(&[guard(1, 1), guard(2, 2)], epoch, NextL1::Known(next)),
        second
    );
    assert_eq!(
        choose(&[guard(1, 1), guard(2, 2)], epoch, NextL1::Known(other)),
        first
    );
    assert_eq!(
        choose(&[guard(2, 2), guard(1, 1)], epoch, NextL1::Known(next)),
        first
    );
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Sets the L1 block after the parent's origin, if any.
    L1(Option<u8>),
    /// The sequencer tries to build the block. With `advance` it uses the next origin if L1 has it.
    Attempt { advance: bool },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let l1 = prop::option::of(2u8..5).prop_map(Event::L1);
    let attempt = any::<bool>().prop_map(|advance| Event::Attempt { advance });
    prop::collection::vec(prop_oneof![l1, attempt], 1..40)
}

proptest! {
    /// A block that was sent to the signer counts as signed, whatever the signer's response and
    /// whenever the process is killed, because the log keeps the block.
    #[test]
    fn no_block_is_made_while_another_one_of_its_height_and_parent_may_be_signed_on_a_canonical_origin(events in events()) {
        let epoch = B256::repeat_byte(1);
        let (mut guards, mut l1, mut made) = (Vec::<SignGuard>::new(), None, 0u8);
        for event in events {
            let advance = match event {
                Event::L1(next) => {
                    l1 = next.map(B256::repeat_byte);
                    continue;
                }
                Event::Attempt { advance } => advance,
            };
            let canonical = |guard: &SignGuard| guard.l1_origin == epoch || Some(guard.l1_origin) == l1;
            let mut decision = choose(&guards, epoch, NextL1::NotFetched);
            if decision == SigningChoice::FetchNext {
                decision = choose(&guards, epoch, l1.map_or(NextL1::Missing, NextL1::Known));
            }
            match decision {
                SigningChoice::Build => {
                    prop_assert!(!guards.iter().any(canonical), "{guards:?}");
                    made += 1;
                    let l1_origin = l1.filter(|_| advance).unwrap_or(epoch);
                    guards.push(SignGuard { l1_origin, hash: B256::with_last_byte(made), sent_order: 0 });
                }
                SigningChoice::Resign(hash) => {
                    let at = guards.iter().rposition(canonical).expect("one is canonical");
                    prop_assert_eq!(guards[at].hash, hash, "the last of the canonical ones");
                    let again = guards.remove(at);
                    guards.push(again);
                }
                SigningChoice::OriginUnknown(origin) => prop_assert!(l1.is_none() && guards.iter().any(|guard| guard.l1_origin == origin)),
                SigningChoice::FetchNext => prop_assert!(false, "L1 has been asked"),
            }
        }
    }
}
