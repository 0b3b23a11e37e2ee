//! Metrics of block production under op-node's names.

use super::SequencerError;
use crate::rollup::{metrics::CountedEvent, origin::OriginError};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::time::{Duration, Instant};

pub(super) struct SequencerMetrics {
    /// Started blocks that were dropped or turned out invalid.
    errors: CountedEvent,
    /// Blocks that could not be signed and were therefore not published.
    publishing_errors: CountedEvent,
    /// Checks in which L1 has contradicted the L1 origin of the head or of the next block.
    inconsistent_origins: CountedEvent,
    /// Rewinds of the head after an L1 reorg.
    resets: CountedEvent,
    active: Gauge,
    building: Histogram,
    builds: Counter,
    sealing: Histogram,
    seals: Counter,
    transactions: Gauge,
    block_time: Duration,
    /// Time at which the open block was started.
    began: Option<Instant>,
}

impl SequencerMetrics {
    pub fn new(block_time: Duration) -> Self {
        Self {
            errors: CountedEvent::new("sequencing_errors"),
            publishing_errors: CountedEvent::new("publishing_errors"),
            inconsistent_origins: CountedEvent::new("sequencer_inconsistent_l1_origin"),
            resets: CountedEvent::new("sequencer_resets"),
            active: gauge!("op_node_default_sequencer_active"),
            building: histogram!("op_node_default_sequencer_building_diff_seconds"),
            builds: counter!("op_node_default_sequencer_building_diff_total"),
            sealing: histogram!("op_node_default_sequencer_sealing_seconds"),
            seals: counter!("op_node_default_sequencer_sealing_total"),
            transactions: gauge!("op_node_default_transactions_sequenced_total"),
            block_time,
            began: None,
        }
    }

    pub fn set_active(&self, active: bool) {
        self.active.set(f64::from(u8::from(active)));
    }

    /// Records the start of a build.
    pub fn on_build(&mut self) {
        self.began = Some(Instant::now());
    }

    /// Records the end of a build. `sealing` is the time at which sealing began.
    pub fn on_sealed(&mut self, sealing: Instant, transactions: usize) {
        self.seals.increment(1);
        self.sealing.record(sealing.elapsed().as_secs_f64());
        self.transactions.increment(transactions as f64);
        if let Some(began) = self.began.take() {
            self.builds.increment(1);
            let diff = began.elapsed().as_secs_f64() - self.block_time.as_secs_f64();
            self.building.record(diff);
        }
    }

    /// Records that a block was dropped because the head moved during its build.
    pub fn on_dropped_block(&self) {
        self.errors.record(1);
    }

    pub fn on_publishing_error(&self) {
        self.publishing_errors.record(1);
    }

    pub fn on_rewind(&self) {
        self.resets.record(1);
    }

    /// Records the error of a failed step.
    pub fn on_error(&self, error: &SequencerError) {
        self.errors.record(error.is_invalid_block().into());
        let is_inconsistent = matches!(
            error,
            SequencerError::OriginGone { .. }
                | SequencerError::Origin(OriginError::Reorganised { .. })
        );
        self.inconsistent_origins.record(is_inconsistent.into());
    }
}
