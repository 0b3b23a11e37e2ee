//! The subcommands of the lab: `netsim run` and `netsim list`.

pub(crate) use super::error::nearest;
use super::{LabBackend, LabScenario, LabSettings, error::LabError, run_report};
use crate::{packet::gain_namespace_rights, report};
use anyhow::Context;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A shipped scenario: its name and the text of its file.
macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../scenarios/", $name, ".toml")))),*]
    };
}

/// The scenarios that are part of the program, in the order of `netsim list`.
pub const SHIPPED: &[(&str, &str)] = shipped!(
    "late-joiner",
    "partition",
    "one-way-partition",
    "flapping-link",
    "thirty-percent-loss",
    "sequencer-restart",
    "l1-outage",
    "frozen-node",
    "kill-storm",
    "rolling-restart",
    "rolling-upgrade",
    "slow-majority",
    "lost-data",
    "hour-off",
    "static-cluster",
    "new-key",
    "l1-reorg",
    "full-disk",
    "two-chains",
    "false-head",
    "lying-range-server",
    "wrong-signer",
    "garbage-flood",
    "stalling-peers",
    "request-flood",
    "half-frames",
    "eclipse",
    "mass-join",
    "two-sequencers",
);

/// Exit code of a run that a signal ended, as shells have it for Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Run whole networks of starling processes on faulty links, and check them
#[derive(clap::Args)]
pub struct RunArgs {
    /// Scenarios: files, or names from `netsim list`
    #[arg(value_name = "FILE", required_unless_present = "all")]
    scenarios: Vec<PathBuf>,
    /// Run every scenario of `netsim list`
    #[arg(long, conflicts_with = "scenarios")]
    all: bool,
    /// The starling program [default: `starling` beside this program]
    #[arg(long, value_name = "PATH", env = "STARLING_BINARY")]
    binary: Option<PathBuf>,
    /// The program of the verb `upgrade` [default: that of --binary]
    #[arg(long, value_name = "PATH")]
    upgrade_to: Option<PathBuf>,
    /// Backend of the links, in place of the scenario's
    #[arg(long, value_enum)]
    backend: Option<LabBackend>,
    /// Seed of all faults [default: drawn and printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Directory for the reports (JSON and HTML), and for the logs of runs that fail
    #[arg(long, value_name = "DIR", default_value = "netsim-reports")]
    out: PathBuf,
    /// Leave the hostile peers out, to compare
    #[arg(long)]
    without_hostile: bool,
    /// Print only the verdicts
    #[arg(long)]
    quiet: bool,
}

