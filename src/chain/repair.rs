//! `starling db repair`: computes again what follows from the rest of a store, as far as that can be proven, and nothing else.
//!
//! First the journals are cut where they can no longer be read, keyspaces that disagree then are taken back to where they agree, and a
//! payload log that is damaged beyond that is put aside. Then, block by block from the head down, hashes prove headers, headers
//! prove transactions, and with both the index is written anew; receipts come from executing blocks again and must have the root that
//! the header says. Trie rows come from the flat state if its root is the header's. Trie history that is damaged is let go. Every write
//! is right by itself, so a repair that is interrupted can be repeated. In the end the store is verified, old states and
//! proofs by sample: a repair that succeeds leaves nothing damaged that this finds.

use crate::chain::{
    self, ChainError,
    payload_log::{LogError, PayloadLog, mark_cut, move_out},
    receipt::receipts_root,
    rules::ChainSpec,
    store::{DATABASE, Lock, Rewrite, Snapshot, Space, Store, StoreError, check_journals, keys},
    verify::{
        Report, Samples, Sink, Tell, check_block, check_proofs, replay, unreachable, verify, walk,
    },
    view::{Account, ReadError, View},
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
    /// It follows from nothing else here.
    #[error("{0}")]
    Lost(String),
}

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Where the ends of journals are kept that were cut off.
    pub cut: Vec<PathBuf>,
    pub index_rows: u64,
    /// Blocks whose receipts were made again.
    pub receipts: u64,
    /// Blocks whose senders were recovered again.
    pub senders: u64,
    pub trie_rows: u64,
    /// Whether trie history was let go: proofs begin anew at the head.
    pub proofs_lost: bool,
}

/// Cuts the journals of a data directory that cannot be read to their ends.
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

/// Puts the payload log of a data directory aside if not all of it can be read, and begins a new one: what it held of blocks that are
/// not stored is with the peers. What was signed here is not, so the new one is marked before anything is moved. The caller has the
/// store open.
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

/// Opens a store to repair it. If its keyspaces disagreed on the head: the head that all are taken back to.
pub fn open(datadir: &Path, cache: u64) -> Result<(Store, Option<BlockId>), RepairError> {
    Ok(Store::open_to_repair(datadir, cache)?)
}

/// Puts right what can be, and verifies all of it.
pub fn repair(store: &Store, tell: &mut Tell<'_>) -> Result<Repaired, RepairError> {
    let spec = chain::spec_of(store)?;
    let snapshot = store.snapshot()?;
    let mut repaired = Repaired {
        trie_rows: trie(store, &snapshot, tell)?,
        ..Default::default()
    };
    let RepairedBlocks {
        index,
        senders,
        receipts,
    } = blocks(store, &snapshot, &spec, tell)?;
    (repaired.index_rows, repaired.senders) = (index, senders);
    if !receipts.is_empty() {
        repaired.receipts = make_receipts(store, &spec, &receipts, tell)?;
    }
    repaired.proofs_lost = proofs(store, tell)?;
    // Old states and unwind records follow from nothing, and one that was taken back across a change of branch may hold records of the
    // other one.
    let report = verify(store, Samples::default(), tell)?;
    if let Some(damage) = report.damages.into_iter().next() {
        return Err(RepairError::Lost(damage.what));
    }
    if store.is_unproven()? {
        store.proven()?;
    }
    Ok(repaired)
}

/// Trie history follows from nothing else. If it is damaged the window begins anew, so that no proof is wrong or missing inside it.
fn proofs(store: &Store, tell: &mut Tell<'_>) -> Result<bool, RepairError> {
    let snapshot = store.snapshot()?;
    let view = Arc::new(View::new(snapshot.clone(), vec![], None, None)?);
    let mut report = Report::default();
    check_proofs(
        &snapshot,
        &view,
        Samples::default().proofs,
        &mut report,
        tell,
    );
    if !report.is_sound() {
        store.forget_proofs()?;
    }
    Ok(!report.is_sound())
}

/// Rows written by the repair of blocks, and blocks that still need a repair.
struct RepairedBlocks {
    /// Index rows written.
    index: u64,
    /// Blocks whose senders were written.
    senders: u64,
    /// Number and hash of each block whose receipts do not match its header.
    receipts: Vec<(u64, B256)>,
}

