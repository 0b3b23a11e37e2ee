//! The frames of a transaction in the order in which they began, with the data that tracers print.
//!
//! Frames are kept in one list rather than as a tree: a transaction can nest a thousand calls, and
//! printing or dropping a tree would recurse as deeply. Parity's addresses of frames are computed
//! during a visit, since the addresses of all frames together could be larger than the frames.

use super::{Entered, Left, failure::Failure};
use alloy_primitives::{Address, Bytes, Log, U256};

/// Estimated bytes that a frame uses beside its data.
const FRAME: usize = 512;

/// The instruction that began a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    Call,
    CallCode,
    DelegateCall,
    StaticCall,
    Create,
    Create2,
    SelfDestruct,
    /// A deposit that failed before its first frame, as op-geth reports it.
    FailedDeposit,
}

impl FrameKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "CALL",
            Self::CallCode => "CALLCODE",
            Self::DelegateCall => "DELEGATECALL",
            Self::StaticCall => "STATICCALL",
            Self::Create => "CREATE",
            Self::Create2 => "CREATE2",
            Self::SelfDestruct => "SELFDESTRUCT",
            Self::FailedDeposit => "STOP",
        }
    }

    pub fn is_create(self) -> bool {
        matches!(self, Self::Create | Self::Create2)
    }
}

/// A log, with its position: the number of calls that its frame had begun before it.
#[derive(Clone, Debug)]
pub(super) struct PlacedLog {
    pub log: Log,
    pub position: usize,
}

/// One frame of a transaction.
#[derive(Clone, Debug)]
pub(super) struct CallNode<T> {
    pub parent: Option<usize>,
    pub entered: Entered,
    pub gas_used: u64,
    pub output: Bytes,
    pub failure: Option<Failure>,
    pub logs: Vec<PlacedLog>,
    /// Number of frames that this frame began.
    pub children: usize,
    /// Additional data for one of the tracers.
    pub more: T,
}

impl<T> CallNode<T> {
    /// The callee or created contract; `None` for a creation that failed.
    pub(super) fn to(&self) -> Option<Address> {
        let failed_creation = self.failure.is_some() && self.entered.kind.is_create();
        (!failed_creation).then_some(self.entered.to)
    }

    pub(super) fn value(&self) -> Option<U256> {
        self.entered.value
    }
}

/// The position of a frame among the shown frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct FramePlace<'a> {
    /// Parity's trace address: for each frame on the path from the root to this one, its index
    /// among the shown frames of its caller. The root itself has no index.
    pub address: &'a [usize],
    /// Number of shown frames that this frame began.
    pub children: usize,
}

/// A frame on the path from the root to the visited frame.
struct OnTheWay {
    frame: usize,
    /// Number of shown frames that this frame has begun so far.
    begun: usize,
}

/// The frames of a transaction.
#[derive(Clone, Debug)]
pub(super) struct CallArena<T> {
    pub nodes: Vec<CallNode<T>>,
    /// Indexes of the frames that have not ended, outermost first.
    open: Vec<usize>,
    bytes: usize,
}

impl<T> Default for CallArena<T> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            open: Vec::new(),
            bytes: 0,
        }
    }
}

impl<T> CallArena<T> {
    /// Estimated bytes that the frames use.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts bytes that were added to a frame.
    pub(super) fn count(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Number of open frames.
    pub(super) fn depth(&self) -> usize {
        self.open.len()
    }

    pub(super) fn enter(&mut self, entered: Entered, more: T) {
        let parent = self.open.last().copied();
        if let Some(parent) = parent {
            self.nodes[parent].children += 1;
        }
        self.count(FRAME + entered.input.len());
        self.open.push(self.nodes.len());
        self.nodes.push(CallNode {
            parent,
            entered,
            gas_used: 0,
            output: Bytes::new(),
            failure: None,
            logs: Vec::new(),
            children: 0,
            more,
        });
    }

    /// Ends the innermost frame. Its output is kept if the frame succeeded or reverted.
    pub(super) fn leave(&mut self, left: Left<'_>) {
        let Some(index) = self.open.pop() else { return };
        let node = &mut self.nodes[index];
        node.gas_used = left.gas_used;
        if left.failure.as_ref().is_none_or(Failure::is_revert) {
            node.output = left.output.clone();
            self.bytes = self.bytes.saturating_add(left.output.len());
        }
        node.failure = left.failure;
    }

    pub(super) fn log(&mut self, log: &Log) {
        let Some(node) = self.open.last().map(|open| &mut self.nodes[*open]) else {
            return;
        };
        let bytes = FRAME + log.data.data.len();
        let position = node.children;
        node.logs.push(PlacedLog {
            log: log.clone(),
            position,
        });
        self.count(bytes);
    }

    /// The innermost open frame.
    pub(super) fn current(&mut self) -> Option<&mut CallNode<T>> {
        let index = *self.open.last()?;
        self.nodes.get_mut(index)
    }

    /// Drops the logs of frames that failed, and of all frames within failed ones: these logs were
    /// not emitted.
    pub(super) fn drop_reverted_logs(&mut self) {
        let mut failed = vec![false; self.nodes.len()];
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            failed[index] =
                node.failure.is_some() || node.parent.is_some_and(|parent| failed[parent]);
            if failed[index] {
                node.logs.clear();
            }
        }
    }

    /// Visits the frames that `shown` accepts, in the order in which they began. A frame that is
    /// not shown must not have begun others.
    pub(super) fn visit(
        &self,
        shown: impl Fn(&CallNode<T>) -> bool,
        mut visit: impl FnMut(&CallNode<T>, FramePlace<'_>),
    ) {
        let mut children = vec![0usize; self.nodes.len()];
        for node in self.nodes.iter().filter(|node| shown(node)) {
            if let Some(parent) = node.parent {
                children[parent] += 1;
            }
        }
        let (mut way, mut address): (Vec<OnTheWay>, Vec<usize>) = Default::default();
        for (frame, node) in self.nodes.iter().enumerate() {
            if !shown(node) {
                continue;
            }
            while way.last().map(|last| last.frame) != node.parent && way.pop().is_some() {
                address.pop();
            }
            if let Some(parent) = way.last_mut() {
                address.push(parent.begun);
                parent.begun += 1;
            }
            way.push(OnTheWay { frame, begun: 0 });
            let place = FramePlace {
                address: &address,
                children: children[frame],
            };
            visit(node, place);
        }
    }
}
