//! Tests with invalid data at each layer of the batcher's data: items, frames, channels, batches.

use crate::network::{Network, rollup};
use alloy_primitives::Bytes;
use starling_proto::{
    blob::BLOB_BYTES,
    channel::ChannelCompression,
    derive::DropReason,
    fork::Fork,
    frame::{self, ChannelId, Frame, MAX_FRAME_DATA},
};
use std::io::Write;

/// A network with nine L2 blocks and their L1 blocks. The L2 blocks are not posted yet.
fn nine_blocks(fork: Fork) -> Network {
    let mut network = Network::new(fork);
    network.sequence(9);
    network
}

fn rlp(string: &[u8]) -> Vec<u8> {
    alloy_rlp::encode(string)
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn brotli(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = brotli::CompressorWriter::new(vec![1], 4096, 2, 22);
    encoder.write_all(bytes).unwrap();
    encoder.into_inner()
}

/// A data item with a channel of this compressed stream.
fn stream(network: &mut Network, data: Vec<u8>) -> Vec<u8> {
    frame::encode(&[Frame {
        id: network.channel_id(),
        number: 0,
        data: data.into(),
        is_last: true,
    }])
}

#[test]
fn garbage_frames() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        let batches = network.singular(1..=9);
        let good = network.channel(&batches);
        let changed = |change: fn(&mut Vec<u8>)| {
            let mut item = good.clone();
            change(&mut item);
            item
        };
        let garbage = [
            vec![],
            vec![frame::VERSION],
            changed(|item| item[0] = frame::ALT_DA_VERSION),
            changed(|item| item[0] = 7),
            changed(|item| item.truncate(20)),
            changed(|item| item.truncate(item.len() - 1)),
            changed(|item| item.truncate(item.len() - 20)),
            changed(|item| item.push(0)),
            changed(|item| *item.last_mut().unwrap() = 2),
            changed(|item| item[19..23].fill(0xff)),
            changed(|item| item[19..23].copy_from_slice(&1_000_001_u32.to_be_bytes())),
            [&good[..], &good[1..30]].concat(),
        ];
        let count = garbage.len() as u64;
        garbage.into_iter().for_each(|item| network.post(item));
        network.mine();
        network.expect_head(0, &[(DropReason::Frames, count)]);
        network.post(good);
        network.mine();
        network.expect(&[]);
        network.moves_on();
    }
}

/// The size limit of a frame counts only its data.
#[test]
fn a_frame_of_the_largest_size() {
    let mut network = nine_blocks(Fork::Holocene);
    let batches = network.singular(1..=9);
    let mut frames = network.frames(&batches, 1);
    let mut data = frames[0].data.to_vec();
    // Bytes after the end of the compressed stream are ignored.
    data.resize(MAX_FRAME_DATA, 0);
    frames[0].data = data.into();
    network.post(frame::encode(&frames));
    network.mine();
    network.expect(&[]);
}

#[test]
fn doubled_and_reordered_frames() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        let batches = network.singular(1..=9);
        let frames = network.frames(&batches, 4);
        let order = [3, 3, 1, 1, 0, 0, 2].map(|index: usize| frames[index].clone());
        network.post(frame::encode(&order));
        network.mine();
        if fork == Fork::Granite {
            network.expect(&[(DropReason::Frame, 3)]);
        } else {
            // The item begins with the channel's last frame, which no frame can follow.
            let drops = [(DropReason::FrameOrder, 6), (DropReason::Frame, 1)];
            network.expect_head(0, &drops);
            let order = [0, 1, 1, 3, 2, 3, 3].map(|index: usize| frames[index].clone());
            network.post(frame::encode(&order));
            network.mine();
            network.expect(&[(DropReason::FrameOrder, 3)]);
        }
        network.moves_on();
    }
}

/// Doubled and reordered frames in separate data items: the frame queue sees only one item at a
/// time.
#[test]
fn doubled_and_reordered_items() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        let batches = network.singular(1..=9);
        let pieces = network.pieces(&batches, 4);
        for index in [0, 0, 1, 3, 1, 2, 3, 3] {
            network.post(pieces[index].clone());
        }
        network.mine();
        // Before Holocene, piece 2 completes the channel. The pieces after it open a channel with the
        // same id.
        let drops = match fork {
            Fork::Granite => vec![(DropReason::Frame, 2 + 1)],
            _ => vec![(DropReason::Frame, 3), (DropReason::ChannelReplaced, 1)],
        };
        network.expect(&drops);
        network.moves_on();
    }
}

