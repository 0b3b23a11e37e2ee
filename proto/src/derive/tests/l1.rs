//! Tests with an L1 that reorganises, changes the batcher, withholds data or lets sequencing
//! windows expire.

use super::*;
use crate::{frame, l1info::L2BlockRef};
use alloy_primitives::{U256, keccak256};

/// The data items of one channel, with one frame each.
fn items(world: &mut World, batches: &[Vec<u8>], pieces: usize) -> Vec<Vec<u8>> {
    let frames = world.frames(batches, pieces);
    frames
        .into_iter()
        .map(|one| frame::encode(&[one]))
        .collect()
}

#[test]
fn a_batch_counts_up_to_the_last_block_of_its_window() {
    for fork in [Fork::Granite, Fork::Holocene] {
        for inclusion in [WINDOW, WINDOW + 1] {
            let (mut world, blocks) = start(rollup(fork), 3, 9);
            let batches = world.singular(&blocks);
            let item = world.channel(&batches);
            world.mine_to(inclusion - 1);
            world.mine([item]);
            let contents = world.derive();
            if inclusion == WINDOW {
                assert_eq!(hashes(&world.chain[1..=9]), hashes(&blocks), "{fork:?}");
                continue;
            }
            // The sequencing windows of epochs 0 and 1 have expired.
            let expected = [0, 0, 1, 1, 1].map(|epoch| (epoch, vec![]));
            assert_eq!(contents[..5], expected, "{fork:?}");
        }
    }
}

#[test]
fn an_expired_window_fills_epochs_and_every_epoch_has_a_block() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut world = World::new(rollup(fork));
        world.mine_to(1);
        let genesis = world.chain[0].clone();
        // The sequencer keeps its L1 origin until L2 is 18 seconds ahead of that origin.
        let blocks = world.blocks(&genesis, &[(0, NONE); 9]);
        let batches = world.singular(&blocks);
        let item = world.channel(&batches);
        world.mine([item]);
        world.mine_to(WINDOW + 8);
        let epochs: Vec<_> = world.derive().iter().map(|(epoch, _)| *epoch).collect();
        let expected = [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6];
        assert_eq!(epochs[..19], expected, "{fork:?}");
        assert!(
            world.chain[10..]
                .iter()
                .all(|block| block.transactions.len() == 1)
        );
    }
}

/// The epochs of the safe blocks, each with the L1 block from which the epoch's blocks were
/// derived.
fn derived_epochs(world: &World) -> Vec<(u64, u64)> {
    let safe = world.safe.iter().map(|(number, derived_from)| {
        let block = L2BlockRef::of(&world.chain[*number as usize], &world.rollup.genesis);
        (block.unwrap().origin.number, *derived_from)
    });
    let mut epochs: Vec<_> = safe.collect();
    epochs.dedup();
    epochs
}

/// A span's last L1 origin is above L1's head, so derivation waits. That L1 block then turns out to
/// be on another branch. By then many epochs have expired, but each is still forced by its own L1
/// block.
#[test]
fn expired_epochs_that_were_held_up_are_forced_one_by_one() {
    const LAST: u64 = 3 * WINDOW;
    let (mut world, _) = start(rollup(Fork::Granite), LAST, 0);
    let genesis = world.chain[0].clone();
    let blocks = chain(&world, &genesis, LAST * L1_TIME / L2_TIME);
    let span = world.span(&genesis, &blocks);
    let item = world.channel(&[span]);
    world.fork_l1(5);
    world.mine([item]);
    world.mine_to(LAST - 1);
    assert!(world.derive().is_empty(), "the span is undecided");
    world.mine_to(LAST + 12);
    world.derive();
    assert_eq!(world.pipeline.drain_drops().get(DropReason::BatchOrigin), 1);
    let one_by_one: Vec<_> = (0..=12).map(|epoch| (epoch, LAST + epoch)).collect();
    assert_eq!(derived_epochs(&world), one_by_one);
}

/// The first L1 block after a restart forces the same blocks as it would without the restart.
#[test]
fn a_restart_between_forced_epochs_changes_no_safe_head() {
    const END: u64 = WINDOW + 12;
    for stop in WINDOW..END {
        let mut world = World::new(rollup(Fork::Holocene));
        world.mine_to(stop);
        world.derive();
        let (number, derived_from) = *world.safe.last().unwrap();
        let safe = world.chain[number as usize].clone();
        world.pipeline.reset(safe, derived_from + 1);
        world.mine_to(END);
        world.derive();
        let expected: Vec<_> = (0..=12).map(|epoch| (epoch, WINDOW + epoch)).collect();
        assert_eq!(derived_epochs(&world), expected, "{stop}");
    }
}

