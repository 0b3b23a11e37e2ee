//! Transactions and initial state of the import bench: transfers (one in ten to an account that
//! does not exist yet), transfers of an ERC-20 token, and writes of a few storage slots at a time.

use crate::support::{Alloc, Ground, Sender, Unsigned};
use alloy_primitives::{Address, B256, Bytes, U256, address, hex, keccak256};
use rayon::prelude::*;
use serde_json::{Value, json};
use starling::chain::evm::deploy::Scratch;

const TOKEN: Address = address!("7070707070707070707070707070707070707070");
pub const WRITER: Address = address!("3333333333333333333333333333333333333333");
/// Slot of the token's mapping of balances.
const BALANCES: u64 = 2;
/// Slots that a call of the writer sets.
const SLOTS_PER_CALL: usize = 3;
/// Transactions of one round: transfers, token transfers, writes.
const ROUND: [usize; 3] = [10, 5, 3];

/// Code that sets consecutive slots to a value. Calldata: first slot, value.
fn writer_code() -> Bytes {
    // PUSH1 32 CALLDATALOAD (value), PUSH0 CALLDATALOAD (slot)
    let mut code = hex!("6020355f35").to_vec();
    for _ in 0..SLOTS_PER_CALL {
        // DUP2 DUP2 SSTORE, PUSH1 1 ADD
        code.extend(hex!("818155600101"));
    }
    code.push(0x00);
    code.into()
}

/// The account that only receives, number `index`.
pub fn receiver(index: u64) -> Address {
    Address::from_word(keccak256([&b"receiver"[..], &index.to_be_bytes()].concat()))
}

/// Adds `receivers` accounts, the token and the writer to a genesis. Every sender and every tenth
/// receiver hold tokens, and the writer's storage has a slot for every tenth receiver.
pub fn genesis(alloc: &mut Alloc, senders: &[Sender], receivers: usize) {
    let addresses: Vec<_> = (0..receivers as u64)
        .into_par_iter()
        .map(receiver)
        .collect();
    let artefact: Value =
        serde_json::from_str(include_str!("../../tests/clients/contracts/Token.json"))
            .expect("an artefact");
    let creation = artefact["bytecode"]
        .as_str()
        .and_then(|code| hex::decode(code).ok())
        .expect("creation code");
    // Constructor: the name "T" and a supply of zero.
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
    let holders = senders
        .iter()
        .map(|sender| sender.address)
        .chain(addresses.iter().step_by(10).copied());
    for holder in holders {
        storage.insert(
            word(balance_slot(holder).into()),
            word(U256::from(1) << 128).into(),
        );
    }
    alloc
        .insert(TOKEN.to_string(), json!({"balance": "0x0", "nonce": "0x1", "code": token.code.to_string(), "storage": storage}));
    let storage: Alloc = (0..receivers / 10)
        .map(|slot| (word(U256::from(slot)), word(U256::from(1)).into()))
        .collect();
    let code = writer_code().to_string();
    alloc.insert(
        WRITER.to_string(),
        json!({"balance": "0x0", "nonce": "0x1", "code": code, "storage": storage}),
    );
    for address in addresses {
        alloc.insert(address.to_string(), json!({"balance": "0xde0b6b3a7640000"}));
    }
}

fn balance_slot(holder: Address) -> B256 {
    keccak256([holder.into_word(), B256::from(U256::from(BALANCES))].concat())
}

fn word(value: U256) -> String {
    B256::from(value).to_string()
}

/// An endless source of transactions, the same in every run.
pub struct Load {
    turn: u64,
    receivers: u64,
}

impl Load {
    pub fn new(receivers: usize) -> Self {
        Self {
            turn: 0,
            receivers: receivers as u64,
        }
    }

    /// `rounds` rounds of transactions, signed.
    pub fn rounds(&mut self, ground: &mut Ground, rounds: usize) -> Vec<Bytes> {
        let each = [Self::transfer, Self::token, Self::write];
        let unsigned: Vec<_> = (0..rounds)
            .flat_map(|_| each.iter().zip(ROUND))
            .flat_map(|(make, count)| vec![*make; count])
            .map(|make| make(self, ground))
            .collect();
        unsigned.into_par_iter().map(Unsigned::sign).collect()
    }

    fn transfer(&mut self, ground: &mut Ground) -> Unsigned {
        // One in ten receivers does not exist yet.
        let to = self.random() % (self.receivers + self.receivers / 9);
        self.send(ground, receiver(to), U256::from(1), 21_000, Bytes::new())
    }

    fn token(&mut self, ground: &mut Ground) -> Unsigned {
        // Half of these receivers hold tokens already.
        let to = receiver(self.random() % self.receivers / 5 * 5);
        let input = [
            &keccak256("transfer(address,uint256)")[..4],
            to.into_word().as_slice(),
            B256::with_last_byte(1).as_slice(),
        ]
        .concat();
        self.send(ground, TOKEN, U256::ZERO, 70_000, input.into())
    }

    fn write(&mut self, ground: &mut Ground) -> Unsigned {
        // Two in three slots are in use already.
        let slot = U256::from(self.random() % (self.receivers / 10 * 3 / 2).max(1));
        let input = [
            slot.to_be_bytes::<32>(),
            U256::from(self.turn + 2).to_be_bytes::<32>(),
        ]
        .concat();
        self.send(ground, WRITER, U256::ZERO, 120_000, input.into())
    }

    fn send(
        &mut self,
        ground: &mut Ground,
        to: Address,
        value: U256,
        gas: u64,
        input: Bytes,
    ) -> Unsigned {
        let sender = self.random() as usize % ground.senders.len();
        ground.senders[sender].call(ground.rollup.l2_chain_id, to, value, gas, input)
    }

    fn random(&mut self) -> u64 {
        self.turn += 1;
        keccak256(self.turn.to_be_bytes())[..8]
            .try_into()
            .map_or(0, u64::from_be_bytes)
    }
}
