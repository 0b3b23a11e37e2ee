//! Requirements of tests: vectors, foreign programs and privileges that a checkout or a machine may
//! lack. A test with a missing requirement records that it is skipped and returns. The last test
//! target of a `cargo test` run (`tests/skipped.rs`) prints one line that counts the skipped tests
//! by reason. With `STARLING_FIXTURES=required`, as in `.ci/run`, a missing requirement fails the
//! test instead.

mod ports;

pub use ports::free_port;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

static UNNAMED: AtomicUsize = AtomicUsize::new(0);

/// Folder of data that the tests read, beside the project.
const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared");

/// A file or folder of the protocol vectors. If `../shared/fixtures` is absent, records that the
/// test is skipped and returns `None`.
pub fn fixture(path: &str) -> Option<PathBuf> {
    require(
        existing("fixtures").map(|folder| folder.join(path)),
        "../shared/fixtures",
    )
}

/// The text of a file of the protocol vectors. Like [`fixture`], returns `None` if it is absent.
pub fn fixture_text(path: &str) -> Option<String> {
    fixture(path).map(|path| read(&path))
}

/// The text of a file in `../shared` outside of the vectors. If the file is absent, records that
/// the test is skipped and returns `None`.
pub fn shared_text(path: &str) -> Option<String> {
    shared(path).map(|path| read(&path))
}

/// A file in `../shared` that is no vector. If it is absent, records that the test is skipped and
/// returns `None`.
pub fn shared(path: &str) -> Option<PathBuf> {
    require(existing(path), &format!("../shared/{path}"))
}

/// Records that the running test is skipped if `found` is `None`, or fails it if requirements must
/// be met. `what` names the requirement, as it follows "without" in the summary.
pub fn require<T>(found: Option<T>, what: &str) -> Option<T> {
    let is_required =
        std::env::var_os("STARLING_FIXTURES").is_some_and(|value| value == "required");
    assert!(
        found.is_some() || !is_required,
        "STARLING_FIXTURES=required, and this test finds no {what}"
    );
    optional(found, what)
}

/// Records that the running test is skipped if `found` is `None`. Meant for requirements that CI
/// may lack: real op-* programs, IPv6.
pub fn optional<T>(found: Option<T>, what: &str) -> Option<T> {
    if found.is_none() {
        println!("skipped: without {what}");
        SkipRecord::of_this_test(what).append(&record_file());
    }
    found
}

/// The program that an environment variable names. If it is unset, records that the test is skipped
/// and returns `None`, in CI too: no run requires these programs.
pub fn program(variable: &str) -> Option<PathBuf> {
    optional(
        std::env::var_os(variable)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from),
        variable,
    )
}

/// The line at the end of a run: the number of skipped tests, by reason.
pub fn summary() -> String {
    let text = fs::read_to_string(record_file()).unwrap_or_default();
    let records: Vec<SkipRecord> = text
        .lines()
        .filter_map(SkipRecord::parse)
        .filter(|record| record.run == run())
        .collect();
    // Delete the records of earlier runs. The records of this run are kept, with the names of the
    // tests.
    let kept: String = records.iter().map(SkipRecord::line).collect();
    let _ = fs::write(record_file(), kept);
    match count(&records) {
        line if records.is_empty() => line,
        line => format!("{line} (named in {})", record_file().display()),
    }
}

fn existing(path: &str) -> Option<PathBuf> {
    Some(Path::new(SHARED).join(path)).filter(|path| path.exists())
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// One skipped test.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SkipRecord {
    run: String,
    binary: String,
    test: String,
    what: String,
}

impl SkipRecord {
    fn of_this_test(what: &str) -> Self {
        let binary = std::env::current_exe()
            .ok()
            .and_then(|path| Some(path.file_stem()?.to_string_lossy().into_owned()));
        // libtest names the thread of a test after the test, but with --test-threads=1 it runs all
        // tests on the main thread.
        let test = match std::thread::current().name() {
            None | Some("main") => format!("unnamed {}", UNNAMED.fetch_add(1, Ordering::Relaxed)),
            Some(name) => name.to_owned(),
        };
        Self {
            run: run(),
            binary: binary.unwrap_or_default(),
            test,
            what: what.to_owned(),
        }
    }

    fn line(&self) -> String {
        format!(
            "{}\t{}\t{}\t{}\n",
            self.run, self.binary, self.test, self.what
        )
    }

    fn parse(line: &str) -> Option<Self> {
        let mut cells = line.split('\t').map(str::to_owned);
        Some(Self {
            run: cells.next()?,
            binary: cells.next()?,
            test: cells.next()?,
            what: cells.next()?,
        })
    }

    /// Appends the record in one write, so that other processes cannot interleave theirs.
    fn append(&self, path: &Path) {
        let file = fs::File::options().create(true).append(true).open(path);
        let written = file.and_then(|mut file| file.write_all(self.line().as_bytes()));
        written.unwrap_or_else(|error| {
            panic!(
                "a skipped test cannot be recorded in {}: {error}",
                path.display()
            )
        });
    }
}

/// Formats the counts: "3 tests skipped: 2 without cast, 1 without ../shared/fixtures". A test
/// counts once, for the first requirement that it lacked.
fn count(records: &[SkipRecord]) -> String {
    let mut seen = BTreeSet::new();
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for record in records
        .iter()
        .filter(|record| seen.insert((&record.binary, &record.test)))
    {
        *reasons.entry(&record.what).or_default() += 1;
    }
    let mut line = match seen.len() {
        0 => return "no test was skipped".into(),
        1 => "1 test skipped".to_owned(),
        number => format!("{number} tests skipped"),
    };
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    for (n, (what, number)) in reasons.into_iter().enumerate() {
        let _ = write!(
            line,
            "{} {number} without {what}",
            if n == 0 { ":" } else { "," }
        );
    }
    line
}

/// The file of skip records of the test binaries beside this one: `target/debug/skipped.tsv`.
fn record_file() -> PathBuf {
    let binary = std::env::current_exe().expect("a test binary knows its path");
    binary
        .ancestors()
        .nth(2)
        .expect("a test binary is in target/*/deps")
        .join("skipped.tsv")
}

/// Identifies the `cargo test` that started this process, by the id and start time of that process.
/// All test binaries of one run get the same value.
fn run() -> String {
    let parent = std::os::unix::process::parent_id();
    let stat = fs::read_to_string(format!("/proc/{parent}/stat")).unwrap_or_default();
    // Field 22 of proc_pid_stat(5). Field 2, the name in brackets, may contain spaces.
    let started = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(19))
        .unwrap_or_default();
    format!("{parent}-{started}")
}

#[cfg(test)]
mod tests;
