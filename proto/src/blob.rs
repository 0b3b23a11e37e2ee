//! Batcher data in blobs: 4096 field elements with at most 130,044 bytes of data (specs: ecotone,
//! blob encoding).
//!
//! A round is four field elements of 32 bytes. The last 31 bytes of each element are data. The low
//! six bits of the four first bytes together encode three more bytes. The two high bits of each
//! first byte are 0, so that the element is below the field's modulus. The data of the first round
//! begin with the version and the length.

use alloy_primitives::Bytes;

/// Bytes of a blob.
pub const BLOB_BYTES: usize = 131_072;
/// Largest size of the batcher data in a blob, in bytes.
pub const MAX_BLOB_DATA: usize = ROUNDS * ROUND_DATA - HEADER;
/// The only version of the encoding.
const BLOB_VERSION: u8 = 0;
/// Bytes of a field element.
const ELEMENT: usize = 32;
/// Number of rounds in a blob.
const ROUNDS: usize = BLOB_BYTES / ROUND_BYTES;
/// Encoded size of a round, in bytes.
const ROUND_BYTES: usize = 4 * ELEMENT;
/// Bytes of data in a round: four times 31, and three from the first bytes of the elements.
const ROUND_DATA: usize = 4 * (ELEMENT - 1) + 3;
/// Bytes of the version and the length (u24), which precede the data in the first round.
const HEADER: usize = 4;

/// The reason why a blob cannot be decoded, or data not be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum BlobError {
    #[error("a blob of {0} bytes")]
    Length(usize),
    #[error("unknown version {0:#04x} of the encoding")]
    Version(u8),
    #[error("{0} bytes of data do not fit in a blob")]
    DataLength(usize),
    /// Carries the index of the field element.
    #[error("field element {0} has one of its two high bits set")]
    FieldElement(usize),
    /// Carries the offset in the blob.
    #[error("the byte {0} of the blob follows the data and is not zero")]
    Extraneous(usize),
}

/// Decodes the data in a blob.
pub fn decode(blob: &[u8]) -> Result<Bytes, BlobError> {
    if blob.len() != BLOB_BYTES {
        return Err(BlobError::Length(blob.len()));
    }
    if blob[1] != BLOB_VERSION {
        return Err(BlobError::Version(blob[1]));
    }
    let length = usize::from(blob[2]) << 16 | usize::from(blob[3]) << 8 | usize::from(blob[4]);
    if length > MAX_BLOB_DATA {
        return Err(BlobError::DataLength(length));
    }
    // At least one round is decoded, even for empty data: op-node checks it, too.
    let rounds = (HEADER + length).div_ceil(ROUND_DATA);
    let mut data = Vec::with_capacity(rounds * ROUND_DATA);
    for (round, elements) in blob.chunks_exact(ROUND_BYTES).take(rounds).enumerate() {
        decode_round(round, elements, &mut data)?;
    }
    let end = HEADER + length;
    if let Some(at) = data[end..].iter().position(|byte| *byte != 0) {
        return Err(BlobError::Extraneous(position_in_blob(end + at)));
    }
    let rest = rounds * ROUND_BYTES;
    if let Some(at) = blob[rest..].iter().position(|byte| *byte != 0) {
        return Err(BlobError::Extraneous(rest + at));
    }
    data.truncate(end);
    Ok(Bytes::from(data).slice(HEADER..))
}

/// Appends the 127 bytes of data in a round.
fn decode_round(round: usize, elements: &[u8], data: &mut Vec<u8>) -> Result<(), BlobError> {
    let element = |index: usize| &elements[index * ELEMENT..][..ELEMENT];
    let first = [element(0)[0], element(1)[0], element(2)[0], element(3)[0]];
    // op-node ignores the two high bits of the very first element.
    let unchecked = usize::from(round == 0);
    for (index, byte) in first.iter().enumerate().skip(unchecked) {
        if byte & 0b1100_0000 != 0 {
            return Err(BlobError::FieldElement(4 * round + index));
        }
    }
    let x = first[0] & 0x3f | (first[1] & 0x30) << 2;
    let y = first[1] & 0x0f | (first[3] & 0x0f) << 4;
    let z = first[2] & 0x3f | (first[3] & 0x30) << 2;
    data.extend_from_slice(&element(0)[1..]);
    data.push(x);
    data.extend_from_slice(&element(1)[1..]);
    data.push(y);
    data.extend_from_slice(&element(2)[1..]);
    data.push(z);
    data.extend_from_slice(&element(3)[1..]);
    Ok(())
}

/// Position in the blob of the data byte `at`, counted over all rounds. A byte that is spread over
/// the first bytes of elements has no single position: the result is the element after it.
fn position_in_blob(at: usize) -> usize {
    let (round, at) = (at / ROUND_DATA, at % ROUND_DATA);
    round * ROUND_BYTES + at + 1
}

/// Encodes data in a blob. Fails with [`BlobError::DataLength`] if they are longer than
/// [`MAX_BLOB_DATA`].
pub fn encode(data: &[u8]) -> Result<Vec<u8>, BlobError> {
    if data.len() > MAX_BLOB_DATA {
        return Err(BlobError::DataLength(data.len()));
    }
    let length = (data.len() as u32).to_be_bytes();
    let mut blob = Vec::with_capacity(BLOB_BYTES);
    // Empty data give a blob of zeros, since version and length are zero, too.
    let mut first = [0; ROUND_DATA];
    first[0] = BLOB_VERSION;
    first[1..HEADER].copy_from_slice(&length[1..]);
    let (head, rest) = data.split_at(data.len().min(ROUND_DATA - HEADER));
    first[HEADER..HEADER + head.len()].copy_from_slice(head);
    encode_round(&first, &mut blob);
    for chunk in rest.chunks(ROUND_DATA) {
        let mut padded = [0; ROUND_DATA];
        padded[..chunk.len()].copy_from_slice(chunk);
        encode_round(&padded, &mut blob);
    }
    blob.resize(BLOB_BYTES, 0);
    Ok(blob)
}

/// Appends the four field elements of a round.
fn encode_round(data: &[u8; ROUND_DATA], blob: &mut Vec<u8>) {
    let (x, y, z) = (data[31], data[63], data[95]);
    let first = [
        x & 0x3f,
        y & 0x0f | (x & 0xc0) >> 2,
        z & 0x3f,
        (z & 0xc0) >> 2 | (y & 0xf0) >> 4,
    ];
    for (index, byte) in first.into_iter().enumerate() {
        blob.push(byte);
        blob.extend_from_slice(&data[index * ELEMENT..][..ELEMENT - 1]);
    }
}
