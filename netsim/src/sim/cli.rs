//! `netsim sim`: runs many seeds on all cores, and prints counts, time, and for each violation the
//! command line that replays it.

use super::{
    chain::ChainKind,
    checks::Violation,
    plan::{MIN_MINUTES, NO_FAULT, NODES, SimPlan, UnknownFault},
    planted::PlantedBug,
    real::{ImportTime, memory_folder},
    shrink::shrink,
    world::{SimOutcome, simulate},
};
use crate::guard::{self, RunGuard};
use parking_lot::Mutex;
use std::{
    io,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Virtual minutes of a seed with trees.
const MINUTES: u64 = 10;
/// Most violations that are shrunk and printed.
const REPORTED: usize = 10;

/// Options of `netsim sim`.
#[derive(Clone, Debug, clap::Args)]
pub struct SimArgs {
    /// Number of seeds to run.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    pub first: u64,
    /// Number of nodes; drawn from the seed by default.
    #[arg(long, value_parser = clap::value_parser!(u64).range(*NODES.start() as u64..=*NODES.end() as u64))]
    pub nodes: Option<u64>,
    /// Virtual minutes of each seed, of which the last three and a half are quiet; 10 by default, 6
    /// with --chain real.
    #[arg(long, value_parser = clap::value_parser!(u64).range(MIN_MINUTES..=1_440))]
    pub minutes: Option<u64>,
    /// Chains of the nodes: a tree of hashes, or the production execution core on a temporary store.
    #[arg(long, value_enum, default_value_t)]
    pub chain: ChainKind,
    /// Faults to keep, as numbers separated by commas, or `none`; all by default.
    #[arg(long)]
    pub faults: Option<String>,
    /// Leave out faults and hostile nodes, for measurements.
    #[arg(long)]
    pub no_faults: bool,
    /// Whether nodes derive the safe chain from L1; even seeds do by default.
    #[arg(long)]
    pub derivation: Option<bool>,
    /// Plant this bug, which a check finds.
    #[arg(long, hide = true)]
    pub plant: Option<PlantedBug>,
    /// Folder of the temporary files of real chains, which the run sets.
    #[arg(skip = memory_folder())]
    pub folder: PathBuf,
    /// Print the plan and the history of each seed.
    #[arg(long)]
    pub trace: bool,
    /// Number of threads, at most one for each seed; all cores by default.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_024))]
    pub threads: Option<u64>,
}

/// The reason why `netsim sim` ends with an error.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error("--faults {0}: a number of a fault, several separated by commas, or none is needed")]
    Faults(String),
    #[error("--faults: {0}")]
    UnknownFault(#[from] UnknownFault),
    #[error("--first {first} --seeds {seeds}: the largest seed is {}", u64::MAX)]
    Seeds { first: u64, seeds: u64 },
    #[error("the folder of real chains, or its guard: {0}")]
    Folder(#[from] io::Error),
    #[error("{failed} of {seeds} seeds violate a check; the last line of each replays it")]
    Violations { failed: u64, seeds: u64 },
}

/// Sums over all seeds of a run.
#[derive(Default)]
struct SimTotals {
    blocks: u64,
    events: u64,
    /// Hash of all histories, independent of the order in which they end.
    histories: u64,
    import: ImportTime,
    failed: Vec<(u64, Violation)>,
}

impl SimTotals {
    fn add(&mut self, seed: u64, outcome: SimOutcome) {
        self.blocks += outcome.height;
        self.events += outcome.events;
        self.import += outcome.import;
        self.histories ^= outcome.history.rotate_left((seed % 64) as u32);
        self.failed
            .extend(outcome.violation.map(|violation| (seed, violation)));
    }
}

impl SimArgs {
    fn minutes(&self) -> u64 {
        self.minutes.unwrap_or(match self.chain {
            ChainKind::Tree => MINUTES,
            ChainKind::Real => MIN_MINUTES,
        })
    }

    fn plan(&self, seed: u64) -> Result<SimPlan, SimError> {
        let nodes = self.nodes.map(|nodes| nodes as usize);
        let minutes = self.minutes();
        let plan = match self.chain {
            ChainKind::Tree => SimPlan::draw(seed, nodes, minutes),
            ChainKind::Real => SimPlan::draw_real(seed, nodes, minutes),
        };
        let mut plan = plan.with_derivation(self.derivation);
        if self.no_faults {
            plan = plan.without_faults();
        }
        plan.bug = self.plant.unwrap_or_default();
        plan.folder.clone_from(&self.folder);
        if let Some(text) = &self.faults {
            let numbers = text.split(',').filter(|_| text != NO_FAULT);
            let kept: Result<Vec<usize>, _> = numbers.map(str::parse).collect();
            plan = plan.keep(kept.map_err(|_| SimError::Faults(text.clone()))?)?;
        }
        Ok(plan)
    }

    /// Checks the options against every seed, so that a run does not end halfway.
    fn check(&self) -> Result<(), SimError> {
        let (first, seeds) = (self.first, self.seeds);
        let last = first.checked_add(seeds - 1);
        let last = last.ok_or(SimError::Seeds { first, seeds })?;
        let checked = if self.faults.is_some() { last } else { first };
        (first..=checked).try_for_each(|seed| self.plan(seed).map(drop))
    }
}

/// Runs the seeds and prints the result. The files of real chains are in a folder of the run, which a
/// guard removes if this process is killed.
pub fn run(args: &SimArgs) -> Result<(), SimError> {
    args.check()?;
    if args.chain == ChainKind::Tree {
        return run_all(args);
    }
    let prefix = format!("{}{}-", guard::PREFIX, std::process::id());
    let folder = tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir_in(&args.folder)?;
    // Dropped before the folder, which it removes.
    let _guard = RunGuard::start(&std::env::current_exe()?, folder.path())?;
    let folder = folder.path().to_owned();
    run_all(&SimArgs {
        folder,
        ..args.clone()
    })
}

fn run_all(args: &SimArgs) -> Result<(), SimError> {
    let begun = Instant::now();
    let totals = Mutex::new(SimTotals::default());
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if args.trace {
        1
    } else {
        args.threads.unwrap_or(cores as u64).min(args.seeds) as usize
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| run_seeds(args, &next, &totals));
        }
    });
    let mut totals = totals.into_inner();
    totals.failed.sort_by_key(|(seed, _)| *seed);
    print_totals(args, &totals, begun.elapsed(), threads);
    let failed = totals.failed.len() as u64;
    for (seed, violation) in totals.failed.iter().take(REPORTED) {
        report(&args.plan(*seed)?, violation);
    }
    if failed > 0 {
        let seeds = args.seeds;
        return Err(SimError::Violations { failed, seeds });
    }
    Ok(())
}

