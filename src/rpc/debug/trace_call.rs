//! Simulated calls that are traced, on the state after a block or before one of its transactions.

use super::{
    options::TraceCallOptions,
    trace::{TraceSession, Traced, known_number},
};
use crate::{
    chain::{
        evm::{
            CallInput, CallSequence, Deadline, Overrides, TraceCallError, TracePlace, TraceWriter,
        },
        view::View,
    },
    rpc::{
        context::RpcContext,
        error::RpcError,
        eth::{
            block_arg::{BlockArg, BlockTag},
            call_bundles::{CallBundles, StateContext},
            call_object::CallObject,
        },
        params::Args,
    },
};
use alloy_rpc_types_eth::state::StateOverride;
use std::sync::Arc;

/// `debug_traceCall(call, block, options)`.
pub fn trace_call(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut args = args.at_most(3)?;
    let (call, block): (CallObject, BlockArg) = (args.required()?, args.required()?);
    let options: TraceCallOptions = args.optional()?.unwrap_or_default();
    let TraceCallOptions {
        trace,
        overrides,
        tx_index,
    } = options;
    refuse_pending(block)?;
    let view = context.view();
    let number = known_number(context, &view, block)?;
    let input = call.into_input(context.chain.spec.chain_id)?;
    let mut session = TraceSession::new(context, deadline, &trace, out);
    let mut calls = calls(&session, &view, number, tx_index, &overrides)?;
    let cap = context.bounds.gas_cap;
    session.trace_call(&mut calls, &input, cap)?;
    session.finish()
}

fn refuse_pending(block: BlockArg) -> Result<(), RpcError> {
    if block == BlockArg::Tag(BlockTag::Pending) {
        let text = "tracing on top of pending is not supported";
        return Err(RpcError::server(text));
    }
    Ok(())
}

/// Calls on the state after a block, or before one of its transactions.
fn calls<'a>(
    session: &TraceSession<'a>,
    view: &Arc<View>,
    number: u64,
    tx_index: Option<usize>,
    overrides: &'a Overrides,
) -> Result<CallSequence<'a>, RpcError> {
    let (context, deadline) = (session.context, session.deadline);
    let spec = &context.chain.spec;
    let Some(index) = tx_index else {
        let state = BlockArg::Tag(BlockTag::Number(number)).state(context, view)?;
        let header = state.header().clone();
        return Ok(CallSequence::new(
            spec,
            state.into(),
            &header,
            overrides,
            deadline.clone(),
        )?);
    };
    let mut replay = session.replay(view, number)?;
    replay
        .skip_to(index)
        .map_err(|error| session.error(error))?;
    let header = replay.header().clone();
    Ok(CallSequence::within(
        spec,
        replay.into_vm(),
        &header,
        overrides,
    )?)
}

impl TraceSession<'_> {
    fn trace_call(
        &mut self,
        calls: &mut CallSequence<'_>,
        input: &CallInput,
        gas_cap: u64,
    ) -> Result<(), RpcError> {
        self.deadline.check()?;
        calls.set_deadline(self.deadline.within(self.timeout));
        let place = TracePlace::default();
        calls
            .trace(input, gas_cap, &mut self.tracer, &place)
            .map_err(|error| match error {
                TraceCallError::Call(error) => error.into(),
                TraceCallError::Trace(error) => self.error(error.into()),
            })
    }
}

/// `debug_traceCallMany(bundles, state, options)`, op-reth's: each call sees what those before it
/// have changed.
pub fn trace_call_many(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut args = args.at_most(3)?;
    let CallBundles(bundles) = args.required()?;
    let state: StateContext = args.optional()?.unwrap_or_default();
    let options: TraceCallOptions = args.optional()?.unwrap_or_default();
    if bundles.is_empty() {
        return Err(RpcError::invalid_params("bundles are empty."));
    }
    let block = state.block;
    refuse_pending(block)?;
    let view = context.view();
    let number = known_number(context, &view, block)?;
    let mut session = TraceSession::new(context, deadline, &options.trace, out);
    let overrides = Overrides {
        state: StateOverride::clone(&options.overrides.state),
        block: options.overrides.block.clone(),
    };
    let mut calls = calls(&session, &view, number, state.transactions, &overrides)?;
    let header = view
        .header_of(number)?
        .ok_or_else(|| RpcError::server("header not found"))?;
    session.raw("[");
    for (index, bundle) in bundles.into_iter().enumerate() {
        session.raw(if index == 0 { "[" } else { ",[" });
        let block = bundle.block.as_ref();
        calls.set_block(&header, block.unwrap_or(&overrides.block));
        for (index, call) in bundle.calls.into_iter().enumerate() {
            session.raw(if index == 0 { "" } else { "," });
            let input = call.into_input(context.chain.spec.chain_id)?;
            session.trace_call(&mut calls, &input, context.bounds.gas_cap)?;
        }
        session.raw("]");
    }
    session.raw("]");
    session.finish()
}
