//! Crash campaigns. A chain is killed with SIGKILL again and again while it imports blocks and
//! changes branches. Data directories are damaged as by a power cut or a bad disk. `starling db
//! verify` then checks the data. `tests/campaign.sh` runs the campaigns at full size.

pub mod world;

use crate::net::starling;
use alloy_primitives::B256;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use starling::chain::{payload_log::PayloadLog, payload_log_dir, store::Store};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tempfile::TempDir;
use world::World;

/// Environment variables of the child process: the data directory, and the number of blocks whose
/// states it keeps.
const CHILD: &str = "STARLING_CAMPAIGN_CHILD";
const WINDOW: &str = "STARLING_CAMPAIGN_WINDOW";

/// Kills before a new chain begins, since the time of a verification grows with the chain.
const LIVES: usize = 50;

pub fn size(name: &str, default: usize) -> usize {
    std::env::var(name).ok().map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number"))
    })
}

pub fn seed() -> u64 {
    let seed = size("STARLING_SEED", rand::rng().random_range(0..1_000_000)) as u64;
    println!("STARLING_SEED={seed}");
    seed
}

/// Result of `db verify`.
#[derive(Debug)]
pub enum Verdict {
    Sound {
        head: u64,
    },
    /// The database does not open, or rows are reported as unreadable. No wrong value is returned.
    Refused(String),
    Wrong(String),
}

pub fn verify(dir: &Path) -> Verdict {
    let out = starling()
        .args(["db", "verify", "--datadir"])
        .arg(dir)
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("it runs");
    let (text, errors) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr).into_owned(),
    );
    let head = text
        .lines()
        .find_map(|line| line.strip_prefix("head ")?.trim().parse().ok());
    let wrong: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("damaged: ") && !line.contains("cannot be read"))
        .collect();
    match (out.status.success(), head, wrong.is_empty()) {
        (true, Some(head), true) => Verdict::Sound { head },
        (false, _, true) => Verdict::Refused(errors),
        _ => Verdict::Wrong(format!("{text}\n{errors}")),
    }
}

/// No test by itself: the process that the campaigns start and kill.
#[test]
fn child_that_imports_until_it_is_killed() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let window = Some(size(WINDOW, 0) as u64).filter(|blocks| *blocks > 0);
    World::open(Path::new(&dir), window).run(&mut StdRng::from_os_rng(), usize::MAX);
}

/// Facts that a child printed before it was killed.
struct Life {
    /// Lowest height that the head must have after a restart.
    floor: u64,
    /// Number of branch changes.
    reorgs: u64,
    /// Blocks that were logged to be signed, so that peers may have them.
    signed: Vec<B256>,
}

/// Runs a chain in a child process, and kills the child once it has printed `lines` lines. `floor`
/// is the value that the previous run returned.
fn live_and_die(dir: &Path, window: u64, floor: u64, lines: usize) -> Life {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "campaign::child_that_imports_until_it_is_killed",
            "--nocapture",
        ])
        .env(CHILD, dir)
        .env(WINDOW, window.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child");
    let mut told = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut life = Life {
        floor,
        reorgs: 0,
        signed: vec![],
    };
    let mut hear = |line: &str, alive: bool| {
        let word = |name: &str| {
            line.split_once(name)
                .and_then(|(_, number)| number.parse::<u64>().ok())
        };
        match (word("stored "), word("reorg ")) {
            (Some(stored), _) if alive => life.floor = stored,
            (_, Some(fork)) => (life.floor, life.reorgs) = (life.floor.min(fork), life.reorgs + 1),
            _ => life.signed.extend(
                line.split_once("signed ")
                    .map(|(_, block)| block[..66].parse::<B256>().expect("a hash")),
            ),
        }
    };
    for _ in 0..lines {
        hear(
            &told
                .next()
                .expect("the child stopped by itself")
                .expect("a line"),
            true,
        );
    }
    child.kill().expect("a child to kill");
    // Blocks that the child reported as stored after the kill are not required: the child may have
    // changed its branch since.
    told.map_while(Result::ok)
        .for_each(|line| hear(&line, false));
    child.wait().expect("it is dead");
    life
}

/// The subset of `blocks` that is neither in the store nor in the payload log.
fn lost(dir: &Path, blocks: &[B256]) -> Vec<B256> {
    let log = PayloadLog::open(&payload_log_dir(dir)).expect("the payload log");
    let snapshot = Store::open(dir, 4 << 20, None)
        .and_then(|store| store.snapshot())
        .expect("the store");
    let is_there = |hash: &B256| {
        log.by_hash(*hash).expect("a read").is_some()
            || snapshot.number_of(hash).expect("a read").is_some()
    };
    blocks
        .iter()
        .filter(|hash| !is_there(hash))
        .copied()
        .collect()
}

