//! The built-in tracers by name, and the events that each of them needs.

use super::{
    Entered, FrameEnd, Left, StepEnd, TraceEnd, TracePlace, TraceStart, TracedStep,
    calls::{CallTracer, CallTracerConfig},
    erc7562::{Erc7562Config, Erc7562Tracer},
    flat::{FlatCallConfig, FlatCallTracer},
    four_byte::FourByteTracer,
    frames::FrameTracer,
    json_log::JsonLogger,
    opcode_gas::OpcodeGasTracer,
    parity::{ParityConfig, ParityTracer},
    point::PointState,
    prestate::{PrestateConfig, PrestateTracer},
    script::{ScriptSource, ScriptTracer},
    struct_log::{StructLogConfig, StructLogger},
    writer::TraceWriter,
};
use alloy_primitives::Log;

/// The kind of a tracer, with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TracerConfig {
    StructLog(StructLogConfig),
    /// The logger of geth's `standardTrace` methods, which writes lines.
    JsonLog(StructLogConfig),
    Call(CallTracerConfig),
    FlatCall(FlatCallConfig),
    Prestate(PrestateConfig),
    FourByte,
    Noop,
    Erc7562(Erc7562Config),
    /// Frames, which are kept for the caller instead of being written.
    Frames,
    /// Results for Parity's methods that replay transactions.
    Parity(ParityConfig),
    /// Gas used, by opcode.
    OpcodeGas,
    Script(ScriptSource),
    /// Several named tracers at once (`muxTracer`); only tracers that write nothing before the end
    /// of the transaction.
    Mux(Vec<NamedTracer>),
}

/// A named tracer within `muxTracer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTracer {
    pub name: String,
    pub config: TracerConfig,
}

impl TracerConfig {
    pub(super) fn tracer(&self) -> NativeTracer {
        match self {
            Self::StructLog(config) => NativeTracer::StructLog(StructLogger::new(*config)),
            Self::JsonLog(config) => NativeTracer::JsonLog(JsonLogger::new(*config)),
            Self::Call(config) => NativeTracer::Call(CallTracer::new(*config)),
            Self::FlatCall(config) => NativeTracer::FlatCall(FlatCallTracer::new(*config)),
            Self::Prestate(config) => NativeTracer::Prestate(PrestateTracer::new(*config)),
            Self::FourByte => NativeTracer::FourByte(FourByteTracer::default()),
            Self::Noop => NativeTracer::Noop,
            Self::Erc7562(config) => NativeTracer::Erc7562(Erc7562Tracer::new(config.clone())),
            Self::Frames => NativeTracer::Frames(FrameTracer::default()),
            Self::Parity(config) => NativeTracer::Parity(Box::new(ParityTracer::new(*config))),
            Self::OpcodeGas => NativeTracer::OpcodeGas(OpcodeGasTracer::default()),
            Self::Script(source) => {
                NativeTracer::Script(Box::new(ScriptTracer::new(source.clone())))
            }
            Self::Mux(parts) => NativeTracer::Mux(
                parts
                    .iter()
                    .map(|part| MuxPart {
                        name: part.name.clone(),
                        tracer: part.config.tracer(),
                    })
                    .collect(),
            ),
        }
    }

    /// Whether the tracer needs an event for every instruction.
    pub(super) fn wants_steps(&self) -> bool {
        match self {
            Self::StructLog(_)
            | Self::JsonLog(_)
            | Self::Prestate(_)
            | Self::Erc7562(_)
            | Self::OpcodeGas
            | Self::Script(_) => true,
            Self::Call(_) | Self::FlatCall(_) | Self::FourByte | Self::Noop | Self::Frames => false,
            Self::Parity(config) => config.vm_trace,
            Self::Mux(parts) => parts.iter().any(|part| part.config.wants_steps()),
        }
    }
}

