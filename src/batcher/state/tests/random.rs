//! Random sequences of events: every block becomes safe, in order, whatever happened before.

use super::world::{World, rules};
use crate::txmgr::fees::TxClass;
use proptest::prelude::*;
use starling_proto::encoder::{BatchFormat, CompressorKind};
use std::num::NonZeroUsize;

#[derive(Clone, Debug)]
enum Step {
    Grow(u64),
    Poll,
    Flush,
    Mine(usize),
    /// Mine this many L1 blocks without transactions.
    Wait(usize),
    Fail(usize, bool),
    /// Derive up to this many blocks below the L1 head.
    Derive(u64),
    ReorgL1(usize),
    /// Replace this many L2 blocks by a reorg.
    ReorgL2(u64),
    Class(TxClass),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1_u64..12).prop_map(Step::Grow),
        12 => Just(Step::Poll),
        1 => Just(Step::Flush),
        8 => (0_usize..5).prop_map(Step::Mine),
        1 => (1_usize..14).prop_map(Step::Wait),
        2 => (0_usize..4, any::<bool>()).prop_map(|(index, lands)| Step::Fail(index, lands)),
        5 => (0_u64..4).prop_map(Step::Derive),
        1 => (1_usize..8).prop_map(Step::ReorgL1),
        1 => (1_u64..10).prop_map(Step::ReorgL2),
        1 => prop_oneof![Just(TxClass::Blob), Just(TxClass::Calldata)].prop_map(Step::Class),
        1 => Just(Step::Restart),
    ]
}

fn take(world: &mut World, step: Step) {
    match step {
        Step::Grow(blocks) => world.grow(blocks),
        Step::Poll => world.poll(),
        Step::Flush => world.poll_closing(Some(world.l2.newest())),
        Step::Mine(count) => world.mine(count),
        Step::Wait(blocks) => (0..blocks).for_each(|_| world.mine(0)),
        Step::Fail(index, lands) => world.fail(index, lands),
        Step::Derive(behind) => {
            world.derive(world.l1_head().saturating_sub(behind).max(world.derived_to))
        }
        Step::ReorgL1(depth) => world.reorg_l1(depth),
        Step::ReorgL2(depth) => {
            let common = world.l2.newest().saturating_sub(depth);
            world.reorg_l2(common.max(world.safe_head()));
        }
        Step::Class(class) => world.class = class,
        Step::Restart => world.restart(),
    }
}

fn format() -> impl Strategy<Value = BatchFormat> {
    prop_oneof![
        Just(BatchFormat::Singular),
        Just(BatchFormat::Span { max_blocks: None }),
        Just(BatchFormat::Span {
            max_blocks: NonZeroUsize::new(3)
        }),
    ]
}

fn kind() -> impl Strategy<Value = CompressorKind> {
    prop_oneof![
        Just(CompressorKind::Shadow),
        Just(CompressorKind::Ratio(0.6)),
        Just(CompressorKind::None),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_block_becomes_safe_after_anything(
        format in format(),
        kind in kind(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(rules(format, kind));
        for step in steps {
            take(&mut world, step);
        }
        world.grow(3);
        world.settle();
        let safe: Vec<_> = world.safe.iter().map(|block| block.hash).collect();
        let l2: Vec<_> = (0..=world.l2.newest()).map(|number| world.l2.payload(number).hash).collect();
        prop_assert_eq!(safe, l2);
    }

    /// With no fault among the events, no block is posted twice.
    #[test]
    fn nothing_is_posted_twice_without_a_fault(
        format in format(),
        kind in kind(),
        rounds in prop::collection::vec((0_u64..12, 0_usize..5), 1..25),
    ) {
        let mut world = World::new(rules(format, kind));
        for (blocks, mined) in rounds {
            world.grow(blocks);
            world.poll();
            world.mine(mined.max(1));
            world.derive(world.l1_head());
        }
        world.settle();
        let mut frames = std::collections::HashSet::new();
        let mut channels = Vec::new();
        for tx in &world.sent {
            for frame in tx.range.indices() {
                prop_assert!(frames.insert((tx.channel, frame)));
            }
            channels.push(tx.channel);
        }
        channels.dedup();
        let distinct: std::collections::HashSet<_> = channels.iter().collect();
        prop_assert_eq!(distinct.len(), channels.len(), "channels one after another");
        let dropped = world.notices.iter().any(|notice| matches!(
            notice,
            crate::batcher::state::BatcherNotice::ChannelDropped { .. }
                | crate::batcher::state::BatcherNotice::Cleared(_)
                | crate::batcher::state::BatcherNotice::NotEncoded(_)
        ));
        prop_assert!(!dropped, "{:?}", world.notices);
    }
}
