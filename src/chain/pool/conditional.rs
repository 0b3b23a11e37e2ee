//! Conditions under which a transaction may be in a block (`eth_sendRawTransactionConditional`).
//!
//! JSON-RPC checks the conditions at the head, and the builder checks them in the block that it
//! builds. The cost of a check is bounded by [`MAX_COST`] reads of the state. The error texts are
//! op-geth's.

use alloy_primitives::{Address, B256, U256};
use alloy_trie::EMPTY_ROOT_HASH;
use std::collections::BTreeMap;

/// Maximum cost of the conditions of one transaction (op-geth: `TransactionConditionalMaxCost`).
pub const MAX_COST: usize = 1000;

/// Conditions of a transaction. The ranges include both ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditional {
    pub known_accounts: BTreeMap<Address, KnownAccount>,
    pub block_number_min: Option<U256>,
    pub block_number_max: Option<U256>,
    /// Lowest time of the block, Unix seconds.
    pub timestamp_min: Option<u64>,
    pub timestamp_max: Option<u64>,
}

/// The storage that an account must have: its root, or the values of some slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownAccount {
    Root(B256),
    Slots(BTreeMap<B256, B256>),
}

/// The reason why conditions contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConditional {
    #[error("block number minimum constraint must be less than the maximum")]
    BlockNumbers,
    #[error("timestamp minimum constraint must be less than the maximum")]
    Timestamps,
}

/// The condition that a block or a state does not meet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnmetCondition {
    #[error("failed block number minimum constraint")]
    BlockNumberMin,
    #[error("failed block number maximum constraint")]
    BlockNumberMax,
    #[error("failed timestamp minimum constraint")]
    TimestampMin,
    #[error("failed timestamp maximum constraint")]
    TimestampMax,
    #[error("failed account storage root constraint. Got {have}, Expected {want}")]
    Root { have: B256, want: B256 },
    #[error("failed account storage slot key {key} constraint. Got {have}, Expected {want}")]
    Slot { key: B256, have: B256, want: B256 },
}

/// The reads of a state that a check of conditions needs.
pub trait ConditionState {
    type Error;

    /// The storage root of an account; `None` if there is no account.
    fn storage_root(&mut self, address: Address) -> Result<Option<B256>, Self::Error>;

    fn slot(&mut self, address: Address, key: B256) -> Result<B256, Self::Error>;
}

impl Conditional {
    /// The cost of a check, about one per read of the state.
    pub fn cost(&self) -> usize {
        let accounts = self.known_accounts.values().map(|account| match account {
            KnownAccount::Root(_) => 2,
            KnownAccount::Slots(slots) => 1 + slots.len(),
        });
        let numbers = self.block_number_min.is_some() || self.block_number_max.is_some();
        let times = self.timestamp_min.is_some() || self.timestamp_max.is_some();
        accounts.sum::<usize>() + usize::from(numbers) + usize::from(times)
    }

    pub fn validate(&self) -> Result<(), InvalidConditional> {
        let above = |low: Option<U256>, high: Option<U256>| matches!((low, high), (Some(low), Some(high)) if low > high);
        if above(self.block_number_min, self.block_number_max) {
            return Err(InvalidConditional::BlockNumbers);
        }
        let times = [self.timestamp_min, self.timestamp_max].map(|time| time.map(U256::from));
        if above(times[0], times[1]) {
            return Err(InvalidConditional::Timestamps);
        }
        Ok(())
    }

    /// Checks the conditions for a block's number and time (Unix seconds).
    pub fn check_header(&self, number: u64, time: u64) -> Result<(), UnmetCondition> {
        let number = U256::from(number);
        if self.block_number_min.is_some_and(|min| min > number) {
            return Err(UnmetCondition::BlockNumberMin);
        }
        if self.block_number_max.is_some_and(|max| max < number) {
            return Err(UnmetCondition::BlockNumberMax);
        }
        if self.timestamp_min.is_some_and(|min| min > time) {
            return Err(UnmetCondition::TimestampMin);
        }
        if self.timestamp_max.is_some_and(|max| max < time) {
            return Err(UnmetCondition::TimestampMax);
        }
        Ok(())
    }

