//! The proposer, from configuration to a running service: in a process of its own, or in the node's.

use super::{
    batcher::l1_client,
    finish_without_chain, serve_metrics,
    service::{PostingService, TxParts, transactions, wait_for},
    service_rpc::{self, ServiceRpc},
};
use crate::{
    chain::Chain,
    cli::config::{ProposerConfig, ProposerProcessConfig},
    l2_source::{L2Endpoints, L2Source, LocalSource, RpcSource},
    proposer::{ProposerParts, proposer, source::ProposalSource, source::Supervisors},
    rollup::{handle::RollupHandle, l1::L1Client},
    tasks::{StopSignals, Tasks},
};
use anyhow::Context;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Prefix of the names of the transaction manager's metrics.
const METRICS: &str = "op_proposer_default_";

/// Runs `starling proposer`.
pub async fn run_proposer(
    config: ProposerProcessConfig,
    signals: StopSignals,
) -> anyhow::Result<()> {
    let tasks = Tasks::new(CancellationToken::new());
    serve_metrics(&tasks, config.metrics.as_ref()).await?;
    let options = &config.proposer.options;
    let timeout = options.tx.network_timeout;
    let source = if options.supervisor_rpcs.is_empty() {
        let endpoints = L2Endpoints {
            rollup: options.rollup_rpc.clone(),
            eth: Vec::new(),
            check_interval: options.active_sequencer_check_duration,
            timeout,
        };
        let rpc = RpcSource::new(&endpoints)?;
        ProposalSource::Rollup(L2Source::Rpc(Arc::new(rpc)))
    } else {
        ProposalSource::Supervisors(Supervisors::new(&options.supervisor_rpcs, timeout)?)
    };
    let l1 = config.proposer.l1.as_ref().context("--l1-eth-rpc")?;
    let l1 = l1_client(l1, None)?;
    let service = start(config.proposer, source, l1, "rpc", &signals.closing).await?;
    finish_without_chain(tasks, service, signals).await
}

/// Starts the proposer of a node. `l1` is the node's own L1 client.
pub(super) async fn start_in_node(
    config: ProposerConfig,
    chain: &Chain,
    rollup: RollupHandle,
    l1: L1Client,
    token: &CancellationToken,
) -> anyhow::Result<Option<PostingService>> {
    let chain_id = rollup.config.l1_chain_id;
    let l1 = match &config.l1 {
        Some(given) => l1_client(given, Some(chain_id))?,
        None => l1,
    };
    let options = &config.options;
    let source = if options.supervisor_rpcs.is_empty() {
        let chain = chain.clone();
        ProposalSource::Rollup(L2Source::Local(LocalSource { chain, rollup }))
    } else {
        let timeout = options.tx.network_timeout;
        ProposalSource::Supervisors(Supervisors::new(&options.supervisor_rpcs, timeout)?)
    };
    start(config, source, l1, "proposer.rpc", token).await
}

/// Waits for L1 and for the rollup node, and starts the proposer. `None` if the token is cancelled
/// before that.
async fn start(
    config: ProposerConfig,
    source: ProposalSource,
    l1: L1Client,
    flag: &'static str,
    token: &CancellationToken,
) -> anyhow::Result<Option<PostingService>> {
    if let ProposalSource::Rollup(source) = &source {
        let what = format!("the rollup node at {}", source.name());
        let answered = wait_for(&what, token, || source.heads()).await;
        if answered.is_none() {
            return Ok(None);
        }
    }
    let parts = TxParts {
        options: config.options.tx.clone(),
        l1: l1.clone(),
        signer: config.signer,
        metrics: METRICS,
    };
    let Some((txs, tx_task)) = transactions(parts, token).await? else {
        return Ok(None);
    };
    let (proposer, task) = proposer(ProposerParts {
        options: config.options,
        source,
        l1,
        txs: txs.clone(),
    })?;
    let service = PostingService::new("proposer");
    // Bind the RPC before anything is proposed: a service whose RPC cannot be bound must not run.
    if let Some(rpc) = &config.rpc {
        let methods = ServiceRpc::Proposer(proposer);
        service_rpc::serve(service.tasks(), methods, txs, rpc, flag).await?;
    }
    let tokens = service.tokens();
    service.spawn(
        async move { Ok(task.run(tokens.closing, tokens.ending).await?) },
        tx_task,
    );
    Ok(Some(service))
}

#[cfg(test)]
mod tests;