impl RunArgs {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        // All scenarios are checked before the first run, so that a mistake shows at once.
        let scenarios = scenarios(&self.scenarios, |scenario| self.change(scenario))?;
        let is_packet = |it: &LabScenario| it.backend == LabBackend::Packet;
        if scenarios.iter().any(is_packet)
            && let Err(refusal) = gain_namespace_rights()
        {
            // Runs fall back when they create their first namespace, which is this refusal's effect.
            println!("the backend `packet` may be refused: {refusal}");
        }
        let upgrade = self.upgrade_to.as_deref();
        let settings = settings(self.binary.as_deref(), upgrade, &self.out, !self.quiet)?;
        fs::create_dir_all(&self.out)
            .with_context(|| format!("the directory {}", self.out.display()))?;
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(self.run_all(&scenarios, &settings))
    }

    /// Applies the options that take the place of keys. A scenario has another name without its
    /// hostile peers, so that both reports are kept.
    fn change(&self, scenario: &mut LabScenario) {
        scenario.backend = self.backend.unwrap_or(scenario.backend);
        if self.without_hostile && !scenario.hostile.is_empty() {
            *scenario = scenario.clone().without_hostile();
            scenario.name += "-without-hostile";
        }
    }

    async fn run_all(
        &self,
        scenarios: &[LabScenario],
        settings: &LabSettings,
    ) -> anyhow::Result<ExitCode> {
        let interrupt = interrupts()?;
        let mut failed = Vec::new();
        for scenario in scenarios {
            let seed = self.seed.unwrap_or_else(rand::random);
            let passed = self.run_one(scenario, settings, seed, &interrupt).await?;
            let Some(passed) = passed else {
                println!("interrupted");
                return Ok(interrupted());
            };
            if !passed {
                failed.push(format!("{} (seed {seed})", scenario.name));
            }
        }
        let count = scenarios.len();
        if failed.is_empty() {
            println!("{count} of {count} scenarios passed");
            return Ok(ExitCode::SUCCESS);
        }
        println!(
            "{} of {count} scenarios failed: {}",
            failed.len(),
            failed.join(", ")
        );
        Ok(ExitCode::FAILURE)
    }

    /// Runs a scenario and writes its report. Returns whether it passed; `None` if a signal ended
    /// the run.
    async fn run_one(
        &self,
        scenario: &LabScenario,
        settings: &LabSettings,
        seed: u64,
        interrupt: &CancellationToken,
    ) -> anyhow::Result<Option<bool>> {
        let name = &scenario.name;
        println!("{name}: {} (seed {seed})", scenario.purpose);
        let unmixed = unmixed(scenario, settings);
        if let Some(note) = unmixed {
            println!("  {note}");
        }
        let begun = Instant::now();
        let report = match super::run(scenario, settings, seed, interrupt).await {
            Ok(mut report) => {
                println!("{}", report.summary());
                let note = unmixed.map(|note| ("upgrade-to".to_owned(), note.to_owned()));
                report.settings.extend(note);
                report.to_run_report()
            }
            Err(LabError::Interrupted) => return Ok(None),
            // The network did not start. That is this scenario's result; the others still run.
            Err(error) => {
                println!("  FAIL {error}");
                run_report::not_started(scenario, seed, &error)
            }
        };
        let [_, page] = report::write(&report, &self.out, name)?;
        let passed = report.passed() == Some(true);
        let verdict = if passed { "passed" } else { "FAILED" };
        let (seconds, page) = (begun.elapsed().as_secs(), page.display());
        let logs = self.out.join(name);
        let logs = if !passed && logs.is_dir() {
            format!("; logs: {}", logs.display())
        } else {
            String::new()
        };
        println!("{name}: {verdict} in {seconds} s ({page}{logs})\n");
        Ok(Some(passed))
    }
}

/// A note that an upgrade changes nothing; `None` if it does, or if the scenario has none.
fn unmixed(scenario: &LabScenario, settings: &LabSettings) -> Option<&'static str> {
    let mut steps = scenario.steps.iter();
    let has_upgrade = steps.any(|step| step.verb.word() == "upgrade");
    (has_upgrade && settings.upgrade == settings.program).then_some(
        "nodes are upgraded to the same program, so versions are not mixed; name another one with \
         --upgrade-to",
    )
}

/// Programs and places of runs: the `starling` program, by default the one beside this program, that
/// of the verb `upgrade`, and the folder for logs.
pub(crate) fn settings(
    binary: Option<&Path>,
    upgrade_to: Option<&Path>,
    out: &Path,
    progress: bool,
) -> anyhow::Result<LabSettings> {
    let netsim = std::env::current_exe().context("this program's own file")?;
    let program = match binary {
        Some(path) => path.to_owned(),
        None => netsim.with_file_name("starling"),
    };
    let program = program.canonicalize().with_context(|| {
        let path = program.display();
        format!("no starling program at {path}: build it, or name it with --binary")
    })?;
    let upgrade = match upgrade_to {
        Some(path) => path.canonicalize(),
        None => Ok(program.clone()),
    };
    Ok(LabSettings {
        upgrade: upgrade.context("the program of --upgrade-to")?,
        program,
        netsim,
        logs: Some(out.to_owned()),
        progress,
    })
}

/// Say what each scenario is for
#[derive(clap::Args)]
pub struct ListArgs {
    /// Scenario files [default: all that this program has]
    #[arg(value_name = "FILE")]
    scenarios: Vec<PathBuf>,
}

