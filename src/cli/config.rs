//! Configuration from a command line: one plain structure per role, made of the structures of the
//! modules that it configures. The rest of the program sees these and never a flag.

mod batcher;
mod derivation;
mod engine;
mod ipc;
mod l1;
mod limits;
mod p2p;
mod proposer;
mod rollup;
mod rules;
mod sequencer;
mod tools;
pub mod txmgr;

pub use batcher::{BatcherConfig, BatcherProcessConfig, ServiceRpcConfig};
pub use derivation::DerivationOptions;
pub use engine::EngineConfig;
pub use ipc::IpcConfig;
pub use l1::L1Options;
pub use limits::RpcLimits;
pub use p2p::{P2pConfig, P2pKey};
pub use proposer::{ProposerConfig, ProposerProcessConfig};
pub use rollup::{RemoteEngineConfig, RollupNodeConfig};
pub use sequencer::{SequencingConfig, SignerConfig};
pub use tools::{DbAction, DbConfig, ExportConfig, HistoryConfig, ImportConfig};

use super::{
    CliError,
    flags::{self, Role},
    parse::{Source, Values},
    value::Secret,
};
use crate::{
    chain::{
        Options,
        pool::{PoolConfig, journal::JournalConfig},
    },
    networks::RollupSource,
    rpc::bounds::GasOracle,
    telemetry::{LogConfig, LogFormat, MetricsConfig},
};
use alloy_primitives::Address;
use starling_proto::network::overrides::ForkOverrides;
use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// `starling node`.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub chain: Options,
    pub rollup: RollupSource,
    pub overrides: ForkOverrides,
    pub l1: L1Options,
    pub derivation: DerivationOptions,
    /// `None`: no swarm.
    pub p2p: Option<P2pConfig>,
    /// `None`: a replica.
    pub sequencer: Option<SequencingConfig>,
    /// `None`: this process posts nothing.
    pub batcher: Option<BatcherConfig>,
    /// `None`: this process proposes nothing.
    pub proposer: Option<ProposerConfig>,
    pub rpc: RpcOptions,
    pub pool: PoolConfig,
    pub history: HistoryConfig,
    pub log: LogConfig,
    pub metrics: Option<MetricsConfig>,
}

/// `starling execution`.
#[derive(Clone, Debug)]
pub struct ExecutionConfig {
    pub chain: Options,
    /// The network that the data directory must hold; `None`: any chain.
    pub network: Option<RollupSource>,
    pub overrides: ForkOverrides,
    pub rpc: RpcOptions,
    pub engine: EngineConfig,
    pub pool: PoolConfig,
    /// Seconds between blocks of a development chain; `None`: it makes no blocks. Never zero.
    pub dev_period: Option<u64>,
    /// Where a development chain serves its blobs; `None`: nowhere.
    pub dev_beacon: Option<BeaconEndpointConfig>,
    pub history: HistoryConfig,
    /// `None`: it joins no swarm.
    pub following: Option<FollowingConfig>,
    pub log: LogConfig,
    pub metrics: Option<MetricsConfig>,
}

/// Address of the Beacon API of a development chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeaconEndpointConfig {
    /// A host name or an address.
    pub addr: String,
    pub port: u16,
}

/// How an execution core follows a swarm by itself.
#[derive(Clone, Debug)]
pub struct FollowingConfig {
    pub rollup: RollupSource,
    pub p2p: P2pConfig,
    /// Signer whose blocks are followed; `None`: no block is.
    pub signer: Option<Address>,
}

/// `starling devnet`.
#[derive(Clone, Debug)]
pub struct DevnetConfig {
    pub replicas: usize,
    /// `None`: a temporary directory, removed at the end.
    pub datadir: Option<PathBuf>,
    /// Seconds, at least 1. `None`: as in the directory, or 2.
    pub l2_block_time: Option<u64>,
    /// Seconds, at least 1. `None`: as in the directory, or 6.
    pub l1_block_time: Option<u64>,
    pub base_port: Option<u16>,
    /// `None`: the network's own contracts.
    pub files: Option<DevnetFiles>,
    /// The sequencer's key; `None`: found among the development accounts, or made.
    pub sequencer_key: Option<PathBuf>,
    /// A batcher runs.
    pub batcher: bool,
    /// A proposer runs.
    pub proposer: bool,
    /// Type of the proposer's games on the user's own contracts.
    pub game_type: u32,
    /// The nodes' `--log.level`.
    pub log_level: String,
}

