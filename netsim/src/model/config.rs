//! Parameters of a model run, and their checks: the simulation never sees a network that cannot
//! exist.

use crate::ladder::{LADDER, Rung};
use std::{fmt, ops::RangeInclusive, time::Duration};

/// Largest number of nodes. A node takes about 2 KB.
const MAX_NODES: u32 = 100_000;
/// Largest number of nodes times blocks: each receipt takes 5 bytes.
const MAX_RECEIPTS: u64 = 100_000_000;
/// Largest number of joining nodes times blocks behind: each window of blocks, which has at least
/// one, takes a byte at each joining node.
const MAX_BEHIND: u64 = 100_000_000;
/// Largest message of the network, in bytes.
const MAX_BYTES: u32 = 10 << 20;
/// Largest number of networks in a mix. Their indices are bytes.
const MAX_MIX: u64 = 64;
/// Weights of a network in a mix, so that their sum is finite and none is lost in it.
const WEIGHTS: RangeInclusive<f64> = 1e-6..=1e6;

/// A network and its load.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Number of nodes, with the publisher and the nodes that join late.
    pub nodes: u32,
    /// Number of blocks that the first node publishes.
    pub blocks: u32,
    /// Size of a block in bytes, packed as on the wire.
    pub block_bytes: u32,
    pub block_time: Duration,
    /// Networks of the nodes, with their weights.
    pub links: Vec<LinkShare>,
    pub scope: BandwidthScope,
    pub mesh: MeshShape,
    /// Connections that a node wants, and the number above which it refuses more.
    pub peers: PeerRange,
    /// Time from the receipt of a block until it is passed on: a fixed part, and one per KiB.
    pub check: Duration,
    pub check_per_kib: Duration,
    /// Time to execute a block after a range sync.
    pub import: Duration,
    /// Share of the nodes, without the publisher, that are in the mesh and pass nothing on.
    pub silent: f64,
    /// Nodes that join one after the other while blocks are published.
    pub joins: u32,
    /// Blocks that the chain has before the first published one.
    pub behind: u32,
    /// Processors that all nodes share; `None` if each node has enough of its own.
    pub processors: Option<ProcessorLoad>,
    pub seed: u64,
}

/// Processors of one machine on which all nodes run, and the work of a node. The check of a block is
/// work too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorLoad {
    pub cores: u32,
    /// Time to send and to receive one copy.
    pub copy: Duration,
    /// Time to make a checked block the head.
    pub import: Duration,
    /// Time of the work that a block causes after it is the head.
    pub rest: Duration,
}

/// The parameters of op-node and of Starling: half a second between heartbeats, meshes of 8 peers,
/// 20 to 30 connections.
impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            nodes: 1_000,
            blocks: 100,
            block_bytes: 5 << 10,
            block_time: Duration::from_secs(2),
            links: vec![LinkShare::whole("transatlantic")],
            scope: BandwidthScope::Node,
            mesh: MeshShape::default(),
            peers: PeerRange { lo: 20, hi: 30 },
            check: Duration::from_micros(200),
            check_per_kib: Duration::from_micros(5),
            import: Duration::from_millis(5),
            silent: 0.0,
            joins: 0,
            behind: 1_000,
            processors: None,
            seed: 1,
        }
    }
}

/// A rung of the ladder, and how many of the nodes are on it compared with other rungs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkShare {
    pub rung: &'static Rung,
    pub weight: f64,
}

impl LinkShare {
    /// All nodes on one rung.
    ///
    /// # Panics
    ///
    /// Panics if the ladder has no rung of this name.
    pub fn whole(name: &str) -> Self {
        let rung = Rung::named(name).expect("a rung of the ladder");
        Self { rung, weight: 1.0 }
    }

    /// Reads `home-dsl`, or a mix such as `lan=1,home-dsl=3`.
    pub fn parse_mix(text: &str) -> Result<Vec<Self>, ModelError> {
        text.split(',').map(Self::parse).collect()
    }

