//! Tracers: observers of an EVM that describe a transaction as geth's `debug` namespace does.
//!
//! [`Tracer`] turns revm's callbacks into the events that geth's tracers see: the frames that
//! begin and end, each instruction with its cost, logs. The tracers behind it ([`native`]) record
//! them and write JSON. They are bounded: what one transaction's frames and accounts may take, and
//! through [`TraceWriter`] the text. An EVM whose tracer has exceeded a bound is stopped at the next
//! instruction. Time is bounded by the EVM's [`Deadline`](super::Deadline).

mod arena;
mod calls;
mod erc7562;
mod failure;
mod flat;
mod four_byte;
mod json_log;
mod native;
mod point;
mod prestate;
mod struct_log;
mod writer;

pub use calls::CallTracerConfig;
pub use erc7562::Erc7562Config;
pub use flat::FlatCallConfig;
pub use native::{NamedTracer, TracerConfig};
pub use prestate::PrestateConfig;
pub use struct_log::StructLogConfig;
pub use writer::{ChunkSink, TraceWriter};

use super::{Db, StateError};
use alloy_primitives::{Address, B256, Bytes, Log, U256};
use arena::FrameKind;
use failure::Failure;
use native::NativeTracer;
use point::{LiveState, PointState, SettledState};
use revm::{
    bytecode::opcode,
    context::JournalTr,
    context_interface::CreateScheme,
    context_interface::{ContextTr, context::ContextError},
    inspector::JournalExt,
    interpreter::{
        CallInputs, CallOutcome, CallScheme, CreateInputs, CreateOutcome, FrameInput,
        InstructionResult, Interpreter, InterpreterAction, InterpreterResult,
        host::DummyHost,
        instructions::instruction_table,
        interpreter::EthInterpreter,
        interpreter_types::{InputsTr, Jumps, LoopControl, MemoryTr, ReturnData},
    },
    state::EvmState,
};
use std::{cell::Ref, sync::LazyLock};

/// The longest piece of memory that a tracer copies.
const MOST_MEMORY: usize = 1 << 20;

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The transaction is not valid at this point.
    #[error("tracing failed: {0}")]
    Invalid(String),
    #[error(
        "the trace is larger than {0} MB: trace a single transaction, or use options that leave parts out"
    )]
    TooLarge(usize),
    #[error(transparent)]
    State(#[from] StateError),
}

/// Megabytes that one transaction may make a tracer record.
const MOST_RECORDED_MB: usize = 32;

/// A transaction about to be traced.
#[derive(Clone, Debug, Default)]
pub(super) struct TraceStart {
    pub from: Address,
    /// `None` creates a contract.
    pub to: Option<Address>,
    pub gas_limit: u64,
    pub coinbase: Address,
    /// The account that gets the base fee, on OP.
    pub base_fee_vault: Option<Address>,
    /// Accounts that have signed authorizations (EIP-7702).
    pub authorities: Vec<Address>,
    pub cancun: bool,
    pub prague: bool,
}

/// A transaction that has been run.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceEnd {
    pub gas_limit: u64,
    pub gas_used: u64,
}

/// The place of a traced transaction in the chain.
#[derive(Clone, Copy, Debug, Default)]
pub struct TracePlace {
    /// `None` for a simulated call.
    pub block_hash: Option<B256>,
    pub block_number: u64,
    pub tx_hash: Option<B256>,
    pub tx_index: usize,
}

/// A frame that begins.
#[derive(Clone, Debug)]
struct Entered {
    pub kind: FrameKind,
    pub from: Address,
    pub to: Address,
    pub input: Bytes,
    pub gas: u64,
    pub value: Option<U256>,
    /// Whether `to` is a precompile.
    pub precompile: bool,
}

/// A frame that ends.
#[derive(Clone, Debug)]
struct Left<'a> {
    pub output: &'a Bytes,
    pub gas_used: u64,
    pub failure: Option<Failure>,
}

/// The end of the outermost frame.
struct FrameEnd {
    pub output: Bytes,
    pub failure: Option<Failure>,
}

/// An instruction that is about to run.
struct TracedStep<'a> {
    pub pc: usize,
    pub op: u8,
    pub gas: u64,
    pub depth: usize,
    /// Gas that the transaction would get back if it ended here.
    pub refund: u64,
    /// The account whose state the code works on.
    pub address: Address,
    pub stack: &'a [U256],
    pub memory: Ref<'a, [u8]>,
    pub return_data: &'a [u8],
}

