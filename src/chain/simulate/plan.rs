//! Plans the headers of simulated blocks: numbers and times ascend, and empty blocks fill gaps.

use super::{BlockRequest, MAX_BLOCKS, MAX_CALLS, MAX_CALLS_OF_BLOCK};
use crate::chain::{
    evm::{CallError, CallInput, StateError},
    l1fee::L1AttributesError,
    rules::{ChainSpec, ExtraDataError},
    unsigned::CreationWithAuthorizations,
};
use alloy_consensus::Header;
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{B256, U256};
use alloy_rpc_types_eth::state::StateOverride;
use std::collections::BTreeMap;

/// Seconds after the previous block, for simulated blocks whose time the client does not set.
const STEP: u64 = 12;

/// A block with the header fields that are known before its parent is simulated.
#[derive(Clone, Debug)]
pub struct PlannedBlock {
    pub header: Header,
    pub blob_base_fee: Option<u128>,
    pub block_hashes: BTreeMap<u64, B256>,
    pub state: StateOverride,
    pub calls: Vec<CallInput>,
    pub withdrawals: Vec<Withdrawal>,
}

/// The reason why blocks cannot be simulated, in geth's wording where geth has one.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    #[error("empty input")]
    Empty,
    #[error("too many blocks")]
    TooManyBlocks,
    #[error("too many calls in block: {0} > {MAX_CALLS_OF_BLOCK}")]
    TooManyCallsOfBlock(usize),
    #[error("too many calls: {0} > {MAX_CALLS}")]
    TooManyCalls(usize),
    #[error("block numbers must be in order: {have} <= {before}")]
    Number { have: u64, before: u64 },
    #[error("block timestamps must be in order: {have} <= {before}")]
    Time { have: u64, before: u64 },
    #[error("block gas limit reached: remaining: {remaining}, required: {required}")]
    BlockGas { remaining: u64, required: u64 },
    #[error("cannot finalize and assemble for legacy block header: {hash} (num {number})")]
    LegacyHeader { hash: B256, number: u64 },
    #[error("blocks of this chain have no withdrawals: leave out `withdrawals`")]
    Withdrawals,
    #[error(
        "error calculating DA footprint: unexpected non-deposit transactions in Jovian activation block"
    )]
    JovianActivation,
    #[error("error calculating DA footprint: {0}")]
    Attributes(L1AttributesError),
    #[error(transparent)]
    Creation(#[from] CreationWithAuthorizations),
    #[error(transparent)]
    ExtraData(#[from] ExtraDataError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    State(#[from] StateError),
}

/// The headers planned so far, in order.
struct Planner<'a> {
    spec: &'a ChainSpec,
    base: u64,
    /// The previous header: that of the base block or of the last planned one.
    before: Header,
    planned: Vec<PlannedBlock>,
}

/// Plans the headers of the blocks on a base block.
pub(super) fn plan(
    spec: &ChainSpec,
    base: &Header,
    blocks: Vec<BlockRequest>,
) -> Result<Vec<PlannedBlock>, SimulateError> {
    let mut planner = Planner {
        spec,
        base: base.number,
        before: base.clone(),
        planned: Vec::with_capacity(blocks.len()),
    };
    for block in blocks {
        let next = planner.before.number.saturating_add(1);
        let number = planner.number(block.header.number)?;
        for number in next..number {
            planner.add(number, BlockRequest::default())?;
        }
        planner.add(number, block)?;
    }
    Ok(planner.planned)
}

impl Planner<'_> {
    /// The number of the next requested block: `given`, otherwise the previous number plus one.
    fn number(&self, given: Option<U256>) -> Result<u64, SimulateError> {
        let before = self.before.number;
        let number = given.unwrap_or(U256::from(before) + U256::from(1));
        if number <= U256::from(before) {
            let have = number.saturating_to();
            return Err(SimulateError::Number { have, before });
        }
        if number > U256::from(self.base) + U256::from(MAX_BLOCKS) {
            return Err(SimulateError::TooManyBlocks);
        }
        u64::try_from(number).map_err(|_| SimulateError::TooManyBlocks)
    }

    fn add(&mut self, number: u64, block: BlockRequest) -> Result<(), SimulateError> {
        let BlockRequest {
            header: overrides,
            state,
            calls,
        } = block;
        let before = self.before.timestamp;
        let have = overrides.time.unwrap_or(before.saturating_add(STEP));
        if have <= before {
            return Err(SimulateError::Time { have, before });
        }
        let withdrawals = overrides.withdrawals.unwrap_or_default();
        if !withdrawals.is_empty() && (self.spec.is_optimism() || !self.spec.at(have).shanghai) {
            return Err(SimulateError::Withdrawals);
        }
        let cancun = self.spec.at(have).cancun;
        // On a base block before the merge, simulated blocks are before the merge too, as in geth.
        let inherited = self.spec.mined(&self.before);
        let inherited = inherited.map_or(U256::ZERO, |_| self.before.difficulty);
        let header = Header {
            number,
            timestamp: have,
            beneficiary: overrides.fee_recipient.unwrap_or(self.before.beneficiary),
            difficulty: overrides.difficulty.unwrap_or(inherited),
            gas_limit: overrides.gas_limit.unwrap_or(self.before.gas_limit),
            mix_hash: overrides.prev_randao.unwrap_or_default(),
            base_fee_per_gas: overrides.base_fee,
            parent_beacon_block_root: cancun.then(|| overrides.beacon_root.unwrap_or_default()),
            ..Header::default()
        };
        self.before = header.clone();
        self.planned.push(PlannedBlock {
            header,
            blob_base_fee: overrides.blob_base_fee,
            block_hashes: overrides.block_hashes,
            state,
            calls,
            withdrawals,
        });
        Ok(())
    }
}
