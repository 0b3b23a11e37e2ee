//! `netsim calibrate`: runs the labs, computes their models, and writes one table.

use super::{
    measured::{HopTimes, LabMeasurement},
    plan::CalibrationPlan,
    rows::{CalibratedNetwork, row},
};
use crate::{
    lab::{LabError, LabScenario, commands, measured::MeasuredLabs, report::LabReport},
    ladder::{LADDER, Rung},
    nearest::nearest,
    report::{self, RunCalibration, RunCheck, RunReport},
};
use anyhow::Context;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

/// Name of the written files.
const NAME: &str = "calibration";

/// Run labs, and compare the propagation of blocks with that of the model of the same networks
///
/// Example: netsim calibrate --nodes 16,32,64 --rungs lan,transatlantic --out reports
#[derive(Debug, clap::Args)]
pub struct CalibrateArgs {
    /// Numbers of nodes of the labs
    #[arg(long, value_delimiter = ',', default_value = "16,32,64", value_parser = clap::value_parser!(u32).range(2..=65))]
    nodes: Vec<u32>,
    /// Networks from the ladder
    #[arg(long, value_delimiter = ',', default_value = "lan,transatlantic", value_parser = parse_rung)]
    rungs: Vec<&'static Rung>,
    /// Blocks that count in each lab
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(20..=3_000))]
    blocks: u64,
    /// Seconds between two blocks
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=12))]
    block_time: u64,
    /// Transactions per second
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    load: u32,
    /// The starling program [default: `starling` beside this program]
    #[arg(long, value_name = "PATH", env = "STARLING_BINARY")]
    binary: Option<PathBuf>,
    /// Seed of the labs' links and of the model
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Reports of earlier calibrations, whose networks come first in the table
    #[arg(long, value_name = "JSON")]
    with: Vec<PathBuf>,
    /// Directory for the table (JSON and HTML) and for the reports of the labs
    #[arg(long, value_name = "DIR", default_value = "netsim-reports")]
    out: PathBuf,
}

fn parse_rung(name: &str) -> Result<&'static Rung, String> {
    Rung::named(name).ok_or_else(|| {
        let near = nearest(name, LADDER.iter().map(|rung| rung.name));
        format!("no network of the ladder{near}")
    })
}

impl CalibrateArgs {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let earlier = self.with.iter().map(|path| earlier(path));
        let mut rows = earlier.collect::<anyhow::Result<Vec<_>>>()?.concat();
        let measured = MeasuredLabs::new(self.binary.as_deref(), &self.out, self.seed)?;
        fs::create_dir_all(&self.out)
            .with_context(|| format!("the directory {}", self.out.display()))?;
        let labs = CalibrationLabs {
            args: &self,
            measured,
            plan: CalibrationPlan {
                blocks: self.blocks,
                block_time: self.block_time,
                load: self.load,
            },
        };
        let report = match labs.run(&mut rows) {
            Ok(line) => labs.report(&line, rows),
            Err(error) if error.is::<LabError>() && labs.measured.is_interrupted() => {
                println!("interrupted");
                return Ok(commands::interrupted());
            }
            Err(error) => return Err(error),
        };
        let [_, page] = report::write(&report, &self.out, NAME)?;
        println!("\n{}", report::calibration_text(&report));
        for check in &report.checks {
            let verdict = if check.passed { "met   " } else { "MISSED" };
            println!("{verdict} {}: {}", check.name, check.detail);
        }
        println!("{}", page.display());
        if report.passed() == Some(false) {
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The rows of an earlier report.
fn earlier(path: &Path) -> anyhow::Result<Vec<RunCalibration>> {
    let report = report::read(path)?;
    if report.calibration.is_empty() {
        anyhow::bail!(
            "{} is no report of a calibration: name a file that `netsim calibrate` wrote",
            path.display()
        );
    }
    Ok(report.calibration)
}

/// The labs that are run one after the other.
struct CalibrationLabs<'a> {
    args: &'a CalibrateArgs,
    measured: MeasuredLabs,
    plan: CalibrationPlan,
}

impl CalibrationLabs<'_> {
    /// Runs all labs, and adds their rows.
    fn run(&self, rows: &mut Vec<RunCalibration>) -> anyhow::Result<HopTimes> {
        let report = self.lab(&self.plan.line())?;
        let line = HopTimes::of(&report, &self.plan).context("the line has no blocks")?;
        println!(
            "  first hop {:.2} ms, further hop {:.2} ms with a check of {:.2} ms, work {:.2} ms",
            line.first, line.hop, line.check, line.work
        );
        let cores = std::thread::available_parallelism()?.get() as u32;
        for rung in &self.args.rungs {
            for nodes in &self.args.nodes {
                let report = self.lab(&self.plan.network(*nodes, rung))?;
                let measured = LabMeasurement::of(&report, &self.plan);
                let measured = measured.context("the lab has no blocks")?;
                let network = CalibratedNetwork {
                    nodes: *nodes,
                    rung,
                    cores,
                    seed: self.args.seed,
                };
                let row = row(&network, &self.plan, measured, &line)?;
                println!("  {}", row.reading());
                rows.push(row);
                // The table so far, in case that a later lab fails.
                report::write(&self.report(&line, rows.clone()), &self.args.out, NAME)?;
            }
        }
        Ok(line)
    }

