//! Tests of single rules of the state machine, one situation per test.

use super::world::{CHANNEL_TIMEOUT, L1_START, MARGIN, World, rules};
use crate::{
    batcher::{
        state::{BatcherNotice, BatcherRules, ClosedChannel},
        sync_actions::ClearCause,
        testing::FIRST_ORIGIN,
    },
    txmgr::fees::TxClass,
};
use starling_proto::encoder::{BatchFormat, ChannelTimes, CloseReason, CompressorKind};

fn singular() -> BatcherRules {
    rules(BatchFormat::Singular, CompressorKind::Shadow)
}

/// Rules whose channels fit some dozen blocks.
fn roomy() -> BatcherRules {
    let mut rules = singular();
    rules.calldata.settings.max_frame_size = 5_000;
    rules
}

/// Rules without compression, so that frames are finished before their channel closes.
fn stored() -> BatcherRules {
    let mut rules = rules(BatchFormat::Singular, CompressorKind::None);
    rules.calldata.settings.target_frames = 20;
    rules.blobs.settings.max_frame_size = 1_000;
    rules
}

fn closed(world: &World) -> Vec<ClosedChannel> {
    let closed = world.notices.iter().filter_map(|notice| match notice {
        BatcherNotice::ChannelClosed(channel) => Some(*channel),
        _ => None,
    });
    closed.collect()
}

/// Mines L1 blocks without transactions until a channel closes. Returns the reason and the number
/// of blocks.
fn closes_after(world: &mut World) -> (CloseReason, u64) {
    for _ in 0..300 {
        world.poll();
        if let Some(channel) = closed(world).first() {
            return (channel.reason, world.l1_head());
        }
        world.mine(0);
    }
    panic!("no channel closes");
}

#[test]
fn a_full_channel_closes_and_the_next_one_goes_on_after_it() {
    let mut world = World::new(singular());
    world.grow(40);
    world.poll();
    world.settle();
    let channels = closed(&world);
    assert_eq!(channels[0].reason.to_string(), "compressor is full");
    let numbers = channels.iter().map(|channel| {
        let span = channel.span.expect("blocks");
        (span.first.id.number, span.last.id.number)
    });
    let ends = numbers.fold(0, |newest, (first, last)| {
        assert_eq!(first, newest + 1);
        last
    });
    assert_eq!(ends, 40);
}

#[test]
fn a_channel_closes_at_its_longest_duration() {
    let times = ChannelTimes::new(15, CHANNEL_TIMEOUT, 200, MARGIN).unwrap();
    let mut world = World::new(BatcherRules { times, ..roomy() });
    world.grow(1);
    let (reason, head) = closes_after(&mut world);
    assert_eq!(reason.to_string(), "max channel duration reached");
    assert_eq!(head, FIRST_ORIGIN + 15, "from the safe head's origin on");
}

#[test]
fn a_channel_closes_before_the_sequencing_window_ends() {
    let times = ChannelTimes::new(0, CHANNEL_TIMEOUT, 20, MARGIN).unwrap();
    let mut world = World::new(BatcherRules { times, ..roomy() });
    world.grow(1);
    let (reason, head) = closes_after(&mut world);
    assert_eq!(reason.to_string(), "close to sequencer window timeout");
    assert_eq!(head, FIRST_ORIGIN + 20 - MARGIN);
}

#[test]
fn a_channel_closes_before_its_first_frame_times_out() {
    let mut world = World::new(stored());
    while world.sent.is_empty() {
        world.grow(1);
        world.poll();
    }
    assert_eq!(closed(&world), [], "a frame before the end");
    world.mine(1);
    let included = world.l1_head();
    let (reason, head) = closes_after(&mut world);
    assert_eq!(reason.to_string(), "close to channel timeout");
    assert_eq!(head, included + CHANNEL_TIMEOUT - MARGIN);
}

