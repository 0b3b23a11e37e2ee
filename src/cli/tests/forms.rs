//! Spelling, precedence and refusals, which work alike for all options.

use super::*;

#[test]
fn booleans_take_three_forms() -> Result<(), CliError> {
    for (line, http, req_resp) in [
        ("--http", true, true),
        ("--http=true --p2p.sync.req-resp=false", true, false),
        ("--http=false", false, true),
        ("-http --p2p.sync.req-resp=0", true, false),
        ("--http --http=false", false, true),
    ] {
        let (config, _) = node(line, &[])?;
        assert_eq!(
            (
                config.rpc.http.is_some(),
                config.p2p.map(|p2p| p2p.req_resp)
            ),
            (http, Some(req_resp)),
            "{line}"
        );
    }
    assert!(node("--http=maybe", &[]).is_err());
    Ok(())
}

#[test]
fn the_command_line_beats_the_environment_which_beats_the_default() -> Result<(), CliError> {
    let environment = [
        ("OP_NODE_L1_ETH_RPC", "http://env:1"),
        ("GETH_HTTP_PORT", "1"),
        ("GETH_HTTP", "true"),
        ("GETH_WS", ""),
    ];
    let (config, _) = node("--http.port=2", &environment)?;
    assert_eq!(config.l1.client.url, "http://env:1");
    assert_eq!(config.rpc.http.map(|http| http.port), Some(2));
    assert!(config.rpc.ws.is_none(), "an empty variable is not set");
    assert_eq!(config.l1.poll_interval, Duration::from_secs(12));
    assert!(config.l1.given && !node("", &[])?.0.l1.given);
    Ok(())
}

#[test]
fn go_spellings_are_read() -> Result<(), CliError> {
    let (config, notices) = node(
        "-p2p.gossip.timestamp.threshold 1m30s -http.api eth,net --http.api debug -http",
        &[],
    )?;
    assert_eq!(
        config.p2p.map(|p2p| p2p.gossip_threshold),
        Some(Duration::from_secs(90))
    );
    assert_eq!(
        config.rpc.http.map(|http| http.api),
        Some(["eth", "net", "debug"].map(str::to_string).to_vec())
    );
    assert_eq!(notices, Vec::<String>::new());
    Ok(())
}

#[test]
fn what_has_no_effect_is_accepted_and_said() -> Result<(), CliError> {
    let (_, notices) = node(
        "--p2p.ping --l2=http://127.0.0.1:8551",
        &[("OP_NODE_EXPERIMENTAL_SEQUENCER_API", "true")],
    )?;
    assert_eq!(notices.len(), 3, "{notices:?}");
    assert!(
        notices
            .iter()
            .any(|notice| notice.starts_with("--p2p.ping has no effect: "))
    );
    let name = "OP_NODE_EXPERIMENTAL_SEQUENCER_API (--experimental.sequencer-api)";
    assert!(
        notices
            .iter()
            .any(|notice| notice.starts_with(&format!("{name} has no effect: ")))
    );
    Ok(())
}

#[test]
fn variables_that_no_option_has_are_named() {
    let said = |role, name: &str| parse::unknown_variables(role, [name.to_owned()]);
    let misspelt = said(Role::Rollup, "OP_NODE_L1_ETH_RCP");
    assert_eq!(
        misspelt,
        [
            "no option has the environment variable OP_NODE_L1_ETH_RCP, which has no effect; did you mean OP_NODE_L1_ETH_RPC?"
        ]
    );
    let foreign = said(Role::Batcher, "OP_BATCHER_SERVICE_HOST");
    assert_eq!(
        foreign,
        ["no option has the environment variable OP_BATCHER_SERVICE_HOST, which has no effect"]
    );
    let [geth] = &said(Role::Node, "GETH_HTTP_PROT")[..] else {
        panic!("one sentence")
    };
    assert!(geth.ends_with("; did you mean GETH_HTTP_PORT?"), "{geth}");
    for (role, name) in [
        (Role::Rollup, "OP_NODE_L1_ETH_RPC"),
        // The environment may be shared by several processes, so other roles' options are accepted.
        (Role::Execution, "OP_NODE_L1_ETH_RPC"),
        (Role::Rollup, "OP_BATCHER_ANYTHING"),
        (Role::Node, "STARLING_FIXTURES"),
        (Role::Node, "PATH"),
    ] {
        assert_eq!(said(role, name), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn what_would_be_wrong_to_ignore_is_refused() {
    for line in [
        "--override.cancun=5",
        "--conductor.enabled",
        "--l2.follow.source=http://127.0.0.1:1",
    ] {
        assert!(
            matches!(node(line, &[]), Err(CliError::Refused { .. })),
            "{line}"
        );
    }
    assert!(node("--conductor.enabled=false", &[]).is_ok());
}

#[test]
fn an_empty_value_is_none() -> Result<(), CliError> {
    let (config, _) = node(
        "--rollup.sequencerhttp= --network= --p2p.sequencer.key= --p2p.static= --http --http.port=",
        &[],
    )?;
    assert!(config.rpc.sequencer_http.is_none() && config.sequencer.is_none());
    assert_eq!(config.rpc.http.map(|http| http.port), Some(8545));
    Ok(())
}

#[test]
fn an_unknown_flag_suggests_the_nearest() {
    let error = node("--rollup.sequncerhttp=http://a", &[])
        .expect_err("unknown")
        .to_string();
    assert!(
        error.contains("--rollup.sequncerhttp; did you mean --rollup.sequencerhttp?"),
        "{error}"
    );
    let error = node("--completely.other.words", &[])
        .expect_err("unknown")
        .to_string();
    assert!(
        error
            .starts_with("there is no option --completely.other.words; see `starling node --help`"),
        "{error}"
    );
}

#[test]
fn wrong_values_name_the_flag_and_its_form() {
    for (line, expected) in [
        (
            "--http.port=70000",
            "--http.port takes a port from 0 to 65535, and was given \"70000\"",
        ),
        (
            "--l1.http-poll-interval=5",
            "--l1.http-poll-interval takes a duration such as 300ms, 1.5s or 1h0m0s, and was given \"5\"",
        ),
        (
            "--l1=localhost",
            "--l1 takes a URL that begins with http://, https://, ws:// or wss://, or the path of a socket, or several, separated by commas, and was given \"localhost\"",
        ),
        (
            "--log.format=xml",
            "--log.format takes one of text, terminal, logfmt, json, json-pretty, and was given \"xml\"",
        ),
    ] {
        assert_eq!(node(line, &[]).expect_err(line).to_string(), expected);
    }
}

#[test]
fn contradictions_are_refused() {
    assert!(node("--p2p.disable --p2p.static=/ip4/127.0.0.1/tcp/1", &[]).is_err());
    assert!(node("--p2p.gossip.mesh.lo=9", &[]).is_err());
    assert!(node("--l1.rpc-max-batch-size=501", &[]).is_err());
    assert!(node("--l1.max-concurrency=0", &[]).is_err());
    assert!(matches!(
        parse_with("starling node", &[]),
        Err(CliError::NoChain)
    ));
    assert!(parse_with("starling devnet --l2.block-time=0", &[]).is_err());
}