#[test]
fn killed_under_import_and_reorgs_nothing_is_inconsistent() {
    let mut rng = StdRng::seed_from_u64(seed());
    let kills = size("STARLING_KILLS", 6);
    // One archive, and one chain with a history window so small that it prunes continually.
    let fresh = || [0, 40].map(|window| (world::datadir(), window, 0u64));
    let mut dirs = fresh();
    let (mut reorgs, mut signatures, mut highest) = (0, 0, 0);
    for kill in 0..kills {
        if kill > 0 && kill % LIVES == 0 {
            println!("{kill} kills, {reorgs} reorgs, highest head {highest}");
            dirs = fresh();
        }
        let (dir, window, reached) = &mut dirs[kill % 2];
        let life = live_and_die(dir.path(), *window, *reached, rng.random_range(3..80));
        (reorgs, signatures) = (reorgs + life.reorgs, signatures + life.signed.len());
        match verify(dir.path()) {
            Verdict::Sound { head } => {
                assert!(
                    head >= life.floor,
                    "kill {kill}: the head is {head}, and {} had been stored",
                    life.floor
                );
                (*reached, highest) = (head, highest.max(head));
            }
            other => panic!("kill {kill}: {other:?}"),
        }
        assert_eq!(
            lost(dir.path(), &life.signed),
            [B256::ZERO; 0],
            "kill {kill}: blocks that peers may have are gone"
        );
    }
    println!(
        "{kills} kills, {reorgs} reorgs, highest head {highest}: 0 inconsistencies; {signatures} blocks logged to be signed: 0 missing"
    );
}

/// All regular files in a folder, as paths relative to it.
fn files(dir: &Path) -> Vec<PathBuf> {
    fn walk(root: &Path, dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
        {
            if entry.is_dir() {
                walk(root, &entry, out);
            } else if entry.is_file() {
                // Sockets are skipped.
                out.push(entry.strip_prefix(root).expect("inside").to_owned());
            }
        }
    }
    let mut out = vec![];
    walk(dir, dir, &mut out);
    out.sort();
    out
}

/// Copies the files of a killed chain. Unused space at the end of journals is cut off.
pub fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        fs::create_dir_all(to.join(&file).parent().expect("a folder")).expect("a folder");
        let mut bytes = fs::read(from.join(&file)).expect("a file");
        if file.extension().is_some_and(|extension| extension == "jnl") {
            let used = bytes
                .iter()
                .rposition(|byte| *byte != 0)
                .map_or(0, |last| last + 1);
            bytes.truncate(used + 64);
        }
        fs::write(to.join(&file), bytes).expect("a file");
    }
}

/// Damages a file in a random way. Returns a description of the damage.
fn damage(dir: &Path, earlier: &Path, file: &Path, rng: &mut StdRng) -> String {
    let path = dir.join(file);
    let mut bytes = fs::read(&path).expect("a file");
    let name = file.display();
    let at = if bytes.is_empty() {
        0
    } else {
        rng.random_range(0..bytes.len())
    };
    let told = match rng.random_range(0..6) {
        0 => {
            bytes.truncate(at);
            format!("{name} cut at {at}")
        }
        1 => {
            let bit = rng.random_range(0..8);
            bytes
                .iter_mut()
                .skip(at)
                .take(1)
                .for_each(|byte| *byte ^= 1 << bit);
            format!("bit {bit} of byte {at} of {name} flipped")
        }
        2 => {
            // A page of zeros, as if the page had never been written to the disk.
            let page = at / 512 * 512;
            bytes
                .iter_mut()
                .skip(page)
                .take(512)
                .for_each(|byte| *byte = 0);
            format!("{name}: 512 bytes from {page} are zeros")
        }
        3 => {
            // Zeros up to the end, as if the end of the file had never been written to the disk.
            bytes.iter_mut().skip(at).for_each(|byte| *byte = 0);
            format!("{name}: zeros from {at}")
        }
        4 => {
            let mut garbage = vec![0; rng.random_range(1..600)];
            rng.fill(&mut garbage[..]);
            bytes.extend_from_slice(&garbage);
            format!("{name}: {} bytes of garbage at its end", garbage.len())
        }
        _ => match fs::read(earlier.join(file)) {
            Ok(old) => {
                bytes = old;
                format!("{name} as it was earlier")
            }
            Err(_) => {
                fs::remove_file(&path).expect("a file to remove");
                return format!("{name} gone");
            }
        },
    };
    fs::write(&path, bytes).expect("a file");
    told
}

