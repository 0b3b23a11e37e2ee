//! Tests of single span batches, on a chain whose genesis is not block 0.

use super::*;
use crate::{
    derive::{RelevantLogs, epochs::EpochBlock, tests::world::rollup},
    span,
};
use alloy_primitives::B256;

/// A window of one L1 block with hash zero and number zero.
fn window(rollup: &RollupConfig) -> EpochBlocks {
    let mut epochs = EpochBlocks::default();
    let block = L1Block {
        time: rollup.genesis.l2_time,
        ..L1Block::default()
    };
    let logs = RelevantLogs::default();
    epochs.push(EpochBlock { block, logs });
    epochs
}

/// A span of three empty blocks with L1's genesis as their origin. The first block is `seconds`
/// after the L2 genesis.
fn empty_span(rollup: &RollupConfig, seconds: u8) -> SpanBatch {
    let columns = [&[seconds, 0][..], &[0; 40], &[3, 0, 0, 0, 0]].concat();
    span::decode(&columns.into(), &rollup.batch_context()).unwrap()
}

/// Blocks below genesis cannot be read: the pipeline would request such a block forever.
#[test]
fn a_span_that_begins_with_the_genesis_block_is_refused_whatever_its_number() {
    let mut rollup = rollup(Fork::Holocene);
    rollup.genesis.l2.number = 1_000;
    let epochs = window(&rollup);
    let pending_safe = L2BlockRef {
        id: BlockId {
            number: 1_001,
            hash: B256::repeat_byte(1),
        },
        parent_hash: rollup.genesis.l2.hash,
        time: rollup.genesis.l2_time + rollup.block_time,
        origin: BlockId::default(),
        sequence_number: 1,
    };
    for (is_holocene, refusal) in [(false, Drop(DropReason::BatchParent)), (true, Undecided)] {
        let check = BatchCheck {
            rollup: &rollup,
            epochs: &epochs,
            pending_safe: &pending_safe,
            inclusion: 1,
            is_holocene,
        };
        let genesis = check.span_parent_number(&empty_span(&rollup, 0));
        assert_eq!(genesis, Err(refusal));
        let block_time = rollup.block_time as u8;
        let after = check.span_parent_number(&empty_span(&rollup, block_time));
        assert_eq!(after, Ok(1_000));
    }
}

/// Otherwise, before Holocene, such a span would wait for the L1 origins of its last blocks, and
/// delay the batches behind it.
#[test]
fn a_span_that_begins_with_an_l1_origin_before_its_parents_is_dropped() {
    let rollup = rollup(Fork::Granite);
    let epochs = window(&rollup);
    let pending_safe = L2BlockRef {
        id: BlockId::default(),
        parent_hash: B256::ZERO,
        time: rollup.genesis.l2_time,
        origin: BlockId::default(),
        sequence_number: 0,
    };
    for is_holocene in [false, true] {
        let check = BatchCheck {
            rollup: &rollup,
            epochs: &epochs,
            pending_safe: &pending_safe,
            inclusion: 1,
            is_holocene,
        };
        let span = empty_span(&rollup, rollup.block_time as u8);
        let with_parent_at = |origin| {
            let id = pending_safe.id;
            check.span_prefix(&span, &SpanParent { id, origin })
        };
        assert_eq!(with_parent_at(0), Accept);
        assert_eq!(with_parent_at(1), Drop(DropReason::BatchOrigin));
    }
}
