//! A batcher that runs the input as a program. An operation is a byte: the low bits select the
//! action, the high bits the way of posting. The arguments of an operation are the bytes after it.

use super::replica::{BATCHER, CONFIG, INVALID, L1_TIME, L2_TIME, PORTAL, Replica, START, l1_hash};
use crate::targets::l1::deposit;
use alloy_consensus::{TxEip1559, transaction::RlpEcdsaEncodableTx};
use alloy_primitives::{Address, B256, Bytes, Log, LogData, Signature, TxKind, keccak256};
use starling_proto::{
    attributes::L1Block,
    batch::SingularBatch,
    blob,
    channel::{BatchContext, ChannelCompression, ChannelWriter},
    config_update::CONFIG_UPDATE_EVENT,
    deposit::deposit_to_log,
    derive::{BlobRef, InboxTransaction, L1Input, RelevantLogs},
    frame::{self, ChannelId, FRAME_OVERHEAD, Frame, MAX_FRAME_DATA},
    span::{SpanBlock, SpanBuilder},
};
use std::collections::HashMap;

const CONTEXT: BatchContext = BatchContext {
    genesis_time: START,
    block_time: L2_TIME,
    chain_id: 901,
};
/// An L1 block is mined once it has this many data items.
const ITEMS: usize = 16;

/// Bits of an operation: the action, and how its data items are posted.
const OPERATION: u8 = 0x0f;
const IN_BLOB: u8 = 0x40;
const BY_STRANGER: u8 = 0x80;

const MINE: u8 = 0;
const SPAN: u8 = 1;
const SINGULAR: u8 = 2;
const RAW_ITEM: u8 = 3;
const RAW_FRAME: u8 = 4;
const RAW_STREAM: u8 = 5;
const RAW_BATCHES: u8 = 6;
const REPEAT: u8 = 7;
const HELD: u8 = 8;
const DEPOSIT: u8 = 9;
const CONFIG_LOG: u8 = 10;

pub struct FuzzBatcher<'a> {
    program: &'a [u8],
    pub l1: Vec<L1Input>,
    /// Blobs by versioned hash.
    pub blobs: HashMap<B256, Bytes>,
    /// Data items that were posted, and items that are held back.
    posted: Vec<Vec<u8>>,
    held: Vec<Vec<u8>>,
    channels: u8,
    nonce: u64,
    /// L1 blocks mined since the end of the program.
    pub idle: usize,
}

impl<'a> FuzzBatcher<'a> {
    pub fn new(program: &'a [u8]) -> Self {
        Self {
            program,
            l1: Vec::new(),
            blobs: HashMap::new(),
            posted: Vec::new(),
            held: Vec::new(),
            channels: 0,
            nonce: 0,
            idle: 0,
        }
    }

