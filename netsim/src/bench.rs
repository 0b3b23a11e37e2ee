//! `netsim bench`: the figures of speed and memory that `docs/network.md` promises, each beside its
//! bar, in one run.
//!
//! ```text
//! bench ── runs   a simulation, and models, on this thread
//!      ├── links  copies through a link beside bare ones (`benches/links.rs` calls them, too)
//!      └── labs   whole networks with and without transactions
//! ```
//!
//! Other programs on the machine lower all figures but processor times.

mod labs;
pub mod links;
mod process;
mod runs;

pub use process::process_time;

use crate::{
    lab::LabError,
    report::{self, RunCheck, RunReport},
};
use anyhow::Context;
use std::{fs, path::PathBuf, process::ExitCode};

/// Name of the written files.
const NAME: &str = "bench";

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum BenchSection {
    /// Processor time of a simulation
    Sim,
    /// Time and memory of models
    Model,
    /// Throughput of a link
    Links,
    /// Lag of heads in labs, and cost of their links
    Lab,
}

/// Print speed and memory of all layers, beside their bars
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Sections [default: all]
    #[arg(value_enum)]
    sections: Vec<BenchSection>,
    /// Seconds that count in each lab
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(10..=3_600))]
    lab_seconds: u64,
    /// The starling program of the labs [default: `starling` beside this program]
    #[arg(long, value_name = "PATH", env = "STARLING_BINARY")]
    binary: Option<PathBuf>,
    /// Directory for the figures (JSON and HTML) and for the reports of the labs
    #[arg(long, value_name = "DIR", default_value = "netsim-reports")]
    out: PathBuf,
}

/// The bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BenchBar {
    AtMost(f64),
    AtLeast(f64),
}

/// A figure.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchLine {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    pub bar: Option<BenchBar>,
}

impl BenchLine {
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            bar: None,
        }
    }

    pub fn at_most(self, bar: f64) -> Self {
        let bar = Some(BenchBar::AtMost(bar));
        Self { bar, ..self }
    }

    pub fn at_least(self, bar: f64) -> Self {
        let bar = Some(BenchBar::AtLeast(bar));
        Self { bar, ..self }
    }

    /// Whether the bar is met; a figure that is no number meets none.
    pub fn is_met(&self) -> bool {
        match self.bar {
            Some(BenchBar::AtMost(bar)) => self.value <= bar,
            Some(BenchBar::AtLeast(bar)) => self.value >= bar,
            None => true,
        }
    }

    /// The bar, and the ratio of the figure to it.
    fn judged(&self) -> String {
        let (word, bar) = match self.bar {
            Some(BenchBar::AtMost(bar)) => ("at most", bar),
            Some(BenchBar::AtLeast(bar)) => ("at least", bar),
            None => return String::new(),
        };
        let verdict = if self.is_met() { "met" } else { "MISSED" };
        let (ratio, bar) = (self.value / bar, report::number(bar));
        format!("{ratio:>6.2} of the bar ({word} {bar})  {verdict}")
    }
}

impl std::fmt::Display for BenchLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, value, unit) = (&self.name, report::number(self.value), self.unit);
        let line = format!("{name:<58} {value:>8} {unit:<12} {}", self.judged());
        f.write_str(line.trim_end())
    }
}

/// The figures so far. Each is printed when it is measured.
#[derive(Default)]
pub struct BenchFigures(Vec<BenchLine>);

impl BenchFigures {
    pub fn add(&mut self, line: BenchLine) {
        println!("{line}");
        self.0.push(line);
    }

    /// Whether all bars are met.
    pub fn are_met(&self) -> bool {
        self.0.iter().all(BenchLine::is_met)
    }

    fn report(&self) -> RunReport {
        let mut report = RunReport::new("bench", "speed and memory", 0);
        report.purpose = "Figures of all layers beside their bars".to_owned();
        let named = |line: &BenchLine| (format!("{}, {}", line.name, line.unit), line.value);
        report.figures = self.0.iter().map(named).collect();
        let with_bar = self.0.iter().filter(|line| line.bar.is_some());
        let check = |line: &BenchLine| RunCheck {
            name: line.name.clone(),
            passed: line.is_met(),
            detail: format!(
                "{} {}: {}",
                report::number(line.value),
                line.unit,
                line.judged().trim()
            ),
        };
        report.checks = with_bar.map(check).collect();
        report
    }
}

impl BenchArgs {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        fs::create_dir_all(&self.out)
            .with_context(|| format!("the directory {}", self.out.display()))?;
        let mut figures = BenchFigures::default();
        // The order is fixed: memory is measured in this process, before links and labs use it.
        for section in [
            BenchSection::Sim,
            BenchSection::Model,
            BenchSection::Links,
            BenchSection::Lab,
        ] {
            if !self.sections.is_empty() && !self.sections.contains(&section) {
                continue;
            }
            match self.section(section, &mut figures) {
                Err(error) if matches!(error.downcast_ref(), Some(LabError::Interrupted)) => {
                    println!("interrupted");
                    return Ok(crate::lab::commands::interrupted());
                }
                result => result?,
            }
        }
        let report = figures.report();
        let [_, page] = report::write(&report, &self.out, NAME)?;
        println!("{}", page.display());
        if report.passed() == Some(false) {
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn section(&self, section: BenchSection, figures: &mut BenchFigures) -> anyhow::Result<()> {
        match section {
            BenchSection::Sim => runs::simulations(figures),
            BenchSection::Model => runs::models(figures),
            BenchSection::Links => {
                let runtime = tokio::runtime::Runtime::new()?;
                runtime.block_on(links::copies(figures))
            }
            BenchSection::Lab => labs::all(self, figures),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_whether_its_bar_is_met() {
        let fast = BenchLine::new("copy", 250.0, "MB/s").at_least(200.0);
        let text = fast.to_string();
        assert!(
            text.ends_with("1.25 of the bar (at least 200)  met"),
            "{text}"
        );
        let slow = BenchLine::new("copy", 150.0, "MB/s").at_least(200.0);
        assert!(slow.to_string().ends_with("MISSED"));
        assert!(BenchLine::new("x", 20.0, "ms").at_most(20.0).is_met());
        assert!(!BenchLine::new("x", 20.1, "ms").at_most(20.0).is_met());
        assert!(!BenchLine::new("x", f64::NAN, "ms").at_most(20.0).is_met());
        assert!(BenchLine::new("x", 1.0, "ms").to_string().ends_with("1 ms"));
    }

    #[test]
    fn figures_with_a_bar_are_checks_of_the_report() {
        let mut figures = BenchFigures::default();
        figures.add(BenchLine::new("bare", 900.0, "MB/s"));
        figures.add(BenchLine::new("link", 150.0, "MB/s").at_least(200.0));
        let report = figures.report();
        assert_eq!((report.figures.len(), report.checks.len()), (2, 1));
        assert_eq!(report.passed(), Some(false));
        assert_eq!(report.figures["bare, MB/s"], 900.0);
    }
}
