//! Block gossip: topics, message ids, and the sequence of checks between a message's bytes and an
//! accepted [`Payload`] (specs: rollup-node-p2p, gossip topics and block validation). Order and
//! outcome of the checks are those of op-node.
//!
//! Every peer can send any bytes here at any rate. The order of the checks keeps a bad message
//! cheap: sizes before decompression, one signature recovery before any decoding, hashing last.
//! [`check_signed`] is the expensive, stateless part and belongs on worker threads.
//! [`Seen::record`] is the cheap check against earlier messages.

use crate::{
    fork::{Fork, ForkSchedule},
    payload::{Payload, PayloadError, PayloadVersion, WireError, WirePayload},
    sign::{self, SIGNATURE_LEN, SignError},
};
use alloy_primitives::{Address, B256};
use lru::LruCache;
use sha2::{Digest, Sha256};
use std::num::NonZeroUsize;
use thiserror::Error;

/// Largest message, compressed and decompressed, in bytes.
pub const MAX_MESSAGE_LEN: usize = 10 << 20;
/// Smallest decompressed message: a signature and one byte.
pub const MIN_MESSAGE_LEN: usize = SIGNATURE_LEN + 1;
/// Largest number of bytes that snappy decompresses from one byte: an element of three bytes
/// encodes at most 64.
const MAX_RATIO: usize = 22;
/// How far in the future a block's timestamp may be, in seconds.
pub const MAX_FUTURE_SECS: u64 = 5;
/// Default of how old a block's timestamp may be, in seconds.
pub const DEFAULT_THRESHOLD_SECS: u64 = 60;
/// How long the signer before the current one is still accepted, in seconds.
pub const ROTATION_GRACE_SECS: u64 = 3 * 3600;
/// How long, after a signer's grace ended, its blocks may still be in transit, in seconds. Older
/// blocks are refused for their age.
pub const RETIRED_SECS: u64 = DEFAULT_THRESHOLD_SECS;
/// Once a height has more than this many different blocks, every further block of it is rejected.
const MAX_BLOCKS_PER_HEIGHT: usize = 5;
/// Heights remembered per topic; the least recently used one is evicted.
const SEEN_HEIGHTS: NonZeroUsize = NonZeroUsize::new(1000).unwrap();

/// The gossip topic of blocks in this encoding.
pub fn topic(chain_id: u64, version: PayloadVersion) -> String {
    format!("/optimism/{chain_id}/{}/blocks", version as u8)
}

/// Whether the bytes of a [`Decompressed`] message are decompressed or raw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PayloadFlag {
    /// The data as received: they are not valid snappy, or declare too large a size.
    Raw = 0,
    /// The decompressed data.
    Decompressed = 1,
}

/// A message after the one decompression that its id and its check share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decompressed {
    /// Whether `bytes` are the decompressed data or the message as received.
    pub flag: PayloadFlag,
    /// The bytes that the message id is computed from.
    pub bytes: Vec<u8>,
}

impl Decompressed {
    /// Flag byte ‖ bytes, in one buffer, for interfaces that carry only bytes.
    pub fn into_tagged(mut self) -> Vec<u8> {
        self.bytes.insert(0, self.flag as u8);
        self.bytes
    }

    /// Splits the output of [`into_tagged`](Self::into_tagged) into flag and bytes. Any other input
    /// counts as raw.
    pub fn untag(tagged: &[u8]) -> (PayloadFlag, &[u8]) {
        match tagged.split_first() {
            Some((1, bytes)) => (PayloadFlag::Decompressed, bytes),
            Some((_, bytes)) => (PayloadFlag::Raw, bytes),
            None => (PayloadFlag::Raw, tagged),
        }
    }
}

/// Decompresses a message in snappy's block format. Never fails: data that do not decompress, or
/// that declare more than [`MAX_MESSAGE_LEN`] bytes, are returned raw. [`check`] then reports the
/// reason.
pub fn decompress(data: &[u8]) -> Decompressed {
    let tagged = decompress_tagged(data);
    let (flag, bytes) = Decompressed::untag(&tagged);
    Decompressed {
        flag,
        bytes: bytes.to_vec(),
    }
}

/// [`decompress`] and [`into_tagged`](Decompressed::into_tagged) in one step, without another copy.
/// The declared length is checked against the maximum, and against the size of the input, before
/// anything is allocated.
pub fn decompress_tagged(data: &[u8]) -> Vec<u8> {
    if let Ok(len) = declared_len(data)
        && len <= MAX_MESSAGE_LEN
        && len / MAX_RATIO <= data.len()
    {
        let mut tagged = vec![PayloadFlag::Decompressed as u8; 1 + len];
        if snap::raw::Decoder::new().decompress(data, &mut tagged[1..]) == Ok(len) {
            return tagged;
        }
    }
    [&[PayloadFlag::Raw as u8], data].concat()
}

