//! `starling db repair`: recomputes derived rows of a store, as far as the result can be proven.
//! Data that cannot be read or does not match is cut, rewound, put aside or dropped.
//!
//! The steps, in order:
//!
//! 1. Unreadable ends of journals are cut.
//! 2. Keyspaces that disagree on the head are rewound to the lowest head.
//! 3. A payload log that is still damaged is put aside.
//! 4. Trie rows are rebuilt from the flat state, if its root is the one in the head's header.
//! 5. Blocks are checked from the head down: hashes prove headers, headers prove transactions. The
//!    index and the senders are rewritten from them. Receipts come from executing blocks again, and
//!    must match the root in the header.
//! 6. An index of logs or addresses that does not match the blocks is dropped and built again.
//! 7. Damaged trie history is dropped.
//! 8. The store is verified, old states and proofs by sample.
//!
//! Every written row is correct by itself, so an interrupted repair can be repeated.

use crate::{
    chain::{
        self, ChainError,
        payload_log::{LogError, PayloadLog, mark_cut, move_out},
        receipt::receipts_root,
        rows::{Account, ReadError, keys},
        rules::ChainSpec,
        store::{
            DATABASE, IndexStep, Lock, Rewrite, Snapshot, Space, Store, StoreError, ValueIndex,
            check_journals,
        },
        view::View,
    },
    db::verify::{
        CheckedBlock, DamageReport, ProgressFn, Samples, Sink, check_block, check_index,
        check_proofs, replay, unreachable, verify, walk,
    },
};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, keccak256, map::HashSet};
use starling_proto::payload::BlockId;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// Damaged data that cannot be derived from other rows.
    #[error("{0}")]
    Lost(String),
}

/// The changes made by a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Files with the unreadable ends that were cut off from journals.
    pub cut: Vec<PathBuf>,
    pub index_rows: u64,
    /// Number of blocks for which receipts were recomputed.
    pub receipts: u64,
    /// Number of blocks for which senders were recovered again.
    pub senders: u64,
    pub trie_rows: u64,
    /// The rebuilt indexes (log index, address index).
    pub indexes: Vec<ValueIndex>,
    /// Whether trie history was dropped, so that proofs start again at the head.
    pub proofs_lost: bool,
}

/// Cuts the journals in a data directory at the first unreadable byte. Returns the files that keep
/// the cut ends.
pub fn cut_journals(datadir: &Path) -> Result<Vec<PathBuf>, RepairError> {
    let _lock = Lock::take(datadir)?;
    let mut cut = Vec::new();
    for database in [datadir.join(DATABASE), chain::payload_log_dir(datadir)] {
        let io = |source| RepairError::Io {
            path: database.clone(),
            source,
        };
        if database.is_dir()
            && let Some(damaged) = check_journals(&database).map_err(io)?
        {
            if database == chain::payload_log_dir(datadir) {
                mark_cut(&database).map_err(io)?;
            }
            cut.extend(damaged.cut().map_err(io)?);
        }
    }
    Ok(cut)
}

/// A payload log that was put aside.
#[derive(Debug)]
pub struct PutAside {
    pub to: PathBuf,
    pub because: LogError,
}

/// Puts the payload log of a data directory aside if a row cannot be read, and creates a new one.
/// Peers can supply the blocks that are in the log but not in the store. They cannot supply the
/// guard rows, so the marker file is created in the log before anything is moved. The caller has
/// the store open.
pub fn replace_payload_log(datadir: &Path) -> Result<Option<PutAside>, RepairError> {
    let folder = chain::payload_log_dir(datadir);
    if !folder.is_dir() {
        return Ok(None);
    }
    let because = match PayloadLog::check(&folder) {
        Ok(_) => return Ok(None),
        Err(error @ LogError::Locked) => return Err(error.into()),
        Err(error) => error,
    };
    let mut numbered = (1u32..).map(|number| folder.with_extension(format!("damaged-{number}")));
    let to = numbered.find(|path| !path.exists()).unwrap_or_default();
    let io = |source| RepairError::Io {
        path: folder.clone(),
        source,
    };
    mark_cut(&folder).map_err(io)?;
    move_out(&folder, &to).map_err(io)?;
    PayloadLog::check(&folder)?;
    Ok(Some(PutAside { to, because }))
}

/// Opens a store for a repair. If its keyspaces disagreed on the head, rewinds all of them and
/// returns the resulting head.
pub fn open(datadir: &Path, cache: u64) -> Result<(Store, Option<BlockId>), RepairError> {
    Ok(Store::open_to_repair(datadir, cache)?)
}

