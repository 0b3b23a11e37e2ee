//! The sequencer of a node: the production schedule and the production choice between a new block
//! and one that may be signed already. Logging, signing, publishing and moving the head are steps
//! of their own, so that a crash may come between any two of them.

use super::{LiveNode, key_address};
use crate::sim::{
    checks::origin_of,
    context::{BLOCK_TIME, SimContext},
    l1::SimL1,
    planted::PlantedBug,
    queue::{MILLISECOND, SimTime},
};
use alloy_consensus::Header;
use alloy_primitives::B256;
use rand::Rng;
use starling_proto::{
    attributes::L1Block,
    payload::{BlockId, Payload},
    schedule::{Schedule, ScheduleAction, ScheduleConfig, SequencerHead, StepFailure},
    signed_before::{NextL1, SignGuard, SigningChoice, choose},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Number of failed checks of the head's origin, a second apart, before the head is rewound.
const ORIGIN_FAILURES: u32 = 3;
/// Time of each step of a sealed block.
const STEP: SimTime = 4 * MILLISECOND;

/// The height and parent of a signed block.
type GuardKey = (u64, B256);

/// The guard rows of a node, and those of them that a loss of power takes back.
#[derive(Default)]
pub struct GuardLog {
    /// Rows in the order of signing.
    rows: BTreeMap<GuardKey, Vec<SignGuard>>,
    /// The keys of the rows that are not durable yet, in the order of signing.
    unsynced: Vec<GuardKey>,
}

impl GuardLog {
    pub fn sync(&mut self) {
        self.unsynced.clear();
    }

    pub fn lose_unsynced(&mut self) {
        for key in self.unsynced.drain(..) {
            if let Some(rows) = self.rows.get_mut(&key) {
                rows.pop();
            }
        }
    }

    /// Records a block that will be signed; `false` if another block of the same height, parent and
    /// L1 origin is recorded.
    fn record(&mut self, block: &Payload) -> bool {
        let key = (block.number(), block.parent_hash());
        let rows = self.rows.entry(key).or_default();
        let l1_origin = origin_of(block);
        if let Some(guard) = rows.iter().find(|guard| guard.l1_origin == l1_origin) {
            return guard.hash == block.hash;
        }
        rows.push(SignGuard {
            l1_origin,
            hash: block.hash,
            sent_order: rows.len() as u64,
        });
        self.unsynced.push(key);
        true
    }

    fn of(&self, parent: BlockId) -> Vec<SignGuard> {
        let rows = self.rows.get(&(parent.number + 1, parent.hash));
        rows.cloned().unwrap_or_default()
    }
}

/// The step that a sealed block waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SealStep {
    Log,
    Sign,
    Publish,
    MoveHead,
}

impl SealStep {
    /// The step after this one. `swapped` publishes before it signs, which is a planted bug.
    fn next(self, swapped: bool) -> Self {
        let (second, third) = if swapped {
            (SealStep::Publish, SealStep::Sign)
        } else {
            (SealStep::Sign, SealStep::Publish)
        };
        if self == SealStep::Log {
            second
        } else if self == second {
            third
        } else {
            SealStep::MoveHead
        }
    }
}

struct SealedBlock {
    block: Arc<Payload>,
    step: SealStep,
    at: SimTime,
}

enum SimOpenBlock {
    Build {
        parent: Arc<Payload>,
        origin: Box<L1Block>,
    },
    Resign(Arc<Payload>),
}

/// The sequencer's state.
pub struct SimSequencer {
    key: u8,
    schedule: Schedule,
    open: Option<SimOpenBlock>,
    sealed: Option<SealedBlock>,
    origin_failures: u32,
}

impl SimSequencer {
    pub fn new(key: u8) -> Self {
        let config = ScheduleConfig {
            block_time: Duration::from_secs(BLOCK_TIME),
            sealing: Duration::from_millis(50),
            max_safe_lag: 0,
        };
        Self {
            key,
            schedule: Schedule::new(config, true),
            open: None,
            sealed: None,
            origin_failures: 0,
        }
    }
}

/// A block on `parent` with this L1 origin; `salt` distinguishes blocks that are otherwise equal.
pub fn block_on(parent: &Payload, origin: B256, salt: B256) -> Payload {
    let header = Header {
        parent_hash: parent.hash,
        number: parent.number() + 1,
        timestamp: parent.timestamp() + BLOCK_TIME,
        state_root: salt,
        gas_limit: 30_000_000,
        base_fee_per_gas: Some(7),
        extra_data: origin.to_vec().into(),
        ..Header::default()
    };
    Payload::sealed(header, Vec::new())
}

