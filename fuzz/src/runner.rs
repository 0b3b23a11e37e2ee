//! The runner for a stable compiler. It mutates inputs, runs them, keeps inputs of new kinds, and
//! stops at the first finding.
//!
//! A stable compiler does not report code coverage. The results of a target's decoders are used
//! instead.

use crate::{
    FuzzTarget, InputKind,
    mutate::{Rng, mutate},
};
use std::{
    collections::HashSet,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

/// Largest number of kinds for which inputs are kept.
const KEPT: usize = 4096;
/// Peak resident memory, in KiB, above which a case is a finding: a hundred times the largest
/// message.
const MEMORY: u64 = 1 << 20;
/// Number of cases between two checks of the memory.
const LOOK: u64 = 1024;

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunProgress {
    pub cases: u64,
    /// Number of different kinds of inputs so far.
    pub kinds: usize,
    pub elapsed: Duration,
    /// Duration of the longest case so far.
    pub longest: Duration,
}

/// An input that breaks a guarantee.
#[derive(Clone, Debug)]
pub struct Finding {
    pub what: String,
    pub input: Vec<u8>,
    /// Number of the case; 0 for an input of the initial corpus.
    pub case: u64,
}

/// Runs a target on its corpus and then on mutations, while `go_on` returns true. The same seed
/// leads to the same cases. A case that takes longer than `slow` is a finding.
pub fn run(
    target: &FuzzTarget,
    seed: u64,
    slow: Option<Duration>,
    mut go_on: impl FnMut(&RunProgress) -> bool,
) -> Result<RunProgress, Box<Finding>> {
    let started = Instant::now();
    let mut corpus = (target.seeds)();
    let mut kinds = HashSet::new();
    let mut progress = RunProgress {
        cases: 0,
        kinds: 0,
        elapsed: Duration::ZERO,
        longest: Duration::ZERO,
    };
    for input in &corpus {
        kinds.insert(check(target, input, slow, &mut progress)?);
    }
    let most = corpus.len() + KEPT;
    let mut rng = Rng::new(seed);
    loop {
        progress.elapsed = started.elapsed();
        progress.kinds = kinds.len();
        if !go_on(&progress) {
            return Ok(progress);
        }
        progress.cases += 1;
        let input = mutate(&mut rng, &corpus);
        let outcome = check(target, &input, slow, &mut progress)?;
        if kinds.len() < KEPT && kinds.insert(outcome) && corpus.len() < most {
            corpus.push(input);
        }
        if progress.cases.is_multiple_of(LOOK)
            && let Some(peak) = peak_memory().filter(|peak| *peak > MEMORY)
        {
            return Err(Box::new(Finding {
                what: format!("{peak} KiB of memory"),
                input: corpus.pop().unwrap_or_default(),
                case: progress.cases,
            }));
        }
    }
}

fn check(
    target: &FuzzTarget,
    input: &[u8],
    slow: Option<Duration>,
    progress: &mut RunProgress,
) -> Result<InputKind, Box<Finding>> {
    let (began, case) = (Instant::now(), progress.cases);
    let finding = |what| {
        Box::new(Finding {
            what,
            input: input.to_vec(),
            case,
        })
    };
    let outcome = try_case(target, input).map_err(finding)?;
    let took = began.elapsed();
    progress.longest = progress.longest.max(took);
    if slow.is_some_and(|slow| took > slow) {
        Err(finding(format!("it took {took:?}")))
    } else {
        Ok(outcome)
    }
}

/// Runs one case. The error is the message of the target's panic.
pub fn try_case(target: &FuzzTarget, input: &[u8]) -> Result<InputKind, String> {
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or(panic.downcast_ref::<&str>().copied());
        text.unwrap_or("a panic").to_owned()
    })
}

/// Peak resident memory of this process, in KiB.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}
