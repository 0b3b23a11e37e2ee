//! The pool's book: transactions per sender by nonce, their order by tip, and eviction when the pool
//! is full.
//!
//! The nonces of a sender that follow the state's nonce without a gap are *pending* (executable),
//! the rest *queued*. Only the last nonce of a sender is ever evicted for space, so eviction never
//! opens a gap.

use super::{
    Admission, Content, HeadChange, PoolConfig, PoolError, PoolStats, PoolTx, SLOT_SIZE,
    admit::tip_cap, blobs,
};
use alloy_consensus::Transaction;
use alloy_primitives::{Address, B256, U256};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    sync::Arc,
};

struct PoolEntry {
    tx: Arc<PoolTx>,
    /// Maximum cost in wei: execution, blobs and value, and the L1 and operator fee as of the head.
    cost: U256,
    /// Time of arrival, Unix seconds.
    added: u64,
    /// Order of arrival, which decides between equal tips.
    arrival: u64,
    /// Accounts for which the transaction would set code.
    authorities: Vec<Address>,
}

impl PoolEntry {
    fn slots(&self) -> usize {
        self.tx.size().div_ceil(SLOT_SIZE)
    }
}

#[derive(Default)]
struct PoolAccount {
    /// The account's nonce in the state at the head.
    nonce: u64,
    /// The first nonce after the pending ones.
    next: u64,
    txs: BTreeMap<u64, PoolEntry>,
}

impl PoolAccount {
    fn pending(&self) -> usize {
        (self.next - self.nonce) as usize
    }

    fn queued(&self) -> usize {
        self.txs.len() - self.pending()
    }

    /// Moves `next` past all consecutive nonces. Returns the transactions that became pending.
    fn promote(&mut self) -> Vec<Arc<PoolTx>> {
        let mut promoted = Vec::new();
        while let Some(entry) = self.txs.get(&self.next) {
            promoted.push(entry.tx.clone());
            self.next += 1;
        }
        promoted
    }

    /// Removes the transaction with this nonce. Pending transactions after it become queued.
    fn take(&mut self, nonce: u64) -> Option<PoolEntry> {
        let entry = self.txs.remove(&nonce)?;
        self.next = self.next.min(nonce.max(self.nonce));
        Some(entry)
    }
}

/// All transactions of the pool, with totals and indexes.
pub(super) struct Book {
    config: PoolConfig,
    accounts: BTreeMap<Address, PoolAccount>,
    by_hash: HashMap<B256, (Address, u64)>,
    /// Number of authorizations by each account, over all transactions in the pool.
    authorities: HashMap<Address, usize>,
    pending: usize,
    queued: usize,
    /// Number of slots of [`SLOT_SIZE`] in use.
    slots: usize,
    /// Number of transactions added so far, which is the next one's arrival order.
    arrivals: u64,
    /// Base fee of the head in wei per gas, to compare fees at eviction.
    base_fee: u64,
}

impl Book {
    pub(super) fn new(config: PoolConfig) -> Self {
        Self {
            config,
            accounts: BTreeMap::new(),
            by_hash: HashMap::new(),
            authorities: HashMap::new(),
            pending: 0,
            queued: 0,
            slots: 0,
            arrivals: 0,
            base_fee: 0,
        }
    }

    pub(super) fn get(&self, hash: &B256) -> Option<Arc<PoolTx>> {
        let (sender, nonce) = self.by_hash.get(hash)?;
        Some(self.accounts.get(sender)?.txs.get(nonce)?.tx.clone())
    }

    pub(super) fn next_nonce(&self, sender: &Address) -> Option<u64> {
        self.accounts
            .get(sender)
            .filter(|account| account.pending() > 0)
            .map(|account| account.next)
    }

    pub(super) fn senders(&self) -> Vec<Address> {
        self.accounts.keys().copied().collect()
    }

    pub(super) fn stats(&self) -> PoolStats {
        PoolStats {
            pending: self.pending,
            queued: self.queued,
            senders: self.accounts.len(),
        }
    }

