//! Settings of block building that an operator or a batcher changes while the node runs, as geth's miner has them (`miner_*`).
//!
//! The pool holds them, the builder reads them when a block is started: a change counts from the next block on. They do not survive a
//! restart.

use crate::chain::{l1fee::da_size, rules::Rules};
use alloy_consensus::Header;
use alloy_primitives::Bytes;
use op_alloy_rpc_types_engine::OpPayloadAttributes;

/// Gas limits below this are not strived for.
const MIN_GAS_LIMIT: u64 = 5_000;

/// The settings; nothing is set at first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MinerSettings {
    /// Most bytes of one pool transaction, by Fjord's estimate of what it takes in a batch.
    pub max_tx_da: Option<u64>,
    /// Most bytes of all pool transactions of a block, by the same estimate. What is forced into the block does not count.
    pub max_block_da: Option<u64>,
    /// Wei per gas; the least that a transaction must offer to be admitted, and pay to be put into a block.
    pub min_tip: Option<u128>,
    /// The gas limit that blocks strive for where no attributes set it, which is on an Ethereum chain.
    pub gas_limit: Option<u64>,
    /// Extra data of blocks of an Ethereum chain. On OP chains the system configuration fills the field.
    pub extra_data: Bytes,
}

impl MinerSettings {
    /// Bytes that the block's pool transactions would take with this one; `None` if it may not be added to `used` bytes.
    pub fn da_after(&self, used: u64, raw: &[u8]) -> Option<u64> {
        if self.max_tx_da.is_none() && self.max_block_da.is_none() {
            return Some(used);
        }
        let size = da_size(raw);
        let after = used.saturating_add(size);
        let fits = |limit: Option<u64>, bytes| limit.is_none_or(|limit| bytes <= limit);
        (fits(self.max_tx_da, size) && fits(self.max_block_da, after)).then_some(after)
    }

    /// Fills in what the attributes of a block of an Ethereum chain leave open.
    pub fn complete(&self, rules: &Rules, parent: &Header, attributes: &mut OpPayloadAttributes) {
        if matches!(rules, Rules::Ethereum(_)) && attributes.gas_limit.is_none() {
            attributes.gas_limit = self.gas_limit.map(|wanted| toward(parent.gas_limit, wanted.max(MIN_GAS_LIMIT)));
        }
    }
}

/// The gas limit nearest to `wanted` that a block may have on a parent with the limit `parent`: it changes by less than 1/1024.
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
