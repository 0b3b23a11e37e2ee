//! Receipts, with the fields for the L1 data fee that each fork defines.
//!
//! The chain stores only the part of a receipt that consensus hashes. The L1 fields are computed
//! from the L1 attributes, which are in the block's first transaction, and from the bytes of each
//! transaction.

use super::{block_arg::BlockArg, shape::effective_gas_price};
use crate::{
    chain::{
        l1fee,
        receipt::{MinedReceipt, Receipt},
        rules::Rules,
        transaction::ChainTx,
        view::View,
    },
    rpc::{
        context::RpcContext,
        decoded::{DecodedBlock, l1_info, transaction},
        error::{Reply, RpcError, reply},
        log_filter::LogJson,
        params::Args,
    },
};
use alloy_consensus::{Header, Transaction};
use alloy_primitives::{Address, B256, Bloom, U64, U128, U256};
use serde::Serialize;
use starling_proto::{
    fork::Fork,
    l1info::{L1BlockInfo, L1InfoFormat},
    payload::BlockId,
};

/// The JSON of a receipt.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptJson {
    #[serde(rename = "type")]
    pub ty: U64,
    /// Status of the execution; absent on Ethereum before Byzantium.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<U64>,
    /// The state root after the transaction; only on Ethereum before Byzantium.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<B256>,
    pub cumulative_gas_used: U64,
    pub logs: Vec<LogJson>,
    pub logs_bloom: Bloom,
    pub transaction_hash: B256,
    pub transaction_index: U64,
    pub block_hash: B256,
    pub block_number: U64,
    pub gas_used: U64,
    pub effective_gas_price: U128,
    pub from: Address,
    pub to: Option<Address>,
    pub contract_address: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deposit_nonce: Option<U64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deposit_receipt_version: Option<U64>,
    /// Blob gas of a blob transaction. From Jovian on, the transaction's part of the block's data
    /// footprint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blob_gas_used: Option<U64>,
    /// Price that a blob transaction paid, in wei per blob gas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blob_gas_price: Option<U128>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub l1: Option<L1Json>,
}

/// The L1 fields of a receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct L1Json {
    pub l1_gas_price: U256,
    pub l1_gas_used: U256,
    pub l1_fee: U256,
    /// A decimal number: until Ecotone the scalar itself, from Ecotone on the scalar of the base
    /// fee. op-geth leaves the field out from Ecotone on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l1_fee_scalar: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l1_base_fee_scalar: Option<U64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l1_blob_base_fee: Option<U256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l1_blob_base_fee_scalar: Option<U64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_fee_scalar: Option<U64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_fee_constant: Option<U64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub da_footprint_gas_scalar: Option<U64>,
}

/// Formats a number of millionths as an exact decimal number, as Go prints it: with an exponent if
/// the exponent is below -4 or above 5.
fn millionths(value: U256) -> String {
    let digits = value.to_string();
    let exponent = digits.len() as i32 - 7;
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return digits;
    }
    if !(-4..6).contains(&exponent) {
        let (first, rest) = significant.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{first}{point}{rest}e{sign}{:02}", exponent.abs());
    }
    let padded = format!("{digits:0>7}");
    let (whole, rest) = padded.split_at(padded.len() - 6);
    match rest.trim_end_matches('0') {
        "" => whole.to_owned(),
        rest => format!("{whole}.{rest}"),
    }
}

/// Fee parameters from a block's L1 attributes, for the block's receipts.
pub struct L1Context {
    pub info: L1BlockInfo,
    pub fork: Fork,
    /// Whether the L1 fields are exactly op-geth's: none on deposits, and no `l1FeeScalar` from
    /// Ecotone on.
    pub geth_exact: bool,
}

