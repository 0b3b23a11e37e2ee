//! Blobs of the batcher. The input is the beginning of a blob; the rest is zeros.

use crate::InputKind;
use starling_proto::blob::{self, BLOB_BYTES, MAX_BLOB_DATA};

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    let mut blob = data[..data.len().min(BLOB_BYTES)].to_vec();
    blob.resize(BLOB_BYTES, 0);
    match blob::decode(&blob) {
        Ok(found) => {
            assert!(found.len() <= MAX_BLOB_DATA);
            // Decoders ignore these two bits.
            blob[0] &= 0x3f;
            let again = blob::encode(&found).expect("data of a blob fit in a blob");
            assert!(again == blob, "every byte is accounted for");
            outcome.scale(found.len());
        }
        Err(error) => outcome.add(&error),
    }
    let short = &data[..data.len().min(MAX_BLOB_DATA)];
    let encoded = blob::encode(short).expect("the data fit");
    let again = blob::decode(&encoded).expect("our own encoding");
    assert!(again[..] == *short);
    outcome
}

pub fn seeds() -> Vec<Vec<u8>> {
    let seed = |len: usize| {
        let mut blob = blob::encode(&vec![0xb7; len]).expect("short data");
        blob.truncate(2 * len + 128);
        blob
    };
    [0, 1, 27, 28, 123, 124, 1000].map(seed).into()
}
