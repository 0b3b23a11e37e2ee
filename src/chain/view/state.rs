//! The state after one block of a view: accounts, slots, codes and trie nodes.
//!
//! The state at or above the newest stored block comes from the view's blocks and its snapshot. The
//! state at a lower block comes from state history and trie history.

use crate::chain::{
    changes::{Changes, KeyName},
    rows::{Account, ReadError, account::decode_slot, keys},
    trie::{self, AccountProof, RowIter, StateReads, StateRows, TrieError, Update},
    view::{View, row_index::Found},
};
use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use starling_proto::payload::Payload;
use std::{collections::HashMap, iter::Peekable, ops::Bound, sync::Arc};

/// The block after which a state is read.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    /// The block that is reached after this many of the view's blocks.
    Tip(usize),
    /// This stored block, whose state is read from state history and trie history.
    Stored(u64),
}

/// The state after one block of a view. Cheap to clone; execution uses it as revm's database.
#[derive(Clone)]
pub struct State {
    view: Arc<View>,
    header: Arc<Header>,
    at: At,
}

impl State {
    pub(super) fn new(view: Arc<View>, header: Arc<Header>, at: At) -> Self {
        Self { view, header, at }
    }

    /// The header of the block that results in this state.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The hash of the block that results in this state.
    pub fn hash(&self) -> B256 {
        match self.at {
            At::Tip(blocks) if blocks == self.view.blocks.len() => self.view.head().hash,
            _ => self.header.hash_slow(),
        }
    }

    pub fn account(&self, address: Address) -> Result<Option<Account>, ReadError> {
        self.row(&keys::account(&keccak256(address)))?
            .map(|row| Account::decode(&row))
            .transpose()
    }

    /// The value of a storage slot; zero if the slot does not exist.
    pub fn storage(&self, address: Address, slot: U256) -> Result<U256, ReadError> {
        let row = self.row(&keys::slot(
            &keccak256(address),
            &keccak256(B256::from(slot)),
        ))?;
        row.map_or(Ok(U256::ZERO), |row| decode_slot(&row))
    }

    pub fn code(&self, hash: B256) -> Result<Option<Bytes>, ReadError> {
        let codes = self
            .view
            .blocks
            .iter()
            .rev()
            .flat_map(|block| &block.overlay.codes);
        match codes.into_iter().find(|(other, _)| *other == hash) {
            Some((_, code)) => Ok(Some(code.clone())),
            None => self.view.snapshot.code(&hash),
        }
    }

    /// The addresses and slots whose hashes are the keys of the state, if the store keeps them.
    pub fn names(&self) -> KeyNames {
        let view = self.view.clone();
        if !view.snapshot.keeps_names() {
            return KeyNames::default();
        }
        let names = view.blocks.iter().flat_map(|block| &block.overlay.names);
        KeyNames {
            unstored: names.map(|name| (name.hash(), *name)).collect(),
            view: Some(view),
        }
    }

    /// The hash of an ancestor of this block or of the block itself (BLOCKHASH); `None` above the
    /// block.
    pub fn block_hash(&self, number: u64) -> Result<Option<B256>, ReadError> {
        if number > self.header.number {
            Ok(None)
        } else {
            self.view.hash_of(number)
        }
    }

    /// An ancestor of this block or the block itself; `None` above the block.
    pub fn ancestor(&self, number: u64) -> Result<Option<Arc<Payload>>, ReadError> {
        if number > self.header.number {
            Ok(None)
        } else {
            self.view.payload(number)
        }
    }

