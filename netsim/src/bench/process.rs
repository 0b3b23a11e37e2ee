//! Processor time and peak memory of this process.

use crate::lab::usage::status_kb;
use anyhow::Context;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};
use std::{fs, time::Duration};

/// Processor time of all threads so far.
pub fn process_time() -> Duration {
    used(UsageWho::RUSAGE_SELF)
}

/// Processor time of this thread so far.
pub fn thread_time() -> Duration {
    used(UsageWho::RUSAGE_THREAD)
}

fn used(who: UsageWho) -> Duration {
    let usage = getrusage(who).expect("the kernel has the usage of this process");
    let time = usage.user_time() + usage.system_time();
    Duration::from_micros(time.num_microseconds() as u64)
}

/// Calls `work`, and returns the largest resident memory meanwhile in megabytes.
pub fn peak_mb<R>(work: impl FnOnce() -> R) -> anyhow::Result<(R, f64)> {
    // This value resets the peak to the present size (proc_pid_clear_refs(5)).
    fs::write("/proc/self/clear_refs", "5").context("the peak of memory cannot be reset")?;
    let result = work();
    let status = fs::read_to_string("/proc/self/status")?;
    let kilobytes = status_kb(&status, "VmHWM").context("the kernel has no peak of memory")?;
    Ok((result, kilobytes as f64 * 1.024e-3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time_and_memory() {
        let before = thread_time();
        let (sum, mb) = peak_mb(|| {
            let numbers = vec![1_u64; 8 << 20];
            std::hint::black_box(&numbers).iter().sum::<u64>()
        })
        .unwrap();
        assert_eq!(sum, 8 << 20);
        assert!(mb > 64.0, "{mb} MB with 67 MB of numbers");
        assert!(thread_time() > before && process_time() >= thread_time());
    }
}
