//! Rewinds the head after an L1 reorg: to the last L2 block whose L1 origin is canonical, not below the safe block.
//!
//! The origins along an L2 chain are an L1 chain, so all origins below a canonical one are canonical, and the last canonical one is found
//! by bisection: a reorg of 64 L1 blocks takes some ten requests. If the endpoint changes its L1 head during the search, the result may be
//! too high or too low. If it is too high, the next block fails again. If it is too low, the blocks above are found in the payload log
//! and used again.

use super::{START_TIMEOUT, Sequencer, SequencerError, origins::Standing};
use alloy_primitives::B256;
use starling_proto::{l1info::L2BlockRef, payload::BlockId};
use tokio::time::timeout;

/// The result of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retreat {
    /// The head stays. Its origin is canonical, or L1 has not reached it yet and no lower origin is gone.
    Stay,
    /// The head is rewound to the block of this number.
    To(u64),
    /// Even the lowest block's origin is gone.
    FloorGone { canonical: B256 },
}

/// The next step of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Check the origin of the L2 block of this number on L1.
    Ask(u64),
    Found(Retreat),
}

/// A bisection between the lowest block that may become the head and the head. Pure.
#[derive(Debug)]
pub(super) struct Search {
    floor: u64,
    /// The highest block whose origin is known to be canonical.
    low: Option<u64>,
    /// The lowest block whose origin is known not to be canonical, and the result of its check.
    high: (u64, Standing),
}

impl Search {
    pub(super) fn new(floor: u64, head: u64) -> Self {
        Self {
            floor,
            low: None,
            high: (head.saturating_add(1), Standing::Ahead),
        }
    }

    pub(super) fn step(&self) -> Step {
        let (high, above) = self.high;
        match (self.low, above) {
            (None, Standing::Gone { canonical }) if high == self.floor => {
                Step::Found(Retreat::FloorGone { canonical })
            }
            (None, _) if high == self.floor => Step::Found(Retreat::Stay),
            (None, _) => Step::Ask(self.floor),
            (Some(low), _) if high - low > 1 => Step::Ask(low + (high - low) / 2),
            (Some(low), Standing::Gone { .. }) => Step::Found(Retreat::To(low)),
            _ => Step::Found(Retreat::Stay),
        }
    }

    /// Enters the result of [`Step::Ask`].
    pub(super) fn answer(&mut self, number: u64, standing: Standing) {
        match standing {
            Standing::Canonical => self.low = Some(number),
            other => self.high = (number, other),
        }
    }
}

impl Sequencer {
    /// Rewinds the head, whose origin L1 has contradicted repeatedly, to the last block whose L1 origin is canonical, not below the safe
    /// block.
    pub(super) async fn go_back(&mut self) -> Result<(), SequencerError> {
        let (view, genesis) = (self.chain.view(), &self.rollup.genesis);
        let (head, floor) = (view.head(), view.safe().unwrap_or(genesis.l2));
        let origin_of = |number: u64| {
            let missing = || SequencerError::NoHead(BlockId { number, ..head });
            let payload = view.payload(number)?.ok_or_else(missing)?;
            Ok::<_, SequencerError>(L2BlockRef::of(&payload, genesis)?.origin)
        };
        let mut search = Search::new(floor.number, head.number);
        let searched = timeout(START_TIMEOUT, async {
            loop {
                match search.step() {
                    Step::Found(found) => return Ok::<_, SequencerError>(found),
                    Step::Ask(number) => {
                        search.answer(number, self.origins.standing(origin_of(number)?).await?)
                    }
                }
            }
        });
        let found = searched.await.map_err(|_| SequencerError::Slow)??;
        // A head that moved during the search is judged by itself.
        if self.chain.view().head() != head {
            return Ok(());
        }
        match found {
            Retreat::Stay => Ok(()),
            Retreat::FloorGone { canonical } => Err(SequencerError::SafeOriginGone {
                safe: floor,
                origin: origin_of(floor.number)?,
                canonical,
            }),
            Retreat::To(number) => {
                let hash = view.hash_of(number)?.ok_or(SequencerError::NoHead(head))?;
                let to = BlockId { number, hash };
                let origin = origin_of(head.number)?;
                tracing::warn!(%head, %to, %origin, "L1 reorg: the head is rewound to the last block whose L1 origin is canonical");
                metrics::counter!("starling_sequencer_l1_reorgs_total").increment(1);
                Ok(self.chain.forkchoice(hash, None, None).await?)
            }
        }
    }
}

#[cfg(test)]
mod tests;
