//! Tests of the pool: order, replacement, limits, `best` without gaps, and the effects of a new
//! head.

mod blobs;
mod book;
mod decode;
mod delegation;
mod order;
mod refusals;

use super::*;
use crate::chain::{evm::tests::address_of, rules::Rules};
use alloy_consensus::{Sealed, SignableTransaction, TxEip1559, TxEip7702, TxLegacy};
use alloy_eips::{eip2718::Encodable2718, eip7702::Authorization};
use alloy_primitives::{Signature, TxKind, address, b256, hex};
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use proptest::{prelude::*, test_runner::TestCaseError};
use starling_proto::l1info::L1InfoFormat;

const GWEI: u128 = 1_000_000_000;
const CHAIN: u64 = 901;

fn sender(n: u8) -> Address {
    Address::repeat_byte(n)
}

fn eip1559(nonce: u64, fee: u128, tip: u128) -> TxEip1559 {
    TxEip1559 {
        chain_id: CHAIN,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: fee,
        max_priority_fee_per_gas: tip,
        to: TxKind::Call(Address::ZERO),
        ..Default::default()
    }
}

fn pooled(from: u8, tx: TxEip1559) -> PoolTx {
    let envelope =
        OpTxEnvelope::from(tx.into_signed(Signature::new(U256::from(from), U256::from(1), false)));
    PoolTx::new(Recovered::new_unchecked(envelope, sender(from)))
}

fn tx(from: u8, nonce: u64, fee: u128, tip: u128) -> PoolTx {
    pooled(from, eip1559(nonce, fee, tip))
}

fn at(nonce: u64) -> Admission {
    Admission {
        nonce,
        balance: U256::from(10u128.pow(19)),
        delegated: false,
        base_fee: GWEI as u64,
        block_gas_limit: 30_000_000,
        l1_cost: U256::from(1000),
        now: 1_000,
    }
}

fn spec(last: Fork) -> ChainSpec {
    let eip1559 = crate::chain::rules::Eip1559Constants {
        elasticity: 6,
        denominator: 50,
        denominator_canyon: 250,
    };
    let rules = Rules::Optimism {
        forks: starling_proto::fork::ForkSchedule::from_genesis(last),
        eip1559,
    };
    ChainSpec {
        chain_id: CHAIN,
        genesis_hash: B256::ZERO,
        genesis_time: 0,
        rules,
    }
}

fn new_pool() -> Pool {
    Pool::new(&spec(Fork::Karst))
}

fn nonces(txs: &[Arc<PoolTx>]) -> Vec<(u8, u64)> {
    txs.iter()
        .map(|tx| (tx.sender()[0], tx.tx.nonce()))
        .collect()
}
