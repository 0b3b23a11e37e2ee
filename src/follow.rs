//! The follower: blocks from the swarm into the chain, and verdicts back.
//!
//! One task takes [`Event`]s (parents first), has the chain execute each and settles it with the swarm; another tells the swarm where
//! the heads are. What can overload it is the executor: the event channel is bounded and the swarm keeps a credit in bytes.

use crate::chain::{Chain, ChainError, Inserted};
use starling_p2p::{Blocks, Event, Network, Settled};
use starling_proto::payload::Payload;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What the chain answers to peers.
impl Blocks for Chain {
    fn knows(&self, hash: alloy_primitives::B256) -> bool {
        Chain::knows(self, hash)
    }

    fn block(&self, number: u64) -> Option<Payload> {
        match self.view().payload(number) {
            Ok(payload) => payload.map(std::sync::Arc::unwrap_or_clone),
            Err(error) => {
                tracing::error!(number, %error, "a block asked for by a peer could not be read");
                None
            }
        }
    }
}

/// Executes what the swarm hands over until the token is cancelled.
pub async fn run(
    chain: Chain,
    network: Network,
    mut events: mpsc::Receiver<Event>,
    token: CancellationToken,
) -> anyhow::Result<()> {
    loop {
        let event = tokio::select! {
            () = token.cancelled() => return Ok(()),
            event = events.recv() => match event {
                Some(event) => event,
                None => return Ok(()),
            },
        };
        let hash = event.payload.hash;
        let number = event.payload.number();
        let age = crate::telemetry::unix_now().saturating_sub(event.payload.timestamp());
        let settled = match chain.follow(event.payload, event.provenance).await {
            Ok(Inserted::Valid) => {
                tracing::info!(number, %hash, age, "block");
                Settled::Ok
            }
            Ok(Inserted::Invalid { reason, .. }) => {
                tracing::warn!(number, %hash, peer = ?event.blame, reason, "a block from the swarm is invalid");
                Settled::Invalid(reason)
            }
            // The parent went away between the hand-over and now; the swarm finds the gap again with the next block.
            Ok(Inserted::Syncing | Inserted::NoRoom) => Settled::Dropped,
            Err(ChainError::Stopped) if token.is_cancelled() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        network.settled(hash, settled).await;
    }
}

/// Tells the swarm of every move of the heads until the token is cancelled.
pub async fn report_heads(
    chain: Chain,
    network: Network,
    genesis: starling_proto::payload::BlockId,
    token: CancellationToken,
) -> anyhow::Result<()> {
    let mut heads = chain.heads();
    loop {
        let now = *heads.borrow_and_update();
        network.heads(starling_p2p::Heads { head: now.head, safe: now.safe.unwrap_or(genesis) }).await;
        tokio::select! {
            () = token.cancelled() => return Ok(()),
            changed = heads.changed() => if changed.is_err() { return Ok(()) },
        }
    }
}