    /// The first condition for accounts that `state` does not meet.
    pub fn unmet_by<S: ConditionState>(
        &self,
        state: &mut S,
    ) -> Result<Option<UnmetCondition>, S::Error> {
        for (address, account) in &self.known_accounts {
            match account {
                KnownAccount::Root(want) => {
                    let have = state.storage_root(*address)?.unwrap_or(EMPTY_ROOT_HASH);
                    if have != *want {
                        let want = *want;
                        return Ok(Some(UnmetCondition::Root { have, want }));
                    }
                }
                KnownAccount::Slots(slots) => {
                    for (key, want) in slots {
                        let have = state.slot(*address, *key)?;
                        if have != *want {
                            let (key, want) = (*key, *want);
                            return Ok(Some(UnmetCondition::Slot { key, have, want }));
                        }
                    }
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Slots(BTreeMap<B256, B256>);

    impl ConditionState for Slots {
        type Error = std::convert::Infallible;

        fn storage_root(&mut self, _: Address) -> Result<Option<B256>, Self::Error> {
            Ok(None)
        }

        fn slot(&mut self, _: Address, key: B256) -> Result<B256, Self::Error> {
            Ok(self.0.get(&key).copied().unwrap_or_default())
        }
    }

    fn key(last: u8) -> B256 {
        B256::with_last_byte(last)
    }

    #[test]
    fn the_cost_counts_look_ups() {
        let slots = KnownAccount::Slots([(key(1), key(2)), (key(3), key(4))].into());
        let conditional = Conditional {
            known_accounts: [
                (Address::with_last_byte(1), slots),
                (Address::with_last_byte(2), KnownAccount::Root(key(9))),
            ]
            .into(),
            block_number_min: Some(U256::from(1)),
            timestamp_min: Some(1),
            timestamp_max: Some(2),
            ..Conditional::default()
        };
        assert_eq!(conditional.cost(), 3 + 2 + 1 + 1);
        assert_eq!(Conditional::default().cost(), 0);
    }

    #[test]
    fn ranges_include_their_ends_and_must_not_be_empty() {
        let conditional = Conditional {
            block_number_min: Some(U256::from(5)),
            block_number_max: Some(U256::from(6)),
            timestamp_min: Some(100),
            timestamp_max: Some(200),
            ..Conditional::default()
        };
        assert_eq!(conditional.validate(), Ok(()));
        let check = |number, time| conditional.check_header(number, time);
        assert_eq!(check(5, 100), Ok(()));
        assert_eq!(check(6, 200), Ok(()));
        assert_eq!(check(4, 100), Err(UnmetCondition::BlockNumberMin));
        assert_eq!(check(7, 100), Err(UnmetCondition::BlockNumberMax));
        assert_eq!(check(5, 99), Err(UnmetCondition::TimestampMin));
        assert_eq!(check(5, 201), Err(UnmetCondition::TimestampMax));
        let empty = Conditional {
            timestamp_min: Some(2),
            timestamp_max: Some(1),
            ..Conditional::default()
        };
        assert_eq!(empty.validate(), Err(InvalidConditional::Timestamps));
    }

    #[test]
    fn storage_is_compared_slot_by_slot_or_by_its_root() {
        let mut state = Slots([(key(1), key(2))].into());
        let mut unmet = |account| {
            let known_accounts = [(Address::ZERO, account)].into();
            let conditional = Conditional {
                known_accounts,
                ..Conditional::default()
            };
            conditional.unmet_by(&mut state).unwrap()
        };
        assert_eq!(unmet(KnownAccount::Slots([(key(1), key(2))].into())), None);
        assert_eq!(
            unmet(KnownAccount::Slots([(key(1), key(3))].into())),
            Some(UnmetCondition::Slot {
                key: key(1),
                have: key(2),
                want: key(3)
            })
        );
        assert_eq!(unmet(KnownAccount::Root(EMPTY_ROOT_HASH)), None);
        assert!(unmet(KnownAccount::Root(key(1))).is_some());
    }
}
