//! A scenario: nodes, links, faults with their times, and what the checks allow. It is read from a
//! TOML file by [`super::file`], or built in Rust:
//!
//! ```text
//! LabScenario::new("split", "Two halves of a network find each other again.")
//!     .replicas(["a", "b", "c"])
//!     .rung("lan")
//!     .at(10, LabVerb::Split(vec![names(["seq", "a"]), names(["b", "c"])]))
//!     .at(25, LabVerb::Heal(LabTarget::All))
//!     .seconds(40)
//! ```

use super::{
    error::LabFileError,
    hostile::{self, HostileGroup},
    links::LabBackend,
};
use crate::{
    ladder::{LADDER, Rung},
    nearest::nearest,
};
use std::time::Duration;

/// Name of the L1, which every network has.
pub const L1: &str = "l1";
pub const BATCHER: &str = "batcher";
pub const PROPOSER: &str = "proposer";

/// Whole seconds of a scenario's clock, which starts when every node of the start responds.
pub const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Copies names of nodes for a verb.
pub fn names<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).to_vec()
}

/// A network, its faults, and the duration of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct LabScenario {
    pub name: String,
    /// One sentence for `netsim list`.
    pub purpose: String,
    /// Duration of the run.
    pub length: Duration,
    /// Seconds between two L2 blocks.
    pub block_time: u64,
    /// Seconds between two L1 blocks.
    pub l1_block_time: u64,
    /// How links carry traffic. Where the packet backend is refused, a run uses the other one.
    pub backend: LabBackend,
    /// Conditions of all links that [`Self::links`] does not name.
    pub rung: &'static Rung,
    /// Transactions per second from the start.
    pub load: u32,
    pub batcher: bool,
    pub proposer: bool,
    pub sequencer: String,
    pub replicas: Vec<LabReplica>,
    /// Number of replicas of another network with a chain of its own; zero for none.
    pub other_chain: u64,
    /// A node through which all others find each other, in place of static peers.
    pub bootnode: Option<String>,
    pub hostile: Vec<HostileGroup>,
    pub links: Vec<LabLink>,
    pub steps: Vec<LabStep>,
    /// Texts that must be in the log of some node at the end.
    pub expect: Vec<LabExpectation>,
    pub allow: LabAllowance,
    pub lines: ScenarioLines,
    /// First rung name that was given to the builder and does not exist.
    pub(super) unknown_rung: Option<String>,
}

/// Lines of keys in the scenario's file. A line is zero if the file does not have the key, and for a
/// scenario built in Rust.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScenarioLines {
    pub purpose: usize,
    pub length: usize,
    pub sequencer: usize,
    pub replicas: usize,
    pub other_chain: usize,
    pub bootnode: usize,
}

/// A replica, and the time at which it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct LabReplica {
    pub name: String,
    pub start: Duration,
    pub line: usize,
}

/// A link whose conditions differ from the others'. `near` is the home of a rung that has one.
#[derive(Clone, Debug, PartialEq)]
pub struct LabLink {
    pub near: String,
    pub far: String,
    pub rung: &'static Rung,
    pub line: usize,
}

/// A part of a log line that shows that the scenario has done what it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct LabExpectation {
    pub text: String,
    pub line: usize,
}

/// A verb with its time.
#[derive(Clone, Debug, PartialEq)]
pub struct LabStep {
    pub at: Duration,
    pub verb: LabVerb,
    pub line: usize,
}

/// Links that a verb changes.
#[derive(Clone, Debug, PartialEq)]
pub enum LabTarget {
    All,
    /// All links of one node.
    Node(String),
    /// The link between two nodes.
    Pair(String, String),
}

