//! The store of installed filters (`eth_newFilter` and similar methods). The `eth` namespace adds
//! filters and reads their changes (`eth::filters`).
//!
//! A filter is a position on the chain, so nothing accumulates between two requests. Too many
//! filters could overload the store, so their number is bounded ([`MAX_FILTERS`]). Clients may also
//! abandon filters: a filter that has not been requested for [`LIFETIME`] is removed.

use super::{
    error::{Reply, RpcError, reply},
    ids::random_id,
    log_filter::{LogFollower, LogQuery},
};
use crate::chain::heads::Cursor;
use alloy_primitives::B256;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::broadcast;

/// Maximum filters of all clients together.
const MAX_FILTERS: usize = 1000;
/// Time without a request after which a filter is removed.
const LIFETIME: Duration = Duration::from_secs(300);

/// The installed filters of a node.
pub struct Filters {
    live: Mutex<HashMap<String, Entry>>,
    pub(in crate::rpc) lifetime: Duration,
}

struct Entry {
    /// Time of the client's last request.
    asked: Instant,
    filter: Arc<Mutex<InstalledFilter>>,
}

/// A filter that a client has installed, with its position on the chain.
pub enum InstalledFilter {
    Blocks(Cursor),
    Logs {
        query: LogQuery,
        cursor: Cursor,
        follower: Box<LogFollower>,
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
    /// Adds a filter, and returns its id as the reply.
    pub fn add(&self, filter: InstalledFilter) -> Reply {
        let mut live = self.live.lock();
        live.retain(|_, entry| entry.asked.elapsed() < self.lifetime);
        if live.len() >= MAX_FILTERS {
            return Err(RpcError::server(format!(
                "too many filters: {MAX_FILTERS} are in use, retry later or subscribe"
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

    /// Finds a filter by its id, and restarts its lifetime.
    pub fn get(&self, id: &str) -> Result<Arc<Mutex<InstalledFilter>>, RpcError> {
        let mut live = self.live.lock();
        live.retain(|_, entry| entry.asked.elapsed() < self.lifetime);
        let entry = live.get_mut(id).ok_or_else(not_found)?;
        entry.asked = Instant::now();
        Ok(entry.filter.clone())
    }

    /// Removes a filter. Returns whether it existed.
    pub fn remove(&self, id: &str) -> bool {
        self.live
            .lock()
            .remove(id)
            .is_some_and(|entry| entry.asked.elapsed() < self.lifetime)
    }
}

/// The error for a filter that is unknown, has expired, or is of another kind.
pub fn not_found() -> RpcError {
    RpcError::server("filter not found")
}
