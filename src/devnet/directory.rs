//! Directory of a development network: genesis files, keys, one folder and one log per node, and
//! `devnet.json`, which describes the network for other programs. A directory that the user names
//! is kept, and the next run resumes its network.

use super::{
    NodePlan, NodeRole,
    accounts::{self, DevAccount},
    genesis::{self, GenesisBuildError, Plan},
    given::{Given, GivenError},
    l1_config,
    posters::{self, PosterPlan, ProposalContract},
};
use crate::{
    chain::store::{Lock, StoreError},
    cli::{config::DevnetConfig, key},
    clock::unix_now,
};
use alloy_primitives::Address;
use command_lines::{CommandLines, Member};
use ports::{NodePorts, PortClaims, Ports};
use serde::{Deserialize, Serialize};
use starling_proto::config::RollupConfig;
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

mod command_lines;
mod ports;

const L1_GENESIS: &str = "l1-genesis.json";
/// File name for `--rollup.l1-chain-config`.
const L1_CHAIN_CONFIG: &str = "l1-chain-config.json";
const L2_GENESIS: &str = "l2-genesis.json";
/// File that is written last. If it exists, the network's files are complete.
const ROLLUP: &str = "rollup.json";
const DESCRIPTION: &str = "devnet.json";
const DEFAULT_L1_BLOCK_TIME: u64 = 6;
const DEFAULT_L2_BLOCK_TIME: u64 = 2;

#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    #[error("{} cannot be used: {error}; check the path and its permissions", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{} is not empty and holds no development network; name another --datadir, or remove it", .0.display())]
    Foreign(PathBuf),
    #[error(
        "a network runs in {} already{}: stop it first, or name another --datadir",
        path.display(), .pid.map(|pid| format!(", as process {pid}")).unwrap_or_default()
    )]
    Running { path: PathBuf, pid: Option<u32> },
    #[error(transparent)]
    Lock(StoreError),
    #[error("{} is damaged ({reason}); remove the directory to begin anew", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("the network in {} has an L2 block every {kept} s, which cannot change; leave --l2.block-time out", path.display())]
    BlockTime { path: PathBuf, kept: u64 },
    #[error("the network in {} has a genesis, which cannot change; leave --genesis.age out", path.display())]
    GenesisAge { path: PathBuf },
    #[error("port {port} is in use ({error}); choose another --base-port")]
    Port { port: u32, error: io::Error },
    #[error("no free port was found: {0}")]
    NoPort(io::Error),
    #[error(transparent)]
    Genesis(#[from] GenesisBuildError),
    #[error(transparent)]
    Given(#[from] GivenError),
    #[error(
        "no key of {0}, who signs blocks by the L1's SystemConfig, is known; give --p2p.sequencer.key.path"
    )]
    NoSequencerKey(Address),
    #[error("--p2p.sequencer.key.path: {reason}")]
    SequencerKey { reason: String },
    #[error("the clock of this machine, or the genesis by --genesis.age, stands before 1970")]
    Clock,
}

/// Contents of `devnet.json`.
#[derive(Serialize, Deserialize)]
struct Description {
    chain_ids: ChainIds,
    contracts: Contracts,
    nodes: Vec<NodeEntry>,
    accounts: Vec<AccountEntry>,
}

#[derive(Serialize, Deserialize)]
struct ChainIds {
    l1: u64,
    l2: u64,
}

#[derive(Serialize, Deserialize)]
struct Contracts {
    portal: Address,
    system_config: Address,
    /// Address of the output oracle that the proposer uses, if it uses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    output_oracle: Option<Address>,
    /// Address of the dispute game factory that the proposer uses, if it uses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dispute_game_factory: Option<Address>,
}

