//! `eth_simulateV1`: parses its payload, and builds the JSON of simulated blocks.

use super::{
    block_arg::BlockArg,
    call_object::CallObject,
    overrides::member,
    shape::{BlockJson, TransactionJson, TransactionsJson},
};
use crate::{
    chain::{
        evm::{CallError, CallRefusal, CallStatus, Deadline},
        simulate::{
            self, BlockRequest, SimulateError, SimulatedBlock, SimulatedCall, SimulationRequest,
        },
    },
    rpc::{
        context::RpcContext,
        decoded::Place,
        error::{INTERNAL, INVALID_PARAMS, REVERTED, Reply, RpcError, SERVER, reply},
        json,
        log_filter::LogJson,
        params::{Arg, Args, in_field, object},
    },
};
use alloy_primitives::{Bytes, U64};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::sync::Arc;

/// Error code: the EVM failed for a reason other than a revert.
const VM_ERROR: i32 = -32015;
const NONCE_TOO_LOW: i32 = -38010;
const NONCE_TOO_HIGH: i32 = -38011;
const BASE_FEE_TOO_LOW: i32 = -38012;
const INTRINSIC_GAS: i32 = -38013;
const INSUFFICIENT_FUNDS: i32 = -38014;
const BLOCK_GAS_LIMIT: i32 = -38015;
const BLOCK_NUMBERS: i32 = -38020;
const BLOCK_TIMES: i32 = -38021;
const INIT_CODE_SIZE: i32 = -38025;
const CLIENT_LIMIT: i32 = -38026;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PayloadMembers<'a> {
    #[serde(borrow)]
    block_state_calls: Option<Vec<Option<BlockStateCalls<'a>>>>,
    trace_transfers: Option<bool>,
    validation: Option<bool>,
    return_full_transactions: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BlockStateCalls<'a> {
    #[serde(borrow)]
    block_overrides: Option<&'a RawValue>,
    #[serde(borrow)]
    state_overrides: Option<&'a RawValue>,
    #[serde(borrow)]
    calls: Option<Vec<&'a RawValue>>,
}

/// The payload of `eth_simulateV1`.
struct SimulatePayload {
    blocks: Vec<BlockRequest>,
    calls: Vec<Vec<CallObject>>,
    transfers: bool,
    validation: bool,
    full: bool,
}

impl BlockStateCalls<'_> {
    /// The block, still without its calls, and these.
    fn read(self) -> Result<(BlockRequest, Vec<CallObject>), String> {
        const BLOCK: &str = "simBlock";
        let call = |call: &RawValue| {
            CallObject::from_json(call.get()).map_err(|text| in_field(BLOCK, "Calls", text))
        };
        let request = BlockRequest {
            header: member(BLOCK, "BlockOverrides", self.block_overrides)?,
            state: member(BLOCK, "StateOverrides", self.state_overrides)?,
            calls: Vec::new(),
        };
        let calls = self.calls.unwrap_or_default();
        let calls = calls.into_iter().map(call).collect::<Result<_, _>>()?;
        Ok((request, calls))
    }
}

impl Arg for SimulatePayload {
    fn from_json(json: &str) -> Result<Self, String> {
        let payload: PayloadMembers<'_> =
            json::read(object(json)).map_err(|error| error.to_string())?;
        let (mut blocks, mut calls) = (Vec::new(), Vec::new());
        let within = |text| in_field("simOpts", "BlockStateCalls", text);
        for block in payload.block_state_calls.unwrap_or_default() {
            let (request, objects) = block.unwrap_or_default().read().map_err(within)?;
            blocks.push(request);
            calls.push(objects);
        }
        Ok(Self {
            blocks,
            calls,
            transfers: payload.trace_transfers.unwrap_or(false),
            validation: payload.validation.unwrap_or(false),
            full: payload.return_full_transactions.unwrap_or(false),
        })
    }
}

impl SimulatePayload {
    /// The requested blocks with their calls, for a chain with id `chain_id`.
    fn blocks(&mut self, chain_id: u64) -> Result<Vec<BlockRequest>, RpcError> {
        let calls = std::mem::take(&mut self.calls);
        let mut blocks = std::mem::take(&mut self.blocks);
        for (block, calls) in blocks.iter_mut().zip(calls) {
            let inputs = calls.into_iter().map(|call| call.into_input(chain_id));
            block.calls = inputs.collect::<Result<_, _>>()?;
        }
        Ok(blocks)
    }
}

impl From<SimulateError> for RpcError {
    fn from(error: SimulateError) -> Self {
        let code = match &error {
            SimulateError::Empty | SimulateError::Creation(_) => INVALID_PARAMS,
            SimulateError::TooManyBlocks
            | SimulateError::TooManyCallsOfBlock(_)
            | SimulateError::TooManyCalls(_) => CLIENT_LIMIT,
            SimulateError::Number { .. } => BLOCK_NUMBERS,
            SimulateError::Time { .. } => BLOCK_TIMES,
            SimulateError::BlockGas { .. } => BLOCK_GAS_LIMIT,
            SimulateError::Call(CallError::Refused { refusal, .. }) => refusal_code(refusal),
            SimulateError::Call(_)
            | SimulateError::State(_)
            | SimulateError::Withdrawals
            | SimulateError::LegacyHeader { .. }
            | SimulateError::JovianActivation
            | SimulateError::Attributes(_)
            | SimulateError::ExtraData(_) => SERVER,
        };
        Self::new(code, error.to_string())
    }
}

