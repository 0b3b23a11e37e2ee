use super::{config::*, value::Secret, *};
use crate::{chain::pool::PoolConfig, rollup::signer::TlsFiles};
use alloy_primitives::U256;
use starling_p2p::{PeerLimits, Policy, Scoring};
use std::{collections::HashMap, path::Path, time::Duration};

fn parse_with(line: &str, environment: &[(&str, &str)]) -> Result<Parsed, CliError> {
    let environment: HashMap<&str, &str> = environment.iter().copied().collect();
    let argv = line.split_whitespace().map(str::to_string);
    super::parse(argv, &|name| {
        environment.get(name).map(|value| value.to_string())
    })
}

fn node(line: &str, environment: &[(&str, &str)]) -> Result<(NodeConfig, Vec<String>), CliError> {
    let parsed = parse_with(
        &format!("starling node --rollup.config=r.json {line}"),
        environment,
    )?;
    match parsed.invocation {
        Invocation::Node(config) => Ok((*config, parsed.notices)),
        other => panic!("{other:?}"),
    }
}

const KEY: &str = "59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d";

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
fn the_rollup_nodes_rpc_is_served_when_asked_for() -> Result<(), CliError> {
    assert!(node("--http", &[])?.0.rpc.rollup.is_none());
    let (config, notices) = node("--rpc.port 7545", &[])?;
    let rollup = config.rpc.rollup.map(|rpc| (rpc.addr, rpc.port, rpc.api));
    assert_eq!(
        rollup,
        Some(("0.0.0.0".to_owned(), 7545, vec!["opp2p".to_owned()]))
    );
    let with_admin = node("--rpc.port 7545 --rpc.enable-admin", &[])?
        .0
        .rpc
        .rollup
        .map(|rpc| rpc.api);
    assert_eq!(
        with_admin,
        Some(vec!["opp2p".to_owned(), "admin".to_owned()])
    );
    assert_eq!(notices, Vec::<String>::new());
    assert_eq!(
        node("", &[("OP_NODE_RPC_ADDR", "127.0.0.1")])?
            .0
            .rpc
            .rollup
            .map(|rpc| rpc.port),
        Some(9545)
    );
    Ok(())
}

#[test]
fn what_would_be_wrong_to_ignore_is_refused() {
    for line in [
        "--override.jovian=5",
        "--conductor.enabled",
        "--execution.override.canyon 0",
        "--network op-mainnet",
    ] {
        assert!(
            matches!(node(line, &[]), Err(CliError::Refused { .. })),
            "{line}"
        );
    }
    assert!(node("--conductor.enabled=false", &[]).is_ok());
}

