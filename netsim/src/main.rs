//! The program `netsim`: networks of nodes in tests. Each subcommand has its arguments and its `run`
//! in a module of the library.

use clap::{Parser, Subcommand};
use starling_netsim::{bench, calibrate, guard, lab, model, report, sim};
use std::{panic, process::ExitCode};

/// Exit code after the reader of the output has ended: that of a program which SIGPIPE ended.
const OUTPUT_CLOSED: i32 = 141;

/// Networks of Starling nodes: real processes on bad links, simulations, models, and reports
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct NetsimCli {
    #[command(subcommand)]
    command: NetsimCommand,
}

#[derive(Subcommand)]
enum NetsimCommand {
    Run(lab::commands::RunArgs),
    List(lab::commands::ListArgs),
    /// Simulate networks of Starling's own state machines in virtual time, one network for each seed
    Sim(sim::cli::SimArgs),
    Model(model::cli::ModelArgs),
    Bench(bench::BenchArgs),
    Calibrate(calibrate::cli::CalibrateArgs),
    Compare(report::compare::CompareArgs),
    #[command(hide = true)]
    Guard(guard::GuardArgs),
    #[command(hide = true)]
    Hostile(lab::hostile::HostileArgs),
}

fn main() -> ExitCode {
    end_with_reader();
    let done = |()| ExitCode::SUCCESS;
    let result = match NetsimCli::parse().command {
        NetsimCommand::Run(args) => args.run(),
        NetsimCommand::List(args) => args.run(),
        NetsimCommand::Sim(args) => sim::cli::run(&args).map(done).map_err(Into::into),
        NetsimCommand::Model(args) => model::cli::run(&args).map(done),
        NetsimCommand::Bench(args) => args.run(),
        NetsimCommand::Calibrate(args) => args.run(),
        NetsimCommand::Compare(args) => report::compare::run(&args).map(done),
        NetsimCommand::Guard(args) => args.run(),
        NetsimCommand::Hostile(args) => args.run(),
    };
    result.unwrap_or_else(|error| {
        eprintln!("netsim: {error:#}");
        ExitCode::FAILURE
    })
}

/// Ends the program without a message when the reader of its output, such as `head`, has ended. The
/// guard of a run then cleans up. `println!` panics in this case, in whatever module it is.
fn end_with_reader() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        if text.starts_with("failed printing to stdout") && text.contains("Broken pipe") {
            std::process::exit(OUTPUT_CLOSED);
        }
        default(panic);
    }));
}
