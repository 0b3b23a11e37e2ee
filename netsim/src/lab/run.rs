//! A run: starts the network, applies the plan, watches, and ends with a report. The controller
//! acts on one thread; tasks read heads and send transactions.

mod ending;
mod verbs;
mod versions;

use super::{
    clocks::{self, SharedReadings},
    counters::{self, SharedCounters},
    error::LabError,
    hostile::{
        self, LedgerTimes,
        evidence::{HostileReport, MachineStall},
    },
    load::{self, SharedLoad},
    network::{LabFolder, LabNetwork, LabNode},
    other_chain,
    plan::{LabAction, LabChange, LabPlan, LinkChange, NodeChange},
    process::ProcessEnd,
    report::{CpuPoint, FaultReport, LabReport, LabVersions, UsagePoint, millis},
    rpc::{self, LabBlock},
    scenario::LabScenario,
    topology::{L1_INDEX, LabRole, LabTopology, SEQUENCER_INDEX},
    usage,
    watch::{self, HeadTracks},
};
use crate::guard::{self, RunGuard};
use parking_lot::Mutex;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

/// Interval at which processes are checked and due changes are made.
const TICK: Duration = Duration::from_millis(50);
/// Delay of a tick from which on the machine, not the network, delays blocks: the nodes share it with
/// the controller.
const STALL: Duration = Duration::from_millis(200);
/// Nodes that start at once. A node that has no response of L1 within 10 s ends, and on two
/// processors 64 nodes that start at once take longer than that.
const BATCH: usize = 16;
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
    let folder = tempfile::Builder::new().prefix(guard::PREFIX).tempdir();
    let folder = folder.map_err(LabError::io(std::env::temp_dir()))?;
    // Dropped before the folder: it ends what the run has not ended itself.
    let guard = RunGuard::start(&settings.netsim, folder.path());
    let _guard = guard.map_err(|error| LabError::Start {
        name: "the guard".to_owned(),
        program: settings.netsim.clone(),
        error,
    })?;
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
    let versions = versions::read(scenario, settings, folder).await?;
    let report = followed(scenario, settings, &versions, seed, folder).await;
    let has_passed = report.as_ref().is_ok_and(|report| report.passed);
    if let Some(logs) = settings.logs.as_ref().filter(|_| !has_passed) {
        // The verdict matters more than the logs.
        if let Err(error) = copy_logs(folder, &logs.join(&scenario.name)) {
            println!("  the logs of {} are not kept: {error}", scenario.name);
        }
    }
    report
}

/// Starts the network, and the other one if the scenario has two, and follows the plan.
async fn followed(
    scenario: &LabScenario,
    settings: &LabSettings,
    versions: &LabVersions,
    seed: u64,
    folder: &Path,
) -> Result<LabReport, LabError> {
    let topology = LabTopology::new(scenario);
    let plan = LabPlan::new(scenario, &topology, seed);
    let lab_folder = LabFolder {
        path: folder,
        prefix: "",
        taken: &BTreeSet::new(),
    };
    let (program, netsim) = (&settings.program, &settings.netsim);
    let mut network =
        LabNetwork::create(lab_folder, program, netsim, scenario, topology, seed).await?;
    let Some(second) = other_chain::scenario(scenario) else {
        let mut run = RunningLab::new(scenario, settings, versions, network, plan);
        run.start().await?;
        run.begin();
        let failure = run.follow_plan().await.err();
        return Ok(run.finish(seed, failure).await);
    };
    let other = other_chain::create(folder, [program, netsim], &second, &mut network).await?;
    let quiet = LabPlan::new(&second, &other.topology, seed);
    let mut run = RunningLab::new(scenario, settings, versions, network, plan);
    let mut other = RunningLab::new(&second, settings, versions, other, quiet);
    run.start().await?;
    other.start().await?;
    // Both clocks start when all nodes of both networks respond.
    run.begin();
    other.begin();
    let failure = tokio::try_join!(run.follow_plan(), other.follow_plan()).err();
    let interrupted = failure.is_some().then_some(LabError::Interrupted);
    let report = run.finish(seed, failure).await;
    Ok(other_chain::joined(
        report,
        other.finish(seed, interrupted).await,
    ))
}