    /// Adds a transaction that passed `admit::check`. Returns the transactions that became pending.
    pub(super) fn add(
        &mut self,
        tx: PoolTx,
        authorities: Vec<Address>,
        at: &Admission,
    ) -> Result<Vec<Arc<PoolTx>>, PoolError> {
        if self.by_hash.contains_key(&tx.hash) {
            return Err(PoolError::AlreadyKnown);
        }
        let (sender, nonce, hash) = (tx.sender(), tx.tx.nonce(), tx.hash);
        let cost = tx.cost().saturating_add(at.l1_cost);
        self.check_funds(&tx, cost, at)?;
        self.check_delegation(&tx, &authorities, at)?;
        self.check_blobs(&tx, at)?;
        self.check_replacement(&tx)?;

        let entry = PoolEntry {
            tx: Arc::new(tx),
            cost,
            added: at.now,
            arrival: self.arrivals,
            authorities,
        };
        self.index(&entry);
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
        replaced.iter().for_each(|old| self.unindex(old));
        self.base_fee = at.base_fee;
        self.shrink();
        if !self.by_hash.contains_key(&hash) {
            return Err(PoolError::Underpriced);
        }
        promoted.retain(|tx| self.by_hash.contains_key(&tx.hash));
        Ok(promoted)
    }

    /// Adds a transaction to the totals and indexes.
    fn index(&mut self, entry: &PoolEntry) {
        self.arrivals += 1;
        self.slots += entry.slots();
        self.by_hash
            .insert(entry.tx.hash, (entry.tx.sender(), entry.tx.tx.nonce()));
        for authority in &entry.authorities {
            *self.authorities.entry(*authority).or_default() += 1;
        }
    }

    /// Removes a transaction from the totals and indexes.
    fn unindex(&mut self, entry: &PoolEntry) {
        self.slots -= entry.slots();
        self.by_hash.remove(&entry.tx.hash);
        for authority in &entry.authorities {
            if let Some(count) = self.authorities.get_mut(authority) {
                *count -= 1;
                if *count == 0 {
                    self.authorities.remove(authority);
                }
            }
        }
    }

    /// Checks that the balance covers this transaction and the sender's pending ones.
    fn check_funds(&self, tx: &PoolTx, cost: U256, at: &Admission) -> Result<(), PoolError> {
        let Some(account) = self.accounts.get(&tx.sender()) else {
            return Ok(());
        };
        let pending = account.txs.range(account.nonce..account.next);
        let queued = pending.fold(U256::ZERO, |sum, (_, entry)| sum.saturating_add(entry.cost));
        let old = account
            .txs
            .get(&tx.tx.nonce())
            .filter(|_| tx.tx.nonce() < account.next);
        match old {
            // A cheaper replacement cannot overdraw.
            Some(old) => match cost.checked_sub(old.cost) {
                Some(bump) if queued.saturating_add(bump) > at.balance => {
                    Err(PoolError::BumpOverdraft {
                        balance: at.balance,
                        queued,
                        bump,
                    })
                }
                _ => Ok(()),
            },
            None if queued.saturating_add(cost) > at.balance => Err(PoolError::Overdraft {
                balance: at.balance,
                queued,
                cost,
            }),
            None => Ok(()),
        }
    }

    /// Checks that a delegated account has at most one transaction in the pool, since one call can
    /// invalidate all of its transactions (EIP-7702, transaction propagation).
    fn check_delegation(
        &self,
        tx: &PoolTx,
        authorities: &[Address],
        at: &Admission,
    ) -> Result<(), PoolError> {
        let (sender, nonce) = (tx.sender(), tx.tx.nonce());
        if at.delegated || self.authorities.contains_key(&sender) {
            match self
                .accounts
                .get(&sender)
                .filter(|account| account.pending() > 0)
            {
                None if nonce != at.nonce => return Err(PoolError::DelegatedGap),
                Some(account) if !(account.nonce..account.next).contains(&nonce) => {
                    return Err(PoolError::DelegatedInFlight);
                }
                _ => {}
            }
        }
        let many = |authority| {
            self.accounts
                .get(authority)
                .is_some_and(|account| account.txs.len() > 1)
        };
        if authorities.iter().any(many) {
            Err(PoolError::AuthorityReserved)
        } else {
            Ok(())
        }
    }

