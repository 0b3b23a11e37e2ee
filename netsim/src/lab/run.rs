//! A run: starts the network, applies the plan, watches, and ends with a report. The controller
//! acts on one thread; tasks read heads and send transactions.

use super::{
    checks::{self, LabEvidence, NodeEvidence},
    error::LabError,
    guard::LabGuard,
    load::{self, SharedLoad},
    logs::LogFindings,
    network::{LabNetwork, LabNode},
    outcome,
    plan::{LabAction, LabChange, LabPlan, LinkChange, NodeChange},
    report::{FORMAT, FaultReport, LabReport, LabVersions, LoadReport, UsagePoint, millis},
    scenario::{LabScenario, LabStep, LabVerb},
    topology::{L1_INDEX, LabRole, LabTopology, SEQUENCER_INDEX},
    usage,
    watch::{self, HeadTrack, HeadTracks},
};
use parking_lot::Mutex;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

/// Interval at which processes are checked and due changes are made.
const TICK: Duration = Duration::from_millis(50);
/// Interval between two readings of memory and processor time.
const USAGE: Duration = Duration::from_secs(1);
/// Interval between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(2);

/// Programs and places of a run.
#[derive(Clone, Debug)]
pub struct LabSettings {
    /// The `starling` program.
    pub program: PathBuf,
    /// The program of the verb `upgrade`.
    pub upgrade: PathBuf,
    /// The `netsim` program, which guards the run.
    pub netsim: PathBuf,
    /// Folder for the logs of a run that fails; `None` to drop them.
    pub logs: Option<PathBuf>,
    /// Whether to print a line about the heads every two seconds.
    pub progress: bool,
}

/// Runs a scenario. A fault of a node is in the report; an error means that there was no run.
pub async fn run(
    scenario: &LabScenario,
    settings: &LabSettings,
    seed: u64,
    interrupt: &CancellationToken,
) -> Result<LabReport, LabError> {
    scenario.check().map_err(|error| LabError::Scenario {
        name: scenario.name.clone(),
        error,
    })?;
    let folder = tempfile::Builder::new().prefix("netsim-").tempdir();
    let folder = folder.map_err(LabError::io(std::env::temp_dir()))?;
    // Dropped before the folder: it ends what the run has not ended itself.
    let _guard = LabGuard::start(&settings.netsim, folder.path())?;
    tokio::select! {
        report = whole(scenario, settings, seed, folder.path()) => report,
        () = interrupt.cancelled() => Err(LabError::Interrupted),
    }
}

async fn whole(
    scenario: &LabScenario,
    settings: &LabSettings,
    seed: u64,
    folder: &Path,
) -> Result<LabReport, LabError> {
    let topology = LabTopology::new(scenario);
    let plan = LabPlan::new(scenario, &topology, seed);
    let network = LabNetwork::create(folder, &settings.program, scenario, topology, seed).await?;
    let mut run = RunningLab::start(scenario, settings, network, plan).await?;
    let failure = run.follow_plan().await.err();
    let verified = run.end(failure.is_some()).await;
    let report = run.report(seed, failure, verified);
    if let Some(logs) = settings.logs.as_ref().filter(|_| !report.passed) {
        copy_logs(folder, &logs.join(&scenario.name))?;
    }
    Ok(report)
}

/// A network that runs.
struct RunningLab<'a> {
    scenario: &'a LabScenario,
    settings: &'a LabSettings,
    network: LabNetwork,
    plan: LabPlan,
    tracks: HeadTracks,
    load: SharedLoad,
    tasks: JoinSet<()>,
    start: Instant,
    started: SystemTime,
    faults: Vec<FaultReport>,
    usage: Vec<Vec<UsagePoint>>,
    /// Whether every stop of the node ended in time.
    stops: Vec<bool>,
    /// Whether the node ran at the end.
    is_up: Vec<bool>,
    /// Time of the end, before the nodes were stopped.
    end: Duration,
}

