//! The logger of geth's `standardTrace` methods: a line of JSON for each instruction and for each
//! frame that ends (EIP-3155).

use super::{
    Left, StepEnd, TracedStep,
    failure::op_name,
    struct_log::{StructLogConfig, write_list},
    writer::TraceWriter,
};
use alloy_primitives::hex;
use std::io::Write;

/// The logger's state for one transaction.
pub(super) struct JsonLogger {
    config: StructLogConfig,
    written: u64,
    line: Option<JsonLine>,
}

/// The text of a line before and after the cost, which is not known yet.
struct JsonLine {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl JsonLogger {
    pub(super) fn new(config: StructLogConfig) -> Self {
        Self {
            config,
            written: 0,
            line: None,
        }
    }

    pub(super) fn step(&mut self, step: &TracedStep<'_>) {
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        let _ = write!(
            head,
            "{{\"pc\":{},\"op\":{},\"gas\":\"{:#x}\",\"gasCost\":\"",
            step.pc, step.op, step.gas
        );
        let _ = tail.write_all(b"\"");
        if self.config.enable_memory && !step.memory.is_empty() {
            let _ = write!(tail, ",\"memory\":\"0x{}\"", hex::encode(&*step.memory));
        }
        let _ = write!(tail, ",\"memSize\":{}", step.memory.len());
        if self.config.disable_stack {
            let _ = tail.write_all(b",\"stack\":null");
        } else {
            write_list(&mut tail, "stack", step.stack, |out, word| {
                let _ = write!(out, "\"{word:#x}\"");
            });
        }
        if self.config.enable_return_data && !step.return_data.is_empty() {
            let data = hex::encode(step.return_data);
            let _ = write!(tail, ",\"returnData\":\"0x{data}\"");
        }
        let (depth, refund) = (step.depth, step.refund);
        let _ = write!(tail, ",\"depth\":{depth},\"refund\":{refund}");
        let name = op_name(step.op);
        let _ = write!(tail, ",\"opName\":\"{name}\"");
        self.line = Some(JsonLine { head, tail });
    }

    pub(super) fn step_end(&mut self, end: &StepEnd<'_>, out: &mut TraceWriter) {
        let Some(line) = self.line.take() else { return };
        let error = end.failure.map(|failure| failure.text.as_str());
        match end.failure {
            Some(failure) if failure.before_step => self.write(&line, end.cost, error, out),
            // geth writes an instruction that fails while it runs a second time, with its error.
            Some(_) => {
                self.write(&line, end.cost, None, out);
                self.write(&line, end.cost, error, out);
            }
            None => self.write(&line, end.cost, None, out),
        }
    }

    fn write(&mut self, line: &JsonLine, cost: u64, error: Option<&str>, out: &mut TraceWriter) {
        if self.config.is_full(self.written) {
            return;
        }
        let mut text = line.head.clone();
        let _ = write!(text, "{cost:#x}");
        text.extend_from_slice(&line.tail);
        if let Some(error) = error {
            let error = serde_json::Value::from(error);
            let _ = write!(text, ",\"error\":{error}");
        }
        text.extend_from_slice(b"}\n");
        self.written += text.len() as u64;
        out.bytes(&text);
    }

    pub(super) fn leave(&mut self, left: &Left<'_>, out: &mut TraceWriter) {
        out.raw("{\"output\":\"");
        out.raw(&hex::encode(left.output));
        out.raw("\",\"gasUsed\":\"");
        out.display(format_args!("{:#x}\"", left.gas_used));
        if let Some(failure) = &left.failure {
            out.raw(",\"error\":");
            out.string(&failure.text);
        }
        out.raw("}\n");
    }
}
