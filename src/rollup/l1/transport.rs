//! One L1 endpoint: JSON-RPC over HTTP, WebSocket or a Unix socket. One attempt per call; the
//! client chooses the endpoint and the time.

mod ipc;

use super::{L1Config, RpcCause};
use crate::rollup::http::{
    HttpFault, HttpReply, HttpTarget, causes, choose_tls_provider, endpoint_of, excerpt, json_error,
};
use http::{HeaderMap, StatusCode};
use jsonrpsee::{
    core::{
        ClientError,
        client::{
            Client, ClientT, Subscription, SubscriptionClientT,
            async_client::{ClientBuilder, PingConfig},
        },
        params::{ArrayParams, BatchRequestBuilder},
    },
    rpc_params,
    types::ErrorObject,
    ws_client::WsClientBuilder,
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{net::UnixStream, sync::Mutex};

/// Largest number of characters kept of an endpoint's error message.
const MAX_MESSAGE: usize = 500;
/// Largest number of a subscription's heads that wait to be read. Only the newest head matters.
const WAITING_HEADS: usize = 16;
/// Largest request over a WebSocket, in bytes. A transaction with nine blobs has 2.4 MB of hex.
const MAX_REQUEST: u32 = 8 << 20;

/// A method and its parameters, a JSON array.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcCall {
    pub method: &'static str,
    pub params: Value,
}

impl RpcCall {
    pub fn new(method: &'static str, params: Value) -> Self {
        Self { method, params }
    }
}

/// The JSON text of the result, or the endpoint's error ([`RpcCause::Refused`]).
pub type L1Response = Result<Box<RawValue>, RpcCause>;

/// An endpoint with its connection, by transport.
#[expect(
    clippy::large_enum_variant,
    reason = "a client has as many as it has endpoints"
)]
pub(super) enum Transport {
    Http {
        endpoint: HttpTarget,
        timeout: Duration,
    },
    Socket(SocketEndpoint),
}

impl Transport {
    /// Creates the transport without connecting. `url` begins with http://, https://, ws:// or
    /// wss://, or is the path of a Unix socket. The error explains what is wrong with the URL,
    /// without its credentials.
    pub(super) fn new(url: &str, config: &L1Config) -> Result<Self, String> {
        let socket = |place| {
            Self::Socket(SocketEndpoint {
                name: match &place {
                    SocketPlace::WebSocket(url) => endpoint_of(url).into(),
                    SocketPlace::Ipc(path) => path.display().to_string().into(),
                },
                place,
                client: Mutex::new(None),
                max_response_bytes: config.max_response_bytes,
                timeout: config.timeout,
                max_concurrency: config.max_concurrency.max(1),
            })
        };
        choose_tls_provider();
        match url.split_once("://") {
            Some(("ws" | "wss", _)) => Ok(socket(SocketPlace::WebSocket(url.to_owned()))),
            Some(_) => Ok(Self::Http {
                endpoint: HttpTarget::new(url, HeaderMap::new())?,
                timeout: config.timeout,
            }),
            None if is_socket_path(url) => {
                Ok(socket(SocketPlace::Ipc(PathBuf::from(url))))
            }
            None => Err(
                "neither a URL that begins with http://, https://, ws:// or wss:// nor the path of a socket"
                    .into(),
            ),
        }
    }

    /// Scheme, host and port of the endpoint, or the path of its socket.
    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Self::Http { endpoint, .. } => endpoint.name(),
            Self::Socket(socket) => &socket.name,
        }
    }

    /// Sends the calls in one request. The responses are in the order of the calls. Over HTTP a
    /// response of more than `max_response_bytes` bytes is refused. Over a socket the connection's
    /// limit applies to each single response.
    pub(super) async fn send(
        &self,
        calls: &[RpcCall],
        max_response_bytes: u32,
    ) -> Result<Vec<L1Response>, RpcCause> {
        match self {
            Self::Http { endpoint, timeout } => {
                let sent =
                    endpoint.post(request_body(calls), max_response_bytes as usize, *timeout);
                let reply = sent.await.map_err(|fault| match fault {
                    HttpFault::Broken(text) => RpcCause::Transport(text),
                    HttpFault::Timeout(limit) => RpcCause::Timeout(limit),
                    HttpFault::TooLarge(bytes) => RpcCause::TooLarge(bytes),
                })?;
                read_reply(&reply, calls.len())
            }
            Self::Socket(socket) => socket.send(calls).await,
        }
    }

    /// Subscribes to new heads and returns their headers as the endpoint sends them. `None` over
    /// HTTP, which has no subscriptions.
    pub(super) async fn subscribe_heads(&self) -> Option<Result<Subscription<Value>, RpcCause>> {
        match self {
            Self::Http { .. } => None,
            Self::Socket(socket) => Some(socket.subscribe_heads().await),
        }
    }
}

