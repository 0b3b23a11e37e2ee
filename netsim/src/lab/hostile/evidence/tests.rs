//! Each verdict about hostile peers passes on sound evidence and fails on the change it is for.

use super::*;

fn finding(node: &str, reason: &str, is_banned: bool) -> HostileFinding {
    HostileFinding {
        node: node.into(),
        is_unread: false,
        ran_throughout: true,
        is_connected: true,
        was_connected: true,
        is_banned,
        offences: BTreeMap::from([(reason.into(), 3)]),
        ..HostileFinding::default()
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
        {"change": {"score": -40.0}, "reason": "snappy_header", "times": 2, "time": 70},
        {"change": {"score": -20.0}, "reason": "too_small", "times": 1, "time": 80},
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
    assert_eq!(finding.first_offence, Some(70));
    finding.add(&entries[0]);
    assert!(finding.is_connected);
}

#[test]
fn a_peer_must_be_banned_for_its_reason_by_every_target() {
    let signed = |reason, is_banned| {
        let targets = vec![
            finding("a", "wrong_signer", true),
            finding("b", reason, is_banned),
        ];
        outcomes(&[peer(HostileBehaviour::WrongSigner, targets)])
    };
    assert_eq!(
        signed("wrong_signer", true).unwrap(),
        "wrong-signer: noticed 2 of 2 times, 2 bans (wrong_signer)"
    );
    assert_eq!(
        signed("wrong_signer", false).unwrap_err(),
        "wrong-signer-1 at b: not banned, connected, wrong_signer 3, 0 requests after that; \
         expected a ban and one of wrong_signer"
    );
    assert!(signed("too_old", true).is_err(), "another reason");
}

/// A node bans a peer only for repeated half frames, so that the entry alone shows one of them.
#[test]
fn half_frames_without_a_ban_fail() {
    let stalled = |is_banned| {
        let targets = vec![finding("a", "half_frame", is_banned)];
        outcomes(&[peer(HostileBehaviour::HalfFrames, targets)])
    };
    assert!(stalled(true).is_ok());
    assert!(stalled(false).is_err());
}

/// A node that restarted need not notice the peer, but must ban it if it does.
#[test]
fn a_reason_without_its_ban_fails_everywhere() {
    let outcome = |behaviour, reason| {
        let mut restarted = finding("b", reason, false);
        restarted.ran_throughout = false;
        let first = behaviour_reason(behaviour);
        outcomes(&[peer(behaviour, vec![finding("a", first, true), restarted])])
    };
    let signer = HostileBehaviour::WrongSigner;
    assert!(outcome(signer, "too_old").is_ok());
    assert!(outcome(signer, "wrong_signer").is_err());
    // At one of two nodes that requested blocks.
    let forked = HostileBehaviour::ForkedChain;
    assert!(outcome(forked, "wrong_block").is_ok());
    assert!(outcome(forked, "false_block").is_err());
}

fn behaviour_reason(behaviour: HostileBehaviour) -> &'static str {
    behaviour.expected().offences[0]
}

#[test]
fn every_kind_of_garbage_must_be_noticed_somewhere() {
    let garbage = |kinds: &[&str]| {
        let targets = kinds.iter().map(|kind| finding("a", kind, true));
        outcomes(&[peer(HostileBehaviour::Garbage, targets.collect())])
    };
    let all = ["snappy_header", "too_large", "too_small", "signature"];
    assert!(garbage(&all).is_ok());
    assert_eq!(
        garbage(&all[..3]).unwrap_err(),
        "garbage: no ledger has signature"
    );
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
    assert_eq!(
        error,
        "garbage-1 at a: its ledger could not be read; expected a ban and one of snappy_header, \
         too_large, too_small, signature"
    );
}

#[test]
fn a_starved_peer_gets_few_requests_after_the_first_offence() {
    let starved = |behaviour, later_requests| {
        let mut noticed = finding("a", behaviour_reason(behaviour), false);
        noticed.later_requests = later_requests;
        outcomes(&[peer(behaviour, vec![noticed])])
    };
    for behaviour in [HostileBehaviour::FalseHead, HostileBehaviour::Stall] {
        let most = behaviour.expected().later_requests.expect("it is starved");
        let few = starved(behaviour, most).unwrap();
        let end = format!("at most {most} requests of a node after that");
        assert!(few.ends_with(&end), "{few}");
        let many = starved(behaviour, most + 1).unwrap_err();
        let end = format!(", and at most {most} requests after that");
        assert!(many.ends_with(&end), "{many}");
    }
}

/// A request that times out is an offence, and equal offences share an entry.
#[test]
fn requests_after_the_first_offence_are_counted_from_log_and_ledger() {
    let log = HostileLog::read("69000 requested n\n71500 requested n\n71900 requested m\n");
    let count = |reason: &str, first_offence| {
        let mut finding = finding("a", reason, false);
        finding.first_offence = first_offence;
        finding.count_requests(&log, "n");
        finding.later_requests
    };
    assert_eq!(count("false_head", Some(70)), 1);
    assert_eq!(count("no_response", Some(70)), 3);
    assert_eq!(count("false_head", None), 0);
}

