//! Encoding of channels on one core: blocks in, frames out, compared with the bare compressor on
//! the same bytes. *Uncompressed*: batches without compression. *Singular*: compressor kinds and
//! algorithms. *Span*: a channel of 1,000 blocks. *Size*: recorded blocks under each compression,
//! and how full the blobs of full channels are.

#[allow(dead_code, reason = "the tests of the encoder use more of it")]
#[path = "../../proto/tests/encoder/blocks.rs"]
mod blocks;
#[allow(dead_code, reason = "the tests of the encoder use more of it")]
#[path = "../../proto/tests/encoder/channels.rs"]
mod channels;

use super::support;
use blocks::{recorded, transfers};
use channels::{Encoded, assert_holds, batch_of, encode};
use flate2::{Compression, write::ZlibEncoder};
use starling_proto::{
    channel::{BatchContext, ChannelCompression},
    encoder::{BatchFormat, ChannelEncoder, CloseReason, CompressorKind, EncoderSettings},
    frame::{ChannelId, FRAME_OVERHEAD},
    payload::Payload,
    span::{SpanBlock, SpanBuilder},
};
use std::{
    hint::black_box,
    io::Write,
    time::{Duration, Instant},
};

const CONTEXT: BatchContext = BatchContext {
    genesis_time: 1_000,
    block_time: 2,
    chain_id: 901,
};
const SPAN: BatchFormat = BatchFormat::Span { max_blocks: None };
/// Bytes of a frame in a blob, without the version byte before it.
const BLOB_FRAME: usize = 130_043;
/// Transactions of each small block.
const TRANSACTIONS: u64 = 4;

/// Bar: least rate of encoding without compression, in bytes of raw transactions per second.
const UNCOMPRESSED_BAR: f64 = 50e6;
/// Bar: least rate as a share of the bare compressor's rate. Input that a compressor kind
/// compresses twice counts twice.
const SINGULAR_BAR: f64 = 0.9;
/// Bar: longest time to fill a span channel, as a multiple of the bare compressor's time.
const SPAN_BAR: f64 = 4.0;
/// Bar: largest encoded size of the recorded blocks, as a multiple of their recorded channel.
const SIZE_BAR: f64 = 1.02;
/// Bar: least filled share of the blobs of full channels.
const FILL_BAR: f64 = 0.95;

pub fn run() -> bool {
    let results = [uncompressed(), singular(), span(), size()];
    results.into_iter().all(|is_met| is_met)
}

fn number(name: &str, default: u64) -> u64 {
    support::size(name, default as usize) as u64
}

/// The fastest time of each run. The runs alternate, so that load of the machine affects all alike.
fn fastest<const N: usize>(mut runs: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut best = [Duration::MAX; N];
    for _ in 0..number("STARLING_BENCH_ROUNDS", 3) {
        for (best, run) in best.iter_mut().zip(&mut runs) {
            let begin = Instant::now();
            run();
            *best = begin.elapsed().min(*best);
        }
    }
    best.map(|time| time.as_secs_f64())
}

fn verdict(held: bool) -> &'static str {
    if held { "" } else { "   BEYOND ITS BAR" }
}

fn small_blocks() -> Vec<Payload> {
    transfers(
        CONTEXT,
        number("STARLING_BENCH_BLOCKS", 1_000),
        TRANSACTIONS,
    )
}

fn settings(
    format: BatchFormat,
    kind: CompressorKind,
    compression: ChannelCompression,
    target_frames: u32,
) -> EncoderSettings {
    EncoderSettings {
        format,
        kind,
        compression,
        max_frame_size: BLOB_FRAME,
        target_frames,
    }
}

/// One channel with all blocks, output as frames. The target size must exceed the size of the
/// blocks.
fn one_channel(settings: &EncoderSettings, blocks: &[Payload]) -> ChannelEncoder {
    let id = ChannelId::repeat_byte(1);
    let mut encoder = ChannelEncoder::new(id, settings, CONTEXT, true).expect("settings");
    for block in blocks {
        assert!(encoder.add(block).expect("a block of the chain"));
        while let Some(frame) = encoder.next_frame().expect("few frames") {
            black_box(frame);
        }
    }
    encoder
        .close(CloseReason::Terminated)
        .expect("a compressor");
    while let Some(frame) = encoder.next_frame().expect("few frames") {
        black_box(frame);
    }
    encoder
}

/// Compresses the whole input at once through the compressor's own interface.
fn bare(compression: ChannelCompression, input: &[u8]) -> Vec<u8> {
    let level = match compression {
        ChannelCompression::Zlib => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(input).expect("memory");
            return encoder.finish().expect("memory");
        }
        ChannelCompression::Brotli9 => 9,
        ChannelCompression::Brotli10 => 10,
        ChannelCompression::Brotli11 => 11,
    };
    let mut encoder = brotli::CompressorWriter::new(Vec::new(), 4_096, level, 22);
    encoder.write_all(input).expect("memory");
    encoder.into_inner()
}

