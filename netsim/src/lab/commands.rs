//! The subcommands of the lab: `netsim run` and `netsim list`.

use super::{
    LabBackend, LabScenario, LabSettings,
    error::LabError,
    run_report::{self, backends},
};
use crate::{
    files::read_at_most,
    nearest::nearest,
    packet::gain_namespace_rights,
    report::{self, RunReport},
};
use anyhow::Context;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
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

/// Length from which on a scenario runs beside the others instead of before and after them. Most of
/// that time it needs little of the processor.
pub(super) const LONG: Duration = Duration::from_secs(300);

/// Exit code of a run that a signal ended, as shells have it for Ctrl-C.
const INTERRUPTED: u8 = 130;
/// Longest scenario file, in bytes. Shipped ones have less than a thousandth.
const LONGEST_FILE: u64 = 1 << 20;

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
    /// Run each scenario on both backends with one seed, and compare verdicts and propagation
    #[arg(long, conflicts_with = "backend")]
    both_backends: bool,
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
        check_reports(&scenarios)?;
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
        if self.both_backends {
            // Any scenario of the packet backend can run on the other one too.
            scenario.backend = LabBackend::Packet;
        }
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
        let (long, short): (Vec<_>, Vec<_>) = scenarios
            .iter()
            .partition(|it| it.length >= LONG && scenarios.len() > 1);
        let quiet = LabSettings {
            progress: false,
            ..settings.clone()
        };
        let beside = long.iter().map(|scenario| {
            let (name, length) = (&scenario.name, scenario.length.as_secs());
            println!("{name}: {length} s, beside the others");
            self.run_in_turn(std::slice::from_ref(scenario), &quiet, &interrupt)
        });
        let beside = futures::future::try_join_all(beside);
        let in_turn = self.run_in_turn(&short, settings, &interrupt);
        let (beside, in_turn) = tokio::try_join!(beside, in_turn)?;
        let failed: Option<Vec<Vec<String>>> = beside.into_iter().chain([in_turn]).collect();
        let Some(failed) = failed.map(|it| it.concat()) else {
            println!("interrupted");
            return Ok(interrupted());
        };
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

    /// Runs one scenario after the other. Returns those that failed, with their seeds; `None` if a
    /// signal ended a run.
    async fn run_in_turn(
        &self,
        scenarios: &[&LabScenario],
        settings: &LabSettings,
        interrupt: &CancellationToken,
    ) -> anyhow::Result<Option<Vec<String>>> {
        let mut failed = Vec::new();
        for scenario in scenarios {
            let seed = self.seed.unwrap_or_else(rand::random);
            let passed = if self.both_backends {
                self.run_both(scenario, settings, seed, interrupt).await?
            } else {
                self.run_one(scenario, settings, seed, interrupt).await?
            };
            match passed {
                Some(true) => {}
                Some(false) => failed.push(format!("{} (seed {seed})", scenario.name)),
                None => return Ok(None),
            }
        }
        Ok(Some(failed))
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
        let begun = Instant::now();
        let report = network_report(scenario, settings, seed, interrupt).await;
        match report {
            Some(report) => self.finish(&report, &scenario.name, begun).map(Some),
            None => Ok(None),
        }
    }

    /// Runs a scenario on both backends, like [`Self::run_one`]. The report of the packet backend has
    /// the comparison.
    async fn run_both(
        &self,
        scenario: &LabScenario,
        settings: &LabSettings,
        seed: u64,
        interrupt: &CancellationToken,
    ) -> anyhow::Result<Option<bool>> {
        let mut passed = true;
        let mut on_stream: Option<RunReport> = None;
        for backend in [LabBackend::Stream, LabBackend::Packet] {
            let mut scenario = scenario.clone();
            scenario.backend = backend;
            scenario.name = format!("{}-{backend}", scenario.name);
            let begun = Instant::now();
            let report = network_report(&scenario, settings, seed, interrupt).await;
            let Some(mut report) = report else {
                return Ok(None);
            };
            if let Some(stream) = &on_stream {
                backends::compare(stream, &mut report);
                println!("{}", backends::summary(&report));
            }
            passed &= self.finish(&report, &scenario.name, begun)?;
            on_stream = Some(report);
        }
        Ok(Some(passed))
    }

    /// Writes the report of a run, prints its verdict, and returns whether it passed.
    fn finish(&self, report: &RunReport, name: &str, begun: Instant) -> anyhow::Result<bool> {
        let [_, page] = report::write(report, &self.out, name)?;
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
        Ok(passed)
    }
}

