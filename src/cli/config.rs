//! Configuration from a command line: one plain structure per role, composed of the configured
//! modules' own structures. The rest of the program sees these structures, never a flag.

mod batcher;
mod beacon;
mod derivation;
mod endpoints;
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
pub use tools::{DbAction, DbConfig, ExportConfig, HistoryConfig, ImportConfig, InitConfig};

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
    rollup::http::endpoint_of,
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

/// Configuration of `starling node`.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub chain: Options,
    pub rollup: RollupSource,
    pub overrides: ForkOverrides,
    pub l1: L1Options,
    pub derivation: DerivationOptions,
    /// `None` if the node joins no swarm.
    pub p2p: Option<P2pConfig>,
    /// `None` if the node is a replica.
    pub sequencer: Option<SequencingConfig>,
    /// `None` if this process runs no batcher.
    pub batcher: Option<BatcherConfig>,
    /// `None` if this process runs no proposer.
    pub proposer: Option<ProposerConfig>,
    pub rpc: RpcOptions,
    pub pool: PoolConfig,
    pub history: HistoryConfig,
    pub log: LogConfig,
    pub metrics: Option<MetricsConfig>,
}

/// Configuration of `starling execution`.
#[derive(Clone, Debug)]
pub struct ExecutionConfig {
    pub chain: Options,
    /// The network whose chain the data directory must contain; `None` allows any chain.
    pub network: Option<RollupSource>,
    pub overrides: ForkOverrides,
    pub rpc: RpcOptions,
    pub engine: EngineConfig,
    pub pool: PoolConfig,
    /// Seconds between blocks of a development chain, never zero. `None` if this process builds no
    /// blocks itself.
    pub dev_period: Option<u64>,
    /// Address at which a development chain serves its blobs; `None` if it does not serve them.
    pub dev_beacon: Option<BeaconEndpointConfig>,
    pub history: HistoryConfig,
    /// `None` if this core joins no swarm.
    pub following: Option<FollowingConfig>,
    pub log: LogConfig,
    pub metrics: Option<MetricsConfig>,
}

/// Listen address of a development chain's Beacon API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeaconEndpointConfig {
    /// Host name or IP address.
    pub addr: String,
    pub port: u16,
}

/// Configuration of an execution core that follows a swarm without a rollup node.
#[derive(Clone, Debug)]
pub struct FollowingConfig {
    pub rollup: RollupSource,
    pub p2p: P2pConfig,
    /// Only blocks with this signer are followed; with `None`, no block is.
    pub signer: Option<Address>,
}

/// Configuration of `starling devnet`.
#[derive(Clone, Debug)]
pub struct DevnetConfig {
    pub replicas: usize,
    /// Data directory; `None` for a temporary one, which is removed at the end.
    pub datadir: Option<PathBuf>,
    /// Block time of the L2 in seconds, at least 1. `None`: as in the directory or in `files`,
    /// otherwise 2.
    pub l2_block_time: Option<u64>,
    /// Block time of the L1 in seconds, at least 1. `None`: as in the directory, or 6 in a new one.
    pub l1_block_time: Option<u64>,
    /// Seconds from the genesis of a new network until now.
    pub genesis_age: u64,
    pub base_port: Option<u16>,
    /// Deployment files of the user; `None` for the network's own contracts.
    pub files: Option<DevnetFiles>,
    /// File with the sequencer's key. `None`: use a development account's key, or create one.
    pub sequencer_key: Option<PathBuf>,
    /// Whether to run a batcher.
    pub batcher: bool,
    /// Whether to run a proposer.
    pub proposer: bool,
    /// Type of the dispute games that the proposer creates on the user's own contracts.
    pub game_type: u32,
    /// Value of `--log.level` for the nodes.
    pub log_level: String,
}

/// Deployment files that define a development network.
#[derive(Clone, Debug)]
pub struct DevnetFiles {
    /// Genesis file of the L1, or only its alloc.
    pub l1: PathBuf,
    pub l2: PathBuf,
    pub rollup: PathBuf,
}

#[derive(Clone, Debug)]
pub struct RpcOptions {
    pub http: Option<HttpConfig>,
    pub ws: Option<WsConfig>,
    /// Namespaces that `--http.api` and `--ws.api` name, also if these servers are off.
    pub namespaces: Vec<String>,
    /// RPC of the rollup node; `None` on an execution core.
    pub rollup: Option<RollupRpcConfig>,
    /// RPC of the sequencer, to which submitted transactions are forwarded.
    pub sequencer_http: Option<Secret>,
    /// Whether transactions that the sequencer accepted are also added to the local pool.
    pub tx_pool_admission: bool,
    /// Whether receipts leave out `l1FeeScalar` from Ecotone on.
    pub geth_exact_receipts: bool,
    /// Whether JavaScript tracers are allowed.
    pub js_tracers: bool,
    /// The local RPC socket; `None` if disabled.
    pub ipc: Option<IpcConfig>,
    /// Maximum cost of conditions per second; `None` if conditional transactions are disabled.
    pub conditional_rate: Option<u64>,
    pub gas_oracle: GasOracle,
    /// Journal of local transactions; `None` if disabled.
    pub journal: Option<JournalConfig>,
    pub limits: RpcLimits,
    /// File with RPC access keys and their budgets.
    pub access: Option<PathBuf>,
    /// RPC for history before the first block; `historical_timeout` is the timeout of its requests.
    pub historical: Option<Secret>,
    pub historical_timeout: Duration,
    /// Source of the block that the tag `pending` means.
    pub pending: PendingConfig,
}

/// Block that the tag `pending` means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingConfig {
    Latest,
    /// A block built from the pool's transactions (`--rollup.computependingblock`).
    Built,
    /// The newest flashblock from this WebSocket (`--flashblocks-url`).
    Flashblocks(Secret),
}

