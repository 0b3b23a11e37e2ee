//! Origin selection: chooses the L1 origin of the next L2 block (specs: derivation, sequencer
//! drift; op-node's origin selector).
//!
//! Pure: takes the known L1 blocks, and returns the choice or a request for the next L1 block.

use starling_proto::{attributes::L1Block, config::RollupConfig};
use thiserror::Error;

/// The state of knowledge about the L1 block after the current origin.
#[expect(
    clippy::large_enum_variant,
    reason = "one lives at a time, and it is Copy"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextOrigin {
    /// The L1 block has not been fetched.
    Unknown,
    /// L1 has no such block, or the block has too few confirmations (`--sequencer.l1-confs`).
    NotYet,
    Known(L1Block),
}

/// The chosen L1 origin, or a request for the next L1 block.
#[expect(
    clippy::large_enum_variant,
    reason = "one lives at a time, and it is Copy"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginChoice {
    Origin(L1Block),
    /// The next L1 block must be fetched before an origin can be chosen.
    FetchNext,
}

/// The reason why no block can be built at present.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OriginError {
    /// The L1 block after the origin does not extend the origin: an L1 reorg has orphaned the
    /// head's origin.
    #[error("L1 origin {number} {hash} has left the L1 chain: block {next} there builds on {parent}", number = .current.number, hash = .current.hash, next = .next.hash, parent = .next.parent_hash)]
    Reorganised {
        current: Box<L1Block>,
        next: Box<L1Block>,
    },
    /// The block would exceed the sequencer drift. Temporary, until the next L1 block is available.
    #[error(
        "the next block (time {time}) would be {ahead} s ahead of L1 origin {number}, more than the {drift} s that are allowed, and L1 block {next} is not available yet",
        next = .number + 1
    )]
    DriftLimit {
        time: u64,
        number: u64,
        ahead: u64,
        drift: u64,
    },
}

/// Chooses the L1 origin of a block at `time` (Unix seconds) whose parent has the origin `current`.
/// With `recover` the origin advances as early as possible, as in derivation after a long halt.
pub fn select(
    rollup: &RollupConfig,
    time: u64,
    current: &L1Block,
    next: NextOrigin,
    recover: bool,
) -> Result<OriginChoice, OriginError> {
    if let NextOrigin::Known(next) = &next {
        if next.parent_hash != current.hash {
            return Err(OriginError::Reorganised {
                current: Box::new(*current),
                next: Box::new(*next),
            });
        }
        // A block's time must not be before its origin's time, so the origin advances only now.
        if time >= next.time {
            return Ok(OriginChoice::Origin(*next));
        }
    }
    let drift = rollup.sequencer_drift(current.time);
    let ahead = time.saturating_sub(current.time);
    match next {
        NextOrigin::Unknown if recover || ahead > drift => Ok(OriginChoice::FetchNext),
        // L1 made no block for longer than the drift: keep the origin, and build a block without
        // pool transactions.
        NextOrigin::Known(_) => Ok(OriginChoice::Origin(*current)),
        _ if ahead <= drift => Ok(OriginChoice::Origin(*current)),
        _ => Err(OriginError::DriftLimit {
            time,
            number: current.number,
            ahead,
            drift,
        }),
    }
}

/// Whether a block at `time` exceeds the sequencer drift of this origin, and so must not contain
/// pool transactions.
pub fn past_drift(rollup: &RollupConfig, time: u64, origin: &L1Block) -> bool {
    time > origin
        .time
        .saturating_add(rollup.sequencer_drift(origin.time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::B256;
    use starling_proto::fork::{Fork, ForkSchedule};

    fn rollup(last: Fork) -> RollupConfig {
        RollupConfig {
            block_time: 2,
            max_sequencer_drift: 600,
            forks: ForkSchedule::from_genesis(last),
            ..Default::default()
        }
    }

    fn block(number: u8, time: u64) -> L1Block {
        let hash = B256::with_last_byte(number);
        L1Block {
            number: number.into(),
            hash,
            parent_hash: B256::with_last_byte(number - 1),
            time,
            ..Default::default()
        }
    }

    #[test]
    fn the_next_origin_is_taken_as_soon_as_the_block_is_not_older() {
        let (rollup, current, next) = (rollup(Fork::Jovian), block(5, 100), block(6, 112));
        let choose = |time| select(&rollup, time, &current, NextOrigin::Known(next), false);
        assert_eq!(choose(111), Ok(OriginChoice::Origin(current)));
        assert_eq!(choose(112), Ok(OriginChoice::Origin(next)));
        assert_eq!(choose(9_999), Ok(OriginChoice::Origin(next)));
    }

    #[test]
    fn inside_the_drift_an_unknown_next_origin_does_not_matter() {
        let (rollup, current) = (rollup(Fork::Jovian), block(5, 100));
        for next in [NextOrigin::Unknown, NextOrigin::NotYet] {
            assert_eq!(
                select(&rollup, 1900, &current, next, false),
                Ok(OriginChoice::Origin(current))
            );
        }
        assert!(!past_drift(&rollup, 1900, &current));
        assert!(past_drift(&rollup, 1901, &current));
    }

    #[test]
    fn past_the_drift_the_next_origin_must_be_known() {
        let (rollup, current) = (rollup(Fork::Jovian), block(5, 100));
        assert_eq!(
            select(&rollup, 1902, &current, NextOrigin::Unknown, false),
            Ok(OriginChoice::FetchNext)
        );
        let error = select(&rollup, 1902, &current, NextOrigin::NotYet, false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the next block (time 1902) would be 1802 s ahead of L1 origin 5, more than the 1800 s that are allowed, and L1 block 6 is not available yet"
        );
        // L1 itself made no block during the drift: the old origin is chosen, for a block without
        // pool transactions.
        assert_eq!(
            select(
                &rollup,
                1902,
                &current,
                NextOrigin::Known(block(6, 1903)),
                false
            ),
            Ok(OriginChoice::Origin(current))
        );
    }

    #[test]
    fn before_fjord_the_drift_is_configured() {
        let (rollup, current) = (rollup(Fork::Ecotone), block(5, 100));
        assert_eq!(
            select(&rollup, 700, &current, NextOrigin::NotYet, false),
            Ok(OriginChoice::Origin(current))
        );
        assert!(matches!(
            select(&rollup, 701, &current, NextOrigin::NotYet, false),
            Err(OriginError::DriftLimit { .. })
        ));
    }

    #[test]
    fn recovering_asks_for_every_next_origin_first() {
        let (rollup, current) = (rollup(Fork::Jovian), block(5, 100));
        assert_eq!(
            select(&rollup, 102, &current, NextOrigin::Unknown, true),
            Ok(OriginChoice::FetchNext)
        );
        assert_eq!(
            select(&rollup, 102, &current, NextOrigin::NotYet, true),
            Ok(OriginChoice::Origin(current))
        );
        assert_eq!(
            select(
                &rollup,
                102,
                &current,
                NextOrigin::Known(block(6, 104)),
                true
            ),
            Ok(OriginChoice::Origin(current))
        );
    }

    #[test]
    fn a_next_origin_on_another_parent_is_a_reorganisation() {
        let (rollup, current) = (rollup(Fork::Jovian), block(5, 100));
        let next = L1Block {
            parent_hash: B256::repeat_byte(9),
            ..block(6, 112)
        };
        let error = select(&rollup, 102, &current, NextOrigin::Known(next), false).unwrap_err();
        assert!(
            error.to_string().contains("has left the L1 chain"),
            "{error}"
        );
    }
}
