//! Block builders that get the limits.

use super::ThrottleLimits;
use crate::{
    chain::pool::Pool,
    l2_source::{L2SourceError, RpcEndpoint},
    rollup::l1::RpcCause,
};
use alloy_primitives::U64;
use serde_json::json;
use std::{ops::RangeInclusive, sync::Arc, time::Duration};

const METHOD: &str = "miner_setMaxDASize";

/// JSON-RPC error codes that count as a missing method and are not retried (JSON-RPC 2.0, 5.1: the
/// errors defined there).
const NO_METHOD: RangeInclusive<i32> = -32699..=-32600;

/// The reason why a builder did not accept the limits.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error(
        "{METHOD} unavailable at {endpoint}, either enable it or disable throttling (--http.api=…,miner there, or \
         --throttle.unsafe-da-bytes-lower-threshold=0 here): {cause}"
    )]
    Unavailable { endpoint: Arc<str>, cause: RpcCause },
    #[error("Result of SetMaxDASize was false for endpoint {0}")]
    Refused(Arc<str>),
    #[error(transparent)]
    Call(#[from] L2SourceError),
}

impl TargetError {
    /// Whether a retry is pointless.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// A block builder.
#[derive(Clone)]
pub enum ThrottleTarget {
    /// An execution client, or a separate builder, with JSON-RPC.
    Rpc(RpcEndpoint),
    /// The transaction pool of this process.
    Core(Arc<Pool>),
}

impl ThrottleTarget {
    /// Creates a builder at `url`, which may contain credentials. `timeout` applies to each
    /// request.
    pub fn at(url: &str, timeout: Duration) -> Result<Self, L2SourceError> {
        Ok(Self::Rpc(RpcEndpoint::new("builder", url, timeout)?))
    }

    pub fn name(&self) -> Arc<str> {
        match self {
            Self::Rpc(endpoint) => endpoint.name(),
            Self::Core(_) => "this process".into(),
        }
    }

    /// Sends the limits to the builder.
    pub async fn send(&self, limits: ThrottleLimits) -> Result<(), TargetError> {
        let (tx, block) = (limits.max_tx, limits.max_block);
        let endpoint = match self {
            Self::Core(pool) => {
                pool.set_miner(|settings| {
                    let limit = |bytes: u64| (bytes > 0).then_some(bytes);
                    (settings.max_tx_da, settings.max_block_da) = (limit(tx), limit(block));
                });
                return Ok(());
            }
            Self::Rpc(endpoint) => endpoint,
        };
        let params = json!([U64::from(tx), U64::from(block)]);
        match endpoint.call::<bool>(METHOD, params).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(TargetError::Refused(endpoint.name())),
            Err(L2SourceError::Call {
                endpoint,
                cause: cause @ RpcCause::Refused { code, .. },
                ..
            }) if NO_METHOD.contains(&code) => Err(TargetError::Unavailable { endpoint, cause }),
            Err(error) => Err(error.into()),
        }
    }
}
