//! Blocks for an explorer: headers, sums over a block, and a block's transactions by page.

use super::PlainBlock;
use crate::{
    chain::{rules::Rules, view::View},
    rpc::{
        context::RpcContext,
        error::{Reply, RpcError, reply},
        eth::{
            block_arg::BlockArg,
            blocks::transaction_json,
            receipt::block_receipts,
            sender_nonce::transaction_of,
            shape::{BlockJson, HeaderJson, TransactionJson, TransactionsJson},
        },
        params::{Arg, Args, Count},
    },
};
use alloy_primitives::{Address, B256, KECCAK256_EMPTY, U64, U256, keccak256};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Bytes of an input that are shown: the selector of the called function.
const SELECTOR: usize = 4;

/// `ots_getHeaderByNumber(number)`: null if there is no such block.
pub fn header_by_number(context: &RpcContext, args: Args) -> Reply {
    let PlainBlock(tag) = args.at_most(1)?.required()?;
    let view = context.view();
    let Some(number) = BlockArg::Tag(tag).number(context, &view)? else {
        return reply(());
    };
    let (Some(hash), Some(header)) = (view.hash_of(number)?, view.header_of(number)?) else {
        return reply(());
    };
    reply(HeaderJson::new(hash, &header))
}

/// `ots_hasCode(address, block)`: whether the account has code after the block.
pub fn has_code(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let address: Address = args.required()?;
    let block = args.optional::<PlainOrHash>()?;
    let block = block.map_or_else(BlockArg::default, |PlainOrHash(block)| block);
    let account = block.state(context, &context.view())?.account(address)?;
    reply(account.is_some_and(|account| account.code_hash != KECCAK256_EMPTY))
}

/// A block as in [`PlainBlock`], or by hash.
struct PlainOrHash(BlockArg);

impl Arg for PlainOrHash {
    fn from_json(json: &str) -> Result<Self, String> {
        match PlainBlock::from_json(json) {
            Ok(PlainBlock(tag)) => Ok(Self(BlockArg::Tag(tag))),
            Err(_) => BlockArg::from_json(json).map(Self),
        }
    }
}

/// A block with the total fees that its transactions have paid.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BlockDetails {
    block: Value,
    issuance: Issuance,
    total_fees: U256,
}

/// Rewards of a block, which are always zero.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Issuance {
    block_reward: U256,
    uncle_reward: U256,
    issuance: U256,
}

pub fn details(context: &RpcContext, args: Args) -> Reply {
    let PlainBlock(tag) = args.at_most(1)?.required()?;
    let view = context.view();
    let number = BlockArg::Tag(tag).known_number(context, &view)?;
    block_details(context, &view, number)
}

pub fn details_by_hash(context: &RpcContext, args: Args) -> Reply {
    let hash: B256 = args.at_most(1)?.required()?;
    let view = context.view();
    let number = BlockArg::Hash(hash).known_number(context, &view)?;
    block_details(context, &view, number)
}

fn block_details(context: &RpcContext, view: &Arc<View>, number: u64) -> Reply {
    let fees = block_receipts(context, view, number)?
        .into_iter()
        .map(|receipt| U256::from(receipt.gas_used) * U256::from(receipt.effective_gas_price))
        .sum();
    let mut block = block_without_transactions(context, view, number)?;
    if let Some(members) = block.as_object_mut() {
        members.remove("transactions");
    }
    reply(BlockDetails {
        block,
        issuance: Issuance::default(),
        total_fees: fees,
    })
}

/// The JSON of a block with an empty list of transactions, and the number of its transactions.
fn block_without_transactions(
    context: &RpcContext,
    view: &View,
    number: u64,
) -> Result<Value, RpcError> {
    let payload = view
        .payload(number)?
        .ok_or_else(|| RpcError::server("header not found"))?;
    let optimism = matches!(context.chain.spec.rules, Rules::Optimism { .. });
    let block = BlockJson::new(&payload, optimism, TransactionsJson::Full(Vec::new()));
    let mut block = json(&block)?;
    block["transactionCount"] = json!(payload.transactions.len());
    Ok(block)
}

pub(super) fn json(value: &impl Serialize) -> Result<Value, RpcError> {
    serde_json::to_value(value).map_err(|error| RpcError::server(error.to_string()))
}

/// The response of `ots_getBlockTransactions`.
#[derive(Serialize)]
struct BlockPage {
    fullblock: Value,
    receipts: Vec<Value>,
}

/// `ots_getBlockTransactions(number, page, size)`: one page of a block's transactions. The first
/// page has the last transactions. Inputs are cut to their selectors, and receipts have no logs.
pub fn transactions(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(3)?;
    let PlainBlock(tag) = args.required()?;
    let (Count(page), Count(size)): (Count, Count) = (args.required()?, args.required()?);
    let view = context.view();
    let number = BlockArg::Tag(tag).known_number(context, &view)?;
    let mut receipts = block_receipts(context, &view, number)?;
    let end = (receipts.len() as u64).saturating_sub(page.saturating_mul(size));
    let start = end.saturating_sub(size);
    let timestamp = view.header_of(number)?.map(|header| header.timestamp);
    let page = start as usize..end as usize;
    let mut transactions = Vec::with_capacity(page.len());
    for index in page.clone() {
        let unknown = || RpcError::server("transaction not found");
        let tx = transaction_json(&view, number, index)?.ok_or_else(unknown)?;
        transactions.push(TransactionJson {
            input: tx.input.slice(..tx.input.len().min(SELECTOR)),
            ..tx
        });
    }
    let mut fullblock = block_without_transactions(context, &view, number)?;
    fullblock["transactions"] = json(&transactions)?;
    let receipts = receipts.drain(page).map(|receipt| {
        let mut receipt = json(&receipt)?;
        (receipt["logs"], receipt["logsBloom"]) = (Value::Null, Value::Null);
        receipt["timestamp"] = json(&timestamp.map(U64::from))?;
        Ok::<_, RpcError>(receipt)
    });
    let receipts = receipts.collect::<Result<_, _>>()?;
    reply(BlockPage {
        fullblock,
        receipts,
    })
}

/// `ots_getTransactionBySenderAndNonce(sender, nonce)`: the hash of a mined transaction, or null.
pub fn transaction_by_sender_and_nonce(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let (sender, Count(nonce)): (Address, Count) = (args.required()?, args.required()?);
    let view = context.view();
    let Some(place) = transaction_of(context, &view, sender, nonce)? else {
        return reply(());
    };
    let raw = view.raw_transaction(place.number, place.index)?;
    reply(raw.map(keccak256))
}