/// Whether an endpoint is the path of a Unix socket. A URL without its scheme, such as
/// `user:password@host:8545/key`, is no path. A path is logged as a whole, which would show the
/// password.
pub fn is_socket_path(endpoint: &str) -> bool {
    let first = endpoint.split('/').next().unwrap_or_default();
    !first.contains([':', '@']) && (endpoint.contains('/') || endpoint.ends_with(".ipc"))
}

fn request_body(calls: &[RpcCall]) -> Vec<u8> {
    let call = |(id, call): (usize, &RpcCall)| json!({ "jsonrpc": "2.0", "id": id, "method": call.method, "params": call.params });
    let body = match calls {
        [one] => call((0, one)),
        many => many.iter().enumerate().map(call).collect(),
    };
    body.to_string().into_bytes()
}

/// A JSON-RPC response object (JSON-RPC 2.0, section 5).
#[derive(Deserialize)]
struct RpcResponse {
    #[serde(default)]
    id: Value,
    /// An absent result and a null result are equivalent.
    #[serde(default)]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    error: Option<RpcErrorBody>,
}

#[derive(Deserialize)]
struct RpcErrorBody {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
}

impl RpcResponse {
    fn into_result(self) -> L1Response {
        match (self.error, self.result) {
            (Some(error), _) => Err(refused(error.code, &error.message)),
            (None, Some(result)) => Ok(result),
            (None, None) => Ok(RawValue::NULL.to_owned()),
        }
    }
}

/// The results in an HTTP response to a request with `calls` calls.
fn read_reply(reply: &HttpReply, calls: usize) -> Result<Vec<L1Response>, RpcCause> {
    let status = reply.status;
    if status.is_success() {
        return read_body(&reply.body, calls);
    }
    // Some endpoints send a JSON-RPC error with an HTTP error status. The JSON-RPC message explains
    // more than the status.
    let is_busy = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
    let refusal = serde_json::from_slice::<RpcResponse>(&reply.body).ok();
    match refusal.and_then(|response| response.error) {
        Some(error) if !is_busy => Err(refused(error.code, &error.message)),
        _ => Err(RpcCause::Status {
            code: status.as_u16(),
            retry_after: reply.retry_after,
        }),
    }
}

fn read_body(body: &[u8], calls: usize) -> Result<Vec<L1Response>, RpcCause> {
    let malformed = |error| RpcCause::Malformed(json_error(body, error));
    if calls == 1 {
        let response: RpcResponse = serde_json::from_slice(body).map_err(malformed)?;
        return Ok(vec![response.into_result()]);
    }
    // An error for the whole batch is a single object. Only the first byte shows this, because
    // serde also accepts an array as a struct.
    if body.trim_ascii_start().first() == Some(&b'{') {
        let response: RpcResponse = serde_json::from_slice(body).map_err(malformed)?;
        return Err(match response.error {
            Some(error) => refused(error.code, &error.message),
            None => RpcCause::Malformed(format!("one response to a batch of {calls}")),
        });
    }
    let responses: Vec<RpcResponse> = serde_json::from_slice(body).map_err(malformed)?;
    let mut results: Vec<Option<L1Response>> = (0..calls).map(|_| None).collect();
    for response in responses {
        let id = response.id.as_u64().and_then(|id| usize::try_from(id).ok());
        if let Some(slot) = id.and_then(|id| results.get_mut(id)) {
            *slot = Some(response.into_result());
        }
    }
    let count = results.iter().flatten().count();
    let results: Option<Vec<_>> = results.into_iter().collect();
    results.ok_or_else(|| RpcCause::Malformed(format!("{count} responses to a batch of {calls}")))
}

/// The endpoint's error. Its message is logged and therefore shortened, since the endpoint chooses
/// its length.
fn refused(code: i64, message: &str) -> RpcCause {
    RpcCause::Refused {
        code: code.clamp(i32::MIN.into(), i32::MAX.into()) as i32,
        message: message.chars().take(MAX_MESSAGE).collect(),
    }
}

