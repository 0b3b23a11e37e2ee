//! A tracing method in progress: code that the namespaces `debug`, `trace` and `ots` share to
//! execute transactions again.
//!
//! A method reads one view, in which its block and the state before the block are fixed. Tracers
//! bound the records that they keep, and the writer bounds the text. One timeout bounds each
//! transaction, and the timeout of the endpoint bounds the whole call.

use super::{
    context::RpcContext,
    error::RpcError,
    eth::block_arg::{BlockArg, BlockTag},
};
use crate::chain::{
    evm::{
        CallFrames, CallInput, CallSequence, Deadline, Overrides, StateError, TraceCallError,
        TraceError, TracePlace, TraceWriter, Tracer, TracerConfig,
    },
    replay::{Replay, ReplayError},
    view::View,
};
use alloy_primitives::B256;
use std::{sync::Arc, time::Duration};

/// The last part of a trace's text, which its writer has not sent yet.
pub type Traced = Result<String, RpcError>;

/// Default timeout of one transaction, as in geth.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A tracer and its timeout.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    pub tracer: TracerConfig,
    /// Timeout of each transaction.
    pub timeout: Duration,
}

impl TraceOptions {
    pub fn new(tracer: TracerConfig, timeout: Option<Duration>) -> Self {
        Self {
            tracer,
            timeout: timeout.unwrap_or(TIMEOUT),
        }
    }

    /// A tracer without a timeout for each transaction; only the timeout of the whole call applies.
    pub fn without_tx_timeout(tracer: TracerConfig) -> Self {
        Self {
            tracer,
            timeout: Duration::MAX,
        }
    }
}

/// A tracing method in progress: the block that it reads, its tracer and its time limits.
pub struct TraceSession<'a> {
    pub context: &'a RpcContext,
    pub deadline: &'a Deadline,
    /// Timeout of each transaction.
    pub timeout: Duration,
    pub tracer: Option<Box<Tracer>>,
}

impl<'a> TraceSession<'a> {
    pub fn new(
        context: &'a RpcContext,
        deadline: &'a Deadline,
        options: &TraceOptions,
        out: TraceWriter,
    ) -> Self {
        let tracer = Tracer::new(options.tracer.clone(), out).with_scripts(context.scripts.clone());
        Self {
            context,
            deadline,
            timeout: options.timeout,
            tracer: Some(Box::new(tracer)),
        }
    }

    pub fn replay(&self, view: &Arc<View>, number: u64) -> Result<Replay, RpcError> {
        Replay::of_block(&self.context.chain.spec, view, number, self.deadline)
            .map_err(|error| self.error(error))
    }

    /// A replay of a block that has been executed up to the transaction with this hash. `None` if
    /// the transaction is unknown.
    pub fn replay_to(&self, view: &Arc<View>, hash: B256) -> Result<Option<Replay>, RpcError> {
        let Some((number, index)) = view.transaction(hash)? else {
            return Ok(None);
        };
        let mut replay = self.nearest_replay(view, number, index)?;
        if let Err(error) = replay.skip_to(index) {
            // The interrupted transaction has changed nothing in the replay.
            if is_aborted(&error) {
                self.context.replays.keep(replay.pause());
            }
            return Err(self.error(error));
        }
        Ok(Some(replay))
    }

    /// A replay of a block that has not executed the transaction at `index` yet: a paused replay of
    /// an earlier request, or a new one.
    fn nearest_replay(
        &self,
        view: &Arc<View>,
        number: u64,
        index: usize,
    ) -> Result<Replay, RpcError> {
        let hash = view.hash_of(number)?;
        let paused = hash.and_then(|hash| self.context.replays.take(hash, index));
        let Some(paused) = paused else {
            return self.replay(view, number);
        };
        paused
            .resume(&self.context.chain.spec, view, self.deadline)
            .map_err(|error| self.error(error))
    }

    pub fn raw(&mut self, text: &str) {
        if let Some(tracer) = &mut self.tracer {
            tracer.out().raw(text);
        }
    }

    /// Starts the timeout of a transaction, and returns its deadline.
    fn begin(&mut self) -> Result<Deadline, StateError> {
        self.deadline.check()?;
        let deadline = self.deadline.within(self.timeout);
        if let Some(tracer) = &mut self.tracer {
            tracer.set_deadline(deadline.clone());
        }
        Ok(deadline)
    }

    /// Traces the next transaction.
    pub fn trace(&mut self, replay: &mut Replay) -> Result<(), RpcError> {
        self.trace_next(replay).map_err(|error| self.error(error))
    }

    /// Traces the next transaction. Keeps the replay for a request that traces a later transaction
    /// of the block, or the same transaction if its trace failed.
    pub fn trace_and_keep(&mut self, mut replay: Replay) -> Result<(), RpcError> {
        let traced = self.trace_next(&mut replay);
        // A trace that failed for these reasons has changed nothing in the replay. After other
        // errors the state of the replay is uncertain.
        if traced.as_ref().err().is_none_or(is_of_tracer) {
            self.context.replays.keep(replay.pause());
        }
        traced.map_err(|error| self.error(error))
    }

    fn trace_next(&mut self, replay: &mut Replay) -> Result<(), ReplayError> {
        let deadline = self.begin()?;
        replay.set_deadline(deadline);
        replay.trace(&mut self.tracer).map(|_| ())
    }

    /// Traces the next transaction. Returns its call frames instead of writing them.
    pub fn frames(&mut self, replay: &mut Replay) -> Result<CallFrames, RpcError> {
        self.trace(replay)?;
        Ok(self.take_frames())
    }

