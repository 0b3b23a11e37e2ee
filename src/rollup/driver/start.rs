//! Finds the heads that derivation begins from, at start and after every reset (specs: derivation,
//! finding the sync starting point).
//!
//! The unsafe head is the highest block with an L1 origin that is canonical or above L1's head. The
//! safe head is the block of the newest record in [`SafeDb`] with a canonical L1 block. It was
//! derived from that L1 block and earlier ones, so it moves back only in an L1 reorg. Without such
//! a record the safe head is a block a whole sequencing window deep, as in op-node. With such a
//! record, the number of L1 requests grows with the logarithm of the reorg's depth, counted in L2
//! blocks and in records. So there is no walk over the unsafe blocks that an option could skip
//! (op-node: SkipSyncStartCheck).

use super::{
    BlockRefError, block_ref,
    derived_l1::DerivedL1,
    record_search::{RecordSearch, RecordStatus, RecordStep},
};
use crate::rollup::{
    engine::{BlockAt, CoreError, Engine},
    head_search::{HeadSearch, OriginStatus, RewindTarget, SearchStep},
    l1::{L1Client, L1Error, L1Tag},
    safe_db::{SafeDb, SafeDbError, SafeRecord},
};
use starling_proto::{config::RollupConfig, fork::Fork, l1info::L2BlockRef, payload::BlockId};

/// Largest depth of an L1 reorg, in sequencing windows (op-node: MaxReorgSeqWindows).
const MAX_REORG_WINDOWS: u64 = 5;

/// If a chain without a safe head is longer than this many sequencing windows, it is not derived
/// from genesis (op-node: RecoverMinSeqWindows).
const RECOVERY_WINDOWS: u64 = 14;

/// The heads that the search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartHeads {
    pub head: L2BlockRef,
    pub safe: L2BlockRef,
    pub finalized: L2BlockRef,
    /// Number of the first L1 block whose batches are applied; 0 applies all batches.
    pub first_l1: u64,
    /// The child of `head` if its L1 origin is orphaned. The origins of its descendants are not
    /// canonical either.
    pub lowest_orphaned: Option<BlockId>,
}

/// The reason why the search found no start. The search is repeated, since an endpoint's error may
/// be temporary.
#[derive(Debug, thiserror::Error)]
pub enum StartSearchError {
    #[error(transparent)]
    L1(#[from] L1Error),
    #[error(transparent)]
    Core(#[from] CoreError),
    #[error(transparent)]
    SafeDb(#[from] SafeDbError),
    #[error(transparent)]
    Block(#[from] BlockRefError),
    /// The endpoint lags, so it is unknown whether the block is canonical.
    #[error(
        "L1 at {endpoint} has not reached block {block}, which was derived from before: if it does \
         not catch up, check that endpoint"
    )]
    Behind { endpoint: String, block: BlockId },
    #[error(
        "L1 at {endpoint} does not serve block {origin}, which tells how deep an L1 reorg is: give \
         an endpoint that serves older blocks with --l1"
    )]
    NotServed { endpoint: String, origin: BlockId },
    #[error("the chain has no block {0}: its body is pruned, or it was removed during the search")]
    Missing(u64),
    #[error(
        "the finalized block {finalized} builds on L1 block {origin}, and L1 has {canonical} there: \
         either --l1 is an endpoint of another chain, or L1 has reverted a finalized block; check \
         --l1, and if L1 is right, start with a new data directory"
    )]
    FinalizedReorg {
        finalized: BlockId,
        origin: BlockId,
        canonical: alloy_primitives::B256,
    },
    #[error(
        "an L1 reorg would take the head from {from} back to {to}, more than {MAX_REORG_WINDOWS} \
         sequencing windows: check that --l1 is an endpoint of the right chain"
    )]
    TooDeep { from: BlockId, to: BlockId },
}

/// Inputs of the search for the start.
pub struct StartSearch<'a> {
    pub rollup: &'a RollupConfig,
    pub engine: &'a Engine,
    pub l1: &'a L1Client,
    pub safe_db: &'a SafeDb,
    /// The L1 blocks that derivation had read before the reset.
    pub derived_l1: &'a DerivedL1,
}

