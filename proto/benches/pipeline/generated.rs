//! Chains made with our own encoder: L1 blocks with span batches, and the L2 blocks derived from
//! them.

use crate::{
    cases::{
        L1_TIME, l1_block, l1_input, rollup,
        simulated::{L2_TIME, START, genesis, seal},
    },
    feed::Feed,
};
use alloy_consensus::{TxEip1559, transaction::RlpEcdsaEncodableTx};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, keccak256};
use starling_proto::{
    attributes::{L1Block, attributes},
    batch::BatchTransactions,
    channel::{BatchContext, ChannelCompression, ChannelWriter},
    config::RollupConfig,
    fork::{BlobSchedule, Fork},
    frame::{self, ChannelId},
    payload::Payload,
    span::{SpanBlock, SpanBuilder},
};
use std::{collections::BTreeMap, sync::Arc};

/// Bytes of a data item.
const ITEM: usize = 120_000;

/// Size and fork of a generated chain.
pub struct Shape {
    pub fork: Fork,
    pub blocks: u64,
    /// Number of blocks in a span batch; each span batch is a channel of its own.
    pub span: u64,
    /// Number of transactions in the block of a given number.
    pub transactions: fn(u64) -> u64,
}

/// A chain, with the data of its channels.
pub struct Generated {
    pub feed: Feed,
    pub channels: Vec<Bytes>,
    pub context: BatchContext,
}

pub fn generate(shape: &Shape) -> Generated {
    let rollup = rollup(shape.fork);
    let context = BatchContext {
        genesis_time: START,
        block_time: L2_TIME,
        chain_id: rollup.l2_chain_id,
    };
    let mut l2 = vec![genesis(&rollup)];
    let mut items: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
    let mut channels = Vec::new();
    for first in (1..=shape.blocks).step_by(shape.span as usize) {
        let last = shape.blocks.min(first + shape.span - 1);
        let mut span = SpanBuilder::new(context);
        for number in first..=last {
            let parent = l2.last().expect("genesis").clone();
            let transactions = (0..(shape.transactions)(number)).map(|at| number << 16 | at);
            let transactions: Vec<_> = transactions.map(|seed| transfer(&rollup, seed)).collect();
            let origin = l1_block(number * L2_TIME / L1_TIME);
            let block = build(&rollup, &parent, &origin, &transactions);
            let begins = (number * L2_TIME).is_multiple_of(L1_TIME);
            let content = SpanBlock {
                epoch_number: origin.number,
                timestamp: block.timestamp(),
                transactions: BatchTransactions::from(transactions),
            };
            let pushed = span.push(&content, parent.hash, origin.hash, begins);
            pushed.expect("consecutive blocks");
            l2.push(block);
        }
        let id = ChannelId::left_padding_from(&first.to_be_bytes());
        let (data, frames) = compress(id, &span.encode().expect("a block"));
        channels.push(data);
        items.insert(last * L2_TIME / L1_TIME + 1, frames);
    }
    let end = items.last_key_value().map_or(0, |(number, _)| *number) + 1;
    let l1 = (0..=end).map(|number| l1_input(number, items.remove(&number).unwrap_or_default()));
    Generated {
        feed: Feed {
            l1: l1.collect(),
            l2,
            rollup: Arc::new(rollup),
            schedule: BlobSchedule::default(),
            blobs: BTreeMap::new(),
        },
        channels,
        context,
    }
}

/// Compresses one batch to a channel. Returns the channel's data, and the data items of its frames.
fn compress(id: ChannelId, batch: &[u8]) -> (Bytes, Vec<Vec<u8>>) {
    let mut writer = ChannelWriter::new(id, ChannelCompression::Brotli10, true).expect("Fjord");
    writer.add(batch).expect("below the limit");
    writer.close().expect("an open channel");
    let (mut data, mut items) = (Vec::new(), Vec::new());
    while let Some(frame) = writer.next_frame(ITEM).expect("few frames") {
        data.extend_from_slice(&frame.data);
        items.push(frame::encode(&[frame]));
    }
    (data.into(), items)
}

/// The block that a sequencer would build.
fn build(
    rollup: &RollupConfig,
    parent: &Payload,
    origin: &L1Block,
    transactions: &[Bytes],
) -> Arc<Payload> {
    let schedule = BlobSchedule::default();
    let derived = attributes(rollup, &schedule, parent, origin, Some(&[])).expect("attributes");
    let mut attributes = derived.attributes;
    let all = attributes.transactions.get_or_insert_default();
    all.extend_from_slice(transactions);
    seal(rollup, parent, &attributes)
}

/// A transfer with random signature, recipient and value, which do not compress.
fn transfer(rollup: &RollupConfig, seed: u64) -> Bytes {
    let random = |kind: u8| keccak256([&seed.to_be_bytes()[..], &[kind]].concat());
    let word = |random: B256| U256::from_be_bytes(random.0);
    let transaction = TxEip1559 {
        chain_id: rollup.l2_chain_id,
        nonce: seed >> 16,
        gas_limit: 21_000,
        max_fee_per_gas: 1_000_000_252,
        max_priority_fee_per_gas: 1_000_000,
        to: TxKind::Call(Address::from_slice(&random(0)[..20])),
        value: word(random(1)) >> 200,
        ..TxEip1559::default()
    };
    let signature = Signature::new(word(random(2)), word(random(3)), seed.is_multiple_of(2));
    let mut out = Vec::new();
    transaction.eip2718_encode(&signature, &mut out);
    out.into()
}