    /// Like [`TraceSession::frames`], and keeps the replay like [`TraceSession::trace_and_keep`].
    pub fn frames_and_keep(&mut self, replay: Replay) -> Result<CallFrames, RpcError> {
        self.trace_and_keep(replay)?;
        Ok(self.take_frames())
    }

    fn take_frames(&mut self) -> CallFrames {
        let tracer = self.tracer.as_mut();
        tracer.map_or_else(CallFrames::default, |tracer| tracer.take_frames())
    }

    /// Traces all transactions as a list, which may be sent while it grows. If a transaction's
    /// script fails or takes too long, its result is replaced by an error.
    pub fn trace_block_streamed(&mut self, mut replay: Replay) -> Result<(), RpcError> {
        self.raw("[");
        for _ in 0..replay.count() {
            let position = self.begin_entry(&replay);
            if let Err(error) = self.trace_next(&mut replay) {
                if !self.is_of_script(&error) {
                    return Err(self.error(error));
                }
                self.deadline.check()?;
                self.write_error(position, &self.error(error));
                replay.set_deadline(self.deadline.clone());
                replay.step()?;
            }
            self.raw("}");
        }
        self.raw("]");
        Ok(())
    }

    /// Whether the script failed. Then nothing of the result has been written, because a script
    /// writes nothing before its result.
    fn is_of_script(&self, error: &ReplayError) -> bool {
        let is_script = self.tracer.as_ref().is_some_and(|it| it.is_script());
        let failed = matches!(error, ReplayError::Trace(TraceError::Script(_)));
        is_script && self.context.scripts.is_some() && (failed || is_aborted(error))
    }

    /// Begins the entry of the next transaction in a list. Returns the position at which the
    /// transaction's result begins.
    fn begin_entry(&mut self, replay: &Replay) -> usize {
        let index = replay.done();
        let hash = replay.tx_hash(index).unwrap_or_default();
        let separator = if index == 0 { "" } else { "," };
        self.raw(&format!("{separator}{{\"txHash\":\"{hash}\","));
        let position = self.tracer.as_mut().map_or(0, |it| it.out().position());
        self.raw("\"result\":");
        position
    }

    /// Replaces the result that begins at `position` by an error.
    fn write_error(&mut self, position: usize, error: &RpcError) {
        if let Some(tracer) = &mut self.tracer {
            tracer.out().rewind(position);
            tracer.out().raw("\"error\":");
            tracer.out().string(&error.message);
        }
    }

    /// Traces all transactions into memory, as a list. If a transaction cannot be traced, its
    /// result is replaced by an error, and the list ends.
    pub fn trace_block_buffered(&mut self, mut replay: Replay) -> Result<(), RpcError> {
        self.raw("[");
        for _ in 0..replay.count() {
            let position = self.begin_entry(&replay);
            if let Err(error) = self.trace(&mut replay) {
                self.deadline.check()?;
                self.write_error(position, &error);
                self.raw("}");
                break;
            }
            self.raw("}");
        }
        self.raw("]");
        Ok(())
    }

    /// The error of a replay. It has geth's text if the timeout of the transaction has passed, but
    /// not that of the call.
    pub fn error(&self, error: ReplayError) -> RpcError {
        if is_aborted(&error) && !self.deadline.passed() {
            return RpcError::server("execution timeout");
        }
        error.into()
    }

    pub fn finish(self) -> Traced {
        match self.tracer.map(|tracer| tracer.finish()) {
            Some(text) => text.map_err(RpcError::from),
            None => Err(RpcError::server(
                "internal error: the tracer was lost; report it",
            )),
        }
    }
}

fn is_aborted(error: &ReplayError) -> bool {
    matches!(
        error,
        ReplayError::State(StateError::Aborted(_))
            | ReplayError::Trace(TraceError::State(StateError::Aborted(_)))
    )
}

/// Whether the tracer or its timeout ended the trace, while the block itself can be executed.
fn is_of_tracer(error: &ReplayError) -> bool {
    let of_tracer = matches!(
        error,
        ReplayError::Trace(TraceError::Script(_) | TraceError::TooLarge(_))
    );
    of_tracer || is_aborted(error)
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

/// A replay of a block of the chain, or of a block that was abandoned recently.
pub fn replay_by_hash(
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

/// The number of a block that this view has, or geth's error for an unknown block.
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

impl<'a> TraceSession<'a> {
    /// A sequence of calls on the state after block `number`, or on the state that `replay` has
    /// reached.
    pub fn calls(
        &self,
        view: &Arc<View>,
        number: u64,
        replay: Option<Replay>,
        overrides: &'a Overrides,
    ) -> Result<CallSequence<'a>, RpcError> {
        let (context, deadline) = (self.context, self.deadline);
        let spec = &context.chain.spec;
        let Some(replay) = replay else {
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
        let header = replay.header().clone();
        Ok(CallSequence::within(
            spec,
            replay.into_vm(),
            &header,
            overrides,
        )?)
    }

    /// Traces one call.
    pub fn trace_call(
        &mut self,
        calls: &mut CallSequence<'_>,
        input: &CallInput,
        gas_cap: u64,
    ) -> Result<(), RpcError> {
        let deadline = self.begin()?;
        calls.set_deadline(deadline);
        let place = TracePlace::default();
        calls
            .trace(input, gas_cap, &mut self.tracer, &place)
            .map_err(|error| match error {
                TraceCallError::Call(error) => error.into(),
                TraceCallError::Trace(error) => self.error(error.into()),
            })
    }
}
