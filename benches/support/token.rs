//! The ERC-20 token of the benches: its contract in a genesis, and calldata for calls of it.

use super::Alloc;
use alloy_primitives::{Address, B256, Bytes, U256, address, hex, keccak256};
use serde_json::{Value, json};
use starling::chain::evm::deploy::Scratch;

pub const TOKEN: Address = address!("7070707070707070707070707070707070707070");
/// Gas limit of a token transfer.
pub const GAS: u64 = 70_000;
/// Storage slot of the contract's mapping of balances.
const BALANCES: u64 = 2;

/// Adds the token contract to a genesis. Each holder has 2^128 units.
pub fn insert(alloc: &mut Alloc, holders: impl Iterator<Item = Address>) {
    let artefact: Value =
        serde_json::from_str(include_str!("../../tests/clients/contracts/Token.json"))
            .expect("an artefact");
    let creation = artefact["bytecode"]
        .as_str()
        .and_then(|code| hex::decode(code).ok())
        .expect("creation code");
    // Constructor arguments: the name "T" and a supply of zero.
    let arguments = [
        U256::from(64),
        U256::ZERO,
        U256::from(1),
        U256::from(b'T') << 248,
    ]
    .map(|word| word.to_be_bytes::<32>())
    .concat();
    let mut scratch = Scratch::default();
    scratch
        .deploy(TOKEN, [creation, arguments].concat().into())
        .expect("the token is deployed");
    let token = scratch.contract(TOKEN).expect("the token has code");
    let mut storage: Alloc = token
        .storage
        .iter()
        .map(|(slot, value)| (word(*slot), word(*value).into()))
        .collect();
    for holder in holders {
        storage.insert(
            word(balance_slot(holder).into()),
            word(U256::from(1) << 128).into(),
        );
    }
    alloc
        .insert(TOKEN.to_string(), json!({"balance": "0x0", "nonce": "0x1", "code": token.code.to_string(), "storage": storage}));
}

/// Calldata of a token transfer of one unit.
pub fn transfer(to: Address) -> Bytes {
    let words = [to.into_word(), B256::with_last_byte(1)].concat();
    calldata("transfer(address,uint256)", &words)
}

/// Calldata of `balanceOf`.
pub fn balance_of(holder: Address) -> Bytes {
    calldata("balanceOf(address)", holder.into_word().as_slice())
}

fn calldata(function: &str, arguments: &[u8]) -> Bytes {
    [&keccak256(function)[..4], arguments].concat().into()
}

fn balance_slot(holder: Address) -> B256 {
    keccak256([holder.into_word(), B256::from(U256::from(BALANCES))].concat())
}

/// A word of the EVM in the hex form that a genesis file uses.
pub fn word(value: U256) -> String {
    B256::from(value).to_string()
}
