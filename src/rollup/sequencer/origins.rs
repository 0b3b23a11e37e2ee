//! The L1 blocks around the sequencer's origin, fetched again whenever L1's head changes.

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

/// Timeout of the next origin where the block can also stay on its parent's.
pub(super) const OPTIONAL: Duration = Duration::from_millis(500);
/// Timeout of the next origin where no block can be built without it.
const REQUIRED: Duration = Duration::from_secs(10);

/// One reading of L1: valid while head and origin are the same.
#[derive(Clone, Copy)]
struct Reading {
    l1_head: BlockId,
    current: L1Block,
    next: NextOrigin,
}

pub(super) struct Origins {
    l1: L1Client,
    heads: watch::Receiver<L1Heads>,
    /// L1 blocks that the origin stays below the head (`--sequencer.l1-confs`).
    confs: u64,
    reading: Option<Reading>,
    /// Receipts of the newest origin that was chosen for the first block of its epoch.
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
        // The reading is kept only if it leads to a choice: after a contradiction L1 is read again.
        self.reading = None;
        if reading.next == NextOrigin::Unknown {
            // A timeout is no error here: the block can stay on its parent's origin.
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

    /// Checks that a parent's origin is canonical.
    pub(super) async fn confirm(&mut self, origin: BlockId) -> Result<(), SequencerError> {
        let reading = self.read(origin).await;
        self.reading = reading.as_ref().ok().copied();
        reading.map(drop)
    }

    /// The receipts of an origin, fetched once.
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

    /// The current origin, which must still be part of the L1 chain.
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
            // The parent has moved to the next origin.
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

    /// Checks whether this L1 block is canonical now.
    pub(super) async fn status(&self, origin: BlockId) -> Result<OriginStatus, L1Error> {
        self.l1.status(origin).await
    }

    /// The canonical L1 block after this one, whatever the confirmations.
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