/// A change of the network.
#[derive(Clone, Debug, PartialEq)]
pub enum LabVerb {
    /// Stops all traffic without a sign, as a pulled cable does.
    Cut(LabTarget),
    /// Stops only the traffic from the first node to the second.
    CutOneWay(String, String),
    /// Gives links their first conditions again.
    Heal(LabTarget),
    /// Cuts all links of a node, also that to the L1.
    Isolate(String),
    /// Cuts all links between nodes of different groups.
    Split(Vec<Vec<String>>),
    /// Gives links the conditions of another rung.
    Slow(LabTarget, &'static Rung),
    /// Loses a share of the packets in both directions.
    Lossy(LabTarget, f64),
    /// Breaks links again and again, with reset connections, for times drawn from the seed.
    Flap(LabTarget, LabRhythm),
    /// Changes the processes of nodes.
    Nodes(NodeVerb, Vec<String>),
    /// Kills one random node at a time and starts it again, at times drawn from the seed.
    Storm(Vec<String>, LabRhythm),
    /// Fills the disk of nodes, which is one of limited size, until a time.
    FillDisk(Vec<String>, Duration),
    /// Replaces, at a later time, all blocks of L1 since the time of the step.
    Reorg(Vec<String>, Duration),
    /// Changes the number of transactions per second.
    Load(u32),
}

impl LabVerb {
    /// All verbs as files write them.
    pub const WORDS: [&'static str; 21] = [
        "cut",
        "heal",
        "isolate",
        "split",
        "slow",
        "lossy",
        "flap",
        "kill",
        "stop",
        "freeze",
        "thaw",
        "restart",
        "wipe",
        "upgrade",
        "promote",
        "storm",
        "fill-disk",
        "move",
        "new-key",
        "reorg",
        "load",
    ];

    /// The verb as files write it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Cut(_) | Self::CutOneWay(..) => "cut",
            Self::Heal(_) => "heal",
            Self::Isolate(_) => "isolate",
            Self::Split(_) => "split",
            Self::Slow(..) => "slow",
            Self::Lossy(..) => "lossy",
            Self::Flap(..) => "flap",
            Self::Nodes(verb, _) => verb.word(),
            Self::Storm(..) => "storm",
            Self::FillDisk(..) => "fill-disk",
            Self::Reorg(..) => "reorg",
            Self::Load(_) => "load",
        }
    }

    /// Nodes whose processes the verb changes; empty for the verbs of links and load.
    pub fn nodes(&self) -> &[String] {
        match self {
            Self::Nodes(_, nodes)
            | Self::Storm(nodes, _)
            | Self::FillDisk(nodes, _)
            | Self::Reorg(nodes, _) => nodes,
            Self::Cut(_)
            | Self::CutOneWay(..)
            | Self::Heal(_)
            | Self::Isolate(_)
            | Self::Split(_)
            | Self::Slow(..)
            | Self::Lossy(..)
            | Self::Flap(..)
            | Self::Load(_) => &[],
        }
    }

    /// The list of [`Self::nodes`]; `None` for the verbs of links and load.
    fn nodes_mut(&mut self) -> Option<&mut Vec<String>> {
        match self {
            Self::Nodes(_, nodes)
            | Self::Storm(nodes, _)
            | Self::FillDisk(nodes, _)
            | Self::Reorg(nodes, _) => Some(nodes),
            Self::Cut(_)
            | Self::CutOneWay(..)
            | Self::Heal(_)
            | Self::Isolate(_)
            | Self::Split(_)
            | Self::Slow(..)
            | Self::Lossy(..)
            | Self::Flap(..)
            | Self::Load(_) => None,
        }
    }
}

/// A change of one node's process that is made at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeVerb {
    /// SIGKILL.
    Kill,
    /// SIGINT, and waits for the end.
    Stop,
    /// SIGSTOP.
    Freeze,
    /// SIGCONT.
    Thaw,
    /// Starts a node that is down; one that runs is stopped first.
    Restart,
    /// Removes the data of a node that is down.
    Wipe,
    /// Restarts a node with the program of `--upgrade-to`.
    Upgrade,
    /// Restarts a replica as a sequencer with the key of the sequencer.
    Promote,
    /// Restarts a node at another address, and has its DNS name follow.
    Move,
    /// Names a new block signer on L1, and restarts the sequencer with its key.
    NewKey,
}

