//! Fetches the receipts of one block, by a method that the endpoint supports and that its response
//! limits allow.

use super::{
    L1BlockAt, L1Client, L1Error, RpcCause, read,
    receipts::ReceiptMethod,
    response::{self, L1Receipt},
};
use alloy_consensus::constants::EMPTY_RECEIPTS;
use alloy_primitives::B256;
use starling_proto::attributes::{L1Block, ReceiptLogs};
use std::time::Instant;

/// The receipts of a block, checked against its header.
pub(super) struct BlockReceipts {
    pub receipts: Vec<ReceiptLogs>,
    /// Total size of the responses in bytes.
    pub json_bytes: usize,
}

impl L1Client {
    /// Success and logs of every transaction of a block, in order, checked against
    /// `block.receipts_root`.
    pub async fn receipts(&self, block: &L1Block) -> Result<Vec<ReceiptLogs>, L1Error> {
        if block.receipts_root == EMPTY_RECEIPTS {
            return Ok(vec![]);
        }
        // The number of transactions is unknown here, so choose the method as for a large block.
        let method = self.receipt_method(usize::MAX);
        if method != ReceiptMethod::EachTransaction {
            match self.receipts_by(method, block, &[]).await {
                Err(error) if error.cause.is_unsupported() || error.cause.may_be_size() => {}
                result => return Ok(result?.receipts),
            }
        }
        let hashes = self.request_one(L1BlockAt::Hash(block.hash).call(false), |response| {
            let hashes: Option<response::TransactionHashes> = read(&response?)?;
            Ok(hashes.ok_or(RpcCause::Missing(block.hash))?.transactions)
        });
        let each = ReceiptMethod::EachTransaction;
        let fetched = self.receipts_by(each, block, &hashes.await?).await;
        Ok(fetched?.receipts)
    }

    /// The receipts of a block with known transactions, checked like [`L1Client::receipts`].
    pub(super) async fn receipts_of(
        &self,
        block: &L1Block,
        transactions: &[B256],
    ) -> Result<BlockReceipts, L1Error> {
        let each = ReceiptMethod::EachTransaction;
        loop {
            let method = self.receipt_method(transactions.len());
            match self.receipts_by(method, block, transactions).await {
                Err(error) if method != each && error.cause.is_unsupported() => {}
                // A single receipt fits into any usual response limit.
                Err(error) if method != each && error.cause.may_be_size() => {
                    return self.receipts_by(each, block, transactions).await;
                }
                result => return result,
            }
        }
    }

    /// Fetches the receipts with `method`. Only [`ReceiptMethod::EachTransaction`] needs
    /// `transactions`.
    pub(super) async fn receipts_by(
        &self,
        method: ReceiptMethod,
        block: &L1Block,
        transactions: &[B256],
    ) -> Result<BlockReceipts, L1Error> {
        let calls = method.calls(block, transactions);
        if method == ReceiptMethod::EachTransaction {
            let read_one = |_, response: &_| -> Result<L1Receipt, RpcCause> {
                read::<Option<L1Receipt>>(response)?.ok_or_else(|| {
                    RpcCause::Untrue(format!(
                        "a transaction of block {} has no receipt",
                        block.hash
                    ))
                })
            };
            let found = self.request_each(&calls, read_one).await;
            if let Some(error) = found.failure {
                return Err(error);
            }
            let name = calls.first().map_or("receipts", |call| call.method);
            let receipts = response::receipts(found.responses, block);
            return Ok(BlockReceipts {
                receipts: receipts.map_err(|cause| self.blamed(name, cause))?,
                json_bytes: found.json_bytes,
            });
        }
        let mut found = self
            .request_each(&calls, |_, response| method.read(response, block))
            .await;
        if let Some(error) = found.failure {
            self.note_unsupported(method, &error);
            return Err(error);
        }
        let empty = || RpcCause::Malformed("an empty response".into());
        Ok(BlockReceipts {
            receipts: found
                .responses
                .pop()
                .ok_or_else(|| self.error("receipts", empty()))?,
            json_bytes: found.json_bytes,
        })
    }

    /// If the error shows that the endpoint does not support the method, the method is not used for
    /// a while.
    pub(super) fn note_unsupported(&self, method: ReceiptMethod, error: &L1Error) {
        if error.cause.is_unsupported() {
            let mut methods = self.inner.receipt_methods.lock();
            methods.mark_lacking(method, Instant::now());
        }
    }

    pub(super) fn receipt_method(&self, transactions: usize) -> ReceiptMethod {
        let mut methods = self.inner.receipt_methods.lock();
        methods.choose(transactions, Instant::now())
    }
}