    fn lab(&self, scenario: &LabScenario) -> anyhow::Result<LabReport> {
        let begun = Instant::now();
        println!("{}: {} s", scenario.name, scenario.length.as_secs());
        let (lab, _) = self.measured.run_and_write(scenario)?;
        println!("  took {} s", begun.elapsed().as_secs());
        Ok(lab)
    }

    fn report(&self, line: &HopTimes, rows: Vec<RunCalibration>) -> RunReport {
        let title = format!("{} networks", rows.len());
        let mut report = RunReport::new("calibration", &title, self.args.seed);
        report.purpose = "Propagation of blocks in labs, beside the model".to_owned();
        report.checks = rows.iter().flat_map(checks).collect();
        let settings = [
            ("blocks", self.plan.blocks),
            ("block-time", self.plan.block_time),
            ("load", self.plan.load.into()),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_string()));
        report.settings = settings.into();
        let figures = [
            ("first hop over loopback, ms", line.first),
            ("further hop over loopback, ms", line.hop),
            ("check over loopback, ms", line.check),
            ("processor time of a block over loopback, ms", line.work),
        ];
        let figures = figures.map(|(name, value)| (name.to_owned(), value));
        report.figures = figures.into();
        for row in &rows {
            for (name, [lab, model, shared]) in row.percentiles() {
                let of = [("lab", lab), ("model", model), ("shared", shared)];
                let of = of.map(|(part, ms)| (format!("{}: {name} {part}, ms", row.name()), ms));
                report.figures.extend(of);
            }
        }
        report.calibration = rows;
        report
    }
}

/// The bars of one network. The model is that with the processors that the lab had.
fn checks(row: &RunCalibration) -> impl Iterator<Item = RunCheck> + '_ {
    let percentiles = row.percentiles().into_iter();
    percentiles.map(|(name, [lab, _, shared])| {
        let ratio = RunCalibration::ratio(shared, lab);
        RunCheck {
            name: format!("{name} of {}", row.name()),
            passed: (ratio - 1.0).abs() <= RunCalibration::DEVIATION,
            detail: format!(
                "the model has {shared:.1} ms, {ratio:.2} of the lab's {lab:.1} ms (bar ±{})",
                RunCalibration::DEVIATION
            ),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::RunSpread;

    #[test]
    fn a_model_that_is_more_than_a_quarter_off_misses_its_bar() {
        let spread = |p50, p99| RunSpread {
            p50,
            p99,
            ..RunSpread::default()
        };
        let row = RunCalibration {
            lab: spread(8.0, 80.0),
            shared: spread(10.0, 101.0),
            ..RunCalibration::default()
        };
        let passed: Vec<bool> = checks(&row).map(|check| check.passed).collect();
        assert_eq!(passed, [true, false]);
    }

    #[test]
    fn an_unknown_network_is_refused_with_the_nearest_one() {
        assert_eq!(parse_rung("lan").unwrap().name, "lan");
        let error = parse_rung("lann").unwrap_err();
        assert_eq!(error, "no network of the ladder; did you mean `lan`?");
    }

    #[test]
    fn only_reports_of_calibrations_are_continued() {
        let folder = tempfile::tempdir().unwrap();
        let other = RunReport::new("lab", "x", 1);
        let [json, _] = report::write(&other, folder.path(), "x").unwrap();
        let error = earlier(&json).unwrap_err().to_string();
        assert!(
            error.ends_with("name a file that `netsim calibrate` wrote"),
            "{error}"
        );
        let mut report = other;
        report.calibration = vec![RunCalibration::default()];
        let [json, _] = report::write(&report, folder.path(), "y").unwrap();
        assert_eq!(earlier(&json).unwrap(), report.calibration);
    }
}
