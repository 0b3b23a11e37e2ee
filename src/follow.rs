//! The follower: blocks from the swarm into the chain, and verdicts back.
//!
//! One task takes [`Event`]s (parents first), has the chain execute each and reports the verdict to the swarm; another reports the heads
//! to the swarm, and whether a rollup node moves them. If a rollup node may drive the chain, its [`Engine`] also receives each verdict.
//! What can overload the follower is the executor: the event channel is bounded and the swarm keeps a credit in bytes.

pub mod progress;

use crate::{
    chain::{Chain, ChainError, Inserted, view::ReadError},
    engine::Engine,
};
use alloy_primitives::B256;
use futures::{StreamExt, stream::FuturesOrdered};
use starling_p2p::{Blocks, Event, Network, PeerId, Provenance, Settled};
use starling_proto::payload::{BlockId, Payload};
use std::{sync::Arc, time::Instant};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What the chain answers to peers.
impl Blocks for Chain {
    fn knows(&self, hash: B256) -> bool {
        Chain::knows(self, hash)
    }

    fn hash(&self, number: u64) -> Option<B256> {
        self.view().hash_of(number).ok().flatten()
    }

    fn block(&self, number: u64) -> Option<Payload> {
        readable(number, self.view().payload(number)).map(std::sync::Arc::unwrap_or_clone)
    }

    fn headers(&self, from: BlockId, take: &mut dyn FnMut(&[u8]) -> bool) {
        readable(
            from.number,
            self.view().encoded_headers(from, take).map(Some),
        );
    }

    fn bodies(
        &self,
        first: u64,
        last: BlockId,
        take: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> bool {
        // One view: all of them lie on the branch of the last.
        let view = self.view();
        let canonical = readable(last.number, view.hash_of(last.number)) == Some(last.hash);
        if canonical {
            readable(
                first,
                view.encoded_blocks(first..=last.number, take).map(Some),
            );
        }
        canonical
    }

    fn oldest(&self) -> u64 {
        let view = self.view();
        // What cannot be read is not promised.
        view.oldest_body().unwrap_or(view.head().number)
    }

    fn finalized(&self) -> Option<BlockId> {
        self.view().finalized()
    }
}

fn readable<T>(number: u64, block: Result<Option<T>, ReadError>) -> Option<T> {
    block.unwrap_or_else(|error| {
        tracing::error!(number, %error, "a block asked for by a peer could not be read");
        None
    })
}

/// Payloads handed to the chain at a time: the senders of the next are recovered while one is executed. Fewer than the chain takes
/// without waiting, and small blocks are quick.
const AHEAD: usize = 32;

/// Executes the blocks of the swarm until the token is cancelled. `engine` is given if a rollup node may drive the chain.
pub async fn run(
    chain: Chain,
    engine: Option<Arc<Engine>>,
    network: Network,
    mut events: mpsc::Receiver<Event>,
    token: CancellationToken,
) -> anyhow::Result<()> {
    let mut answers = FuturesOrdered::new();
    loop {
        tokio::select! {
            () = token.cancelled() => return Ok(()),
            Some((block, blame, answer)) = answers.next() => match settle(&block, blame, answer, engine.as_deref()).await {
                Ok(settled) => network.settled(block.hash, settled).await,
                Err(ChainError::Stopped) if token.is_cancelled() => return Ok(()),
                Err(error) => return Err(error.into()),
            },
            event = events.recv(), if answers.len() < AHEAD => {
                let Some(Event { payload, provenance, blame }) = event else { return Ok(()) };
                let block = Block { number: payload.number(), hash: payload.hash, timestamp: payload.timestamp(), provenance };
                match chain.submit(payload, provenance).await {
                    Ok(answer) => answers.push_back(async move { (block, blame, answer.await) }),
                    Err(ChainError::Stopped) if token.is_cancelled() => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}
/// A block of the swarm, for logs and its verdict.
struct Block {
    number: u64,
    hash: B256,
    timestamp: u64,
    provenance: Provenance,
}

/// The chain's answer as the swarm wants it.
async fn settle(
    block: &Block,
    blame: Option<PeerId>,
    answer: Result<Inserted, ChainError>,
    engine: Option<&Engine>,
) -> Result<Settled, ChainError> {
    let Block {
        number,
        hash,
        timestamp,
        provenance,
    } = *block;
    let inserted = answer?;
    if let Some(engine) = engine {
        match engine.on_swarm_block(hash, provenance, &inserted).await {
            Ok(()) => {}
            Err(error @ (ChainError::Stopped | ChainError::Store(_))) => return Err(error),
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
            let age = crate::telemetry::unix_now().saturating_sub(timestamp);
            match fresh {
                true => tracing::info!(number, %hash, age, "block"),
                false => tracing::debug!(number, %hash, age, "block"),
            }
            Settled::Ok
        }
        Inserted::Invalid { reason, .. } => {
            tracing::warn!(number, %hash, peer = blame.map(tracing::field::display), reason, "a block from the swarm is invalid");
            Settled::Invalid(reason)
        }
        // The parent went away between the hand-over and now; the swarm finds the gap again with the next block.
        Inserted::Syncing | Inserted::NoRoom => Settled::Dropped,
    })
}

/// Reports every move of the heads to the swarm, and whether a rollup node moves them, until the token is cancelled.
pub async fn report_heads(
    chain: Chain,
    network: Network,
    genesis: BlockId,
    token: CancellationToken,
) -> anyhow::Result<()> {
    let (mut heads, mut driver, mut driven) = (chain.heads(), chain.driver(), false);
    loop {
        let (drives, silent_at) = {
            let driver = driver.borrow_and_update();
            (driver.drives(), driver.silent_at())
        };
        if std::mem::replace(&mut driven, drives) != drives {
            match drives {
                true => {
                    tracing::info!(
                        "a rollup node drives: blocks of the swarm are executed but do not become the head"
                    )
                }
                false => tracing::info!(
                    "no call of the rollup node for too long: the head follows the swarm until the next fork choice"
                ),
            }
            network.driven(drives).await;
        }
        let now = *heads.borrow_and_update();
        network
            .heads(starling_p2p::Heads {
                head: now.head,
                safe: now.safe.unwrap_or(genesis),
            })
            .await;
        tokio::select! {
            () = token.cancelled() => return Ok(()),
            changed = heads.changed() => if changed.is_err() { return Ok(()) },
            changed = driver.changed() => if changed.is_err() { return Ok(()) },
            () = sleep_until(silent_at) => chain.drive(|driver| driver.on_time(Instant::now())),
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