    /// Checks the rules of geth's pool of blob transactions: a sender of blob transactions has no
    /// other kind in the pool, no nonce gap, and at most [`blobs::MAX_PER_ACCOUNT`] transactions.
    fn check_blobs(&self, tx: &PoolTx, at: &Admission) -> Result<(), PoolError> {
        let account = self.accounts.get(&tx.sender());
        let other = account.and_then(|account| account.txs.values().next());
        if other.is_some_and(|other| other.tx.tx.is_blob() != tx.tx.is_blob()) {
            return Err(PoolError::Reserved);
        }
        if !tx.tx.is_blob() {
            return Ok(());
        }
        let nonce = tx.tx.nonce();
        let gap = account.map_or(at.nonce, |account| account.next);
        if nonce > gap {
            return Err(PoolError::BlobGap { nonce, gap });
        }
        let (limit, is_new) = (blobs::MAX_PER_ACCOUNT, nonce == gap);
        if is_new && account.is_some_and(|account| account.txs.len() >= limit) {
            return Err(PoolError::AccountBlobsFull { limit });
        }
        Ok(())
    }

    /// Checks that a replacement raises the fees enough, and that a nonce behind a gap fits into
    /// the sender's queue.
    fn check_replacement(&self, tx: &PoolTx) -> Result<(), PoolError> {
        let Some(account) = self.accounts.get(&tx.sender()) else {
            return Ok(());
        };
        let nonce = tx.tx.nonce();
        let Some(old) = account.txs.get(&nonce) else {
            if nonce > account.next && account.queued() >= self.config.account_queue {
                return Err(PoolError::AccountQueueFull {
                    limit: self.config.account_queue,
                });
            }
            return Ok(());
        };
        let bump = if tx.tx.is_blob() {
            blobs::PRICE_BUMP
        } else {
            self.config.price_bump
        };
        let enough = |new: u128, old: u128| {
            new > old
                && U256::from(new)
                    >= U256::from(old) * (U256::from(bump) + U256::from(100)) / U256::from(100)
        };
        let blob_fees = [tx, &old.tx].map(|tx| tx.tx.max_fee_per_blob_gas());
        if enough(tx.tx.max_fee_per_gas(), old.tx.tx.max_fee_per_gas())
            && enough(tip_cap(tx), tip_cap(&old.tx))
            && blob_fees[0]
                .zip(blob_fees[1])
                .is_none_or(|(new, old)| enough(new, old))
        {
            Ok(())
        } else {
            Err(PoolError::ReplacementUnderpriced)
        }
    }

    /// See [`super::Pool::remove`]. Also evicts, since transactions that become queued may exceed
    /// the limit of the queue.
    pub(super) fn remove(&mut self, hash: &B256) {
        self.drop_one(hash);
        self.shrink();
    }

    /// Drops the transactions with a tip cap below `tip`. Later transactions of their senders stay,
    /// behind a nonce gap.
    pub(super) fn drop_below(&mut self, tip: u128) {
        let entries = self
            .accounts
            .values()
            .flat_map(|account| account.txs.values());
        let low: Vec<B256> = entries
            .filter(|entry| tip_cap(&entry.tx) < tip)
            .map(|entry| entry.tx.hash)
            .collect();
        low.iter().for_each(|hash| self.drop_one(hash));
        self.shrink();
    }

    fn drop_one(&mut self, hash: &B256) {
        if let Some(&(sender, nonce)) = self.by_hash.get(hash) {
            let taken = self.with_account(sender, |account| account.take(nonce));
            taken.iter().for_each(|entry| self.unindex(entry));
        }
    }

