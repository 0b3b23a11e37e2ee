//! Tests of the transaction manager's options on command lines of op-batcher and op-proposer.

use super::*;
use crate::cli::flags::{Program, Role, of_role};
use clap::{Arg, ArgAction, Command};
use std::{io::Write, time::Duration};

const KEY: &str = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";
const WORDS: &str = "test test test test test test test test test test test junk";

/// Flag values from a command line and an environment.
fn values(program: Program, line: &[&str], environment: &[(&str, &str)]) -> Values {
    let role = match program {
        Program::OpProposer => Role::Proposer,
        _ => Role::Batcher,
    };
    let flags = of_role(role);
    let args = flags.iter().map(|flag| {
        let arg = Arg::new(flag.name.clone()).long(flag.name.clone());
        arg.num_args(1).action(ArgAction::Append)
    });
    let command = Command::new("test").args(args).no_binary_name(true);
    let matches = command.try_get_matches_from(line.iter().copied()).unwrap();
    let environment = |name: &str| {
        let found = environment.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.to_string())
    };
    Values::read_flags(role, flags, &matches, &environment).unwrap()
}

fn batcher(line: &[&str]) -> Values {
    values(Program::OpBatcher, line, &[])
}

fn signer_of(values: &Values) -> (Result<TxSignerConfig, String>, Vec<String>) {
    let mut notices = Vec::new();
    let config = signer(values, BATCHER, &mut notices);
    (config.map_err(|error| error.to_string()), notices)
}

#[test]
fn without_options_everything_is_as_op_service_has_it() {
    for (program, names) in [
        (Program::OpBatcher, BATCHER),
        (Program::OpProposer, PROPOSER),
    ] {
        let read = options(&values(program, &[], &[]), names).unwrap();
        assert_eq!(read, TxOptions::default());
    }
}

#[test]
fn each_option_changes_its_field() {
    let environment = [
        ("OP_BATCHER_NUM_CONFIRMATIONS", "3"),
        ("OP_BATCHER_SAFE_ABORT_NONCE_TOO_LOW_COUNT", "4"),
        ("OP_BATCHER_TXMGR_FEE_LIMIT_MULTIPLIER", "6"),
        ("OP_BATCHER_TXMGR_FEE_LIMIT_THRESHOLD", "7.5"),
        ("OP_BATCHER_TXMGR_MIN_TIP_CAP", "0.1"),
        ("OP_BATCHER_TXMGR_MAX_TIP_CAP", "8"),
        ("OP_BATCHER_TXMGR_MIN_BASEFEE", "0.2"),
        ("OP_BATCHER_TXMGR_MAX_BASEFEE", "9"),
        ("OP_BATCHER_RESUBMISSION_TIMEOUT", "10s"),
        ("OP_BATCHER_TXMGR_REBROADCAST_INTERVAL", "11s"),
        ("OP_BATCHER_TXMGR_RETRY_INTERVAL", "120ms"),
        ("OP_BATCHER_TXMGR_MAX_RETRIES", "13"),
        ("OP_BATCHER_NETWORK_TIMEOUT", "14s"),
        ("OP_BATCHER_TXMGR_TX_SEND_TIMEOUT", "15s"),
        ("OP_BATCHER_TXMGR_TX_NOT_IN_MEMPOOL_TIMEOUT", "16s"),
        ("OP_BATCHER_TXMGR_RECEIPT_QUERY_INTERVAL", "17s"),
        ("OP_BATCHER_TXMGR_ALREADY_PUBLISHED_CUSTOM_ERRS", "one,two"),
        ("OP_BATCHER_TXMGR_CELL_PROOF_TIME", "18"),
        ("OP_BATCHER_TXMGR_BLOB_TIP_CAP_DYNAMIC", "true"),
        ("OP_BATCHER_TXMGR_BLOB_TIP_CAP_PERCENTILE", "19"),
        ("OP_BATCHER_TXMGR_BLOB_TIP_CAP_RANGE", "21"),
    ];
    let read = options(&values(Program::OpBatcher, &[], &environment), BATCHER).unwrap();
    let expected = TxOptions {
        num_confirmations: 3,
        safe_abort_nonce_too_low_count: 4,
        fee_limit_multiplier: 6,
        fee_limit_threshold: 7.5,
        min_tip_cap: 0.1,
        max_tip_cap: 8.0,
        min_basefee: 0.2,
        max_basefee: 9.0,
        resubmission_timeout: Duration::from_secs(10),
        rebroadcast_interval: Duration::from_secs(11),
        retry_interval: Duration::from_millis(120),
        max_retries: 13,
        network_timeout: Duration::from_secs(14),
        send_timeout: Duration::from_secs(15),
        not_in_mempool_timeout: Duration::from_secs(16),
        receipt_query_interval: Duration::from_secs(17),
        already_published_custom_errs: vec!["one".into(), "two".into()],
        cell_proof_time: 18,
        blob_tip_cap_dynamic: true,
        blob_tip_cap_percentile: 19,
        blob_tip_cap_range: 21,
    };
    assert_eq!(read, expected);
}

