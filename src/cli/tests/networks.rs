//! `--network`, `--op-network`, `--override.*`, and `starling networks`.

use super::*;
use crate::networks::RollupSource;
use starling_proto::{
    config::RollupConfig,
    fork::Fork,
    network::{KnownNetwork, overrides::ForkOverrides},
};

/// Parses `starling node` with only these options, which must therefore name the chain.
fn follows(
    line: &str,
    environment: &[(&str, &str)],
) -> Result<(NodeConfig, Vec<String>), CliError> {
    let parsed = parse_with(&format!("starling node {line}"), environment)?;
    match parsed.invocation {
        Invocation::Node(config) => Ok((*config, parsed.notices)),
        other => panic!("{other:?}"),
    }
}

/// Next step after an unknown name.
const NEXT: &str = "`starling networks list` shows all, and a chain without a name here is given by its files: its genesis to `starling init`, its rollup.json to --rollup.config";

fn overrides_of(line: &str) -> Result<ForkOverrides, CliError> {
    Ok(node(line, &[])?.0.overrides)
}

#[test]
fn a_network_takes_the_place_of_a_rollup_config() -> Result<(), CliError> {
    let mainnet = RollupSource::Network("op-mainnet");
    for line in [
        "--network=op-mainnet",
        "--network OP-Mainnet",
        "-op-network mainnet",
    ] {
        let (config, notices) = follows(line, &[])?;
        assert_eq!(
            (config.rollup, notices),
            (mainnet.clone(), vec![]),
            "{line}"
        );
    }
    let (config, _) = follows("", &[("OP_NODE_NETWORK", "op-mainnet")])?;
    assert_eq!(config.rollup, mainnet);
    let (config, notices) = node("--network=op-mainnet", &[])?;
    assert_eq!(config.rollup, mainnet, "--network wins, as with op-node");
    assert!(
        notices.len() == 1 && notices[0].starts_with("--rollup.config is not read"),
        "{notices:?}"
    );
    assert!(follows("--network=op-mainnet --op-network=mainnet", &[]).is_ok());
    let said = follows("--network=op-mainnet --op-network=op-sepolia", &[])
        .expect_err("two chains")
        .to_string();
    assert!(
        said.contains("op-sepolia") && said.contains("op-mainnet"),
        "{said}"
    );
    Ok(())
}

#[test]
fn an_unknown_network_is_answered_with_the_nearest() {
    for (given, nearest) in [
        ("op-mainet", "op-mainnet"),
        ("unichain", "unichain-mainnet"),
        ("zora-sepolla", "zora-sepolia"),
    ] {
        let said = follows(&format!("--network={given}"), &[])
            .expect_err(given)
            .to_string();
        assert_eq!(
            said,
            format!("--network: there is no network {given}; did you mean {nearest}?; {NEXT}")
        );
    }
}

/// The name of another chain would be a wrong answer to a name that the registry has dropped.
#[test]
fn a_dropped_network_is_answered_with_no_other_chain() {
    for given in [
        "pgn-mainnet",
        "pgn-sepolia",
        "op-goerli",
        "base-goerli",
        "zora-goerli",
        "goerli",
        "snax-mainnet",
        "kroma-mainnet",
        "swell-mainnet",
        "epic-mainnet",
        "arena-z-mainnet",
        "base-devnet-0-sepolia-dev-0",
        "oplabs-devnet-0-sepolia-dev-0",
        "xyz",
    ] {
        let said = follows(&format!("--network={given}"), &[]).expect_err(given);
        assert_eq!(
            said.to_string(),
            format!("--network: there is no network {given}; {NEXT}")
        );
    }
}

#[test]
fn init_says_where_the_genesis_of_its_network_is() {
    let said = |line: &str| {
        let parsed = parse_with(&format!("starling init --datadir=empty {line}"), &[]);
        parsed.expect_err(line).to_string()
    };
    let zora = said("--network=zora-sepolia");
    for words in [
        "need genesis.json file as the only argument; ",
        "superchain/extra/genesis/sepolia/zora.json.zst",
        "https://github.com/ethereum-optimism/superchain-registry",
        "zstd -d -D superchain/extra/dictionary ",
        "starling init --datadir DIR --network zora-sepolia zora-sepolia.json",
    ] {
        assert!(zora.contains(words), "{words} is not in: {zora}");
    }
    let pre_bedrock = said("--network=op-mainnet");
    assert!(
        pre_bedrock.contains("begins here with block 105235063"),
        "{pre_bedrock}"
    );
    let base = said("--network=base-mainnet");
    assert!(base.contains("from the chain's operator"), "{base}");
    assert_eq!(said(""), "need genesis.json file as the only argument");
}

