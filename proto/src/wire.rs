//! Range sync: the messages of our own sync protocol, which transfers many blocks per request.
//!
//! The messages are those of `sync.proto`; a test compares that file with the derives here. The
//! code treats client and server alike as hostile. It caps a frame's length before reading the
//! frame, and a chunk's decompressed length before decompressing. A chunk's count is checked
//! against its decompressed length before memory is allocated for the items. The hash of every
//! decoded header or block is computed from its bytes. The caller compares this hash with the
//! requested one.

use crate::payload::{BlockId, MAX_TRANSACTIONS, Payload};
use alloy_consensus::Header;
use alloy_primitives::{
    B256, Bytes,
    bytes::{Buf, Bytes as Buffer},
    keccak256,
};
use alloy_rlp::{Decodable, Encodable};
use alloy_trie::root::ordered_trie_root_encoded;
use prost::Message;
use thiserror::Error;

/// Largest size of a request in its frame, in bytes.
pub const MAX_REQUEST: usize = 256;
/// Largest size of a chunk in bytes, compressed or decompressed: a block of the largest size that
/// gossip carries, with its length.
pub const MAX_CHUNK: usize = (10 << 20) + (64 << 10);
/// Largest size of a response in its frame, in bytes: a chunk and its encoding.
pub const MAX_RESPONSE: usize = MAX_CHUNK + 64;
/// Largest number of headers in one request.
pub const MAX_HEADERS: u32 = 4096;
/// Largest number of blocks in one request.
pub const MAX_BODIES: u64 = 1024;
/// Bytes of a length prefix: before a frame's message and before each item of a chunk.
pub const LENGTH: usize = 4;

/// The libp2p protocol id.
pub fn protocol_id(chain_id: u64) -> String {
    format!("/starling/sync/{chain_id}/1")
}

/// A request.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// Kind of the request; `None` if this node does not know the kind.
    #[prost(oneof = "RequestBody", tags = "1, 2, 3")]
    pub body: Option<RequestBody>,
}

/// The kinds of requests.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum RequestBody {
    /// Requests the range of blocks that the peer has.
    #[prost(message, tag = "1")]
    Status(StatusRequest),
    /// Requests headers by the hash of the highest block.
    #[prost(message, tag = "2")]
    Headers(HeadersRequest),
    /// Requests blocks by the hash of the highest block.
    #[prost(message, tag = "3")]
    Bodies(BodiesRequest),
}

/// Requests the range of blocks that the peer has.
#[derive(Clone, PartialEq, Message)]
pub struct StatusRequest {}

/// Requests the headers of a block and its ancestors, highest first.
#[derive(Clone, PartialEq, Message)]
pub struct HeadersRequest {
    /// Number of the highest block.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Hash of the highest block.
    #[prost(bytes = "vec", tag = "2")]
    pub hash: Vec<u8>,
    /// Number of headers, at most [`MAX_HEADERS`].
    #[prost(uint32, tag = "3")]
    pub count: u32,
}

/// Requests blocks by number, lowest first. A response has at least one block.
#[derive(Clone, PartialEq, Message)]
pub struct BodiesRequest {
    /// Number of the lowest block.
    #[prost(uint64, tag = "1")]
    pub first: u64,
    /// Number of the highest block.
    #[prost(uint64, tag = "2")]
    pub last: u64,
    /// Hash of the highest block.
    #[prost(bytes = "vec", tag = "3")]
    pub last_hash: Vec<u8>,
    /// Limit of the total size of the blocks in the response, in bytes.
    #[prost(uint32, tag = "4")]
    pub max_bytes: u32,
}

/// A response.
#[derive(Clone, PartialEq, Message)]
pub struct Response {
    /// Kind of the response; `None` if this node does not know the kind.
    #[prost(oneof = "ResponseBody", tags = "1, 2, 3, 4")]
    pub body: Option<ResponseBody>,
}

/// The kinds of responses.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ResponseBody {
    /// The range of blocks that the peer has.
    #[prost(message, tag = "1")]
    Status(Status),
    /// Some or all of the requested headers.
    #[prost(message, tag = "2")]
    Headers(Chunk),
    /// Some or all of the requested blocks.
    #[prost(message, tag = "3")]
    Bodies(Chunk),
    /// A refusal: one of the codes of [`RangeRefusal`].
    #[prost(uint32, tag = "4")]
    Refusal(u32),
}