/// The uncompressed content of a channel with the blocks as singular batches.
fn singular_input(blocks: &[Payload]) -> Vec<u8> {
    let strings = blocks
        .iter()
        .map(|block| alloy_rlp::encode(&batch_of(block).encode()[..]));
    strings.collect::<Vec<_>>().concat()
}

/// The uncompressed content of a channel with one span batch of the blocks.
fn span_input(blocks: &[Payload]) -> Vec<u8> {
    let mut builder = SpanBuilder::new(CONTEXT);
    for block in blocks {
        let batch = batch_of(block);
        let content = SpanBlock {
            epoch_number: batch.epoch_number,
            timestamp: batch.timestamp,
            transactions: batch.transactions,
        };
        let pushed = builder.push(&content, batch.parent_hash, batch.epoch_hash, false);
        pushed.expect("consecutive blocks");
    }
    alloy_rlp::encode(&builder.encode().expect("blocks")[..])
}

fn transactions_len(blocks: &[Payload]) -> usize {
    let sizes = blocks
        .iter()
        .flat_map(|block| batch_of(block).transactions.iter().collect::<Vec<_>>());
    sizes.map(|bytes| bytes.len()).sum()
}

fn uncompressed() -> bool {
    println!(
        "uncompressed, MB/s of raw transactions (bar {})",
        UNCOMPRESSED_BAR / 1e6
    );
    let blocks = transfers(CONTEXT, number("STARLING_BENCH_BLOCKS", 1_000), 100);
    let raw = transactions_len(&blocks) as f64;
    // The span batch is encoded once, without compression. Singular batches use the compressor kind
    // "none".
    let mut encoded = 0;
    let stored = settings(
        BatchFormat::Singular,
        CompressorKind::None,
        ChannelCompression::Zlib,
        10_000,
    );
    let [singular, span] = fastest([
        &mut || {
            black_box(one_channel(&stored, &blocks));
        },
        &mut || encoded = span_input(&blocks).len(),
    ]);
    let mut held = true;
    for (name, time) in [
        ("singular, kind none", singular),
        ("span, columns only", span),
    ] {
        let rate = raw / time;
        held &= rate >= UNCOMPRESSED_BAR;
        println!(
            "{name:<24} {:>8.0}{}",
            rate / 1e6,
            verdict(rate >= UNCOMPRESSED_BAR)
        );
    }
    held
}

fn singular() -> bool {
    println!("singular, share of the bare compressor's rate (bar {SINGULAR_BAR})");
    let blocks = small_blocks();
    let input = singular_input(&blocks);
    let mut held = true;
    for compression in [ChannelCompression::Zlib, ChannelCompression::Brotli10] {
        let output = bare(compression, &input).len();
        // The shadow compressor compresses from the target size on, so set the target just above
        // the output.
        let frames = output.div_ceil(BLOB_FRAME - FRAME_OVERHEAD) as u32 + 1;
        let ratio = settings(
            BatchFormat::Singular,
            CompressorKind::Ratio(1e-6),
            compression,
            frames,
        );
        let shadow = EncoderSettings {
            kind: CompressorKind::Shadow,
            ..ratio
        };
        let (mut compressed, mut sizes) = ([0; 2], [0; 2]);
        let mut run = |index: usize, settings: &EncoderSettings| {
            let channel = one_channel(settings, &blocks);
            (compressed[index], sizes[index]) = (channel.compressed_len(), channel.output_len());
        };
        let run = std::cell::RefCell::new(&mut run);
        let [bare_time, ratio_time, shadow_time] = fastest([
            &mut || {
                black_box(bare(compression, &input));
            },
            &mut || run.borrow_mut()(0, &ratio),
            &mut || run.borrow_mut()(1, &shadow),
        ]);
        for (index, name, time) in [(0, "ratio", ratio_time), (1, "shadow", shadow_time)] {
            let needed = compressed[index] as f64 / input.len() as f64;
            let share = needed * bare_time / time;
            held &= share >= SINGULAR_BAR;
            println!(
                "{compression:<10} {name:<7} {:>7.2} MB/s, {needed:.2} times compressed, {} bytes, bare {output}, {share:.2}{}",
                input.len() as f64 / time / 1e6,
                sizes[index],
                verdict(share >= SINGULAR_BAR)
            );
        }
    }
    held
}

