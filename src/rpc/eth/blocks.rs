//! Methods that read blocks and transactions. For an unknown block or transaction they return null,
//! or `0x` if the result is bytes.

use super::{
    block_arg::{BlockArg, BlockTag},
    shape::{BlockJson, HeaderJson, TransactionJson, TransactionsJson, UncleJson},
};
use crate::{
    chain::{
        memory_only,
        rules::Rules,
        view::{ReadError, View},
    },
    rpc::{
        context::RpcContext,
        decoded::{Place, transaction},
        error::{Reply, RpcError, reply},
        params::{Args, Quantity},
    },
};
use alloy_primitives::{B256, Bytes, U64, keccak256};
use std::sync::Arc;

/// Maximum bytes of a block whose transactions are hashed on the task of a connection: about
/// 100 µs.
const SMALL_BLOCK: usize = 64 << 10;

/// One transaction of a block; `None` if the block has no such index.
pub fn transaction_json(
    view: &View,
    number: u64,
    index: usize,
) -> Result<Option<TransactionJson>, RpcError> {
    let Some(mined) = view.mined(number, index)? else {
        return Ok(None);
    };
    let place = Place::new(mined.block, &mined.header, index, &mined.receipt.receipt);
    let tx = transaction(number, &mined.raw)?;
    Ok(Some(TransactionJson::new(&tx, mined.sender, Some(&place))))
}

/// The JSON of a block, with its transactions in full or as hashes. For hashes the block is not
/// decoded.
fn block_json(
    context: &RpcContext,
    view: &View,
    number: u64,
    full: bool,
) -> Result<Option<BlockJson>, RpcError> {
    let optimism = matches!(context.chain.spec.rules, Rules::Optimism { .. });
    if !full {
        let Some(payload) = view.payload(number)? else {
            return Ok(None);
        };
        if payload.weight() > SMALL_BLOCK && memory_only::refuses() {
            return Err(ReadError::NotInMemory.into());
        }
        let hashes = payload.transactions.iter().map(keccak256).collect();
        return Ok(Some(BlockJson::new(
            &payload,
            optimism,
            TransactionsJson::Hashes(hashes),
        )));
    }
    if memory_only::refuses() {
        return Err(ReadError::NotInMemory.into());
    }
    let Some(block) = context.blocks.load(view, number)? else {
        return Ok(None);
    };
    let transactions = (block
        .transactions
        .iter()
        .zip(block.senders(view)?)
        .enumerate())
    .map(|(index, (tx, from))| TransactionJson::new(tx, *from, Some(&block.place(index))))
    .collect();
    Ok(Some(BlockJson::new(
        &block.payload,
        optimism,
        TransactionsJson::Full(transactions),
    )))
}

/// The number of the block that a tag names; `None` above the head. A tag that names no block yet
/// is an error.
fn by_tag(context: &RpcContext, view: &View, tag: BlockTag) -> Result<Option<u64>, RpcError> {
    BlockArg::Tag(tag).number(context, view)
}

pub fn get_block_by_number(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let (tag, full): (BlockTag, bool) = (args.required()?, args.required()?);
    let view = tag.view(context);
    let Some(number) = by_tag(context, &view, tag)? else {
        return reply(());
    };
    let block = block_json(context, &view, number, full)?;
    // Without a pending block, the pending view is the newest view, and its head is no guess.
    let guess = context.pending.is_guess() && view.head() != context.view().head();
    if guess && tag == BlockTag::Pending {
        return unsealed(block);
    }
    reply(block)
}

/// The JSON of a pending block that is only a guess, as in geth: members that are not known yet are
/// null.
fn unsealed(block: Option<BlockJson>) -> Reply {
    let mut json = serde_json::to_value(block)
        .map_err(|error| RpcError::new(crate::rpc::error::INTERNAL, error.to_string()))?;
    if let Some(members) = json.as_object_mut() {
        for unknown in ["hash", "nonce", "miner"] {
            members.insert(unknown.to_owned(), serde_json::Value::Null);
        }
    }
    reply(json)
}

