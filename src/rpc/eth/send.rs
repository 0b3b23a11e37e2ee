//! `eth_sendRawTransaction`: sends a transaction into our own pool, to the sequencer, or to both.

use crate::{
    chain::{
        l1fee,
        pool::{Admission, PoolError, PoolTx},
        rules::Rules,
        view::View,
    },
    clock::unix_now,
    rpc::{
        bounds::blocking,
        context::RpcContext,
        error::{Reply, RpcError, reply},
        forward::{ForwardClient, ForwardError},
        params::Args,
        route::TxRoute,
    },
};
use alloy_consensus::Transaction;
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, U256};
use futures::{FutureExt, future::BoxFuture};
use serde_json::value::RawValue;
use std::sync::Arc;

impl From<PoolError> for RpcError {
    fn from(error: PoolError) -> Self {
        Self::server(error.to_string())
    }
}

pub fn send_raw_transaction(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move { Ok(submit(&context, args.at_most(1)?.required()?).await?.answer) }.boxed()
}

/// A transaction that our own pool or the sequencer has accepted.
pub(super) struct SubmittedTx {
    pub hash: B256,
    /// The sequencer's response unchanged, or our own response.
    pub answer: Box<RawValue>,
}

/// Sends a transaction to the pool that the route names: our own, or the sequencer's.
pub(super) async fn submit(context: &Arc<RpcContext>, raw: Bytes) -> Result<SubmittedTx, RpcError> {
    let (sent, own) = (raw.clone(), context.clone());
    let pool = context.chain.pool.clone();
    let (client, keep, tx) = match &context.route {
        TxRoute::Pool => {
            let add = move || admit(&own, pool.decode(sent)?);
            let hash = off_the_runtime(context, add).await?;
            let answer = reply(hash)?;
            return Ok(SubmittedTx { hash, answer });
        }
        TxRoute::Sequencer { client, admit } => (
            client,
            *admit,
            off_the_runtime(context, move || Ok(pool.decode(sent)?)).await?,
        ),
    };
    let answer = forward(client, "eth_sendRawTransaction", &format!(r#"["{raw}"]"#)).await?;
    let hash = tx.hash;
    // The sequencer has accepted the transaction, so a refusal by our own pool does not concern the
    // sender.
    if keep && let Err(error) = off_the_runtime(context, move || admit(&own, tx)).await {
        tracing::warn!(%hash, error = error.message, "this node's pool does not keep a transaction that the sequencer took");
    }
    Ok(SubmittedTx { hash, answer })
}

/// Runs `work` on the blocking pool. Decoding recovers the sender and admission reads the state, so
/// neither may block a worker of the runtime.
pub(super) async fn off_the_runtime<T: Send + 'static>(
    context: &RpcContext,
    work: impl FnOnce() -> Result<T, RpcError> + Send + 'static,
) -> Result<T, RpcError> {
    blocking("eth_sendRawTransaction", context.bounds.reads.clone(), work).await
}

/// Adds a transaction to our own pool, after checks against the state at the head.
pub(super) fn admit(context: &RpcContext, tx: PoolTx) -> Result<B256, RpcError> {
    let mut view = context.view();
    let hash = loop {
        let at = admission(context, &view, &tx)?;
        let refusal = match context.chain.pool.add(tx.clone(), &at) {
            Ok(hash) => break hash,
            Err(refusal) => refusal,
        };
        let newest = context.view();
        // The proofs of blobs take milliseconds. A block that arrived meanwhile may contain the
        // sender's earlier transactions, and the pool then knows neither them nor the new nonce.
        if !matches!(refusal, PoolError::BlobGap { .. }) || newest.head() == view.head() {
            return Err(refusal.into());
        }
        view = newest;
    };
    if let Some(journal) = &context.journal
        && let Some(pooled) = context.chain.pool.get(&hash)
        && let Err(error) = journal.record(&pooled)
    {
        tracing::warn!(%hash, %error, "a transaction could not be written to the journal: it is lost if the node restarts before it is mined");
    }
    Ok(hash)
}

/// The inputs of admission at the head of `view`.
fn admission(context: &RpcContext, view: &Arc<View>, tx: &PoolTx) -> Result<Admission, RpcError> {
    let header = view.header();
    let account = view.state().account(tx.sender())?;
    Ok(Admission {
        nonce: account.map_or(0, |account| account.nonce),
        balance: account.map_or(U256::ZERO, |account| account.balance),
        delegated: account.is_some_and(|account| account.code_hash != KECCAK256_EMPTY),
        base_fee: header.base_fee_per_gas.unwrap_or(0),
        block_gas_limit: header.gas_limit,
        l1_cost: l1_cost(context, view, tx)?,
        now: unix_now(),
    })
}

/// Adds the transactions of the journal to the pool again, before the node serves requests. Returns
/// the number of transactions that the pool accepted.
pub fn restore_journal(context: &RpcContext, transactions: Vec<Bytes>) -> usize {
    let pool = &context.chain.pool;
    let restored = transactions.into_iter().filter(|raw| {
        let tx = pool.decode(raw.clone()).map_err(RpcError::from);
        tx.and_then(|tx| admit(context, tx)).is_ok()
    });
    restored.count()
}

/// Fees in addition to gas that the transaction would pay in a block like the head, in wei; zero on
/// Ethereum.
fn l1_cost(context: &RpcContext, view: &View, tx: &PoolTx) -> Result<U256, RpcError> {
    let Rules::Optimism { forks, .. } = &context.chain.spec.rules else {
        return Ok(U256::ZERO);
    };
    let Some(block) = context.blocks.load(view, view.head().number)? else {
        return Ok(U256::ZERO);
    };
    let fork = forks.at(block.payload.timestamp());
    let info = block.l1_info(&context.chain.spec.rules);
    Ok(info.map_or(U256::ZERO, |info| {
        l1fee::admission_cost(&info, fork, &tx.raw, tx.tx.gas_limit())
    }))
}

/// Forwards a request to the sequencer. The reply is the sequencer's result, or its error with
/// code, message and data. `params` is the JSON of an array.
pub(super) async fn forward(client: &ForwardClient, method: &str, params: &str) -> Reply {
    let answer = client.request(method, params).await;
    answer.map_err(|error| match error {
        ForwardError::Refused(error) => error,
        error => RpcError::server(format!("the sequencer could not be reached: {error}")),
    })
}
