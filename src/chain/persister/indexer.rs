//! Extends the log and address indexes downwards in steps, while the persister has no other work.
//! Blocks lack an index if an older version wrote them, if `--history.logs` was raised, or if
//! `--index.addresses` was turned on.
//!
//! A block that arrives during a step waits until the step ends: a step is 10 ms of work and one
//! batch. No step runs while a memtable is being flushed, so that the indexes never make blocks
//! wait for a flush.

use crate::chain::store::{IndexStep, Store, StoreError, ValueIndex};
use std::time::{Duration, Instant};

/// Pause before each step, so that indexing uses about a sixth of a core.
const PAUSE: Duration = Duration::from_millis(50);
/// Time between two log messages about the progress.
const LOG_EVERY: Duration = Duration::from_secs(30);

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexerStep {
    None,
    Written,
    /// A step was written, and readers should get a new snapshot: an index is whole, or progress
    /// was logged.
    Milestone,
}

/// Extends one index after the other.
pub(super) struct Indexer {
    builds: [IndexBuild; ValueIndex::ALL.len()],
}

impl Default for Indexer {
    fn default() -> Self {
        let build = |index| IndexBuild {
            index,
            state: BuildState::Unknown,
        };
        Self {
            builds: ValueIndex::ALL.map(build),
        }
    }
}

impl Indexer {
    /// The pause before the next step; `None` if no step is due.
    pub fn pause(&self) -> Option<Duration> {
        self.builds.iter().any(IndexBuild::is_due).then_some(PAUSE)
    }

    /// A block was stored or unwound, so a complete index may lack blocks again.
    pub fn look_again(&mut self) {
        for build in &mut self.builds {
            if let BuildState::Whole = build.state {
                build.state = BuildState::Unknown;
            }
        }
    }

    /// Runs a step of the first index that has a step to run.
    pub fn step(&mut self, store: &Store) -> IndexerStep {
        if store.is_flushing() {
            return IndexerStep::None;
        }
        let steps = self.builds.iter_mut().map(|build| build.step(store));
        let mut written = steps.filter(|step| *step != IndexerStep::None);
        written.next().unwrap_or(IndexerStep::None)
    }
}

struct IndexBuild {
    index: ValueIndex,
    state: BuildState,
}

#[derive(Clone, Copy)]
enum BuildState {
    /// Blocks may lack this index.
    Unknown,
    Building {
        logged: Instant,
    },
    Whole,
    /// A block could not be read. The index is not extended until the next start.
    Failed,
}

impl IndexBuild {
    fn is_due(&self) -> bool {
        matches!(
            self.state,
            BuildState::Unknown | BuildState::Building { .. }
        )
    }

    /// Runs a step if one is due.
    fn step(&mut self, store: &Store) -> IndexerStep {
        if !self.is_due() || !store.has_index_window(self.index) {
            return IndexerStep::None;
        }
        match store.extend_index(self.index) {
            Ok(Some(step)) if step.first > step.goal => self.log_progress(step),
            Ok(done) => {
                self.state = BuildState::Whole;
                match done.filter(|step| step.added > 0) {
                    Some(step) => {
                        let index = self.index.name();
                        tracing::info!(index, oldest = step.first, "the index is built");
                        IndexerStep::Milestone
                    }
                    None => IndexerStep::None,
                }
            }
            // The next step tries again, as the persister does for blocks.
            Err(error) if error.is_full() => IndexerStep::None,
            Err(error) => {
                self.fail(&error);
                IndexerStep::None
            }
        }
    }

    fn log_progress(&mut self, IndexStep { first, goal, .. }: IndexStep) -> IndexerStep {
        let now = Instant::now();
        if let BuildState::Building { logged } = self.state
            && now.duration_since(logged) < LOG_EVERY
        {
            return IndexerStep::Written;
        }
        tracing::info!(
            index = self.index.name(),
            block = first,
            remaining = first - goal,
            "the index is being built downwards, in the background"
        );
        self.state = BuildState::Building { logged: now };
        IndexerStep::Milestone
    }

    fn fail(&mut self, error: &StoreError) {
        tracing::error!(
            index = self.index.name(),
            %error,
            "the index cannot be built further: it does not find older blocks"
        );
        self.state = BuildState::Failed;
    }
}
