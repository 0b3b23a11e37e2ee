//! L1 blocks as derivation reads them: the header's fields, the relevant logs, and the transactions
//! to the batch inbox.

use crate::{
    attributes::{L1Block, ReceiptLogs},
    config::RollupConfig,
    config_update::CONFIG_UPDATE_EVENT,
    deposit::{DEPOSIT_EVENT, DEPOSIT_TX_TYPE},
};
use alloy_consensus::{Transaction, TxEnvelope, transaction::SignerRecoverable};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, B256, Bytes, Log};
use op_alloy_consensus::OpTxEnvelope;

/// Transaction type byte of a blob transaction (EIP-4844).
const BLOB_TX_TYPE: u8 = 3;

/// The parts of an L1 block that derivation uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L1Input {
    /// Fields of the block's header.
    pub block: L1Block,
    /// Deposit and configuration logs of the block.
    pub logs: RelevantLogs,
    /// Transactions to the batch inbox, in block order: see [`inbox_transactions`].
    pub inbox: Vec<InboxTransaction>,
}

/// The deposit and configuration logs of an L1 block, with their positions among all logs of the
/// block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelevantLogs {
    /// Each log with its position among the logs of the whole block, including those of failed
    /// receipts.
    logs: Vec<(u64, Log)>,
}

impl RelevantLogs {
    /// Selects the relevant logs of receipts in block order. The caller has checked the receipts
    /// against the header.
    pub fn of(receipts: &[ReceiptLogs], rollup: &RollupConfig) -> Self {
        let is_relevant = |log: &Log| {
            let event = log.topics().first();
            (log.address == rollup.deposit_contract_address && event == Some(&DEPOSIT_EVENT))
                || (log.address == rollup.l1_system_config_address
                    && event == Some(&CONFIG_UPDATE_EVENT))
        };
        let logs = receipts
            .iter()
            .flat_map(|(success, logs)| logs.iter().map(move |log| (*success, log)))
            .zip(0..)
            .filter(|((success, log), _)| *success && is_relevant(log))
            .map(|((_, log), position)| (position, log.clone()))
            .collect();
        Self { logs }
    }

    /// The configuration logs, in block order.
    pub(super) fn config_logs(&self, rollup: &RollupConfig) -> impl Iterator<Item = &Log> {
        let address = rollup.l1_system_config_address;
        let logs = self.logs.iter().map(|(_, log)| log);
        logs.filter(move |log| {
            log.address == address && log.topics().first() == Some(&CONFIG_UPDATE_EVENT)
        })
    }

    /// Builds receipts in which each log is at its position, with empty logs in between, because a
    /// deposit's identity depends on its position.
    pub(super) fn to_receipts(&self) -> Vec<ReceiptLogs> {
        let mut all = Vec::new();
        for (position, log) in &self.logs {
            all.resize(
                usize::try_from(*position).unwrap_or(all.len()),
                Log::empty(),
            );
            all.push(log.clone());
        }
        vec![(true, all)]
    }
}

/// A transaction to the batch inbox, by any sender: of type 0 to 3, or a deposit if L1 is itself an
/// OP chain (specs: derivation, batcher transactions).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxTransaction {
    /// Sender, recovered from the signature.
    pub sender: Address,
    /// Calldata. From Ecotone on, derivation reads them only from transactions without blobs.
    pub calldata: Bytes,
    /// Blobs of a blob transaction; empty for other types.
    pub blobs: Vec<BlobRef>,
}

/// A blob that a transaction in an L1 block refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobRef {
    /// Position of the blob among all blobs of the L1 block.
    pub index: u64,
    /// Versioned hash, which commits to the blob's content (EIP-4844).
    pub versioned_hash: B256,
}

impl InboxTransaction {
    /// Reads a transaction of an L1 block. `first_blob` is the position of the transaction's first
    /// blob among all blobs of the block. Returns `None` if the recipient is not `inbox`, the type
    /// is above 3, or no sender can be recovered from the signature.
    pub fn of(transaction: &TxEnvelope, inbox: Address, first_blob: u64) -> Option<Self> {
        if transaction.to() != Some(inbox) || transaction.tx_type() as u8 > BLOB_TX_TYPE {
            return None;
        }
        let hashes = transaction.blob_versioned_hashes().unwrap_or_default();
        let blobs = (first_blob..)
            .zip(hashes)
            .map(|(index, versioned_hash)| BlobRef {
                index,
                versioned_hash: *versioned_hash,
            })
            .collect();
        Some(Self {
            sender: transaction.recover_signer().ok()?,
            calldata: transaction.input().clone(),
            blobs,
        })
    }

    /// Reads a transaction of an L1 that is itself an OP chain. Returns `None` unless it is a
    /// deposit to `inbox`.
    pub fn of_deposit(transaction: &OpTxEnvelope, inbox: Address) -> Option<Self> {
        match transaction {
            OpTxEnvelope::Deposit(deposit) if deposit.to.to() == Some(&inbox) => Some(Self {
                sender: deposit.from,
                calldata: deposit.input.clone(),
                blobs: Vec::new(),
            }),
            _ => None,
        }
    }
}