#[test]
fn an_order_to_close_waits_for_the_blocks_before_it() {
    let mut world = World::new(roomy());
    world.grow(2);
    world.poll();
    assert!(world.sent.is_empty() && !world.state.is_closed_through(2));
    assert_eq!(world.state.unposted(), Some((1, 2)));
    world.poll_closing(Some(3));
    assert!(world.sent.is_empty(), "block 3 is not there");
    world.grow(2);
    world.poll_closing(Some(3));
    assert_eq!(closed(&world)[0].reason.to_string(), "channel terminated");
    assert!(world.state.is_closed_through(4) && !world.state.is_submitted());
    world.mine(1);
    world.mine(0);
    assert!(world.state.is_submitted());
    assert_eq!(world.state.unposted(), None);
    assert_eq!(world.state.last_inclusion(), Some(L1_START + 1));
    world.poll_closing(Some(3));
    assert_eq!(closed(&world).len(), 1, "nothing more to close");
}

#[test]
fn what_was_loaded_is_known_after_a_reorg_has_dropped_it() {
    let mut world = World::new(roomy());
    assert_eq!(world.state.loaded_through(), 0);
    world.grow(5);
    world.poll();
    assert_eq!(world.state.loaded_through(), 5);
    world.state.on_reorg();
    // At this moment a stop must wait for these blocks, and the log of a kill must list them.
    assert_eq!((world.state.newest(), world.state.loaded_through()), (0, 5));
    assert_eq!(world.state.unposted(), Some((1, 5)));
    assert!(
        !world.state.is_posted_through(5),
        "whether they exist is not known"
    );
    world.poll_closing(Some(world.state.loaded_through()));
    assert_eq!(world.state.newest(), 5);
    assert!(world.state.is_closed_through(5) && !world.state.is_posted_through(5));
    world.settle();
    assert!(world.state.is_posted_through(5));
}

#[test]
fn blocks_that_a_reorg_has_removed_are_not_waited_for() {
    let mut world = World::new(roomy());
    world.grow(5);
    world.poll();
    world.l2.truncate(3);
    world.state.on_reorg();
    world.poll_closing(Some(5));
    world.settle();
    assert!(world.state.is_posted_through(world.state.loaded_through()));
}

#[test]
fn blobs_leave_together_and_in_full_transactions_until_the_channel_ends() {
    let mut world = World::new(BatcherRules {
        first_class: TxClass::Blob,
        ..stored()
    });
    while closed(&world).is_empty() {
        world.grow(1);
        world.poll();
        world.mine(4);
    }
    let id = closed(&world)[0].id;
    let sent: Vec<_> = world.sent.iter().filter(|tx| tx.channel == id).collect();
    let (last, whole) = sent.split_last().expect("a transaction");
    assert!(
        whole
            .iter()
            .all(|tx| tx.items.len() == 3 && tx.class == TxClass::Blob)
    );
    assert!((1..=3).contains(&last.items.len()));
}

#[test]
fn frames_go_again_in_order_from_the_one_that_failed() {
    let mut world = World::new(singular());
    world.grow(40);
    world.poll();
    let before = world.sent.clone();
    assert!(before.len() >= 2 && before[0].channel == before[1].channel);
    world.fail(0, false);
    world.mine(4);
    world.poll();
    let again: Vec<_> = world.sent[before.len()..]
        .iter()
        .take(2)
        .map(|tx| (tx.channel, tx.range))
        .collect();
    let first: Vec<_> = before[..2]
        .iter()
        .map(|tx| (tx.channel, tx.range))
        .collect();
    assert_eq!(again, first);
    world.settle();
}

/// Derivation ignores a frame that lands before the earlier frame whose transaction failed.
#[test]
fn a_frame_in_flight_behind_one_that_failed_does_not_count() {
    let mut world = World::new(singular());
    world.grow(40);
    world.poll();
    let first = world.sent[0].channel;
    let of_first = |world: &World| world.sent.iter().filter(|tx| tx.channel == first).count();
    assert_eq!(of_first(&world), 2);
    world.fail(0, false);
    world.mine(4);
    world.poll();
    assert_eq!(of_first(&world), 4, "both go again");
    // Confirms the earlier copy of the second frame, which no longer counts, and the repeated first
    // frame.
    world.mine(1);
    world.mine(0);
    world.poll();
    let submitted = |notice: &BatcherNotice| matches!(notice, BatcherNotice::ChannelSubmitted { id, .. } if *id == first);
    assert!(!world.notices.iter().any(submitted));
    world.mine(1);
    world.mine(0);
    world.poll();
    assert!(world.notices.iter().any(submitted));
    world.settle();
}

