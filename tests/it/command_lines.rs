//! The command lines of public start scripts, word for word, under links with the names of the
//! programs that the scripts call. `fixtures/reports/command-lines.txt` is the list of them.

use crate::net::{Running, signal, wait};
use nix::sys::signal::Signal;
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

/// Lines that run to their end, and words of their output. A command that fails has the words in
/// its error. `G` is the genesis file.
const TOOLS: [(&str, bool, &[&str]); 9] = [
    (
        "op-geth --verbosity=3 init --datadir=d1 G",
        true,
        &["Successfully wrote genesis state"],
    ),
    ("op-geth --datadir=d1 init G", true, &["there already"]),
    ("op-geth --datadir d1 import chain.rlp", true, &[]),
    ("op-geth --datadir d1 export out.rlp", true, &[]),
    ("op-geth --verbosity 3 version", true, &["starling"]),
    ("op-node --log.level debug p2p genkey", true, &[]),
    (
        "op-geth init --datadir=d2 --cache.preimages G",
        true,
        &[
            "--cache.preimages has no effect",
            "Successfully wrote genesis state",
        ],
    ),
    (
        "op-geth --datadir=empty --op-network=zora-sepolia",
        false,
        &[
            "no database in empty",
            "genesis/sepolia/zora.json.zst",
            "zstd -d -D ",
        ],
    ),
    (
        "starling init --datadir=empty --network=zora-sepolia",
        false,
        &[
            "need genesis.json file",
            "genesis/sepolia/zora.json.zst",
            "zstd -d -D ",
        ],
    ),
];

/// Lines that start a node, with the options that the log must name.
const NODES: [(&str, &str); 4] = [
    ("op-geth --datadir=d2 --allow-insecure-unlock", ""),
    (
        "op-geth --datadir=d2 --txlookuplimit=0",
        "--nousb --v5disc --metrics.expensive --rpc.enabledeprecatedpersonal --whitelist=x --miner.newpayload-timeout=3s",
    ),
    (
        "op-geth --datadir=d2",
        "--unlock=0x0 --mine --miner.etherbase=0x4200000000000000000000000000000000000011",
    ),
    ("geth --datadir=d2 --http", ""),
];

/// Options that keep a test's node from the ports that others use.
const PORTS: [&str; 2] = ["--authrpc.port=0", "--http.port=0"];

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["starling", "op-geth", "op-node", "geth"] {
        let link = folder.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_starling"), link).expect("a link");
    }
    let genesis = json!({
        "config": {
            "chainId": 901, "bedrockBlock": 0, "regolithTime": 0, "canyonTime": 0, "shanghaiTime": 0,
            "optimism": { "eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250 },
        },
        "timestamp": "0x1", "gasLimit": "0x1c9c380", "difficulty": "0x0", "alloc": {},
    });
    fs::write(folder.path().join("G"), genesis.to_string()).expect("a file");
    folder
}

/// The command of a line, which runs in the folder with the links.
fn command(folder: &Path, line: &str) -> Command {
    let mut words = line.split(' ').filter(|word| !word.is_empty());
    let program = words.next().expect("a program");
    let mut command = Command::new(folder.join(program));
    command.args(words).current_dir(folder).stdin(Stdio::null());
    command
}

fn run(folder: &Path, line: &str) -> (Output, String) {
    let output = command(folder, line).output().expect("it runs");
    let text = [&output.stdout[..], &output.stderr].concat();
    (output, String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn tools_run_with_options_in_front_of_the_command() {
    let folder = folder();
    for (line, succeeds, words) in TOOLS {
        if line.contains("import chain.rlp") {
            let (output, said) = run(folder.path(), "op-geth --datadir d1 export chain.rlp");
            assert!(output.status.success(), "{said}");
        }
        let (output, said) = run(folder.path(), line);
        assert_eq!(output.status.success(), succeeds, "{line}: {said}");
        for word in words {
            assert!(said.contains(word), "{line}: {word:?} is not in: {said}");
        }
    }
    let file = |name| fs::read(folder.path().join(name)).expect("a file of blocks");
    assert_eq!(file("chain.rlp"), file("out.rlp"));
}

/// Starts the node of a line, and returns its log once JSON-RPC is served.
fn started(folder: &Path, line: &str) -> String {
    let log: PathBuf = folder.join("log");
    let output = fs::File::create(&log).expect("a file");
    let mut command = command(folder, line);
    let child = command
        .args(PORTS)
        .stdout(Stdio::null())
        .stderr(output)
        .spawn();
    let mut running = Running {
        child: child.expect("it starts"),
    };
    let read = || fs::read_to_string(&log).expect("the log");
    wait(line, Duration::from_secs(60), || {
        let ended = running.child.try_wait().expect("a child");
        assert!(ended.is_none(), "{line}: {}", read());
        read().contains("JSON-RPC is served").then_some(())
    });
    signal(running.child.id() as i32, Signal::SIGTERM);
    running.child.wait().expect("a child");
    read()
}

#[test]
fn a_node_starts_with_options_that_geth_has_deprecated() {
    let folder = folder();
    let (output, said) = run(folder.path(), "geth init --datadir=d2 G");
    assert!(output.status.success(), "{said}");
    for (line, more) in NODES {
        let line = format!("{line} {more}");
        let log = started(folder.path(), &line);
        let given = line.split(' ').skip(2).filter(|word| !word.is_empty());
        for option in given.filter(|option| *option != "--http") {
            let name = option.split('=').next().unwrap_or(option);
            assert!(
                log.contains(&format!("{name} has no effect: ")),
                "{name}: {log}"
            );
        }
    }
}

/// The list may grow: a line that these tests do not run is named here.
#[test]
fn every_public_line_is_run() {
    let Some(list) = starling_testkit::fixture_text("reports/command-lines.txt") else {
        return;
    };
    let tools = TOOLS.map(|(line, ..)| line.to_owned());
    let nodes = NODES.map(|(line, _)| line.to_owned());
    let also: Vec<&str> = NODES.iter().flat_map(|(_, more)| more.split(' ')).collect();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let (line, others) = line.split_once('#').unwrap_or((line, ""));
        let line = line.trim().replace("ln -s starling geth; ./", "");
        assert!(tools.contains(&line) || nodes.contains(&line), "{line}");
        for option in others.split(' ').filter(|word| word.starts_with("--")) {
            assert!(also.contains(&option), "{option}");
        }
    }
}