#[test]
fn limits_are_those_of_geth_unless_told_otherwise() -> Result<(), CliError> {
    let (config, _) = node("", &[])?;
    assert_eq!(config.pool, PoolConfig::default());
    let limits = RpcLimits {
        gas_cap: crate::chain::evm::RPC_GAS_CAP,
        evm_timeout: crate::rpc::bounds::HEAVY_TIMEOUT,
        batch: crate::rpc::limits::ServerLimits::default().batch,
        batch_response: crate::rpc::limits::ServerLimits::default().batch_response,
        connections: crate::rpc::limits::ServerLimits::default().connections,
        websockets: crate::rpc::limits::ServerLimits::default().ws_connections,
    };
    assert!(limits.connections >= 10_000 && limits.websockets >= 2_000);
    assert_eq!(config.rpc.limits, limits);

    let line = "--txpool.pricelimit=7 --txpool.pricebump=20 --txpool.accountslots=3 --txpool.globalslots=30 --txpool.accountqueue=4 \
        --txpool.globalqueue=40 --txpool.lifetime=1m --txpool.maxtxgas=1000000 --rpc.txfeecap=0.25 --rpc.allow-unprotected-txs \
        --rpc.gascap=9 --rpc.evmtimeout=300ms --rpc.batch-request-limit=5 --rpc.batch-response-max-size=6 \
        --rpc.max-connections=70 --rpc.max-websockets=8";
    let (config, notices) = node(line, &[])?;
    let told = PoolConfig {
        min_tip: 7,
        price_bump: 20,
        account_slots: 3,
        global_slots: 30,
        account_queue: 4,
        global_queue: 40,
        lifetime: 60,
        max_gas: Some(1_000_000),
        tx_fee_cap: U256::from(250_000_000_000_000_000u64),
        allow_unprotected: true,
    };
    assert_eq!(config.pool, told);
    let told = RpcLimits {
        gas_cap: 9,
        evm_timeout: Duration::from_millis(300),
        batch: 5,
        batch_response: 6,
        connections: 70,
        websockets: 8,
    };
    assert_eq!(config.rpc.limits, told);
    let none = node("--rpc.max-connections=0", &[]);
    assert!(matches!(
        none,
        Err(CliError::Invalid {
            name: "rpc.max-connections",
            ..
        })
    ));
    assert_eq!(notices, Vec::<String>::new());

    let none = "--txpool.pricelimit=0 --txpool.pricebump=0 --txpool.accountslots=0 --txpool.globalslots=0 --txpool.accountqueue=0 \
        --txpool.globalqueue=0 --txpool.lifetime=0s --rpc.txfeecap=0 --rpc.gascap=0 --rpc.evmtimeout=0 \
        --rpc.batch-request-limit=0 --rpc.batch-response-max-size=0";
    let (config, _) = node(none, &[])?;
    assert_eq!(
        config.pool,
        PoolConfig {
            tx_fee_cap: U256::ZERO,
            ..Default::default()
        }
    );
    let unlimited = RpcLimits {
        gas_cap: u64::MAX / 2,
        evm_timeout: Duration::MAX,
        batch: usize::MAX,
        batch_response: usize::MAX,
        ..limits
    };
    assert_eq!(config.rpc.limits, unlimited);
    assert!(matches!(
        node("--rpc.txfeecap=-1", &[]),
        Err(CliError::Invalid {
            name: "rpc.txfeecap",
            ..
        })
    ));
    // The rest of geth's pool flags are accepted, and the node says that they change nothing.
    let (_, notices) = node(
        "--txpool.journal=x --txpool.nolocals --txpool.rejournal=1h --txpool.locals=0x00",
        &[],
    )?;
    assert_eq!(notices.len(), 4, "{notices:?}");
    Ok(())
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
fn a_sequencer_needs_one_good_key_and_never_shows_it() -> Result<(), CliError> {
    assert!(matches!(
        node("--sequencer.enabled", &[]),
        Err(CliError::Missing { .. })
    ));
    let error = node("--sequencer.enabled --p2p.sequencer.key=12ab", &[])
        .expect_err("short")
        .to_string();
    assert!(!error.contains("12ab"), "{error}");
    assert!(
        node(
            "--sequencer.enabled --p2p.sequencer.key.path=/nonexistent/key",
            &[]
        )
        .is_err()
    );

    let (config, notices) = node(
        &format!("--sequencer.enabled --p2p.sequencer.key={KEY}"),
        &[],
    )?;
    assert!(
        notices
            .iter()
            .any(|notice| notice.contains("--p2p.sequencer.key.path")
                && notice.contains("OP_NODE_P2P_SEQUENCER_KEY"))
    );
    assert!(!format!("{config:?}{notices:?}").contains(KEY));

    let (config, notices) = node("--sequencer.enabled", &[("OP_NODE_P2P_SEQUENCER_KEY", KEY)])?;
    assert_eq!(key(config).as_ref().map(Secret::expose), Some(KEY));
    assert!(notices.is_empty());
    Ok(())
}

fn key(config: NodeConfig) -> Option<Secret> {
    match config.sequencer?.signer {
        SignerConfig::Key(key) => Some(key),
        SignerConfig::Remote(_) => None,
    }
}

const SIGNER: &str = "--signer.endpoint=https://me:hush@signer:1/path --signer.address=0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";

#[test]
fn a_remote_signer_signs_in_the_place_of_a_key() -> Result<(), CliError> {
    let remote = |line: &str, environment| {
        let (config, notices) = node(&format!("--sequencer.enabled {line}"), environment)?;
        let shown = format!("{config:?}{notices:?}");
        assert!(!shown.contains("hush"), "{shown}");
        match config.sequencer.map(|sequencer| sequencer.signer) {
            Some(SignerConfig::Remote(remote)) => Ok::<_, CliError>(remote),
            other => panic!("{other:?}"),
        }
    };
    let signer = remote(SIGNER, &[])?;
    assert_eq!(signer.endpoint.expose(), "https://me:hush@signer:1/path");
    assert_eq!(
        signer.address.to_string(),
        "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    );
    let tls = |ca: &str, cert: &str, key: &str| {
        Some(TlsFiles {
            ca: ca.into(),
            cert: cert.into(),
            key: key.into(),
        })
    };
    assert_eq!(signer.tls, tls("tls/ca.crt", "tls/tls.crt", "tls/tls.key"));
    assert!(signer.headers.is_empty());

    let signer = remote(
        &format!(
            "{SIGNER} --signer.tls.ca=a --signer.tls.cert=b --signer.tls.key=c --signer.header A=hush=1 --signer.header B=2"
        ),
        &[],
    )?;
    assert_eq!(signer.tls, tls("a", "b", "c"));
    let headers: Vec<_> = signer
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    assert_eq!(headers, [("A", "hush=1"), ("B", "2")]);
    let signer = remote(
        &format!("{SIGNER} --signer.tls.enabled=false --signer.header A=x,y --signer.header B=2"),
        &[],
    )?;
    let headers: Vec<_> = signer
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    assert_eq!(
        headers,
        [("A", "x,y"), ("B", "2")],
        "a value may hold commas"
    );
    let signer = remote(
        &format!("{SIGNER} --signer.tls.enabled=false"),
        &[("OP_NODE_SIGNER_HEADER", "C=3,D=4")],
    )?;
    assert_eq!((signer.tls, signer.headers.len()), (None, 2));

    for (line, reason) in [
        (format!("{SIGNER} --p2p.sequencer.key={KEY}"), "the sequencer's key is given too"),
        ("--signer.endpoint=https://signer".into(), "--signer.address"),
        ("--signer.address=0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266".into(), "--signer.endpoint"),
        ("--signer.endpoint=https://signer --signer.address=0x12".into(), "20 bytes"),
        ("--signer.endpoint=ws://signer --signer.address=0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266".into(), "http://"),
        (format!("{SIGNER} --signer.header=hush"), "key=value"),
    ] {
        let error = node(&format!("--sequencer.enabled {line}"), &[]).expect_err(&line).to_string();
        assert!(error.contains(reason) && !error.contains("hush"), "{error}");
    }
    // A replica signs nothing.
    let (config, notices) = node(SIGNER, &[])?;
    assert!(
        config.sequencer.is_none()
            && notices
                .iter()
                .any(|notice| notice.contains("--sequencer.enabled")),
        "{notices:?}"
    );
    Ok(())
}

#[test]
fn how_often_the_signer_is_read_and_how_far_behind_l1() -> Result<(), CliError> {
    let (config, _) = node("", &[])?;
    assert_eq!(
        (config.l1.reload_interval, config.l1.confs),
        (Duration::from_secs(600), 0)
    );
    let (config, _) = node(
        "--l1.runtime-config-reload-interval=0 --verifier.l1-confs=7",
        &[],
    )?;
    assert_eq!(
        (config.l1.reload_interval, config.l1.confs),
        (Duration::ZERO, 7)
    );
    Ok(())
}

#[test]
fn l1_and_its_beacon_api_are_configured() -> Result<(), CliError> {
    let (config, _) = node("", &[])?;
    assert!(config.l1.beacon.is_none());
    assert_eq!(config.l1.epoch_interval, Duration::from_secs(384));
    assert_eq!(config.l1.cache_size, 900);
    let (config, _) = node(
        "--l1=http://a,/run/geth.ipc --l1.rpckind=quicknode --l1.rpc-rate-limit=7.5 --l1.epoch-poll-interval=0 --l1.beacon=http://b \
         --l1.beacon-fallbacks=http://c,http://d --l1.beacon-header=X-Key:hush --l1.beacon.ignore",
        &[],
    )?;
    let client = &config.l1.client;
    assert_eq!(
        (client.rate_limit, client.kind),
        (7.5, crate::rollup::l1::RpcKind::QuickNode)
    );
    assert_eq!(config.l1.epoch_interval, Duration::ZERO);
    assert!(!format!("{:?}", config.l1.beacon).contains("hush"));
    let beacon = config.l1.beacon.expect("a beacon endpoint");
    let urls: Vec<_> = beacon.urls.iter().map(Secret::expose).collect();
    assert_eq!(urls, ["http://b", "http://c", "http://d"]);
    assert!(beacon.ignore_health && !beacon.fetch_all_sidecars);
    let alone = node("--l1.beacon-fallbacks=http://c", &[])?.0.l1.beacon;
    assert_eq!(alone.expect("a beacon endpoint").urls.len(), 1);
    assert!(node("--l1=http://a,ftp://b", &[]).is_err());
    Ok(())
}

#[test]
fn a_key_file_on_the_command_line_beats_a_key_in_the_environment() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("key");
    std::fs::write(&path, format!("0x{KEY}\n"))?;
    let environment = [("OP_NODE_P2P_SEQUENCER_KEY", "00")];
    let (config, notices) = node(
        &format!(
            "--sequencer.enabled --p2p.sequencer.key.path={}",
            path.display()
        ),
        &environment,
    )?;
    assert_eq!(
        key(config).and_then(|key| key.bytes()),
        hex::decode(KEY)?.try_into().ok()
    );
    assert_eq!(notices, Vec::<String>::new());
    let both = format!(
        "--sequencer.enabled --p2p.sequencer.key={KEY} --p2p.sequencer.key.path={}",
        path.display()
    );
    assert!(matches!(node(&both, &[]), Err(CliError::Invalid { .. })));
    Ok(())
}

#[test]
fn help_lists_what_has_no_effect_last() -> Result<(), CliError> {
    let Invocation::Print(help) = parse_with("starling node --help", &[])?.invocation else {
        panic!("no help")
    };
    let heading = |text: &str| {
        help.find(&format!("\n{text}:\n"))
            .unwrap_or_else(|| panic!("{text} is not in the help"))
    };
    assert!(
        heading("Sequencer") < heading("JSON-RPC")
            && heading("JSON-RPC") < heading("Accepted, without effect")
    );
    assert!(heading("Accepted, without effect") < heading("Known, but not supported"));
    Ok(())
}

#[test]
fn contradictions_are_refused() {
    assert!(node("--p2p.disable --p2p.static=/ip4/127.0.0.1/tcp/1", &[]).is_err());
    assert!(node("--p2p.gossip.mesh.lo=9", &[]).is_err());
    assert!(node("--l1.rpc-max-batch-size=501", &[]).is_err());
    assert!(node("--l1.max-concurrency=0", &[]).is_err());
    assert!(matches!(
        parse_with("starling node", &[]),
        Err(CliError::Missing {
            name: "--rollup.config",
            ..
        })
    ));
    assert!(parse_with("starling devnet --l2.block-time=0", &[]).is_err());
}

#[test]
fn a_network_of_files_takes_all_three_or_none() -> Result<(), CliError> {
    let devnet = |options: &[&str]| {
        let argv = ["starling", "devnet"]
            .iter()
            .chain(options)
            .map(|word| word.to_string());
        match parse(argv, &|_| None)?.invocation {
            Invocation::Devnet(config) => Ok(config),
            other => panic!("{other:?}"),
        }
    };
    assert!(devnet(&[])?.files.is_none());
    let all = ["--l1.genesis=a", "--l2.genesis=b", "--rollup.config=c"];
    let files = devnet(&all)?
        .files
        .map(|files| [files.l1, files.l2, files.rollup]);
    assert_eq!(files, Some(["a", "b", "c"].map(PathBuf::from)));
    for (index, option) in all.iter().enumerate() {
        let two: Vec<_> = all
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index)
            .map(|(_, word)| *word)
            .collect();
        let missing = option.split('=').next().unwrap_or_default();
        let error = devnet(&two).expect_err("a refusal");
        assert!(
            error
                .to_string()
                .starts_with(&format!("{missing} is missing")),
            "{error}"
        );
    }
    Ok(())
}

