//! The block of a sequence of flashblocks, executed part by part on the parent's state.
//!
//! Roots are computed here, since sequencers may leave them out. Each part contains the total gas
//! of the block so far, which must equal the gas computed here.

use super::{NewestFlashblock, sequence::FlashblockSequence};
use crate::{
    chain::{
        build::{BlockBuilder, BuildError},
        evm::StateError,
        rules::ChainSpec,
        view::{ReadError, View},
    },
    pending::built::FeeAttributes,
};
use alloy_primitives::U256;
use alloy_rpc_types_engine::PayloadAttributes;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use std::{sync::Arc, time::Instant};

/// Maximum gas limit of a block, as a multiple of its parent's. The chain may change the limit by
/// any factor, but a stream with arbitrary limits could occupy the executing thread without end. A
/// block that exceeds this maximum is served once it is the head.
const MAX_GAS_GROWTH: u64 = 4;

/// The reason why the parts of a block cannot be executed.
#[derive(Debug, thiserror::Error)]
pub enum OpenFlashblockError {
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{0} is not what the chain's rules make it")]
    Base(&'static str),
    #[error("the gas limit {have} is more than {MAX_GAS_GROWTH} times the parent's, {parent}")]
    GasLimit { have: u64, parent: u64 },
    #[error("the block has used {have} gas here, and its part says {want}")]
    GasUsed { have: u64, want: u64 },
}

/// A block that is executed part by part.
pub struct OpenFlashblock {
    parent: Arc<View>,
    builder: BlockBuilder,
    /// Number of parts that have been executed.
    done: usize,
}

impl OpenFlashblock {
    /// Begins the block of a sequence; `None` while the block's parent is neither our head nor a
    /// pending block on our head.
    pub fn begin(
        spec: &Arc<ChainSpec>,
        newest: &NewestFlashblock,
        head: &Arc<View>,
        sequence: &FlashblockSequence,
        now: Instant,
    ) -> Result<Option<Self>, OpenFlashblockError> {
        let base = &sequence.base;
        let Some(parent) = newest.parent(head, base.parent_hash, now) else {
            return Ok(None);
        };
        let (have, limit) = (base.gas_limit.to(), parent.header().gas_limit);
        if have > limit.saturating_mul(MAX_GAS_GROWTH) {
            let parent = limit;
            return Err(OpenFlashblockError::GasLimit { have, parent });
        }
        let time = base.timestamp.to();
        let fees = FeeAttributes::of(spec, &base.extra_data, time);
        let fees = fees.ok_or(OpenFlashblockError::Base("the extra data"))?;
        let active = spec.at(time);
        let first = sequence.parts.first();
        let attributes = OpPayloadAttributes {
            payload_attributes: PayloadAttributes {
                timestamp: time,
                prev_randao: base.prev_randao,
                suggested_fee_recipient: base.fee_recipient,
                withdrawals: active.shanghai.then(Vec::new),
                parent_beacon_block_root: base.parent_beacon_block_root.filter(|_| active.cancun),
                ..Default::default()
            },
            transactions: first.map(|part| part.transactions.clone()),
            no_tx_pool: Some(true),
            gas_limit: Some(base.gas_limit.to()),
            eip_1559_params: fees.eip_1559_params,
            min_base_fee: fees.min_base_fee,
        };
        let builder = BlockBuilder::start(spec.clone(), parent.state(), attributes)?;
        let header = builder.header();
        if U256::from(header.base_fee_per_gas.unwrap_or(0)) != base.base_fee_per_gas {
            return Err(OpenFlashblockError::Base("the base fee"));
        }
        if header.extra_data != base.extra_data {
            return Err(OpenFlashblockError::Base("the extra data"));
        }
        if header.number != base.block_number.to::<u64>() {
            return Err(OpenFlashblockError::Base("the number"));
        }
        let open = Self {
            parent,
            builder,
            done: 1,
        };
        open.check_gas(sequence)?;
        Ok(Some(open))
    }

    /// Executes the parts of the sequence that have not been executed yet.
    pub fn extend(&mut self, sequence: &FlashblockSequence) -> Result<(), OpenFlashblockError> {
        for part in sequence.parts.iter().skip(self.done) {
            self.builder.force_more(part.transactions.clone())?;
            self.done += 1;
            self.check_gas(sequence)?;
        }
        Ok(())
    }

    fn check_gas(&self, sequence: &FlashblockSequence) -> Result<(), OpenFlashblockError> {
        let have = self.builder.gas_used();
        let part = self
            .done
            .checked_sub(1)
            .and_then(|last| sequence.parts.get(last));
        let want = part.map_or(have, |part| part.gas_used.to());
        if have != want {
            return Err(OpenFlashblockError::GasUsed { have, want });
        }
        Ok(())
    }

    /// The view whose head is the block as executed so far.
    pub fn view(&mut self) -> Result<View, OpenFlashblockError> {
        let block = Arc::new(self.builder.so_far()?);
        Ok(self.parent.clone().with_pending(block)?)
    }
}
