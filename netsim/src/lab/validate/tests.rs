//! One refused file for each rule: the message has the line and the next step.

use crate::lab::LabScenario;

/// A sound file. Each test changes it.
const SOUND: &str = r#"# A comment.
purpose = "A test."
seconds = 40
replicas = ["a", "b"]
late = { c = 5 }
batcher = true
links = [
  { between = ["a", "seq"], rung = "satellite" },
]
steps = [
  { at = 5, cut = ["seq", "a"] },
  { at = 6, heal = "all" },
  { at = 10, kill = "b" },
  { at = 12, restart = "b" },
]
allow = { agree-within = 10, lag = 2, memory-mb = 200, errors = ["x"] }
"#;

/// The error after `from` was replaced by `to`. Panics if the file is accepted.
fn refused(from: &str, to: &str) -> String {
    assert!(SOUND.contains(from), "{from}");
    let text = SOUND.replacen(from, to, 1);
    LabScenario::parse("x", &text).expect_err(to).to_string()
}

#[test]
fn a_sound_file_is_read_whole() {
    let scenario = LabScenario::parse("x", SOUND).unwrap();
    let names = ["l1", "seq", "a", "b", "c", "batcher"];
    assert_eq!(scenario.node_names(), names);
    assert_eq!(scenario.steps.len(), 4);
    assert_eq!(scenario.links[0].rung.name, "satellite");
    assert_eq!(scenario.allow.lag, 2);
    assert_eq!(scenario.length_line, 3);
}