/// The peers of an eclipse break no rule, so that their connections are the evidence, also at a
/// node that restarted.
#[test]
fn an_eclipse_must_be_connected_before_the_faults_and_at_the_end() {
    let mut silent = finding("a", "x", false);
    silent.offences.clear();
    let eclipse = |change: fn(&mut HostileFinding)| {
        let mut other = silent.clone();
        change(&mut other);
        outcomes(&[peer(HostileBehaviour::Eclipse, vec![silent.clone(), other])])
    };
    assert!(eclipse(|_| {}).is_ok());
    assert!(eclipse(|it| it.ran_throughout = false).is_ok());
    assert_eq!(
        eclipse(|it| (it.is_connected, it.ran_throughout) = (false, false)).unwrap_err(),
        "eclipse-1 at a: not banned, not connected at the end, no offence; expected a connection \
         before the first fault and at the end"
    );
    let before = eclipse(|it| it.was_connected = false).unwrap_err();
    let begin = "eclipse-1 at a: not banned, not connected before the first fault, no offence";
    assert!(before.starts_with(begin), "{before}");
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

/// A run of forty seconds in which these nodes are compared.
fn run(receivers: &[usize], stalls: &[MachineStall]) -> ComparedRun {
    ComparedRun {
        receivers: receivers.iter().copied().collect(),
        stalls: stalls.to_vec(),
        end_ms: 43_000,
    }
}

fn compared(blocks: &[BlockReport], receivers: &[usize]) -> Result<String, String> {
    let peers = [peer(HostileBehaviour::Eclipse, Vec::new())];
    let propagation = propagation(&peers, blocks, &run(receivers, &[])).expect("a peer");
    speed(&propagation, 1.5)
}

#[test]
fn slower_propagation_fails_and_disturbed_nodes_do_not_count() {
    let verdict = |late, receivers: &[usize]| compared(&blocks(late), receivers);
    assert_eq!(
        verdict(60_000, &[2, 3, 4]).unwrap(),
        "p99 60.0 ms, 40.0 ms before hostile peers started: ratio 1.50, at most 1.5 allowed; \
         100.0 % arrived, 100.0 % before; 0 of 37 blocks left out, as the machine stalled"
    );
    assert!(verdict(60_100, &[2, 3, 4]).is_err());
    assert_eq!(
        verdict(40_000, &[]).unwrap_err(),
        "only 0 arrivals to compare"
    );
    let mut slow = blocks(40_000);
    for block in slow.iter_mut().filter(|block| block.made_ms >= 20_000) {
        block.arrivals[2].1 = 9_000_000;
    }
    assert!(compared(&slow, &[2, 3]).is_ok());
    assert!(compared(&slow, &[2, 3, 4]).is_err());
    assert_eq!(propagation(&[], &slow, &run(&[2], &[])), None);
}

/// Two of a hundred arrivals may be missing: one block that never arrived at one of three nodes is
/// less, and two are more.
#[test]
fn blocks_that_never_arrive_fail() {
    let without = |lost: &[usize]| {
        let mut blocks = blocks(40_000);
        for number in lost {
            blocks[*number].arrivals.pop();
        }
        compared(&blocks, &[2, 3, 4])
    };
    assert!(without(&[30]).is_ok());
    assert_eq!(
        without(&[30, 31]).unwrap_err(),
        "96.7 % of the expected arrivals, 100.0 % before hostile peers started"
    );
    assert!(without(&[10, 11, 30, 31]).is_ok(), "no more than before");
}

/// The last blocks of a run have had no time to arrive.
#[test]
fn blocks_that_are_young_at_the_end_do_not_count() {
    let mut blocks = blocks(40_000);
    blocks.truncate(39);
    for block in &mut blocks[36..] {
        block.arrivals.clear();
    }
    let peers = [peer(HostileBehaviour::Eclipse, Vec::new())];
    let until = |end_ms| {
        let run = ComparedRun {
            end_ms,
            ..run(&[2, 3, 4], &[])
        };
        speed(&propagation(&peers, &blocks, &run).expect("a peer"), 1.5)
    };
    assert!(until(39_000).is_ok());
    assert!(until(42_000).is_err());
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
    let after = |receivers: &[usize], from_ms, to_ms| {
        let run = run(receivers, &[MachineStall { from_ms, to_ms }]);
        propagation(&peers, &blocks, &run).expect("a peer")
    };
    let all = [2, 3, 4];
    assert_eq!(after(&all, 26_500, 26_900).after.p99, 40_000);
    assert_eq!(after(&all, 26_500, 26_900).left_out, 2);
    assert_eq!(after(&all, 30_500, 30_900).after.p99, 2_000_000);
    assert_eq!(after(&all, 30_500, 30_900).left_out, 0);
    // The blocks were late at node 2 only.
    assert_eq!(after(&[3, 4], 26_500, 26_900).left_out, 0);
    // Four of 37 blocks are more than a tenth.
    assert_eq!(
        speed(&after(&all, 30_000, 33_000), 99.0).unwrap_err(),
        "4 of 37 blocks left out, as the machine stalled: too few to compare"
    );
    assert!(speed(&after(&all, 30_000, 32_000), 99.0).is_ok());
}

/// A block that did not arrive may have been imported with the next one after a stall.
#[test]
fn a_block_that_is_lost_in_a_stall_is_left_out() {
    let mut blocks = blocks(40_000);
    blocks[25].arrivals.clear();
    let peers = [peer(HostileBehaviour::Eclipse, Vec::new())];
    let stall = MachineStall {
        from_ms: 25_300,
        to_ms: 25_800,
    };
    let propagation = propagation(&peers, &blocks, &run(&[2, 3, 4], &[stall])).expect("a peer");
    assert_eq!(propagation.left_out, 1);
    assert_eq!(propagation.after.share(), 1.0);
}