impl StartSearch<'_> {
    /// Finds the heads without moving them.
    pub async fn run(&self) -> Result<StartHeads, StartSearchError> {
        let genesis = self.rollup.genesis.l2;
        let heads = *self.engine.heads().borrow();
        let finalized = self
            .block(heads.finalized.unwrap_or(genesis).number)
            .await?;
        // A core that another program has driven may have a finalized head and no safe head.
        let old_safe = match heads.safe {
            Some(safe) if safe.number > finalized.id.number => self.block(safe.number).await?,
            _ => finalized,
        };
        let old_head = self.block(heads.head.number).await?;
        let lowest_orphaned = self.lowest_orphaned(&finalized, &old_head).await?;
        let head = match lowest_orphaned {
            Some(orphaned) => self.block(orphaned.number.saturating_sub(1)).await?,
            None => old_head,
        };
        let reach = MAX_REORG_WINDOWS.saturating_mul(self.rollup.seq_window_size);
        if head.origin.number.saturating_add(reach) < old_head.origin.number {
            return Err(StartSearchError::TooDeep {
                from: old_head.id,
                to: head.id,
            });
        }
        if self.is_without_safe_head(&finalized, &old_safe, &head) {
            tracing::warn!(head = %head.id, "the chain has a head and no safe head, and its first batches are too old to be read: the head is taken as safe, as its blocks are signed by the sequencer");
            return Ok(StartHeads {
                head,
                safe: head,
                finalized,
                first_l1: 0,
                lowest_orphaned,
            });
        }
        let (safe, first_l1) = match self.recorded(&finalized, &head).await? {
            Some(recorded) => recorded,
            None => (self.window_deep(&finalized, &old_safe, &head).await?, 0),
        };
        Ok(StartHeads {
            head,
            safe,
            finalized,
            first_l1,
            lowest_orphaned,
        })
    }

    /// Whether the chain is long but was never derived, as after a sync without derivation
    /// (op-node: recovery from a sync state without finality). A record of genesis only means that
    /// derivation was started.
    fn is_without_safe_head(
        &self,
        finalized: &L2BlockRef,
        safe: &L2BlockRef,
        head: &L2BlockRef,
    ) -> bool {
        let genesis = &self.rollup.genesis;
        let windows = RECOVERY_WINDOWS.saturating_mul(self.rollup.seq_window_size);
        finalized.id == genesis.l2
            && safe.id == genesis.l2
            && self.safe_db.last().is_none_or(|last| last.l2 == genesis.l2)
            && head.origin.number > genesis.l1.number.saturating_add(windows)
    }

    /// The lowest block above `finalized` with an orphaned L1 origin. `None` if all origins up to
    /// the head are canonical or above L1's head.
    async fn lowest_orphaned(
        &self,
        finalized: &L2BlockRef,
        head: &L2BlockRef,
    ) -> Result<Option<BlockId>, StartSearchError> {
        let mut search = HeadSearch::new(finalized.id.number, head.id.number);
        let mut lowest = None;
        loop {
            match search.step() {
                SearchStep::Check(number) => {
                    let block = self.block(number).await?;
                    let status = self.l1.status(block.origin).await?;
                    if matches!(status, OriginStatus::Orphaned { .. }) {
                        lowest = Some(block.id);
                    }
                    search.record(number, status);
                }
                SearchStep::Found(RewindTarget::Stay) => return Ok(None),
                // The search ends next to the lowest orphaned block, so that block was the last one
                // found orphaned.
                SearchStep::Found(RewindTarget::Block(_)) => return Ok(lowest),
                SearchStep::Found(RewindTarget::FloorOrphaned { canonical }) => {
                    return Err(StartSearchError::FinalizedReorg {
                        finalized: finalized.id,
                        origin: finalized.origin,
                        canonical,
                    });
                }
                SearchStep::Found(RewindTarget::NotServed(number)) => {
                    return Err(StartSearchError::NotServed {
                        endpoint: self.l1.endpoint().to_owned(),
                        origin: self.block(number).await?.origin,
                    });
                }
            }
        }
    }

    /// The safe block of the newest record with a canonical L1 block and an L2 block in the chain,
    /// and the number of the first L1 block to apply batches of. `None` if that safe block would be
    /// below the finalized block.
    ///
    /// A record is written when everything in its L1 block has been derived. Before Holocene a
    /// batch may wait for an earlier one, so all batches are applied again.
    async fn recorded(
        &self,
        finalized: &L2BlockRef,
        head: &L2BlockRef,
    ) -> Result<Option<(L2BlockRef, u64)>, StartSearchError> {
        let floor = self.safe_db.first_from_l2(finalized.id.number)?;
        let mut search = RecordSearch::new(floor, self.safe_db.len());
        let (position, l1_time) = loop {
            match search.step() {
                RecordStep::Check(position) => {
                    let record = self.safe_db.record_at(position)?;
                    search.record(position, self.status_of(&record, head).await?);
                }
                RecordStep::Found { position, l1_time } => break (position, l1_time),
                RecordStep::Nothing => return Ok(None),
                RecordStep::Behind(position) => {
                    let block = self.safe_db.record_at(position)?.derived_from;
                    self.check_shorter_branch(block).await?;
                    search.discard_ahead();
                }
            }
        };
        let record = self.safe_db.record_at(position)?;
        let holocene = self.rollup.forks.is_active(Fork::Holocene, l1_time);
        let first_l1 = if holocene {
            record.derived_from.number.saturating_add(1)
        } else {
            0
        };
        Ok(Some((self.block(record.l2.number).await?, first_l1)))
    }

    /// Compares a record with L1 and with the L2 chain up to `head`.
    async fn status_of(
        &self,
        record: &SafeRecord,
        head: &L2BlockRef,
    ) -> Result<RecordStatus, StartSearchError> {
        if record.l2.number > head.id.number || self.block(record.l2.number).await?.id != record.l2
        {
            return Ok(RecordStatus::Displaced);
        }
        let recorded = record.derived_from;
        Ok(match self.l1.block_by_number(recorded.number).await? {
            Some(l1) if l1.hash == recorded.hash => RecordStatus::Canonical { l1_time: l1.time },
            Some(_) => RecordStatus::Orphaned,
            None => RecordStatus::Ahead,
        })
    }

    /// Called when the lowest record that is not canonical has L1 block `block`, above L1's head.
    /// Either the endpoint lags, or L1 has switched to a shorter branch, which makes the record
    /// obsolete. Fails unless L1's head contradicts a block that derivation has read.
    async fn check_shorter_branch(&self, block: BlockId) -> Result<(), StartSearchError> {
        let head = self.l1.block(L1Tag::Latest).await?;
        if head.is_some_and(|head| self.derived_l1.is_contradicted_by(&head)) {
            return Ok(());
        }
        Err(StartSearchError::Behind {
            endpoint: self.l1.endpoint().to_owned(),
            block,
        })
    }

    /// The safe head if no record is usable (op-node: FindL2Heads): the last block before the
    /// highest epoch that is not above the old safe head and is more than a sequencing window below
    /// the newest origin that L1 has. It is never below the finalized block.
    async fn window_deep(
        &self,
        finalized: &L2BlockRef,
        old_safe: &L2BlockRef,
        head: &L2BlockRef,
    ) -> Result<L2BlockRef, StartSearchError> {
        // Skip blocks with origins above L1's head: nothing shows that these origins are canonical.
        let mut highest = *head;
        while self.l1.status(highest.origin).await? == OriginStatus::Ahead {
            let below = highest
                .id
                .number
                .saturating_sub(highest.sequence_number + 1);
            if below <= finalized.id.number {
                return Ok(*finalized);
            }
            highest = self.block(below).await?;
        }
        let window = self.rollup.seq_window_size;
        let window_expired =
            |block: &L2BlockRef| block.origin.number.saturating_add(window) < highest.origin.number;
        let (mut low, mut high) = (
            finalized.id.number,
            old_safe.id.number.min(head.id.number).saturating_add(1),
        );
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if window_expired(&self.block(middle).await?) {
                low = middle;
            } else {
                high = middle;
            }
        }
        let deepest = self.block(low).await?;
        let first = low.saturating_sub(deepest.sequence_number);
        // If no block is a window deep, `low` is the finalized block, and this condition holds too.
        if first <= finalized.id.number.saturating_add(1) {
            return Ok(*finalized);
        }
        self.block(first - 1).await
    }

    async fn block(&self, number: u64) -> Result<L2BlockRef, StartSearchError> {
        let block = self.engine.block(BlockAt::Number(number)).await?;
        let block = block.ok_or(StartSearchError::Missing(number))?;
        Ok(block_ref(&block, self.rollup)?)
    }
}
