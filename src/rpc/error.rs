//! JSON-RPC errors with geth's codes and texts.

use crate::chain::{evm::StateError, heads::StepError, view::ReadError};
use alloy_primitives::Bytes;
use serde_json::value::RawValue;

/// The reply of a method: the JSON of its result, or an error object.
pub type Reply = Result<Box<RawValue>, RpcError>;

pub const PARSE: i32 = -32700;
pub const INVALID_REQUEST: i32 = -32600;
pub const METHOD_NOT_FOUND: i32 = -32601;
pub const INVALID_PARAMS: i32 = -32602;
pub const INTERNAL: i32 = -32603;
/// Code of errors that have no code of their own.
pub const SERVER: i32 = -32000;
pub const TIMEOUT: i32 = -32002;
pub const RESPONSE_TOO_LARGE: i32 = -32003;
/// Code of a call that its caller's budget does not cover.
pub const LIMIT_EXCEEDED: i32 = -32005;
/// Code of a request for history before Bedrock, if no historical RPC is configured.
pub const NO_HISTORY: i32 = -32801;
/// Code of a call whose execution reverted; `data` is the EVM's output.
pub const REVERTED: i32 = 3;

/// The `error` member of a response.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message} ({code})")]
pub struct RpcError {
    pub code: i32,
    pub message: String,
    /// JSON that is forwarded unchanged.
    pub data: Option<Box<RawValue>>,
}

impl RpcError {
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    pub fn server(message: impl Into<String>) -> Self {
        Self::new(SERVER, message)
    }

    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    pub fn method_not_found(method: &str) -> Self {
        let method = cut(method);
        Self::new(
            METHOD_NOT_FOUND,
            format!("the method {method} does not exist/is not available"),
        )
    }

    /// The error of a call that reverted with `output`. `message` contains the reason.
    pub fn reverted(message: String, output: &Bytes) -> Self {
        Self {
            code: REVERTED,
            message,
            data: serde_json::value::to_raw_value(output).ok(),
        }
    }

    /// The value of the `error` member, in geth's order of keys.
    pub fn to_json(&self) -> String {
        let message = serde_json::Value::from(self.message.as_str());
        match &self.data {
            Some(data) => format!(
                r#"{{"code":{},"message":{message},"data":{}}}"#,
                self.code,
                data.get()
            ),
            None => format!(r#"{{"code":{},"message":{message}}}"#, self.code),
        }
    }
}

impl From<ReadError> for RpcError {
    fn from(error: ReadError) -> Self {
        Self::server(error.to_string())
    }
}

impl From<StepError> for RpcError {
    fn from(error: StepError) -> Self {
        Self::server(error.to_string())
    }
}

impl From<StateError> for RpcError {
    fn from(error: StateError) -> Self {
        Self::server(error.to_string())
    }
}

/// At most 100 bytes of a text that a client sent: enough to recognise it in an error.
pub fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(100)]
}

/// The reply with a result as JSON.
pub fn reply<T: serde::Serialize>(result: T) -> Reply {
    serde_json::value::to_raw_value(&result)
        .map_err(|error| RpcError::new(INTERNAL, error.to_string()))
}

/// The error of a method whose handler has panicked.
pub fn crashed(method: &str) -> RpcError {
    tracing::error!(method, "an RPC method crashed");
    RpcError::new(INTERNAL, "method handler crashed")
}