/// The decompressed length that snappy data declare. Empty data are an error.
fn declared_len(data: &[u8]) -> Result<usize, snap::Error> {
    if data.is_empty() {
        Err(snap::Error::Empty)
    } else {
        snap::raw::decompress_len(data)
    }
}

/// Id of a message. All compressions of the same bytes have the same id on one topic. The topic is
/// part of the hash, as on the live network; the specs omit it.
pub fn message_id(topic: &str, flag: PayloadFlag, payload: &[u8]) -> [u8; 20] {
    let digest = Sha256::new()
        .chain_update([flag as u8, 0, 0, 0])
        .chain_update((topic.len() as u64).to_le_bytes())
        .chain_update(topic)
        .chain_update(payload)
        .finalize();
    let mut id = [0; 20];
    id.copy_from_slice(&digest[..20]);
    id
}

/// The data of a gossip message: snappy of signature ‖ `[parent beacon block root ‖] SSZ payload`.
pub fn encode_message(
    signature: &[u8; SIGNATURE_LEN],
    wire: &[u8],
) -> Result<Vec<u8>, snap::Error> {
    snap::raw::Encoder::new().compress_vec(&[signature, wire].concat())
}

/// The accepted block signers: the current one and, for a grace period, its predecessor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signers {
    current: Option<Address>,
    /// The previous signer and the second from which it is no longer accepted.
    previous: Option<(Address, u64)>,
    /// The signer whose grace ended last, and the second from which its blocks count as an offence.
    retired: Option<(Address, u64)>,
}

impl Signers {
    /// Accepts only this signer; the zero address stands for no signer.
    pub fn new(current: Address) -> Self {
        Self {
            current: (!current.is_zero()).then_some(current),
            ..Self::default()
        }
    }

    /// The signer of new blocks, if one is configured.
    pub fn current(&self) -> Option<Address> {
        self.current
    }

    /// Sets the signer that L1 names now. The signer that it replaces stays accepted for
    /// [`ROTATION_GRACE_SECS`], or until the first block by the new signer is
    /// [`verified`](Self::verified). Only the latest previous signer is kept. Returns whether the
    /// signer changed.
    pub fn update(&mut self, signer: Address, now: u64) -> bool {
        let signer = (!signer.is_zero()).then_some(signer);
        if signer == self.current {
            return false;
        }
        self.previous = self
            .current
            .map(|previous| (previous, now.saturating_add(ROTATION_GRACE_SECS)));
        self.current = signer;
        true
    }

    /// Whether blocks by this address are accepted at `now` (Unix seconds).
    pub fn accepts(&self, signer: Address, now: u64) -> bool {
        self.current == Some(signer)
            || self
                .previous
                .is_some_and(|(previous, until)| previous == signer && now < until)
    }

    /// Whether this signer's grace has ended so recently that its blocks may still be in transit at
    /// `now` (Unix seconds).
    pub fn is_retired(&self, signer: Address, now: u64) -> bool {
        let lapsed = self
            .previous
            .map(|(previous, until)| (previous, until.saturating_add(RETIRED_SECS)));
        [lapsed, self.retired]
            .into_iter()
            .flatten()
            .any(|(retired, until)| retired == signer && now < until)
    }

    /// Records that a block by `signer` was accepted at `now` (Unix seconds). The first block by
    /// the current signer ends the grace of the previous one.
    pub fn verified(&mut self, signer: Address, now: u64) {
        if self.current == Some(signer)
            && let Some((previous, until)) = self.previous.take()
        {
            self.retired = Some((previous, until.min(now).saturating_add(RETIRED_SECS)));
        }
    }
}

/// Inputs of a check other than the message.
#[derive(Clone, Copy, Debug)]
pub struct CheckContext<'a> {
    /// L2 chain id, which block signatures cover.
    pub chain_id: u64,
    /// Accepted and retired signers of blocks.
    pub signers: &'a Signers,
    /// How old a block may be, in seconds.
    pub threshold_secs: u64,
    /// Fork times, which determine the version of a payload.
    pub forks: &'a ForkSchedule,
}