#[test]
fn init_takes_one_genesis() -> Result<(), CliError> {
    match parse_with("starling init --datadir d genesis.json", &[])?.invocation {
        Invocation::Init(config) => assert_eq!(
            (config.datadir, config.genesis),
            ("d".into(), "genesis.json".into())
        ),
        other => panic!("{other:?}"),
    }
    for line in ["starling init --datadir d", "starling init --datadir d a b"] {
        assert_eq!(
            parse_with(line, &[]).expect_err(line).to_string(),
            "need genesis.json file as the only argument"
        );
    }
    Ok(())
}

#[test]
fn every_role_has_help_and_version() -> Result<(), CliError> {
    for role in Role::ALL {
        for flag in ["--help", "-h"] {
            let Invocation::Print(help) =
                parse_with(&format!("starling {} {flag}", role.name()), &[])?.invocation
            else {
                panic!("no help for {}", role.name());
            };
            let brief = flag == "-h" && matches!(role, Role::Node | Role::Execution);
            assert_eq!(
                help.contains(&format!("`starling {} --help` shows all", role.name())),
                brief
            );
            assert!(
                !brief || help.lines().count() <= 80,
                "{} lines",
                help.lines().count()
            );
            for flag in flags::of_role(role)
                .iter()
                .filter(|flag| !flag.flag.hidden && !brief)
            {
                assert!(
                    help.contains(&format!("--{}", flag.name)),
                    "{} is not in the help of {}",
                    flag.name,
                    role.name()
                );
            }
        }
        for flag in ["--version", "-v"] {
            let Invocation::Print(version) =
                parse_with(&format!("starling {} {flag}", role.name()), &[])?.invocation
            else {
                panic!("no version for {}", role.name());
            };
            assert_eq!(version, format!("starling {VERSION}\n"));
        }
    }
    Ok(())
}

