//! Heavy calls: they run on threads for blocking work, in time slices that a [`Scheduler`] grants.
//!
//! The Engine API port has permits of its own, which public clients cannot use up. The calls of
//! public clients run at low priority ([`LowPriorityThreads`]). A running call checks its
//! [`Deadline`] every few milliseconds. At the end of a slice the call continues if no other call
//! comes before it. Otherwise it pauses inside the check and keeps its thread. If too many calls are
//! started already ([`Capacity::started`]), it is aborted and restarted later.

mod threads;

use super::{
    error::{Reply, RpcError, crashed},
    schedule::{CallId, Capacity, Client, FIRST_SLICE, SLICE, Scheduler, SliceVerdict},
};
use crate::chain::evm::{Deadline, StateError};
use nix::time::{ClockId, clock_gettime};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};
use threads::LowPriorityThreads;
use tokio::{
    sync::{Notify, oneshot},
    time::timeout,
};

/// Maximum started long calls on the public ports; the Engine API port has the same maximum of its
/// own. A paused call keeps its memory: some 20 MB of logs or of state that it has read.
const STARTED: usize = 16;

/// Maximum number of started tracing calls: each may hold tens of megabytes.
const STARTED_TRACES: usize = 8;

/// Message of the error for a call that was ended in favour of another client.
const DISPLACED: &str = "the call was ended, since other clients waited for its place for too long: ask for less at once, or call again";

/// The queues of heavy calls, each with its own permits.
pub struct Heavy {
    public: Arc<CallQueue>,
    /// Queue of all tracing calls.
    traces: Arc<CallQueue>,
    engine: Arc<CallQueue>,
}

impl Heavy {
    /// Gives `permits` permits to the public ports, and as many to the Engine API port. Tracing
    /// calls have half as many in a queue of their own, so that they take no permits of other
    /// calls.
    pub fn new(permits: usize) -> Self {
        let calls = Capacity {
            permits,
            started: STARTED,
        };
        let traces = Capacity {
            permits: (permits / 2).max(1),
            started: STARTED_TRACES,
        };
        let threads = calls.threads() + traces.threads();
        let low = Arc::new(LowPriorityThreads::new(threads));
        let queue = |capacity, threads| Arc::new(CallQueue::new(capacity, threads));
        Self {
            public: queue(calls, CallThreads::LowPriority(low.clone())),
            traces: queue(traces, CallThreads::LowPriority(low)),
            engine: queue(calls, CallThreads::Normal),
        }
    }

    /// Number of started tracing calls, running or paused.
    #[cfg(test)]
    pub fn started_traces(&self) -> usize {
        self.traces.state.lock().scheduler.started()
    }

    pub(super) fn queue(&self, client: Client) -> &Arc<CallQueue> {
        match client {
            Client::RollupNode(_) => &self.engine,
            Client::Address(_) | Client::Connection(_) | Client::Local(_) => &self.public,
        }
    }

    /// Runs `work`, which may be restarted. When `deadline` passes, the caller gets an error. The
    /// work then sees that its deadline has passed; it also sees this when the caller has
    /// disconnected.
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
        let work = move |deadline: &Deadline, _: &StartedCall| work(deadline);
        run_in(self.queue(client), name, client, deadline, work).await
    }

    /// Like [`Heavy::run`], for a tracing call. Once the call is started (see [`StartedCall`]), it
    /// is not restarted any more, and the work may send a part of its result.
    pub async fn trace<T, W>(
        &self,
        name: &'static str,
        client: Client,
        deadline: Deadline,
        work: W,
    ) -> Result<T, RpcError>
    where
        T: Send + 'static,
        W: Fn(&Deadline, &StartedCall) -> Result<T, RpcError> + Send + 'static,
    {
        run_in(&self.traces, name, client, deadline, work).await
    }
}

/// Reports whether a call is among the started calls, which are not restarted.
#[derive(Clone)]
pub(super) struct StartedCall(Arc<Attempt>);

impl StartedCall {
    pub fn is_certain(&self) -> bool {
        self.0.queue.state.lock().scheduler.is_started(self.0.id)
    }

    /// Ends the slice at the next check of the deadline: the call only waits for its reader, and
    /// other calls may run.
    pub fn end_slice(&self) {
        if let CallState::Running(end) = &mut *self.0.slot.state.lock() {
            *end = Instant::now().min(*end);
        }
    }
}