    fn parse(text: &str) -> Result<Self, ModelError> {
        let (name, weight) = text.split_once('=').unwrap_or((text, "1"));
        let rung = Rung::named(name.trim()).ok_or_else(|| ModelError::Rung(name.into()))?;
        let weight: f64 = weight.trim().parse().unwrap_or(f64::NAN);
        if WEIGHTS.contains(&weight) {
            Ok(Self { rung, weight })
        } else {
            Err(ModelError::Weight(text.into()))
        }
    }
}

/// The place of the bandwidth limit of a rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BandwidthScope {
    /// Each node has the upload and download of its rung for all its peers together, as a house
    /// has.
    Node,
    /// Each pair of nodes has a link of its own, as in the lab.
    Link,
}

/// Target size and bounds of a gossip mesh, in peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshShape {
    pub d: u32,
    pub lo: u32,
    pub hi: u32,
    /// Least number of peers outside the mesh that get announcements.
    pub lazy: u32,
}

impl Default for MeshShape {
    fn default() -> Self {
        Self {
            d: 8,
            lo: 6,
            hi: 12,
            lazy: 6,
        }
    }
}

/// Bounds on the number of connections of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRange {
    pub lo: u32,
    pub hi: u32,
}

impl ModelConfig {
    /// Number of nodes that are there from the start.
    pub fn established(&self) -> u32 {
        self.nodes - self.joins
    }

    /// Time to check a block before it is passed on.
    pub fn check_time(&self) -> Duration {
        self.check + self.check_per_kib * self.block_bytes / 1_024
    }

    /// Checks all parameters; the error names the first invalid one.
    pub fn validate(&self) -> Result<(), ModelError> {
        let within = |name, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(ModelError::Range {
                name,
                value,
                least,
                most,
            })
        };
        within("nodes", self.nodes.into(), 2, MAX_NODES.into())?;
        within("blocks", self.blocks.into(), 1, 1_000_000)?;
        let receipts = u64::from(self.nodes) * u64::from(self.blocks);
        within("nodes times blocks", receipts, 2, MAX_RECEIPTS)?;
        within("bytes", self.block_bytes.into(), 1, MAX_BYTES.into())?;
        let ms = |time: Duration| time.as_millis() as u64;
        within("block time (ms)", ms(self.block_time), 50, 60_000)?;
        within("check (ms)", ms(self.check), 0, 10_000)?;
        within("check per KiB (ms)", ms(self.check_per_kib), 0, 1_000)?;
        within("import (ms)", ms(self.import), 0, 60_000)?;
        let half = u64::from(self.nodes) / 2;
        within("joining nodes", self.joins.into(), 0, half)?;
        within("behind", self.behind.into(), 0, 100_000_000)?;
        let behind = u64::from(self.joins) * u64::from(self.behind);
        within("joining nodes times behind", behind, 0, MAX_BEHIND)?;
        if let Some(load) = &self.processors {
            within("cores", load.cores.into(), 1, 1_024)?;
            within("copy (ms)", ms(load.copy), 0, 1_000)?;
            for (what, time) in [
                ("import of a gossiped block (ms)", load.import),
                ("work after the import (ms)", load.rest),
            ] {
                within(what, ms(time), 0, 60_000)?;
            }
        }
        let PeerRange { lo, hi } = self.peers;
        if !(1 <= lo && lo <= hi && hi <= 1_000) {
            return Err(ModelError::Peers(self.peers));
        }
        let mesh = self.mesh;
        if !(1 <= mesh.lo && mesh.lo <= mesh.d && mesh.d <= mesh.hi && mesh.hi <= 1_000) {
            return Err(ModelError::Mesh(mesh));
        }
        if !(0.0..=0.9).contains(&self.silent) {
            return Err(ModelError::Silent(self.silent));
        }
        within("entries of --links", self.links.len() as u64, 1, MAX_MIX)
    }
}

