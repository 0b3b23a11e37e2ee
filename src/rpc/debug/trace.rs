//! Methods that execute transactions of blocks again and describe their execution. They are of kind
//! `Trace` or `Heavy`, so their deadline and the permits of such calls bound them.

use crate::{
    chain::{
        block_rlp,
        evm::{Deadline, TraceWriter},
        replay::{Replay, ReplayError},
    },
    rpc::{
        context::RpcContext,
        error::{Reply, RpcError, reply},
        eth::block_arg::{BlockArg, BlockTag},
        params::{Arg, Args},
        trace_session::{TraceOptions, TraceSession, Traced, known_number, replay_by_hash},
    },
};
use alloy_primitives::{B256, Bytes};
use starling_proto::payload::Payload;
use std::sync::Arc;

/// The first parameter, which names the subject of the trace, and the tracing options.
fn with_options<T: Arg>(args: Args) -> Result<(T, TraceOptions), RpcError> {
    let mut args = args.at_most(2)?;
    Ok((args.required()?, args.optional()?.unwrap_or_default()))
}

/// `debug_traceTransaction(hash, options)`: traces a transaction of the chain.
pub fn trace_transaction(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let (hash, options) = with_options(args)?;
    let mut session = TraceSession::new(context, deadline, &options, out);
    let replay = session
        .replay_to(&context.view(), hash)?
        .ok_or_else(|| RpcError::server("transaction not found"))?;
    session.trace_and_keep(replay)?;
    session.finish()
}

/// `debug_traceBlockByNumber(number, options)`: traces all transactions of a block.
pub fn trace_block_by_number(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let (tag, options): (BlockTag, _) = with_options(args)?;
    let view = context.view();
    let number = known_number(context, &view, BlockArg::Tag(tag))?;
    let mut session = TraceSession::new(context, deadline, &options, out);
    let replay = session.replay(&view, number)?;
    session.trace_block_streamed(replay)?;
    session.finish()
}

/// `debug_traceBlockByHash(hash, options)`: traces all transactions of a block, which a recent
/// reorg may have abandoned.
pub fn trace_block_by_hash(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let (hash, options): (B256, _) = with_options(args)?;
    let view = context.view();
    let mut session = TraceSession::new(context, deadline, &options, out);
    let replay =
        replay_by_hash(context, &view, hash, deadline).map_err(|error| session.error(error))?;
    session.trace_block_streamed(replay)?;
    session.finish()
}

/// `debug_traceBlock(rlp, options)`: traces all transactions of a block that is given in RLP.
pub fn trace_block(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let (rlp, options): (Bytes, _) = with_options(args)?;
    trace_encoded(context, rlp, &options, deadline, out)
}

/// `debug_traceBadBlock(hash, options)`: traces one of the blocks that `debug_getBadBlocks` lists.
pub fn trace_bad_block(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let (hash, options): (B256, _) = with_options(args)?;
    trace_payload(context, bad_block(context, hash)?, &options, deadline, out)
}

/// Finds one of the newest invalid blocks by its hash.
pub fn bad_block(context: &RpcContext, hash: B256) -> Result<Arc<Payload>, RpcError> {
    let bad = (context.chain.rejected)().into_iter();
    let bad = bad.map(|block| block.payload).find(|it| it.hash == hash);
    bad.ok_or_else(|| RpcError::server(format!("bad block {hash:#x} not found")))
}

/// Traces the transactions of a block in RLP. Its parent must be in the chain.
pub fn trace_encoded(
    context: &RpcContext,
    rlp: Bytes,
    options: &TraceOptions,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let payload = block_rlp::decode(rlp)
        .map_err(|error| RpcError::server(format!("could not decode block: {error}")))?;
    trace_payload(context, Arc::new(payload), options, deadline, out)
}

/// Traces the transactions of any block whose parent is in the chain.
pub fn trace_payload(
    context: &RpcContext,
    payload: Arc<Payload>,
    options: &TraceOptions,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut session = TraceSession::new(context, deadline, options, out);
    let spec = &context.chain.spec;
    let replay = Replay::of_payload(spec, &context.view(), payload, deadline)
        .map_err(|error| session.error(error))?;
    session.trace_block_streamed(replay)?;
    session.finish()
}

/// `debug_intermediateRoots(hash, options)`: the state root after each transaction.
pub fn intermediate_roots(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let mut args = args.at_most(2)?;
    let hash: B256 = args.required()?;
    args.optional::<TraceOptions>()?;
    let view = context.view();
    let mut replay = replay_by_hash(context, &view, hash, deadline)?;
    let mut roots = Vec::with_capacity(replay.count());
    while replay.done() < replay.count() {
        // Only an invalid block has a transaction that cannot be executed. The roots before it are
        // returned.
        match replay.step() {
            Ok(_) => {}
            Err(ReplayError::Block(_)) => break,
            Err(error) => return Err(error.into()),
        }
        deadline.check()?;
        roots.push(replay.state_root()?);
    }
    reply(roots)
}
