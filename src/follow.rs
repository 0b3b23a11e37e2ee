//! The follower: executes blocks from the swarm on the core, and reports the verdicts to the swarm.
//!
//! One task receives [`Event`]s (parents first), requests the execution of each block and reports
//! the verdict to the swarm. Another task reports the heads to the swarm, and whether a rollup node
//! moves them. Both use the core through an [`Engine`] only. If a rollup node may drive the core,
//! the memory behind the Engine API also receives each verdict. Too many blocks can overload the
//! executor, so the event channel is bounded and the swarm has a credit in bytes.

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

/// Maximum payloads in flight to the core. While one is executed, the senders of the next ones are
/// recovered. The number is below the capacity of the executor's queue, and small blocks are quick
/// to execute.
const IN_FLIGHT: usize = 32;
/// Pause before a core in another process is called again after it did not respond.
const OUTAGE_PAUSE: Duration = Duration::from_secs(1);

/// Executes the blocks of the swarm until the token is cancelled. `engine_api` is set if a rollup
/// node may drive the core.
pub async fn run(
    engine: Engine,
    engine_api: Option<Arc<EngineBackend>>,
    network: Network,
    mut events: mpsc::Receiver<Event>,
    token: CancellationToken,
) -> anyhow::Result<()> {
    let mut outcomes = FuturesOrdered::new();
    loop {
        tokio::select! {
            () = token.cancelled() => return Ok(()),
            Some((block, blame, outcome)) = outcomes.next() => match settle(&block, blame, outcome, engine_api.as_deref()).await {
                Ok(settled) => network.settled(block.hash, settled).await,
                Err(CoreError::Chain(ChainError::Stopped)) if token.is_cancelled() => return Ok(()),
                Err(error) => return Err(error.into()),
            },
            event = events.recv(), if outcomes.len() < IN_FLIGHT => {
                let Some(Event { payload, provenance, blame }) = event else { return Ok(()) };
                let block = SwarmBlock { number: payload.number(), hash: payload.hash, timestamp: payload.timestamp(), provenance };
                let begun = begin(&engine, &payload, provenance);
                match token.run_until_cancelled(begun).await {
                    None => return Ok(()),
                    Some(Ok(outcome)) => outcomes.push_back(async move { (block, blame, outcome.await) }),
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

/// Begins to execute a block. If a core in another process does not respond, calls it again until
/// it does. Meanwhile the swarm sends no more blocks than its credit allows.
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

/// A block of the swarm, with the data that its log line and verdict need.
struct SwarmBlock {
    number: u64,
    hash: B256,
    timestamp: u64,
    provenance: Provenance,
}

/// Logs the outcome of a block and converts it to the verdict for the swarm.
async fn settle(
    block: &SwarmBlock,
    blame: Option<PeerId>,
    outcome: Result<Inserted, CoreError>,
    engine_api: Option<&EngineBackend>,
) -> Result<Settled, CoreError> {
    let SwarmBlock {
        number,
        hash,
        timestamp,
        provenance,
    } = *block;
    let inserted = outcome?;
    if let Some(engine_api) = engine_api {
        match engine_api.on_swarm_block(hash, provenance, &inserted).await {
            Ok(()) => {}
            Err(error) if error.is_fatal() => return Err(error.into()),
            // When the rollup node names its head again, it gets this error as the response.
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
        // The parent has been dropped since the swarm sent this block, or the executor is at a
        // limit. The swarm sees the gap again with the next block.
        Inserted::Syncing | Inserted::NotExecutable => Settled::Dropped,
    })
}

/// Reports the newest heads to the swarm, and whether a rollup node owns the head, until the token
/// is cancelled. Heads between two reports may be skipped.
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