    /// Reads the next byte of the program; 0 after its end.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.program.split_first() else {
            return 0;
        };
        self.program = rest;
        *first
    }

    /// Reads a byte with a length, and that many bytes of the program.
    fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte()).min(self.program.len());
        let (bytes, rest) = self.program.split_at(length);
        self.program = rest;
        bytes
    }

    /// Runs the program up to the next L1 block. `replica` has derived only the blocks before.
    pub fn mine(&mut self, replica: &Replica) {
        let number = self.l1.len() as u64;
        self.idle += usize::from(self.program.is_empty());
        let (mut inbox, mut logs) = (Vec::new(), Vec::new());
        while number > 0 && !self.program.is_empty() && inbox.len() < ITEMS {
            let operation = self.byte();
            match operation & OPERATION {
                MINE => break,
                DEPOSIT => logs.push(deposit_to_log(PORTAL, &deposit())),
                CONFIG_LOG => logs.push(self.config_log()),
                _ => {
                    for item in self.items(operation & OPERATION, replica) {
                        inbox.push(self.post(operation, &item, &inbox));
                    }
                }
            }
        }
        let hash = l1_hash(number);
        let block = L1Block {
            number,
            hash,
            parent_hash: number.checked_sub(1).map(l1_hash).unwrap_or_default(),
            time: START + number * L1_TIME,
            base_fee: 7,
            ..L1Block::default()
        };
        self.l1.push(L1Input {
            block,
            logs: RelevantLogs::of(&[(true, logs)], &replica.rollup),
            inbox,
        });
    }

    /// The data items that an operation posts.
    fn items(&mut self, operation: u8, replica: &Replica) -> Vec<Vec<u8>> {
        match operation {
            SPAN => {
                let batch = self.span(replica);
                self.channel(batch.into_iter().collect())
            }
            SINGULAR => {
                let batch = self.singular(replica);
                self.channel(vec![batch])
            }
            RAW_ITEM => vec![self.bytes().to_vec()],
            RAW_FRAME => vec![frame::encode(&[self.frame()])],
            RAW_STREAM => {
                let data = self.bytes().to_vec();
                let id = self.channel_id();
                vec![frame::encode(&[whole(id, data)])]
            }
            RAW_BATCHES => {
                let batches = self.bytes().split(|byte| *byte == 0xff);
                let batches = batches.map(<[u8]>::to_vec).collect();
                self.channel(batches)
            }
            REPEAT => {
                let index = usize::from(self.byte());
                let count = self.posted.len().max(1);
                self.posted
                    .get(index % count)
                    .cloned()
                    .into_iter()
                    .collect()
            }
            HELD if !self.held.is_empty() => {
                let index = usize::from(self.byte()) % self.held.len();
                vec![self.held.swap_remove(index)]
            }
            _ => Vec::new(),
        }
    }

    fn post(&mut self, operation: u8, item: &[u8], inbox: &[InboxTransaction]) -> InboxTransaction {
        self.posted.push(item.to_vec());
        let encoded = (operation & IN_BLOB != 0).then(|| blob::encode(item));
        let blobs = encoded.and_then(Result::ok).map(|mut blob| {
            // Make some blobs undecodable.
            if item.len().is_multiple_of(16) {
                blob[1] = 9;
            }
            let versioned_hash = keccak256(&blob);
            self.blobs.insert(versioned_hash, blob.into());
            let index = inbox.iter().map(|posted| posted.blobs.len() as u64).sum();
            BlobRef {
                index,
                versioned_hash,
            }
        });
        let is_stranger = operation & BY_STRANGER != 0;
        InboxTransaction {
            sender: if is_stranger { Address::ZERO } else { BATCHER },
            calldata: item.to_vec().into(),
            blobs: blobs.into_iter().collect(),
        }
    }

    fn channel_id(&mut self) -> ChannelId {
        self.channels = self.channels.wrapping_add(1);
        ChannelId::repeat_byte(self.channels)
    }

    /// The data items of a channel in up to four frames. The next byte of the program sets their
    /// number, and whether the later frames are held back.
    fn channel(&mut self, batches: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let how = self.byte();
        let id = self.channel_id();
        let Ok(mut writer) = ChannelWriter::new(id, ChannelCompression::Zlib, true) else {
            return Vec::new();
        };
        for batch in &batches {
            writer.add(batch).expect("a short batch");
        }
        writer.close().expect("an open channel");
        let size = FRAME_OVERHEAD + writer.pending_len().div_ceil(1 + usize::from(how & 3));
        let mut items = Vec::new();
        while let Some(frame) = writer.next_frame(size).expect("few frames") {
            items.push(frame::encode(&[frame]));
        }
        if how & 4 != 0 {
            self.held.extend(items.drain(1..));
        }
        if how & 8 != 0 {
            items.reverse();
        }
        items
    }

    fn frame(&mut self) -> Frame {
        let (id, number) = (self.byte() % 4, self.byte());
        let data = self.bytes();
        Frame {
            id: ChannelId::repeat_byte(id),
            number: u16::from(number & 0x0f),
            data: Bytes::copy_from_slice(&data[..data.len().min(MAX_FRAME_DATA)]),
            is_last: number & 0x80 != 0,
        }
    }

    /// A transaction that a span batch can have. The engine refuses some of these transactions.
    fn transaction(&mut self) -> Bytes {
        self.nonce += 1;
        let transaction = TxEip1559 {
            chain_id: CONTEXT.chain_id,
            nonce: self.nonce,
            to: TxKind::Call(Address::ZERO),
            ..TxEip1559::default()
        };
        let last = if self.byte() < 10 { INVALID } else { 1 };
        let signature = Signature::from_scalars_and_parity(
            B256::with_last_byte(1),
            B256::with_last_byte(last),
            false,
        );
        let mut raw = Vec::new();
        transaction.eip2718_encode(&signature, &mut raw);
        raw.into()
    }

    /// Changes bytes of a batch as the program says: their number, then position and value of each.
    fn corrupt(&mut self, mut batch: Vec<u8>) -> Vec<u8> {
        for _ in 0..self.byte() % 4 {
            let at = usize::from(self.byte()) % batch.len();
            batch[at] ^= self.byte();
        }
        batch
    }

    /// A span batch on a block near the head. Its second byte sets how many blocks it repeats.
    fn span(&mut self, replica: &Replica) -> Option<Vec<u8>> {
        let (count, repeated) = (
            1 + usize::from(self.byte() % 24),
            usize::from(self.byte() % 8),
        );
        let at = (replica.chain.len() - 1).saturating_sub(repeated / 2);
        let parent = &replica.chain[at];
        let mut epoch = replica.origin().saturating_sub(repeated as u64 / 6);
        let mut builder = SpanBuilder::new(CONTEXT);
        for number in 1..=count as u64 {
            let timestamp = parent.timestamp() + number * L2_TIME;
            let next = START + (epoch + 1) * L1_TIME;
            epoch += u64::from(next <= timestamp && epoch + 1 < self.l1.len() as u64);
            let how = self.byte() % 4;
            let block = SpanBlock {
                epoch_number: epoch,
                timestamp,
                transactions: (2..how).map(|_| self.transaction()).collect(),
            };
            let pushed = builder.push(&block, parent.hash, l1_hash(epoch), how & 1 != 0);
            pushed.expect("a consecutive block");
        }
        let batch = builder.encode()?;
        Some(self.corrupt(batch))
    }

    /// A singular batch for the block after the head.
    fn singular(&mut self, replica: &Replica) -> Vec<u8> {
        let how = self.byte();
        let epoch_number = replica.origin() + u64::from(how & 1);
        let batch = SingularBatch {
            parent_hash: replica.head().hash,
            epoch_number,
            epoch_hash: l1_hash(epoch_number),
            timestamp: replica.head().timestamp() + L2_TIME,
            transactions: (0..how >> 6).map(|_| self.transaction()).collect(),
        };
        self.corrupt(batch.encode())
    }

    fn config_log(&mut self) -> Log {
        // Only set the gas limit, or use an unknown type: a new batcher address would end the case.
        let kind = if self.byte() < 128 { 2 } else { 77 };
        let words = [32, 32, 20_000_000 + u64::from(self.byte())];
        let words = words.map(|word| B256::left_padding_from(&word.to_be_bytes()));
        let topics = vec![CONFIG_UPDATE_EVENT, B256::ZERO, B256::with_last_byte(kind)];
        Log {
            address: CONFIG,
            data: LogData::new_unchecked(topics, words.concat().into()),
        }
    }
}