#[test]
fn each_override_changes_one_setting() -> Result<(), CliError> {
    assert_eq!(overrides_of("")?, ForkOverrides::default());
    for fork in Fork::ALL.into_iter().filter(|fork| *fork >= Fork::Canyon) {
        for time in [0, 1_800_000_000] {
            let wanted = ForkOverrides {
                forks: [(fork, time)].into(),
                ..Default::default()
            };
            let name = fork.name();
            assert_eq!(overrides_of(&format!("--override.{name}={time}"))?, wanted);
            if fork != Fork::Delta {
                let line = format!("--execution.override.{name}={time}");
                assert_eq!(overrides_of(&line)?, wanted);
            }
            let line = format!("starling execution --override.{name}={time}");
            let Invocation::Execution(config) = parse_with(&line, &[])?.invocation else {
                panic!("{line}")
            };
            assert_eq!(config.overrides, wanted);
        }
    }
    let lagoon = ForkOverrides {
        lagoon: Some(7),
        ..Default::default()
    };
    for name in ["interop", "lagoon"] {
        assert_eq!(overrides_of(&format!("--override.{name}=7"))?, lagoon);
    }
    let line = "starling execution --override.interop=7";
    let Invocation::Execution(config) = parse_with(line, &[])?.invocation else {
        panic!("{line}")
    };
    assert_eq!(config.overrides, lagoon);
    assert_eq!(
        overrides_of("--override.pectrablobschedule=8")?.pectra_blob_schedule,
        Some(8)
    );
    for (line, keep) in [
        ("--override.keep-karst-upgrade-gas", true),
        ("--override.keep-karst-upgrade-gas=false", false),
    ] {
        assert_eq!(overrides_of(line)?.keep_karst_upgrade_gas, Some(keep));
    }
    let both = "--override.jovian=5 --execution.override.jovian=";
    assert!(overrides_of(&format!("{both}5")).is_ok());
    assert!(overrides_of(&format!("{both}6")).is_err());
    assert!(overrides_of("--override.karst=soon").is_err());
    Ok(())
}

#[test]
fn an_execution_core_may_name_its_network() -> Result<(), CliError> {
    let line = "starling execution --op-network=op-sepolia --p2p.no-discovery";
    let parsed = parse_with(line, &[])?;
    let Invocation::Execution(config) = parsed.invocation else {
        panic!("{line}")
    };
    let sepolia = RollupSource::Network("op-sepolia");
    assert_eq!(config.network.as_ref(), Some(&sepolia));
    assert_eq!(
        config.following.map(|following| following.rollup),
        Some(sepolia)
    );
    Ok(())
}

#[test]
fn init_takes_a_network_for_a_genesis_without_config() -> Result<(), CliError> {
    for option in ["--network", "--op-network"] {
        let line = format!("starling init --datadir d {option}=ink-mainnet genesis.json");
        let Invocation::Init(config) = parse_with(&line, &[])?.invocation else {
            panic!("{line}")
        };
        assert_eq!(config.rollup, Some(RollupSource::Network("ink-mainnet")));
    }
    Ok(())
}

#[test]
fn networks_are_listed_and_dumped() -> Result<(), CliError> {
    let print = |line: &str, environment: &[(&str, &str)]| match parse_with(line, environment)?
        .invocation
    {
        Invocation::Print(text) => Ok::<_, CliError>(text),
        other => panic!("{other:?}"),
    };
    let list = print("starling networks list", &[])?;
    assert!(list.lines().any(|name| name == "op-mainnet") && list.ends_with('\n'));
    let dump = "starling networks dump-rollup-config";
    let legacy = print(&format!("{dump} --network=op-mainnet"), &[])?;
    assert_eq!(print(dump, &[("OP_NODE_NETWORK", "op-mainnet")])?, legacy);
    let current = print(
        &format!("{dump} --network=op-mainnet --format=current"),
        &[],
    )?;
    for (text, has) in [(&legacy, true), (&current, false)] {
        assert_eq!(text.contains("\n  \"use_plasma\": false"), has, "{text}");
        let read = RollupConfig::from_json(text).ok();
        assert_eq!(
            read,
            KnownNetwork::find("op-mainnet").map(|network| network.rollup)
        );
    }
    let said = print(dump, &[]).expect_err("no name").to_string();
    assert!(said.starts_with("must specify a network name"), "{said}");
    for wrong in [
        "networks",
        "networks show",
        "networks dump-rollup-config --network=x",
    ] {
        assert!(parse_with(&format!("starling {wrong}"), &[]).is_err());
    }
    Ok(())
}