impl L1Context {
    /// The L1 fields of a transaction, and its data footprint.
    pub fn of(&self, tx: &ChainTx, raw: &[u8]) -> (Option<L1Json>, Option<U64>) {
        let info = &self.info;
        let deposit = tx.is_deposit();
        if deposit && self.geth_exact {
            return (None, None);
        }
        let cost = l1fee::receipt_cost(info, self.fork, raw);
        let since = |format| info.format >= format;
        let ecotone = since(L1InfoFormat::Ecotone);
        let operator = since(L1InfoFormat::Isthmus)
            && (info.operator_fee_scalar != 0 || info.operator_fee_constant != 0);
        let jovian = since(L1InfoFormat::Jovian);
        let scalar = if ecotone {
            U256::from(info.base_fee_scalar)
        } else {
            U256::from_be_bytes(info.scalar.0)
        };
        let json = L1Json {
            l1_gas_price: info.base_fee,
            l1_gas_used: cost.gas_used,
            l1_fee: if deposit { U256::ZERO } else { cost.fee },
            l1_fee_scalar: (!ecotone || !self.geth_exact).then(|| millionths(scalar)),
            l1_base_fee_scalar: ecotone.then(|| U64::from(info.base_fee_scalar)),
            l1_blob_base_fee: ecotone.then_some(info.blob_base_fee),
            l1_blob_base_fee_scalar: ecotone.then(|| U64::from(info.blob_base_fee_scalar)),
            operator_fee_scalar: operator.then(|| U64::from(info.operator_fee_scalar)),
            operator_fee_constant: operator.then(|| U64::from(info.operator_fee_constant)),
            da_footprint_gas_scalar: jovian.then(|| U64::from(info.da_footprint_gas_scalar)),
        };
        // A deposit does not count towards the data footprint of its block.
        (
            Some(json),
            (jovian && !deposit).then(|| U64::from(cost.da_footprint)),
        )
    }
}

/// The data from which one receipt is made.
#[derive(Clone, Copy)]
struct ReceiptInput<'a> {
    block: BlockId,
    header: &'a Header,
    index: usize,
    tx: &'a ChainTx,
    raw: &'a [u8],
    from: Address,
    receipt: &'a Receipt,
    /// Gas that the earlier transactions of the block used.
    gas_before: u64,
    /// Number of logs of the earlier transactions of the block.
    logs_before: usize,
    /// Blob base fee of the block, in wei per blob gas.
    blob_base_fee: Option<u128>,
}

impl ReceiptJson {
    fn new(input: &ReceiptInput<'_>, l1: Option<&L1Context>) -> Self {
        let ReceiptInput {
            block,
            header,
            index,
            tx,
            raw,
            from,
            receipt,
            gas_before,
            logs_before,
            blob_base_fee,
        } = *input;
        let nonce = if tx.is_deposit() {
            receipt.deposit_nonce.unwrap_or(0)
        } else {
            tx.nonce()
        };
        let (l1, footprint) = l1.map_or((None, None), |l1| l1.of(tx, raw));
        let hash = tx.tx_hash();
        let logs = receipt.logs.iter().enumerate();
        Self {
            ty: U64::from(receipt.tx_type),
            status: (receipt.post_state.is_none()).then(|| U64::from(receipt.success)),
            root: receipt.post_state.as_deref().copied(),
            cumulative_gas_used: U64::from(receipt.cumulative_gas_used),
            logs: logs
                .map(|(n, log)| {
                    LogJson::new(log, block, header.timestamp, index, hash, logs_before + n)
                })
                .collect(),
            logs_bloom: receipt.bloom(),
            transaction_hash: hash,
            transaction_index: U64::from(index),
            block_hash: block.hash,
            block_number: U64::from(block.number),
            gas_used: U64::from(receipt.cumulative_gas_used.saturating_sub(gas_before)),
            effective_gas_price: U128::from(effective_gas_price(tx, header.base_fee_per_gas)),
            from,
            to: tx.to(),
            contract_address: tx.is_create().then(|| from.create(nonce)),
            deposit_nonce: receipt.deposit_nonce.map(U64::from),
            deposit_receipt_version: receipt.deposit_version.map(U64::from),
            blob_gas_used: tx.blob_gas_used().map(U64::from).or(footprint),
            blob_gas_price: blob_base_fee.filter(|_| tx.is_blob()).map(U128::from),
            l1,
        }
    }
}

/// Fee parameters for a block's receipts, from the L1 attributes in its first transaction.
fn l1_context(context: &RpcContext, header: &Header, first: &ChainTx) -> Option<L1Context> {
    let rules = &context.chain.spec.rules;
    let Rules::Optimism { forks, .. } = rules else {
        return None;
    };
    let info = l1_info(rules, first)?;
    Some(L1Context {
        info,
        fork: forks.at(header.timestamp),
        geth_exact: context.geth_exact_receipts,
    })
}

