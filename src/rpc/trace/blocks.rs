//! Transactions of the chain: their call frames, their full results, and the gas of their
//! instructions.

use super::TraceTypes;
use crate::{
    chain::{
        evm::{CallFrames, Deadline, ParityConfig, TracePlace, TraceWriter, TracerConfig},
        replay::Replay,
        view::View,
    },
    rpc::{
        context::RpcContext,
        error::RpcError,
        eth::block_arg::BlockArg,
        params::{Arg, Args, Count, Json},
        trace_session::{TraceOptions, TraceSession, Traced, known_number},
    },
};
use alloy_primitives::B256;
use serde_json::value::RawValue;
use std::sync::Arc;

pub(super) fn new_session<'a>(
    context: &'a RpcContext,
    deadline: &'a Deadline,
    tracer: TracerConfig,
    out: TraceWriter,
) -> TraceSession<'a> {
    TraceSession::new(
        context,
        deadline,
        &TraceOptions::without_tx_timeout(tracer),
        out,
    )
}

/// A replay of the block with this number; `None` if the block has no transactions, such as
/// genesis.
pub(super) fn replay_unless_empty(
    session: &TraceSession<'_>,
    view: &Arc<View>,
    number: u64,
) -> Result<Option<Replay>, RpcError> {
    let payload = view.payload(number)?;
    if payload.is_some_and(|payload| payload.transactions.is_empty()) {
        return Ok(None);
    }
    session.replay(view, number).map(Some)
}

/// Writes the call frames of several transactions as one list.
struct FrameList<'a, 'b> {
    session: &'a mut TraceSession<'b>,
    separator: &'static str,
}

impl<'a, 'b> FrameList<'a, 'b> {
    fn begin(session: &'a mut TraceSession<'b>) -> Self {
        session.raw("[");
        Self {
            session,
            separator: "",
        }
    }

    fn add(&mut self, frames: &CallFrames, place: &TracePlace) {
        let Some(tracer) = &mut self.session.tracer else {
            return;
        };
        let separator = &mut self.separator;
        frames.visit(|frame| {
            tracer.out().raw(std::mem::replace(separator, ","));
            frame.write(Some(place), tracer.out());
        });
    }
}

/// `trace_block(block)`: the call frames of all transactions of a block.
pub fn block(context: &RpcContext, args: Args, deadline: &Deadline, out: TraceWriter) -> Traced {
    let block: BlockArg = args.at_most(1)?.required()?;
    let view = context.view();
    let number = known_number(context, &view, block)?;
    let mut session = new_session(context, deadline, TracerConfig::Frames, out);
    let mut replay = replay_unless_empty(&session, &view, number)?;
    let mut list = FrameList::begin(&mut session);
    if let Some(replay) = &mut replay {
        while replay.done() < replay.count() {
            let place = replay.place();
            let frames = list.session.frames(replay)?;
            list.add(&frames, &place);
        }
    }
    session.raw("]");
    session.finish()
}

/// `trace_transaction(hash)`: the call frames of a transaction; null if the transaction is unknown.
pub fn transaction(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let hash: B256 = args.at_most(1)?.required()?;
    let mut session = new_session(context, deadline, TracerConfig::Frames, out);
    let Some(replay) = session.replay_to(&context.view(), hash)? else {
        return Ok("null".to_owned());
    };
    let place = replay.place();
    let frames = session.frames_and_keep(replay)?;
    FrameList::begin(&mut session).add(&frames, &place);
    session.raw("]");
    session.finish()
}

/// `trace_get(hash, [index])`: the call frame at `index` in the result of `trace_transaction`, as
/// in op-reth; null if there is no such frame.
pub fn get(context: &RpcContext, args: Args, deadline: &Deadline, out: TraceWriter) -> Traced {
    let mut args = args.at_most(2)?;
    let hash: B256 = args.required()?;
    let Json(indexes): Json<Vec<Box<RawValue>>> = args.required()?;
    let none = || Ok("null".to_owned());
    let [index] = &indexes[..] else { return none() };
    let Count(index) = Count::from_json(index.get())
        .map_err(|text| RpcError::invalid_params(format!("invalid argument 1: {text}")))?;
    let mut session = new_session(context, deadline, TracerConfig::Frames, out);
    let Some(replay) = session.replay_to(&context.view(), hash)? else {
        return none();
    };
    let place = replay.place();
    let frames = session.frames_and_keep(replay)?;
    let (mut number, mut found) = (0, false);
    if let Some(tracer) = &mut session.tracer {
        frames.visit(|frame| {
            if number == index {
                found = true;
                frame.write(Some(&place), tracer.out());
            }
            number += 1;
        });
    }
    if found { session.finish() } else { none() }
}