/// The reason why a message is not accepted. The variants are in the order of the checks.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum Reason {
    #[error("snappy length header is unreadable")]
    SnappyHeader,
    #[error("message declares {0} bytes, more than {MAX_MESSAGE_LEN}")]
    TooLarge(usize),
    #[error("message has {0} bytes, less than {MIN_MESSAGE_LEN}")]
    TooSmall(usize),
    #[error("snappy data are invalid")]
    Snappy,
    #[error("no block signer is configured")]
    NoSigner,
    #[error("bad signature: {0}")]
    Signature(#[from] SignError),
    #[error("signed by {0}, who is not the block signer any more")]
    RetiredSigner(Address),
    #[error("signed by {0}, who is not the block signer")]
    WrongSigner(Address),
    #[error("not a payload of this topic: {0}")]
    Decode(#[from] WireError),
    #[error("block time {timestamp} is too old at {now}")]
    TooOld { timestamp: u64, now: u64 },
    #[error("block time {timestamp} is in the future at {now}")]
    Future { timestamp: u64, now: u64 },
    #[error("block hash is {computed}, not {claimed}")]
    BlockHash { claimed: B256, computed: B256 },
    #[error("{0} withdrawals in an L2 block")]
    Withdrawals(usize),
    #[error("blob gas used {0} before Jovian")]
    BlobGasUsed(u64),
    #[error("excess blob gas {0}")]
    ExcessBlobGas(u64),
    #[error("more than {MAX_BLOCKS_PER_HEIGHT} blocks at height {0}")]
    TooManyBlocks(u64),
    #[error("block {0} was seen before")]
    Seen(B256),
}

impl Reason {
    /// A stable label for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Reason::SnappyHeader => "snappy_header",
            Reason::TooLarge(_) => "too_large",
            Reason::TooSmall(_) => "too_small",
            Reason::Snappy => "snappy",
            Reason::NoSigner => "no_signer",
            Reason::Signature(_) => "signature",
            Reason::RetiredSigner(_) => "retired_signer",
            Reason::WrongSigner(_) => "wrong_signer",
            Reason::Decode(_) => "decode",
            Reason::TooOld { .. } => "too_old",
            Reason::Future { .. } => "future",
            Reason::BlockHash { .. } => "block_hash",
            Reason::Withdrawals(_) => "withdrawals",
            Reason::BlobGasUsed(_) => "blob_gas_used",
            Reason::ExcessBlobGas(_) => "excess_blob_gas",
            Reason::TooManyBlocks(_) => "too_many_blocks",
            Reason::Seen(_) => "seen",
        }
    }

    /// Whether the message is only ignored, so that its sender gets no penalty.
    pub fn is_ignore(&self) -> bool {
        matches!(self, Reason::NoSigner | Reason::Seen(_))
    }

    /// Whether the block's timestamp is outside the clock window. Such a rejection never counts
    /// against the peer: our clock may be the wrong one.
    pub fn is_clock(&self) -> bool {
        matches!(self, Reason::TooOld { .. } | Reason::Future { .. })
    }
}

impl From<PayloadError> for Reason {
    fn from(error: PayloadError) -> Self {
        match error {
            PayloadError::HashMismatch { claimed, computed } => {
                Reason::BlockHash { claimed, computed }
            }
            PayloadError::Withdrawals(count) => Reason::Withdrawals(count),
        }
    }
}

/// Gossip's verdict on a message.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "moved once, from the check to whoever asked for it"
)]
pub enum Verdict {
    /// Forward the message to the mesh and the block to the chain. The address is the block's
    /// signer.
    Accept(Payload, Address),
    /// Do not forward the message. Its sender gets no penalty.
    Ignore(Reason),
    /// Do not forward the message, and penalise its sender unless [`Reason::is_clock`] is true or
    /// the reason is [`Reason::RetiredSigner`].
    Reject(Reason),
}

impl From<Reason> for Verdict {
    fn from(reason: Reason) -> Self {
        if reason.is_ignore() {
            Verdict::Ignore(reason)
        } else {
            Verdict::Reject(reason)
        }
    }
}

/// Runs every check on one message of the topic of `version`. `now_secs` is the wall clock in Unix
/// seconds.
pub fn check(
    version: PayloadVersion,
    flag: PayloadFlag,
    bytes: &[u8],
    now_secs: u64,
    context: &CheckContext<'_>,
    seen: &mut Seen,
) -> Verdict {
    let checked =
        check_signed(version, flag, bytes, now_secs, context).and_then(|(payload, signer)| {
            seen.record(payload.number(), payload.hash)
                .map(|()| (payload, signer))
        });
    match checked {
        Ok((payload, signer)) => Verdict::Accept(payload, signer),
        Err(reason) => reason.into(),
    }
}

