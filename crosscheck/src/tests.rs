//! Random batches for every fork, singular and span, compressed with zlib and brotli. Our
//! implementation and kona's must read the same batches from each other's data.

mod draw;
mod kona;
mod posted;

use alloy_primitives::{B256, Bytes, FixedBytes};
use draw::Numbers;
use starling_proto::{
    batch::{Batch, SingularBatch},
    channel::{BatchContext, BatchReader, ChannelCompression, ChannelData, ChannelWriter},
    fork::Fork,
    frame::{self, ChannelId, Frame},
    span::{SpanBlock, SpanBuilder},
};
use std::iter;

const CONTEXT: BatchContext = BatchContext {
    genesis_time: 1_700_000_000,
    block_time: 2,
    chain_id: 901,
};
/// Number of random channels for each kind and compression.
const SEEDS: u64 = 50;
const COMPRESSIONS: [ChannelCompression; 4] = [
    ChannelCompression::Zlib,
    ChannelCompression::Brotli9,
    ChannelCompression::Brotli10,
    ChannelCompression::Brotli11,
];

/// The kind of the batches in a channel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Singular,
    Span,
    Mixed,
}

/// A batch to be encoded.
enum Draft {
    Singular(SingularBatch),
    Span {
        blocks: Vec<SingularBatch>,
        begins_epoch: bool,
    },
}

/// The content of a decoded batch, in a form common to both implementations.
#[derive(Debug, PartialEq)]
enum Content {
    Singular(SingularBatch),
    Span {
        parent_check: FixedBytes<20>,
        l1_origin_check: FixedBytes<20>,
        blocks: Vec<SpanBlock>,
    },
}

/// A random channel.
struct Case {
    /// Description of the case, for failure messages.
    name: String,
    fork: Fork,
    compression: ChannelCompression,
    id: ChannelId,
    /// Largest size of a frame, in bytes.
    frame_size: usize,
    /// Largest number of frames in a data item.
    frames_per_item: usize,
    drafts: Vec<Draft>,
}

fn cases(kind: Kind) -> impl Iterator<Item = Case> {
    let all = COMPRESSIONS
        .into_iter()
        .flat_map(|compression| (0..SEEDS).map(move |seed| (compression, seed)));
    all.map(move |(compression, seed)| Case::draw(kind, compression, seed))
}

impl Case {
    fn draw(kind: Kind, compression: ChannelCompression, seed: u64) -> Self {
        let mut numbers = Numbers::new(seed);
        let first = if compression.needs_fjord() {
            Fork::Fjord
        } else if kind == Kind::Singular {
            Fork::Bedrock
        } else {
            Fork::Delta
        };
        let forks = &Fork::ALL[first as usize..];
        let fork = forks[numbers.below(forks.len() as u64) as usize];
        Self {
            name: format!("{kind:?}, {compression:?}, {fork:?}, seed {seed}"),
            fork,
            compression,
            id: ChannelId::from_slice(&numbers.hash()[..16]),
            frame_size: 32 + numbers.below(4_000) as usize,
            frames_per_item: 1 + numbers.below(4) as usize,
            drafts: numbers.drafts(kind, fork),
        }
    }

    fn contents(&self) -> Vec<Content> {
        self.drafts.iter().map(Draft::content).collect()
    }

    /// The frames of a channel with these batches, made by our encoder.
    fn frames(&self, batches: impl Iterator<Item = Vec<u8>>) -> Vec<Frame> {
        let fjord = self.fork >= Fork::Fjord;
        let mut writer =
            ChannelWriter::new(self.id, self.compression, fjord).expect("brotli since Fjord");
        for batch in batches {
            writer.add(&batch).expect("less than the limit");
        }
        writer.close().expect("an open channel");
        iter::from_fn(|| writer.next_frame(self.frame_size).expect("few frames")).collect()
    }
}

impl Draft {
    fn blocks(&self) -> &[SingularBatch] {
        match self {
            Self::Singular(block) => std::slice::from_ref(block),
            Self::Span { blocks, .. } => blocks,
        }
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Singular(block) => block.encode(),
            Self::Span {
                blocks,
                begins_epoch,
            } => {
                let mut builder = SpanBuilder::new(CONTEXT);
                for block in blocks {
                    let (parent, origin) = (block.parent_hash, block.epoch_hash);
                    let pushed = builder.push(&span_block(block), parent, origin, *begins_epoch);
                    pushed.expect("a consecutive block");
                }
                builder.encode().expect("a block")
            }
        }
    }

    fn content(&self) -> Content {
        let check = |hash: &B256| FixedBytes::from_slice(&hash[..20]);
        match self {
            Self::Singular(block) => Content::Singular(block.clone()),
            Self::Span { blocks, .. } => Content::Span {
                parent_check: check(&blocks[0].parent_hash),
                l1_origin_check: check(&blocks[blocks.len() - 1].epoch_hash),
                blocks: blocks.iter().map(span_block).collect(),
            },
        }
    }
}

