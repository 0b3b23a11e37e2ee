//! Transactions that are in no block, traced on the state after a block: calls, and signed
//! transactions as a wallet would send them.

use super::{TraceTypes, blocks::new_session};
use crate::{
    chain::evm::{Deadline, Overrides, TracePlace, TraceWriter, TracerConfig, Vm},
    rpc::{
        context::RpcContext,
        error::RpcError,
        eth::{block_arg::BlockArg, call_object::CallObject},
        json,
        params::{Arg, Args},
        trace_session::{Traced, known_number},
    },
};
use alloy_primitives::Bytes;
use serde_json::value::RawValue;

/// `trace_call(call, types, block, stateOverrides, blockOverrides)`: traces a call on the state
/// after a block.
pub fn call(context: &RpcContext, args: Args, deadline: &Deadline, out: TraceWriter) -> Traced {
    let mut args = args.at_most(5)?;
    let (call, TraceTypes(parts)): (CallObject, TraceTypes) = (args.required()?, args.required()?);
    let block: BlockArg = args.optional()?.unwrap_or_default();
    let overrides = Overrides {
        state: args.optional()?.unwrap_or_default(),
        block: args.optional()?.unwrap_or_default(),
    };
    let input = call.into_input(context.chain.spec.chain_id)?;
    let view = context.view();
    let number = known_number(context, &view, block)?;
    let mut session = new_session(context, deadline, TracerConfig::Parity(parts), out);
    let mut calls = session.calls(&view, number, None, &overrides)?;
    session.trace_call(&mut calls, &input, context.bounds.gas_cap)?;
    session.finish()
}

/// A call, with the parts of its result that are requested.
struct TypedCall {
    call: CallObject,
    parts: TraceTypes,
}

/// The calls of `trace_callMany`.
struct TypedCalls(Vec<TypedCall>);

impl Arg for TypedCalls {
    fn from_json(json: &str) -> Result<Self, String> {
        let calls: Vec<(&RawValue, &RawValue)> =
            json::read(json).map_err(|error| error.to_string())?;
        let typed = calls.into_iter().map(|(call, parts)| {
            Ok(TypedCall {
                call: CallObject::from_json(call.get())?,
                parts: TraceTypes::from_json(parts.get())?,
            })
        });
        typed.collect::<Result<_, _>>().map(Self)
    }
}

/// `trace_callMany([[call, types], …], block)`: traces several calls, each of which sees the
/// changes of the earlier ones.
pub fn call_many(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut args = args.at_most(2)?;
    let TypedCalls(typed) = args.required()?;
    let block: BlockArg = args.optional()?.unwrap_or_default();
    let view = context.view();
    let number = known_number(context, &view, block)?;
    let overrides = Overrides::default();
    let mut session = new_session(context, deadline, TracerConfig::Noop, out);
    let mut calls = session.calls(&view, number, None, &overrides)?;
    session.raw("[");
    for (index, TypedCall { call, parts }) in typed.into_iter().enumerate() {
        session.raw(if index == 0 { "" } else { "," });
        if let Some(tracer) = &mut session.tracer {
            tracer.set_config(TracerConfig::Parity(parts.0));
        }
        let input = call.into_input(context.chain.spec.chain_id)?;
        session.trace_call(&mut calls, &input, context.bounds.gas_cap)?;
    }
    session.raw("]");
    session.finish()
}

/// `trace_rawTransaction(raw, types, block)`: traces a signed transaction in the environment of a
/// block, on the state after that block. The transaction is not sent.
pub fn raw_transaction(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut args = args.at_most(3)?;
    let (raw, TraceTypes(parts)): (Bytes, TraceTypes) = (args.required()?, args.required()?);
    let block: BlockArg = args.optional()?.unwrap_or_default();
    let tx = context.chain.pool.decode(raw)?;
    let state = block.state(context, &context.view())?;
    let header = state.header().clone();
    let mut session = new_session(context, deadline, TracerConfig::Parity(parts), out);
    let spec = &context.chain.spec;
    let mut vm = Vm::until(spec, &header, state.into(), deadline.clone());
    let place = TracePlace::default();
    vm.trace(&tx.tx, &tx.raw, &mut session.tracer, &place)
        .map_err(RpcError::from)?;
    session.finish()
}
