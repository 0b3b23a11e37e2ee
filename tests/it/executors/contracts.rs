//! The contracts in the genesis of the compared chains, each with one function. Except for `NEWER`
//! they use no PUSH0 and no later opcode, so that they run at every fork. Calldata consists of
//! 32-byte words.

use alloy_primitives::{Address, hex};
use serde_json::{Map, Value, json};

/// Stores the second word in the slot given by the first word.
pub const STORE: Address = at(1);
/// Emits a log of the calldata: [`LOG0`] without a topic, [`LOG4`] with the first four words as
/// topics.
pub const LOG0: Address = at(2);
pub const LOG4: Address = at(3);
/// Reverts with the calldata as revert data.
pub const REVERT: Address = at(4);
/// Destroys itself, with the address in the first word as beneficiary.
pub const DESTROY: Address = at(5);
/// Each calls the address in the first word with the rest of the calldata: by CALL with the
/// received value, DELEGATECALL, STATICCALL and CALLCODE. The result is stored: the slot is the
/// hash of the return data, the value says whether the call succeeded.
pub const PROXIES: [Address; 4] = [at(6), at(7), at(8), at(9)];
/// Creates a contract with the calldata as init code and the received value, and stores its
/// address.
pub const CREATE: Address = at(10);
/// Creates a contract by CREATE2 and stores its address. The first word is the salt, the rest the
/// init code.
pub const CREATE2: Address = at(11);
/// Creates a contract like [`CREATE2`], and then calls it with the salt as calldata.
pub const CREATE2_AND_CALL: Address = at(12);
/// Stores the EVM's values of transaction and block.
pub const ENVIRONMENT: Address = at(13);
/// Calls the address in the first word with zeros as calldata, whose number of bytes is the second
/// word. Stores the call's outcome.
pub const ZEROS: Address = at(14);
/// Sets slots 0 to 7 to the first word.
pub const FILL: Address = at(15);
/// Calls itself recursively until the gas is used up.
pub const RECURSE: Address = at(16);
/// Loops until the gas is used up.
pub const LOOP: Address = at(17);
/// Stores size, hash and balance of the account whose address is the first word.
pub const INSPECT: Address = at(18);
/// Contracts with opcodes of later forks: PUSH0 (Canyon); TSTORE and TLOAD, MCOPY and BLOBBASEFEE
/// (Ecotone); CLZ (Karst).
pub const NEWER: [Address; 5] = [at(19), at(20), at(21), at(22), at(23)];

const fn at(n: u8) -> Address {
    let mut address = [0xc1; 20];
    address[19] = n;
    Address::new(address)
}

/// Opcodes whose values [`ENVIRONMENT`] stores: ADDRESS, ORIGIN, CALLER, CALLVALUE, GASPRICE,
/// COINBASE, TIMESTAMP, NUMBER, PREVRANDAO, GASLIMIT, CHAINID, SELFBALANCE, BASEFEE, GAS.
const TELLS: [u8; 14] = [
    0x30, 0x32, 0x33, 0x34, 0x3a, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x5a,
];

/// Code that follows a call: stores 1 + the call's success, which is on the stack, in the slot
/// given by the hash of the return data, and stops.
const KEEP: [u8; 17] = hex!("3d600060003e3d60002090600101905500");

fn proxy(opcode: u8) -> Vec<u8> {
    // Copy the calldata from the second word on to memory; its size stays on the stack.
    let mut code = hex!("6020360380602060003760006000826000").to_vec();
    if matches!(opcode, 0xf1 | 0xf2) {
        code.push(0x34);
    }
    code.extend(hex!("6000355a"));
    code.push(opcode);
    code.extend(KEEP);
    code
}

fn environment() -> Vec<u8> {
    let mut code = Vec::new();
    for (slot, opcode) in (0u8..).zip(TELLS) {
        code.extend([opcode, 0x60, slot, 0x55]);
    }
    // Store the parent's block hash.
    code.extend(hex!("600143034060ff5500"));
    code
}

fn create2(after: &[u8]) -> Vec<u8> {
    [&hex!("6020360380602060003760003590600034f5")[..], after].concat()
}

/// Entries of the contracts in the `alloc` of a genesis file.
pub fn alloc() -> Map<String, Value> {
    let fill: Vec<u8> = (0..8)
        .flat_map(|slot| [0x60, 0, 0x35, 0x60, slot, 0x55])
        .collect();
    let codes = [
        (STORE, hex!("6020356000355500").to_vec()),
        (LOG0, hex!("366000600037366000a000").to_vec()),
        (LOG4, hex!("60603560403560203560003560006000a400").to_vec()),
        (REVERT, hex!("366000600037366000fd").to_vec()),
        (DESTROY, hex!("600035ff").to_vec()),
        (PROXIES[0], proxy(0xf1)),
        (PROXIES[1], proxy(0xf4)),
        (PROXIES[2], proxy(0xfa)),
        (PROXIES[3], proxy(0xf2)),
        (CREATE, hex!("36600060003736600034f06001905500").to_vec()),
        (CREATE2, create2(&hex!("6001905500"))),
        // CALL without value. The calldata is the salt, which CALLDATALOAD loads and MSTORE writes
        // to memory.
        (
            CREATE2_AND_CALL,
            create2(&[&hex!("60003560005260006000602060006000855af1")[..], &KEEP].concat()),
        ),
        (ENVIRONMENT, environment()),
        (
            ZEROS,
            [&hex!("60006000602035600060006000355af1")[..], &KEEP].concat(),
        ),
        (FILL, fill),
        (
            RECURSE,
            hex!("60006000600060006000305af1600035015000").to_vec(),
        ),
        (LOOP, hex!("5b600056").to_vec()),
        (
            INSPECT,
            hex!("6000353b6000556000353f6001556000353160025500").to_vec(),
        ),
        (NEWER[0], hex!("5f6001015f5500").to_vec()),
        (NEWER[1], hex!("60003560015d60015c60025500").to_vec()),
        (
            NEWER[2],
            hex!("3660006000376020600060105e60105160005500").to_vec(),
        ),
        (NEWER[3], hex!("4a60005500").to_vec()),
        (NEWER[4], hex!("6000351e60005500").to_vec()),
    ];
    codes
        .into_iter()
        .map(|(address, code)| {
            (
                address.to_string(),
                json!({"balance": "0x64", "nonce": "0x1", "code": hex::encode_prefixed(code)}),
            )
        })
        .collect()
}