/// `trace_replayTransaction(hash, types)`: the selected parts of a transaction's result.
pub fn replay_transaction(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut args = args.at_most(2)?;
    let (hash, TraceTypes(parts)): (B256, TraceTypes) = (args.required()?, args.required()?);
    let mut session = new_session(context, deadline, TracerConfig::Parity(parts), out);
    let replay = session
        .replay_to(&context.view(), hash)?
        .ok_or_else(|| RpcError::server("transaction not found"))?;
    session.trace_and_keep(replay)?;
    session.finish()
}

/// `trace_replayBlockTransactions(block, types)`: the selected parts of the results of all
/// transactions; null if the block is unknown.
pub fn replay_block_transactions(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut args = args.at_most(2)?;
    let (block, TraceTypes(parts)): (BlockArg, TraceTypes) = (args.required()?, args.required()?);
    let view = context.view();
    let Some(number) = block.number(context, &view)? else {
        return Ok("null".to_owned());
    };
    let parts = ParityConfig {
        with_hash: true,
        ..parts
    };
    let mut session = new_session(context, deadline, TracerConfig::Parity(parts), out);
    let replay = replay_unless_empty(&session, &view, number)?;
    trace_list(&mut session, replay, |_, _| (), "")?;
    session.finish()
}

/// Traces all transactions of a block, as a list. `before` and `after` write the text around each
/// trace.
fn trace_list(
    session: &mut TraceSession<'_>,
    replay: Option<Replay>,
    before: impl Fn(&mut TraceSession<'_>, &Replay),
    after: &str,
) -> Result<(), RpcError> {
    session.raw("[");
    if let Some(mut replay) = replay {
        while replay.done() < replay.count() {
            session.raw(if replay.done() == 0 { "" } else { "," });
            before(session, &replay);
            session.trace(&mut replay)?;
            session.raw(after);
        }
    }
    session.raw("]");
    Ok(())
}

/// Begins the JSON object with a transaction's gas by opcode.
fn begin_opcode_gas(session: &mut TraceSession<'_>, replay: &Replay) {
    let hash = replay.place().tx_hash.unwrap_or_default();
    session.raw(&format!("{{\"transactionHash\":\"{hash}\",\"opcodeGas\":"));
}

/// `trace_transactionOpcodeGas(hash)`: a transaction's gas by opcode; null if the transaction is
/// unknown.
pub fn transaction_opcode_gas(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let hash: B256 = args.at_most(1)?.required()?;
    let mut session = new_session(context, deadline, TracerConfig::OpcodeGas, out);
    let Some(replay) = session.replay_to(&context.view(), hash)? else {
        return Ok("null".to_owned());
    };
    begin_opcode_gas(&mut session, &replay);
    session.trace_and_keep(replay)?;
    session.raw("}");
    session.finish()
}

/// `trace_blockOpcodeGas(block)`: the gas by opcode of each transaction of a block; null if the
/// block is unknown.
pub fn block_opcode_gas(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let block: BlockArg = args.at_most(1)?.required()?;
    let view = context.view();
    let known = block.number(context, &view)?;
    let known = known.map(|number| Ok::<_, RpcError>((number, view.hash_of(number)?)));
    let Some((number, Some(hash))) = known.transpose()? else {
        return Ok("null".to_owned());
    };
    let mut session = new_session(context, deadline, TracerConfig::OpcodeGas, out);
    let replay = replay_unless_empty(&session, &view, number)?;
    session.raw(&format!(
        "{{\"blockHash\":\"{hash}\",\"blockNumber\":{number},\"transactions\":"
    ));
    trace_list(&mut session, replay, begin_opcode_gas, "}")?;
    session.raw("}");
    session.finish()
}