#[test]
fn a_wrong_option_has_op_services_sentence() {
    let error = options(&batcher(&["--num-confirmations=0"]), BATCHER).unwrap_err();
    assert_eq!(
        error.to_string(),
        "NumConfirmations must not be 0 (--num-confirmations)"
    );
}

#[test]
fn a_key_on_the_command_line_is_taken_with_one_notice() {
    let (config, notices) = signer_of(&batcher(&[&format!("--private-key={KEY}")]));
    assert!(matches!(config, Ok(TxSignerConfig::Key(key)) if key.expose() == KEY));
    assert_eq!(notices.len(), 1);
    assert!(
        notices[0].contains("--private-key.path") && !notices[0].contains(KEY),
        "{notices:?}"
    );
    let quiet = [("OP_BATCHER_PRIVATE_KEY", KEY)];
    let (config, notices) = signer_of(&values(Program::OpBatcher, &[], &quiet));
    assert!(matches!(config, Ok(TxSignerConfig::Key(_))));
    assert!(notices.is_empty());
}

#[test]
fn a_key_comes_from_a_file_a_wallet_or_a_signer_too() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{KEY}").unwrap();
    let path = format!("--private-key.path={}", file.path().display());
    let (config, notices) = signer_of(&batcher(&[&path]));
    assert!(matches!(config, Ok(TxSignerConfig::Key(key)) if key.expose() == KEY));
    assert!(notices.is_empty());
    let words = format!("--mnemonic={WORDS}");
    for option in ["--hd-path", "--sequencer-hd-path"] {
        let (config, notices) =
            signer_of(&batcher(&[&words, &format!("{option}=m/44'/60'/0'/0/9")]));
        assert!(
            matches!(config, Ok(TxSignerConfig::Mnemonic { path, .. }) if path.ends_with("/9"))
        );
        assert_eq!(notices.len(), 1);
    }
    let remote = [
        "--signer.endpoint=http://127.0.0.1:1",
        "--signer.address=0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
        "--signer.tls.enabled=false",
    ];
    let (config, _) = signer_of(&batcher(&remote));
    assert!(matches!(config, Ok(TxSignerConfig::Remote(remote)) if remote.tls.is_none()));
}

#[test]
fn wrong_keys_are_refused_with_the_next_step() {
    let key = format!("--private-key={KEY}");
    let words = format!("--mnemonic={WORDS}");
    for (line, expected) in [
        (vec![], "--private-key.path is missing"),
        (vec![words.as_str()], "--hd-path is missing"),
        (
            vec![key.as_str(), words.as_str()],
            "can only provide at most one of",
        ),
        (
            vec!["--private-key.path=/nowhere/key"],
            "the key file /nowhere/key cannot be read",
        ),
        (
            vec!["--signer.endpoint=http://127.0.0.1:1"],
            "--signer.endpoint: the address it signs for is missing",
        ),
    ] {
        let (config, _) = signer_of(&batcher(&line));
        let said = config.unwrap_err();
        assert!(said.starts_with(expected), "{said}");
        assert!(!said.contains(KEY) && !said.contains("junk"));
    }
}
