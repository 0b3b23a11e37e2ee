//! Checks blocks against their headers, and the index of blocks and transactions against blocks.

use super::{DamageReport, ProgressFn, Remedy};
use crate::chain::{
    receipt::{block_bloom, receipts_root},
    rows::{ReadError, codec::BlockBody},
    rules::ChainSpec,
    store::{KINDS, Snapshot, Space, is_own},
    view::recover,
};
use alloy_consensus::{
    Header,
    proofs::{calculate_ommers_root, calculate_withdrawals_root},
};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use alloy_trie::root::ordered_trie_root_encoded;
use rayon::prelude::*;

/// Number of blocks that are checked in parallel.
const CHUNK: u64 = 512;

/// The result of checking one block.
#[derive(Default)]
pub(crate) struct CheckedBlock {
    pub transactions: u64,
    pub parent: Option<B256>,
    pub damages: Vec<(String, Remedy)>,
    /// Whether the block's receipts are missing or wrong.
    pub receipts: bool,
    /// Whether an index row of the block is missing or wrong.
    pub index: bool,
    /// The correct senders, if the stored row is wrong or missing. Blocks written by an older
    /// version need no such row.
    pub senders: Option<Vec<Address>>,
}

/// Checks a canonical block. Stops at the first read error.
pub(crate) fn check_block(
    snapshot: &Snapshot,
    spec: &ChainSpec,
    number: u64,
    hash: B256,
) -> Result<CheckedBlock, ReadError> {
    let mut checked = CheckedBlock::default();
    let block = format!("block {number} ({hash})");
    let Some(header) = snapshot.header(number)? else {
        checked
            .damages
            .push((format!("the header of {block} is missing"), Remedy::Resync));
        return Ok(checked);
    };
    if header.hash_slow() != hash || header.number != number {
        checked.damages.push((
            format!("the header of {block} is another's"),
            Remedy::Resync,
        ));
        return Ok(checked);
    }
    checked.parent = Some(header.parent_hash);
    if snapshot.number_of(&hash)? != Some(number) {
        checked.index_damage(format!(
            "the index row from hash to number of {block} is missing or another's"
        ));
    }
    checked.check_body(snapshot, spec, &header, &block)?;
    let fork = spec.at(header.timestamp).op;
    let sound = match snapshot.receipts(number) {
        Ok(Some(receipts)) => {
            receipts_root(&receipts, fork) == header.receipts_root
                && block_bloom(&receipts) == header.logs_bloom
        }
        Ok(None) | Err(ReadError::Damaged(_)) => false,
        Err(error) => return Err(error),
    };
    if !sound {
        checked.receipts = true;
        checked.damages.push((
            format!("the receipts of {block} are missing or another's"),
            Remedy::Repair,
        ));
    }
    Ok(checked)
}

impl CheckedBlock {
    /// Whether the block has damage that cannot be recomputed.
    pub fn is_lost(&self) -> bool {
        self.damages
            .iter()
            .any(|(_, remedy)| *remedy == Remedy::Resync)
    }

    fn index_damage(&mut self, what: String) {
        self.index = true;
        self.damages.push((what, Remedy::Repair));
    }

    /// Checks the transactions of a block, their index rows and their senders.
    fn check_body(
        &mut self,
        snapshot: &Snapshot,
        spec: &ChainSpec,
        header: &Header,
        block: &str,
    ) -> Result<(), ReadError> {
        let number = header.number;
        let body = snapshot.whole_body(number)?;
        if let Some(body) = &body
            && !has_ethereum_parts(spec, header, body)
        {
            self.damages.push((
                format!("the uncles or withdrawals of {block} are missing or another's"),
                Remedy::Resync,
            ));
        }
        let body = body.map(|body| body.transactions);
        let Some(body) =
            body.filter(|body| ordered_trie_root_encoded(body) == header.transactions_root)
        else {
            self.damages.push((
                format!("the transactions of {block} are missing or another's"),
                Remedy::Resync,
            ));
            return Ok(());
        };
        self.transactions = body.len() as u64;
        for (index, raw) in body.iter().enumerate() {
            let hash = keccak256(raw);
            if snapshot.transaction(&hash)? != Some((number, index)) {
                self.index_damage(format!(
                    "the index row of transaction {hash} of {block} is missing or another's"
                ));
            }
        }
        self.senders = corrected_senders(snapshot, number, &body)?;
        if self.senders.is_some() {
            self.damages.push((
                format!("the senders of {block} are missing or another's"),
                Remedy::Repair,
            ));
        }
        Ok(())
    }
}

