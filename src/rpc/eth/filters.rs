//! Filters: events that a client polls instead of subscribing (`eth_newFilter` and similar
//! methods).
//!
//! The blocks since the last poll are read when the client polls. [`filters`](crate::rpc::filters)
//! stores the filters, and bounds their number and lifetime.

use super::{logs::matching_logs, shape::TransactionJson};
use crate::{
    chain::{
        evm::Deadline,
        heads::{Cursor, Step},
    },
    rpc::{
        context::RpcContext,
        error::{Reply, reply},
        filters::{InstalledFilter, not_found},
        log_filter::{LogJson, LogQuery},
        params::Args,
    },
};
use alloy_primitives::B256;
use std::time::{Duration, Instant};
use tokio::sync::broadcast::{self, error::TryRecvError};

/// Maximum blocks in one response, and the time after which a response covers no further block. The
/// next response continues from there.
const MAX_BLOCKS: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(1);

/// `eth_newFilter`: a filter for the logs of new blocks in the range of the query.
pub fn new_filter(context: &RpcContext, args: Args) -> Reply {
    let query: LogQuery = args.at_most(1)?.required()?;
    query.filter.check_size(context.bounds.logs.query)?;
    query.check_order()?;
    let head = context.view().head();
    let follower = Box::new(query.follower(&context.bounds, head)?);
    context.filters.add(InstalledFilter::Logs {
        query,
        cursor: Cursor::new(head),
        follower,
    })
}

/// `eth_newBlockFilter`: a filter for the hashes of new blocks.
pub fn new_block_filter(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    context
        .filters
        .add(InstalledFilter::Blocks(Cursor::new(context.view().head())))
}

/// `eth_newPendingTransactionFilter`: a filter for transactions that become executable, as hashes
/// or in full.
pub fn new_pending_transaction_filter(context: &RpcContext, args: Args) -> Reply {
    let full = args.at_most(1)?.optional()?.unwrap_or(false);
    context.filters.add(InstalledFilter::Pending {
        transactions: context.chain.pool.subscribe(),
        full,
    })
}

pub fn uninstall_filter(context: &RpcContext, args: Args) -> Reply {
    let id: String = args.at_most(1)?.required()?;
    reply(context.filters.remove(&id))
}

/// `eth_getFilterChanges`: the changes since the last call. If these are too many, the response is
/// their first part.
pub fn get_filter_changes(context: &RpcContext, args: Args) -> Reply {
    let id: String = args.at_most(1)?.required()?;
    let filter = context.filters.get(&id)?;
    let changes = filter.lock().changes(context);
    if changes.is_err() {
        // The cursor has moved past changes that were not delivered. The filter is removed, so the
        // client must make a new one.
        context.filters.remove(&id);
    }
    changes
}

/// `eth_getFilterLogs`: all logs that match now, including those that were reported before.
pub fn get_filter_logs(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let id: String = args.at_most(1)?.required()?;
    let filter = context.filters.get(&id)?;
    let query = match &*filter.lock() {
        InstalledFilter::Logs { query, .. } => query.clone(),
        _ => return Err(not_found()),
    };
    reply(matching_logs(context, query, deadline)?)
}

impl InstalledFilter {
    fn changes(&mut self, context: &RpcContext) -> Reply {
        match self {
            Self::Blocks(cursor) => {
                let (view, mut added) = (context.view(), Vec::new());
                for _ in 0..MAX_BLOCKS {
                    match context.step(cursor, &view)? {
                        Some(Step::Added(id)) => added.push(id.hash),
                        Some(Step::Removed(_)) => {}
                        None => break,
                    }
                }
                reply(added)
            }
            Self::Logs {
                cursor, follower, ..
            } => {
                let view = context.view();
                let (limits, mut logs, mut bytes) = (context.bounds.logs, Vec::new(), 0);
                let began = Instant::now();
                for _ in 0..MAX_BLOCKS {
                    if began.elapsed() > PATIENCE
                        || logs.len() >= limits.logs
                        || bytes >= limits.bytes
                    {
                        break;
                    }
                    let Some(step) = context.step(cursor, &view)? else {
                        break;
                    };
                    let more = follower.apply(&view, step)?;
                    bytes += more.iter().map(LogJson::weight).sum::<usize>();
                    logs.extend(more);
                }
                reply(logs)
            }
            Self::Pending { transactions, full } => pending(context, transactions, *full),
        }
    }
}

/// The transactions that became executable since the last call, as hashes or in full.
fn pending(
    context: &RpcContext,
    transactions: &mut broadcast::Receiver<B256>,
    full: bool,
) -> Reply {
    let (mut found, mut hashes, mut bytes) = (Vec::new(), Vec::new(), 0);
    while !full || bytes < context.bounds.transactions {
        match transactions.try_recv() {
            Ok(hash) if full => {
                // A transaction that has left the pool since then, mostly into a block, is not
                // pending.
                if let Some(tx) = context.chain.pool.get(&hash) {
                    bytes += tx.raw.len();
                    found.push(tx);
                }
            }
            Ok(hash) => hashes.push(hash),
            // The oldest transactions are lost; the next iteration reads the others.
            Err(TryRecvError::Lagged(_)) => {}
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        }
    }
    if full {
        reply(
            found
                .iter()
                .map(|tx| TransactionJson::pooled(tx))
                .collect::<Vec<_>>(),
        )
    } else {
        reply(hashes)
    }
}
