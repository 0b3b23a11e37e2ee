//! Tests of channels.

use crate::{
    CONTEXT, block,
    compress::{brotli, zlib},
    draw::singular,
    spans::one_transaction,
};
use alloy_primitives::{Bytes, FixedBytes};
use proptest::{collection::vec, prelude::*};
use starling_proto::{
    batch::{Batch, BatchError, SingularBatch},
    channel::{
        BatchReader, ChannelCompression, ChannelData, ChannelError, ChannelWriteError,
        ChannelWriter,
    },
    frame::{FRAME_OVERHEAD, Frame},
};

const COMPRESSIONS: [ChannelCompression; 4] = [
    ChannelCompression::Zlib,
    ChannelCompression::Brotli9,
    ChannelCompression::Brotli10,
    ChannelCompression::Brotli11,
];

/// All frames of a channel with these batches, each taken as soon as it is available.
fn channel(batches: &[Vec<u8>], compression: ChannelCompression, size: usize) -> Vec<Frame> {
    let id = FixedBytes::repeat_byte(7);
    let mut writer = ChannelWriter::new(id, compression, true).unwrap();
    let mut frames = Vec::new();
    for batch in batches {
        writer.add(batch).unwrap();
        while let Some(frame) = writer.next_frame(size).unwrap() {
            frames.push(frame);
        }
    }
    let input: u64 = batches
        .iter()
        .map(|batch| ChannelWriter::input_of(batch.len()))
        .sum();
    assert_eq!(writer.input_len(), input);
    writer.close().unwrap();
    assert_eq!(writer.add(&[0]), Err(ChannelWriteError::Closed));
    while let Some(frame) = writer.next_frame(size).unwrap() {
        frames.push(frame);
    }
    let output: usize = frames.iter().map(|frame| frame.data.len()).sum();
    assert_eq!(
        (writer.output_len(), writer.pending_len()),
        (output as u64, 0)
    );
    frames
}

fn joined(frames: &[Frame]) -> Bytes {
    frames.iter().flat_map(|frame| frame.data.clone()).collect()
}

/// All results up to the end of the channel. An error that does not only skip a batch is the last
/// one.
fn read(data: impl Into<ChannelData>, fjord: bool) -> Vec<Result<Batch, ChannelError>> {
    let mut reader = match BatchReader::new(data, CONTEXT, fjord) {
        Ok(reader) => reader,
        Err(error) => return vec![Err(error)],
    };
    let results: Vec<_> = std::iter::from_fn(|| reader.next_batch()).collect();
    assert!(reader.next_batch().is_none(), "the end is the end");
    results
}

fn rlp(batch: &[u8]) -> Vec<u8> {
    alloy_rlp::encode(batch)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn channels_survive_in_frames_of_any_size(
        batches in vec(singular(), 1..20),
        kind in 0..4usize,
        size in FRAME_OVERHEAD + 1..400,
    ) {
        let encoded: Vec<_> = batches.iter().map(SingularBatch::encode).collect();
        let frames = channel(&encoded, COMPRESSIONS[kind], size);
        for (index, frame) in frames.iter().enumerate() {
            prop_assert_eq!(usize::from(frame.number), index);
            prop_assert_eq!(frame.is_last, index + 1 == frames.len());
            prop_assert!(frame.data.len() + FRAME_OVERHEAD <= size);
            prop_assert!(frame.is_last || frame.data.len() + FRAME_OVERHEAD == size);
        }
        let expected: Vec<_> = batches.into_iter().map(|batch| Ok(Batch::Singular(batch))).collect();
        prop_assert_eq!(&read(joined(&frames), true), &expected);
        let pieces: ChannelData = frames.into_iter().map(|frame| frame.data).collect();
        prop_assert_eq!(read(pieces, true), expected);
    }

    #[test]
    fn a_cut_or_damaged_channel_gives_a_prefix_of_its_batches(
        batches in vec(singular(), 1..12),
        kind in 0..4usize,
        cut in any::<prop::sample::Index>(),
        damage in any::<u8>(),
    ) {
        let encoded: Vec<_> = batches.iter().map(SingularBatch::encode).collect();
        let data = joined(&channel(&encoded, COMPRESSIONS[kind], 1_000)).to_vec();
        let cut = cut.index(data.len());
        let results = read(data[..cut].to_vec(), true);
        let (last, good) = results.split_last().unwrap();
        prop_assert!(last.is_err());
        for (result, batch) in good.iter().zip(&batches) {
            prop_assert_eq!(result, &Ok(Batch::Singular(batch.clone())));
        }
        let mut damaged = data;
        damaged[cut] ^= damage;
        let pieces = damaged.chunks(1 + usize::from(damage)).map(Bytes::copy_from_slice);
        let results = read(pieces.collect::<ChannelData>(), true);
        prop_assert_eq!(read(damaged, true), results, "the pieces change nothing");
    }
}

