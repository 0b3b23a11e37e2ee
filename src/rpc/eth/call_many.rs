//! `eth_callMany`: bundles of calls after a block, or after one of its transactions. Each call sees
//! the changes of the earlier calls.

use super::call_bundles::{CallBundle, CallBundles, StateContext};
use crate::{
    chain::{
        evm::{CallError, CallInput, CallStatus, Deadline, Overrides, SimulatedCalls, VmError},
        execute::{before_transactions, recover},
        simulate::{MAX_CALLS, MAX_CALLS_OF_BLOCK},
        view::{State, View},
    },
    rpc::{
        context::RpcContext,
        error::{Reply, RpcError, reply},
        params::Args,
    },
};
use alloy_primitives::Bytes;
use alloy_rpc_types_eth::state::StateOverride;
use serde::Serialize;
use std::sync::Arc;

#[derive(Serialize)]
struct CallResultJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub fn call_many(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let mut args = args.at_most(3)?;
    let CallBundles(bundles) = args.required()?;
    let at: StateContext = args.optional()?.unwrap_or_default();
    let mut state: StateOverride = args.optional()?.unwrap_or_default();
    check_numbers(&bundles)?;
    let view = at.block.view(context);
    let block_state = at.block.state(context, &view)?;
    let header = block_state.header().clone();
    let mut sequence = begin(context, &view, block_state, at.transactions, deadline)?;
    let mut results = Vec::with_capacity(bundles.len());
    for bundle in bundles {
        // State overrides apply only once, before the first call.
        let overrides = Overrides {
            state: std::mem::take(&mut state),
            block: bundle.block.unwrap_or_default(),
        };
        sequence = sequence.enter_overridden(&header, &overrides)?;
        let mut outcomes = Vec::with_capacity(bundle.calls.len());
        for call in bundle.calls {
            deadline.check()?;
            let input = call.into_input(context.chain.spec.chain_id)?;
            outcomes.push(outcome(context, &mut sequence, &input)?);
        }
        results.push(outcomes);
    }
    reply(results)
}

fn check_numbers(bundles: &[CallBundle]) -> Result<(), RpcError> {
    if bundles.is_empty() {
        return Err(RpcError::invalid_params("bundles are empty."));
    }
    let each = || bundles.iter().map(|bundle| bundle.calls.len());
    if each().any(|calls| calls > MAX_CALLS_OF_BLOCK) || each().sum::<usize>() > MAX_CALLS {
        return Err(RpcError::invalid_params(format!(
            "too many calls: at most {MAX_CALLS_OF_BLOCK} in a bundle and {MAX_CALLS} in all"
        )));
    }
    Ok(())
}

/// The result of one call. A call that cannot be run gets an error as its result, like a call that
/// fails.
fn outcome(
    context: &RpcContext,
    sequence: &mut SimulatedCalls,
    input: &CallInput,
) -> Result<CallResultJson, RpcError> {
    let gas = input.gas.unwrap_or(u64::MAX).min(context.bounds.gas_cap);
    let failed = |error| CallResultJson {
        value: None,
        error: Some(error),
    };
    match sequence.run(input, gas) {
        Ok(called) => Ok(match called.outcome.status {
            CallStatus::Success => CallResultJson {
                value: Some(called.outcome.output),
                error: None,
            },
            CallStatus::Revert(message) | CallStatus::Halt(message) => failed(message),
        }),
        Err(CallError::State(error)) => Err(error.into()),
        Err(error) => Ok(failed(error.to_string())),
    }
}

/// Begins a sequence of calls on the state after the block, or after its first transactions, which
/// are executed again.
fn begin(
    context: &RpcContext,
    view: &Arc<View>,
    state: State,
    transactions: Option<usize>,
    deadline: &Deadline,
) -> Result<SimulatedCalls, RpcError> {
    let spec = &context.chain.spec;
    let header = state.header().clone();
    let sequence = |state: State| {
        SimulatedCalls::new(spec.clone(), &header, state.into(), deadline.clone(), false)
    };
    let (Some(count), Some(parent)) = (transactions, header.number.checked_sub(1)) else {
        return Ok(sequence(state));
    };
    let unknown = || RpcError::server("header not found");
    let payload = view.payload(header.number)?.ok_or_else(unknown)?;
    if count >= payload.transactions.len() {
        return Ok(sequence(state));
    }
    let before = view
        .state_at(parent)?
        .ok_or_else(|| RpcError::server(format!("state at block #{parent} is pruned")))?;
    let mut sequence = sequence(before);
    before_transactions(spec, &header, sequence.vm())?;
    for (index, raw) in payload.transactions[..count].iter().enumerate() {
        deadline.check()?;
        let tx = recover(index, raw).map_err(|error| RpcError::server(error.to_string()))?;
        sequence
            .vm()
            .transact(&tx, raw)
            .map_err(|error| match error {
                VmError::State(error) => error.into(),
                VmError::Invalid(reason) => RpcError::server(reason),
            })?;
    }
    Ok(sequence)
}
