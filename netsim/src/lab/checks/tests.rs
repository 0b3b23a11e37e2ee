//! Each check passes on a sound run and fails on the one change that it is for.

use super::*;
use crate::lab::{
    logs::{LogBan, LogBlock},
    rpc::LabBlock,
};

fn block(number: u64, branch: u8) -> LabBlock {
    let hash = |number: u64| B256::with_last_byte(number as u8 * 4 + branch);
    LabBlock {
        number,
        hash: hash(number),
        parent: hash(number.saturating_sub(1)),
    }
}

/// A node that has block n from second n on.
fn node(name: &str, role: LabRole) -> NodeEvidence {
    let mut track = HeadTrack::default();
    for number in 0..=30 {
        track.observe(Duration::from_secs(number), block(number, 0), &[]);
    }
    NodeEvidence {
        name: name.into(),
        role,
        is_up: true,
        track,
        findings: LogFindings::default(),
        peak_kb: 80 << 10,
        verified: Some(Ok(())),
        stop: ProcessEnd::Success,
        safe: Some(block(20, 0)),
    }
}

fn sound() -> LabEvidence {
    LabEvidence {
        last_fault_end: Duration::from_secs(10),
        end: Duration::from_secs(30),
        block_time: Duration::from_secs(1),
        allow: LabAllowance::default(),
        expected: Vec::new(),
        nodes: vec![
            node("seq", LabRole::Sequencer),
            node("a", LabRole::Replica),
            node("b", LabRole::Replica),
        ],
        displaced: BTreeSet::new(),
        safe_floor: Some(12),
    }
}

/// Names of the failed checks after a change of a sound run.
fn failed(change: impl FnOnce(&mut LabEvidence)) -> Vec<String> {
    let mut evidence = sound();
    change(&mut evidence);
    let verdicts = check(&evidence)
        .into_iter()
        .filter(|verdict| !verdict.passed);
    verdicts.map(|verdict| verdict.check).collect()
}

/// Moves the heads of a node that are later than `from` by some seconds.
fn delay(node: &mut NodeEvidence, from: u64, by: u64) {
    for head in &mut node.track.heads {
        if head.at > Duration::from_secs(from) {
            head.at += Duration::from_secs(by);
        }
    }
}

#[test]
fn a_sound_run_passes_every_check() {
    assert_eq!(failed(|_| {}), Vec::<String>::new());
    assert_eq!(check(&sound())[0].detail, "0.0 s after the last fault");
}

#[test]
fn a_node_that_catches_up_in_time_passes_and_a_slow_one_fails() {
    let catches_up_at = |second: u64| {
        failed(|evidence| {
            let track = &mut evidence.nodes[1].track;
            track.heads.retain(|head| {
                let at = head.at.as_secs();
                at <= 5 || at >= second
            });
        })
    };
    assert_eq!(catches_up_at(19), Vec::<String>::new());
    assert_eq!(catches_up_at(22), ["one head on all nodes"]);
}

#[test]
fn a_node_that_falls_behind_at_the_end_fails() {
    let agreement = ["one head on all nodes"];
    assert_eq!(failed(|it| delay(&mut it.nodes[2], 15, 2)), agreement);
    assert_eq!(
        failed(|it| delay(&mut it.nodes[2], 15, 1)),
        Vec::<String>::new()
    );
    assert_eq!(
        failed(|it| it.nodes[2].track = HeadTrack::default()),
        ["one head on all nodes", "accepted blocks on all nodes"]
    );
    assert_eq!(
        failed(|it| (it.nodes[1].is_up, it.nodes[2].is_up) = (false, false)),
        agreement
    );
}

#[test]
fn a_node_that_is_away_for_a_while_after_the_faults_fails() {
    let away_until = |second: u64| {
        failed(|evidence| {
            let track = &mut evidence.nodes[1].track;
            let is_kept = |at: u64| at <= 13 || at >= second;
            track.heads.retain(|head| is_kept(head.at.as_secs()));
        })
    };
    assert_eq!(away_until(23), Vec::<String>::new());
    assert_eq!(away_until(26), ["one head on all nodes"]);
}

#[test]
fn a_node_that_is_down_need_not_agree() {
    let down = failed(|evidence| {
        evidence.nodes[2].is_up = false;
        evidence.nodes[2].track.heads.truncate(5);
    });
    assert_eq!(down, Vec::<String>::new());
}