#[test]
fn a_stream_that_is_no_channel_is_refused() {
    let batch = rlp(&block(1, vec![]).encode());
    let refused = |data: Vec<u8>, fjord| BatchReader::new(data, CONTEXT, fjord).unwrap_err();
    assert_eq!(refused(vec![], true), ChannelError::Empty);
    assert_eq!(refused(vec![2, 3], true), ChannelError::Compression(2));
    assert_eq!(
        refused(brotli(&batch), false),
        ChannelError::BrotliBeforeFjord
    );
    assert_eq!(read(brotli(&batch), true).len(), 1);
    // Cases: method 15, a window of 64 KiB, a wrong check and a preset dictionary.
    for header in [[0x7f, 0x01], [0x88, 0x1c], [0x78, 0x9d], [0x78, 0xbb]] {
        assert_eq!(
            refused([&header[..], &[0; 9]].concat(), true),
            ChannelError::ZlibHeader
        );
    }
    assert_eq!(refused(vec![0x78], true), ChannelError::Truncated);
    // Large windows, an extension of brotli, would need up to a gigabyte.
    let large = vec![1, 0x11, 0x1e, 0, 0, 0, 0, 0, 0];
    assert_eq!(read(large, true), [Err(ChannelError::Corrupt)]);
}

/// All headers that `zlib.NewReader` of Go 1.26 accepts, found by trying every header. If a header
/// has bit 5 set, the checksum 1 follows.
const HEADERS: &str = "\
    081d 083c 085b 087a 0899 08b8 08d7 08f6 1819 1838 1857 1876 1895 18b4 18d3 18f2 \
    2815 2834 2853 2872 2891 28b0 28cf 28ee 3811 3830 384f 386e 388d 38ac 38cb 38ea \
    480d 482c 484b 486a 4889 48a8 48c7 48e6 5809 5828 5847 5866 5885 58a4 58c3 58e2 \
    6805 6824 6843 6862 6881 68a0 68bf 68de 68fd 7801 7820 783f 785e 787d 789c 78bb \
    78da 78f9";

/// A preset dictionary must be empty, since op-node passes an empty one. A window smaller than the
/// distances in the stream is accepted.
#[test]
fn the_headers_are_those_that_gos_reader_accepts() {
    let transaction: Bytes = (0..600_u32).map(|n| (7 * n + n / 256) as u8).collect();
    let batch = block(1, vec![transaction; 2]);
    let stream = zlib(&rlp(&batch.encode()));
    let with = |header: &[u8]| read([header, &stream[2..]].concat(), true);
    let good = [Ok(Batch::Singular(batch))];
    let mut accepted = String::new();
    for header in (0..=u16::MAX).map(u16::to_be_bytes) {
        let [method, flags] = header;
        if !matches!(method & 0x0f, 8 | 15) {
            continue;
        }
        let dictionary: &[u8] = if flags & 0x20 == 0 {
            &[]
        } else {
            &[0, 0, 0, 1]
        };
        let results = with(&[&header[..], dictionary].concat());
        if results.first().is_some_and(Result::is_ok) {
            assert_eq!(results, good, "{header:02x?}");
            accepted += &format!("{} ", hex::encode(header));
        }
    }
    assert_eq!(accepted.trim_end(), HEADERS);
    for dictionary in [[0; 4], [0, 0, 0, 2], [1, 0, 0, 0]] {
        let results = with(&[&[0x78, 0xbb][..], &dictionary].concat());
        assert_eq!(results, [Err(ChannelError::ZlibHeader)]);
    }
    let cut = BatchReader::new(vec![0x78, 0xbb, 0, 0, 0], CONTEXT, true);
    assert_eq!(cut.unwrap_err(), ChannelError::Truncated);
}

