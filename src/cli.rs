//! The command line. It is read in three steps: the table of flags ([`flags`]), their values
//! ([`mod@parse`]), and the configuration ([`config`]). The rest of the program sees only the
//! configuration. The input is the operator's: it cannot overload anything, but may contain any
//! typing error.

pub mod config;
pub mod flags;
mod help;
pub mod key;
mod line;
mod networks;
pub mod parse;
pub mod value;

use crate::version::VERSION;
use clap::{
    Arg, Command, builder::PossibleValue, error::ContextKind, error::ContextValue, error::ErrorKind,
};
use config::{
    BatcherProcessConfig, DbConfig, DevnetConfig, ExecutionConfig, ExportConfig, ImportConfig,
    InitConfig, NodeConfig, ProposerProcessConfig, RollupNodeConfig,
};
use flags::Role;
use help::Detail;
use parse::{Environment, Values};
use std::path::PathBuf;

/// A parsed command with its configuration.
#[derive(Debug)]
pub enum Invocation {
    Node(Box<NodeConfig>),
    Execution(Box<ExecutionConfig>),
    Rollup(Box<RollupNodeConfig>),
    Batcher(Box<BatcherProcessConfig>),
    Proposer(Box<ProposerProcessConfig>),
    Devnet(DevnetConfig),
    Init(InitConfig),
    Import(ImportConfig),
    Export(ExportConfig),
    Db(DbConfig),
    Key(key::Tool),
    /// Print this text: the help or the version.
    Print(String),
}

/// An invocation, with warnings to log before it runs.
#[derive(Debug)]
pub struct Parsed {
    /// `None` for a tool, the help and the version.
    pub role: Option<Role>,
    pub invocation: Invocation,
    /// Warnings of one sentence each, such as flags without effect, or keys visible on the command
    /// line.
    pub notices: Vec<String>,
}

