//! Tests of batches that overlap, contradict the chain, come too early or late, or have forbidden
//! content.

use super::*;
use alloy_primitives::U256;

/// Posts a span that repeats blocks 4 to 6 of the safe chain and continues to block 9. `change` is
/// the number of a block that differs from the safe one, if any.
fn overlapping(fork: Fork, change: Option<u64>) -> (World, Vec<Arc<Payload>>) {
    let (mut world, blocks) = start(rollup(fork), 4, 6);
    let genesis = world.chain[0].clone();
    let span = world.span(&genesis, &blocks);
    let item = world.channel(&[span]);
    world.mine([item]);
    world.derive();
    assert_eq!(world.chain.len(), 7);
    let mut parent = blocks[2].clone();
    let base = parent.clone();
    let mut other = Vec::new();
    for number in 4..=9 {
        let nonce = if change == Some(number) { 99 } else { number };
        let epoch = number * L2_TIME / L1_TIME;
        parent = world.block(&parent, epoch, &[transaction(nonce)]);
        other.push(parent.clone());
    }
    let span = world.span(&base, &other);
    let item = world.channel(&[span]);
    world.mine([item]);
    world.derive();
    (world, other)
}

#[test]
fn a_span_that_repeats_safe_blocks_goes_on_after_them() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let (mut world, other) = overlapping(fork, None);
        assert_eq!(hashes(&world.chain[4..]), hashes(&other), "{fork:?}");
        assert_eq!(world.pipeline.drain_drops(), DropCounts::default());
    }
}

#[test]
fn a_span_that_contradicts_safe_blocks_is_dropped() {
    for fork in [Fork::Granite, Fork::Holocene] {
        for change in [4, 5, 6] {
            let (mut world, _) = overlapping(fork, Some(change));
            assert_eq!(world.chain.len(), 7, "{fork:?} {change}");
            let drops = world.pipeline.drain_drops();
            assert_eq!(drops.get(DropReason::SpanOverlap), 1, "{fork:?} {change}");
        }
    }
}

/// A failed read of the safe chain is requested again and changes nothing.
#[test]
fn an_overlap_waits_for_the_safe_chain() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let (mut world, blocks) = start(rollup(fork), 4, 9);
        let genesis = world.chain[0].clone();
        let batches = world.singular(&blocks[..6]);
        let item = world.channel(&batches);
        world.mine([item]);
        world.derive();
        let span = world.span(&genesis, &blocks);
        let item = world.channel(&[span]);
        world.mine([item]);
        let mut asked = Vec::new();
        loop {
            match world.pipeline.step() {
                PipelineStep::Need(Need::L2Block { number, hash: None }) => {
                    for _ in 0..3 {
                        assert!(matches!(
                            world.pipeline.step(),
                            PipelineStep::Need(Need::L2Block { number: again, .. })
                                if again == number
                        ));
                    }
                    let wrong = world.chain[(number as usize + 1) % 7].clone();
                    assert!(world.pipeline.push_l2(wrong).is_err());
                    asked.push(number);
                    let block = world.chain[number as usize].clone();
                    world.pipeline.push_l2(block).unwrap();
                }
                PipelineStep::Attributes(_) => break,
                PipelineStep::Idle { next, .. } => {
                    let input = world.l1[next as usize].clone();
                    world.pipeline.push_l1(input).unwrap();
                }
                PipelineStep::More => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(asked, [0, 1, 2, 3, 4, 5, 6], "{fork:?}");
    }
}

#[test]
fn a_span_before_delta_costs_itself_alone() {
    let (mut world, blocks) = start(rollup(Fork::Canyon), 3, 6);
    let genesis = world.chain[0].clone();
    let mut batches = vec![world.span(&genesis, &blocks)];
    batches.extend(world.singular(&blocks));
    let item = world.channel(&batches);
    world.mine([item]);
    world.derive();
    assert_eq!(hashes(&world.chain[1..]), hashes(&blocks));
    let drops = world.pipeline.drain_drops();
    assert_eq!(drops.get(DropReason::SpanBeforeDelta), 1);
}

