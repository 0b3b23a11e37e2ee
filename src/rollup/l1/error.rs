//! Errors of L1 calls: the cause, the endpoint, and whether the endpoint is at fault.

use crate::rollup::{
    http::{excerpt, rotation::EndpointFault},
    l2_response::L2ResponseError,
};
use alloy_primitives::B256;
use std::{sync::Arc, time::Duration};

/// JSON-RPC error codes of rate limits: EIP-1474's, the HTTP status that some providers use as a
/// code, and two of QuickNode.
const RATE_LIMIT_CODES: [i32; 4] = [-32005, 429, -32007, -32012];
/// Parts of the messages of rate limits, in lower case, for providers that use a general code.
const RATE_LIMIT_TEXTS: [&str; 4] = [
    "rate limit",
    "too many requests",
    "request limit reached",
    "compute units per second",
];
/// JSON-RPC error code of a call that reverted (geth).
const REVERTED: i32 = 3;
/// JSON-RPC error code of an unknown block (reth, erigon).
const UNKNOWN_BLOCK: i32 = -39001;

/// A failed call, with its endpoint and method.
#[derive(Clone, Debug, thiserror::Error)]
#[error("L1{}: {method}: {cause}", at(endpoint))]
pub struct L1Error {
    /// Scheme, host and port of the endpoint: paths and user names may be credentials. Empty if the
    /// configuration names no endpoint.
    pub endpoint: Arc<str>,
    pub method: &'static str,
    pub cause: RpcCause,
}

fn at(endpoint: &str) -> String {
    match endpoint {
        "" => String::new(),
        _ => format!(" at {endpoint}"),
    }
}

/// The reason why a call failed: to an L1 endpoint, or to another program that is called with this
/// client ([`plain`](super::plain)).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcCause {
    /// The request could not be sent, or the connection was lost.
    #[error("{0}")]
    Transport(String),
    /// The endpoint did not respond within this timeout.
    #[error("no response within {0:?}: the endpoint or the link to it is too slow")]
    Timeout(Duration),
    /// The response is larger than this limit in bytes.
    #[error("the response has more than {0} bytes")]
    TooLarge(usize),
    /// The HTTP status of the response is not a success. For 429 or 5xx the endpoint gets no
    /// request before its cool-down ends.
    #[error("HTTP status {code}")]
    Status {
        code: u16,
        /// Cool-down that the endpoint demands.
        retry_after: Option<Duration>,
    },
    /// The endpoint's remaining cool-down is too long to wait for.
    #[error("no request for another {} s: the endpoint reported a rate limit or a server error (HTTP 429 or 5xx)", .0.as_secs())]
    CoolingDown(Duration),
    /// The endpoint responded with a JSON-RPC error.
    #[error("error {code}: {message}")]
    Refused { code: i32, message: String },
    /// The endpoint does not serve the proof of contract storage.
    #[error(
        "error {code}: {message}: the contract's storage cannot be proven; give an endpoint that serves eth_getProof with --l1, or believe \
         this one with --l1.trustrpc"
    )]
    NoProof { code: i32, message: String },
    /// The response does not have the form that JSON-RPC or the method defines.
    #[error("malformed response: {0}")]
    Malformed(String),
    /// The response contradicts itself or the request.
    #[error("untrue response: {0}")]
    Untrue(String),
    /// The header has fields of an L1 fork that this build does not know.
    #[error(
        "the hash of block {number} cannot be verified, since its header has fields that this version does not know ({fields}): update, or \
         believe the endpoint with --l1.trustrpc"
    )]
    UnknownField { number: u64, fields: String },
    /// A transaction has a type that this build does not know, and the endpoint does not serve its
    /// encoding.
    #[error(
        "the transactions of block {block} cannot be verified, since one has the type {ty}, which this version does not know: update, or \
         believe the endpoint with --l1.trustrpc"
    )]
    UnknownTransaction { ty: u64, block: B256 },
    /// The endpoint lacks a block that it should have, or the block's receipts.
    #[error("the endpoint does not have block {0} or its receipts: it was reorged or pruned")]
    Missing(B256),
    /// One of several endpoints serves another chain. That endpoint gets no further calls.
    #[error(
        "it serves the chain {chain_id}, and the rollup's L1 is {expected}: give only endpoints of that chain with --l1"
    )]
    WrongChain { chain_id: u64, expected: u64 },
}

/// The batcher and the proposer also read L2 with this client.
impl From<L2ResponseError> for RpcCause {
    fn from(error: L2ResponseError) -> Self {
        match error {
            L2ResponseError::Malformed(text) => Self::Malformed(text),
            L2ResponseError::Untrue(text) => Self::Untrue(text),
        }
    }
}