pub fn get_block_by_hash(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let (hash, full): (B256, bool) = (args.required()?, args.required()?);
    let view = context.view();
    let Some(number) = view.number_of(hash)? else {
        return reply(());
    };
    reply(block_json(context, &view, number, full)?)
}

pub fn get_header_by_number(context: &RpcContext, args: Args) -> Reply {
    let tag: BlockTag = args.at_most(1)?.required()?;
    let view = tag.view(context);
    let number = by_tag(context, &view, tag)?;
    header(&view, number)
}

pub fn get_header_by_hash(context: &RpcContext, args: Args) -> Reply {
    let hash: B256 = args.at_most(1)?.required()?;
    let view = context.view();
    let number = view.number_of(hash)?;
    header(&view, number)
}

fn header(view: &View, number: Option<u64>) -> Reply {
    let Some(number) = number else {
        return reply(());
    };
    let (Some(hash), Some(header)) = (view.hash_of(number)?, view.header_of(number)?) else {
        return reply(());
    };
    reply(HeaderJson::new(hash, &header))
}

pub fn get_transaction_count_by_number(context: &RpcContext, args: Args) -> Reply {
    let tag: BlockTag = args.at_most(1)?.required()?;
    let view = tag.view(context);
    let number = by_tag(context, &view, tag)?;
    transaction_count(&view, number)
}

pub fn get_transaction_count_by_hash(context: &RpcContext, args: Args) -> Reply {
    let hash: B256 = args.at_most(1)?.required()?;
    let view = context.view();
    let number = view.number_of(hash)?;
    transaction_count(&view, number)
}

fn transaction_count(view: &View, number: Option<u64>) -> Reply {
    let payload = number
        .map(|number| view.payload(number))
        .transpose()?
        .flatten();
    reply(payload.map(|payload| U64::from(payload.transactions.len())))
}

/// `eth_getTransactionByHash`: a transaction of the chain, or else of the pool.
pub fn get_transaction_by_hash(context: &RpcContext, args: Args) -> Reply {
    let hash: B256 = args.at_most(1)?.required()?;
    let view = context.view();
    if let Some((number, index)) = view.transaction(hash)? {
        return reply(transaction_json(&view, number, index)?);
    }
    // The pool may be locked while a block is removed from it.
    if memory_only::refuses() {
        return Err(ReadError::NotInMemory.into());
    }
    if let Some(pending) = context.pending.published(&view)
        && let Some((number, index)) = pending.transaction(hash)?
    {
        return reply(transaction_json(&pending, number, index)?);
    }
    reply(
        context
            .chain
            .pool
            .get(&hash)
            .map(|pooled| TransactionJson::pooled(&pooled)),
    )
}

/// `eth_getRawTransactionByHash`: the EIP-2718 bytes of a transaction of the chain, or else of the
/// pool.
pub fn get_raw_transaction_by_hash(context: &RpcContext, args: Args) -> Reply {
    let hash: B256 = args.at_most(1)?.required()?;
    let view = context.view();
    let raw = match view.transaction(hash)? {
        Some((number, index)) => raw_transaction(&view, number, index)?,
        None if memory_only::refuses() => return Err(ReadError::NotInMemory.into()),
        None => context
            .chain
            .pool
            .get(&hash)
            .map(|pooled| pooled.raw.clone()),
    };
    reply(raw.unwrap_or_default())
}

fn raw_transaction(view: &View, number: u64, index: usize) -> Result<Option<Bytes>, RpcError> {
    view.raw_transaction(number, index).map_err(Into::into)
}

/// The transaction that a request names by its block and its index in the block.
struct TransactionPosition {
    /// Number of the block; `None` if the block is unknown.
    number: Option<u64>,
    index: usize,
}

