//! The plan of a world, drawn from its seed: nodes, their links and limits, and faults with their
//! times. A plan has two phases: faults, then [`QUIET`] without any.

use super::{
    chain::ChainKind,
    hostile::Hostility,
    planted::PlantedBug,
    queue::{MILLISECOND, SECOND, SimTime},
    real::memory_folder,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{fmt, path::PathBuf};

/// Length of the quiet phase at the end. It covers the longest waits of a node: a minute's rest of
/// a disconnected peer, and 90 s until a clock that was ahead has been reached.
pub const QUIET: SimTime = 210 * SECOND;
/// Shortest world in minutes: the quiet phase and some minutes of faults.
pub const MIN_MINUTES: u64 = 6;
/// Number of nodes of a world.
pub const NODES: std::ops::RangeInclusive<usize> = 2..=16;
/// Mixed into the seed for the dice of derivation.
const DERIVATION_DICE: u64 = 0xde71_7e00;
/// Largest error of a clock in seconds.
const SKEW: i64 = 90;

/// The value of `--faults` that keeps none.
pub const NO_FAULT: &str = "none";

/// A number of `--faults` that no fault of the seed has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFault {
    pub seed: u64,
    pub number: usize,
    /// Number of faults that the seed has.
    pub count: usize,
}

impl fmt::Display for UnknownFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            number,
            count,
        } = self;
        write!(
            f,
            "seed {seed} has no fault {number}: it has {count} faults"
        )?;
        match count.checked_sub(1) {
            Some(last) => write!(f, ", numbered 0 to {last}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for UnknownFault {}

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SimFault {
    /// No messages between the nodes of `side`, a set of bits, and the others; with `one_way` only
    /// none from the side to the others.
    Partition { side: u32, one_way: bool },
    /// A share of gossip messages and requests is lost.
    Lossy { percent: u32 },
    /// All messages of a node take longer.
    Slow { node: usize, by: SimTime },
    /// A share of messages arrives twice.
    Duplicates { percent: u32 },
    /// Messages overtake each other by up to this time.
    Reorder { by: SimTime },
    /// The link of two nodes is cut every other period.
    Flap { a: usize, b: usize, period: SimTime },
    /// The node is down. With `power` everything that it had not synced is lost.
    Crash { node: usize, power: bool },
    /// The node does nothing; it then handles what has arrived.
    Freeze { node: usize },
    /// The wall clock of a node is wrong by this number of seconds.
    Skew { node: usize, seconds: i64 },
    /// L1 replaces its newest blocks.
    L1Reorg { depth: u64 },
    /// L1 cannot be reached.
    L1Outage,
    /// Another node becomes the sequencer, with a key of its own.
    Handover { to: usize },
}

/// A fault and the times at which it begins and ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedFault {
    pub from: SimTime,
    pub until: SimTime,
    pub fault: SimFault,
}

impl fmt::Display for TimedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, until) = (self.from / SECOND, self.until / SECOND);
        write!(f, "{from} s to {until} s: {:?}", self.fault)
    }
}

/// The part of a plan about one node.
#[derive(Clone, Debug)]
pub struct SimNodePlan {
    pub hostile: Option<Hostility>,
    /// Indices of the static peers.
    pub statics: Vec<usize>,
    /// Number of peers below which the node dials.
    pub lo: usize,
    /// Number of peers above which it trims.
    pub hi: usize,
    /// Time between two syncs of the store.
    pub sync_every: SimTime,
    /// Time between two reads of the signer from L1.
    pub signer_poll: SimTime,
    /// Time to execute a block.
    pub execution: SimTime,
}

/// The part of a plan about derivation and the batcher.
#[derive(Clone, Debug)]
pub struct DerivationPlan {
    /// Number of L1 blocks by which each node's derivation is behind the head of L1.
    pub l1_lags: Vec<u64>,
    /// Largest size of a frame in bytes.
    pub frame_size: usize,
    /// Number of frames that a channel aims at.
    pub target_frames: u32,
    /// L1 blocks from the L1 origin before a channel to its deadline. Blocks have origins that are
    /// up to five L1 blocks old.
    pub channel_duration: u64,
}

impl DerivationPlan {
    /// Draws the plan of a seed, with dice of its own, so that the rest of the seed's plan does not
    /// depend on it.
    fn draw(seed: u64, nodes: usize) -> Self {
        let mut dice = StdRng::seed_from_u64(seed ^ DERIVATION_DICE);
        Self {
            l1_lags: (0..nodes).map(|_| dice.random_range(0..=2)).collect(),
            frame_size: dice.random_range(300..=3_000),
            target_frames: dice.random_range(1..=4),
            channel_duration: dice.random_range(5..=6),
        }
    }
}