/// Some microseconds of the system clock, if that bug is planted.
fn clock_bug(context: &SimContext) -> SimTime {
    if !context.has_bug(PlantedBug::ClockRead) {
        return 0;
    }
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    clock.map_or(0, |clock| SimTime::from(clock.subsec_nanos()) % MILLISECOND)
}

impl LiveNode {
    fn sequencer_head(&self) -> SequencerHead {
        let chain = self.chain.lock();
        let heads = chain.heads();
        SequencerHead {
            id: heads.head,
            time: chain.head_time(),
            safe: heads.safe.number,
        }
    }

    /// The time of the sequencer's next step.
    pub(super) fn sequencer_wake(&self, context: &SimContext) -> Option<SimTime> {
        let sequencer = self.sequencer.as_ref()?;
        if let Some(sealed) = &sequencer.sealed {
            return Some(sealed.at);
        }
        let head = self.sequencer_head();
        match sequencer.schedule.next(context.wall(self.me), &head) {
            ScheduleAction::Wait(wait) => wait.map(|wall| context.time_of_wall(self.me, wall)),
            ScheduleAction::Start | ScheduleAction::Seal | ScheduleAction::Drop => {
                Some(context.now)
            }
        }
    }

    /// Does the sequencer's steps that are due.
    pub(super) fn sequence(&mut self, context: &mut SimContext) {
        loop {
            let head = match &self.sequencer {
                None => return,
                Some(sequencer) if sequencer.sealed.is_some() => return self.sealed_step(context),
                Some(_) => self.sequencer_head(),
            };
            let Some(sequencer) = &mut self.sequencer else {
                return;
            };
            match sequencer.schedule.next(context.wall(self.me), &head) {
                ScheduleAction::Wait(_) => return,
                ScheduleAction::Drop => {
                    sequencer.open = None;
                    sequencer.schedule.closed();
                }
                ScheduleAction::Start => self.start_block(context),
                ScheduleAction::Seal => self.seal(context),
            }
        }
    }

    fn start_block(&mut self, context: &mut SimContext) {
        let parent = self.head_block();
        let opened = parent.and_then(|parent| Some((self.open_block(&parent, context)?, parent)));
        let wall = context.wall(self.me);
        let Some(sequencer) = &mut self.sequencer else {
            return;
        };
        match opened {
            Some((open, parent)) => {
                let time = parent.timestamp() + BLOCK_TIME;
                sequencer.schedule.started(parent.id(), time);
                sequencer.open = Some(open);
            }
            None => sequencer.schedule.failed(wall, StepFailure::Temporary),
        }
    }

    /// Chooses the next block; `None` if the step failed.
    fn open_block(
        &mut self,
        parent: &Arc<Payload>,
        context: &mut SimContext,
    ) -> Option<SimOpenBlock> {
        if !context.l1.reachable || !self.check_origin(parent, context) {
            return None;
        }
        let epoch = context.origin_of(parent);
        let mut guards = self.guards_of(parent.id());
        if context.has_bug(PlantedBug::GuardIgnored) {
            guards.clear();
        }
        let mut next = NextL1::NotFetched;
        loop {
            match choose(&guards, epoch, next) {
                SigningChoice::Build => break,
                SigningChoice::Resign(hash) => {
                    let block = self.logged_block(&hash)?;
                    return Some(SimOpenBlock::Resign(block));
                }
                SigningChoice::OriginUnknown(_) => return None,
                SigningChoice::FetchNext => {
                    let after = context.l1.after(&epoch, 0, context.now);
                    next = after.map_or(NextL1::Missing, NextL1::Known);
                }
            }
        }
        let time = parent.timestamp() + BLOCK_TIME;
        let newer = context
            .l1
            .after(&epoch, context.plan.confirmations, context.now)
            .filter(|hash| context.l1.block(SimL1::number(hash)).time <= time);
        let origin = context.l1.block(SimL1::number(&newer.unwrap_or(epoch)));
        Some(SimOpenBlock::Build {
            parent: parent.clone(),
            origin: Box::new(origin),
        })
    }

    /// Whether L1 has the parent's origin. If it has not several times in a row, rewinds the head.
    fn check_origin(&mut self, parent: &Payload, context: &mut SimContext) -> bool {
        let Some(sequencer) = &mut self.sequencer else {
            return false;
        };
        let is_known = |block: &Payload| {
            let origin = origin_of(block);
            block.number() == 0 || context.l1.is_canonical(&origin, context.now)
        };
        if is_known(parent) {
            sequencer.origin_failures = 0;
            return true;
        }
        sequencer.origin_failures += 1;
        if sequencer.origin_failures >= ORIGIN_FAILURES {
            sequencer.origin_failures = 0;
            let mut chain = self.chain.lock();
            let mut number = chain.heads().head.number;
            while number > chain.heads().safe.number
                && chain.at(number).is_some_and(|block| !is_known(&block))
            {
                number -= 1;
            }
            if let Some(block) = chain.at(number).map(|block| block.id()) {
                chain.set_head(block);
            }
            drop(chain);
            let text = format_args!("rewinds to {number}");
            context.history.note(context.now, self.me, text);
            self.report_heads(context);
        }
        false
    }

