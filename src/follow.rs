//! The follower: blocks from the swarm into the execution core, and verdicts back.
//!
//! One task takes [`Event`]s (parents first), has the core execute each and reports the verdict to
//! the swarm; another reports the heads to the swarm, and whether a rollup node moves them. Both
//! know the core as [`Engine`] only. If a rollup node may drive the core, the memory behind the
//! Engine API also receives each verdict. What can overload the follower is the executor: the event
//! channel is bounded and the swarm keeps a credit in bytes.

pub mod progress;
mod served_blocks;
pub mod sync_status;

use crate::{
    chain::{ChainError, Inserted},
    clock::unix_now,
    rollup::engine::{CoreError, Engine},
    rpc::engine::backend::EngineBackend,
};
use alloy_primitives::B256;
use futures::{StreamExt, stream::FuturesOrdered};
use starling_p2p::{Event, Network, PeerId, Provenance, Settled};
use starling_proto::payload::{BlockId, Payload};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Payloads in flight to the core: the senders of the next are recovered while one is executed.
/// Fewer than the executor's queue holds, and small blocks are quick.
const IN_FLIGHT: usize = 32;
/// Pause before a core in another process that does not answer is called again.
const OUTAGE_PAUSE: Duration = Duration::from_secs(1);

/// Executes the blocks of the swarm until the token is cancelled. `engine_api` is given if a rollup
/// node may drive the core.
pub async fn run(
    engine: Engine,
    engine_api: Option<Arc<EngineBackend>>,
    network: Network,
    mut events: mpsc::Receiver<Event>,
    token: CancellationToken,
) -> anyhow::Result<()> {
    let mut answers = FuturesOrdered::new();
    loop {
        tokio::select! {
            () = token.cancelled() => return Ok(()),
            Some((block, blame, answer)) = answers.next() => match settle(&block, blame, answer, engine_api.as_deref()).await {
                Ok(settled) => network.settled(block.hash, settled).await,
                Err(CoreError::Chain(ChainError::Stopped)) if token.is_cancelled() => return Ok(()),
                Err(error) => return Err(error.into()),
            },
            event = events.recv(), if answers.len() < IN_FLIGHT => {
                let Some(Event { payload, provenance, blame }) = event else { return Ok(()) };
                let block = SwarmBlock { number: payload.number(), hash: payload.hash, timestamp: payload.timestamp(), provenance };
                let begun = begin(&engine, &payload, provenance);
                match token.run_until_cancelled(begun).await {
                    None => return Ok(()),
                    Some(Ok(answer)) => answers.push_back(async move { (block, blame, answer.await) }),
                    Some(Err(CoreError::Chain(ChainError::Stopped))) if token.is_cancelled() => return Ok(()),
                    Some(Err(error @ CoreError::Remote(_))) => {
                        tracing::warn!(number = block.number, hash = %block.hash, %error, "a block from the swarm is dropped; it is fetched again when it is missed");
                        network.settled(block.hash, Settled::Dropped).await;
                    }
                    Some(Err(error)) => return Err(error.into()),
                }
            }
        }
    }
}

/// Begins to execute a block. A core in another process that does not answer is called again until it
/// does: meanwhile the swarm hands over no more than its credit.
async fn begin(
    engine: &Engine,
    payload: &Arc<Payload>,
    provenance: Provenance,
) -> Result<impl Future<Output = Result<Inserted, CoreError>> + use<>, CoreError> {
    loop {
        match engine.queue_follow(payload.clone(), provenance).await {
            Err(error) if error.is_outage() => tokio::time::sleep(OUTAGE_PAUSE).await,
            begun => return begun,
        }
    }
}

/// A block of the swarm, for logs and its verdict.
struct SwarmBlock {
    number: u64,
    hash: B256,
    timestamp: u64,
    provenance: Provenance,
}

/// Logs the outcome of a block and turns it into the swarm's verdict.
async fn settle(
    block: &SwarmBlock,
    blame: Option<PeerId>,
    answer: Result<Inserted, CoreError>,
    engine_api: Option<&EngineBackend>,
) -> Result<Settled, CoreError> {
    let SwarmBlock {
        number,
        hash,
        timestamp,
        provenance,
    } = *block;
    let inserted = answer?;
    if let Some(engine_api) = engine_api {
        match engine_api.on_swarm_block(hash, provenance, &inserted).await {
            Ok(()) => {}
            Err(error) if error.is_fatal() => return Err(error.into()),
            // The rollup node names its head again, and gets this error as the answer.
            Err(error) => {
                tracing::warn!(number, %hash, %error, "the head that the rollup node named cannot become the head")
            }
        }
    }
    // Gap blocks are logged at debug level: there may be thousands a second.
    let fresh = !matches!(
        provenance,
        Provenance::Linked { .. } | Provenance::Ancestor { .. }
    );
    Ok(match inserted {
        Inserted::Valid => {
            let age = unix_now().saturating_sub(timestamp);
            if fresh {
                tracing::info!(number, %hash, age, "block");
            } else {
                tracing::debug!(number, %hash, age, "block");
            }
            Settled::Ok
        }
        Inserted::Invalid { reason, .. } => {
            tracing::warn!(number, %hash, peer = blame.map(tracing::field::display), reason, "a block from the swarm is invalid");
            Settled::Invalid(reason)
        }
        // The parent has been dropped since the swarm handed over this block. The next block shows
        // the swarm the gap again.
        Inserted::Syncing | Inserted::NotExecutable => Settled::Dropped,
    })
}

/// Reports the newest heads to the swarm, and whether a rollup node drives, until the token is
/// cancelled. Heads in between may be skipped.
pub async fn report_heads(
    engine: Engine,
    network: Network,
    genesis: BlockId,
    token: CancellationToken,
) -> anyhow::Result<()> {
    let (mut heads, mut owner, mut driven) = (engine.heads(), engine.head_owner(), false);
    loop {
        let (drives, silent_at) = {
            let owner = owner.borrow_and_update();
            (owner.is_rollup_node(), owner.silent_at())
        };
        if std::mem::replace(&mut driven, drives) != drives {
            if drives {
                tracing::info!(
                    "a rollup node drives: blocks of the swarm are executed but do not become the head"
                );
            } else {
                tracing::info!(
                    "no call of the rollup node for too long: the head follows the swarm until the next fork choice"
                );
            }
            network.driven(drives).await;
        }
        let now = *heads.borrow_and_update();
        network
            .heads(starling_p2p::ChainHeads {
                head: now.head,
                safe: now.safe.unwrap_or(genesis),
            })
            .await;
        tokio::select! {
            () = token.cancelled() => return Ok(()),
            changed = heads.changed() => if changed.is_err() { return Ok(()) },
            changed = owner.changed() => if changed.is_err() { return Ok(()) },
            () = sleep_until(silent_at) => engine.end_silent_drive(Instant::now()),
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