#[test]
fn a_channel_times_out_after_its_last_block() {
    for (fork, timeout) in [
        (Fork::Fjord, TIMEOUT),
        (Fork::Granite, 50),
        (Fork::Holocene, 50),
    ] {
        for late in [0, 1] {
            let mut config = rollup(fork);
            config.seq_window_size = 100;
            let (mut world, blocks) = start(config, 3, 9);
            let batches = world.singular(&blocks);
            let parts = items(&mut world, &batches, 2);
            world.mine([parts[0].clone()]);
            world.mine_to(4 + timeout + late - 1);
            world.mine([parts[1].clone()]);
            world.derive();
            let expected = if late == 0 { 9 } else { 0 };
            assert_eq!(world.chain.len() - 1, expected, "{fork:?} {late}");
            let drops = world.pipeline.drain_drops();
            assert_eq!(drops.get(DropReason::ChannelTimeout), late, "{fork:?}");
        }
    }
}

#[test]
fn a_new_batcher_counts_from_the_block_that_names_it() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let (mut world, blocks) = start(rollup(fork), 3, 6);
        let batches = world.singular(&blocks);
        let item = world.channel(&batches);
        let other = Address::repeat_byte(0xbb);
        let input = world.mine([item.clone(), item]);
        input.configure(0, U256::from_be_bytes(other.into_word().0));
        input.inbox[0].sender = STRANGER;
        assert!(world.derive().is_empty(), "neither is the batcher");
        let drops = world.pipeline.drain_drops();
        assert_eq!(drops.get(DropReason::Sender), 2);

        let item = world.channel(&batches);
        world.mine([item]).inbox[0].sender = other;
        world.derive();
        assert_eq!(hashes(&world.chain[1..]), hashes(&blocks), "{fork:?}");
    }
}

#[test]
fn blobs_and_calldata_are_read_in_order_and_only_the_batchers() {
    let (mut world, blocks) = start(rollup(Fork::Holocene), 3, 9);
    let batches = world.singular(&blocks);
    let parts = items(&mut world, &batches, 4);
    let blob = |world: &mut World, data: &[u8], index: u64| {
        let hash = keccak256(data);
        let blob = crate::blob::encode(data).unwrap();
        world.blobs.insert(hash, blob.into());
        BlobRef {
            index,
            versioned_hash: hash,
        }
    };
    let junk = vec![0xff; crate::blob::BLOB_BYTES];
    world.blobs.insert(B256::ZERO, junk.into());
    let stranger = blob(&mut world, b"stranger", 0);
    let mine = [
        blob(&mut world, &parts[1], 1),
        BlobRef {
            index: 2,
            versioned_hash: B256::ZERO,
        },
        blob(&mut world, &parts[2], 3),
    ];
    let input = world.mine([
        parts[0].clone(),
        b"stranger's".to_vec(),
        parts[3].clone(),
        parts[3].clone(),
    ]);
    input.inbox[1].sender = STRANGER;
    input.inbox[1].blobs = vec![stranger];
    input.inbox[2].blobs = mine.to_vec();
    world.derive();
    assert_eq!(hashes(&world.chain[1..]), hashes(&blocks));
    assert_eq!(world.fetched, mine.map(|blob| blob.versioned_hash));
    let drops = world.pipeline.drain_drops();
    assert_eq!(drops.get(DropReason::Blob), 1);
    assert_eq!(drops.get(DropReason::Sender), 1);
}

/// Before Ecotone, a blob transaction's calldata are read like those of any other type.
#[test]
fn blobs_are_not_read_before_ecotone() {
    let (mut world, blocks) = start(rollup(Fork::Delta), 3, 6);
    let batches = world.singular(&blocks);
    let item = world.channel(&batches);
    world.mine([item]).inbox[0].blobs = vec![BlobRef {
        index: 0,
        versioned_hash: B256::ZERO,
    }];
    world.derive();
    assert_eq!(hashes(&world.chain[1..]), hashes(&blocks));
    assert!(world.fetched.is_empty());
}

