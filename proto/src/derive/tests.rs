//! Tests of the pipeline on a simulated L1 that mines on command.

mod batches;
mod l1;
mod simulated;
pub(super) mod world;

use super::*;
use crate::{batch::SingularBatch, fork::Fork};
use alloy_primitives::Address;
use world::*;

/// Blocks from the child of `parent` to number `last`. Each has one transaction and the newest L1
/// origin that its timestamp allows.
fn chain(world: &World, parent: &Payload, last: u64) -> Vec<Arc<Payload>> {
    let mut blocks: Vec<Arc<Payload>> = Vec::new();
    for number in parent.number() + 1..=last {
        let parent = blocks.last().map_or(parent, |last| last);
        let epoch = number * L2_TIME / L1_TIME;
        blocks.push(world.block(parent, epoch, &[transaction(number)]));
    }
    blocks
}

fn hashes(blocks: &[Arc<Payload>]) -> Vec<B256> {
    blocks.iter().map(|block| block.hash).collect()
}

/// A world with L1 blocks up to `number`, and the L2 blocks up to `last`, which are not posted yet.
fn start(rollup: RollupConfig, number: u64, last: u64) -> (World, Vec<Arc<Payload>>) {
    let mut world = World::new(rollup);
    world.mine_to(number);
    let genesis = world.chain[0].clone();
    let blocks = chain(&world, &genesis, last);
    (world, blocks)
}

/// The transactions of an empty block.
const NONE: &[Bytes] = &[];

#[test]
fn batches_of_both_kinds_are_derived_on_every_fork() {
    for fork in Fork::ALL.into_iter().filter(|fork| *fork >= Fork::Regolith) {
        for is_span in [false, true] {
            if is_span && fork < Fork::Delta {
                continue;
            }
            let (mut world, blocks) = start(rollup(fork), 3, 9);
            let genesis = world.chain[0].clone();
            let batches = if is_span {
                vec![world.span(&genesis, &blocks)]
            } else {
                world.singular(&blocks)
            };
            let item = world.channel(&batches);
            world.mine([item]);
            world.derive();
            assert_eq!(
                hashes(&world.chain[1..]),
                hashes(&blocks),
                "{fork:?} {is_span}"
            );
            let concluding = if is_span && fork < Fork::Holocene {
                1
            } else {
                9
            };
            assert_eq!(world.safe.len(), concluding, "{fork:?} {is_span}");
            assert!(
                world
                    .safe
                    .iter()
                    .all(|(_, derived_from)| *derived_from == 4)
            );
            assert_eq!(world.pipeline.drain_drops(), DropCounts::default());
            let reads = world.pipeline.drain_reads();
            let expected = if is_span { (0, 1) } else { (9, 0) };
            assert_eq!((reads.singular_batches, reads.span_batches), expected);
            assert!(reads.frames > 0);
            // The bank counts the channel once when it is opened and once when it is read.
            let fronts = if fork < Fork::Holocene { 2 } else { 1 };
            assert_eq!(reads.head_channels, fronts, "{fork:?}");
            assert!(reads.channel_bytes > 0);
        }
    }
}

#[test]
fn a_need_is_returned_until_it_is_met_and_answers_are_checked() {
    let (mut world, _) = start(rollup(Fork::Holocene), 3, 0);
    let expected = Need::L1Block {
        number: 0,
        link: L1Link::Hash(world.l1[0].block.hash),
    };
    for _ in 0..3 {
        match world.pipeline.step() {
            PipelineStep::Need(need) => assert_eq!(need, expected),
            other => panic!("{other:?}"),
        }
    }
    let other = world.l1[1].clone();
    assert!(matches!(
        world.pipeline.push_l1(other),
        Err(PushError::Other { .. })
    ));
    let head = world.chain[0].clone();
    let refused = [
        world.pipeline.push_l2(head.clone()),
        world.pipeline.push_blobs(B256::ZERO, &[]),
        world.pipeline.accepted(head),
        world.pipeline.invalid("refused by the test"),
    ];
    for refused in refused {
        assert!(
            matches!(refused, Err(PushError::NotNeeded(_))),
            "{refused:?}"
        );
    }
    world.pipeline.no_l1_yet();
    assert!(matches!(
        world.pipeline.step(),
        PipelineStep::Idle {
            origin: None,
            next: 0
        }
    ));
    world.derive();
    assert_eq!(world.pipeline.origin().unwrap().number, 3);
    assert!(matches!(
        world.pipeline.step(),
        PipelineStep::Idle { next: 4, .. }
    ));
}