async fn run_in<T, W>(
    queue: &Arc<CallQueue>,
    name: &'static str,
    client: Client,
    deadline: Deadline,
    work: W,
) -> Result<T, RpcError>
where
    T: Send + 'static,
    W: Fn(&Deadline, &StartedCall) -> Result<T, RpcError> + Send + 'static,
{
    let call = ScheduledCall::enter(queue.clone(), client);
    // Declared before `_cancel` and therefore dropped after it: a paused thread that wakes must see
    // that its caller is gone.
    let _wake = Wake(call.slot.clone());
    let _cancel = deadline.cancel_on_drop();
    let limit = deadline.limit();
    let late = |_| Err(StateError::Aborted(limit).into());
    timeout(limit, attempts(name, call, deadline, work))
        .await
        .unwrap_or_else(late)
}

async fn attempts<T, W>(
    name: &'static str,
    mut call: ScheduledCall,
    deadline: Deadline,
    mut work: W,
) -> Result<T, RpcError>
where
    T: Send + 'static,
    W: Fn(&Deadline, &StartedCall) -> Result<T, RpcError> + Send + 'static,
{
    loop {
        call.slot.granted().await;
        let attempt = Arc::new(Attempt {
            id: call.id,
            queue: call.queue.clone(),
            slot: call.slot.clone(),
            over: OnceLock::new(),
            begun: OnceLock::new(),
            charged: Mutex::default(),
            extended: OnceLock::new(),
        });
        let sliced = deadline.clone().with_check_hook({
            let attempt = attempt.clone();
            Arc::new(move |deadline, now| attempt.on_check(deadline, now))
        });
        let same_attempt = attempt.clone();
        let queue = call.queue.clone();
        let running = queue.spawn(move || {
            attempt.begun.get_or_init(thread_time);
            let reply = work(&sliced, &StartedCall(attempt.clone()));
            call.uncharged += attempt.uncharged();
            (reply, call, work)
        });
        let Ok((reply, same_call, same_work)) = running.await else {
            return Err(crashed(name));
        };
        (call, work) = (same_call, same_work);
        match same_attempt.over.get() {
            Some(AttemptEnd::Deferred) if reply.is_err() => {}
            Some(AttemptEnd::Displaced) if reply.is_err() => {
                return Err(RpcError::server(DISPLACED));
            }
            _ => return reply,
        }
    }
}

/// Threads on which the calls of a queue run.
enum CallThreads {
    /// The threads of the runtime for blocking work.
    Normal,
    LowPriority(Arc<LowPriorityThreads>),
}

/// A scheduler and the slots of its calls.
pub(super) struct CallQueue {
    state: Mutex<QueueState>,
    threads: CallThreads,
}

struct QueueState {
    scheduler: Scheduler,
    slots: HashMap<CallId, Arc<Slot>>,
}

impl CallQueue {
    fn new(capacity: Capacity, threads: CallThreads) -> Self {
        Self {
            state: Mutex::new(QueueState {
                scheduler: Scheduler::new(capacity),
                slots: HashMap::new(),
            }),
            threads,
        }
    }

    /// Runs the work of a call on a thread of the queue. The sender of the result is dropped if the
    /// work panics.
    fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, result) = oneshot::channel();
        // A caller that is gone needs no result.
        let job = move || drop(sender.send(work()));
        match &self.threads {
            CallThreads::Normal => drop(tokio::task::spawn_blocking(job)),
            CallThreads::LowPriority(threads) => threads.spawn(Box::new(job)),
        }
        result
    }

    /// Number of free permits.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.state.lock().scheduler.free()
    }
}

impl QueueState {
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
    /// The call runs until the end of its slice, at this moment.
    Running(Instant),
}

/// State of a call, with its wake-ups. A call without a thread waits for its first permit as a task
/// (`task`); a paused call waits in its thread (`changed`).
struct Slot {
    state: Mutex<CallState>,
    changed: Condvar,
    task: Notify,
}

impl Slot {
    fn set(&self, state: CallState) {
        *self.state.lock() = state;
        self.wake();
    }

    fn wake(&self) {
        self.changed.notify_one();
        self.task.notify_one();
    }

    async fn granted(&self) {
        while *self.state.lock() == CallState::Waiting {
            self.task.notified().await;
        }
    }

    /// Blocks until the call is granted a permit or its deadline has passed.
    fn wait(&self, deadline: &Deadline) {
        let mut state = self.state.lock();
        while *state == CallState::Waiting && !deadline.passed() {
            self.changed.wait_until(&mut state, deadline.at());
        }
    }
}

/// Wakes a paused thread when dropped, because its caller is gone.
struct Wake(Arc<Slot>);

