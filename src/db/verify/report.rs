//! Findings of a verification.

use crate::chain::rows::ReadError;

/// Number of damages that are described. Further ones are only counted.
const NAMED: usize = 40;

/// The remedy for a damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// `starling db repair` recomputes the rows.
    Repair,
    /// The rows cannot be derived from others in the store, so the node must sync again.
    Resync,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub what: String,
    pub remedy: Remedy,
}

/// Counts of checked items, and the damage found.
#[derive(Clone, Debug, Default)]
pub struct DamageReport {
    /// Kinds of checked items with their numbers.
    pub checked: Vec<(&'static str, u64)>,
    /// The first damages, with descriptions.
    pub damages: Vec<Damage>,
    /// Number of all damages, including those without a description.
    pub count: u64,
}

impl DamageReport {
    pub fn is_sound(&self) -> bool {
        self.count == 0
    }

    pub(super) fn count(&mut self, what: &'static str, count: u64) {
        self.checked.push((what, count));
    }

    pub(super) fn add(&mut self, what: String, remedy: Remedy) {
        self.count += 1;
        // For damage that cannot be repaired, describe up to twice as many.
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