/// Runs the pipeline until it returns a need for which `wanted` is true.
fn run_to(world: &mut World, wanted: impl Fn(&Need) -> bool) -> Need {
    for _ in 0..1_000 {
        match world.pipeline.step() {
            PipelineStep::Need(need) if wanted(&need) => return need,
            PipelineStep::Need(need) => world.answer(need),
            PipelineStep::More => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("no such need");
}

#[test]
fn another_l1_block_of_the_height_where_the_pipeline_starts_asks_for_a_reset() {
    let (mut world, _) = start(rollup(Fork::Holocene), 3, 0);
    let mut other = world.l1[0].clone();
    other.block.hash = B256::repeat_byte(9);
    world.pipeline.push_l1(other).unwrap();
    let step = world.pipeline.step();
    assert!(
        matches!(step, PipelineStep::Reset(ResetReason::Origin { .. })),
        "{step:?}"
    );
}

#[test]
fn blobs_of_another_block_or_in_another_number_are_refused() {
    let (mut world, blocks) = start(rollup(Fork::Holocene), 3, 9);
    let batches = world.singular(&blocks);
    let item = world.channel(&batches);
    let (hash, blob) = (B256::repeat_byte(1), crate::blob::encode(&item).unwrap());
    world.blobs.insert(hash, blob.into());
    world.mine([vec![]]).inbox[0].blobs = vec![BlobRef {
        index: 0,
        versioned_hash: hash,
    }];
    let need = run_to(&mut world, |need| matches!(need, Need::Blobs { .. }));
    let Need::Blobs { block, .. } = &need else {
        panic!("{need:?}")
    };
    let wrong = [
        (B256::ZERO, vec![world.blobs[&hash].clone()]),
        (block.hash, vec![]),
        (block.hash, vec![world.blobs[&hash].clone(); 2]),
    ];
    for (block, blobs) in wrong {
        assert!(world.pipeline.push_blobs(block, &blobs).is_err());
    }
    world.derive();
    assert_eq!(hashes(&world.chain[1..]), hashes(&blocks));
}

#[test]
fn another_l2_block_of_the_height_that_is_needed_is_refused() {
    let (mut world, blocks) = start(rollup(Fork::Fjord), 6, 18);
    let batches = world.singular(&blocks);
    let item = world.channel(&batches);
    world.mine([item]);
    world.derive();
    world.pipeline.reset(world.chain[18].clone(), 0);
    let need = run_to(&mut world, |need| matches!(need, Need::L2Block { .. }));
    let Need::L2Block { number, hash } = need else {
        panic!("{need:?}")
    };
    assert_eq!(hash, Some(world.chain[number as usize].hash));
    let parent = &world.chain[number as usize - 1];
    let other = world.block(parent, number * L2_TIME / L1_TIME, &[]);
    let refused = world.pipeline.push_l2(other);
    assert!(
        matches!(refused, Err(PushError::Other { .. })),
        "{refused:?}"
    );
}

#[test]
fn attributes_are_produced_once_and_their_block_must_build_on_the_parent() {
    let (mut world, blocks) = start(rollup(Fork::Holocene), 3, 2);
    let batches = world.singular(&blocks);
    let item = world.channel(&batches);
    world.mine([item]);
    let derived = loop {
        match world.pipeline.step() {
            PipelineStep::Attributes(derived) => break derived,
            PipelineStep::Need(Need::L1Block { number, .. }) => {
                let input = world.l1[number as usize].clone();
                world.pipeline.push_l1(input).unwrap();
            }
            PipelineStep::More => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(derived.parent.id, world.chain[0].id());
    assert!(derived.concluding && !derived.deposits_only);
    assert_eq!(derived.attributes.no_tx_pool, Some(true));
    assert!(matches!(
        world.pipeline.step(),
        PipelineStep::AwaitingVerdict
    ));
    assert!(world.pipeline.accepted(blocks[1].clone()).is_err());
    let mut header = blocks[0].header.clone();
    header.parent_hash = B256::repeat_byte(9);
    let other = Payload::sealed(header, blocks[0].transactions.clone());
    assert!(world.pipeline.accepted(other.into()).is_err());
    assert!(matches!(
        world.pipeline.step(),
        PipelineStep::AwaitingVerdict
    ));
    world.pipeline.accepted(blocks[0].clone()).unwrap();
    assert_eq!(world.pipeline.pending_safe().unwrap().id, blocks[0].id());
    assert!(world.pipeline.accepted(blocks[0].clone()).is_err());
}

/// Before Holocene the whole span is dropped. From Holocene on the blocks before the invalid one
/// remain, and the invalid block is replaced by its deposits.
#[test]
fn an_invalid_block_inside_a_span() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let (mut world, blocks) = start(rollup(fork), 3, 8);
        let genesis = world.chain[0].clone();
        world.invalid.push(transaction(4));
        let span = world.span(&genesis, &blocks);
        let item = world.channel(&[span]);
        world.mine([item]);
        let kept = if fork == Fork::Granite { 0 } else { 4 };
        let contents = world.derive();
        assert_eq!(
            contents.len() - usize::from(fork == Fork::Granite) * 3,
            kept,
            "{fork:?}"
        );
        let drops = world.pipeline.drain_drops();
        assert_eq!(drops.get(DropReason::InvalidBlock), 1);
        assert_eq!(drops.get(DropReason::SpanRest), 1);
        if fork == Fork::Holocene {
            assert_eq!(contents[3], (1, vec![]), "deposits only");
            assert_eq!(world.safe.last(), Some(&(4, 4)));
        } else {
            assert_eq!(world.pipeline.pending_safe().unwrap().id, genesis.id());
            assert!(world.safe.is_empty());
        }

        // The next valid batches are applied.
        let parent = world.chain[kept].clone();
        let again: Vec<_> = (kept as u64 + 1..=8)
            .map(|number| (number * L2_TIME / L1_TIME, NONE))
            .collect();
        let again = world.blocks(&parent, &again);
        let batches = world.singular(&again);
        let item = world.channel(&batches);
        world.mine([item]);
        world.derive();
        assert_eq!(hashes(&world.chain[kept + 1..]), hashes(&again), "{fork:?}");
    }
}

#[test]
fn an_invalid_block_of_deposits_alone_is_critical() {
    let (mut world, _) = start(rollup(Fork::Holocene), WINDOW + 2, 0);
    loop {
        match world.pipeline.step() {
            PipelineStep::Attributes(derived) => {
                assert!(derived.deposits_only);
                world.pipeline.invalid("a mint overflows").unwrap();
            }
            PipelineStep::Need(Need::L1Block { number, .. }) => {
                let input = world.l1[number as usize].clone();
                world.pipeline.push_l1(input).unwrap();
            }
            PipelineStep::More => {}
            PipelineStep::Critical(error) => {
                let parent = world.chain[0].id();
                let cause = "a mint overflows".to_owned();
                assert_eq!(error, CriticalError::DepositsOnly { parent, cause });
                break;
            }
            stop => panic!("{stop:?}"),
        }
    }
}

#[test]
fn derivation_ends_before_lagoon_with_a_sentence() {
    let (mut world, blocks) = start(rollup(Fork::Holocene), 3, 5);
    let mut config = rollup(Fork::Holocene);
    config.forks = config.forks.with_lagoon(Some(START + 3 * L2_TIME));
    world.pipeline = Pipeline::new(config.into(), BlobSchedule::default());
    world.pipeline.reset(world.chain[0].clone(), 0);
    let batches = world.singular(&blocks);
    let item = world.channel(&batches);
    world.mine([item]);
    let stop = world.run();
    let PipelineStep::Critical(error) = stop else {
        panic!("{stop:?}");
    };
    let sentence = format!("the block at L2 time {} is in Lagoon (interop)", START + 6);
    assert!(error.to_string().starts_with(&sentence), "{error}");
    assert_eq!(hashes(&world.chain[1..]), hashes(&blocks[..2]));
    assert!(matches!(world.pipeline.step(), PipelineStep::Critical(_)));
}

/// A channel may have been opened up to a channel timeout before the safe head's L1 origin.
#[test]
fn a_reset_goes_back_far_enough_for_open_channels() {
    let (mut world, blocks) = start(rollup(Fork::Fjord), 6, 18);
    let batches = world.singular(&blocks);
    let mut late = world.frames(&batches[12..], 2).into_iter();
    let mut item = || crate::frame::encode(&[late.next().unwrap()]);
    let (open, close) = (item(), item());
    let first = world.channel(&batches[..12]);
    for (number, item) in [(3, open), (5, first)] {
        world.l1[number].inbox.push(InboxTransaction {
            sender: BATCHER,
            calldata: item.into(),
            blobs: Vec::new(),
        });
    }
    world.derive();
    assert_eq!(hashes(&world.chain[1..]), hashes(&blocks[..12]));

    // The L1 origin of block 12 is L1 block 4.
    let safe = world.chain[12].clone();
    world.pipeline.reset(safe.clone(), 0);
    assert_eq!(world.pipeline.pending_safe().unwrap().id, safe.id());
    world.mine([close]);
    world.derive();
    assert_eq!(hashes(&world.chain[1..]), hashes(&blocks));
}