/// Repairs the store as far as possible, and verifies the whole store.
pub fn repair(store: &Store, progress: &mut ProgressFn<'_>) -> Result<Repaired, RepairError> {
    let spec = chain::spec_of(store)?;
    let snapshot = store.snapshot()?;
    let mut repaired = Repaired {
        trie_rows: trie(store, &snapshot, progress)?,
        ..Default::default()
    };
    let RepairedBlocks {
        index,
        senders,
        receipts,
    } = blocks(store, &snapshot, &spec, progress)?;
    (repaired.index_rows, repaired.senders) = (index, senders);
    if !receipts.is_empty() {
        repaired.receipts = recompute_receipts(store, &spec, &receipts, progress)?;
    }
    for index in ValueIndex::ALL {
        if rebuild_index(store, index, progress)? {
            repaired.indexes.push(index);
        }
    }
    repaired.proofs_lost = proofs(store, progress)?;
    // Old states and unwind records cannot be recomputed. After a rewind across a reorg, the store
    // may contain records of the other branch.
    let report = verify(store, Samples::default(), progress)?;
    if let Some(damage) = report.damages.into_iter().next() {
        return Err(RepairError::Lost(damage.what));
    }
    if store.is_unverified()? {
        store.set_verified()?;
    }
    Ok(repaired)
}

/// Rebuilds an index of logs or addresses if it does not match the blocks. If the rebuild is
/// interrupted, the node continues it in the background.
fn rebuild_index(
    store: &Store,
    index: ValueIndex,
    progress: &mut ProgressFn<'_>,
) -> Result<bool, RepairError> {
    let mut report = DamageReport::default();
    check_index(&store.snapshot()?, index, &mut report, progress);
    if report.is_sound() {
        return Ok(false);
    }
    store.drop_index(index)?;
    let head = store.head().number;
    while let Some(IndexStep { first, goal, .. }) = store.extend_index(index)? {
        progress(
            index.name(),
            head.saturating_sub(first),
            head.saturating_sub(goal),
        );
        if first <= goal {
            break;
        }
    }
    store.sync()?;
    Ok(true)
}

/// Drops damaged trie history, which cannot be recomputed. The window of proofs then starts again
/// at the head, so that no proof in it is wrong or missing.
fn proofs(store: &Store, progress: &mut ProgressFn<'_>) -> Result<bool, RepairError> {
    let snapshot = store.snapshot()?;
    let view = Arc::new(View::new(snapshot.clone(), vec![], None, None)?);
    let mut report = DamageReport::default();
    check_proofs(
        &snapshot,
        &view,
        Samples::default().proofs,
        &mut report,
        progress,
    );
    if !report.is_sound() {
        store.drop_proofs()?;
    }
    Ok(!report.is_sound())
}

/// The changes made by the repair of blocks, and the blocks that still need a repair.
struct RepairedBlocks {
    /// Number of index rows written or removed, and of block rows removed.
    index: u64,
    /// Number of blocks for which senders were written.
    senders: u64,
    /// Number and hash of each block whose receipts do not match its header.
    receipts: Vec<(u64, B256)>,
}

/// Checks every block from the head down to the genesis block. Rewrites the index if it does not
/// match the blocks.
fn blocks(
    store: &Store,
    snapshot: &Snapshot,
    spec: &ChainSpec,
    progress: &mut ProgressFn<'_>,
) -> Result<RepairedBlocks, RepairError> {
    let genesis = store.identity().genesis_hash;
    let head = snapshot.head();
    let mut senders = store.rewrite();
    let (mut at, mut wrong, mut receipts, mut transactions) = (head, false, Vec::new(), 0);
    let first = loop {
        let checked = check_block(snapshot, spec, at.number, at.hash)?;
        let by_number = snapshot.hash_of(at.number)?;
        refuse_lost(&checked)?;
        wrong |= checked.index || by_number != Some(at.hash);
        transactions += checked.transactions;
        if let Some(right) = checked.senders {
            senders.senders(at.number, &right)?;
        }
        if checked.receipts {
            receipts.push((at.number, at.hash));
        }
        progress("blocks", head.number - at.number, head.number);
        if at.hash == genesis {
            break at.number;
        }
        let (Some(parent), Some(below)) = (checked.parent, at.number.checked_sub(1)) else {
            return Err(RepairError::Lost(format!(
                "block {at} does not lead to the genesis block"
            )));
        };
        at = BlockId {
            number: below,
            hash: parent,
        };
    };
    let senders = senders.finish()?;
    let all = head.number - first + 1;
    for (tag, expected) in [(b'n', all), (b'N', all), (b'x', transactions)] {
        wrong |= snapshot.rows(Space::Index, &[tag]).count() as u64 != expected;
    }
    let mut rows = remove_block_strays(store, snapshot, first)?;
    if wrong {
        // Write correct rows first, then remove excess ones, so that an interrupted repair never
        // makes the index worse.
        rows += rewrite_index(store, snapshot, progress)?;
        rows += remove_index_strays(store, head.number, first)?;
    }
    Ok(RepairedBlocks {
        index: rows,
        senders,
        receipts,
    })
}

