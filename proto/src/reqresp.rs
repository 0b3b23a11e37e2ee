//! The request `payload_by_number`: one block by number, over a stream of its own (specs:
//! rollup-node-p2p, req-resp).
//!
//! A request is eight bytes and a half-close; a response is read to its end. Both sides may be
//! hostile: lengths are capped before anything is decoded, and a response is only a [`WirePayload`]
//! until the caller recomputes its hash.

use crate::{
    fork::ForkSchedule,
    payload::{Payload, PayloadVersion, WireError, WirePayload},
};
use std::io::{Read, Write};
use thiserror::Error;

/// Largest size in bytes of a response, and of the decompressed payload in it.
pub const MAX_RESPONSE_LEN: usize = 10 << 20;
/// Bytes of a request.
pub const REQUEST_LEN: usize = 8;

/// Bytes of the result code and the version, before the payload of a successful response.
const HEADER_LEN: usize = 5;

/// The two spellings of the protocol id in use. Dial with the first, serve both.
pub fn protocol_ids(chain_id: u64) -> [String; 2] {
    let id = format!("/opstack/req/payload_by_number/{chain_id}/0");
    let with_slash = format!("{id}/");
    [id, with_slash]
}

/// The request for the block of this number.
pub fn encode_request(number: u64) -> [u8; REQUEST_LEN] {
    number.to_le_bytes()
}

/// The requested number; `None` unless the request has exactly eight bytes.
pub fn decode_request(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_le_bytes)
}

/// The reason why a server returns no block. The response is then one byte, the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum NumberRefusal {
    #[error("the peer does not have this block")]
    NotFound,
    #[error("the peer calls the request invalid")]
    InvalidRequest,
    /// Any other code; our server sends 3.
    #[error("the peer failed with code {0}")]
    Other(u8),
}

impl NumberRefusal {
    /// The code of this refusal on the wire.
    pub fn code(self) -> u8 {
        match self {
            NumberRefusal::NotFound => 1,
            NumberRefusal::InvalidRequest => 2,
            NumberRefusal::Other(code) => code.max(3),
        }
    }
}

