//! The program `netsim`: networks in tests, and reports of them.

use clap::{Parser, Subcommand};
use starling_netsim::{model, report};

#[derive(Parser)]
#[command(version, about = "Networks of nodes: models, and reports of runs")]
struct NetsimCommandLine {
    #[command(subcommand)]
    command: NetsimCommand,
}

#[derive(Subcommand)]
enum NetsimCommand {
    Model(model::cli::ModelArgs),
    Compare(report::compare::CompareArgs),
}

fn main() -> anyhow::Result<()> {
    match NetsimCommandLine::parse().command {
        NetsimCommand::Model(args) => model::cli::run(&args),
        NetsimCommand::Compare(args) => report::compare::run(&args),
    }
}
