//! One refused file for each rule: the message has the line and the next step.

use crate::lab::{
    LabBackend, LabScenario,
    hostile::{HostileGroup, behaviour::HostileBehaviour},
    scenario::{LabVerb, NodeVerb, names},
};
use std::time::Duration;

mod bounds;

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
allow = { agree-within = 10, lag = 2, memory-mb = 200, errors = ["a long text"] }
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
    assert_eq!((scenario.lines.length, scenario.lines.sequencer), (3, 0));
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
            "3: the last fault is at 12 s and the batcher needs 12 s to make blocks safe: set `seconds` to at least 24",
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
            "14: restart on b, which is in a storm until 20 s; choose another time or node",
        ),
        (
            "kill = \"b\"",
            "stop = \"batcher\" },\n  { at = 11, wipe = \"batcher\"",
            "14: batcher stores no data that could be wiped",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
}

/// A storm draws its nodes from the seed. One that is not running when the storm begins is refused
/// whether or not a particular seed draws it, so each node is tried.
#[test]
fn a_storm_on_a_node_that_does_not_run_is_refused_for_every_seed() {
    let storm = |nodes: &str| format!("at = 4, storm = [{nodes}], until = 4.2");
    let kill = "at = 10, kill = \"b\"";
    for nodes in ["\"b\", \"c\"", "\"c\", \"b\"", "\"a\", \"b\", \"c\""] {
        let found = refused(kill, &storm(nodes));
        assert_eq!(found, "13: storm at 4 s, but c has not started yet then");
    }
    let frozen = "freeze = \"b\" },\n  { at = 11, storm = [\"a\", \"b\"], until = 11.5";
    let found = refused("kill = \"b\"", frozen);
    assert_eq!(found, "14: storm at 11 s, but b is frozen then");
}