/// Everything that a world does, up to the dice of single messages.
#[derive(Clone, Debug)]
pub struct SimPlan {
    pub seed: u64,
    pub minutes: u64,
    pub nodes: Vec<SimNodePlan>,
    /// One-way delay of each pair of nodes.
    pub delays: Vec<Vec<SimTime>>,
    pub faults: Vec<TimedFault>,
    /// Whether faults and hostile nodes were left out.
    pub no_faults: bool,
    /// Indices of the drawn faults that are kept; `None` keeps all.
    pub kept: Option<Vec<usize>>,
    /// Derivation of the safe chain from L1; `None` if the world itself names safe blocks.
    pub derivation: Option<DerivationPlan>,
    /// Whether nodes derive, if that was not left to the seed.
    pub derives: Option<bool>,
    /// L1 blocks between the newest origin of a block and the head of L1.
    pub confirmations: u64,
    pub bug: PlantedBug,
    /// The kind of the chains of all nodes.
    pub chain: ChainKind,
    /// Folder of the temporary files of real chains.
    pub folder: PathBuf,
}

impl SimPlan {
    /// Draws the plan of a seed. Without `nodes` their number is drawn too.
    pub fn draw(seed: u64, nodes: Option<usize>, minutes: u64) -> Self {
        let mut dice = StdRng::seed_from_u64(seed);
        let drawn = dice.random_range(3..=7);
        let count = nodes.unwrap_or(drawn).clamp(*NODES.start(), *NODES.end());
        let minutes = minutes.max(MIN_MINUTES);
        let nodes = draw_nodes(count, &mut dice);
        let delays = draw_delays(count, &mut dice);
        let confirmations = dice.random_range(0..=4);
        let end = minutes * 60 * SECOND - QUIET;
        let honest: Vec<usize> = (0..count)
            .filter(|node| nodes[*node].hostile.is_none())
            .collect();
        let faults = (0..dice.random_range(0..=8))
            .map(|_| draw_fault(count, &honest, end, &mut dice))
            .collect();
        Self {
            seed,
            minutes,
            nodes,
            delays,
            faults,
            no_faults: false,
            kept: None,
            derivation: seed
                .is_multiple_of(2)
                .then(|| DerivationPlan::draw(seed, count)),
            derives: None,
            confirmations,
            bug: PlantedBug::None,
            chain: ChainKind::Tree,
            folder: memory_folder(),
        }
    }

    /// The plan without faults and hostile nodes, for measurements.
    pub fn without_faults(mut self) -> Self {
        self.no_faults = true;
        self.faults.clear();
        self.nodes.iter_mut().for_each(|node| node.hostile = None);
        self
    }

    /// Draws the plan of a seed whose nodes have real chains, which take longer than a tree: without
    /// `nodes` a world has about half as many.
    pub fn draw_real(seed: u64, nodes: Option<usize>, minutes: u64) -> Self {
        let nodes = nodes.or_else(|| {
            let drawn = Self::draw(seed, None, minutes).nodes.len();
            Some(drawn.div_ceil(2))
        });
        Self {
            chain: ChainKind::Real,
            ..Self::draw(seed, nodes, minutes)
        }
    }

    /// Decides whether nodes derive the safe chain; `None` leaves that to the seed.
    pub fn with_derivation(mut self, derives: Option<bool>) -> Self {
        self.derives = derives;
        if let Some(derives) = derives {
            let (seed, count) = (self.seed, self.nodes.len());
            self.derivation = derives.then(|| DerivationPlan::draw(seed, count));
        }
        self
    }

    /// Draws the plan again with other numbers of nodes and minutes. All faults are kept.
    pub fn redraw(&self, nodes: usize, minutes: u64) -> Self {
        let plan = Self {
            bug: self.bug,
            chain: self.chain,
            folder: self.folder.clone(),
            ..Self::draw(self.seed, Some(nodes), minutes).with_derivation(self.derives)
        };
        if self.no_faults {
            plan.without_faults()
        } else {
            plan
        }
    }

    /// Keeps only the faults with these numbers.
    pub fn keep(mut self, kept: Vec<usize>) -> Result<Self, UnknownFault> {
        let count = self.faults.len();
        if let Some(number) = kept.iter().find(|number| **number >= count) {
            return Err(UnknownFault {
                seed: self.seed,
                number: *number,
                count,
            });
        }
        self.kept = Some(kept);
        Ok(self)
    }

    /// The faults that happen.
    pub fn active(&self) -> impl Iterator<Item = (usize, &TimedFault)> {
        let all = self.faults.iter().enumerate();
        all.filter(|(index, _)| self.kept.as_ref().is_none_or(|kept| kept.contains(index)))
    }

