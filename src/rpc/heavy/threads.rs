//! Threads of low priority. They run the heavy calls of the public ports and of the local socket,
//! and the tracing calls of every port.
//!
//! While blocks are executed on all cores, the kernel gives these threads only a small part of the
//! processor time. A thread without privileges cannot raise its priority again, so heavy calls
//! do not share threads with other work. A thread inherits the priority of the thread that starts
//! it. Work on these threads must therefore start no threads that other work uses, too.
//!
//! The thread that worked last gets the next job, since its caches are warm and its allocator has
//! free memory. tokio's pool for blocking work wakes its threads in turn, and wakes them while it
//! holds its lock, so that the woken thread waits at once: a short trace takes a seventh longer there.

use parking_lot::{Condvar, Mutex};
use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

/// Niceness that the threads have in addition to that of the process. Linux gives a thread of
/// niceness 10 about a ninth of the processor time of one of niceness 0 while both are busy.
const NICENESS: i32 = 10;
/// Time after which an idle thread ends.
const IDLE: Duration = Duration::from_secs(10);

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads of low priority. When it is dropped, idle threads end, and busy threads end
/// after the jobs that wait.
pub(super) struct LowPriorityThreads(Arc<ThreadPool>);

struct ThreadPool {
    /// Largest number of threads.
    limit: usize,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// Jobs that wait for a thread, oldest first. Callers start at most as many jobs as there may be
    /// threads, so a job waits only for a thread that is about to become idle.
    waiting: VecDeque<Job>,
    /// Idle threads. The last one became idle last.
    idle: Vec<Arc<IdleThread>>,
    /// Number of threads, idle and busy.
    threads: usize,
    is_over: bool,
}

/// Event that an idle thread waits for.
enum Wakeup {
    Job(Job),
    End,
}

/// The place where a thread waits for its next job.
#[derive(Default)]
struct IdleThread {
    wakeup: Mutex<Option<Wakeup>>,
    changed: Condvar,
}

impl LowPriorityThreads {
    /// A pool of at most `limit` threads.
    pub fn new(limit: usize) -> Self {
        // Starts rayon's threads now, from a thread of normal priority. A heavy call would start
        // them with its own priority, and block execution uses them, too.
        rayon::current_num_threads();
        Self(Arc::new(ThreadPool {
            limit,
            state: Mutex::default(),
        }))
    }

    /// Runs a job on a thread of the pool. A job that panics ends, and its thread goes on. The job is
    /// dropped if the system has no thread for it.
    pub fn spawn(&self, job: Job) {
        let mut state = self.0.state.lock();
        if let Some(thread) = state.idle.pop() {
            // The thread must not wait for this lock when it wakes.
            drop(state);
            thread.wake(Wakeup::Job(job));
            return;
        }
        state.waiting.push_back(job);
        if state.threads == self.0.limit {
            return;
        }
        let pool = self.0.clone();
        let thread = thread::Builder::new().name("heavy call".into());
        match thread.spawn(move || pool.work()) {
            Ok(_) => state.threads += 1,
            Err(error) => {
                tracing::warn!(%error, "the system starts no further thread for heavy calls");
                if state.threads == 0 {
                    state.waiting.clear();
                }
            }
        }
    }
}

impl Drop for LowPriorityThreads {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_over = true;
        for thread in state.idle.drain(..) {
            thread.wake(Wakeup::End);
        }
    }
}

