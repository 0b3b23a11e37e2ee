//! Random sequences of events: lost and late responses, refusals, reorgs, pools that drop
//! transactions, sudden fee changes, endpoints that disagree, an endpoint that is behind with an
//! empty pool, an hour without L1, restarts with and without a proper close, and in some sequences
//! a second process with the same key. Afterwards L1 is healthy, and every request must be
//! confirmed. `STARLING_SCENARIOS` sets the number of sequences.
//!
//! In every sequence, these rules hold. A request finishes once. A request succeeds only if a
//! transaction with its own data was mined. The requests of one process and class reach L1 in their
//! order. At the end, every successful transaction is on L1, where a nonce has one transaction.
//! Every piece of data succeeds once. Without a second process the machine never stops.

use super::world::World;
use super::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::BTreeSet;

/// Number of sequences in an ordinary run.
const SEEDS: u64 = 10_000;
/// Number of pieces of data to bring onto L1.
const PIECES: u64 = 6;
/// Number of pieces: enough to last until a second process is detected.
const MANY: u64 = 400;
/// Number of steps with faults, and of healthy steps within which everything must be done.
const FAULTY: u32 = 60;
const HEALTHY: u32 = 400;

/// A caller that repeats a failed piece as a new request, as batcher and proposer do.
struct Course {
    world: World,
    rng: StdRng,
    /// Piece of data of each request in flight.
    pieces: BTreeMap<u64, u64>,
    /// Pieces to submit, in order.
    waiting: VecDeque<u64>,
    /// Transaction class of each piece.
    classes: Vec<TxClass>,
    in_flight: usize,
    /// Delayed events, delivered at the next step.
    late: Vec<SendEvent>,
    /// Number of blocks that one of two endpoints lacks. Each call goes to a random one of the two.
    apart: usize,
    /// Number of blocks that the only endpoint lacks; shrinks with each step.
    catching_up: usize,
    /// Whether a second process has the same key.
    contested: bool,
    /// Whether the process is closing.
    closing: bool,
    /// Nonce and class of each request that this process has confirmed.
    nonces: BTreeMap<SendId, (u64, TxClass)>,
    /// Hash of the confirmed transaction of each piece.
    confirmed: BTreeMap<u64, B256>,
    restarts: u32,
    stopped: bool,
}

impl Course {
    fn new(seed: u64, pieces: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut settings = settings();
        settings.rules.confirmations = rng.random_range(1..5);
        settings.rules.max_retries = rng.random_range(0..4);
        if rng.random_bool(0.2) {
            settings.rules.send_timeout = Duration::from_secs(rng.random_range(20..60));
        }
        let mixed = rng.random_bool(0.5);
        let class = |_| match rng.random_range(0..2) {
            0 if mixed => TxClass::Blob,
            _ => TxClass::Calldata,
        };
        let classes = (0..=pieces).map(class).collect();
        let (in_flight, contested) = (rng.random_range(1..4), rng.random_bool(0.05));
        Self {
            classes,
            in_flight,
            world: World::new(settings),
            rng,
            pieces: BTreeMap::new(),
            waiting: (1..=pieces).collect(),
            late: Vec::new(),
            apart: 0,
            catching_up: 0,
            contested,
            closing: false,
            nonces: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            restarts: 0,
            stopped: false,
        }
    }

    fn event(&mut self, event: SendEvent, faulty: bool) {
        let mut events = VecDeque::from([event]);
        let mut steps = 0;
        while let Some(event) = events.pop_front() {
            steps += 1;
            assert!(steps < 3000, "the machine spins");
            for action in self.world.machine.handle(event, self.world.now) {
                let Some(answer) = self.answer(action, faulty) else {
                    continue;
                };
                if faulty && self.rng.random_bool(0.3) {
                    self.late.push(answer);
                } else {
                    events.push_back(answer);
                }
            }
        }
    }