#[test]
fn a_channel_that_timed_out_is_posted_again_under_another_name() {
    let mut world = World::new(singular());
    world.grow(40);
    world.poll();
    let first = world.sent[0].channel;
    world.mine(1);
    for _ in 0..CHANNEL_TIMEOUT {
        world.mine(0);
    }
    assert!(world.state.body_bytes() > 0, "later blocks are loaded");
    world.mine(4);
    world.mine(0);
    assert_eq!(world.state.body_bytes(), 0, "its blocks come first");
    world.poll();
    let timed_out = |notice: &BatcherNotice| matches!(notice, BatcherNotice::ChannelTimedOut { id, .. } if *id == first);
    assert!(world.notices.iter().any(timed_out));
    world.settle();
}

#[test]
fn a_lost_channel_is_posted_again() {
    let mut world = World::new(singular());
    world.grow(12);
    world.poll_closing(Some(12));
    world.mine(4);
    world.mine(0);
    world.mine(0);
    assert!(world.state.is_submitted());
    world.reorg_l1(3);
    for _ in 0..4 {
        world.mine(0);
    }
    world.derive(world.l1_head());
    world.poll();
    let cause = BatcherNotice::Cleared(ClearCause::LostChannel);
    assert!(world.notices.contains(&cause), "{:?}", world.notices);
    assert_eq!(
        ClearCause::LostChannel.to_string(),
        "sequencer did not make expected progress"
    );
    world.settle();
}

/// Derivation ignores a channel for a reason that the batcher cannot see.
#[test]
fn blocks_that_are_lost_again_and_again_are_posted_after_longer_and_longer_pauses() {
    let mut world = World::new(singular());
    world.grow(12);
    let mut pauses = Vec::new();
    for _ in 0..7 {
        world.poll_closing(Some(12));
        world.mine(4);
        world.mine(0);
        assert!(world.state.is_submitted());
        // Derivation passes the channel, and nothing becomes safe.
        world.derived_to = world.l1_head();
        world.poll();
        let repeat_at = world.state.repeat_at();
        pauses.push(repeat_at.map_or(0, |at| at - world.derived_to));
    }
    assert_eq!(
        pauses,
        [0, 4, 8, 12, 12, 12, 12],
        "a sixteenth of the window of 200"
    );
    world.settle();
    world.grow(12);
    world.poll_closing(Some(24));
    world.mine(4);
    world.mine(0);
    world.derived_to = world.l1_head();
    world.poll();
    assert_eq!(world.state.repeat_at(), None, "the safe head has moved");
    world.settle();
}

#[test]
fn an_l2_reorg_under_an_open_channel_drops_it() {
    let mut world = World::new(roomy());
    world.grow(3);
    world.poll();
    assert_eq!(world.state.next_block(), 4);
    world.reorg_l2(1);
    world.grow(1);
    world.poll();
    world.poll();
    assert!(
        world
            .notices
            .contains(&BatcherNotice::Cleared(ClearCause::UnsafeReorg))
    );
    world.settle();
}

#[test]
fn other_prices_dissolve_a_channel_that_has_not_begun_and_no_other() {
    let mut world = World::new(singular());
    world.grow(40);
    world.class = TxClass::Blob;
    world.poll();
    assert!(!world.sent.is_empty());
    assert!(world.sent.iter().all(|tx| tx.class == TxClass::Blob));
    let changed = BatcherNotice::ClassChanged(TxClass::Blob);
    assert!(world.notices.contains(&changed));
    let begun = world.sent[0].channel;
    world.fail(0, false);
    world.mine(0);
    world.settle();
    assert!(world.sent.iter().any(|tx| tx.channel == begun));
    world.class = TxClass::Calldata;
    world.grow(40);
    world.settle();
    assert_eq!(
        world.sent.last().map(|tx| tx.class),
        Some(TxClass::Calldata)
    );
}

