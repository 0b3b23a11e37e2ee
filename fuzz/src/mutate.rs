//! Mutations of inputs. They are deterministic: the same random numbers lead to the same bytes.

/// Byte sequences with a special meaning for decoders: ends of ranges, lengths, tags of RLP, SSZ,
/// protobuf, snappy and JSON, and parts of addresses.
const DICTIONARY: &[&[u8]] = &[
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0xbf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0xb8, 0x37],
    &[0xf8, 0x37],
    &[0xc0],
    &[0x80],
    &[0x81, 0x00],
    &[0xfc, 0x01, 0x00, 0x00],
    &[0x30, 0x02, 0x00, 0x00],
    &[0x10, 0x02, 0x00, 0x00],
    &[0xff, 0x06, 0x00, 0x00, b's', b'N', b'a', b'P', b'p', b'Y'],
    &[0x1f, 0x8b, 0x08],
    &[0x28, 0xb5, 0x2f, 0xfd],
    b"enr:",
    b"enode://",
    b"?discport=",
    b"/ip4/127.0.0.1/tcp/9222",
    b"/ip6/::1",
    b"/p2p/16Uiu2HAm4wN4epAyuj82ix2QC1Uc2vQd833szwvsNpLqhubPz8xa",
    b"/dns4/x",
    b"0/0",
    b"1h0m0s",
    b"null",
    b"{}",
    b"[]",
    b"[[[[[[[[[[[[[[[[",
    b"\"\\ud800\"",
    b"\"id\":",
    b"1e999",
    b"-0",
];

/// Longest input, in bytes. Longer inputs are slow and reach no other code.
pub const LONGEST: usize = 16 << 10;
/// Maximum number of mutations of one input.
const MUTATIONS: usize = 6;

/// The random number generator SplitMix64.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 {
            0
        } else {
            (self.draw() % bound as u64) as usize
        }
    }
}

/// A new input, made by mutating an input of the corpus.
pub fn mutate(rng: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut input = corpus[rng.below(corpus.len())].clone();
    for _ in 0..=rng.below(MUTATIONS) {
        once(rng, &mut input, corpus);
    }
    input.truncate(LONGEST);
    input
}

fn once(rng: &mut Rng, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    let at = rng.below(input.len());
    match rng.below(11) {
        0 => flip(rng, input, at),
        1 => set(
            input,
            at,
            &[[0, 1, 0x7f, 0x80, 0xff, 0xc0, b'"', b'/'][rng.below(8)]],
        ),
        2 => set(input, at, &[rng.draw() as u8]),
        3 => length_field(rng, input, at),
        4 => input.truncate(at),
        5 => {
            let token = DICTIONARY[rng.below(DICTIONARY.len())];
            input.splice(at..at, token.iter().copied());
        }
        6 => set(input, at, DICTIONARY[rng.below(DICTIONARY.len())]),
        7 => {
            let end = at + rng.below((input.len() - at).min(64) + 1);
            input.drain(at..end);
        }
        8 => {
            let end = at + rng.below((input.len() - at).min(256) + 1);
            let block = input[at..end].to_vec();
            let to = rng.below(input.len() + 1);
            let times = 1 + rng.below(4);
            input.splice(to..to, block.repeat(times));
        }
        9 => {
            let other = &corpus[rng.below(corpus.len())];
            let from = rng.below(other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        _ => input.extend(std::iter::repeat_n(rng.draw() as u8, rng.below(64))),
    }
}

fn flip(rng: &mut Rng, input: &mut [u8], at: usize) {
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << rng.below(8);
    }
}

/// Overwrites bytes from position `at` on, without going past the end of the input.
fn set(input: &mut [u8], at: usize, bytes: &[u8]) {
    input[at..]
        .iter_mut()
        .zip(bytes)
        .for_each(|(old, new)| *old = *new);
}

/// Writes a number of two, four or eight bytes that a decoder is likely to read as length or
/// offset.
fn length_field(rng: &mut Rng, input: &mut [u8], at: usize) {
    let length = input.len() as u64;
    let small = rng.below(1024) as u64;
    let values = [
        0,
        1,
        length,
        length.wrapping_sub(1),
        length + 1,
        small,
        u64::MAX,
        1 << 31,
        10 << 20,
        (10 << 20) + 1,
    ];
    let value = values[rng.below(values.len())];
    let width = [2, 4, 8][rng.below(3)];
    match rng.below(2) {
        0 => set(input, at, &value.to_le_bytes()[..width]),
        _ => set(input, at, &value.to_be_bytes()[8 - width..]),
    }
}
