//! The result of a run: counts of every node and receipts of every block, and the report made of
//! them. Nodes that join late are counted apart, since they were not there for every block.

use super::{
    config::{BandwidthScope, ModelConfig, ProcessorLoad},
    node::{ModelNode, ModelReceipts},
    range::JoiningNode,
    samples::ModelSamples,
    world::{ModelCounts, ModelWorld, SECOND},
};
use crate::report::{
    RunCheck, RunHop, RunJoining, RunNodeTraffic, RunPropagation, RunReport, RunSpread, RunTraffic,
    cumulative,
};

/// Largest network whose nodes are listed one by one.
const LISTED: u32 = 128;
/// Points of a curve.
const POINTS: usize = 200;
/// Milliseconds in a microsecond.
const MS: f64 = 1e-3;

/// A finished run.
pub struct ModelOutcome {
    config: ModelConfig,
    counts: ModelCounts,
    nodes: Vec<ModelNode>,
    receipts: ModelReceipts,
    joining: Vec<JoiningNode>,
    samples: ModelSamples,
    /// Established nodes that have a path to the publisher.
    connected: Vec<bool>,
    ended: u64,
}

impl ModelOutcome {
    pub(super) fn of(config: &ModelConfig, world: ModelWorld<'_>) -> Self {
        Self {
            config: config.clone(),
            connected: world.table.connected(config.established()),
            counts: world.counts,
            nodes: world.nodes,
            receipts: world.receipts,
            joining: world.joining,
            samples: world.samples,
            ended: world.now,
        }
    }

    pub fn counts(&self) -> ModelCounts {
        self.counts
    }

    /// Time from the publication of `block` until `node` had it, in microseconds.
    pub fn receipt(&self, block: u32, node: u32) -> Option<u32> {
        self.receipts.after(block, node)
    }

    /// Copies of blocks that `node` received, and those among them that were in vain.
    pub fn copies(&self, node: u32) -> [u32; 2] {
        let state = &self.nodes[node as usize];
        [state.copies, state.duplicates]
    }

    fn established(&self) -> &[ModelNode] {
        &self.nodes[..self.config.established() as usize]
    }

    /// The report of the run.
    pub fn report(self) -> RunReport {
        let config = &self.config;
        let mut report = RunReport::new("model", &name(config), config.seed);
        report.purpose = "Discrete events of the gossip mesh, without real nodes".to_owned();
        report.backend = "model".to_owned();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        report.versions.insert("netsim".to_owned(), version);
        report.settings = settings(config);
        report.seconds = self.ended as f64 / SECOND as f64;
        report.traffic = Some(self.traffic());
        report.joining = self.joined();
        report.checks = self.checks();
        let counts = self.counts;
        let figures = [
            ("events", counts.events),
            ("copies dropped by full lines", counts.dropped),
            ("copies saved by IDONTWANT", counts.unwanted),
            ("ids announced by IHAVE", counts.announced),
            ("blocks requested by IWANT", counts.requested),
            ("grafts", counts.grafts),
            ("prunes", counts.prunes),
        ];
        let figures = figures.map(|(name, count)| (name.to_owned(), count as f64));
        report.figures = figures.into();
        report.propagation = self.propagation();
        report.mesh = self.samples.mesh.into();
        report.lag = self.samples.lag.into();
        report
    }

    fn propagation(&self) -> Option<RunPropagation> {
        let established = self.config.established();
        let mut hops: Vec<Vec<u32>> = Vec::new();
        let mut missed = 0;
        for block in 0..self.config.blocks {
            let (after, hop) = self.receipts.arrivals(block, established);
            // Node 0 publishes the blocks, and does not receive them.
            for (after, hop) in after.iter().zip(hop).skip(1) {
                if *after == ModelReceipts::NEVER {
                    missed += 1;
                    continue;
                }
                let hop = usize::from(*hop);
                if hops.len() <= hop {
                    hops.resize(hop + 1, Vec::new());
                }
                hops[hop].push(*after);
            }
        }
        let mut all: Vec<u32> = hops.concat();
        let received = all.len() as u64;
        let spread = RunSpread::of(&mut all, MS)?;
        let curve = cumulative(&all, received + missed, MS, POINTS);
        let row = |(hop, times): (usize, &mut Vec<u32>)| {
            let spread = RunSpread::of(times, MS)?;
            Some(RunHop {
                hop: hop as u32,
                share: spread.count as f64 / received as f64,
                times: spread,
                curve: cumulative(times, spread.count, MS, POINTS / 4),
            })
        };
        Some(RunPropagation {
            all: spread,
            curve,
            hops: hops.iter_mut().enumerate().filter_map(row).collect(),
            missed,
        })
    }

