//! Checks of the state: flat rows against the state root, trie rows against flat rows, codes
//! against their hashes.

use super::{DamageReport, ProgressFn, Remedy};
use crate::chain::{
    rows::{Account, ReadError, account::slot_leaf, keys},
    store::{Snapshot, Space, is_own},
    trie::{StackTrie, row_children, row_hash},
};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, keccak256, map::HashSet};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles};
use std::iter::Peekable;

/// Number of rows between two progress reports.
const REPORT_EVERY: u64 = 4096;

/// Receives the results of a walk over the flat state.
pub(crate) trait Sink {
    type Error: From<ReadError>;

    /// A trie node computed from the flat state, with the row that it must have in the store.
    fn node(&mut self, key: Bytes, row: Bytes) -> Result<(), Self::Error>;

    /// An account, and the storage root computed from its stored slots.
    fn account(
        &mut self,
        hash: B256,
        account: &Account,
        storage_root: B256,
    ) -> Result<(), Self::Error>;

    /// An invalid flat row: its key or value is malformed, or it is a slot without an account.
    fn stray(&mut self, key: &Bytes) -> Result<(), Self::Error>;
}

/// Reads all flat rows in order. Returns the state root computed from them.
pub(crate) fn walk<S: Sink>(snapshot: &Snapshot, sink: &mut S) -> Result<B256, S::Error> {
    let mut slots = snapshot.rows(Space::State, &[keys::SLOT]).peekable();
    let mut trie = StackTrie::default();
    for row in snapshot.rows(Space::State, &[keys::ACCOUNT]) {
        let (key, value) = row?;
        let account = Account::decode(&value)
            .ok()
            .filter(|account| account.encode() == value);
        let (Ok(hash), Some(account)) = (B256::try_from(&key[1..]), account) else {
            sink.stray(&key)?;
            continue;
        };
        let storage_root = storage(&mut slots, Some(hash), sink)?;
        sink.account(hash, &account, storage_root)?;
        trie.insert(hash, value, |path, row| {
            sink.node(keys::state_node(&path), row)
        })?;
    }
    storage(&mut slots, None, sink)?;
    trie.finish(|path, row| sink.node(keys::state_node(&path), row))
}

/// The storage root of `account`, computed from its slots. Slots before these in key order belong
/// to no account and are reported. If `account` is `None`, all remaining slots are reported.
fn storage<S: Sink>(
    slots: &mut Peekable<impl Iterator<Item = Result<(Bytes, Bytes), ReadError>>>,
    account: Option<B256>,
    sink: &mut S,
) -> Result<B256, S::Error> {
    let mut trie = StackTrie::default();
    while let Some(row) = slots.next_if(|row| match (row, account) {
        (Ok((key, _)), Some(account)) => key[1..]
            .get(..32)
            .is_none_or(|owner| owner <= account.as_slice()),
        _ => true,
    }) {
        let (key, value) = row?;
        let parts = key[1..]
            .split_at_checked(32)
            .and_then(|(owner, slot)| Some((owner, B256::try_from(slot).ok()?)));
        let valid = matches!(value.first(), Some(1..)) && value.len() <= 32;
        match (parts, account) {
            (Some((owner, slot)), Some(account)) if owner == account.as_slice() && valid => {
                trie.insert(slot, slot_leaf(&value), |path, row| {
                    sink.node(keys::storage_node(&account, &path), row)
                })?;
            }
            _ => sink.stray(&key)?,
        }
    }
    trie.finish(|path, row| match account {
        Some(account) => sink.node(keys::storage_node(&account, &path), row),
        None => Ok(()),
    })
}

/// Tracks which trie rows of one kind are reachable from a root. The rows are visited in order.
struct Reach {
    /// Length in bytes of the part of a key before the path.
    prefix: usize,
    /// The ancestors of the current row, the root first.
    ancestors: Vec<Ancestor>,
}

/// A reachable row that is an ancestor of the current one.
struct Ancestor {
    /// The part of the row's key before the path. It names the trie.
    trie: Bytes,
    path: Nibbles,
    /// Paths of those children that have rows of their own.
    children: Vec<Nibbles>,
}

impl Reach {
    fn new(tag: u8) -> Self {
        Self {
            prefix: keys::trie_name_length(tag),
            ancestors: vec![],
        }
    }

    /// Whether this trie row is reachable. `root` returns the root hash of the row's trie.
    fn check(
        &mut self,
        key: &Bytes,
        row: &[u8],
        root: impl FnOnce() -> Result<Option<B256>, ReadError>,
    ) -> Result<bool, ReadError> {
        let Some((trie, path)) = key.split_at_checked(self.prefix) else {
            return Ok(false);
        };
        if path.len() >= 64 || path.iter().any(|nibble| *nibble > 15) {
            return Ok(false);
        }
        let path = Nibbles::from_nibbles(path);
        while self
            .ancestors
            .last()
            .is_some_and(|above| above.trie.as_ref() != trie || !path.starts_with(&above.path))
        {
            self.ancestors.pop();
        }
        let reached = match self.ancestors.last() {
            Some(above) => above.children.contains(&path),
            None => {
                path.is_empty()
                    && root()?.is_some_and(|root| row_hash(row).is_ok_and(|hash| hash == root))
            }
        };
        if reached && let Ok(children) = row_children(row, &path) {
            self.ancestors.push(Ancestor {
                trie: key.slice(..self.prefix),
                path,
                children,
            });
        }
        Ok(reached)
    }
}

