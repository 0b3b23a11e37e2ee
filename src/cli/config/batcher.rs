//! Options of the batcher, as a separate process, or under `--batcher.` in the node's process.

use super::{CliError, HttpConfig, Values, host, in_node, l1::endpoints, node_log, txmgr};
use crate::{
    batcher::options::{BatcherOptions, PidOptions, ThrottleCurve, ThrottleOptions},
    cli::flags::{Program, prefix_in_node},
    l2_source::L2Endpoints,
    rollup::l1::L1Config,
    telemetry::{LogConfig, MetricsConfig},
    txmgr::{options::TxOptions, sign::TxSignerConfig},
};
use starling_proto::encoder::CompressorKind;

/// Ratio of the upper to the lower throttling threshold, as in the defaults. Used if only the lower
/// threshold is given, by its old name.
const UPPER_BY_LOWER: u64 = 4;

/// Configuration of a batcher.
#[derive(Clone, Debug)]
pub struct BatcherConfig {
    /// L1 endpoint; `None` in the node's process, to use the node's.
    pub l1: Option<L1Config>,
    pub options: BatcherOptions,
    /// Block builders that get the throttling limits, in addition to the L2 execution clients.
    pub throttle_endpoints: Vec<String>,
    pub tx: TxOptions,
    pub signer: TxSignerConfig,
    /// RPC of the batcher; `None` in the node's process without `--batcher.rpc.port`.
    pub rpc: Option<ServiceRpcConfig>,
}

/// Configuration of `starling batcher`.
#[derive(Clone, Debug)]
pub struct BatcherProcessConfig {
    pub batcher: BatcherConfig,
    pub l2: L2Endpoints,
    pub log: LogConfig,
    pub metrics: Option<MetricsConfig>,
}

/// RPC of a batcher or a proposer.
#[derive(Clone, Debug)]
pub struct ServiceRpcConfig {
    pub http: HttpConfig,
    /// Whether to serve the namespaces `admin` and `txmgr` (`--rpc.enable-admin`).
    pub admin: bool,
}

impl BatcherProcessConfig {
    pub fn read(values: &Values, notices: &mut Vec<String>) -> Result<Self, CliError> {
        let batcher = BatcherConfig::read(values, notices)?;
        if batcher.l1.is_none() {
            return Err(CliError::Missing {
                name: "--l1-eth-rpc",
                next: "data is posted on L1: give the URL of an L1 execution client",
            });
        }
        let l2 = L2Endpoints {
            rollup: values.list("rollup-rpc")?,
            eth: values.list("l2-eth-rpc")?,
            check_interval: values.duration("active-sequencer-check-duration")?,
            timeout: batcher.tx.network_timeout,
        };
        if l2.eth.is_empty() {
            return Err(CliError::Missing {
                name: "--l2-eth-rpc",
                next: "blocks are read from L2: give the URL of the sequencer's execution client",
            });
        }
        check_rollup_rpc(&l2)?;
        Ok(Self {
            batcher,
            l2,
            log: node_log(values)?,
            metrics: metrics(values)?,
        })
    }
}

impl BatcherConfig {
    /// Reads the batcher options of `starling node`; `None` without `--batcher.enabled`.
    pub(super) fn read_in_node(
        values: &Values,
        notices: &mut Vec<String>,
    ) -> Result<Option<Self>, CliError> {
        if !values.bool("batcher.enabled")? {
            return Ok(None);
        }
        let prefix = prefix_in_node(Program::OpBatcher);
        let mut config = in_node(values, prefix, notices, Self::read)?;
        if values.source("batcher.rpc.port").is_none() {
            config.rpc = None;
        }
        Ok(Some(config))
    }

    fn read(values: &Values, notices: &mut Vec<String>) -> Result<Self, CliError> {
        let options = options(values, notices)?;
        let checked = options.check();
        checked.map_err(|error| CliError::Usage(error.to_string()))?;
        Ok(Self {
            l1: l1(values)?,
            options,
            throttle_endpoints: values.list("throttle.additional-endpoints")?,
            tx: txmgr::options(values, txmgr::BATCHER)?,
            signer: txmgr::signer(values, txmgr::BATCHER, notices)?,
            rpc: Some(ServiceRpcConfig::read(values)?),
        })
    }
}

impl ServiceRpcConfig {
    pub(super) fn read(values: &Values) -> Result<Self, CliError> {
        let admin = values.bool("rpc.enable-admin")?;
        let of_admin: &[&str] = if admin { &["admin", "txmgr"] } else { &[] };
        let api = ["health"].iter().chain(of_admin);
        Ok(Self {
            http: HttpConfig {
                addr: host(values.required_text("rpc.addr")?),
                port: values.port("rpc.port")?,
                api: api.map(|name| name.to_string()).collect(),
                cors_domains: vec!["*".to_owned()],
                vhosts: vec!["*".to_owned()],
                prefix: String::new(),
            },
            admin,
        })
    }
}

