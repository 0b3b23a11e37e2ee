//! The program `netsim`: networks of nodes in tests, in virtual time and in numbers. Each
//! subcommand has its arguments and its `run` in a module of the library.

use clap::{Parser, Subcommand};
use starling_netsim::{model, replay, report};

#[derive(Parser)]
#[command(
    version,
    about = "Networks of Starling nodes: simulations, models, and reports of runs"
)]
struct NetsimCommandLine {
    #[command(subcommand)]
    command: NetsimCommand,
}

#[derive(Subcommand)]
enum NetsimCommand {
    /// Run our own machines in virtual time, one network for each seed.
    Sim(replay::cli::SimArgs),
    Model(model::cli::ModelArgs),
    Compare(report::compare::CompareArgs),
}

fn main() -> anyhow::Result<()> {
    match NetsimCommandLine::parse().command {
        NetsimCommand::Sim(args) => Ok(replay::cli::run(&args)?),
        NetsimCommand::Model(args) => model::cli::run(&args),
        NetsimCommand::Compare(args) => report::compare::run(&args),
    }
}