fn span() -> bool {
    println!("span channel, times the bare compressor's time (bar {SPAN_BAR})");
    let blocks = transfers(
        CONTEXT,
        2 * number("STARLING_BENCH_BLOCKS", 1_000),
        TRANSACTIONS,
    );
    let half = &blocks[..blocks.len() / 2];
    let input = span_input(half);
    let mut held = true;
    for compression in [
        ChannelCompression::Zlib,
        ChannelCompression::Brotli9,
        ChannelCompression::Brotli10,
    ] {
        let output = bare(compression, &input).len();
        let wanted = EncoderSettings {
            max_frame_size: output / 4 + FRAME_OVERHEAD,
            ..settings(SPAN, CompressorKind::Shadow, compression, 4)
        };
        let (mut count, mut compressed, mut fill) = (0, 0.0, 0.0);
        let mut fill_channel = || {
            let id = ChannelId::repeat_byte(1);
            let mut encoder = ChannelEncoder::new(id, &wanted, CONTEXT, true).expect("settings");
            for block in &blocks {
                encoder.add(block).expect("a block of the chain");
                if encoder.close_reason().is_some() {
                    break;
                }
            }
            count = encoder.blocks().len();
            compressed = encoder.compressed_len() as f64 / encoder.input_len() as f64;
            fill = encoder.output_len() as f64 / wanted.target() as f64;
        };
        let [bare_time, time] = fastest([
            &mut || {
                black_box(bare(compression, &input));
            },
            &mut fill_channel,
        ]);
        // The bare compressor got `half` of the blocks: scale its time to the blocks of the
        // channel.
        let times = time / bare_time * half.len() as f64 / count as f64;
        held &= times <= SPAN_BAR;
        println!(
            "{compression:<10} {count:>5} blocks, {:>8} bytes, {:>6.1} ms, {compressed:.2} times compressed, target filled {fill:.3}, {times:.2}{}",
            wanted.target(),
            time * 1e3,
            verdict(times <= SPAN_BAR)
        );
    }
    held
}

fn size() -> bool {
    let mut held = recorded_size();
    println!("share of the blobs of full channels of small blocks (bar {FILL_BAR})");
    let blocks = transfers(
        CONTEXT,
        2 * number("STARLING_BENCH_BLOCKS", 1_000),
        TRANSACTIONS,
    );
    for frames in [1, 3] {
        for format in [BatchFormat::Singular, SPAN] {
            for compression in ChannelCompression::ALL {
                let settings = settings(format, CompressorKind::Shadow, compression, frames);
                held &= fill(&settings, &blocks);
            }
        }
    }
    held
}

fn name(format: BatchFormat) -> &'static str {
    match format {
        BatchFormat::Singular => "singular",
        BatchFormat::Span { .. } => "span",
    }
}

/// Encodes the recorded blocks under each compression and compares the sizes with the recorded
/// channel.
fn recorded_size() -> bool {
    let Some(recorded) = recorded() else {
        println!("recorded blocks: no fixtures");
        return true;
    };
    println!(
        "{} recorded blocks, recorded as a span with zlib: {} bytes (bar of the first line {SIZE_BAR})",
        recorded.blocks.len(),
        recorded.channel.len()
    );
    let mut held = true;
    for format in [SPAN, BatchFormat::Singular] {
        for compression in ChannelCompression::ALL {
            let settings = settings(format, CompressorKind::Ratio(1e-6), compression, 100);
            let channels = encode(&settings, recorded.context, &recorded.blocks);
            assert_holds(&channels[0], recorded.context, &recorded.blocks);
            let share = channels[0].output as f64 / recorded.channel.len() as f64;
            let is_measured = format == SPAN && compression == ChannelCompression::Zlib;
            let is_held = channels.len() == 1 && (!is_measured || share <= SIZE_BAR);
            held &= is_held;
            println!(
                "{:<9} {compression:<10} {:>8} bytes, {share:.3}{}",
                name(format),
                channels[0].output,
                verdict(is_held)
            );
        }
    }
    held
}

fn fill(settings: &EncoderSettings, blocks: &[Payload]) -> bool {
    let mut channels = encode(settings, CONTEXT, blocks);
    channels.pop();
    if channels.is_empty() {
        println!("{} blobs wanted: too few blocks", settings.target_frames);
        return true;
    }
    let mut rest = blocks;
    for channel in &channels {
        let (own, after) = rest.split_at(channel.blocks);
        assert_holds(channel, CONTEXT, own);
        assert_eq!(channel.reason, CloseReason::CompressorFull);
        rest = after;
    }
    let output: u64 = channels.iter().map(|channel| channel.output).sum();
    let frames: usize = channels.iter().map(|channel| channel.frames.len()).sum();
    let sum = |of: fn(&Encoded) -> u64| channels.iter().map(of).sum::<u64>() as f64;
    let compressed = sum(|channel| channel.compressed) / sum(|channel| channel.input);
    let room = frames * (BLOB_FRAME - FRAME_OVERHEAD);
    let share = output as f64 / room as f64;
    let is_held = share >= FILL_BAR;
    println!(
        "{:<9} {:<10} {} blobs wanted: {} channels, {frames} blobs, {compressed:.2} times compressed, {share:.3}{}",
        name(settings.format),
        settings.compression,
        settings.target_frames,
        channels.len(),
        verdict(is_held)
    );
    is_held
}
