//! Tests of frames and blobs.

use crate::draw::frames;
use alloy_primitives::Bytes;
use proptest::{collection::vec, prelude::*};
use starling_proto::{
    blob::{self, BLOB_BYTES, BlobError, MAX_BLOB_DATA},
    frame::{self, FRAME_OVERHEAD, FrameError},
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn frames_survive_and_no_part_of_an_item_is_one(frames in frames(), cut in any::<prop::sample::Index>()) {
        let item = Bytes::from(frame::encode(&frames));
        prop_assert_eq!(frame::decode(&item).unwrap(), frames.clone());
        let cut = cut.index(item.len());
        let sizes = frames.iter().scan(1, |end, frame| {
            *end += FRAME_OVERHEAD + frame.data.len();
            Some(*end)
        });
        let is_whole = sizes.into_iter().any(|end| end == cut);
        prop_assert_eq!(frame::decode(&item.slice(..cut)).is_ok(), is_whole);
    }

    #[test]
    fn blobs_survive(data in vec(any::<u8>(), 0..=3_000), long in 0..=MAX_BLOB_DATA) {
        prop_assert_eq!(&blob::decode(&blob::encode(&data).unwrap()).unwrap()[..], &data[..]);
        let long: Vec<u8> = data.iter().chain(&[0xa5]).cycle().take(long).copied().collect();
        prop_assert_eq!(&blob::decode(&blob::encode(&long).unwrap()).unwrap()[..], &long[..]);
    }
}

#[test]
fn a_malformed_frame_discards_its_item() {
    let frame = |length: u32, data: &[u8], last: u8| {
        let parts = [&[3; 16][..], &[0, 9], &length.to_be_bytes(), data, &[last]];
        parts.concat()
    };
    let item = |frames: &[Vec<u8>]| Bytes::from([&[0][..], &frames.concat()].concat());
    let good = frame(2, &[1, 2], 1);
    assert_eq!(
        frame::decode(&item(&[good.clone(), good.clone()]))
            .unwrap()
            .len(),
        2
    );
    for (item, error) in [
        (Bytes::new(), FrameError::Empty),
        (vec![0].into(), FrameError::NoFrame),
        (vec![1, 2, 3].into(), FrameError::AltDa),
        (vec![2].into(), FrameError::Version(2)),
        (item(&[good.clone(), vec![0]]), FrameError::Truncated),
        (
            item(&[good.clone(), frame(3, &[1, 2], 1)]),
            FrameError::Truncated,
        ),
        (
            item(&[good.clone(), frame(2, &[1, 2], 2)]),
            FrameError::IsLast(2),
        ),
        (
            item(&[frame(1_000_001, &[0; 1_000_001], 0)]),
            FrameError::TooLong(1_000_001),
        ),
        (
            item(&[frame(u32::MAX, &[], 0)]),
            FrameError::TooLong(u32::MAX),
        ),
    ] {
        assert_eq!(frame::decode(&item), Err(error));
    }
    assert!(frame::decode(&item(&[frame(1_000_000, &[0; 1_000_000], 0)])).is_ok());
}

#[test]
fn a_malformed_blob_is_refused() {
    let good = blob::encode(&[0xff; 200]).unwrap();
    let with = |at: usize, byte: u8| {
        let mut blob = good.clone();
        blob[at] = byte;
        blob::decode(&blob)
    };
    assert_eq!(
        blob::decode(&good[1..]),
        Err(BlobError::Length(BLOB_BYTES - 1))
    );
    assert_eq!(with(1, 1), Err(BlobError::Version(1)));
    assert_eq!(with(2, 2), Err(BlobError::DataLength(2 << 16 | 200)));
    for element in 1..8 {
        assert_eq!(
            with(32 * element, 0x80),
            Err(BlobError::FieldElement(element))
        );
        assert_eq!(
            with(32 * element, 0x40),
            Err(BlobError::FieldElement(element))
        );
    }
    // op-node ignores the two high bits of the first element.
    assert_eq!(with(0, good[0] | 0x40).unwrap(), vec![0xff; 200]);
    assert!(matches!(with(4, 199), Err(BlobError::Extraneous(_))));
    assert_eq!(with(256, 1), Err(BlobError::Extraneous(256)));
    assert_eq!(
        with(BLOB_BYTES - 1, 1),
        Err(BlobError::Extraneous(BLOB_BYTES - 1))
    );
    for size in [0, 1, 27, 28, 122, 123, 124, 250, 251, MAX_BLOB_DATA] {
        let data = vec![0xc3; size];
        assert_eq!(blob::decode(&blob::encode(&data).unwrap()).unwrap(), data);
    }
    let long = vec![0; MAX_BLOB_DATA + 1];
    assert_eq!(blob::encode(&long), Err(BlobError::DataLength(long.len())));
}
