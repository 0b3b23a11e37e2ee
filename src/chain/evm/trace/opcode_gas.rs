//! The gas that the instructions of a transaction used, by opcode (`trace_transactionOpcodeGas`).
//!
//! Gas that a call passes on is counted for the callee's instructions, not for the call.

use super::{
    Entered, StepEnd, TracedStep, arena::FrameKind, failure::op_name, writer::TraceWriter,
};
use revm::bytecode::opcode::OpCode;
use std::collections::BTreeMap;

/// Gas that the callee of a call with value gets in addition.
const CALL_STIPEND: u64 = 2_300;

/// The count and the gas of the instructions with one opcode.
#[derive(Clone, Copy, Default)]
struct OpcodeUse {
    count: u64,
    gas: u64,
}

/// The tracer's state: the instructions so far.
#[derive(Default)]
pub(super) struct OpcodeGasTracer {
    by_opcode: BTreeMap<u8, OpcodeUse>,
    /// The opcode of the last instruction.
    last: Option<u8>,
    /// The gas before the last instruction.
    gas: u64,
}

impl OpcodeGasTracer {
    pub(super) fn step(&mut self, step: &TracedStep<'_>) {
        self.last = OpCode::new(step.op).map(OpCode::get);
        self.gas = step.gas;
        if let Some(op) = self.last {
            self.by_opcode.entry(op).or_default().count += 1;
        }
    }

    pub(super) fn step_end(&mut self, end: &StepEnd<'_>) {
        if let Some(op) = self.last {
            let used = self.by_opcode.entry(op).or_default();
            // An instruction that gas runs out of uses what was left, whatever it would have cost.
            let out_of_gas = end.failure.is_some_and(|failure| failure.out_of_gas);
            let gas = if out_of_gas { self.gas } else { end.cost };
            used.gas = used.gas.saturating_add(gas);
        }
    }

    pub(super) fn enter(&mut self, entered: &Entered) {
        let call = matches!(
            entered.kind,
            FrameKind::Call | FrameKind::CallCode | FrameKind::DelegateCall | FrameKind::StaticCall
        );
        // The transaction itself begins the first frame, so no opcode does. The cost of a creation
        // does not include the gas of the new frame.
        let Some(op) = self.last.filter(|_| call) else {
            return;
        };
        let transfers = matches!(entered.kind, FrameKind::Call | FrameKind::CallCode)
            && entered.value.is_some_and(|value| !value.is_zero());
        let stipend = if transfers { CALL_STIPEND } else { 0 };
        let used = self.by_opcode.entry(op).or_default();
        used.gas = used.gas.saturating_sub(entered.gas.saturating_sub(stipend));
    }

    pub(super) fn finish(self, out: &mut TraceWriter) {
        out.raw("[");
        for (index, (op, used)) in self.by_opcode.iter().enumerate() {
            out.raw(if index == 0 { "" } else { "," });
            out.raw("{\"opcode\":");
            out.quoted(op_name(*op));
            out.raw(",\"count\":");
            out.display(used.count);
            out.raw(",\"gasUsed\":");
            out.display(used.gas);
            out.raw("}");
        }
        out.raw("]");
    }
}
