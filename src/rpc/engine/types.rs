//! The JSON of the Engine API: payloads, attributes, fork choices and statuses, as geth writes and
//! reads them.

use super::{UNSUPPORTED_FORK, error};
use crate::{
    chain::{rules::ChainSpec, view::ExecutedBlock},
    rpc::{error::RpcError, json::read, params::Arg},
};
use alloy_consensus::Transaction;
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{Address, B64, B256, Bloom, Bytes, U64, U256};
use alloy_rpc_types_engine::{
    ExecutionPayloadV1, ExecutionPayloadV2, ExecutionPayloadV3, ForkchoiceState, PayloadAttributes,
    PayloadId, PayloadStatus, PayloadStatusEnum,
};
use op_alloy_rpc_types_engine::{OpExecutionPayload, OpExecutionPayloadV4, OpPayloadAttributes};
use serde::Deserialize;
use serde_json::{Value, json};
use starling_proto::payload::{Payload, WirePayload};

/// An execution payload of any version.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PayloadJson {
    pub parent_hash: B256,
    pub fee_recipient: Address,
    pub state_root: B256,
    pub receipts_root: B256,
    pub logs_bloom: Bloom,
    pub prev_randao: B256,
    pub block_number: U64,
    pub gas_limit: U64,
    pub gas_used: U64,
    pub timestamp: U64,
    pub extra_data: Bytes,
    pub base_fee_per_gas: U256,
    pub block_hash: B256,
    pub transactions: Vec<Bytes>,
    pub withdrawals: Option<Vec<Withdrawal>>,
    pub blob_gas_used: Option<U64>,
    pub excess_blob_gas: Option<U64>,
    pub withdrawals_root: Option<B256>,
}

impl PayloadJson {
    pub fn timestamp(&self) -> u64 {
        self.timestamp.to()
    }

    /// Refuses a payload whose fork is not served by version 3 or 4 of the method.
    pub fn check_fork(&self, spec: &ChainSpec, version: u8) -> Result<(), RpcError> {
        let active = spec.at(self.timestamp());
        match version {
            3 if !active.cancun || active.prague => Err(error(
                UNSUPPORTED_FORK,
                "newPayloadV3 must only be called for cancun payloads",
            )),
            4 if !active.prague => Err(error(
                UNSUPPORTED_FORK,
                "newPayloadV4 must only be called for prague or later payloads",
            )),
            _ => Ok(()),
        }
    }

    /// The block of the payload, if its contents have the payload's hash. The error is the reason
    /// why the payload is invalid.
    pub fn into_payload(self, version: u8, beacon_root: Option<B256>) -> Result<Payload, String> {
        let v1 = ExecutionPayloadV1 {
            parent_hash: self.parent_hash,
            fee_recipient: self.fee_recipient,
            state_root: self.state_root,
            receipts_root: self.receipts_root,
            logs_bloom: self.logs_bloom,
            prev_randao: self.prev_randao,
            block_number: self.block_number.to(),
            gas_limit: self.gas_limit.to(),
            gas_used: self.gas_used.to(),
            timestamp: self.timestamp.to(),
            extra_data: self.extra_data,
            base_fee_per_gas: self.base_fee_per_gas,
            block_hash: self.block_hash,
            transactions: self.transactions,
        };
        let v2 = |v1, withdrawals| ExecutionPayloadV2 {
            payload_inner: v1,
            withdrawals,
        };
        let v3 = |v2| ExecutionPayloadV3 {
            payload_inner: v2,
            blob_gas_used: self.blob_gas_used.unwrap_or_default().to(),
            excess_blob_gas: self.excess_blob_gas.unwrap_or_default().to(),
        };
        let payload = match (version, self.withdrawals) {
            (1 | 2, None) => OpExecutionPayload::V1(v1),
            (1 | 2, Some(withdrawals)) => OpExecutionPayload::V2(v2(v1, withdrawals)),
            (3, withdrawals) => OpExecutionPayload::V3(v3(v2(v1, withdrawals.unwrap_or_default()))),
            (_, withdrawals) => OpExecutionPayload::V4(OpExecutionPayloadV4 {
                payload_inner: v3(v2(v1, withdrawals.unwrap_or_default())),
                withdrawals_root: self.withdrawals_root.unwrap_or_default(),
            }),
        };
        let wire = WirePayload::from_execution_payload(payload, beacon_root)
            .map_err(|error| error.to_string())?;
        wire.into_payload().map_err(|error| error.to_string())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForkchoiceJson {
    head_block_hash: B256,
    safe_block_hash: B256,
    finalized_block_hash: B256,
}

impl From<ForkchoiceJson> for ForkchoiceState {
    fn from(json: ForkchoiceJson) -> Self {
        let ForkchoiceJson {
            head_block_hash,
            safe_block_hash,
            finalized_block_hash,
        } = json;
        Self {
            head_block_hash,
            safe_block_hash,
            finalized_block_hash,
        }
    }
}

/// Payload attributes with the OP extension.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttributesJson {
    timestamp: U64,
    prev_randao: B256,
    suggested_fee_recipient: Address,
    pub withdrawals: Option<Vec<Withdrawal>>,
    pub parent_beacon_block_root: Option<B256>,
    transactions: Option<Vec<Bytes>>,
    no_tx_pool: Option<bool>,
    gas_limit: Option<U64>,
    eip1559_params: Option<Bytes>,
    /// A quantity by the specification, but rollup nodes send a plain number: both forms are
    /// accepted.
    min_base_fee: Option<U64>,
}

impl AttributesJson {
    pub fn timestamp(&self) -> u64 {
        self.timestamp.to()
    }

