//! One refused file for each rule about hostile peers and bootnodes.

use crate::lab::{
    LabScenario,
    hostile::{HostileGroup, behaviour::HostileBehaviour},
};
use std::time::Duration;

/// A sound file. Each test changes it.
const SOUND: &str = r#"purpose = "A test."
seconds = 60
replicas = ["a", "b"]
batcher = true
hostile = [
  { behaviour = "garbage" },
  { behaviour = "stall", count = 2, start = 25, targets = ["a", "seq"] },
]
steps = [
  { at = 30, kill = "garbage-1" },
  { at = 32, restart = "garbage-1" },
]
allow = { slowdown = 2.5, forks = true }
"#;

fn refused(from: &str, to: &str) -> String {
    assert!(SOUND.contains(from), "{from}");
    let text = SOUND.replacen(from, to, 1);
    LabScenario::parse("x", &text).expect_err(to).to_string()
}

#[test]
fn hostile_peers_are_read_whole() {
    let scenario = LabScenario::parse("x", SOUND).unwrap();
    let names = [
        "l1",
        "seq",
        "a",
        "b",
        "batcher",
        "garbage-1",
        "stall-1",
        "stall-2",
    ];
    assert_eq!(scenario.node_names(), names);
    let expected = HostileGroup {
        line: 6,
        ..HostileGroup::new(HostileBehaviour::Garbage, Duration::from_secs(20))
    };
    assert_eq!(scenario.hostile[0], expected);
    assert_eq!(scenario.hostile[1].targets, ["a", "seq"]);
    assert_eq!(scenario.allow.slowdown_limit(), 2.5);
    assert!(scenario.allow.forks);
}