/// The running tracer of one transaction.
pub(super) enum NativeTracer {
    StructLog(StructLogger),
    JsonLog(JsonLogger),
    Call(CallTracer),
    FlatCall(FlatCallTracer),
    Prestate(PrestateTracer),
    FourByte(FourByteTracer),
    Noop,
    Erc7562(Erc7562Tracer),
    Frames(FrameTracer),
    Parity(Box<ParityTracer>),
    OpcodeGas(OpcodeGasTracer),
    /// The caller begins and finishes this tracer, since the caller has the script host.
    Script(Box<ScriptTracer>),
    Mux(Vec<MuxPart>),
}

/// A running tracer within `muxTracer`, with its name.
pub(super) struct MuxPart {
    name: String,
    tracer: NativeTracer,
}

impl NativeTracer {
    /// Bytes that the tracer has recorded of the transaction so far.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Call(tracer) => tracer.bytes(),
            Self::FlatCall(tracer) => tracer.bytes(),
            Self::Prestate(tracer) => tracer.bytes(),
            Self::Erc7562(tracer) => tracer.bytes(),
            Self::Frames(tracer) => tracer.bytes(),
            Self::Parity(tracer) => tracer.bytes(),
            Self::Mux(parts) => parts
                .iter()
                .map(|part| part.tracer.bytes())
                .fold(0, usize::saturating_add),
            Self::StructLog(_)
            | Self::JsonLog(_)
            | Self::FourByte(_)
            | Self::Noop
            | Self::OpcodeGas(_)
            | Self::Script(_) => 0,
        }
    }

    pub(super) fn begin(
        &mut self,
        start: &TraceStart,
        state: &mut dyn PointState,
        out: &mut TraceWriter,
    ) {
        match self {
            Self::StructLog(tracer) => tracer.begin(out),
            Self::Prestate(tracer) => tracer.begin(start, state),
            Self::Frames(tracer) => tracer.begin(start),
            Self::Parity(tracer) => tracer.begin(start, out),
            Self::Mux(parts) => {
                for part in parts {
                    part.tracer.begin(start, state, out);
                }
            }
            Self::JsonLog(_)
            | Self::Call(_)
            | Self::FlatCall(_)
            | Self::FourByte(_)
            | Self::Noop
            | Self::Erc7562(_)
            | Self::OpcodeGas(_)
            | Self::Script(_) => {}
        }
    }

    pub(super) fn enter(
        &mut self,
        entered: &Entered,
        state: &mut dyn PointState,
        out: &mut TraceWriter,
    ) {
        match self {
            Self::Call(tracer) => tracer.enter(entered.clone()),
            Self::FlatCall(tracer) => tracer.enter(entered.clone()),
            Self::FourByte(tracer) => tracer.enter(entered),
            Self::Erc7562(tracer) => tracer.enter(entered.clone()),
            Self::Frames(tracer) => tracer.enter(entered.clone()),
            Self::Parity(tracer) => tracer.enter(entered, out),
            Self::OpcodeGas(tracer) => tracer.enter(entered),
            Self::Script(tracer) => tracer.enter(entered, state),
            Self::Mux(parts) => {
                for part in parts {
                    part.tracer.enter(entered, state, out);
                }
            }
            Self::StructLog(_) | Self::JsonLog(_) | Self::Prestate(_) | Self::Noop => {}
        }
    }

    pub(super) fn leave(
        &mut self,
        left: Left<'_>,
        root: bool,
        state: &mut dyn PointState,
        out: &mut TraceWriter,
    ) {
        match self {
            Self::StructLog(tracer) if root => tracer.leave_root(FrameEnd {
                output: left.output.clone(),
                failure: left.failure,
            }),
            Self::JsonLog(tracer) => tracer.leave(&left, out),
            Self::Call(tracer) => tracer.leave(left),
            Self::FlatCall(tracer) => tracer.leave(left),
            Self::Erc7562(tracer) => tracer.leave(left),
            Self::Frames(tracer) => tracer.leave(left),
            Self::Parity(tracer) => tracer.leave(left, out),
            Self::Script(tracer) => tracer.leave(&left, state),
            Self::Mux(parts) => {
                for part in parts {
                    part.tracer.leave(left.clone(), root, state, out);
                }
            }
            Self::StructLog(_)
            | Self::Prestate(_)
            | Self::FourByte(_)
            | Self::Noop
            | Self::OpcodeGas(_) => {}
        }
    }

    pub(super) fn log(&mut self, log: &Log) {
        match self {
            Self::Call(tracer) => tracer.log(log),
            Self::Erc7562(tracer) => tracer.log(log),
            Self::Mux(parts) => {
                for part in parts {
                    part.tracer.log(log);
                }
            }
            Self::StructLog(_)
            | Self::JsonLog(_)
            | Self::FlatCall(_)
            | Self::Prestate(_)
            | Self::FourByte(_)
            | Self::Noop
            | Self::Frames(_)
            | Self::Parity(_)
            | Self::OpcodeGas(_)
            | Self::Script(_) => {}
        }
    }

    pub(super) fn step(
        &mut self,
        step: &TracedStep<'_>,
        state: &mut dyn PointState,
        out: &mut TraceWriter,
    ) {
        match self {
            Self::StructLog(tracer) => tracer.step(step, state),
            Self::JsonLog(tracer) => tracer.step(step),
            Self::Prestate(tracer) => tracer.step(step, state),
            Self::Erc7562(tracer) => tracer.step(step, state),
            Self::Parity(tracer) => tracer.step(step, out),
            Self::OpcodeGas(tracer) => tracer.step(step),
            Self::Script(tracer) => tracer.step(step, state),
            Self::Mux(parts) => {
                for part in parts {
                    part.tracer.step(step, state, out);
                }
            }
            Self::Call(_)
            | Self::FlatCall(_)
            | Self::FourByte(_)
            | Self::Noop
            | Self::Frames(_) => {}
        }
    }

    pub(super) fn step_end(
        &mut self,
        end: &StepEnd<'_>,
        state: &mut dyn PointState,
        out: &mut TraceWriter,
    ) {
        match self {
            Self::StructLog(tracer) => tracer.step_end(end, out),
            Self::JsonLog(tracer) => tracer.step_end(end, out),
            Self::Prestate(tracer) => {
                if end.failure.is_some_and(|failure| failure.before_step) {
                    tracer.undo_step();
                }
            }
            Self::Parity(tracer) => tracer.step_end(end),
            Self::OpcodeGas(tracer) => tracer.step_end(end),
            Self::Script(tracer) => tracer.step_end(end, state),
            Self::Mux(parts) => {
                for part in parts {
                    part.tracer.step_end(end, state, out);
                }
            }
            Self::Call(_)
            | Self::FlatCall(_)
            | Self::FourByte(_)
            | Self::Noop
            | Self::Erc7562(_)
            | Self::Frames(_) => {}
        }
    }

    /// Writes the trace. `state` is the state after the transaction.
    pub(super) fn finish(
        self,
        end: &TraceEnd<'_>,
        place: &TracePlace,
        state: &mut dyn PointState,
        out: &mut TraceWriter,
    ) {
        match self {
            Self::StructLog(tracer) => tracer.finish(end, out),
            Self::Call(tracer) => tracer.finish(end, out),
            Self::FlatCall(tracer) => tracer.finish(end, place, out),
            Self::Prestate(tracer) => tracer.finish(state, out),
            Self::FourByte(tracer) => tracer.finish(out),
            // The logger has written its lines already. The caller finishes the other two itself.
            Self::JsonLog(_) | Self::Frames(_) | Self::Script(_) => {}
            Self::Parity(tracer) => tracer.finish(end, place, state, out),
            Self::OpcodeGas(tracer) => tracer.finish(out),
            Self::Noop => out.raw("{}"),
            Self::Erc7562(tracer) => tracer.finish(end, out),
            Self::Mux(parts) => {
                out.raw("{");
                for (index, part) in parts.into_iter().enumerate() {
                    out.raw(if index == 0 { "" } else { "," });
                    out.string(&part.name);
                    out.raw(":");
                    part.tracer.finish(end, place, state, out);
                }
                out.raw("}");
            }
        }
    }
}
