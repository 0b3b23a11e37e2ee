use super::{
    super::{decompress::Decompressor, zlib::ZlibReader},
    *,
};
use alloy_primitives::{Bytes, hex};

/// zlib streams, each with the length and the Adler-32 of the bytes that Go's `compress/zlib`
/// (1.26) reads before the fault. Some have their own codes with an end-of-block code longer than
/// the literals' codes, or without one. Others are cut, damaged, or random bits.
const STREAMS: &str = include_str!("go.txt");

/// A compressed stream, with the length and checksum of the bytes that Go reads from it.
struct Recorded {
    stream: Bytes,
    length: usize,
    adler: u32,
}

fn streams() -> Vec<Recorded> {
    let read = |line: &str| {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap();
        Recorded {
            stream: hex::decode(word()).unwrap().into(),
            length: word().parse().unwrap(),
            adler: u32::from_str_radix(word(), 16).unwrap(),
        }
    };
    STREAMS.lines().map(read).collect()
}

fn adler32(bytes: &[u8]) -> u32 {
    let (mut low, mut high) = (1, 0);
    for byte in bytes {
        low = (low + u32::from(*byte)) % 65_521;
        high = (high + low) % 65_521;
    }
    high << 16 | low
}

/// Reads all bytes, at most `size` at a time.
fn all(mut read: impl FnMut(&mut [u8]) -> Result<usize, ChannelError>, size: usize) -> Vec<u8> {
    let (mut bytes, mut out) = (vec![], vec![0; size]);
    while let Ok(count @ 1..) = read(&mut out) {
        bytes.extend_from_slice(&out[..count]);
    }
    bytes
}

#[test]
fn faulty_streams_give_the_bytes_that_go_reads() {
    let streams = streams();
    assert!(streams.len() > 90, "{}", streams.len());
    for (index, recorded) in streams.iter().enumerate() {
        let data = || ChannelData::from(recorded.stream.clone());
        for size in [1, 100, 100_000] {
            let mut exact = GoInflate::new(data(), 2);
            let mut whole = Decompressor::new(data(), false).unwrap();
            let alone = all(|out| exact.read(out), size);
            let behind_zlib = all(|out| whole.read(out), size);
            for bytes in [alone, behind_zlib] {
                let read = (bytes.len(), adler32(&bytes));
                assert_eq!(read, (recorded.length, recorded.adler), "stream {index}");
            }
        }
    }
}

/// A cut or wrong checksum is reported as a fault, but only after all bytes before it.
#[test]
fn a_checksum_that_is_cut_or_wrong_is_a_fault_at_the_end() {
    use std::io::Write;
    let text = [7; 100_000];
    let mut encoder = flate2::write::ZlibEncoder::new(vec![], flate2::Compression::best());
    encoder.write_all(&text).unwrap();
    let stream = encoder.finish().unwrap();
    let read_through = |stream: Vec<u8>, size: usize| {
        let mut whole = ZlibReader::new(stream.into()).unwrap();
        let (mut bytes, mut out) = (vec![], vec![0; size]);
        loop {
            match whole.read(&mut out) {
                Ok(0) => return (bytes, Ok(())),
                Ok(count) => bytes.extend_from_slice(&out[..count]),
                Err(error) => return (bytes, Err(error)),
            }
        }
    };
    for size in [1_000, 200_000] {
        assert_eq!(read_through(stream.clone(), size), (text.to_vec(), Ok(())));
        for cut in 1..=4 {
            let cut = stream[..stream.len() - cut].to_vec();
            let expected = (text.to_vec(), Err(ChannelError::Truncated));
            assert_eq!(read_through(cut, size), expected);
        }
        let mut wrong = stream.clone();
        *wrong.last_mut().unwrap() ^= 1;
        let expected = (text.to_vec(), Err(ChannelError::Corrupt));
        assert_eq!(read_through(wrong, size), expected);
    }
    let mut checksum = Adler32::default();
    text.chunks(7_777).for_each(|chunk| checksum.add(chunk));
    assert_eq!(checksum.value(), adler32(&text));
}

/// Streams without a fault give the same bytes as zlib. Cut streams give a prefix of these bytes.
/// The matches reach back across the whole history.
#[test]
fn sound_streams_give_the_bytes_that_zlib_reads() {
    use std::io::Write;
    let noise = (0u32..40_000).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8);
    let mut text: Vec<u8> = noise.collect();
    text.extend_from_within(8_000..39_000);
    text.resize(400_000, 7);
    text.extend_from_within(..60_000);
    for level in [0, 1, 6, 9] {
        let level = flate2::Compression::new(level);
        let mut encoder = flate2::write::ZlibEncoder::new(vec![], level);
        encoder.write_all(&text).unwrap();
        let stream = encoder.finish().unwrap();
        let mut exact = GoInflate::new(stream.clone().into(), 2);
        assert!(all(|out| exact.read(out), 1_000) == text);
        for cut in [
            stream.len() - 1,
            stream.len() - 5,
            stream.len() / 2,
            stream.len() / 5,
        ] {
            let cut = Bytes::copy_from_slice(&stream[..cut]);
            let mut exact = GoInflate::new(cut.clone().into(), 2);
            let mut whole = ZlibReader::new(cut.into()).unwrap();
            let expected = all(|out| exact.read(out), 1_000);
            assert!(text.starts_with(&expected) && !expected.is_empty());
            assert!(all(|out| whole.read(out), 1_000) == expected);
        }
    }
}