enum SocketPlace {
    /// The URL, which may contain credentials.
    WebSocket(String),
    Ipc(PathBuf),
}

/// An endpoint with one connection, which is opened by the first call and again after a loss.
pub(super) struct SocketEndpoint {
    name: Arc<str>,
    place: SocketPlace,
    client: Mutex<Option<Arc<Client>>>,
    max_response_bytes: u32,
    timeout: Duration,
    max_concurrency: usize,
}

impl SocketEndpoint {
    async fn client(&self) -> Result<Arc<Client>, RpcCause> {
        let mut slot = self.client.lock().await;
        if let Some(client) = slot.as_ref().filter(|client| client.is_connected()) {
            return Ok(client.clone());
        }
        *slot = None;
        let connected = tokio::time::timeout(self.timeout, self.connect()).await;
        let client =
            connected.map_err(|_| RpcCause::Transport("no connection in time".into()))??;
        Ok(slot.insert(Arc::new(client)).clone())
    }

    async fn connect(&self) -> Result<Client, RpcCause> {
        match &self.place {
            SocketPlace::WebSocket(url) => WsClientBuilder::new()
                .max_request_size(MAX_REQUEST)
                .max_response_size(self.max_response_bytes)
                .request_timeout(self.timeout)
                .connection_timeout(self.timeout)
                .max_concurrent_requests(self.max_concurrency)
                .max_buffer_capacity_per_subscription(WAITING_HEADS)
                .enable_ws_ping(PingConfig::default())
                .build(url)
                .await
                .map_err(|error| self.failure(error)),
            SocketPlace::Ipc(path) => {
                let stream = UnixStream::connect(path).await;
                let stream = stream.map_err(|error| RpcCause::Transport(error.to_string()))?;
                let (sender, receiver) = ipc::split(stream, self.max_response_bytes as usize);
                Ok(ClientBuilder::new()
                    .request_timeout(self.timeout)
                    .max_concurrent_requests(self.max_concurrency)
                    .max_buffer_capacity_per_subscription(WAITING_HEADS)
                    .build_with_tokio(sender, receiver))
            }
        }
    }

    async fn send(&self, calls: &[RpcCall]) -> Result<Vec<L1Response>, RpcCause> {
        let client = self.client().await?;
        if let [call] = calls {
            return match client.request(call.method, params(call)?).await {
                Ok(result) => Ok(vec![Ok(result)]),
                Err(ClientError::Call(refusal)) => Ok(vec![Err(refusal_of(&refusal))]),
                Err(error) => Err(self.failure(error)),
            };
        }
        let mut batch = BatchRequestBuilder::new();
        for call in calls {
            let added = batch.insert(call.method, params(call)?);
            added.map_err(|error| RpcCause::Malformed(error.to_string()))?;
        }
        let responses = client.batch_request::<Box<RawValue>>(batch).await;
        let responses = responses.map_err(|error| self.failure(error))?.into_iter();
        Ok(responses
            .map(|response| response.map_err(|refusal| refusal_of(&refusal)))
            .collect())
    }

    async fn subscribe_heads(&self) -> Result<Subscription<Value>, RpcCause> {
        let client = self.client().await?;
        client
            .subscribe("eth_subscribe", rpc_params!["newHeads"], "eth_unsubscribe")
            .await
            .map_err(|error| self.failure(error))
    }

    fn failure(&self, error: ClientError) -> RpcCause {
        match error {
            ClientError::Call(refusal) => refusal_of(&refusal),
            ClientError::ParseError(error) => RpcCause::malformed(error),
            ClientError::RequestTimeout => RpcCause::Timeout(self.timeout),
            ClientError::Transport(error) => RpcCause::Transport(excerpt(causes(&*error))),
            error => RpcCause::Transport(excerpt(error)),
        }
    }
}

fn params(call: &RpcCall) -> Result<ArrayParams, RpcCause> {
    let mut params = ArrayParams::new();
    for param in call.params.as_array().into_iter().flatten() {
        let added = params.insert(param);
        added.map_err(|error| RpcCause::Malformed(error.to_string()))?;
    }
    Ok(params)
}

fn refusal_of(refusal: &ErrorObject<'_>) -> RpcCause {
    refused(refusal.code().into(), refusal.message())
}

#[cfg(test)]
mod tests;