impl TracedStep<'_> {
    /// A copy of memory, with zeros beyond its end; `None` if it is longer than a tracer copies.
    fn memory_padded(&self, offset: U256, length: U256) -> Option<Vec<u8>> {
        let length = usize::try_from(length)
            .ok()
            .filter(|it| *it <= MOST_MEMORY)?;
        let mut copy = vec![0; length];
        if let Ok(offset) = usize::try_from(offset)
            && let Some(rest) = self.memory.get(offset..)
        {
            let there = rest.len().min(length);
            copy[..there].copy_from_slice(&rest[..there]);
        }
        Some(copy)
    }
}

/// An instruction that has run.
struct StepEnd<'a> {
    pub cost: u64,
    pub failure: Option<&'a Failure>,
}

/// A frame that has not ended.
struct OpenFrame {
    gas: u64,
    create: bool,
    /// Refund counter of the frame's own instructions.
    refund: i64,
    /// How its last instruction failed.
    failure: Option<Failure>,
}

/// The instruction that runs.
#[derive(Default)]
struct CurrentStep {
    op: u8,
    gas: u64,
    stack: usize,
    /// The heir of a SELFDESTRUCT and what it gets.
    heir: Option<Inheritance>,
}

/// A balance that SELFDESTRUCT passes on.
#[derive(Clone, Copy)]
struct Inheritance {
    from: Address,
    to: Address,
    value: U256,
}

/// The cost of an instruction that did not run: its fixed part if that exceeds the gas, otherwise at
/// least all of the gas. geth prints what the instruction would have cost; revm does not say.
fn unpaid_cost(op: u8, gas: u64, failure: &Failure) -> u64 {
    static FIXED: LazyLock<[u64; 256]> = LazyLock::new(|| {
        instruction_table::<EthInterpreter, DummyHost>().map(|instruction| instruction.static_gas())
    });
    let fixed = FIXED[usize::from(op)];
    if failure.out_of_gas {
        fixed.max(gas)
    } else {
        fixed
    }
}

/// A tracer of transactions, one after another, and the text of their traces.
pub struct Tracer {
    config: TracerConfig,
    tracer: NativeTracer,
    steps: bool,
    out: TraceWriter,
    frames: Vec<OpenFrame>,
    step: CurrentStep,
    /// The first read of the state that failed.
    failure: Option<StateError>,
    full: bool,
}

impl Tracer {
    pub fn new(config: TracerConfig, out: TraceWriter) -> Self {
        let tracer = config.tracer();
        Self {
            steps: config.wants_steps(),
            config,
            tracer,
            out,
            frames: Vec::new(),
            step: CurrentStep::default(),
            failure: None,
            full: false,
        }
    }

    /// The text around traces.
    pub fn out(&mut self) -> &mut TraceWriter {
        &mut self.out
    }

    /// Ends the text: see [`TraceWriter::finish`].
    pub fn finish(self) -> Result<String, TraceError> {
        self.out.finish()
    }

    /// Begins a transaction, on the state before it.
    pub(super) fn begin(&mut self, start: &TraceStart, db: &mut Db) {
        self.tracer = self.config.tracer();
        self.frames.clear();
        self.step = CurrentStep::default();
        let mut state = SettledState {
            db,
            changed: None,
            failure: &mut self.failure,
        };
        self.tracer.begin(start, &mut state, &mut self.out);
    }

    /// Writes the trace of a transaction that has been run and has changed `changed`.
    pub(super) fn end(
        &mut self,
        end: &TraceEnd,
        place: &TracePlace,
        db: &mut Db,
        changed: &EvmState,
    ) -> Result<(), TraceError> {
        let mut state = SettledState {
            db,
            changed: Some(changed),
            failure: &mut self.failure,
        };
        let tracer = std::mem::replace(&mut self.tracer, NativeTracer::Noop);
        tracer.finish(end, place, &mut state, &mut self.out);
        self.stopped().map_or(Ok(()), Err)
    }

    /// Why the tracer has stopped the EVM.
    pub(super) fn stopped(&mut self) -> Option<TraceError> {
        if let Some(failure) = self.failure.take() {
            return Some(failure.into());
        }
        if self.full {
            return Some(TraceError::TooLarge(MOST_RECORDED_MB));
        }
        self.out.take_failure()
    }

    fn must_stop(&self) -> bool {
        self.full || self.failure.is_some() || self.out.failed()
    }

