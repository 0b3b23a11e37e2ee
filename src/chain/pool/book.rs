//! The pool's books: transactions per sender by nonce, the order in which they pay, and who must leave when it is full.
//!
//! Of each sender the run of nonces that starts at the state's nonce is *pending* (executable), the rest *queued*. Only the last
//! nonce of a sender is ever evicted for space, so eviction never opens a gap.

use super::{Admission, Content, HeadChange, PoolConfig, PoolError, PoolStats, PoolTx, admit::tip_cap};
use alloy_consensus::Transaction;
use alloy_primitives::{Address, B256, U256};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    sync::Arc,
};

struct Entry {
    tx: Arc<PoolTx>,
    /// Execution, value, L1 and operator fee as of admission, wei.
    cost: U256,
    /// Unix seconds.
    added: u64,
    /// Arrival order: breaks ties between equal tips.
    arrival: u64,
}

#[derive(Default)]
struct Account {
    /// The nonce at the head.
    nonce: u64,
    /// The first nonce that is not pending.
    next: u64,
    txs: BTreeMap<u64, Entry>,
}

impl Account {
    fn pending(&self) -> usize {
        (self.next - self.nonce) as usize
    }

    fn queued(&self) -> usize {
        self.txs.len() - self.pending()
    }

    /// Moves `next` over all consecutive nonces; gives what became pending.
    fn promote(&mut self) -> Vec<Arc<PoolTx>> {
        let mut promoted = Vec::new();
        while let Some(entry) = self.txs.get(&self.next) {
            promoted.push(entry.tx.clone());
            self.next += 1;
        }
        promoted
    }

    /// Removes one nonce. What was pending behind it becomes queued.
    fn take(&mut self, nonce: u64) -> Option<Entry> {
        let entry = self.txs.remove(&nonce)?;
        self.next = self.next.min(nonce.max(self.nonce));
        Some(entry)
    }
}

pub(super) struct Book {
    config: PoolConfig,
    accounts: BTreeMap<Address, Account>,
    by_hash: HashMap<B256, (Address, u64)>,
    pending: usize,
    queued: usize,
    arrivals: u64,
    /// Of the head, wei per gas: what tells good payers from bad ones.
    base_fee: u64,
}

impl Book {
    pub(super) fn new(config: PoolConfig) -> Self {
        Self { config, accounts: BTreeMap::new(), by_hash: HashMap::new(), pending: 0, queued: 0, arrivals: 0, base_fee: 0 }
    }

    pub(super) fn get(&self, hash: &B256) -> Option<Arc<PoolTx>> {
        let (sender, nonce) = self.by_hash.get(hash)?;
        Some(self.accounts.get(sender)?.txs.get(nonce)?.tx.clone())
    }

    pub(super) fn next_nonce(&self, sender: &Address) -> Option<u64> {
        self.accounts.get(sender).filter(|account| account.pending() > 0).map(|account| account.next)
    }

    pub(super) fn senders(&self) -> Vec<Address> {
        self.accounts.keys().copied().collect()
    }

    pub(super) fn stats(&self) -> PoolStats {
        PoolStats { pending: self.pending, queued: self.queued, senders: self.accounts.len() }
    }

    /// Takes a transaction that passed `admit::check`. Gives the transactions that became pending.
    pub(super) fn add(&mut self, tx: PoolTx, at: &Admission) -> Result<Vec<Arc<PoolTx>>, PoolError> {
        if self.by_hash.contains_key(&tx.hash) {
            return Err(PoolError::AlreadyKnown);
        }
        let (sender, nonce, hash) = (tx.sender(), tx.tx.nonce(), tx.hash);
        let cost = tx.cost().saturating_add(at.l1_cost);
        self.check_account(&tx, cost, at)?;

        let entry = Entry { tx: Arc::new(tx), cost, added: at.now, arrival: self.arrivals };
        self.arrivals += 1;
        let (replaced, mut promoted) = self.with_account(sender, |account| {
            if account.txs.is_empty() {
                (account.nonce, account.next) = (at.nonce, at.nonce);
            }
            let new = entry.tx.clone();
            let replaced = account.txs.insert(nonce, entry);
            let mut promoted = account.promote();
            if replaced.is_some() && nonce < account.next {
                promoted.push(new);
            }
            (replaced, promoted)
        });
        if let Some(old) = replaced {
            self.by_hash.remove(&old.tx.hash);
        }
        self.by_hash.insert(hash, (sender, nonce));
        self.base_fee = at.base_fee;
        self.shrink();
        if !self.by_hash.contains_key(&hash) {
            return Err(PoolError::Underpriced);
        }
        promoted.retain(|tx| self.by_hash.contains_key(&tx.hash));
        Ok(promoted)
    }

