//! Tracers: observers of an EVM that describe a transaction as geth's `debug` namespace and
//! Parity's `trace` namespace do.
//!
//! [`Tracer`] turns revm's callbacks into the [`events`] that tracers receive: the beginnings and
//! ends of frames, each instruction with its cost, logs. The tracers behind it ([`native`]) record
//! these events and write JSON, or keep the frames for the caller ([`CallFrames`]). Memory is
//! bounded: the frames and accounts recorded of one transaction, and, by [`TraceWriter`], the text.
//! An EVM whose tracer has exceeded a bound is stopped at the next instruction. Time is bounded by
//! the EVM's [`Deadline`].

mod arena;
mod calls;
mod charge;
mod erc7562;
mod events;
mod failure;
mod flat;
mod four_byte;
mod frames;
mod json_log;
mod native;
mod opcode_gas;
mod options;
mod parity;
mod point;
mod prestate;
pub mod script;
mod state_diff;
mod struct_log;
mod vm_trace;
mod writer;

pub use arena::FrameKind;
pub use calls::CallTracerConfig;
pub use erc7562::Erc7562Config;
pub use events::TracePlace;
pub(super) use events::{TraceEnd, TraceStart};
pub use flat::FlatCallConfig;
pub use frames::{CallFrames, FrameView};
pub use native::{NamedTracer, TracerConfig};
pub use parity::ParityConfig;
pub use prestate::PrestateConfig;
pub use script::{ScriptConnection, ScriptHost, ScriptSource};
pub use struct_log::StructLogConfig;
pub use writer::{ChunkSink, TraceWriter};

use super::{Db, Deadline, StateError, watch::WatchedContext};
use alloy_primitives::{Address, Bytes, Log, U256};
use charge::{ChargedStep, StepCharge};
use events::{Entered, FrameEnd, Left, StepEnd, TracedStep};
use failure::Failure;
pub use failure::op_name as opcode_name;
use native::NativeTracer;
use point::{LiveState, PointState, SettledState};
use revm::{
    bytecode::opcode,
    context::JournalTr,
    context_interface::CreateScheme,
    context_interface::context::ContextError,
    interpreter::{
        CallInputs, CallScheme, CreateInputs, FrameInput, InstructionResult, Interpreter,
        InterpreterAction, InterpreterResult,
        interpreter::EthInterpreter,
        interpreter_types::{InputsTr, Jumps, LegacyBytecode, LoopControl, MemoryTr, ReturnData},
    },
};
use script::{ScriptError, ScriptLink};

/// The reason why there is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The transaction is invalid at this position.
    #[error("tracing failed: {0}")]
    Invalid(String),
    #[error(
        "the trace is larger than {0} MB: trace a single transaction, or use options that leave parts out"
    )]
    TooLarge(usize),
    /// The tracer is a script, which failed or could not be run.
    #[error(transparent)]
    Script(ScriptError),
    #[error(transparent)]
    State(#[from] StateError),
}

impl From<ScriptError> for TraceError {
    fn from(error: ScriptError) -> Self {
        match error {
            ScriptError::State(error) => Self::State(error),
            error => Self::Script(error),
        }
    }
}

/// Largest number of megabytes that a tracer may record of one transaction.
const MAX_RECORDED_MB: usize = 32;

/// A call frame that has not ended.
struct OpenFrame {
    gas: u64,
    create: bool,
    /// Refund counter of the frame's own instructions, without those of its callees.
    refund: i64,
    /// The failure of the frame's last instruction, if it failed.
    failure: Option<Failure>,
}

/// The instruction that is running.
#[derive(Default)]
struct CurrentStep {
    /// Whether the tracer receives this instruction. For empty code revm runs a STOP, and geth runs
    /// nothing.
    shown: bool,
    op: u8,
    gas: u64,
    charge: StepCharge,
    /// The heir of a SELFDESTRUCT and the balance that it inherits.
    heir: Option<Inheritance>,
}

impl CurrentStep {
    /// The failure of the instruction, if it ended with an error: the first one that geth finds.
    fn failure(&mut self, result: InstructionResult) -> Option<Failure> {
        let refusal = self.charge.refusal.take().filter(|_| !result.is_ok());
        refusal.or_else(|| Failure::of_step(result, self.op))
    }
}