/// Runs every check that needs no memory of earlier messages, in op-node's order. The other rules
/// of op-node are enforced by the codecs. A V1 payload has no withdrawals, and later versions have
/// a list. Up to V2 a payload has no blob fields. From V3 on it has both blob fields and the beacon
/// root. V4 also has a withdrawals root.
pub fn check_signed(
    version: PayloadVersion,
    flag: PayloadFlag,
    bytes: &[u8],
    now_secs: u64,
    context: &CheckContext<'_>,
) -> Result<(Payload, Address), Reason> {
    check_recovered(version, flag, bytes, now_secs, context, sign::recover)
}

/// Recovers the signer of the signed bytes from their signature on the chain with this id.
pub type RecoverSigner = fn(&[u8; SIGNATURE_LEN], u64, &[u8]) -> Result<Address, SignError>;

/// [`check_signed`] with another function in place of [`sign::recover`]: a simulation of a network
/// checks more messages than it could recover signers of.
pub fn check_recovered(
    version: PayloadVersion,
    flag: PayloadFlag,
    bytes: &[u8],
    now_secs: u64,
    context: &CheckContext<'_>,
    recover: RecoverSigner,
) -> Result<(Payload, Address), Reason> {
    let (signature, signed) = split_message(flag, bytes)?;
    let signer = check_signature(signature, signed, now_secs, context, recover)?;

    let wire = WirePayload::decode(version, signed)?;
    let timestamp = wire.timestamp();
    if timestamp < now_secs.saturating_sub(context.threshold_secs) {
        return Err(Reason::TooOld {
            timestamp,
            now: now_secs,
        });
    }
    if timestamp > now_secs.saturating_add(MAX_FUTURE_SECS) {
        return Err(Reason::Future {
            timestamp,
            now: now_secs,
        });
    }
    let payload = wire.into_payload()?;
    // From Jovian on `blob_gas_used` is the data-availability footprint.
    match payload.header.blob_gas_used {
        Some(used) if used != 0 && !context.forks.is_active(Fork::Jovian, timestamp) => {
            return Err(Reason::BlobGasUsed(used));
        }
        _ => {}
    }
    match payload.header.excess_blob_gas {
        Some(excess) if excess != 0 => Err(Reason::ExcessBlobGas(excess)),
        _ => Ok((payload, signer)),
    }
}

/// Checks sizes and compression, and splits the message into the signature and the bytes it signs.
fn split_message(flag: PayloadFlag, bytes: &[u8]) -> Result<(&[u8; SIGNATURE_LEN], &[u8]), Reason> {
    let len = match flag {
        PayloadFlag::Decompressed => bytes.len(),
        PayloadFlag::Raw => declared_len(bytes).map_err(|_| Reason::SnappyHeader)?,
    };
    if len > MAX_MESSAGE_LEN {
        return Err(Reason::TooLarge(len));
    }
    if len < MIN_MESSAGE_LEN {
        return Err(Reason::TooSmall(len));
    }
    if flag == PayloadFlag::Raw {
        return Err(Reason::Snappy);
    }
    bytes.split_first_chunk().ok_or(Reason::TooSmall(len))
}

fn check_signature(
    signature: &[u8; SIGNATURE_LEN],
    signed: &[u8],
    now_secs: u64,
    context: &CheckContext<'_>,
    recover: RecoverSigner,
) -> Result<Address, Reason> {
    if context.signers.current().is_none() {
        return Err(Reason::NoSigner);
    }
    let signer = recover(signature, context.chain_id, signed)?;
    match signer {
        signer if context.signers.accepts(signer, now_secs) => Ok(signer),
        signer if context.signers.is_retired(signer, now_secs) => {
            Err(Reason::RetiredSigner(signer))
        }
        signer => Err(Reason::WrongSigner(signer)),
    }
}

/// The blocks seen on one topic, by height. Only the 1000 most recently used heights are kept.
#[derive(Clone, Debug)]
pub struct Seen {
    heights: LruCache<u64, Vec<B256>>,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            heights: LruCache::new(SEEN_HEIGHTS),
        }
    }
}

impl Seen {
    /// Remembers a block that passed every other check, or returns the reason not to forward it. A
    /// full height rejects all blocks, even those already recorded there.
    pub fn record(&mut self, height: u64, hash: B256) -> Result<(), Reason> {
        let hashes = self.heights.get_or_insert_mut(height, Vec::new);
        if hashes.len() > MAX_BLOCKS_PER_HEIGHT {
            return Err(Reason::TooManyBlocks(height));
        }
        if hashes.contains(&hash) {
            return Err(Reason::Seen(hash));
        }
        hashes.push(hash);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
