//! Peak resident memory of a node whose batcher posts the most expensive data. Subtracted are the
//! peak with a batcher that posts nothing, and the memory that the protocol obliges a node to use:
//! the bytes of the channel bank before Holocene; from Holocene on one channel and one decompressed
//! batch of 100,000,000 bytes each.

use super::{
    batcher::{BatchCarrier, Batcher},
    l1_block::{Posting, SyntheticBlock},
    layer1::{Layer1, Manners},
    node::MeasuredNode,
    rollup::{GENESIS_TIME, NodeFiles, config, l1_genesis},
    support::{Ground, size},
};
use alloy_primitives::{B256, Bytes};
use alloy_rlp::{Encodable, Header};
use starling::chain::{self, genesis};
use starling_proto::{
    channel::ChannelCompression,
    config::RollupConfig,
    fork::{Fork, ForkSchedule},
    frame::Frame,
    span::SPAN_TYPE,
};
use std::{path::Path, sync::Arc, time::Duration};

/// Bar: megabytes that a hostile batcher may cost beyond the memory that the protocol
/// requires.
const BAR: f64 = 64.0;
/// Bytes that each frame adds, besides its data, to the size of the channel bank.
const FRAME_COUNTED: usize = 200;
/// Size limit of the channel bank from Fjord on, in megabytes.
const BANK: f64 = 1000.0;
/// One-byte frames in one transaction.
const SMALL_FRAMES: usize = 5000;
/// Data of the largest frame, in bytes.
const LARGE_FRAME: usize = 1_000_000;
/// Large frames in an L1 block, enough to complete a channel within its timeout of 50 blocks.
const LARGE_FRAMES: usize = 2;
/// Empty L1 blocks before the first posting, and after the last one.
const QUIET: usize = 3;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A rollup under attack, whose L2 has only its genesis block.
struct Victim {
    files: NodeFiles,
    rollup: RollupConfig,
}

/// An attack: one posting for each L1 block.
struct BatcherAttack {
    name: &'static str,
    postings: Vec<Posting>,
    /// Megabytes of the posted frames, or of the decompressed batch.
    data: f64,
    /// Megabytes that the protocol obliges a node to keep in memory.
    held: f64,
}

pub fn run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [old, new] = ["fjord", "jovian"].map(|name| folder.path().join(name));
    let (old, new) = (
        Victim::new(&old, Fork::Fjord),
        Victim::new(&new, Fork::Jovian),
    );
    old.suffer(&[channels]);
    new.suffer(&[
        open_channel,
        zlib_zeros,
        brotli_zeros,
        long_span,
        small_transactions,
    ]);
}

impl Victim {
    /// Every fork up to `fork` is active from genesis on.
    fn new(folder: &Path, fork: Fork) -> Self {
        std::fs::create_dir_all(folder).expect("a folder");
        let mut ground = Ground::new(GENESIS_TIME, 1);
        if fork < Fork::Holocene {
            go_back_to_fjord(&mut ground);
        }
        let l1 = l1_genesis();
        let mut rollup = config(&ground, &l1.block, 2);
        rollup.forks = ForkSchedule::from_genesis(fork);
        rollup.genesis.l2 = ground.genesis.payload().id();
        chain::init(&NodeFiles::genesis(folder), &ground.genesis).expect("a data directory");
        Self {
            files: NodeFiles::new(folder, &rollup),
            rollup,
        }
    }

    /// Measures each attack, and a batcher that posts nothing over the same number of L1 blocks.
    fn suffer(&self, attacks: &[fn(&Victim, &mut Batcher) -> BatcherAttack]) {
        for attack in attacks {
            let mut batcher = Batcher::new(&self.rollup, BatchCarrier::Calldata);
            let attack = attack(self, &mut batcher);
            let quiet = vec![Posting::default(); attack.postings.len()];
            let (calm, _) = self.peak(quiet);
            let (peak, is_whole) = self.peak(attack.postings);
            let note = if is_whole {
                ""
            } else {
                " or more: the node was killed or ended"
            };
            println!(
                "  {:<44} {:>4.0} MB of data: {peak:>5.0} MB{note}, {calm:.0} with an honest batcher, {:.0} by protocol: {:.0} MB above (bar {BAR})",
                attack.name,
                attack.data,
                attack.held,
                peak - calm - attack.held
            );
        }
    }