/// The balance that a SELFDESTRUCT passes to its heir.
#[derive(Clone, Copy)]
struct Inheritance {
    from: Address,
    to: Address,
    value: U256,
}

impl Inheritance {
    /// The frame as which tracers show a SELFDESTRUCT.
    fn frame(self) -> Entered {
        Entered {
            kind: FrameKind::SelfDestruct,
            from: self.from,
            to: self.to,
            input: Bytes::new(),
            gas: 0,
            value: Some(self.value),
            precompile: false,
        }
    }
}

/// Traces transactions, one after another, and writes the traces into one text.
pub struct Tracer {
    config: TracerConfig,
    tracer: NativeTracer,
    steps: bool,
    out: TraceWriter,
    frames: Vec<OpenFrame>,
    step: CurrentStep,
    /// The frames of the last transaction, if the configuration is [`TracerConfig::Frames`].
    recorded: CallFrames,
    /// The script host, unless the running tracer has it.
    scripts: ScriptLink,
    /// The first error of reading the state.
    failure: Option<StateError>,
    full: bool,
}

impl Tracer {
    pub fn new(config: TracerConfig, out: TraceWriter) -> Self {
        Self {
            steps: config.wants_steps(),
            config,
            tracer: NativeTracer::Noop,
            out,
            frames: Vec::new(),
            step: CurrentStep::default(),
            recorded: CallFrames::default(),
            scripts: ScriptLink::default(),
            failure: None,
            full: false,
        }
    }

    /// Traces the following transactions with another configuration, into the same text.
    pub fn set_config(&mut self, config: TracerConfig) {
        self.steps = config.wants_steps();
        self.config = config;
    }

    /// Uses this host to run tracers that are scripts.
    pub fn with_scripts(mut self, host: Option<ScriptHost>) -> Self {
        self.scripts.host = host;
        self
    }

    pub fn is_script(&self) -> bool {
        matches!(self.config, TracerConfig::Script(_))
    }

    /// Sets the deadline of scripts in the next transaction.
    pub fn set_deadline(&mut self, deadline: Deadline) {
        self.recover_scripts();
        self.scripts.deadline = Some(deadline);
    }

    /// Takes the script host back from the tracer of the last transaction.
    fn recover_scripts(&mut self) {
        if let NativeTracer::Script(tracer) = &mut self.tracer {
            self.scripts = tracer.take_link();
            self.tracer = NativeTracer::Noop;
        }
    }

    /// Takes the frames of the last transaction. They are kept only with [`TracerConfig::Frames`].
    pub fn take_frames(&mut self) -> CallFrames {
        std::mem::take(&mut self.recorded)
    }

    /// The text that the traces are written to, for the caller's own text around them.
    pub fn out(&mut self) -> &mut TraceWriter {
        &mut self.out
    }

    /// Ends the text: see [`TraceWriter::finish`].
    pub fn finish(self) -> Result<String, TraceError> {
        self.out.finish()
    }

    /// Begins the trace of a transaction; `db` is the state before the transaction.
    pub(super) fn begin(&mut self, start: &TraceStart, db: &mut Db) {
        self.recover_scripts();
        self.tracer = self.config.tracer();
        self.frames.clear();
        self.step = CurrentStep::default();
        let mut state = SettledState {
            db,
            changed: None,
            failure: &mut self.failure,
        };
        match &mut self.tracer {
            NativeTracer::Script(tracer) => {
                tracer.begin(std::mem::take(&mut self.scripts), start, &mut state);
            }
            tracer => tracer.begin(start, &mut state, &mut self.out),
        }
    }

    /// Writes the trace of a transaction that has been run.
    pub(super) fn end(
        &mut self,
        end: &TraceEnd<'_>,
        place: &TracePlace,
        db: &mut Db,
    ) -> Result<(), TraceError> {
        let mut state = SettledState {
            db,
            changed: Some(end.changed),
            failure: &mut self.failure,
        };
        match std::mem::replace(&mut self.tracer, NativeTracer::Noop) {
            NativeTracer::Frames(frames) => self.recorded = frames.finish(),
            NativeTracer::Script(mut tracer) => {
                tracer.finish(end, place, &mut state, &mut self.out);
                let failure = tracer.take_failure();
                self.scripts = tracer.take_link();
                if let Some(failure) = failure {
                    return Err(failure.into());
                }
            }
            tracer => tracer.finish(end, place, &mut state, &mut self.out),
        }
        self.stopped().map_or(Ok(()), Err)
    }

