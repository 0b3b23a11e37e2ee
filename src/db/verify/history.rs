//! Checks of history. Unwind records must lead back through the roots in the headers, and state
//! history must agree with them. Executing a block again on the state before it must produce its
//! receipts and the state after it.

use super::{DamageReport, ProgressFn, Remedy, Samples};
use crate::chain::{
    changes::AccountChange,
    evm::StateError,
    execute::{self, BlockExecution, Execution, TransactError, ValidateError, or_none},
    rows::{Account, ReadError, keys},
    rules::ChainSpec,
    store::{Before, Snapshot, Space, mismatch},
    trie::{TrieError, row_hash},
    view::View,
};
use alloy_primitives::{B256, Bytes};
use alloy_trie::Nibbles;
use rand::seq::index;
use std::{collections::BTreeSet, sync::Arc};

/// Blocks between two progress reports. For rows of history, which are smaller, the number is a
/// thousand times this.
const REPORT_EVERY: u64 = 64;

/// Checks unwind records and state history, and executes a sample of blocks again.
pub(super) fn check(
    snapshot: &Snapshot,
    view: &Arc<View>,
    spec: &ChainSpec,
    samples: Samples,
    report: &mut DamageReport,
    progress: &mut ProgressFn<'_>,
) {
    if let Err(error) = unwinds(snapshot, samples.unwinds, report, progress) {
        report.unreadable("the unwind records", &error);
    }
    if let Err(error) = rows(snapshot, report, progress) {
        report.unreadable("the state history", &error);
    }
    let (oldest, head) = (snapshot.oldest_state(), snapshot.head().number);
    let mut replayed = 0;
    for number in pick(oldest + 1, head, samples.replays) {
        match compare(snapshot, view, spec, number) {
            Ok(None) => {}
            Ok(Some(what)) => report.add(
                format!("block {number}, executed again: {what}"),
                Remedy::Resync,
            ),
            Err(error) => report.unreadable(
                &format!("what block {number} needs to be executed again"),
                &error,
            ),
        }
        replayed += 1;
        progress("replays", replayed, samples.replays);
    }
    report.count("blocks executed again", replayed);
}

/// Picks a sample of block numbers: one half the newest blocks, the other half random.
pub(super) fn pick(first: u64, last: u64, samples: u64) -> BTreeSet<u64> {
    let all = (last + 1).saturating_sub(first);
    if all <= samples {
        return (first..=last).collect();
    }
    let newest = samples / 2;
    let older = all - newest;
    let random = index::sample(
        &mut rand::rng(),
        older as usize,
        (samples - newest) as usize,
    );
    random
        .into_iter()
        .map(|at| first + at as u64)
        .chain(last + 1 - newest..=last)
        .collect()
}

/// Follows the unwind records that are kept, from the head down. None may be missing, and each must
/// lead to the state root of the block below.
fn unwinds(
    snapshot: &Snapshot,
    samples: u64,
    report: &mut DamageReport,
    progress: &mut ProgressFn<'_>,
) -> Result<(), ReadError> {
    let (oldest, head) = (snapshot.oldest_unwind(), snapshot.head().number);
    let compared = pick(oldest.max(1), head, samples);
    let root_key = keys::state_node(&Nibbles::new());
    let mut root_row = snapshot.state_row(&root_key)?;
    let mut count = 0;
    for number in (oldest.max(1)..=head).rev() {
        let Some(record) = snapshot.unwind_record(number)? else {
            report.add(
                format!("the unwind record of block {number} is missing: the chain cannot be unwound below it"),
                Remedy::Resync,
            );
            break;
        };
        if let Some((_, before)) = record.iter().find(|(key, _)| *key == root_key) {
            root_row = before
                .row(root_row.as_ref())
                .ok_or_else(|| mismatch(number, &root_key))?;
        }
        let below = snapshot.header(number - 1)?;
        // A trie with a single leaf has no row at its root.
        if let (Some(row), Some(header)) = (&root_row, below)
            && row_hash(row).ok() != Some(header.state_root)
        {
            let what = format!(
                "the unwind record of block {number} does not lead to the state root below it"
            );
            report.add(what, Remedy::Resync);
        }
        if compared.contains(&number) {
            for (key, before) in record.iter().filter(|(key, _)| keys::is_flat(key)) {
                // State history at or below `oldest_state` may have been pruned.
                if number > snapshot.oldest_state()
                    && snapshot.before(key, number)?.map(Before::Whole).as_ref() != Some(before)
                {
                    let what = format!(
                        "the state history of row {key} at block {number} is not what its unwind record says"
                    );
                    report.add(what, Remedy::Resync);
                }
            }
        }
        count += 1;
        if count % REPORT_EVERY == 0 {
            progress("unwind records", count, head - oldest + 1);
        }
    }
    report.count("unwind records", count);
    Ok(())
}

/// Checks the format of all rows of state history.
fn rows(
    snapshot: &Snapshot,
    report: &mut DamageReport,
    progress: &mut ProgressFn<'_>,
) -> Result<(), ReadError> {
    let head = snapshot.head().number;
    let mut count = 0u64;
    for row in snapshot.rows(Space::History, b"H") {
        let (key, value) = row?;
        let sound = Snapshot::history_row(&key).is_some_and(|(row, number)| {
            let length = match row.first() {
                Some(&keys::ACCOUNT) => 33,
                Some(&keys::TOTAL_DIFFICULTY) => 1,
                _ => 65,
            };
            keys::is_flat(row)
                && row.len() == length
                && number <= head
                && matches!(value.as_ref(), [0] | [1, _, ..])
        });
        if !sound {
            report.add(
                format!("the row {key} of history is malformed, or above the head"),
                Remedy::Resync,
            );
        }
        count += 1;
        if count.is_multiple_of(REPORT_EVERY * 1024) {
            progress("state history", count, 0);
        }
    }
    report.count("rows of state history", count);
    Ok(())
}

