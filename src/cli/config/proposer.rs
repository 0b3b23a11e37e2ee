//! Options of the proposer, as a separate process, or under `--proposer.` in the node's process.

use super::{
    CliError, Values,
    batcher::{ServiceRpcConfig, l1, metrics},
    in_node, node_log, txmgr,
};
use crate::{
    cli::flags::{Program, prefix_in_node},
    proposer::options::ProposerOptions,
    rollup::l1::L1Config,
    telemetry::{LogConfig, MetricsConfig},
    txmgr::sign::TxSignerConfig,
};
use alloy_primitives::Address;

/// Configuration of a proposer.
#[derive(Clone, Debug)]
pub struct ProposerConfig {
    /// L1 endpoint; `None` in the node's process, to use the node's.
    pub l1: Option<L1Config>,
    pub options: ProposerOptions,
    pub signer: TxSignerConfig,
    /// RPC of the proposer; `None` in the node's process without `--proposer.rpc.port`.
    pub rpc: Option<ServiceRpcConfig>,
}

/// Configuration of `starling proposer`.
#[derive(Clone, Debug)]
pub struct ProposerProcessConfig {
    pub proposer: ProposerConfig,
    pub log: LogConfig,
    pub metrics: Option<MetricsConfig>,
}

impl ProposerProcessConfig {
    pub fn read(values: &Values, notices: &mut Vec<String>) -> Result<Self, CliError> {
        let proposer = ProposerConfig::read(values, false, notices)?;
        if proposer.l1.is_none() {
            return Err(CliError::Missing {
                name: "--l1-eth-rpc",
                next: "outputs are proposed on L1: give the URL of an L1 execution client",
            });
        }
        Ok(Self {
            proposer,
            log: node_log(values)?,
            metrics: metrics(values)?,
        })
    }
}

impl ProposerConfig {
    /// Reads the proposer options of `starling node`; `None` without `--proposer.enabled`.
    pub(super) fn read_in_node(
        values: &Values,
        notices: &mut Vec<String>,
    ) -> Result<Option<Self>, CliError> {
        if !values.bool("proposer.enabled")? {
            return Ok(None);
        }
        let prefix = prefix_in_node(Program::OpProposer);
        let read = |values: &Values, notices: &mut Vec<String>| Self::read(values, true, notices);
        let mut config = in_node(values, prefix, notices, read)?;
        if values.source("proposer.rpc.port").is_none() {
            config.rpc = None;
        }
        Ok(Some(config))
    }

    fn read(
        values: &Values,
        in_process: bool,
        notices: &mut Vec<String>,
    ) -> Result<Self, CliError> {
        let options = options(values, in_process)?;
        let target = options.target();
        target.map_err(|error| CliError::Usage(error.to_string()))?;
        Ok(Self {
            l1: l1(values)?,
            options,
            signer: txmgr::signer(values, txmgr::PROPOSER, notices)?,
            rpc: Some(ServiceRpcConfig::read(values)?),
        })
    }
}

fn options(values: &Values, in_process: bool) -> Result<ProposerOptions, CliError> {
    let supervisor_rpcs = values.list("supervisor-rpcs")?;
    Ok(ProposerOptions {
        // If supervisors are configured, use them instead of this process's rollup node.
        in_process: in_process && supervisor_rpcs.is_empty(),
        rollup_rpc: if in_process {
            Vec::new()
        } else {
            values.list("rollup-rpc")?
        },
        supervisor_rpcs,
        l2oo_address: address(values, "l2oo-address")?,
        game_factory_address: address(values, "game-factory-address")?,
        proposal_interval: values.duration("proposal-interval")?,
        game_type: u32::try_from(values.uint("game-type")?).map_err(|_| CliError::Invalid {
            name: "game-type",
            reason: "a game type has 32 bits".into(),
        })?,
        poll_interval: values.duration("poll-interval")?,
        allow_non_finalized: values.bool("allow-non-finalized")?,
        active_sequencer_check_duration: values.duration("active-sequencer-check-duration")?,
        wait_node_sync: values.bool("wait-node-sync")?,
        tx: txmgr::options(values, txmgr::PROPOSER)?,
    })
}

fn address(values: &Values, name: &'static str) -> Result<Option<Address>, CliError> {
    let invalid = || CliError::Invalid {
        name,
        reason: "an address is 20 bytes in hex".into(),
    };
    let given = values.text(name)?;
    let read = given.map(|text| text.trim().parse().map_err(|_| invalid()));
    read.transpose()
}
