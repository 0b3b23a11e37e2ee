//! The struct logger, geth's default tracer: a log line for each instruction.
//!
//! Lines are written as instructions run, so a whole trace is never in memory unless its writer
//! keeps it. Lines are encoded as Go encodes them, since `limit` counts encoded bytes.

use super::{
    FrameEnd, StepEnd, TraceEnd, TracedStep, failure::op_name, options::null_is_default,
    point::PointState, writer::TraceWriter,
};
use alloy_primitives::{Address, B256, U256, hex};
use revm::bytecode::opcode;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, HashMap},
    io::Write,
};

/// Bytes of memory in one printed word.
const WORD: usize = 32;

/// Options of the struct logger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StructLogConfig {
    #[serde(deserialize_with = "null_is_default")]
    pub enable_memory: bool,
    #[serde(deserialize_with = "null_is_default")]
    pub disable_stack: bool,
    #[serde(deserialize_with = "null_is_default")]
    pub disable_storage: bool,
    #[serde(deserialize_with = "null_is_default")]
    pub enable_return_data: bool,
    /// Number of bytes after which no further line is written; zero means no limit, and less than
    /// zero that no line is written.
    #[serde(deserialize_with = "null_is_default")]
    pub limit: i64,
}

impl StructLogConfig {
    /// Whether no further line is written after so many bytes.
    pub(super) fn is_full(&self, written: u64) -> bool {
        self.limit != 0 && i64::try_from(written).is_ok_and(|written| written > self.limit)
    }
}

/// The struct logger of one transaction.
pub(super) struct StructLogger {
    config: StructLogConfig,
    /// The slots that each contract has read or written so far, with their values.
    storage: HashMap<Address, BTreeMap<B256, B256>>,
    /// Bytes of the lines written so far.
    written: u64,
    line: Option<LogLine>,
    /// The end of the root frame.
    end: Option<FrameEnd>,
}

/// The text of a line before and after the cost, which is not known yet.
struct LogLine {
    head: Vec<u8>,
    tail: Vec<u8>,
    depth: usize,
}

impl StructLogger {
    pub(super) fn new(config: StructLogConfig) -> Self {
        Self {
            config,
            storage: HashMap::new(),
            written: 0,
            line: None,
            end: None,
        }
    }

    pub(super) fn begin(&self, out: &mut TraceWriter) {
        out.raw("{\"structLogs\":[");
    }

    pub(super) fn step(&mut self, step: &TracedStep<'_>, state: &mut dyn PointState) {
        self.line = None;
        if self.config.is_full(self.written) {
            return;
        }
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        let _ = write!(
            head,
            "{{\"pc\":{},\"op\":\"{}\",\"gas\":{},\"gasCost\":",
            step.pc,
            op_name(step.op),
            step.gas
        );
        if !self.config.disable_stack {
            write_list(&mut tail, "stack", step.stack, |out, word| {
                let _ = write!(out, "\"{word:#x}\"");
            });
        }
        if self.config.enable_return_data && !step.return_data.is_empty() {
            let data = hex::encode(step.return_data);
            let _ = write!(tail, ",\"returnData\":\"0x{data}\"");
        }
        if self.config.enable_memory && !step.memory.is_empty() {
            let words: Vec<&[u8]> = step.memory.chunks(WORD).collect();
            write_list(&mut tail, "memory", &words, |out, word| {
                let _ = write!(out, "\"0x{:0<64}\"", hex::encode(word));
            });
        }
        self.write_storage(step, state, &mut tail);
        if step.refund > 0 {
            let _ = write!(tail, ",\"refund\":{}", step.refund);
        }
        tail.push(b'}');
        self.line = Some(LogLine {
            head,
            tail,
            depth: step.depth,
        });
    }

    /// Writes the contract's slots so far, if the instruction reads or writes a slot.
    fn write_storage(
        &mut self,
        step: &TracedStep<'_>,
        state: &mut dyn PointState,
        tail: &mut Vec<u8>,
    ) {
        if self.config.disable_storage {
            return;
        }
        let change = match (step.op, step.stack) {
            (opcode::SLOAD, [.., slot]) => (*slot, state.slot(step.address, *slot)),
            (opcode::SSTORE, [.., value, slot]) => (*slot, *value),
            _ => return,
        };
        let slots = self.storage.entry(step.address).or_default();
        slots.insert(change.0.into(), change.1.into());
        tail.extend_from_slice(b",\"storage\":{");
        for (index, (slot, value)) in slots.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            let _ = write!(tail, "{separator}\"{slot}\":\"{value}\"");
        }
        tail.push(b'}');
    }

    pub(super) fn step_end(&mut self, end: &StepEnd<'_>, out: &mut TraceWriter) {
        let Some(mut line) = self.line.take() else {
            return;
        };
        let _ = write!(line.head, "{},\"depth\":{}", end.cost, line.depth);
        if let Some(failure) = end.failure.filter(|failure| failure.before_step) {
            // Go's JSON encoder escapes these three characters.
            let text = failure
                .text
                .replace('<', "\\u003c")
                .replace('>', "\\u003e")
                .replace('&', "\\u0026");
            let _ = write!(line.head, ",\"error\":\"{text}\"");
        }
        if self.written > 0 {
            out.raw(",");
        }
        self.written += (line.head.len() + line.tail.len()) as u64;
        out.bytes(&line.head);
        out.bytes(&line.tail);
    }

    pub(super) fn leave_root(&mut self, end: FrameEnd) {
        self.end = Some(end);
    }

    pub(super) fn finish(self, end: &TraceEnd<'_>, out: &mut TraceWriter) {
        out.raw("],\"gas\":");
        out.display(end.gas_used);
        let failure = self.end.as_ref().map(|end| end.failure.as_ref());
        // A transaction without any frame is a deposit that failed.
        let failed = failure.is_none_or(|failure| failure.is_some());
        out.raw(",\"failed\":");
        out.display(failed);
        out.raw(",\"returnValue\":");
        match self.end {
            Some(FrameEnd { output, failure })
                if failure.as_ref().is_none_or(|failure| failure.is_revert()) =>
            {
                out.data(&output);
            }
            _ => out.data(&[]),
        }
        out.raw("}");
    }
}

/// Writes a member that is a list.
pub(super) fn write_list<T>(
    out: &mut Vec<u8>,
    name: &str,
    items: &[T],
    write_item: impl Fn(&mut Vec<u8>, &T),
) {
    let _ = write!(out, ",\"{name}\":[");
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_item(out, item);
    }
    out.push(b']');
}

/// The address in a word of the stack.
pub(super) fn address_of(word: U256) -> Address {
    Address::from_word(word.into())
}