#[test]
fn common_options_exist_and_are_in_the_short_help() -> Result<(), CliError> {
    let mut missing: Vec<&str> = help::COMMON.to_vec();
    for role in [Role::Node, Role::Execution] {
        let Invocation::Print(text) =
            parse_with(&format!("starling {} -h", role.name()), &[])?.invocation
        else {
            panic!("no help for {}", role.name());
        };
        let shown = |name: &str| {
            text.split([' ', '[', '\n'])
                .any(|word| word == format!("--{name}"))
        };
        missing.retain(|name| !shown(name));
        for flag in flags::of_role(role)
            .iter()
            .filter(|flag| !help::COMMON.contains(&flag.flag.name))
        {
            assert!(
                !shown(&flag.name),
                "{} is in the short help of {}",
                flag.name,
                role.name()
            );
        }
    }
    assert_eq!(missing, Vec::<&str>::new());
    Ok(())
}

#[test]
fn no_command_and_unknown_commands_are_errors() {
    assert!(
        matches!(parse_with("starling", &[]), Err(CliError::Help(help)) if help.contains("devnet"))
    );
    assert!(
        matches!(parse_with("starling p2p", &[]), Err(CliError::Help(help)) if help.contains("priv2id"))
    );
    assert!(parse_with("starling nod", &[]).is_err());
}

