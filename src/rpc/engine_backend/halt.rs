//! The configured halt: the node stops when a newer protocol version is required. The node sets it,
//! `engine_signalSuperchainV1` acts on it.

use tokio_util::sync::CancellationToken;

/// `--rollup.halt`: how much newer a required version must be to stop the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HaltAt {
    Major,
    Minor,
    Patch,
}

/// The configured halt: the version distance at which a signal stops the node, and its token.
#[derive(Clone, Debug)]
pub struct Halt {
    pub at: HaltAt,
    pub token: CancellationToken,
}
