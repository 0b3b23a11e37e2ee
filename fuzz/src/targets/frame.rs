//! Data items of batcher transactions and blobs, decoded to frames.

use crate::{InputKind, fixtures};
use alloy_primitives::{Bytes, FixedBytes};
use starling_proto::frame::{self, Frame};

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    match frame::decode(&Bytes::copy_from_slice(data)) {
        Ok(frames) => {
            assert_eq!(
                hex::encode(frame::encode(&frames)),
                hex::encode(data),
                "every byte is accounted for"
            );
            outcome.scale(frames.len());
        }
        Err(error) => outcome.add(&error),
    }
    outcome
}

/// Batcher transactions from a real chain.
pub fn items() -> Vec<Vec<u8>> {
    fixtures::bytes(&["derivation/batcher-tx/magi-op-goerli-calldata.json"], 100)
}

pub fn seeds() -> Vec<Vec<u8>> {
    let frame = |number, len: usize| Frame {
        id: FixedBytes::repeat_byte(4),
        number,
        data: vec![6; len].into(),
        is_last: number == 2,
    };
    let frames = [frame(0, 30), frame(1, 0), frame(2, 5)];
    let mut seeds = items();
    seeds.extend([frame::encode(&frames), frame::encode(&frames[..1])]);
    seeds
}
