//! The kernel's figures for a process: its memory, the bytes that it wrote, and the processor time
//! of its threads by name.

use std::{
    collections::BTreeMap,
    fs,
    sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    thread::JoinHandle,
    time::Duration,
};

/// Interval at which the times of threads are read, since a thread may end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Processor time of this process's threads by name, so far.
#[derive(Clone, Default)]
pub struct Threads(BTreeMap<String, Duration>);

impl Threads {
    pub fn now() -> Self {
        let mut all = BTreeMap::new();
        for task in fs::read_dir("/proc/self/task")
            .expect("this is Linux")
            .flatten()
        {
            // The thread may end while its file is read.
            let read = |file: &str| fs::read_to_string(task.path().join(file)).ok();
            let (Some(name), Some(times)) = (read("comm"), read("schedstat")) else {
                continue;
            };
            let spent = times
                .split_whitespace()
                .next()
                .and_then(|ns| ns.parse().ok())
                .unwrap_or(0);
            *all.entry(name.trim().to_owned()).or_default() += Duration::from_nanos(spent);
        }
        Self(all)
    }

    pub fn since(&self, earlier: &Self) -> Self {
        let spent = |(name, now): (&String, &Duration)| {
            (
                name.clone(),
                now.saturating_sub(earlier.0.get(name).copied().unwrap_or_default()),
            )
        };
        Self(self.0.iter().map(spent).collect())
    }

    pub fn add(&mut self, more: &Self) {
        for (name, spent) in &more.0 {
            *self.0.entry(name.clone()).or_default() += *spent;
        }
    }

    /// Total time without the threads on which the database flushes and compacts.
    pub fn foreground(&self) -> Duration {
        self.0
            .iter()
            .filter(|(name, _)| *name != "fjall:worker")
            .map(|(_, spent)| *spent)
            .sum()
    }

    pub fn sum(&self) -> Duration {
        self.0.values().sum()
    }

    /// Names and times of the threads with more than one percent of the total, the longest first.
    pub fn table(&self) -> Vec<(&str, Duration)> {
        let mut rows: Vec<_> = self
            .0
            .iter()
            .map(|(name, spent)| (name.as_str(), *spent))
            .collect();
        rows.sort_by_key(|(_, spent)| std::cmp::Reverse(*spent));
        rows.retain(|(_, spent)| spent.as_secs_f64() * 100.0 > self.sum().as_secs_f64());
        rows
    }
}

/// Samples the processor time of this process's threads, so that it is known for ended threads too,
/// except for the last moment before they end.
pub struct Watch {
    watching: JoinHandle<Threads>,
    stop: SyncSender<()>,
}

impl Watch {
    pub fn start() -> Self {
        let (stop, stopped) = sync_channel(0);
        let watching = std::thread::Builder::new()
            .name("watch".into())
            .spawn(move || {
                let mut seen = Threads::default();
                loop {
                    for (name, spent) in Threads::now().0 {
                        let longest = seen.0.entry(name).or_default();
                        *longest = spent.max(*longest);
                    }
                    if stopped.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
                        return seen;
                    }
                }
            });
        Self {
            watching: watching.expect("a thread"),
            stop,
        }
    }

    /// Processor time of each thread name since the process began.
    pub fn stop(self) -> Threads {
        drop(self.stop);
        self.watching.join().expect("the watch ends")
    }
}

/// Bytes that this process has caused to be written to disks.
pub fn written() -> u64 {
    field("/proc/self/io", "write_bytes:")
}

/// Resident memory of this process in bytes: now, and at its peak.
pub fn resident() -> (u64, u64) {
    (
        1024 * field("/proc/self/status", "VmRSS:"),
        1024 * field("/proc/self/status", "VmHWM:"),
    )
}

/// Processor time of this process so far, including ended threads, to a hundredth of a second.
pub fn processor() -> Duration {
    processor_of("self")
}

/// Processor time of the process with this id (or `self`) so far, including ended threads.
pub fn processor_of(process: &str) -> Duration {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).expect("the process lives");
    // The process name may contain spaces, so count fields after it: user and system time, in
    // hundredths of a second, are the 12th and 13th.
    let fields = text
        .rsplit(')')
        .next()
        .into_iter()
        .flat_map(str::split_whitespace)
        .skip(11)
        .take(2);
    Duration::from_millis(
        fields
            .filter_map(|ticks| ticks.parse::<u64>().ok())
            .sum::<u64>()
            * 10,
    )
}

/// Reads the number after `name` in a file of `/proc`.
pub fn field(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).expect("this is Linux");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .expect("the kernel gives this field");
    line.split_whitespace()
        .next()
        .and_then(|number| number.parse().ok())
        .expect("a number")
}