/// Executes a stored block again on the state before it, from state history. The inner error is the
/// reason why execution stopped.
pub(crate) fn replay(
    view: &Arc<View>,
    spec: &ChainSpec,
    number: u64,
) -> Result<Result<Execution, String>, ReadError> {
    let parent = view
        .state_at(number.saturating_sub(1))?
        .ok_or(ReadError::Pruned(number.saturating_sub(1)))?;
    let payload = view
        .payload(number)?
        .ok_or_else(|| ReadError::Damaged(format!("block {number} is not whole")))?;
    let mut execution = match BlockExecution::begin(spec, &payload.header, (&parent).into()) {
        Ok(execution) => execution,
        Err(error) => return unreadable(error).map(Err),
    };
    for (index, raw) in payload.transactions.iter().enumerate() {
        let refused = match execute::recover(index, raw) {
            Ok(tx) => match execution.transact(&tx, raw) {
                Ok(_) => continue,
                Err(TransactError::Refused(refused)) => refused.to_string(),
                Err(TransactError::State(error)) => unreadable(error)?,
            },
            Err(invalid) => invalid.to_string(),
        };
        return Ok(Err(format!("transaction {index}: {refused}")));
    }
    match execution.after_transactions(spec, &(&parent).into(), &payload) {
        Ok(()) => {}
        Err(ValidateError::Invalid(error)) => return Ok(Err(error.to_string())),
        Err(ValidateError::Read(error)) => return unreadable(error).map(Err),
    }
    Ok(Ok(execution.finish()))
}

/// The reason why a block cannot be executed. An unreadable state is a [`ReadError`] instead.
fn unreadable(error: StateError) -> Result<String, ReadError> {
    match error {
        StateError::Read(error) | StateError::Trie(TrieError::Read(error)) => Err(error),
        other => Ok(other.to_string()),
    }
}

/// Describes an account for a finding.
fn describe(
    AccountChange {
        nonce,
        balance,
        code_hash,
    }: &AccountChange,
) -> String {
    format!("nonce {nonce}, balance {balance} and code {code_hash}")
}

/// Executes a block again and compares the result with the store. Returns the first difference.
fn compare(
    snapshot: &Snapshot,
    view: &Arc<View>,
    spec: &ChainSpec,
    number: u64,
) -> Result<Option<String>, ReadError> {
    let execution = match replay(view, spec, number)? {
        Ok(execution) => execution,
        Err(reason) => return Ok(Some(reason)),
    };
    // Receipts are checked with the blocks, since they can be repaired.
    let used = view.header_of(number)?.map(|header| header.gas_used);
    if used != Some(execution.gas_used) {
        return Ok(Some(format!(
            "it uses {} gas, and its header says {}",
            execution.gas_used,
            or_none(&used)
        )));
    }
    if let Some(difference) = compare_changes(snapshot, &execution, number)? {
        return Ok(Some(difference));
    }
    // No other row may have changed, as far as the block's unwind record is kept.
    for (key, _) in snapshot
        .unwind_record(number)?
        .into_iter()
        .flatten()
        .filter(|(key, _)| keys::is_flat(key) && *key != keys::total_difficulty())
    {
        let hash = key.get(1..33).map(B256::from_slice).unwrap_or_default();
        if !execution.changes.accounts.contains_key(&hash) {
            return Ok(Some(format!(
                "its unwind record has row {key}, which it does not change"
            )));
        }
    }
    Ok(None)
}

/// The first difference between a block's changes and state history.
fn compare_changes(
    snapshot: &Snapshot,
    execution: &Execution,
    number: u64,
) -> Result<Option<String>, ReadError> {
    for (hash, account) in &execution.changes.accounts {
        let key = keys::account(hash);
        let stored = snapshot
            .state_row_at(&key, number)?
            .map(|row| Account::decode(&row))
            .transpose()?;
        let stored = stored.map(|a| AccountChange {
            nonce: a.nonce,
            balance: a.balance,
            code_hash: a.code_hash,
        });
        if stored != *account {
            let [computed, stored] =
                [account, &stored].map(|account| or_none(&account.as_ref().map(describe)));
            return Ok(Some(format!(
                "account {hash} has {computed} after it, and history says {stored}"
            )));
        }
        for (slot, value) in execution
            .changes
            .storages
            .get(hash)
            .into_iter()
            .flat_map(|storage| &storage.slots)
        {
            let stored = snapshot.state_row_at(&keys::slot(hash, slot), number)?;
            let computed = (!value.is_zero()).then(|| Bytes::from(value.to_be_bytes_trimmed_vec()));
            if stored != computed {
                let [computed, stored] = [computed, stored].map(|value| or_none(&value));
                return Ok(Some(format!(
                    "slot {slot} of account {hash} holds {computed} after it, and history says {stored}"
                )));
            }
        }
    }
    Ok(None)
}
