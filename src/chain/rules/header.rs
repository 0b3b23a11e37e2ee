//! Rules for a header, given its parent: all checks that are possible before execution.

use super::{ChainSpec, ExtraData, ExtraDataError, MIN_GAS_LIMIT};
use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, Header};
use alloy_eips::{eip4844::DATA_GAS_PER_BLOB, eip7685::EMPTY_REQUESTS_HASH};
use alloy_primitives::{B64, B256, U256};
use alloy_trie::EMPTY_ROOT_HASH;
use starling_proto::fork::Fork;

/// Longest extra data of any header.
pub(super) const MAX_EXTRA_DATA: usize = 32;
/// Highest gas limit of any header (2^63 - 1).
const MAX_GAS_LIMIT: u64 = i64::MAX as u64;
/// On Ethereum a gas limit must differ from the parent's by less than the parent's divided by this.
const GAS_LIMIT_BOUND_DIVISOR: u64 = 1_024;

/// The rule that a header breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("parent hash is {have}, want {want}")]
    ParentHash { have: B256, want: B256 },
    #[error("number is {have}, want {want}")]
    Number { have: u64, want: u64 },
    #[error("timestamp is {have}, not after the parent's {parent}")]
    Timestamp { have: u64, parent: u64 },
    #[error("difficulty is {0}, want 0")]
    Difficulty(U256),
    #[error("difficulty is {have}, want {want}")]
    WrongDifficulty { have: U256, want: U256 },
    #[error("total difficulty {total} has not reached {terminal}, and the block has no difficulty")]
    MergedEarly { total: U256, terminal: U256 },
    #[error("the block has a difficulty, and the chain has passed the merge")]
    MinedAfterMerge,
    #[error("nonce is {0}, want 0")]
    Nonce(B64),
    #[error("uncles hash is {0}, want that of no uncles")]
    Uncles(B256),
    #[error("extra data has {0} bytes, more than 32")]
    ExtraDataLength(usize),
    #[error(transparent)]
    ExtraData(#[from] ExtraDataError),
    #[error("gas limit is {0}, out of bounds")]
    GasLimit(u64),
    #[error("gas limit is {have}, too far from the parent's {parent}")]
    GasLimitChange { have: u64, parent: u64 },
    #[error("gas used is {have}, above the gas limit {limit}")]
    GasUsed { have: u64, limit: u64 },
    #[error("base fee is {have}, want {want}")]
    BaseFee { have: u64, want: u64 },
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} is set before its fork")]
    Unexpected(&'static str),
    #[error("withdrawals root is {have}, want {want}")]
    WithdrawalsRoot { have: B256, want: B256 },
    #[error("excess blob gas is {have}, want {want}")]
    ExcessBlobGas { have: u64, want: u64 },
    #[error("blob gas used is {have}, want {want}")]
    BlobGasUsed { have: u64, want: u64 },
    #[error("blob gas used is {have}, above the block's maximum {limit}")]
    BlobGasLimit { have: u64, limit: u64 },
    #[error("blob gas used is {0}, which is no whole number of blobs")]
    PartialBlob(u64),
    #[error("data footprint is {have}, above the gas limit {limit}")]
    DataFootprint { have: u64, limit: u64 },
    #[error("requests hash is {have}, want {want}")]
    RequestsHash { have: B256, want: B256 },
}

/// Returns `value` if it is present exactly when its fork is active; otherwise fails with the
/// field's name.
fn field<T: Copy>(
    name: &'static str,
    value: Option<T>,
    active: bool,
) -> Result<Option<T>, HeaderError> {
    match (value, active) {
        (None, true) => Err(HeaderError::Missing(name)),
        (Some(_), false) => Err(HeaderError::Unexpected(name)),
        _ => Ok(value),
    }
}

impl ChainSpec {
    /// Checks a header against its parent (specs: exec-engine of each fork). Left to execution: the
    /// roots (but OP's empty withdrawals root before Isthmus is checked here), the bloom, the exact
    /// gas used, and Ethereum's requests hash.
    pub fn check_header(
        &self,
        header: &Header,
        parent: &Header,
        parent_hash: B256,
    ) -> Result<(), HeaderError> {
        if header.parent_hash != parent_hash {
            return Err(HeaderError::ParentHash {
                have: header.parent_hash,
                want: parent_hash,
            });
        }
        let number = parent.number.saturating_add(1);
        if header.number != number {
            return Err(HeaderError::Number {
                have: header.number,
                want: number,
            });
        }
        if header.timestamp <= parent.timestamp {
            return Err(HeaderError::Timestamp {
                have: header.timestamp,
                parent: parent.timestamp,
            });
        }
        if let Some(rules) = self.mined(header) {
            if self.at(header.timestamp).shanghai {
                return Err(HeaderError::MinedAfterMerge);
            }
            rules.check_header(header, parent)?;
            return self.check_gas(header, parent);
        }
        if !header.difficulty.is_zero() {
            return Err(HeaderError::Difficulty(header.difficulty));
        }
        if !header.nonce.is_zero() {
            return Err(HeaderError::Nonce(header.nonce));
        }
        if header.ommers_hash != EMPTY_OMMER_ROOT_HASH {
            return Err(HeaderError::Uncles(header.ommers_hash));
        }
        self.check_extra_data(header)?;
        self.check_gas(header, parent)?;
        self.check_fork_fields(header, parent)
    }

