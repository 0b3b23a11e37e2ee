//! `eth_call`, `eth_estimateGas` and `eth_createAccessList`: reading the call object, running it, telling the outcome in geth's words.

use super::{block_arg::BlockArg, call_object::CallObject};
use crate::{
    chain::evm::{self, CallError, CallInput, CallStatus, EstimateError, Overrides},
    rpc::{
        RpcContext,
        error::{Reply, RpcError, reply},
        params::{Args, Json},
    },
};
use alloy_eips::eip2930::AccessList;
use alloy_primitives::U64;
use alloy_rpc_types_eth::{BlockOverrides, state::StateOverride};
use serde::Serialize;

/// What these methods take, read and resolved.
struct Question {
    input: CallInput,
    block: BlockArg,
    overrides: Overrides,
}

impl Question {
    fn read(context: &RpcContext, args: Args, most: usize) -> Result<Self, RpcError> {
        let mut args = args.at_most(most)?;
        let call: CallObject = args.required()?;
        let block = args.optional()?.unwrap_or_default();
        let state = args.optional::<Json<StateOverride>>()?.map(|Json(state)| state).unwrap_or_default();
        let overrides = args.optional::<Json<BlockOverrides>>()?.map(|Json(block)| block).unwrap_or_default();
        let input = call.into_input(context.chain.spec.chain_id)?;
        Ok(Self { input, block, overrides: Overrides { state, block: overrides } })
    }
}

impl From<CallError> for RpcError {
    fn from(error: CallError) -> Self {
        Self::server(error.to_string())
    }
}

pub fn call(context: &RpcContext, args: Args) -> Reply {
    let Question { input, block, overrides } = Question::read(context, args, 4)?;
    let state = block.state(context, &context.view())?;
    let header = state.header().clone();
    let outcome = evm::call(&context.chain.spec, state, &header, &input, &overrides)?;
    match outcome.status {
        CallStatus::Success => reply(outcome.output),
        CallStatus::Revert(message) => Err(RpcError::reverted(message, &outcome.output)),
        CallStatus::Halt(message) => Err(RpcError::server(message)),
    }
}

pub fn estimate_gas(context: &RpcContext, args: Args) -> Reply {
    let Question { input, block, overrides } = Question::read(context, args, 4)?;
    let state = block.state(context, &context.view())?;
    let header = state.header().clone();
    match evm::estimate_gas(&context.chain.spec, state, &header, &input, &overrides) {
        Ok(gas) => reply(U64::from(gas)),
        Err(EstimateError::Reverted { message, output }) => Err(RpcError::reverted(message, &output)),
        Err(error) => Err(RpcError::server(error.to_string())),
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AccessListJson {
    access_list: AccessList,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    gas_used: U64,
}

/// A call that fails has a list all the same, and says why it fails.
pub fn create_access_list(context: &RpcContext, args: Args) -> Reply {
    let Question { input, block, overrides } = Question::read(context, args, 3)?;
    let state = block.state(context, &context.view())?;
    let header = state.header().clone();
    let outcome = evm::create_access_list(&context.chain.spec, state, &header, &input, &overrides)?;
    reply(AccessListJson { access_list: outcome.list, error: outcome.error, gas_used: U64::from(outcome.gas_used) })
}
