//! Heavy calls: they run on threads of the blocking pool, in time slices that a [`Scheduler`] grants.
//!
//! The Engine API port has permits of its own, so that no public client delays the rollup node. A running call checks its [`Deadline`]
//! every few milliseconds. If its slice has ended, the check blocks the thread until the scheduler grants a permit again. The number of
//! such threads is bounded by [`Capacity::started`]; a call beyond it is aborted and restarted later.

use super::{
    error::Reply,
    frame::crashed,
    schedule::{CallId, Capacity, Client, Scheduler, Verdict},
};
use crate::chain::evm::{Deadline, StateError};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};
use tokio::{sync::Notify, time::timeout};

/// Maximum number of started calls on the public ports, and on the Engine API port. A paused call keeps its memory: some 20 MB of logs or
/// of state it has read.
const STARTED: usize = 16;

/// The permits of heavy calls.
pub struct Heavy {
    public: Arc<Turns>,
    engine: Arc<Turns>,
}

impl Heavy {
    /// As many permits as `permits` for the public ports, and as many for the Engine API port.
    pub fn new(permits: usize) -> Self {
        let turns = || {
            Arc::new(Turns::new(Capacity {
                permits,
                started: STARTED,
            }))
        };
        Self {
            public: turns(),
            engine: turns(),
        }
    }

    pub(super) fn turns(&self, client: Client) -> &Arc<Turns> {
        match client {
            Client::RollupNode(_) => &self.engine,
            Client::Address(_) | Client::Connection(_) => &self.public,
        }
    }

    /// Runs `work`, which may be restarted. When `deadline` passes, the caller gets an error. The work sees the deadline pass then, and
    /// also when the caller is gone.
    pub async fn run<W>(
        &self,
        name: &'static str,
        client: Client,
        deadline: Deadline,
        work: W,
    ) -> Reply
    where
        W: Fn(&Deadline) -> Reply + Send + 'static,
    {
        let call = Call::enter(self.turns(client).clone(), client);
        // Dropped after `_waiting`: a paused thread that wakes must see that nobody waits.
        let _wake = Wake(call.slot.clone());
        let _waiting = deadline.waiting();
        let limit = deadline.limit();
        let late = |_| Err(StateError::Aborted(limit).into());
        timeout(limit, attempts(name, call, deadline, work))
            .await
            .unwrap_or_else(late)
    }
}

async fn attempts<W>(name: &'static str, mut call: Call, deadline: Deadline, mut work: W) -> Reply
where
    W: Fn(&Deadline) -> Reply + Send + 'static,
{
    loop {
        call.slot.granted().await;
        let attempt = Arc::new(Attempt {
            id: call.id,
            turns: call.turns.clone(),
            slot: call.slot.clone(),
            over: AtomicBool::new(false),
        });
        let turns = deadline.clone().in_slices({
            let attempt = attempt.clone();
            Arc::new(move |deadline, now| attempt.look(deadline, now))
        });
        let running = tokio::task::spawn_blocking(move || (work(&turns), call, work));
        let Ok((reply, same_call, same_work)) = running.await else {
            return Err(crashed(name));
        };
        (call, work) = (same_call, same_work);
        if reply.is_ok() || !attempt.over.load(Ordering::Relaxed) {
            return reply;
        }
    }
}

/// A scheduler and the slots of its calls.
pub(super) struct Turns {
    state: Mutex<State>,
}

struct State {
    scheduler: Scheduler,
    slots: HashMap<CallId, Arc<Slot>>,
}

impl Turns {
    fn new(capacity: Capacity) -> Self {
        Self {
            state: Mutex::new(State {
                scheduler: Scheduler::new(capacity),
                slots: HashMap::new(),
            }),
        }
    }

    /// Permits that are free.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.state.lock().scheduler.free()
    }
}

impl State {
    /// Starts and wakes the calls that can run now.
    fn grant(&mut self, now: Instant) {
        while let Some((id, slice)) = self.scheduler.grant(now) {
            if let Some(slot) = self.slots.get(&id) {
                slot.set(CallState::Running(now + slice));
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallState {
    Waiting,
    /// Runs until the end of its slice.
    Running(Instant),
}

/// State of a call. A call waits for a permit as a task before it has a thread, and as a thread while it is paused.
struct Slot {
    turn: Mutex<CallState>,
    changed: Condvar,
    task: Notify,
}

impl Slot {
    fn set(&self, turn: CallState) {
        *self.turn.lock() = turn;
        self.wake();
    }

    fn wake(&self) {
        self.changed.notify_one();
        self.task.notify_one();
    }

    async fn granted(&self) {
        while *self.turn.lock() == CallState::Waiting {
            self.task.notified().await;
        }
    }

    /// Blocks until the call is granted a permit or its deadline has passed.
    fn wait(&self, deadline: &Deadline) {
        let mut turn = self.turn.lock();
        while *turn == CallState::Waiting && !deadline.passed() {
            self.changed.wait_until(&mut turn, deadline.at());
        }
    }
}

/// Wakes a paused thread when its caller has gone.
struct Wake(Arc<Slot>);

impl Drop for Wake {
    fn drop(&mut self) {
        // With the lock held, a paused thread either has not checked the deadline yet or is already waiting, so no wake-up is lost.
        let _turn = self.0.turn.lock();
        self.0.wake();
    }
}

/// Registration of a call with the scheduler, until dropped.
struct Call {
    id: CallId,
    turns: Arc<Turns>,
    slot: Arc<Slot>,
}

impl Call {
    fn enter(turns: Arc<Turns>, client: Client) -> Self {
        let slot = Arc::new(Slot {
            turn: Mutex::new(CallState::Waiting),
            changed: Condvar::new(),
            task: Notify::new(),
        });
        let mut state = turns.state.lock();
        let id = state.scheduler.enter(client);
        state.slots.insert(id, slot.clone());
        state.grant(Instant::now());
        drop(state);
        Self { id, turns, slot }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.turns.state.lock();
        state.slots.remove(&self.id);
        state.scheduler.leave(self.id, now);
        state.grant(now);
    }
}

/// One run of a call's work.
struct Attempt {
    id: CallId,
    turns: Arc<Turns>,
    slot: Arc<Slot>,
    /// Whether this attempt was aborted so that the call is restarted.
    over: AtomicBool,
}

impl Attempt {
    /// Ends the slice if its time is over, and then waits for the next one. Returns false if the attempt is to end.
    fn look(&self, deadline: &Deadline, now: Instant) -> bool {
        if self.over.load(Ordering::Relaxed) {
            return false;
        }
        match *self.slot.turn.lock() {
            CallState::Running(end) if now >= end => {}
            _ => return true,
        }
        let mut state = self.turns.state.lock();
        let verdict = state.scheduler.end_slice(self.id, now);
        match verdict {
            Verdict::Continue(slice) => {
                *self.slot.turn.lock() = CallState::Running(now + slice);
                return true;
            }
            Verdict::Pause => {}
            Verdict::Defer => self.over.store(true, Ordering::Relaxed),
        }
        *self.slot.turn.lock() = CallState::Waiting;
        state.grant(now);
        drop(state);
        if verdict == Verdict::Pause {
            self.slot.wait(deadline);
        }
        verdict == Verdict::Pause
    }
}

#[cfg(test)]
mod tests;
