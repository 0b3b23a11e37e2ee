//! L1 blocks of a batcher that tries to use up memory: each case targets another part of the
//! pipeline.

#[path = "../../src/derive/tests/simulated.rs"]
pub mod simulated;

use alloy_primitives::{B256, keccak256};
use alloy_rlp::{Encodable, Header as RlpHeader};
use flate2::{Compression, write::ZlibEncoder};
use simulated::{BATCHER, L2_TIME, START, genesis, seal};
use starling_proto::{
    attributes::L1Block,
    config::RollupConfig,
    derive::{
        DropCounts, DropReason, InboxTransaction, L1Input, Need, Pipeline, PipelineStep,
        RelevantLogs,
    },
    fork::{BlobSchedule, Fork},
    frame::{self, ChannelId, Frame},
};
use std::{io::Write, sync::Arc};

pub const L1_TIME: u64 = 12;
/// Bytes of data in each frame of a large channel, and number of such frames per L1 block.
const FRAME: usize = 900_000;
const FRAMES: usize = 10;

/// A rollup with every fork up to `fork` active from genesis.
pub fn rollup(fork: Fork) -> RollupConfig {
    simulated::rollup(fork, l1_hash(0))
}

fn l1_hash(number: u64) -> B256 {
    keccak256(number.to_be_bytes())
}

/// The header fields of an L1 block.
pub fn l1_block(number: u64) -> L1Block {
    L1Block {
        number,
        hash: l1_hash(number),
        parent_hash: number.checked_sub(1).map(l1_hash).unwrap_or_default(),
        time: START + number * L1_TIME,
        base_fee: 7,
        ..L1Block::default()
    }
}

/// An L1 block in which the batcher posts these data items.
pub fn l1_input(number: u64, items: impl IntoIterator<Item = Vec<u8>>) -> L1Input {
    let inbox = items.into_iter().map(|item| InboxTransaction {
        sender: BATCHER,
        calldata: item.into(),
        blobs: Vec::new(),
    });
    L1Input {
        block: l1_block(number),
        logs: RelevantLogs::default(),
        inbox: inbox.collect(),
    }
}

/// A case: the L1 blocks of a hostile batcher, from number 2 on.
pub struct Case {
    pub fork: Fork,
    /// Bytes that the protocol requires a node to keep at once.
    pub protocol: u64,
    /// The expected drops: a reason, and how often it applies.
    pub dropped: (DropReason, u64),
    /// The data items of the next L1 block, by its index from 0; `None` at the end of L1.
    items: Box<dyn FnMut(u64) -> Option<Vec<Vec<u8>>>>,
}

/// Makes a case with all sizes divided by the argument.
type MakeCase = fn(usize) -> Case;

/// All cases, by name.
pub const CASES: [(&str, MakeCase); 10] = [
    ("span of 10,000,000 empty blocks", empty_blocks),
    ("span with one block of 1,400,000 transactions", one_block),
    (
        "singular batch of 99,000,000 bytes as transactions",
        one_byte_transactions,
    ),
    (
        "4,990,000 channels of an empty frame (Fjord)",
        open_channels,
    ),
    ("channel of 1 GB that is a bomb (Fjord)", largest_channel),
    ("zlib bomb in a channel of 99 MB", zlib_bomb),
    ("zlib channel of 99 MB of one batch, cut", cut_zlib),
    (
        "zlib channel of 1 GB that is a bomb (Fjord)",
        largest_zlib_channel,
    ),
    ("data item of 320,000 empty frames", empty_frames),
    ("1,200,000 future batches (Fjord, no bound)", future_batches),
];

impl Case {
    /// Derives until L1 ends. Returns the number of L2 blocks and the drop counts.
    pub fn run(mut self) -> (u64, DropCounts) {
        let rollup = Arc::new(rollup(self.fork));
        let mut head = genesis(&rollup);
        let mut pipeline = Pipeline::new(rollup.clone(), BlobSchedule::default());
        pipeline.reset(head.clone(), 0);
        loop {
            match pipeline.step() {
                PipelineStep::More => {}
                PipelineStep::Need(Need::L1Block { number, .. }) => {
                    let items = match number.checked_sub(2) {
                        None => Some(Vec::new()),
                        Some(index) => (self.items)(index),
                    };
                    match items {
                        Some(items) => pipeline.push_l1(l1_input(number, items)).expect("needed"),
                        None => pipeline.no_l1_yet(),
                    }
                }
                PipelineStep::Attributes(derived) => {
                    head = seal(&rollup, &head, &derived.attributes);
                    pipeline.accepted(head.clone()).expect("the next block");
                }
                PipelineStep::Idle { .. } => return (head.number(), pipeline.drain_drops()),
                stop => panic!("{stop:?}"),
            }
        }
    }
}

