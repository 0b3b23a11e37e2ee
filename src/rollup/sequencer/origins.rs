//! The L1 blocks around the sequencer's origin. They are read again whenever L1's head changes.

use super::SequencerError;
use crate::rollup::{
    head_search::OriginStatus,
    l1::{L1Block, L1Client, L1Error, L1Heads, L1Tag, RpcCause},
    origin::{NextOrigin, OriginChoice, select},
};
use alloy_primitives::B256;
use starling_proto::{attributes::ReceiptLogs, config::RollupConfig, payload::BlockId};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::timeout};

/// Timeout of reading the next origin if the block can also keep its parent's origin.
pub(super) const OPTIONAL: Duration = Duration::from_millis(500);
/// Timeout of reading the next origin if no block can be built without it.
const REQUIRED: Duration = Duration::from_secs(10);

/// L1 blocks read at the L1 head `l1_head`. Valid while that head and the origin stay the same.
#[derive(Clone, Copy)]
struct Reading {
    l1_head: BlockId,
    current: L1Block,
    next: NextOrigin,
}

pub(super) struct Origins {
    l1: L1Client,
    heads: watch::Receiver<L1Heads>,
    /// Number of L1 blocks by which the origin stays below L1's head (`--sequencer.l1-confs`).
    confs: u64,
    reading: Option<Reading>,
    /// Receipts of the newest origin that began an epoch, with the id of that L1 block.
    receipts: Option<(BlockId, Arc<Vec<ReceiptLogs>>)>,
}

impl Origins {
    pub(super) fn new(l1: L1Client, heads: watch::Receiver<L1Heads>, confs: u64) -> Self {
        Self {
            l1,
            heads,
            confs,
            reading: None,
            receipts: None,
        }
    }

    /// Chooses the origin of a block at `time` (Unix seconds) whose parent has the origin `parent`.
    pub(super) async fn choose(
        &mut self,
        rollup: &RollupConfig,
        time: u64,
        parent: BlockId,
        recover: bool,
    ) -> Result<L1Block, SequencerError> {
        let mut reading = self.read(parent).await?;
        // Keep the reading only if it leads to a choice, so that L1 is read again after a
        // contradiction.
        self.reading = None;
        if reading.next == NextOrigin::Unknown {
            // A timeout is no error here, since the block can keep its parent's origin.
            reading.next = match timeout(OPTIONAL, self.next(&reading)).await {
                Ok(Ok(next)) => next,
                Ok(Err(error)) => {
                    tracing::debug!(%error, "the next L1 origin could not be read");
                    NextOrigin::Unknown
                }
                Err(_) => NextOrigin::Unknown,
            };
        }
        if select(rollup, time, &reading.current, reading.next, recover)? == OriginChoice::FetchNext
        {
            let asked = timeout(REQUIRED, self.next(&reading)).await;
            reading.next = asked.map_err(|_| {
                self.error(
                    "eth_getBlockByNumber",
                    RpcCause::Transport("no answer in time".into()),
                )
            })??;
        }
        self.reading = Some(reading);
        match select(rollup, time, &reading.current, reading.next, recover)? {
            OriginChoice::Origin(origin) => Ok(origin),
            OriginChoice::FetchNext => Err(self.error(
                "eth_getBlockByNumber",
                RpcCause::Transport("the next origin is not known".into()),
            )),
        }
    }

    /// Fails unless the parent's origin is canonical.
    pub(super) async fn confirm(&mut self, origin: BlockId) -> Result<(), SequencerError> {
        let reading = self.read(origin).await;
        self.reading = reading.as_ref().ok().copied();
        reading.map(drop)
    }

    /// The receipts of an origin, fetched once and then cached.
    pub(super) async fn receipts(
        &mut self,
        origin: &L1Block,
    ) -> Result<Arc<Vec<ReceiptLogs>>, L1Error> {
        if let Some((id, receipts)) = &self.receipts
            && *id == origin.id()
        {
            return Ok(receipts.clone());
        }
        let receipts = Arc::new(self.l1.receipts(origin).await?);
        self.receipts = Some((origin.id(), receipts.clone()));
        Ok(receipts)
    }

    /// Reads the current origin; fails unless it is canonical. Uses the last reading if that is
    /// still valid.
    async fn read(&mut self, origin: BlockId) -> Result<Reading, SequencerError> {
        let reported = self.heads.borrow().head;
        let head = match reported {
            Some(head) => head,
            None => self.l1.block(L1Tag::Latest).await?.ok_or_else(|| {
                self.error(
                    "eth_getBlockByNumber",
                    RpcCause::Malformed("no head".into()),
                )
            })?,
        };
        if let Some(reading) = self.reading
            && reading.l1_head == head.id()
        {
            if reading.current.id() == origin {
                return Ok(reading);
            }
            // The parent uses the next origin of the last reading.
            if let NextOrigin::Known(next) = reading.next
                && next.id() == origin
            {
                return Ok(Reading {
                    current: next,
                    next: NextOrigin::Unknown,
                    ..reading
                });
            }
        }
        match self.l1.block_by_number(origin.number).await? {
            Some(current) if current.hash == origin.hash => Ok(Reading {
                l1_head: head.id(),
                current,
                next: NextOrigin::Unknown,
            }),
            Some(other) => Err(SequencerError::OriginGone {
                origin,
                canonical: other.hash,
            }),
            None => Err(SequencerError::OriginAhead(origin)),
        }
    }

    /// Whether this L1 block is canonical at present.
    pub(super) async fn status(&self, origin: BlockId) -> Result<OriginStatus, L1Error> {
        self.l1.status(origin).await
    }

    /// The hash of the canonical L1 block after `origin`, regardless of confirmations; `None` if L1
    /// has none.
    pub(super) async fn after(&self, origin: BlockId) -> Result<Option<B256>, SequencerError> {
        match self
            .l1
            .block_by_number(origin.number.saturating_add(1))
            .await?
        {
            Some(next) if next.parent_hash != origin.hash => Err(SequencerError::OriginGone {
                origin,
                canonical: next.parent_hash,
            }),
            next => Ok(next.map(|block| block.hash)),
        }
    }

    async fn next(&self, reading: &Reading) -> Result<NextOrigin, L1Error> {
        let number = reading.current.number.saturating_add(1);
        if number.saturating_add(self.confs) > reading.l1_head.number {
            return Ok(NextOrigin::NotYet);
        }
        Ok(self
            .l1
            .block_by_number(number)
            .await?
            .map_or(NextOrigin::NotYet, NextOrigin::Known))
    }

    fn error(&self, method: &'static str, cause: RpcCause) -> SequencerError {
        L1Error {
            endpoint: self.l1.endpoint().into(),
            method,
            cause,
        }
        .into()
    }
}

#[cfg(test)]
mod tests;