#[test]
fn blobs_that_hold_no_data() {
    let mut network = nine_blocks(Fork::Holocene);
    let batches = network.singular(1..=9);
    let item = network.channel(&batches);
    let mut cut = starling_proto::blob::encode(&item).unwrap();
    cut[1] = 1;
    network.post_raw_blobs(vec![vec![0xff; BLOB_BYTES].into(), cut.into()]);
    network.post_blobs(&[item]);
    network.mine();
    network.expect(&[(DropReason::Blob, 2)]);
    network.moves_on();
}

#[test]
fn garbage_channels() {
    for fork in [Fork::Ecotone, Fork::Granite, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        let all: Vec<u8> = network
            .singular(1..=9)
            .iter()
            .flat_map(|b| rlp(b))
            .collect();
        let mut wrong_sum = zlib(&all);
        wrong_sum[1] ^= 1;
        let mut garbage = vec![
            vec![],
            vec![0x02, 1, 2],
            vec![0x78],
            vec![0x78, 0x01],
            wrong_sum,
        ];
        garbage.push(vec![0x1f, 0x8b, 8, 0, 0]);
        if fork < Fork::Fjord {
            garbage.push(brotli(&all));
        } else {
            garbage.push(vec![1, 0xff, 0xff, 0xff]);
        }
        garbage.push(zlib(&[0xc0]));
        garbage.push(zlib(&[0xb8, 1, 0]));
        garbage.push(zlib(&[
            0xbf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        ]));
        let count = garbage.len() as u64;
        for data in garbage {
            let item = stream(&mut network, data);
            network.post(item);
        }
        network.mine();
        network.expect_head(0, &[(DropReason::Channel, count)]);
        network.post_blocks(1..=9, false);
        network.mine();
        network.expect(&[]);
        network.moves_on();
    }
}

/// The batches before a fault of their channel are applied.
#[test]
fn batches_before_a_fault_of_their_channel_are_used() {
    for fork in [Fork::Ecotone, Fork::Granite, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        let batches = network.singular(1..=9);
        let some: Vec<u8> = batches[..3].iter().flat_map(|b| rlp(b)).collect();
        // The last string is batch 4 with a longer RLP header than necessary.
        let length = (batches[3].len() as u16).to_be_bytes();
        let padded = [&[0xba, 0][..], &length, &batches[3]].concat();
        let faults: [&[u8]; 5] = [
            &[0xb9, 0xff, 0xff, 1],
            &[0xc0],
            &[0x09],
            &[0x82, 0, 0x80],
            &padded,
        ];
        for (at, fault) in faults.into_iter().enumerate() {
            let item = stream(&mut network, zlib(&[&some, fault].concat()));
            network.post(item);
            network.mine();
            let drops = [(DropReason::Channel, 1), (DropReason::PastBatch, 3)];
            network.expect_head(3, &drops[..1 + usize::from(at > 0)]);
        }
        let mut cut = zlib(&batches.iter().flat_map(|b| rlp(b)).collect::<Vec<_>>());
        cut.truncate(cut.len() - 4);
        let item = stream(&mut network, cut);
        network.post(item);
        network.mine();
        network.expect(&[(DropReason::Channel, 1), (DropReason::PastBatch, 3)]);
        network.moves_on();
    }
}

/// Channels that decompress to more than their limit: the batches before the limit are applied.
#[test]
fn bombs() {
    let zeros = vec![0; 100_000_000];
    for fork in [Fork::Ecotone, Fork::Granite, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        let batches = network.singular(1..=9);
        let some: Vec<u8> = batches[..2].iter().flat_map(|b| rlp(b)).collect();
        let limit: u32 = if fork < Fork::Fjord {
            10_000_000
        } else {
            100_000_000
        };
        let header = [&[0xbb][..], &(limit - 5).to_be_bytes()].concat();
        let bomb = [&some[..], &header, &zeros[..limit as usize - 5]].concat();
        let item = stream(&mut network, zlib(&bomb));
        network.post(item);
        network.mine();
        network.expect_head(2, &[(DropReason::Channel, 1)]);
        if fork >= Fork::Fjord {
            let item = stream(&mut network, brotli(&bomb));
            network.post(item);
            network.mine();
            network.expect_head(2, &[(DropReason::Channel, 1), (DropReason::PastBatch, 2)]);
        }
        network.post_blocks(3..=9, false);
        network.mine();
        network.expect(&[]);
        network.moves_on();
    }
}

#[test]
fn garbage_batches() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        let span = network.span(1..=9);
        let mut too_many = span[..43].to_vec();
        too_many.extend([0x81, 0xad, 0xe2, 0x04]);
        let garbage: [&[u8]; 8] = [
            &[],
            &[0x02, 0xc0],
            &[0xff],
            &[0x00],
            &[0x00, 0xc1, 0x80],
            &[0x01],
            &span[..span.len() / 2],
            &too_many,
        ];
        for batch in garbage {
            let item = network.channel(&[batch.to_vec()]);
            network.post(item);
        }
        network.mine();
        network.expect_head(0, &[(DropReason::Channel, 8)]);
        network.post_blocks(1..=9, true);
        network.mine();
        network.expect(&[]);
        network.moves_on();
    }
}