    /// Checks the extra data by the rules at the header's own timestamp, without the parent.
    pub fn check_extra_data(&self, header: &Header) -> Result<(), HeaderError> {
        let active = self.at(header.timestamp);
        if header.extra_data.len() > MAX_EXTRA_DATA {
            return Err(HeaderError::ExtraDataLength(header.extra_data.len()));
        }
        if active.is_op(Fork::Holocene) {
            ExtraData::decode(&header.extra_data, &active)?;
        } else if active.op.is_some() && !header.extra_data.is_empty() {
            return Err(ExtraDataError::NotEmpty(header.extra_data.clone()).into());
        }
        Ok(())
    }

    fn check_gas(&self, header: &Header, parent: &Header) -> Result<(), HeaderError> {
        let Header {
            gas_limit,
            gas_used,
            ..
        } = *header;
        if gas_limit > MAX_GAS_LIMIT {
            return Err(HeaderError::GasLimit(gas_limit));
        }
        // On OP the gas limit is set by the system configuration and may change by any amount.
        if !self.is_optimism() {
            if gas_limit < MIN_GAS_LIMIT {
                return Err(HeaderError::GasLimit(gas_limit));
            }
            let before = match self.mined(header) {
                Some(rules) => rules.gas_limit_before(header, parent),
                None => parent.gas_limit,
            };
            if gas_limit.abs_diff(before) >= (before / GAS_LIMIT_BOUND_DIVISOR).max(1) {
                return Err(HeaderError::GasLimitChange {
                    have: gas_limit,
                    parent: before,
                });
            }
        }
        if gas_used > gas_limit {
            return Err(HeaderError::GasUsed {
                have: gas_used,
                limit: gas_limit,
            });
        }
        let want = self.base_fee_of(parent, header.timestamp)?;
        match (header.base_fee_per_gas, want) {
            (Some(have), Some(want)) if have != want => Err(HeaderError::BaseFee { have, want }),
            (None, Some(_)) => Err(HeaderError::Missing("base fee")),
            (Some(_), None) => Err(HeaderError::Unexpected("base fee")),
            _ => Ok(()),
        }
    }

    /// Checks the header fields that forks after London have added.
    fn check_fork_fields(&self, header: &Header, parent: &Header) -> Result<(), HeaderError> {
        let active = self.at(header.timestamp);
        let withdrawals = field("withdrawals root", header.withdrawals_root, active.shanghai)?;
        // From Isthmus on the withdrawals root is the storage root of the message passer after the
        // block; on Ethereum it is the root of the body's withdrawals. Execution compares both.
        if let Some(have) = withdrawals
            && active.op.is_some_and(|fork| fork < Fork::Isthmus)
            && have != EMPTY_ROOT_HASH
        {
            return Err(HeaderError::WithdrawalsRoot {
                have,
                want: EMPTY_ROOT_HASH,
            });
        }
        field(
            "parent beacon block root",
            header.parent_beacon_block_root,
            active.cancun,
        )?;
        if let Some(have) = field("excess blob gas", header.excess_blob_gas, active.cancun)? {
            let want = self.excess_blob_gas(parent, header.timestamp);
            if have != want {
                return Err(HeaderError::ExcessBlobGas { have, want });
            }
        }
        if let Some(have) = field("blob gas used", header.blob_gas_used, active.cancun)? {
            self.check_blob_gas_used(have, header)?;
        }
        // On Ethereum only execution can compute the requests.
        if let Some(have) = field("requests hash", header.requests_hash, active.prague)?
            && active.op.is_some()
            && have != EMPTY_REQUESTS_HASH
        {
            return Err(HeaderError::RequestsHash {
                have,
                want: EMPTY_REQUESTS_HASH,
            });
        }
        Ok(())
    }

    /// Checks that the blob gas used is within its bounds. Execution checks its exact value.
    fn check_blob_gas_used(&self, have: u64, header: &Header) -> Result<(), HeaderError> {
        let limit = header.gas_limit;
        match self.blob_params(header.timestamp) {
            Some(params) if have > params.max_blob_gas_per_block() => {
                let limit = params.max_blob_gas_per_block();
                Err(HeaderError::BlobGasLimit { have, limit })
            }
            Some(_) if !have.is_multiple_of(DATA_GAS_PER_BLOB) => {
                Err(HeaderError::PartialBlob(have))
            }
            Some(_) => Ok(()),
            None if !self.at(header.timestamp).is_op(Fork::Jovian) && have != 0 => {
                Err(HeaderError::BlobGasUsed { have, want: 0 })
            }
            None if have > limit => Err(HeaderError::DataFootprint { have, limit }),
            None => Ok(()),
        }
    }

    /// The excess blob gas of a block at `timestamp` on `parent`: zero on OP.
    pub fn excess_blob_gas(&self, parent: &Header, timestamp: u64) -> u64 {
        self.blob_params(timestamp)
            .and_then(|params| parent.next_block_excess_blob_gas(params))
            .unwrap_or(0)
    }
}