impl fmt::Display for MeshShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { d, lo, hi, lazy } = self;
        write!(f, "D {d}, lo {lo}, hi {hi}, lazy {lazy}")
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    #[error("{name} of {value} is outside of {least} to {most}: choose a value in this range")]
    Range {
        name: &'static str,
        value: u64,
        least: u64,
        most: u64,
    },
    #[error("a mesh with {0} cannot be: choose 1 <= lo <= D <= hi <= 1000")]
    Mesh(MeshShape),
    #[error(
        "{} to {} peers cannot be: choose 1 <= lo <= hi <= 1000",
        .0.lo,
        .0.hi
    )]
    Peers(PeerRange),
    #[error("a silent share of {0} is outside of 0 to 0.9: choose a value in this range")]
    Silent(f64),
    #[error("`{0}` is no network of the ladder: choose one of {names}", names = rungs())]
    Rung(String),
    #[error("`{0}` has no weight from 0.000001 to 1000000: write a mix as `lan=1,home-dsl=3`")]
    Weight(String),
}

fn rungs() -> String {
    LADDER.map(|rung| rung.name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut ModelConfig)) -> String {
        let mut config = ModelConfig::default();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    }

    #[test]
    fn networks_that_cannot_exist_are_refused() {
        assert_eq!(ModelConfig::default().validate(), Ok(()));
        let nodes = "nodes of 1 is outside of 2 to 100000: choose a value in this range";
        assert_eq!(refused(|it| it.nodes = 1), nodes);
        assert!(refused(|it| it.blocks = 0).starts_with("blocks of 0"));
        let receipts = refused(|it| (it.nodes, it.blocks) = (100_000, 1_001));
        assert!(receipts.starts_with("nodes times blocks of 100100000"));
        assert!(refused(|it| it.block_bytes = 11 << 20).starts_with("bytes of 11534336"));
        assert!(refused(|it| it.block_time = Duration::ZERO).starts_with("block time (ms) of 0"));
        assert!(refused(|it| it.joins = 501).starts_with("joining nodes of 501"));
        let behind = refused(|it| (it.joins, it.behind) = (500, 100_000_000));
        assert!(behind.starts_with("joining nodes times behind of 50000000000"));
        let mesh = "a mesh with D 5, lo 6, hi 12, lazy 6 cannot be";
        assert!(refused(|it| it.mesh.d = 5).starts_with(mesh));
        assert!(refused(|it| it.peers.hi = 19).starts_with("20 to 19 peers cannot be"));
        assert!(refused(|it| it.silent = f64::NAN).starts_with("a silent share of NaN"));
        assert!(refused(|it| it.check = Duration::from_secs(11)).starts_with("check (ms)"));
        let shared = |cores, copy, import| {
            let [copy, import] = [copy, import].map(Duration::from_secs);
            let load = ProcessorLoad {
                cores,
                copy,
                import,
                rest: Duration::ZERO,
            };
            refused(|it| it.processors = Some(load))
        };
        assert!(shared(0, 0, 0).starts_with("cores of 0"));
        assert!(shared(1, 2, 0).starts_with("copy (ms) of 2000"));
        assert!(shared(1, 0, 61).starts_with("import of a gossiped block (ms) of 61000"));
    }

    #[test]
    fn a_mix_names_rungs_and_weights() {
        let mix = LinkShare::parse_mix("lan, home-dsl=2.5").unwrap();
        let read: Vec<_> = mix.iter().map(|it| (it.rung.name, it.weight)).collect();
        assert_eq!(read, [("lan", 1.0), ("home-dsl", 2.5)]);
        let unknown = LinkShare::parse_mix("dial-up").unwrap_err().to_string();
        assert!(unknown.contains("`dial-up` is no network") && unknown.contains("home-dsl"));
        for bad in ["lan=0", "lan=-1", "lan=inf", "lan=x", "lan=1e308"] {
            let error = LinkShare::parse_mix(bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{bad}` has no weight from 0.000001")));
        }
        let long = |count| refused(|it| it.links = vec![LinkShare::whole("lan"); count]);
        assert!(long(65).starts_with("entries of --links of 65 is outside of 1 to 64"));
        assert!(long(0).starts_with("entries of --links of 0"));
    }
}
