//! A timer that wakes within about 50 µs. tokio's timer has a resolution of a millisecond, which is
//! more than the delay of a local network.
//!
//! Linux has such timers as files. Elsewhere, or if no file can be opened, tokio's timer is used.

use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
mod precise {
    use nix::sys::{
        time::TimeSpec,
        timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
    };
    use std::{
        io,
        os::fd::{AsFd, AsRawFd, RawFd},
        time::Duration,
    };
    use tokio::io::{Interest, unix::AsyncFd};

    struct File(TimerFd);

    impl AsRawFd for File {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_fd().as_raw_fd()
        }
    }

    /// A timer file, which becomes readable when its time is over.
    pub struct PreciseTimer(AsyncFd<File>);

    impl PreciseTimer {
        #[expect(
            deprecated,
            reason = "the successor is unsafe code; a `File` keeps its descriptor, as it asks for"
        )]
        pub fn new() -> io::Result<Self> {
            let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
            let file = File(TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?);
            Ok(Self(AsyncFd::with_interest(file, Interest::READABLE)?))
        }

        /// Waits for `time`. May return earlier, if an earlier expiry was never waited for.
        pub async fn wait(&self, time: Duration) -> io::Result<()> {
            let expiration = Expiration::OneShot(TimeSpec::from(time));
            self.0
                .get_ref()
                .0
                .set(expiration, TimerSetTimeFlags::empty())?;
            self.0.readable().await?.clear_ready();
            Ok(())
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod coarse {
    use std::{io, time::Duration};

    /// Stands for the precise timer on systems that have none; it has no values.
    pub enum CoarseTimer {}

    impl CoarseTimer {
        pub fn new() -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub async fn wait(&self, _time: Duration) -> io::Result<()> {
            match *self {}
        }
    }
}

#[cfg(not(target_os = "linux"))]
use coarse::CoarseTimer as PreciseTimer;
#[cfg(target_os = "linux")]
use precise::PreciseTimer;

/// The timer of one task. The first wait opens its file, so links without delay have no file.
#[derive(Default)]
pub(crate) struct LinkTimer {
    precise: Option<PreciseTimer>,
    refused: bool,
}

impl LinkTimer {
    /// Waits until `due`. May be cancelled and called again with another time.
    pub async fn until(&mut self, due: Instant) {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.wait(left).await;
        }
    }

    async fn wait(&mut self, left: Duration) {
        if self.precise.is_none() && !self.refused {
            self.precise = PreciseTimer::new().ok();
            self.refused = self.precise.is_none();
        }
        let failed = match &self.precise {
            Some(precise) => precise.wait(left).await.is_err(),
            None => true,
        };
        if failed {
            tokio::time::sleep(left).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dropped_wait_does_not_shorten_the_next_one() {
        let mut timer = LinkTimer::default();
        for _ in 0..3 {
            tokio::select! {
                biased;
                () = timer.until(Instant::now() + Duration::from_millis(20)) => {}
                () = std::future::ready(()) => {}
            }
        }
        // The timer file expires during this pause, while no task waits for it.
        tokio::time::sleep(Duration::from_millis(40)).await;
        let due = Instant::now() + Duration::from_millis(10);
        timer.until(due).await;
        assert!(Instant::now() >= due);
    }

    #[tokio::test]
    async fn short_waits_are_not_rounded_to_milliseconds() {
        let mut timer = LinkTimer::default();
        let mut late = Vec::new();
        for _ in 0..50 {
            let due = Instant::now() + Duration::from_micros(200);
            timer.until(due).await;
            late.push(due.elapsed());
        }
        late.sort_unstable();
        // A busy machine only makes waits longer, so check the best tenth.
        assert!(late[5] < Duration::from_micros(500), "{late:?}");
    }
}