impl Parsed {
    fn tool(invocation: Invocation) -> Self {
        Self {
            role: None,
            invocation,
            notices: Vec::new(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error("there is no option {given}{}; see `starling {role} --help`", nearest.as_ref().map(|name| format!("; did you mean --{name}?")).unwrap_or_default())]
    Unknown {
        given: String,
        nearest: Option<String>,
        role: &'static str,
    },
    #[error("{name} takes {expected}, and was given {given}")]
    Value {
        name: String,
        expected: String,
        given: String,
    },
    #[error("{name} is not supported: {reason}")]
    Refused { name: String, reason: &'static str },
    #[error("{name} is missing: {next}")]
    Missing {
        name: &'static str,
        next: &'static str,
    },
    /// A role that needs a chain has none configured.
    #[error(
        "no chain is given: name a known network with --network (`starling networks list` shows them), or give the chain's rollup.json with --rollup.config"
    )]
    NoChain,
    #[error("--{name}: {reason}")]
    Invalid { name: &'static str, reason: String },
    #[error("{what} cannot be read from {}: {error}; check the path and its permissions", path.display())]
    Unreadable {
        what: &'static str,
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("{0}")]
    Usage(String),
    /// No command was given; the text lists the commands.
    #[error("{0}")]
    Help(String),
    #[error("the flag {0} does not have the type it is read as")]
    Table(&'static str),
}

/// Parses a command line. `argv` begins with the program's name.
pub fn parse(
    argv: impl IntoIterator<Item = String>,
    environment: Environment,
) -> Result<Parsed, CliError> {
    let line::CommandLine { argv, unused } = line::arrange(argv.into_iter().collect())?;
    let role = argv
        .get(1)
        .and_then(|word| Role::ALL.into_iter().find(|role| role.name() == word));
    let argv = match role {
        Some(role) => parse::with_double_dashes(role, argv),
        None => argv,
    };
    let detail = Detail::of_line(&argv);
    let matches = match command(detail).try_get_matches_from(argv) {
        Ok(matches) => matches,
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            ) =>
        {
            return Ok(Parsed::tool(Invocation::Print(error.render().to_string())));
        }
        Err(error) => return Err(explain(error, role)),
    };
    let Some((name, matches)) = matches.subcommand() else {
        return Err(CliError::Help(command(detail).render_help().to_string()));
    };
    let tool = match name {
        "p2p" => Some(Invocation::Key(key::Tool::from_matches(matches)?)),
        "networks" => Some(Invocation::Print(networks::text(matches, environment)?)),
        _ => None,
    };
    if let Some(invocation) = tool {
        return Ok(Parsed::tool(invocation));
    }
    let role = role.ok_or_else(|| {
        CliError::Usage(format!("there is no command {name}; see `starling help`"))
    })?;
    let values = Values::read(role, matches, environment)?;
    let mut notices = values.notices();
    notices.extend(
        unused
            .iter()
            .map(|option| format!("--{option} has no effect: `{name}` has no such option")),
    );
    let invocation = invocation(role, matches, &values, &mut notices)?;
    Ok(Parsed {
        role: Some(role),
        invocation,
        notices,
    })
}

/// Commands that are not roles.
const TOOLS: [&str; 2] = ["networks", "p2p"];

/// Reads the configuration of a role.
fn invocation(
    role: Role,
    matches: &clap::ArgMatches,
    values: &Values,
    notices: &mut Vec<String>,
) -> Result<Invocation, CliError> {
    Ok(match role {
        Role::Node => Invocation::Node(Box::new(NodeConfig::read(values, notices)?)),
        Role::Execution => Invocation::Execution(Box::new(ExecutionConfig::read(values, notices)?)),
        Role::Rollup => Invocation::Rollup(Box::new(RollupNodeConfig::read(values, notices)?)),
        Role::Batcher => {
            Invocation::Batcher(Box::new(BatcherProcessConfig::read(values, notices)?))
        }
        Role::Proposer => {
            Invocation::Proposer(Box::new(ProposerProcessConfig::read(values, notices)?))
        }
        Role::Devnet => Invocation::Devnet(DevnetConfig::read(values)?),
        Role::Init => {
            let genesis = matches.get_one::<String>("GENESIS").map(PathBuf::from);
            Invocation::Init(InitConfig::read(values, genesis, notices)?)
        }
        Role::Import => Invocation::Import(ImportConfig::read(values, operands(matches))?),
        Role::Export => Invocation::Export(ExportConfig::read(values, &operands(matches))?),
        Role::Db => Invocation::Db(DbConfig::read(
            values,
            operands(matches).first().map(String::as_str),
        )?),
    })
}

/// Positional arguments of the command line.
fn operands(matches: &clap::ArgMatches) -> Vec<String> {
    matches
        .get_many(OPERANDS)
        .into_iter()
        .flatten()
        .cloned()
        .collect()
}

const OPERANDS: &str = "OPERANDS";

/// Builds the whole command line for clap, with help texts of this detail.
fn command(detail: Detail) -> Command {
    let version = |command: Command| {
        // clap's short flag would be -V, but op-node and op-geth use -v.
        let arg = Arg::new("version")
            .short('v')
            .long("version")
            .action(clap::ArgAction::Version)
            .help("Print the version");
        command
            .version(VERSION)
            .display_name("starling")
            .disable_version_flag(true)
            .arg(arg)
    };
    let operands =
        |name: &'static str, help: &'static str| Arg::new(OPERANDS).value_name(name).help(help);
    let roles = Role::ALL.map(|role| {
        let command = version(parse::command(role, detail));
        match role {
            Role::Init => command.arg(Arg::new("GENESIS").help("The genesis file").value_name("GENESIS")),
            Role::Import => command.arg(operands("FILE", "The files, one after the other").num_args(0..)),
            Role::Export => command.arg(
                operands("FILE [FIRST LAST]", "The file; and first and last block, which are appended to it").num_args(0..=3),
            ),
            Role::Db => command.arg(
                operands("ACTION", "What to do").num_args(0..=1).value_parser([
                    PossibleValue::new("verify")
                        .help("Check state root, tries, blocks, indexes, history; fails if anything is damaged"),
                    PossibleValue::new("stats").help("Rows and bytes by kind, heads, disk use"),
                    PossibleValue::new("prune").help("Drop the states that --history.state does not keep, now"),
                    PossibleValue::new("repair").help("Cut or put aside damaged logs; make indexes, receipts, trie rows anew"),
                ]),
            ),
            _ => command,
        }
    });
    version(
        Command::new("starling")
            .about("An OP Stack node in one binary, organised around a libp2p swarm"),
    )
    .subcommands(roles)
    .subcommand(version(key::command()))
    .subcommand(version(networks::command()))
}

/// Converts an error of clap to one clear sentence.
fn explain(error: clap::Error, role: Option<Role>) -> CliError {
    let given = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(given)) => Some(given.clone()),
        _ => None,
    };
    match (error.kind(), role, given) {
        (ErrorKind::UnknownArgument, Some(role), Some(given)) if given.starts_with('-') => {
            CliError::Unknown {
                nearest: parse::nearest(role, &given),
                given,
                role: role.name(),
            }
        }
        (ErrorKind::UnknownArgument, _, Some(given)) if ["true", "false"].contains(&&*given) => {
            CliError::Usage(format!(
                "{given} stands alone: the value of a boolean option follows `=`, as in --http={given}"
            ))
        }
        (ErrorKind::UnknownArgument, Some(Role::Init), _) => {
            CliError::Usage("need genesis.json file as the only argument".into())
        }
        (ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, ..) => {
            CliError::Help(error.render().to_string())
        }
        // clap's own message, without the prefix "error: " that `main` adds.
        _ => CliError::Usage(
            error
                .render()
                .to_string()
                .trim_start_matches("error: ")
                .trim_end()
                .to_string(),
        ),
    }
}

#[cfg(test)]
mod tests;