    fn answer(&mut self, action: SendAction, faulty: bool) -> Option<SendEvent> {
        let fault = faulty && self.rng.random_bool(0.15);
        let is_behind = self.apart > 0 && self.rng.random_bool(0.5);
        let apart = if is_behind { self.apart } else { 0 };
        self.world.behind = apart.max(self.catching_up);
        let lost = || "no answer in time".to_owned();
        match action {
            SendAction::ReadFees { op } if fault => Some(SendEvent::Fees {
                op,
                fees: Err(lost()),
            }),
            SendAction::Sign { op, .. } if fault => Some(SendEvent::Signed {
                op,
                signed: Err(lost()),
            }),
            SendAction::Poll { op, .. } if fault => Some(SendEvent::Polled {
                op,
                reading: Err(lost()),
            }),
            SendAction::Publish { op, tx, .. } if fault => {
                let answer = match self.rng.random_range(0..3) {
                    0 => {
                        self.world.publish(tx.hash);
                        PublishResult::Unreachable(lost())
                    }
                    1 => PublishResult::Unreachable(lost()),
                    _ => PublishResult::Refused("txpool is full".into()),
                };
                Some(SendEvent::Published { op, answer })
            }
            SendAction::Finished { id, result } => {
                self.finished(id, result);
                None
            }
            SendAction::Stopped(sentence) => {
                let log = &self.world.log;
                assert!(self.contested, "no second process: {sentence}: {log:?}");
                self.stopped = true;
                None
            }
            action => self.world.act(action),
        }
    }

    fn finished(&mut self, id: SendId, result: Result<MinedTx, SendFailure>) {
        let piece = self.pieces.remove(&id).expect("a request in flight");
        let Ok(mined) = result else {
            return self.waiting.push_front(piece);
        };
        let tx = &self.world.signed[&mined.hash];
        assert_eq!(tx.data, id, "another request's transaction counts");
        let (nonce, class) = (tx.nonce, tx.class);
        // Requests of different classes may be out of order: after a reorg, a transaction of the
        // other class may block an earlier request.
        let in_order = |(other, (at, of)): (&SendId, &(u64, TxClass))| {
            *of != class || (*other < id) == (*at < nonce)
        };
        let is_in_order = self.nonces.iter().all(in_order);
        let log = &self.world.log;
        assert!(is_in_order, "{id} at {nonce}: {:?}, {log:?}", self.nonces);
        self.nonces.insert(id, (nonce, class));
        assert!(self.confirmed.insert(piece, mined.hash).is_none());
    }

    /// Makes L1 unreachable for an hour, and delivers a tick at each wakeup time.
    fn wait_an_hour(&mut self) {
        let back = self.world.now + Duration::from_secs(3_600);
        let was_reachable = std::mem::replace(&mut self.world.reachable, false);
        let mut steps = 0;
        while let Some(next) = self.world.machine.wakeup().filter(|next| *next < back) {
            self.world.now = next.max(self.world.now + MIN_PAUSE);
            self.event(SendEvent::Tick, false);
            steps += 1;
            assert!(steps < 40_000, "the machine waits busily");
        }
        self.world.now = back;
        self.world.reachable = was_reachable;
    }

    /// Mines a transaction of the second process with the next nonce.
    fn contest(&mut self) {
        let nonce = self.world.latest();
        let class = self
            .world
            .pool
            .values()
            .next()
            .map_or(TxClass::Calldata, |tx| tx.class);
        self.world.foreign(nonce, class);
        self.world.mine();
    }

    /// Injects a random fault or mines a block.
    fn disturb(&mut self) {
        let confirmations = self.world.machine.settings().rules.confirmations as usize;
        match self.rng.random_range(0..20) {
            0 if confirmations > 1 => {
                let (depth, reinjects) = (
                    self.rng.random_range(1..confirmations),
                    self.rng.random_bool(0.5),
                );
                self.world.reorg(depth, reinjects);
            }
            1 => self.world.pool.clear(),
            10 => self.world.lose_pool(),
            11 if self.rng.random_bool(0.5) => self.restart_with_l1(),
            2 => {
                self.world.base_fee = 1 << self.rng.random_range(0..36);
                self.world.blob_base_fee = 1 << self.rng.random_range(0..36);
            }
            3 => self.world.stuck = !self.world.stuck,
            4 => self.world.reachable = !self.world.reachable,
            5 if self.rng.random_bool(0.5) => self.restart(),
            6 => {
                self.apart = self.rng.random_range(0..4);
                let has_own_pool = self.rng.random_bool(0.5);
                self.world.lagging_pool = has_own_pool.then(BTreeSet::new);
            }
            7 if self.rng.random_bool(0.05) => self.wait_an_hour(),
            8 if self.rng.random_bool(0.1) => {
                self.closing = true;
                self.event(SendEvent::Close, true);
            }
            9 if self.contested && self.rng.random_bool(0.3) => self.contest(),
            _ => self.world.mine(),
        }
    }