#[test]
fn unknown_words_are_refused_with_line_and_nearest_word() {
    let cases = [
        (
            "seconds",
            "secnds",
            "3: unknown key `secnds`; did you mean `seconds`?",
        ),
        (
            "kill =",
            "kil =",
            "13: unknown key `kil`; did you mean `kill`?",
        ),
        (
            "\"satellite\"",
            "\"satelite\"",
            "8: no link is called `satelite`; did you mean `satellite`?",
        ),
        (
            "seconds = 40",
            "seconds = 40\nbackend = \"paket\"",
            "4: no backend is called `paket`; did you mean `packet`?",
        ),
        (
            "kill = \"b\"",
            "kill = \"bb\"",
            "13: no node is called `bb`; did you mean `b`?",
        ),
        (
            "lag =",
            "lagg =",
            "16: unknown key `lagg`; did you mean `lag`?",
        ),
        (
            "between",
            "betwen",
            "8: unknown key `betwen`; did you mean `between`?",
        ),
        (
            "[\"seq\", \"a\"]",
            "[\"sec\", \"a\"]",
            "11: no node is called `sec`; did you mean `seq`?",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
    let far = refused("\"satellite\"", "\"pigeon-carrier\"");
    assert!(far.ends_with("use one of loopback, lan, same-region, cross-region, transatlantic, home-dsl, 3g, satellite, lossy-5"), "{far}");
}

#[test]
fn impossible_times_are_refused() {
    let cases = [
        (
            "at = 12",
            "at = 41",
            "14: restart at 41 s, but the run ends at 40 s",
        ),
        (
            "c = 5",
            "c = 50",
            "5: c starts at 50 s, but the run ends at 40 s",
        ),
        ("at = 12", "at = -1", "14: -1 is not between 0 and 86400"),
        (
            "at = 12",
            "at = \"x\"",
            "14: a number is needed here, not this string",
        ),
        (
            "seconds = 40",
            "seconds = 20",
            "3: the last fault is at 12 s and the nodes have 10 s to agree: set `seconds` to at least 22",
        ),
        (
            "kill = \"b\"",
            "flap = \"b\", until = 41",
            "13: flap ends at 41 s, but the run ends at 40 s",
        ),
        (
            "kill = \"b\"",
            "flap = \"b\", until = 9",
            "13: flap ends before it begins; raise `until`",
        ),
        (
            "kill = \"b\"",
            "flap = \"b\", until = 20, down = 0",
            "13: flap needs times above zero for `down` and `up`",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
}

#[test]
fn verbs_that_their_node_cannot_have_are_refused() {
    let cases = [
        (
            "restart = \"b\"",
            "thaw = \"b\"",
            "14: thaw at 12 s, but b is down then",
        ),
        (
            "restart = \"b\"",
            "kill = \"b\"",
            "14: kill at 12 s, but b is down then",
        ),
        (
            "kill = \"b\"",
            "wipe = \"b\"",
            "13: wipe at 10 s, but b is running then",
        ),
        (
            "kill = \"b\"",
            "freeze = \"b\"",
            "14: restart at 12 s, but b is frozen then",
        ),
        (
            "at = 10, kill = \"b\"",
            "at = 4, kill = \"c\"",
            "13: kill at 4 s, but c has not started yet then",
        ),
        (
            "kill = \"b\"",
            "storm = [\"a\", \"b\"], until = 20",
            "14: restart on b, which is in a storm until 20 s",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
}

#[test]
fn steps_that_make_no_sense_are_refused() {
    let cases = [
        ("kill = \"b\"", "kill = []", "13: the verb names no node"),
        (
            "kill = \"b\"",
            "kill = \"b\", cut = \"a\"",
            "13: a step has several verbs (cut, kill); write a step for each",
        ),
        (
            "kill = \"b\"",
            "until = 10",
            "13: a step has no verb; use one of cut, heal, isolate, split, slow, lossy, flap, kill, stop, freeze, thaw, restart, wipe, upgrade, storm, load",
        ),
        (
            "kill = \"b\"",
            "kill = \"b\", loss = 0.1",
            "13: `kill` has no `loss`",
        ),
        (
            "kill = \"b\"",
            "lossy = \"b\", loss = 1.5",
            "13: 1.5 is not between 0 and 1",
        ),
        (
            "kill = \"b\"",
            "split = [[\"a\", \"b\"]]",
            "13: a split needs at least two groups",
        ),
        (
            "kill = \"b\"",
            "split = [[\"a\"], [\"a\"]]",
            "13: `a` is in two groups",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
}

#[test]
fn networks_that_cannot_agree_at_the_end_are_refused() {
    let cases = [
        (
            "heal = \"all\"",
            "isolate = \"b\"",
            "3: b is still cut off at the end: heal its links",
        ),
        (
            "heal = \"all\"",
            "lossy = \"b\", loss = 1",
            "3: b is still cut off at the end: heal its links",
        ),
        (
            "heal = \"all\"",
            "stop = \"seq\"",
            "3: seq does not run at the end, so no blocks are made then",
        ),
        (
            "heal = \"all\"",
            "freeze = \"l1\"",
            "3: l1 does not run at the end, so no blocks are made then",
        ),
        (
            "restart = \"b\"",
            "kill = [\"a\", \"c\"]",
            "3: no replica runs at the end, so the checks have nobody to compare",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
}

#[test]
fn impossible_topologies_are_refused() {
    let cases = [
        (
            "[\"a\", \"b\"]",
            "[\"a\", \"a\"]",
            "4: `a` is taken already; use another name",
        ),
        (
            "[\"a\", \"b\"]",
            "[\"a\", \"b\", \"l1\"]",
            "4: `l1` is taken already; use another name",
        ),
        (
            "[\"a\", \"b\"]",
            "[\"a\", \"b\", \"B b\"]",
            "4: `B b` is no name of a node; use at most 16 of a-z, 0-9 and -",
        ),
        (
            "[\"a\", \"seq\"]",
            "[\"a\", \"batcher\"]",
            "8: there is no link between a and batcher",
        ),
        (
            "[\"a\", \"seq\"]",
            "[\"a\"]",
            "8: an array of two nodes is needed here, not this array",
        ),
        (
            "purpose = \"A test.\"",
            "purpose = \"\"",
            "1: `purpose` is empty; say in one sentence what the scenario is for",
        ),
        ("seconds = 40\n", "", "1: `seconds` is missing"),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
    let none = LabScenario::new("x", "y").check().unwrap_err().to_string();
    assert_eq!(
        none,
        "1: there are no replicas, so the checks have nobody to compare"
    );
    let rung = LabScenario::new("x", "y")
        .replicas(["a"])
        .rung("lam")
        .check();
    assert_eq!(
        rung.unwrap_err().to_string(),
        "no link is called `lam`; did you mean `lan`?"
    );
    let syntax = LabScenario::parse("x", "purpose = \"y\"\nseconds = = 3").unwrap_err();
    assert_eq!(syntax.line, 2);
}

#[test]
fn every_shipped_scenario_is_accepted_and_says_what_it_is_for() {
    for (name, text) in crate::lab::commands::SHIPPED {
        let scenario =
            LabScenario::parse(name, text).unwrap_or_else(|error| panic!("{name}.toml:{error}"));
        assert!(text.starts_with("# "), "{name} begins with a comment");
        assert!(scenario.length.as_secs() <= 90, "{name} is short");
    }
}
