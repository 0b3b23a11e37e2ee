//! Blocks against their headers, indexes against blocks.

use super::{Remedy, Report, Tell};
use crate::chain::{
    receipt::{block_bloom, receipts_root},
    rules::ChainSpec,
    store::{KINDS, Snapshot, Space, is_own},
    view::{ReadError, recover},
};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use alloy_trie::root::ordered_trie_root_encoded;
use rayon::prelude::*;

/// Blocks that are looked at together.
const CHUNK: u64 = 512;

/// What one block adds to the store, and what is wrong with it.
#[derive(Default)]
pub(in crate::chain) struct Checked {
    pub transactions: u64,
    pub parent: Option<B256>,
    pub damages: Vec<(String, Remedy)>,
    /// Its receipts are missing or not its own.
    pub receipts: bool,
    /// An index row of it is missing or another's.
    pub index: bool,
    /// The correct senders, if the stored row has others or is missing. A block that an older version wrote needs no such row.
    pub senders: Option<Vec<Address>>,
}

/// Looks at a canonical block. The first error ends it.
pub(in crate::chain) fn check_block(
    snapshot: &Snapshot,
    spec: &ChainSpec,
    number: u64,
    hash: B256,
) -> Result<Checked, ReadError> {
    let mut checked = Checked::default();
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
    let mut index = |what: String| {
        checked.index = true;
        checked.damages.push((what, Remedy::Repair));
    };
    if snapshot.number_of(&hash)? != Some(number) {
        index(format!(
            "the index row from hash to number of {block} is missing or another's"
        ));
    }
    let mut senders = None;
    match snapshot.body(number)? {
        Some(body) if ordered_trie_root_encoded(&body) == header.transactions_root => {
            checked.transactions = body.len() as u64;
            senders = stray_senders(snapshot, number, &body)?;
            for (place, raw) in body.iter().enumerate() {
                let hash = keccak256(raw);
                if snapshot.transaction(&hash)? != Some((number, place)) {
                    index(format!(
                        "the index row of transaction {hash} of {block} is missing or another's"
                    ));
                }
            }
        }
        _ => checked.damages.push((
            format!("the transactions of {block} are missing or another's"),
            Remedy::Resync,
        )),
    }
    if senders.is_some() {
        checked.senders = senders;
        checked.damages.push((
            format!("the senders of {block} are missing or another's"),
            Remedy::Repair,
        ));
    }
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

/// The correct senders of a block, if its row of senders has others or is missing.
fn stray_senders(
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

/// `genesis` is the hash of the genesis block.
pub(super) fn check(
    snapshot: &Snapshot,
    spec: &ChainSpec,
    genesis: B256,
    report: &mut Report,
    tell: &mut Tell<'_>,
) {
    let first = match snapshot.genesis_header() {
        Ok(Some(header)) => header.number,
        Ok(None) => {
            return report.add(
                format!("the genesis header {genesis} is missing"),
                Remedy::Resync,
            );
        }
        Err(error) => return report.unreadable("the genesis header", &error),
    };
    let head = snapshot.head();
    let (mut blocks, mut transactions, mut complete) = (0, 0, true);
    // What the block below must be.
    let mut below: Option<B256> = None;
    for start in (first..=head.number).step_by(CHUNK as usize) {
        let end = head.number.min(start + CHUNK - 1);
        let chunk: Vec<_> = (start..=end)
            .into_par_iter()
            .map(|number| (number, look(snapshot, spec, number)))
            .collect();
        for (number, checked) in chunk {
            let (hash, checked) = match checked {
                Ok(Some(checked)) => checked,
                Ok(None) => {
                    report.add(
                        format!("the index row from number {number} to hash is missing"),
                        Remedy::Repair,
                    );
                    (below, complete) = (None, false);
                    continue;
                }
                Err(error) => {
                    report.unreadable(&format!("block {number}"), &error);
                    (below, complete) = (None, false);
                    continue;
                }
            };
            blocks += 1;
            transactions += checked.transactions;
            if let (Some(parent), Some(below)) = (checked.parent, below)
                && parent != below
            {
                // If this hash were the right one, the rows of the right block would be there: see repair.
                report.add(
                    format!("block {number} ({hash}) does not stand on block {below}"),
                    Remedy::Repair,
                );
            }
            below = Some(hash);
            complete &= !checked
                .damages
                .iter()
                .any(|(_, remedy)| *remedy == Remedy::Resync);
            checked
                .damages
                .into_iter()
                .for_each(|(what, remedy)| report.add(what, remedy));
        }
        tell("blocks", end - first, head.number - first);
    }
    if below.is_some_and(|hash| hash != head.hash) {
        report.add(
            format!("the index row of the head is not {head}"),
            Remedy::Repair,
        );
    }
    report.count("blocks", blocks);
    report.count("transactions", transactions);
    let all = head.number.saturating_sub(first) + 1;
    // How many transactions there should be is known if every block is.
    let expected = [all, all, if complete { transactions } else { u64::MAX }];
    for (space, expected) in [(Space::Blocks, &[all; 4][..]), (Space::Index, &expected)] {
        if let Err(error) = extra(snapshot, space, expected, report) {
            report.unreadable(&format!("the keyspace {}", space.name()), &error);
        }
    }
    strays(snapshot, report);
}

fn look(
    snapshot: &Snapshot,
    spec: &ChainSpec,
    number: u64,
) -> Result<Option<(B256, Checked)>, ReadError> {
    let Some(hash) = snapshot.hash_of(number)? else {
        return Ok(None);
    };
    Ok(Some((hash, check_block(snapshot, spec, number, hash)?)))
}

/// Names rows of no known kind, and the kinds of which there are more rows than the blocks of the chain have, in the order of [`KINDS`].
fn extra(
    snapshot: &Snapshot,
    space: Space,
    expected: &[u64],
    report: &mut Report,
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
            // A block that is no longer canonical would be served as if it were.
            report.add(
                format!("there are {stored} rows of {kind}, and the chain has {expected}"),
                Remedy::Repair,
            );
        }
    }
    Ok(())
}

/// Rows of no known kind in the keyspaces of many rows.
fn strays(snapshot: &Snapshot, report: &mut Report) {
    for space in [Space::State, Space::History] {
        let kinds = KINDS[space as usize].1;
        // Between the known kinds there is nothing: look at the first row of every other tag.
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