impl NodeVerb {
    pub const ALL: [Self; 10] = [
        Self::Kill,
        Self::Stop,
        Self::Freeze,
        Self::Thaw,
        Self::Restart,
        Self::Wipe,
        Self::Upgrade,
        Self::Promote,
        Self::Move,
        Self::NewKey,
    ];

    /// The verb as files write it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Freeze => "freeze",
            Self::Thaw => "thaw",
            Self::Restart => "restart",
            Self::Wipe => "wipe",
            Self::Upgrade => "upgrade",
            Self::Promote => "promote",
            Self::Move => "move",
            Self::NewKey => "new-key",
        }
    }

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.word() == word)
    }
}

/// Mean times of a fault that comes and goes, and the time at which it ends for good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LabRhythm {
    pub until: Duration,
    pub down: Duration,
    pub up: Duration,
}

/// The limits of the checks.
#[derive(Clone, Debug, PartialEq)]
pub struct LabAllowance {
    /// Longest time from the end of the last fault to one head on all nodes.
    pub agree_within: Duration,
    /// Blocks by which a node may be behind the others at one instant: propagation takes time.
    pub lag: u64,
    /// Resident memory of one node, in megabytes.
    pub memory_mb: u64,
    /// Largest ratio of the propagation with hostile peers to that before they came.
    pub slowdown: f64,
    /// Whether the scenario makes several blocks of one height, until the nodes must agree.
    pub forks: bool,
    /// Parts of log lines at level error that the scenario provokes.
    pub errors: Vec<String>,
    pub line: usize,
}

/// A node of a few blocks has 60 to 90 MB; a leak of one block's data per message exceeds this.
const MEMORY_MB: u64 = 256;
/// Default of [`LabAllowance::slowdown`]: blocks may take half as long again as before hostile peers.
const SLOWDOWN: f64 = 1.5;

impl Default for LabAllowance {
    fn default() -> Self {
        Self {
            agree_within: seconds(10),
            lag: 1,
            memory_mb: MEMORY_MB,
            slowdown: SLOWDOWN,
            forks: false,
            errors: Vec::new(),
            line: 0,
        }
    }
}

impl LabScenario {
    /// A sequencer named `seq` on loopback links, with a block each second, for 30 seconds.
    pub fn new(name: &str, purpose: &str) -> Self {
        Self {
            name: name.to_owned(),
            purpose: purpose.to_owned(),
            length: seconds(30),
            block_time: 1,
            l1_block_time: 3,
            backend: LabBackend::default(),
            rung: &LADDER[0],
            load: 0,
            batcher: false,
            proposer: false,
            sequencer: "seq".to_owned(),
            replicas: Vec::new(),
            other_chain: 0,
            bootnode: None,
            hostile: Vec::new(),
            links: Vec::new(),
            steps: Vec::new(),
            expect: Vec::new(),
            allow: LabAllowance::default(),
            lines: ScenarioLines::default(),
            unknown_rung: None,
        }
    }

    pub fn replicas<const N: usize>(mut self, names: [&str; N]) -> Self {
        self.replicas
            .extend(names.map(|name| LabReplica::new(name, Duration::ZERO)));
        self
    }

    /// A replica that starts later, with an empty chain.
    pub fn late(mut self, name: &str, start: u64) -> Self {
        self.replicas.push(LabReplica::new(name, seconds(start)));
        self
    }

    /// Hostile peers of one behaviour that start later.
    pub fn hostile(mut self, hostile: HostileGroup) -> Self {
        self.hostile.push(hostile);
        self
    }

    /// A node through which all others find each other.
    pub fn bootnode(mut self, name: &str) -> Self {
        self.bootnode = Some(name.to_owned());
        self
    }

    /// Conditions of all links, by their name on the ladder.
    pub fn rung(mut self, name: &str) -> Self {
        match Rung::named(name) {
            Some(rung) => self.rung = rung,
            None => self.unknown_rung = Some(name.to_owned()),
        }
        self
    }

    pub fn backend(mut self, backend: LabBackend) -> Self {
        self.backend = backend;
        self
    }

