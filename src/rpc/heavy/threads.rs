//! Threads of low priority. They run the heavy calls of the public ports and of the local socket,
//! and the tracing calls of every port.
//!
//! While blocks are executed on all cores, the kernel gives these threads only a small part of the
//! processor time. A thread without privileges cannot raise its priority again, so heavy calls
//! do not share threads with other work. A thread inherits the priority of the thread that starts
//! it. Work on these threads must therefore start no threads that other work uses, too.

use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::JoinHandle,
};

/// Niceness that the threads have in addition to that of the process. Linux gives a thread of
/// niceness 10 about a ninth of the processor time of one of niceness 0 while both are busy.
const NICENESS: i32 = 10;

/// A pool of threads of low priority. Its threads end when they have been idle for 10 s, tokio's
/// default.
pub(super) struct LowPriorityThreads {
    pool: Handle,
    /// The runtime whose pool for blocking work is used; `None` only while it is dropped.
    runtime: Option<Runtime>,
}

impl LowPriorityThreads {
    /// A pool of at most `limit` threads.
    pub fn new(limit: usize) -> Self {
        // Starts rayon's threads now, from a thread of normal priority. A heavy call would start
        // them with its own priority, and block execution uses them, too.
        rayon::current_num_threads();
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(limit)
            .thread_name("heavy call")
            .on_thread_start(lower_priority)
            .build()
            .expect("a runtime without I/O and timers asks the system for nothing");
        let pool = runtime.handle().clone();
        let runtime = Some(runtime);
        Self { pool, runtime }
    }

    /// Runs blocking work on a thread of the pool.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.pool.spawn_blocking(work)
    }
}

impl Drop for LowPriorityThreads {
    fn drop(&mut self) {
        // Dropping a runtime waits for its threads, which must not happen in an asynchronous task.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
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