/// The range of blocks that a node has.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// L2 chain id.
    #[prost(uint64, tag = "1")]
    pub chain_id: u64,
    /// Hash of the chain's first block, 32 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub genesis_hash: Vec<u8>,
    /// Newest block of the node.
    #[prost(message, optional, tag = "3")]
    pub head: Option<Block>,
    /// Number of the oldest block that the node serves.
    #[prost(uint64, tag = "4")]
    pub oldest: u64,
    /// Safe block; `None` until the node knows one.
    #[prost(message, optional, tag = "5")]
    pub safe: Option<Block>,
    /// Finalized block; `None` until the node knows one.
    #[prost(message, optional, tag = "6")]
    pub finalized: Option<Block>,
}

/// Number and hash of a block.
#[derive(Clone, PartialEq, Message)]
pub struct Block {
    /// Block number.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Block hash, 32 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub hash: Vec<u8>,
}

/// Items, compressed together as one snappy block. Each item follows its length ([`LENGTH`]).
#[derive(Clone, PartialEq, Message)]
pub struct Chunk {
    /// Number of items.
    #[prost(uint32, tag = "1")]
    pub count: u32,
    /// The snappy block.
    #[prost(bytes = "bytes", tag = "2")]
    pub data: Buffer,
}

/// The reason why a server refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RangeRefusal {
    /// The server does not have the requested highest block on its chain, or no longer keeps the
    /// blocks below it.
    NotFound = 1,
    /// The request is for no blocks or for too many.
    Invalid = 2,
    /// The server could not read its own blocks.
    Failed = 3,
}

/// The reason why bytes are not a valid message of the protocol.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum MessageError {
    #[error("no message: {0}")]
    Message(#[from] prost::DecodeError),
    #[error("a message that says nothing")]
    Empty,
    #[error("a hash of {0} bytes")]
    Hash(usize),
    #[error("a status without a head")]
    NoHead,
    #[error("a chunk of {0} bytes")]
    ChunkSize(usize),
    #[error("a chunk that is not packed right: {0}")]
    Snappy(String),
    #[error("an item reaches past the end of its chunk")]
    Item,
    #[error("a chunk of {have} items that claims {claimed}")]
    Count { claimed: u32, have: usize },
    #[error("no RLP of a block: {0}")]
    Rlp(alloy_rlp::Error),
    #[error("{0} bytes after the end of a block")]
    Trailing(usize),
    #[error("a block of more than {MAX_TRANSACTIONS} transactions")]
    Transactions,
    #[error("the transactions are not those of block {number} ({hash})")]
    TransactionsRoot { number: u64, hash: B256 },
}

/// Encodes a message with its length in front.
pub fn frame(message: &impl Message) -> Vec<u8> {
    let length = message.encoded_len();
    let mut out = Vec::with_capacity(LENGTH + length);
    out.extend_from_slice(&(length as u32).to_le_bytes());
    // Encoding into a `Vec` cannot fail.
    let _ = message.encode(&mut out);
    out
}

/// Decodes a request, without its length prefix.
pub fn decode_request(bytes: &[u8]) -> Result<RequestBody, MessageError> {
    Request::decode(bytes)?.body.ok_or(MessageError::Empty)
}

/// Decodes a response, without its length prefix.
pub fn decode_response(bytes: Vec<u8>) -> Result<ResponseBody, MessageError> {
    Response::decode(Buffer::from(bytes))?
        .body
        .ok_or(MessageError::Empty)
}

/// Converts the bytes of a hash in a message; fails unless there are 32.
pub fn hash(bytes: &[u8]) -> Result<B256, MessageError> {
    B256::try_from(bytes).map_err(|_| MessageError::Hash(bytes.len()))
}

impl Block {
    /// Number and hash of the block; fails unless the hash has 32 bytes.
    pub fn id(&self) -> Result<BlockId, MessageError> {
        Ok(BlockId {
            number: self.number,
            hash: hash(&self.hash)?,
        })
    }
}

impl From<BlockId> for Block {
    fn from(id: BlockId) -> Self {
        Self {
            number: id.number,
            hash: id.hash.to_vec(),
        }
    }
}

/// Collects items and compresses them into a chunk.
#[derive(Debug, Default)]
pub struct ChunkBuilder {
    plain: Vec<u8>,
    count: u32,
}