/// Checks every block from the head down to the genesis block, and rewrites the index if it does not match them.
fn blocks(
    store: &Store,
    snapshot: &Snapshot,
    spec: &ChainSpec,
    tell: &mut Tell<'_>,
) -> Result<RepairedBlocks, RepairError> {
    let genesis = store.identity().genesis_hash;
    let head = snapshot.head();
    let mut senders = store.rewrite();
    let (mut at, mut wrong, mut receipts, mut transactions) = (head, false, Vec::new(), 0);
    let first = loop {
        let checked = check_block(snapshot, spec, at.number, at.hash)?;
        let by_number = snapshot.hash_of(at.number)?;
        if checked
            .damages
            .iter()
            .any(|(_, remedy)| *remedy == super::verify::Remedy::Resync)
        {
            let what = checked
                .damages
                .into_iter()
                .map(|(what, _)| what)
                .collect::<Vec<_>>()
                .join("; ");
            return Err(RepairError::Lost(what));
        }
        wrong |= checked.index || by_number != Some(at.hash);
        transactions += checked.transactions;
        if let Some(right) = checked.senders {
            senders.senders(at.number, &right)?;
        }
        if checked.receipts {
            receipts.push((at.number, at.hash));
        }
        tell("blocks", head.number - at.number, head.number);
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
    let mut rows = strays(store, snapshot, first)?;
    if wrong {
        // First what is right, then what is too much: interrupted, it is no worse than before.
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
            tell("index", head.number - at.number, head.number);
        }
        rows += rewrite.finish()?;
        rows += index_strays(store, head.number, first)?;
    }
    Ok(RepairedBlocks {
        index: rows,
        senders,
        receipts,
    })
}

/// Removes rows of the index that lead to no canonical block. Those of canonical blocks are right.
fn index_strays(store: &Store, head: u64, first: u64) -> Result<u64, RepairError> {
    let snapshot = store.snapshot()?;
    let mut rewrite = store.rewrite();
    let mut body: Option<(u64, Vec<Bytes>)> = None;
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
                _ => {
                    let (block, index) = (
                        number(&value),
                        value.last_chunk().copied().map(u32::from_be_bytes),
                    );
                    match (block, index) {
                        (Some(block), Some(index)) => {
                            if body.as_ref().is_none_or(|(number, _)| *number != block) {
                                body = Some((block, snapshot.body(block)?.unwrap_or_default()));
                            }
                            let raw = body.as_ref().and_then(|(_, body)| body.get(index as usize));
                            raw.is_some_and(|raw| *keccak256(raw) == key[1..])
                        }
                        _ => false,
                    }
                }
            };
            if !right {
                rewrite.set(Space::Index, &key, None)?;
            }
        }
    }
    Ok(rewrite.finish()?)
}

/// Removes rows of blocks that are not on the chain, and what is no such row.
fn strays(store: &Store, snapshot: &Snapshot, first: u64) -> Result<u64, RepairError> {
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

/// Executes blocks again for their receipts.
fn make_receipts(
    store: &Store,
    spec: &ChainSpec,
    blocks: &[(u64, B256)],
    tell: &mut Tell<'_>,
) -> Result<u64, RepairError> {
    // The index is right now.
    let view = Arc::new(View::new(store.snapshot()?, vec![], None, None)?);
    let mut rewrite = store.rewrite();
    let mut done = 0;
    for (number, hash) in blocks {
        let lost = |why: String| {
            RepairError::Lost(format!(
                "the receipts of block {number} ({hash}) cannot be made again: {why}"
            ))
        };
        let header = view
            .header_of(*number)?
            .ok_or_else(|| lost("its header is missing".into()))?;
        let receipts = match *hash == store.identity().genesis_hash {
            true => vec![],
            false => match replay(&view, spec, *number) {
                Ok(Ok(execution)) => execution.receipts,
                Ok(Err(reason)) => return Err(lost(reason)),
                Err(ReadError::Pruned(_)) => {
                    return Err(lost("the state before it is no longer kept".into()));
                }
                Err(error) => return Err(error.into()),
            },
        };
        if receipts_root(&receipts, spec.at(header.timestamp).op) != header.receipts_root {
            return Err(lost("executing it gives others".into()));
        }
        rewrite.receipts(*number, &receipts)?;
        done += 1;
        tell("receipts", done, blocks.len() as u64);
    }
    rewrite.finish()?;
    Ok(done)
}

/// Makes the rows of the tries anew where they are not what the flat state gives.
fn trie(store: &Store, snapshot: &Snapshot, tell: &mut Tell<'_>) -> Result<u64, RepairError> {
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
    // Nothing is written before the flat state is proven.
    let mut proof = Rebuild {
        snapshot,
        rewrite: None,
        tell,
        accounts: 0,
        codes: HashSet::default(),
    };
    let made = walk(snapshot, &mut proof)?;
    if made != root {
        return Err(RepairError::Lost(format!(
            "the flat state has the root {made}, and the head's header says {root}"
        )));
    }
    let mut rebuild = Rebuild {
        snapshot,
        rewrite: Some(store.rewrite()),
        tell,
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

/// Proves the flat rows and, if it may, writes the trie rows that differ.
struct Rebuild<'a, 'b> {
    snapshot: &'a Snapshot,
    rewrite: Option<Rewrite<'a>>,
    tell: &'a mut Tell<'b>,
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
            (self.tell)("accounts", self.accounts, 0);
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
            "the flat row {key} is no account's, or has no right form"
        )))
    }
}

#[cfg(test)]
mod tests;
