use super::*;
use crate::cli::flags::of_role;
use std::collections::BTreeMap;

fn arranged(line: &str) -> Result<CommandLine, CliError> {
    arrange(line.split_whitespace().map(str::to_owned).collect())
}

fn words(line: &str) -> String {
    arranged(line).expect(line).argv.join(" ")
}

#[test]
fn a_command_goes_before_the_options_in_front_of_it() {
    for (line, argv) in [
        ("op-geth --datadir=d init g", "op-geth init --datadir=d g"),
        (
            "op-geth --datadir d import f",
            "op-geth import --datadir d f",
        ),
        ("op-geth -datadir d export f", "op-geth export -datadir d f"),
        ("op-geth --verbosity 3 version", "op-geth --version"),
        (
            "op-geth --datadir init db stats",
            "op-geth db --datadir init stats",
        ),
        ("op-node --log.level debug p2p genkey", "op-node p2p genkey"),
        ("starling --datadir d init g", "starling init --datadir d g"),
        ("starling --http node --l1 x", "starling node --http --l1 x"),
        ("op-geth --help init", "op-geth init --help"),
        ("op-geth --datadir d help", "op-geth execution --help"),
        (
            "op-geth --http --datadir d",
            "op-geth execution --http --datadir d",
        ),
        ("/usr/bin/geth --http", "/usr/bin/geth execution --http"),
        ("op-geth --http true", "op-geth execution --http true"),
        ("reth node --http", "reth node --http"),
        ("starling --help", "starling --help"),
        ("starling", "starling"),
    ] {
        assert_eq!(words(line), argv, "{line}");
    }
}

#[test]
fn options_of_the_program_that_the_command_lacks_are_named() {
    let line =
        arranged("op-geth --http --http.port=1 --ws.port 2 --datadir d init g").expect("a line");
    assert_eq!(line.argv.join(" "), "op-geth init --datadir d g");
    assert_eq!(line.unused, ["http", "http.port", "ws.port"]);
    for (line, nearest) in [
        ("op-geth --datdir=d init g", "datadir"),
        ("op-node --log.levl debug p2p genkey", "log.level"),
    ] {
        let said = arranged(line).map(|line| line.argv);
        let said = said.expect_err(line).to_string();
        assert!(
            said.contains(&format!("did you mean --{nearest}?")),
            "{said}"
        );
    }
}

#[test]
fn a_line_without_a_command_says_which_names_need_none() {
    for line in ["starling --http", "./reth --datadir=d --http"] {
        let said = arranged(line).map(|line| line.argv);
        let said = said.expect_err(line).to_string();
        let called = line.split(' ').next().unwrap_or_default();
        let called = called.trim_start_matches("./");
        assert!(
            said.contains(&format!("is called {called}"))
                && said.contains("op-geth, geth, op-node, op-batcher, op-proposer"),
            "{said}"
        );
    }
}

/// Otherwise the next word would be a value or the command depending on the role.
#[test]
fn an_option_has_a_value_in_every_role_or_in_none() {
    let mut kinds: BTreeMap<String, bool> = BTreeMap::new();
    for flag in Role::ALL.into_iter().flat_map(of_role) {
        let is_alone = flag.flag.kind == Kind::Bool;
        for name in flag.names() {
            let other = kinds.entry(name.to_owned()).or_insert(is_alone);
            assert_eq!(*other, is_alone, "--{name}");
        }
    }
}