fn run_seeds(args: &SimArgs, next: &AtomicU64, totals: &Mutex<SimTotals>) {
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= args.seeds {
            return;
        }
        let seed = args.first + index;
        let Ok(plan) = args.plan(seed) else { return };
        let outcome = simulate(&plan, args.trace);
        if let Some(trace) = &outcome.trace {
            print_plan(&plan);
            print!("{trace}");
            println!(
                "seed {seed}: {} blocks, {} events, history {:016x}",
                outcome.height, outcome.events, outcome.history
            );
        }
        totals.lock().add(seed, outcome);
    }
}

fn print_plan(plan: &SimPlan) {
    for (index, node) in plan.nodes.iter().enumerate() {
        let role = node
            .hostile
            .map_or("honest".to_owned(), |it| format!("{it:?}"));
        println!(
            "node {index}: {role}, static peers {:?}, {} to {} peers",
            node.statics, node.lo, node.hi
        );
    }
    if let Some(derivation) = &plan.derivation {
        println!("{derivation:?}");
    }
    for (index, fault) in plan.active() {
        println!("fault {index}: {fault}");
    }
}

fn print_totals(args: &SimArgs, totals: &SimTotals, took: Duration, threads: usize) {
    let seconds = took.as_secs_f64();
    let virtual_hours = args.seeds as f64 * args.minutes() as f64 / 60.0;
    println!(
        "{} seeds, {} blocks, {} events, {virtual_hours:.1} virtual hours in {seconds:.1} s ({:.2} ms a seed); {} violations; histories {:016x}",
        args.seeds,
        totals.blocks,
        totals.events,
        1_000.0 * seconds / args.seeds.max(1) as f64,
        totals.failed.len(),
        totals.histories
    );
    let ImportTime {
        blocks,
        spent,
        files,
    } = totals.import;
    if blocks > 0 {
        let (import, files) = (spent.as_secs_f64(), files.as_secs_f64());
        let whole = seconds * threads as f64;
        println!(
            "{blocks} blocks executed in {import:.1} s ({:.2} ms a block); stores opened, recovered and verified in {files:.1} s; {:.1} s of all threads are {:.2} times the execution",
            1_000.0 * import / blocks as f64,
            whole,
            whole / import
        );
    }
}

/// Prints a violation, shrunk, with the command line that replays it.
fn report(plan: &SimPlan, violation: &Violation) {
    // Numbers of faults are those of this plan, so it is not drawn again.
    let (plan, violation) = if plan.kept.is_some() {
        (plan.clone(), violation.clone())
    } else {
        shrink(plan, violation)
    };
    println!("\nseed {}: {violation}", plan.seed);
    print_plan(&plan);
    println!("{}", plan.command());
}