impl ListArgs {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let scenarios = scenarios(&self.scenarios, |_| ())?;
        let width = scenarios.iter().map(|scenario| scenario.name.len()).max();
        for scenario in &scenarios {
            let (name, purpose) = (&scenario.name, &scenario.purpose);
            let (width, seconds) = (width.unwrap_or_default(), scenario.length.as_secs());
            let nodes = scenario.node_names().len();
            println!("{name:width$}  {nodes:2} nodes  {seconds:3} s  {purpose}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads files, or shipped scenarios by name; all shipped ones for an empty list. Each is checked
/// before and after `change`.
fn scenarios(
    given: &[PathBuf],
    change: impl Fn(&mut LabScenario),
) -> anyhow::Result<Vec<LabScenario>> {
    let read = |path: &Path| {
        let mut scenario = read(path)?;
        change(&mut scenario);
        scenario.check().map_err(|error| LabError::Scenario {
            name: path.display().to_string(),
            error,
        })?;
        Ok(scenario)
    };
    if given.is_empty() {
        return SHIPPED
            .iter()
            .map(|(name, _)| read(Path::new(name)))
            .collect();
    }
    given.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> anyhow::Result<LabScenario> {
    let is_named = |(name, _): &&(&str, &str)| path == Path::new(name);
    if let Some((name, text)) = SHIPPED.iter().find(is_named) {
        return Ok(LabScenario::parse(name, text)?);
    }
    let text = fs::read_to_string(path).with_context(|| {
        let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
        let near = nearest(&path.to_string_lossy(), names);
        format!("{} is neither a file nor a scenario{near}", path.display())
    })?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let refused = |error| LabError::File {
        path: path.to_owned(),
        error,
    };
    Ok(LabScenario::parse(&name, &text).map_err(refused)?)
}

/// The exit code of a run that a signal ended.
pub(crate) fn interrupted() -> ExitCode {
    ExitCode::from(INTERRUPTED)
}

/// A token that SIGINT and SIGTERM cancel.
pub(crate) fn interrupts() -> anyhow::Result<CancellationToken> {
    let token = CancellationToken::new();
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    let cancelled = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        cancelled.cancel();
    });
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct RunCommandLine {
        #[command(flatten)]
        run: RunArgs,
    }

    fn changed(options: &[&str], text: &str) -> LabScenario {
        let line = ["run", "x.toml"].iter().chain(options);
        let line = RunCommandLine::parse_from(line);
        let mut scenario = LabScenario::parse("x", text).unwrap();
        line.run.change(&mut scenario);
        scenario
    }

    const HOSTILE: &str = r#"
purpose = "x"
seconds = 45
replicas = ["a", "b"]
hostile = [{ behaviour = "garbage", start = 12 }]
steps = [{ at = 20, kill = "garbage-1" }, { at = 22, restart = "garbage-1" }]
"#;

    #[test]
    fn a_run_without_hostile_peers_has_a_report_of_its_own() {
        let hostile = changed(&[], HOSTILE);
        assert_eq!((hostile.name.as_str(), hostile.steps.len()), ("x", 2));
        let honest = changed(&["--without-hostile"], HOSTILE);
        assert_eq!(honest.name, "x-without-hostile");
        assert!(honest.steps.is_empty() && honest.hostile.is_empty());
    }

    #[test]
    fn an_upgrade_to_the_same_program_is_noted() {
        let note = |name: &str, upgrade: &str| {
            let scenario = read(Path::new(name)).unwrap();
            let settings = LabSettings {
                program: "/old/starling".into(),
                upgrade: upgrade.into(),
                netsim: "/old/netsim".into(),
                logs: None,
                progress: false,
            };
            unmixed(&scenario, &settings).is_some()
        };
        assert!(note("rolling-upgrade", "/old/starling"));
        assert!(!note("rolling-upgrade", "/new/starling"));
        assert!(!note("rolling-restart", "/old/starling"));
    }

    fn with_backend(name: &str, backend: LabBackend) -> Result<usize, String> {
        let change = |scenario: &mut LabScenario| scenario.backend = backend;
        let read = scenarios(&[name.into()], change);
        read.map(|read| read.len())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_scenario_that_an_option_makes_impossible_is_refused_when_it_is_read() {
        assert_eq!(with_backend("mass-join", LabBackend::Stream), Ok(1));
        assert_eq!(with_backend("partition", LabBackend::Packet), Ok(1));
        let error = with_backend("mass-join", LabBackend::Packet).unwrap_err();
        let expected = "the scenario mass-join is refused: 7: the backend \
                        `packet` joins nodes by links";
        assert!(error.starts_with(expected), "{error}");
        let all = scenarios(&[], |_| ()).map(|read| read.len());
        assert_eq!(all.ok(), Some(SHIPPED.len()));
    }
}
