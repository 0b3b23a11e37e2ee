//! The durable record of blocks that may have been signed here: the payload log with its guard
//! rows.
//!
//! The record is separate from the [`Engine`](super::engine::Engine) because it belongs to the
//! signing key. With a core in this process it is the chain's own payload log. A sequencer that
//! drives a core in another process keeps a log in the rollup node's data directory. Only the
//! sequencer writes guard rows, one per block.

use crate::chain::{
    Chain, ChainError,
    payload_log::{self, LogError, PayloadLog, SignGuard},
};
use alloy_primitives::B256;
use starling_proto::payload::Payload;
use std::{path::Path, sync::Arc, time::Duration};

/// Depth in blocks below a recorded block to which the rollup node's own log keeps payloads, as a
/// chain does.
const KEPT: u64 = 1_024;
/// Interval, in blocks, of pruning the rollup node's own log.
const PRUNE: u64 = 256;
/// Pause before a write that failed because the disk is full is repeated.
const FULL_PAUSE: Duration = Duration::from_secs(2);

/// The log in which blocks are recorded before they are signed.
#[derive(Clone)]
pub enum SigningLog {
    /// The payload log of the chain in this process.
    Chain(Chain),
    /// A payload log of the rollup node, for a core in another process.
    Own(PayloadLog),
}

impl SigningLog {
    /// Opens the rollup node's own log, or creates it.
    pub fn open_own(folder: &Path) -> Result<PayloadLog, LogError> {
        PayloadLog::open(folder)
    }

    /// Records a block durably, before any request for its signature. Fails with
    /// [`ChainError::AlreadySigned`] if another block with the same height, parent and L1 origin is
    /// recorded.
    pub async fn record(&self, payload: Arc<Payload>, l1_origin: B256) -> Result<(), ChainError> {
        match self {
            Self::Chain(chain) => chain.log_before_sign(payload, l1_origin).await,
            Self::Own(log) => record_in(log, payload, l1_origin).await,
        }
    }

    /// The guard rows of blocks with this height and parent, in the order of signing.
    pub fn signed(&self, number: u64, parent: B256) -> Result<Vec<SignGuard>, ChainError> {
        match self {
            Self::Chain(chain) => chain.guards(number, parent),
            Self::Own(log) => Ok(log.guards(number, parent)?),
        }
    }

    /// The logged blocks with this height and parent, whether built here or received.
    pub fn children(&self, number: u64, parent: B256) -> Result<Vec<Payload>, ChainError> {
        match self {
            Self::Chain(chain) => chain.logged_children(number, parent),
            Self::Own(log) => {
                let logged = log.by_number(number)?.into_iter();
                let payloads = logged.map(|logged| logged.payload);
                Ok(payloads
                    .filter(|payload| payload.parent_hash() == parent)
                    .collect())
            }
        }
    }

    /// A block of the log, on any branch.
    pub fn block(&self, hash: B256) -> Result<Option<Arc<Payload>>, ChainError> {
        match self {
            Self::Chain(chain) => chain.payload(hash),
            Self::Own(log) => Ok(log.by_hash(hash)?.map(|logged| Arc::new(logged.payload))),
        }
    }
}

/// Records a block in the rollup node's own log, and prunes the log every [`PRUNE`] blocks. Waits
/// while the disk is full, as a chain does.
async fn record_in(
    log: &PayloadLog,
    payload: Arc<Payload>,
    l1_origin: B256,
) -> Result<(), ChainError> {
    loop {
        let (log, payload) = (log.clone(), payload.clone());
        let write = move || {
            log.append_built(&payload, l1_origin, payload_log::BUILT)?;
            if payload.number().is_multiple_of(PRUNE) {
                log.prune(payload.number().saturating_sub(KEPT))?;
                log.rotate()?;
            }
            Ok::<_, LogError>(())
        };
        let written = tokio::task::spawn_blocking(write).await;
        match written.map_err(|_| ChainError::Stopped)? {
            Err(error) if error.is_full() => {
                tracing::error!(%error, "no block is signed until there is space");
                tokio::time::sleep(FULL_PAUSE).await;
            }
            written => return Ok(written?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::Header;

    fn block(number: u64, parent: B256, salt: u8) -> Arc<Payload> {
        let header = Header {
            number,
            parent_hash: parent,
            extra_data: vec![salt].into(),
            ..Header::default()
        };
        Arc::new(Payload::sealed(header, vec![]))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_log_without_a_chain_guards_a_height_across_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let open = || SigningLog::Own(SigningLog::open_own(&folder.path().join("wal")).unwrap());
        let (parent, origin) = (B256::repeat_byte(7), B256::repeat_byte(8));
        let [first, second] = [1, 2].map(|salt| block(5, parent, salt));
        let log = open();
        log.record(first.clone(), origin).await.unwrap();
        drop(log);
        let log = open();
        let refused = log.record(second.clone(), origin).await;
        let have = first.hash;
        assert!(
            matches!(refused, Err(ChainError::AlreadySigned { have: same }) if same == have),
            "{refused:?}"
        );
        log.record(first.clone(), origin).await.unwrap();
        log.record(second.clone(), B256::repeat_byte(9))
            .await
            .unwrap();
        let signed = log.signed(5, parent).unwrap();
        let hashes: Vec<_> = signed.iter().map(|guard| guard.hash).collect();
        assert_eq!(hashes, [first.hash, second.hash]);
        assert_eq!(log.children(5, parent).unwrap().len(), 2);
        assert!(log.children(5, origin).unwrap().is_empty());
        assert_eq!(
            log.block(second.hash).unwrap().map(|found| found.hash),
            Some(second.hash)
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_log_without_a_chain_keeps_a_bounded_number_of_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let log = SigningLog::open_own(&folder.path().join("wal")).unwrap();
        let old = block(1, B256::ZERO, 0);
        log.append(&old, payload_log::FOLLOWED).unwrap();
        let signing = SigningLog::Own(log);
        let kept = block(PRUNE, B256::ZERO, 0);
        signing.record(kept.clone(), B256::ZERO).await.unwrap();
        let new = block(PRUNE * (KEPT / PRUNE + 1), B256::ZERO, 0);
        signing.record(new.clone(), B256::ZERO).await.unwrap();
        assert!(signing.block(old.hash).unwrap().is_none());
        assert!(signing.block(kept.hash).unwrap().is_some());
        assert_eq!(signing.signed(PRUNE, B256::ZERO).unwrap().len(), 1);
    }
}
