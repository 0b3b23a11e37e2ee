//! A batcher: puts L2 blocks, or arbitrary bytes, into transactions and blobs of an L1 block.

use super::l1_block::Posting;
use alloy_consensus::{SignableTransaction, TxEip1559, TxEip4844, TxEnvelope};
use alloy_eips::eip4844::kzg_to_versioned_hash;
use alloy_primitives::{Address, B256, Bytes, Signature, keccak256};
use secp256k1::{Message, SECP256K1, SecretKey};
use starling_proto::{
    blob,
    channel::{BatchContext, ChannelCompression, ChannelWriter},
    config::RollupConfig,
    frame::{self, ChannelId, Frame},
    l1info::L2BlockRef,
    payload::Payload,
    sign,
    span::{SpanBlock, SpanBuilder},
};
use std::sync::Arc;

/// Largest calldata of a transaction in bytes, the default of op-batcher.
const CALLDATA: usize = 120_000;
/// Largest number of blobs of a transaction.
const BLOBS: usize = 6;
/// Type byte of deposits, which batches leave out.
const DEPOSIT: u8 = 0x7e;
const KEY: &str = "00000000000000000000000000000000000000000000000000000000000000ba";
/// Precomputation setting of the KZG setup: commitments need no tables.
const PRECOMPUTE: u64 = 0;

/// Carrier of the batcher's frames.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum BatchCarrier {
    Calldata,
    Blobs,
}

pub struct Batcher {
    key: SecretKey,
    nonce: u64,
    channels: u64,
    inbox: Address,
    carrier: BatchCarrier,
}

impl Batcher {
    pub fn new(rollup: &RollupConfig, carrier: BatchCarrier) -> Self {
        Self {
            key: key(),
            nonce: 0,
            channels: 0,
            inbox: rollup.batch_inbox_address,
            carrier,
        }
    }

    /// The address that L2's genesis must name as its batcher.
    pub fn address() -> Address {
        sign::address(&key())
    }

    /// Posts a channel with one span batch of these blocks.
    pub fn post_blocks(&mut self, rollup: &RollupConfig, blocks: &[Arc<Payload>]) -> Posting {
        let mut span = SpanBuilder::new(context(rollup));
        for payload in blocks {
            let reference = L2BlockRef::of(payload, &rollup.genesis).expect("a block of our own");
            let is_batched = |transaction: &&Bytes| transaction.first() != Some(&DEPOSIT);
            let block = SpanBlock {
                epoch_number: reference.origin.number,
                timestamp: payload.timestamp(),
                transactions: payload
                    .transactions
                    .iter()
                    .filter(is_batched)
                    .cloned()
                    .collect(),
            };
            let begins_epoch = reference.sequence_number == 0;
            let (parent, epoch) = (payload.parent_hash(), reference.origin.hash);
            span.push(&block, parent, epoch, begins_epoch)
                .expect("consecutive blocks");
        }
        let Some(batch) = span.encode() else {
            return Posting::default();
        };
        self.post_batch(&batch, ChannelCompression::Brotli10)
    }

    /// Posts a channel with this encoded batch, valid or not.
    pub fn post_batch(&mut self, batch: &[u8], compression: ChannelCompression) -> Posting {
        let mut channel =
            ChannelWriter::new(self.next_channel(), compression, true).expect("after Fjord");
        channel
            .add(batch)
            .and_then(|()| channel.close())
            .expect("a batch within the limit");
        let room = match self.carrier {
            BatchCarrier::Calldata => CALLDATA - 1,
            BatchCarrier::Blobs => blob::MAX_BLOB_DATA - 1,
        };
        let mut items = Vec::new();
        while let Some(frame) = channel.next_frame(room).expect("few frames") {
            items.push(frame::encode(&[frame]).into());
        }
        self.post_items(items)
    }

    /// A new channel id.
    pub fn next_channel(&mut self) -> ChannelId {
        self.channels += 1;
        ChannelId::from_slice(&keccak256(self.channels.to_be_bytes())[..16])
    }

    /// Posts one transaction whose calldata holds these frames.
    pub fn post_frames(&mut self, frames: &[Frame]) -> Posting {
        Posting {
            transactions: vec![self.calldata(frame::encode(frames).into())],
            blobs: vec![],
        }
    }

    /// Posts data items, one per transaction or blob.
    fn post_items(&mut self, items: Vec<Bytes>) -> Posting {
        let mut posting = Posting::default();
        if self.carrier == BatchCarrier::Calldata {
            posting.transactions = items.into_iter().map(|item| self.calldata(item)).collect();
            return posting;
        }
        for chunk in items.chunks(BLOBS) {
            let blobs = chunk
                .iter()
                .map(|item| blob::encode(item).expect("it fits"));
            let blobs: Vec<Bytes> = blobs.map(Bytes::from).collect();
            posting.transactions.push(self.blob_transaction(&blobs));
            posting.blobs.extend(blobs);
        }
        posting
    }

    fn calldata(&mut self, input: Bytes) -> TxEnvelope {
        let transaction = TxEip1559 {
            chain_id: super::L1_CHAIN_ID,
            nonce: self.next_nonce(),
            gas_limit: 10_000_000,
            max_fee_per_gas: 30_000_000_000,
            max_priority_fee_per_gas: 1_000_000_000,
            to: self.inbox.into(),
            input,
            ..Default::default()
        };
        let signature = self.sign(transaction.signature_hash());
        TxEnvelope::from(transaction.into_signed(signature))
    }

    fn blob_transaction(&mut self, blobs: &[Bytes]) -> TxEnvelope {
        let transaction = TxEip4844 {
            chain_id: super::L1_CHAIN_ID,
            nonce: self.next_nonce(),
            gas_limit: 21_000,
            max_fee_per_gas: 30_000_000_000,
            max_priority_fee_per_gas: 1_000_000_000,
            max_fee_per_blob_gas: 1_000_000_000,
            to: self.inbox,
            blob_versioned_hashes: blobs.iter().map(versioned_hash).collect(),
            ..Default::default()
        };
        let signature = self.sign(transaction.signature_hash());
        TxEnvelope::from(transaction.into_signed(signature))
    }

    fn next_nonce(&mut self) -> u64 {
        self.nonce += 1;
        self.nonce - 1
    }

    fn sign(&self, hash: B256) -> Signature {
        let (id, bytes) = SECP256K1
            .sign_ecdsa_recoverable(&Message::from_digest(hash.0), &self.key)
            .serialize_compact();
        Signature::from_bytes_and_parity(&bytes, i32::from(id) == 1)
    }
}

fn key() -> SecretKey {
    sign::secret_from_hex(KEY).expect("a key")
}

fn context(rollup: &RollupConfig) -> BatchContext {
    BatchContext {
        genesis_time: rollup.genesis.l2_time,
        block_time: rollup.block_time,
        chain_id: rollup.l2_chain_id,
    }
}

fn versioned_hash(blob: &Bytes) -> B256 {
    let blob = c_kzg::Blob::from_bytes(blob).expect("the size of a blob");
    let commitment = c_kzg::ethereum_kzg_settings(PRECOMPUTE).blob_to_kzg_commitment(&blob);
    kzg_to_versioned_hash(commitment.expect("field elements").as_slice())
}
