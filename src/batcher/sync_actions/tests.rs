use super::*;
use crate::{
    batcher::testing::{L2, status},
    l2_source::L1Ref,
};
use alloy_primitives::B256;
use starling_proto::payload::BlockId;

/// Held blocks 1 to 5 above genesis, and a status with safe head 2 and unsafe head 5.
fn world() -> (L2, HeldBlocks, SourceStatus) {
    let l2 = L2::new(8);
    let mut held = HeldBlocks::default();
    held.restart(l2.reference(0).id);
    for number in 1..=5 {
        held.insert(l2.payload(number));
    }
    let status = status(&l2, 2, 5, 100);
    (l2, held, status)
}

fn decided(status: &SourceStatus, held: &HeldBlocks) -> SyncDecision {
    decide(status, 100, held, std::iter::empty())
}

#[test]
fn the_usual_status_prunes() {
    let (_, held, status) = world();
    assert_eq!(decided(&status, &held), SyncDecision::Prune);
}

#[test]
fn a_status_without_heads_or_from_the_past_changes_nothing() {
    let (_, held, status) = world();
    let l1 = L1Ref {
        id: BlockId::default(),
        parent_hash: B256::ZERO,
        time: 0,
    };
    let good = SourceHeads {
        current_l1: Some(l1),
        head_l1: Some(l1),
        unsafe_l2: Some(status.unsafe_l2),
        local_safe_l2: Some(status.local_safe_l2),
        ..SourceHeads::default()
    };
    let known = SourceStatus {
        current_l1: 0,
        ..status
    };
    assert_eq!(SourceStatus::read(&good), Ok(known));
    let bad = SourceHeads {
        current_l1: None,
        ..good
    };
    let resets = SourceStatus::read(&bad);
    assert_eq!(resets, Err(OutOfSync::EmptyHead), "derivation resets");
    let bad = SourceHeads {
        head_l1: None,
        ..good
    };
    assert_eq!(SourceStatus::read(&bad), Err(OutOfSync::NoL1));
    let bad = SourceHeads {
        unsafe_l2: None,
        ..good
    };
    assert_eq!(SourceStatus::read(&bad), Err(OutOfSync::EmptyHead));
    let bad = SourceHeads {
        local_safe_l2: None,
        ..good
    };
    assert_eq!(SourceStatus::read(&bad), Err(OutOfSync::EmptyHead));
    let reversed = OutOfSync::Reversed {
        before: 100,
        now: 0,
    };
    assert_eq!(decided(&known, &held), SyncDecision::Wait(reversed));
    assert_eq!(
        decided(&status, &held),
        SyncDecision::Prune,
        "the same again"
    );
}

#[test]
fn contradictions_clear_everything() {
    let (l2, mut held, good) = world();
    let other = L2::fork(&l2, 1, 8);
    let cases = [
        (status(&other, 2, 5, 100), ClearCause::SafeReorg),
        (status(&l2, 6, 8, 100), ClearCause::SafeAboveNewest),
        (status(&other, 1, 4, 100), ClearCause::UnsafeReorg),
    ];
    for (status, cause) in cases {
        assert_eq!(decided(&status, &held), SyncDecision::Clear(cause));
    }
    assert_eq!(
        decided(&status(&other, 1, 8, 100), &held),
        SyncDecision::Prune,
        "seen when loaded"
    );
    held.prune(2);
    assert_eq!(decided(&good, &held), SyncDecision::Prune);
    let back = status(&l2, 1, 5, 100);
    let below = SyncDecision::Clear(ClearCause::SafeBelowOldest);
    assert_eq!(decided(&back, &held), below);
}

#[test]
fn a_channel_that_derivation_passed_without_effect_is_lost() {
    let (_, held, status) = world();
    let lost = SyncDecision::Clear(ClearCause::LostChannel);
    let after = |newest_l2, complete_at| {
        let channel = ChannelOutcome {
            newest_l2,
            complete_at,
        };
        decide(&status, 100, &held, [channel].into_iter())
    };
    assert_eq!(after(3, Some(99)), lost);
    assert_eq!(
        after(3, Some(100)),
        SyncDecision::Prune,
        "derivation is not past it"
    );
    assert_eq!(
        after(3, None),
        SyncDecision::Prune,
        "not all frames are there"
    );
    assert_eq!(after(2, Some(99)), SyncDecision::Prune, "safe");
}

#[test]
fn nothing_held_contradicts_nothing() {
    let (l2, _, _) = world();
    let held = HeldBlocks::default();
    for (safe, newest) in [(0, 5), (5, 5), (6, 8)] {
        let status = status(&l2, safe, newest, 100);
        assert_eq!(decided(&status, &held), SyncDecision::Prune);
    }
}