impl RpcCause {
    /// The error for a response that does not parse, from the decoder's error.
    pub fn malformed(error: impl std::fmt::Display) -> Self {
        Self::Malformed(excerpt(error))
    }

    /// The fault that the failure counts as in the choice of endpoints; `None` if it starts no
    /// cool-down.
    pub(super) fn fault(&self) -> Option<EndpointFault> {
        match self {
            Self::Status { code, retry_after } => {
                Some(EndpointFault::of_status(*code, *retry_after))
            }
            Self::Refused { .. } if self.is_rate_limit() => Some(EndpointFault::Busy(None)),
            Self::Transport(_)
            | Self::Timeout(_)
            | Self::TooLarge(_)
            | Self::Malformed(_)
            | Self::Untrue(_) => Some(EndpointFault::Broken),
            _ => None,
        }
    }

    /// Whether the endpoint only demands fewer requests per time, so that a smaller request would
    /// not help.
    pub fn is_rate_limit(&self) -> bool {
        match self {
            Self::CoolingDown(_) | Self::Status { code: 429, .. } => true,
            Self::Refused { code, message } => {
                let message = message.to_lowercase();
                // A contract may revert with any text.
                let is_general = *code != REVERTED && !message.contains("revert");
                RATE_LIMIT_CODES.contains(code)
                    || is_general && RATE_LIMIT_TEXTS.iter().any(|text| message.contains(text))
            }
            _ => false,
        }
    }

    /// Whether the endpoint says that it has no block with a tag, instead of responding with null.
    /// geth returns the errors "safe block not found" and "finalized block not found".
    pub(super) fn is_unknown_block(&self) -> bool {
        matches!(self, Self::Refused { code, message } if *code == UNKNOWN_BLOCK || message.contains("not found"))
    }

    /// Whether the endpoint responded with a JSON-RPC error, other than a rate limit.
    pub(super) fn is_verdict(&self) -> bool {
        matches!(self, Self::Refused { .. }) && !self.is_rate_limit()
    }

    /// Whether a request for less data may succeed: the response may have been too large for the
    /// endpoint, a proxy, the link or this client.
    pub(super) fn may_be_size(&self) -> bool {
        match self {
            Self::Transport(_) | Self::Timeout(_) | Self::TooLarge(_) => true,
            Self::Status { .. } | Self::Refused { .. } => {
                !self.is_rate_limit() && !self.is_unsupported()
            }
            _ => false,
        }
    }

    /// Whether the endpoint does not support the method. The codes are those of EIP-1474 and
    /// JSON-RPC. Some endpoints use other codes, so the error message is checked as well, as in
    /// op-node.
    pub fn is_unsupported(&self) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effect_of_a_failure_on_its_endpoint_follows_from_its_cause() {
        let refused = |code| RpcCause::Refused {
            code,
            message: "no".into(),
        };
        for code in RATE_LIMIT_CODES {
            assert_eq!(refused(code).fault(), Some(EndpointFault::Busy(None)));
            assert!(refused(code).is_rate_limit() && !refused(code).may_be_size());
            assert!(!refused(code).is_verdict());
        }
        for message in [
            "Your app has exceeded its compute units per second capacity.",
            "50/second request limit reached - reduce calls per second",
            "Rate limit exceeded",
        ] {
            let message = message.to_owned();
            let limited = RpcCause::Refused {
                code: -32000,
                message,
            };
            assert_eq!(limited.fault(), Some(EndpointFault::Busy(None)));
        }
        for code in [-32601, -32004] {
            assert!(refused(code).is_unsupported() && !refused(code).may_be_size());
            assert_eq!(refused(code).fault(), None, "the endpoint itself is fine");
        }
        for code in [429, 500, 503] {
            let retry_after = Some(Duration::from_secs(5));
            let status = RpcCause::Status { code, retry_after };
            assert_eq!(status.fault(), Some(EndpointFault::Busy(retry_after)));
            // A server error may be caused by the size of the response.
            assert_eq!(status.is_rate_limit(), code == 429);
            assert_eq!(status.may_be_size(), code != 429);
        }
        for broken in [
            RpcCause::Untrue("a lie".into()),
            RpcCause::Malformed("no JSON".into()),
            RpcCause::Transport("reset".into()),
            RpcCause::Timeout(Duration::from_secs(10)),
        ] {
            assert_eq!(broken.fault(), Some(EndpointFault::Broken), "{broken}");
        }
    }
}
