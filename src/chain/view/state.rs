//! The state after one block of a view.

use crate::chain::{
    store::keys,
    trie::{decode_account, decode_slot},
    view::{Account, ReadError, View, rows::Found},
};
use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use std::{iter::Peekable, ops::Bound, sync::Arc};

/// Where a state is read.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    /// After this many of the view's blocks.
    Tip(usize),
    /// After this stored block, from state history and trie history.
    Stored(u64),
}

/// The state after one block of a view. Cheap to clone; execution reads it as revm's database.
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

    /// The header of the block this state is the result of.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The hash of that header.
    pub fn hash(&self) -> B256 {
        match self.at {
            At::Tip(blocks) if blocks == self.view.blocks.len() => self.view.head().hash,
            _ => self.header.hash_slow(),
        }
    }

    pub fn account(&self, address: Address) -> Result<Option<Account>, ReadError> {
        self.row(&keys::account(&keccak256(address)))?
            .map(|row| decode_account(&row))
            .transpose()
    }

    /// Zero if there is no such slot.
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

    /// The hash of an ancestor or of the block itself (BLOCKHASH).
    pub fn block_hash(&self, number: u64) -> Result<Option<B256>, ReadError> {
        if number > self.header.number {
            Ok(None)
        } else {
            self.view.hash_of(number)
        }
    }

    /// A raw row of the `state` keyspace (see [`keys`]). Below the newest stored block the rows of tries come from trie history.
    pub fn row(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        let blocks = match self.at {
            At::Tip(blocks) => blocks,
            At::Stored(number) => {
                self.check_kept(key, number)?;
                return match keys::is_flat(key) {
                    true => self.view.snapshot.state_row_at(key, number),
                    false => self.view.snapshot.node_row_at(key, number),
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
        match self.view.back.rows.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.view.snapshot.state_row(key),
        }
    }

    /// The first row with this prefix, at or after `from`.
    pub fn first_with_prefix(
        &self,
        prefix: &[u8],
        from: &[u8],
    ) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        self.scan(prefix, from)?.next().transpose()
    }

    /// The rows with this prefix, at or after `from`, ascending. Loads as it goes. Below the newest stored block flat rows only.
    pub fn scan(&self, prefix: &[u8], from: &[u8]) -> Result<Scan<'_>, ReadError> {
        let from = from.max(prefix);
        let (snapshot, back) = (&self.view.snapshot, &self.view.back.rows);
        let blocks = match self.at {
            At::Tip(blocks) => blocks,
            At::Stored(number) => {
                if !keys::is_flat(prefix) {
                    return Err(ReadError::NoTrie(number));
                }
                self.check_kept(prefix, number)?;
                let (prefix, mut from) = (prefix.to_vec(), from.to_vec());
                let rows = std::iter::from_fn(move || {
                    let row = snapshot
                        .state_first_at(&prefix, &from, number)
                        .transpose()?;
                    if let Ok((key, _)) = &row {
                        from = [key.as_ref(), &[0]].concat();
                    }
                    Some(row)
                });
                return Ok(Scan {
                    layers: Vec::new(),
                    stored: (Box::new(rows) as Rows<'_>).peekable(),
                });
            }
        };
        let range = (Bound::Included(from), Bound::<&[u8]>::Unbounded);
        let mut layers: Vec<Peekable<Layer<'_>>> = Vec::with_capacity(blocks + 1);
        for block in self.view.blocks[..blocks].iter().rev() {
            let rows = block
                .overlay
                .rows
                .range::<[u8], _>(range)
                .map(|(key, row)| (key, row.after.as_ref()));
            let prefix = prefix.to_vec();
            layers.push(
                (Box::new(rows.take_while(move |(key, _)| key.starts_with(&prefix))) as Layer<'_>)
                    .peekable(),
            );
        }
        let rows = back
            .range::<[u8], _>(range)
            .map(|(key, value)| (key, value.as_ref()));
        let owned = prefix.to_vec();
        layers.push(
            (Box::new(rows.take_while(move |(key, _)| key.starts_with(&owned))) as Layer<'_>)
                .peekable(),
        );
        Ok(Scan {
            layers,
            stored: (Box::new(snapshot.state_scan(prefix, from)) as Rows<'_>).peekable(),
        })
    }

    /// Whether history still has what this row was.
    fn check_kept(&self, key: &[u8], number: u64) -> Result<(), ReadError> {
        match number >= self.view.snapshot.oldest_row(key) {
            true => Ok(()),
            false if keys::is_flat(key) => Err(ReadError::Pruned(number)),
            false => Err(ReadError::NoTrie(number)),
        }
    }
}

type Layer<'a> = Box<dyn Iterator<Item = (&'a Bytes, Option<&'a Bytes>)> + 'a>;
type Rows<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes), ReadError>> + 'a>;

/// Rows of a state in ascending order: overlays merged over the store, newest first.
pub struct Scan<'a> {
    layers: Vec<Peekable<Layer<'a>>>,
    stored: Peekable<Rows<'a>>,
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
            // The newest layer that knows the row decides; a row it has removed is passed over.
            match found {
                Some(Some(value)) => return Some(Ok((key, value))),
                Some(None) => continue,
                None => return stored,
            }
        }
    }
}
