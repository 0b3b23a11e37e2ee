//! The L2 that the batcher and the proposer read: a rollup node and an execution client over
//! JSON-RPC, or the node in this process.
//!
//! Responses of other processes are bounded and checked: a block or header must have the requested
//! number, and its hash and an output root are recomputed from their parts. An error names the
//! endpoint without credentials. Callers pace and repeat their requests. An endpoint that demands a
//! pause gets no request before the pause ends.

mod active;
mod endpoint;
mod local;
mod response;
mod rpc;
#[cfg(test)]
mod tests;

pub use endpoint::RpcEndpoint;
pub use local::LocalSource;
pub use response::{L1Ref, SourceHeads};
pub use rpc::{L2Endpoints, RpcSource};

use crate::{
    chain::rows::ReadError,
    rollup::{
        l1::RpcCause,
        output::{OutputError, RollupOutput},
    },
};
use starling_proto::{
    config::{ConfigError, RollupConfig},
    payload::{BlockId, Payload},
};
use std::sync::Arc;

/// The reason why L2 cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum L2SourceError {
    /// A call failed, or its response is wrong.
    #[error("{program} at {endpoint}: {method}: {cause}")]
    Call {
        program: &'static str,
        /// Scheme, host and port of the endpoint: paths and user names may be credentials.
        endpoint: Arc<str>,
        method: &'static str,
        cause: RpcCause,
    },
    /// The program does not have the method. `hint` names the likely reason.
    #[error("{program} at {endpoint}: {method}: {cause}; {hint}")]
    MissingMethod {
        program: &'static str,
        endpoint: Arc<str>,
        method: &'static str,
        cause: RpcCause,
        hint: &'static str,
    },
    #[error("number of rollup and eth URLs must match: {rollup} and {eth}")]
    Mismatch { rollup: usize, eth: usize },
    #[error("no URL of a {0} is given")]
    Empty(&'static str),
    #[error("failed to find an active sequencer, tried following urls: [{0}]")]
    NoActive(String),
    #[error("invalid rollup config: {0}")]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("the node has stopped")]
    Stopped,
}

impl L2SourceError {
    /// Whether the error is a timeout of a request to another process.
    pub fn is_timeout(&self) -> bool {
        matches!(
            self,
            Self::Call {
                cause: RpcCause::Timeout(_),
                ..
            }
        )
    }
}

/// The L2 to read. Clones share connections and the choice of the active sequencer.
#[derive(Clone)]
pub enum L2Source {
    /// A rollup node and an execution client in other processes.
    Rpc(Arc<RpcSource>),
    /// The node in this process.
    Local(LocalSource),
}

impl L2Source {
    /// The rollup configuration of the L2, checked.
    pub async fn rollup_config(&self) -> Result<Arc<RollupConfig>, L2SourceError> {
        match self {
            Self::Rpc(source) => source.rollup_config().await.map(Arc::new),
            Self::Local(source) => Ok(source.rollup_config()),
        }
    }

    /// The heads of L1 and L2 as the rollup node reports them now.
    pub async fn heads(&self) -> Result<SourceHeads, L2SourceError> {
        match self {
            Self::Rpc(source) => source.heads().await,
            Self::Local(source) => source.heads().await,
        }
    }

    /// The output root of a canonical block, with its parts; fails if there is no such block.
    pub async fn output_at(&self, number: u64) -> Result<RollupOutput, L2SourceError> {
        match self {
            Self::Rpc(source) => source.output_at(number).await,
            Self::Local(source) => source.output_at(number).await,
        }
    }

    /// The canonical block of this number; `None` above the head.
    pub async fn block(&self, number: u64) -> Result<Option<Arc<Payload>>, L2SourceError> {
        match self {
            Self::Rpc(source) => Ok(source.block(number).await?.map(Arc::new)),
            Self::Local(source) => source.block(number),
        }
    }

    /// The hash of the canonical block of this number; `None` above the head.
    pub async fn block_id(&self, number: u64) -> Result<Option<BlockId>, L2SourceError> {
        match self {
            Self::Rpc(source) => source.block_id(number).await,
            Self::Local(source) => source.block_id(number),
        }
    }

    /// Name of the rollup node in use, for log messages.
    pub fn name(&self) -> Arc<str> {
        match self {
            Self::Rpc(source) => source.name(),
            Self::Local(_) => "this process".into(),
        }
    }
}