/// A channel's data in a single frame.
fn whole(id: ChannelId, data: Vec<u8>) -> Frame {
    Frame {
        id,
        number: 0,
        data: data.into(),
        is_last: true,
    }
}

/// Programs for three kinds of chains: L1 blocks with spans, singular batches, junk and
/// repetitions.
pub fn seeds() -> Vec<Vec<u8>> {
    let quiet: Vec<u8> = [[MINE; 12].as_slice(), &[SPAN, 8, 0], &[3; 60]].concat();
    let singular: Vec<u8> = (0..40)
        .flat_map(|_| [SINGULAR, 0xc0, 200, 200, 200, 0, 1, MINE])
        .collect();
    let mut mixed = vec![MINE, MINE];
    for round in 0..12 {
        mixed.extend([
            SPAN | IN_BLOB,
            5,
            round % 4,
            3,
            3,
            99,
            2,
            3,
            5,
            2,
            2,
            0,
            1,
            MINE,
        ]);
        mixed.extend([RAW_FRAME, round, round | 0x80, 3, 0x78, 0x9c, 1]);
        mixed.extend([
            RAW_BATCHES,
            4,
            0,
            0xc0,
            0xff,
            1,
            0,
            REPEAT,
            round,
            HELD,
            round,
        ]);
        mixed.extend([
            DEPOSIT,
            CONFIG_LOG,
            round,
            round,
            RAW_ITEM | BY_STRANGER,
            2,
            0,
            0,
        ]);
        mixed.extend([
            RAW_STREAM, 3, 0x78, 0x01, 0, SPAN, 3, 6, 3, 5, 2, 2, 1, 20, 1, 6, MINE,
        ]);
    }
    let programs = [quiet, singular, mixed];
    let forks = [1, 4, 6, 8, 10];
    let all = forks.iter().flat_map(|fork| {
        programs
            .iter()
            .map(|program| [&[*fork], &program[..]].concat())
    });
    all.collect()
}
