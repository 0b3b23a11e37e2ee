//! `starling devnet`: a private network on this machine. Its nodes run as ordinary processes
//! of this program. Their command lines are printed, so that a user can kill,
//! restart or copy one. This module starts them, prints their endpoints, follows their heads and
//! stops them, together with nodes that were started again by their command lines; it takes no part
//! in the network.

pub mod accounts;
mod directory;
pub mod genesis;
pub mod given;
pub mod l1_config;
mod posters;
mod processes;
mod restarted;
mod status;

use crate::cli::config::DevnetConfig;
use directory::{Directory, DirectoryError};
use processes::{Process, ProcessError};
use std::{path::PathBuf, time::Duration};
use tokio_util::sync::CancellationToken;

pub use processes::end_with_parent;
#[doc(hidden)]
pub use processes::remove_options;

/// Timeout from the start of a node to its first response.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Timeout of an orderly stop of a node.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// Timeout of an orderly stop of the batcher, which waits until L1 has all blocks.
const BATCHER_STOP_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum DevnetError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("this program's own file cannot be found: {0}")]
    OwnFile(std::io::Error),
    #[error("{0}; use trace, debug, info, warn, error, crit, silent, or a number from 0 to 5")]
    Level(#[from] crate::telemetry::LogSetupError),
}

/// Role of a node in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeRole {
    L1,
    Sequencer,
    Replica,
    Batcher,
    Proposer,
}

/// A planned node of the network: its command lines and its endpoints.
#[derive(Clone, Debug)]
pub struct NodePlan {
    pub name: String,
    pub role: NodeRole,
    /// Arguments (argv) of the command that creates the node's data directory; empty if it needs
    /// none.
    pub init: Vec<String>,
    /// Arguments (argv) of the command that runs the node.
    pub command: Vec<String>,
    /// URL of the execution RPC. Both `http` and `ws` are empty for a batcher and a proposer, which
    /// have only [`NodePlan::rpc`].
    pub http: String,
    pub ws: String,
    /// URL of the RPC of a rollup node, a batcher or a proposer; `None` for the L1.
    pub rpc: Option<String>,
    pub metrics: String,
    /// Multiaddr of the node; `None` if it has no swarm: for the L1, a batcher and a proposer.
    pub p2p: Option<String>,
    /// URL of the L1's Beacon API; `None` for all other nodes.
    pub beacon: Option<String>,
    /// File that receives the node's standard output and standard error.
    pub log: PathBuf,
}

impl NodePlan {
    /// Whether the node stores a chain, which batcher and proposer do not.
    pub fn has_chain(&self) -> bool {
        !matches!(self.role, NodeRole::Batcher | NodeRole::Proposer)
    }
}

/// Runs a network until `token` is cancelled or its user ends it.
pub async fn run(config: DevnetConfig, token: CancellationToken) -> Result<(), DevnetError> {
    let program = std::env::current_exe().map_err(DevnetError::OwnFile)?;
    let verbosity = crate::telemetry::verbosity(&config.log_level)?;
    let directory = Directory::open(&config, &program.to_string_lossy(), verbosity)?;
    directory.announce();

    let started = tokio::select! {
        started = start(&directory) => Some(started?),
        _ = token.cancelled() => None,
    };
    if let Some(mut processes) = started {
        directory
            .write_description(processes.iter().map(|process| (&process.node, process.pid)))?;
        status::print_table(&directory);
        status::follow(&directory, &mut processes, &token).await;
        status::say("stopping");
        stop(processes).await;
    }
    directory.close();
    Ok(())
}

/// Stops the batcher first, because it needs all other nodes to post the last blocks, then the
/// proposer, then the other nodes.
async fn stop(processes: Vec<Process>) {
    let mut left = processes;
    for (role, limit) in [
        (NodeRole::Batcher, BATCHER_STOP_LIMIT),
        (NodeRole::Proposer, STOP_LIMIT),
    ] {
        let (first, others) = left
            .into_iter()
            .partition(|process| process.node.role == role);
        processes::stop(first, limit).await;
        left = others;
    }
    processes::stop(left, STOP_LIMIT).await;
}

/// Starts every node, and returns when all of them respond. The L1 starts first, because the other
/// nodes read from it when they start. Batcher and proposer start last.
async fn start(directory: &Directory) -> Result<Vec<Process>, DevnetError> {
    let nodes = directory.nodes();
    let (chains, posters): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| node.has_chain());
    futures::future::try_join_all(chains.iter().map(|node| processes::initialise(node))).await?;
    let (l1, l2): (Vec<_>, Vec<_>) = chains
        .into_iter()
        .partition(|node| node.role == NodeRole::L1);
    let mut running = Vec::new();
    for group in [l1, l2, posters] {
        running.extend(
            futures::future::try_join_all(
                group
                    .into_iter()
                    .map(|node| Process::start(node, START_LIMIT)),
            )
            .await?,
        );
    }
    Ok(running)
}
