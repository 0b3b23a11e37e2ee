//! `vmTrace` in Parity's form: every instruction of a transaction, with a callee's instructions
//! inside the instruction that called it.
//!
//! Text is written while the transaction runs. An instruction is written when the next one of its
//! frame begins or the frame ends, since only then its effects are known. An instruction that calls
//! is written in two parts, the first one when its callee begins.

use super::{Entered, FrameKind, StepEnd, TracedStep, failure::op_name, writer::TraceWriter};
use alloy_primitives::U256;
use revm::bytecode::opcode::{self, OpCode};

/// The tracer's state: the frames that have not ended.
#[derive(Default)]
pub(super) struct VmTracer {
    frames: Vec<VmFrame>,
    /// Whether the root frame has been written.
    written: bool,
}

/// A frame that has not ended.
struct VmFrame {
    /// Whether the frame is not written at all: it is a SELFDESTRUCT.
    hidden: bool,
    precompile: bool,
    /// Whether the frame's code has been written.
    begun: bool,
    /// Whether an instruction of the frame has been written, so that the next one needs a comma.
    separated: bool,
    op: Option<PendingOp>,
}

/// An instruction that is not completely written yet.
struct PendingOp {
    pc: usize,
    op: u8,
    gas: u64,
    cost: u64,
    failed: bool,
    /// Offset and length of the memory that the instruction writes.
    memory: Option<(usize, usize)>,
    /// The slot that the instruction writes, and the new value.
    store: Option<(U256, U256)>,
    /// Whether the text up to `sub` has been written, because a callee has begun.
    called: bool,
}

impl PendingOp {
    fn new(step: &TracedStep<'_>) -> Self {
        let store = match (step.op, step.stack) {
            (opcode::SSTORE, [.., value, slot]) => Some((*slot, *value)),
            _ => None,
        };
        Self {
            pc: step.pc,
            op: step.op,
            gas: step.gas,
            cost: 0,
            failed: false,
            memory: written_range(step),
            store,
            called: false,
        }
    }

    fn write_head(&mut self, out: &mut TraceWriter) {
        self.called = true;
        out.raw("{\"cost\":");
        out.display(self.cost);
        out.raw(",\"op\":");
        out.quoted(op_name(self.op));
        out.raw(",\"pc\":");
        out.display(self.pc);
        out.raw(",\"sub\":");
    }

    /// Writes the rest of the instruction. `after` is the next instruction of the frame.
    fn write_end(mut self, after: Option<&TracedStep<'_>>, out: &mut TraceWriter) {
        if !self.called {
            self.write_head(out);
            out.raw("null");
        }
        out.raw(",\"ex\":");
        if self.failed {
            return out.raw("null}");
        }
        out.raw("{\"mem\":");
        let changed = after
            .zip(self.memory)
            .and_then(|(after, (offset, length))| {
                let memory = after.memory.get(offset..offset.checked_add(length)?)?;
                Some((offset, memory))
            });
        match changed {
            Some((offset, memory)) => {
                out.raw("{\"data\":");
                out.data(memory);
                out.raw(",\"off\":");
                out.display(offset);
                out.raw("}");
            }
            None => out.raw("null"),
        }
        out.raw(",\"push\":[");
        let pushed = after.map_or(&[][..], |after| {
            let count = OpCode::new(self.op).map_or(0, |op| usize::from(op.outputs()));
            &after.stack[after.stack.len().saturating_sub(count)..]
        });
        for (index, word) in pushed.iter().enumerate() {
            out.raw(if index == 0 { "" } else { "," });
            out.quantity(*word);
        }
        out.raw("],\"store\":");
        match self.store {
            Some((key, value)) => {
                out.raw("{\"key\":");
                out.quantity(key);
                out.raw(",\"val\":");
                out.quantity(value);
                out.raw("}");
            }
            None => out.raw("null"),
        }
        // `used` is Parity's name for the gas that is left.
        out.raw(",\"used\":");
        out.display(after.map_or(self.gas.saturating_sub(self.cost), |after| after.gas));
        out.raw("}}");
    }
}

