//! A JSON-RPC endpoint of another process.

use super::L2SourceError;
use crate::rollup::l1::{L1Client, L1Config, L1Error, RpcCause};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// The programs of a pair, by their names in errors.
pub(super) const ROLLUP_NODE: &str = "rollup node";
pub(super) const L2_CLIENT: &str = "L2";

/// Largest number of requests in flight to one endpoint.
const MAX_CONCURRENCY: usize = 16;

/// A JSON-RPC client of one program at one address. Responses are bounded in size and time.
#[derive(Clone)]
pub struct RpcEndpoint {
    program: &'static str,
    client: L1Client,
}

impl RpcEndpoint {
    /// Creates the client without connecting. `program` names the endpoint's kind in errors. `url`
    /// begins with http://, https://, ws:// or wss://, or is the path of an IPC socket. `timeout`
    /// is per request.
    pub fn new(program: &'static str, url: &str, timeout: Duration) -> Result<Self, L2SourceError> {
        let config = L1Config {
            timeout,
            max_concurrency: MAX_CONCURRENCY,
            ..L1Config::new(url)
        };
        let client = L1Client::new(&config).map_err(|error| failure(program, error))?;
        Ok(Self { program, client })
    }

    /// Scheme, host and port of the endpoint.
    pub fn name(&self) -> Arc<str> {
        self.client.endpoint().into()
    }

    /// Calls `method` once; `params` is a JSON array.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<T, L2SourceError> {
        let called = self.client.plain_call(method, params).await;
        called.map_err(|error| failure(self.program, error))
    }

    /// The error for a response that arrived in time but fails a check.
    pub fn wrong(&self, method: &'static str, cause: RpcCause) -> L2SourceError {
        L2SourceError::Call {
            program: self.program,
            endpoint: self.name(),
            method,
            cause,
        }
    }
}

fn failure(program: &'static str, error: L1Error) -> L2SourceError {
    let L1Error {
        endpoint,
        method,
        cause,
    } = error;
    let hint = Some(method).filter(|_| cause.is_unsupported());
    match hint.and_then(|method| missing_method_hint(program, method)) {
        Some(hint) => L2SourceError::MissingMethod {
            program,
            endpoint,
            method,
            cause,
            hint,
        },
        None => L2SourceError::Call {
            program,
            endpoint,
            method,
            cause,
        },
    }
}

/// The likely reason why a program lacks a method: the URL of the other program of the pair, or a
/// missing option.
fn missing_method_hint(program: &str, method: &str) -> Option<&'static str> {
    let namespace = method.split('_').next()?;
    match (program, namespace) {
        (ROLLUP_NODE, "optimism") => Some(
            "this is no rollup node's RPC; if it is an execution client's, its rollup node's port is 9545 unless --rpc.port says otherwise",
        ),
        (ROLLUP_NODE, "admin") => {
            Some("a rollup node serves admin methods with --rpc.enable-admin")
        }
        (L2_CLIENT, "eth") => Some(
            "this is no execution client's RPC; if it is a rollup node's, its execution client's port is 8545 unless --http.port says otherwise",
        ),
        _ => None,
    }
}