/// Simulates lost syncs: a group of files, or all files except a group, get their earlier content
/// back.
fn lose_syncs(dir: &Path, earlier: &Path, all: &[PathBuf], rng: &mut StdRng) -> String {
    let group: &str = [
        "jnl",
        "keyspaces/1/",
        "keyspaces/2/",
        "keyspaces/",
        "chain/",
        "wal/",
        "",
    ]
    .choose(rng)
    .expect("one");
    let inverse = rng.random_bool(0.3);
    let mut count = 0;
    let chosen = |file: &Path| {
        (file.to_string_lossy().contains(group) != inverse) && !file.ends_with("LOCK")
    };
    for file in all.iter().filter(|file| chosen(file)) {
        match fs::read(earlier.join(file)) {
            Ok(old) => fs::write(dir.join(file), old).expect("a file"),
            Err(_) => fs::remove_file(dir.join(file)).expect("a file to remove"),
        }
        count += 1;
    }
    for file in files(earlier)
        .into_iter()
        .filter(|file| !all.contains(file) && chosen(file))
    {
        fs::create_dir_all(dir.join(&file).parent().expect("a folder")).expect("a folder");
        fs::copy(earlier.join(&file), dir.join(&file)).expect("a file");
        count += 1;
    }
    format!(
        "{count} files as they were earlier ({}\"{group}\")",
        if inverse { "not " } else { "" }
    )
}

#[test]
fn damaged_files_never_give_wrong_answers() {
    let mut rng = StdRng::seed_from_u64(seed());
    let cases = size("STARLING_TORN", 12);
    let (mut outcomes, mut done) = (Outcomes::default(), 0);
    while done < cases {
        let (earlier, later) = at_two_moments(&mut rng);
        assert!(
            matches!(verify(later.path()), Verdict::Sound { .. }),
            "the copy is sound"
        );
        let all: Vec<_> = files(later.path())
            .into_iter()
            .filter(|file| !file.ends_with("LOCK"))
            .collect();
        for _ in 0..(cases - done).min(250) {
            let case = tempfile::tempdir().unwrap();
            copy(later.path(), case.path());
            let told = match rng.random_range(0..5) {
                0 => lose_syncs(case.path(), earlier.path(), &all, &mut rng),
                _ => damage(
                    case.path(),
                    earlier.path(),
                    all.choose(&mut rng).expect("files"),
                    &mut rng,
                ),
            };
            outcomes.note(&told, case.path());
            done += 1;
        }
    }
    println!("{cases} damages: {outcomes:?}");
    assert_eq!(
        (outcomes.wrong, outcomes.broken_repairs),
        (0, 0),
        "wrong answers, and repairs that were not what they said"
    );
}

/// Copies of a data directory that has tables and journals, taken at an earlier and a later moment.
fn at_two_moments(rng: &mut StdRng) -> (TempDir, TempDir) {
    let (dir, earlier, later) = (
        world::datadir(),
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
    );
    for _ in 0..2 {
        World::open(dir.path(), Some(40)).extend(rng, 40);
        flush(dir.path());
    }
    for (lines, to) in [(15, &earlier), (25, &later)] {
        live_and_die(dir.path(), 40, 0, lines);
        copy(dir.path(), to.path());
    }
    (earlier, later)
}

/// Numbers of damaged data directories by outcome.
#[derive(Debug, Default)]
struct Outcomes {
    harmless: u32,
    /// Refused directories, by the kind of refusal and the result of `db repair`.
    refused: BTreeMap<String, u32>,
    wrong: u32,
    /// Repairs whose report was wrong.
    broken_repairs: u32,
}

impl Outcomes {
    /// Verifies a damaged directory, and repairs it if the verification is refused. `damage`
    /// describes the damage.
    fn note(&mut self, damage: &str, dir: &Path) {
        match verify(dir) {
            Verdict::Sound { .. } => self.harmless += 1,
            Verdict::Refused(why) => {
                let refused = if why.contains("panicked at") {
                    "by a panic"
                } else {
                    "with a reason"
                };
                let then = self.repair(damage, &why, dir);
                *self
                    .refused
                    .entry(format!("{refused}, {then}"))
                    .or_default() += 1;
            }
            Verdict::Wrong(what) => {
                self.wrong += 1;
                println!("WRONG after {damage}:\n{what}");
            }
        }
    }

    /// Repairs a directory whose verification was refused with the error `why`. After the repair no
    /// value may be wrong, and the repair must have done what it reports.
    fn repair(&mut self, damage: &str, why: &str, dir: &Path) -> &'static str {
        let repair = starling()
            .args(["db", "repair", "--datadir"])
            .arg(dir)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&repair.stderr);
        match (verify(dir), repair.status.success()) {
            (Verdict::Sound { .. }, true) => "sound after db repair",
            (Verdict::Refused(_), false)
                if said.contains("starling init") && !said.contains("panicked at") =>
            {
                "not for db repair"
            }
            (Verdict::Wrong(what), _) => {
                self.wrong += 1;
                println!("WRONG after {damage} and db repair:\n{what}");
                "wrong after db repair"
            }
            (verdict, success) => {
                self.broken_repairs += 1;
                println!(
                    "PROMISE BROKEN after {damage}: {why}\ndb repair, success {success}: {said}\nthen {verdict:?}"
                );
                "not as db repair said"
            }
        }
    }
}

/// Flushes the memtables of a store to tables.
pub fn flush(dir: &Path) {
    let store = Store::open(dir, 4 << 20, None).expect("the store");
    store.flush().expect("a flush");
    store.prune().expect("a compaction");
}