#[derive(Serialize, Deserialize)]
struct NodeEntry {
    name: String,
    role: NodeRole,
    pid: u32,
    command: Vec<String>,
    /// Empty for a batcher and a proposer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    http: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    ws: String,
    /// URL of the RPC of a rollup node, a batcher or a proposer; `None` for the L1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rpc: Option<String>,
    metrics: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    p2p: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beacon: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct AccountEntry {
    address: Address,
    private_key: String,
}

/// An open directory and the plans of its nodes.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Locked while the network runs: a second network in this directory would use the same ports,
    /// keys and data directories.
    _lock: Lock,
    /// Held while the network runs, so that other networks choose other ports.
    _claims: PortClaims,
    temporary: Option<TempDir>,
    resumed: bool,
    /// Whether the network was created from the user's deployment files.
    given: bool,
    rollup: RollupConfig,
    nodes: Vec<NodePlan>,
    /// Contract that receives proposals, even if no proposer runs.
    proposals: Option<ProposalContract>,
    /// Messages for the user about a batcher or proposer that cannot run.
    notes: Vec<String>,
}

/// Accounts of the batcher and the proposer that run in the network.
struct Posters {
    batcher: Option<DevAccount>,
    proposer: Option<PosterPlan>,
    proposals: Option<ProposalContract>,
    notes: Vec<String>,
}

impl Directory {
    /// Creates a network, or opens the existing one. `program` becomes the first word of every
    /// command line.
    pub fn open(
        config: &DevnetConfig,
        program: &str,
        verbosity: u8,
    ) -> Result<Self, DirectoryError> {
        let (path, temporary) = place(config.datadir.as_deref())?;
        let lock = lock(&path)?;
        let resumed = path.join(ROLLUP).exists();
        if resumed {
            check_kept(&path, config)?;
        } else {
            make(&path, config)?;
        }
        // Write this file at every start: a network created by an earlier version lacks it.
        write_l1_config(&path)?;
        let rollup = read_rollup(&path)?;
        let posters = plan_posters(&path, &rollup, config)?;
        let mut ports = Ports::new(config.base_port);
        let nodes = plan_nodes(&path, program, config, verbosity, &posters, &mut ports)?;
        let given = config.files.is_some();
        Ok(Self {
            path,
            _lock: lock,
            _claims: ports.release(),
            temporary,
            resumed,
            given,
            rollup,
            nodes,
            proposals: posters.proposals,
            notes: posters.notes,
        })
    }

    /// Prints the network's directory and the command lines of its nodes.
    pub fn announce(&self) {
        let fate = match (&self.temporary, self.resumed) {
            (Some(_), _) => "temporary, removed at the end",
            (None, false) => "new, kept",
            (None, true) => "resumed, kept",
        };
        println!("development network in {} ({fate})", self.path.display());
        if self.given && self.resumed {
            println!(
                "the network is resumed with the genesis files and the {ROLLUP} in the directory; the given files are not used"
            );
        } else if self.given {
            println!(
                "both chains begin now: {L1_GENESIS}, {L2_GENESIS} and {ROLLUP} there hold the new times and hashes (L2 {})",
                self.rollup.genesis.l2.hash
            );
        }
        for note in &self.notes {
            println!("{note}");
        }
        println!();
        for node in &self.nodes {
            println!("{}", node.command_line());
        }
    }

    /// Contract that receives proposals; `None` if the L1 has none that we recognise.
    pub fn proposals(&self) -> Option<ProposalContract> {
        self.proposals
    }

    /// All nodes in start order: the L1, the sequencer, the replicas, the batcher, the proposer.
    pub fn nodes(&self) -> &[NodePlan] {
        &self.nodes
    }

    /// The network's rollup config.
    pub fn rollup(&self) -> &RollupConfig {
        &self.rollup
    }

    /// Path of `devnet.json`.
    pub fn description(&self) -> PathBuf {
        self.path.join(DESCRIPTION)
    }

