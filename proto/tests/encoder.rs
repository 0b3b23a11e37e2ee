//! The encoder of channels: round trips through the decoder, limits, reasons to close, hostile
//! sizes, recorded blocks.

#[path = "encoder/blocks.rs"]
mod blocks;
#[path = "encoder/channels.rs"]
mod channels;
#[path = "encoder/limits.rs"]
mod limits;
#[path = "encoder/round_trip.rs"]
mod round_trip;
#[path = "encoder/span_mode.rs"]
mod span_mode;

use alloy_consensus::TxLegacy;
use alloy_primitives::{Address, Bytes, TxKind};
use blocks::{encoded, noise};
use starling_proto::{
    channel::{BatchContext, ChannelCompression},
    encoder::{BatchFormat, CompressorKind, EncoderSettings},
};

const CONTEXT: BatchContext = BatchContext {
    genesis_time: 1_000,
    block_time: 2,
    chain_id: 901,
};

/// All blocks of a channel are in one span batch.
const ONE_SPAN: BatchFormat = BatchFormat::Span { max_blocks: None };

fn settings(format: BatchFormat, kind: CompressorKind, target: u32) -> EncoderSettings {
    EncoderSettings {
        format,
        kind,
        compression: ChannelCompression::Zlib,
        max_frame_size: target as usize + 23,
        target_frames: 1,
    }
}

/// A legacy transaction with `len` bytes of data: all the same byte, or random and incompressible.
fn filled(context: BatchContext, seed: u64, len: usize, is_random: bool) -> Bytes {
    let mut input = vec![0x5a; len];
    if is_random {
        for (index, chunk) in (0..).zip(input.chunks_mut(32)) {
            let random = noise(seed << 24 | index, 6);
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
    let transaction = TxLegacy {
        chain_id: Some(context.chain_id),
        nonce: seed & 0xff,
        gas_price: 1_000_000_000,
        gas_limit: 1_000_000,
        to: TxKind::Call(Address::repeat_byte(3)),
        input: input.into(),
        ..TxLegacy::default()
    };
    encoded(&transaction, seed)
}
