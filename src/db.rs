//! `starling db`: maintains the database of a data directory that no node is using. Each action
//! opens the store, processes it and prints its findings. Damage and failed repairs set a non-zero
//! exit code.

pub mod repair;
pub mod stats;
pub mod verify;

use crate::{
    chain::{
        self,
        payload_log::LogError,
        store::{Store, StoreError, rebuild},
    },
    cli::config::{DbAction, DbConfig},
    transfer::JobProgress,
};
use anyhow::{Context, anyhow, bail};
use repair::{PutAside, RepairError, Repaired};
use starling_proto::payload::BlockId;
use stats::{KindSize, Stats};
use std::path::Path;
use verify::{DamageReport, ProgressFn, Remedy, Samples};

/// Runs one action of `starling db`.
pub fn run(config: &DbConfig) -> anyhow::Result<()> {
    let mut stages = StageProgress::default();
    let mut progress = |stage, done, all| stages.set(stage, done, all);
    let dir = &config.datadir;
    if !dir.is_dir() {
        return Err(no_database(dir));
    }
    match config.action {
        DbAction::Verify => {
            let store = open(config)?;
            let mut report = verify::verify(&store, Samples::default(), &mut progress)?;
            verify::verify_payload_log(&chain::payload_log_dir(dir), &mut report);
            stages.end();
            print!("{}", show_report(&report, dir));
            if !report.is_sound() {
                bail!(
                    "the database is damaged ({} {})",
                    report.count,
                    if report.count == 1 {
                        "finding"
                    } else {
                        "findings"
                    }
                );
            }
        }
        DbAction::Stats => {
            let stats = stats::stats(&open(config)?, dir, &mut progress);
            let stats = stats.context("not all rows can be read; `starling db verify` says what is damaged and what to do")?;
            stages.end();
            print!("{}", show_stats(&stats));
        }
        DbAction::Prune => prune(config)?,
        DbAction::Repair => {
            let repaired = repair(config, &mut progress).map_err(|error| next_step(error, dir))?;
            stages.end();
            println!(
                "rewritten: {} trie rows, {} index rows, receipts of {} blocks, senders of {} blocks",
                repaired.trie_rows, repaired.index_rows, repaired.receipts, repaired.senders
            );
            for index in &repaired.indexes {
                println!(
                    "the {} did not match the blocks and has been built again",
                    index.name()
                );
            }
            if repaired.proofs_lost {
                println!(
                    "trie history was damaged and has been dropped: proofs begin again at the head"
                );
            }
            println!("verified: nothing is damaged (old states and proofs by sample)");
        }
    }
    Ok(())
}

/// Runs `starling db prune`.
fn prune(config: &DbConfig) -> anyhow::Result<()> {
    let dir = &config.datadir;
    let before = stats::folder(dir);
    let store = open(config)?;
    let oldest = store.snapshot()?.oldest_state();
    store.keep_states(config.history.states);
    store.keep_proofs(config.history.proofs)?;
    store.keep_logs(config.history.logs);
    store.keep_addresses(config.history.addresses);
    store.prune()?;
    let snapshot = store.snapshot()?;
    println!(
        "oldest proofs: block {}",
        snapshot.oldest_proof(alloy_primitives::Address::ZERO)
    );
    println!(
        "oldest state: block {} (before: {oldest}), head: {}",
        snapshot.oldest_state(),
        snapshot.head()
    );
    drop((snapshot, store));
    println!(
        "disk: {} (before: {})",
        bytes(stats::folder(dir)),
        bytes(before)
    );
    Ok(())
}

/// Runs `starling db repair`. Each step reports what it has done.
fn repair(config: &DbConfig, progress: &mut ProgressFn<'_>) -> Result<Repaired, RepairError> {
    let dir = &config.datadir;
    for cut in repair::cut_journals(dir)? {
        println!(
            "a journal was cut at its last whole batch; the bytes cut off are kept in {}",
            cut.display()
        );
    }
    let (store, rewound) = repair::open(dir, config.cache)?;
    store.keep_logs(config.history.logs);
    if let Some(head) = rewound {
        println!(
            "the keyspaces disagreed on the head: all are rewound to block {head}; blocks above it are fetched again"
        );
    }
    if let Some(PutAside { to, because }) = repair::replace_payload_log(dir)? {
        println!("{because}");
        println!(
            "it is put aside as {}, and a new one is created. Blocks that were not stored yet come from peers again. A sequencer \
             signs nothing until {} is removed: do so when the head has passed every block that was signed here",
            to.display(),
            chain::payload_log::cut_mark(&chain::payload_log_dir(dir)).display()
        );
    }
    repair::repair(&store, progress)
}

fn open(config: &DbConfig) -> anyhow::Result<Store> {
    Store::open(&config.datadir, config.cache, None).map_err(|error| match error {
        StoreError::Missing(dir) => no_database(&dir),
        other => other.into(),
    })
}

/// The error for a directory without a database. The store's own error advises `init`, which is
/// wrong for an operator who has mistyped the path of an existing chain.
fn no_database(dir: &Path) -> anyhow::Error {
    anyhow!(
        "there is no database in {}: give the data directory of the chain with --datadir",
        dir.display()
    )
}