impl<'a> RunningLab<'a> {
    /// Starts the nodes: first the L1, then the L2 nodes, then batcher and proposer. The clock
    /// starts when all of them respond.
    async fn start(
        scenario: &'a LabScenario,
        settings: &'a LabSettings,
        mut network: LabNetwork,
        plan: LabPlan,
    ) -> Result<Self, LabError> {
        let count = network.nodes.len();
        for node in 0..count {
            network.nodes[node].process.initialise().await?;
        }
        let at_start =
            |node: usize, network: &LabNetwork| network.topology.nodes[node].start.is_zero();
        network.nodes[L1_INDEX].process.start()?;
        network.responds(L1_INDEX).await?;
        for is_poster in [false, true] {
            let group: Vec<usize> = (SEQUENCER_INDEX..count)
                .filter(|node| network.nodes[*node].role.is_l2() != is_poster)
                .filter(|node| at_start(*node, &network))
                .collect();
            for node in &group {
                network.nodes[*node].process.start()?;
            }
            for node in &group {
                network.responds(*node).await?;
            }
        }
        let tracks = (0..count)
            .map(|_| Mutex::new(HeadTrack::default()))
            .collect();
        let mut run = Self {
            scenario,
            settings,
            tracks: Arc::new(tracks),
            load: SharedLoad::default(),
            tasks: JoinSet::new(),
            start: Instant::now(),
            started: SystemTime::now(),
            faults: Vec::new(),
            usage: vec![Vec::new(); count],
            stops: vec![true; count],
            is_up: vec![false; count],
            end: Duration::ZERO,
            network,
            plan,
        };
        run.spawn_tasks();
        Ok(run)
    }

    fn spawn_tasks(&mut self) {
        for (index, node) in self.network.nodes.iter().enumerate() {
            if let Some(http) = node.http.filter(|_| node.role.is_l2()) {
                self.tasks
                    .spawn(watch::follow(self.tracks.clone(), index, http, self.start));
            }
        }
        self.load.lock().rate = self.scenario.load;
        if let Some(http) = self.network.nodes[SEQUENCER_INDEX].http {
            let (chain, keys) = (self.network.chain, self.network.keys.clone());
            self.tasks
                .spawn(load::send(self.load.clone(), http, chain, keys));
        }
    }

    /// Makes all changes of the plan at their times, until the end of the scenario.
    async fn follow_plan(&mut self) -> Result<(), LabError> {
        let actions = std::mem::take(&mut self.plan.actions);
        let mut actions = actions.iter().peekable();
        let (mut next_usage, mut next_progress) = (Duration::ZERO, PROGRESS);
        while self.start.elapsed() < self.scenario.length {
            while let Some(action) = actions.next_if(|action| action.at <= self.start.elapsed()) {
                self.apply(action).await?;
            }
            for node in &mut self.network.nodes {
                node.process.check()?;
            }
            let now = self.start.elapsed();
            if now >= next_usage {
                self.measure(now);
                next_usage = now + USAGE;
            }
            if now >= next_progress {
                self.print_heads(now);
                next_progress = now + PROGRESS;
            }
            sleep(TICK).await;
        }
        Ok(())
    }

    async fn apply(&mut self, action: &LabAction) -> Result<(), LabError> {
        let at_ms = millis(self.start.elapsed());
        let (mut nodes, mut links) = (Vec::new(), Vec::new());
        let text = match &action.change {
            LabChange::Links(changes) => {
                for (link, change) in changes {
                    self.network.change(*link, *change)?;
                }
                links.extend(changes.iter().map(|(link, _)| *link));
                self.describe_links(action.verb, changes)
            }
            LabChange::Node(node, change) => {
                self.change_node(*node, *change).await?;
                nodes.push(*node);
                format!(
                    "{} {}",
                    word(*change),
                    self.network.nodes[*node].process.name
                )
            }
            LabChange::Load(rate) => {
                self.load.lock().rate = *rate;
                format!("load of {rate} transactions a second")
            }
        };
        let done_ms = millis(self.start.elapsed());
        if self.settings.progress {
            println!("  {:6.1} s  {text}", at_ms as f64 / 1e3);
        }
        self.faults.push(FaultReport {
            at_ms,
            done_ms,
            verb: action.verb.to_owned(),
            nodes,
            links,
            text,
        });
        Ok(())
    }

