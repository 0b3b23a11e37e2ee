//! A simulated L1 with one account and with geth's pool rules, and a caller of the machine.

use super::*;
use alloy_primitives::keccak256;
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq)]
pub struct SimTx {
    pub nonce: u64,
    /// ID of the request; zero for a filler, [`FOREIGN`] for another process's transaction.
    pub data: u64,
    pub class: TxClass,
    pub caps: FeeCaps,
    pub hash: B256,
}

pub const FOREIGN: u64 = u64::MAX;

impl SimTx {
    pub fn new(nonce: u64, data: u64, class: TxClass, caps: FeeCaps) -> Self {
        let blob = u128::from(class == TxClass::Blob);
        let words = [
            nonce.into(),
            data.into(),
            blob,
            caps.tip,
            caps.fee,
            caps.blob_fee.unwrap_or(0),
        ];
        let bytes: Vec<u8> = words
            .iter()
            .flat_map(|word: &u128| word.to_be_bytes())
            .collect();
        Self {
            nonce,
            data,
            class,
            caps,
            hash: keccak256(bytes),
        }
    }
}

/// A machine and its simulated L1. [`World::run`] advances the time.
pub struct World {
    pub machine: SendMachine,
    pub now: Instant,
    pub blocks: Vec<Vec<SimTx>>,
    pub pool: BTreeMap<u64, SimTx>,
    pub base_fee: u128,
    pub blob_base_fee: u128,
    /// Number of newest blocks that the responding endpoint lacks; other endpoints have them.
    pub behind: usize,
    /// Nonces in the pool of an endpoint that is behind; `None` if that endpoint shares `pool`.
    pub lagging_pool: Option<BTreeSet<u64>>,
    /// Transactions that are only in the pools of other nodes, unknown to the endpoint.
    pub elsewhere: BTreeMap<u64, SimTx>,
    /// Additional newest blocks without receipts: the load balancer asks another endpoint for
    /// receipts.
    pub receipts_behind: usize,
    /// Whether requests for receipts fail.
    pub receipts_fail: bool,
    /// Whether new blocks include no transactions.
    pub stuck: bool,
    pub reachable: bool,
    /// Whether responses get lost, although published transactions arrive.
    pub loses_answers: bool,
    pub refuse: Option<String>,
    pub signs: bool,
    pub last_id: u64,
    /// Every transaction that the machine has signed, by hash.
    pub signed: HashMap<B256, SimTx>,
    pub done: BTreeMap<u64, MinedTx>,
    pub failed: BTreeMap<u64, SendFailure>,
    pub stopped: Option<String>,
    pub log: Vec<String>,
}

impl World {
    pub fn new(settings: SendSettings) -> Self {
        let now = Instant::now();
        Self {
            machine: SendMachine::new(ACCOUNT, settings, now),
            now,
            blocks: vec![vec![]; 4],
            pool: BTreeMap::new(),
            base_fee: 1_000_000_000,
            blob_base_fee: 1,
            behind: 0,
            lagging_pool: None,
            elsewhere: BTreeMap::new(),
            receipts_behind: 0,
            receipts_fail: false,
            stuck: false,
            reachable: true,
            loses_answers: false,
            refuse: None,
            signs: true,
            last_id: 0,
            signed: HashMap::new(),
            done: BTreeMap::new(),
            failed: BTreeMap::new(),
            stopped: None,
            log: Vec::new(),
        }
    }