/// A failure withdraws all later transactions of the channel too, so none of its frames counts any
/// more.
#[test]
fn other_prices_dissolve_a_channel_whose_transactions_have_failed() {
    let mut world = World::new(singular());
    world.grow(40);
    world.poll();
    let before = world.sent.clone();
    assert_eq!(before[0].channel, before[1].channel);
    world.fail(0, false);
    world.class = TxClass::Blob;
    world.poll();
    let again = &world.sent[before.len()];
    assert_eq!(again.class, TxClass::Blob);
    assert_ne!(again.channel, before[0].channel);
    world.settle();
}

#[test]
fn other_prices_leave_a_channel_in_flight_whole() {
    let mut world = World::new(singular());
    world.grow(40);
    world.poll();
    let before = world.sent.clone();
    let begun = before[0].channel;
    assert_eq!(before[1].channel, begun);
    // The channel's first frame is still in flight.
    world.fail(1, false);
    world.class = TxClass::Blob;
    world.poll();
    let again = &world.sent[before.len()];
    let (range, class) = (before[1].range, TxClass::Calldata);
    assert_eq!(
        (again.channel, again.range, again.class),
        (begun, range, class)
    );
    world.settle();
}

#[test]
fn bodies_in_memory_are_bounded_however_long_the_backlog() {
    let mut world = World::new(singular());
    world.grow(2_000);
    let budget = singular().body_budget;
    world.poll();
    let newest = world.state.newest();
    assert!(newest < 100, "{newest} of 2000 blocks loaded");
    assert!(world.state.body_bytes() < budget + 10_000);
    let load = world.state.load();
    assert_eq!(load.unloaded, 2_000 - newest);
    assert_eq!(load.loaded.blocks, newest);
    let not_closed = load.waiting.sizes.da + load.open.sizes.da;
    let unloaded = load.unloaded * load.loaded.sizes.da / load.loaded.blocks;
    assert_eq!(
        load.da_bytes(),
        Some(not_closed + load.closed_bytes + unloaded)
    );
    for _ in 0..10 {
        world.mine(4);
        world.poll();
        assert!(world.state.body_bytes() < budget + 10_000);
    }
    assert!(world.state.newest() > newest);
}

#[test]
fn the_load_counts_each_block_once_until_it_is_safe() {
    let mut world = World::new(roomy());
    world.grow(5);
    world.poll();
    let load = world.state.load();
    let all = load.open.sizes;
    assert_eq!(
        (load.open.blocks, load.waiting.blocks, load.closed_bytes),
        (5, 0, 0)
    );
    assert!(all.da > 0 && all.raw > 0);
    world.poll_closing(Some(5));
    let load = world.state.load();
    assert_eq!((load.open.blocks, load.waiting.blocks), (0, 0));
    assert_eq!(load.closed_bytes, closed(&world)[0].sizes.output);
    world.settle();
    world.poll();
    assert_eq!(world.state.load().da_bytes(), Some(0));
    assert_eq!(world.state.queue_len(), 0);
}

#[test]
fn blocks_that_are_not_loaded_count_while_every_loaded_block_is_in_a_closed_channel() {
    let mut world = World::new(roomy());
    world.grow(5);
    world.poll_closing(Some(5));
    let mut load = world.state.load();
    assert_eq!((load.open.blocks, load.waiting.blocks), (0, 0));
    load.unloaded = 10;
    let unloaded = 10 * load.loaded.sizes.da / 5;
    assert_eq!(load.da_bytes(), Some(load.closed_bytes + unloaded));
}

/// A load of zero would end throttling with the largest backlog.
#[test]
fn the_load_of_a_backlog_of_which_nothing_is_loaded_is_unknown() {
    let mut load = World::new(roomy()).state.load();
    assert_eq!(load.da_bytes(), Some(0), "there is no block");
    load.unloaded = 1_000;
    assert_eq!(load.da_bytes(), None);
}

/// The rollup node reports the number of unloaded blocks, and may report any number.
#[test]
fn a_head_far_above_the_loaded_blocks_is_the_largest_load() {
    let mut load = World::new(roomy()).state.load();
    load.loaded.blocks = 3;
    load.loaded.sizes.da = 900;
    load.waiting = load.loaded;
    load.unloaded = 2;
    assert_eq!(load.da_bytes(), Some(1_500));
    load.unloaded = u64::MAX;
    assert_eq!(load.da_bytes(), Some(u64::MAX));
}