    pub fn into_attributes(self) -> Result<OpPayloadAttributes, String> {
        let eip_1559_params = match self.eip1559_params.filter(|params| !params.is_empty()) {
            Some(params) => {
                let length = params.len();
                Some(
                    B64::try_from(&params[..])
                        .map_err(|_| format!("eip1559Params has {length} bytes, want 8"))?,
                )
            }
            None => None,
        };
        Ok(OpPayloadAttributes {
            payload_attributes: PayloadAttributes {
                timestamp: self.timestamp.to(),
                prev_randao: self.prev_randao,
                suggested_fee_recipient: self.suggested_fee_recipient,
                withdrawals: self.withdrawals,
                parent_beacon_block_root: self.parent_beacon_block_root,
                ..Default::default()
            },
            transactions: self.transactions,
            no_tx_pool: self.no_tx_pool,
            gas_limit: self.gas_limit.map(|limit| limit.to()),
            eip_1559_params,
            min_base_fee: self.min_base_fee.map(|fee| fee.to()),
        })
    }
}

/// A payload id as a parameter.
pub struct PayloadIdJson(pub PayloadId);

impl Arg for PayloadIdJson {
    fn from_json(json: &str) -> Result<Self, String> {
        read(json).map(Self).map_err(|error| error.to_string())
    }
}

/// The status of a payload that is invalid regardless of its parent.
pub fn refused(reason: &str) -> PayloadStatus {
    PayloadStatus::new(
        PayloadStatusEnum::Invalid {
            validation_error: reason.to_owned(),
        },
        None,
    )
}

/// The JSON of a status. It always has all three members, as geth writes it.
pub fn status_json(status: &PayloadStatus) -> Value {
    json!({
        "status": status.status.as_str(),
        "latestValidHash": status.latest_valid_hash,
        "validationError": status.status.validation_error().filter(|reason| !reason.is_empty()),
    })
}

/// The sum that a block's transactions pay to its fee recipient, in wei. Deposits pay nothing.
pub fn block_value(block: &ExecutedBlock) -> Option<U256> {
    let base_fee = block.payload.header.base_fee_per_gas?;
    let mut before = 0;
    let mut value = U256::ZERO;
    for (tx, receipt) in block
        .payload
        .decode_transactions()
        .ok()?
        .iter()
        .zip(block.receipts.iter())
    {
        let gas_used = receipt.cumulative_gas_used.saturating_sub(before);
        before = receipt.cumulative_gas_used;
        if !tx.is_deposit() {
            let tip = tx.effective_tip_per_gas(base_fee).unwrap_or(0);
            value = value.saturating_add(U256::from(tip).saturating_mul(U256::from(gas_used)));
        }
    }
    Some(value)
}
