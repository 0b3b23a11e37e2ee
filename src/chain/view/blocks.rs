//! Reads of blocks on a branch: a whole block, a single transaction, a receipt, or some logs.
//! Recent blocks are in memory, older ones in the store.

use super::{ReadError, View};
use crate::chain::{
    memory_only,
    receipt::{MinedLog, MinedReceipt, Receipt, mined_logs, mined_receipt},
    rows::{ExecutedBlock, codec::BlockBody},
    store::Snapshot,
    transaction::ChainTx,
};
use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, keccak256};
use rayon::prelude::*;
use starling_proto::payload::{BlockId, Payload};
use std::{collections::BTreeMap, sync::Arc};

/// Logs of a receipt that take about 100 µs to copy and to write.
const MANY_LOGS: usize = 200;

/// One transaction of the chain with its receipt.
#[derive(Clone, Debug)]
pub struct Mined {
    pub block: BlockId,
    pub header: Header,
    pub index: usize,
    /// The block's first transaction in its EIP-2718 form; on OP chains it carries the L1
    /// attributes.
    pub first: Bytes,
    /// The transaction in its EIP-2718 form.
    pub raw: Bytes,
    pub sender: Address,
    pub receipt: MinedReceipt,
}

/// Recovers the sender of a transaction in an executed block. The signature was checked at
/// execution and is not checked again.
pub(crate) fn recover(number: u64, raw: &[u8]) -> Result<Address, ReadError> {
    let damaged =
        |what: String| ReadError::Damaged(format!("a transaction of block {number}: {what}"));
    let transaction = ChainTx::decode(raw).map_err(|e| damaged(e.to_string()))?;
    transaction
        .signer_unchecked()
        .map_err(|e| damaged(e.to_string()))
}

impl View {
    /// The block of this number on this branch; `None` if there is none, or if its body is not
    /// stored.
    pub fn payload(&self, number: u64) -> Result<Option<Arc<Payload>>, ReadError> {
        if let Some(block) = self.in_memory(number) {
            return Ok(Some(block.payload.clone()));
        }
        self.stored_part(number, |snapshot, number| {
            let Some(hash) = snapshot.hash_of(number)? else {
                return Ok(None);
            };
            let (Some(header), Some(body)) =
                (snapshot.header(number)?, snapshot.whole_body(number)?)
            else {
                return Ok(None);
            };
            let BlockBody {
                transactions,
                ethereum,
            } = body;
            Ok(Some(Arc::new(Payload {
                hash,
                header,
                transactions,
                ethereum,
            })))
        })
    }

    /// The lowest stored block whose transactions are kept.
    pub fn oldest_body(&self) -> Result<u64, ReadError> {
        self.snapshot.oldest_body()
    }

    /// The receipts of a block of this branch.
    pub fn receipts(&self, number: u64) -> Result<Option<Arc<Vec<Receipt>>>, ReadError> {
        if let Some(block) = self.in_memory(number) {
            return Ok(Some(block.receipts.clone()));
        }
        self.stored_part(number, |snapshot, number| {
            Ok(snapshot.receipts(number)?.map(Arc::new))
        })
    }

    /// One transaction of a block with its receipt, read without the block's other transactions;
    /// `None` if the block has no transaction at `index`.
    pub fn mined(&self, number: u64, index: usize) -> Result<Option<Mined>, ReadError> {
        match self.in_memory(number) {
            Some(block) => mined_in(block, index),
            None => self.stored_part(number, |snapshot, number| mined_at(snapshot, number, index)),
        }
    }

    /// One transaction of a block in its EIP-2718 form.
    pub fn raw_transaction(&self, number: u64, index: usize) -> Result<Option<Bytes>, ReadError> {
        if let Some(block) = self.in_memory(number) {
            return Ok(block.payload.transactions.get(index).cloned());
        }
        let read = |snapshot: &Snapshot, number| snapshot.transactions(number, &[index]);
        Ok(self
            .stored_part(number, read)?
            .and_then(|mut found| found.pop().flatten()))
    }

    /// The logs of a block that `wanted` accepts by address and topics, each with its transaction's
    /// hash.
    pub fn logs(
        &self,
        number: u64,
        wanted: &dyn Fn(&Address, &[B256]) -> bool,
    ) -> Result<Option<Vec<(MinedLog, B256)>>, ReadError> {
        if let Some(block) = self.in_memory(number) {
            let hashes = block.transaction_hashes();
            let logs = mined_logs(&block.receipts, wanted).into_iter();
            return Ok(Some(
                logs.filter_map(|log| hashes.get(log.index).map(|hash| (log.clone(), *hash)))
                    .collect(),
            ));
        }
        self.stored_part(number, |snapshot, number| {
            let logs = snapshot.logs(number, wanted)?;
            logs.map(|logs| with_hashes(snapshot, number, logs))
                .transpose()
        })
    }

