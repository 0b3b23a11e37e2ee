//! The part of an L1 block that a rollup derives from.

use alloy_consensus::Header;
use alloy_primitives::{Address, B256, BloomInput, Bytes, Log};
use starling_proto::{
    attributes::{L1Block, ReceiptLogs},
    config::RollupConfig,
    config_update::CONFIG_UPDATE_EVENT,
    deposit::DEPOSIT_EVENT,
};

/// The addresses on L1 that a rollup reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Receives the batcher's transactions (`batch_inbox_address`).
    pub inbox: Address,
    /// Emits deposits (`deposit_contract_address`).
    pub portal: Address,
    /// Emits updates of the configuration (`l1_system_config_address`).
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
    /// Whether the block may hold a deposit or an update of the configuration, by its header's
    /// bloom. False is certain; true may be a coincidence.
    pub(super) fn may_have_logs(&self, header: &Header) -> bool {
        let may_emit = |address: Address, event: B256| {
            let bloom = &header.logs_bloom;
            bloom.contains_input(BloomInput::Raw(address.as_slice()))
                && bloom.contains_input(BloomInput::Raw(event.as_slice()))
        };
        may_emit(self.portal, DEPOSIT_EVENT) || may_emit(self.system_config, CONFIG_UPDATE_EVENT)
    }

    /// Drops topics and data of logs that no rollup rule reads. The logs themselves stay, since
    /// their positions in the block identify deposits.
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

/// A transaction to the batch inbox, or one whose type this build cannot decode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct L1Transaction {
    /// The signed transaction in EIP-2718 form, without a blob sidecar.
    pub raw: Bytes,
    /// Versioned hashes of its blobs, in order.
    pub blob_hashes: Vec<B256>,
    /// Position of its first blob among all blobs of the block; the old beacon API counts them so.
    pub first_blob: u64,
}

/// The part of an L1 block that a rollup derives from; all of it is checked against the block's
/// hash, except as [`L1Config::trust`](super::L1Config::trust) says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct L1BlockData {
    pub block: L1Block,
    /// The transactions to the batch inbox, in order, and those of types that this build cannot
    /// decode. Their senders are not recovered.
    pub transactions: Vec<L1Transaction>,
    /// For every transaction of the block, in order, whether it succeeded and its logs. Logs of
    /// other contracts than the two watched ones keep their address and place only. Empty if the
    /// header's bloom says that neither of the two logged anything that matters.
    pub receipts: Vec<ReceiptLogs>,
}

impl L1BlockData {
    /// Whether a transaction to the inbox has blobs.
    pub fn has_blobs(&self) -> bool {
        let mut transactions = self.transactions.iter();
        transactions.any(|transaction| !transaction.blob_hashes.is_empty())
    }

    /// Memory that it takes, bytes, roughly.
    pub(super) fn size(&self) -> usize {
        let transactions = self.transactions.iter().map(|transaction| {
            size_of::<L1Transaction>() + transaction.raw.len() + 32 * transaction.blob_hashes.len()
        });
        let logs = self.receipts.iter().flat_map(|(_, logs)| logs);
        let logs = logs.map(|log| size_of::<Log>() + 32 * log.topics().len() + log.data.data.len());
        size_of::<Self>()
            + transactions.sum::<usize>()
            + self.receipts.len() * size_of::<ReceiptLogs>()
            + logs.sum::<usize>()
    }
}