/// Files of a deployment that a development network runs instead of its own.
#[derive(Clone, Debug)]
pub struct DevnetFiles {
    /// A genesis file, or an alloc alone.
    pub l1: PathBuf,
    pub l2: PathBuf,
    pub rollup: PathBuf,
}

/// `starling init`.
#[derive(Clone, Debug)]
pub struct InitConfig {
    pub datadir: PathBuf,
    pub genesis: PathBuf,
    /// The chain that the genesis file must be of, also for a file without a `config`.
    pub rollup: Option<RollupSource>,
}

#[derive(Clone, Debug)]
pub struct RpcOptions {
    pub http: Option<HttpConfig>,
    pub ws: Option<WsConfig>,
    /// The rollup node's own RPC; `None` on an execution core.
    pub rollup: Option<RollupRpcConfig>,
    /// The sequencer's RPC, which gets submitted transactions.
    pub sequencer_http: Option<String>,
    /// Keep what that took in the local pool too.
    pub tx_pool_admission: bool,
    /// Leave `l1FeeScalar` out from Ecotone on.
    pub geth_exact_receipts: bool,
    /// Whether a tracer may be a script.
    pub js_tracers: bool,
    /// The local socket.
    pub ipc: Option<IpcConfig>,
    /// Cost of conditions per second; `None` where conditional transactions are not served.
    pub conditional_rate: Option<u64>,
    pub gas_oracle: GasOracle,
    /// The journal of local transactions.
    pub journal: Option<JournalConfig>,
    pub limits: RpcLimits,
    /// The file of keys and budgets.
    pub access: Option<PathBuf>,
    /// The RPC of history before the first block, and the timeout of requests to it.
    pub historical: Option<String>,
    pub historical_timeout: Duration,
    /// The source of the block `pending`.
    pub pending: PendingConfig,
}

/// The block that `pending` means, if it is not the latest one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingConfig {
    Latest,
    /// A block of the pool's transactions (`--rollup.computependingblock`).
    Built,
    /// The newest flashblock of this WebSocket (`--flashblocks-url`).
    Flashblocks(String),
}

#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// A host name or an address.
    pub addr: String,
    pub port: u16,
    /// Namespaces.
    pub api: Vec<String>,
    pub cors_domains: Vec<String>,
    pub vhosts: Vec<String>,
    /// Prefix of the paths that are served.
    pub prefix: String,
}

#[derive(Clone, Debug)]
pub struct RollupRpcConfig {
    pub http: HttpConfig,
    /// Whether `--rpc.port` was given. Without it the node goes on without this RPC where the default
    /// port is taken, as by another node on the same machine.
    pub port_given: bool,
}

#[derive(Clone, Debug)]
pub struct WsConfig {
    /// A host name or an address.
    pub addr: String,
    pub port: u16,
    /// Namespaces.
    pub api: Vec<String>,
    pub origins: Vec<String>,
    /// Prefix of the paths that are served.
    pub prefix: String,
}

impl NodeConfig {
    pub fn read(values: &Values, notices: &mut Vec<String>) -> Result<Self, CliError> {
        let network = rules::network(values, &["network", "op-network"])?;
        let rollup = rules::rollup_source(values, network, notices)?.ok_or(CliError::NoChain)?;
        notice_foreign_engine(values, notices)?;
        let chain = chain_options(values)?;
        let p2p = P2pConfig::read(values, &chain.datadir, notices)?;
        Ok(Self {
            chain,
            rollup,
            overrides: rules::node_overrides(values)?,
            l1: L1Options::read(values)?,
            derivation: DerivationOptions::read(values)?,
            p2p,
            sequencer: SequencingConfig::read(values, notices)?,
            batcher: BatcherConfig::read_in_node(values, notices)?,
            proposer: ProposerConfig::read_in_node(values, notices)?,
            rpc: RpcOptions {
                rollup: Some(RollupRpcConfig::read(values)?),
                ..RpcOptions::read(values)?
            },
            pool: limits::pool(values)?,
            history: HistoryConfig::read(values)?,
            log: node_log(values)?,
            metrics: batcher::metrics(values)?,
        })
    }
}

