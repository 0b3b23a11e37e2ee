//! Faults of L1 and L2 that the batcher must survive: reorgs of every depth, heads that move back,
//! blocks that are too large.

use super::world::{L1_START, World, rules};
use crate::{
    batcher::{
        state::{BatcherNotice, BatcherRules},
        sync_actions::{ClearCause, OutOfSync},
        testing::status,
    },
    txmgr::fees::TxClass,
};
use starling_proto::encoder::{BatchFormat, CompressorKind};

/// Depth of the deepest L1 reorg tested, in blocks.
const DEEPEST: usize = 64;

fn singular() -> BatcherRules {
    rules(BatchFormat::Singular, CompressorKind::Shadow)
}

/// A chain with one or two channels per L1 block, an open channel, and transactions in flight.
fn busy(rules: BatcherRules) -> World {
    let mut world = World::new(rules);
    for _ in 0..DEEPEST + 6 {
        world.grow(3);
        world.poll();
        world.mine(2);
        world.derive(world.l1_head());
    }
    world.grow(4);
    world.poll();
    world
}

/// Runs with singular batches and with span batches.
#[test]
fn l1_reorgs_of_every_depth_lose_no_block() {
    let formats = [
        BatchFormat::Singular,
        BatchFormat::Span { max_blocks: None },
    ];
    for depth in 1..=DEEPEST {
        let mut world = busy(rules(formats[depth % 2], CompressorKind::Shadow));
        let safe = world.safe_head();
        world.reorg_l1(depth);
        let has_fewer = world.safe_head() < safe;
        assert!(depth < 8 || has_fewer, "blocks are safe no more");
        world.grow(3);
        world.settle();
        let of_l2 = (0..=world.l2.newest()).map(|number| world.l2.payload(number).hash);
        let safe: Vec<_> = world.safe.iter().map(|block| block.hash).collect();
        assert_eq!(safe, of_l2.collect::<Vec<_>>(), "{depth}");
    }
}

#[test]
fn a_safe_head_that_goes_back_below_what_is_held_begins_again_above_it() {
    let mut world = busy(singular());
    let (safe, newest) = (world.safe_head(), world.l2.newest());
    assert!(safe > 20);
    world.poll();
    let back = status(&world.l2, safe - 20, newest, world.derived_to);
    assert_eq!(world.state.on_status(&back), Ok(()));
    let notices = world.state.take_notices();
    let cause = BatcherNotice::Cleared(ClearCause::SafeBelowOldest);
    assert!(notices.contains(&cause), "{notices:?}");
    assert_eq!(world.state.next_block(), safe - 19);
    world.settle();
}

#[test]
fn a_rollup_node_that_derives_again_from_an_earlier_l1_block_changes_nothing() {
    let mut world = busy(singular());
    let next = world.state.next_block();
    let (safe, newest) = (world.safe_head(), world.l2.newest());
    let again = status(&world.l2, safe, newest, L1_START);
    let reversed = world.state.on_status(&again);
    assert!(matches!(reversed, Err(OutOfSync::Reversed { .. })));
    assert_eq!(world.state.next_block(), next);
    assert!(world.state.take_notices().is_empty());
    world.settle();
}

/// The execution client serves the old chain until the rollup node has rewound it.
#[test]
fn a_channel_whose_l1_origin_has_left_l1_is_not_posted() {
    let mut world = World::new(singular());
    world.grow(40);
    let gone_from = world.l2.reference(20).origin.number;
    world.gone_from = Some(gone_from);
    let cause = BatcherNotice::Cleared(ClearCause::OriginReorg);
    while !world.notices.contains(&cause) {
        assert!(world.l1_head() < L1_START + 20, "{:?}", world.notices);
        world.poll();
        world.mine(4);
    }
    for notice in &world.notices {
        if let BatcherNotice::ChannelClosed(channel) = notice {
            let last = channel.span.expect("blocks").last;
            let is_sent = world.sent.iter().any(|tx| tx.channel == channel.id);
            assert!(!is_sent || last.origin.number < gone_from);
        }
    }
    world.gone_from = None;
    world.reorg_l2(19);
    world.settle();
}

#[test]
fn a_first_block_above_the_target_goes_out_alone_in_several_transactions() {
    for class in [TxClass::Calldata, TxClass::Blob] {
        for kind in [
            CompressorKind::Shadow,
            CompressorKind::Ratio(0.6),
            CompressorKind::None,
        ] {
            let mut rules = rules(BatchFormat::Singular, kind);
            rules.first_class = class;
            for plan in [&mut rules.calldata, &mut rules.blobs] {
                (plan.settings.max_frame_size, plan.settings.target_frames) = (90, 1);
            }
            let mut world = World::new(rules);
            world.class = class;
            world.grow(30);
            world.settle();
            let large = world.notices.iter().any(|notice| match notice {
                BatcherNotice::ChannelClosed(closed) => {
                    closed.sizes.blocks == 1 && closed.sizes.frames > 1
                }
                _ => false,
            });
            assert!(large, "{class:?} {kind:?}");
            let refused = |notice: &&BatcherNotice| matches!(notice, BatcherNotice::NotEncoded(_));
            assert_eq!(world.notices.iter().find(refused), None);
        }
    }
}
