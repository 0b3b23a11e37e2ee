//! Row keys of the store. Numbers are big-endian, so that the order of keys is the order of blocks.

use alloy_primitives::{B256, Bytes};
use alloy_trie::Nibbles;

/// First byte of the keys in the `state` keyspace, by kind of row.
pub const ACCOUNT: u8 = b'a';
pub const SLOT: u8 = b's';
pub const STATE_NODE: u8 = b't';
pub const STORAGE_NODE: u8 = b'u';
pub const TOTAL_DIFFICULTY: u8 = b'd';

/// Last byte of the keys in `blocks`, by kind of row. The store has one chain, so its blocks are
/// keyed by number: each flush writes them in order, and they are rarely rewritten.
pub(crate) const HEADER: u8 = b'h';
pub(crate) const BODY: u8 = b'b';
pub(crate) const RECEIPTS: u8 = b'r';
pub(crate) const SENDERS: u8 = b's';

/// First byte of the keys of the log index and of the address index in `history`.
pub(crate) const LOG: u8 = b'L';
pub(crate) const PARTICIPANT: u8 = b'A';

/// `a‖keccak(address)` → RLP of nonce, balance, storage root, code hash.
pub fn account(account: &B256) -> Bytes {
    key(ACCOUNT, &[account.as_slice()])
}

/// The prefix of all account rows.
pub fn account_prefix() -> Bytes {
    key(ACCOUNT, &[])
}

/// `s‖keccak(address)‖keccak(slot)` → value, big-endian without leading zeros.
pub fn slot(account: &B256, slot: &B256) -> Bytes {
    key(SLOT, &[account.as_slice(), slot.as_slice()])
}

/// The prefix of an account's slot rows.
pub fn storage_prefix(account: &B256) -> Bytes {
    key(SLOT, &[account.as_slice()])
}

/// `t‖path`, one nibble a byte → row of a node of the state trie.
pub fn state_node(path: &Nibbles) -> Bytes {
    key(STATE_NODE, &[&path.to_vec()])
}

/// `u‖keccak(address)‖path`, one nibble a byte → row of a node of the account's storage trie.
pub fn storage_node(account: &B256, path: &Nibbles) -> Bytes {
    key(STORAGE_NODE, &[account.as_slice(), &path.to_vec()])
}

/// The prefix of the rows of an account's storage trie.
pub fn storage_node_prefix(account: &B256) -> Bytes {
    key(STORAGE_NODE, &[account.as_slice()])
}

/// `d` → total difficulty of the chain, big-endian without leading zeros. Only chains that begin
/// before the merge have this row, and it is not changed after the merge.
pub fn total_difficulty() -> Bytes {
    key(TOTAL_DIFFICULTY, &[])
}

/// Whether this row of `state` is a value, not a trie node: an account, a slot or the total
/// difficulty.
pub fn is_flat(row: &[u8]) -> bool {
    matches!(row.first(), Some(&ACCOUNT | &SLOT | &TOTAL_DIFFICULTY))
}

/// `U‖number` in `history` → the unwind record of the block: the old values of the rows that it
/// changed.
pub(crate) fn unwind(number: u64) -> Bytes {
    key(b'U', &[&number.to_be_bytes()])
}

/// `H‖row key` in `history`: prefix of a state row's history, to which a block number is appended.
pub(crate) fn history_prefix(row: &[u8]) -> Bytes {
    key(b'H', &[row])
}

/// `H‖row key‖number` in `history` → the value of the row before the block.
pub(crate) fn history(row: &[u8], number: u64) -> Bytes {
    key(b'H', &[row, &number.to_be_bytes()])
}

/// Length in bytes of a trie's name in a row key. The name is `t`, or `u‖keccak(address)`.
pub fn trie_name_length(tag: u8) -> usize {
    if tag == STORAGE_NODE { 33 } else { 1 }
}

/// Splits the key of a node's row into the trie's name and the node's path.
fn split_node(node: &[u8]) -> (&[u8], &[u8]) {
    let length = trie_name_length(node.first().copied().unwrap_or_default());
    node.split_at_checked(length).unwrap_or((node, &[]))
}

/// `T‖trie's name‖depth‖path, two nibbles a byte` in `history`: prefix of a node's history, to
/// which a block number is appended.
pub(crate) fn trie_history_prefix(node: &[u8]) -> Bytes {
    let (trie, path) = split_node(node);
    key(b'T', &[trie, &[path.len() as u8], &pack(path)])
}

/// `T‖trie's name‖depth‖path‖number` in `history` → the trie history entry of the node at this path
/// before the block.
pub(crate) fn trie_history(node: &[u8], number: u64) -> Bytes {
    let (trie, path) = split_node(node);
    let (depth, number) = ([path.len() as u8], number.to_be_bytes());
    key(b'T', &[trie, &depth, &pack(path), &number])
}

/// Packs nibbles into bytes; a path of odd length ends with a zero nibble.
fn pack(path: &[u8]) -> Vec<u8> {
    path.chunks(2)
        .map(|pair| pair[0] << 4 | pair.get(1).copied().unwrap_or_default())
        .collect()
}