/// A reorg of L1 that the run made.
struct MadeReorg {
    /// Time at which the first block of the new branch was there, in microseconds since 1970.
    at: u64,
    /// Number of the last block on both branches.
    fork: u64,
    /// Number of the head of the branch that was replaced.
    head: u64,
}

/// A network that runs.
struct RunningLab<'a> {
    scenario: &'a LabScenario,
    settings: &'a LabSettings,
    versions: &'a LabVersions,
    network: LabNetwork,
    plan: LabPlan,
    tracks: HeadTracks,
    counters: SharedCounters,
    load: SharedLoad,
    tasks: JoinSet<()>,
    start: Instant,
    started: SystemTime,
    faults: Vec<FaultReport>,
    usage: Vec<Vec<UsagePoint>>,
    /// Usage of this process, with the links.
    own_usage: Vec<UsagePoint>,
    link_usage: Vec<CpuPoint>,
    clocks: SharedReadings,
    reorgs: Vec<MadeReorg>,
    /// Highest safe head before a reorg of L1, or after the last fault.
    safe_floor: u64,
    /// Safe heads at the end.
    safe: Vec<Option<LabBlock>>,
    /// Times at which the controller was not scheduled.
    stalls: Vec<MachineStall>,
    /// The first end of the node after SIGINT that was no success.
    stops: Vec<ProcessEnd>,
    /// Whether the node ran at the end.
    is_up: Vec<bool>,
    /// Entries about hostile peers in the ledgers of honest nodes at the end.
    hostile: Vec<HostileReport>,
    /// Time of the end, before the nodes were stopped.
    end: Duration,
}

impl<'a> RunningLab<'a> {
    /// A network whose nodes do not run yet.
    fn new(
        scenario: &'a LabScenario,
        settings: &'a LabSettings,
        versions: &'a LabVersions,
        network: LabNetwork,
        plan: LabPlan,
    ) -> Self {
        let count = network.nodes.len();
        Self {
            scenario,
            settings,
            versions,
            tracks: Arc::new((0..count).map(|_| Mutex::default()).collect()),
            counters: Arc::new((0..count).map(|_| Mutex::default()).collect()),
            load: SharedLoad::default(),
            tasks: JoinSet::new(),
            start: Instant::now(),
            started: SystemTime::now(),
            faults: Vec::new(),
            usage: vec![Vec::new(); count],
            own_usage: Vec::new(),
            link_usage: Vec::new(),
            clocks: SharedReadings::default(),
            reorgs: Vec::new(),
            safe_floor: 0,
            safe: vec![None; count],
            stalls: Vec::new(),
            stops: vec![ProcessEnd::Success; count],
            is_up: vec![false; count],
            hostile: Vec::new(),
            end: Duration::ZERO,
            network,
            plan,
        }
    }

    /// Starts the nodes: first the L1, then the L2 nodes, then batcher and proposer. All of them
    /// respond when it returns.
    async fn start(&mut self) -> Result<(), LabError> {
        let network = &mut self.network;
        let count = network.nodes.len();
        for node in 0..count {
            network.nodes[node].process.initialise().await?;
        }
        network.nodes[L1_INDEX].process.start()?;
        network.responds(L1_INDEX).await?;
        for is_poster in [false, true] {
            let group: Vec<usize> = (SEQUENCER_INDEX..count)
                .filter(|node| network.nodes[*node].role.is_l2() != is_poster)
                .filter(|node| network.topology.nodes[*node].start.is_zero())
                .collect();
            for batch in group.chunks(BATCH) {
                for node in batch {
                    network.nodes[*node].process.start()?;
                }
                for node in batch {
                    network.responds(*node).await?;
                }
            }
        }
        Ok(())
    }

    /// Starts the clock, and the tasks that read from the nodes and send transactions.
    fn begin(&mut self) {
        self.start = Instant::now();
        self.started = SystemTime::now();
        self.spawn_tasks();
    }