    pub fn load(mut self, per_second: u32) -> Self {
        self.load = per_second;
        self
    }

    pub fn batcher(mut self) -> Self {
        self.batcher = true;
        self
    }

    pub fn at(mut self, second: u64, verb: LabVerb) -> Self {
        let at = seconds(second);
        self.steps.push(LabStep { at, verb, line: 0 });
        self
    }

    pub fn seconds(mut self, length: u64) -> Self {
        self.length = seconds(length);
        self
    }

    /// Leaves out the hostile peers and the steps that name only such peers.
    pub fn without_hostile(mut self) -> Self {
        let hostile = hostile::peers(&self.hostile);
        self.hostile.clear();
        self.steps.retain_mut(|step| {
            let Some(nodes) = step.verb.nodes_mut() else {
                return true;
            };
            nodes.retain(|node| hostile.iter().all(|peer| peer.name != *node));
            !nodes.is_empty()
        });
        self
    }

    /// Names of all honest nodes: the L1, the sequencer, the replicas, the bootnode, then batcher and
    /// proposer.
    pub fn honest_names(&self) -> Vec<&str> {
        let mut names = vec![L1, self.sequencer.as_str()];
        names.extend(self.replicas.iter().map(|replica| replica.name.as_str()));
        names.extend(self.bootnode.as_deref());
        names.extend(self.batcher.then_some(BATCHER));
        names.extend(self.proposer.then_some(PROPOSER));
        names
    }

    /// Names of all nodes, the hostile peers last.
    pub fn node_names(&self) -> Vec<String> {
        let honest = self.honest_names().into_iter().map(str::to_owned);
        let hostile = hostile::peers(&self.hostile);
        honest
            .chain(hostile.into_iter().map(|it| it.name))
            .collect()
    }

    /// Reads a scenario from the text of a file, and checks it.
    pub fn parse(name: &str, text: &str) -> Result<Self, LabFileError> {
        let scenario = super::file::read(name, text)?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Returns an error for a scenario that cannot run to its end.
    pub fn check(&self) -> Result<(), LabFileError> {
        if let Some(name) = &self.unknown_rung {
            return Err(unknown_rung(0, name));
        }
        super::validate::check(self)
    }
}

/// The error for a rung that is not on the ladder.
pub(super) fn unknown_rung(line: usize, name: &str) -> LabFileError {
    let rungs = LADDER.iter().map(|rung| rung.name);
    LabFileError::new(
        line,
        format!("no link is called `{name}`{}", nearest(name, rungs)),
    )
}

impl LabReplica {
    pub fn new(name: &str, start: Duration) -> Self {
        Self {
            name: name.to_owned(),
            start,
            line: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostile::behaviour::HostileBehaviour;

    #[test]
    fn a_scenario_without_hostile_peers_has_no_step_that_names_one() {
        let hostile = HostileGroup::new(HostileBehaviour::Garbage, seconds(12));
        let scenario = LabScenario::new("x", "y")
            .replicas(["a", "b"])
            .hostile(hostile)
            .at(
                15,
                LabVerb::Nodes(NodeVerb::Kill, names(["garbage-1", "a"])),
            )
            .at(17, LabVerb::Nodes(NodeVerb::Restart, names(["a"])))
            .at(18, LabVerb::Nodes(NodeVerb::Restart, names(["garbage-1"])))
            .at(19, LabVerb::Heal(LabTarget::All));
        let honest = scenario.without_hostile();
        let verbs: Vec<&LabVerb> = honest.steps.iter().map(|step| &step.verb).collect();
        let expected = [
            &LabVerb::Nodes(NodeVerb::Kill, names(["a"])),
            &LabVerb::Nodes(NodeVerb::Restart, names(["a"])),
            &LabVerb::Heal(LabTarget::All),
        ];
        assert_eq!(verbs, expected);
        assert_eq!(honest.check(), Ok(()));
        assert_eq!(honest.node_names(), ["l1", "seq", "a", "b"]);
    }
}