    /// The peak of resident memory in megabytes until all of L1 is derived. The flag is false if
    /// the node ended or was killed before.
    fn peak(&self, postings: Vec<Posting>) -> (f64, bool) {
        let mut l1 = vec![l1_genesis()];
        let quiet = std::iter::repeat_with(Posting::default);
        let count = postings.len() + 2 * QUIET;
        let postings = quiet.take(QUIET).chain(postings).chain(quiet);
        for posting in postings.take(count) {
            let parent = &l1[l1.len() - 1];
            let time = parent.block.time + super::L1_BLOCK_TIME;
            let block = SyntheticBlock::new(Some(parent), time, Arc::default(), posting);
            l1.push(block);
        }
        let manners = Manners {
            delay: Duration::ZERO,
            finalized_depth: 64,
        };
        let l1 = Layer1::start(l1, count, manners);
        let datadir = self.files.datadir("victim");
        let mut node = MeasuredNode::start(&self.files, &datadir, &l1);
        let ceiling = size("STARLING_BENCH_CEILING", 6000) as f64;
        let mut peak: f64 = 0.0;
        while node.lives() {
            peak = peak.max(node.peak().unwrap_or_default());
            if node.current_l1() >= Some(count as u64) {
                return (peak, true);
            }
            if peak > ceiling {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        (peak, false)
    }
}

/// Rewrites the genesis of `ground` for a chain whose last fork is Fjord.
fn go_back_to_fjord(ground: &mut Ground) {
    let config = ground.file["config"].as_object_mut().expect("a config");
    for later in ["granite", "holocene", "isthmus", "jovian", "prague"] {
        config.remove(&format!("{later}Time"));
    }
    ground.file["extraData"] = "0x".into();
    ground.genesis = genesis::parse(&ground.file.to_string()).expect("a genesis");
}

fn bomb() -> usize {
    size("STARLING_BENCH_BOMB", 100) * 1_000_000
}

/// Bytes of a batch that leave room for RLP headers within the limit of a channel.
fn batch_room() -> usize {
    bomb() - 1000
}

/// Megabytes of one channel and one decompressed batch, both of the largest size.
fn channel_and_batch() -> f64 {
    megabytes(2 * bomb())
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

/// Many channels that are never closed, each with one frame of one byte.
fn channels(_: &Victim, batcher: &mut Batcher) -> BatcherAttack {
    let count = size("STARLING_BENCH_CHANNELS", 1_000_000);
    let frame = |batcher: &mut Batcher| Frame {
        id: batcher.next_channel(),
        number: 0,
        data: Bytes::from_static(&[1]),
        is_last: false,
    };
    let posting = |begin: usize| {
        let end = count.min(begin + SMALL_FRAMES);
        let frames: Vec<_> = (begin..end).map(|_| frame(batcher)).collect();
        batcher.post_frames(&frames)
    };
    BatcherAttack {
        name: "channels of one byte, before Granite",
        postings: (0..count).step_by(SMALL_FRAMES).map(posting).collect(),
        data: megabytes(count),
        held: megabytes(count * (1 + FRAME_COUNTED)).min(BANK),
    }
}

/// One channel of the largest size that is never closed.
fn open_channel(_: &Victim, batcher: &mut Batcher) -> BatcherAttack {
    let count = bomb() / (LARGE_FRAME + FRAME_COUNTED);
    let id = batcher.next_channel();
    let frames = (0..count).map(|number| Frame {
        id,
        number: number as u16,
        data: vec![0x5a; LARGE_FRAME].into(),
        is_last: false,
    });
    let frames: Vec<_> = frames.collect();
    let posting = |frames: &[Frame]| {
        let mut posting = Posting::default();
        for frame in frames {
            posting.append(batcher.post_frames(std::slice::from_ref(frame)));
        }
        posting
    };
    BatcherAttack {
        name: "a channel of the largest size",
        postings: frames.chunks(LARGE_FRAMES).map(posting).collect(),
        data: megabytes(count * LARGE_FRAME),
        held: channel_and_batch(),
    }
}

fn zlib_zeros(_: &Victim, batcher: &mut Batcher) -> BatcherAttack {
    one_batch(
        "zeros in zlib",
        batcher,
        &vec![0; batch_room()],
        ChannelCompression::Zlib,
    )
}

fn brotli_zeros(_: &Victim, batcher: &mut Batcher) -> BatcherAttack {
    let zeros = vec![0; batch_room()];
    one_batch(
        "zeros in brotli",
        batcher,
        &zeros,
        ChannelCompression::Brotli9,
    )
}

/// A span batch with a valid prefix, of empty blocks in L2's first epoch.
fn long_span(victim: &Victim, batcher: &mut Batcher) -> BatcherAttack {
    let blocks = size("STARLING_BENCH_SPAN", 10_000_000);
    let genesis = &victim.rollup.genesis;
    let mut batch = vec![SPAN_TYPE];
    put_uvarint(&mut batch, victim.rollup.block_time);
    put_uvarint(&mut batch, genesis.l1.number);
    batch.extend_from_slice(&genesis.l2.hash[..20]);
    batch.extend_from_slice(&genesis.l1.hash[..20]);
    put_uvarint(&mut batch, blocks as u64);
    // Origin bits and transaction counts are all zero.
    batch.resize(batch.len() + blocks.div_ceil(8) + blocks, 0);
    one_batch(
        "a span of empty blocks",
        batcher,
        &batch,
        ChannelCompression::Brotli9,
    )
}

/// A batch for L2's first block, full of transactions of one byte.
fn small_transactions(victim: &Victim, batcher: &mut Batcher) -> BatcherAttack {
    let genesis = &victim.rollup.genesis;
    let time = genesis.l2_time + victim.rollup.block_time;
    let mut fields = Vec::new();
    let head: [&dyn Encodable; 4] = [
        &genesis.l2.hash,
        &genesis.l1.number,
        &genesis.l1.hash,
        &time,
    ];
    head.iter().for_each(|field| field.encode(&mut fields));
    let transactions = batch_room() - 2 * size_of::<B256>() - 100;
    put_list(&mut fields, &vec![1; transactions]);
    let mut batch = vec![0];
    put_list(&mut batch, &fields);
    let name = "a singular batch of one-byte transactions";
    one_batch(name, batcher, &batch, ChannelCompression::Brotli9)
}

fn one_batch(
    name: &'static str,
    batcher: &mut Batcher,
    batch: &[u8],
    compression: ChannelCompression,
) -> BatcherAttack {
    BatcherAttack {
        name,
        postings: vec![batcher.post_batch(batch, compression)],
        data: megabytes(batch.len()),
        held: channel_and_batch(),
    }
}

fn put_list(out: &mut Vec<u8>, payload: &[u8]) {
    let header = Header {
        list: true,
        payload_length: payload.len(),
    };
    header.encode(out);
    out.extend_from_slice(payload);
}

fn put_uvarint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