#[test]
fn steps_that_make_no_sense_are_refused() {
    let cases = [
        (
            "kill = \"b\"",
            "kill = []",
            "13: the verb names no node; name at least one",
        ),
        (
            "kill = \"b\"",
            "kill = \"b\", cut = \"a\"",
            "13: a step has several verbs (cut, kill); write a step for each",
        ),
        (
            "kill = \"b\"",
            "until = 10",
            "13: a step has no verb; use one of cut, heal, isolate, split, slow, lossy, flap, kill, stop, freeze, thaw, restart, wipe, upgrade, promote, storm, fill-disk, move, new-key, reorg, load",
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
            "13: `a` is in two groups; leave it out of one",
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
        (
            "heal = \"all\"",
            "cut = [\"seq\", \"l1\"] },\n  { at = 7, heal = \"a\"",
            "3: the link between seq and l1 is closed at the end: heal it",
        ),
        (
            "restart = \"b\"",
            "restart = \"b\" },\n  { at = 13, lossy = [\"batcher\", \"l1\"], loss = 1",
            "3: the link between batcher and l1 is closed at the end: heal it",
        ),
        (
            "restart = \"b\"",
            "restart = \"b\" },\n  { at = 13, cut = [\"batcher\", \"seq\"]",
            "3: the link between batcher and seq is closed at the end: heal it",
        ),
        (
            "restart = \"b\"",
            "restart = \"b\" },\n  { at = 13, stop = \"batcher\"",
            "3: batcher does not run at the end, so no blocks become safe then",
        ),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
}

#[test]
fn a_run_without_a_batcher_needs_the_time_to_agree_only() {
    let text = SOUND.replacen("batcher = true\n", "", 1);
    let text = text.replacen("seconds = 40", "seconds = 20", 1);
    let error = LabScenario::parse("x", &text).unwrap_err().to_string();
    assert_eq!(
        error,
        "3: the last fault is at 12 s and the nodes have 10 s to agree: set `seconds` to at least 22"
    );
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
            "8: there is no link between a and batcher; see `netsim/scenarios/README.md`",
        ),
        (
            "[\"a\", \"seq\"]",
            "[\"a\"]",
            "8: an array of two nodes is needed here, not this array",
        ),
        (
            "purpose = \"A test.\"",
            "purpose = \"\"",
            "2: `purpose` is empty; say in one sentence what the scenario is for",
        ),
        ("seconds = 40\n", "", "1: `seconds` is missing"),
    ];
    for (from, to, expected) in cases {
        assert_eq!(refused(from, to), expected);
    }
    let none = LabScenario::new("x", "y").check().unwrap_err().to_string();
    assert_eq!(
        none,
        "there are no replicas, so the checks have nobody to compare; name one in `replicas` or `late`"
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
    let mut in_turn = 0;
    for (name, text) in crate::lab::commands::SHIPPED {
        let scenario =
            LabScenario::parse(name, text).unwrap_or_else(|error| panic!("{name}.toml:{error}"));
        assert!(text.starts_with("# "), "{name} begins with a comment");
        assert!(scenario.length.as_secs() <= 15 * 60, "{name} is too long");
        if scenario.length < crate::lab::commands::LONG {
            in_turn += scenario.length.as_secs();
        }
    }
    // Each of them takes some five seconds more, and `run --all` is to end within 40 minutes.
    assert!(in_turn <= 35 * 60, "{in_turn} s");
}

#[test]
fn the_examples_of_the_readme_are_accepted() {
    let readme = include_str!("../../../scenarios/README.md");
    let examples = readme.split("```toml\n").skip(1);
    let examples: Vec<&str> = examples.filter_map(|it| it.split("```").next()).collect();
    assert_eq!(examples.len(), 2);
    for text in examples {
        let read = LabScenario::parse("x", text).map(|_| ());
        assert_eq!(read, Ok(()), "{text}");
    }
}

#[test]
fn networks_that_the_packet_backend_cannot_have_are_refused() {
    let base = || {
        let base = LabScenario::new("x", "y").replicas(["a"]);
        base.backend(LabBackend::Packet)
    };
    assert_eq!(base().check(), Ok(()));
    let mut other = base();
    other.other_chain = 2;
    let cases = [
        (
            base().bootnode("boot"),
            "the backend `packet` joins nodes by links, and nodes that find each other through a \
             bootnode have none between them; use the backend `stream`",
        ),
        (
            other,
            "the backend `packet` has no links to the nodes of another chain; use the backend \
             `stream`",
        ),
        (
            base().at(5, LabVerb::Nodes(NodeVerb::Move, names(["a"]))),
            "move changes addresses on loopback, which hosts of the backend `packet` do not share; \
             use the backend `stream`",
        ),
    ];
    for (scenario, expected) in cases {
        assert_eq!(scenario.check().unwrap_err().to_string(), expected);
        let stream = scenario.backend(LabBackend::Stream);
        assert_eq!(stream.check(), Ok(()));
    }
}

#[test]
fn errors_about_single_keys_have_their_lines() {
    let many: Vec<String> = (0..64).map(|number| format!("r{number}")).collect();
    let file = |key: &str| {
        let text = format!("purpose = \"x\"\nseconds = 40\n{key}\n");
        LabScenario::parse("x", &text).unwrap_err().to_string()
    };
    let cases = [
        (
            "backend = \"packet\"\nreplicas = [\"a\"]\nbootnode = \"boot\"".to_owned(),
            "5: the backend `packet` joins nodes by links",
        ),
        (
            "backend = \"packet\"\nreplicas = [\"a\"]\nother-chain = 1".to_owned(),
            "5: the backend `packet` has no links",
        ),
        ("replicas = []".to_owned(), "3: there are no replicas"),
        ("load = 1".to_owned(), "there are no replicas"),
        (
            format!("load = 1\nreplicas = {many:?}\nbootnode = \"b\""),
            "4: 65 replicas are too many",
        ),
        (
            "replicas = [\"a\"]\nsequencer = \"all\"".to_owned(),
            "4: `all` is taken already",
        ),
        (
            "replicas = [\"a\"]\nbootnode = \"seq\"".to_owned(),
            "4: `seq` is taken already",
        ),
    ];
    for (key, expected) in cases {
        let found = file(&key);
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn disks_that_cannot_be_full_are_refused() {
    let kill = "kill = \"b\"";
    let cases = [
        (
            "fill-disk = \"batcher\", until = 20",
            "13: batcher stores no data, so it has no disk to fill",
        ),
        ("fill-disk = \"b\"", "13: `until` is missing"),
        (
            "fill-disk = \"b\", until = 41",
            "13: fill-disk ends at 41 s, but the run ends at 40 s",
        ),
        (
            "fill-disk = \"b\", until = 10",
            "13: fill-disk ends before it begins; raise `until`",
        ),
        (
            "fill-disk = \"b\", until = 9, down = 1",
            "13: `fill-disk` has no `down`",
        ),
        (
            "fill-disk = \"b\", until = 20 },\n  { at = 20, fill-disk = [\"a\", \"b\"], until = 22",
            "14: fill-disk on b, whose fill-disk lasts until 20 s; choose a later time",
        ),
        (
            "fill-disk = \"b\", until = 20 },\n  { at = 11, wipe = \"b\"",
            "14: wipe on b, whose fill-disk lasts until 20 s; choose a later time",
        ),
    ];
    for (to, expected) in cases {
        assert_eq!(refused(kill, to), expected);
    }
    let early = refused(
        "at = 10, kill = \"b\"",
        "at = 4, fill-disk = \"c\", until = 9",
    );
    assert_eq!(
        early,
        "13: fill-disk at 4 s, but c has not started yet then"
    );
    let accepted = SOUND.replacen(kill, "fill-disk = [\"a\", \"b\"], until = 11", 1);
    assert_eq!(LabScenario::parse("x", &accepted).map(|_| ()), Ok(()));
}

#[test]
fn moves_keys_and_reorgs_are_refused_where_they_cannot_be() {
    let cases = [
        (
            "move = \"l1\"",
            "13: l1 cannot move: only the sequencer and replicas are dialled by name",
        ),
        (
            "new-key = \"b\"",
            "13: b signs no blocks; name the sequencer",
        ),
        (
            "reorg = \"seq\", until = 20",
            "13: seq cannot be reorganised; name l1",
        ),
        (
            "reorg = \"l1\", until = 31.1",
            "13: reorg lasts more than 21 s, in which L1 makes 7 blocks, and deeper ones are final; lower `until`",
        ),
        (
            "reorg = \"l1\", until = 20 },\n  { at = 15, reorg = \"l1\", until = 22",
            "14: reorg on l1, whose reorg lasts until 20 s; choose a later time",
        ),
        (
            "reorg = \"l1\", until = 20 },\n  { at = 15, stop = \"l1\"",
            "13: reorg at 20 s, but l1 is down then",
        ),
    ];
    for (to, expected) in cases {
        assert_eq!(refused("kill = \"b\"", to), expected);
    }
    let other = refused(
        "replicas = [\"a\", ",
        "other-chain = 1\nreplicas = [\"other-1\", ",
    );
    let expected = "5: `other-1` begins like a node of the other chain; rename it";
    assert_eq!(other, expected);
    let many = refused("batcher = true", "other-chain = 9");
    assert_eq!(many, "6: 9 is not between 1 and 8");
}

#[test]
fn a_step_at_the_end_and_a_split_without_a_link_are_refused() {
    assert_eq!(
        refused("at = 12, restart = \"b\"", "at = 40, load = 5"),
        "14: load at 40 s, but the run ends at 40 s"
    );
    let split = "batcher = true\nproposer = true";
    let text = SOUND.replacen("batcher = true", split, 1).replacen(
        "at = 5, cut = [\"seq\", \"a\"]",
        "at = 5, split = [[\"batcher\"], [\"proposer\"]]",
        1,
    );
    let error = LabScenario::parse("x", &text).unwrap_err().to_string();
    assert_eq!(
        error,
        "12: the split cuts no link: there is none between its groups; name nodes that have links"
    );
}

/// The other chain and hostile peers dial the address of the start.
#[test]
fn a_move_away_from_an_address_that_others_dial_is_refused() {
    let base = || {
        let base = LabScenario::new("x", "y").replicas(["a", "b"]).seconds(45);
        base.at(5, LabVerb::Nodes(NodeVerb::Move, names(["a"])))
    };
    assert_eq!(base().check(), Ok(()));
    let mut chains = base();
    chains.other_chain = 1;
    assert_eq!(
        chains.check().unwrap_err().to_string(),
        "move changes an address that the nodes of `other-chain` dial; leave one out"
    );
    let attack = |targets: &[&str]| {
        let mut hostile = HostileGroup::new(HostileBehaviour::Eclipse, Duration::from_secs(12));
        hostile.targets = targets.iter().map(|it| (*it).to_owned()).collect();
        base().hostile(hostile).check()
    };
    assert_eq!(attack(&["b"]), Ok(()));
    for targets in [&["a"][..], &[]] {
        assert_eq!(
            attack(targets).unwrap_err().to_string(),
            "a cannot move: hostile peers dial it at its first address"
        );
    }
}