/// The parts of a trie history key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrieHistoryKey<'a> {
    /// The trie's name: `t`, or `u‖keccak(address)`.
    pub trie: &'a [u8],
    /// Number of nibbles in the path.
    pub depth: usize,
    /// The path, two nibbles a byte.
    pub path: &'a [u8],
    /// The number of the block that changed the node; the entry is from before that block.
    pub number: u64,
}

/// Splits a trie history key; `None` if it is damaged.
pub(crate) fn trie_history_parts(row: &[u8]) -> Option<TrieHistoryKey<'_>> {
    let (rest, number) = row.strip_prefix(b"T")?.split_last_chunk()?;
    let (trie, rest) = rest.split_at_checked(trie_name_length(*rest.first()?))?;
    let (depth, path) = rest.split_first()?;
    let depth = usize::from(*depth);
    let valid = matches!(trie[0], STATE_NODE | STORAGE_NODE)
        && depth <= 64
        && path.len() == depth.div_ceil(2);
    valid.then_some(TrieHistoryKey {
        trie,
        depth,
        path,
        number: u64::from_be_bytes(*number),
    })
}

/// Prefix of the rows of one value in an index: the index's tag and 8 bytes of the value's hash.
pub(crate) type ValuePrefix = [u8; 9];

/// `L‖first 8 bytes of keccak(position‖value)` in `history`: prefix of the log index's rows for a
/// value, to which a block number is appended. Position 0 is the address, 1 to 4 are the topics.
/// The address index has the tag `A` and only position 0. Two values whose 8 bytes are equal share
/// their rows, so readers check each block.
pub(crate) fn value_prefix(tag: u8, value: &IndexedValue) -> ValuePrefix {
    let hash = alloy_primitives::keccak256(value);
    std::array::from_fn(|at| if at == 0 { tag } else { hash[at - 1] })
}

/// A position and the value there: a topic, or an address padded with leading zeros.
pub(crate) type IndexedValue = [u8; 33];

pub(crate) fn indexed_value(position: usize, value: &B256) -> IndexedValue {
    std::array::from_fn(|at| {
        if at == 0 {
            position as u8
        } else {
            value[at - 1]
        }
    })
}

/// `L‖8 bytes of a value's hash‖number` in `history` → nothing: the block has logs with this value.
/// The tag `A` instead of `L` is for the address index.
pub(crate) fn value_row(prefix: &ValuePrefix, number: u64) -> Bytes {
    [&prefix[..], &number.to_be_bytes()].concat().into()
}

/// The block number in the key of an index row; `None` if the key is damaged.
pub(crate) fn value_row_number(row: &[u8]) -> Option<u64> {
    let (prefix, number) = row.split_last_chunk()?;
    let valid = prefix.len() == size_of::<ValuePrefix>() && matches!(prefix[0], LOG | PARTICIPANT);
    valid.then_some(u64::from_be_bytes(*number))
}

/// `B‖number` in `history` → bytes of trie history written up to and including this block.
pub(crate) fn trie_history_bytes(number: u64) -> Bytes {
    key(b'B', &[&number.to_be_bytes()])
}

/// `number‖kind` in `blocks`. Kind `b` is the body, `h` the RLP of the header, `r` the receipts,
/// `s` the senders. A body is the RLP list of raw transactions, followed by the RLP of uncles and
/// withdrawals if there are any.
pub(crate) fn block_row(number: u64, kind: u8) -> Bytes {
    [&number.to_be_bytes()[..], &[kind]].concat().into()
}

/// The block number and the kind in the key of a row in `blocks`.
pub(crate) fn block_row_parts(key: &[u8]) -> Option<(u64, u8)> {
    let (number, kind) = key.split_first_chunk()?;
    let &[kind] = kind else { return None };
    Some((u64::from_be_bytes(*number), kind))
}

pub(crate) fn header(number: u64) -> Bytes {
    block_row(number, HEADER)
}

pub(crate) fn body(number: u64) -> Bytes {
    block_row(number, BODY)
}

pub(crate) fn receipts(number: u64) -> Bytes {
    block_row(number, RECEIPTS)
}

/// Key of a block's senders. The row is absent for blocks without transactions, and for blocks that
/// versions before schema 4 wrote.
pub(crate) fn senders(number: u64) -> Bytes {
    block_row(number, SENDERS)
}

/// `n‖number` in `index` → hash of the canonical block.
pub(crate) fn hash_of(number: u64) -> Bytes {
    key(b'n', &[&number.to_be_bytes()])
}

/// `N‖hash` in `index` → number of the canonical block.
pub(crate) fn number_of(hash: &B256) -> Bytes {
    key(b'N', &[hash.as_slice()])
}

/// `x‖transaction hash` in `index` → block number and index in the block.
pub(crate) fn transaction(hash: &B256) -> Bytes {
    key(b'x', &[hash.as_slice()])
}

fn key(tag: u8, parts: &[&[u8]]) -> Bytes {
    let mut key = Vec::with_capacity(1 + parts.iter().map(|p| p.len()).sum::<usize>());
    key.push(tag);
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key.into()
}

#[cfg(test)]
mod tests;