#[test]
fn another_block_of_a_height_fails() {
    let reorg = failed(|evidence| {
        let at = Duration::from_secs(29);
        evidence.nodes[1].track.observe(at, block(12, 1), &[]);
        evidence.nodes[1]
            .track
            .observe(at, block(30, 0), &[block(12, 0)]);
    });
    assert_eq!(reorg, ["one hash per height", "no unsafe reorg"]);
    let branch = failed(|evidence| {
        let hash = block(30, 1).hash;
        evidence.nodes[1].track.chain.insert(30, hash);
    });
    assert_eq!(branch, ["one hash per height"]);
}

/// Blocks from 11 on are after the last fault, and those up to 26 must have arrived.
#[test]
fn a_block_that_a_running_node_lacks_fails() {
    let check = ["accepted blocks on all nodes"];
    let none: [&str; 0] = [];
    let logs = |number: u64, branch: u8, change: fn(&mut LabEvidence)| {
        failed(|evidence| {
            let block = block(number, branch);
            evidence.nodes[1].findings.blocks.push(LogBlock {
                at: 0,
                number,
                hash: block.hash.to_string(),
                is_own: false,
                origin: None,
            });
            change(evidence);
        })
    };
    for number in [11, 26] {
        assert_eq!(logs(number, 1, |_| {}), check, "{number}");
    }
    for number in [10, 27] {
        assert_eq!(logs(number, 1, |_| {}), none, "{number}");
    }
    assert_eq!(logs(15, 0, |_| {}), none, "all have it");
    let forks = logs(15, 1, |it| it.allow.forks = true);
    assert_eq!(forks, none, "until second 20");
    let displaced = logs(15, 1, |it| {
        it.displaced.insert(block(15, 1).hash);
    });
    assert_eq!(displaced, none);
    let lacks = |numbers: fn(u64) -> bool| {
        failed(|it| {
            it.nodes[2]
                .track
                .chain
                .retain(|number, _| !numbers(*number))
        })
    };
    assert_eq!(lacks(|number| number == 15), none, "it was not sampled");
    assert_eq!(lacks(|number| number > 25), check);
    let down = failed(|it| {
        it.nodes[2].is_up = false;
        it.nodes[2].track.chain.clear();
    });
    assert_eq!(down, none);
}

#[test]
fn disconnects_and_bans_without_a_reason_fail() {
    let check = ["disconnects and bans have reasons"];
    let disconnect = |reason: &str, at: usize| {
        failed(|it| {
            it.nodes.push(node("garbage-1", LabRole::Hostile));
            it.nodes[at].findings.disconnects.insert(reason.into(), 2);
        })
    };
    assert_eq!(disconnect("closed", 1), Vec::<String>::new());
    assert_eq!(disconnect("", 1), check);
    assert_eq!(disconnect("", 3), Vec::<String>::new(), "a hostile peer");
    let banned = failed(|it| {
        it.nodes.push(node("garbage-1", LabRole::Hostile));
        it.nodes[1].findings.bans.push(LogBan {
            at: 0,
            subject: "garbage-1".into(),
            reason: String::new(),
        });
    });
    assert_eq!(banned, check);
}

#[test]
fn a_sequencer_that_stands_still_fails() {
    let still = failed(|evidence| {
        for node in &mut evidence.nodes {
            node.track.heads.truncate(12);
        }
    });
    assert_eq!(still, ["blocks are made"]);
}

#[test]
fn bans_errors_memory_damage_and_stuck_nodes_fail() {
    let ban = LogBan {
        at: 0,
        subject: "a".into(),
        reason: "x".into(),
    };
    let line = "2026 ERROR the disk is full";
    let error = |it: &mut LabEvidence| it.nodes[1].findings.errors.push(line.into());
    assert_eq!(
        failed(|it| it.nodes[2].findings.bans.push(ban)),
        ["no honest peer banned"]
    );
    assert_eq!(failed(error), ["no log line above warn"]);
    let allowed = failed(|it| {
        error(it);
        it.allow.errors.push("disk is full".into());
    });
    assert_eq!(allowed, Vec::<String>::new());
    let memory = ["memory within its budget"];
    assert_eq!(failed(|it| it.nodes[2].peak_kb = 300 << 10), memory);
    assert_eq!(
        failed(|it| it.nodes.iter_mut().for_each(|node| node.peak_kb = 0)),
        memory
    );
    let databases = ["databases are sound"];
    assert_eq!(
        failed(|it| it.nodes[2].verified = Some(Err("x".into()))),
        databases
    );
    assert_eq!(
        failed(|it| it.nodes.iter_mut().for_each(|node| node.verified = None)),
        databases
    );
    assert_eq!(
        failed(|it| it.nodes[0].stop = ProcessEnd::Killed),
        ["nodes stop on SIGINT"]
    );
}

