//! `eth_getLogs`: the logs of a bounded range of blocks. They are found by the log index, or by
//! header blooms where there is no index.

use crate::{
    chain::{evm::Deadline, view::View},
    pending::Pending,
    rpc::{
        block_tag::BlockTag,
        bounds::LogLimits,
        context::RpcContext,
        error::{Reply, RpcError, reply},
        log_filter::{LogJson, LogQuery, LogRange, bad_range},
        params::Args,
    },
};
use alloy_primitives::U64;
use serde_json::json;

/// Blocks that are read through one view before it is replaced by a fresh one.
const FRESH_VIEW: u64 = 1000;

pub fn get_logs(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let query: LogQuery = args.at_most(1)?.required()?;
    query.filter.check_size(context.bounds.logs.query)?;
    reply(matching_logs(context, query, deadline)?)
}

/// The first and the last block of a range.
fn resolve(context: &RpcContext, view: &View, blocks: LogRange) -> Result<(u64, u64), RpcError> {
    let number = |tag: BlockTag| match tag {
        BlockTag::Safe if view.safe().is_none() => Err(RpcError::server("safe header not found")),
        BlockTag::Finalized if view.finalized().is_none() => {
            Err(RpcError::server("finalized header not found"))
        }
        tag => tag.number(context, view),
    };
    let (from, to) = match blocks {
        LogRange::Hash(hash) => {
            let number = view
                .number_of(hash)?
                .ok_or_else(|| RpcError::server("unknown block"))?;
            (number, number)
        }
        LogRange::Range(from, to) => (number(from)?, number(to)?),
    };
    // geth takes `latest` for a number above all others, so that only `latest` may follow it.
    if let LogRange::Range(BlockTag::Latest, end) = blocks
        && !matches!(end, BlockTag::Latest | BlockTag::Pending)
    {
        return Err(bad_range());
    }
    // A tag too, such as the `latest` of a missing `fromBlock`, may stand for a block above `toBlock`.
    if from > to {
        return Err(bad_range());
    }
    if to > view.head().number {
        return Err(RpcError::invalid_params(
            "block range extends beyond current head block",
        ));
    }
    Ok((from, to))
}

/// The error of a query that exceeds a limit. `data` names the widest range from the same first
/// block that would not exceed the limit.
fn too_much(limit: &str, from: u64, widest: u64) -> RpcError {
    let message = format!("query exceeds {limit}, retry with the range {from}-{widest}");
    let range = json!({ "fromBlock": U64::from(from), "toBlock": U64::from(widest) });
    RpcError {
        data: serde_json::value::to_raw_value(&range).ok(),
        ..RpcError::invalid_params(message)
    }
}

/// Whether the range begins or ends with the pending block.
fn has_pending(blocks: LogRange) -> bool {
    matches!(
        blocks,
        LogRange::Range(_, BlockTag::Pending) | LogRange::Range(BlockTag::Pending, _)
    )
}

/// The logs of the chain that match `query`.
pub fn matching_logs(
    context: &RpcContext,
    LogQuery { filter, blocks }: LogQuery,
    deadline: &Deadline,
) -> Result<Vec<LogJson>, RpcError> {
    let pending = has_pending(blocks);
    // The newest block has no other logs for being called pending.
    if pending && matches!(context.pending, Pending::Latest) {
        return Err(RpcError::invalid_params("pending logs are not supported"));
    }
    let newest = || {
        if pending {
            context.pending_view()
        } else {
            context.view()
        }
    };
    let mut view = newest();
    let (from, to) = resolve(context, &view, blocks)?;
    let limits = context.bounds.logs;
    if to - from >= limits.blocks {
        let widest = from.saturating_add(limits.blocks.saturating_sub(1));
        return Err(too_much(
            &format!("max block range {}", limits.blocks),
            from,
            widest,
        ));
    }
    let (head, search) = (view.head(), filter.search());
    let mut cursor = search.cursor(&view, to - from + 1);
    let (mut found, mut next, mut read) = (FoundLogs::default(), from, 0u64);
    while let Some(number) = cursor.candidate(next, to)? {
        deadline.check()?;
        read += 1;
        // A view pins a snapshot of the store, so a long walk replaces its view now and then.
        if read.is_multiple_of(FRESH_VIEW) {
            view = newest();
            if view.hash_of(head.number)? != Some(head.hash) {
                return Err(RpcError::server(
                    "the chain was reorganised during the query, retry",
                ));
            }
            cursor = search.cursor(&view, to - number + 1);
        }
        let header = view
            .header_of(number)?
            .ok_or_else(|| RpcError::server("header not found"))?;
        found.add(filter.logs(&view, number, &header)?);
        // A single block has no limit: a client could not request a smaller range.
        if to > from
            && let Some(limit) = found.exceeds(&limits)
        {
            return Err(too_much(&limit, from, from.max(number.saturating_sub(1))));
        }
        next = number + 1;
    }
    Ok(found.logs)
}

/// Logs found so far.
#[derive(Default)]
struct FoundLogs {
    logs: Vec<LogJson>,
    /// Bytes of the logs' topics and data.
    bytes: usize,
}

impl FoundLogs {
    fn add(&mut self, logs: Vec<LogJson>) {
        self.bytes += logs.iter().map(LogJson::weight).sum::<usize>();
        self.logs.extend(logs);
    }

    /// The limit that these logs exceed, as text for the error.
    fn exceeds(&self, limits: &LogLimits) -> Option<String> {
        if self.logs.len() > limits.logs {
            Some(format!("max results {}", limits.logs))
        } else if self.bytes > limits.bytes {
            Some(format!("max results of {} bytes", limits.bytes))
        } else {
            None
        }
    }
}
