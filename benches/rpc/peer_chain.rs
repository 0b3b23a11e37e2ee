//! The chain that all compared servers have: full blocks of token transfers, then many blocks of
//! one log each, of which the queries look for every tenth, then a few empty blocks.

use crate::{
    chain_maker::{self, ChainMaker, GENESIS_TIME},
    support::{Alloc, Ground, Unsigned, size, token},
};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use rayon::prelude::*;
use serde_json::Value;
use starling_proto::payload::Payload;
use std::{path::Path, sync::Arc};

/// Transactions of a full block, besides the L1 attributes, each from a different account.
const TRANSACTIONS: usize = 100;
const EMPTY: usize = 10;
/// Logs that match the queries, spread evenly.
const MATCHES: usize = 100;
pub const WANTED_TOPIC: B256 = B256::repeat_byte(0xd1);

pub struct PeerChain {
    pub genesis: Value,
    pub chain_id: u64,
    pub accounts: Vec<Address>,
    pub blocks: Vec<Arc<Payload>>,
    /// Number of full blocks, which are the first blocks of the chain.
    full: usize,
}

impl PeerChain {
    /// Makes the chain in `folder`.
    pub fn make(folder: &Path) -> Self {
        let full = size("STARLING_BENCH_FULL_BLOCKS", 20);
        let logging = size("STARLING_BENCH_BLOCKS", 1000);
        let ground = Ground::with(GENESIS_TIME, TRANSACTIONS, |alloc: &mut Alloc, senders| {
            token::insert(alloc, senders.iter().map(|sender| sender.address));
            chain_maker::insert_logger(alloc);
        });
        let genesis = ground.file.clone();
        let chain_id = ground.rollup.l2_chain_id;
        let accounts: Vec<_> = ground.senders.iter().map(|sender| sender.address).collect();
        let mut maker = ChainMaker::new(ground, &folder.join("common"));
        let mut blocks = Vec::with_capacity(full + logging + EMPTY);
        for _ in 0..full {
            let transfers = transfers(&mut maker.ground, &accounts);
            blocks.push(maker.block(transfers));
        }
        for number in 0..logging {
            let topic = if number.is_multiple_of((logging / MATCHES).max(1)) {
                WANTED_TOPIC
            } else {
                keccak256(number.to_be_bytes())
            };
            let sender = &mut maker.ground.senders[number % TRANSACTIONS];
            let log = chain_maker::log_topic(sender, chain_id, topic).sign();
            blocks.push(maker.block(vec![log]));
        }
        blocks.extend((0..EMPTY).map(|_| maker.block(vec![])));
        maker.finish();
        Self {
            genesis,
            chain_id,
            accounts,
            blocks,
            full,
        }
    }

    pub fn full(&self) -> &[Arc<Payload>] {
        &self.blocks[..self.full]
    }

    pub fn empty(&self) -> &[Arc<Payload>] {
        &self.blocks[self.blocks.len() - EMPTY..]
    }

    /// Numbers of the first and the last block of the range in which logs are queried.
    pub fn logging(&self) -> [u64; 2] {
        [self.full + 1, self.blocks.len() - EMPTY].map(|number| number as u64)
    }
}

/// Token transfers, one from each account.
fn transfers(ground: &mut Ground, accounts: &[Address]) -> Vec<Bytes> {
    let chain_id = ground.rollup.l2_chain_id;
    let receivers = accounts.iter().cycle().skip(1);
    let calls = ground
        .senders
        .iter_mut()
        .zip(receivers)
        .map(|(sender, to)| {
            let input = token::transfer(*to);
            sender.call(chain_id, token::TOKEN, U256::ZERO, token::GAS, input)
        });
    let unsigned: Vec<_> = calls.collect();
    unsigned.into_par_iter().map(Unsigned::sign).collect()
}
