//! Reads and checks responses of a beacon endpoint as requests do, without a server. For fuzz
//! targets only.

use super::{BeaconCause, BlobRef, HttpReply, StatusCode, blobs, data};
use alloy_eips::eip4844::Blob;

fn reply(status: u16, body: &[u8]) -> HttpReply {
    HttpReply {
        status: StatusCode::from_u16(status).unwrap_or_default(),
        retry_after: None,
        body: body.to_vec().into(),
    }
}

/// The blobs of a response to `/eth/v1/beacon/blobs`.
pub fn blobs(status: u16, body: &[u8], wanted: &[BlobRef]) -> Result<Vec<Box<Blob>>, BeaconCause> {
    blobs::match_blobs(data(&reply(status, body))?, wanted)
}

/// The blobs of a response to `/eth/v1/beacon/blob_sidecars`.
pub fn sidecars(
    status: u16,
    body: &[u8],
    wanted: &[BlobRef],
) -> Result<Vec<Box<Blob>>, BeaconCause> {
    blobs::match_sidecars(data(&reply(status, body))?, wanted)
}