    /// The executable transactions in order: see [`super::Pool::best`].
    pub(super) fn best(&self, base_fee: u64) -> Vec<Arc<PoolTx>> {
        // A heap with each sender's lowest pending nonce. Popping a transaction pushes its sender's
        // next nonce.
        let offer = |entry: &PoolEntry| {
            Some((
                entry.tx.effective_tip(base_fee)?,
                Reverse(entry.arrival),
                entry.tx.sender(),
                entry.tx.tx.nonce(),
            ))
        };
        let mut heads: BinaryHeap<_> = self
            .accounts
            .values()
            .filter(|a| a.pending() > 0)
            .filter_map(|a| offer(a.txs.get(&a.nonce)?))
            .collect();
        let mut best = Vec::with_capacity(self.pending);
        while let Some((_, _, sender, nonce)) = heads.pop() {
            let Some(account) = self.accounts.get(&sender) else {
                continue;
            };
            let Some(entry) = account.txs.get(&nonce) else {
                continue;
            };
            best.push(entry.tx.clone());
            heads.extend(
                (nonce + 1 < account.next)
                    .then(|| account.txs.get(&(nonce + 1)).and_then(offer))
                    .flatten(),
            );
        }
        best
    }

    /// See [`super::Pool::on_head`]. `authorities` holds the authorities of each abandoned
    /// transaction, `accounts` the nonce and the balance of each sender.
    pub(super) fn on_head(
        &mut self,
        mut change: HeadChange,
        authorities: Vec<Vec<Address>>,
        accounts: &BTreeMap<Address, (u64, U256)>,
    ) -> Vec<Arc<PoolTx>> {
        let mut promoted = Vec::new();
        for hash in &change.mined {
            self.mine(hash);
        }
        for (tx, authorities) in std::mem::take(&mut change.abandoned)
            .into_iter()
            .zip(authorities)
        {
            self.reinstate(tx, authorities, accounts, change.now);
        }
        for sender in self.senders() {
            promoted.extend(self.refresh(sender, accounts.get(&sender), &change));
        }
        self.base_fee = change.base_fee;
        self.shrink();
        promoted.retain(|tx: &Arc<PoolTx>| self.by_hash.contains_key(&tx.hash));
        promoted
    }

    /// Removes a mined transaction and all transactions of its sender at or below its nonce. Later
    /// ones stay as they are.
    fn mine(&mut self, hash: &B256) {
        let Some(&(sender, nonce)) = self.by_hash.get(hash) else {
            return;
        };
        let stale = self.with_account(sender, |account| {
            let kept = account.txs.split_off(&nonce.saturating_add(1));
            account.nonce = account.nonce.max(nonce.saturating_add(1));
            account.next = account.next.max(account.nonce);
            std::mem::replace(&mut account.txs, kept)
        });
        stale.values().for_each(|entry| self.unindex(entry));
    }

    /// Reinstates a transaction of an abandoned block unless the pool has another one of the same
    /// sender and nonce. The transaction was valid in that block; `refresh` and the builder check
    /// whether the sender can still pay for it.
    fn reinstate(
        &mut self,
        tx: PoolTx,
        authorities: Vec<Address>,
        accounts: &BTreeMap<Address, (u64, U256)>,
        now: u64,
    ) {
        let (sender, nonce) = (tx.sender(), tx.tx.nonce());
        let Some((state_nonce, _)) = accounts.get(&sender) else {
            return;
        };
        if tx.tx.is_deposit()
            || (tx.tx.is_blob() && tx.sidecar.is_none())
            || nonce < *state_nonce
            || self.by_hash.contains_key(&tx.hash)
            || self
                .accounts
                .get(&sender)
                .is_some_and(|account| account.txs.contains_key(&nonce))
        {
            return;
        }
        let entry = PoolEntry {
            cost: tx.cost(),
            tx: Arc::new(tx),
            added: now,
            arrival: self.arrivals,
            authorities,
        };
        self.index(&entry);
        self.with_account(sender, |account| {
            if account.txs.is_empty() {
                (account.nonce, account.next) = (*state_nonce, *state_nonce);
            }
            account.txs.insert(nonce, entry);
        });
    }