/// Before Holocene future batches wait in the queue. From Holocene on they end the channel.
#[test]
fn batches_in_another_order() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let (mut world, blocks) = start(rollup(fork), 3, 6);
        let mut batches = world.singular(&blocks);
        batches.swap(2, 3);
        let item = world.channel(&batches);
        world.mine([item]);
        world.derive();
        let derived = if fork == Fork::Granite { 6 } else { 2 };
        assert_eq!(hashes(&world.chain[1..]), hashes(&blocks[..derived]));
        let drops = world.pipeline.drain_drops();
        assert_eq!(
            drops.get(DropReason::FutureBatch),
            u64::from(fork == Fork::Holocene)
        );
    }
}

/// Changes to the batch of block 1, each with the reason for dropping the batch.
#[test]
fn singular_batches_that_break_a_rule_are_dropped() {
    type Change = fn(&mut SingularBatch);
    let cases: [(Change, DropReason); 9] = [
        (|b| b.parent_hash = B256::ZERO, DropReason::BatchParent),
        (|b| b.epoch_hash = B256::ZERO, DropReason::BatchOrigin),
        (|b| b.epoch_number = 2, DropReason::BatchOrigin),
        (|b| b.epoch_number = u64::MAX, DropReason::BatchOrigin),
        (|b| b.epoch_number = 1, DropReason::BatchOrigin),
        (
            |b| b.transactions.push(Bytes::new()),
            DropReason::BatchTransaction,
        ),
        (
            |b| b.transactions.push(Bytes::from_static(&[0x7e, 1])),
            DropReason::BatchTransaction,
        ),
        (
            |b| b.transactions.push(Bytes::from_static(&[0x7d, 1])),
            DropReason::BatchTransaction,
        ),
        (
            |b| b.transactions.push(Bytes::from_static(&[4, 1])),
            DropReason::BatchTransaction,
        ),
    ];
    for fork in [Fork::Granite, Fork::Holocene] {
        for (at, (change, reason)) in cases.iter().enumerate() {
            let (mut world, blocks) = start(rollup(fork), 3, 1);
            let mut batch = world.batch(&blocks[0]);
            change(&mut batch);
            let item = world.channel(&[batch.encode()]);
            world.mine([item]);
            assert!(world.derive().is_empty(), "{fork:?} {at}");
            let drops = world.pipeline.drain_drops();
            assert_eq!(drops.get(*reason), 1, "{fork:?} {at}: {drops:?}");
        }
    }
}

/// The batch's L1 origin is later than its L2 block.
#[test]
fn a_batch_before_its_origin_is_dropped() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let (mut world, blocks) = start(rollup(fork), 3, 1);
        let mut batch = world.batch(&blocks[0]);
        batch.epoch_number = 1;
        batch.epoch_hash = world.l1[1].block.hash;
        let item = world.channel(&[batch.encode()]);
        world.mine([item]);
        assert!(world.derive().is_empty());
        let drops = world.pipeline.drain_drops();
        assert_eq!(drops.get(DropReason::BatchTime), 1, "{fork:?}");
    }
}

#[test]
fn set_code_transactions_are_legal_from_isthmus_on() {
    let raw = Bytes::from_static(&[4, 0xc0]);
    let (mut world, blocks) = start(rollup(Fork::Isthmus), 3, 1);
    let mut batch = world.batch(&blocks[0]);
    batch.transactions.push(raw.clone());
    let item = world.channel(&[batch.encode()]);
    world.mine([item]);
    assert_eq!(world.derive(), [(0, vec![transaction(1), raw])]);
}

