//! The limit on the listeners' connections, and the choice of the idle connection that is closed at
//! the limit.
//!
//! A connection is idle while it waits for a request. When a new connection is accepted at the
//! limit, the connection that has been idle for longest is closed. If no connection is idle, the
//! new connection waits.

use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Time that an idle connection has to close, before another idle connection is closed too.
const CLOSING: Duration = Duration::from_millis(100);

/// All connections that share a limit.
pub struct Connections {
    permits: Arc<Semaphore>,
    numbers: AtomicU64,
    idle: Mutex<Idle>,
    became_idle: Notify,
}

/// Tokens that close the idle connections, in the order in which the connections became idle.
#[derive(Default)]
struct Idle {
    next: u64,
    oldest_first: BTreeMap<u64, CancellationToken>,
}

impl Connections {
    pub fn new(limit: usize) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        Arc::new(Self {
            permits,
            numbers: AtomicU64::new(0),
            idle: Mutex::default(),
            became_idle: Notify::new(),
        })
    }

    /// Waits for a permit, and closes idle connections to get one. The new connection counts as
    /// idle until its first request.
    pub async fn admit(self: &Arc<Self>, stop: &CancellationToken) -> Arc<Admitted> {
        let permit = loop {
            if let Ok(permit) = self.permits.clone().try_acquire_owned() {
                break permit;
            }
            let closes = self.close_oldest();
            let freed = self.permits.clone().acquire_owned();
            let freed = async {
                tokio::select! {
                    biased;
                    freed = freed => freed.ok(),
                    () = self.became_idle.notified(), if !closes => None,
                }
            };
            if let Ok(Some(permit)) =
                timeout(if closes { CLOSING } else { Duration::MAX }, freed).await
            {
                break permit;
            }
        };
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let admitted = Admitted {
            all: self.clone(),
            number,
            close: stop.child_token(),
            state: Mutex::default(),
            _permit: permit,
        };
        admitted.set_idle(&mut admitted.state.lock());
        Arc::new(admitted)
    }

    /// Closes the connection that has been idle for longest. Returns false if no connection is
    /// idle.
    fn close_oldest(&self) -> bool {
        let oldest = self.idle.lock().oldest_first.pop_first();
        oldest.map(|(_, close)| close.cancel()).is_some()
    }

    /// Connections that could be admitted without closing others.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.permits.available_permits()
    }
}

/// A connection that [`Connections`] has admitted; it releases its permit when dropped.
pub struct Admitted {
    all: Arc<Connections>,
    /// Number that is unique among the connections that share the limit.
    pub number: u64,
    /// Cancelled when the connection is to be closed.
    pub close: CancellationToken,
    state: Mutex<Activity>,
    _permit: OwnedSemaphorePermit,
}

/// Activity of one connection.
#[derive(Default)]
struct Activity {
    /// Number of requests that are being executed, or whose responses are being sent.
    busy: usize,
    /// Key in [`Idle::oldest_first`] while the connection is idle.
    idle: Option<u64>,
}

/// Marks a connection as busy until dropped.
pub struct Busy(Arc<Admitted>);

impl Admitted {
    /// Marks the connection as busy until the returned guard is dropped.
    pub fn busy(self: &Arc<Self>) -> Busy {
        let mut state = self.state.lock();
        state.busy += 1;
        self.unset_idle(&mut state);
        Busy(self.clone())
    }

    fn set_idle(&self, state: &mut Activity) {
        let mut idle = self.all.idle.lock();
        let key = idle.next;
        idle.next += 1;
        idle.oldest_first.insert(key, self.close.clone());
        state.idle = Some(key);
        drop(idle);
        self.all.became_idle.notify_one();
    }

    fn unset_idle(&self, state: &mut Activity) {
        if let Some(key) = state.idle.take() {
            self.all.idle.lock().oldest_first.remove(&key);
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = std::mem::take(self.state.get_mut());
        self.unset_idle(&mut state);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.busy -= 1;
        // A connection that is already closing must not become idle again.
        if state.busy == 0 && !self.0.close.is_cancelled() {
            self.0.set_idle(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn the_connection_that_has_been_idle_for_longest_is_closed_for_a_new_one() {
        let all = Connections::new(3);
        let stop = CancellationToken::new();
        let [first, second, third] = [
            all.admit(&stop).await,
            all.admit(&stop).await,
            all.admit(&stop).await,
        ];
        // The first connection served a request after the second became idle, and the third is
        // busy.
        drop(first.busy());
        let busy = third.busy();
        let mut fourth = Box::pin(all.admit(&stop));
        assert!((&mut fourth).now_or_never().is_none());
        assert!(
            second.close.is_cancelled()
                && !first.close.is_cancelled()
                && !third.close.is_cancelled()
        );
        drop(second);
        let fourth = fourth.await;
        let fourth_busy = fourth.busy();
        let mut fifth = Box::pin(all.admit(&stop));
        assert!((&mut fifth).now_or_never().is_none() && first.close.is_cancelled());
        drop(first);
        let fifth = fifth.await;
        let fifth_busy = fifth.busy();
        // No connection is idle: the sixth waits until one becomes idle.
        let mut sixth = Box::pin(all.admit(&stop));
        assert!((&mut sixth).now_or_never().is_none());
        assert!(
            [&third, &fourth, &fifth]
                .iter()
                .all(|busy| !busy.close.is_cancelled())
        );
        drop(busy);
        assert!((&mut sixth).now_or_never().is_none() && third.close.is_cancelled());
        drop(third);
        let sixth = sixth.await;
        assert_eq!(all.free(), 0);
        drop((fourth_busy, fifth_busy));
        drop((fourth, fifth, sixth));
        assert_eq!(all.free(), 3);
        assert!(all.idle.lock().oldest_first.is_empty());
    }
}