/// Runs a function. Returns the peak of this process's resident memory in bytes, above the memory
/// before the run.
pub fn peak_memory<T>(run: impl FnOnce() -> T) -> (u64, T) {
    let before = resident("VmRSS:");
    // Writing 5 resets the peak (proc(5)).
    std::fs::write("/proc/self/clear_refs", "5").expect("our own peak");
    let result = run();
    (resident("VmHWM:").saturating_sub(before), result)
}

/// The value in bytes of a line in the process's status file.
fn resident(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("our own status");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.expect("memory").trim().trim_end_matches("kB").trim();
    number.parse::<u64>().expect("a number") << 10
}

/// A brotli channel with these batches, which are given as pieces of bytes.
fn channel<'a>(batches: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut encoder = brotli::CompressorWriter::new(vec![1], 1 << 16, 2, 22);
    for piece in batches {
        encoder.write_all(piece).expect("memory");
    }
    encoder.into_inner()
}

/// The RLP header of a batch of this length.
fn string_header(payload_length: usize) -> Vec<u8> {
    header(false, payload_length)
}

fn list_header(payload_length: usize) -> Vec<u8> {
    header(true, payload_length)
}

fn header(list: bool, payload_length: usize) -> Vec<u8> {
    let mut out = Vec::new();
    RlpHeader {
        list,
        payload_length,
    }
    .encode(&mut out);
    out
}

fn uvarint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The channel in frames, padded to `size` bytes. The padding follows the compressed stream: it
/// counts for the channel's size and has no meaning.
fn frames_of(channel: Vec<u8>, size: usize) -> impl FnMut(u64) -> Option<Vec<Vec<u8>>> {
    let size = size.max(channel.len());
    let count = size.div_ceil(FRAME);
    let frame = move |number: usize| {
        let range = number * FRAME..size.min((number + 1) * FRAME);
        let mut data = vec![0xaa; range.len()];
        let begin = channel.get(range.start..).unwrap_or_default();
        let taken = begin.len().min(data.len());
        data[..taken].copy_from_slice(&begin[..taken]);
        frame::encode(&[Frame {
            id: ChannelId::repeat_byte(1),
            number: number as u16,
            data: data.into(),
            is_last: number + 1 == count,
        }])
    };
    move |block| {
        let begin = block as usize * FRAMES;
        let numbers = begin..count.min(begin + FRAMES);
        (begin < count).then(|| numbers.map(&frame).collect())
    }
}

/// The prefix of a span batch that begins with block 1, in the epoch of L1's genesis.
fn span_prefix(rollup: &RollupConfig, blocks: u64) -> Vec<u8> {
    let mut out = vec![1];
    uvarint(&mut out, L2_TIME);
    uvarint(&mut out, 0);
    out.extend_from_slice(&rollup.genesis.l2.hash[..20]);
    out.extend_from_slice(&rollup.genesis.l1.hash[..20]);
    uvarint(&mut out, blocks);
    out
}

fn empty_blocks(_: usize) -> Case {
    let fork = Fork::Jovian;
    let mut span = span_prefix(&rollup(fork), 10_000_000);
    span.resize(span.len() + 1_250_000 + 10_000_000, 0);
    let channel = channel([&string_header(span.len())[..], &span]);
    Case {
        fork,
        protocol: (channel.len() + span.len()) as u64,
        dropped: (DropReason::SequencerDrift, 1),
        items: Box::new(frames_of(channel, 0)),
    }
}

fn one_block(scale: usize) -> Case {
    let (fork, count) = (Fork::Jovian, 1_400_000 / scale / 8 * 8);
    let mut span = span_prefix(&rollup(fork), 1);
    span.push(0);
    uvarint(&mut span, count as u64);
    // All transactions create contracts. After these bits follow parities and signatures.
    span.resize(span.len() + count / 8, 0xff);
    span.resize(span.len() + count / 8 + 64 * count, 0x33);
    span.extend([0xc3, 0x80, 0x80, 0x80].repeat(count));
    // Nonces, gas limits and protected bits.
    span.resize(span.len() + 2 * count + count / 8, 0);
    let channel = channel([&string_header(span.len())[..], &span]);
    let size = 99_000_000 / scale;
    Case {
        fork,
        protocol: (size + span.len()) as u64,
        dropped: (DropReason::InvalidBlock, 1),
        items: Box::new(frames_of(channel, size)),
    }
}

/// The beginning of a singular batch at this time: everything but its list of transactions, which
/// has `size` bytes.
fn singular(parent: B256, epoch: u64, timestamp: u64, size: usize) -> Vec<u8> {
    let mut fields = Vec::new();
    parent.encode(&mut fields);
    epoch.encode(&mut fields);
    l1_hash(epoch).encode(&mut fields);
    timestamp.encode(&mut fields);
    fields.extend(list_header(size));
    [vec![0], list_header(fields.len() + size), fields].concat()
}

/// Compresses batches, given as pieces of bytes, to a channel's data.
type Compress = fn(&mut dyn Iterator<Item = &[u8]>) -> Vec<u8>;

