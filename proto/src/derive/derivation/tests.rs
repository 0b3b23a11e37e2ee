//! Tests of batches with more transactions than a block can have.

use crate::{
    derive::{DropReason, tests::world::*},
    fork::Fork,
};
use alloy_primitives::Bytes;

/// Derives a channel with two batches for block 1: one with these transactions, then one with a
/// single transaction. Returns the number of transactions in each L2 block, and the number of
/// refused blocks.
fn derived(fork: Fork, is_span: bool, transactions: &[Bytes]) -> (Vec<usize>, u64) {
    let mut world = World::new(rollup(fork));
    world.mine_to(1);
    let genesis = world.chain[0].clone();
    let large = world.block(&genesis, 0, transactions);
    let small = world.block(&genesis, 0, &[transaction(1)]);
    let mut batches = world.singular(&[large.clone(), small]);
    if is_span {
        batches[0] = world.span(&genesis, &[large]);
    }
    let item = world.channel(&batches);
    world.mine([item]);
    let contents = world.derive();
    let refused = world.pipeline.drain_drops().get(DropReason::InvalidBlock);
    let counts = contents.iter().map(|(_, transactions)| transactions.len());
    (counts.collect(), refused)
}

/// The gas limit is 30,000,000. An engine would refuse the block too, but only after it had
/// received the attributes.
#[test]
fn a_block_beyond_the_gas_limit_is_refused_without_its_transactions() {
    let many = |count| (0..count).map(transaction).collect::<Vec<_>>();
    let long = |len| vec![Bytes::from(vec![1; len])];
    // The RLP header of the list's string has four bytes.
    for (is_span, fits, exceeds) in [
        (false, many(1_785), many(1_786)),
        (true, many(1_785), many(1_786)),
        (false, long(9_999_996), long(9_999_997)),
    ] {
        for fork in [Fork::Granite, Fork::Holocene] {
            assert_eq!(derived(fork, is_span, &fits), (vec![fits.len()], 0));
        }
        // The batch is dropped, and the next batch is applied.
        assert_eq!(derived(Fork::Granite, is_span, &exceeds), (vec![1], 1));
        // The channel is flushed, and the block has only its deposits.
        assert_eq!(derived(Fork::Holocene, is_span, &exceeds), (vec![0], 1));
    }
}