/// All receipts of a block.
fn receipts(
    context: &RpcContext,
    view: &View,
    block: &DecodedBlock,
) -> Result<Vec<ReceiptJson>, RpcError> {
    let (id, header) = (block.payload.id(), &block.payload.header);
    let l1 = block
        .transactions
        .first()
        .and_then(|first| l1_context(context, header, first));
    let (mut gas_before, mut logs_before) = (0, 0);
    let blob_base_fee = context.chain.spec.blob_base_fee(header);
    let transactions = block
        .transactions
        .iter()
        .zip(&block.payload.transactions)
        .zip(block.senders(view)?);
    let receipts = transactions.zip(block.receipts.iter()).enumerate().map(
        |(index, (((tx, raw), from), receipt))| {
            let input = ReceiptInput {
                block: id,
                header,
                index,
                tx,
                raw,
                from: *from,
                receipt,
                gas_before,
                logs_before,
                blob_base_fee,
            };
            gas_before = receipt.cumulative_gas_used;
            logs_before += receipt.logs.len();
            ReceiptJson::new(&input, l1.as_ref())
        },
    );
    Ok(receipts.collect())
}

pub fn get_transaction_receipt(context: &RpcContext, args: Args) -> Reply {
    let hash: B256 = args.at_most(1)?.required()?;
    reply(newest_receipt(context, hash)?)
}

/// The receipt of a transaction of the chain, or else of the newest flashblock.
pub fn newest_receipt(context: &RpcContext, hash: B256) -> Result<Option<ReceiptJson>, RpcError> {
    let view = context.view();
    if let Some(receipt) = receipt_of(context, &view, hash)? {
        return Ok(Some(receipt));
    }
    match context.pending.published(&view) {
        Some(pending) => receipt_of(context, &pending, hash),
        None => Ok(None),
    }
}

/// The receipt of a transaction that `view` contains.
pub fn receipt_of(
    context: &RpcContext,
    view: &View,
    hash: B256,
) -> Result<Option<ReceiptJson>, RpcError> {
    let Some((number, index)) = view.transaction(hash)? else {
        return Ok(None);
    };
    let Some(mined) = view.mined(number, index)? else {
        return Ok(None);
    };
    let (first, tx) = (
        transaction(number, &mined.first)?,
        transaction(number, &mined.raw)?,
    );
    let MinedReceipt {
        receipt,
        gas_before,
        logs_before,
    } = &mined.receipt;
    let input = ReceiptInput {
        block: mined.block,
        header: &mined.header,
        index,
        tx: &tx,
        raw: &mined.raw,
        from: mined.sender,
        receipt,
        gas_before: *gas_before,
        logs_before: *logs_before,
        blob_base_fee: context.chain.spec.blob_base_fee(&mined.header),
    };
    Ok(Some(ReceiptJson::new(
        &input,
        l1_context(context, &mined.header, &first).as_ref(),
    )))
}

pub fn get_block_receipts(context: &RpcContext, args: Args) -> Reply {
    let block: BlockArg = args.at_most(1)?.required()?;
    let view = block.view(context);
    let Some(number) = block.number(context, &view)? else {
        return reply(());
    };
    let Some(block) = context.blocks.load(&view, number)? else {
        return reply(());
    };
    reply(receipts(context, &view, &block)?)
}

/// The receipts of the block with this number in `view`.
pub fn block_receipts(
    context: &RpcContext,
    view: &View,
    number: u64,
) -> Result<Vec<ReceiptJson>, RpcError> {
    let block = context.blocks.load(view, number)?;
    let block = block.ok_or_else(|| RpcError::server("header not found"))?;
    receipts(context, view, &block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_l1_fee_scalar_is_printed_as_go_prints_it() {
        for (scalar, text) in [
            (0u64, "0"),
            (1, "1e-06"),
            (22, "2.2e-05"),
            (100, "0.0001"),
            (1_368, "0.001368"),
            (684_000, "0.684"),
            (1_000_000, "1"),
            (12_500_000, "12.5"),
            (999_999_999_999, "999999.999999"),
            (1_000_000_000_000, "1e+06"),
            (1_234_567_890_123, "1.234567890123e+06"),
            (120_000_000_000_000_000, "1.2e+11"),
        ] {
            assert_eq!(millionths(U256::from(scalar)), text, "{scalar}");
        }
    }
}