/// A channel with a singular batch of `count` transactions of one byte each.
fn singular_bomb(rollup: &RollupConfig, count: usize, compress: Compress) -> Vec<u8> {
    let batch = singular(rollup.genesis.l2.hash, 0, START + L2_TIME, count);
    let header = string_header(batch.len() + count);
    let transactions = [1; 1_000];
    let pieces = std::iter::repeat_n(&transactions[..], count / 1_000);
    compress(&mut [&header[..], &batch].into_iter().chain(pieces))
}

fn brotli_channel(pieces: &mut dyn Iterator<Item = &[u8]>) -> Vec<u8> {
    channel(pieces)
}

/// A zlib channel at the best compression.
fn zlib_channel(pieces: &mut dyn Iterator<Item = &[u8]>) -> Vec<u8> {
    zlib(pieces, Compression::best())
}

/// A zlib channel that stores its content without compression.
fn stored_channel(pieces: &mut dyn Iterator<Item = &[u8]>) -> Vec<u8> {
    zlib(pieces, Compression::none())
}

fn zlib(pieces: &mut dyn Iterator<Item = &[u8]>, level: Compression) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), level);
    for piece in pieces {
        encoder.write_all(piece).expect("memory");
    }
    encoder.finish().expect("memory")
}

/// A channel of `size` bytes that decompresses to 99 MB; all sizes are divided by `scale`.
fn bomb(fork: Fork, size: usize, scale: usize, compress: Compress) -> Case {
    let (count, size) = (99_000_000 / scale, size / scale);
    let channel = singular_bomb(&rollup(fork), count, compress);
    Case {
        fork,
        protocol: (size + count) as u64,
        dropped: (DropReason::InvalidBlock, 1),
        items: Box::new(frames_of(channel, size)),
    }
}

fn one_byte_transactions(scale: usize) -> Case {
    bomb(Fork::Jovian, 99_000_000, scale, brotli_channel)
}

fn largest_channel(scale: usize) -> Case {
    bomb(Fork::Fjord, 999_000_000, scale, brotli_channel)
}

/// The reader keeps the whole zlib channel for a second reading, in addition to the batch.
fn zlib_bomb(scale: usize) -> Case {
    bomb(Fork::Jovian, 99_000_000, scale, zlib_channel)
}

fn largest_zlib_channel(scale: usize) -> Case {
    bomb(Fork::Fjord, 999_000_000, scale, zlib_channel)
}

/// The channel is cut near its end, so the second reading begins when nearly all of the batch is
/// read.
fn cut_zlib(scale: usize) -> Case {
    let (fork, count) = (Fork::Jovian, 98_900_000 / scale);
    let mut channel = singular_bomb(&rollup(fork), count, stored_channel);
    channel.truncate(channel.len() - 100);
    Case {
        fork,
        protocol: (channel.len() + count) as u64,
        dropped: (DropReason::Channel, 1),
        items: Box::new(frames_of(channel, 0)),
    }
}

/// A data item with an empty frame for each of these channels.
fn empty_frame_item(channels: impl Iterator<Item = u64>) -> Vec<u8> {
    let mut item = vec![0];
    for channel in channels {
        item.extend_from_slice(&[0; 8]);
        item.extend_from_slice(&channel.to_be_bytes());
        item.extend_from_slice(&[0; 7]);
    }
    item
}

fn open_channels(scale: usize) -> Case {
    let (per_block, blocks) = (20_000, 4_990_000 / 20_000 / scale as u64);
    let items = move |block: u64| match block {
        _ if block < blocks => {
            let first = block * per_block;
            Some(vec![empty_frame_item(first..first + per_block)])
        }
        // The first channel is still open and already has this frame.
        _ if block == blocks => Some(vec![empty_frame_item(0..1)]),
        _ => None,
    };
    Case {
        fork: Fork::Fjord,
        protocol: 200 * per_block * blocks,
        dropped: (DropReason::Frame, 1),
        items: Box::new(items),
    }
}

fn empty_frames(scale: usize) -> Case {
    let count = 320_000 / scale as u64;
    let items = move |block| (block == 0).then(|| vec![empty_frame_item(0..count)]);
    Case {
        fork: Fork::Jovian,
        protocol: 23 * count,
        // Each first frame evicts the frame before it.
        dropped: (DropReason::FrameOrder, count - 1),
        items: Box::new(items),
    }
}

fn future_batches(scale: usize) -> Case {
    let (fork, count) = (Fork::Fjord, 1_200_000 / scale);
    let batch = singular(B256::repeat_byte(5), 1, START + 100 * L2_TIME, 0);
    let string = [string_header(batch.len()), batch].concat();
    let channel = channel(std::iter::repeat_n(&string[..], count));
    Case {
        fork,
        protocol: (channel.len() + string.len() * count) as u64,
        dropped: (DropReason::PastBatch, 0),
        items: Box::new(frames_of(channel, 0)),
    }
}