/// The transactions to `inbox` of an L1 block, given as raw EIP-2718 bytes in block order. Failed
/// transactions are included. [`InboxTransaction::of`] describes which transactions are not.
pub fn inbox_transactions<'a>(
    transactions: impl IntoIterator<Item = &'a [u8]>,
    inbox: Address,
) -> Vec<InboxTransaction> {
    let mut blobs_before = 0;
    transactions
        .into_iter()
        .filter_map(|raw| inbox_transaction(raw, inbox, &mut blobs_before))
        .collect()
}

/// Reads one raw transaction. `blobs_before` counts the blobs in the block's transactions so far;
/// the blobs of this transaction are added to it.
fn inbox_transaction(
    raw: &[u8],
    inbox: Address,
    blobs_before: &mut u64,
) -> Option<InboxTransaction> {
    if raw.first() == Some(&DEPOSIT_TX_TYPE) {
        let deposit = OpTxEnvelope::decode_2718_exact(raw).ok()?;
        return InboxTransaction::of_deposit(&deposit, inbox);
    }
    let transaction = TxEnvelope::decode_2718_exact(raw).ok()?;
    let first_blob = *blobs_before;
    *blobs_before += transaction.blob_count().unwrap_or_default();
    InboxTransaction::of(&transaction, inbox, first_blob)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::{
        Signed, TxEip1559, TxEip2930, TxEip4844, TxEip7702, TxLegacy,
        transaction::SignableTransaction,
    };
    use alloy_eips::eip2718::Encodable2718;
    use alloy_primitives::{Signature, TxKind};
    use op_alloy_consensus::TxDeposit;

    const INBOX: Address = Address::repeat_byte(0xff);

    fn signed<T: SignableTransaction<Signature>>(transaction: T) -> Signed<T> {
        Signed::new_unhashed(transaction, Signature::test_signature())
    }

    fn blob(to: Address, hashes: &[u8]) -> Vec<u8> {
        let hashes = hashes.iter().map(|byte| B256::repeat_byte(*byte));
        let transaction = TxEip4844 {
            to,
            blob_versioned_hashes: hashes.collect(),
            input: Bytes::from_static(b"ignored"),
            ..TxEip4844::default()
        };
        TxEnvelope::from(signed(transaction)).encoded_2718()
    }

    #[test]
    fn types_0_to_3_and_deposits_to_the_inbox_count_and_blobs_are_numbered_in_the_block() {
        let to = TxKind::Call(INBOX);
        let legacy = |to| {
            TxEnvelope::from(signed(TxLegacy {
                to,
                ..TxLegacy::default()
            }))
        };
        let raw = [
            legacy(to).encoded_2718(),
            blob(Address::ZERO, &[1, 2]),
            TxEnvelope::from(signed(TxEip2930 {
                to,
                ..Default::default()
            }))
            .encoded_2718(),
            vec![5, 1, 2, 3],
            TxEnvelope::from(signed(TxEip1559 {
                to,
                ..Default::default()
            }))
            .encoded_2718(),
            blob(INBOX, &[3, 4]),
            legacy(TxKind::Create).encoded_2718(),
            TxEnvelope::from(signed(TxEip7702 {
                to: INBOX,
                ..Default::default()
            }))
            .encoded_2718(),
            TxDeposit {
                to,
                from: Address::repeat_byte(9),
                ..TxDeposit::default()
            }
            .encoded_2718(),
            vec![],
        ];
        let found = inbox_transactions(raw.iter().map(Vec::as_slice), INBOX);
        let blobs: Vec<_> = found.iter().map(|transaction| &transaction.blobs).collect();
        let expected = [(2, 3), (3, 4)].map(|(index, byte)| BlobRef {
            index,
            versioned_hash: B256::repeat_byte(byte),
        });
        assert_eq!(blobs.len(), 5);
        assert_eq!(blobs[3], &expected);
        assert_eq!(blobs.iter().filter(|blobs| blobs.is_empty()).count(), 4);
        assert_eq!(found[4].sender, Address::repeat_byte(9));
        assert!(
            found
                .iter()
                .all(|transaction| !transaction.sender.is_zero())
        );
    }

    /// Positions count every log of the block, including those of failed receipts.
    #[test]
    fn relevant_logs_keep_their_positions() {
        let rollup = crate::derive::tests::world::rollup(crate::fork::Fork::Bedrock);
        let deposit = |byte| {
            let deposit = TxDeposit {
                from: Address::repeat_byte(byte),
                ..TxDeposit::default()
            };
            crate::deposit::deposit_to_log(rollup.deposit_contract_address, &deposit)
        };
        let receipts = vec![
            (true, vec![Log::empty(), deposit(1)]),
            (false, vec![deposit(2)]),
            (true, vec![Log::empty(), deposit(3), Log::empty()]),
        ];
        let deposits = |receipts: &[ReceiptLogs]| {
            let logs = receipts
                .iter()
                .map(|(success, logs)| (*success, logs.as_slice()));
            let contract = rollup.deposit_contract_address;
            crate::deposit::deposits_of_block(logs, contract, B256::ZERO).unwrap()
        };
        let relevant = RelevantLogs::of(&receipts, &rollup);
        assert_eq!(deposits(&relevant.to_receipts()), deposits(&receipts));
        assert_eq!(deposits(&receipts).len(), 2);
    }
}