#[test]
fn clap_finds_no_fault_with_the_table() {
    command(false).debug_assert();
    command(true).debug_assert();
}

#[test]
fn defaults_of_the_database_are_ours_and_said() -> Result<(), CliError> {
    let (config, _) = node("", &[])?;
    assert_eq!(
        (config.chain.cache, config.chain.commit_interval),
        (128 << 20, Duration::from_secs(1))
    );
    let Invocation::Execution(config) = parse_with("starling execution", &[])?.invocation else {
        panic!("another role")
    };
    assert_eq!(
        (config.chain.cache, config.chain.commit_interval),
        (128 << 20, Duration::from_secs(1))
    );
    let Invocation::Print(help) = parse_with("starling execution --help", &[])?.invocation else {
        panic!("no help")
    };
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("up to 50 whatever this says; op-geth's 4096 are more than this node needs"),
        "{words}"
    );
    Ok(())
}

#[test]
fn tools_take_their_operands() -> Result<(), CliError> {
    let files = |line: &str| match parse_with(line, &[])?.invocation {
        Invocation::Import(config) => Ok::<_, CliError>((config.files, config.history.states)),
        other => panic!("{other:?}"),
    };
    let (found, states) = files("starling import --datadir d a.rlp b.gz -history.state=7")?;
    assert_eq!(
        (found, states),
        (["a.rlp", "b.gz"].map(PathBuf::from).to_vec(), Some(7))
    );
    assert_eq!(files("starling import a")?.1, Some(302_400));
    for all in [
        "--history.state 0",
        "--gcmode=archive",
        "--gcmode archive --history.state 9",
    ] {
        assert_eq!(files(&format!("starling import a {all}"))?.1, None, "{all}");
    }
    let proofs =
        |line: &str| match parse_with(line, &[("STARLING_PROOFS_MAX_SIZE", "5GB")])?.invocation {
            Invocation::Import(config) => Ok::<_, CliError>(config.history.proofs),
            other => panic!("{other:?}"),
        };
    assert_eq!(
        (
            proofs("starling import a")?,
            proofs("starling import a --proofs.max-size=3MB")?
        ),
        (5_000_000_000, 3_000_000)
    );
    assert!(parse_with("starling import a --proofs.max-size many", &[]).is_err());
    let interval =
        |line: &str| match parse_with(line, &[("STARLING_COMMIT_INTERVAL", "250ms")])?.invocation {
            Invocation::Import(config) => Ok::<_, CliError>(config.chain.commit_interval),
            other => panic!("{other:?}"),
        };
    assert_eq!(interval("starling import a")?, Duration::from_millis(250));
    assert_eq!(
        interval("starling import a --commit.interval 1m")?,
        Duration::from_secs(60)
    );
    for wrong in ["0", "9ms", "11m", "-1s"] {
        let refused = interval(&format!("starling import a --commit.interval={wrong}"));
        assert!(
            matches!(
                refused,
                Err(CliError::Invalid {
                    name: "commit.interval",
                    ..
                })
            ),
            "{wrong}: {refused:?}"
        );
    }
    let range = |line: &str| match parse_with(line, &[])?.invocation {
        Invocation::Export(config) => Ok::<_, CliError>((config.file, config.range)),
        other => panic!("{other:?}"),
    };
    assert_eq!(range("starling export f")?, ("f".into(), None));
    assert_eq!(
        range("starling export f 3 9 --datadir=d")?,
        ("f".into(), Some((3, 9)))
    );
    for (action, wanted) in [
        ("verify", DbAction::Verify),
        ("stats", DbAction::Stats),
        ("prune", DbAction::Prune),
        ("repair", DbAction::Repair),
    ] {
        for line in [
            format!("starling db {action} --datadir d"),
            format!("starling db --datadir d {action}"),
        ] {
            let Invocation::Db(config) = parse_with(&line, &[])?.invocation else {
                panic!("{line}")
            };
            assert_eq!((config.action, config.datadir), (wanted, "d".into()));
        }
    }
    for wrong in [
        "import",
        "export",
        "export f 1",
        "export f 1 x",
        "export f 1 2 3",
        "db",
        "db inspect",
        "db verify --http",
    ] {
        let error = parse_with(&format!("starling {wrong}"), &[]).expect_err(wrong);
        assert!(!matches!(error, CliError::Table(_)), "{error}");
    }
    Ok(())
}

