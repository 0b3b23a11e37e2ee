//! Metrics of the proposer under op-proposer's names.

use crate::{clock::since_epoch, version::VERSION};
use metrics::{Gauge, gauge};
use starling_proto::{l1info::L2BlockRef, payload::BlockId};

/// Label of the block whose output root was proposed.
const PROPOSED: &str = "proposed";

/// Gauges for a block that marks progress.
struct RefGauges {
    number: Gauge,
    time: Gauge,
    hash: Gauge,
    latency: Gauge,
}

impl RefGauges {
    fn new(layer: &'static str) -> Self {
        let labels = [("layer", layer), ("type", PROPOSED)];
        Self {
            number: gauge!("op_proposer_default_refs_number", &labels),
            time: gauge!("op_proposer_default_refs_time", &labels),
            hash: gauge!("op_proposer_default_refs_hash", &labels),
            latency: gauge!("op_proposer_default_refs_latency", &labels),
        }
    }

    /// Sets the gauges to a block; `time` is in Unix seconds.
    fn set(&self, block: BlockId, time: Option<u64>) {
        self.number.set(block.number as f64);
        let prefix = block.hash.first_chunk::<8>().copied().unwrap_or_default();
        self.hash.set(u64::from_le_bytes(prefix) as f64);
        if let Some(time) = time {
            self.time.set(time as f64);
            self.latency.set(time as f64 - since_epoch().as_secs_f64());
        }
    }
}

/// The metric handles, created once.
pub(super) struct ProposerMetrics {
    sequence: Gauge,
    balance: Gauge,
    block: RefGauges,
    origin: RefGauges,
    sequence_number: Gauge,
}

impl ProposerMetrics {
    /// Creates the handles, and reports the version and that the proposer is up.
    pub fn new() -> Self {
        gauge!("op_proposer_default_info", "version" => VERSION).set(1.0);
        gauge!("op_proposer_default_up").set(1.0);
        Self {
            sequence: gauge!("op_proposer_default_proposed_sequence_number"),
            balance: gauge!("op_proposer_default_balance"),
            block: RefGauges::new("l2"),
            origin: RefGauges::new("l1_origin"),
            sequence_number: gauge!("op_proposer_default_refs_seqnr", "type" => PROPOSED),
        }
    }

    /// Reports the account's balance in ether.
    pub fn balance(&self, ether: f64) {
        self.balance.set(ether);
    }

    /// Reports a proposal that is on L1. A super root has no block.
    pub fn proposed(&self, sequence: u64, block: Option<L2BlockRef>) {
        self.sequence.set(sequence as f64);
        let Some(block) = block else { return };
        self.block.set(block.id, Some(block.time));
        self.origin.set(block.origin, None);
        self.sequence_number.set(block.sequence_number as f64);
    }
}
