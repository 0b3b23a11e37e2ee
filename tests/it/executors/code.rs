//! Creation code: pieces with a known outcome, and random programs.

use alloy_primitives::{B256, U256, hex};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};

/// Opcodes of random programs, with how many words they take. Each leaves one.
const PURE: [(u8, usize); 25] = [
    (0x01, 2),
    (0x02, 2),
    (0x03, 2),
    (0x04, 2),
    (0x05, 2),
    (0x06, 2),
    (0x07, 2),
    (0x08, 3),
    (0x09, 3),
    (0x0a, 2),
    (0x0b, 2),
    (0x10, 2),
    (0x11, 2),
    (0x12, 2),
    (0x13, 2),
    (0x14, 2),
    (0x15, 1),
    (0x16, 2),
    (0x17, 2),
    (0x18, 2),
    (0x19, 1),
    (0x1a, 2),
    (0x1b, 2),
    (0x1c, 2),
    (0x1d, 2),
];
/// Opcodes that push a value of the environment and take no operand. The last three belong to later
/// forks.
const READS: [u8; 21] = [
    0x30, 0x32, 0x33, 0x34, 0x36, 0x38, 0x3a, 0x3d, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
    0x58, 0x59, 0x5a, 0x5f, 0x4a,
];
/// They take the address or the slot on the stack: BALANCE, EXTCODESIZE, EXTCODEHASH, CALLDATALOAD,
/// SLOAD, BLOCKHASH, CLZ.
const LOOKUPS: [u8; 7] = [0x31, 0x3b, 0x3f, 0x35, 0x54, 0x40, 0x1e];

fn push(rng: &mut StdRng, code: &mut Vec<u8>) {
    let value = match rng.random_range(0..6) {
        0 => U256::from(rng.random_range(0..3u64)),
        1 => U256::MAX,
        2 => U256::from(1) << rng.random_range(0..256usize),
        3 => U256::from_be_bytes(rng.random::<[u8; 32]>()),
        _ => U256::from(rng.random_range(0..300u64)),
    };
    let bytes = B256::from(value);
    let length = bytes.len() - bytes.iter().take_while(|byte| **byte == 0).count().min(31);
    code.push(0x5f + length as u8);
    code.extend(&bytes[32 - length..]);
}

/// A program that computes, reads and stores, and ends with what is on its stack stored.
pub fn random(rng: &mut StdRng) -> Vec<u8> {
    let (mut code, mut depth) = (Vec::new(), 0usize);
    for _ in 0..rng.random_range(5..120) {
        let (opcode, takes, leaves) = match rng.random_range(0..20) {
            0..4 => {
                push(rng, &mut code);
                depth += 1;
                continue;
            }
            4..10 => {
                let (opcode, takes) = *PURE.choose(rng).expect("opcodes");
                (opcode, takes, 1)
            }
            10 => (
                READS[if rng.random_ratio(1, 40) {
                    rng.random_range(18..21)
                } else {
                    rng.random_range(0..18)
                }],
                0,
                1,
            ),
            11 => (
                LOOKUPS[if rng.random_ratio(1, 40) {
                    6
                } else {
                    rng.random_range(0..6)
                }],
                1,
                1,
            ),
            // SSTORE; then MSTORE, MSTORE8, MLOAD, KECCAK256 and LOG0, whose places in memory are
            // small.
            12 => (0x55, 2, 0),
            13 => {
                if depth == 0 {
                    push(rng, &mut code);
                    depth += 1;
                }
                code.extend([
                    0x60,
                    rng.random_range(0..200),
                    0x52 + rng.random_range(0..2u8),
                ]);
                depth -= 1;
                continue;
            }
            14 => {
                code.extend([0x60, rng.random_range(0..200)]);
                (0x51, 0, 1)
            }
            15 => {
                code.extend([
                    0x60,
                    rng.random_range(0..100),
                    0x60,
                    rng.random_range(0..100),
                ]);
                (0x20, 0, 1)
            }
            16 => {
                code.extend([
                    0x60,
                    rng.random_range(0..100),
                    0x60,
                    rng.random_range(0..100),
                ]);
                (0xa0, 0, 0)
            }
            17 if depth > 1 => (0x90 + rng.random_range(0..depth.min(16) as u8 - 1), 0, 0),
            18 if depth > 0 => (0x80 + rng.random_range(0..depth.min(16) as u8), 0, 1),
            _ => (0x50, 1, 0),
        };
        while depth < takes {
            push(rng, &mut code);
            depth += 1;
        }
        code.push(opcode);
        depth = depth.saturating_sub(takes) + leaves;
    }
    for slot in 0..depth.min(4) as u8 {
        code.extend([0x60, 0x80 + slot, 0x55]);
    }
    code
}

/// Creation code: of contracts that store, destroy themselves or do nothing; code that reverts,
/// halts or returns what may not be code; random programs.
pub fn creation(rng: &mut StdRng) -> Vec<u8> {
    // Returns the bytes behind the first eleven.
    let returning = |code: &[u8]| {
        [
            &[
                0x60,
                code.len() as u8,
                0x80,
                0x60,
                0x0b,
                0x60,
                0,
                0x39,
                0x60,
                0,
                0xf3,
            ][..],
            code,
        ]
        .concat()
    };
    match rng.random_range(0..12) {
        0 => returning(&hex!("6020356000355500")),
        1 => returning(&hex!("600035ff")),
        2 => returning(&hex!("33ff")),
        3 => returning(&[]),
        // Destroys itself at once.
        4 => hex!("33ff").to_vec(),
        5 => hex!("60006000fd").to_vec(),
        6 => vec![0xfe],
        // Code that begins with 0xef, and code that is too long.
        7 => returning(&[0xef, 0]),
        8 => hex!("6160016000f3").to_vec(),
        9 => vec![],
        _ => random(rng),
    }
}
