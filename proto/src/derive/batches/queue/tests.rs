//! Tests of batches that wait for their time.

use crate::{
    derive::{DropReason, tests::world::*},
    fork::Fork,
};
use alloy_primitives::Bytes;

/// Number of L2 blocks after genesis.
const BLOCKS: u64 = 9;

/// The first batch is a span of the last three blocks, whose middle block is invalid. When that
/// span is applied, the pending-safe head moves back.
#[test]
fn batches_in_any_order_are_applied_at_their_time() {
    for seed in 1..200 {
        let mut world = World::new(rollup(Fork::Granite));
        world.mine_to(3);
        let genesis = world.chain[0].clone();
        let invalid = transaction(100);
        world.invalid = vec![invalid.clone()];
        let block = |number| (epoch(number), vec![transaction(number)]);
        let contents: Vec<(u64, Vec<Bytes>)> = (1..=BLOCKS).map(block).collect();
        let good = contents.iter().map(|(epoch, list)| (*epoch, &list[..]));
        let blocks = world.blocks(&genesis, &good.collect::<Vec<_>>());
        let parent = &blocks[5];
        let bad = [
            (epoch(7), &contents[6].1[..]),
            (epoch(8), std::slice::from_ref(&invalid)),
            (epoch(9), &contents[8].1[..]),
        ];
        let bad = world.blocks(parent, &bad);
        let mut batches = world.singular(&blocks);
        shuffle(&mut batches, seed);
        batches.insert(0, world.span(parent, &bad));
        let item = world.channel(&batches);
        world.mine([item]);
        assert_eq!(world.derive(), contents, "seed {seed}");
        let refused = world.pipeline.drain_drops().get(DropReason::InvalidBlock);
        assert_eq!(refused, 1, "seed {seed}");
    }
}

/// The newest L1 origin that block `number` may have by its timestamp.
fn epoch(number: u64) -> u64 {
    number * L2_TIME / L1_TIME
}

/// Shuffles the batches, in a different order for each seed.
fn shuffle(batches: &mut [Vec<u8>], mut seed: u64) {
    for last in (1..batches.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        batches.swap(last, (seed >> 33) as usize % (last + 1));
    }
}