    /// The rules that compare with the sender's other transactions: replacement, overdraft, queue length.
    fn check_account(&self, tx: &PoolTx, cost: U256, at: &Admission) -> Result<(), PoolError> {
        let Some(account) = self.accounts.get(&tx.sender()) else { return Ok(()) };
        let nonce = tx.tx.nonce();
        let old = account.txs.get(&nonce);
        if let Some(old) = old {
            let enough = |new: u128, old: u128| {
                new > old && U256::from(new) * U256::from(100) >= U256::from(old) * U256::from(100 + self.config.price_bump)
            };
            if !enough(tx.tx.max_fee_per_gas(), old.tx.tx.max_fee_per_gas()) || !enough(tip_cap(tx), tip_cap(&old.tx)) {
                return Err(PoolError::ReplacementUnderpriced);
            }
        }
        let others = account.txs.range(account.nonce..account.next).filter(|(n, _)| **n != nonce);
        let queued = others.fold(U256::ZERO, |sum, (_, entry)| sum.saturating_add(entry.cost));
        if nonce <= account.next && queued.saturating_add(cost) > at.balance {
            return Err(PoolError::Overdraft { balance: at.balance, queued, cost });
        }
        if old.is_none() && nonce > account.next && account.queued() >= self.config.account_queue {
            return Err(PoolError::AccountQueueFull { limit: self.config.account_queue });
        }
        Ok(())
    }

    /// See [`super::Pool::remove`]. What becomes queued by it may be too much for the queue.
    pub(super) fn remove(&mut self, hash: &B256) {
        self.drop_one(hash);
        self.shrink();
    }

    fn drop_one(&mut self, hash: &B256) {
        if let Some((sender, nonce)) = self.by_hash.remove(hash) {
            self.with_account(sender, |account| account.take(nonce));
        }
    }

    /// See [`super::Pool::best`].
    pub(super) fn best(&self, base_fee: u64) -> Vec<Arc<PoolTx>> {
        // The best head of every sender; popping one offers the sender's next nonce.
        let offer = |entry: &Entry| {
            Some((entry.tx.effective_tip(base_fee)?, Reverse(entry.arrival), entry.tx.sender(), entry.tx.tx.nonce()))
        };
        let mut heads: BinaryHeap<_> =
            self.accounts.values().filter(|a| a.pending() > 0).filter_map(|a| offer(a.txs.get(&a.nonce)?)).collect();
        let mut best = Vec::with_capacity(self.pending);
        while let Some((_, _, sender, nonce)) = heads.pop() {
            let Some(account) = self.accounts.get(&sender) else { continue };
            let Some(entry) = account.txs.get(&nonce) else { continue };
            best.push(entry.tx.clone());
            heads.extend((nonce + 1 < account.next).then(|| account.txs.get(&(nonce + 1)).and_then(offer)).flatten());
        }
        best
    }

    /// See [`super::Pool::on_head`].
    pub(super) fn on_head(&mut self, change: HeadChange, accounts: &BTreeMap<Address, (u64, U256)>) -> Vec<Arc<PoolTx>> {
        let mut promoted = Vec::new();
        for hash in &change.mined {
            self.mine(hash);
        }
        for tx in change.abandoned {
            self.take_back(tx, accounts, change.now);
        }
        for sender in self.senders() {
            promoted.extend(self.refresh(sender, accounts.get(&sender), change.block_gas_limit, change.now));
        }
        self.base_fee = change.base_fee;
        self.shrink();
        promoted.retain(|tx: &Arc<PoolTx>| self.by_hash.contains_key(&tx.hash));
        promoted
    }

    /// A transaction is in the chain: it and everything of its sender at or below its nonce leaves; what follows stays pending.
    fn mine(&mut self, hash: &B256) {
        let Some(&(sender, nonce)) = self.by_hash.get(hash) else { return };
        let stale = self.with_account(sender, |account| {
            let kept = account.txs.split_off(&nonce.saturating_add(1));
            account.nonce = account.nonce.max(nonce.saturating_add(1));
            account.next = account.next.max(account.nonce);
            std::mem::replace(&mut account.txs, kept)
        });
        for entry in stale.values() {
            self.by_hash.remove(&entry.tx.hash);
        }
    }

