//! Command lines of op-batcher and op-proposer, through links and inside the node's process.

use super::*;
use crate::{
    batcher::options::{BatcherOptions, DataAvailability, PidOptions, ThrottleCurve},
    proposer::options::{ProposalTarget, ProposerOptions},
    txmgr::sign::TxSignerConfig,
};
use starling_proto::{channel::ChannelCompression, encoder::CompressorKind};

const ORACLE: &str = "0xdfe97868233d1aa22e815a266982f2cf17685a27";
const KEYS: [(&str, &str); 2] = [
    ("OP_BATCHER_PRIVATE_KEY", KEY),
    ("OP_PROPOSER_PRIVATE_KEY", KEY),
];

/// A batcher with the required addresses and key, and these options.
fn batcher(line: &str) -> Result<(BatcherProcessConfig, Vec<String>), CliError> {
    let line = format!(
        "/usr/local/bin/op-batcher --l1-eth-rpc=http://l1:8545 --l2-eth-rpc=http://l2:8545 \
         --rollup-rpc=http://node:9545 {line}"
    );
    let parsed = parse_with(&line, &KEYS)?;
    match parsed.invocation {
        Invocation::Batcher(config) => Ok((*config, parsed.notices)),
        other => panic!("{other:?}"),
    }
}

fn proposer(line: &str) -> Result<ProposerProcessConfig, CliError> {
    let line = format!("op-proposer --l1-eth-rpc=http://l1:8545 {line}");
    let parsed = parse_with(&line, &KEYS)?;
    match parsed.invocation {
        Invocation::Proposer(config) => Ok(*config),
        other => panic!("{other:?}"),
    }
}

/// op-batcher's command line in the tutorial for creating a chain.
const BATCHER_OF_THE_TUTORIAL: &str = "./op-batcher \
    --l2-eth-rpc=http://localhost:8545 --rollup-rpc=http://localhost:8547 --poll-interval=1s \
    --sub-safety-margin=6 --num-confirmations=1 --safe-abort-nonce-too-low-count=3 \
    --resubmission-timeout=30s --rpc.addr=0.0.0.0 --rpc.port=8548 --rpc.enable-admin \
    --max-channel-duration=25 --l1-eth-rpc=https://sepolia.example/v2/key \
    --private-key=59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d";

/// op-proposer's command line for an output oracle, in the tutorial for creating a chain.
const PROPOSER_OF_THE_TUTORIAL: &str = "./op-proposer \
    --poll-interval=12s --rpc.port=8560 --rollup-rpc=http://localhost:8547 \
    --l2oo-address=0xdfe97868233d1aa22e815a266982f2cf17685a27 \
    --private-key=59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d \
    --l1-eth-rpc=https://sepolia.example/v2/key";

#[test]
fn the_batchers_tutorial_runs_under_its_link() -> Result<(), CliError> {
    let parsed = parse_with(BATCHER_OF_THE_TUTORIAL, &[])?;
    let Invocation::Batcher(config) = parsed.invocation else {
        panic!("{:?}", parsed.invocation)
    };
    let options = BatcherOptions {
        poll_interval: Duration::from_secs(1),
        sub_safety_margin: 6,
        max_channel_duration: 25,
        ..BatcherOptions::default()
    };
    assert_eq!(config.batcher.options, options);
    assert_eq!(config.batcher.tx.num_confirmations, 1);
    assert_eq!(
        config.batcher.tx.resubmission_timeout,
        Duration::from_secs(30)
    );
    assert_eq!(config.l2.rollup, ["http://localhost:8547"]);
    assert_eq!(config.l2.eth, ["http://localhost:8545"]);
    let rpc = config.batcher.rpc.as_ref().expect("an RPC");
    assert!(rpc.admin);
    assert_eq!((rpc.http.addr.as_str(), rpc.http.port), ("0.0.0.0", 8548));
    assert_eq!(parsed.notices.len(), 1, "{:?}", parsed.notices);
    assert!(parsed.notices[0].contains("--private-key.path"));
    assert!(!format!("{config:?}{:?}", parsed.notices).contains(KEY));
    Ok(())
}