#[test]
fn batches_before_a_fault_are_read_and_one_unbuildable_span_costs_only_itself() {
    let good = block(1, vec![]);
    let (first, bad) = (rlp(&good.encode()), rlp(&[9, 1]));
    let is_good =
        |result: &Result<Batch, ChannelError>| *result == Ok(Batch::Singular(good.clone()));
    let span = [
        &[1][..],
        &one_transaction([0; 3], &[6; 20], &[3, 0xc0], &[7, 8]),
    ]
    .concat();
    for compress in [zlib as fn(&[u8]) -> Vec<u8>, brotli] {
        let results = read(compress(&[&first[..], &bad, &first].concat()), true);
        assert!(results.len() == 2 && is_good(&results[0]));
        assert_eq!(results[1], Err(BatchError::Type(9).into()));
        for junk in [
            &[0xc0][..],
            &[0x81, 0],
            &[0xb8, 55],
            &[0xb9, 0, 60],
            &[0],
            &[0x80],
            &[0xbf; 9],
        ] {
            let results = read(compress(&[&first[..], junk, &first].concat()), true);
            assert!(
                results.len() == 2 && is_good(&results[0]) && results[1].is_err(),
                "{junk:?}"
            );
        }
        let results = read(compress(&[&rlp(&span)[..], &first].concat()), true);
        assert!(results.len() == 2 && is_good(&results[1]));
        assert!(
            results[0]
                .as_ref()
                .is_err_and(ChannelError::skips_only_this_batch)
        );
        // Bytes after the compressed stream.
        let results = read([compress(&first), vec![1, 2, 3]].concat(), true);
        assert!(results.len() == 1 && is_good(&results[0]));
    }
    // A wrong checksum loses no batch.
    let mut checksum = zlib(&first);
    *checksum.last_mut().unwrap() ^= 1;
    let results = read(checksum, true);
    assert!(is_good(&results[0]));
    assert_eq!(results[1..], [Err(ChannelError::Corrupt)]);
}

/// A batch must be an RLP string. A list with the same content ends the channel, short or long.
#[test]
fn a_list_in_place_of_a_batch_ends_a_channel() {
    // The first columns of a span, with one block without transactions.
    let short = [&[1, 2, 3][..], &[0; 40], &[1, 0, 0]].concat();
    let long = block(1, vec![]).encode();
    assert!(short.len() <= 55 && (56..256).contains(&long.len()));
    for batch in [short, long] {
        let string = rlp(&batch);
        assert!(matches!(read(zlib(&string), true)[..], [Ok(_)]));
        let mut list = string.clone();
        list[0] += 0x40;
        let results = read(zlib(&[&string[..], &list, &string].concat()), true);
        assert!(matches!(results[..], [Ok(_), Err(ChannelError::Rlp)]));
    }
}

#[test]
fn the_limit_counts_all_decompressed_bytes() {
    let batch = block(1, vec![vec![0; 999_000].into()]).encode();
    let channel = rlp(&batch).repeat(11);
    let whole = 10_000_000 / rlp(&batch).len();
    let results = read(zlib(&channel), false);
    assert_eq!(results.len(), whole + 1);
    assert_eq!(results.last(), Some(&Err(ChannelError::TooLarge)));
    assert_eq!(read(zlib(&channel), true).len(), 11);
    // Exactly the limit is allowed: here 10,000,000 bytes with a header of four bytes.
    let exact = |len: usize| {
        let mut batch = block(1, vec![]).encode();
        batch.resize(len, 0);
        zlib(&rlp(&batch))
    };
    assert!(read(exact(9_999_996), false)[0].is_ok());
    assert_eq!(read(exact(9_999_997), false), [Err(ChannelError::TooLarge)]);
    let id = FixedBytes::ZERO;
    let mut writer = ChannelWriter::new(id, ChannelCompression::Zlib, false).unwrap();
    writer.add(&vec![0; 9_999_996]).unwrap();
    assert_eq!(writer.add(&[]), Err(ChannelWriteError::TooLarge));
    let brotli = ChannelWriter::new(id, ChannelCompression::Brotli10, false);
    assert!(matches!(brotli, Err(ChannelWriteError::BrotliBeforeFjord)));
}