    pub(super) fn on_step<CTX>(
        &mut self,
        interpreter: &mut Interpreter<EthInterpreter>,
        context: &mut CTX,
    ) where
        CTX: ContextTr<Db = Db, Journal: JournalExt>,
    {
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
        self.step = CurrentStep {
            op,
            gas: interpreter.gas.remaining(),
            stack: interpreter.stack.len(),
            heir: None,
        };
        let from = interpreter.input.target_address();
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
        if !self.steps {
            return;
        }
        let refund: i64 = self.frames.iter().map(|frame| frame.refund).sum();
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
            return_data: interpreter.return_data.buffer(),
        };
        self.tracer.step(&step, &mut state);
        self.full |= self.tracer.is_full();
    }

    pub(super) fn on_step_end<CTX>(
        &mut self,
        interpreter: &mut Interpreter<EthInterpreter>,
        _: &mut CTX,
    ) {
        let mut cost = self.step.gas.saturating_sub(interpreter.gas.remaining());
        let mut failure = None;
        match interpreter.bytecode.action() {
            // geth charges the gas of a new contract's code beside the instruction's cost.
            Some(InterpreterAction::NewFrame(FrameInput::Create(inputs))) => {
                cost = cost.saturating_sub(inputs.gas_limit());
            }
            Some(InterpreterAction::Return(InterpreterResult { result, .. })) => {
                failure = Failure::of_step(*result, self.step.op, self.step.stack);
                if let Some(failure) = failure.as_ref().filter(|it| it.before_step) {
                    cost = unpaid_cost(self.step.op, self.step.gas, failure);
                }
                if *result == InstructionResult::SelfDestruct {
                    self.self_destructed();
                }
            }
            _ => {}
        }
        if self.steps {
            let end = StepEnd {
                cost,
                failure: failure.as_ref(),
            };
            self.tracer.step_end(&end, &mut self.out);
        }
        if failure.is_some()
            && let Some(frame) = self.frames.last_mut()
        {
            frame.failure = failure;
        }
    }

    /// A SELFDESTRUCT appears as a frame of its own.
    fn self_destructed(&mut self) {
        let Some(Inheritance { from, to, value }) = self.step.heir.take() else {
            return;
        };
        self.tracer.enter(&Entered {
            kind: FrameKind::SelfDestruct,
            from,
            to,
            input: Bytes::new(),
            gas: 0,
            value: Some(value),
            precompile: false,
        });
        let left = Left {
            output: &Bytes::new(),
            gas_used: 0,
            failure: None,
        };
        self.tracer.leave(left, false, &mut self.out);
    }

    pub(super) fn on_log(&mut self, log: &Log) {
        self.tracer.log(log);
        self.full |= self.tracer.is_full();
    }

    pub(super) fn on_call<CTX>(&mut self, context: &CTX, inputs: &CallInputs)
    where
        CTX: ContextTr<Db = Db, Journal: JournalExt>,
    {
        let (kind, from, to) = match inputs.scheme {
            CallScheme::Call => (FrameKind::Call, inputs.caller, inputs.target_address),
            CallScheme::StaticCall => (FrameKind::StaticCall, inputs.caller, inputs.target_address),
            CallScheme::CallCode => (FrameKind::CallCode, inputs.caller, inputs.bytecode_address),
            // The caller of the code that delegates is not the one who calls.
            CallScheme::DelegateCall => (
                FrameKind::DelegateCall,
                inputs.target_address,
                inputs.bytecode_address,
            ),
        };
        let value = (kind != FrameKind::StaticCall).then(|| inputs.call_value());
        let precompile = context.journal_ref().precompile_addresses().contains(&to);
        self.enter(Entered {
            kind,
            from,
            to,
            input: inputs.input.bytes(context),
            gas: inputs.gas_limit,
            value,
            precompile,
        });
    }

    pub(super) fn on_create<CTX>(&mut self, context: &CTX, inputs: &CreateInputs)
    where
        CTX: ContextTr<Db = Db, Journal: JournalExt>,
    {
        let caller = context.journal_ref().evm_state().get(&inputs.caller());
        let nonce = caller.map_or(0, |account| account.info.nonce);
        self.enter(Entered {
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
        });
    }

    fn enter(&mut self, entered: Entered) {
        self.frames.push(OpenFrame {
            gas: entered.gas,
            create: entered.kind.is_create(),
            refund: 0,
            failure: None,
        });
        self.tracer.enter(&entered);
        self.full |= self.tracer.is_full();
    }

    pub(super) fn on_call_end<CTX>(&mut self, _: &CTX, _: &CallInputs, outcome: &CallOutcome) {
        self.leave(&outcome.result);
    }

    pub(super) fn on_create_end(&mut self, outcome: &CreateOutcome) {
        self.leave(&outcome.result);
    }

    fn leave(&mut self, result: &InterpreterResult) {
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
        self.tracer.leave(left, root, &mut self.out);
        self.full |= self.tracer.is_full();
    }
}