#[test]
fn the_proposers_tutorial_runs_under_its_link() -> Result<(), CliError> {
    let parsed = parse_with(PROPOSER_OF_THE_TUTORIAL, &[])?;
    let Invocation::Proposer(config) = parsed.invocation else {
        panic!("{:?}", parsed.invocation)
    };
    let options = ProposerOptions {
        rollup_rpc: vec!["http://localhost:8547".into()],
        l2oo_address: ORACLE.parse().ok(),
        ..ProposerOptions::default()
    };
    assert_eq!(config.proposer.options, options);
    let rpc = config.proposer.rpc.expect("an RPC");
    assert_eq!((rpc.http.port, rpc.admin), (8560, false));
    assert_eq!(parsed.notices.len(), 1, "{:?}", parsed.notices);
    Ok(())
}

/// A flag, and a function that makes the same change to the default options.
type Change = (&'static str, fn(&mut BatcherOptions));

const CHANGES: [Change; 21] = [
    ("--poll-interval=1s", |o| {
        o.poll_interval = Duration::from_secs(1)
    }),
    ("--sub-safety-margin=4", |o| o.sub_safety_margin = 4),
    ("--max-pending-tx=0", |o| o.max_pending_tx = 0),
    ("--max-channel-duration=7", |o| o.max_channel_duration = 7),
    ("--max-l1-tx-size-bytes=99", |o| o.max_l1_tx_size_bytes = 99),
    ("--max-blocks-per-span-batch=5", |o| {
        o.max_blocks_per_span_batch = 5
    }),
    ("--target-num-frames=6", |o| o.target_num_frames = 6),
    ("--compressor=ratio", |o| {
        o.compressor = CompressorKind::Ratio(0.6)
    }),
    ("--compressor=none", |o| o.compressor = CompressorKind::None),
    ("--compression-algo=brotli", |o| {
        o.compression = ChannelCompression::Brotli10
    }),
    ("--compression-algo=brotli-11", |o| {
        o.compression = ChannelCompression::Brotli11
    }),
    ("--stopped", |o| o.stopped = true),
    ("--batch-type=1", |o| o.batch_type = 1),
    ("--data-availability-type=auto", |o| {
        o.data_availability = DataAvailability::Auto
    }),
    ("--data-availability-type=blobs", |o| {
        o.data_availability = DataAvailability::Blobs
    }),
    ("--check-recent-txs-depth=128", |o| {
        o.check_recent_txs_depth = 128
    }),
    ("--wait-node-sync=true", |o| o.wait_node_sync = true),
    ("--throttle.controller-type=step", |o| {
        o.throttle.curve = ThrottleCurve::Step
    }),
    ("--throttle.tx-size-lower-limit=0", |o| {
        o.throttle.tx_size_lower = 0
    }),
    ("--throttle.tx-size-upper-limit=7777", |o| {
        o.throttle.tx_size_upper = 7777
    }),
    ("--throttle.unsafe-da-bytes-lower-threshold=0", |o| {
        o.throttle.lower_threshold = 0
    }),
];

#[test]
fn one_flag_of_the_batcher_changes_one_field() -> Result<(), CliError> {
    assert_eq!(batcher("")?.0.batcher.options, BatcherOptions::default());
    for (flag, change) in CHANGES {
        let mut expected = BatcherOptions::default();
        change(&mut expected);
        let (config, notices) = batcher(flag)?;
        assert_eq!(config.batcher.options, expected, "{flag}");
        assert_eq!(notices, Vec::<String>::new(), "{flag}");
    }
    let line = "--throttle.controller-type=pid --throttle.pid-kp=1 --throttle.pid-ki=2 --throttle.pid-kd=3 \
                --throttle.pid-integral-max=4 --throttle.pid-output-max=0.5 --throttle.pid-sample-time=6s";
    let pid = PidOptions {
        kp: 1.0,
        ki: 2.0,
        kd: 3.0,
        integral_max: 4.0,
        output_max: 0.5,
        sample_time: Duration::from_secs(6),
    };
    assert_eq!(batcher(line)?.0.batcher.options.throttle.pid, pid);
    Ok(())
}

#[test]
fn the_old_names_of_throttling_stand_for_the_new_ones() -> Result<(), CliError> {
    let old = "--throttle-threshold=1000000 --throttle-tx-size=5000 --throttle-block-size=21000 \
               --throttle-always-block-size=120000";
    let (config, notices) = batcher(old)?;
    let throttle = config.batcher.options.throttle;
    assert_eq!(throttle.curve, ThrottleCurve::Step);
    assert_eq!(throttle.lower_threshold, 1_000_000);
    assert_eq!(throttle.tx_size_lower, 5_000);
    assert_eq!(
        (throttle.block_size_lower, throttle.block_size_upper),
        (21_000, 120_000)
    );
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("--throttle-tx-size (now --throttle.tx-size-lower-limit)"));
    // A threshold above the default upper threshold; then an old name together with its new name.
    let (config, _) = batcher("--throttle-threshold=20000000")?;
    assert_eq!(config.batcher.options.throttle.upper_threshold, 80_000_000);
    let both = "--throttle-tx-size=5000 --throttle.tx-size-lower-limit=300";
    let (config, notices) = batcher(both)?;
    assert_eq!(config.batcher.options.throttle.tx_size_lower, 300);
    assert_eq!(
        config.batcher.options.throttle.curve,
        ThrottleCurve::Quadratic
    );
    assert!(notices.is_empty(), "{notices:?}");
    let curve = "--throttle-threshold=5 --throttle.controller-type=linear";
    let (config, _) = batcher(curve)?;
    assert_eq!(config.batcher.options.throttle.curve, ThrottleCurve::Linear);
    Ok(())
}