#[test]
fn options_of_peers_reach_the_swarm() -> Result<(), CliError> {
    let p2p = |line: &str| {
        node(line, &[]).map(|(config, notices)| (config.p2p.expect("the swarm is on"), notices))
    };
    let (config, notices) = p2p("")?;
    assert_eq!(notices, Vec::<String>::new());
    assert_eq!(
        (config.tides, config.policy),
        (PeerLimits::default(), Policy::default())
    );
    assert!(config.restrict.is_empty() && !config.only_request_static);
    assert!(config.peerstore.is_some_and(
        |path| path.ends_with("opnode_peerstore_db") && path.parent() != Some(Path::new(""))
    ));

    let line = "--p2p.scoring=none --p2p.ban.peers=false --p2p.ban.threshold=-20.5 --p2p.ban.duration=90s --p2p.peers.lo=3 \
        --p2p.peers.hi=4 --p2p.peers.grace=5s --p2p.netrestrict=10.0.0.0/8,fd00::/8 --p2p.peerstore.path=here --p2p.sync.onlyreqtostatic";
    let (config, notices) = p2p(line)?;
    assert_eq!(notices, Vec::<String>::new());
    let duration = Duration::from_secs(90);
    assert_eq!(
        config.policy,
        Policy {
            scoring: Scoring::None,
            ban: false,
            threshold: -20.5,
            duration
        }
    );
    assert_eq!(
        config.tides,
        PeerLimits {
            lo: 3,
            hi: 4,
            grace: Duration::from_secs(5)
        }
    );
    assert_eq!(
        config
            .restrict
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["10.0.0.0/8", "fd00::/8"]
    );
    assert_eq!(config.peerstore.as_deref(), Some(Path::new("here")));
    assert!(config.only_request_static);
    assert!(p2p("--p2p.peerstore.path=memory")?.0.peerstore.is_none());
    for line in [
        "--p2p.peers.lo=0",
        "--p2p.peers.lo=31",
        "--p2p.netrestrict=10.0.0.1",
        "--p2p.scoring=heavy",
        "--p2p.ban.threshold=x",
    ] {
        assert!(p2p(line).is_err(), "{line}");
    }
    Ok(())
}