    pub fn submit(&mut self, class: TxClass) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.event(SendEvent::Submit { id, class });
        id
    }

    /// Advances the time by `seconds`, with four ticks per second.
    pub fn run(&mut self, seconds: u32) {
        for _ in 0..seconds * 4 {
            self.now += Duration::from_millis(250);
            self.event(SendEvent::Tick);
        }
    }

    /// Mines `count` blocks, two seconds apart.
    pub fn mine_blocks(&mut self, count: usize) {
        for _ in 0..count {
            self.mine();
            self.run(2);
        }
        self.run(3);
    }

    /// Delivers an event, and carries out all actions that follow at once.
    pub fn event(&mut self, event: SendEvent) {
        let mut events = VecDeque::from([event]);
        let mut steps = 0;
        while let Some(event) = events.pop_front() {
            steps += 1;
            assert!(steps < 2000, "the machine spins");
            for action in self.machine.handle(event, self.now) {
                events.extend(self.act(action));
            }
        }
    }

    /// Carries out an action on the current L1; returns the resulting event.
    pub fn act(&mut self, action: SendAction) -> Option<SendEvent> {
        match action {
            SendAction::ReadFees { op } => {
                let fees = self.fees();
                Some(SendEvent::Fees { op, fees })
            }
            SendAction::Sign {
                op,
                nonce,
                work,
                class,
                caps,
                ..
            } => {
                let data = match work {
                    SendWork::Request(id) => id,
                    SendWork::Filler => 0,
                };
                let tx = SimTx::new(nonce, data, class, caps);
                Some(SendEvent::Signed {
                    op,
                    signed: self.sign(tx),
                })
            }
            SendAction::Publish { op, tx, .. } => {
                let answer = self.publish(tx.hash);
                Some(SendEvent::Published { op, answer })
            }
            SendAction::Poll {
                op,
                deep_block,
                with_age,
                hashes,
            } => {
                let reading = self.reading(deep_block, with_age, &hashes);
                Some(SendEvent::Polled { op, reading })
            }
            SendAction::Finished { id, result } => {
                self.finished(id, result);
                None
            }
            SendAction::Stopped(sentence) => {
                self.stopped = Some(sentence);
                None
            }
            action => {
                self.log.push(format!("{action:?}"));
                None
            }
        }
    }

    fn fees(&self) -> Result<L1Fees, String> {
        let fees = L1Fees {
            tip: 1,
            base_fee: self.base_fee,
            blob_base_fee: Some(self.blob_base_fee),
            blob_tip: None,
        };
        self.reachable.then_some(fees).ok_or("away".into())
    }

    fn finished(&mut self, id: SendId, result: Result<MinedTx, SendFailure>) {
        let is_new = !self.done.contains_key(&id) && !self.failed.contains_key(&id);
        assert!(is_new, "request {id} is finished twice");
        match result {
            Ok(mined) => {
                let tx = &self.signed[&mined.hash];
                assert_eq!(tx.data, id, "another request's transaction");
                self.done.insert(id, mined);
            }
            Err(failure) => {
                self.failed.insert(id, failure);
            }
        }
    }

    pub fn sign(&mut self, tx: SimTx) -> Result<SignedTx, String> {
        if !self.signs {
            return Err("the signer is down".into());
        }
        let hash = tx.hash;
        self.signed.insert(hash, tx);
        Ok(SignedTx {
            hash,
            raw: Bytes::new(),
            gas: 21_000,
        })
    }

    pub fn publish(&mut self, hash: B256) -> PublishResult {
        if !self.reachable {
            return PublishResult::Unreachable("away".into());
        }
        if let Some(reason) = &self.refuse {
            return PublishResult::of_error(reason, &[]);
        }
        let answer = match self.pass_on(self.signed[&hash].clone()) {
            Ok(()) => PublishResult::Accepted,
            Err(text) => PublishResult::of_error(text, &[]),
        };
        if self.loses_answers {
            return PublishResult::Unreachable("no answer in time".into());
        }
        answer
    }

    /// Publishes at an endpoint that may be behind: it checks the nonce against its own blocks,
    /// then forwards the transaction to `pool`.
    fn pass_on(&mut self, tx: SimTx) -> Result<(), &'static str> {
        if self.behind == 0 {
            return self.add(tx);
        }
        if tx.nonce < latest(self.view()) {
            return Err("nonce too low: next nonce 1, tx nonce 0");
        }
        if let Some(pool) = &mut self.lagging_pool {
            pool.insert(tx.nonce);
        }
        // Ignore the result: the endpoint does not report that another pool refuses the
        // transaction.
        let _ = self.add(tx);
        Ok(())
    }

    /// Blocks known to the responding endpoint.
    fn view(&self) -> &[Vec<SimTx>] {
        let known = self.blocks.len().saturating_sub(self.behind).max(1);
        &self.blocks[..known]
    }

    /// Adds a transaction to the pool, by geth's rules.
    fn add(&mut self, tx: SimTx) -> Result<(), &'static str> {
        if tx.nonce < self.latest() {
            return Err("nonce too low: next nonce 1, tx nonce 0");
        }
        if self.pool.values().any(|other| other.class != tx.class) {
            return Err("address already reserved");
        }
        if let Some(old) = self.pool.get(&tx.nonce) {
            if old.hash == tx.hash {
                return Err("already known");
            }
            let percent = if tx.class == TxClass::Blob { 200 } else { 110 };
            let is_more = |old: u128, new: u128| new * 100 >= old * percent && new > old;
            let blob = is_more(
                old.caps.blob_fee.unwrap_or(1),
                tx.caps.blob_fee.unwrap_or(10),
            );
            if !is_more(old.caps.tip, tx.caps.tip) || !is_more(old.caps.fee, tx.caps.fee) || !blob {
                return Err("replacement transaction underpriced");
            }
        } else if tx.class == TxClass::Blob && tx.nonce > self.pending() {
            return Err("nonce too high: tx nonce 2, gapped nonce 0");
        }
        self.pool.insert(tx.nonce, tx);
        Ok(())
    }

    pub fn mine(&mut self) {
        let mut block = vec![];
        let mut nonce = self.latest();
        let pays = |tx: &&SimTx| {
            let blob_fee = tx.caps.blob_fee.unwrap_or(u128::MAX);
            tx.caps.fee >= self.base_fee && blob_fee >= self.blob_base_fee
        };
        let pools = [&self.elsewhere, &self.pool];
        let of = |nonce| pools.iter().filter_map(move |pool| pool.get(&nonce));
        while let Some(tx) = of(nonce).find(pays).filter(|_| !self.stuck) {
            block.push(tx.clone());
            nonce += 1;
        }
        self.blocks.push(block);
        let latest = self.latest();
        self.pool.retain(|nonce, _| *nonce >= latest);
        self.elsewhere.retain(|nonce, _| *nonce >= latest);
    }

    /// Restarts the endpoint with an empty pool. Other nodes keep its transactions.
    pub fn lose_pool(&mut self) {
        self.elsewhere.append(&mut self.pool);
    }

    /// Replaces the last `depth` blocks by one more empty ones. With `reinjects`, the removed
    /// transactions return to the pool.
    pub fn reorg(&mut self, depth: usize, reinjects: bool) {
        let at = self.blocks.len().saturating_sub(depth);
        let removed = self.blocks.split_off(at);
        for tx in removed.into_iter().flatten().filter(|_| reinjects) {
            if self.pool.values().all(|other| other.class == tx.class) {
                self.pool.entry(tx.nonce).or_insert(tx);
            }
        }
        self.blocks.extend(vec![vec![]; depth + 1]);
    }

    pub fn reading(
        &self,
        deep_block: Option<u64>,
        with_age: bool,
        hashes: &[B256],
    ) -> Result<AccountReading, String> {
        if !self.reachable {
            return Err("away".into());
        }
        let view = self.view();
        Ok(AccountReading {
            head: view.len() as u64 - 1,
            latest: latest(view),
            // An endpoint that is behind without a pool of its own still has the newest blocks'
            // transactions pending.
            pending: match &self.lagging_pool {
                Some(pool) if self.behind > 0 => {
                    next_in(latest(view), |nonce| pool.contains(nonce))
                }
                _ => self.pending(),
            },
            head_age: with_age.then(|| self.behind as u32 * Duration::from_secs(60)),
            deep_nonce: deep_block.map(|block| latest(&view[..view.len().min(block as usize + 1)])),
            receipts: hashes
                .iter()
                .filter(|_| !self.receipts_fail)
                .map(|hash| (*hash, self.mined(*hash)))
                .collect(),
        })
    }

    fn mined(&self, hash: B256) -> Option<MinedTx> {
        let view = self.view();
        let known = view.len().saturating_sub(self.receipts_behind);
        let numbered = (0u64..).zip(&view[..known]);
        let has = |block: &[SimTx]| block.iter().any(|tx| tx.hash == hash);
        let (block, _) = numbered.into_iter().find(|(_, block)| has(block))?;
        Some(MinedTx {
            hash,
            block,
            block_hash: B256::ZERO,
            success: true,
            gas_used: 21_000,
            gas_price: 1,
            blob_gas_used: 0,
            blob_gas_price: 0,
            delay: Duration::ZERO,
        })
    }

    /// Adds a transaction to the pool that this machine has not signed.
    pub fn foreign(&mut self, nonce: u64, class: TxClass) {
        let caps = FeeCaps {
            tip: 5_000_000_000,
            fee: 9_000_000_000,
            blob_fee: (class == TxClass::Blob).then_some(3_000_000_000),
        };
        let tx = SimTx::new(nonce, FOREIGN, class, caps);
        self.pool.insert(nonce, tx);
    }

    pub fn latest(&self) -> u64 {
        latest(&self.blocks)
    }

    pub fn pending(&self) -> u64 {
        next_in(self.latest(), |nonce| self.pool.contains_key(nonce))
    }

    pub fn pool_data(&self) -> Vec<u64> {
        self.pool.values().map(|tx| tx.data).collect()
    }

    pub fn chain_data(&self) -> Vec<u64> {
        self.blocks.iter().flatten().map(|tx| tx.data).collect()
    }

    pub fn chain_hashes(&self) -> BTreeSet<B256> {
        self.blocks.iter().flatten().map(|tx| tx.hash).collect()
    }

    pub fn said(&self, text: &str) -> bool {
        self.log.iter().any(|line| line.contains(text))
    }
}

/// The first unused nonce from `nonce` on.
fn next_in(nonce: u64, is_used: impl Fn(&u64) -> bool) -> u64 {
    (nonce..).find(|nonce| !is_used(nonce)).unwrap_or(nonce)
}

/// The account's next nonce after these blocks.
fn latest(blocks: &[Vec<SimTx>]) -> u64 {
    blocks.iter().map(|block| block.len() as u64).sum()
}