#[test]
fn lists_of_endpoints_belong_together() -> Result<(), CliError> {
    let line = "--l2-eth-rpc=http://b:1,http://c:1 --rollup-rpc=http://d:1,http://e:1";
    let (config, _) = batcher(&format!(
        "{line} --throttle.additional-endpoints=http://f:1"
    ))?;
    // The endpoints continue the lists that the helper `batcher` begins.
    assert_eq!((config.l2.eth.len(), config.l2.rollup.len()), (3, 3));
    assert_eq!(config.batcher.throttle_endpoints, ["http://f:1"]);
    assert_eq!(config.l2.check_interval, Duration::from_secs(5));
    let said = batcher("--rollup-rpc=http://d:1").unwrap_err().to_string();
    assert!(
        said.starts_with("number of rollup and eth URLs must match"),
        "{said}"
    );
    Ok(())
}

#[test]
fn missing_addresses_and_keys_are_named() {
    let said = |line: &str, keys: &[(&str, &str)]| {
        let error = parse_with(line, keys).expect_err(line);
        error.to_string()
    };
    let batcher = "op-batcher --l2-eth-rpc=http://a:1 --rollup-rpc=http://b:1";
    assert!(said(batcher, &KEYS).starts_with("--l1-eth-rpc is missing"));
    let without_key = format!("{batcher} --l1-eth-rpc=http://c:1");
    assert!(said(&without_key, &[]).starts_with("--private-key.path is missing"));
    assert!(
        said("op-batcher --l1-eth-rpc=http://a:1", &KEYS).starts_with("--l2-eth-rpc is missing")
    );
    let proposer = format!("op-proposer --rollup-rpc=http://b:1 --l2oo-address={ORACLE}");
    assert!(said(&proposer, &KEYS).starts_with("--l1-eth-rpc is missing"));
    let altda = "op-batcher --altda.enabled";
    assert!(said(altda, &KEYS).starts_with("--altda.enabled is not supported: "));
    assert!(said("op-batcher --max-pending-txs=1", &[]).contains("did you mean --max-pending-tx?"));
}

#[test]
fn wrong_options_have_the_programs_sentences() {
    let said = |line: &str| batcher(line).expect_err(line).to_string();
    assert!(said("--poll-interval=0s").starts_with("must set PollInterval"));
    assert!(said("--batch-type=2").starts_with("unknown batch type: 2"));
    assert!(
        said("--data-availability-type=blobs --target-num-frames=10")
            .starts_with("too many frames for blob transactions, max 9")
    );
    assert!(said("--num-confirmations=0").starts_with("NumConfirmations must not be 0"));
    let said = |line: &str| proposer(line).expect_err(line).to_string();
    assert!(said("--rollup-rpc=http://a:1").starts_with("`DisputeGameFactory` is required"));
    let short = format!("--rollup-rpc=http://a:1 --l2oo-address={}", &ORACLE[..20]);
    assert_eq!(
        said(&short),
        "--l2oo-address: an address is 20 bytes in hex"
    );
    assert!(
        said(&format!("--l2oo-address={ORACLE}")).starts_with("missing rollup rpc"),
        "no source"
    );
}