/// Whether the uncles and withdrawals of a block match its header. On OP chains, whether it has
/// none.
fn has_ethereum_parts(spec: &ChainSpec, header: &Header, body: &BlockBody) -> bool {
    let parts = body.ethereum.as_deref();
    if spec.is_optimism() {
        return parts.is_none();
    }
    let parts = parts.cloned().unwrap_or_default();
    let withdrawals = calculate_withdrawals_root(&parts.withdrawals);
    calculate_ommers_root(&parts.uncles) == header.ommers_hash
        && header
            .withdrawals_root
            .is_none_or(|root| root == withdrawals)
}

/// The correct senders of a block, if its stored row of senders is wrong or missing.
fn corrected_senders(
    snapshot: &Snapshot,
    number: u64,
    body: &[Bytes],
) -> Result<Option<Vec<Address>>, ReadError> {
    let stored = match snapshot.senders(number) {
        Ok(None) if body.is_empty() || number < snapshot.oldest_senders()? => return Ok(None),
        Ok(stored) => stored,
        Err(ReadError::Damaged(_)) => None,
        Err(error) => return Err(error),
    };
    let senders = body
        .iter()
        .map(|raw| recover(number, raw))
        .collect::<Result<Vec<_>, _>>()?;
    Ok((stored.as_ref() != Some(&senders)).then_some(senders))
}

/// Checks all blocks from the genesis block to the head, and the keyspaces that contain blocks and
/// their index. `genesis` is the hash of the genesis block.
pub(super) fn check(
    snapshot: &Snapshot,
    spec: &ChainSpec,
    genesis: B256,
    report: &mut DamageReport,
    progress: &mut ProgressFn<'_>,
) {
    let Some(first) = first_block(snapshot, genesis, report) else {
        return;
    };
    let head = snapshot.head();
    let mut chain = CheckedChain {
        complete: true,
        ..CheckedChain::default()
    };
    for start in (first..=head.number).step_by(CHUNK as usize) {
        let end = head.number.min(start + CHUNK - 1);
        let chunk: Vec<_> = (start..=end)
            .into_par_iter()
            .map(|number| (number, check_number(snapshot, spec, number)))
            .collect();
        for (number, checked) in chunk {
            chain.add(number, checked, report);
        }
        progress("blocks", end - first, head.number - first);
    }
    if chain.below.is_some_and(|hash| hash != head.hash) {
        report.add(
            format!("the index row of the head is not {head}"),
            Remedy::Repair,
        );
    }
    report.count("blocks", chain.blocks);
    report.count("transactions", chain.transactions);
    let all = head.number.saturating_sub(first) + 1;
    // The total number of transactions is known only if every block could be read.
    let transactions = if chain.complete {
        chain.transactions
    } else {
        u64::MAX
    };
    excess(snapshot, all, transactions, report);
    strays(snapshot, report);
}

/// Totals of the blocks checked so far, from the genesis block upwards.
#[derive(Default)]
struct CheckedChain {
    blocks: u64,
    transactions: u64,
    /// Whether all blocks are free of damage that cannot be recomputed.
    complete: bool,
    /// Hash of the previous (lower) block, which must be the parent of the next one.
    below: Option<B256>,
}