    /// Senders of the block's transactions in block order. If an older version stored the block,
    /// the senders are recovered from the signatures.
    pub fn senders(&self, payload: &Payload) -> Result<Vec<Address>, ReadError> {
        let (number, count) = (payload.number(), payload.transactions.len());
        if let Some(block) = self.in_memory(number) {
            return Ok(block.senders.clone());
        }
        match self.stored_part(number, Snapshot::senders)? {
            Some(senders) if senders.len() == count => Ok(senders),
            Some(_) => Err(ReadError::Damaged(format!("senders of block {number}"))),
            None => payload
                .transactions
                .par_iter()
                .map(|raw| recover(number, raw))
                .collect(),
        }
    }

    /// Block number and index of a transaction on this branch.
    pub fn transaction(&self, hash: B256) -> Result<Option<(u64, usize)>, ReadError> {
        // Scan only blocks above the store. For stored blocks that are still in memory, the store's
        // index is faster than a scan.
        for block in self.blocks.iter().rev() {
            if let Some(index) = block
                .transaction_hashes()
                .iter()
                .position(|other| *other == hash)
            {
                return Ok(Some((block.payload.number(), index)));
            }
        }
        Ok(self
            .snapshot
            .transaction(&hash)?
            .filter(|(number, _)| *number <= self.base.number))
    }
}

/// One transaction of a block in memory, with its receipt.
fn mined_in(block: &ExecutedBlock, index: usize) -> Result<Option<Mined>, ReadError> {
    let transactions = &block.payload.transactions;
    let logs = block.receipts.get(index).map_or(0, |it| it.logs.len());
    if logs > MANY_LOGS && memory_only::refuses() {
        return Err(ReadError::NotInMemory);
    }
    let (Some(raw), Some(receipt)) = (
        transactions.get(index),
        mined_receipt(&block.receipts, index),
    ) else {
        return Ok(None);
    };
    let id = block.payload.id();
    let sender = block.senders.get(index).copied();
    Ok(Some(Mined {
        block: id,
        header: block.payload.header.clone(),
        index,
        first: transactions[0].clone(),
        raw: raw.clone(),
        sender: sender.map_or_else(|| recover(id.number, raw), Ok)?,
        receipt,
    }))
}

/// One transaction of a stored block, with its receipt.
fn mined_at(snapshot: &Snapshot, number: u64, index: usize) -> Result<Option<Mined>, ReadError> {
    let (Some(hash), Some(header)) = (snapshot.hash_of(number)?, snapshot.header(number)?) else {
        return Ok(None);
    };
    let Some(receipt) = snapshot.receipt(number, index)?.flatten() else {
        return Ok(None);
    };
    let Some(transactions) = snapshot.transactions(number, &[0, index])? else {
        return Ok(None);
    };
    let [Some(first), Some(raw)] = <[_; 2]>::try_from(transactions).unwrap_or_default() else {
        return Ok(None);
    };
    let senders = snapshot.senders(number)?;
    let sender = senders.and_then(|senders| senders.get(index).copied());
    Ok(Some(Mined {
        block: BlockId { hash, number },
        header,
        index,
        first,
        sender: sender.map_or_else(|| recover(number, &raw), Ok)?,
        raw,
        receipt,
    }))
}

/// Adds to each log of a stored block the hash of the log's transaction. Reads only the
/// transactions that have logs.
fn with_hashes(
    snapshot: &Snapshot,
    number: u64,
    logs: Vec<MinedLog>,
) -> Result<Vec<(MinedLog, B256)>, ReadError> {
    if logs.is_empty() {
        return Ok(vec![]);
    }
    let mut indexes: Vec<usize> = logs.iter().map(|log| log.index).collect();
    indexes.dedup();
    let raw = snapshot.transactions(number, &indexes)?.unwrap_or_default();
    let hashes: BTreeMap<_, _> = indexes
        .into_iter()
        .zip(raw)
        .filter_map(|(index, raw)| Some((index, keccak256(raw?))))
        .collect();
    let with_hash = |log: MinedLog| {
        let hash = hashes
            .get(&log.index)
            .ok_or_else(|| ReadError::Damaged(format!("transactions of block {number}")))?;
        Ok((log, *hash))
    };
    logs.into_iter().map(with_hash).collect()
}