/// Configuration of the L1 endpoint; `None` without `--l1-eth-rpc`.
pub(super) fn l1(values: &Values) -> Result<Option<L1Config>, CliError> {
    if values.text("l1-eth-rpc")?.is_none() {
        return Ok(None);
    }
    Ok(Some(L1Config {
        timeout: values.duration("network-timeout")?,
        ..L1Config::new(endpoints(values, "l1-eth-rpc")?)
    }))
}

pub(super) fn check_rollup_rpc(l2: &L2Endpoints) -> Result<(), CliError> {
    if l2.rollup.is_empty() {
        return Err(CliError::Missing {
            name: "--rollup-rpc",
            next: "the safe head is read from a rollup node: give the URL of its RPC",
        });
    }
    l2.check()
        .map_err(|error| CliError::Usage(format!("{error} (--rollup-rpc, --l2-eth-rpc)")))
}

pub(super) fn metrics(values: &Values) -> Result<Option<MetricsConfig>, CliError> {
    if !values.bool("metrics.enabled")? {
        return Ok(None);
    }
    Ok(Some(MetricsConfig {
        addr: host(values.required_text("metrics.addr")?),
        port: values.port("metrics.port")?,
    }))
}

fn options(values: &Values, notices: &mut Vec<String>) -> Result<BatcherOptions, CliError> {
    let compressor: CompressorKind = named(values, "compressor")?;
    Ok(BatcherOptions {
        poll_interval: values.duration("poll-interval")?,
        sub_safety_margin: values.uint("sub-safety-margin")?,
        max_pending_tx: values.uint("max-pending-tx")?,
        max_channel_duration: values.uint("max-channel-duration")?,
        max_l1_tx_size_bytes: values.uint("max-l1-tx-size-bytes")?,
        max_blocks_per_span_batch: values.uint("max-blocks-per-span-batch")?,
        target_num_frames: values.uint("target-num-frames")?,
        compressor: match compressor {
            CompressorKind::Ratio(_) => CompressorKind::Ratio(values.float("approx-compr-ratio")?),
            other => other,
        },
        compression: named(values, "compression-algo")?,
        stopped: values.bool("stopped")?,
        batch_type: values.uint("batch-type")?,
        data_availability: named(values, "data-availability-type")?,
        check_recent_txs_depth: values.uint("check-recent-txs-depth")?,
        wait_node_sync: values.bool("wait-node-sync")?,
        throttle: throttle(values, notices)?,
    })
}

/// Parses the value of a choice flag. Every choice in the flag table must be valid for `T`.
fn named<T: std::str::FromStr>(values: &Values, name: &'static str) -> Result<T, CliError> {
    let text = values.required_text(name)?;
    text.parse().map_err(|_| CliError::Table(name))
}

/// Reads the throttling options. A deprecated name counts if the option that replaced it is not
/// given. Deprecated names come from an op-batcher version that had only [`ThrottleCurve::Step`].
fn throttle(values: &Values, notices: &mut Vec<String>) -> Result<ThrottleOptions, CliError> {
    let mut old_names = Vec::new();
    let mut either = |name: &'static str, old: &'static str| {
        if values.source(name).is_none() && values.source(old).is_some() {
            old_names.push(format!("--{old} (now --{name})"));
            values.uint(old)
        } else {
            values.uint(name)
        }
    };
    let lower_threshold = either(
        "throttle.unsafe-da-bytes-lower-threshold",
        "throttle-threshold",
    )?;
    let tx_size_lower = either("throttle.tx-size-lower-limit", "throttle-tx-size")?;
    let block_size_lower = either("throttle.block-size-lower-limit", "throttle-block-size")?;
    let block_size_upper = either(
        "throttle.block-size-upper-limit",
        "throttle-always-block-size",
    )?;
    let mut options = ThrottleOptions {
        curve: named(values, "throttle.controller-type")?,
        lower_threshold,
        upper_threshold: values.uint("throttle.unsafe-da-bytes-upper-threshold")?,
        tx_size_lower,
        tx_size_upper: values.uint("throttle.tx-size-upper-limit")?,
        block_size_lower,
        block_size_upper,
        pid: pid(values)?,
    };
    if old_names.is_empty() {
        return Ok(options);
    }
    if values.source("throttle.controller-type").is_none() {
        options.curve = ThrottleCurve::Step;
    }
    let upper = values.source("throttle.unsafe-da-bytes-upper-threshold");
    if upper.is_none() && lower_threshold >= options.upper_threshold {
        options.upper_threshold = lower_threshold.saturating_mul(UPPER_BY_LOWER);
    }
    notices.push(format!(
        "old names of throttling are given: {}; they set the controller {}",
        old_names.join(", "),
        options.curve
    ));
    Ok(options)
}

fn pid(values: &Values) -> Result<PidOptions, CliError> {
    Ok(PidOptions {
        kp: values.float("throttle.pid-kp")?,
        ki: values.float("throttle.pid-ki")?,
        kd: values.float("throttle.pid-kd")?,
        integral_max: values.float("throttle.pid-integral-max")?,
        output_max: values.float("throttle.pid-output-max")?,
        sample_time: values.duration("throttle.pid-sample-time")?,
    })
}