    /// Writes `devnet.json` atomically, with the running nodes and their process ids.
    pub fn write_description<'a>(
        &self,
        running: impl IntoIterator<Item = (&'a NodePlan, u32)>,
    ) -> Result<(), DirectoryError> {
        let entry = |(node, pid): (&NodePlan, u32)| {
            let NodePlan {
                name,
                role,
                command,
                http,
                ws,
                rpc,
                metrics,
                p2p,
                beacon,
                ..
            } = node.clone();
            NodeEntry {
                name,
                role,
                pid,
                command,
                http,
                ws,
                rpc,
                metrics,
                p2p,
                beacon,
            }
        };
        let account = |account: accounts::DevAccount| AccountEntry {
            address: account.address,
            private_key: account.private_key,
        };
        let description = Description {
            chain_ids: ChainIds {
                l1: self.rollup.l1_chain_id,
                l2: self.rollup.l2_chain_id,
            },
            contracts: Contracts {
                portal: self.rollup.deposit_contract_address,
                system_config: self.rollup.l1_system_config_address,
                output_oracle: match self.proposals {
                    Some(ProposalContract::OutputOracle(address)) => Some(address),
                    _ => None,
                },
                dispute_game_factory: match self.proposals {
                    Some(ProposalContract::DisputeGameFactory(address)) => Some(address),
                    _ => None,
                },
            },
            nodes: running.into_iter().map(entry).collect(),
            accounts: accounts::all().into_iter().map(account).collect(),
        };
        let text = serde_json::to_string_pretty(&description)
            .map_err(|error| self.damaged(DESCRIPTION, error))?;
        write(&self.path, DESCRIPTION, &text, 0o644)
    }

    /// Removes the directory if it is a temporary one.
    pub fn close(self) {
        if let Some(temporary) = self.temporary
            && let Err(error) = temporary.close()
        {
            println!("{} could not be removed: {error}", self.path.display());
        }
    }

    fn damaged(&self, file: &str, reason: impl ToString) -> DirectoryError {
        DirectoryError::Damaged {
            path: self.path.join(file),
            reason: reason.to_string(),
        }
    }
}

/// Path of the network's directory: `datadir`, created if missing, or a new temporary directory.
fn place(datadir: Option<&Path>) -> Result<(PathBuf, Option<TempDir>), DirectoryError> {
    let failed = |path: &Path, error| DirectoryError::Io {
        path: path.to_path_buf(),
        error,
    };
    let Some(path) = datadir else {
        let made = tempfile::Builder::new()
            .prefix("starling-devnet-")
            .tempdir();
        let made = made.map_err(|error| failed(&std::env::temp_dir(), error))?;
        return Ok((made.path().to_path_buf(), Some(made)));
    };
    fs::create_dir_all(path).map_err(|error| failed(path, error))?;
    let path = fs::canonicalize(path).map_err(|error| failed(path, error))?;
    Ok((path, None))
}

/// Plans the L1, the sequencer and the replicas. Each node gets the ports of the last run if they
/// are free.
fn plan_nodes(
    path: &Path,
    program: &str,
    config: &DevnetConfig,
    verbosity: u8,
    posters: &Posters,
    taken: &mut Ports,
) -> Result<Vec<NodePlan>, DirectoryError> {
    let earlier = earlier(path);
    let ports = |name: &str, ports: &mut Ports| {
        let last = earlier.iter().find(|node| node.name == name);
        ports.of_node(last.map(NodePorts::of))
    };
    let lines = CommandLines {
        path,
        program,
        log_level: &config.log_level,
        verbosity,
        l1_block_time: config
            .l1_block_time
            .or_else(|| kept_period(&earlier))
            .unwrap_or(DEFAULT_L1_BLOCK_TIME),
    };
    let l1_ports = ports("l1", taken)?;
    let replicas = (1..=config.replicas).map(|n| (NodeRole::Replica, format!("replica-{n}")));
    let mut members = Vec::new();
    for (role, name) in [(NodeRole::Sequencer, "sequencer".to_string())]
        .into_iter()
        .chain(replicas)
    {
        members.push(Member {
            peer: lines.peer(&name)?,
            ports: ports(&name, taken)?,
            role,
            name,
        });
    }
    let l2 = members
        .iter()
        .map(|member| lines.l2(member, &members, &l1_ports));
    let mut nodes: Vec<NodePlan> = [lines.l1(&l1_ports)].into_iter().chain(l2).collect();
    let sequencer = &members[0].ports;
    if let Some(account) = &posters.batcher {
        let ports = ports("batcher", taken)?;
        nodes.push(lines.batcher(account, &ports, &l1_ports, sequencer)?);
    }
    if let Some(plan) = &posters.proposer {
        let ports = ports("proposer", taken)?;
        let game_type = config.game_type;
        nodes.push(lines.proposer(plan, game_type, &ports, &l1_ports, sequencer)?);
    }
    Ok(nodes)
}

