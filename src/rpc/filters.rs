//! The store of installed filters (`eth_newFilter` and its like). The `eth` namespace adds them and
//! answers from them (`eth::filters`).
//!
//! A filter is a place on the chain; nothing piles up between two requests. What can overload the
//! store is their number, which is bounded ([`MAX_FILTERS`]), and clients that never come back: a
//! filter not requested for [`LIFETIME`] is removed.

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

/// Filters of all clients together.
const MAX_FILTERS: usize = 1000;
/// Time after the last request at which a filter is removed.
const LIFETIME: Duration = Duration::from_secs(300);

/// The filters of a node.
pub struct Filters {
    live: Mutex<HashMap<String, Entry>>,
    pub(in crate::rpc) lifetime: Duration,
}

struct Entry {
    /// Time of the client's last request.
    asked: Instant,
    filter: Arc<Mutex<InstalledFilter>>,
}

/// A filter that a client has installed, with its place on the chain.
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
    /// Adds a filter and replies its id.
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

    /// The filter; its lifetime begins anew.
    pub fn get(&self, id: &str) -> Result<Arc<Mutex<InstalledFilter>>, RpcError> {
        let mut live = self.live.lock();
        live.retain(|_, entry| entry.asked.elapsed() < self.lifetime);
        let entry = live.get_mut(id).ok_or_else(not_found)?;
        entry.asked = Instant::now();
        Ok(entry.filter.clone())
    }

    /// Removes a filter; whether there was one.
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
