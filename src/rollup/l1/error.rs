//! Failures of L1 calls: what went wrong, where, and whether the endpoint is to blame.

use crate::rollup::http::{excerpt, rotation::Fault};
use alloy_primitives::B256;
use std::{sync::Arc, time::Duration};

/// JSON-RPC error codes of rate limits: EIP-1474's, and the HTTP status that some providers repeat.
const RATE_LIMIT_CODES: [i32; 2] = [-32005, 429];

/// A call that failed, and where.
#[derive(Clone, Debug, thiserror::Error)]
#[error("L1 at {endpoint}: {method}: {cause}")]
pub struct L1Error {
    /// Scheme, host and port: paths and user names may be credentials.
    pub endpoint: Arc<str>,
    pub method: &'static str,
    pub cause: L1Cause,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum L1Cause {
    /// The endpoint did not answer, or not in time.
    #[error("{0}")]
    Transport(String),
    /// The endpoint answered with an HTTP status that is no success. It is asked again after a rest
    /// at the earliest if the status is 429 or 5xx.
    #[error("HTTP status {code}")]
    Status {
        code: u16,
        /// Rest that the endpoint asked for.
        retry_after: Option<Duration>,
    },
    /// The endpoint was busy lately, and its rest is too long to wait for.
    #[error("it was busy; the next request is sent in {} s", .0.as_secs())]
    Resting(Duration),
    /// The endpoint answered with a JSON-RPC error.
    #[error("error {code}: {message}")]
    Refused { code: i32, message: String },
    /// The endpoint does not prove contract storage.
    #[error(
        "error {code}: {message}: the contract's storage cannot be proven; give an endpoint that serves eth_getProof with --l1, or believe \
         this one with --l1.trustrpc"
    )]
    NoProof { code: i32, message: String },
    /// The answer does not have the form it should have.
    #[error("malformed answer: {0}")]
    Malformed(String),
    /// The answer contradicts itself or what was asked.
    #[error("untrue answer: {0}")]
    Untrue(String),
    /// The header belongs to a fork of L1 that this build does not know.
    #[error(
        "the hash of block {number} cannot be verified, since its header has fields that this version does not know ({fields}): update, or \
         believe the endpoint with --l1.trustrpc"
    )]
    UnknownField { number: u64, fields: String },
    /// A transaction whose encoding neither this build nor the endpoint can give.
    #[error(
        "the transactions of block {block} cannot be verified, since one has the type {ty}, which this version does not know: update, or \
         believe the endpoint with --l1.trustrpc"
    )]
    UnknownTransaction { ty: u64, block: B256 },
    /// A block that should be there is not there.
    #[error("no block {0}")]
    Missing(B256),
}

impl L1Cause {
    /// An answer that does not decode, by the decoder's error.
    pub(super) fn malformed(error: impl std::fmt::Display) -> Self {
        Self::Malformed(excerpt(error))
    }

    /// The effect of a failure on the choice of endpoints; `None` if the endpoint itself is fine.
    pub(super) fn fault(&self) -> Option<Fault> {
        match self {
            Self::Status { code, retry_after } if *code == 429 || *code >= 500 => {
                Some(Fault::Busy(*retry_after))
            }
            Self::Refused { code, .. } if RATE_LIMIT_CODES.contains(code) => {
                Some(Fault::Busy(None))
            }
            Self::Transport(_) | Self::Status { .. } | Self::Malformed(_) | Self::Untrue(_) => {
                Some(Fault::Broken)
            }
            _ => None,
        }
    }

    /// Whether the endpoint does not know the method (facts: receipt methods).
    pub(super) fn is_unsupported(&self) -> bool {
        let Self::Refused { code, message } = self else {
            return false;
        };
        let message = message.to_lowercase();
        matches!(code, -32601 | -32004)
            || [
                "not found",
                "not supported",
                "unsupported",
                "does not exist",
                "not available",
            ]
            .iter()
            .any(|text| message.contains("method") && message.contains(text))
    }
}