#[test]
fn options_of_discovery_reach_the_swarm() -> Result<(), CliError> {
    const ENODE: &str = "enode://2d4e7e9d48f4dd4efe9342706dd1b0024681bd4c3300d021f86fc75eab7865d4e0cbec6fbc883f011cfd6a57423e7e2f6e\
        104baad2b744c3cafaec6bc7dc92c1@boot.example.org:0?discport=30305";
    let p2p = |line: &str| {
        node(line, &[]).map(|(config, notices)| (config.p2p.expect("the swarm is on"), notices))
    };
    let (config, notices) = p2p("")?;
    assert_eq!(notices, Vec::<String>::new());
    let discovery = config.discovery.expect("discovery is on");
    assert!(!config.nat && config.bootnodes.is_none() && discovery.advertise_ip.is_none());
    assert_eq!(
        (
            discovery.listen_udp,
            discovery.advertise_tcp,
            discovery.advertise_udp
        ),
        (0, 0, 0)
    );
    assert!(discovery.store.is_some_and(
        |path| path.ends_with("opnode_discovery_db") && path.parent() != Some(Path::new(""))
    ));

    let line = format!(
        "--p2p.nat --p2p.listen.udp=9 --p2p.advertise.ip=node.example.org --p2p.advertise.tcp=7 --p2p.advertise.udp=8 \
         --p2p.bootnodes={ENODE}, --p2p.discovery.path=here"
    );
    let (config, notices) = p2p(&line)?;
    assert_eq!(notices, Vec::<String>::new());
    let discovery = config.discovery.expect("discovery is on");
    assert!(config.nat);
    assert_eq!(
        (
            discovery.listen_udp,
            discovery.advertise_tcp,
            discovery.advertise_udp
        ),
        (9, 7, 8)
    );
    assert_eq!(discovery.advertise_ip.as_deref(), Some("node.example.org"));
    assert_eq!(
        config
            .bootnodes
            .unwrap_or_default()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        [ENODE]
    );
    assert_eq!(discovery.store.as_deref(), Some(Path::new("here")));

    assert!(p2p("--p2p.no-discovery")?.0.discovery.is_none());
    assert!(
        p2p("--p2p.discovery.path=memory")?
            .0
            .discovery
            .is_some_and(|discovery| discovery.store.is_none())
    );
    let none = p2p("--p2p.bootnodes=,")?.0;
    assert!(none.discovery.is_some(), "discovery is on");
    assert_eq!(
        none.bootnodes,
        Some(Vec::new()),
        "a list of nothing is none at all"
    );
    for line in [
        "--p2p.bootnodes=127.0.0.1:30303",
        "--p2p.bootnodes=enr:x",
        "--p2p.advertise.ip=a/b",
        "--p2p.listen.udp=70000",
    ] {
        assert!(p2p(line).is_err(), "{line}");
    }
    Ok(())
}

