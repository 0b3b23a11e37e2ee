//! Options and operands of the commands other than `node` and `execution`.

use super::*;
use crate::chain::store::IndexWindow;

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
        words.contains("up to 50 MB at any setting. op-geth's 4096 is more than this node needs"),
        "{words}"
    );
    Ok(())
}

fn import(line: &str, environment: &[(&str, &str)]) -> Result<ImportConfig, CliError> {
    match parse_with(&format!("starling import {line}"), environment)?.invocation {
        Invocation::Import(config) => Ok(config),
        other => panic!("{other:?}"),
    }
}

#[test]
fn import_takes_files_and_the_states_to_keep() -> Result<(), CliError> {
    let config = import("--datadir d a.rlp b.gz -history.state=7", &[])?;
    assert_eq!(
        (config.files, config.history.states),
        (["a.rlp", "b.gz"].map(PathBuf::from).to_vec(), Some(7))
    );
    assert_eq!(import("a", &[])?.history.states, Some(302_400));
    assert!(!import("a", &[])?.history.names);
    assert!(import("a --cache.preimages", &[])?.history.names);
    for all in [
        "--history.state 0",
        "--gcmode=archive",
        "--gcmode archive --history.state 9",
    ] {
        let config = import(&format!("a {all}"), &[])?;
        assert_eq!(config.history.states, None, "{all}");
    }
    Ok(())
}

#[test]
fn import_indexes_the_logs_of_a_window_of_blocks() -> Result<(), CliError> {
    let logs = |line: &str| import(line, &[]).map(|config| config.history.logs);
    assert_eq!(logs("a")?, IndexWindow::Blocks(2_350_000));
    assert_eq!(logs("a --history.logs=7")?, IndexWindow::Blocks(7));
    assert_eq!(logs("a --history.logs 0")?, IndexWindow::All);
    assert_eq!(logs("a --history.logs.disable")?, IndexWindow::Off);
    Ok(())
}

#[test]
fn import_indexes_addresses_on_request() -> Result<(), CliError> {
    assert!(!import("a", &[])?.history.addresses);
    assert!(import("a --index.addresses", &[])?.history.addresses);
    let environment = [("STARLING_INDEX_ADDRESSES", "true")];
    assert!(import("a", &environment)?.history.addresses);
    Ok(())
}

#[test]
fn import_bounds_the_size_of_proofs() -> Result<(), CliError> {
    let proofs = |line: &str| {
        import(line, &[("STARLING_PROOFS_MAX_SIZE", "5GB")]).map(|config| config.history.proofs)
    };
    assert_eq!(proofs("a")?, 5_000_000_000);
    assert_eq!(proofs("a --proofs.max-size=3MB")?, 3_000_000);
    assert!(import("a --proofs.max-size many", &[]).is_err());
    Ok(())
}

#[test]
fn import_commits_at_an_interval_within_bounds() -> Result<(), CliError> {
    let interval = |line: &str| {
        import(line, &[("STARLING_COMMIT_INTERVAL", "250ms")])
            .map(|config| config.chain.commit_interval)
    };
    assert_eq!(interval("a")?, Duration::from_millis(250));
    assert_eq!(interval("a --commit.interval 1m")?, Duration::from_secs(60));
    for wrong in ["0", "9ms", "11m", "-1s"] {
        let refused = interval(&format!("a --commit.interval={wrong}"));
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
    Ok(())
}

#[test]
fn export_takes_a_file_and_a_range() -> Result<(), CliError> {
    let range = |line: &str| match parse_with(line, &[])?.invocation {
        Invocation::Export(config) => Ok::<_, CliError>((config.file, config.range)),
        other => panic!("{other:?}"),
    };
    assert_eq!(range("starling export f")?, ("f".into(), None));
    assert_eq!(
        range("starling export f 3 9 --datadir=d")?,
        ("f".into(), Some((3, 9)))
    );
    Ok(())
}

#[test]
fn db_takes_an_action_before_or_after_its_options() -> Result<(), CliError> {
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
    Ok(())
}

#[test]
fn tools_refuse_operands_that_are_missing_or_too_many() {
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
}
