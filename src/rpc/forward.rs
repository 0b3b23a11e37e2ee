//! A node to which requests of our callers are forwarded: the sequencer, or the node with the
//! history before Bedrock. The path and the user name of its URL may be credentials, so neither
//! errors nor `Debug` show them.
//!
//! A request is one attempt, and its response is bounded in size and time. The callers bound the
//! number of requests.

use super::error::RpcError;
use crate::rollup::http::{HttpFault, HttpReply, HttpTarget, json_error};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{fmt, time::Duration};

/// A client of the other node.
pub struct ForwardClient {
    target: HttpTarget,
    max_response: usize,
    timeout: Duration,
}

/// The reason why the other node has returned no result.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The other node's own error.
    #[error("{}", .0.message)]
    Refused(RpcError),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("HTTP status {0}")]
    Status(u16),
    #[error("{0}")]
    Broken(String),
}

#[derive(Deserialize)]
struct ForwardResponse {
    result: Option<Box<RawValue>>,
    error: Option<ForwardRefusal>,
}

#[derive(Deserialize)]
struct ForwardRefusal {
    code: i32,
    message: String,
    data: Option<Box<RawValue>>,
}

impl ForwardClient {
    /// The node at `url`, without connecting. The error explains what is wrong with the URL without
    /// quoting it.
    pub fn new(url: &str, max_response: usize, timeout: Duration) -> Result<Self, String> {
        Ok(Self {
            target: HttpTarget::new(url, HeaderMap::new())?,
            max_response,
            timeout,
        })
    }

    /// Sends a request. `params` is the JSON of an array.
    pub async fn request(&self, method: &str, params: &str) -> Result<Box<RawValue>, ForwardError> {
        let method = serde_json::Value::from(method);
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":{method},"params":{params}}}"#);
        let sent = self
            .target
            .post(body.into_bytes(), self.max_response, self.timeout);
        let reply = sent.await.map_err(|fault| match fault {
            HttpFault::Timeout(limit) => ForwardError::Timeout(limit),
            fault => ForwardError::Broken(fault.to_string()),
        })?;
        read(&reply)
    }
}

impl fmt::Debug for ForwardClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForwardClient({})", self.target.name())
    }
}

/// The result in a response. An absent result and a null result are equivalent.
fn read(reply: &HttpReply) -> Result<Box<RawValue>, ForwardError> {
    let response: Result<ForwardResponse, _> = serde_json::from_slice(&reply.body);
    match response {
        Ok(ForwardResponse {
            error: Some(refusal),
            ..
        }) => Err(ForwardError::Refused(RpcError {
            code: refusal.code,
            message: refusal.message,
            data: refusal.data,
        })),
        _ if !reply.status.is_success() => Err(ForwardError::Status(reply.status.as_u16())),
        Ok(response) => Ok(response.result.unwrap_or_else(|| RawValue::NULL.to_owned())),
        Err(error) => Err(ForwardError::Broken(json_error(&reply.body, error))),
    }
}