    /// Updates one sender to the new head: drops transactions that are stale, unaffordable or above
    /// the block gas limit, promotes those that became executable, then drops expired ones.
    fn refresh(
        &mut self,
        sender: Address,
        state: Option<&(u64, U256)>,
        change: &HeadChange,
    ) -> Vec<Arc<PoolTx>> {
        let (lifetime, now, gas_limit) = (self.config.lifetime, change.now, change.block_gas_limit);
        let (dropped, promoted) = self.with_account(sender, |account| {
            let mut dropped = Vec::new();
            let announced = account.next;
            if let Some((nonce, balance)) = state {
                let unfit = |n: &u64, entry: &mut PoolEntry| {
                    entry.cost = change.cost(&entry.tx);
                    *n < *nonce || entry.cost > *balance || entry.tx.tx.gas_limit() > gas_limit
                };
                dropped.extend(account.txs.extract_if(.., unfit));
                (account.nonce, account.next) = (*nonce, *nonce);
            }
            // Promotion restarts at the new nonce. Only transactions from nonce `announced` on are
            // newly pending.
            let mut promoted = account.promote();
            promoted.retain(|tx| tx.tx.nonce() >= announced);
            let expired =
                |_: &u64, entry: &mut PoolEntry| now.saturating_sub(entry.added) > lifetime;
            dropped.extend(account.txs.extract_if(account.next.., expired));
            (dropped, promoted)
        });
        dropped.iter().for_each(|(_, entry)| self.unindex(entry));
        promoted
    }

    /// Evicts transactions until every limit holds. A tail is the last nonce of a sender. The
    /// worst-paying tail is evicted first: among queued transactions, then among accounts above
    /// their guaranteed slots, then among all.
    fn shrink(&mut self) {
        while self.queued > self.config.global_queue {
            if !self.evict(|account| account.queued() > 0) {
                break;
            }
        }
        let slots = self.config.account_slots;
        while self.pending > self.config.global_slots {
            let evicted = self.evict(|account| account.pending() > slots)
                || self.evict(|account| account.pending() > 0);
            if !evicted {
                break;
            }
        }
        while self.slots
            > self
                .config
                .global_slots
                .saturating_add(self.config.global_queue)
        {
            if !(self.evict(|account| account.queued() > 0) || self.evict(|_| true)) {
                break;
            }
        }
    }

    /// Among the accounts that `from` selects, finds the one whose last nonce pays least, and drops
    /// that transaction. Returns false if there is none.
    fn evict(&mut self, from: impl Fn(&PoolAccount) -> bool) -> bool {
        let base_fee = u128::from(self.base_fee);
        let price = |tx: &PoolTx| {
            tx.tx
                .max_fee_per_gas()
                .min(tip_cap(tx).saturating_add(base_fee))
        };
        let worst = self
            .accounts
            .values()
            .filter(|account| from(account))
            .filter_map(|account| account.txs.last_key_value())
            .min_by_key(|(_, entry)| (price(&entry.tx), Reverse(entry.arrival)))
            .map(|(_, entry)| entry.tx.hash);
        worst.inspect(|hash| self.drop_one(hash)).is_some()
    }

    /// Applies `change` to one account and updates the totals. Removes the account if it has no
    /// transactions left.
    fn with_account<T>(
        &mut self,
        sender: Address,
        change: impl FnOnce(&mut PoolAccount) -> T,
    ) -> T {
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
        let Some(account) = self.accounts.get(sender) else {
            return Content::default();
        };
        let (pending, queued): (Vec<_>, Vec<_>) = account
            .txs
            .iter()
            .partition(|(nonce, _)| **nonce < account.next);
        let txs = |entries: Vec<(&u64, &PoolEntry)>| {
            entries
                .into_iter()
                .map(|(_, entry)| entry.tx.clone())
                .collect()
        };
        (txs(pending), txs(queued))
    }

    pub(super) fn content(&self) -> BTreeMap<Address, Content> {
        self.accounts
            .keys()
            .map(|sender| (*sender, self.content_of(sender)))
            .collect()
    }
}
