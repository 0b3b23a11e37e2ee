//! Keys and budgets of the public endpoints (`--rpc.limits`): the methods that each caller may
//! call, and how much.
//!
//! A request names its key by `Authorization: Bearer` or as the last part of its path; a request
//! without a key is anonymous. Every call has a cost, which is taken from the budget of the key and
//! from the budget of the caller's address. A call over budget is refused, with the time after
//! which it would pass. The server checks the budgets before it does any work for a call. The work
//! that a subscription goes on causing waits for its cost instead ([`Caller::pay`]).
//!
//! Memory is one bucket for each key, and one for each of the last [`ADDRESSES`] addresses. The
//! least recently seen address is forgotten. If it returns, its budget is full again.

mod file;
#[cfg(test)]
mod tests;

pub use file::AccessError;

use super::{
    cost_gate::{Budget, CostBucket},
    error::{LIMIT_EXCEEDED, RpcError},
};
use lru::LruCache;
use parking_lot::Mutex;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv6Addr},
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Maximum addresses whose budgets are remembered.
const ADDRESSES: NonZeroUsize = NonZeroUsize::new(16_384).expect("not zero");
/// Longest key that a request may name, in bytes.
const MAX_KEY: usize = 256;

/// The reason why a request is refused before its body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error(
        "a key is required: send it as `Authorization: Bearer KEY`, or as the last part of the path"
    )]
    NoKey,
    #[error("unknown key")]
    UnknownKey,
}

/// The rules of all callers, and their usage so far.
#[derive(Debug)]
pub struct Access {
    /// Rules of each key, followed by the rules of callers without a key.
    rules: Vec<CallerRules>,
    /// Index in `rules` by the SHA-256 of a key. Only hashes are kept, so the time of a lookup
    /// reveals nothing about a key.
    by_hash: HashMap<[u8; 32], usize>,
    /// Index in `rules` for callers without a key; with `None`, these callers are refused.
    anonymous: Option<usize>,
    costs: Costs,
    /// Budget of each address, shared by all keys; `None` does not limit addresses.
    address: Option<Budget>,
    addresses: Mutex<LruCache<IpAddr, CostBucket>>,
}

/// Costs of calls, by method and by namespace.
#[derive(Debug)]
struct Costs {
    methods: HashMap<String, u64>,
    namespaces: HashMap<String, u64>,
    default: u64,
}

impl Costs {
    fn of(&self, method: &str) -> u64 {
        let namespace = method.split('_').next().unwrap_or_default();
        let cost = self.methods.get(method);
        let cost = cost.or_else(|| self.namespaces.get(namespace));
        cost.copied().unwrap_or(self.default)
    }

    fn highest(&self) -> u64 {
        let named = self.methods.values().chain(self.namespaces.values());
        named.copied().fold(self.default, u64::max)
    }
}

/// The rules of a key.
#[derive(Debug)]
struct CallerRules {
    name: String,
    /// Namespaces that the key may call; `None` allows every namespace that the endpoint serves.
    namespaces: Option<BTreeSet<String>>,
    /// Methods that are allowed in addition to `namespaces`.
    methods: BTreeSet<String>,
    /// Budget of the key; `None` does not limit it.
    budget: Option<Budget>,
    bucket: Mutex<CostBucket>,
    usage: CallerUsage,
}

impl CallerRules {
    fn allows(&self, method: &str) -> bool {
        let namespace = method.split('_').next().unwrap_or_default();
        let served = |namespaces: &BTreeSet<String>| namespaces.contains(namespace);
        self.namespaces.as_ref().is_none_or(served) || self.methods.contains(method)
    }
}

/// Counts of a key's calls since the node's start.
#[derive(Debug, Default)]
struct CallerUsage {
    calls: AtomicU64,
    cost: AtomicU64,
    over_budget: AtomicU64,
    not_allowed: AtomicU64,
}

/// Usage of a key since the start, as `starling_rpcUsage` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageJson {
    /// Calls that were admitted.
    pub calls: u64,
    /// Sum of the costs of the admitted calls.
    pub cost: u64,
    /// Calls that were refused because a budget was used up.
    pub over_budget: u64,
    /// Calls that were refused because the key does not allow the method.
    pub not_allowed: u64,
}

/// The caller of one request or connection.
#[derive(Clone, Debug)]
pub struct Caller {
    access: Arc<Access>,
    rules: usize,
    address: IpAddr,
}

