//! Help texts, the version, and a command line without a command.

use super::*;
use crate::cli::{flags::Effect, help};

#[test]
fn help_lists_what_has_no_effect_last() -> Result<(), CliError> {
    let Invocation::Print(help) = parse_with("starling node --help-all", &[])?.invocation else {
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
fn every_role_has_help_and_version() -> Result<(), CliError> {
    for role in Role::ALL {
        for flag in ["--help", "-h", "--help-all"] {
            let long = help::is_long(role);
            if flag == "--help-all" && !long {
                continue;
            }
            let Invocation::Print(help) =
                parse_with(&format!("starling {} {flag}", role.name()), &[])?.invocation
            else {
                panic!("no help for {}", role.name());
            };
            let brief = flag == "-h" && long;
            let all = flag == "--help-all";
            // Ignore line breaks, since clap wraps long lines.
            let words: Vec<&str> = help.split_whitespace().collect();
            let text = words.join(" ");
            assert_eq!(
                text.ends_with("--help-all` lists them."),
                flag == "--help" && long,
                "{}",
                role.name()
            );
            assert_eq!(
                text.contains(&format!("`starling {} --help` shows all", role.name())),
                brief
            );
            assert!(
                !brief || help.lines().count() <= 84,
                "{} lines",
                help.lines().count()
            );
            for flag in flags::of_role(role)
                .iter()
                .filter(|flag| !flag.flag.hidden && !brief)
            {
                assert_eq!(
                    help.contains(&format!(" --{} ", flag.name))
                        || help.contains(&format!(" --{}[", flag.name)),
                    all || flag.flag.effect == Effect::Works,
                    "{} in the help of {}",
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
    common_options_of(&[Role::Node, Role::Execution, Role::Rollup], &help::COMMON)?;
    let posters = [Role::Batcher, Role::Proposer];
    common_options_of(&posters, &help::COMMON_OF_POSTERS)
}

fn common_options_of(roles: &[Role], common: &[&str]) -> Result<(), CliError> {
    let mut missing: Vec<&str> = common.to_vec();
    for role in roles {
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
        for flag in flags::of_role(*role)
            .iter()
            .filter(|flag| !common.contains(&flag.name.as_str()))
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
    assert_eq!(
        parse_with("starling node", &[])
            .expect_err("a chain")
            .to_string(),
        "no chain is given: name a known network with --network (`starling networks list` shows them), or give the chain's rollup.json with --rollup.config"
    );
}

#[test]
fn clap_finds_no_fault_with_the_table() {
    for detail in [
        help::Detail::Brief,
        help::Detail::Working,
        help::Detail::All,
    ] {
        command(detail).debug_assert();
    }
}