    /// A raw row of the `state` keyspace (see [`keys`]). Below the newest stored block, trie nodes
    /// are reconstructed from trie history.
    pub fn row(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        let blocks = match self.at {
            At::Tip(blocks) => blocks,
            At::Stored(number) => {
                self.check_kept(key, number)?;
                return if keys::is_flat(key) {
                    self.view.snapshot.state_row_at(key, number)
                } else {
                    self.view.snapshot.node_row_at(key, number)
                };
            }
        };
        let base = self.view.base.number;
        match self.view.rows.get(key, base, base + blocks as u64) {
            Found::Written(value) => return Ok(value),
            Found::Unchanged => {}
            Found::Unknown => {
                let blocks = self.view.blocks[..blocks].iter().rev();
                if let Some(row) = blocks
                    .filter_map(|block| block.overlay.rows.get(key))
                    .next()
                {
                    return Ok(row.after.clone());
                }
            }
        }
        match self.view.unwound.rows.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.view.snapshot.state_row(key),
        }
    }

    /// The rows with this prefix, at or after key `from`, ascending, loaded lazily. Below the
    /// newest stored block only flat rows can be scanned.
    pub fn scan(&self, prefix: &[u8], from: &[u8]) -> Result<Scan<'_>, ReadError> {
        let from = from.max(prefix);
        match self.at {
            At::Tip(blocks) => Ok(self.scan_tip(blocks, prefix, from)),
            At::Stored(number) => self.scan_history(number, prefix, from),
        }
    }

    /// Scans the rows as they are after the first `blocks` blocks of the view.
    fn scan_tip(&self, blocks: usize, prefix: &[u8], from: &[u8]) -> Scan<'_> {
        let View {
            snapshot, unwound, ..
        } = &*self.view;
        let range = (Bound::Included(from), Bound::<&[u8]>::Unbounded);
        let mut layers = Vec::with_capacity(blocks + 1);
        for block in self.view.blocks[..blocks].iter().rev() {
            let rows = block.overlay.rows.range::<[u8], _>(range);
            layers.push(layer(
                prefix,
                rows.map(|(key, row)| (key, row.after.as_ref())),
            ));
        }
        let rows = unwound.rows.range::<[u8], _>(range);
        layers.push(layer(
            prefix,
            rows.map(|(key, value)| (key, value.as_ref())),
        ));
        Scan {
            layers,
            stored: (Box::new(snapshot.state_scan(prefix, from)) as StoredRows<'_>).peekable(),
        }
    }

    /// Scans the flat rows as they are after a stored block, using state history.
    fn scan_history(&self, number: u64, prefix: &[u8], from: &[u8]) -> Result<Scan<'_>, ReadError> {
        if !keys::is_flat(prefix) {
            return Err(ReadError::NoTrie(number));
        }
        self.check_kept(prefix, number)?;
        let (prefix, mut from) = (prefix.to_vec(), from.to_vec());
        let rows = std::iter::from_fn(move || {
            let row = self
                .view
                .snapshot
                .state_first_at(&prefix, &from, number)
                .transpose()?;
            if let Ok((key, _)) = &row {
                from = [key.as_ref(), &[0]].concat();
            }
            Some(row)
        });
        Ok(Scan {
            layers: Vec::new(),
            stored: (Box::new(rows) as StoredRows<'_>).peekable(),
        })
    }

    /// The state root and the changed rows after these changes.
    pub fn update(&self, changes: &Changes) -> Result<Update, TrieError> {
        trie::update(self, self.header.state_root, changes)
    }

    /// The trie nodes that a stateless client needs for these reads and changes: see
    /// [`trie::witness_nodes`]. The state must have a trie.
    pub fn witness_nodes(
        &self,
        reads: &StateReads,
        changes: &Changes,
    ) -> Result<Vec<Bytes>, TrieError> {
        trie::witness_nodes(self, self.header.state_root, reads, changes)
    }

    /// Proves an account and slots of it. The state must have a trie: see [`View::provable_state`].
    pub fn prove(&self, address: Address, slots: &[U256]) -> Result<AccountProof, TrieError> {
        let slots: Vec<_> = slots
            .iter()
            .map(|slot| keccak256(B256::from(*slot)))
            .collect();
        self.prove_hashed(&keccak256(address), &slots)
    }

    /// Proves an account and slots of it, given the hashes of the address and of the slots.
    pub fn prove_hashed(&self, hash: &B256, slots: &[B256]) -> Result<AccountProof, TrieError> {
        trie::prove(self, self.header.state_root, hash, slots)
    }

    /// Fails if history no longer has this row as of block `number`.
    fn check_kept(&self, key: &[u8], number: u64) -> Result<(), ReadError> {
        if number >= self.view.snapshot.oldest_row(key) {
            Ok(())
        } else if keys::is_flat(key) {
            Err(ReadError::Pruned(number))
        } else {
            Err(ReadError::NoTrie(number))
        }
    }
}

