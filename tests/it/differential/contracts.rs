//! Contracts in both genesis files, each with one function. Calldata consists of 32-byte words.

use alloy_primitives::{Address, hex};
use serde_json::{Map, Value, json};

/// Sets its only number to the first word, or returns the number if there is no calldata.
pub const STORE: Address = at(1);
/// Emits a log with two topics, the first word and the caller; the rest of the calldata is the
/// log's data.
pub const LOG2: Address = at(2);
/// Emits a log of the calldata without a topic.
pub const LOG0: Address = at(3);
/// Emits a log with four words as topics.
pub const LOG4: Address = at(4);
/// Reverts with the calldata as revert data.
pub const REVERT: Address = at(5);
/// Destroys itself, with the address in the first word as beneficiary.
pub const DESTROY: Address = at(6);
/// Calls the address in the first word, with the rest of the calldata and the received value.
/// Returns or reverts with the call's return data.
pub const PROXY: Address = at(7);
/// Creates a contract with the calldata as init code, and returns its address.
pub const CREATE: Address = at(8);
/// Returns the EVM's values of block and transaction, in the order of [`TELLS`].
pub const ENVIRONMENT: Address = at(9);
/// Contracts that fail, each for a different reason.
pub const FAILING: [Address; 7] = [
    at(0x10),
    at(0x11),
    at(0x12),
    at(0x13),
    at(0x14),
    at(0x15),
    at(0x16),
];

/// The one of [`FAILING`] that fails by an endless loop.
pub const LOOPING: Address = FAILING[4];

/// Opcodes whose values [`ENVIRONMENT`] returns: ADDRESS, ORIGIN, CALLER, CALLVALUE, GASPRICE,
/// COINBASE, TIMESTAMP, NUMBER, GASLIMIT, CHAINID, SELFBALANCE, BASEFEE, BLOBBASEFEE.
pub const TELLS: [u8; 13] = [
    0x30, 0x32, 0x33, 0x34, 0x3a, 0x41, 0x42, 0x43, 0x45, 0x46, 0x47, 0x48, 0x4a,
];

/// Indices of opcodes in [`TELLS`].
pub const GAS_PRICE: usize = 4;
pub const TIMESTAMP: usize = 6;
pub const NUMBER: usize = 7;
pub const BASE_FEE: usize = 11;

const fn at(n: u8) -> Address {
    let mut address = [0xc0; 20];
    address[19] = n;
    Address::new(address)
}

/// Entries of the contracts in the `alloc` of a genesis file, and of the accounts `others`, which
/// have a little ether.
pub fn alloc(others: &[Address]) -> Map<String, Value> {
    let mut environment = Vec::new();
    for (word, opcode) in TELLS.iter().enumerate() {
        environment.extend([
            *opcode,
            0x61,
            ((word * 32) >> 8) as u8,
            (word * 32) as u8,
            0x52,
        ]);
    }
    environment.extend([
        0x61,
        ((TELLS.len() * 32) >> 8) as u8,
        (TELLS.len() * 32) as u8,
        0x5f,
        0xf3,
    ]);
    let codes = [
        (
            STORE,
            hex!("36600f5760005460005260206000f35b60003560005500").to_vec(),
        ),
        (LOG2, hex!("335f35602036038060205f375fa200").to_vec()),
        (LOG0, hex!("365f5f37365fa000").to_vec()),
        (LOG4, hex!("6060356040356020355f355f5fa400").to_vec()),
        (REVERT, hex!("365f5f37365ffd").to_vec()),
        (DESTROY, hex!("5f35ff").to_vec()),
        (
            PROXY,
            hex!("5f5f602036038060205f375f345f355af13d5f5f3e601b573d5ffd5b3d5ff3").to_vec(),
        ),
        (CREATE, hex!("365f5f37365f34f05f5260205ff3").to_vec()),
        (ENVIRONMENT, environment),
        // Reasons of failure in this order: INVALID, stack underflow, bad jump, unknown opcode,
        // endless loop, return data out of bounds, too much memory.
        (FAILING[0], hex!("fe").to_vec()),
        (FAILING[1], hex!("01").to_vec()),
        (FAILING[2], hex!("600456").to_vec()),
        (FAILING[3], hex!("0c").to_vec()),
        (FAILING[4], hex!("5b5f56").to_vec()),
        (FAILING[5], hex!("60015f5f3e").to_vec()),
        (FAILING[6], hex!("63ffffffff5f5f37").to_vec()),
    ];
    codes
        .into_iter()
        .map(|(address, code)| {
            (
                address,
                json!({"balance": "0x64", "nonce": "0x1", "code": hex::encode_prefixed(code)}),
            )
        })
        .chain(
            others
                .iter()
                .map(|address| (*address, json!({"balance": "0x1"}))),
        )
        .map(|(address, entry)| (address.to_string(), entry))
        .collect()
}