impl TransactionPosition {
    fn new(number: Option<u64>, Quantity(index): Quantity) -> Self {
        Self {
            number,
            index: usize::try_from(index).unwrap_or(usize::MAX),
        }
    }
}

/// The position that is given by a block tag and an index, with the view that contains the block.
fn position_by_number(
    context: &RpcContext,
    args: Args,
) -> Result<(Arc<View>, TransactionPosition), RpcError> {
    let mut args = args.at_most(2)?;
    let (tag, index): (BlockTag, Quantity) = (args.required()?, args.required()?);
    let view = tag.view(context);
    let number = by_tag(context, &view, tag)?;
    Ok((view, TransactionPosition::new(number, index)))
}

/// The position that is given by a block hash and an index.
fn position_by_hash(view: &View, args: Args) -> Result<TransactionPosition, RpcError> {
    let mut args = args.at_most(2)?;
    let (hash, index): (B256, Quantity) = (args.required()?, args.required()?);
    Ok(TransactionPosition::new(view.number_of(hash)?, index))
}

pub fn get_transaction_by_number_and_index(context: &RpcContext, args: Args) -> Reply {
    let (view, position) = position_by_number(context, args)?;
    transaction_at(&view, &position)
}

pub fn get_transaction_by_hash_and_index(context: &RpcContext, args: Args) -> Reply {
    let view = context.view();
    let position = position_by_hash(&view, args)?;
    transaction_at(&view, &position)
}

fn transaction_at(view: &View, at: &TransactionPosition) -> Reply {
    reply(
        at.number
            .map(|number| transaction_json(view, number, at.index))
            .transpose()?
            .flatten(),
    )
}

pub fn get_raw_transaction_by_number_and_index(context: &RpcContext, args: Args) -> Reply {
    let (view, position) = position_by_number(context, args)?;
    raw_transaction_at(&view, &position)
}

pub fn get_raw_transaction_by_hash_and_index(context: &RpcContext, args: Args) -> Reply {
    let view = context.view();
    let position = position_by_hash(&view, args)?;
    raw_transaction_at(&view, &position)
}

fn raw_transaction_at(view: &View, at: &TransactionPosition) -> Reply {
    let raw = at
        .number
        .map(|number| raw_transaction(view, number, at.index))
        .transpose()?
        .flatten();
    reply(raw.unwrap_or_default())
}

/// The number of uncles of a block; null for an unknown block. Blocks of OP chains have no uncles.
fn uncle_count(view: &View, number: Option<u64>) -> Reply {
    let payload = number.map(|number| view.payload(number));
    let payload = payload.transpose()?.flatten();
    reply(payload.map(|payload| U64::from(payload.uncles().len())))
}

pub fn get_uncle_count_by_number(context: &RpcContext, args: Args) -> Reply {
    let tag: BlockTag = args.at_most(1)?.required()?;
    let view = tag.view(context);
    let number = by_tag(context, &view, tag)?;
    uncle_count(&view, number)
}

pub fn get_uncle_count_by_hash(context: &RpcContext, args: Args) -> Reply {
    let hash: B256 = args.at_most(1)?.required()?;
    let view = context.view();
    let number = view.number_of(hash)?;
    uncle_count(&view, number)
}

/// An uncle as geth prints it: a block without transactions.
fn uncle_at(view: &View, at: &TransactionPosition) -> Reply {
    let payload = at.number.map(|number| view.payload(number));
    let payload = payload.transpose()?.flatten();
    let uncle = payload.and_then(|payload| payload.uncles().get(at.index).cloned());
    reply(uncle.map(UncleJson::new))
}

pub fn get_uncle_by_number_and_index(context: &RpcContext, args: Args) -> Reply {
    let (view, position) = position_by_number(context, args)?;
    uncle_at(&view, &position)
}

pub fn get_uncle_by_hash_and_index(context: &RpcContext, args: Args) -> Reply {
    let view = context.view();
    let position = position_by_hash(&view, args)?;
    uncle_at(&view, &position)
}
