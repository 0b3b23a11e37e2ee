//! Reads the data in the batch inbox of an L1: transactions, channels, and the L2 blocks in them.

use super::process::{BATCHER, option};
use crate::net::{Devnet, ask, head, number};
use alloy_primitives::{Address, Bytes};
use serde_json::{Value, json};
use starling::{
    rollup::beacon::{BeaconClient, BeaconConfig},
    secret::Secret,
};
use starling_proto::{
    batch::Batch,
    blob,
    channel::{BatchContext, BatchReader, ChannelData},
    config::RollupConfig,
    derive::BlobRef,
    frame::{self, ChannelId, Frame},
    span::SpanBlock,
};
use std::collections::BTreeMap;

/// Endpoints of an L1, and the rollup config with the inbox address.
pub struct InboxReader {
    pub rpc: String,
    pub beacon: String,
    pub rollup: RollupConfig,
    pub batcher: Address,
}

/// A transaction of the batcher.
#[derive(Debug)]
pub struct PostedTx {
    pub l1_block: u64,
    /// Transaction type: 2 with calldata, 3 with blobs.
    pub kind: u64,
    pub items: Vec<Bytes>,
}

/// A channel whose frames were posted on L1.
#[derive(Debug, Default)]
pub struct PostedChannel {
    pub id: ChannelId,
    /// Numbers of the first and the last L1 block that have a frame of the channel.
    pub l1_blocks: (u64, u64),
    /// Bytes of the channel's data items, including repeated ones.
    pub bytes: usize,
    frames: BTreeMap<u16, Frame>,
    /// The channel's L2 blocks; empty if a frame is missing.
    pub content: Vec<SpanBlock>,
    /// Numbers of the L2 blocks in `content`.
    pub blocks: Vec<u64>,
}

impl PostedChannel {
    /// Whether every frame of the channel was posted.
    pub fn is_whole(&self) -> bool {
        let ends = self.frames.values().any(|frame| frame.is_last);
        let last = self.frames.keys().next_back().copied().unwrap_or_default();
        ends && self.frames.len() == usize::from(last) + 1
    }
}

impl InboxReader {
    /// A reader of a development network's inbox.
    pub fn of(net: &Devnet) -> Self {
        let rollup = std::fs::read_to_string(net.dir.join("rollup.json")).expect("a file");
        Self {
            rpc: net.l1().http,
            beacon: option(&net.sequencer().command, "--l1.beacon"),
            rollup: RollupConfig::from_json(&rollup).expect("a config"),
            batcher: net.accounts[BATCHER].address,
        }
    }

    pub fn context(&self) -> BatchContext {
        BatchContext {
            genesis_time: self.rollup.genesis.l2_time,
            block_time: self.rollup.block_time,
            chain_id: self.rollup.l2_chain_id,
        }
    }

    /// The batcher's transactions in the canonical L1 blocks from number `from` on.
    pub fn transactions(&self, from: u64) -> Vec<PostedTx> {
        let blocks = from..=head(&self.rpc).expect("a head");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let config = BeaconConfig::new(vec![Secret::new(self.beacon.clone())]);
        let client = BeaconClient::new(&config).expect("a client");
        let mut found = Vec::new();
        for at in blocks {
            let params = json!([format!("{at:#x}"), true]);
            let block = ask(&self.rpc, "eth_getBlockByNumber", params);
            let mut first_blob = 0;
            for tx in block["transactions"].as_array().expect("a list") {
                let hashes = tx["blobVersionedHashes"].as_array();
                let refs = blob_refs(hashes.map_or(&[], Vec::as_slice), &mut first_blob);
                if tx["from"] != json!(self.batcher) {
                    continue;
                }
                let blobs = client.blobs(number(&block["timestamp"]), &refs);
                let blobs = runtime.block_on(blobs).expect("the blobs");
                let data = blobs
                    .iter()
                    .map(|blob| blob::decode(blob.as_slice()).expect("data"));
                let kind = number(&tx["type"]);
                let items = if kind == 3 {
                    data.collect()
                } else {
                    vec![serde_json::from_value(tx["input"].clone()).expect("bytes")]
                };
                found.push(PostedTx {
                    l1_block: at,
                    kind,
                    items,
                });
            }
        }
        found
    }

    /// The channels in these transactions, in the order of their first frames.
    pub fn channels(&self, transactions: &[PostedTx]) -> Vec<PostedChannel> {
        let mut channels: Vec<PostedChannel> = Vec::new();
        for tx in transactions {
            for item in &tx.items {
                for frame in frame::decode(item).expect("frames") {
                    let known = channels.iter().position(|one| one.id == frame.id);
                    let at = known.unwrap_or(channels.len());
                    if known.is_none() {
                        channels.push(PostedChannel {
                            id: frame.id,
                            l1_blocks: (tx.l1_block, tx.l1_block),
                            ..PostedChannel::default()
                        });
                    }
                    let channel = &mut channels[at];
                    channel.l1_blocks.1 = tx.l1_block;
                    channel.bytes += item.len();
                    channel.frames.insert(frame.number, frame);
                }
            }
        }
        for channel in channels.iter_mut().filter(|channel| channel.is_whole()) {
            channel.content = self.content(channel);
            let rollup = &self.rollup;
            let number = |block: &SpanBlock| {
                (block.timestamp - rollup.genesis.l2_time) / rollup.block_time
                    + rollup.genesis.l2.number
            };
            channel.blocks = channel.content.iter().map(number).collect();
        }
        channels
    }

    /// Decodes the L2 blocks of a complete channel.
    fn content(&self, channel: &PostedChannel) -> Vec<SpanBlock> {
        let mut data = ChannelData::default();
        for frame in channel.frames.values() {
            data.push(frame.data.clone());
        }
        let mut reader = BatchReader::new(data, self.context(), true).expect("a channel");
        let mut blocks = Vec::new();
        while let Some(batch) = reader.next_batch() {
            match batch.expect("a batch") {
                Batch::Singular(batch) => blocks.push(SpanBlock {
                    epoch_number: batch.epoch_number,
                    timestamp: batch.timestamp,
                    transactions: batch.transactions,
                }),
                Batch::Span(span) => blocks.extend(span.blocks),
            }
        }
        blocks
    }
}

/// References to a transaction's blobs with these versioned hashes. `first` is the index of the
/// transaction's first blob in the L1 block, and is advanced past its last blob.
fn blob_refs(hashes: &[Value], first: &mut u64) -> Vec<BlobRef> {
    let refs = hashes.iter().zip(*first..).map(|(hash, index)| BlobRef {
        index,
        versioned_hash: serde_json::from_value(hash.clone()).expect("a hash"),
    });
    let refs: Vec<_> = refs.collect();
    *first += refs.len() as u64;
    refs
}

/// Asserts that the complete channels contain each block from `first` on exactly once, in order.
/// Returns the last block's number.
pub fn assert_each_block_once(channels: &[PostedChannel], first: u64) -> u64 {
    let whole = channels.iter().flat_map(|channel| &channel.blocks);
    let mut next = first;
    for block in whole {
        let ranges: Vec<_> = channels
            .iter()
            .map(|one| (one.blocks.first(), one.blocks.last()))
            .collect();
        assert_eq!(*block, next, "channels: {ranges:?}");
        next += 1;
    }
    next - 1
}
