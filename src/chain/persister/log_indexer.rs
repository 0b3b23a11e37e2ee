//! Extends the log index downwards in steps, while the persister has nothing to store: where an older
//! version wrote the blocks, or `--history.logs` was raised.
//!
//! A block that arrives during a step waits for its end, which is 10 ms of work and one batch. There
//! is no step while a memtable is being flushed, so that the index never makes blocks wait for that.

use crate::chain::store::{LogIndexStep, Store, StoreError};
use std::time::{Duration, Instant};

/// Pause before each step: the work takes a sixth of a core at most.
const PAUSE: Duration = Duration::from_millis(50);
/// Time between two log messages about the progress.
const LOG_EVERY: Duration = Duration::from_secs(30);

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexerStep {
    None,
    Written,
    /// Written, and worth a new snapshot for readers: the index is whole, or progress was logged.
    Milestone,
}

pub(super) struct LogIndexer {
    state: IndexerState,
}

#[derive(Clone, Copy)]
enum IndexerState {
    /// There may be something to do.
    Unknown,
    Building {
        logged: Instant,
    },
    Whole,
    /// A block could not be read. The index stays as it is until the next start.
    Failed,
}

impl Default for LogIndexer {
    fn default() -> Self {
        Self {
            state: IndexerState::Unknown,
        }
    }
}

impl LogIndexer {
    /// The time to wait for work before a step; `None` if no step is due.
    pub fn pause(&self) -> Option<Duration> {
        let due = matches!(
            self.state,
            IndexerState::Unknown | IndexerState::Building { .. }
        );
        due.then_some(PAUSE)
    }

    /// A block was stored or unwound: there may be something to do.
    pub fn look_again(&mut self) {
        if let IndexerState::Whole = self.state {
            self.state = IndexerState::Unknown;
        }
    }

    /// Takes a step if one is due.
    pub fn step(&mut self, store: &Store) -> IndexerStep {
        if self.pause().is_none() || !store.has_log_window() || store.is_flushing() {
            return IndexerStep::None;
        }
        match store.extend_log_index() {
            Ok(Some(step)) if step.first > step.goal => self.log_progress(step),
            Ok(done) => {
                self.state = IndexerState::Whole;
                match done.filter(|step| step.added > 0) {
                    Some(step) => {
                        tracing::info!(oldest = step.first, "the log index is built");
                        IndexerStep::Milestone
                    }
                    None => IndexerStep::None,
                }
            }
            // The next step tries again: blocks wait for room too.
            Err(error) if error.is_full() => IndexerStep::None,
            Err(error) => {
                self.fail(&error);
                IndexerStep::None
            }
        }
    }

    fn log_progress(&mut self, LogIndexStep { first, goal, .. }: LogIndexStep) -> IndexerStep {
        let now = Instant::now();
        if let IndexerState::Building { logged } = self.state
            && now.duration_since(logged) < LOG_EVERY
        {
            return IndexerStep::Written;
        }
        tracing::info!(
            block = first,
            remaining = first - goal,
            "the log index is being built downwards, in the background"
        );
        self.state = IndexerState::Building { logged: now };
        IndexerStep::Milestone
    }

    fn fail(&mut self, error: &StoreError) {
        tracing::error!(
            %error,
            "the log index cannot be built further: older blocks are searched by their headers"
        );
        self.state = IndexerState::Failed;
    }
}
