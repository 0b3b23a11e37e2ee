//! The block of a sequence of flashblocks, executed part by part on its parent's state.
//!
//! Roots are computed here: sequencers leave them out until a block is complete. Each part says how
//! much gas the block has used so far, which must be what it uses here.

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

/// Times its parent's gas limit that a block may have. The limit is the chain's to set, at any step,
/// but a stream that names any number could keep the thread that executes it busy for ever. A block
/// that is refused for this is served once it is the head.
const MAX_GAS_GROWTH: u64 = 4;

/// The reason why the parts of a block give none.
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

/// A block whose parts are being executed.
pub struct OpenFlashblock {
    parent: Arc<View>,
    builder: BlockBuilder,
    /// Parts that have been executed.
    done: usize,
}

impl OpenFlashblock {
    /// Begins the block of a sequence; `None` while its parent is neither our head nor a pending block
    /// on it.
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

    /// Executes the parts that are new in the sequence.
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

    /// The view whose head is the block so far.
    pub fn view(&mut self) -> Result<View, OpenFlashblockError> {
        let block = Arc::new(self.builder.so_far()?);
        Ok(self.parent.clone().with_pending(block)?)
    }
}