#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Host name or IP address.
    pub addr: String,
    pub port: u16,
    /// Namespaces that are served.
    pub api: Vec<String>,
    pub cors_domains: Vec<String>,
    pub vhosts: Vec<String>,
    /// Path prefix of the requests that are served.
    pub prefix: String,
}

#[derive(Clone, Debug)]
pub struct RollupRpcConfig {
    pub http: HttpConfig,
    /// Whether `--rpc.port` was given. If not, and the default port is in use (for example by
    /// another node on this machine), the node runs without this RPC.
    pub port_given: bool,
}

#[derive(Clone, Debug)]
pub struct WsConfig {
    /// Host name or IP address.
    pub addr: String,
    pub port: u16,
    /// Namespaces that are served.
    pub api: Vec<String>,
    pub origins: Vec<String>,
    /// Path prefix of the requests that are served.
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
                ..RpcOptions::read(values, notices)?
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
            rpc: RpcOptions::read(values, notices)?,
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
            log: geth_log(values)?,
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
    /// A core joins the swarm only if a `--p2p.*` option is on the command line. Environment
    /// variables do not count, since they may be meant for a rollup node.
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
    /// Maximum number of replicas on one machine.
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
            genesis_age: values.uint("genesis.age")?,
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
    fn read(values: &Values, notices: &mut Vec<String>) -> Result<Self, CliError> {
        let mut namespaces = |name| endpoints::namespaces(values, name, notices);
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
        let namespaces = [&http.api[..], &ws.api[..]].concat();
        let (http, ws) = (
            values.bool("http")?.then_some(http),
            values.bool("ws")?.then_some(ws),
        );
        endpoints::check_shared_port(http.as_ref(), ws.as_ref())?;
        Ok(Self {
            namespaces,
            http,
            ws,
            rollup: None,
            sequencer_http: values.text("rollup.sequencerhttp")?.map(Secret::new),
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
            historical: values.text("rollup.historicalrpc")?.map(Secret::new),
            historical_timeout: values.duration("rollup.historicalrpctimeout")?,
            pending: pending(values)?,
            access: values.text("rpc.limits")?.map(|path| expand_home(&path)),
        })
    }
}

/// Reads the source of the block that the tag `pending` means.
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
                reason: format!(
                    "{} is no WebSocket: its URL begins with ws:// or wss://",
                    endpoint_of(&url)
                ),
            })
        }
        Some(url) => Ok(PendingConfig::Flashblocks(Secret::new(url))),
        None if built => Ok(PendingConfig::Built),
        None => Ok(PendingConfig::Latest),
    }
}

impl RollupRpcConfig {
    /// The namespaces of op-node.
    fn namespaces(values: &Values) -> Result<Vec<String>, CliError> {
        let admin = values.bool("rpc.enable-admin")?.then_some("admin");
        let names = ["optimism", "superroot", "opp2p", "health"].into_iter();
        Ok(names.chain(admin).map(str::to_owned).collect())
    }

    fn read(values: &Values) -> Result<Self, CliError> {
        Ok(Self {
            http: HttpConfig {
                addr: host(values.required_text("rpc.addr")?),
                port: values.port("rpc.port")?,
                api: Self::namespaces(values)?,
                cors_domains: vec!["*".to_owned()],
                vhosts: values.list("http.vhosts")?,
                prefix: String::new(),
            },
            port_given: values.source("rpc.port").is_some(),
        })
    }
}

/// Reads the log options of a process with op-node's options.
fn node_log(values: &Values) -> Result<LogConfig, CliError> {
    Ok(LogConfig {
        level: values.required_text("log.level")?,
        format: LogFormat::named(values.text("log.format")?.as_deref()),
        color: values.bool("log.color")?,
        pid: values.bool("log.pid")?,
    })
}

/// Reads the log options of a process with op-geth's options.
fn geth_log(values: &Values) -> Result<LogConfig, CliError> {
    let format = match values.text("log.format")? {
        None if values.bool("log.json")? => LogFormat::Json,
        named => LogFormat::named(named.as_deref()),
    };
    Ok(LogConfig {
        level: values.uint("verbosity")?.to_string(),
        format,
        color: false,
        pid: false,
    })
}

/// Reads the options of a program that runs inside the node's process, where option names begin
/// with `prefix`. Errors and notices use the names with prefix.
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

/// Adds a notice if `--l2` names another host. This process replaces the execution client, so it
/// does not drive the engine there, which the operator may expect. This is not an error, because
/// every command line of op-node has the option.
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

/// Data directory of the chain.
pub fn datadir(values: &Values) -> Result<PathBuf, CliError> {
    Ok(expand_home(&values.required_text("datadir")?))
}

/// Options of the chain database: directory, memory and sync interval.
fn chain_options(values: &Values) -> Result<Options, CliError> {
    Ok(Options {
        datadir: datadir(values)?,
        cache: cache(values)?,
        commit_interval: commit_interval(values)?,
    })
}

/// Value of `--cache` in bytes.
fn cache(values: &Values) -> Result<u64, CliError> {
    Ok(values.uint("cache")?.saturating_mul(1 << 20))
}

/// Value of `--commit.interval`, checked against its range.
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

/// Listen address; 127.0.0.1 if `addr` is empty or `localhost`. A machine may resolve `localhost`
/// to ::1, but clients expect 127.0.0.1.
fn host(addr: String) -> String {
    if addr.is_empty() || addr == "localhost" {
        "127.0.0.1".into()
    } else {
        addr
    }
}

/// Expands `~/x` to a path in the user's home. A shell does the same, but values in unit files and
/// environment variables do not pass through a shell.
fn expand_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

/// Adds a warning about a key on the command line, which every user of the machine can read.
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
