//! Filters: events that a client asks for again and again instead of subscribing (`eth_newFilter` and its like).
//!
//! A filter is a place on the chain; nothing piles up between two questions, the blocks between are read when the client asks. What
//! can overload it is their number, which is bounded ([`MAX_FILTERS`]), and clients that never come back: a filter not asked for
//! [`LIFETIME`] is gone.

use super::{
    logs::{Follower, Query, matching},
    receipt::LogJson,
    shape::TransactionJson,
};
use crate::{
    chain::{
        evm::Deadline,
        heads::{Cursor, Step},
    },
    rpc::{
        RpcContext,
        error::{Reply, RpcError, reply},
        frame::random_id,
        params::Args,
    },
};
use alloy_primitives::B256;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::broadcast::{self, error::TryRecvError};

/// Filters of all clients together.
const MAX_FILTERS: usize = 1000;
/// How long a filter lives without being asked.
const LIFETIME: Duration = Duration::from_secs(300);

/// Blocks that one answer goes through, and how long it looks for more of them. What is left comes with the next answer.
const MAX_BLOCKS: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(1);

/// The filters of a node.
pub struct Filters {
    live: Mutex<HashMap<String, Entry>>,
    pub(in crate::rpc) lifetime: Duration,
}

struct Entry {
    /// When the client last asked.
    asked: Instant,
    filter: Arc<Mutex<Filter>>,
}

enum Filter {
    Blocks(Cursor),
    Logs {
        query: Query,
        cursor: Cursor,
        follower: Box<Follower>,
    },
    Pending {
        transactions: broadcast::Receiver<B256>,
        full: bool,
    },
}

impl Default for Filters {
    fn default() -> Self {
        Self {
            live: Mutex::default(),
            lifetime: LIFETIME,
        }
    }
}

impl Filters {
    fn add(&self, filter: Filter) -> Reply {
        let mut live = self.live.lock();
        live.retain(|_, entry| entry.asked.elapsed() < self.lifetime);
        if live.len() >= MAX_FILTERS {
            return Err(RpcError::server(format!(
                "too many filters: {MAX_FILTERS} are in use, ask again later or subscribe"
            )));
        }
        let id = random_id();
        live.insert(
            id.clone(),
            Entry {
                asked: Instant::now(),
                filter: Arc::new(Mutex::new(filter)),
            },
        );
        reply(id)
    }

    /// The filter, which lives on from now.
    fn get(&self, id: &str) -> Result<Arc<Mutex<Filter>>, RpcError> {
        let mut live = self.live.lock();
        live.retain(|_, entry| entry.asked.elapsed() < self.lifetime);
        let entry = live.get_mut(id).ok_or_else(not_found)?;
        entry.asked = Instant::now();
        Ok(entry.filter.clone())
    }

    fn remove(&self, id: &str) -> bool {
        self.live
            .lock()
            .remove(id)
            .is_some_and(|entry| entry.asked.elapsed() < self.lifetime)
    }
}

fn not_found() -> RpcError {
    RpcError::server("filter not found")
}

/// Logs of blocks to come, within the blocks of the query.
pub fn new_filter(context: &RpcContext, args: Args) -> Reply {
    let query: Query = args.at_most(1)?.required()?;
    query.check_order()?;
    let head = context.view().head();
    let follower = Box::new(query.follower(&context.bounds, head)?);
    context.filters.add(Filter::Logs {
        query,
        cursor: Cursor::new(head),
        follower,
    })
}

/// Hashes of blocks to come.
pub fn new_block_filter(context: &RpcContext, args: Args) -> Reply {
    args.at_most(0)?;
    context
        .filters
        .add(Filter::Blocks(Cursor::new(context.view().head())))
}

/// Transactions that become executable: hashes, or in full.
pub fn new_pending_transaction_filter(context: &RpcContext, args: Args) -> Reply {
    let full = args.at_most(1)?.optional()?.unwrap_or(false);
    context.filters.add(Filter::Pending {
        transactions: context.chain.pool.subscribe(),
        full,
    })
}

pub fn uninstall_filter(context: &RpcContext, args: Args) -> Reply {
    let id: String = args.at_most(1)?.required()?;
    reply(context.filters.remove(&id))
}

/// What has happened since the client last asked; far behind the head, the first part of it.
pub fn get_filter_changes(context: &RpcContext, args: Args) -> Reply {
    let id: String = args.at_most(1)?.required()?;
    let filter = context.filters.get(&id)?;
    let changes = filter.lock().changes(context);
    if changes.is_err() {
        // The cursor has moved past changes that were not delivered, so the filter is removed and the client must make a new one.
        context.filters.remove(&id);
    }
    changes
}

/// All logs that match now, whatever has been told.
pub fn get_filter_logs(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let id: String = args.at_most(1)?.required()?;
    let filter = context.filters.get(&id)?;
    let query = match &*filter.lock() {
        Filter::Logs { query, .. } => query.clone(),
        _ => return Err(not_found()),
    };
    reply(matching(context, query, deadline)?)
}

impl Filter {
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
                    let more = follower.logs(&view, step)?;
                    bytes += more.iter().map(LogJson::weight).sum::<usize>();
                    logs.extend(more);
                }
                reply(logs)
            }
            Self::Pending { transactions, full } => {
                let (mut found, mut hashes, mut bytes) = (Vec::new(), Vec::new(), 0);
                while !*full || bytes < context.bounds.transactions {
                    match transactions.try_recv() {
                        Ok(hash) if *full => {
                            // One that has left meanwhile, into a block mostly, is pending no more.
                            if let Some(tx) = context.chain.pool.get(&hash) {
                                bytes += tx.raw.len();
                                found.push(tx);
                            }
                        }
                        Ok(hash) => hashes.push(hash),
                        // The oldest are lost; those that are left come with the next try.
                        Err(TryRecvError::Lagged(_)) => {}
                        Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                    }
                }
                match *full {
                    true => reply(
                        found
                            .iter()
                            .map(|tx| TransactionJson::pooled(tx))
                            .collect::<Vec<_>>(),
                    ),
                    false => reply(hashes),
                }
            }
        }
    }
}