    fn seal(&mut self, context: &mut SimContext) {
        let salt: B256 = context.dice.random::<[u8; 32]>().into();
        if context.has_bug(PlantedBug::ExtraDraw) {
            context.dice.random::<u64>();
        }
        let at = context.now + STEP + clock_bug(context);
        let Some(sequencer) = &mut self.sequencer else {
            return;
        };
        let block = match sequencer.open.take() {
            Some(SimOpenBlock::Resign(block)) => block,
            Some(SimOpenBlock::Build { parent, origin }) => {
                let mut parent = parent;
                if context.has_bug(PlantedBug::WrongParentSealed) {
                    let below = self.chain.lock().get(&parent.parent_hash());
                    parent = below.unwrap_or(parent);
                }
                match context.build_on(&self.chain, &parent, &origin, salt) {
                    Some(block) => block,
                    None => return sequencer.schedule.closed(),
                }
            }
            None => return sequencer.schedule.closed(),
        };
        let step = SealStep::Log;
        sequencer.sealed = Some(SealedBlock { block, step, at });
    }

    /// The next step of a sealed block, in the order of the sequencer: log, sign, publish, move the
    /// head.
    fn sealed_step(&mut self, context: &mut SimContext) {
        let Some(sequencer) = &mut self.sequencer else {
            return;
        };
        let Some(sealed) = sequencer.sealed.as_mut().filter(|it| it.at <= context.now) else {
            return;
        };
        sealed.at = context.now + STEP;
        let (block, step, signer) = (
            sealed.block.clone(),
            sealed.step,
            key_address(sequencer.key),
        );
        sealed.step = step.next(context.has_bug(PlantedBug::PublishedBeforeSigned));
        if step == SealStep::MoveHead {
            sequencer.sealed = None;
            sequencer.schedule.closed();
        }
        match step {
            SealStep::Log => self.log_block(&block, context),
            SealStep::Sign => {
                let moment = (context.now, self.me);
                let text = format_args!("signs {}", block.id());
                context.history.note(context.now, self.me, text);
                context
                    .checks
                    .on_signed(moment, signer, &block, &context.l1);
            }
            SealStep::Publish => {
                context.checks.on_published(context.now, self.me, &block);
                self.publish(signer, &block, context);
            }
            SealStep::MoveHead => {
                let mut chain = self.chain.lock();
                // Derivation or an imported block may have moved the head meanwhile.
                if chain.heads().head.hash == block.parent_hash() {
                    chain.set_head(block.id());
                }
                drop(chain);
                self.report_heads(context);
            }
        }
    }

    fn log_block(&mut self, block: &Arc<Payload>, context: &mut SimContext) {
        if !self.record_guard(block, context) {
            let wall = context.wall(self.me);
            if let Some(sequencer) = &mut self.sequencer {
                sequencer.sealed = None;
                sequencer.schedule.failed(wall, StepFailure::Temporary);
            }
        }
    }

    /// Records a block that will be signed, and makes the record durable; `false` if another block
    /// may be signed.
    fn record_guard(&self, block: &Arc<Payload>, context: &SimContext) -> bool {
        let is_ignored = context.has_bug(PlantedBug::GuardIgnored);
        let is_synced = !context.has_bug(PlantedBug::GuardNotSynced);
        let mut chain = self.chain.lock();
        if let Some(real) = chain.real() {
            if is_synced {
                return real.log_before_sign(block, origin_of(block)) || is_ignored;
            }
            real.log_unguarded(block);
            return true;
        }
        if !self.guards.lock().record(block) && !is_ignored {
            return false;
        }
        chain.insert(block);
        if is_synced {
            chain.sync();
            self.guards.lock().sync();
        }
        true
    }

    /// The blocks on `parent` that may have been signed.
    fn guards_of(&self, parent: BlockId) -> Vec<SignGuard> {
        match self.chain.lock().real() {
            Some(real) => real.guards(parent),
            None => self.guards.lock().of(parent),
        }
    }

    /// A block that may have been signed, from the payload log of a real chain.
    fn logged_block(&self, hash: &B256) -> Option<Arc<Payload>> {
        let mut chain = self.chain.lock();
        match chain.real() {
            Some(real) => real.logged(*hash),
            None => chain.get(hash),
        }
    }
}
