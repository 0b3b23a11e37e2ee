//! Methods that execute transactions again and describe what they do.
//!
//! Each reads one view, in which its block and the state before it are fixed. Tracers bound what
//! they record; the writer bounds the text; `timeout` bounds one transaction, and the endpoint the
//! whole call.

use super::options::TraceOptions;
use crate::{
    chain::{
        block_rlp,
        evm::{Deadline, StateError, TraceError, TraceWriter, Tracer},
        replay::{Replay, ReplayError},
        view::View,
    },
    rpc::{
        context::RpcContext,
        error::{Reply, RpcError, reply},
        eth::block_arg::{BlockArg, BlockTag},
        params::Args,
    },
};
use alloy_primitives::{B256, Bytes};
use starling_proto::payload::Payload;
use std::{sync::Arc, time::Duration};

/// The text of a trace that its writer has not handed on.
pub type Traced = Result<String, RpcError>;

/// A tracing method in progress: the block that it reads, its tracer and its time limits.
pub(super) struct TraceSession<'a> {
    pub(super) context: &'a RpcContext,
    pub(super) deadline: &'a Deadline,
    /// Time of one transaction.
    pub(super) timeout: Duration,
    pub(super) tracer: Option<Box<Tracer>>,
}

impl<'a> TraceSession<'a> {
    pub(super) fn new(
        context: &'a RpcContext,
        deadline: &'a Deadline,
        options: &TraceOptions,
        out: TraceWriter,
    ) -> Self {
        Self {
            context,
            deadline,
            timeout: options.timeout,
            tracer: Some(Box::new(Tracer::new(options.tracer.clone(), out))),
        }
    }

    pub(super) fn replay(&self, view: &Arc<View>, number: u64) -> Result<Replay, RpcError> {
        Replay::of_block(&self.context.chain.spec, view, number, self.deadline)
            .map_err(|error| self.error(error))
    }

    pub(super) fn raw(&mut self, text: &str) {
        if let Some(tracer) = &mut self.tracer {
            tracer.out().raw(text);
        }
    }

