//! The frames of a transaction, kept for a caller that selects from them, and their JSON in
//! Parity's form.
//!
//! Calls of precompiles without value are omitted, as in Parity. Gas is that of the frame's code:
//! the root frame includes neither the transaction's intrinsic gas nor its refunds.

use super::{
    Entered, Left, TracePlace, TraceStart,
    arena::{CallArena, CallNode, FrameKind, FramePlace},
    failure::Failure,
    flat::{parity_error, parity_type, write_action, write_address, write_transaction},
    writer::TraceWriter,
};
use alloy_primitives::{Address, Bytes, U256};

/// The frames of a transaction so far.
#[derive(Default)]
pub(super) struct FrameTracer {
    start: TraceStart,
    frames: CallFrames,
}

impl FrameTracer {
    pub(super) fn begin(&mut self, start: &TraceStart) {
        self.start = start.clone();
    }

    pub(super) fn bytes(&self) -> usize {
        self.frames.0.bytes()
    }

    pub(super) fn enter(&mut self, mut entered: Entered) {
        entered.value.get_or_insert(U256::ZERO);
        self.frames.0.enter(entered, ());
    }

    pub(super) fn leave(&mut self, left: Left<'_>) {
        self.frames.0.leave(left);
    }

    /// The output of the root frame.
    pub(super) fn output(&self) -> Bytes {
        let root = self.frames.0.nodes.first();
        root.map_or_else(Bytes::new, |root| root.output.clone())
    }

    /// Returns the frames. A transaction without any frame is a deposit that failed before its
    /// first one; it gets a failed root frame here.
    pub(super) fn finish(mut self) -> CallFrames {
        let start = self.start;
        if self.frames.0.nodes.is_empty() {
            let entered = Entered {
                kind: start.to.map_or(FrameKind::Create, |_| FrameKind::Call),
                from: start.from,
                to: start.to.unwrap_or_default(),
                input: start.input,
                gas: start.gas_limit,
                value: Some(start.value),
                precompile: false,
            };
            self.frames.0.enter(entered, ());
            self.frames.0.leave(Left {
                output: &Bytes::new(),
                gas_used: start.gas_limit,
                failure: Some(Failure::failed_deposit()),
            });
        }
        self.frames
    }
}

/// All frames of a traced transaction.
#[derive(Default)]
pub struct CallFrames(CallArena<()>);

/// One shown frame, and its position among the frames of its transaction.
pub struct FrameView<'a> {
    node: &'a CallNode<()>,
    place: FramePlace<'a>,
}

impl CallFrames {
    /// Visits the shown frames in the order in which they began.
    pub fn visit(&self, mut visit: impl FnMut(&FrameView<'_>)) {
        self.0.visit(is_shown, |node, place| {
            visit(&FrameView { node, place });
        });
    }

    /// Writes all shown frames, separated by commas.
    pub(super) fn write(&self, out: &mut TraceWriter) {
        let mut separator = "";
        self.visit(|frame| {
            out.raw(std::mem::replace(&mut separator, ","));
            frame.write(None, out);
        });
    }
}

/// Whether Parity shows this frame.
fn is_shown(node: &CallNode<()>) -> bool {
    let entered = &node.entered;
    node.parent.is_none() || !entered.precompile || entered.value.is_some_and(|it| !it.is_zero())
}

impl FrameView<'_> {
    pub fn kind(&self) -> FrameKind {
        self.node.entered.kind
    }

    /// The caller, or the contract that destroys itself.
    pub fn from(&self) -> Address {
        self.node.entered.from
    }

    /// The callee, the heir, or the created contract; `None` for a creation that failed.
    pub fn to(&self) -> Option<Address> {
        self.node.to()
    }

    pub fn value(&self) -> U256 {
        self.node.value().unwrap_or_default()
    }

    pub fn input(&self) -> &Bytes {
        &self.node.entered.input
    }

    pub fn output(&self) -> &Bytes {
        &self.node.output
    }

    pub fn has_failed(&self) -> bool {
        self.node.failure.is_some()
    }

    /// Depth of this frame below the root, which has depth zero.
    pub fn depth(&self) -> usize {
        self.place.address.len()
    }

    /// Writes the frame as JSON, with its place in the chain if `place` is given.
    pub fn write(&self, place: Option<&TracePlace>, out: &mut TraceWriter) {
        out.raw("{\"action\":{");
        write_action(self.node, out);
        out.raw("}");
        if let Some(hash) = place.and_then(|place| place.block_hash) {
            out.raw(",\"blockHash\":");
            out.quoted(hash);
        }
        if let Some(place) = place {
            out.raw(",\"blockNumber\":");
            out.display(place.block_number);
        }
        if let Some(failure) = &self.node.failure {
            out.raw(",\"error\":");
            out.string(match failure.text.as_str() {
                "insufficient balance for transfer" => "Insufficient balance for transfer",
                text if text.starts_with("stack limit reached") => "Out of stack",
                text if text.ends_with("write protection") => "write protection",
                text => parity_error(text),
            });
        }
        self.write_result(out);
        write_address(self.place, out);
        if let Some(place) = place {
            write_transaction(place, out);
        }
        out.raw(",\"type\":");
        out.quoted(parity_type(self.kind()));
        out.raw("}");
    }

    /// Writes the frame's result. Only a call or a creation that succeeded or reverted has one.
    fn write_result(&self, out: &mut TraceWriter) {
        let node = self.node;
        let failed = (node.failure.as_ref()).is_some_and(|failure| !failure.is_revert());
        out.raw(",\"result\":");
        if failed || self.kind() == FrameKind::SelfDestruct {
            out.raw("null");
            return;
        }
        if self.kind().is_create() {
            out.raw("{\"address\":");
            out.quoted(format_args!("{:#x}", node.entered.to));
            out.raw(",\"code\":");
        } else {
            out.raw("{\"output\":");
        }
        out.data(&node.output);
        out.raw(",\"gasUsed\":");
        out.quantity(U256::from(node.gas_used));
        out.raw("}");
    }
}
