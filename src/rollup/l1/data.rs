//! The parts of an L1 block that derivation uses.

use alloy_consensus::Header;
use alloy_primitives::{Address, B256, BloomInput, Log};
use starling_proto::{
    attributes::{L1Block, ReceiptLogs},
    config::RollupConfig,
    config_update::CONFIG_UPDATE_EVENT,
    deposit::DEPOSIT_EVENT,
    derive::{BlobRef, InboxTransaction},
};

/// The addresses on L1 that a rollup reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Address that receives the batcher's transactions (`batch_inbox_address`).
    pub inbox: Address,
    /// Contract that emits deposits (`deposit_contract_address`).
    pub portal: Address,
    /// Contract that emits configuration updates (`l1_system_config_address`).
    pub system_config: Address,
}

impl From<&RollupConfig> for Watched {
    fn from(rollup: &RollupConfig) -> Self {
        Self {
            inbox: rollup.batch_inbox_address,
            portal: rollup.deposit_contract_address,
            system_config: rollup.l1_system_config_address,
        }
    }
}

impl Watched {
    /// Whether the block may contain a deposit or a configuration update, judged by its header's
    /// bloom. `false` is certain; `true` may be a false positive of the bloom.
    pub(super) fn may_have_logs(&self, header: &Header) -> bool {
        let may_emit = |address: Address, event: B256| {
            let bloom = &header.logs_bloom;
            bloom.contains_input(BloomInput::Raw(address.as_slice()))
                && bloom.contains_input(BloomInput::Raw(event.as_slice()))
        };
        may_emit(self.portal, DEPOSIT_EVENT) || may_emit(self.system_config, CONFIG_UPDATE_EVENT)
    }

    /// Removes topics and data of logs that derivation does not read. The logs themselves stay,
    /// since their positions in the block identify deposits.
    pub(super) fn strip(&self, receipts: &mut [ReceiptLogs]) {
        for log in receipts.iter_mut().flat_map(|(_, logs)| logs) {
            if log.address != self.portal && log.address != self.system_config {
                *log = Log {
                    address: log.address,
                    data: Default::default(),
                };
            }
        }
    }
}

/// The parts of an L1 block that derivation uses. All parts are verified against the block's hash,
/// unless [`L1Config::trust`](super::L1Config::trust) is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct L1BlockData {
    pub block: L1Block,
    /// The transactions to the batch inbox, in order.
    pub inbox: Vec<InboxTransaction>,
    /// Success and logs of every transaction of the block, in order. A log of any contract other
    /// than portal and SystemConfig keeps only its address and position. Empty if, according to the
    /// header's bloom, neither of these two contracts emitted a relevant log.
    pub receipts: Vec<ReceiptLogs>,
}

impl L1BlockData {
    /// Approximate memory of this value, in bytes.
    pub(super) fn size(&self) -> usize {
        let inbox = self.inbox.iter().map(|transaction| {
            let blobs = size_of::<BlobRef>() * transaction.blobs.len();
            size_of::<InboxTransaction>() + transaction.calldata.len() + blobs
        });
        let logs = self.receipts.iter().flat_map(|(_, logs)| logs);
        let logs = logs.map(|log| size_of::<Log>() + 32 * log.topics().len() + log.data.data.len());
        size_of::<Self>()
            + inbox.sum::<usize>()
            + self.receipts.len() * size_of::<ReceiptLogs>()
            + logs.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_either_contract_is_found_in_the_bloom() {
        let watched = Watched {
            inbox: Address::ZERO,
            portal: Address::repeat_byte(1),
            system_config: Address::repeat_byte(2),
        };
        let header = |address: Address, event: B256| {
            let mut header = Header::default();
            for input in [address.as_slice(), event.as_slice()] {
                header.logs_bloom.accrue(BloomInput::Raw(input));
            }
            header
        };
        assert!(watched.may_have_logs(&header(watched.portal, DEPOSIT_EVENT)));
        assert!(watched.may_have_logs(&header(watched.system_config, CONFIG_UPDATE_EVENT)));
        assert!(!watched.may_have_logs(&header(Address::repeat_byte(3), DEPOSIT_EVENT)));
        assert!(!watched.may_have_logs(&header(watched.portal, B256::ZERO)));
    }
}
