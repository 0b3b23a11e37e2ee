//! The rollup of a world whose nodes derive: its configuration, and an engine that executes
//! nothing, so that a block follows from its attributes alone. Sequencer, derivation and hostile
//! peers build their blocks here.

use super::world::{BLOCK_TIME, CHAIN_ID, GENESIS_TIME};
use alloy_consensus::{Header, constants::EMPTY_WITHDRAWALS, proofs::ordered_trie_root_encoded};
use alloy_primitives::{Address, B256, Bytes};
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use starling_proto::{
    attributes::{AttributesError, L1Block, attributes},
    config::RollupConfig,
    derive::Pipeline,
    fork::{BlobSchedule, Fork, ForkSchedule},
    payload::{BlockId, Payload},
    system_config::Eip1559Params,
};
use std::sync::Arc;

/// The account that posts batches.
pub const BATCHER: Address = Address::repeat_byte(0xba);
/// Sequencing window in L1 blocks. No world is as long, so only batches make blocks safe.
pub const WINDOW: u64 = 3_600;
/// EIP-1559 constants of blocks whose attributes leave them open.
const DEFAULT_EIP1559: Eip1559Params = Eip1559Params {
    denominator: 250,
    elasticity: 6,
};

/// The rollup's configuration, with the blob schedule of its L1.
pub struct SimRollup {
    pub config: Arc<RollupConfig>,
    schedule: BlobSchedule,
}

impl SimRollup {
    /// A rollup in Holocene from its first block on.
    pub fn new(l1_genesis: B256, genesis: BlockId) -> Self {
        let json = serde_json::json!({
            "genesis": {
                "l1": { "hash": l1_genesis, "number": 0 },
                "l2": genesis,
                "l2_time": GENESIS_TIME,
                "system_config": {
                    "batcherAddr": BATCHER,
                    "overhead": B256::ZERO,
                    "scalar": B256::with_last_byte(1),
                    "gasLimit": 30_000_000,
                },
            },
            "block_time": BLOCK_TIME,
            "max_sequencer_drift": 600,
            "seq_window_size": WINDOW,
            "channel_timeout": 300,
            "l1_chain_id": 900,
            "l2_chain_id": CHAIN_ID,
            "batch_inbox_address": Address::repeat_byte(0xff),
            "deposit_contract_address": Address::repeat_byte(0xde),
            "l1_system_config_address": Address::repeat_byte(0xc0),
            "chain_op_config": {
                "eip1559Elasticity": 6,
                "eip1559Denominator": 50,
                "eip1559DenominatorCanyon": 250,
            },
        });
        let mut config = RollupConfig::from_json(&json.to_string()).expect("a rollup config");
        config.forks = ForkSchedule::from_genesis(Fork::Holocene);
        Self {
            config: Arc::new(config),
            schedule: BlobSchedule::default(),
        }
    }

    pub fn pipeline(&self) -> Pipeline {
        Pipeline::new(self.config.clone(), self.schedule.clone())
    }

    /// A block on `parent` with this L1 origin. Its only transaction is `salt`, by which blocks
    /// differ that are otherwise equal.
    pub fn build(
        &self,
        parent: &Payload,
        origin: &L1Block,
        salt: B256,
    ) -> Result<Payload, AttributesError> {
        let no_logs = Some(&[][..]);
        let derived = attributes(&self.config, &self.schedule, parent, origin, no_logs)?;
        let mut attributes = derived.attributes;
        // The type byte of an EIP-1559 transaction. Batches carry the bytes without reading them.
        let transaction: Bytes = [&[2][..], salt.as_slice()].concat().into();
        let transactions = attributes.transactions.get_or_insert_default();
        transactions.push(transaction);
        Ok(self.seal(parent, &attributes))
    }

    /// The block on `parent` with these attributes.
    pub fn seal(&self, parent: &Payload, attributes: &OpPayloadAttributes) -> Payload {
        let inner = &attributes.payload_attributes;
        let drawn = attributes.eip_1559_params.map(Eip1559Params::decode);
        let params = drawn.filter(|params| params.denominator != 0);
        let params = params.unwrap_or(DEFAULT_EIP1559);
        // The version byte of Holocene's extra data is 0.
        let extra_data = [&[0][..], params.encode().as_slice()].concat();
        let transactions = attributes.transactions.clone().unwrap_or_default();
        let header = Header {
            parent_hash: parent.hash,
            number: parent.number() + 1,
            beneficiary: inner.suggested_fee_recipient,
            timestamp: inner.timestamp,
            mix_hash: inner.prev_randao,
            gas_limit: attributes.gas_limit.unwrap_or_default(),
            base_fee_per_gas: Some(7),
            extra_data: extra_data.into(),
            parent_beacon_block_root: inner.parent_beacon_block_root,
            transactions_root: ordered_trie_root_encoded(&transactions),
            withdrawals_root: Some(EMPTY_WITHDRAWALS),
            blob_gas_used: Some(0),
            excess_blob_gas: Some(0),
            ..Header::default()
        };
        Payload::sealed(header, transactions)
    }
}
