//! Fuzzing of every decoder that reads what a peer, a client, an L1 node or a disk may have written.
//!
//! A target is a function over bytes that panics when a promise is broken: nothing panics, what is decoded and encoded again is
//! decoded the same, and nothing takes more memory than its bounds say. It returns an [`Outcome`]: what kind of input it was. With
//! a nightly compiler `cargo fuzz` runs the programs in `fuzz_targets`; with a stable one `cargo run -p starling-fuzz -- TARGET`
//! mutates a corpus made from the protocol's vectors, and keeps what has a new outcome to mutate it further.

pub mod fixtures;
pub mod mutate;
pub mod runner;
pub mod targets;

use std::{
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
};

/// What kind of input a target was given; inputs of one kind are alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Outcome(u64);

impl Outcome {
    /// Adds what a decoder said. Words that hold digits are left out: they tell inputs of one kind apart.
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

    /// Adds a number by its magnitude.
    pub fn scale(&mut self, number: usize) {
        let mut hasher = DefaultHasher::new();
        (self.0, number.checked_ilog2()).hash(&mut hasher);
        self.0 = hasher.finish();
    }
}

/// A target and where its corpus begins.
#[derive(Clone, Copy)]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]) -> Outcome,
    pub seeds: fn() -> Vec<Vec<u8>>,
}

#[cfg(test)]
mod tests;