/// Finds the accounts of batcher and proposer, and the contract that receives proposals.
fn plan_posters(
    path: &Path,
    rollup: &RollupConfig,
    config: &DevnetConfig,
) -> Result<Posters, DirectoryError> {
    let genesis = read_l1_genesis(path)?;
    let batcher = config.batcher.then(|| posters::batcher(rollup)).transpose();
    let plan = posters::proposer(&genesis, rollup, config.game_type);
    let proposals = plan.as_ref().ok().map(|plan| plan.contract);
    let proposer = config.proposer.then_some(plan).transpose();
    let notes = [batcher.as_ref().err(), proposer.as_ref().err()];
    let notes = notes.into_iter().flatten().cloned().collect();
    Ok(Posters {
        batcher: batcher.ok().flatten(),
        proposer: proposer.ok().flatten(),
        proposals,
        notes,
    })
}

/// Locks the directory for this process before anything in it is read or written. Refuses a foreign
/// directory without creating a lock file in it.
fn lock(path: &Path) -> Result<Lock, DirectoryError> {
    if !path.join(ROLLUP).exists() && !path.join(Lock::NAME).exists() {
        check_empty(path)?;
    }
    Lock::take(path).map_err(|error| match error {
        StoreError::Locked { pid } => DirectoryError::Running {
            path: path.to_path_buf(),
            pid,
        },
        error => DirectoryError::Lock(error),
    })
}

/// Returns an error if the directory contains anything except a lock file.
fn check_empty(path: &Path) -> Result<(), DirectoryError> {
    let mut entries = fs::read_dir(path).map_err(|error| DirectoryError::Io {
        path: path.to_path_buf(),
        error,
    })?;
    let is_lock = |entry: fs::DirEntry| entry.file_name() == Lock::NAME;
    if entries.all(|entry| entry.is_ok_and(is_lock)) {
        Ok(())
    } else {
        Err(DirectoryError::Foreign(path.to_path_buf()))
    }
}

/// Creates a network in an empty directory: writes genesis files and keys.
fn make(path: &Path, config: &DevnetConfig) -> Result<(), DirectoryError> {
    check_empty(path)?;
    // Read the user's files before writing anything, so that a bad file leaves no partial network
    // behind.
    let given = config.files.as_ref().map(Given::read).transpose()?;
    let signer = given.as_ref().map(Given::signer).transpose()?;
    let time = unix_now()
        .checked_sub(config.genesis_age)
        .filter(|time| *time > 0)
        .ok_or(DirectoryError::Clock)?;
    let given = given
        .map(|given| given.files(time, config.l2_block_time, config.game_type))
        .transpose()?;
    let sequencer = sequencer_key(path, config.sequencer_key.as_deref(), signer)?;
    let files = match given {
        Some(files) => files,
        None => {
            let l2_block_time = config.l2_block_time.unwrap_or(DEFAULT_L2_BLOCK_TIME);
            genesis::build(&Plan {
                time,
                l2_block_time,
                sequencer,
            })?
        }
    };
    write(path, L1_GENESIS, &format!("{:#}", files.l1_genesis), 0o644)?;
    write(path, L2_GENESIS, &format!("{:#}", files.l2_genesis), 0o644)?;
    write(path, ROLLUP, &files.rollup.to_json(), 0o644)
}

/// Writes the sequencer's key file and returns the key's address. The key is the user's, or that of
/// the development account that the L1 names as signer, or a new one.
fn sequencer_key(
    path: &Path,
    given: Option<&Path>,
    signer: Option<Address>,
) -> Result<Address, DirectoryError> {
    const FILE: &str = "sequencer.key";
    let key = match (given, signer) {
        (Some(file), _) => {
            let text = fs::read_to_string(file).map_err(|error| DirectoryError::Io {
                path: file.to_path_buf(),
                error,
            })?;
            Some(text.trim().trim_start_matches("0x").to_owned())
        }
        (None, Some(signer)) => {
            let account = accounts::all()
                .into_iter()
                .find(|account| account.address == signer);
            let key = account
                .ok_or(DirectoryError::NoSequencerKey(signer))?
                .private_key;
            Some(key.trim_start_matches("0x").to_owned())
        }
        (None, None) => None,
    };
    let refused = |reason: String| DirectoryError::SequencerKey { reason };
    let Some(key) = key else {
        let damaged = || DirectoryError::Damaged {
            path: path.join(FILE),
            reason: "it is no key".into(),
        };
        return accounts::address_of(&new_key(path, FILE)?).ok_or_else(damaged);
    };
    let address = accounts::address_of(&key)
        .ok_or_else(|| refused("the file holds no key of 32 bytes in hex".into()))?;
    if let Some(signer) = signer.filter(|signer| *signer != address) {
        return Err(refused(format!(
            "the key is that of {address}, and the L1's SystemConfig names {signer}"
        )));
    }
    write(path, FILE, &key, 0o600)?;
    Ok(address)
}