/// Returns an error if the block has damage that cannot be recomputed.
fn refuse_lost(checked: &CheckedBlock) -> Result<(), RepairError> {
    if !checked.is_lost() {
        return Ok(());
    }
    let what: Vec<_> = checked
        .damages
        .iter()
        .map(|(what, _)| what.as_str())
        .collect();
    Err(RepairError::Lost(what.join("; ")))
}

/// Writes the index rows of all canonical blocks.
fn rewrite_index(
    store: &Store,
    snapshot: &Snapshot,
    progress: &mut ProgressFn<'_>,
) -> Result<u64, RepairError> {
    let (genesis, head) = (store.identity().genesis_hash, snapshot.head());
    let mut rewrite = store.rewrite();
    let mut at = head;
    loop {
        let body = snapshot.body(at.number)?.unwrap_or_default();
        rewrite.index(at.number, at.hash, &body)?;
        if at.hash == genesis {
            break;
        }
        let header = snapshot
            .header(at.number)?
            .ok_or_else(|| RepairError::Lost(format!("the header of block {at}")))?;
        at = BlockId {
            number: at.number.saturating_sub(1),
            hash: header.parent_hash,
        };
        progress("index", head.number - at.number, head.number);
    }
    Ok(rewrite.finish()?)
}

/// Removes index rows of blocks that are not canonical. The rows of canonical blocks are correct
/// already.
fn remove_index_strays(store: &Store, head: u64, first: u64) -> Result<u64, RepairError> {
    let snapshot = store.snapshot()?;
    let mut rewrite = store.rewrite();
    let mut last_body = None;
    for tag in [b'n', b'N', b'x'] {
        for row in snapshot.rows(Space::Index, &[tag]) {
            let (key, value) = row?;
            let number = |bytes: &[u8]| bytes.first_chunk().copied().map(u64::from_be_bytes);
            let right = match tag {
                b'n' => {
                    key.len() == 9
                        && number(&key[1..]).is_some_and(|number| (first..=head).contains(&number))
                }
                b'N' => match number(&value) {
                    Some(number) => snapshot
                        .hash_of(number)?
                        .is_some_and(|hash| *hash == key[1..]),
                    None => false,
                },
                _ => is_at_position(&snapshot, &key[1..], &value, &mut last_body)?,
            };
            if !right {
                rewrite.set(Space::Index, &key, None)?;
            }
        }
    }
    Ok(rewrite.finish()?)
}

/// Whether the transaction with this hash is at the block position that its index row contains.
/// `last_body` caches the number and the transactions of the last block read.
fn is_at_position(
    snapshot: &Snapshot,
    hash: &[u8],
    row: &[u8],
    last_body: &mut Option<(u64, Vec<Bytes>)>,
) -> Result<bool, ReadError> {
    let (Some(block), Some(index)) = (
        row.first_chunk().copied().map(u64::from_be_bytes),
        row.last_chunk().copied().map(u32::from_be_bytes),
    ) else {
        return Ok(false);
    };
    if last_body
        .as_ref()
        .is_none_or(|(number, _)| *number != block)
    {
        *last_body = Some((block, snapshot.body(block)?.unwrap_or_default()));
    }
    let raw = last_body
        .as_ref()
        .and_then(|(_, body)| body.get(index as usize));
    Ok(raw.is_some_and(|raw| *keccak256(raw) == *hash))
}

/// Removes rows of blocks that are not canonical, and rows of an unknown kind.
fn remove_block_strays(store: &Store, snapshot: &Snapshot, first: u64) -> Result<u64, RepairError> {
    let head = snapshot.head();
    let mut rewrite = store.rewrite();
    for row in snapshot.rows(Space::Blocks, &[]) {
        let (key, _) = row?;
        let canonical = |(number, _)| (first..=head.number).contains(&number);
        if Space::Blocks.kind(&key).is_none() || !keys::block_row_parts(&key).is_some_and(canonical)
        {
            rewrite.set(Space::Blocks, &key, None)?;
        }
    }
    Ok(rewrite.finish()?)
}