    fn describe_links(&self, verb: &str, changes: &[(usize, LinkChange)]) -> String {
        let word = match changes.first() {
            Some((_, LinkChange::Cut(false))) => "flap ends on",
            Some((_, LinkChange::Loss(loss))) => &format!("lossy {loss}"),
            _ => verb,
        };
        if changes.len() == self.network.links.len() {
            return format!("{word} all links");
        }
        let ends = changes
            .iter()
            .map(|(link, _)| self.network.topology.ends(*link).join("-"));
        format!("{word} {}", ends.collect::<Vec<_>>().join(" "))
    }

    async fn change_node(&mut self, node: usize, change: NodeChange) -> Result<(), LabError> {
        let process = &mut self.network.nodes[node].process;
        let was_running = process.is_running();
        match change {
            NodeChange::Start => process.start()?,
            NodeChange::Kill => process.kill().await,
            NodeChange::Stop => self.stops[node] &= process.stop().await,
            NodeChange::Freeze => process.freeze(true),
            NodeChange::Thaw => process.freeze(false),
            NodeChange::Wipe => process.initialise().await?,
            NodeChange::Restart | NodeChange::Upgrade => {
                if was_running {
                    self.stops[node] &= process.stop().await;
                }
                if change == NodeChange::Upgrade {
                    process.program.clone_from(&self.settings.upgrade);
                }
                process.start()?;
                // In a rolling restart, the next node stops once this one responds.
                if was_running {
                    self.network.responds(node).await?;
                }
            }
        }
        Ok(())
    }

    fn measure(&mut self, now: Duration) {
        for (node, usage) in self.network.nodes.iter().zip(&mut self.usage) {
            let point = node
                .process
                .pid()
                .and_then(|pid| usage::read(pid, millis(now)));
            usage.extend(point);
        }
    }

    fn print_heads(&self, now: Duration) {
        if !self.settings.progress {
            return;
        }
        let mut words = Vec::new();
        for (node, track) in self.network.nodes.iter().zip(self.tracks.iter()) {
            if !node.role.is_l2() {
                continue;
            }
            let name = &node.process.name;
            let head = track
                .lock()
                .head()
                .map_or("-".to_owned(), |head| head.number.to_string());
            words.push(format!("{name} {head}"));
        }
        println!("  {:6.1} s  heads: {}", now.as_secs_f64(), words.join("  "));
    }

    /// Ends the run. Returns for each node what `starling db verify` said.
    async fn end(&mut self, has_failed: bool) -> Vec<Option<Result<(), String>>> {
        self.end = self.start.elapsed();
        self.measure(self.end);
        self.tasks.shutdown().await;
        let nodes = &mut self.network.nodes;
        for (is_up, node) in self.is_up.iter_mut().zip(nodes.iter()) {
            *is_up = node.process.is_running() && !node.process.is_frozen;
        }
        // Nodes that another one needs in order to stop come later.
        for role in [
            LabRole::Batcher,
            LabRole::Proposer,
            LabRole::Replica,
            LabRole::Sequencer,
            LabRole::L1,
        ] {
            let is_of_role = |node: &&mut LabNode| node.role == role;
            for node in nodes.iter_mut().filter(is_of_role) {
                node.process.interrupt();
            }
            for (node, in_time) in nodes.iter_mut().zip(&mut self.stops) {
                if node.role == role && has_failed {
                    node.process.kill().await;
                } else if node.role == role {
                    *in_time &= node.process.wait_or_kill().await;
                }
            }
        }
        let mut verified = Vec::new();
        for node in nodes.iter().filter(|_| !has_failed) {
            let is_stored = node.role.has_chain() && node.process.starts > 0;
            let verdict = if is_stored {
                Some(node.process.verify().await)
            } else {
                None
            };
            verified.push(verdict);
        }
        verified.resize(nodes.len(), None);
        verified
    }

    /// Time at which the last fault was complete: a restart of many nodes takes longer than planned.
    fn last_fault_end(&self) -> Duration {
        let faults = self.faults.iter().filter(|fault| fault.verb != "load");
        let ends = faults.map(|fault| Duration::from_millis(fault.done_ms));
        ends.fold(self.plan.calm, Duration::max)
    }

