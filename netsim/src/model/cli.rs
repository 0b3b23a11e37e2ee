//! `netsim model`: the arguments, the runs and their files.

use super::{BandwidthScope, LinkShare, MeshShape, ModelConfig, PeerRange, outcome, simulate};
use crate::report::{self, RunReport};
use anyhow::Context;
use std::{fs, path::PathBuf, time::Duration};

/// Model how blocks cross a network of 2 to 100,000 nodes; no real node runs.
///
/// Example: netsim model --nodes 100,1000,10000 --block-size 5k,1m --out reports
#[derive(Debug, clap::Args)]
pub struct ModelArgs {
    /// Number of nodes; several numbers make several runs
    #[arg(long, value_delimiter = ',', default_value = "1000")]
    nodes: Vec<u32>,
    /// Size of a block on the wire, with the suffix k or m; several sizes make several runs
    #[arg(long, value_delimiter = ',', default_value = "5k", value_parser = parse_size)]
    block_size: Vec<u32>,
    /// Number of blocks
    #[arg(long, default_value_t = 100)]
    blocks: u32,
    /// Milliseconds between two blocks
    #[arg(long, default_value_t = 2_000)]
    block_time: u64,
    /// Network of the nodes, from the ladder, or a mix such as lan=1,home-dsl=3
    #[arg(long, default_value = "transatlantic")]
    links: String,
    /// Whether a bandwidth is that of a node, or of each link
    #[arg(long, value_enum, default_value = "node")]
    bandwidth: BandwidthScope,
    /// Target size of a gossip mesh
    #[arg(long, default_value_t = 8)]
    mesh_d: u32,
    /// Size of a mesh below which peers are added
    #[arg(long, default_value_t = 6)]
    mesh_lo: u32,
    /// Size of a mesh from which on peers are removed
    #[arg(long, default_value_t = 12)]
    mesh_hi: u32,
    /// Least number of peers outside the mesh that get announcements
    #[arg(long, default_value_t = 6)]
    mesh_lazy: u32,
    /// Connections that a node wants
    #[arg(long, default_value_t = 20)]
    peers_lo: u32,
    /// Connections that a node has at most
    #[arg(long, default_value_t = 30)]
    peers_hi: u32,
    /// Microseconds to check a block before it is passed on
    #[arg(long, default_value_t = 200)]
    check: u64,
    /// Further microseconds for each KiB of the block
    #[arg(long, default_value_t = 5)]
    check_per_kib: u64,
    /// Milliseconds to execute a block of a range sync
    #[arg(long, default_value_t = 5)]
    import: u64,
    /// Share of the nodes that pass nothing on, from 0 to 0.9
    #[arg(long, default_value_t = 0.0)]
    silent: f64,
    /// Nodes among all that join while blocks are published
    #[arg(long, default_value_t = 0)]
    joins: u32,
    /// Blocks that joining nodes lack, besides the published ones
    #[arg(long, default_value_t = 1_000)]
    behind: u32,
    /// Seed of everything that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for a report of each run (JSON and HTML), and for pictures of the curves
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print the reports as JSON, one in each line, instead of the table
    #[arg(long)]
    json: bool,
}

/// Reads `5k`, `1m` or a number of bytes.
fn parse_size(text: &str) -> Result<u32, String> {
    let lower = text.to_lowercase();
    let (digits, unit) = match lower.strip_suffix(['k', 'm']) {
        Some(digits) if lower.ends_with('k') => (digits, 1 << 10),
        Some(digits) => (digits, 1 << 20),
        None => (&lower[..], 1),
    };
    let number: Option<u32> = digits.parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(unit));
    bytes.ok_or_else(|| "write a number of bytes, such as 5120, 5k or 1m".to_owned())
}

/// Runs every combination of sizes and numbers of nodes.
pub fn run(args: &ModelArgs) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for config in args.configs()? {
        reports.push(simulate(&config)?.report());
    }
    if args.json {
        for report in &reports {
            println!("{}", serde_json::to_string(report)?);
        }
    } else {
        print!("{}", report::text(&reports));
    }
    match &args.out {
        Some(folder) => args.write(folder, &reports),
        None => Ok(()),
    }
}

impl ModelArgs {
    /// All networks by size of a block, then by number of nodes. They are checked before the first
    /// run, so that a mistake shows at once.
    fn configs(&self) -> anyhow::Result<Vec<ModelConfig>> {
        let mut configs = Vec::new();
        for bytes in &self.block_size {
            for nodes in &self.nodes {
                let config = self.config(*nodes, *bytes)?;
                config.validate()?;
                configs.push(config);
            }
        }
        Ok(configs)
    }

    fn config(&self, nodes: u32, block_bytes: u32) -> anyhow::Result<ModelConfig> {
        Ok(ModelConfig {
            nodes,
            block_bytes,
            blocks: self.blocks,
            block_time: Duration::from_millis(self.block_time),
            links: LinkShare::parse_mix(&self.links)?,
            scope: self.bandwidth,
            mesh: MeshShape {
                d: self.mesh_d,
                lo: self.mesh_lo,
                hi: self.mesh_hi,
                lazy: self.mesh_lazy,
            },
            peers: PeerRange {
                lo: self.peers_lo,
                hi: self.peers_hi,
            },
            check: Duration::from_micros(self.check),
            check_per_kib: Duration::from_micros(self.check_per_kib),
            import: Duration::from_millis(self.import),
            silent: self.silent,
            joins: self.joins,
            behind: self.behind,
            processors: None,
            seed: self.seed,
        })
    }

    /// Writes the reports, and for each size of a block a picture of the curves of all networks.
    fn write(&self, folder: &PathBuf, reports: &[RunReport]) -> anyhow::Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let by_size = reports.chunks(self.nodes.len());
        for (bytes, reports) in self.block_size.iter().zip(by_size) {
            let size = outcome::size_name(*bytes);
            let slug = size.to_lowercase().replace(' ', "");
            for (nodes, report) in self.nodes.iter().zip(reports) {
                report::write(report, folder, &format!("model-{nodes}-{slug}"))?;
            }
            let curves: Vec<(String, &RunReport)> = self
                .nodes
                .iter()
                .zip(reports)
                .map(|(nodes, report)| (format!("{nodes} nodes"), report))
                .collect();
            let picture = report::propagation_picture(&format!("Blocks of {size}"), &curves);
            let path = folder.join(format!("propagation-{slug}.svg"));
            fs::write(&path, picture)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        println!("Reports are in {}", folder.display());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct ModelCommandLine {
        #[command(flatten)]
        model: ModelArgs,
    }

    #[test]
    fn every_network_is_checked_before_the_first_run() {
        let configs = |nodes: &str| {
            let line = ["model", "--nodes", nodes, "--block-size", "1k,2k"];
            ModelCommandLine::parse_from(line).model.configs()
        };
        let read: Vec<_> = configs("60,90")
            .unwrap()
            .iter()
            .map(|it| (it.nodes, it.block_bytes))
            .collect();
        assert_eq!(read, [(60, 1_024), (90, 1_024), (60, 2_048), (90, 2_048)]);
        let error = configs("50000,1").unwrap_err().to_string();
        assert!(error.starts_with("nodes of 1 is outside"), "{error}");
    }

    #[test]
    fn sizes_are_read_with_their_unit() {
        let read = ["1", "5k", "100K", "1m"].map(parse_size);
        assert_eq!(read, [1, 5_120, 102_400, 1_048_576].map(Ok));
        for bad in ["", "k", "-1", "5g", "4097m", "1.5k"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
