//! Fuzz targets for every decoder of bytes from a peer, a client, an L1 node or a disk.
//!
//! A target is a function over bytes that panics if a guarantee is broken: decoders do not panic,
//! decoded values survive a round trip, and memory is bounded. The function returns the
//! [`InputKind`] of the bytes. With a nightly compiler, `cargo fuzz` runs the programs in
//! `fuzz_targets`. With a stable compiler, `cargo run -p starling-fuzz -- TARGET` mutates a corpus
//! made from the protocol's vectors, and keeps inputs of new kinds for further mutation.

pub mod fixtures;
pub mod mutate;
pub mod runner;
pub mod targets;

use std::{
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
};

/// The kind of an input: a hash of the decoders' results. Similar inputs have the same kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct InputKind(u64);

impl InputKind {
    /// Adds the result of a decoder. Words with digits are ignored, because they differ between
    /// inputs of the same kind.
    pub fn add(&mut self, said: &dyn Debug) {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        let text = format!("{said:?}");
        let is_word = |c: char| c.is_ascii_alphanumeric();
        text.split(|c| !is_word(c))
            .filter(|word| !word.bytes().any(|b| b.is_ascii_digit()))
            .for_each(|word| word.hash(&mut hasher));
        self.0 = hasher.finish();
    }

    /// Adds the order of magnitude of a number.
    pub fn scale(&mut self, number: usize) {
        let mut hasher = DefaultHasher::new();
        (self.0, number.checked_ilog2()).hash(&mut hasher);
        self.0 = hasher.finish();
    }
}

/// A target and its initial corpus.
#[derive(Clone, Copy)]
pub struct FuzzTarget {
    pub name: &'static str,
    pub run: fn(&[u8]) -> InputKind,
    pub seeds: fn() -> Vec<Vec<u8>>,
}

#[cfg(test)]
mod tests;