/// Writes the L1's chain config to a file beside its genesis.
fn write_l1_config(path: &Path) -> Result<(), DirectoryError> {
    let genesis = read_l1_genesis(path)?;
    write(
        path,
        L1_CHAIN_CONFIG,
        &format!("{:#}", l1_config::of_genesis(&genesis)),
        0o644,
    )
}

fn read_l1_genesis(path: &Path) -> Result<serde_json::Value, DirectoryError> {
    let file = path.join(L1_GENESIS);
    let damaged = |reason: String| DirectoryError::Damaged {
        path: file.clone(),
        reason,
    };
    let text = fs::read_to_string(&file).map_err(|error| damaged(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))
}

fn read_rollup(path: &Path) -> Result<RollupConfig, DirectoryError> {
    let file = path.join(ROLLUP);
    let damaged = |reason: String| DirectoryError::Damaged {
        path: file.clone(),
        reason,
    };
    let text = fs::read_to_string(&file).map_err(|error| damaged(error.to_string()))?;
    RollupConfig::from_json(&text).map_err(|error| damaged(error.to_string()))
}

/// Returns an error if an option differs from the existing network and cannot change.
fn check_kept(path: &Path, config: &DevnetConfig) -> Result<(), DirectoryError> {
    if config.genesis_age > 0 {
        return Err(DirectoryError::GenesisAge {
            path: path.to_path_buf(),
        });
    }
    let kept = read_rollup(path)?.block_time;
    match config.l2_block_time {
        Some(wanted) if wanted != kept => Err(DirectoryError::BlockTime {
            path: path.to_path_buf(),
            kept,
        }),
        _ => Ok(()),
    }
}

/// Nodes of the last run; empty if `devnet.json` is missing or unreadable.
fn earlier(path: &Path) -> Vec<NodeEntry> {
    let text = fs::read_to_string(path.join(DESCRIPTION)).unwrap_or_default();
    serde_json::from_str::<Description>(&text)
        .map(|description| description.nodes)
        .unwrap_or_default()
}

/// Block time of the L1 in the last run, in seconds.
fn kept_period(earlier: &[NodeEntry]) -> Option<u64> {
    let command = &earlier
        .iter()
        .find(|node| node.role == NodeRole::L1)?
        .command;
    command
        .iter()
        .find_map(|word| word.strip_prefix("--dev.period=")?.parse().ok())
}

/// Creates a key in a file that only its owner can read, or reads the existing one. Returns the
/// key.
fn new_key(path: &Path, name: &str) -> Result<String, DirectoryError> {
    let file = path.join(name);
    match fs::read_to_string(&file) {
        Ok(key) => Ok(key.trim().to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = key::Tool::Generate
                .run("")
                .map_err(|error| DirectoryError::Damaged {
                    path: file,
                    reason: error.to_string(),
                })?;
            write(path, name, &key, 0o600)?;
            Ok(key)
        }
        Err(error) => Err(DirectoryError::Io { path: file, error }),
    }
}

/// Writes a file atomically: writes to a temporary name first, then renames.
fn write(directory: &Path, name: &str, text: &str, mode: u32) -> Result<(), DirectoryError> {
    let path = directory.join(name);
    let beside = directory.join(format!(".{name}.new"));
    let written = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&beside, &path)
    };
    written().map_err(|error| DirectoryError::Io {
        path: path.clone(),
        error,
    })
}

#[cfg(test)]
mod tests;
