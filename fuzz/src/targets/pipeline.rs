//! The derivation pipeline. The input is a program for a batcher: valid and invalid batches, frames
//! held back or repeated, raw bytes at each layer, logs of L1's contracts. One pipeline derives
//! each L1 block as it is mined. A second pipeline derives the complete L1, which it sees in pieces
//! and with failing reads. Both must derive the same chain, the first in a number of steps bounded
//! by the input's size.

mod batcher;
mod replica;

use crate::InputKind;
use batcher::FuzzBatcher;
use replica::{ReadFaults, Replica, rollup};

/// Largest number of L1 blocks in a case.
const L1_BLOCKS: usize = 48;
/// L1 blocks after the end of the program, in which windows expire and channels time out.
const IDLE_BLOCKS: usize = 10;
/// Largest number of steps for each L1 block, posted item, and byte of the input. A batch of one
/// byte may lead to an empty block, which needs few steps.
const STEPS: u64 = 400;

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    let mut batcher = FuzzBatcher::new(data);
    let rollup = rollup(batcher.byte());
    let mut replica = Replica::new(rollup.clone(), ReadFaults::NONE);
    while batcher.l1.len() < L1_BLOCKS && batcher.idle < IDLE_BLOCKS {
        batcher.mine(&replica);
        replica.derive(&batcher);
    }
    let mut slow = Replica::new(rollup, ReadFaults::of(data));
    slow.derive(&batcher);
    let (result, other) = (replica.result(), slow.result());
    assert!(result == other, "{result:?} and {other:?} from the same L1");

    let items = batcher.l1.iter().map(|l1| 1 + l1.inbox.len());
    let size = data.len() + items.sum::<usize>();
    let bound = STEPS * size as u64;
    assert!(replica.steps <= bound, "{} steps", replica.steps);
    for (reason, count) in &result.drops {
        outcome.add(reason);
        outcome.scale(*count as usize);
    }
    outcome.scale(result.chain.len());
    outcome.scale(result.with_users);
    outcome.add(&result.stop);
    outcome
}

pub fn seeds() -> Vec<Vec<u8>> {
    batcher::seeds()
}