    /// Traces the next transaction.
    fn trace(&mut self, replay: &mut Replay) -> Result<(), RpcError> {
        self.deadline.check()?;
        replay.set_deadline(self.deadline.within(self.timeout));
        match replay.trace(&mut self.tracer) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Traces all transactions, as a list.
    fn trace_all(&mut self, mut replay: Replay) -> Result<(), RpcError> {
        self.raw("[");
        for index in 0..replay.count() {
            let hash = replay.tx_hash(index).unwrap_or_default();
            let separator = if index == 0 { "" } else { "," };
            self.raw(&format!("{separator}{{\"txHash\":\"{hash}\",\"result\":"));
            self.trace(&mut replay)?;
            self.raw("}");
        }
        self.raw("]");
        Ok(())
    }

    /// Traces all transactions into memory, as a list. One that cannot be traced has an error in
    /// its place and ends the list.
    pub(super) fn trace_each(&mut self, mut replay: Replay) -> Result<(), RpcError> {
        self.raw("[");
        for index in 0..replay.count() {
            let hash = replay.tx_hash(index).unwrap_or_default();
            let separator = if index == 0 { "" } else { "," };
            self.raw(&format!("{separator}{{\"txHash\":\"{hash}\","));
            let position = self.tracer.as_mut().map_or(0, |it| it.out().position());
            self.raw("\"result\":");
            if let Err(error) = self.trace(&mut replay) {
                self.deadline.check()?;
                if let Some(tracer) = &mut self.tracer {
                    tracer.out().rewind(position);
                    tracer.out().raw("\"error\":");
                    tracer.out().string(&error.message);
                }
                self.raw("}");
                break;
            }
            self.raw("}");
        }
        self.raw("]");
        Ok(())
    }

    /// geth's words if it was the transaction's time that is over.
    pub(super) fn error(&self, error: ReplayError) -> RpcError {
        let aborted = matches!(
            error,
            ReplayError::State(StateError::Aborted(_))
                | ReplayError::Trace(TraceError::State(StateError::Aborted(_)))
        );
        if aborted && !self.deadline.passed() {
            return RpcError::server("execution timeout");
        }
        error.into()
    }

    pub(super) fn finish(self) -> Traced {
        match self.tracer.map(|tracer| tracer.finish()) {
            Some(text) => text.map_err(RpcError::from),
            None => Err(RpcError::server("the tracer is gone")),
        }
    }
}

impl From<ReplayError> for RpcError {
    fn from(error: ReplayError) -> Self {
        Self::server(error.to_string())
    }
}

impl From<TraceError> for RpcError {
    fn from(error: TraceError) -> Self {
        Self::server(error.to_string())
    }
}

/// `debug_traceTransaction(hash, options)`.
pub fn trace_transaction(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut args = args.at_most(2)?;
    let hash: B256 = args.required()?;
    let options: TraceOptions = args.optional()?.unwrap_or_default();
    let view = context.view();
    let (number, index) = view
        .transaction(hash)?
        .ok_or_else(|| RpcError::server("transaction not found"))?;
    let mut session = TraceSession::new(context, deadline, &options, out);
    let mut replay = session.replay(&view, number)?;
    replay
        .skip_to(index)
        .map_err(|error| session.error(error))?;
    session.trace(&mut replay)?;
    session.finish()
}

/// `debug_traceBlockByNumber(number, options)`.
pub fn trace_block_by_number(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut args = args.at_most(2)?;
    let tag: BlockTag = args.required()?;
    let options: TraceOptions = args.optional()?.unwrap_or_default();
    let view = context.view();
    let number = known_number(context, &view, BlockArg::Tag(tag))?;
    let mut session = TraceSession::new(context, deadline, &options, out);
    let replay = session.replay(&view, number)?;
    session.trace_all(replay)?;
    session.finish()
}

/// `debug_traceBlockByHash(hash, options)`. The block may be one that a reorg has abandoned lately.
pub fn trace_block_by_hash(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut args = args.at_most(2)?;
    let hash: B256 = args.required()?;
    let options: TraceOptions = args.optional()?.unwrap_or_default();
    let view = context.view();
    let mut session = TraceSession::new(context, deadline, &options, out);
    let replay = by_hash(context, &view, hash, deadline).map_err(|error| session.error(error))?;
    session.trace_all(replay)?;
    session.finish()
}

/// `debug_traceBlock(rlp, options)`.
pub fn trace_block(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut args = args.at_most(2)?;
    let rlp: Bytes = args.required()?;
    let options: TraceOptions = args.optional()?.unwrap_or_default();
    trace_encoded(context, rlp, &options, deadline, out)
}

/// `debug_traceBadBlock(hash, options)`: one of the blocks that `debug_getBadBlocks` lists.
pub fn trace_bad_block(
    context: &RpcContext,
    args: Args,
    deadline: &Deadline,
    out: TraceWriter,
) -> Traced {
    let mut args = args.at_most(2)?;
    let hash: B256 = args.required()?;
    let options: TraceOptions = args.optional()?.unwrap_or_default();
    trace_payload(context, bad_block(context, hash)?, &options, deadline, out)
}

/// One of the newest blocks that were found invalid.
pub fn bad_block(context: &RpcContext, hash: B256) -> Result<Arc<Payload>, RpcError> {
    let bad = (context.chain.rejected)().into_iter();
    let bad = bad.map(|block| block.payload).find(|it| it.hash == hash);
    bad.ok_or_else(|| RpcError::server(format!("bad block {hash:#x} not found")))
}

/// Traces the transactions of a block in RLP, whose parent must be of the chain.
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

/// Traces the transactions of any block whose parent is of the chain.
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
    session.trace_all(replay)?;
    session.finish()
}

/// A block of the chain, or one that has left it lately.
pub fn by_hash(
    context: &RpcContext,
    view: &Arc<View>,
    hash: B256,
    deadline: &Deadline,
) -> Result<Replay, ReplayError> {
    let spec = &context.chain.spec;
    if let Some(number) = view.number_of(hash)? {
        return Replay::of_block(spec, view, number, deadline);
    }
    match (context.chain.abandoned)(hash)? {
        Some(block) => Replay::of_payload(spec, view, block.payload, deadline),
        None => Err(ReplayError::UnknownHash(hash)),
    }
}

/// The number of a block that this view has, or geth's error.
pub fn known_number(context: &RpcContext, view: &View, block: BlockArg) -> Result<u64, RpcError> {
    let unknown = |view: &View| {
        Ok::<_, RpcError>(match block {
            BlockArg::Hash(hash) => ReplayError::UnknownHash(hash),
            BlockArg::Tag(tag) => ReplayError::UnknownNumber(tag.number(context, view)?),
        })
    };
    match block.number(context, view)? {
        Some(number) => Ok(number),
        None => Err(unknown(view)?.into()),
    }
}

/// `debug_intermediateRoots(hash, options)`: the state root after each transaction.
pub fn intermediate_roots(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let mut args = args.at_most(2)?;
    let hash: B256 = args.required()?;
    args.optional::<TraceOptions>()?;
    let view = context.view();
    let mut replay = by_hash(context, &view, hash, deadline)?;
    let mut roots = Vec::with_capacity(replay.count());
    while replay.done() < replay.count() {
        // Only a block that is not valid has a transaction that cannot run; its roots so far count.
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
