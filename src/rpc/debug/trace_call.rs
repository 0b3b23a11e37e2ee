//! Traces of simulated calls, on the state after a block or before one of its transactions. The
//! methods are of kind `Trace`, so their deadline and the permits of tracing calls bound them.

use super::options::TraceCallOptions;
use crate::{
    chain::evm::{Deadline, Overrides, TraceWriter},
    rpc::{
        context::RpcContext,
        error::RpcError,
        eth::{
            block_arg::{BlockArg, BlockTag},
            call_bundles::{CallBundles, StateContext},
            call_object::CallObject,
        },
        params::Args,
        trace_session::{TraceSession, Traced, known_number},
    },
};
use alloy_rpc_types_eth::state::StateOverride;

/// `debug_traceCall(call, block, options)`: traces one simulated call.
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
    let replay = tx_index.map(|index| {
        let mut replay = session.replay(&view, number)?;
        let stands = replay.stand_before(index);
        stands.map_err(|error| session.error(error))?;
        Ok::<_, RpcError>(replay)
    });
    let mut calls = session.calls(&view, number, replay.transpose()?, &overrides)?;
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

/// `debug_traceCallMany(bundles, state, options)` of op-reth: traces several calls, each of which
/// sees the changes of the earlier ones.
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
    let replay = state.transactions.map(|count| {
        let mut replay = session.replay(&view, number)?;
        let stands = replay.skip_to(count);
        stands.map_err(|error| session.error(error))?;
        Ok::<_, RpcError>(replay)
    });
    let mut calls = session.calls(&view, number, replay.transpose()?, &overrides)?;
    let header = view
        .header_of(number)?
        .ok_or_else(|| RpcError::server("header not found"))?;
    session.raw("[");
    for (index, bundle) in bundles.into_iter().enumerate() {
        session.raw(if index == 0 { "[" } else { ",[" });
        let block = bundle.block.as_ref();
        calls.set_block(&header, block.unwrap_or(&overrides.block))?;
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
