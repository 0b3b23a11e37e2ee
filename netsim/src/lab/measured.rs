//! Labs whose figures are measured, for `netsim calibrate` and `netsim bench`: a network without
//! faults that has time to settle before the seconds that count. The checks of such a lab are
//! printed where they fail, and do not end the measurement.

use super::{
    LabScenario, LabSettings, commands,
    report::{LabReport, LabVerdict},
    scenario::LabReplica,
};
use crate::{
    ladder::Rung,
    report::{self, RunReport},
};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Seconds before those that count: the last of 64 nodes on two processors has caught up 26 s after
/// all of them respond.
pub const WARM_UP: u64 = 40;
/// Seconds after those that count until the end.
pub const REST: u64 = 12;
/// Largest memory of a node in MB: it has up to 63 peers.
const MEMORY_MB: u64 = 512;

/// A lab in which `counted` seconds count. Its replicas are to be added.
pub fn scenario(name: &str, purpose: &str, counted: u64) -> LabScenario {
    let mut scenario = LabScenario::new(name, purpose).seconds(WARM_UP + counted + REST);
    scenario.allow.memory_mb = MEMORY_MB;
    scenario
}

/// A lab of the sequencer and replicas, `nodes` together, on one rung.
pub fn network(
    name: &str,
    purpose: &str,
    counted: u64,
    nodes: u32,
    rung: &'static Rung,
) -> LabScenario {
    let mut scenario = scenario(name, purpose, counted);
    scenario.rung = rung;
    let replica = |number| LabReplica::new(&format!("r{number}"), Duration::ZERO);
    scenario.replicas = (1..nodes).map(replica).collect();
    scenario
}

/// Labs that run one after the other.
pub struct MeasuredLabs {
    runtime: Runtime,
    settings: LabSettings,
    interrupt: CancellationToken,
    seed: u64,
    /// Folder for the reports, which exists.
    out: PathBuf,
}

impl MeasuredLabs {
    /// Labs of the program `binary`, by default the one beside this program.
    pub fn new(binary: Option<&Path>, out: &Path, seed: u64) -> anyhow::Result<Self> {
        let settings = commands::settings(binary, None, out, false)?;
        let runtime = Runtime::new()?;
        let interrupt = {
            let _context = runtime.enter();
            commands::interrupts()?
        };
        Ok(Self {
            runtime,
            settings,
            interrupt,
            seed,
            out: out.to_owned(),
        })
    }

    /// Runs a lab to its end and writes its report. Returns an error if the run broke off.
    pub fn run_and_write(&self, scenario: &LabScenario) -> anyhow::Result<(LabReport, RunReport)> {
        let run = super::run(scenario, &self.settings, self.seed, &self.interrupt);
        let lab = self.runtime.block_on(run)?;
        let public = lab.to_run_report();
        report::write(&public, &self.out, &scenario.name)?;
        if let Some(failure) = &lab.failure {
            anyhow::bail!("{}: {failure}", scenario.name);
        }
        for LabVerdict { check, detail, .. } in lab.checks.iter().filter(|it| !it.passed) {
            println!("  FAIL {check}: {detail}");
        }
        Ok((lab, public))
    }

    /// Whether a signal has ended the labs.
    pub fn is_interrupted(&self) -> bool {
        self.interrupt.is_cancelled()
    }
}
