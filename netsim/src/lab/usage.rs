//! Memory and processor time of a process, from `/proc`.

use super::report::UsagePoint;
use std::fs;

/// Ticks of processor time per second in `/proc`: USER_HZ, which is 100 on every architecture of
/// Linux that Rust runs on.
const TICKS: u64 = 100;

/// The present usage of a process; `None` if it has ended.
pub fn read(pid: u32, at_ms: u64) -> Option<UsagePoint> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(UsagePoint {
        at_ms,
        rss_kb: resident(&status)?,
        cpu_ms: cpu(&stat)?,
    })
}

fn resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Fields 14 and 15 of proc_pid_stat(5). Field 2, the name in brackets, may contain spaces.
fn cpu(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) * 1_000 / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_fields_are_read() {
        assert_eq!(
            resident("Name:\tx\nVmRSS:\t   59000 kB\nVmData: 1 kB\n"),
            Some(59_000)
        );
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 9 0 1 1 1";
        assert_eq!(cpu(stat), Some(2_000));
        let own = read(std::process::id(), 5).unwrap();
        assert!(own.rss_kb > 500 && own.at_ms == 5, "{own:?}");
        assert_eq!(read(u32::MAX, 0), None);
    }
}