    /// Takes the reason why the tracer has stopped the EVM.
    pub(super) fn stopped(&mut self) -> Option<TraceError> {
        if let Some(failure) = self.failure.take() {
            return Some(failure.into());
        }
        if self.full {
            return Some(TraceError::TooLarge(MAX_RECORDED_MB));
        }
        if let NativeTracer::Script(tracer) = &mut self.tracer
            && let Some(failure) = tracer.take_failure()
        {
            return Some(failure.into());
        }
        self.out.take_failure()
    }

    /// Notes whether the tracer has recorded as much of the transaction as it may. The parts of a
    /// `muxTracer` are counted together.
    fn note_bytes(&mut self) {
        self.full |= self.tracer.bytes() > MAX_RECORDED_MB << 20;
    }

    fn must_stop(&self) -> bool {
        let script = matches!(&self.tracer, NativeTracer::Script(tracer) if tracer.has_failed());
        self.full || self.failure.is_some() || self.out.failed() || script
    }

    pub(super) fn on_step<CTX: WatchedContext>(
        &mut self,
        interpreter: &mut Interpreter<EthInterpreter>,
        context: &mut CTX,
    ) {
        if self.must_stop() {
            *context.error() = Err(ContextError::Custom("the tracer stopped".to_owned()));
            interpreter.halt_fatal();
            return;
        }
        let op = interpreter.bytecode.opcode();
        let mut state = LiveState {
            context,
            failure: &mut self.failure,
        };
        let from = interpreter.input.target_address();
        self.step = CurrentStep {
            shown: self.steps && !interpreter.bytecode.bytecode_slice().is_empty(),
            op,
            gas: interpreter.gas.remaining(),
            charge: ChargedStep::new(interpreter).charge(&mut state),
            heir: None,
        };
        if op == opcode::SELFDESTRUCT
            && let Ok(word) = interpreter.stack.peek(0)
        {
            self.step.heir = Some(Inheritance {
                from,
                to: struct_log::address_of(word),
                value: state.account(from).balance,
            });
        }
        let depth = self.frames.len();
        if let Some(frame) = self.frames.last_mut() {
            frame.refund = interpreter.gas.refunded();
        }
        if !self.step.shown {
            return;
        }
        let before: i64 = self.frames.iter().map(|frame| frame.refund).sum();
        let refund = before + self.step.charge.refund;
        let size = interpreter.memory.size();
        let step = TracedStep {
            pc: interpreter.bytecode.pc(),
            op,
            gas: self.step.gas,
            depth,
            refund: u64::try_from(refund).unwrap_or(0),
            address: from,
            stack: interpreter.stack.data(),
            memory: interpreter.memory.slice(0..size),
            code: interpreter.bytecode.bytecode_slice(),
            return_data: interpreter.return_data.buffer(),
        };
        self.tracer.step(&step, &mut state, &mut self.out);
        self.note_bytes();
    }

    pub(super) fn on_step_end<CTX: WatchedContext>(
        &mut self,
        interpreter: &mut Interpreter<EthInterpreter>,
        context: &mut CTX,
    ) {
        let mut cost = self.step.gas.saturating_sub(interpreter.gas.remaining());
        let (mut failure, mut destroyed) = (None, false);
        match interpreter.bytecode.action() {
            // geth does not count the gas of the new frame as part of a creation's cost.
            Some(InterpreterAction::NewFrame(FrameInput::Create(inputs))) => {
                cost = cost.saturating_sub(inputs.gas_limit());
            }
            Some(InterpreterAction::Return(InterpreterResult { result, .. })) => {
                failure = self.step.failure(*result);
                if failure.is_some() {
                    cost = self.step.charge.cost;
                }
                destroyed = *result == InstructionResult::SelfDestruct;
            }
            _ => {}
        }
        // revm and geth charge what ran alike, so every instruction checks the costs of those that fail.
        debug_assert!(
            failure.is_some() || self.failure.is_some() || cost == self.step.charge.cost,
            "opcode {:#x}: {cost} and {:?}",
            self.step.op,
            self.step.charge
        );
        let mut state = LiveState {
            context,
            failure: &mut self.failure,
        };
        if self.step.shown {
            let size = interpreter.memory.size();
            let end = StepEnd {
                cost,
                memory: interpreter.memory.slice(0..size),
                failure: failure.as_ref(),
            };
            self.tracer.step_end(&end, &mut state, &mut self.out);
        }
        if destroyed && let Some(inheritance) = self.step.heir.take() {
            let entered = inheritance.frame();
            self.tracer.enter(&entered, &mut state, &mut self.out);
            let left = Left {
                output: &Bytes::new(),
                gas_used: 0,
                failure: None,
            };
            self.tracer.leave(left, false, &mut state, &mut self.out);
        }
        if failure.is_some()
            && let Some(frame) = self.frames.last_mut()
        {
            frame.failure = failure;
        }
    }

