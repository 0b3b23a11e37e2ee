//! Each verdict about hostile peers passes on sound evidence and fails on the change it is for.

use super::*;

fn finding(node: &str, reason: &str, is_banned: bool) -> HostileFinding {
    HostileFinding {
        node: node.into(),
        is_unread: false,
        ran_throughout: true,
        is_connected: true,
        is_banned,
        offences: BTreeMap::from([(reason.into(), 3)]),
    }
}

fn peer(behaviour: HostileBehaviour, findings: Vec<HostileFinding>) -> HostileReport {
    HostileReport {
        name: format!("{behaviour}-1"),
        behaviour,
        start_ms: 20_000,
        findings,
    }
}

#[test]
fn a_ledger_is_read_by_its_changes() {
    let entries = json!([
        {"change": "connected", "reason": "dialled_us", "times": 1},
        {"change": {"score": -40.0}, "reason": "snappy_header", "times": 2},
        {"change": {"score": -20.0}, "reason": "too_small", "times": 1},
        {"change": {"banned": {"until": 9}}, "reason": "score", "times": 1},
        {"change": "disconnected", "reason": "banned", "times": 1},
    ]);
    let mut finding = HostileFinding::default();
    for entry in entries.as_array().unwrap() {
        finding.add(entry);
    }
    let offences: Vec<_> = finding
        .offences
        .iter()
        .map(|(name, times)| (&**name, *times))
        .collect();
    assert_eq!(offences, [("snappy_header", 2), ("too_small", 1)]);
    assert!(!finding.is_connected && finding.is_banned);
    finding.add(&entries[0]);
    assert!(finding.is_connected);
}

#[test]
fn a_peer_must_be_banned_for_its_reason_by_every_target() {
    let garbage = |reason, is_banned| {
        let targets = vec![
            finding("a", "signature", true),
            finding("b", reason, is_banned),
        ];
        outcomes(&[peer(HostileBehaviour::Garbage, targets)])
    };
    assert_eq!(
        garbage("too_small", true).unwrap(),
        "garbage: noticed 2 of 2 times, 2 bans (signature, too_small)"
    );
    assert_eq!(
        garbage("too_small", false).unwrap_err(),
        "garbage-1 at b: not banned, connected, too_small 3; expected a ban and one of \
         snappy_header, too_large, too_small, signature"
    );
    assert!(garbage("too_old", true).is_err(), "another reason");
}

#[test]
fn a_node_that_restarted_is_left_out() {
    let mut restarted = finding("b", "too_old", false);
    restarted.ran_throughout = false;
    let targets = vec![finding("a", "wrong_signer", true), restarted.clone()];
    assert!(outcomes(&[peer(HostileBehaviour::WrongSigner, targets)]).is_ok());
    let nobody = outcomes(&[peer(HostileBehaviour::WrongSigner, vec![restarted])]);
    assert!(nobody.is_err(), "nobody is left who could tell");
}

#[test]
fn a_peer_that_is_chosen_for_requests_must_be_noticed_once() {
    let stall = |reason| {
        let targets = vec![finding("a", "x", false), finding("b", reason, false)];
        outcomes(&[peer(HostileBehaviour::Stall, targets)])
    };
    assert!(stall("no_response").is_ok());
    assert!(stall("y").is_err());
}

#[test]
fn a_ledger_that_could_not_be_read_is_no_evidence() {
    let unread = HostileFinding {
        node: "a".into(),
        is_unread: true,
        ran_throughout: true,
        ..HostileFinding::default()
    };
    let error = outcomes(&[peer(HostileBehaviour::Garbage, vec![unread])]).unwrap_err();
    let begin = "garbage-1 at a: its ledger could not be read; expected a ban";
    assert!(error.starts_with(begin), "{error}");
}

#[test]
fn an_eclipse_must_be_connected_at_the_end() {
    let mut silent = finding("a", "x", false);
    silent.offences.clear();
    assert!(outcomes(&[peer(HostileBehaviour::Eclipse, vec![silent.clone()])]).is_ok());
    silent.is_connected = false;
    assert_eq!(
        outcomes(&[peer(HostileBehaviour::Eclipse, vec![silent])]).unwrap_err(),
        "eclipse-1 at a: not banned, not connected, no offence; expected a connection at the end"
    );
}

/// A block each second, at three nodes, which arrive after `late` microseconds from second 20 on.
fn blocks(late: u64) -> Vec<BlockReport> {
    let block = |second: u64| BlockReport {
        number: second,
        hash: String::new(),
        made_ms: second * 1_000,
        arrivals: (2..5)
            .map(|node| (node, if second < 20 { 40_000 } else { late }))
            .collect(),
    };
    (0..40).map(block).collect()
}

fn compared(blocks: &[BlockReport], disturbed: BTreeSet<usize>) -> Result<String, String> {
    let peers = [peer(HostileBehaviour::Eclipse, Vec::new())];
    let propagation = propagation(&peers, blocks, &disturbed, &[]).expect("a peer");
    speed(&propagation, 1.5)
}

#[test]
fn slower_propagation_fails_and_disturbed_nodes_do_not_count() {
    let verdict =
        |late, disturbed: &[usize]| compared(&blocks(late), disturbed.iter().copied().collect());
    assert_eq!(
        verdict(60_000, &[]).unwrap(),
        "p99 60.0 ms, 40.0 ms before hostile peers started: ratio 1.50, at most 1.5 allowed; \
         0 blocks left out, as the machine stalled"
    );
    assert!(verdict(60_100, &[]).is_err());
    assert_eq!(
        verdict(40_000, &[2, 3, 4]).unwrap_err(),
        "only 0 arrivals to compare"
    );
    let mut slow = blocks(40_000);
    for block in slow.iter_mut().filter(|block| block.made_ms >= 20_000) {
        block.arrivals[2].1 = 9_000_000;
    }
    assert!(compared(&slow, BTreeSet::from([4])).is_ok());
    assert!(compared(&slow, BTreeSet::new()).is_err());
    assert_eq!(propagation(&[], &slow, &BTreeSet::new(), &[]), None);
}

/// Only blocks that travel during the stall are left out, however late others are.
#[test]
fn blocks_that_a_stall_of_the_machine_delays_do_not_count() {
    let mut blocks = blocks(40_000);
    let delayed = |block: &&mut BlockReport| [25_000, 26_000].contains(&block.made_ms);
    for block in blocks.iter_mut().filter(delayed) {
        block.arrivals[0].1 = 2_000_000;
    }
    let peers = [peer(HostileBehaviour::Eclipse, Vec::new())];
    let after = |stalls: &[MachineStall]| {
        propagation(&peers, &blocks, &BTreeSet::new(), stalls).expect("a peer")
    };
    let stall = |from_ms, to_ms| MachineStall { from_ms, to_ms };
    assert_eq!(after(&[stall(26_500, 26_900)]).after.p99, 40_000);
    assert_eq!(after(&[stall(26_500, 26_900)]).left_out, 2);
    assert_eq!(after(&[stall(30_500, 30_900)]).after.p99, 2_000_000);
    assert_eq!(after(&[stall(30_500, 30_900)]).left_out, 0);
}