/// Lookup of addresses and slots by the hashes that are the keys of a state.
#[derive(Default)]
pub struct KeyNames {
    /// Addresses and slots of blocks above the store, by their hash.
    unstored: HashMap<B256, KeyName>,
    /// The view whose snapshot has the stored names; `None` if the store does not keep names.
    view: Option<Arc<View>>,
}

impl KeyNames {
    /// The bytes with this hash: an address, a slot, or a code.
    pub fn preimage(&self, hash: &B256) -> Result<Option<Bytes>, ReadError> {
        match (self.unstored.get(hash), &self.view) {
            (Some(name), _) => Ok(Some(name.preimage())),
            (None, Some(view)) => view.snapshot.code(hash),
            (None, None) => Ok(None),
        }
    }

    /// The address with this hash.
    pub fn address(&self, hash: &B256) -> Result<Option<Address>, ReadError> {
        let bytes = self.preimage(hash)?;
        Ok(bytes.and_then(|bytes| Address::try_from(&bytes[..]).ok()))
    }

    /// The slot with this hash.
    pub fn slot(&self, hash: &B256) -> Result<Option<B256>, ReadError> {
        let bytes = self.preimage(hash)?;
        Ok(bytes.and_then(|bytes| B256::try_from(&bytes[..]).ok()))
    }
}

impl StateRows for State {
    fn row(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        State::row(self, key)
    }

    fn scan<'a>(&'a self, prefix: &[u8], from: &[u8]) -> Result<RowIter<'a>, ReadError> {
        Ok(Box::new(State::scan(self, prefix, from)?))
    }
}

/// Rows of one block or of the unwind data, ascending by key; `None` removes the row.
type Layer<'a> = Box<dyn Iterator<Item = (&'a Bytes, Option<&'a Bytes>)> + 'a>;
type StoredRows<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes), ReadError>> + 'a>;

/// A layer of the rows with this prefix. `rows` must begin with them.
fn layer<'a>(
    prefix: &[u8],
    rows: impl Iterator<Item = (&'a Bytes, Option<&'a Bytes>)> + 'a,
) -> Peekable<Layer<'a>> {
    let prefix = prefix.to_vec();
    let rows = rows.take_while(move |(key, _)| key.starts_with(&prefix));
    (Box::new(rows) as Layer<'a>).peekable()
}

/// Rows of a state in ascending order: overlays merged over the store, newest first.
pub struct Scan<'a> {
    layers: Vec<Peekable<Layer<'a>>>,
    stored: Peekable<StoredRows<'a>>,
}

impl Iterator for Scan<'_> {
    type Item = Result<(Bytes, Bytes), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(Err(_)) = self.stored.peek() {
                return self.stored.next();
            }
            let stored = self
                .stored
                .peek()
                .and_then(|row| row.as_ref().ok())
                .map(|(key, _)| key.clone());
            let layered = self
                .layers
                .iter_mut()
                .filter_map(|layer| layer.peek().map(|(key, _)| *key))
                .min()
                .cloned();
            let key = [stored, layered].into_iter().flatten().min()?;
            let mut found = None;
            for layer in &mut self.layers {
                if let Some((_, value)) = layer.next_if(|(other, _)| **other == key) {
                    found.get_or_insert(value.cloned());
                }
            }
            let stored = self
                .stored
                .next_if(|row| row.as_ref().is_ok_and(|(other, _)| *other == key));
            // The newest layer that has the row decides its value; a removed row is skipped.
            match found {
                Some(Some(value)) => return Some(Ok((key, value))),
                Some(None) => continue,
                None => return stored,
            }
        }
    }
}
