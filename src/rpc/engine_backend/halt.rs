//! The configured halt, which stops the node when a newer protocol version is required. The node
//! creates it, and `engine_signalSuperchainV1` triggers it.

use tokio_util::sync::CancellationToken;

/// The number of the version (`--rollup.halt`) by which a required version must be ahead to stop
/// the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HaltAt {
    Major,
    Minor,
    Patch,
}

/// The configured halt: the version distance at which a signal stops the node, and the token that
/// stops it.
#[derive(Clone, Debug)]
pub struct Halt {
    pub at: HaltAt,
    pub token: CancellationToken,
}
