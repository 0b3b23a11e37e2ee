//! Errors of an execution core, in this process or in another.

use crate::chain::ChainError;
use alloy_primitives::B256;
use std::{sync::Arc, time::Duration};

/// The reason why a method of the engine failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CoreError {
    /// The request breaks a rule of the chain, or the core in this process has failed.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The call to the core in another process failed. A later attempt may succeed.
    #[error(transparent)]
    Remote(#[from] EngineCallError),
}

impl CoreError {
    /// Whether the core cannot continue. Errors of a core in another process are never fatal.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Chain(error) => error.is_fatal(),
            Self::Remote(_) => false,
        }
    }

    /// Whether the core in another process is unreachable, or refuses the request over HTTP. The
    /// same call may succeed later.
    pub fn is_outage(&self) -> bool {
        let Self::Remote(error) = self else {
            return false;
        };
        matches!(
            error.cause,
            EngineCause::Unreachable(_)
                | EngineCause::Timeout(_)
                | EngineCause::Unauthorized(_)
                | EngineCause::Status(_)
        )
    }
}

/// A failed call of the Engine API, with its endpoint and method.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the execution client at {endpoint}: {method}: {cause}")]
pub struct EngineCallError {
    /// Scheme, host and port of the endpoint: paths and user names may be credentials.
    pub endpoint: Arc<str>,
    pub method: &'static str,
    pub cause: EngineCause,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineCause {
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("no answer within {0:?} (--l2.engine-rpc-timeout)")]
    Timeout(Duration),
    /// The HTTP status is 401 or 403: the client does not accept our token.
    #[error(
        "it refuses our token ({0}): give both programs the same file with the JWT secret (--l2.jwt-secret here, --authrpc.jwtsecret \
         there), and compare the clocks of the two machines"
    )]
    Unauthorized(String),
    #[error("HTTP status {0}")]
    Status(u16),
    /// The response is a JSON-RPC error.
    #[error("error {code}: {message}")]
    Refused { code: i64, message: String },
    #[error("malformed answer: {0}")]
    Malformed(String),
    /// The execution client does not know this block or one of its ancestors.
    #[error(
        "it does not have block {0} or one below it: it has lost its newest blocks, or it synchronises; its heads are read again"
    )]
    Syncing(B256),
    /// The execution client has the block, but not its state or that of a block below it.
    #[error(
        "it does not have the state of block {block}: {reason}; its heads are read again. If this goes on, give the client a peer that has \
         the chain, from which it fetches what it lacks"
    )]
    MissingState { block: B256, reason: String },
    /// The client has executed the block and refuses it as head.
    #[error("it finds block {block} invalid: {reason}")]
    InvalidHead { block: B256, reason: String },
    #[error("its answer has no payload id")]
    NoPayloadId,
    #[error(
        "block {head} forks off more than {most} blocks below the head; such a reorg is left to derivation"
    )]
    TooDeep { head: B256, most: usize },
}

impl EngineCause {
    /// Whether the error may mean that the client was restarted. Its heads are then read again.
    pub(super) fn may_be_restart(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_) | Self::Timeout(_) | Self::Syncing(_) | Self::MissingState { .. }
        )
    }
}

/// The reason why an execution client cannot be driven at all.
#[derive(Debug, thiserror::Error)]
pub enum EngineConnectError {
    #[error("--l2: {0}")]
    Url(String),
    #[error(
        "the execution client at {endpoint} has chain {have}, and {source_name} describes chain {want}: give the Engine API of that chain \
         with --l2"
    )]
    OtherChain {
        endpoint: Arc<str>,
        source_name: String,
        have: u64,
        want: u64,
    },
    #[error(
        "the chain of the execution client at {endpoint} begins with block {have}, and that of {source_name} with {want}: initialise the \
         client with the genesis file that belongs to this rollup.json, or give that client's Engine API with --l2"
    )]
    OtherGenesis {
        endpoint: Arc<str>,
        source_name: String,
        have: B256,
        want: B256,
    },
    #[error(
        "{0} does not serve the Engine API: give the execution client's authenticated port with --l2 (--authrpc.port there, 8551 by default)"
    )]
    NoEngineApi(Arc<str>),
    #[error("the execution client's heads cannot be read: {0}")]
    Heads(ChainError),
    #[error(transparent)]
    Call(#[from] EngineCallError),
}
