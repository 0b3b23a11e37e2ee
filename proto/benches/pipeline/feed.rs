//! Feeds a pipeline with an L1, and accepts its attributes with recorded blocks.

use crate::recorded::Recording;
use alloy_primitives::{B256, Bytes};
use starling_proto::{
    config::RollupConfig,
    derive::{L1Input, Need, Pipeline, PipelineStep},
    fork::BlobSchedule,
    payload::Payload,
};
use std::{collections::BTreeMap, sync::Arc};

/// An L1 and the L2 chain derived from it.
pub struct Feed {
    pub rollup: Arc<RollupConfig>,
    pub schedule: BlobSchedule,
    /// Consecutive L1 blocks, from L1's genesis on.
    pub l1: Vec<L1Input>,
    /// Consecutive L2 blocks, from L2's genesis on.
    pub l2: Vec<Arc<Payload>>,
    /// Blobs by versioned hash.
    pub blobs: BTreeMap<B256, Bytes>,
}

impl From<Recording> for Feed {
    fn from(recording: Recording) -> Self {
        let posted = recording.l1.values().flat_map(|input| &input.inbox);
        let blobs = posted.flat_map(|transaction| &transaction.blobs);
        let blobs = blobs.map(|blob| (blob.versioned_hash, recording.blob(blob)));
        Self {
            blobs: blobs.collect(),
            rollup: recording.rollup,
            schedule: recording.schedule,
            l1: recording.l1.into_values().collect(),
            l2: recording.l2,
        }
    }
}

impl Feed {
    /// Derives the whole L2 chain from L1.
    pub fn derive(&self) {
        let mut pipeline = Pipeline::new(self.rollup.clone(), self.schedule.clone());
        pipeline.reset(self.l2[0].clone(), 0);
        let first = self.l1[0].block.number;
        let block = |number: u64| self.l2[(number - self.l2[0].number()) as usize].clone();
        let mut head = self.l2[0].number();
        loop {
            match pipeline.step() {
                PipelineStep::More => {}
                PipelineStep::Attributes(derived) => {
                    head = derived.parent.id.number + 1;
                    pipeline.accepted(block(head)).expect("the next block");
                }
                PipelineStep::Need(Need::L1Block { number, .. }) => {
                    match self.l1.get((number - first) as usize) {
                        Some(input) => pipeline.push_l1(input.clone()).expect("needed"),
                        None => pipeline.no_l1_yet(),
                    }
                }
                PipelineStep::Need(Need::L2Block { number, .. }) => {
                    pipeline.push_l2(block(number)).expect("needed");
                }
                PipelineStep::Need(Need::Blobs { block, blobs }) => {
                    let blobs = blobs.iter().map(|blob| &self.blobs[&blob.versioned_hash]);
                    let blobs: Vec<_> = blobs.cloned().collect();
                    pipeline.push_blobs(block.hash, &blobs).expect("needed");
                }
                PipelineStep::Idle { .. } => break,
                stop => panic!("{stop:?}"),
            }
        }
        let last = self.l2.last().map_or(0, |payload| payload.number());
        assert_eq!(head, last, "the whole chain is derived");
    }
}
