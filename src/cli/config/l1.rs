//! L1 options (`--l1*`): endpoints, intervals and confirmation depth for following L1, and the
//! Beacon API.

use super::{CliError, Values, beacon, expand_home};
use crate::rollup::{
    beacon::BeaconConfig,
    http::endpoint_of,
    l1::{L1Config, RpcKind, is_socket_path},
};
use std::{path::PathBuf, time::Duration};

/// URL schemes of L1 endpoints; a value without one of them is the path of a socket.
const SCHEMES: [&str; 4] = ["http://", "https://", "ws://", "wss://"];

/// Configuration of L1.
#[derive(Clone, Debug)]
pub struct L1Options {
    pub client: L1Config,
    /// Whether `--l1` was given; otherwise the endpoint is the default.
    pub given: bool,
    /// Beacon API; `None` without `--l1.beacon`.
    pub beacon: Option<BeaconConfig>,
    /// Whether to start even if the Beacon API fails its health check, or is needed but not given
    /// (`--l1.beacon.ignore`).
    pub beacon_ignored: bool,
    /// Number of L1 blocks to cache; zero means 3/2 of the sequencing window.
    pub cache_size: u64,
    /// Interval of polling L1's head; never zero.
    pub poll_interval: Duration,
    /// Interval of polling L1's safe and finalized blocks; zero means never.
    pub epoch_interval: Duration,
    /// Interval of reading the block signer from L1 again; zero means never.
    pub reload_interval: Duration,
    /// Number of L1 blocks by which to stay behind L1's head.
    pub confs: u64,
    /// Genesis file or chain config of an L1 that is not built in.
    pub chain_config: Option<PathBuf>,
}

impl L1Options {
    /// Minimum of all intervals; shorter ones would only add load.
    const MIN_INTERVAL: Duration = Duration::from_millis(50);

    pub(super) fn read(values: &Values) -> Result<Self, CliError> {
        let within = |name, least: u64, most: u64| match values.uint(name)? {
            value if (least..=most).contains(&value) => Ok(value as usize),
            value => Err(CliError::Invalid {
                name,
                reason: format!("{value} is not between {least} and {most}"),
            }),
        };
        let kind = values.required_text("l1.rpckind")?.parse();
        let epoch_interval = values.duration("l1.epoch-poll-interval")?;
        Ok(Self {
            client: L1Config {
                trust: values.bool("l1.trustrpc")?,
                max_concurrency: within("l1.max-concurrency", 1, 10_000)?,
                max_batch: within("l1.rpc-max-batch-size", 1, 500)?,
                rate_limit: values.float("l1.rpc-rate-limit")?,
                kind: kind.unwrap_or(RpcKind::Standard),
                ..L1Config::new(endpoints(values, "l1")?)
            },
            given: values.source("l1").is_some(),
            beacon: beacon::read(values)?,
            beacon_ignored: values.bool("l1.beacon.ignore")?,
            cache_size: values.uint("l1.cache-size")?,
            poll_interval: values
                .duration("l1.http-poll-interval")?
                .max(Self::MIN_INTERVAL),
            epoch_interval: if epoch_interval.is_zero() {
                epoch_interval
            } else {
                epoch_interval.max(Self::MIN_INTERVAL)
            },
            reload_interval: values.duration("l1.runtime-config-reload-interval")?,
            confs: values.uint("verifier.l1-confs")?,
            chain_config: values
                .text("rollup.l1-chain-config")?
                .map(|path| expand_home(&path)),
        })
    }
}

/// Reads a list of endpoints, each of which must be a URL with a known scheme or a socket path.
pub(super) fn endpoints(values: &Values, name: &'static str) -> Result<String, CliError> {
    let given = values.required_text(name)?;
    let is_known = |endpoint: &str| {
        SCHEMES.iter().any(|scheme| endpoint.starts_with(scheme)) || is_socket_path(endpoint)
    };
    match given.split(',').map(str::trim).find(|endpoint| !is_known(endpoint)) {
        None => Ok(given),
        Some(endpoint) => Err(CliError::Value {
            name: format!("--{name}"),
            expected: "a URL that begins with http://, https://, ws:// or wss://, or the path of a socket, or several, separated by commas"
                .into(),
            given: format!("{:?}", endpoint_of(endpoint)),
        }),
    }
}