fn refusal_code(refusal: &CallRefusal) -> i32 {
    match refusal {
        CallRefusal::NonceTooLow { .. } => NONCE_TOO_LOW,
        CallRefusal::NonceTooHigh { .. } => NONCE_TOO_HIGH,
        CallRefusal::FeeBelowBase { .. } => BASE_FEE_TOO_LOW,
        CallRefusal::IntrinsicGas { .. } => INTRINSIC_GAS,
        CallRefusal::Funds { .. } => INSUFFICIENT_FUNDS,
        CallRefusal::InitCodeSize => INIT_CODE_SIZE,
        CallRefusal::TipAboveFee { .. } => INVALID_PARAMS,
        CallRefusal::NonceMax { .. }
        | CallRefusal::FloorGas { .. }
        | CallRefusal::BlobCreation
        | CallRefusal::NoBlobs
        | CallRefusal::BlobVersion(_)
        | CallRefusal::AuthorizedCreation(_)
        | CallRefusal::NoAuthorizations(_)
        | CallRefusal::Other(_) => INTERNAL,
    }
}

#[derive(Serialize)]
struct SimulatedBlockJson {
    #[serde(flatten)]
    block: BlockJson,
    calls: Vec<SimulatedCallJson>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SimulatedCallJson {
    return_data: Bytes,
    logs: Vec<LogJson>,
    gas_used: U64,
    max_used_gas: U64,
    status: U64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<CallErrorJson>,
}

#[derive(Serialize)]
struct CallErrorJson {
    message: String,
    code: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Bytes>,
}

impl SimulatedCallJson {
    fn new(call: &SimulatedCall, place: &Place) -> Self {
        let hash = call.transaction.hash;
        let logs = call.logs.iter().map(|numbered| {
            LogJson::new(
                &numbered.log,
                place.block,
                place.timestamp,
                place.index,
                hash,
                numbered.number,
            )
        });
        let (return_data, error) = match &call.status {
            CallStatus::Success => (call.output.clone(), None),
            CallStatus::Revert(message) => {
                let data = Some(call.output.clone());
                (Bytes::new(), Some((message, REVERTED, data)))
            }
            CallStatus::Halt(message) => (Bytes::new(), Some((message, VM_ERROR, None))),
        };
        Self {
            return_data,
            logs: logs.collect(),
            gas_used: U64::from(call.gas_used),
            max_used_gas: U64::from(call.max_gas_used),
            status: U64::from(call.status == CallStatus::Success),
            error: error.map(|(message, code, data)| CallErrorJson {
                message: message.clone(),
                code,
                data,
            }),
        }
    }
}

/// The JSON of a simulated block. With `full`, transactions are written in full instead of as
/// hashes.
fn block_json(simulated: &SimulatedBlock, optimism: bool, full: bool) -> SimulatedBlockJson {
    let header = &simulated.payload.header;
    let place = |index| Place {
        block: simulated.payload.id(),
        timestamp: header.timestamp,
        index,
        base_fee: header.base_fee_per_gas,
        deposit_nonce: None,
        deposit_version: None,
    };
    let calls = || simulated.calls.iter().enumerate();
    let hash = |call: &SimulatedCall| call.transaction.hash;
    let transactions = if full {
        let each = calls().map(|(index, call)| {
            TransactionJson::unsigned(&call.transaction.tx, call.from, &place(index))
        });
        TransactionsJson::Full(each.collect())
    } else {
        TransactionsJson::Hashes(simulated.calls.iter().map(hash).collect())
    };
    SimulatedBlockJson {
        block: BlockJson::new(&simulated.payload, optimism, transactions),
        calls: calls()
            .map(|(index, call)| SimulatedCallJson::new(call, &place(index)))
            .collect(),
    }
}

pub fn simulate_v1(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let mut args = args.at_most(2)?;
    let mut payload: SimulatePayload = args.required()?;
    let block: BlockArg = args.optional()?.unwrap_or_default();
    let spec = &context.chain.spec;
    let blocks = payload.blocks(spec.chain_id)?;
    let view = block.view(context);
    let state = block.state(context, &view)?;
    let base = context.blocks.load(&view, state.header().number)?;
    let optimism = spec.is_optimism();
    let simulated = simulate::simulate(SimulationRequest {
        spec: Arc::clone(spec),
        base: state.into(),
        attributes: base.and_then(|base| base.transactions.first().cloned()),
        blocks,
        validation: payload.validation,
        transfers: payload.transfers,
        gas_cap: context.bounds.gas_cap,
        deadline: deadline.clone(),
    })?;
    let blocks = simulated
        .iter()
        .map(|block| block_json(block, optimism, payload.full));
    reply(blocks.collect::<Vec<_>>())
}
