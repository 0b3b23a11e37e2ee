//! What a check found.

use crate::chain::view::ReadError;

/// Damages that are named; beyond, they are counted.
const NAMED: usize = 40;

/// What can be done about a damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// `starling db repair` computes it again.
    Repair,
    /// It follows from nothing else in the store.
    Resync,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub what: String,
    pub remedy: Remedy,
}

/// What was checked and what is wrong.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was looked at, and how much of it.
    pub checked: Vec<(&'static str, u64)>,
    /// The first damages.
    pub damages: Vec<Damage>,
    /// All of them.
    pub count: u64,
}

impl Report {
    pub fn is_sound(&self) -> bool {
        self.count == 0
    }

    pub(super) fn count(&mut self, what: &'static str, count: u64) {
        self.checked.push((what, count));
    }

    pub(super) fn add(&mut self, what: String, remedy: Remedy) {
        self.count += 1;
        // What cannot be repaired is always named.
        if self.damages.len() < NAMED
            || (remedy == Remedy::Resync && self.damages.len() < 2 * NAMED)
        {
            self.damages.push(Damage { what, remedy });
        }
    }

    pub(super) fn unreadable(&mut self, what: &str, error: &ReadError) {
        self.add(
            format!("{what} cannot be read: {}", error.cause()),
            Remedy::Resync,
        );
    }
}
