//! Limits of files: sizes, numbers, and limits of checks with which no run could fail.

use super::{SOUND, refused};
use crate::lab::LabScenario;

#[test]
fn limits_with_which_no_run_could_fail_are_refused() {
    let cases = [
        (
            "\"a long text\"",
            "\"\"",
            "16: `` would be in too many log lines; write at least 8 characters of the line",
        ),
        (
            "\"a long text\"",
            "\"seven  \"",
            "16: `seven  ` would be in too many log lines; write at least 8 characters of the line",
        ),
        (
            "batcher = true",
            "expect = [\"ERROR\"]",
            "6: `ERROR` would be in too many log lines; write at least 8 characters of the line",
        ),
        (
            "agree-within = 10",
            "agree-within = 0",
            "16: `agree-within` is zero, but a block takes time to reach the nodes; allow a second or more",
        ),
        (
            "lag = 2",
            "lag = 20",
            "16: a lag of 20 blocks is half of the 40 blocks of the run or more, so a node that \
             stands still could pass; lower `lag`",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
    for (from, to) in [
        ("lag = 2", "lag = 19"),
        ("batcher = true", "expect = [\"12345678\"]"),
    ] {
        let accepted = SOUND.replacen(from, to, 1);
        assert_eq!(LabScenario::parse("x", &accepted).map(|_| ()), Ok(()));
    }
}

#[test]
fn faults_that_no_plan_could_hold_are_refused() {
    let cases = [
        (
            "flap = \"all\", until = 20, down = 0.0001, up = 0.0001",
            "13: with this flap the run has about 600000 faults; use at most 100000: raise `down` \
             and `up`, or lower `until`",
        ),
        (
            "storm = \"a\", until = 20, down = 0.00001, up = 0.00004",
            "13: with this storm the run has about 200000 faults; use at most 100000: raise `down` \
             and `up`, or lower `until`",
        ),
        (
            "flap = \"a\", until = 20, down = 0.0002, up = 0.0003 },\n  \
             { at = 10, flap = \"c\", until = 20, down = 0.0002, up = 0.0003",
            "14: with this flap the run has about 160000 faults; use at most 100000: raise `down` \
             and `up`, or lower `until`",
        ),
    ];
    for (to, expected) in cases {
        assert_eq!(refused("kill = \"b\"", to), expected);
    }
}

#[test]
fn more_than_a_thousand_steps_are_refused() {
    let read = |more: usize| {
        let heal = "  { at = 6, heal = \"all\" },\n";
        let steps = heal.to_owned() + &"  { at = 7, load = 5 },\n".repeat(more);
        let text = SOUND.replacen(heal, &steps, 1);
        LabScenario::parse("x", &text).map(|scenario| scenario.steps.len())
    };
    assert_eq!(read(996), Ok(1_000));
    assert_eq!(
        read(997).unwrap_err().to_string(),
        "1011: 1001 steps are too many; use at most 1000"
    );
}

#[test]
fn a_link_that_is_given_twice_is_refused() {
    let rung = "rung = \"satellite\" },";
    let twice = format!("{rung}\n  {{ between = [\"seq\", \"a\"], rung = \"lan\" }},");
    assert_eq!(
        refused(rung, &twice),
        "9: the link between seq and a is given twice; leave one out"
    );
}

#[test]
fn limits_and_services_without_an_effect_are_refused() {
    let cases = [
        (
            "lag = 2",
            "slowdown = 2",
            "16: `slowdown` is the limit of a check on hostile peers, and there are none; leave it \
             out",
        ),
        (
            "memory-mb = 200",
            "memory-mb = 4097",
            "16: 4097 is not between 1 and 4096",
        ),
        (
            "batcher = true",
            "proposer = true",
            "6: the proposer proposes safe blocks, and there are none without a batcher; add \
             `batcher = true`",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
}

#[test]
fn names_and_numbers_outside_of_their_bounds_are_refused() {
    let plain = "is no name of a node; use at most 16 of a-z, 0-9 and -";
    let replicas = "[\"a\", \"b\"]";
    for name in ["seventeen-letters", ""] {
        let to = format!("[\"a\", \"b\", \"{name}\"]");
        assert_eq!(refused(replicas, &to), format!("4: `{name}` {plain}"));
    }
    let batcher = "batcher = true";
    let cases = [
        (batcher, "block-time = 0", "6: 0 is not between 1 and 60"),
        (batcher, "l1-block-time = 0", "6: 0 is not between 1 and 60"),
        (batcher, "load = 5001", "6: 5001 is not between 0 and 5000"),
        (
            "kill = \"b\"",
            "load = 5001",
            "13: 5001 is not between 0 and 5000",
        ),
        (
            "lag = 2",
            "lag = 1001",
            "16: 1001 is not between 0 and 1000",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
}

#[test]
fn values_of_a_wrong_type_are_refused() {
    let cases = [
        (
            "purpose = \"A test.\"",
            "purpose = 5",
            "2: a text is needed here, not this integer",
        ),
        (
            "[\"a\", \"b\"]",
            "5",
            "4: an array is needed here, not this integer",
        ),
        (
            "{ c = 5 }",
            "5",
            "5: a table is needed here, not this integer",
        ),
        (
            "batcher = true",
            "batcher = 1",
            "6: true or false is needed here, not this integer",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
}

#[test]
fn the_sequencer_and_the_l1_cannot_be_wiped() {
    for node in ["seq", "l1"] {
        let wipe = format!("kill = \"{node}\" }},\n  {{ at = 11, wipe = \"{node}\"");
        assert_eq!(
            refused("kill = \"b\"", &wipe),
            format!("14: {node} cannot be wiped: the network's blocks come from it")
        );
    }
}