/// The first blocks of Jovian and Karst have no user transactions. A batch that breaks this rule is
/// dropped, and an empty one is applied.
#[test]
fn activation_blocks_take_no_user_transactions() {
    for (fork, before) in [(Fork::Jovian, Fork::Isthmus), (Fork::Karst, Fork::Jovian)] {
        let mut config = rollup(before);
        config.forks = config.forks.with(fork, Some(START + 2 * L2_TIME));
        let (mut world, blocks) = start(config, 3, 4);
        let batches = world.singular(&blocks);
        let item = world.channel(&batches);
        world.mine([item]);
        assert_eq!(world.derive().len(), 1, "{fork:?}");
        let drops = world.pipeline.drain_drops();
        assert_eq!(drops.get(DropReason::ActivationBlock), 1, "{fork:?}");

        let parent = world.chain[1].clone();
        let with = [transaction(3)];
        let blocks = world.blocks(&parent, &[(0, &[]), (1, &with)]);
        let batches = world.singular(&blocks);
        let item = world.channel(&batches);
        world.mine([item]);
        world.derive();
        assert_eq!(hashes(&world.chain[2..]), hashes(&blocks), "{fork:?}");
        assert!(blocks[0].transactions.len() > 3, "the upgrade's");
        let gas = |at: usize| blocks[at].header.gas_limit;
        let upgrade = gas(0) - gas(1);
        let expected = if fork == Fork::Karst { 55_370_657 } else { 0 };
        assert_eq!(upgrade, expected, "the upgrade's gas does not stay");
    }
}

/// The drift is twenty seconds before Fjord and half an hour from Fjord on.
#[test]
fn the_sequencer_drift_bounds_blocks_with_transactions() {
    for (fork, dropped) in [
        (Fork::Delta, true),
        (Fork::Granite, false),
        (Fork::Holocene, false),
    ] {
        let mut world = World::new(rollup(fork));
        world.mine_to(3);
        let genesis = world.chain[0].clone();
        let some = [transaction(1)];
        let blocks = world.blocks(&genesis, &[(0, &some[..]); 11]);
        let batches = world.singular(&blocks);
        let item = world.channel(&batches);
        world.mine([item]);
        world.derive();
        let derived = if dropped { 10 } else { 11 };
        assert_eq!(world.chain.len() - 1, derived, "{fork:?}");
        let drops = world.pipeline.drain_drops();
        assert_eq!(drops.get(DropReason::SequencerDrift), u64::from(dropped));
    }
}

/// Beyond the drift an empty block may keep its L1 origin only if the next L1 block is later than
/// it.
#[test]
fn empty_blocks_beyond_the_drift_take_the_next_origin() {
    let mut world = World::new(rollup(Fork::Delta));
    world.mine_to(1);
    let genesis = world.chain[0].clone();
    let blocks = world.blocks(&genesis, &[(0, NONE); 12]);
    world.l1[1].block.time = START + 24;
    let batches = world.singular(&blocks);
    let item = world.channel(&batches);
    world.mine([item]).block.time = START + 30;
    world.derive();
    assert_eq!(world.chain.len() - 1, 11, "block 12 is at second 24");
    let drops = world.pipeline.drain_drops();
    assert_eq!(drops.get(DropReason::SequencerDrift), 1);
}

/// Beyond the drift an empty block with the next L1 origin is valid, even if later L1 origins have
/// already begun.
#[test]
fn an_empty_block_beyond_the_drift_may_skip_no_origin() {
    let mut world = World::new(rollup(Fork::Delta));
    world.mine_to(2);
    for (number, seconds) in [(1, 1), (2, 2)] {
        world.l1[number].block.time = START + seconds;
    }
    let genesis = world.chain[0].clone();
    let mut plan = vec![(0, NONE); 10];
    plan.push((1, NONE));
    let blocks = world.blocks(&genesis, &plan);
    let batches = world.singular(&blocks);
    let item = world.channel(&batches);
    world.mine([item]).block.time = START + 30;
    world.derive();
    assert_eq!(world.chain.len() - 1, 11, "block 11 is at second 22");
    let drops = world.pipeline.drain_drops();
    assert_eq!(drops.get(DropReason::SequencerDrift), 0);
}