impl ExecutionConfig {
    pub fn read(values: &Values, notices: &mut Vec<String>) -> Result<Self, CliError> {
        let chain = chain_options(values)?;
        let network = rules::network(values, &["op-network"])?;
        Ok(Self {
            following: FollowingConfig::read(values, &chain.datadir, network.clone(), notices)?,
            chain,
            network,
            overrides: rules::execution_overrides(values)?,
            rpc: RpcOptions::read(values)?,
            engine: EngineConfig::read(values)?,
            pool: limits::pool(values)?,
            dev_period: values
                .optional_uint("dev.period")?
                .filter(|seconds| *seconds > 0),
            dev_beacon: match values.optional_port("dev.beacon.port")? {
                Some(port) => Some(BeaconEndpointConfig {
                    addr: host(values.required_text("dev.beacon.addr")?),
                    port,
                }),
                None => None,
            },
            history: HistoryConfig::read(values)?,
            log: LogConfig {
                level: values.uint("verbosity")?.to_string(),
                format: LogFormat::named(values.text("log.format")?.as_deref()),
                color: false,
                pid: false,
            },
            metrics: if values.bool("metrics")? {
                Some(MetricsConfig {
                    addr: host(values.text("metrics.addr")?.unwrap_or_default()),
                    port: values.port("metrics.port")?,
                })
            } else {
                None
            },
        })
    }
}

impl FollowingConfig {
    /// Only what stands on the command line makes a core join: the environment may be a rollup
    /// node's.
    fn read(
        values: &Values,
        datadir: &Path,
        network: Option<RollupSource>,
        notices: &mut Vec<String>,
    ) -> Result<Option<Self>, CliError> {
        let mut of_swarm = flags::of_role(Role::Execution)
            .into_iter()
            .filter(|flag| flag.name.starts_with("p2p."));
        if !of_swarm.any(|flag| values.source(&flag.name) == Some(&Source::CommandLine)) {
            return Ok(None);
        }
        let Some(p2p) = P2pConfig::read(values, datadir, notices)? else {
            return Ok(None);
        };
        let rollup = rules::rollup_source(values, network, notices)?;
        let rollup = rollup.ok_or(CliError::Missing {
            name: "--rollup.config",
            next: "--p2p.* options make this core join the swarm of its chain: give the chain's rollup.json, or its name with --op-network",
        })?;
        let signer = values.text("p2p.unsafe.block.signer")?;
        let invalid = || CliError::Invalid {
            name: "p2p.unsafe.block.signer",
            reason: "an address is 20 bytes in hex".into(),
        };
        let signer = signer
            .map(|text| text.trim().parse().map_err(|_| invalid()))
            .transpose()?;
        if signer.is_none() {
            notices.push("blocks from gossip are ignored: --p2p.unsafe.block.signer does not say whose blocks to follow".into());
        }
        Ok(Some(Self {
            rollup,
            p2p,
            signer,
        }))
    }
}

impl DevnetConfig {
    /// The most replicas one machine is asked to run.
    const MAX_REPLICAS: u64 = 50;

    pub fn read(values: &Values) -> Result<Self, CliError> {
        let replicas = values.uint("replicas")?;
        if replicas > Self::MAX_REPLICAS {
            return Err(CliError::Invalid {
                name: "replicas",
                reason: format!("{replicas} is more than {}", Self::MAX_REPLICAS),
            });
        }
        let block_time = |name| match (values.source(name), values.uint(name)?) {
            (_, 0) => Err(CliError::Invalid {
                name,
                reason: "a block time is at least 1 second".into(),
            }),
            (None, _) => Ok(None),
            (Some(_), seconds) => Ok(Some(seconds)),
        };
        Ok(Self {
            replicas: replicas as usize,
            datadir: values.text("datadir")?.map(|path| expand_home(&path)),
            l2_block_time: block_time("l2.block-time")?,
            l1_block_time: block_time("l1.block-time")?,
            base_port: match values.optional_uint("base-port")? {
                Some(_) => Some(values.port("base-port")?),
                None => None,
            },
            files: DevnetFiles::read(values)?,
            sequencer_key: values
                .text("p2p.sequencer.key.path")?
                .map(|path| expand_home(&path)),
            batcher: values.bool("batcher")?,
            proposer: values.bool("proposer")?,
            game_type: values.uint("proposer.game-type")?.try_into().map_err(|_| {
                CliError::Invalid {
                    name: "proposer.game-type",
                    reason: "a game type has 32 bits".into(),
                }
            })?,
            log_level: values.required_text("log.level")?,
        })
    }
}

