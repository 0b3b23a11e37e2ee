//! `flatCallTracer`: the frames of a transaction in Parity's form, one after another.

use super::{
    Entered, Left, TraceEnd, TracePlace,
    arena::{CallArena, CallNode, FrameKind, FramePlace},
    calls::close,
    options::null_is_default,
    writer::TraceWriter,
};
use alloy_primitives::U256;
use serde::Deserialize;

/// Options of `flatCallTracer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FlatCallConfig {
    #[serde(deserialize_with = "null_is_default")]
    pub convert_parity_errors: bool,
    #[serde(deserialize_with = "null_is_default")]
    pub include_precompiles: bool,
}

/// The tracer's state: the frames of the transaction so far.
pub(super) struct FlatCallTracer {
    config: FlatCallConfig,
    arena: CallArena<()>,
}

impl FlatCallTracer {
    pub(super) fn new(config: FlatCallConfig) -> Self {
        Self {
            config,
            arena: CallArena::default(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.arena.bytes()
    }

    pub(super) fn enter(&mut self, mut entered: Entered) {
        if self.arena.depth() > 0 {
            entered.value.get_or_insert(U256::ZERO);
        }
        self.arena.enter(entered, ());
    }

    pub(super) fn leave(&mut self, left: Left<'_>) {
        self.arena.leave(left);
    }

    pub(super) fn finish(mut self, end: &TraceEnd<'_>, place: &TracePlace, out: &mut TraceWriter) {
        close(&mut self.arena, end, ());
        out.raw("[");
        let mut separator = "";
        let shown = |node: &CallNode<()>| {
            self.config.include_precompiles || node.parent.is_none() || !is_precompile_call(node)
        };
        self.arena.visit(shown, |node, at| {
            out.raw(std::mem::replace(&mut separator, ","));
            self.write(node, at, place, out);
        });
        out.raw("]");
    }

    fn write(
        &self,
        node: &CallNode<()>,
        at: FramePlace<'_>,
        place: &TracePlace,
        out: &mut TraceWriter,
    ) {
        out.raw("{\"action\":{");
        write_action(node, out);
        out.raw("},\"blockHash\":");
        match place.block_hash {
            Some(hash) => out.quoted(hash),
            None => out.raw("null"),
        }
        out.raw(",\"blockNumber\":");
        out.display(place.block_number);
        if let Some(failure) = &node.failure {
            out.raw(",\"error\":");
            out.string(if self.config.convert_parity_errors {
                parity_error(&failure.text)
            } else {
                &failure.text
            });
        }
        if node.entered.kind != FrameKind::SelfDestruct
            && node
                .failure
                .as_ref()
                .is_none_or(|failure| failure.is_revert())
        {
            write_result(node, out);
        }
        write_address(at, out);
        write_transaction(place, out);
        out.raw(",\"type\":");
        out.quoted(parity_type(node.entered.kind));
        out.raw("}");
    }
}

/// Parity's name for the type of a frame.
pub(super) fn parity_type(kind: FrameKind) -> &'static str {
    match kind {
        FrameKind::Create | FrameKind::Create2 => "create",
        FrameKind::SelfDestruct => "suicide",
        _ => "call",
    }
}

/// Writes the members that identify the transaction.
pub(super) fn write_transaction(place: &TracePlace, out: &mut TraceWriter) {
    out.raw(",\"transactionHash\":");
    match place.tx_hash {
        Some(hash) => out.quoted(hash),
        None => out.raw("null"),
    }
    out.raw(",\"transactionPosition\":");
    out.display(place.tx_index);
}

/// Writes the members that describe the frame's position among the frames.
pub(super) fn write_address(at: FramePlace<'_>, out: &mut TraceWriter) {
    out.raw(",\"subtraces\":");
    out.display(at.children);
    out.raw(",\"traceAddress\":[");
    for (index, number) in at.address.iter().enumerate() {
        out.raw(if index == 0 { "" } else { "," });
        out.display(number);
    }
    out.raw("]");
}

/// Whether this is a call of a precompile, which Parity omits.
fn is_precompile_call(node: &CallNode<()>) -> bool {
    node.entered.precompile && matches!(node.entered.kind, FrameKind::Call | FrameKind::StaticCall)
}

pub(super) fn write_action(node: &CallNode<()>, out: &mut TraceWriter) {
    let entered = &node.entered;
    if entered.kind == FrameKind::SelfDestruct {
        out.raw("\"address\":");
        out.quoted(format_args!("{:#x}", entered.from));
        out.raw(",\"balance\":");
        out.quantity(entered.value.unwrap_or_default());
        out.raw(",\"refundAddress\":");
        out.quoted(format_args!("{:#x}", entered.to));
        return;
    }
    let method = entered.kind.name().to_lowercase();
    let create = entered.kind.is_create();
    out.raw(if create {
        "\"creationMethod\":"
    } else {
        "\"callType\":"
    });
    out.quoted(method);
    out.raw(",\"from\":");
    out.quoted(format_args!("{:#x}", entered.from));
    if !create {
        out.raw(",\"to\":");
        out.quoted(format_args!("{:#x}", entered.to));
    }
    out.raw(",\"gas\":");
    out.quantity(U256::from(entered.gas));
    out.raw(if create { ",\"init\":" } else { ",\"input\":" });
    out.data(&entered.input);
    if let Some(value) = entered.value {
        out.raw(",\"value\":");
        out.quantity(value);
    }
}

fn write_result(node: &CallNode<()>, out: &mut TraceWriter) {
    let create = node.entered.kind.is_create();
    out.raw(",\"result\":{");
    if create && let Some(address) = node.to() {
        out.raw("\"address\":");
        out.quoted(format_args!("{address:#x}"));
        out.raw(",");
    }
    out.raw(if create { "\"code\":" } else { "\"output\":" });
    out.data(&node.output);
    out.raw(",\"gasUsed\":");
    out.quantity(U256::from(node.gas_used));
    out.raw("}");
}

/// Parity's wording of one of geth's errors.
pub(super) fn parity_error(text: &str) -> &str {
    match text {
        "contract creation code storage out of gas"
        | "out of gas"
        | "gas uint64 overflow"
        | "max code size exceeded" => "Out of gas",
        "invalid jump destination" => "Bad jump destination",
        "execution reverted" => "Reverted",
        "return data out of bounds" => "Out of bounds",
        "stack limit reached 1024 (1023)" => "Out of stack",
        "precompiled failed" | "invalid input length" => "Built-in failed",
        text if text.starts_with("out of gas:") => "Out of gas",
        text if text.starts_with("invalid opcode:") => "Bad instruction",
        text if text.starts_with("stack underflow") => "Stack underflow",
        text => text,
    }
}
