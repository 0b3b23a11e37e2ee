//! `payload_by_number`: requests, and responses as received or with corrected frames.

use super::gossip::blocks;
use crate::{InputKind, fixtures};
use starling_proto::{
    fork::{Fork, ForkSchedule},
    payload::{Payload, PayloadVersion},
    reqresp::{self, MAX_RESPONSE_LEN},
};
use std::io::Write;

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    if let Some(number) = reqresp::decode_request(data) {
        assert_eq!(reqresp::encode_request(number), data);
    }
    response(data, &mut outcome);
    // A frame's checksum stops nearly every mutation, so also try the input in correct frames.
    for version in 0..3 {
        let mut bytes = vec![0];
        bytes.extend_from_slice(&u32::to_le_bytes(version));
        let mut encoder = snap::write::FrameEncoder::new(bytes);
        encoder.write_all(data).expect("a vector takes everything");
        response(
            &encoder.into_inner().expect("a vector takes everything"),
            &mut outcome,
        );
    }
    outcome
}

fn response(bytes: &[u8], outcome: &mut InputKind) {
    let payload = match reqresp::decode_response(bytes).map(|wire| wire.into_payload()) {
        Ok(Ok(payload)) => payload,
        Ok(Err(error)) => return outcome.add(&error),
        Err(error) => return outcome.add(&error),
    };
    let size: usize = payload.transactions.iter().map(|raw| raw.len()).sum();
    assert!(size <= MAX_RESPONSE_LEN);
    outcome.scale(size);
    let again = reqresp::encode_response(&payload, &schedule(&payload))
        .expect("a payload that came in a response fits one");
    let decoded = reqresp::decode_response(&again)
        .expect("our own encoding")
        .into_payload();
    assert_eq!(decoded.as_ref(), Ok(&payload));
}

/// A fork schedule under which this payload has its version.
fn schedule(payload: &Payload) -> ForkSchedule {
    match payload.version() {
        PayloadVersion::V1 => ForkSchedule::default(),
        PayloadVersion::V2 => ForkSchedule::from_genesis(Fork::Canyon),
        PayloadVersion::V3 => ForkSchedule::from_genesis(Fork::Ecotone),
        PayloadVersion::V4 => ForkSchedule::from_genesis(Fork::Jovian),
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = fixtures::bytes(
        &[
            "p2p-wire/reqresp-derived.json",
            "p2p-wire/ssz-malicious.json",
        ],
        1,
    );
    for block in blocks() {
        seeds.extend(reqresp::encode_response(&block, &schedule(&block)).ok());
        seeds.push(block.to_wire(block.version()));
    }
    // Many frames of the same byte.
    let mut bomb = snap::write::FrameEncoder::new(vec![0, 1, 0, 0, 0]);
    let _ = bomb.write_all(&[0; 1 << 20]);
    seeds.extend(bomb.into_inner().ok());
    seeds
}
