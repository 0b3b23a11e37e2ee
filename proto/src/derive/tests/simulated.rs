//! A rollup for tests, and an engine that executes nothing. Unit tests, integration tests and
//! benches each compile this file as a module of their own.

use alloy_consensus::{Header, constants::EMPTY_WITHDRAWALS};
use alloy_primitives::{Address, B256, keccak256};
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use starling_proto::{
    attributes::FEE_RECIPIENT,
    config::RollupConfig,
    fork::{Fork, ForkSchedule},
    payload::Payload,
    system_config::Eip1559Params,
};
use std::sync::Arc;

pub const BATCHER: Address = Address::repeat_byte(0xba);
pub const PORTAL: Address = Address::repeat_byte(0xde);
pub const CONFIG: Address = Address::repeat_byte(0xc0);
pub const L2_CHAIN: u64 = 901;
/// Time of the L1 and L2 genesis blocks, in Unix seconds.
pub const START: u64 = 1_000_000;
/// Seconds between L2 blocks.
pub const L2_TIME: u64 = 2;

/// A rollup with every fork up to `fork` active from genesis, and with mainnet's windows.
pub fn rollup(fork: Fork, l1_genesis: B256) -> RollupConfig {
    let json = serde_json::json!({
        "genesis": {
            "l1": { "hash": l1_genesis, "number": 0 },
            "l2": { "hash": B256::repeat_byte(0x22), "number": 0 },
            "l2_time": START,
            "system_config": {
                "batcherAddr": BATCHER,
                "overhead": B256::ZERO,
                "scalar": B256::with_last_byte(1),
                "gasLimit": 30_000_000,
            },
        },
        "block_time": L2_TIME,
        "max_sequencer_drift": 600,
        "seq_window_size": 3_600,
        "channel_timeout": 300,
        "l1_chain_id": 900,
        "l2_chain_id": L2_CHAIN,
        "batch_inbox_address": Address::repeat_byte(0xff),
        "deposit_contract_address": PORTAL,
        "l1_system_config_address": CONFIG,
        "chain_op_config": {
            "eip1559Elasticity": 6,
            "eip1559Denominator": 50,
            "eip1559DenominatorCanyon": 250,
        },
    });
    let mut rollup = RollupConfig::from_json(&json.to_string()).expect("a rollup config");
    rollup.forks = ForkSchedule::from_genesis(fork);
    rollup
}

/// The L2 genesis block.
pub fn genesis(rollup: &RollupConfig) -> Arc<Payload> {
    Arc::new(Payload {
        hash: rollup.genesis.l2.hash,
        header: Header {
            timestamp: START,
            gas_limit: 30_000_000,
            ..Header::default()
        },
        transactions: Vec::new(),
        ethereum: None,
    })
}

/// Builds the block with these attributes, like an engine that executes nothing.
pub fn seal(
    rollup: &RollupConfig,
    parent: &Payload,
    attributes: &OpPayloadAttributes,
) -> Arc<Payload> {
    let inner = &attributes.payload_attributes;
    let active = |fork| rollup.forks.is_active(fork, inner.timestamp);
    let mut extra_data = Vec::new();
    if let Some(params) = attributes.eip_1559_params {
        let params = match Eip1559Params::decode(params) {
            Eip1559Params { denominator: 0, .. } => Eip1559Params {
                denominator: 250,
                elasticity: 6,
            },
            params => params,
        };
        extra_data.push(u8::from(attributes.min_base_fee.is_some()));
        extra_data.extend_from_slice(params.encode().as_slice());
    }
    let min_base_fee = attributes.min_base_fee.iter();
    extra_data.extend(min_base_fee.flat_map(|fee| fee.to_be_bytes()));
    let transactions = attributes.transactions.clone().unwrap_or_default();
    let transactions_root = keccak256(transactions.concat());
    let withdrawals_root = if active(Fork::Isthmus) {
        Some(transactions_root)
    } else {
        active(Fork::Canyon).then_some(EMPTY_WITHDRAWALS)
    };
    let header = Header {
        parent_hash: parent.hash,
        number: parent.number() + 1,
        beneficiary: FEE_RECIPIENT,
        timestamp: inner.timestamp,
        mix_hash: inner.prev_randao,
        gas_limit: attributes.gas_limit.expect("a gas limit"),
        extra_data: extra_data.into(),
        parent_beacon_block_root: inner.parent_beacon_block_root,
        transactions_root,
        withdrawals_root,
        ..Header::default()
    };
    Arc::new(Payload::sealed(header, transactions))
}