/// The reason why a response has no payload.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum ResponseError {
    #[error(transparent)]
    Refused(#[from] NumberRefusal),
    #[error("response ends after {0} bytes")]
    Truncated(usize),
    #[error("unknown response version {0}")]
    Version(u32),
    #[error("response of more than {MAX_RESPONSE_LEN} bytes")]
    TooLarge,
    #[error("snappy stream is invalid: {0}")]
    Snappy(#[from] std::io::Error),
    #[error("first offset {0} belongs to no payload of response version {1}")]
    Offset(u32, u32),
    #[error(transparent)]
    Payload(#[from] WireError),
}

/// Encodes a successful response: `0 ‖ version u32 LE ‖ snappy frames of the payload's wire bytes`.
/// The version is 0 before Ecotone and 1 from Ecotone on, even in Isthmus: no implementation
/// understands the specs' version 2.
pub fn encode_response(payload: &Payload, forks: &ForkSchedule) -> std::io::Result<Vec<u8>> {
    let version = forks.payload_version(payload.timestamp());
    let mut out = vec![0];
    out.extend_from_slice(&u32::from(version.has_beacon_root()).to_le_bytes());
    let mut encoder = snap::write::FrameEncoder::new(out);
    encoder.write_all(&payload.to_wire(version))?;
    encoder.into_inner().map_err(|error| error.into_error())
}

/// Decodes a response with version 0, 1 or 2. The payload's own version follows from its bytes: the
/// first offset in them is the length of the fixed part.
pub fn decode_response(bytes: &[u8]) -> Result<WirePayload, ResponseError> {
    if bytes.len() > MAX_RESPONSE_LEN {
        return Err(ResponseError::TooLarge);
    }
    match bytes.first() {
        None => return Err(ResponseError::Truncated(0)),
        Some(0) => {}
        Some(1) => return Err(NumberRefusal::NotFound.into()),
        Some(2) => return Err(NumberRefusal::InvalidRequest.into()),
        Some(code) => return Err(NumberRefusal::Other(*code).into()),
    }
    let Some((header, frames)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Err(ResponseError::Truncated(bytes.len()));
    };
    let version = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
    if version > 2 {
        return Err(ResponseError::Version(version));
    }
    let wire = read_frames(frames)?;
    Ok(WirePayload::decode(
        payload_version(version, &wire)?,
        &wire,
    )?)
}

/// Decompresses the snappy frames. The limit applies to the decompressed bytes while they are read,
/// so that a small stream cannot exceed it. Every frame has a checksum. Bytes after the last frame
/// are an error, because they are not a frame.
fn read_frames(frames: &[u8]) -> Result<Vec<u8>, ResponseError> {
    let mut wire = Vec::new();
    snap::read::FrameDecoder::new(frames)
        .take(MAX_RESPONSE_LEN as u64 + 1)
        .read_to_end(&mut wire)?;
    if wire.len() > MAX_RESPONSE_LEN {
        Err(ResponseError::TooLarge)
    } else {
        Ok(wire)
    }
}

fn payload_version(response: u32, wire: &[u8]) -> Result<PayloadVersion, ResponseError> {
    const EXTRA_DATA_OFFSET: usize = 436;
    let candidates = if response == 0 {
        [PayloadVersion::V1, PayloadVersion::V2]
    } else {
        [PayloadVersion::V3, PayloadVersion::V4]
    };
    let at = EXTRA_DATA_OFFSET + if response == 0 { 0 } else { 32 };
    let offset = wire
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map(|bytes| u32::from_le_bytes(*bytes));
    let offset = offset.ok_or(ResponseError::Truncated(wire.len()))?;
    candidates
        .into_iter()
        .find(|version| version.ssz_fixed_len() == offset as usize)
        .ok_or(ResponseError::Offset(offset, response))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::Fork;
    use alloy_consensus::{Header, constants::EMPTY_WITHDRAWALS};
    use alloy_eips::eip7685::EMPTY_REQUESTS_HASH;
    use alloy_primitives::B256;
    use proptest::prelude::*;

    /// An empty block in this encoding, and a fork schedule under which the encoding is correct.
    fn block(version: PayloadVersion) -> (Payload, ForkSchedule) {
        let fork = [Fork::Regolith, Fork::Delta, Fork::Holocene, Fork::Jovian][version as usize];
        let blob = (version >= PayloadVersion::V3).then_some(0);
        let header = Header {
            base_fee_per_gas: Some(1),
            withdrawals_root: (version >= PayloadVersion::V2).then_some(EMPTY_WITHDRAWALS),
            blob_gas_used: blob,
            excess_blob_gas: blob,
            parent_beacon_block_root: blob.map(|_| B256::repeat_byte(1)),
            requests_hash: (version >= PayloadVersion::V4).then_some(EMPTY_REQUESTS_HASH),
            ..Default::default()
        };
        (
            Payload::sealed(header, Vec::new()),
            ForkSchedule::from_genesis(fork),
        )
    }

    /// A response with this version and one snappy frame of these bytes.
    fn response(version: u32, wire: &[u8]) -> Vec<u8> {
        let mut encoder =
            snap::write::FrameEncoder::new([&[0][..], &version.to_le_bytes()].concat());
        encoder.write_all(wire).unwrap();
        encoder.into_inner().unwrap()
    }

    #[test]
    fn a_block_of_every_version_survives_its_response() {
        for version in PayloadVersion::ALL {
            let (payload, forks) = block(version);
            let bytes = encode_response(&payload, &forks).unwrap();
            assert_eq!(
                bytes[..5],
                [0, u8::from(version >= PayloadVersion::V3), 0, 0, 0],
                "{version:?}"
            );
            assert_eq!(decode_response(&bytes).unwrap().into_payload(), Ok(payload));
        }
    }

    #[test]
    fn versions_one_and_two_are_read_alike() {
        let (payload, _) = block(PayloadVersion::V4);
        for version in [1, 2] {
            let wire =
                decode_response(&response(version, &payload.to_wire(PayloadVersion::V4))).unwrap();
            assert_eq!(wire.into_payload().unwrap(), payload);
        }
        let unknown = decode_response(&response(3, &payload.to_wire(PayloadVersion::V4)));
        assert!(matches!(unknown, Err(ResponseError::Version(3))));
    }

    #[test]
    fn codes_are_named_and_anything_after_them_is_not_read() {
        let refusal = |bytes: &[u8]| match decode_response(bytes) {
            Err(ResponseError::Refused(refusal)) => Some((refusal, refusal.code())),
            _ => None,
        };
        assert_eq!(refusal(&[1]), Some((NumberRefusal::NotFound, 1)));
        assert_eq!(refusal(&[1, 0]), Some((NumberRefusal::NotFound, 1)));
        assert_eq!(refusal(&[2]), Some((NumberRefusal::InvalidRequest, 2)));
        assert_eq!(refusal(&[3]), Some((NumberRefusal::Other(3), 3)));
        assert_eq!(refusal(&[200]), Some((NumberRefusal::Other(200), 200)));
        assert_eq!(
            NumberRefusal::Other(0).code(),
            3,
            "a failure is never sent as success"
        );
    }

    #[test]
    fn every_truncation_and_every_appended_byte_is_an_error() {
        let (payload, forks) = block(PayloadVersion::V4);
        let bytes = encode_response(&payload, &forks).unwrap();
        for len in 0..bytes.len() {
            assert!(decode_response(&bytes[..len]).is_err(), "cut to {len}");
        }
        for appended in 0..=0xff {
            assert!(
                decode_response(&[&bytes[..], &[appended]].concat()).is_err(),
                "{appended} appended"
            );
        }
    }

    #[test]
    fn a_stream_that_grows_beyond_the_limit_is_stopped() {
        let bomb = response(1, &vec![0; MAX_RESPONSE_LEN + 1]);
        assert!(bomb.len() < MAX_RESPONSE_LEN / 10);
        assert!(matches!(
            decode_response(&bomb),
            Err(ResponseError::TooLarge)
        ));
        assert!(matches!(
            decode_response(&vec![0; MAX_RESPONSE_LEN + 1]),
            Err(ResponseError::TooLarge)
        ));
    }

    #[test]
    fn a_first_offset_of_no_payload_is_an_error() {
        for (version, wire_of) in [(0, PayloadVersion::V3), (1, PayloadVersion::V1)] {
            let (payload, _) = block(wire_of);
            let decoded = decode_response(&response(version, &payload.to_wire(wire_of)));
            assert!(
                matches!(decoded, Err(ResponseError::Offset(..))),
                "{decoded:?}"
            );
        }
        assert!(matches!(
            decode_response(&response(1, &[0; 100])),
            Err(ResponseError::Truncated(100))
        ));
    }

    #[test]
    fn a_request_has_eight_bytes() {
        assert_eq!(decode_request(&[0; 7]), None);
        assert_eq!(decode_request(&[0; 9]), None);
    }

    #[test]
    fn the_protocol_is_dialled_without_and_served_with_a_slash() {
        let ids = [
            "/opstack/req/payload_by_number/10/0",
            "/opstack/req/payload_by_number/10/0/",
        ];
        assert_eq!(protocol_ids(10), ids);
    }

    proptest! {
        #[test]
        fn a_number_survives_its_request(number: u64) {
            prop_assert_eq!(decode_request(&encode_request(number)), Some(number));
        }

        #[test]
        fn any_response_is_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), version in 0u32..3) {
            let _ = decode_response(&bytes);
            let _ = decode_response(&response(version, &bytes));
        }
    }
}
