//! Simulated calls that are traced, on the state after a block or before one of its transactions.

use super::options::TraceCallOptions;
use crate::{
    chain::evm::{Deadline, Overrides, TraceWriter},
    rpc::{
        context::RpcContext,
        error::RpcError,
        eth::{
            block_arg::{BlockArg, BlockTag},
            call_object::CallObject,
        },
        params::{Arg, Args, Json, Quantity},
        trace_session::{TraceSession, Traced, known_number},
    },
};
use alloy_rpc_types_eth::{BlockOverrides, state::StateOverride};
use serde::Deserialize;
use serde_json::value::RawValue;

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
    let mut calls = session.calls(&view, number, tx_index, &overrides)?;
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

/// A bundle of `debug_traceCallMany`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallBundle {
    transactions: Vec<Box<RawValue>>,
    #[serde(default, alias = "blockOverrides")]
    block_override: Option<BlockOverrides>,
}

/// The state that `debug_traceCallMany` begins with.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StateContext {
    block_number: Option<Box<RawValue>>,
    transaction_index: Option<Box<RawValue>>,
}

impl StateContext {
    fn block(&self) -> Result<BlockArg, RpcError> {
        match self.block_number.as_ref().filter(|it| it.get() != "null") {
            None => Ok(BlockArg::default()),
            Some(json) => BlockArg::from_json(json.get()).map_err(invalid("blockNumber")),
        }
    }

    /// `None` means after the block, which is also written as -1.
    fn index(&self) -> Result<Option<usize>, RpcError> {
        let json = self.transaction_index.as_ref().map(|json| json.get());
        match json.filter(|json| !["null", "-1", "\"-1\""].contains(json)) {
            None => Ok(None),
            Some(json) => serde_json::from_str(json)
                .or_else(|_| {
                    let Quantity(index) = Quantity::from_json(json)?;
                    usize::try_from(index).map_err(|error| error.to_string())
                })
                .map(Some)
                .map_err(invalid("transactionIndex")),
        }
    }
}

fn invalid(member: &'static str) -> impl Fn(String) -> RpcError {
    move |text| RpcError::invalid_params(format!("invalid argument 1: {member}: {text}"))
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
    let Json(bundles): Json<Vec<CallBundle>> = args.required()?;
    let state = args.optional::<Json<StateContext>>()?;
    let state = state.map(|Json(state)| state).unwrap_or_default();
    let options: TraceCallOptions = args.optional()?.unwrap_or_default();
    if bundles.is_empty() {
        return Err(RpcError::invalid_params("bundles are empty."));
    }
    let block = state.block()?;
    refuse_pending(block)?;
    let view = context.view();
    let number = known_number(context, &view, block)?;
    let mut session = TraceSession::new(context, deadline, &options.trace, out);
    let overrides = Overrides {
        state: StateOverride::clone(&options.overrides.state),
        block: options.overrides.block.clone(),
    };
    let mut calls = session.calls(&view, number, state.index()?, &overrides)?;
    let header = view
        .header_of(number)?
        .ok_or_else(|| RpcError::server("header not found"))?;
    session.raw("[");
    for (index, bundle) in bundles.iter().enumerate() {
        session.raw(if index == 0 { "[" } else { ",[" });
        let block = bundle.block_override.as_ref();
        calls.set_block(&header, block.unwrap_or(&overrides.block));
        for (index, call) in bundle.transactions.iter().enumerate() {
            session.raw(if index == 0 { "" } else { "," });
            let call = CallObject::from_json(call.get())
                .map_err(|text| RpcError::invalid_params(format!("invalid argument 0: {text}")))?;
            let input = call.into_input(context.chain.spec.chain_id)?;
            session.trace_call(&mut calls, &input, context.bounds.gas_cap)?;
        }
        session.raw("]");
    }
    session.raw("]");
    session.finish()
}
