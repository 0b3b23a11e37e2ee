//! A verifier whose L1 has batcher data that are truncated, reordered, late, contradictory or
//! garbage. Such data change no safe block, and the next good batch is derived.

use super::world::{ActionPlan, ActionWorld};
use starling_proto::{
    fork::{Fork, ForkSchedule},
    frame::{self, ChannelId, Frame},
    payload::Payload,
};
use std::sync::Arc;

/// L1 blocks for which a channel may stay open, from Granite on (channel timeout).
const CHANNEL_TIMEOUT: u64 = 50;
/// Decompressed bytes of a decompression bomb.
const BOMB: u32 = 20_000_000;

/// Mines L1 blocks, and appends L2 blocks with these as origins. Returns the L2 blocks.
pub fn grow(world: &mut ActionWorld) -> Vec<Arc<Payload>> {
    world.l1.mine_to(world.l1.height() + 2);
    world.extend(world.l1.height() - 1)
}

/// Asserts that the safe head is the parent of `first` once all of L1 is derived.
pub fn stays_below(world: &mut ActionWorld, first: &Payload) {
    let status = world.derived();
    let safe = first.number() - 1;
    assert_eq!(status["safe_l2"]["number"], safe, "{status}");
}

/// Mines an L1 block with data items of the batcher.
pub fn mine_items(world: &mut ActionWorld, items: &[Vec<u8>]) {
    let calls: Vec<_> = items.iter().map(|item| world.calldata(item)).collect();
    world.l1.mine(&calls);
}

/// A data item with a channel that consists of one frame.
fn channel_of(id: u8, data: &[u8]) -> Vec<u8> {
    frame::encode(&[Frame {
        id: ChannelId::repeat_byte(id),
        number: 0,
        data: data.to_vec().into(),
        is_last: true,
    }])
}

/// Data items that contain no valid frames, some of them made from the item `good`.
fn garbage_frames(good: &[u8]) -> Vec<Vec<u8>> {
    let changed = |change: fn(&mut Vec<u8>)| {
        let mut item = good.to_vec();
        change(&mut item);
        item
    };
    vec![
        vec![],
        vec![frame::VERSION],
        changed(|item| item[0] = frame::ALT_DA_VERSION),
        changed(|item| item[0] = 7),
        changed(|item| item.truncate(item.len() - 20)),
        changed(|item| item.push(0)),
        changed(|item| item[19..23].fill(0xff)),
        [good, &good[1..30]].concat(),
    ]
}

fn garbage(world: &mut ActionWorld) {
    let blocks = grow(world);
    let span = world.author.span(&blocks);
    let good = world.channel(std::slice::from_ref(&span));
    mine_items(world, &garbage_frames(&good));
    stays_below(world, &blocks[0]);
    let cut_span = &span[..span.len() - 1];
    let channels = [
        channel_of(0xa0, &[]),
        channel_of(0xa1, &[0x78, 0x9c, 0xff, 0xff]),
        channel_of(0xa2, &[5; 100]),
        channel_of(0xa3, &[1, 2, 3]),
        world.channel(&[vec![7; 40], vec![0, 0xc1, 0x80], vec![]]),
        world.channel(&[cut_span.to_vec()]),
    ];
    mine_items(world, &channels);
    stays_below(world, &blocks[0]);
    mine_items(world, &[good]);
    world.settle();
}

/// A small channel that decompresses to a large batch of zeros, followed by a good channel in the
/// same L1 block.
fn a_bomb(world: &mut ActionWorld) {
    let blocks = grow(world);
    let mut batch = vec![0xbb];
    batch.extend(BOMB.to_be_bytes());
    batch.resize(batch.len() + BOMB as usize, 0);
    let bomb = deflated(&batch);
    assert!(bomb.len() < 100_000, "{}", bomb.len());
    let bomb = channel_of(0xb0, &bomb);
    let span = world.author.span(&blocks);
    let good = world.channel(&[span]);
    mine_items(world, &[bomb, good]);
    world.settle();
}

fn deflated(data: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(data).expect("memory");
    encoder.finish().expect("memory")
}

/// Frames in the wrong order. They are accepted before Holocene; from Holocene on a frame that is
/// not the channel's next one is dropped.
fn reordered_and_doubled_frames(world: &mut ActionWorld, is_holocene: bool) {
    let blocks = grow(world);
    let items = world.items(&blocks, 3);
    let shuffled = [1, 0, 0, 2].map(|index: usize| items[index].clone());
    mine_items(world, &shuffled);
    if is_holocene {
        stays_below(world, &blocks[0]);
        let doubled = [0, 1, 1, 2].map(|index: usize| items[index].clone());
        mine_items(world, &doubled);
    }
    world.settle();
}

/// Three channels: one that completes in the last L1 block of its timeout, one that completes a
/// block later, and one that is opened again under the same id.
fn channel_timeouts(world: &mut ActionWorld) {
    let blocks = grow(world);
    let items = world.items(&blocks, 2);
    mine_items(world, &items[..1]);
    world.l1.mine_to(world.l1.height() + CHANNEL_TIMEOUT - 1);
    mine_items(world, &items[1..]);
    world.settle();
    let blocks = grow(world);
    let items = world.items(&blocks, 2);
    mine_items(world, &items[..1]);
    world.l1.mine_to(world.l1.height() + CHANNEL_TIMEOUT);
    mine_items(world, &items[1..]);
    stays_below(world, &blocks[0]);
    mine_items(world, &items);
    world.settle();
}

/// L1 misses ten slots, and L2 continues with the L1 origin before the gap.
fn a_gap_of_l1(world: &mut ActionWorld) {
    world.l1.miss_slots(10);
    let blocks = grow(world);
    assert!(blocks.len() > 60, "{}", blocks.len());
    let call = world.post_span(&blocks);
    world.l1.mine(&[call]);
    world.settle();
}

/// A span batch that repeats safe blocks extends the chain after them. A span batch that repeats
/// them with other transactions is dropped as a whole.
fn overlapping_spans(world: &mut ActionWorld) {
    let blocks = grow(world);
    let half = blocks.len() / 2;
    let first = world.post_span(&blocks[..half]);
    world.l1.mine(&[first]);
    stays_below(world, &blocks[half]);
    let other = world.author.transfer_with(1_000_000);
    let contradicting = world.author.span_with(&blocks[1..], |index, block| {
        if index == 0 {
            block.transactions.push(other.clone());
        }
    });
    let call = world.post(&[contradicting]);
    world.l1.mine(&[call]);
    stays_below(world, &blocks[half]);
    let call = world.post_span(&blocks[1..]);
    world.l1.mine(&[call]);
    world.settle();
}

/// Posts the kinds of bad batcher data above, on a chain with these forks.
fn misbehave(forks: ForkSchedule) {
    let is_holocene = forks.is_scheduled(Fork::Holocene);
    let mut world = ActionWorld::new(ActionPlan {
        window: 200,
        forks,
        ..ActionPlan::default()
    });
    garbage(&mut world);
    a_bomb(&mut world);
    reordered_and_doubled_frames(&mut world, is_holocene);
    overlapping_spans(&mut world);
    channel_timeouts(&mut world);
    a_gap_of_l1(&mut world);
}

#[test]
fn a_verifier_skips_bad_data_before_holocene_and_uses_the_next_good_batch() {
    misbehave(ForkSchedule::from_genesis(Fork::Granite));
}

#[test]
fn a_verifier_skips_bad_data_since_holocene_and_uses_the_next_good_batch() {
    misbehave(ForkSchedule::from_genesis(Fork::Jovian));
}
