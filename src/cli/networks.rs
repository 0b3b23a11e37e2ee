//! `starling networks …`: prints the known networks and their rollup configs.

use super::{CliError, parse::Environment};
use crate::networks;
use clap::{Arg, ArgMatches, Command, builder::PossibleValue};
use starling_proto::config::RollupJsonFormat;

/// Environment variable of `--network`, the same as for `starling node`.
const NETWORK_VARIABLE: &str = "OP_NODE_NETWORK";

/// The subcommand `networks`.
pub fn command() -> Command {
    let network = Arg::new("network")
        .long("network")
        .value_name("NAME")
        .help(format!("Name of the network [env: {NETWORK_VARIABLE}]"));
    let format = Arg::new("format")
        .long("format")
        .value_name("FORMAT")
        .default_value("legacy")
        .value_parser([
            PossibleValue::new("legacy").help(
                "With da_challenge_address, da_challenge_window, da_resolve_window and use_plasma",
            ),
            PossibleValue::new("current").help("Without those four, as today's op-node demands"),
        ])
        .help("Fields of the document; both formats are read by --rollup.config");
    Command::new("networks")
        .about("Known networks and their rollup configurations")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("list").about("Print the names that --network takes"))
        .subcommand(
            Command::new("dump-rollup-config")
                .about("Print the rollup.json of a known network")
                .arg(network)
                .arg(format),
        )
}

/// Runs the subcommand, and returns the text to print.
pub(super) fn text(matches: &ArgMatches, environment: Environment) -> Result<String, CliError> {
    match matches.subcommand() {
        Some(("list", _)) => Ok(networks::list()),
        Some(("dump-rollup-config", matches)) => {
            let given = matches.get_one::<String>("network").cloned();
            let name = given
                .or_else(|| environment(NETWORK_VARIABLE))
                .filter(|name| !name.is_empty())
                .ok_or_else(|| {
                    CliError::Usage(
                        "must specify a network name: give one of `starling networks list` with --network".into(),
                    )
                })?;
            let format = match matches.get_one::<String>("format").map(String::as_str) {
                Some("current") => RollupJsonFormat::Current,
                _ => RollupJsonFormat::Legacy,
            };
            networks::dump(&name, format).map_err(|error| CliError::Invalid {
                name: "network",
                reason: error.to_string(),
            })
        }
        _ => Err(CliError::Usage(
            "networks takes one of list, dump-rollup-config".into(),
        )),
    }
}
