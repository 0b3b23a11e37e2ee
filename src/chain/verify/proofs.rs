//! Trie history: what the newest blocks must have written of it, its form, and proofs at blocks of the whole window. A node that is put
//! together from it is compared with the reference that leads to it, so what proves well is right.

use super::{Remedy, Report, Tell, history::pick};
use crate::chain::{
    store::{Snapshot, Space, keys, misfit},
    trie::{self, TrieError},
    view::{Overlay, ReadError, RowChange, View},
};
use alloy_primitives::{B256, Bytes};
use std::{collections::BTreeMap, sync::Arc};

/// The newest blocks whose rows are compared one by one: of so many the changed nodes are held in memory.
const NEWEST: u64 = 512;
/// Accounts and slots proven at a sampled block.
const PROVEN: usize = 8;

pub(in crate::chain) fn check(
    snapshot: &Snapshot,
    view: &Arc<View>,
    samples: u64,
    report: &mut Report,
    tell: &mut Tell<'_>,
) {
    let stages = [
        rows(snapshot, report, tell),
        newest(snapshot, report),
        proven(snapshot, view, samples, report, tell),
    ];
    for error in stages.into_iter().filter_map(Result::err) {
        report.add(
            format!("the trie history cannot be read: {}", error.cause()),
            Remedy::Repair,
        );
    }
}

/// The form of all rows that are still of use.
fn rows(snapshot: &Snapshot, report: &mut Report, tell: &mut Tell<'_>) -> Result<(), ReadError> {
    let (oldest, head) = (snapshot.oldest_trie(), snapshot.head().number);
    let mut count = 0u64;
    for row in snapshot.rows(Space::History, b"T") {
        let (key, entry) = row?;
        let number = Snapshot::trie_history_number(&key);
        if number.is_none_or(|number| {
            number > head || (number > oldest && !trie::history::is_entry(&entry))
        }) {
            report.add(
                format!("the row {key} of trie history has no right form, or is above the head"),
                Remedy::Repair,
            );
        }
        count += 1;
        if count.is_multiple_of(65_536) {
            tell("trie history", count, 0);
        }
    }
    report.count("rows of trie history", count);
    Ok(())
}

/// Goes back along the unwind records and makes the rows of each block again.
fn newest(snapshot: &Snapshot, report: &mut Report) -> Result<(), ReadError> {
    let (oldest, head) = (snapshot.oldest_trie(), snapshot.head().number);
    // Rows as they were after the block that is looked at, where later blocks have changed them.
    let mut later = BTreeMap::<Bytes, Option<Bytes>>::new();
    for number in (oldest.max(head.saturating_sub(NEWEST)) + 1..=head).rev() {
        // That one is missing is found elsewhere.
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
                .ok_or_else(|| misfit(number, &key))?;
            later.insert(key.clone(), before.clone());
            overlay.rows.insert(key, RowChange { before, after });
        }
        let mut bytes = 0;
        for (key, entry) in Snapshot::trie_history_of(&overlay, number) {
            bytes += (key.len() + entry.len()) as u64;
            // The window of all proofs may be shorter than that of the message passer's.
            if number > snapshot.oldest_trie_row(&key) && snapshot.history_get(&key)? != Some(entry)
            {
                report.add(
                    format!("the row {key} of trie history is not what block {number} makes it"),
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
                format!("the size of the trie history of block {number} is not what is counted"),
                Remedy::Repair,
            );
        }
    }
    Ok(())
}

/// Proves what a block changed, or if that is not known something at random, at blocks of the window.
fn proven(
    snapshot: &Snapshot,
    view: &Arc<View>,
    samples: u64,
    report: &mut Report,
    tell: &mut Tell<'_>,
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
            .filter(|(key, _)| keys::is_flat(key));
        let mut asked: Vec<Vec<u8>> = changed
            .map(|(key, _)| key[1..].to_vec())
            .take(PROVEN)
            .collect();
        asked.push(B256::random().to_vec());
        for key in asked {
            let (account, slot) = key.split_at(key.len().min(32));
            let (account, slot) = (B256::from_slice(account), B256::try_from(slot).ok());
            match trie::prove_hashed(&state, &account, slot.as_slice()) {
                Ok(_) => {}
                // Said once, and not as what the rows hold: nothing is known about them.
                Err(TrieError::Read(error @ ReadError::Store(_))) => return Err(error),
                Err(error) => report.add(
                    format!("account {account} cannot be proven at block {number}: {error}"),
                    Remedy::Repair,
                ),
            }
        }
        count += 1;
        tell("proofs", count, samples);
    }
    report.count("blocks with proofs", count);
    Ok(())
}