/// Converts the error of a failed repair to a text with the next step.
fn next_step(error: RepairError, dir: &Path) -> anyhow::Error {
    use StoreError::{Database, Gap, Read, Torn, Unproven};
    let what = match error {
        RepairError::Store(StoreError::Missing(dir)) => return no_database(&dir),
        RepairError::Lost(what) => format!("{what}: it cannot be derived from other rows"),
        RepairError::Read(error) | RepairError::Store(Read(error)) => error.cause(),
        RepairError::Chain(error) if error.is_fatal() => error.to_string(),
        // The store's own error text advises `repair`, which is running already.
        RepairError::Store(Torn { heads, .. }) => format!("the head of a keyspace is missing ({heads})"),
        RepairError::Store(error @ (Database(_) | Gap { .. } | Unproven(_))) => error.to_string(),
        RepairError::Log(error) if !matches!(error, LogError::Locked | LogError::NoSpace { .. } | LogError::Poisoned) => {
            error.to_string()
        }
        // If a compaction cannot read a table, all further writes fail.
        RepairError::Store(StoreError::Poisoned) => "a write failed, or a compaction could not read a table: the log above says \
             which. If the cause is the disk, its file system or lack of space, fix that and repeat the repair; acknowledged writes are kept. If \
             a checksum is wrong, the table cannot be derived from others"
            .into(),
        other => return anyhow::Error::from(other).context("not everything can be repaired"),
    };
    anyhow!("not everything can be repaired: {what}. {}", rebuild(dir))
}

/// The progress bar of the current stage.
#[derive(Default)]
struct StageProgress(Option<(&'static str, JobProgress)>);

impl StageProgress {
    fn set(&mut self, stage: &'static str, done: u64, all: u64) {
        if self.0.as_ref().is_none_or(|(other, _)| *other != stage) {
            self.end();
            self.0 = Some((stage, JobProgress::new(stage, all, false)));
        }
        if let Some((_, progress)) = &mut self.0 {
            progress.set(done, String::new);
        }
    }

    fn end(&mut self) {
        if let Some((_, progress)) = self.0.take() {
            progress.end();
        }
    }
}

fn show_report(report: &DamageReport, dir: &Path) -> String {
    let mut text = String::new();
    for (what, count) in &report.checked {
        text.push_str(&format!("{what:<22} {count}\n"));
    }
    for damage in &report.damages {
        text.push_str(&format!("damaged: {}\n", damage.what));
    }
    let named = report.damages.len() as u64;
    if report.count > named {
        text.push_str(&format!("and {} more\n", report.count - named));
    }
    let shown = dir.display();
    let needs_resync = report
        .damages
        .iter()
        .any(|damage| damage.remedy == Remedy::Resync);
    let advice = if report.is_sound() {
        "nothing is damaged\n".to_owned()
    } else if needs_resync {
        format!(
            "next: `starling db repair --datadir {shown}` rewrites what can be derived. If that is not all: {}\n",
            rebuild(dir)
        )
    } else {
        format!("next: `starling db repair --datadir {shown}` rewrites it\n")
    };
    text.push_str(&advice);
    text
}

/// Text about the heads of a store and the oldest blocks of its history.
fn show_bounds(stats: &Stats) -> String {
    let block = |id: Option<BlockId>| id.map_or("none".to_owned(), |id| id.to_string());
    let oldest_address = stats
        .oldest_address
        .map_or("none".to_owned(), |n| n.to_string());
    format!(
        "chain id               {}\ngenesis                {}\nschema                 {}\nhead                   {}\n\
         safe                   {}\nfinalized              {}\noldest state           {}\noldest unwind record   {}\noldest proofs          {}\n\
         of withdrawals         {}\noldest indexed logs    {}\n\
         oldest by address      {}\n\n",
        stats.identity.chain_id,
        stats.identity.genesis_hash,
        stats.schema,
        stats.head,
        block(stats.safe),
        block(stats.finalized),
        stats.oldest_state,
        stats.oldest_unwind,
        stats.oldest_proof,
        stats.oldest_withdrawal,
        stats.oldest_log,
        oldest_address,
    )
}

fn show_stats(stats: &Stats) -> String {
    let mut text = show_bounds(stats);
    text.push_str(&format!(
        "{:<10} {:<20} {:>14} {:>12}\n",
        "keyspace", "kind", "rows", "size"
    ));
    for KindSize {
        keyspace,
        kind,
        rows,
        bytes: size,
    } in &stats.rows
    {
        text.push_str(&format!(
            "{keyspace:<10} {kind:<20} {rows:>14} {:>12}\n",
            bytes(*size)
        ));
    }
    text.push_str("\non the disk\n");
    for (keyspace, size) in &stats.disk {
        text.push_str(&format!("{keyspace:<31} {:>12}\n", bytes(*size)));
    }
    text.push_str(&format!(
        "{:<31} {:>12}\n",
        "journals",
        bytes(stats.journals)
    ));
    let log = stats.payload_log;
    let heights = log.heights.map_or(String::new(), |(low, high)| {
        format!(", heights {low} to {high}")
    });
    let (payloads, guards) = (log.payloads, log.guards);
    let what = format!("payload log ({payloads} payloads{heights}, {guards} guard rows)");
    let disk = bytes(stats.payload_log_disk);
    text.push_str(&format!("{what:<31} {disk:>12}\n"));
    text.push_str(&format!(
        "{:<31} {:>12}\n",
        "whole data directory",
        bytes(stats.whole)
    ));
    text
}

fn bytes(count: u64) -> String {
    indicatif::HumanBytes(count).to_string()
}
