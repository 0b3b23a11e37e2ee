//! Channels that decompress to far more than their size, in a process of their own, so that nothing
//! else affects its memory.

#[path = "batcher_formats/compress.rs"]
mod compress;

use compress::{brotli, zlib};
use starling_proto::{
    batch::{Batch, BatchError},
    channel::{BatchContext, BatchReader, ChannelError},
};
use std::io::Write;

/// Bytes of brotli's largest window.
const WINDOW: u64 = 16 << 20;
/// Largest part of a batch that is in memory twice, because it is copied while its memory grows.
const COPIED: u64 = 32 << 20;
/// Bytes for the program, the channels themselves, and memory that the encoders used before.
const REST: u64 = 32 << 20;

/// All results of reading a channel.
fn read(data: Vec<u8>) -> Vec<Result<Batch, ChannelError>> {
    let context = BatchContext {
        genesis_time: 0,
        block_time: 2,
        chain_id: 10,
    };
    let mut reader = BatchReader::new(data, context, true).unwrap();
    std::iter::from_fn(|| reader.next_batch()).collect()
}

/// Peak resident memory of this process, in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim()
        .trim_end_matches("kB")
        .trim()
        .parse::<u64>()
        .unwrap()
        << 10
}

#[test]
fn bombs_cost_no_more_than_a_batch_and_a_window() {
    // A gigabyte of zeros, in which a batch claims 99,000,000 bytes.
    let header = [&[0xbb][..], &99_000_000_u32.to_be_bytes()].concat();
    let mut deflating = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut encoder = brotli::CompressorWriter::new(vec![1], 4096, 2, 24);
    let zeros = vec![0; 1_000_000];
    deflating.write_all(&header).unwrap();
    encoder.write_all(&header).unwrap();
    for _ in 0..1_000 {
        deflating.write_all(&zeros).unwrap();
        encoder.write_all(&zeros).unwrap();
    }
    let bombs = [deflating.finish().unwrap(), encoder.into_inner()];
    assert!(bombs.iter().all(|bomb| bomb.len() < 20_000_000));
    for bomb in bombs {
        let results = read(bomb);
        let [Err(error)] = &results[..] else {
            panic!("{} results", results.len());
        };
        assert!(
            matches!(error, ChannelError::Batch(BatchError::Singular(_))),
            "{error}"
        );
    }
    let peak = peak_memory();
    assert!(peak < 99_000_000 + WINDOW + COPIED + REST, "{peak}");
}

#[test]
fn a_batch_that_is_announced_and_not_there_costs_nothing() {
    let announced = |len: u32| [&[0xbb][..], &len.to_be_bytes()].concat();
    for compress in [zlib as fn(&[u8]) -> Vec<u8>, brotli] {
        let result = read(compress(&announced(99_000_000)));
        assert_eq!(result, [Err(ChannelError::Truncated)]);
        let result = read(compress(&announced(100_000_000)));
        assert_eq!(result, [Err(ChannelError::TooLarge)]);
    }
}