impl CheckedChain {
    fn add(
        &mut self,
        number: u64,
        checked: Result<Option<(B256, CheckedBlock)>, ReadError>,
        report: &mut DamageReport,
    ) {
        let (hash, checked) = match checked {
            Ok(Some(checked)) => checked,
            Ok(None) => {
                report.add(
                    format!("the index row from number {number} to hash is missing"),
                    Remedy::Repair,
                );
                (self.below, self.complete) = (None, false);
                return;
            }
            Err(error) => {
                report.unreadable(&format!("block {number}"), &error);
                (self.below, self.complete) = (None, false);
                return;
            }
        };
        self.blocks += 1;
        self.transactions += checked.transactions;
        if let (Some(parent), Some(below)) = (checked.parent, self.below)
            && parent != below
        {
            // A wrong index row may name a block of another branch. If the right block is stored
            // too, a repair finds it by its hash.
            report.add(
                format!("block {number} ({hash}) does not build on block {below}"),
                Remedy::Repair,
            );
        }
        self.below = Some(hash);
        self.complete &= !checked.is_lost();
        checked
            .damages
            .into_iter()
            .for_each(|(what, remedy)| report.add(what, remedy));
    }
}

/// Reports block and index rows that belong to no canonical block.
fn excess(snapshot: &Snapshot, blocks: u64, transactions: u64, report: &mut DamageReport) {
    let index = [blocks, blocks, transactions];
    for (space, expected) in [(Space::Blocks, &[blocks; 4][..]), (Space::Index, &index)] {
        if let Err(error) = extra(snapshot, space, expected, report) {
            report.unreadable(&format!("the keyspace {}", space.name()), &error);
        }
    }
}

/// The number of the genesis block.
fn first_block(snapshot: &Snapshot, genesis: B256, report: &mut DamageReport) -> Option<u64> {
    match snapshot.genesis_header() {
        Ok(Some(header)) => return Some(header.number),
        Ok(None) => report.add(
            format!("the genesis header {genesis} is missing"),
            Remedy::Resync,
        ),
        Err(error) => report.unreadable("the genesis header", &error),
    }
    None
}

/// Checks the canonical block with this number; `None` if the index has no such block.
fn check_number(
    snapshot: &Snapshot,
    spec: &ChainSpec,
    number: u64,
) -> Result<Option<(B256, CheckedBlock)>, ReadError> {
    let Some(hash) = snapshot.hash_of(number)? else {
        return Ok(None);
    };
    Ok(Some((hash, check_block(snapshot, spec, number, hash)?)))
}

/// Reports rows of unknown kinds, and kinds with more rows than the chain's blocks need. The
/// expected numbers are in the order of [`KINDS`].
fn extra(
    snapshot: &Snapshot,
    space: Space,
    expected: &[u64],
    report: &mut DamageReport,
) -> Result<(), ReadError> {
    let mut stored = vec![0; expected.len()];
    for row in snapshot.rows(space, &[]) {
        let (key, _) = row?;
        match space.kind(&key) {
            Some(kind) => stored[kind] += 1,
            None if is_own(&key) => {}
            None => report.add(
                format!("the row {key} of {} is of no known kind", space.name()),
                Remedy::Resync,
            ),
        }
    }
    for ((stored, expected), (_, kind)) in stored
        .into_iter()
        .zip(expected)
        .zip(KINDS[space as usize].1)
    {
        if stored > *expected {
            // Such an excess row could be served as if its block were canonical.
            report.add(
                format!("there are {stored} rows of {kind}, and the chain has {expected}"),
                Remedy::Repair,
            );
        }
    }
    Ok(())
}

/// Reports rows of unknown kinds in the large keyspaces.
fn strays(snapshot: &Snapshot, report: &mut DamageReport) {
    for space in [Space::State, Space::History] {
        let kinds = KINDS[space as usize].1;
        // Every tag must be a known one, so it is enough to look for a first row under each other
        // tag.
        for tag in (0..=u8::MAX).filter(|tag| kinds.iter().all(|(kind, _)| kind != tag)) {
            match snapshot
                .rows(space, &[tag])
                .find(|row| row.as_ref().map_or(true, |(key, _)| !is_own(key)))
            {
                Some(Ok((key, _))) => report.add(
                    format!("the row {key} of {} is of no known kind", space.name()),
                    Remedy::Resync,
                ),
                Some(Err(error)) => {
                    report.unreadable(&format!("the keyspace {}", space.name()), &error)
                }
                None => {}
            }
        }
    }
}