impl Drop for Wake {
    fn drop(&mut self) {
        // Take the lock before the wake-up: a paused thread has then either not checked its
        // deadline yet or is already waiting, so no wake-up is lost.
        let _state = self.0.state.lock();
        self.0.wake();
    }
}

/// Registration of a call with the scheduler, which lasts until dropped.
struct ScheduledCall {
    id: CallId,
    queue: Arc<CallQueue>,
    slot: Arc<Slot>,
    /// Processor time that the client is charged for at the end of the call.
    uncharged: Duration,
}

impl ScheduledCall {
    fn enter(queue: Arc<CallQueue>, client: Client) -> Self {
        let slot = Arc::new(Slot {
            state: Mutex::new(CallState::Waiting),
            changed: Condvar::new(),
            task: Notify::new(),
        });
        let mut state = queue.state.lock();
        let id = state.scheduler.enter(client);
        state.slots.insert(id, slot.clone());
        state.grant(Instant::now());
        drop(state);
        let uncharged = Duration::ZERO;
        Self {
            id,
            queue,
            slot,
            uncharged,
        }
    }
}

impl Drop for ScheduledCall {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.slots.remove(&self.id);
        state.scheduler.leave(self.id, self.uncharged);
        state.grant(Instant::now());
    }
}

/// The reason why the scheduler aborted an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptEnd {
    /// The call is restarted later.
    Deferred,
    /// The call ends in favour of another client.
    Displaced,
}

/// One run of a call's work.
struct Attempt {
    id: CallId,
    queue: Arc<CallQueue>,
    slot: Arc<Slot>,
    /// The reason why the scheduler ended this attempt, once it has done so.
    over: OnceLock<AttemptEnd>,
    /// Processor time that the thread had used when the attempt began.
    begun: OnceLock<Duration>,
    /// Part of the attempt's processor time that the client was charged for.
    charged: Mutex<Duration>,
    /// End of the only slice that may be extended: the first slice whose end a check has seen.
    extended: OnceLock<Instant>,
}

/// Processor time that this thread has used; zero if the system does not report it.
fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

impl Attempt {
    /// Processor time that the attempt has used so far. Called by its thread.
    fn used(&self) -> Duration {
        let since = |begun: &Duration| thread_time().saturating_sub(*begun);
        self.begun.get().map_or(Duration::ZERO, since)
    }

    /// Processor time used since the last call of this function, which the client is charged for.
    fn uncharged(&self) -> Duration {
        let used = self.used();
        used.saturating_sub(std::mem::replace(&mut self.charged.lock(), used))
    }

    /// Whether the slice that has ended is extended, because the thread waited for a processor core
    /// instead of running. That is assumed if the attempt has used less processor time than a first
    /// slice. On a busy machine, a call of one millisecond would otherwise be aborted and wait
    /// behind endless calls. One slice of an attempt is extended, by [`SLICE`] at most. A call that
    /// waits for the disk and never uses that much processor time is extended too.
    fn was_delayed(&self, now: Instant, end: Instant) -> bool {
        *self.extended.get_or_init(|| end) == end
            && now < end + SLICE
            && self.begun.get().is_some()
            && self.used() < FIRST_SLICE
    }

    /// Ends the slice if its time is over, and then waits for the next slice. Returns false if the
    /// attempt must end.
    fn on_check(&self, deadline: &Deadline, now: Instant) -> bool {
        if self.over.get().is_some() {
            return false;
        }
        match *self.slot.state.lock() {
            CallState::Running(end) if now >= end && !self.was_delayed(now, end) => {}
            _ => return true,
        }
        let mut state = self.queue.state.lock();
        let verdict = state.scheduler.end_slice(self.id, self.uncharged(), now);
        match verdict {
            SliceVerdict::Continue(slice) => {
                *self.slot.state.lock() = CallState::Running(now + slice);
                return true;
            }
            SliceVerdict::Pause => {}
            SliceVerdict::Defer => {
                self.over.get_or_init(|| AttemptEnd::Deferred);
            }
            // The call keeps its permit until its work has returned.
            SliceVerdict::End => {
                self.over.get_or_init(|| AttemptEnd::Displaced);
                return false;
            }
        }
        *self.slot.state.lock() = CallState::Waiting;
        state.grant(now);
        drop(state);
        if verdict == SliceVerdict::Pause {
            self.slot.wait(deadline);
        }
        verdict == SliceVerdict::Pause
    }
}

#[cfg(test)]
mod tests;
