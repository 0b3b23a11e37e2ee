//! Init code for contract creations: fragments with a known outcome, and random programs.

use alloy_primitives::{B256, U256, hex};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};

/// Opcodes of random programs, each with the number of stack words that it pops. Each pushes one
/// word.
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
/// Opcodes that push a value of the environment without popping. The last three need later forks.
const READS: [u8; 21] = [
    0x30, 0x32, 0x33, 0x34, 0x36, 0x38, 0x3a, 0x3d, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
    0x58, 0x59, 0x5a, 0x5f, 0x4a,
];
/// Opcodes that pop an address, a slot or a number: BALANCE, EXTCODESIZE, EXTCODEHASH,
/// CALLDATALOAD, SLOAD, BLOCKHASH, CLZ.
const LOOKUPS: [u8; 7] = [0x31, 0x3b, 0x3f, 0x35, 0x54, 0x40, 0x1e];

/// A random program that is being assembled.
#[derive(Default)]
struct Assembly {
    code: Vec<u8>,
    /// Number of words on the stack after the code has run.
    depth: usize,
}

impl Assembly {
    fn push(&mut self, rng: &mut StdRng) {
        let value = match rng.random_range(0..6) {
            0 => U256::from(rng.random_range(0..3u64)),
            1 => U256::MAX,
            2 => U256::from(1) << rng.random_range(0..256usize),
            3 => U256::from_be_bytes(rng.random::<[u8; 32]>()),
            _ => U256::from(rng.random_range(0..300u64)),
        };
        let bytes = B256::from(value);
        let length = bytes.len() - bytes.iter().take_while(|byte| **byte == 0).count().min(31);
        self.code.push(0x5f + length as u8);
        self.code.extend(&bytes[32 - length..]);
        self.depth += 1;
    }

    /// Appends an opcode that pops `takes` and pushes `leaves` words. Missing operands are pushed
    /// first.
    fn apply(&mut self, rng: &mut StdRng, opcode: u8, takes: usize, leaves: usize) {
        while self.depth < takes {
            self.push(rng);
        }
        self.code.push(opcode);
        self.depth = self.depth - takes + leaves;
    }

    /// Pushes two numbers below a hundred: offset and size of a memory range for the next opcode.
    fn push_range(&mut self, rng: &mut StdRng) {
        self.code.extend([
            0x60,
            rng.random_range(0..100),
            0x60,
            rng.random_range(0..100),
        ]);
    }

    /// Appends a random instruction or two. Memory offsets are small.
    fn extend(&mut self, rng: &mut StdRng) {
        let depth = self.depth.min(16) as u8;
        match rng.random_range(0..20) {
            0..4 => self.push(rng),
            4..10 => {
                let (opcode, takes) = *PURE.choose(rng).expect("opcodes");
                self.apply(rng, opcode, takes, 1);
            }
            10 => {
                let opcode = seldom_newer(rng, &READS, 18);
                self.apply(rng, opcode, 0, 1);
            }
            11 => {
                let opcode = seldom_newer(rng, &LOOKUPS, 6);
                self.apply(rng, opcode, 1, 1);
            }
            // SSTORE.
            12 => self.apply(rng, 0x55, 2, 0),
            // MSTORE, MSTORE8.
            13 => {
                if self.depth == 0 {
                    self.push(rng);
                }
                let opcode = 0x52 + rng.random_range(0..2u8);
                self.code.extend([0x60, rng.random_range(0..200), opcode]);
                self.depth -= 1;
            }
            // MLOAD.
            14 => {
                self.code.extend([0x60, rng.random_range(0..200)]);
                self.apply(rng, 0x51, 0, 1);
            }
            // KECCAK256, LOG0.
            15 => {
                self.push_range(rng);
                self.apply(rng, 0x20, 0, 1);
            }
            16 => {
                self.push_range(rng);
                self.apply(rng, 0xa0, 0, 0);
            }
            // SWAP, DUP, POP.
            17 if depth > 1 => {
                let opcode = 0x90 + rng.random_range(0..depth - 1);
                self.apply(rng, opcode, 0, 0);
            }
            18 if depth > 0 => {
                let opcode = 0x80 + rng.random_range(0..depth);
                self.apply(rng, opcode, 0, 1);
            }
            _ => self.apply(rng, 0x50, 1, 0),
        }
    }
}

/// A random opcode of the list; those from index `newer` on, which need later forks, are rare.
fn seldom_newer(rng: &mut StdRng, opcodes: &[u8], newer: usize) -> u8 {
    let index = if rng.random_ratio(1, 40) {
        rng.random_range(newer..opcodes.len())
    } else {
        rng.random_range(0..newer)
    };
    opcodes[index]
}

/// A random program that computes, reads and stores, and at its end stores up to four words from
/// its stack.
pub fn random(rng: &mut StdRng) -> Vec<u8> {
    let mut program = Assembly::default();
    for _ in 0..rng.random_range(5..120) {
        program.extend(rng);
    }
    let Assembly { mut code, depth } = program;
    for slot in 0..depth.min(4) as u8 {
        code.extend([0x60, 0x80 + slot, 0x55]);
    }
    code
}

/// Random init code: of contracts that store, destroy themselves or do nothing; init code that
/// reverts, halts or returns invalid code; and random programs.
pub fn creation(rng: &mut StdRng) -> Vec<u8> {
    // Init code that returns the bytes after its first eleven.
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
        // Destroys itself during the creation.
        4 => hex!("33ff").to_vec(),
        5 => hex!("60006000fd").to_vec(),
        6 => vec![0xfe],
        // Returned code that begins with 0xef, and returned code that is too long.
        7 => returning(&[0xef, 0]),
        8 => hex!("6160016000f3").to_vec(),
        9 => vec![],
        _ => random(rng),
    }
}