    fn spawn_tasks(&mut self) {
        for (index, node) in self.network.nodes.iter().enumerate() {
            if let Some(http) = node.http.filter(|_| node.role.is_l2()) {
                self.tasks
                    .spawn(watch::follow(self.tracks.clone(), index, http, self.start));
            }
            if let Some(metrics) = node.metrics.filter(|_| node.role.is_l2()) {
                let counters = self.counters.clone();
                self.tasks
                    .spawn(counters::follow(counters, index, metrics, self.start));
            }
        }
        let nodes = self.network.nodes.iter();
        let pids = nodes.map(|node| node.process.pid());
        let pids = pids.chain([Some(std::process::id())]).collect();
        self.tasks
            .spawn(clocks::follow(self.clocks.clone(), pids, self.start));
        self.load.lock().rate = self.scenario.load;
        if let Some(http) = self.network.nodes[SEQUENCER_INDEX].http {
            let (chain_id, keys) = (self.network.chain_id, self.network.keys.clone());
            self.tasks
                .spawn(load::send(self.load.clone(), http, chain_id, keys));
        }
    }

    fn planned_end(&self) -> Duration {
        end_of_run(self.scenario, self.last_fault_end())
    }

    /// Makes all changes of the plan at their times, until the end of the run.
    async fn follow_plan(&mut self) -> Result<(), LabError> {
        let actions = std::mem::take(&mut self.plan.actions);
        let mut actions = actions.iter().peekable();
        let (mut next_usage, mut next_progress) = (Duration::ZERO, PROGRESS);
        let mut has_floor = !self.scenario.batcher;
        while actions.peek().is_some() || self.start.elapsed() < self.planned_end() {
            while let Some(action) = actions.next_if(|action| action.at <= self.start.elapsed()) {
                if let Err(error) = self.apply(action).await {
                    // The change may have failed because a node has died, which then is the cause.
                    self.check_processes()?;
                    return Err(error);
                }
            }
            self.check_processes()?;
            if !has_floor && are_faults_over(actions.clone()) {
                has_floor = self.raise_safe_floor().await;
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
            let from = self.start.elapsed();
            sleep(TICK).await;
            let to = self.start.elapsed();
            if to - from > TICK + STALL {
                self.stalls.push(MachineStall {
                    from_ms: millis(from),
                    to_ms: millis(to),
                });
            }
        }
        Ok(())
    }

    /// Reads the safe head that all nodes must have passed at the end. Returns whether the sequencer
    /// has one.
    async fn raise_safe_floor(&mut self) -> bool {
        let Some(http) = self.network.nodes[SEQUENCER_INDEX].http else {
            return true;
        };
        let Some(safe) = rpc::tagged(http, "safe").await else {
            return false;
        };
        self.safe_floor = self.safe_floor.max(safe.number);
        true
    }

    /// Returns an error if a node has ended without a request, or links no longer work.
    fn check_processes(&mut self) -> Result<(), LabError> {
        self.network.links.check()?;
        let mut nodes = self.network.nodes.iter_mut();
        nodes.try_for_each(|node| node.process.check())
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
            ends_fault: action.change.ends_fault(),
            text,
        });
        Ok(())
    }

    fn describe_links(&self, verb: &str, changes: &[(usize, LinkChange)]) -> String {
        let word = match changes.first() {
            Some((_, LinkChange::Refuse(false))) => "flap ends on",
            Some((_, LinkChange::Loss(loss))) => &format!("lossy {loss}"),
            _ => verb,
        };
        if changes.len() == self.network.topology.links.len() {
            return format!("{word} all links");
        }
        let ends = changes
            .iter()
            .map(|(link, _)| self.network.topology.ends(*link).join("-"));
        format!("{word} {}", ends.collect::<Vec<_>>().join(" "))
    }

    async fn change_node(&mut self, node: usize, change: NodeChange) -> Result<(), LabError> {
        let process = &mut self.network.nodes[node].process;
        // The node may have ended by itself since the last check. A stop would hide that.
        process.check()?;
        let was_running = process.is_running();
        match change {
            NodeChange::Start => process.start()?,
            NodeChange::Kill => process.kill().await,
            NodeChange::Stop => self.stops[node].add(process.stop().await),
            NodeChange::Freeze => process.freeze(true),
            NodeChange::Thaw => process.freeze(false),
            NodeChange::Wipe => process.initialise().await?,
            NodeChange::FillDisk => self.change_disk(node, true).await?,
            NodeChange::FreeDisk => self.change_disk(node, false).await?,
            NodeChange::Move => self.move_node(node).await?,
            NodeChange::NewKey => self.change_key(node).await?,
            NodeChange::SnapshotL1 => self.snapshot_l1(node).await?,
            NodeChange::RestoreL1 => self.restore_l1(node).await?,
            NodeChange::Restart | NodeChange::Upgrade | NodeChange::Promote => {
                if was_running {
                    self.stops[node].add(process.stop().await);
                }
                if change == NodeChange::Upgrade {
                    process.program.clone_from(&self.settings.upgrade);
                } else if change == NodeChange::Promote {
                    self.network.promote(node);
                }
                self.network.nodes[node].process.start()?;
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
        self.own_usage
            .extend(usage::read(std::process::id(), millis(now)));
        self.link_usage.push(CpuPoint {
            at_ms: millis(now),
            cpu_ms: millis(self.network.link_threads.used()),
        });
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

    /// Ends the run. `failure` is the error that ended it early.
    async fn finish(mut self, seed: u64, failure: Option<LabError>) -> LabReport {
        self.end = self.start.elapsed();
        self.measure(self.end);
        // A node that died while it was read from has ended the run too.
        let failure = match failure {
            Some(failure) => Some(failure),
            None => self.read_running().await.err(),
        };
        let verified = self.end(failure.is_some()).await;
        self.report(seed, failure, verified)
    }

    /// Reads the evidence that only running nodes have: the ledgers about hostile peers, and the safe
    /// heads. Returns an error if a node has ended meanwhile.
    async fn read_running(&mut self) -> Result<(), LabError> {
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let times = LedgerTimes {
            started: millis(started),
            end: millis(self.end),
            faults: &self.faults,
        };
        self.hostile = hostile::read_ledgers(&self.network, self.scenario, &times).await;
        for (node, safe) in self.network.nodes.iter().zip(&mut self.safe) {
            let is_up = node.process.is_running() && !node.process.is_frozen;
            let is_read = is_up && node.role.is_l2() && self.scenario.batcher;
            if let Some(http) = node.http.filter(|_| is_read) {
                let read = || rpc::tagged(http, "safe");
                *safe = rpc::read_until_some(rpc::VERDICT_LIMIT, read).await;
            }
        }
        self.check_processes()
    }

    /// Stops all nodes. Returns for each node what `starling db verify` said.
    async fn end(&mut self, has_failed: bool) -> Vec<Option<Result<(), String>>> {
        self.tasks.shutdown().await;
        let nodes = &mut self.network.nodes;
        for (is_up, node) in self.is_up.iter_mut().zip(nodes.iter()) {
            *is_up = node.process.is_running() && !node.process.is_frozen;
        }
        // Nodes that another one needs in order to stop come later.
        for role in [
            LabRole::Hostile,
            LabRole::Batcher,
            LabRole::Proposer,
            LabRole::Replica,
            LabRole::Bootnode,
            LabRole::Sequencer,
            LabRole::L1,
        ] {
            let is_of_role = |node: &&mut LabNode| node.role == role;
            for node in nodes.iter_mut().filter(is_of_role) {
                node.process.interrupt();
            }
            for (node, end) in nodes.iter_mut().zip(&mut self.stops) {
                if node.role == role && has_failed {
                    node.process.kill().await;
                } else if node.role == role {
                    end.add(node.process.wait_or_kill().await);
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
}

/// Time at which a run ends: at the end of the scenario, or later if the last fault took so long
/// that the nodes would not have their time to agree, and the batcher its time to post.
fn end_of_run(scenario: &LabScenario, last_fault: Duration) -> Duration {
    scenario
        .length
        .max(last_fault + scenario.time_after_faults())
}

/// Whether only changes of the load are left.
fn are_faults_over<'a>(mut left: impl Iterator<Item = &'a LabAction>) -> bool {
    left.all(|action| matches!(action.change, LabChange::Load(_)))
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
        NodeChange::FillDisk => "fill-disk",
        NodeChange::FreeDisk => "free the disk of",
        NodeChange::Move => "move",
        NodeChange::NewKey => "new-key",
        NodeChange::SnapshotL1 => "snapshot",
        NodeChange::RestoreL1 => "reorg",
        NodeChange::Promote => "promote",
    }
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

#[cfg(test)]
mod tests;