/// Executes blocks again to recompute their receipts.
fn recompute_receipts(
    store: &Store,
    spec: &ChainSpec,
    blocks: &[(u64, B256)],
    progress: &mut ProgressFn<'_>,
) -> Result<u64, RepairError> {
    // The view needs the index, which has been repaired at this point.
    let view = Arc::new(View::new(store.snapshot()?, vec![], None, None)?);
    let mut rewrite = store.rewrite();
    let mut done = 0;
    for (number, hash) in blocks {
        let lost = |why: String| {
            RepairError::Lost(format!(
                "the receipts of block {number} ({hash}) cannot be recomputed: {why}"
            ))
        };
        let header = view
            .header_of(*number)?
            .ok_or_else(|| lost("its header is missing".into()))?;
        let receipts = if *hash == store.identity().genesis_hash {
            vec![]
        } else {
            match replay(&view, spec, *number) {
                Ok(Ok(execution)) => execution.receipts,
                Ok(Err(reason)) => return Err(lost(reason)),
                Err(ReadError::Pruned(_)) => {
                    return Err(lost("the state before the block is no longer kept".into()));
                }
                Err(error) => return Err(error.into()),
            }
        };
        if receipts_root(&receipts, spec.at(header.timestamp).op) != header.receipts_root {
            return Err(lost("executing the block gives other receipts".into()));
        }
        rewrite.receipts(*number, &receipts)?;
        done += 1;
        progress("receipts", done, blocks.len() as u64);
    }
    rewrite.finish()?;
    Ok(done)
}

/// Rewrites trie rows that differ from those computed from the flat state, and removes unreachable
/// ones.
fn trie(
    store: &Store,
    snapshot: &Snapshot,
    progress: &mut ProgressFn<'_>,
) -> Result<u64, RepairError> {
    let head = snapshot.head();
    let header = snapshot
        .header(head.number)?
        .filter(|header| header.hash_slow() == head.hash);
    let root = header
        .ok_or_else(|| {
            RepairError::Lost(format!(
                "the header of the head, block {head}, is missing or another's"
            ))
        })?
        .state_root;
    // Verify the flat state against the head's header before any row is written.
    let mut check = Rebuild {
        snapshot,
        rewrite: None,
        progress,
        accounts: 0,
        codes: HashSet::default(),
    };
    let computed = walk(snapshot, &mut check)?;
    if computed != root {
        return Err(RepairError::Lost(format!(
            "the flat state has the root {computed}, and the head's header says {root}"
        )));
    }
    let mut rebuild = Rebuild {
        snapshot,
        rewrite: Some(store.rewrite()),
        progress,
        accounts: 0,
        codes: HashSet::default(),
    };
    walk(snapshot, &mut rebuild)?;
    let rows = rebuild.rewrite.map_or(Ok(0), Rewrite::finish)?;
    let snapshot = store.snapshot()?;
    let mut rewrite = store.rewrite();
    for tag in [keys::STATE_NODE, keys::STORAGE_NODE] {
        unreachable(&snapshot, tag, root, |key| {
            Ok::<_, RepairError>(rewrite.set(Space::State, key, None)?)
        })?;
    }
    Ok(rows + rewrite.finish()?)
}

/// Checks the flat rows. If `rewrite` is given, also writes the trie rows that differ.
struct Rebuild<'a, 'b> {
    snapshot: &'a Snapshot,
    rewrite: Option<Rewrite<'a>>,
    progress: &'a mut ProgressFn<'b>,
    accounts: u64,
    codes: HashSet<B256>,
}

impl Sink for Rebuild<'_, '_> {
    type Error = RepairError;

    fn node(&mut self, key: Bytes, row: Bytes) -> Result<(), RepairError> {
        if let Some(rewrite) = &mut self.rewrite
            && self.snapshot.state_row(&key)?.as_ref() != Some(&row)
        {
            rewrite.set(Space::State, &key, Some(&row))?;
        }
        Ok(())
    }

    fn account(
        &mut self,
        hash: B256,
        account: &Account,
        storage_root: B256,
    ) -> Result<(), RepairError> {
        self.accounts += 1;
        if self.accounts.is_multiple_of(4096) {
            (self.progress)("accounts", self.accounts, 0);
        }
        if storage_root != account.storage_root {
            return Err(RepairError::Lost(format!(
                "the slots of account {hash} do not make its storage root"
            )));
        }
        let code = account.code_hash;
        if code != KECCAK256_EMPTY
            && self.codes.insert(code)
            && self
                .snapshot
                .code(&code)?
                .is_none_or(|bytes| keccak256(bytes) != code)
        {
            return Err(RepairError::Lost(format!(
                "the code {code} of account {hash} is missing or another's"
            )));
        }
        Ok(())
    }

    fn stray(&mut self, key: &Bytes) -> Result<(), RepairError> {
        Err(RepairError::Lost(format!(
            "the flat row {key} is malformed, or a slot without an account"
        )))
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod torn_write_tests;