#[test]
fn an_execution_core_joins_a_swarm_only_when_it_is_told_to() -> Result<(), CliError> {
    let execution = |line: &str, environment: &[(&str, &str)]| {
        let parsed = parse_with(&format!("starling execution {line}"), environment)?;
        match parsed.invocation {
            Invocation::Execution(config) => Ok((config.following, parsed.notices)),
            other => panic!("{other:?}"),
        }
    };
    const PEER: &str =
        "/ip4/127.0.0.1/tcp/9/p2p/16Uiu2HAm4wN4epAyuj82ix2QC1Uc2vQd833szwvsNpLqhubPz8xa";
    let of_a_rollup_node = [
        ("OP_NODE_P2P_STATIC", PEER),
        ("OP_NODE_P2P_LISTEN_TCP_PORT", "7"),
    ];
    for line in ["", "--rollup.config=r.json", "--p2p.disable=true"] {
        let (following, notices) = execution(
            line,
            if line.contains("disable") {
                &[]
            } else {
                &of_a_rollup_node
            },
        )?;
        assert!(
            following.is_none() && notices.is_empty(),
            "{line}: {notices:?}"
        );
    }
    let signer = "--p2p.unsafe.block.signer=0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
    let (following, notices) = execution(
        &format!("--rollup.config=r.json --p2p.static={PEER} {signer} --p2p.listen.tcp=5"),
        &[],
    )?;
    let following = following.expect("a swarm");
    assert_eq!(
        (following.p2p.static_peers, following.p2p.listen_tcp),
        (vec![PEER.to_owned()], 5)
    );
    assert_eq!(
        following.signer.map(|signer| signer.to_string()).as_deref(),
        Some("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266")
    );
    assert_eq!(
        (following.rollup_config.as_path(), notices),
        (Path::new("r.json"), vec![])
    );
    let (following, notices) = execution("--rollup.config=r.json --p2p.no-discovery", &[])?;
    assert!(following.is_some_and(|following| following.signer.is_none()));
    assert!(
        notices.len() == 1 && notices[0].contains("--p2p.unsafe.block.signer"),
        "{notices:?}"
    );
    for (line, reason) in [
        (format!("--p2p.static={PEER}"), "--rollup.config is missing"),
        (
            "--rollup.config=r.json --p2p.unsafe.block.signer=0x12".into(),
            "20 bytes",
        ),
        (
            format!(
                "--rollup.config=r.json --p2p.static=enode://{}@10.0.0.1:30303",
                "ab".repeat(64)
            ),
            "give the peer as a multiaddr",
        ),
    ] {
        let error = execution(&line, &[]).expect_err(&line).to_string();
        assert!(error.contains(reason) && !error.contains('\n'), "{error}");
    }
    assert!(
        node(
            &format!("--p2p.static=enode://{}@10.0.0.1:30303", "ab".repeat(64)),
            &[]
        )
        .is_err()
    );
    Ok(())
}
