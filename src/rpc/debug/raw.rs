//! Headers, blocks, receipts and transactions as bytes. The methods are of kind `Read`: each call
//! reads one block.

use crate::{
    chain::{block_rlp, view::View},
    rpc::{
        context::RpcContext,
        error::{Reply, RpcError, reply},
        eth::{block_arg::BlockArg, blocks},
        params::Args,
    },
};
use alloy_primitives::Bytes;

/// The number of the block that is the only parameter.
fn block_number(context: &RpcContext, view: &View, args: Args) -> Result<u64, RpcError> {
    let block: BlockArg = args.at_most(1)?.required()?;
    block.known_number(context, view)
}

pub fn get_raw_header(context: &RpcContext, args: Args) -> Reply {
    let view = context.view();
    let number = block_number(context, &view, args)?;
    let header = view.header_of(number)?;
    let header = header.ok_or_else(|| RpcError::server(format!("header #{number} not found")))?;
    reply(Bytes::from(alloy_rlp::encode(&header)))
}

pub fn get_raw_block(context: &RpcContext, args: Args) -> Reply {
    let view = context.view();
    let number = block_number(context, &view, args)?;
    let payload = view.payload(number)?;
    let payload = payload.ok_or_else(|| RpcError::server(format!("block #{number} not found")))?;
    reply(Bytes::from(block_rlp::encode(&payload)))
}

/// The EIP-2718 encoding of each receipt of a block.
pub fn get_raw_receipts(context: &RpcContext, args: Args) -> Reply {
    let view = context.view();
    let number = block_number(context, &view, args)?;
    let receipts = view.receipts(number)?.unwrap_or_default();
    let encoded = receipts.iter().map(|receipt| {
        let mut bytes = Vec::new();
        receipt.encode_2718(&mut bytes);
        Bytes::from(bytes)
    });
    reply(encoded.collect::<Vec<_>>())
}

pub fn get_raw_transaction(context: &RpcContext, args: Args) -> Reply {
    blocks::get_raw_transaction_by_hash(context, args)
}

/// The EIP-2718 encoding of each transaction of a block.
pub fn get_raw_transactions(context: &RpcContext, args: Args) -> Reply {
    let view = context.view();
    let number = block_number(context, &view, args)?;
    let payload = view.payload(number)?;
    reply(
        payload
            .map(|payload| payload.transactions.clone())
            .unwrap_or_default(),
    )
}