    fn report(
        self,
        seed: u64,
        failure: Option<LabError>,
        verified: Vec<Option<Result<(), String>>>,
    ) -> LabReport {
        let logs = self
            .network
            .nodes
            .iter()
            .map(|node| node.process.findings());
        let logs: Vec<LogFindings> = logs.collect();
        let evidence = self.evidence(&logs, verified);
        // A network that broke off early has not had the time that the checks give it.
        let checks = match &failure {
            None => checks::check(&evidence),
            Some(_) => Vec::new(),
        };
        let has_upgrade = |step: &LabStep| matches!(step.verb, LabVerb::Upgrade(_));
        let upgrade = self.scenario.steps.iter().any(has_upgrade);
        let upgrade = upgrade.then(|| version(&self.settings.upgrade));
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let load = *self.load.lock();
        LabReport {
            format: FORMAT,
            layer: "lab".to_owned(),
            scenario: self.scenario.name.clone(),
            purpose: self.scenario.purpose.clone(),
            seed,
            backend: self.network.backend.clone(),
            versions: LabVersions {
                netsim: env!("CARGO_PKG_VERSION").to_owned(),
                starling: version(&self.settings.program),
                upgrade,
            },
            block_time: self.scenario.block_time,
            l1_block_time: self.scenario.l1_block_time,
            started_unix_ms: millis(started),
            length_ms: millis(self.end),
            calm_ms: millis(self.last_fault_end()),
            passed: failure.is_none() && checks.iter().all(|check| check.passed),
            failure: failure.map(|error| error.to_string()),
            checks,
            nodes: outcome::nodes(&self.network, &evidence, &self.usage, started),
            links: outcome::links(&self.network),
            faults: self.faults,
            blocks: outcome::blocks(&evidence, started),
            transactions: LoadReport {
                sent: load.sent,
                accepted: load.accepted,
            },
        }
    }

    fn evidence(
        &self,
        logs: &[LogFindings],
        verified: Vec<Option<Result<(), String>>>,
    ) -> LabEvidence {
        let nodes = self
            .network
            .nodes
            .iter()
            .zip(logs)
            .zip(verified)
            .enumerate();
        let nodes = nodes.map(|(index, ((node, findings), verified))| NodeEvidence {
            name: node.process.name.clone(),
            role: node.role,
            is_up: self.is_up[index],
            track: self.tracks[index].lock().clone(),
            findings: outcome::named(&self.network, findings.clone()),
            peak_kb: self.usage[index]
                .iter()
                .map(|point| point.rss_kb)
                .max()
                .unwrap_or(0),
            verified,
            stops_in_time: self.stops[index],
        });
        LabEvidence {
            calm: self.last_fault_end(),
            end: self.end,
            block_time: Duration::from_secs(self.scenario.block_time),
            allow: self.scenario.allow.clone(),
            nodes: nodes.collect(),
        }
    }
}

fn word(change: NodeChange) -> &'static str {
    match change {
        NodeChange::Start => "start",
        NodeChange::Kill => "kill",
        NodeChange::Stop => "stop",
        NodeChange::Freeze => "freeze",
        NodeChange::Thaw => "thaw",
        NodeChange::Restart => "restart",
        NodeChange::Wipe => "wipe",
        NodeChange::Upgrade => "upgrade",
    }
}

/// The version that a program prints; empty if it prints none.
fn version(program: &Path) -> String {
    let output = std::process::Command::new(program)
        .arg("--version")
        .output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&text).trim().to_owned()
}

fn copy_logs(folder: &Path, to: &Path) -> Result<(), LabError> {
    fs::create_dir_all(to).map_err(LabError::io(to))?;
    let entries = fs::read_dir(folder).map_err(LabError::io(folder))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if let Some(name) = path
            .file_name()
            .filter(|_| path.extension().is_some_and(|it| it == "log"))
        {
            fs::copy(&path, to.join(name)).map_err(LabError::io(&path))?;
        }
    }
    Ok(())
}