/// One block of a span breaks a rule. In Holocene the blocks before it remain. Before Holocene the
/// full check drops the whole span.
#[test]
fn a_span_with_a_bad_block() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut config = rollup(fork);
        config.forks = config.forks.with(Fork::Fjord, None);
        config.forks = config.forks.with(Fork::Granite, None);
        let mut world = World::new(config);
        world.mine_to(3);
        let genesis = world.chain[0].clone();
        let some = [transaction(1)];
        let blocks = world.blocks(&genesis, &[(0, &some[..]); 11]);
        let span = world.span(&genesis, &blocks);
        let item = world.channel(&[span]);
        world.mine([item]);
        world.derive();
        let derived = if fork == Fork::Granite { 0 } else { 10 };
        assert_eq!(world.chain.len() - 1, derived, "{fork:?}");
        let drops = world.pipeline.drain_drops();
        assert_eq!(drops.get(DropReason::SequencerDrift), 1, "{fork:?}");
    }
}

/// The span's last L1 origin is not derived yet: the queue waits, and Holocene skips the span.
#[test]
fn a_span_that_is_ahead_of_l1() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let (mut world, _) = start(rollup(fork), 5, 0);
        let genesis = world.chain[0].clone();
        let blocks = chain(&world, &genesis, 15);
        let span = world.span(&genesis, &blocks);
        let kept: Vec<_> = world.l1.drain(3..).collect();
        let item = world.channel(&[span]);
        for (at, mut input) in kept.into_iter().enumerate() {
            if at == 0 {
                input.inbox.push(InboxTransaction {
                    sender: BATCHER,
                    calldata: item.clone().into(),
                    blobs: Vec::new(),
                });
            }
            world.l1.push(input);
        }
        world.derive();
        let derived = if fork == Fork::Granite { 15 } else { 0 };
        assert_eq!(world.chain.len() - 1, derived, "{fork:?}");
        let drops = world.pipeline.drain_drops();
        assert_eq!(
            drops.get(DropReason::BatchUndecided),
            u64::from(fork == Fork::Holocene)
        );
    }
}

/// Invalid data at every layer are dropped, and the next valid channel is applied.
#[test]
fn junk_is_counted_and_the_next_good_channel_is_used() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let (mut world, blocks) = start(rollup(fork), 3, 6);
        let batches = world.singular(&blocks);
        let frames = world.frames(&batches, 3);
        let truncated = crate::frame::encode(&frames[..1]);
        let mut no_frame = crate::frame::encode(&frames);
        no_frame.pop();
        let junk = vec![vec![0x09, 1, 2, 3]];
        let unknown = world.channel(&junk);
        let good = world.channel(&batches);
        world.mine([vec![], vec![7], no_frame, truncated, unknown, good]);
        world.derive();
        assert_eq!(hashes(&world.chain[1..]), hashes(&blocks), "{fork:?}");
        let drops = world.pipeline.drain_drops();
        assert_eq!(drops.get(DropReason::Frames), 3, "{fork:?}");
        assert_eq!(drops.get(DropReason::Channel), 1, "{fork:?}");
        let replaced = drops.get(DropReason::ChannelReplaced);
        assert_eq!(replaced, u64::from(fork == Fork::Holocene));
    }
}

#[test]
fn gas_limit_updates_apply_with_the_epoch() {
    let mut world = World::new(rollup(Fork::Holocene));
    world.mine([]).configure(2, U256::from(40_000_000));
    world.mine_to(WINDOW + 3);
    world.derive();
    let limits: Vec<_> = world.chain[1..5]
        .iter()
        .map(|b| b.header.gas_limit)
        .collect();
    assert_eq!(limits, [30_000_000, 30_000_000, 40_000_000, 40_000_000]);
}