impl ThreadPool {
    /// Runs jobs until there is none for a while.
    fn work(&self) {
        lower_priority();
        let thread = Arc::default();
        while let Some(job) = self.next(&thread) {
            // The panic has been printed, and the caller of the job notices its end.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }

    /// The next job of this thread; `None` if the thread ends.
    fn next(&self, thread: &Arc<IdleThread>) -> Option<Job> {
        let mut state = self.state.lock();
        if let Some(job) = state.waiting.pop_front() {
            return Some(job);
        }
        if state.is_over {
            return None;
        }
        state.idle.push(thread.clone());
        drop(state);
        let wakeup = thread.wait_for(IDLE).or_else(|| {
            let mut state = self.state.lock();
            let position = state.idle.iter().position(|it| Arc::ptr_eq(it, thread));
            if let Some(position) = position {
                state.idle.remove(position);
                state.threads -= 1;
                return None;
            }
            // Somebody has chosen this thread, and is about to wake it.
            drop(state);
            Some(thread.wait())
        });
        match wakeup? {
            Wakeup::Job(job) => Some(job),
            Wakeup::End => None,
        }
    }
}

impl IdleThread {
    fn wake(&self, wakeup: Wakeup) {
        *self.wakeup.lock() = Some(wakeup);
        // Without the lock, which the thread needs when it wakes.
        self.changed.notify_one();
    }

    fn wait(&self) -> Wakeup {
        let mut wakeup = self.wakeup.lock();
        loop {
            match wakeup.take() {
                Some(wakeup) => return wakeup,
                None => self.changed.wait(&mut wakeup),
            }
        }
    }

    /// Waits for at most `limit`.
    fn wait_for(&self, limit: Duration) -> Option<Wakeup> {
        let mut wakeup = self.wakeup.lock();
        self.changed
            .wait_while_for(&mut wakeup, |it| it.is_none(), limit);
        wakeup.take()
    }
}

/// Lowers the priority of this thread. On systems other than Linux, that would lower the priority of
/// the whole process, so the thread keeps its priority there.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "a thread of heavy calls keeps its priority");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::mpsc::{Receiver, sync_channel},
        thread::{ThreadId, sleep},
    };

    const PATIENCE: Duration = Duration::from_secs(30);

    impl LowPriorityThreads {
        /// Starts a job that reports its thread.
        fn ask(&self) -> Receiver<ThreadId> {
            let (sender, receiver) = sync_channel(1);
            self.spawn(Box::new(move || {
                let _ = sender.send(thread::current().id());
            }));
            receiver
        }

        fn until(&self, is_so: impl Fn(&PoolState) -> bool) {
            while !is_so(&self.0.state.lock()) {
                sleep(Duration::from_millis(1));
            }
        }
    }

    /// Starts a job that ends when its sender is dropped.
    fn block(threads: &LowPriorityThreads) -> std::sync::mpsc::SyncSender<()> {
        let (sender, receiver) = sync_channel::<()>(0);
        threads.spawn(Box::new(move || {
            let _ = receiver.recv();
        }));
        sender
    }

    #[test]
    fn the_thread_that_worked_last_gets_the_next_job() {
        let threads = LowPriorityThreads::new(2);
        let busy = [block(&threads), block(&threads)];
        drop(busy);
        threads.until(|state| state.idle.len() == 2);
        let ask = || {
            let thread = threads.ask().recv_timeout(PATIENCE).unwrap();
            threads.until(|state| state.idle.len() == 2);
            thread
        };
        let first = ask();
        assert!((0..20).all(|_| ask() == first));
    }

    #[test]
    fn a_job_beyond_the_limit_waits_for_a_thread() {
        let threads = LowPriorityThreads::new(1);
        let busy = block(&threads);
        threads.until(|state| state.waiting.is_empty());
        let waits = threads.ask();
        assert_eq!(threads.0.state.lock().waiting.len(), 1);
        drop(busy);
        waits.recv_timeout(PATIENCE).unwrap();
        assert_eq!(threads.0.state.lock().threads, 1);
    }

    #[test]
    fn a_job_that_panics_ends_alone() {
        let threads = LowPriorityThreads::new(1);
        let before = threads.ask().recv_timeout(PATIENCE).unwrap();
        let (sender, receiver) = sync_channel::<()>(1);
        threads.spawn(Box::new(move || {
            let _sender = sender;
            panic!("a planted panic");
        }));
        assert!(receiver.recv_timeout(PATIENCE).is_err());
        assert_eq!(threads.ask().recv_timeout(PATIENCE).unwrap(), before);
    }

    #[test]
    fn threads_end_with_the_pool_and_finish_what_waits() {
        let threads = LowPriorityThreads::new(1);
        let pool = Arc::downgrade(&threads.0);
        let busy = block(&threads);
        let waits = threads.ask();
        drop(threads);
        drop(busy);
        waits.recv_timeout(PATIENCE).unwrap();
        while pool.upgrade().is_some() {
            sleep(Duration::from_millis(1));
        }
    }
}
