//! Encodes blocks to as many channels as they need, and reads the channels again. Shared by the
//! encoder's tests and its bench.

use alloy_primitives::Bytes;
use starling_proto::{
    batch::{Batch, SingularBatch},
    channel::{BatchContext, BatchReader, ChannelData},
    encoder::{ChannelEncoder, CloseReason, EncoderSettings},
    frame::{ChannelId, Frame},
    l1info::L1BlockInfo,
    payload::Payload,
};

/// A closed channel.
pub struct Encoded {
    pub frames: Vec<Frame>,
    /// Number of blocks in the channel.
    pub blocks: usize,
    pub reason: CloseReason,
    /// Uncompressed bytes of the channel.
    pub input: u64,
    /// Compressed bytes of the channel.
    pub output: u64,
    /// Uncompressed bytes that went through the compressors. This exceeds `input` if blocks were
    /// compressed more than once to measure the output.
    pub compressed: u64,
}

/// Encodes all blocks. Each channel begins with the block after the last block of the channel
/// before. The last channel is closed as terminated.
pub fn encode(
    settings: &EncoderSettings,
    context: BatchContext,
    blocks: &[Payload],
) -> Vec<Encoded> {
    let (mut out, mut next) = (Vec::new(), 0);
    while next < blocks.len() {
        let id = ChannelId::left_padding_from(&(out.len() as u64).to_be_bytes());
        let mut encoder = ChannelEncoder::new(id, settings, context, true).expect("settings");
        let mut frames = Vec::new();
        for block in &blocks[next..] {
            encoder.add(block).expect("a block of the chain");
            take_frames(&mut encoder, &mut frames);
            if encoder.close_reason().is_some() {
                break;
            }
        }
        encoder
            .close(CloseReason::Terminated)
            .expect("a compressor");
        take_frames(&mut encoder, &mut frames);
        let count = encoder.blocks().len();
        assert!(count > 0, "a channel has a block");
        for (found, block) in encoder.blocks().iter().zip(&blocks[next..]) {
            let info = L1BlockInfo::of(block).expect("L1 attributes");
            assert_eq!((found.id, found.origin), (block.id(), info.origin()));
        }
        next += count;
        out.push(Encoded {
            frames,
            blocks: count,
            reason: encoder.close_reason().expect("closed"),
            input: encoder.input_len(),
            output: encoder.output_len(),
            compressed: encoder.compressed_len(),
        });
    }
    out
}

fn take_frames(encoder: &mut ChannelEncoder, frames: &mut Vec<Frame>) {
    while let Some(frame) = encoder.next_frame().expect("few frames") {
        frames.push(frame);
    }
    let bytes: usize = frames.iter().map(|frame| frame.data.len() + 23).sum();
    let counted = (encoder.frames(), encoder.frame_bytes());
    assert_eq!(counted, (frames.len(), bytes as u64));
}

/// The batches of the channel that consists of these frames.
pub fn batches(frames: &[Frame], context: BatchContext) -> Vec<Batch> {
    let data: ChannelData = frames.iter().map(|frame| frame.data.clone()).collect();
    let mut reader = BatchReader::new(data, context, true).expect("a channel");
    std::iter::from_fn(|| reader.next_batch())
        .map(|batch| batch.expect("a batch"))
        .collect()
}

/// The singular batch of a block.
pub fn batch_of(block: &Payload) -> SingularBatch {
    let info = L1BlockInfo::of(block).expect("L1 attributes");
    let is_user = |bytes: &&Bytes| bytes[0] != 0x7e;
    SingularBatch {
        parent_hash: block.parent_hash(),
        epoch_number: info.number,
        epoch_hash: info.hash,
        timestamp: block.timestamp(),
        transactions: block.transactions.iter().filter(is_user).cloned().collect(),
    }
}

/// Checks that a channel's batches are exactly these blocks.
pub fn assert_holds(channel: &Encoded, context: BatchContext, blocks: &[Payload]) {
    let mut next = blocks.iter();
    for batch in batches(&channel.frames, context) {
        match batch {
            Batch::Singular(batch) => {
                let block = next.next().expect("a block for each batch");
                assert_eq!(batch, batch_of(block));
            }
            Batch::Span(span) => {
                let mut last = None;
                for (index, found) in span.blocks.clone().enumerate() {
                    let batch = batch_of(next.next().expect("a block for each of the span"));
                    if index == 0 {
                        assert_eq!(span.parent_check[..], batch.parent_hash[..20]);
                    }
                    assert_eq!(found.epoch_number, batch.epoch_number);
                    assert_eq!(found.timestamp, batch.timestamp);
                    assert_eq!(found.transactions, batch.transactions);
                    last = Some(batch);
                }
                let last = last.expect("a block");
                assert_eq!(span.l1_origin_check[..], last.epoch_hash[..20]);
            }
        }
    }
    assert_eq!(next.count(), 0, "a batch for each block");
}
