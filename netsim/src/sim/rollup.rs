//! The rollup of a world whose nodes derive or execute: its configuration, the attributes of its
//! blocks, and an engine that executes nothing, so that a block follows from its attributes alone.
//! In tree worlds sequencer and derivation build their blocks here, in all worlds hostile peers do.

use super::context::{BLOCK_TIME, CHAIN_ID, GENESIS_TIME};
use alloy_consensus::{
    Header, SignableTransaction, TxEip1559, constants::EMPTY_WITHDRAWALS,
    proofs::ordered_trie_root_encoded,
};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, address, hex};
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
const GAS_LIMIT: u64 = 30_000_000;
/// EIP-1559 constants of blocks whose attributes leave them open.
const DEFAULT_EIP1559: Eip1559Params = Eip1559Params {
    denominator: 250,
    elasticity: 6,
};

/// Key of the account whose transactions are in the blocks of real worlds.
const USER_KEY: [u8; 32] = [1; 32];
/// The address of [`USER_KEY`].
pub const USER: Address = address!("0x1a642f0E3c3aF545E7AcBD38b07251B3990914F1");
/// The contract that the user calls. It stores the second word of its input in the slot of the
/// first.
const STORAGE: Address = Address::repeat_byte(0x57);
const STORAGE_CODE: [u8; 9] = hex!("602035600035550000");
/// Number of slots that are written.
const SLOTS: u8 = 24;

/// The genesis file of real worlds, without the rules, which follow from the rollup's
/// configuration.
pub fn genesis_json() -> String {
    let genesis = serde_json::json!({
        "timestamp": format!("{GENESIS_TIME:#x}"),
        "gasLimit": format!("{GAS_LIMIT:#x}"),
        "difficulty": "0x0",
        "baseFeePerGas": "0x3e8",
        "extraData": "0x00000000fa00000006",
        "alloc": {
            USER.to_string(): { "balance": "0x56bc75e2d63100000" },
            STORAGE.to_string(): {
                "balance": "0x0",
                "code": Bytes::from_static(&STORAGE_CODE).to_string(),
            },
        },
    });
    genesis.to_string()
}

/// A transaction of the user that writes or clears a slot. Transactions with different salts differ.
pub fn user_transaction(nonce: u64, salt: B256) -> Bytes {
    let mut slot = B256::ZERO;
    slot[31] = salt[0] % SLOTS;
    let cleared = salt[1].is_multiple_of(4);
    let value = if cleared { B256::ZERO } else { salt };
    let transaction = TxEip1559 {
        chain_id: CHAIN_ID,
        nonce,
        gas_limit: 100_000,
        max_fee_per_gas: 1_000_000_000,
        max_priority_fee_per_gas: 0,
        to: TxKind::Call(STORAGE),
        value: U256::ZERO,
        input: [slot, value, salt].concat().into(),
        access_list: Default::default(),
    };
    let key = secp256k1::SecretKey::from_slice(&USER_KEY).expect("a key");
    let message = secp256k1::Message::from_digest(transaction.signature_hash().0);
    let signed = secp256k1::SECP256K1.sign_ecdsa_recoverable(&message, &key);
    let (id, bytes) = signed.serialize_compact();
    let signature = Signature::from_bytes_and_parity(&bytes, i32::from(id) != 0);
    transaction.into_signed(signature).encoded_2718().into()
}

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
                    "gasLimit": GAS_LIMIT,
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

    /// The attributes of a block on `parent` with this L1 origin, without transactions of users.
    pub fn attributes(
        &self,
        parent: &Payload,
        origin: &L1Block,
    ) -> Result<OpPayloadAttributes, AttributesError> {
        let no_logs = Some(&[][..]);
        let derived = attributes(&self.config, &self.schedule, parent, origin, no_logs)?;
        Ok(OpPayloadAttributes {
            no_tx_pool: Some(true),
            ..derived.attributes
        })
    }

    /// A block on `parent` with this L1 origin. Its only transaction is `salt`, by which blocks
    /// differ that are otherwise equal.
    pub fn build(
        &self,
        parent: &Payload,
        origin: &L1Block,
        salt: B256,
    ) -> Result<Payload, AttributesError> {
        let mut attributes = self.attributes(parent, origin)?;
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
