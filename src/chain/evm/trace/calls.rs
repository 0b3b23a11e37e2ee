//! `callTracer`: the frames of a transaction, nested.

use super::{
    Entered, Left, TraceEnd,
    arena::{CallArena, CallNode, FrameKind, PlacedLog},
    failure::Failure,
    options::null_is_default,
    writer::TraceWriter,
};
use crate::chain::evm::text::revert_reason;
use alloy_primitives::{Address, Bytes, Log, U256};
use serde::Deserialize;

/// Options of `callTracer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CallTracerConfig {
    #[serde(deserialize_with = "null_is_default")]
    pub only_top_call: bool,
    #[serde(deserialize_with = "null_is_default")]
    pub with_log: bool,
}

/// The tracer's state: the frames of the transaction so far.
pub(super) struct CallTracer {
    config: CallTracerConfig,
    arena: CallArena<()>,
    /// Number of open frames, including frames that are not kept.
    depth: usize,
}

impl CallTracer {
    pub(super) fn new(config: CallTracerConfig) -> Self {
        Self {
            config,
            arena: CallArena::default(),
            depth: 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.arena.bytes()
    }

    pub(super) fn enter(&mut self, entered: Entered) {
        self.depth += 1;
        if self.depth == 1 || !self.config.only_top_call {
            self.arena.enter(entered, ());
        }
    }

    pub(super) fn leave(&mut self, left: Left<'_>) {
        self.depth = self.depth.saturating_sub(1);
        if self.depth == 0 || !self.config.only_top_call {
            self.arena.leave(left);
        }
    }

    pub(super) fn log(&mut self, log: &Log) {
        if self.config.with_log && (self.depth == 1 || !self.config.only_top_call) {
            self.arena.log(log);
        }
    }

    pub(super) fn finish(mut self, end: &TraceEnd<'_>, out: &mut TraceWriter) {
        close(&mut self.arena, end, ());
        self.arena.drop_reverted_logs();
        write_nested(&self.arena, out, |_, _, _| ());
    }
}

/// Completes the frames at the end of a transaction. A transaction without any frame is a deposit
/// that failed before its first frame; it gets a frame here.
pub(super) fn close<T>(arena: &mut CallArena<T>, end: &TraceEnd<'_>, more: T) {
    if arena.nodes.is_empty() {
        arena.enter(
            Entered {
                kind: FrameKind::FailedDeposit,
                from: Address::ZERO,
                to: Address::ZERO,
                input: Bytes::new(),
                gas: end.gas_limit,
                value: None,
                precompile: false,
            },
            more,
        );
        arena.leave(Left {
            output: &Bytes::new(),
            gas_used: end.gas_used,
            failure: Some(Failure::failed_deposit()),
        });
    }
    if let Some(root) = arena.nodes.first_mut() {
        root.entered.gas = end.gas_limit;
        root.gas_used = end.gas_used;
    }
}

/// A frame whose list of calls is being written.
struct OpenList {
    frame: usize,
    empty: bool,
}

/// Writes the frames as nested objects. `more` writes additional members of a frame.
pub(super) fn write_nested<T>(
    arena: &CallArena<T>,
    out: &mut TraceWriter,
    more: impl Fn(&mut TraceWriter, usize, &T),
) {
    let mut lists: Vec<OpenList> = Vec::new();
    for (index, node) in arena.nodes.iter().enumerate() {
        while lists.last().map(|list| list.frame) != node.parent && lists.pop().is_some() {
            out.raw("]}");
        }
        if let Some(list) = lists.last_mut()
            && !std::mem::take(&mut list.empty)
        {
            out.raw(",");
        }
        out.raw("{");
        write_frame(node, out);
        more(out, index, &node.more);
        if node.children == 0 {
            out.raw("}");
        } else {
            out.raw(",\"calls\":[");
            lists.push(OpenList {
                frame: index,
                empty: true,
            });
        }
    }
    for _ in lists {
        out.raw("]}");
    }
}

/// Writes the members of a frame, except its calls.
fn write_frame<T>(node: &CallNode<T>, out: &mut TraceWriter) {
    let entered = &node.entered;
    out.raw("\"from\":");
    out.quoted(format_args!("{:#x}", entered.from));
    out.raw(",\"gas\":");
    out.quantity(U256::from(entered.gas));
    out.raw(",\"gasUsed\":");
    out.quantity(U256::from(node.gas_used));
    if let Some(to) = node.to() {
        out.raw(",\"to\":");
        out.quoted(format_args!("{to:#x}"));
    }
    out.raw(",\"input\":");
    out.data(&entered.input);
    if !node.output.is_empty() {
        out.raw(",\"output\":");
        out.data(&node.output);
    }
    if let Some(failure) = &node.failure {
        out.raw(",\"error\":");
        out.string(&failure.text);
        if let Some(reason) = revert_reason(&node.output) {
            out.raw(",\"revertReason\":");
            out.string(&reason);
        }
    }
    if let Some((first, rest)) = node.logs.split_first() {
        out.raw(",\"logs\":[");
        write_log(first, out);
        for log in rest {
            out.raw(",");
            write_log(log, out);
        }
        out.raw("]");
    }
    if let Some(value) = node.value() {
        out.raw(",\"value\":");
        out.quantity(value);
    }
    out.raw(",\"type\":");
    out.quoted(entered.kind.name());
}

fn write_log(placed: &PlacedLog, out: &mut TraceWriter) {
    let log = &placed.log;
    out.raw("{\"address\":");
    out.quoted(format_args!("{:#x}", log.address));
    out.raw(",\"topics\":[");
    for (index, topic) in log.topics().iter().enumerate() {
        out.raw(if index == 0 { "" } else { "," });
        out.quoted(topic);
    }
    out.raw("],\"data\":");
    out.data(&log.data.data);
    out.raw(",\"position\":");
    out.quantity(U256::from(placed.position));
    out.raw("}");
}
