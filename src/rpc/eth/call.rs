//! `eth_call`, `eth_estimateGas` and `eth_createAccessList`: they read a call object, run it, and
//! report the outcome with geth's texts.

use super::{block_arg::BlockArg, call_object::CallObject};
use crate::{
    chain::{
        evm::{
            self, BlockOverrides, CallError, CallInput, CallRequest, CallStatus, Deadline,
            EstimateError, Overrides,
        },
        memory_only,
        view::{ReadError, State},
    },
    rpc::{
        context::RpcContext,
        error::{Reply, RpcError, reply},
        params::Args,
    },
};
use alloy_eips::eip2930::AccessList;
use alloy_primitives::U64;
use alloy_rpc_types_eth::state::StateOverride;
use serde::Serialize;

/// Longest output in bytes that is written on the task of a connection.
const SHORT_OUTPUT: usize = 64 << 10;

/// Parameters of these methods: the parsed call, and the state on which it runs.
struct ResolvedCall {
    input: CallInput,
    state: State,
    overrides: Overrides,
}

impl ResolvedCall {
    fn read(context: &RpcContext, args: Args, most: usize) -> Result<Self, RpcError> {
        let mut args = args.at_most(most)?;
        let call: CallObject = args.required()?;
        let block: BlockArg = args.optional()?.unwrap_or_default();
        let state: StateOverride = args.optional()?.unwrap_or_default();
        let overrides: BlockOverrides = args.optional()?.unwrap_or_default();
        let input = call.into_input(context.chain.spec.chain_id)?;
        // Overrides may be large, and may move a precompile to any address. The signers of
        // authorizations have to be recovered.
        let may_be_slow = input.to.as_ref().is_some_and(evm::is_slow_precompile)
            || !input.authorizations().is_empty()
            || !state.is_empty();
        if may_be_slow && memory_only::refuses() {
            return Err(ReadError::NotInMemory.into());
        }
        Ok(Self {
            input,
            state: block.state(context, &block.view(context))?,
            overrides: Overrides {
                state,
                block: overrides,
            },
        })
    }

    /// The request that is passed to the EVM.
    fn request<'a>(&'a self, context: &'a RpcContext, deadline: &Deadline) -> CallRequest<'a> {
        CallRequest {
            spec: &context.chain.spec,
            state: (&self.state).into(),
            block: self.state.header(),
            input: &self.input,
            overrides: &self.overrides,
            gas_cap: context.bounds.gas_cap,
            deadline: deadline.clone(),
        }
    }
}

impl From<CallError> for RpcError {
    fn from(error: CallError) -> Self {
        Self::server(error.to_string())
    }
}

pub fn call(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let call = ResolvedCall::read(context, args, 4)?;
    let outcome = evm::call(call.request(context, deadline))?;
    if outcome.output.len() > SHORT_OUTPUT && memory_only::refuses() {
        return Err(ReadError::NotInMemory.into());
    }
    match outcome.status {
        CallStatus::Success => reply(outcome.output),
        CallStatus::Revert(message) => Err(RpcError::reverted(message, &outcome.output)),
        CallStatus::Halt(message) => Err(RpcError::server(message)),
    }
}

pub fn estimate_gas(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let call = ResolvedCall::read(context, args, 4)?;
    match evm::estimate_gas(call.request(context, deadline)) {
        Ok(gas) => reply(U64::from(gas)),
        Err(EstimateError::Reverted { message, output }) => {
            Err(RpcError::reverted(message, &output))
        }
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

/// `eth_createAccessList`: a call that fails also gets a list, with the reason of the failure.
pub fn create_access_list(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let call = ResolvedCall::read(context, args, 3)?;
    let outcome = evm::create_access_list(call.request(context, deadline))?;
    reply(AccessListJson {
        access_list: outcome.list,
        error: outcome.error,
        gas_used: U64::from(outcome.gas_used),
    })
}
