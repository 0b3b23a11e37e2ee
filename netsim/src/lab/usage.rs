//! Memory and processor time of a process.

use super::report::UsagePoint;
use nix::{
    time::{clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};
use std::{fs, time::Duration};

/// The clocks of one process, in microseconds. They are zero for a process that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessClocks {
    /// Processor time so far.
    pub used: u64,
    /// Time for which present threads waited for a processor.
    pub waited: u64,
}

/// The present usage of a process; `None` if it has ended.
pub fn read(pid: u32, at_ms: u64) -> Option<UsagePoint> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(UsagePoint {
        at_ms,
        rss_kb: status_kb(&status, "VmRSS")?,
        cpu_ms: cpu_time(pid)?.as_millis() as u64,
        wait_ms: waited(pid) / 1_000_000,
    })
}

/// The present clocks of a process; `None` if it has ended.
pub fn clocks(pid: u32) -> Option<ProcessClocks> {
    Some(ProcessClocks {
        used: cpu_time(pid)?.as_micros() as u64,
        waited: waited(pid) / 1_000,
    })
}

/// Processor time of one thread of this process; `None` if it has ended.
pub fn thread_time(id: i32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/self/task/{id}/schedstat")).ok()?;
    let used = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(used))
}

/// Time in nanoseconds for which the present threads of a process waited for a processor.
fn waited(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let waits = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        wait_ns(&text)
    });
    waits.sum()
}

/// The second number of a thread's `schedstat`: nanoseconds on a run queue.
fn wait_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// A field of `/proc/<pid>/status` with a number of kB.
pub fn status_kb(status: &str, field: &str) -> Option<u64> {
    let value = { status.lines() }.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value?.split_whitespace().next()?.parse().ok()
}

/// Processor time of a process by its own clock. `/proc` has it in steps of 10 ms, which is too
/// coarse for the work of a few blocks.
fn cpu_time(pid: u32) -> Option<Duration> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?);
    let time = clock_gettime(clock_getcpuclockid(pid).ok()?).ok()?;
    Some(time.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_fields_and_clocks_are_read() {
        let status = "Name:\tx\nVmRSS:\t   59000 kB\nVmHWM:\t 61234 kB\nVmData: 1 kB\n";
        assert_eq!(status_kb(status, "VmRSS"), Some(59_000));
        assert_eq!(status_kb(status, "VmHWM"), Some(61_234));
        assert_eq!(status_kb(status, "VmPeak"), None);
        assert_eq!(status_kb(status, "Vm"), None);
        assert_eq!(wait_ns("932091 7782975 2"), Some(7_782_975));
        assert_eq!(wait_ns("932091"), None);
        let own = read(std::process::id(), 5).unwrap();
        assert!(own.rss_kb > 500 && own.at_ms == 5, "{own:?}");
        let clocks = clocks(std::process::id()).unwrap();
        assert!(clocks.used / 1_000 >= own.cpu_ms, "{clocks:?} {own:?}");
        assert_eq!(read(u32::MAX, 0), None);
    }
}
