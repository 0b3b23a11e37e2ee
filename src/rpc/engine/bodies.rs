//! Bodies of blocks, for rollup nodes that keep only headers.

use super::{TOO_LARGE, engine, error};
use crate::rpc::{
    context::RpcContext,
    error::{INVALID_PARAMS, Reply, RpcError, reply},
    params::{Args, Json, Quantity},
};
use alloy_primitives::B256;
use serde_json::{Value, json};
use starling_proto::payload::Payload;

/// Maximum bodies in one response.
const MAX_BODIES: u64 = 1024;

fn body(payload: &Payload) -> Value {
    // Null before Canyon. From Canyon on, blocks of OP chains have an empty list.
    let withdrawals = payload
        .header
        .withdrawals_root
        .map(|_| payload.withdrawals());
    json!({ "transactions": payload.transactions, "withdrawals": withdrawals })
}

/// `engine_getPayloadBodiesByHashV1`: bodies in the order of the hashes, null for unknown blocks.
/// Blocks of other branches are found as long as they are in memory or in the payload log.
pub fn by_hash(context: &RpcContext, mut args: Args) -> Reply {
    let Json(hashes): Json<Vec<B256>> = args.required()?;
    args.at_most(1)?;
    if hashes.len() as u64 > MAX_BODIES {
        return Err(error(
            TOO_LARGE,
            format!("requested count too large: {}", hashes.len()),
        ));
    }
    let (view, chain) = (context.view(), engine(context)?.engine.chain());
    let find = |hash: B256| -> Result<Option<Value>, RpcError> {
        if let Some(number) = view.number_of(hash)? {
            return Ok(view.payload(number)?.map(|payload| body(&payload)));
        }
        Ok(chain.payload(hash)?.map(|payload| body(&payload)))
    };
    reply(
        hashes
            .into_iter()
            .map(find)
            .collect::<Result<Vec<_>, _>>()?,
    )
}

/// `engine_getPayloadBodiesByRangeV1`: bodies of canonical blocks, up to the head.
pub fn by_range(context: &RpcContext, mut args: Args) -> Reply {
    let (Quantity(start), Quantity(count)) = (args.required()?, args.required()?);
    args.at_most(2)?;
    if start == 0 || count == 0 {
        return Err(error(
            INVALID_PARAMS,
            format!("invalid start or count, start: {start} count: {count}"),
        ));
    }
    if count > MAX_BODIES {
        return Err(error(
            TOO_LARGE,
            format!("requested count too large: {count}"),
        ));
    }
    let view = context.view();
    let end = start.saturating_add(count - 1).min(view.head().number);
    let find = |number| Ok::<_, RpcError>(view.payload(number)?.map(|payload| body(&payload)));
    reply((start..=end).map(find).collect::<Result<Vec<_>, _>>()?)
}
