//! The signer of unsafe blocks, read from SystemConfig on L1 at start and while the node runs
//! (specs: rollup-node-p2p, block signatures).
//!
//! The contract is read again at every reload interval, and as soon as a block by an unknown signer
//! arrives from the swarm. A replaced signer stays accepted for a while
//! (`starling_proto::gossip::Signers`). The contract's storage is read instead of its logs, so no
//! change is missed while L1 or this node is down. Unless the endpoint is trusted, the storage is
//! proven against a header.
//!
//! Peers cannot overload this module: at most one check of an unknown signer runs at a time, with
//! at most [`CONFIRMATIONS`] successful reads, a poll interval apart.

mod memory;

pub use memory::{SignerMemory, SignerMemoryError};

use super::l1::{L1Block, L1Client, L1Error, L1Tag};
use crate::telemetry::LoggedCauses;
use alloy_primitives::Address;
use starling_p2p::Network;
use starling_proto::config::RollupConfig;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// Bounds of the pause between the reads at start, which is otherwise the poll interval.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));
/// Number of reads, a poll interval apart, after which an unknown signer is rejected. Several are
/// needed because our L1 endpoint may lag behind those of our peers.
const CONFIRMATIONS: u32 = 5;

/// The reason why the signer is unknown.
#[derive(Debug, thiserror::Error)]
pub enum UnsafeSignerError {
    /// The L1 endpoint responds, but serves another chain.
    #[error(
        "{endpoint} serves chain {chain_id}, and rollup.json is on chain {expected}: give the endpoint of that chain with --l1"
    )]
    WrongL1 {
        endpoint: String,
        chain_id: u64,
        expected: u64,
    },
    #[error("{0} has no latest block")]
    NoHead(String),
    #[error(transparent)]
    L1(#[from] L1Error),
    #[error(transparent)]
    Memory(#[from] SignerMemoryError),
}

/// Reads the unsafe block signer from L1, at start and while the node runs.
pub struct UnsafeSigner {
    pub l1: L1Client,
    pub rollup: Arc<RollupConfig>,
    /// Storage for the signer that was read last, so that a node can start while L1 is unreachable.
    pub memory: SignerMemory,
    /// Number of L1 blocks by which reads stay behind L1's head (`--verifier.l1-confs`).
    pub confs: u64,
    /// Interval of reads while the node runs (`--l1.runtime-config-reload-interval`); zero disables
    /// all reads after the start.
    pub reload: Duration,
    /// Pause between the reads at start, and between those that check an unknown signer, so that L1
    /// may have a new block.
    pub poll: Duration,
}

impl UnsafeSigner {
    /// The signer that L1 names or, if L1 cannot be read, the stored one. Waits for L1 if none is
    /// stored, as every role waits for L1; only the wrong chain is an error. Zero means that there
    /// is no signer.
    pub async fn at_start(&self) -> Result<Address, UnsafeSignerError> {
        const WAITING: &str = "the block signer cannot be read from L1 (--l1); this node waits for it before it takes blocks from peers or makes blocks";
        let mut causes = LoggedCauses::default();
        loop {
            let error = match self.first().await {
                Ok(signer) => {
                    if signer.is_zero() {
                        tracing::warn!(
                            "SystemConfig on L1 names no block signer: blocks from gossip are ignored"
                        );
                    }
                    self.memory.remember(signer).await?;
                    return Ok(signer);
                }
                // Another attempt would read from the same wrong chain.
                Err(error @ UnsafeSignerError::WrongL1 { .. }) => return Err(error),
                Err(error) => error,
            };
            if let Some(known) = self.memory.remembered()? {
                tracing::warn!(%error, signer = %known, "the block signer cannot be read from L1; the one that L1 named last is used");
                return Ok(known);
            }
            let error = error.to_string();
            if causes.note_failure(WAITING, &error, Instant::now()) {
                tracing::warn!(error, "{WAITING}");
            }
            tokio::time::sleep(self.poll.clamp(PAUSES.0, PAUSES.1)).await;
        }
    }

    /// Passes every change of the signer to the swarm until the token is cancelled. `named` is the
    /// signer at start. `ours` is the address of this node's sequencer key, if it has one.
    pub async fn follow(
        self,
        mut named: Address,
        ours: Option<Address>,
        network: Network,
        token: CancellationToken,
    ) -> Result<(), UnsafeSignerError> {
        if self.reload.is_zero() {
            return Ok(());
        }
        let follow = async {
            let mut unreachable = false;
            let mut unknown_signer = Box::pin(network.unknown_signer());
            loop {
                let is_check = tokio::select! {
                    () = tokio::time::sleep(self.reload) => false,
                    unknown = &mut unknown_signer => match unknown {
                        Some(_) => true,
                        None => return Ok(()),
                    },
                };
                let mut readings = 0;
                loop {
                    match self.read().await {
                        Ok(now) => {
                            readings += 1;
                            unreachable = false;
                            if now != named {
                                network.set_signer(now).await;
                                self.changed(std::mem::replace(&mut named, now), now, ours)
                                    .await?;
                                break;
                            }
                        }
                        Err(error) if !std::mem::replace(&mut unreachable, true) => {
                            tracing::warn!(%error, signer = %named, "the block signer cannot be read from L1; the one known is used");
                        }
                        Err(_) => {}
                    }
                    // While L1 is unreachable the check continues, since only successful reads can
                    // reject the signer.
                    if !is_check || readings >= CONFIRMATIONS {
                        break;
                    }
                    tokio::time::sleep(self.poll).await;
                }
                network.set_signer(named).await;
                if is_check {
                    unknown_signer.set(network.unknown_signer());
                }
            }
        };
        token.run_until_cancelled(follow).await.unwrap_or(Ok(()))
    }

    async fn changed(
        &self,
        before: Address,
        now: Address,
        ours: Option<Address>,
    ) -> Result<(), UnsafeSignerError> {
        metrics::counter!("starling_unsafe_signer_changes_total").increment(1);
        tracing::warn!(%before, %now, "L1 names another block signer; the one before is accepted until the first block of the new one, or for three hours");
        if now.is_zero() {
            tracing::warn!(
                "SystemConfig on L1 names no block signer: blocks from gossip are ignored"
            );
        }
        if let Some(ours) = ours.filter(|ours| *ours != now) {
            tracing::error!(%ours, named = %now, "this sequencer signs with a key that L1 does not name any more: give it the new key before peers refuse its blocks");
        }
        Ok(self.memory.remember(now).await?)
    }

    /// The first read. It also checks that the endpoint serves our L1 and that the contract exists.
    async fn first(&self) -> Result<Address, UnsafeSignerError> {
        let (chain_id, expected) = (self.l1.chain_id().await?, self.rollup.l1_chain_id);
        if chain_id != expected {
            return Err(UnsafeSignerError::WrongL1 {
                endpoint: self.l1.endpoint().to_owned(),
                chain_id,
                expected,
            });
        }
        let at = self.confirmed().await?;
        Ok(self
            .l1
            .system_contract(self.rollup.l1_system_config_address, &at)
            .await?
            .unsafe_block_signer)
    }

    async fn read(&self) -> Result<Address, UnsafeSignerError> {
        let at = self.confirmed().await?;
        Ok(self
            .l1
            .unsafe_block_signer(self.rollup.l1_system_config_address, &at)
            .await?)
    }

    /// The L1 block at which the contract is read: `confs` below L1's head.
    async fn confirmed(&self) -> Result<L1Block, UnsafeSignerError> {
        let none = || UnsafeSignerError::NoHead(self.l1.endpoint().to_owned());
        let head = self.l1.block(L1Tag::Latest).await?.ok_or_else(none)?;
        match self.confs {
            0 => Ok(head),
            confs => Ok(self
                .l1
                .block_by_number(head.number.saturating_sub(confs))
                .await?
                .ok_or_else(none)?),
        }
    }
}

#[cfg(test)]
mod tests;
