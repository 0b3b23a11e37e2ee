//! The derivation pipeline. The input is a program that a batcher runs: good batches, broken ones,
//! frames held back or repeated, raw bytes at each layer, logs of L1's contracts. A pipeline derives
//! from it block by block, and a second one derives from the complete L1, which it hears of in pieces
//! and whose reads fail: both derive the same chain, and neither takes more steps than the input
//! accounts for.

mod batcher;
mod replica;

use crate::InputKind;
use batcher::FuzzBatcher;
use replica::{ReadFaults, Replica, rollup};

/// L1 blocks of a case at most.
const L1_BLOCKS: usize = 48;
/// L1 blocks after the end of the program: windows expire and channels time out.
const IDLE_BLOCKS: usize = 10;
/// Steps for each L1 block, posted item, and byte of the input, at most. A batch of one byte may
/// make an empty block, whose steps are few.
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