/// After an L1 reorg, blocks with a removed origin are replaced, and others are not.
#[test]
fn blocks_that_an_l1_reorg_displaced_may_be_replaced() {
    let replaced = |displaced: &[LabBlock]| {
        failed(|evidence| {
            evidence.displaced = displaced.iter().map(|block| block.hash).collect();
            let at = Duration::from_secs(29);
            for node in &mut evidence.nodes {
                node.track.observe(at, block(29, 1), &[block(28, 1)]);
                node.track.observe(at, block(30, 1), &[]);
            }
        })
    };
    let whole = [block(28, 0), block(29, 0), block(30, 0)];
    assert_eq!(replaced(&whole), Vec::<String>::new());
    assert_eq!(
        replaced(&whole[1..]),
        ["one hash per height", "no unsafe reorg"]
    );
}

#[test]
fn a_safe_head_that_stands_still_or_is_on_another_branch_fails() {
    let safe = |safe: Option<LabBlock>| failed(|it| it.nodes[2].safe = safe);
    let check = ["safe heads on one chain"];
    assert_eq!(safe(Some(block(13, 0))), Vec::<String>::new());
    assert_eq!(safe(Some(block(12, 0))), check);
    assert_eq!(safe(Some(block(20, 1))), check);
    assert_eq!(safe(None), check);
    let none = failed(|it| {
        it.safe_floor = None;
        it.nodes[2].safe = None;
    });
    assert_eq!(none, Vec::<String>::new());
}

/// Forks are allowed for ten seconds after second 10.
#[test]
fn forks_pass_where_the_scenario_makes_them_and_until_the_nodes_must_agree() {
    let replaced = |number: u64, second: u64| {
        failed(|evidence| {
            evidence.allow.forks = true;
            let track = &mut evidence.nodes[1].track;
            let at = Duration::from_secs(second);
            track.observe(at, block(number, 1), &[]);
            track.observe(at, block(number, 0), &[]);
            // Only the times of reorgs are late here.
            track.heads.sort_by_key(|head| head.at);
        })
    };
    assert_eq!(replaced(12, 20), Vec::<String>::new());
    assert_eq!(replaced(12, 21), ["no unsafe reorg"]);
    let branch = |number: u64| {
        failed(|evidence| {
            evidence.allow.forks = true;
            let hash = block(number, 1).hash;
            evidence.nodes[1].track.chain.insert(number, hash);
        })
    };
    assert_eq!(branch(20), Vec::<String>::new());
    assert_eq!(
        branch(21),
        ["one hash per height", "accepted blocks on all nodes"]
    );
}

#[test]
fn a_text_that_no_log_has_fails() {
    let expected = |nodes: &[&str]| {
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        failed(|it| it.expected.push(("the disk is full".into(), nodes)))
    };
    assert_eq!(expected(&["a"]), Vec::<String>::new());
    assert_eq!(expected(&[]), ["expected log lines"]);
}

#[test]
fn bans_of_hostile_peers_pass_and_later_bans_of_honest_ones_fail() {
    let banned = |subjects: &[&str]| {
        failed(|evidence| {
            evidence.nodes.push(node("garbage-1", LabRole::Hostile));
            let bans = subjects.iter().map(|subject| LogBan {
                at: 0,
                subject: (*subject).into(),
                reason: "score".into(),
            });
            evidence.nodes[2].findings.bans = bans.collect();
        })
    };
    assert_eq!(banned(&["garbage-1"]), Vec::<String>::new());
    assert_eq!(banned(&["garbage-1", "a"]), ["no honest peer banned"]);
}