/// Runs a scenario, and prints its purpose and its checks: both at the end if it prints no progress,
/// since another scenario may print its own meanwhile. `None` if a signal ended the run.
async fn network_report(
    scenario: &LabScenario,
    settings: &LabSettings,
    seed: u64,
    interrupt: &CancellationToken,
) -> Option<RunReport> {
    let note = unmixed(scenario, settings);
    let title = format!("{}: {} (seed {seed})", scenario.name, scenario.purpose);
    let title = match note {
        Some(note) => format!("{title}\n  {note}"),
        None => title,
    };
    if settings.progress {
        println!("{title}");
    }
    let title = (!settings.progress).then_some(title);
    let print = |text: String| {
        let lines = title.iter().cloned().chain([text]);
        println!("{}", lines.collect::<Vec<String>>().join("\n"));
    };
    match super::run(scenario, settings, seed, interrupt).await {
        Ok(mut report) => {
            let note = note.map(|note| ("upgrade-to".to_owned(), note.to_owned()));
            report.settings.extend(note);
            print(report.summary());
            Some(report.to_run_report())
        }
        Err(LabError::Interrupted) => None,
        // The network did not start. That is this scenario's result; the others still run.
        Err(error) => {
            print(format!("  FAIL {error}"));
            Some(run_report::not_started(scenario, seed, &error))
        }
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

/// Refuses scenarios of one name: the report and the logs of the later run would overwrite the
/// earlier ones.
fn check_reports(scenarios: &[LabScenario]) -> anyhow::Result<()> {
    let mut names = BTreeSet::new();
    let repeated = scenarios.iter().find(|it| !names.insert(&it.name));
    if let Some(LabScenario { name, .. }) = repeated {
        anyhow::bail!(
            "two scenarios are called `{name}`, and their reports would have one file; rename one"
        );
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<LabScenario> {
    let is_named = |(name, _): &&(&str, &str)| path == Path::new(name);
    if let Some((name, text)) = SHIPPED.iter().find(is_named) {
        return Ok(LabScenario::parse(name, text)?);
    }
    let shown = path.display();
    let bytes = read_at_most(path, LONGEST_FILE).with_context(|| {
        let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
        let near = nearest(&path.to_string_lossy(), names);
        format!("{shown} is neither a file nor a scenario{near}")
    })?;
    let bytes =
        bytes.with_context(|| format!("{shown} is longer than 1 MiB, so it is no scenario"))?;
    let text = String::from_utf8(bytes)
        .with_context(|| format!("{shown} is no text, so it is no scenario"))?;
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
    fn a_file_that_is_no_scenario_is_not_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let [long, bytes] = ["long.toml", "bytes.toml"].map(|name| folder.path().join(name));
        fs::write(&long, vec![b'#'; LONGEST_FILE as usize + 1]).unwrap();
        fs::write(&bytes, b"\xff").unwrap();
        for (path, expected) in [
            (long.as_path(), "is longer than 1 MiB, so it is no scenario"),
            (bytes.as_path(), "is no text, so it is no scenario"),
            (
                Path::new("/dev/zero"),
                "is longer than 1 MiB, so it is no scenario",
            ),
        ] {
            let error = read(path).unwrap_err().to_string();
            assert_eq!(error, format!("{} {expected}", path.display()));
        }
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
