//! Checks of trie history: the rows that the newest blocks must have written, the format of all
//! rows, and proofs at blocks over the whole window. A node assembled from trie history is compared
//! with the hash in its parent node, so a valid proof is correct.

use super::{DamageReport, ProgressFn, Remedy, history::pick};
use crate::chain::{
    rows::{Overlay, ReadError, RowChange, keys},
    store::{Snapshot, Space, mismatch},
    trie::{self, TrieError},
    view::View,
};
use alloy_primitives::{B256, Bytes};
use std::{collections::BTreeMap, sync::Arc};

/// Number of newest blocks whose rows are compared one by one. Their changed nodes are kept in
/// memory.
const NEWEST: u64 = 512;
/// Maximum number of changed accounts and slots proven at each sampled block.
const PROVEN: usize = 8;

pub(crate) fn check(
    snapshot: &Snapshot,
    view: &Arc<View>,
    samples: u64,
    report: &mut DamageReport,
    progress: &mut ProgressFn<'_>,
) {
    let stages = [
        rows(snapshot, report, progress),
        newest(snapshot, report),
        proven(snapshot, view, samples, report, progress),
    ];
    for error in stages.into_iter().filter_map(Result::err) {
        report.add(
            format!("the trie history cannot be read: {}", error.cause()),
            Remedy::Repair,
        );
    }
}

/// Checks the format of all rows that are still in use.
fn rows(
    snapshot: &Snapshot,
    report: &mut DamageReport,
    progress: &mut ProgressFn<'_>,
) -> Result<(), ReadError> {
    let (oldest, head) = (snapshot.oldest_trie(), snapshot.head().number);
    let mut count = 0u64;
    for row in snapshot.rows(Space::History, b"T") {
        let (key, entry) = row?;
        let number = Snapshot::trie_history_number(&key);
        if number.is_none_or(|number| {
            number > head || (number > oldest && !trie::history::is_entry(&entry))
        }) {
            report.add(
                format!("the row {key} of trie history is malformed, or above the head"),
                Remedy::Repair,
            );
        }
        count += 1;
        if count.is_multiple_of(65_536) {
            progress("trie history", count, 0);
        }
    }
    report.count("rows of trie history", count);
    Ok(())
}

/// Follows the unwind records from the head down, and recomputes the trie history rows of each
/// block.
fn newest(snapshot: &Snapshot, report: &mut DamageReport) -> Result<(), ReadError> {
    let (oldest, head) = (snapshot.oldest_trie(), snapshot.head().number);
    // Values of rows after the current block, for rows that later blocks have changed.
    let mut later = BTreeMap::<Bytes, Option<Bytes>>::new();
    for number in (oldest.max(head.saturating_sub(NEWEST)) + 1..=head).rev() {
        // A missing unwind record is reported by the check of history.
        let Some(record) = snapshot.unwind_record(number)? else {
            break;
        };
        let mut overlay = Overlay::default();
        for (key, before) in record.into_iter().filter(|(key, _)| !keys::is_flat(key)) {
            let after = later
                .remove(&key)
                .map_or_else(|| snapshot.state_row(&key), Ok)?;
            let before = before
                .row(after.as_ref())
                .ok_or_else(|| mismatch(number, &key))?;
            later.insert(key.clone(), before.clone());
            overlay.rows.insert(key, RowChange { before, after });
        }
        let mut bytes = 0;
        for (key, entry) in Snapshot::trie_history_of(&overlay, number) {
            bytes += (key.len() + entry.len()) as u64;
            // Compare only rows inside their window: for most tries it may be shorter than for
            // `L2ToL1MessagePasser`.
            if number > snapshot.oldest_trie_row(&key) && snapshot.history_get(&key)? != Some(entry)
            {
                report.add(
                    format!("the row {key} of trie history is not what block {number} wrote"),
                    Remedy::Repair,
                );
            }
        }
        let below = snapshot.trie_history_mark(number - 1)?;
        let sound = below.is_some() || number - 1 == oldest;
        if !sound
            || snapshot.trie_history_mark(number)?
                != Some(below.unwrap_or_default().wrapping_add(bytes))
        {
            report.add(
                format!("the size of the trie history of block {number} does not match its rows"),
                Remedy::Repair,
            );
        }
    }
    Ok(())
}

/// Proves accounts and slots at blocks of the window: some that the block changed, if its unwind
/// record is kept, and one random account.
fn proven(
    snapshot: &Snapshot,
    view: &Arc<View>,
    samples: u64,
    report: &mut DamageReport,
    progress: &mut ProgressFn<'_>,
) -> Result<(), ReadError> {
    let (oldest, head) = (
        snapshot.oldest_proof(alloy_primitives::Address::ZERO),
        snapshot.head().number,
    );
    let mut count = 0;
    for number in pick(oldest, head, samples) {
        let Some(state) = view.state_at(number)? else {
            continue;
        };
        let changed = snapshot
            .unwind_record(number)?
            .into_iter()
            .flatten()
            .filter(|(key, _)| keys::is_flat(key) && *key != keys::total_difficulty());
        let mut keys_to_prove: Vec<Vec<u8>> = changed
            .map(|(key, _)| key[1..].to_vec())
            .take(PROVEN)
            .collect();
        keys_to_prove.push(B256::random().to_vec());
        for key in keys_to_prove {
            let (account, slot) = key.split_at(key.len().min(32));
            let (account, slot) = (B256::from_slice(account), B256::try_from(slot).ok());
            match state.prove_hashed(&account, slot.as_slice()) {
                Ok(_) => {}
                // An unreadable row is reported once by the caller. It is not counted as damage of
                // a proof, since the contents of the row are unknown.
                Err(TrieError::Read(error @ ReadError::Store(_))) => return Err(error),
                Err(error) => report.add(
                    format!("account {account} cannot be proven at block {number}: {error}"),
                    Remedy::Repair,
                ),
            }
        }
        count += 1;
        progress("proofs", count, samples);
    }
    report.count("blocks with proofs", count);
    Ok(())
}
