//! Channels. The input is used as compressed bytes, and as a sequence of batches that our writer
//! compresses.

use super::batch::CONTEXT;
use crate::InputKind;
use alloy_primitives::{Bytes, FixedBytes};
use starling_proto::channel::{BatchReader, ChannelCompression, ChannelWriter};

/// Number of batches in a channel whose results count for the input's kind.
const COUNTED: usize = 3;

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    for fjord in [false, true] {
        read(data.to_vec().into(), fjord, &mut outcome);
    }
    let Some((first, rest)) = data.split_first() else {
        return outcome;
    };
    let compression = if first & 1 == 0 {
        ChannelCompression::Zlib
    } else {
        ChannelCompression::Brotli9
    };
    let size = 30 + usize::from(*first) * 8;
    let batches: Vec<&[u8]> = rest.split(|byte| *byte == 0xff).collect();
    let channel = write(&batches, compression, size);
    let decoded = read(channel.into(), true, &mut outcome);
    assert!(decoded <= batches.len());
    outcome
}

/// Reads all batches and returns the number of results.
fn read(data: Bytes, fjord: bool, outcome: &mut InputKind) -> usize {
    let mut reader = match BatchReader::new(data, CONTEXT, fjord) {
        Ok(reader) => reader,
        Err(error) => {
            outcome.add(&error);
            return 0;
        }
    };
    let mut count = 0;
    while let Some(result) = reader.next_batch() {
        count += 1;
        let is_over = result
            .as_ref()
            .is_err_and(|error| !error.skips_only_this_batch());
        if count <= COUNTED {
            outcome.add(&result.map(|_| ()));
        }
        assert!(!is_over || reader.next_batch().is_none());
    }
    outcome.scale(count);
    count
}

/// The data of all frames of a channel with these batches.
fn write(batches: &[&[u8]], compression: ChannelCompression, size: usize) -> Vec<u8> {
    let id = FixedBytes::repeat_byte(1);
    let mut writer = ChannelWriter::new(id, compression, true).expect("Fjord");
    for batch in batches {
        writer.add(batch).expect("short batches");
    }
    writer.close().expect("an open channel");
    let mut data = Vec::new();
    while let Some(frame) = writer.next_frame(size).expect("few frames") {
        assert!(frame.data.len() + 23 <= size);
        data.extend_from_slice(&frame.data);
    }
    assert_eq!(writer.pending_len(), 0);
    data
}

pub fn seeds() -> Vec<Vec<u8>> {
    let batches = super::batch::seeds();
    let all: Vec<&[u8]> = batches.iter().map(Vec::as_slice).collect();
    let mut seeds = Vec::new();
    for compression in [ChannelCompression::Zlib, ChannelCompression::Brotli10] {
        seeds.push(write(&all, compression, 1000));
        seeds.extend(all.iter().map(|batch| write(&[batch], compression, 1000)));
    }
    // The channels in batcher transactions that have a single frame.
    let items = super::frame::items();
    seeds.extend(
        items
            .iter()
            .filter_map(|item| Some(item.get(23..)?.to_vec())),
    );
    seeds.push([&[1][..], &all.join(&0xff)].concat());
    seeds
}