/// A span with complete columns whose transactions cannot be rebuilt: only this span is skipped.
#[test]
fn a_span_with_a_transaction_of_an_unknown_type() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        let mut span = network.span(1..=9);
        // The data of a type 1 transaction begin with its type and the list's header.
        let needle = [1, 0xcc, 0x80, 0x80, 0x88];
        let at = span.windows(5).position(|bytes| bytes == needle).unwrap();
        span[at] = 3;
        let mut batches = vec![span];
        batches.extend(network.singular(1..=9));
        let item = network.channel(&batches);
        network.post(item);
        network.mine();
        network.expect(&[(DropReason::BatchFormat, 1)]);
        network.moves_on();
    }
}

/// Open channels wait until they time out. From Holocene on each channel replaces the one before.
#[test]
fn thousands_of_channels_that_are_never_closed() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut config = rollup(fork);
        config.seq_window_size = 100;
        let mut network = Network::with(config);
        network.sequence(9);
        for _ in 0..3_000 {
            let id = network.channel_id();
            let data = Bytes::from_static(b"never closed");
            let frame = Frame {
                id,
                number: 0,
                data,
                is_last: false,
            };
            network.post(frame::encode(&[frame]));
        }
        let opened = network.mine();
        network.post_blocks(1..=9, false);
        network.mine();
        let replaced = [(DropReason::ChannelReplaced, 3_000)];
        network.expect(if fork == Fork::Granite {
            &[]
        } else {
            &replaced
        });
        network.mine_to(opened + 50);
        network.expect(&[]);
        network.mine();
        let late = [(DropReason::ChannelTimeout, 3_000)];
        network.expect(if fork == Fork::Granite { &late } else { &[] });
        network.moves_on();
    }
}

/// The data items of a channel that is never closed, with one frame each.
fn endless(id: ChannelId, frames: u16, data: &Bytes) -> impl Iterator<Item = Vec<u8>> {
    let frames = (0..frames).map(move |number| Frame {
        id,
        number,
        data: data.clone(),
        is_last: false,
    });
    frames.map(|frame| frame::encode(&[frame]))
}

/// The bank holds 100,000,000 bytes before Fjord, and a channel of Holocene has the same limit. A
/// frame counts 200 bytes in addition to its data.
#[test]
fn channels_beyond_their_limit_of_bytes() {
    let data = Bytes::from(vec![8; MAX_FRAME_DATA - 200]);
    for fork in [Fork::Ecotone, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        let batches = network.singular(1..=9);
        let pieces = network.pieces(&batches, 2);
        network.post(pieces[0].clone());
        let id = network.channel_id();
        endless(id, 100, &data).for_each(|item| network.post(item));
        network.mine();
        if fork == Fork::Holocene {
            network.expect_head(0, &[(DropReason::ChannelReplaced, 1)]);
            network.post(frame::encode(&[Frame {
                id,
                number: 100,
                data: Bytes::new(),
                is_last: true,
            }]));
            network.mine();
            network.expect_head(0, &[(DropReason::ChannelSize, 1)]);
        } else {
            // The bank removes its oldest channel, which is the one with the batches.
            network.expect_head(0, &[(DropReason::ChannelSize, 1)]);
            network.post(pieces[1].clone());
            network.mine();
            network.expect_head(0, &[(DropReason::ChannelSize, 1)]);
        }
        network.post_blocks(1..=9, false);
        network.mine();
        network.expect(&[]);
        network.moves_on();
    }
}

#[test]
fn data_of_others_is_not_read() {
    let mut network = nine_blocks(Fork::Holocene);
    let batches = network.singular(1..=9);
    let item = network.channel(&batches);
    network.batcher = crate::network::STRANGER;
    network.post(item.clone());
    network.post_blobs(&[item]);
    network.mine();
    network.expect_head(0, &[(DropReason::Sender, 2)]);
    assert!(network.verifier.fetched.is_empty());
}

#[test]
fn every_compression_is_read_from_fjord_on() {
    for compression in [
        ChannelCompression::Brotli9,
        ChannelCompression::Brotli10,
        ChannelCompression::Brotli11,
    ] {
        for fork in [Fork::Fjord, Fork::Holocene] {
            let mut network = nine_blocks(fork);
            network.compression = compression;
            network.post_blocks(1..=9, true);
            network.mine();
            network.expect(&[]);
            network.moves_on();
        }
    }
}