    fn traffic(&self) -> RunTraffic {
        let nodes = self.established();
        let each = 1.0 / f64::from(self.config.blocks);
        let mut duplicates: Vec<u32> = nodes.iter().map(|it| it.duplicates).collect();
        let mut sent: Vec<u64> = nodes.iter().map(|it| it.sent).collect();
        let mut received: Vec<u64> = nodes.iter().map(|it| it.received).collect();
        let listed = if self.config.nodes <= LISTED {
            &self.nodes[..]
        } else {
            &[]
        };
        let listed = listed
            .iter()
            .enumerate()
            .map(|(number, node)| RunNodeTraffic {
                node: format!("node-{number}"),
                sent: node.sent,
                received: node.received,
                duplicates: node.duplicates.into(),
            });
        RunTraffic {
            duplicates: RunSpread::of(&mut duplicates, each),
            sent: RunSpread::of(&mut sent, 1.0),
            received: RunSpread::of(&mut received, 1.0),
            nodes: listed.collect(),
        }
    }

    fn joined(&self) -> Option<RunJoining> {
        if self.joining.is_empty() {
            return None;
        }
        let since = |time: fn(&JoiningNode) -> Option<u64>| {
            let times = self.joining.iter();
            let mut times: Vec<u64> = times
                .filter_map(|it| time(it).map(|time| time - it.started))
                .collect();
            RunSpread::of(&mut times, 1.0 / SECOND as f64)
        };
        let begun = self.joining.iter().filter(|it| it.first_block.is_some());
        let mut gaps: Vec<u32> = begun.map(|it| it.gap).collect();
        let synced = since(|it| it.synced);
        let joined = self.joining.len() as u64;
        Some(RunJoining {
            joined,
            unfinished: joined - synced.map_or(0, |it| it.count),
            gap: RunSpread::of(&mut gaps, 1.0),
            first_block: since(|it| it.first_block),
            synced,
        })
    }

    fn checks(&self) -> Vec<RunCheck> {
        let connected = self.connected.iter().filter(|it| **it).count();
        let blocks = u64::from(self.config.blocks);
        let expected = (connected as u64 - 1) * blocks;
        let arrived = (0..self.config.blocks).map(|block| {
            let (after, _) = self.receipts.block(block, self.config.established());
            let nodes = after.iter().zip(&self.connected).skip(1);
            nodes
                .filter(|(after, connected)| **connected && **after != ModelReceipts::NEVER)
                .count() as u64
        });
        let arrived: u64 = arrived.sum();
        let outside = self.connected.len() - connected;
        let mut checks = vec![RunCheck {
            name: "each connected node receives each block".to_owned(),
            passed: arrived == expected,
            detail: format!("{arrived} of {expected} receipts; {outside} nodes have no path"),
        }];
        if !self.joining.is_empty() {
            let synced = self.joining.iter().filter(|it| it.synced.is_some()).count();
            checks.push(RunCheck {
                name: "each joining node catches up".to_owned(),
                passed: synced == self.joining.len(),
                detail: format!("{synced} of {}", self.joining.len()),
            });
        }
        checks
    }
}

/// A size in the unit that it fits, such as `5 KB` for 5,120 bytes.
pub(super) fn size_name(bytes: u32) -> String {
    match bytes {
        ..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{} KB", round(f64::from(bytes) / 1_024.0)),
        _ => format!("{} MB", round(f64::from(bytes) / 1_048_576.0)),
    }
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn mix(config: &ModelConfig) -> String {
    if let [only] = &config.links[..] {
        return only.rung.name.to_owned();
    }
    let parts = config.links.iter();
    let parts: Vec<String> = parts
        .map(|it| format!("{}={}", it.rung.name, it.weight))
        .collect();
    parts.join(",")
}

fn name(config: &ModelConfig) -> String {
    let (nodes, size) = (config.nodes, size_name(config.block_bytes));
    format!("{nodes} nodes, {size} blocks, {}", mix(config))
}

fn settings(config: &ModelConfig) -> std::collections::BTreeMap<String, String> {
    let scope = match config.scope {
        BandwidthScope::Node => "per node",
        BandwidthScope::Link => "per link",
    };
    let peers = format!("{} to {}", config.peers.lo, config.peers.hi);
    let settings = [
        ("nodes", config.nodes.to_string()),
        ("blocks", config.blocks.to_string()),
        ("block size", format!("{} B", config.block_bytes)),
        ("block time", format!("{:?}", config.block_time)),
        ("links", mix(config)),
        ("bandwidth", scope.to_owned()),
        ("mesh", config.mesh.to_string()),
        ("peers", peers),
        ("check", format!("{:?}", config.check_time())),
        ("import", format!("{:?}", config.import)),
        ("silent", config.silent.to_string()),
        ("joins", config.joins.to_string()),
        ("behind", config.behind.to_string()),
    ];
    let shared = config.processors.map(|load| {
        let ProcessorLoad {
            cores,
            copy,
            import,
            rest,
        } = load;
        let text =
            format!("{cores}, {copy:?} for a copy, {import:?} for the import, {rest:?} after it");
        ("shared processors", text)
    });
    let settings = settings.into_iter().chain(shared);
    settings
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}
