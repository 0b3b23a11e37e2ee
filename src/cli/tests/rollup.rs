//! `starling rollup`, and calls through links.

use super::*;
use std::path::PathBuf;

fn rollup(
    line: &str,
    environment: &[(&str, &str)],
) -> Result<(RollupNodeConfig, Vec<String>), CliError> {
    let parsed = parse_with(
        &format!("starling rollup --rollup.config=r.json {line}"),
        environment,
    )?;
    match parsed.invocation {
        Invocation::Rollup(config) => Ok((*config, parsed.notices)),
        other => panic!("{other:?}"),
    }
}

const L2: &str = "--l2=http://127.0.0.1:8551 --l2.jwt-secret=jwt.txt";

#[test]
fn a_rollup_node_drives_the_engine_it_is_given() -> Result<(), CliError> {
    let (config, notices) = rollup(&format!("{L2} --datadir=d"), &[])?;
    let engine = RemoteEngineConfig {
        url: "http://127.0.0.1:8551".into(),
        jwt_secret: "jwt.txt".into(),
        timeout: Duration::from_secs(10),
    };
    assert_eq!((config.engine, notices.len()), (engine, 0));
    assert_eq!(config.datadir, PathBuf::from("d"));
    assert!(config.sequencer.is_none());
    assert_eq!(config.rpc.http.port, 9545);
    assert_eq!(config.rpc.http.vhosts, ["*"]);
    assert!(!config.rpc.http.api.contains(&"admin".to_owned()));
    let (config, _) = rollup(&format!("{L2} --l2.engine-rpc-timeout=3s"), &[])?;
    assert_eq!(config.engine.timeout, Duration::from_secs(3));
    assert_eq!(config.datadir, PathBuf::from("starling-rollup"));
    // The endpoint comes from op-node's environment variable, and no secret is given.
    let (config, notices) = rollup("", &[("OP_NODE_L2_ENGINE_RPC", "ws://geth:8551")])?;
    assert_eq!(config.engine.url, "http://geth:8551");
    let secret = PathBuf::from("starling-rollup/jwt.txt");
    assert_eq!(config.engine.jwt_secret, secret);
    assert!(
        notices
            .iter()
            .any(|notice| notice.contains("--l2.jwt-secret") && notice.contains("jwt.txt")),
        "{notices:?}"
    );
    Ok(())
}

#[test]
fn an_engine_that_cannot_be_driven_is_refused() {
    for (line, named) in [
        ("", "--l2 is missing"),
        ("--l2=engine.ipc", "--l2 takes a URL"),
        ("--l2=http://x --l2.engine-rpc-timeout=0s", "10s"),
        (
            "--l2=http://x --syncmode=execution-layer",
            "--syncmode is not supported",
        ),
        (
            "--l2=http://x --override.interop=5",
            "--override.interop is not supported",
        ),
        ("--l2=http://x --http", "there is no option --http"),
    ] {
        let said = rollup(line, &[]).expect_err(line).to_string();
        assert!(said.contains(named), "{line}: {said}");
    }
    assert!(rollup("--l2=http://x --syncmode=consensus-layer", &[]).is_ok());
}

#[test]
fn a_link_takes_the_command_line_of_its_program() -> Result<(), CliError> {
    let parsed = |line: &str| parse_with(line, &[]).map(|parsed| parsed.invocation);
    let line = format!("/usr/bin/op-node --rollup.config=r.json {L2} --l1=http://l1");
    assert!(matches!(parsed(&line)?, Invocation::Rollup(_)));
    assert!(matches!(
        parsed("op-geth --datadir=d --http")?,
        Invocation::Execution(_)
    ));
    // These are commands of the linked programs.
    assert!(matches!(
        parsed("op-geth init --datadir=d genesis.json")?,
        Invocation::Init(_)
    ));
    let dumped = parsed("op-node networks dump-rollup-config --network=op-sepolia")?;
    assert!(matches!(dumped, Invocation::Print(text) if text.contains("l2_chain_id")));
    let Invocation::Print(help) = parsed("op-node --help")? else {
        panic!("no help")
    };
    assert!(help.contains("--l2.jwt-secret"), "{help}");
    Ok(())
}

#[test]
fn a_link_answers_the_words_that_are_no_command_here() -> Result<(), CliError> {
    let parsed = |line: &str| parse_with(line, &[]).map(|parsed| parsed.invocation);
    for line in ["op-geth version", "op-node version", "starling version"] {
        let printed = parsed(line)?;
        assert!(
            matches!(&printed, Invocation::Print(text) if text.contains(VERSION)),
            "{line}: {printed:?}"
        );
    }
    for line in ["op-geth help", "op-geth help attach"] {
        let printed = parsed(line)?;
        assert!(
            matches!(&printed, Invocation::Print(text) if text.contains("--http.port")),
            "{line}: {printed:?}"
        );
    }
    for (line, words) in [
        ("op-geth attach d/geth.ipc", "<datadir>/geth.ipc"),
        (
            "op-geth snapshot verify-state",
            "op-geth has the command snapshot",
        ),
        ("op-geth intt genesis.json", "there is no command intt"),
        ("op-node genesis l2", "op-node has the command genesis"),
    ] {
        let error = parsed(line).expect_err(line).to_string();
        assert!(error.contains(words), "{line}: {error}");
    }
    Ok(())
}

#[test]
fn options_of_a_sequencer_are_those_of_the_node() -> Result<(), CliError> {
    let line = format!("{L2} --sequencer.enabled --sequencer.l1-confs=2 --p2p.sequencer.key={KEY}");
    let (config, _) = rollup(&line, &[])?;
    let sequencing = config.sequencer.expect("a sequencer");
    assert_eq!(sequencing.sequencer.l1_confs, 2);
    assert!(config.p2p.is_some());
    let (config, _) = rollup(&format!("{L2} --p2p.disable"), &[])?;
    assert!(config.p2p.is_none());
    Ok(())
}
