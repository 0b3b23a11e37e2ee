//! How far the head goes back after an L1 reorg: to the last L2 block whose L1 origin is canonical, not below the safe block.
//!
//! The origins along an L2 chain are an L1 chain, so below a canonical origin all are canonical, and the last canonical one is found by
//! bisection: a reorg of 64 L1 blocks takes some ten requests. An endpoint that changes its answers meanwhile leads to a block that is
//! too low or too high. Too high, the next block fails again; too low, the blocks above are found in the payload log and used again.

use super::{START_TIMEOUT, Sequencer, SequencerError, origins::Standing};
use alloy_primitives::B256;
use starling_proto::{l1info::L2BlockRef, payload::BlockId};
use tokio::time::timeout;

/// Where the head should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retreat {
    /// The head's origin is canonical, or above L1's head and on canonical origins: it may still become canonical.
    Stay,
    /// To the block of this number.
    To(u64),
    /// Even the lowest block's origin is gone.
    FloorGone { canonical: B256 },
}

/// What to do next to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Find out how the origin of the L2 block of this number stands to L1.
    Ask(u64),
    Found(Retreat),
}

/// The search between the lowest block that may be the head and the head. Pure.
#[derive(Debug)]
pub(super) struct Search {
    floor: u64,
    /// The highest block whose origin is known to be canonical.
    low: Option<u64>,
    /// The lowest block whose origin is known not to be, and how it stands.
    high: (u64, Standing),
}

impl Search {
    pub(super) fn new(floor: u64, head: u64) -> Self {
        Self { floor, low: None, high: (head.saturating_add(1), Standing::Ahead) }
    }

    pub(super) fn step(&self) -> Step {
        let (high, above) = self.high;
        match (self.low, above) {
            (None, Standing::Gone { canonical }) if high == self.floor => Step::Found(Retreat::FloorGone { canonical }),
            (None, _) if high == self.floor => Step::Found(Retreat::Stay),
            (None, _) => Step::Ask(self.floor),
            (Some(low), _) if high - low > 1 => Step::Ask(low + (high - low) / 2),
            (Some(low), Standing::Gone { .. }) => Step::Found(Retreat::To(low)),
            _ => Step::Found(Retreat::Stay),
        }
    }

    /// The answer to [`Step::Ask`].
    pub(super) fn answer(&mut self, number: u64, standing: Standing) {
        match standing {
            Standing::Canonical => self.low = Some(number),
            other => self.high = (number, other),
        }
    }
}

impl Sequencer {
    /// L1 has contradicted the head repeatedly: moves the head to the last block whose L1 origin is canonical, not below the safe block.
    pub(super) async fn go_back(&mut self) -> Result<(), SequencerError> {
        let (view, genesis) = (self.chain.view(), &self.rollup.genesis);
        let (head, floor) = (view.head(), view.safe().unwrap_or(genesis.l2));
        let origin_of = |number: u64| {
            let missing = || SequencerError::NoHead(BlockId { number, ..head });
            let payload = view.payload(number)?.ok_or_else(missing)?;
            Ok::<_, SequencerError>(L2BlockRef::of(&payload, genesis)?.origin)
        };
        let mut search = Search::new(floor.number, head.number);
        let found = loop {
            match search.step() {
                Step::Found(found) => break found,
                Step::Ask(number) => {
                    let standing = timeout(START_TIMEOUT, self.origins.standing(origin_of(number)?));
                    search.answer(number, standing.await.map_err(|_| SequencerError::Slow)??);
                }
            }
        };
        match found {
            Retreat::Stay => Ok(()),
            Retreat::FloorGone { canonical } => {
                Err(SequencerError::SafeOriginGone { safe: floor, origin: origin_of(floor.number)?, canonical })
            }
            Retreat::To(number) => {
                let hash = view.hash_of(number)?.ok_or(SequencerError::NoHead(head))?;
                let to = BlockId { number, hash };
                let origin = origin_of(head.number)?;
                tracing::warn!(%head, %to, %origin, "L1 was reorganised: the head goes back to the last block whose L1 origin is canonical");
                metrics::counter!("starling_sequencer_l1_reorgs_total").increment(1);
                Ok(self.chain.forkchoice(hash, None, None).await?)
            }
        }
    }
}

#[cfg(test)]
mod tests;
