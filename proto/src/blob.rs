//! Batcher data in blobs: 4096 field elements that hold 130,044 bytes at most (specs: ecotone,
//! blob encoding).

use alloy_primitives::Bytes;

/// Bytes of a blob.
pub const BLOB_BYTES: usize = 131_072;

/// Why a blob holds no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlobError {
    #[error("a blob of {0} bytes")]
    Length(usize),
}

/// The data of a blob.
pub fn decode(blob: &[u8]) -> Result<Bytes, BlobError> {
    let _ = blob;
    todo!()
}
