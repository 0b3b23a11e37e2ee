//! Verification of a store: `starling db verify`.
//!
//! The flat state is the base. Its rows are read once in order, and the state root computed from
//! them must be the one in the head's header. The trie rows must be exactly those that follow from
//! the flat state. Blocks are checked against their headers from the genesis block to the head, and
//! indexes against blocks and receipts. History is checked against unwind records and by executing
//! blocks again, and trie history by proofs. The check reads one snapshot of the whole store, and
//! holds little of it in memory. Unreadable data is a finding, not an error.

mod blocks;
mod history;
mod proofs;
mod report;
mod state;
mod value_index;

pub use report::{Damage, DamageReport, Remedy};
pub(crate) use {
    blocks::{CheckedBlock, check_block},
    history::replay,
    proofs::check as check_proofs,
    state::{Sink, unreachable, walk},
    value_index::check as check_index,
};

use crate::chain::{
    ChainError,
    payload_log::PayloadLog,
    store::{Snapshot, Store, ValueIndex},
    view::View,
};
use std::{path::Path, sync::Arc};

/// Progress callback of a stage: its name, the amount done, and the total if it is known.
pub type ProgressFn<'a> = dyn FnMut(&'static str, u64, u64) + 'a;

/// Numbers of blocks to check where a full check would take too long.
#[derive(Clone, Copy, Debug)]
pub struct Samples {
    /// Number of blocks whose unwind records are compared with state history: the newest, then
    /// random ones.
    pub unwinds: u64,
    /// Number of blocks that are executed again.
    pub replays: u64,
    /// Number of blocks at which accounts and slots are proven.
    pub proofs: u64,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            unwinds: 2048,
            replays: 64,
            proofs: 64,
        }
    }
}

/// Checks the whole store. Returns an error only if nothing can be checked.
pub fn verify(
    store: &Store,
    samples: Samples,
    progress: &mut ProgressFn<'_>,
) -> Result<DamageReport, ChainError> {
    let spec = crate::chain::spec_of(store)?;
    let snapshot = store.snapshot()?;
    let mut report = DamageReport::default();
    check_table_files(store, &mut report, progress);
    let head = snapshot.head();
    report.count("head", head.number);
    let root = match snapshot.header(head.number) {
        Ok(Some(header)) if header.hash_slow() == head.hash => Some(header.state_root),
        Ok(_) => {
            report.add(
                format!("the header of the head, block {head}, is missing or another's"),
                Remedy::Resync,
            );
            None
        }
        Err(error) => {
            report.unreadable("the header of the head", &error);
            None
        }
    };
    state::check(&snapshot, root, &mut report, progress);
    let genesis = store.identity().genesis_hash;
    blocks::check(&snapshot, &spec, genesis, &mut report, progress);
    for index in ValueIndex::ALL {
        value_index::check(&snapshot, index, &mut report, progress);
    }
    let view = |snapshot: Snapshot| View::new(snapshot, vec![], None, None).map(Arc::new);
    match view(snapshot.clone()) {
        Ok(view) => {
            history::check(&snapshot, &view, &spec, samples, &mut report, progress);
            proofs::check(&snapshot, &view, samples.proofs, &mut report, progress);
        }
        Err(error) => report.unreadable("the head", &error),
    }
    Ok(report)
}

/// Compares every table file with its checksum in the manifest.
fn check_table_files(store: &Store, report: &mut DamageReport, progress: &mut ProgressFn<'_>) {
    let mut bytes = 0;
    let checked = store.damaged_tables(|read| {
        bytes += read;
        progress("bytes of table files", bytes, 0);
    });
    match checked {
        Ok(files) => {
            report.count("bytes of table files", bytes);
            for file in files {
                let what = format!("{} cannot be read as what was written", file.display());
                report.add(what, Remedy::Resync);
            }
        }
        Err(error) => report.add(
            format!("the table files cannot be read: {error}"),
            Remedy::Resync,
        ),
    }
}

/// Reads the whole payload log. Each payload has its own checksum.
pub fn verify_payload_log(dir: &Path, report: &mut DamageReport) {
    if !dir.is_dir() {
        return;
    }
    match PayloadLog::check(dir) {
        Ok(payloads) => report.count("logged payloads", payloads),
        // Repair is the remedy: it can put the log aside, since peers have its blocks too.
        Err(error) => report.add(
            format!(
                "the payload log in {} cannot be read: {error}",
                dir.display()
            ),
            Remedy::Repair,
        ),
    }
}

#[cfg(test)]
pub(crate) mod tests;
