//! The other implementation, kona: writes and reads the types of these tests.

use super::{CONTEXT, Content, Draft};
use alloy_primitives::Bytes;
use kona_genesis::RollupConfig;
use kona_protocol::{
    Batch, BatchReader, BlockInfo, Channel, DERIVATION_VERSION_0, FJORD_MAX_RLP_BYTES_PER_CHANNEL,
    Frame, MAX_RLP_BYTES_PER_CHANNEL, SingleBatch, SpanBatch,
};
use starling_proto::{
    batch::SingularBatch, channel::BatchContext, fork::Fork, frame, span::SpanBlock,
};

/// The configuration of a chain on which all forks up to `fork` are active from genesis.
fn rollup(fork: Fork) -> RollupConfig {
    let mut rollup = RollupConfig {
        block_time: CONTEXT.block_time,
        l2_chain_id: CONTEXT.chain_id.into(),
        ..RollupConfig::default()
    };
    rollup.genesis.l2_time = CONTEXT.genesis_time;
    // Other forks are not needed: kona checks batches only up to Fjord, and knows no fork after
    // Jovian.
    let since = |first: Fork| (fork >= first).then_some(0);
    rollup.hardforks.delta_time = since(Fork::Delta);
    rollup.hardforks.ecotone_time = since(Fork::Ecotone);
    rollup.hardforks.fjord_time = since(Fork::Fjord);
    rollup
}

/// Reads the batches of all channels in a batcher's data items, in the order of the channels' first
/// frames. The chain is in Jovian from genesis on.
pub fn read_posted(items: impl Iterator<Item = Vec<u8>>, context: BatchContext) -> Vec<Content> {
    let opened = BlockInfo::default();
    let mut channels: Vec<Channel> = Vec::new();
    for frame in items.flat_map(|item| Frame::parse_frames(&item).expect("an item of frames")) {
        let known = channels.iter().position(|channel| channel.id() == frame.id);
        let at = known.unwrap_or(channels.len());
        if known.is_none() {
            channels.push(Channel::new(frame.id, opened));
        }
        let added = channels[at].add_frame(frame, opened);
        added.expect("a frame of the channel");
    }
    let mut config = rollup(Fork::Jovian);
    config.block_time = context.block_time;
    config.l2_chain_id = context.chain_id.into();
    config.genesis.l2_time = context.genesis_time;
    let mut found = Vec::new();
    for channel in channels {
        assert!(channel.is_ready(), "a complete channel");
        let data = channel.frame_data().expect("all frames");
        let mut reader = BatchReader::new(data, FJORD_MAX_RLP_BYTES_PER_CHANNEL as usize);
        let batches = std::iter::from_fn(|| reader.next_batch(&config));
        found.extend(batches.map(content));
    }
    found
}

/// Reads the batches of the single channel in these data items.
pub fn read(items: impl Iterator<Item = Vec<u8>>, fork: Fork) -> Vec<Content> {
    let opened = BlockInfo::default();
    let mut channel: Option<Channel> = None;
    for frame in items.flat_map(|item| Frame::parse_frames(&item).expect("an item of frames")) {
        let channel = channel.get_or_insert_with(|| Channel::new(frame.id, opened));
        channel
            .add_frame(frame, opened)
            .expect("a frame of the channel");
    }
    let channel = channel
        .filter(Channel::is_ready)
        .expect("a complete channel");
    let limit = if fork >= Fork::Fjord {
        FJORD_MAX_RLP_BYTES_PER_CHANNEL
    } else {
        MAX_RLP_BYTES_PER_CHANNEL
    };
    let data = channel.frame_data().expect("all frames");
    let mut reader = BatchReader::new(data, limit as usize);
    let rollup = rollup(fork);
    std::iter::from_fn(|| reader.next_batch(&rollup))
        .map(content)
        .collect()
}

fn content(batch: Batch) -> Content {
    match batch {
        Batch::Single(block) => Content::Singular(SingularBatch {
            parent_hash: block.parent_hash,
            epoch_number: block.epoch_num,
            epoch_hash: block.epoch_hash,
            timestamp: block.timestamp,
            transactions: block.transactions.into(),
        }),
        Batch::Span(span) => Content::Span {
            parent_check: span.parent_check,
            l1_origin_check: span.l1_origin_check,
            blocks: span
                .batches
                .into_iter()
                .map(|block| SpanBlock {
                    epoch_number: block.epoch_num,
                    timestamp: block.timestamp,
                    transactions: block.transactions.into(),
                })
                .collect(),
        },
    }
}

/// Encodes a batch with its type byte.
pub fn encode(draft: &Draft) -> Vec<u8> {
    let batch = match draft {
        Draft::Singular(block) => Batch::Single(single(block)),
        Draft::Span {
            blocks,
            begins_epoch,
        } => {
            let mut span = SpanBatch {
                genesis_timestamp: CONTEXT.genesis_time,
                chain_id: CONTEXT.chain_id,
                ..SpanBatch::default()
            };
            // The sequence number is used only for the first block: 0 if it begins an epoch.
            let number = u64::from(!begins_epoch);
            for block in blocks {
                let appended = span.append_singular_batch(single(block), number);
                appended.expect("transactions of the chain");
            }
            Batch::Span(span)
        }
    };
    let mut out = Vec::new();
    batch.encode(&mut out).expect("at least one block");
    out
}

fn single(block: &SingularBatch) -> SingleBatch {
    SingleBatch {
        parent_hash: block.parent_hash,
        epoch_num: block.epoch_number,
        epoch_hash: block.epoch_hash,
        timestamp: block.timestamp,
        transactions: block.transactions.iter().collect::<Vec<Bytes>>(),
    }
}

/// Encodes a data item of these frames.
pub fn item(frames: &[frame::Frame]) -> Vec<u8> {
    let mut item = vec![DERIVATION_VERSION_0];
    for frame in frames {
        let frame = Frame::new(frame.id.0, frame.number, frame.data.to_vec(), frame.is_last);
        item.extend(frame.encode());
    }
    item
}
