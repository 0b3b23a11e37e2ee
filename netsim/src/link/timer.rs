//! A timer that wakes within some 50 µs. That of tokio has a resolution of a millisecond, more than
//! the delay of a local network.
//!
//! Linux has such timers as files; elsewhere, and where no file can be opened, tokio's is used.

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

    /// A file that becomes readable when its time is over.
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

        /// Waits for `time`, or returns earlier: for an expiry that nobody waited for.
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

    /// The type that takes the timer's place; there is none.
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

/// A timer of one task. Its file is opened by the first wait, so that links without delay have none.
#[derive(Default)]
pub(super) struct LinkTimer {
    precise: Option<PreciseTimer>,
    refused: bool,
}

impl LinkTimer {
    /// Waits for a time. May be dropped and called again with another time.
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
        // The file of the timer expires in this pause, with nobody waiting.
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
        // A busy machine only makes waits longer: the best tenth shows the timer.
        assert!(late[5] < Duration::from_micros(500), "{late:?}");
    }
}