impl DevnetFiles {
    fn read(values: &Values) -> Result<Option<Self>, CliError> {
        let path = |name| Ok::<_, CliError>(values.text(name)?.map(|path| expand_home(&path)));
        match (
            path("l1.genesis")?,
            path("l2.genesis")?,
            path("rollup.config")?,
        ) {
            (None, None, None) => Ok(None),
            (Some(l1), Some(l2), Some(rollup)) => Ok(Some(Self { l1, l2, rollup })),
            (l1, l2, _) => Err(CliError::Missing {
                name: match (l1, l2) {
                    (None, _) => "--l1.genesis",
                    (_, None) => "--l2.genesis",
                    _ => "--rollup.config",
                },
                next: "a network is made from all three files or from none",
            }),
        }
    }
}

impl RpcOptions {
    fn read(values: &Values) -> Result<Self, CliError> {
        let namespaces = |name| {
            let given = values.list(name)?;
            Ok::<_, CliError>(if given.is_empty() {
                ["eth", "net", "web3"].map(str::to_string).to_vec()
            } else {
                given
            })
        };
        let http = HttpConfig {
            addr: host(values.required_text("http.addr")?),
            port: values.port("http.port")?,
            api: namespaces("http.api")?,
            cors_domains: values.list("http.corsdomain")?,
            vhosts: values.list("http.vhosts")?,
            prefix: ipc::prefix(values, "http.rpcprefix")?,
        };
        let ws = WsConfig {
            addr: host(values.required_text("ws.addr")?),
            port: values.port("ws.port")?,
            api: namespaces("ws.api")?,
            origins: values.list("ws.origins")?,
            prefix: ipc::prefix(values, "ws.rpcprefix")?,
        };
        Ok(Self {
            http: values.bool("http")?.then_some(http),
            ws: values.bool("ws")?.then_some(ws),
            rollup: None,
            sequencer_http: values.text("rollup.sequencerhttp")?,
            tx_pool_admission: values.bool("rollup.enabletxpooladmission")?,
            geth_exact_receipts: values.bool("rpc.geth-exact-receipts")?,
            js_tracers: values.bool("rpc.jstracers")?,
            ipc: IpcConfig::read(values)?,
            conditional_rate: values
                .bool("rollup.sequencertxconditionalenabled")?
                .then_some(values.uint("rollup.sequencertxconditionalcostratelimit")?),
            gas_oracle: limits::gas_oracle(values)?,
            journal: limits::journal(values, &datadir(values)?)?,
            limits: RpcLimits::read(values)?,
            historical: values.text("rollup.historicalrpc")?,
            historical_timeout: values.duration("rollup.historicalrpctimeout")?,
            pending: pending(values)?,
            access: values.text("rpc.limits")?.map(|path| expand_home(&path)),
        })
    }
}

/// The source of the block `pending`.
fn pending(values: &Values) -> Result<PendingConfig, CliError> {
    let built = values.bool("rollup.computependingblock")?;
    match values.text("flashblocks-url")? {
        Some(_) if built => Err(CliError::Invalid {
            name: "flashblocks-url",
            reason: "`pending` cannot also be a block that is built here: leave out --rollup.computependingblock"
                .to_owned(),
        }),
        Some(url) if !url.starts_with("ws://") && !url.starts_with("wss://") => {
            Err(CliError::Invalid {
                name: "flashblocks-url",
                reason: format!("{url} is no URL of a WebSocket: it begins with ws:// or wss://"),
            })
        }
        Some(url) => Ok(PendingConfig::Flashblocks(url)),
        None if built => Ok(PendingConfig::Built),
        None => Ok(PendingConfig::Latest),
    }
}

impl RollupRpcConfig {
    fn read(values: &Values) -> Result<Self, CliError> {
        let admin = values.bool("rpc.enable-admin")?.then_some("admin");
        let api = ["optimism", "opp2p", "health"].into_iter().chain(admin);
        Ok(Self {
            http: HttpConfig {
                addr: host(values.required_text("rpc.addr")?),
                port: values.port("rpc.port")?,
                api: api.map(str::to_owned).collect(),
                cors_domains: vec!["*".to_owned()],
                vhosts: values.list("http.vhosts")?,
                prefix: String::new(),
            },
            port_given: values.source("rpc.port").is_some(),
        })
    }
}

