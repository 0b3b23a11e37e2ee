//! Small blocks whose transfers pay any of very many accounts, as in a live chain: the state that a
//! block needs is seldom cached.

use super::{Alloc, Ground, Unsigned};
use alloy_primitives::{Address, Bytes, keccak256};
use rayon::prelude::*;
use serde_json::json;
use starling::chain::Chain;
use starling_proto::payload::Payload;
use std::sync::Arc;

pub const SENDERS: usize = 10_000;

/// Chooses sender and receiver of each payment, the same in every run.
pub struct Spread {
    receivers: usize,
    turn: usize,
}

impl Spread {
    /// Makes the base of a chain with `accounts` accounts in all, including the senders.
    pub fn new(accounts: usize) -> (Ground, Self) {
        let receivers = accounts.saturating_sub(SENDERS).max(1);
        (
            Ground::with(1_700_000_000, SENDERS, |alloc, _| fund(alloc, receivers)),
            Self { receivers, turn: 0 },
        )
    }

    /// Builds the next block with `transfers` transfers.
    pub async fn block(
        &mut self,
        ground: &mut Ground,
        chain: &Chain,
        transfers: usize,
    ) -> Arc<Payload> {
        let transactions = self.transactions(ground, transfers);
        ground.seal(chain, transactions).await
    }

    /// The transactions of the next block.
    pub fn transactions(&mut self, ground: &mut Ground, transfers: usize) -> Vec<Bytes> {
        let mut pay = || {
            self.turn += 1;
            let random = keccak256(self.turn.to_be_bytes())[..8]
                .try_into()
                .map_or(0, u64::from_be_bytes) as usize;
            ground.senders[self.turn % SENDERS]
                .transfer(ground.rollup.l2_chain_id, receiver(random % self.receivers))
        };
        let unsigned: Vec<_> = (0..transfers).map(|_| pay()).collect();
        unsigned.into_iter().map(Unsigned::sign).collect()
    }
}

fn receiver(index: usize) -> Address {
    Address::from_word(keccak256(index.to_be_bytes()))
}

fn fund(alloc: &mut Alloc, receivers: usize) {
    let addresses: Vec<_> = (0..receivers).into_par_iter().map(receiver).collect();
    for address in addresses {
        alloc.insert(address.to_string(), json!({"balance": "0xde0b6b3a7640000"}));
    }
}