/// Calls `found` with every trie row that is unreachable. The reachable rows must have been checked
/// before.
pub(crate) fn unreachable<E: From<ReadError>>(
    snapshot: &Snapshot,
    tag: u8,
    state_root: B256,
    mut found: impl FnMut(&Bytes) -> Result<(), E>,
) -> Result<(), E> {
    let mut reach = Reach::new(tag);
    for row in snapshot.rows(Space::State, &[tag]) {
        let (key, row) = row?;
        let root = || match tag {
            keys::STATE_NODE => Ok(Some(state_root)),
            _ => {
                let account = key
                    .get(1..33)
                    .map(|hash| snapshot.state_row(&keys::account(&B256::from_slice(hash))));
                let account = account
                    .transpose()?
                    .flatten()
                    .map(|row| Account::decode(&row))
                    .transpose()?;
                Ok(account.map(|account| account.storage_root))
            }
        };
        if !reach.check(&key, &row, root)? {
            found(&key)?;
        }
    }
    Ok(())
}

/// Compares the stored rows with those computed from the flat state.
struct StateCheck<'a, 'b> {
    snapshot: &'a Snapshot,
    report: &'a mut DamageReport,
    progress: &'a mut ProgressFn<'b>,
    accounts: u64,
    state_nodes: u64,
    storage_nodes: u64,
    codes: HashSet<B256>,
}

impl Sink for StateCheck<'_, '_> {
    type Error = ReadError;

    fn node(&mut self, key: Bytes, row: Bytes) -> Result<(), ReadError> {
        match key[0] {
            keys::STATE_NODE => self.state_nodes += 1,
            _ => self.storage_nodes += 1,
        }
        match self.snapshot.state_row(&key)? {
            Some(stored) if stored == row => {}
            Some(_) => self.report.add(
                format!("the trie row {key} does not follow from the flat state"),
                Remedy::Repair,
            ),
            None => self
                .report
                .add(format!("the trie row {key} is missing"), Remedy::Repair),
        }
        Ok(())
    }

    fn account(
        &mut self,
        hash: B256,
        account: &Account,
        storage_root: B256,
    ) -> Result<(), ReadError> {
        self.accounts += 1;
        if self.accounts.is_multiple_of(REPORT_EVERY) {
            (self.progress)("accounts", self.accounts, 0);
        }
        if storage_root != account.storage_root {
            let have = account.storage_root;
            let what = format!(
                "the slots of account {hash} make the storage root {storage_root}, and the account says {have}"
            );
            self.report.add(what, Remedy::Resync);
        }
        if account.code_hash != KECCAK256_EMPTY
            && self.codes.insert(account.code_hash)
            && self.snapshot.code(&account.code_hash)?.is_none()
        {
            self.report.add(
                format!(
                    "the code {} of account {hash} is missing",
                    account.code_hash
                ),
                Remedy::Resync,
            );
        }
        Ok(())
    }

    fn stray(&mut self, key: &Bytes) -> Result<(), ReadError> {
        self.report.add(
            format!("the flat row {key} is malformed, or a slot without an account"),
            Remedy::Resync,
        );
        Ok(())
    }
}

/// Checks the state. `root` is the state root in the head's header, if the header could be read.
pub(super) fn check(
    snapshot: &Snapshot,
    root: Option<B256>,
    report: &mut DamageReport,
    progress: &mut ProgressFn<'_>,
) {
    let mut check = StateCheck {
        snapshot,
        report,
        progress,
        accounts: 0,
        state_nodes: 0,
        storage_nodes: 0,
        codes: HashSet::default(),
    };
    let computed = walk(snapshot, &mut check);
    let StateCheck {
        accounts,
        state_nodes,
        storage_nodes,
        ..
    } = check;
    report.count("accounts", accounts);
    report.count("trie nodes", state_nodes + storage_nodes);
    match (computed, root) {
        (Err(error), _) => return report.unreadable("the flat state", &error),
        (Ok(computed), Some(root)) if computed != root => {
            report.add(
                format!(
                    "the flat state has the root {computed}, and the head's header says {root}"
                ),
                Remedy::Resync,
            );
        }
        _ => {}
    }
    for (tag, expected) in [
        (keys::STATE_NODE, state_nodes),
        (keys::STORAGE_NODE, storage_nodes),
    ] {
        if let Err(error) = extra(
            snapshot,
            tag,
            expected,
            root.unwrap_or(EMPTY_ROOT_HASH),
            report,
        ) {
            report.unreadable("the trie", &error);
        }
    }
    if let Err(error) = codes(snapshot, report, progress) {
        report.unreadable("the codes", &error);
    }
}

/// Reports trie rows that are not expected. The expected rows have been compared before.
fn extra(
    snapshot: &Snapshot,
    tag: u8,
    expected: u64,
    root: B256,
    report: &mut DamageReport,
) -> Result<(), ReadError> {
    let mut stored = 0;
    for row in snapshot.rows(Space::State, &[tag]) {
        row?;
        stored += 1;
    }
    if stored <= expected {
        return Ok(());
    }
    unreachable(snapshot, tag, root, |key| {
        report.add(
            format!("the trie row {key} belongs to no trie"),
            Remedy::Repair,
        );
        Ok(())
    })
}

fn codes(
    snapshot: &Snapshot,
    report: &mut DamageReport,
    progress: &mut ProgressFn<'_>,
) -> Result<(), ReadError> {
    let mut count = 0;
    for row in snapshot.rows(Space::Code, &[]) {
        let (key, code) = row?;
        // A hash may begin with the byte that marks own rows.
        if key.len() != B256::len_bytes() && is_own(&key) {
            continue;
        }
        if keccak256(&code).as_slice() != key.as_ref() {
            report.add(format!("the code under {key} is another"), Remedy::Resync);
        }
        count += 1;
        if count % REPORT_EVERY == 0 {
            progress("codes", count, 0);
        }
    }
    report.count("codes", count);
    Ok(())
}