/// The address that a budget is kept for: an IPv4 address, or the /64 network of an IPv6 address,
/// since one owner has at least such a network.
fn unit(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

impl Access {
    /// The caller of a request that comes from `address` and names `key`.
    pub fn caller(self: &Arc<Self>, key: Option<&str>, address: IpAddr) -> Result<Caller, Denied> {
        let rules = match key {
            None => self.anonymous.ok_or(Denied::NoKey)?,
            Some(key) if key.len() > MAX_KEY => return Err(Denied::UnknownKey),
            Some(key) => {
                let hash: [u8; 32] = Sha256::digest(key).into();
                *self.by_hash.get(&hash).ok_or(Denied::UnknownKey)?
            }
        };
        Ok(Caller {
            access: self.clone(),
            rules,
            address: unit(address),
        })
    }

    /// Whether callers without a key may call `method`.
    pub fn is_open(&self, method: &str) -> bool {
        let anonymous = self.anonymous.map(|index| &self.rules[index]);
        anonymous.is_some_and(|rules| rules.allows(method))
    }

    /// Usage of each key, by name.
    pub fn usage(&self) -> BTreeMap<&str, UsageJson> {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let each = self.rules.iter().map(|rules| {
            let usage = &rules.usage;
            let json = UsageJson {
                calls: read(&usage.calls),
                cost: read(&usage.cost),
                over_budget: read(&usage.over_budget),
                not_allowed: read(&usage.not_allowed),
            };
            (rules.name.as_str(), json)
        });
        each.collect()
    }

    /// Takes `cost` from the budgets of the key and of the address if both have enough, and returns
    /// zero. Otherwise takes nothing and returns how long the call has to wait.
    fn take(&self, rules: &CallerRules, address: IpAddr, cost: u64, now: Instant) -> Duration {
        let mut addresses = self.address.map(|_| self.addresses.lock());
        let mut bucket = rules.bucket.lock();
        let mut wait = Duration::ZERO;
        if let Some(budget) = &rules.budget {
            wait = wait.max(bucket.wait(budget, cost, now));
        }
        if let (Some(budget), Some(addresses)) = (&self.address, &mut addresses) {
            let of_address = addresses.get_or_insert_mut(address, CostBucket::default);
            wait = wait.max(of_address.wait(budget, cost, now));
            if wait.is_zero() {
                of_address.take(budget, cost, now);
            }
        }
        if let Some(budget) = rules.budget.as_ref().filter(|_| wait.is_zero()) {
            bucket.take(budget, cost, now);
        }
        wait
    }
}

impl Caller {
    fn rules(&self) -> &CallerRules {
        &self.access.rules[self.rules]
    }

    /// Takes the cost of a call from the budgets and returns zero, or takes nothing and returns how
    /// long the call has to wait.
    fn charge(&self, method: &str, now: Instant) -> Duration {
        let (rules, cost) = (self.rules(), self.access.costs.of(method));
        let wait = self.access.take(rules, self.address, cost, now);
        if wait.is_zero() {
            rules.usage.calls.fetch_add(1, Ordering::Relaxed);
            rules.usage.cost.fetch_add(cost, Ordering::Relaxed);
        }
        wait
    }

    /// Waits until the budgets have the cost of a call, and takes it. For each part of the work
    /// that a subscription causes after its call, and which costs as much as such a call.
    pub async fn pay(&self, method: &str) {
        loop {
            let wait = self.charge(method, Instant::now());
            if wait.is_zero() {
                return;
            }
            sleep(wait).await;
        }
    }

    /// Admits a call, or returns the reason for its refusal.
    pub fn admit(&self, method: &str, now: Instant) -> Result<(), RpcError> {
        let rules = self.rules();
        if !rules.allows(method) {
            rules.usage.not_allowed.fetch_add(1, Ordering::Relaxed);
            return Err(RpcError::method_not_found(method));
        }
        let wait = self.charge(method, now);
        if wait.is_zero() {
            return Ok(());
        }
        rules.usage.over_budget.fetch_add(1, Ordering::Relaxed);
        // Rounded up, so that a caller that waits this long is admitted.
        let millis = wait.as_millis().saturating_add(1);
        let data = serde_json::json!({ "retryAfterMs": u64::try_from(millis).unwrap_or(u64::MAX) });
        Err(RpcError {
            code: LIMIT_EXCEEDED,
            message: format!("limit exceeded: retry in {millis} ms"),
            data: serde_json::value::to_raw_value(&data).ok(),
        })
    }
}