/// Offset and length of the memory that an instruction is about to write.
pub(super) fn written_range(step: &TracedStep<'_>) -> Option<(usize, usize)> {
    let word = |position: usize| {
        let index = step.stack.len().checked_sub(position + 1)?;
        step.stack.get(index).copied()
    };
    let range = written_memory(step.op)?;
    let length = match range.length {
        WrittenLength::Bytes(bytes) => bytes,
        WrittenLength::OnStack(position) => usize::try_from(word(position)?).ok()?,
    };
    let offset = usize::try_from(word(range.offset)?).ok()?;
    (length > 0).then_some((offset, length))
}

/// The stack positions of the offset and the length of the memory that an instruction writes.
struct WrittenMemory {
    offset: usize,
    length: WrittenLength,
}

enum WrittenLength {
    Bytes(usize),
    OnStack(usize),
}

/// The memory that an instruction writes. As in Parity, the memory that MLOAD reads counts too.
fn written_memory(op: u8) -> Option<WrittenMemory> {
    let (offset, length) = match op {
        opcode::MSTORE | opcode::MLOAD => (0, WrittenLength::Bytes(32)),
        opcode::MSTORE8 => (0, WrittenLength::Bytes(1)),
        opcode::CALLDATACOPY | opcode::CODECOPY | opcode::RETURNDATACOPY | opcode::MCOPY => {
            (0, WrittenLength::OnStack(2))
        }
        opcode::EXTCODECOPY => (1, WrittenLength::OnStack(3)),
        opcode::CALL | opcode::CALLCODE => (5, WrittenLength::OnStack(6)),
        opcode::DELEGATECALL | opcode::STATICCALL => (4, WrittenLength::OnStack(5)),
        _ => return None,
    };
    Some(WrittenMemory { offset, length })
}

impl VmFrame {
    /// Writes the frame's pending instruction, if there is one. `after` is the next step, whose
    /// stack and memory are this instruction's result; `None` at the end of the frame.
    fn end_op(&mut self, after: Option<&TracedStep<'_>>, out: &mut TraceWriter) {
        if let Some(op) = self.op.take() {
            if !op.called {
                self.separate(out);
            }
            op.write_end(after, out);
        }
    }

    /// Writes a comma, except before the first instruction.
    fn separate(&mut self, out: &mut TraceWriter) {
        if std::mem::replace(&mut self.separated, true) {
            out.raw(",");
        }
    }
}

impl VmTracer {
    pub(super) fn enter(&mut self, entered: &Entered, out: &mut TraceWriter) {
        let hidden = entered.kind == FrameKind::SelfDestruct;
        if let Some(caller) = self.frames.last_mut().filter(|_| !hidden)
            && let Some(mut op) = caller.op.take()
        {
            caller.separate(out);
            op.write_head(out);
            caller.op = Some(op);
        }
        self.frames.push(VmFrame {
            hidden,
            precompile: entered.precompile,
            begun: false,
            separated: false,
            op: None,
        });
    }

    pub(super) fn step(&mut self, step: &TracedStep<'_>, out: &mut TraceWriter) {
        let Some(frame) = self.frames.last_mut() else {
            return;
        };
        frame.end_op(Some(step), out);
        // Beyond the end of the code the EVM runs an implicit STOP, which is not shown.
        if step.pc >= step.code.len() {
            return;
        }
        if !std::mem::replace(&mut frame.begun, true) {
            out.raw("{\"code\":");
            out.data(step.code);
            out.raw(",\"ops\":[");
        }
        frame.op = Some(PendingOp::new(step));
    }

    pub(super) fn step_end(&mut self, end: &StepEnd<'_>) {
        let op = self.frames.last_mut().and_then(|frame| frame.op.as_mut());
        if let Some(op) = op {
            op.cost = end.cost;
            op.failed = end.failure.is_some_and(|failure| !failure.is_revert());
        }
    }

    pub(super) fn leave(&mut self, out: &mut TraceWriter) {
        let Some(mut frame) = self.frames.pop().filter(|frame| !frame.hidden) else {
            return;
        };
        frame.end_op(None, out);
        out.raw(if frame.begun {
            "]}"
        } else if frame.precompile {
            "null"
        } else {
            "{\"code\":\"0x\",\"ops\":[]}"
        });
        self.written = true;
    }

    /// Whether no frame has been written.
    pub(super) fn is_empty(&self) -> bool {
        !self.written
    }
}