impl ChunkBuilder {
    /// An empty builder with memory for about `bytes` bytes of items.
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            plain: Vec::with_capacity(bytes),
            count: 0,
        }
    }

    /// Bytes of the items so far, with their lengths.
    pub fn len(&self) -> usize {
        self.plain.len()
    }

    /// Whether no item was added.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds an item, given in parts that are joined.
    pub fn push(&mut self, item: &[&[u8]]) {
        let length: usize = item.iter().map(|part| part.len()).sum();
        self.plain.extend_from_slice(&(length as u32).to_le_bytes());
        item.iter()
            .for_each(|part| self.plain.extend_from_slice(part));
        self.count += 1;
    }

    /// Compresses the items into a chunk; fails if they exceed [`MAX_CHUNK`].
    pub fn finish(self) -> Result<Chunk, MessageError> {
        if self.plain.len() > MAX_CHUNK {
            return Err(MessageError::ChunkSize(self.plain.len()));
        }
        let data = snap::raw::Encoder::new()
            .compress_vec(&self.plain)
            .map_err(|error| MessageError::Snappy(error.to_string()))?;
        Ok(Chunk {
            count: self.count,
            data: data.into(),
        })
    }
}

impl Chunk {
    /// Decompresses the items. Memory is bounded by [`MAX_CHUNK`].
    pub fn items(&self) -> Result<Vec<Bytes>, MessageError> {
        let length = snap::raw::decompress_len(&self.data)
            .map_err(|error| MessageError::Snappy(error.to_string()))?;
        // Every item has a length prefix, so `count` cannot exceed `length / LENGTH`. This bounds
        // the capacity allocated below.
        if length > MAX_CHUNK || (self.count as usize).saturating_mul(LENGTH) > length {
            return Err(MessageError::ChunkSize(length));
        }
        let plain = snap::raw::Decoder::new()
            .decompress_vec(&self.data)
            .map_err(|error| MessageError::Snappy(error.to_string()))?;
        let mut rest = Buffer::from(plain);
        let mut items = Vec::with_capacity(self.count as usize);
        while rest.has_remaining() {
            let length = rest.try_get_u32_le().map_err(|_| MessageError::Item)? as usize;
            if length > rest.len() {
                return Err(MessageError::Item);
            }
            items.push(rest.split_to(length).into());
        }
        if items.len() != self.count as usize {
            return Err(MessageError::Count {
                claimed: self.count,
                have: items.len(),
            });
        }
        Ok(items)
    }
}

/// A block as the two parts of an item: the RLP of its header and the RLP of its list of
/// transactions.
pub fn encode_block(payload: &Payload) -> [Vec<u8>; 2] {
    let header = alloy_rlp::encode(&payload.header);
    let mut transactions = Vec::with_capacity(payload.weight());
    payload.transactions.encode(&mut transactions);
    [header, transactions]
}

/// Reads the parent's hash, the first field of a header's RLP.
pub fn parent_hash(header: &[u8]) -> Option<B256> {
    let mut fields = alloy_rlp::Header::decode_bytes(&mut &header[..], true).ok()?;
    B256::decode(&mut fields).ok()
}

/// Decodes a header and computes its hash.
pub fn decode_header(item: &[u8]) -> Result<(B256, Header), MessageError> {
    let mut rest = item;
    let header = Header::decode(&mut rest).map_err(MessageError::Rlp)?;
    if !rest.is_empty() {
        return Err(MessageError::Trailing(rest.len()));
    }
    Ok((keccak256(item), header))
}

/// Decodes a block, computes its hash from the header, and checks the transactions against the
/// header's transactions root.
pub fn decode_block(item: &Bytes) -> Result<Payload, MessageError> {
    let mut rest: &[u8] = item;
    let header = Header::decode(&mut rest).map_err(MessageError::Rlp)?;
    let hash = keccak256(&item[..item.len() - rest.len()]);
    let mut list = alloy_rlp::Header::decode_bytes(&mut rest, true).map_err(MessageError::Rlp)?;
    if !rest.is_empty() {
        return Err(MessageError::Trailing(rest.len()));
    }
    let mut transactions = Vec::new();
    while !list.is_empty() {
        if transactions.len() == MAX_TRANSACTIONS {
            return Err(MessageError::Transactions);
        }
        let raw = alloy_rlp::Header::decode_bytes(&mut list, false).map_err(MessageError::Rlp)?;
        transactions.push(item.slice_ref(raw));
    }
    if ordered_trie_root_encoded(&transactions) != header.transactions_root {
        return Err(MessageError::TransactionsRoot {
            number: header.number,
            hash,
        });
    }
    Ok(Payload {
        hash,
        header,
        transactions,
        ethereum: None,
    })
}

#[cfg(test)]
mod tests;
