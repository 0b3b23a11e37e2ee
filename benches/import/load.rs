//! Transactions and initial state of the import bench: transfers (one in ten to an account that
//! does not exist yet), transfers of an ERC-20 token, and writes of a few storage slots at a time.

use crate::support::{
    Alloc, Ground, Sender, Unsigned,
    token::{self, TOKEN},
};
use alloy_primitives::{Address, Bytes, U256, address, hex, keccak256};
use rayon::prelude::*;
use serde_json::json;

pub const WRITER: Address = address!("3333333333333333333333333333333333333333");
/// Storage slots that one call of the writer contract sets.
const SLOTS_PER_CALL: usize = 3;
/// Transactions of one round: ETH transfers, token transfers, storage writes.
const ROUND: [usize; 3] = [10, 5, 3];

/// Code of the writer contract, which sets consecutive slots to a value. Calldata: first slot,
/// value.
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

/// Account number `index` of those that only receive.
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
    let senders = senders.iter().map(|sender| sender.address);
    token::insert(alloc, senders.chain(addresses.iter().step_by(10).copied()));
    let storage: Alloc = (0..receivers / 10)
        .map(|slot| {
            (
                token::word(U256::from(slot)),
                token::word(U256::from(1)).into(),
            )
        })
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

    /// Transactions of `rounds` rounds, signed.
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
        // Every fifth receiver is a candidate; half of these hold tokens already.
        let to = receiver(self.random() % self.receivers / 5 * 5);
        self.send(ground, TOKEN, U256::ZERO, token::GAS, token::transfer(to))
    }

    fn write(&mut self, ground: &mut Ground) -> Unsigned {
        // Two in three of these slots are in use already.
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
