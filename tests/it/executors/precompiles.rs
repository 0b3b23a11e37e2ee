//! Calls of the precompiles: valid input, invalid input, and zeros whose length is at the limits
//! that the forks set.

use super::{
    contracts::{PROXIES, ZEROS},
    generator::Message,
};
use alloy_primitives::{Address, B256, U256, hex};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};

/// Precompiles whose input the forks limit, with the lengths at these limits. For MODEXP the length
/// is that of a number, for the others that of the input. Zeros encode points at infinity, so that
/// input of an allowed length succeeds quickly.
const LIMITS: [(u64, usize, &[usize]); 8] = [
    // Pairing of bn254, limited by Granite, Jovian and Karst.
    (8, 192, &[112_687, 112_512, 81_984, 57_600]),
    // MSM of G1, MSM of G2, and pairing of BLS12-381, limited by Isthmus and Jovian.
    (0x0c, 160, &[513_760, 288_960]),
    (0x0e, 288, &[488_448, 278_784]),
    (0x0f, 384, &[235_008, 156_672]),
    (0x0b, 256, &[256]),
    (0x0d, 512, &[512]),
    (0x10, 64, &[64]),
    (0x11, 128, &[128]),
];

/// Input of P256VERIFY: hash, signature and public key.
const P256: [u8; 160] = hex!(
    "4cee90eb86eaa050036147a12d49004b6b9c72bd725d39d4785011fe190f0b4da73bd4903f0ce3b639bbbf6e8e80d16931ff4bcf5993d58468e8fb19086e8cac"
    "36dbcd03009df8c59286b162af3bd7fcc0450c9aa81be5d10d312af6c66b1d604aebd3099c618202fcfe16ae7770b0c49ab5eadf74b754204a3bb6060e44eff3"
    "7618b065f9832de4ca6ca971a7a1adc826d0f7c00181a5fb2ddf79ae00b4e10e"
);

/// Points of bn254: second coordinate of the negated generator of G1, and the generator of G2.
const NEGATIVE: [u8; 32] = hex!("30644e72e131a029b85045b68181585d97816a916871ca8d3c208c16d87cfd45");
const G2: [u8; 128] = hex!(
    "198e9393920d483a7260bfb731fb5d25f1aa493335a9e71297e485b7aef312c21800deef121f1e76426a00665e5c4479674322d4f75edadd46debd5cd992f6ed"
    "090689d0585ff075ec9e99ad690c3395bc4b313370b38ef355acdadcd122975b12c85ea5db8c6deb4aab71808dcb408fe3d1e7690c43d37b4ce6cc0166fa7daa"
);

fn word(value: u64) -> [u8; 32] {
    B256::from(U256::from(value)).0
}

/// The address of a precompile.
fn at(number: u64) -> Address {
    Address::from_word(word(number).into())
}

/// A random call of a precompile: directly, through a contract, or with zeros of a critical length.
pub fn message(rng: &mut StdRng) -> Message {
    if rng.random_ratio(1, 3) {
        return at_limit(rng);
    }
    let (number, mut input) = input(rng);
    if rng.random_ratio(1, 6) && !input.is_empty() {
        let index = rng.random_range(0..input.len());
        input[index] ^= 1 << rng.random_range(0..8);
    }
    if rng.random_ratio(1, 8) {
        input.truncate(rng.random_range(0..=input.len()));
    }
    let gas = rng.random_range(60_000..900_000);
    let (to, input) = if rng.random_ratio(1, 3) {
        (at(number), input)
    } else {
        let proxy = *PROXIES.choose(rng).expect("proxies");
        (proxy, [word(number).to_vec(), input].concat())
    };
    Message {
        to,
        input,
        gas,
        value: 0,
    }
}

fn at_limit(rng: &mut StdRng) -> Message {
    let (number, unit, limits) = *LIMITS.choose(rng).expect("limits");
    let limit = *limits.choose(rng).expect("lengths");
    let whole = limit - limit % unit;
    let length = *[whole, whole + unit, whole - unit, limit, limit + 1, unit, 0]
        .choose(rng)
        .expect("lengths");
    Message {
        to: ZEROS,
        input: [word(number), word(length as u64)].concat(),
        gas: rng.random_range(1_000_000..28_000_000),
        value: 0,
    }
}

/// A random precompile, and input that is usually valid.
fn input(rng: &mut StdRng) -> (u64, Vec<u8>) {
    match rng.random_range(0..14) {
        // ECRECOVER of a random hash, with a signature that may be recoverable.
        0 => {
            let hash = noise(rng, 32);
            let parity = word(27 + rng.random_range(0..2)).to_vec();
            (1, [hash, parity, noise(rng, 64)].concat())
        }
        n @ 1..4 => {
            let length = rng.random_range(0..700);
            (n + 1, noise(rng, length))
        }
        4 | 5 => (5, modexp(rng)),
        6 => (6, [word(1), word(2), word(1), word(2)].concat()),
        7 => (
            7,
            [word(1).to_vec(), word(2).to_vec(), noise(rng, 32)].concat(),
        ),
        8 => {
            let pair = |y: [u8; 32]| [&word(1)[..], &y, &G2].concat();
            let mut pairs = [pair(word(2)), pair(NEGATIVE)].concat();
            pairs.truncate(192 * rng.random_range(0..=2));
            (8, pairs)
        }
        9 => (9, blake2f(rng)),
        10 => (10, point_evaluation(rng)),
        11 | 12 => (0x100, P256.to_vec()),
        _ => {
            let number = rng.random_range(0x0b..0x13);
            let length = *[64, 128, 160, 256, 288, 384, 512]
                .choose(rng)
                .expect("lengths");
            (number, vec![0; length])
        }
    }
}

fn noise(rng: &mut StdRng, length: usize) -> Vec<u8> {
    (0..length).map(|_| rng.random()).collect()
}

fn blake2f(rng: &mut StdRng) -> Vec<u8> {
    let rounds: u32 = *[0, 1, 12, 500, 100_000].choose(rng).expect("rounds");
    [
        rounds.to_be_bytes().to_vec(),
        noise(rng, 208),
        vec![rng.random_range(0..3)],
    ]
    .concat()
}

/// Input of the point evaluation for the zero polynomial: commitment and proof are the point at
/// infinity, and the value is zero everywhere.
fn point_evaluation(rng: &mut StdRng) -> Vec<u8> {
    let infinity = [&[0xc0][..], &[0; 47]].concat();
    let hash = hex!("010657f37554c781402a22917dee2f75def7ab966d7b770905398eba3c444014");
    [
        hash.to_vec(),
        word(rng.random_range(0..9)).to_vec(),
        word(0).to_vec(),
        infinity.clone(),
        infinity,
    ]
    .concat()
}

/// Input of MODEXP: three numbers of random lengths, some at Osaka's limit of 1,024 bytes.
fn modexp(rng: &mut StdRng) -> Vec<u8> {
    let mut lengths = [0usize; 3];
    for length in &mut lengths {
        *length = match rng.random_range(0..12) {
            0 => *[1_023, 1_024, 1_025].choose(rng).expect("lengths"),
            1 => 0,
            _ => rng.random_range(1..70),
        };
    }
    // Only with short other numbers does the gas limit allow a long exponent.
    lengths[1] = lengths[1].min(if lengths[0].max(lengths[2]) > 70 {
        4
    } else {
        1_025
    });
    let mut input = lengths.map(|length| word(length as u64)).concat();
    input.extend((0..lengths.iter().sum::<usize>()).map(|_| rng.random::<u8>()));
    input
}
