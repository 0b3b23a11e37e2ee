//! `eth_getLogs`: the logs of a bounded range of blocks, by header bloom first.

use crate::{
    chain::{evm::Deadline, view::View},
    rpc::{
        block_tag::BlockTag,
        context::RpcContext,
        error::{Reply, RpcError, reply},
        log_filter::{LogJson, LogQuery, LogRange},
        params::Args,
    },
};
use alloy_primitives::U64;
use serde_json::json;

pub fn get_logs(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let query: LogQuery = args.at_most(1)?.required()?;
    query.filter.check_size(context.bounds.logs.query)?;
    // geth's check treats a `toBlock` of 0 like an absent one.
    if !matches!(query.blocks, LogRange::Range(_, BlockTag::Number(0))) {
        query.check_order()?;
    }
    reply(matching_logs(context, query, deadline)?)
}

/// The first and the last block of a range; `None` if the range is empty.
fn resolve(
    context: &RpcContext,
    view: &View,
    blocks: LogRange,
) -> Result<Option<(u64, u64)>, RpcError> {
    let (from, to) = match blocks {
        LogRange::Hash(hash) => {
            let number = view
                .number_of(hash)?
                .ok_or_else(|| RpcError::server("unknown block"))?;
            (number, number)
        }
        LogRange::Range(from, to) => (from.number(context, view)?, to.number(context, view)?),
    };
    if from.max(to) > view.head().number {
        return Err(RpcError::invalid_params(
            "block range extends beyond current head block",
        ));
    }
    // Two numbers in the wrong order are an error. A tag, such as the `latest` of a missing
    // `fromBlock`, may resolve to a block above `toBlock`: the range is then empty.
    Ok((from <= to).then_some((from, to)))
}

/// The error of a query for too much. `data` names the widest range from the same block that would
/// not be refused for this reason.
fn too_much(limit: &str, from: u64, widest: u64) -> RpcError {
    let message = format!("query exceeds {limit}, retry with the range {from}-{widest}");
    let range = json!({ "fromBlock": U64::from(from), "toBlock": U64::from(widest) });
    RpcError {
        data: serde_json::value::to_raw_value(&range).ok(),
        ..RpcError::invalid_params(message)
    }
}

/// The logs of the chain that match a query.
pub fn matching_logs(
    context: &RpcContext,
    LogQuery { filter, blocks }: LogQuery,
    deadline: &Deadline,
) -> Result<Vec<LogJson>, RpcError> {
    let newest = || match blocks {
        LogRange::Range(_, BlockTag::Pending) | LogRange::Range(BlockTag::Pending, _) => {
            context.pending_view()
        }
        _ => context.view(),
    };
    let view = newest();
    let Some((from, to)) = resolve(context, &view, blocks)? else {
        return Ok(vec![]);
    };
    let limits = context.bounds.logs;
    if to - from >= limits.blocks {
        let widest = from.saturating_add(limits.blocks.saturating_sub(1));
        return Err(too_much(
            &format!("max block range {}", limits.blocks),
            from,
            widest,
        ));
    }
    let (mut found, mut bytes) = (Vec::new(), 0);
    let (first, head) = (from, view.head());
    let mut view = view;
    for number in from..=to {
        deadline.check()?;
        // A view pins a snapshot of the store: long walks take a fresh view now and then.
        if number != first && (number - first).is_multiple_of(1000) {
            view = newest();
            if view.hash_of(head.number)? != Some(head.hash) {
                return Err(RpcError::server(
                    "the chain was reorganised during the query, retry",
                ));
            }
        }
        let header = view
            .header_of(number)?
            .ok_or_else(|| RpcError::server("header not found"))?;
        let logs = filter.logs(&view, number, &header)?;
        bytes += logs.iter().map(LogJson::weight).sum::<usize>();
        found.extend(logs);
        // A single block has no limit: a client could not request a smaller range.
        if number > from && (found.len() > limits.logs || bytes > limits.bytes) {
            let limit = if found.len() > limits.logs {
                format!("max results {}", limits.logs)
            } else {
                format!("max results of {} bytes", limits.bytes)
            };
            return Err(too_much(&limit, from, number - 1));
        }
    }
    Ok(found)
}
