//! Methods that read blocks and transactions. An unknown one is an answer of null, as bytes an
//! answer of `0x`.

use super::{
    block_arg::{BlockArg, BlockTag},
    shape::{BlockJson, HeaderJson, TransactionJson, TransactionsJson},
};
use crate::{
    chain::{rules::Rules, view::View},
    rpc::{
        context::RpcContext,
        decoded::{Place, transaction},
        error::{Reply, RpcError, reply},
        params::{Args, Quantity},
    },
};
use alloy_primitives::{B256, Bytes, U64, keccak256};

/// One transaction of a block; `None` if the block has no such index.
fn transaction_json(
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

/// A block's transactions in full, or none of them loaded for hashes.
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
        let hashes = payload.transactions.iter().map(keccak256).collect();
        return Ok(Some(BlockJson::new(
            &payload,
            optimism,
            TransactionsJson::Hashes(hashes),
        )));
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

/// The number of a block by tag, if there is one: an unknown number is an answer of null, an unset
/// tag an error.
fn by_tag(context: &RpcContext, view: &View, tag: BlockTag) -> Result<Option<u64>, RpcError> {
    BlockArg::Tag(tag).number(context, view)
}

pub fn get_block_by_number(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let (tag, full): (BlockTag, bool) = (args.required()?, args.required()?);
    let view = context.view();
    let Some(number) = by_tag(context, &view, tag)? else {
        return reply(());
    };
    reply(block_json(context, &view, number, full)?)
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
    let view = context.view();
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
    let view = context.view();
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

/// A transaction of the chain, else of the pool.
pub fn get_transaction_by_hash(context: &RpcContext, args: Args) -> Reply {
    let hash: B256 = args.at_most(1)?.required()?;
    let view = context.view();
    if let Some((number, index)) = view.transaction(hash)? {
        return reply(transaction_json(&view, number, index)?);
    }
    reply(
        context
            .chain
            .pool
            .get(&hash)
            .map(|pooled| TransactionJson::pooled(&pooled)),
    )
}

/// The EIP-2718 bytes of a transaction of the chain, else of the pool.
pub fn get_raw_transaction_by_hash(context: &RpcContext, args: Args) -> Reply {
    let hash: B256 = args.at_most(1)?.required()?;
    let view = context.view();
    let raw = match view.transaction(hash)? {
        Some((number, index)) => raw_transaction(&view, number, index)?,
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

/// A place in a block, by tag and index: the block's number is `None` if there is no such block.
fn place_by_number(
    context: &RpcContext,
    view: &View,
    args: Args,
) -> Result<(Option<u64>, usize), RpcError> {
    let mut args = args.at_most(2)?;
    let (tag, Quantity(index)): (BlockTag, Quantity) = (args.required()?, args.required()?);
    Ok((
        by_tag(context, view, tag)?,
        usize::try_from(index).unwrap_or(usize::MAX),
    ))
}

/// A place in a block, by hash and index.
fn place_by_hash(view: &View, args: Args) -> Result<(Option<u64>, usize), RpcError> {
    let mut args = args.at_most(2)?;
    let (hash, Quantity(index)): (B256, Quantity) = (args.required()?, args.required()?);
    Ok((
        view.number_of(hash)?,
        usize::try_from(index).unwrap_or(usize::MAX),
    ))
}

pub fn get_transaction_by_number_and_index(context: &RpcContext, args: Args) -> Reply {
    let view = context.view();
    let place = place_by_number(context, &view, args)?;
    transaction_at(&view, place)
}

pub fn get_transaction_by_hash_and_index(context: &RpcContext, args: Args) -> Reply {
    let view = context.view();
    let place = place_by_hash(&view, args)?;
    transaction_at(&view, place)
}

fn transaction_at(view: &View, (number, index): (Option<u64>, usize)) -> Reply {
    reply(
        number
            .map(|number| transaction_json(view, number, index))
            .transpose()?
            .flatten(),
    )
}

pub fn get_raw_transaction_by_number_and_index(context: &RpcContext, args: Args) -> Reply {
    let view = context.view();
    let place = place_by_number(context, &view, args)?;
    raw_transaction_at(&view, place)
}

pub fn get_raw_transaction_by_hash_and_index(context: &RpcContext, args: Args) -> Reply {
    let view = context.view();
    let place = place_by_hash(&view, args)?;
    raw_transaction_at(&view, place)
}

fn raw_transaction_at(view: &View, (number, index): (Option<u64>, usize)) -> Reply {
    let raw = number
        .map(|number| raw_transaction(view, number, index))
        .transpose()?
        .flatten();
    reply(raw.unwrap_or_default())
}

/// No block has uncles; an unknown block has not even none.
pub fn get_uncle_count_by_number(context: &RpcContext, args: Args) -> Reply {
    let tag: BlockTag = args.at_most(1)?.required()?;
    reply(by_tag(context, &context.view(), tag)?.map(|_| U64::ZERO))
}

pub fn get_uncle_count_by_hash(context: &RpcContext, args: Args) -> Reply {
    let hash: B256 = args.at_most(1)?.required()?;
    reply(context.view().number_of(hash)?.map(|_| U64::ZERO))
}

pub fn get_uncle_by_number_and_index(context: &RpcContext, args: Args) -> Reply {
    place_by_number(context, &context.view(), args)?;
    reply(())
}

pub fn get_uncle_by_hash_and_index(context: &RpcContext, args: Args) -> Reply {
    place_by_hash(&context.view(), args)?;
    reply(())
}