    /// Restarts the process without a close. Every piece that is not confirmed must be sent again.
    fn restart(&mut self) {
        self.restarts += 1;
        let settings = self.world.machine.settings().clone();
        self.world.machine = SendMachine::new(ACCOUNT, settings, self.world.now);
        self.late.clear();
        self.nonces.clear();
        self.closing = false;
        let lost: BTreeSet<u64> = std::mem::take(&mut self.pieces).into_values().collect();
        let waiting: BTreeSet<u64> = self.waiting.drain(..).collect();
        self.waiting = lost.union(&waiting).copied().collect();
    }

    /// Restarts process and endpoint. The endpoint has an older head, and its pool is empty.
    fn restart_with_l1(&mut self) {
        self.catching_up = self.rng.random_range(1..12);
        self.world.lose_pool();
        self.world.lagging_pool = Some(BTreeSet::new());
        self.restart();
    }

    fn hand_over(&mut self, faulty: bool) {
        while !self.stopped
            && !self.closing
            && self.pieces.len() < self.in_flight
            && let Some(piece) = self.waiting.pop_front()
        {
            self.world.last_id += 1;
            let id = self.world.last_id;
            self.pieces.insert(id, piece);
            let class = self.classes[piece as usize];
            self.event(SendEvent::Submit { id, class }, faulty);
        }
    }

    fn step(&mut self, faulty: bool) {
        let pause = self.rng.random_range(200..2500);
        self.world.now += Duration::from_millis(pause);
        if faulty {
            self.disturb();
        } else {
            self.world.mine();
        }
        self.catching_up = self.catching_up.saturating_sub(self.rng.random_range(0..3));
        // The operator has ended the second process and starts this one again.
        if std::mem::take(&mut self.stopped) {
            self.restart();
        }
        // After a close, no request is left in the pool: the next process starts.
        if self.closing && self.pieces.is_empty() {
            self.restart();
        }
        self.hand_over(faulty);
        for answer in std::mem::take(&mut self.late) {
            self.event(answer, faulty);
        }
        self.event(SendEvent::Tick, faulty);
    }

    fn limit_fees(&mut self, highest: u128) {
        let world = &mut self.world;
        world.base_fee = world.base_fee.min(highest);
        world.blob_base_fee = world.blob_base_fee.min(highest);
    }

    fn run(mut self) -> Result<(), String> {
        for _ in 0..FAULTY {
            self.step(true);
        }
        self.world.stuck = false;
        self.world.reachable = true;
        self.limit_fees(50_000_000_000);
        // Endpoints behind a load balancer may still differ by one block.
        self.apart = self.apart.min(1);
        for step in 0..HEALTHY {
            // Transactions left in the pool by another process may pay too little, with one cap so
            // high that the fee limit forbids a replacement. They are mined once fees fall.
            if step == HEALTHY / 2 && (self.restarts > 0 || self.contested) {
                self.limit_fees(1_000_000_000);
            }
            self.step(false);
            if self.confirmed.len() as u64 == PIECES {
                break;
            }
        }
        let chain = self.world.chain_hashes();
        let gone: Vec<_> = self
            .confirmed
            .iter()
            .filter(|(_, hash)| !chain.contains(*hash))
            .collect();
        if !gone.is_empty() {
            return Err(format!("confirmed, and not on L1: {gone:?}"));
        }
        if (self.confirmed.len() as u64) < PIECES {
            let open: Vec<_> = self.pieces.values().chain(&self.waiting).collect();
            return Err(format!(
                "never confirmed: {open:?}; pool {:?}; {:?}",
                self.world.pool,
                self.world.log.iter().rev().take(12).collect::<Vec<_>>()
            ));
        }
        Ok(())
    }

    /// Number of steps until the transactions of a second process make the machine stop.
    fn run_contested(mut self) -> Option<u32> {
        self.contested = true;
        (0..HEALTHY).find(|_| {
            self.step(false);
            if self.rng.random_bool(0.3) {
                self.contest();
            }
            self.stopped
        })
    }
}

#[test]
fn nothing_is_lost_and_no_nonce_counts_twice_in_any_course_of_events() {
    let given = std::env::var("STARLING_SCENARIOS").ok();
    let seeds = given.and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    for seed in 0..seeds {
        if let Err(reason) = Course::new(seed, PIECES).run() {
            panic!("seed {seed}: {reason}");
        }
    }
}

#[test]
fn a_second_process_that_is_busy_is_found_in_every_course() {
    for seed in 0..SEEDS / 20 {
        let found = Course::new(seed, MANY).run_contested();
        assert!(found.is_some(), "seed {seed}");
    }
}
