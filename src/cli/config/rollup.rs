//! `starling rollup`: a rollup node that drives an execution client in another process.

use super::{
    CliError, DerivationOptions, HttpConfig, L1Options, P2pConfig, RollupRpcConfig,
    SequencingConfig, Values, batcher, datadir, expand_home, host, node_log, rules,
};
use crate::{
    networks::RollupSource,
    telemetry::{LogConfig, MetricsConfig},
};
use starling_proto::network::overrides::ForkOverrides;
use std::{path::PathBuf, time::Duration};

/// Configuration of `starling rollup`.
#[derive(Clone, Debug)]
pub struct RollupNodeConfig {
    /// Folder for the rollup node's own data: safe heads, signed blocks, peers.
    pub datadir: PathBuf,
    pub engine: RemoteEngineConfig,
    pub rollup: RollupSource,
    pub overrides: ForkOverrides,
    pub l1: L1Options,
    pub derivation: DerivationOptions,
    /// `None` if the node joins no swarm.
    pub p2p: Option<P2pConfig>,
    /// `None` if the node does not sequence.
    pub sequencer: Option<SequencingConfig>,
    pub rpc: RollupRpcConfig,
    pub log: LogConfig,
    pub metrics: Option<MetricsConfig>,
}

/// Engine API endpoint of the execution client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteEngineConfig {
    /// URL that begins with http:// or https://.
    pub url: String,
    /// File with the JWT secret, created if missing.
    pub jwt_secret: PathBuf,
    pub timeout: Duration,
}

impl RollupNodeConfig {
    pub fn read(values: &Values, notices: &mut Vec<String>) -> Result<Self, CliError> {
        let network = rules::network(values, &["network"])?;
        let rollup = rules::rollup_source(values, network, notices)?.ok_or(CliError::NoChain)?;
        let datadir = datadir(values)?;
        let overrides = rules::node_overrides(values)?;
        if overrides.lagoon.is_some() {
            return Err(CliError::Refused {
                name: "--override.interop".into(),
                reason: "the rules of Lagoon (Interop) are not known; leave it out",
            });
        }
        Ok(Self {
            engine: RemoteEngineConfig::read(values, &datadir, notices)?,
            rollup,
            overrides,
            l1: L1Options::read(values)?,
            derivation: DerivationOptions::read(values)?,
            p2p: P2pConfig::read(values, &datadir, notices)?,
            sequencer: SequencingConfig::read(values, notices)?,
            rpc: rpc(values)?,
            log: node_log(values)?,
            metrics: batcher::metrics(values)?,
            datadir,
        })
    }
}

impl RemoteEngineConfig {
    fn read(
        values: &Values,
        datadir: &std::path::Path,
        notices: &mut Vec<String>,
    ) -> Result<Self, CliError> {
        let given = values.text("l2")?.ok_or(CliError::Missing {
            name: "--l2",
            next: "a rollup node drives an execution client: give the URL of its Engine API (its --authrpc.port, mostly 8551), or run `starling node`, which executes by itself",
        })?;
        let jwt_secret = match values.text("l2.jwt-secret")? {
            Some(path) => expand_home(&path),
            None => {
                let path = datadir.join("jwt.txt");
                notices.push(format!(
                    "no --l2.jwt-secret is given: the secret in {} is used, which the execution client needs, too",
                    path.display()
                ));
                path
            }
        };
        Ok(Self {
            url: over_http(&given),
            jwt_secret,
            timeout: match values.duration("l2.engine-rpc-timeout")? {
                Duration::ZERO => {
                    return Err(CliError::Invalid {
                        name: "l2.engine-rpc-timeout",
                        reason: "a call needs some time: 10s is the default".into(),
                    });
                }
                timeout => timeout,
            },
        })
    }
}

/// Converts a WebSocket URL to HTTP. Execution clients serve both on the authenticated port.
fn over_http(url: &str) -> String {
    let of_socket = [("ws://", "http://"), ("wss://", "https://")];
    let http = of_socket.into_iter().find_map(|(scheme, http)| {
        let rest = url.strip_prefix(scheme)?;
        Some(format!("{http}{rest}"))
    });
    http.unwrap_or_else(|| url.to_owned())
}

/// Reads the options of the rollup node's RPC. As in op-node, requests with any Host header are
/// served.
fn rpc(values: &Values) -> Result<RollupRpcConfig, CliError> {
    let any = || vec!["*".to_owned()];
    Ok(RollupRpcConfig {
        http: HttpConfig {
            addr: host(values.required_text("rpc.addr")?),
            port: values.port("rpc.port")?,
            api: RollupRpcConfig::namespaces(values)?,
            cors_domains: any(),
            vhosts: any(),
            prefix: String::new(),
        },
        port_given: true,
    })
}