/// The log of a process with op-node's options.
fn node_log(values: &Values) -> Result<LogConfig, CliError> {
    Ok(LogConfig {
        level: values.required_text("log.level")?,
        format: LogFormat::named(values.text("log.format")?.as_deref()),
        color: values.bool("log.color")?,
        pid: values.bool("log.pid")?,
    })
}

/// Reads the options of a program that runs in the node's process, where their names begin with
/// `prefix`. Errors and notices use the prefixed names.
fn in_node<T>(
    values: &Values,
    prefix: &str,
    notices: &mut Vec<String>,
    read: impl FnOnce(&Values, &mut Vec<String>) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let prefixed = |text: String| text.replace("--", &format!("--{prefix}"));
    let mut own = Vec::new();
    let config = read(&values.scoped(prefix), &mut own);
    notices.extend(own.into_iter().map(prefixed));
    config.map_err(|error| CliError::Usage(prefixed(error.to_string())))
}

impl InitConfig {
    pub fn read(
        values: &Values,
        genesis: PathBuf,
        notices: &mut Vec<String>,
    ) -> Result<Self, CliError> {
        let network = rules::network(values, &["network"])?;
        Ok(Self {
            datadir: datadir(values)?,
            genesis,
            rollup: rules::rollup_source(values, network, notices)?,
        })
    }
}

/// Adds a notice unless `--l2` names this machine, where this process replaces the execution
/// client. The operator of an engine on another host may expect it to be driven. It is no error,
/// because every command line of op-node has the option.
fn notice_foreign_engine(values: &Values, notices: &mut Vec<String>) -> Result<(), CliError> {
    let Some(url) = values.text("l2")? else {
        return Ok(());
    };
    let host = url
        .parse::<http::Uri>()
        .ok()
        .and_then(|url| Some(url.host()?.trim_matches(['[', ']']).to_owned()));
    let is_here = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
    if !host.is_some_and(|host| host == "localhost" || host.parse().is_ok_and(is_here)) {
        notices.push("--l2 names an engine on another host: nothing drives it, the execution core runs in this process".into());
    }
    Ok(())
}

/// Where the chain's data is.
pub fn datadir(values: &Values) -> Result<PathBuf, CliError> {
    Ok(expand_home(&values.required_text("datadir")?))
}

/// The chain database: its directory, memory and sync interval.
fn chain_options(values: &Values) -> Result<Options, CliError> {
    Ok(Options {
        datadir: datadir(values)?,
        cache: cache(values)?,
        commit_interval: commit_interval(values)?,
    })
}

/// Bytes of `--cache`.
fn cache(values: &Values) -> Result<u64, CliError> {
    Ok(values.uint("cache")?.saturating_mul(1 << 20))
}

/// Checked range of `--commit.interval`.
fn commit_interval(values: &Values) -> Result<Duration, CliError> {
    const MIN: Duration = Duration::from_millis(10);
    const MAX: Duration = Duration::from_secs(600);
    let name = "commit.interval";
    match values.duration(name)? {
        interval if (MIN..=MAX).contains(&interval) => Ok(interval),
        interval => Err(CliError::Invalid {
            name,
            reason: format!("{interval:?} is not between {MIN:?} and {MAX:?}"),
        }),
    }
}

/// The listen address; 127.0.0.1 if none is given. `localhost` means 127.0.0.1 too, as clients
/// expect: a machine may resolve it to ::1 first.
fn host(addr: String) -> String {
    if addr.is_empty() || addr == "localhost" {
        "127.0.0.1".into()
    } else {
        addr
    }
}

/// `~/x` in the user's home, as a shell would have it; unit files and environment variables see no
/// shell.
fn expand_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

/// Warns of a key on the command line, which everyone on the machine can read.
fn warn_of_key(values: &Values, name: &'static str, better: &str, notices: &mut Vec<String>) {
    if let (Some(Source::CommandLine), Some(env)) = (values.source(name), env_name(name)) {
        notices
            .push(format!("--{name} shows the key to everyone on this machine: better put it in a file ({better}) or in {env}"));
    }
}

fn env_name(name: &str) -> Option<String> {
    flags::of_role(Role::Node)
        .into_iter()
        .find(|flag| flag.name == name)?
        .env_names()
        .into_iter()
        .next()
}
