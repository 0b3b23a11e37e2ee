//! Batcher data in blobs: 4096 field elements that hold 130,044 bytes at most (specs: ecotone,
//! blob encoding).
//!
//! A round is four field elements of 32 bytes. The last 31 bytes of each are data, and the low six
//! bits of the four first bytes together are three more bytes. The two high bits are 0, so that
//! each element is below the field's modulus. The first element begins with the version and the
//! length of the data.

use alloy_primitives::Bytes;

/// Bytes of a blob.
pub const BLOB_BYTES: usize = 131_072;
/// Most bytes of data in a blob.
pub const MAX_BLOB_DATA: usize = ROUNDS * ROUND_DATA - HEADER;
/// The only version of the encoding.
const BLOB_VERSION: u8 = 0;
/// Bytes of a field element.
const ELEMENT: usize = 32;
/// Rounds in a blob.
const ROUNDS: usize = BLOB_BYTES / ROUND_BYTES;
/// Bytes of a blob that a round takes.
const ROUND_BYTES: usize = 4 * ELEMENT;
/// Bytes that a round holds: four times 31, and three from the first bytes.
const ROUND_DATA: usize = 4 * (ELEMENT - 1) + 3;
/// The version byte and the length (u24), which the first round holds before the data.
const HEADER: usize = 4;

/// The reason why a blob holds no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum BlobError {
    #[error("a blob of {0} bytes")]
    Length(usize),
    #[error("unknown version {0:#04x} of the encoding")]
    Version(u8),
    #[error("{0} bytes of data do not fit in a blob")]
    DataLength(usize),
    /// The index of the element.
    #[error("field element {0} has one of its two high bits set")]
    FieldElement(usize),
    /// The offset in the blob.
    #[error("the byte {0} of the blob follows the data and is not zero")]
    Extraneous(usize),
}

/// The data of a blob.
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
    // The first round is read where the data are empty, too.
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

/// Appends the 127 bytes of a round.
fn decode_round(round: usize, elements: &[u8], data: &mut Vec<u8>) -> Result<(), BlobError> {
    let element = |index: usize| &elements[index * ELEMENT..][..ELEMENT];
    let first = [element(0)[0], element(1)[0], element(2)[0], element(3)[0]];
    // op-node masks the high bits of the very first element away.
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

/// Where a blob holds the byte `at` of its rounds' data; for a byte that is spread over the first
/// bytes of elements, the element after it.
fn position_in_blob(at: usize) -> usize {
    let (round, at) = (at / ROUND_DATA, at % ROUND_DATA);
    round * ROUND_BYTES + at + 1
}

/// The blob of these data. Errors: [`BlobError::DataLength`] if they are longer than
/// [`MAX_BLOB_DATA`].
pub fn encode(data: &[u8]) -> Result<Vec<u8>, BlobError> {
    if data.len() > MAX_BLOB_DATA {
        return Err(BlobError::DataLength(data.len()));
    }
    let length = (data.len() as u32).to_be_bytes();
    let mut blob = Vec::with_capacity(BLOB_BYTES);
    // An empty blob is all zeros, which a header of length 0 is too.
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

/// Appends the four elements of a round.
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