fn span_block(block: &SingularBatch) -> SpanBlock {
    SpanBlock {
        epoch_number: block.epoch_number,
        timestamp: block.timestamp,
        transactions: block.transactions.clone(),
    }
}

/// The content of a batch that our decoder read.
fn content(batch: Batch) -> Content {
    match batch {
        Batch::Singular(block) => Content::Singular(block),
        Batch::Span(span) => Content::Span {
            parent_check: span.parent_check,
            l1_origin_check: span.l1_origin_check,
            blocks: span.blocks.collect(),
        },
    }
}

/// The batches that our decoder reads from these frames.
fn read(frames: Vec<Frame>, fork: Fork) -> Vec<Content> {
    let data: ChannelData = frames.into_iter().map(|frame| frame.data).collect();
    let mut reader =
        BatchReader::new(data, CONTEXT, fork >= Fork::Fjord).expect("a compressed channel");
    iter::from_fn(|| reader.next_batch())
        .map(|batch| content(batch.expect("a batch")))
        .collect()
}

/// Kona reads the same batches from channels that we write.
fn kona_reads_ours(kind: Kind) {
    for case in cases(kind) {
        let frames = case.frames(case.drafts.iter().map(Draft::encode));
        let items = frames.chunks(case.frames_per_item).map(frame::encode);
        assert!(
            kona::read(items, case.fork) == case.contents(),
            "{}",
            case.name
        );
    }
}

/// We read the same batches from data that kona encodes to batches and frames. Our encoder
/// compresses them, because kona's library has no compressor.
fn we_read_konas(kind: Kind) {
    for case in cases(kind) {
        let frames = case.frames(case.drafts.iter().map(kona::encode));
        let items = frames.chunks(case.frames_per_item).map(kona::item);
        let found: Vec<_> = items
            .flat_map(|item| frame::decode(&Bytes::from(item)).expect("frames"))
            .collect();
        assert!(found == frames, "{}", case.name);
        assert!(read(found, case.fork) == case.contents(), "{}", case.name);
    }
}

#[test]
fn kona_reads_singular_batches_of_ours() {
    kona_reads_ours(Kind::Singular);
}

#[test]
fn kona_reads_span_batches_of_ours() {
    kona_reads_ours(Kind::Span);
}

#[test]
fn kona_reads_mixed_channels_of_ours() {
    kona_reads_ours(Kind::Mixed);
}

#[test]
fn we_read_singular_batches_of_kona() {
    we_read_konas(Kind::Singular);
}

#[test]
fn we_read_span_batches_of_kona() {
    we_read_konas(Kind::Span);
}

#[test]
fn both_encode_batches_and_frames_to_the_same_bytes() {
    for case in cases(Kind::Mixed) {
        for draft in &case.drafts {
            assert!(draft.encode() == kona::encode(draft), "{}", case.name);
        }
        let frames = case.frames(case.drafts.iter().map(Draft::encode));
        for frames in frames.chunks(case.frames_per_item) {
            assert!(frame::encode(frames) == kona::item(frames), "{}", case.name);
        }
    }
}

/// Without all types of transactions the other tests would prove less than their names say.
#[test]
fn random_batches_have_transactions_of_all_types() {
    for kind in [Kind::Singular, Kind::Span] {
        let drafts: Vec<_> = cases(kind).flat_map(|case| case.drafts).collect();
        let transactions = drafts
            .iter()
            .flat_map(Draft::blocks)
            .flat_map(|block| block.transactions.first_bytes().flatten());
        let (mut typed, mut legacy) = ([0; 5], 0);
        for first in transactions {
            match first {
                0xc0.. => legacy += 1,
                kind => typed[usize::from(kind)] += 1,
            }
        }
        let fewest = [typed[1], typed[2], typed[4], legacy].into_iter().min();
        assert!(fewest >= Some(500), "{kind:?}: {typed:?}, {legacy}");
    }
}