    /// Takes back a transaction of an abandoned block unless the sender has sent something else for its nonce. It was valid there;
    /// whether it still can be paid for is checked by `refresh` (without L1 fee) and by the builder.
    fn take_back(&mut self, tx: PoolTx, accounts: &BTreeMap<Address, (u64, U256)>, now: u64) {
        let (sender, nonce, hash) = (tx.sender(), tx.tx.nonce(), tx.hash);
        let Some((state_nonce, _)) = accounts.get(&sender) else { return };
        if op_alloy_consensus::OpTransaction::is_deposit(tx.tx.inner())
            || nonce < *state_nonce
            || self.by_hash.contains_key(&hash)
        {
            return;
        }
        let entry = Entry { cost: tx.cost(), tx: Arc::new(tx), added: now, arrival: self.arrivals };
        self.arrivals += 1;
        let taken = self.with_account(sender, |account| {
            if account.txs.is_empty() {
                (account.nonce, account.next) = (*state_nonce, *state_nonce);
            }
            let free = !account.txs.contains_key(&nonce);
            if free {
                account.txs.insert(nonce, entry);
            }
            free
        });
        if taken {
            self.by_hash.insert(hash, (sender, nonce));
        }
    }

    /// Brings one sender up to the new head: drops what is stale, unaffordable, too large or expired, then promotes.
    fn refresh(&mut self, sender: Address, state: Option<&(u64, U256)>, gas_limit: u64, now: u64) -> Vec<Arc<PoolTx>> {
        let lifetime = self.config.lifetime;
        let (dropped, promoted) = self.with_account(sender, |account| {
            let mut dropped = Vec::new();
            let announced = account.next;
            if let Some((nonce, balance)) = state {
                account.txs.retain(|n, entry| {
                    let keep = *n >= *nonce && entry.cost <= *balance && entry.tx.tx.gas_limit() <= gas_limit;
                    if !keep {
                        dropped.push(entry.tx.hash);
                    }
                    keep
                });
                (account.nonce, account.next) = (*nonce, *nonce);
            }
            // The walk starts again at the new nonce; only what lies past the old mark is news.
            let mut promoted = account.promote();
            promoted.retain(|tx| tx.tx.nonce() >= announced);
            let next = account.next;
            account.txs.retain(|n, entry| {
                let keep = *n < next || now.saturating_sub(entry.added) <= lifetime;
                if !keep {
                    dropped.push(entry.tx.hash);
                }
                keep
            });
            (dropped, promoted)
        });
        for hash in dropped {
            self.by_hash.remove(&hash);
        }
        promoted
    }

    /// Evicts until every limit holds: the queue's worst tail first, then the worst tail of accounts above their guaranteed slots,
    /// then the worst tail of all.
    fn shrink(&mut self) {
        while self.queued > self.config.global_queue {
            if !self.evict(|account| account.queued() > 0) {
                break;
            }
        }
        let slots = self.config.account_slots;
        while self.pending > self.config.global_slots {
            let evicted = self.evict(|account| account.pending() > slots) || self.evict(|account| account.pending() > 0);
            if !evicted {
                break;
            }
        }
    }

    /// Drops the last nonce of the account, among those that `from` selects, whose last nonce pays least.
    fn evict(&mut self, from: impl Fn(&Account) -> bool) -> bool {
        let base_fee = u128::from(self.base_fee);
        let price = |tx: &PoolTx| tx.tx.max_fee_per_gas().min(tip_cap(tx).saturating_add(base_fee));
        let worst = self
            .accounts
            .values()
            .filter(|account| from(account))
            .filter_map(|account| account.txs.last_key_value())
            .min_by_key(|(_, entry)| (price(&entry.tx), Reverse(entry.arrival)))
            .map(|(_, entry)| entry.tx.hash);
        worst.inspect(|hash| self.drop_one(hash)).is_some()
    }

    /// Changes one account and keeps the totals; an account without transactions is forgotten.
    fn with_account<T>(&mut self, sender: Address, change: impl FnOnce(&mut Account) -> T) -> T {
        let account = self.accounts.entry(sender).or_default();
        let (pending, queued) = (account.pending(), account.queued());
        let result = change(account);
        self.pending = self.pending - pending + account.pending();
        self.queued = self.queued - queued + account.queued();
        if account.txs.is_empty() {
            self.accounts.remove(&sender);
        }
        result
    }

    pub(super) fn content_of(&self, sender: &Address) -> Content {
        let Some(account) = self.accounts.get(sender) else { return Content::default() };
        let (pending, queued): (Vec<_>, Vec<_>) = account.txs.iter().partition(|(nonce, _)| **nonce < account.next);
        let txs = |entries: Vec<(&u64, &Entry)>| entries.into_iter().map(|(_, entry)| entry.tx.clone()).collect();
        (txs(pending), txs(queued))
    }

    pub(super) fn content(&self) -> BTreeMap<Address, Content> {
        self.accounts.keys().map(|sender| (*sender, self.content_of(sender))).collect()
    }
}
