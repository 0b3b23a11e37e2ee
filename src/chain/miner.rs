//! Settings of block building that an operator or a batcher can change while the node runs, with
//! the methods of geth's miner (`miner_*`).
//!
//! The pool holds the settings, and applies the minimum tip at once. The builder reads them when it
//! starts a block, so a change applies from the next block on. A restart resets them.

use crate::chain::{
    l1fee::da_size,
    rules::{MIN_GAS_LIMIT, Rules},
};
use alloy_consensus::Header;
use alloy_primitives::Bytes;
use op_alloy_rpc_types_engine::OpPayloadAttributes;

/// Settings of block building. By default none is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MinerSettings {
    /// Maximum size of one pool transaction in a batch, in bytes by Fjord's estimate.
    pub max_tx_da: Option<u64>,
    /// Maximum size in a batch of all pool transactions of a block together, in bytes by Fjord's
    /// estimate. Transactions of the attributes do not count.
    pub max_block_da: Option<u64>,
    /// Minimum tip in wei per gas. A transaction must offer it to enter the pool, and pay it to
    /// enter a block.
    pub min_tip: Option<u128>,
    /// The gas limit that blocks of an Ethereum chain move toward, unless the attributes set one.
    pub gas_limit: Option<u64>,
    /// Extra data of blocks of an Ethereum chain. On OP chains SystemConfig determines it.
    pub extra_data: Bytes,
}

impl MinerSettings {
    /// Adds the estimated batch bytes of one more pool transaction (`raw`, EIP-2718) to `used`,
    /// those of the block's pool transactions so far. `None` if the transaction would exceed a
    /// limit.
    pub fn da_after(&self, used: u64, raw: &[u8]) -> Option<u64> {
        if self.max_tx_da.is_none() && self.max_block_da.is_none() {
            return Some(used);
        }
        let size = da_size(raw);
        let after = used.saturating_add(size);
        let fits = |limit: Option<u64>, bytes| limit.is_none_or(|limit| bytes <= limit);
        (fits(self.max_tx_da, size) && fits(self.max_block_da, after)).then_some(after)
    }

    /// Sets the gas limit in the attributes of an Ethereum block, if they have none and one is
    /// configured.
    pub fn complete(&self, rules: &Rules, parent: &Header, attributes: &mut OpPayloadAttributes) {
        if matches!(rules, Rules::Ethereum { .. }) && attributes.gas_limit.is_none() {
            attributes.gas_limit = self
                .gas_limit
                .map(|wanted| toward(parent.gas_limit, wanted.max(MIN_GAS_LIMIT)));
        }
    }
}

/// The gas limit nearest to `wanted` that a block may have whose parent has the gas limit `parent`.
/// The gas limit may change by less than 1/1024 per block.
fn toward(parent: u64, wanted: u64) -> u64 {
    let step = (parent / 1024).saturating_sub(1);
    wanted.clamp(parent.saturating_sub(step), parent.saturating_add(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gas_limit_moves_by_less_than_a_1024th_of_the_parents() {
        assert_eq!(toward(30_000_000, 60_000_000), 30_029_295);
        assert_eq!(toward(30_000_000, 30_000_100), 30_000_100);
        assert_eq!(toward(30_000_000, 5_000), 29_970_705);
        assert_eq!(toward(0, 5_000), 0);
    }
}