    /// The end of the world.
    pub fn end(&self) -> SimTime {
        self.minutes * 60 * SECOND
    }

    /// The command line that runs this plan again and prints its history.
    pub fn command(&self) -> String {
        let mut command = format!(
            "netsim sim --seeds 1 --first {} --nodes {} --minutes {}",
            self.seed,
            self.nodes.len(),
            self.minutes
        );
        if self.no_faults {
            command += " --no-faults";
        }
        if self.chain == ChainKind::Real {
            command += " --chain real";
        }
        if let Some(derives) = self.derives {
            command += &format!(" --derivation {derives}");
        }
        if let Some(kept) = &self.kept {
            let kept: Vec<String> = kept.iter().map(ToString::to_string).collect();
            let list = if kept.is_empty() {
                NO_FAULT.to_owned()
            } else {
                kept.join(",")
            };
            command += &format!(" --faults {list}");
        }
        if let Some(bug) = self.bug.name() {
            command += &format!(" --plant {bug}");
        }
        command + " --trace"
    }
}

fn draw_nodes(count: usize, dice: &mut StdRng) -> Vec<SimNodePlan> {
    let mut nodes: Vec<SimNodePlan> = Vec::new();
    let most_hostile = if dice.random_bool(0.5) { count / 3 } else { 0 };
    for index in 0..count {
        let hostile_so_far = nodes.iter().filter(|node| node.hostile.is_some()).count();
        let is_hostile = index > 0 && hostile_so_far < most_hostile && dice.random_bool(0.4);
        let honest: Vec<usize> = (0..index)
            .filter(|other| nodes[*other].hostile.is_none())
            .collect();
        // Static peers connect all honest nodes.
        let mut statics = Vec::new();
        if !honest.is_empty() {
            statics.push(honest[dice.random_range(0..honest.len())]);
        }
        if index > 0 && dice.random_bool(0.3) {
            statics.push(dice.random_range(0..index));
        }
        let lo = dice.random_range(2..=20);
        nodes.push(SimNodePlan {
            hostile: is_hostile.then(|| Hostility::draw(dice)),
            statics,
            lo,
            hi: lo + dice.random_range(1..=10),
            sync_every: dice.random_range(1..=8) * SECOND,
            signer_poll: dice.random_range(20..=90) * SECOND,
            execution: dice.random_range(1..=40) * MILLISECOND,
        });
    }
    nodes
}

fn draw_delays(count: usize, dice: &mut StdRng) -> Vec<Vec<SimTime>> {
    let mut delays = vec![vec![0; count]; count];
    for (a, b) in (0..count).flat_map(|a| (0..a).map(move |b| (a, b))) {
        let delay = dice.random_range(1..=150) * MILLISECOND;
        (delays[a][b], delays[b][a]) = (delay, delay);
    }
    delays
}

fn draw_fault(count: usize, honest: &[usize], end: SimTime, dice: &mut StdRng) -> TimedFault {
    let from = dice.random_range(5 * SECOND..end - 10 * SECOND);
    let length = dice.random_range(SECOND..120 * SECOND);
    let (a, b) = (dice.random_range(0..count), dice.random_range(0..count));
    let fault = match dice.random_range(0..14) {
        0 | 1 => SimFault::Partition {
            side: dice.random_range(1..(1 << count) - 1),
            one_way: dice.random_bool(0.3),
        },
        2 => SimFault::Lossy {
            percent: dice.random_range(5..=40),
        },
        3 => SimFault::Slow {
            node: a,
            by: dice.random_range(100..=5_000) * MILLISECOND,
        },
        4 => SimFault::Duplicates {
            percent: dice.random_range(5..=60),
        },
        5 => SimFault::Reorder {
            by: dice.random_range(10..=3_000) * MILLISECOND,
        },
        6 if a != b => SimFault::Flap {
            a,
            b,
            period: dice.random_range(500..=20_000) * MILLISECOND,
        },
        7..=9 => SimFault::Crash {
            node: a,
            power: dice.random_bool(0.6),
        },
        10 => SimFault::Skew {
            node: a,
            seconds: dice.random_range(-SKEW..=SKEW),
        },
        11 => SimFault::L1Reorg {
            depth: dice.random_range(1..=5),
        },
        12 => SimFault::Handover {
            to: honest[dice.random_range(0..honest.len())],
        },
        13 => SimFault::L1Outage,
        _ => SimFault::Freeze { node: a },
    };
    TimedFault {
        from,
        until: (from + length).min(end),
        fault,
    }
}