#[test]
fn a_proposer_of_games_is_read() -> Result<(), CliError> {
    let config = proposer(&format!(
        "--rollup-rpc=http://a:1 --game-factory-address={ORACLE} --proposal-interval=12m \
         --game-type=6 --allow-non-finalized --wait-node-sync --metrics.enabled --metrics.port=7301"
    ))?;
    let options = &config.proposer.options;
    assert!(options.allow_non_finalized && options.wait_node_sync);
    assert_eq!(
        options.target(),
        Ok(ProposalTarget::Factory {
            address: ORACLE.parse().expect("an address"),
            game_type: 6,
            interval: 720,
        })
    );
    assert_eq!(config.metrics.map(|metrics| metrics.port), Some(7301));
    Ok(())
}

#[test]
fn batcher_and_proposer_run_in_the_node_if_they_are_enabled() -> Result<(), CliError> {
    let (config, _) = node("--batcher.max-channel-duration=5", &KEYS)?;
    assert!(config.batcher.is_none() && config.proposer.is_none());
    let line = format!(
        "--batcher.enabled --batcher.max-channel-duration=5 --batcher.stopped --proposer.enabled \
         --proposer.l2oo-address={ORACLE} --proposer.rpc.port=8560 --proposer.rpc.enable-admin"
    );
    let (config, notices) = node(&line, &KEYS)?;
    assert_eq!(notices, Vec::<String>::new());
    let batcher = config.batcher.expect("a batcher");
    let expected = BatcherOptions {
        max_channel_duration: 5,
        stopped: true,
        ..BatcherOptions::default()
    };
    assert_eq!(batcher.options, expected);
    assert!(batcher.l1.is_none() && batcher.rpc.is_none());
    assert!(matches!(batcher.signer, TxSignerConfig::Key(_)));
    let proposer = config.proposer.expect("a proposer");
    assert!(proposer.options.in_process);
    let rpc = proposer.rpc.expect("an RPC");
    assert_eq!((rpc.http.port, rpc.admin), (8560, true));
    Ok(())
}

/// Each program keeps its own environment variables, and errors name the options with prefix.
#[test]
fn the_nodes_batcher_reads_its_own_environment() -> Result<(), CliError> {
    let environment = [
        KEYS[0],
        ("OP_BATCHER_BATCH_TYPE", "1"),
        ("OP_BATCHER_RPC_PORT", "8999"),
        ("OP_PROPOSER_POLL_INTERVAL", "1s"),
    ];
    let (config, _) = node("--batcher.enabled", &environment)?;
    let batcher = config.batcher.expect("a batcher");
    assert_eq!(batcher.options.batch_type, 1);
    assert_eq!(batcher.rpc.map(|rpc| rpc.http.port), Some(8999));
    let said = |line: &str| node(line, &KEYS).expect_err(line).to_string();
    assert_eq!(
        said("--batcher.enabled --batcher.batch-type=2"),
        "unknown batch type: 2 (--batcher.batch-type)"
    );
    assert!(said("--proposer.enabled").contains("--proposer.l2oo-address"));
    let flag = format!("--batcher.enabled --batcher.private-key={KEY}");
    let (_, notices) = node(&flag, &[])?;
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(
        notices[0].starts_with("--batcher.private-key shows the key"),
        "{notices:?}"
    );
    Ok(())
}

#[test]
fn a_link_takes_help_and_version() -> Result<(), CliError> {
    for (program, option) in [
        ("op-batcher", "--data-availability-type"),
        ("/opt/op-proposer", "--game-factory-address"),
    ] {
        let Invocation::Print(help) = parse_with(&format!("{program} --help"), &[])?.invocation
        else {
            panic!("no help for {program}");
        };
        assert!(help.contains(option), "{help}");
        let parsed = parse_with(&format!("{program} --version"), &[])?;
        assert!(matches!(parsed.invocation, Invocation::Print(_)));
    }
    Ok(())
}
