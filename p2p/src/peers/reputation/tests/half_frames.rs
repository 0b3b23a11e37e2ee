//! Repeated half frames lead to a ban. Single ones, slow frames and static peers do not.

use super::*;

/// Time in seconds after which the guard gives a frame up.
const FRAME: u64 = 20;

/// Lets a peer connect `times` times, every `gap` seconds from `from` on. Each connection ends with
/// this offence.
fn stall(
    all: &mut Reputation,
    peer: PeerId,
    offence: Offence,
    (times, gap, from): (u64, u64, u64),
) {
    for start in (0..times).map(|time| from + time * gap) {
        all.on_connected(peer, ip(2), false, start);
        for slot in 1..=FRAME / SLOT.as_secs() {
            all.on_slot(start + slot * SLOT.as_secs());
        }
        all.on_offence(peer, offence, "", start + FRAME);
        all.on_disconnected(&peer, offence.label(), "", start + FRAME);
    }
}

#[test]
fn the_fourth_half_frame_within_five_minutes_is_a_ban() {
    let peer = PeerId::random();
    let mut all = reputation(Policy::default(), &[]);
    stall(&mut all, peer, Offence::HalfFrame, (3, 21, NOW));
    assert!(verdicts(&mut all).is_empty());
    assert!(all.total(&peer) > -10.0, "{}", all.total(&peer));
    stall(&mut all, peer, Offence::HalfFrame, (1, 21, NOW + 3 * 21));
    assert_eq!(verdicts(&mut all), [ReputationAction::Ban(peer)]);
    let reasons = reasons(&all, &peer);
    assert!(reasons.iter().any(|(reason, _)| *reason == "half_frame"));
    assert!(all.bans()[&peer].reason.contains("stalled_stream"));
}

#[test]
fn half_frames_that_are_minutes_apart_and_slow_frames_are_no_ban() {
    for (offence, gap) in [(Offence::HalfFrame, 120), (Offence::SlowFrame, 21)] {
        let peer = PeerId::random();
        let mut all = reputation(Policy::default(), &[]);
        stall(&mut all, peer, offence, (100, gap, NOW));
        assert!(verdicts(&mut all).is_empty(), "{offence:?}");
        assert!(all.total(&peer) > -10.0, "{offence:?}");
    }
}

#[test]
fn half_frames_of_a_static_peer_are_only_reported() {
    let peer = PeerId::random();
    let mut all = reputation(Policy::default(), &[peer]);
    stall(&mut all, peer, Offence::HalfFrame, (10, 21, NOW));
    assert!(verdicts(&mut all).is_empty());
    assert!(reasons(&all, &peer).contains(&("protected", LedgerChange::Spared)));
    assert!(all.peers[&peer].half_frames.len() < HALF_FRAMES, "bounded");
}

#[test]
fn an_operator_who_forgives_a_peer_forgives_its_half_frames() {
    let peer = PeerId::random();
    let mut all = reputation(Policy::default(), &[]);
    stall(&mut all, peer, Offence::HalfFrame, (3, 21, NOW));
    all.forgive(&peer, "operator", NOW + 63);
    stall(&mut all, peer, Offence::HalfFrame, (3, 21, NOW + 63));
    assert!(verdicts(&mut all).is_empty());
}
