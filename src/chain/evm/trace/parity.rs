//! The results of Parity's `trace_call` and `trace_replay` methods: output, frames, instructions,
//! and state changes of one transaction.

use super::{
    Entered, Left, StepEnd, TraceEnd, TracePlace, TraceStart, TracedStep, frames::FrameTracer,
    point::PointState, state_diff::write_state_diff, vm_trace::VmTracer, writer::TraceWriter,
};

/// The requested parts of the results. The output is always included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParityConfig {
    pub trace: bool,
    pub vm_trace: bool,
    pub state_diff: bool,
    /// Whether the hash of the transaction is added.
    pub with_hash: bool,
}

/// The tracer's state for one transaction.
pub(super) struct ParityTracer {
    config: ParityConfig,
    frames: FrameTracer,
    /// Number of frames that have not ended.
    depth: usize,
    vm: VmTracer,
}

impl ParityTracer {
    pub(super) fn new(config: ParityConfig) -> Self {
        Self {
            config,
            frames: FrameTracer::default(),
            depth: 0,
            vm: VmTracer::default(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.frames.bytes()
    }

    pub(super) fn begin(&mut self, start: &TraceStart, out: &mut TraceWriter) {
        self.frames.begin(start);
        out.raw("{\"vmTrace\":");
    }

    pub(super) fn enter(&mut self, entered: &Entered, out: &mut TraceWriter) {
        // Without `trace` only the root frame is kept, for its output.
        if self.config.trace || self.depth == 0 {
            self.frames.enter(entered.clone());
        }
        self.depth += 1;
        if self.config.vm_trace {
            self.vm.enter(entered, out);
        }
    }

    pub(super) fn step(&mut self, step: &TracedStep<'_>, out: &mut TraceWriter) {
        self.vm.step(step, out);
    }

    pub(super) fn step_end(&mut self, end: &StepEnd<'_>) {
        self.vm.step_end(end);
    }

    pub(super) fn leave(&mut self, left: Left<'_>, out: &mut TraceWriter) {
        self.depth = self.depth.saturating_sub(1);
        if self.config.trace || self.depth == 0 {
            self.frames.leave(left);
        }
        if self.config.vm_trace {
            self.vm.leave(out);
        }
    }

    pub(super) fn finish(
        self,
        end: &TraceEnd<'_>,
        place: &TracePlace,
        state: &mut dyn PointState,
        out: &mut TraceWriter,
    ) {
        if self.vm.is_empty() {
            out.raw("null");
        }
        out.raw(",\"output\":");
        out.data(&self.frames.output());
        out.raw(",\"stateDiff\":");
        if self.config.state_diff {
            write_state_diff(end.changed, state, out);
        } else {
            out.raw("null");
        }
        out.raw(",\"trace\":[");
        if self.config.trace {
            self.frames.finish().write(out);
        }
        out.raw("]");
        if let Some(hash) = place.tx_hash.filter(|_| self.config.with_hash) {
            out.raw(",\"transactionHash\":");
            out.quoted(hash);
        }
        out.raw("}");
    }
}
