//! `starling-fuzz TARGET [--minutes N] [--seed N]` runs a target. `starling-fuzz TARGET FILE…` runs
//! saved inputs again. The first finding is written to `fuzz/artifacts/TARGET` and ends the run
//! with status 1.

use starling_fuzz::{FuzzTarget, runner, targets};
use std::{
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

const USAGE: &str =
    "usage: starling-fuzz TARGET [--minutes N] [--seed N] | starling-fuzz TARGET FILE…";
/// Longest time of a case; a slower one is a finding. Inputs are small and take microseconds, so
/// the limit leaves room for busy machines.
const SLOW: Duration = Duration::from_secs(60);
/// Interval of progress reports.
const REPORT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_default();
    let Some(target) = targets::ALL.iter().find(|target| target.name == name) else {
        let names: Vec<&str> = targets::ALL.iter().map(|target| target.name).collect();
        eprintln!("{USAGE}\ntargets: {}", names.join(" "));
        return ExitCode::from(2);
    };
    let (mut minutes, mut seed, mut files) = (1, 0, Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--minutes" => minutes = number(args.next()),
            "--seed" => seed = number(args.next()),
            _ => files.push(arg),
        }
    }
    if files.is_empty() {
        fuzz(target, seed, Duration::from_secs(60 * minutes))
    } else {
        again(target, &files)
    }
}

fn number(text: Option<String>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        eprintln!("{USAGE}");
        std::process::exit(2)
    })
}

fn fuzz(target: &FuzzTarget, seed: u64, time: Duration) -> ExitCode {
    let mut reported = Instant::now();
    let result = runner::run(target, seed, Some(SLOW), |progress| {
        if reported.elapsed() >= REPORT {
            reported = Instant::now();
            report(target, seed, progress);
        }
        progress.elapsed < time
    });
    match result {
        Ok(progress) => {
            report(target, seed, &progress);
            println!("{}: no finding", target.name);
            ExitCode::SUCCESS
        }
        Err(finding) => {
            println!(
                "{}: seed {seed}, case {}: {}",
                target.name, finding.case, finding.what
            );
            match save(target, seed, &finding) {
                Ok(path) => println!("its input is {path}"),
                Err(error) => println!(
                    "its input cannot be saved ({error}): {}",
                    hex::encode(&finding.input)
                ),
            }
            ExitCode::FAILURE
        }
    }
}

fn report(target: &FuzzTarget, seed: u64, progress: &runner::RunProgress) {
    let runner::RunProgress {
        cases,
        kinds,
        elapsed,
        longest,
    } = progress;
    let rate = *cases as f64 / elapsed.as_secs_f64();
    println!(
        "{}: seed {seed}, {cases} cases in {:.0} s, {rate:.0} cases/s, {kinds} kinds, the longest took {longest:?}",
        target.name,
        elapsed.as_secs_f64()
    );
}

fn save(target: &FuzzTarget, seed: u64, finding: &runner::Finding) -> std::io::Result<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("artifacts")
        .join(target.name);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("seed-{seed}-case-{}", finding.case));
    std::fs::write(&path, &finding.input)?;
    Ok(path.display().to_string())
}

fn again(target: &FuzzTarget, files: &[String]) -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    for file in files {
        let said = match std::fs::read(file) {
            Ok(input) => runner::try_case(target, &input)
                .map_or_else(|what| what, |_| "no finding".to_owned()),
            Err(error) => error.to_string(),
        };
        println!("{file}: {said}");
        if said != "no finding" {
            status = ExitCode::FAILURE;
        }
    }
    status
}