    pub(super) fn on_log(&mut self, log: &Log) {
        self.tracer.log(log);
        self.note_bytes();
    }

    pub(super) fn on_call<CTX: WatchedContext>(&mut self, context: &mut CTX, inputs: &CallInputs) {
        let (kind, from, to) = match inputs.scheme {
            CallScheme::Call => (FrameKind::Call, inputs.caller, inputs.target_address),
            CallScheme::StaticCall => (FrameKind::StaticCall, inputs.caller, inputs.target_address),
            CallScheme::CallCode => (FrameKind::CallCode, inputs.caller, inputs.bytecode_address),
            // A delegated call keeps the caller of the calling code, so `inputs.caller` is not the
            // account that calls.
            CallScheme::DelegateCall => (
                FrameKind::DelegateCall,
                inputs.target_address,
                inputs.bytecode_address,
            ),
        };
        let value = (kind != FrameKind::StaticCall).then(|| inputs.call_value());
        let precompile = context.journal_ref().precompile_addresses().contains(&to);
        let entered = Entered {
            kind,
            from,
            to,
            input: inputs.input.bytes(context),
            gas: inputs.gas_limit,
            value,
            precompile,
        };
        self.enter(&entered, context);
    }

    pub(super) fn on_create<CTX: WatchedContext>(
        &mut self,
        context: &mut CTX,
        inputs: &CreateInputs,
    ) {
        let caller = context.journal_ref().state.get(&inputs.caller());
        let nonce = caller.map_or(0, |account| account.info.nonce);
        let entered = Entered {
            kind: match inputs.scheme() {
                CreateScheme::Create2 { .. } => FrameKind::Create2,
                CreateScheme::Create | CreateScheme::Custom { .. } => FrameKind::Create,
            },
            from: inputs.caller(),
            to: inputs.created_address(nonce),
            input: inputs.init_code().clone(),
            gas: inputs.gas_limit(),
            value: Some(inputs.value()),
            precompile: false,
        };
        self.enter(&entered, context);
    }

    fn enter<CTX: WatchedContext>(&mut self, entered: &Entered, context: &mut CTX) {
        self.frames.push(OpenFrame {
            gas: entered.gas,
            create: entered.kind.is_create(),
            refund: 0,
            failure: None,
        });
        let mut state = LiveState {
            context,
            failure: &mut self.failure,
        };
        self.tracer.enter(entered, &mut state, &mut self.out);
        self.note_bytes();
    }

    /// Ends a call or a creation.
    pub(super) fn on_frame_end<CTX: WatchedContext>(
        &mut self,
        context: &mut CTX,
        result: &InterpreterResult,
    ) {
        let Some(frame) = self.frames.pop() else {
            return;
        };
        let failure = (!result.result.is_ok()).then(|| {
            frame
                .failure
                .unwrap_or_else(|| Failure::of_frame(result.result, frame.create))
        });
        let gas_used = if result.result.is_error() {
            frame.gas
        } else {
            result.gas.total_gas_spent()
        };
        let left = Left {
            output: &result.output,
            gas_used,
            failure,
        };
        let root = self.frames.is_empty();
        let mut state = LiveState {
            context,
            failure: &mut self.failure,
        };
        self.tracer.leave(left, root, &mut state, &mut self.out);
        self.note_bytes();
    }
}