#[test]
fn unknown_words_are_refused_with_line_and_nearest_word() {
    let cases = [
        (
            "\"garbage\"",
            "\"garbaje\"",
            "6: no hostile behaviour is called `garbaje`; did you mean `garbage`?",
        ),
        (
            "count",
            "cuont",
            "7: unknown key `cuont`; did you mean `count`?",
        ),
        (
            "\"seq\"]",
            "\"sec\"]",
            "7: no node is called `sec`; did you mean `seq`?",
        ),
        (
            "slowdown",
            "slowdwn",
            "13: unknown key `slowdwn`; did you mean `slowdown`?",
        ),
        (
            "kill = \"garbage-1\"",
            "kill = \"garbage-2\"",
            "10: no node is called `garbage-2`; did you mean `garbage-1`?",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
}

#[test]
fn impossible_counts_and_times_are_refused() {
    let cases = [
        ("count = 2", "count = 0", "7: 0 is not between 1 and 32"),
        ("count = 2", "count = 33", "7: 33 is not between 1 and 32"),
        (
            "count = 2",
            "count = 32",
            "6: 33 hostile peers; use 1 to 32",
        ),
        (
            "count = 2",
            "count = 1.5",
            "7: a whole number is needed here, not this float",
        ),
        (
            "start = 25",
            "start = 61",
            "7: stall starts at 61 s, but the run ends at 60 s",
        ),
        (
            "start = 25",
            "start = 55",
            "7: stall starts at 55 s; leave 10 s before and after it, whose blocks are compared",
        ),
        (
            "start = 25",
            "start = 9",
            "7: stall starts at 9 s; leave 10 s before and after it, whose blocks are compared",
        ),
        (
            "seconds = 60",
            "seconds = 60\nblock-time = 5",
            "7: garbage starts at 20 s; leave 25 s before and after it, whose blocks are compared",
        ),
        (
            "slowdown = 2.5",
            "slowdown = 0.5",
            "13: 0.5 is not between 1 and 1000",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
}

#[test]
fn targets_verbs_and_names_without_a_meaning_are_refused() {
    let cases = [
        (
            "[\"a\", \"seq\"]",
            "\"batcher\"",
            "7: batcher has no swarm to attack",
        ),
        (
            "[\"a\", \"seq\"]",
            "\"garbage-1\"",
            "7: garbage-1 has no swarm to attack",
        ),
        (
            "\"a\", \"b\"]",
            "\"a\", \"stall-2\"]",
            "7: `stall-2` is the name of a hostile peer and of a node",
        ),
        (
            "restart = \"garbage-1\"",
            "wipe = \"garbage-1\"",
            "11: garbage-1 is a hostile peer, which has no wipe",
        ),
        (
            "restart = \"garbage-1\"",
            "upgrade = \"garbage-1\"",
            "11: garbage-1 is a hostile peer, which has no upgrade",
        ),
        (
            "restart = \"garbage-1\"",
            "fill-disk = \"garbage-1\", until = 40",
            "11: garbage-1 stores no data, so it has no disk to fill",
        ),
        (
            "restart = \"garbage-1\"",
            "promote = \"seq\"",
            "11: seq is no replica that could be promoted",
        ),
        (
            "restart = \"garbage-1\"",
            "cut = \"garbage-1\"",
            "11: garbage-1 has no links; name an honest node",
        ),
        (
            "{ at = 30, kill",
            "{ at = 5, kill",
            "10: kill at 5 s, but garbage-1 has not started yet then",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
}

/// A network with discovery has links to the L1 only.
#[test]
fn a_network_with_a_bootnode_refuses_what_needs_links() {
    let file = |step: &str| {
        format!(
            "purpose = \"A test.\"\nseconds = 60\nreplicas = [\"a\", \"b\"]\nbootnode = \"boot\"\n\
             steps = [\n  {step},\n]\n"
        )
    };
    let read = |step: &str| LabScenario::parse("x", &file(step));
    let sound = read("{ at = 5, cut = [\"a\", \"l1\"] }, { at = 9, heal = \"a\" }").unwrap();
    assert_eq!(sound.node_names(), ["l1", "seq", "a", "b", "boot"]);
    let cases = [
        (
            "{ at = 5, cut = [\"a\", \"b\"] }",
            "6: there is no link between a and b; see `netsim/scenarios/README.md`",
        ),
        (
            "{ at = 5, isolate = \"a\" }",
            "6: nodes that find each other through a bootnode have no links between them to cut",
        ),
        (
            "{ at = 5, split = [[\"a\"], [\"b\"]] }",
            "6: nodes that find each other through a bootnode have no links between them to cut",
        ),
        (
            "{ at = 5, move = \"a\" }",
            "6: a cannot move: nodes that find each other through a bootnode are not dialled by name",
        ),
        (
            "{ at = 5, promote = \"boot\" }",
            "6: boot is no replica that could be promoted",
        ),
    ];
    for (step, expected) in cases {
        assert_eq!(read(step).unwrap_err().to_string(), expected);
    }
    let twice =
        file("{ at = 5, kill = \"a\" }, { at = 6, restart = \"a\" }").replace("\"boot\"", "\"a\"");
    let twice = LabScenario::parse("x", &twice).unwrap_err().to_string();
    assert_eq!(twice, "4: `a` is taken already; use another name");
}

#[test]
fn the_number_of_replicas_counts_the_bootnode() {
    let names: Vec<String> = (1..=64).map(|n| format!("\"n{n}\"")).collect();
    let file = format!(
        "purpose = \"A test.\"\nseconds = 60\nreplicas = [{}]\nbootnode = \"boot\"\n",
        names.join(", ")
    );
    let error = LabScenario::parse("x", &file).unwrap_err().to_string();
    assert_eq!(error, "3: 65 replicas are too many; use at most 64");
}

#[test]
fn attacks_that_leave_no_evidence_are_refused() {
    let restarts = |nodes: &str| {
        format!("{{ at = 30, kill = [{nodes}] }},\n  {{ at = 32, restart = [{nodes}] }}")
    };
    let file = |targets: &str, steps: &str| {
        format!(
            "purpose = \"A test.\"\nseconds = 60\nreplicas = [\"a\", \"b\"]\nlate = {{ c = 25 }}\n\
             hostile = [\n  {{ behaviour = \"garbage\"{targets} }},\n]\nsteps = [\n  {steps},\n]\n"
        )
    };
    let read = |targets: &str, steps: &str| {
        LabScenario::parse("x", &file(targets, steps)).map_err(|error| error.to_string())
    };
    let both = ", targets = [\"a\", \"b\"]";
    assert!(read(both, &restarts("\"a\"")).is_ok());
    let cases = [
        (
            ", targets = []",
            restarts("\"a\""),
            "6: `targets` names no node; leave it out for all nodes",
        ),
        (
            ", targets = \"c\"",
            restarts("\"a\""),
            "6: c starts after the attack on it; attack it later",
        ),
        (
            ", targets = \"a\"",
            restarts("\"a\""),
            "6: every target of garbage restarts or starts late, so no ledger is complete at the end; \
             leave one target alone",
        ),
        (
            "",
            restarts("\"a\", \"b\""),
            "6: every replica is disturbed by a step, so no propagation can be compared with and \
             without hostile peers; leave one replica alone",
        ),
        (
            "",
            "{ at = 30, cut = \"all\" }, { at = 35, heal = \"all\" }".to_owned(),
            "6: every replica is disturbed by a step, so no propagation can be compared with and \
             without hostile peers; leave one replica alone",
        ),
    ];
    for (targets, steps, expected) in cases {
        assert_eq!(read(targets, &steps).unwrap_err(), expected);
    }
}