#[test]
fn an_l1_reorg_asks_for_a_reset_and_the_chain_goes_on_from_there() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let (mut world, blocks) = start(rollup(fork), 3, 9);
        let batches = world.singular(&blocks);
        let item = world.channel(&batches);
        world.mine([item]);
        world.derive();
        assert_eq!(world.chain.len(), 10);

        world.fork_l1(3);
        world.mine_to(5);
        let stop = world.run();
        let got = world.l1[5].block.id();
        assert!(
            matches!(stop, PipelineStep::Reset(ResetReason::L1Reorg { got: id, .. }) if id == got),
            "{stop:?}"
        );
        assert!(matches!(world.pipeline.step(), PipelineStep::Reset(_)));

        // Block 8 is the last L2 block whose L1 origin (L1 block 2) is canonical.
        let safe = world.chain[8].clone();
        world.chain.truncate(9);
        world.pipeline.reset(safe.clone(), 0);
        let again = chain(&world, &safe, 12);
        let batches = world.singular(&again);
        let item = world.channel(&batches);
        world.mine([item]);
        world.derive();
        assert_eq!(hashes(&world.chain[9..]), hashes(&again), "{fork:?}");
    }
}

#[test]
fn a_safe_head_with_an_orphaned_origin_asks_for_a_reset() {
    let (mut world, blocks) = start(rollup(Fork::Holocene), 3, 9);
    let batches = world.singular(&blocks);
    let item = world.channel(&batches);
    world.mine([item]);
    world.derive();
    let safe = world.chain[9].clone();
    world.fork_l1(3);
    world.mine_to(9);
    world.pipeline.reset(safe, 0);
    let stop = world.run();
    assert!(
        matches!(stop, PipelineStep::Reset(ResetReason::Origin { .. })),
        "{stop:?}"
    );
}

#[test]
fn a_deposit_that_cannot_be_read_is_critical_and_a_good_one_is_included() {
    for is_good in [true, false] {
        let mut world = World::new(rollup(Fork::Holocene));
        world.mine([]).deposit(is_good);
        world.mine_to(WINDOW + 2);
        let stop = world.run();
        if is_good {
            assert!(matches!(stop, PipelineStep::Idle { .. }), "{stop:?}");
            let first = world
                .chain
                .iter()
                .find(|block| block.transactions.len() == 2);
            assert_eq!(first.unwrap().number(), 3, "the first of epoch 1");
        } else {
            assert!(
                matches!(stop, PipelineStep::Critical(CriticalError::Deposit(_))),
                "{stop:?}"
            );
        }
    }
}

/// Frames and batches from before Holocene are lost. Channels completed afterwards are read.
#[test]
fn holocene_starts_with_empty_stages() {
    let mut config = rollup(Fork::Granite);
    config.forks = config.forks.with(Fork::Holocene, Some(START + 5 * L1_TIME));
    let (mut world, blocks) = start(config, 3, 9);
    let batches = world.singular(&blocks);
    let parts = items(&mut world, &batches, 2);
    let second = world.channel(&batches[1..2]);
    world.mine([second, parts[0].clone()]);
    let first = world.channel(&batches[..1]);
    world.mine([parts[1].clone(), first]);
    world.derive();
    assert_eq!(hashes(&world.chain[1..]), hashes(&blocks[..1]));
    let rest = world.channel(&batches);
    world.mine([rest]);
    world.derive();
    assert_eq!(hashes(&world.chain[1..]), hashes(&blocks));
    let drops = world.pipeline.drain_drops();
    assert_eq!(drops.get(DropReason::Frame), 1);
}

/// Holocene drops the batches in the queue. A restart reads them again, at a time when the block
/// that they waited for is safe.
#[test]
fn a_restart_in_holocene_applies_no_batch_that_was_dropped_with_the_queue() {
    let mut config = rollup(Fork::Granite);
    config.forks = config.forks.with(Fork::Holocene, Some(START + 5 * L1_TIME));
    let (mut world, blocks) = start(config, 3, 2);
    let batches = world.singular(&blocks);
    let second = world.channel(&batches[1..]);
    world.mine([second]);
    let first = world.channel(&batches[..1]);
    world.mine([first]);
    world.derive();
    assert_eq!(hashes(&world.chain[1..]), hashes(&blocks[..1]));
    let (number, derived_from) = *world.safe.last().unwrap();
    assert_eq!((number, derived_from), (1, 5));
    let safe = world.chain[1].clone();
    world.pipeline.reset(safe, derived_from + 1);
    world.mine([]);
    world.derive();
    assert_eq!(hashes(&world.chain[1..]), hashes(&blocks[..1]));
}
