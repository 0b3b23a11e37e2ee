//! The history of a world: one line for each event that matters. Every line goes into a hash, so
//! that two histories can be compared; the lines themselves are kept for `--trace` only.

use super::queue::{SECOND, SimTime};
use std::{
    fmt::{Arguments, Write},
    hash::{DefaultHasher, Hasher},
};

/// The lines of a history as a hash, and as text if they are traced.
pub struct SimHistory {
    hasher: DefaultHasher,
    line: String,
    trace: Option<String>,
}

impl SimHistory {
    pub fn new(trace: bool) -> Self {
        Self {
            hasher: DefaultHasher::new(),
            line: String::new(),
            trace: trace.then(String::new),
        }
    }

    /// Adds a line about a node.
    pub fn note(&mut self, now: SimTime, node: usize, text: Arguments<'_>) {
        let (seconds, micros) = (now / SECOND, now % SECOND);
        self.line.clear();
        // Writes to a string never fail.
        let _ = writeln!(self.line, "{seconds:>4}.{micros:06} n{node:<2} {text}");
        self.hasher.write(self.line.as_bytes());
        if let Some(trace) = &mut self.trace {
            trace.push_str(&self.line);
        }
    }

    pub fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    pub fn into_trace(self) -> Option<String> {
        self.trace
    }
}
