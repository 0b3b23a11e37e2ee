//! JSON-RPC framing: bytes of a request or a batch in, text of the response out, by geth's rules
//! (geth: `rpc/handler.go`).
//!
//! All transports hand their messages to this module. The calls of a batch run one after another.
//! [`Allowance`] bounds the size of a batch, and the memory of all responses until their readers
//! have received them.

use super::{
    api::Api,
    chunked::ChunkedText,
    error::{self, Reply, RpcError, crashed},
    ids::random_id,
    json::{self, RequestMembers, firsts},
    memory::{Allowance, EventMemory, ResponseMemory, weight},
    operator::RequestSender,
    params::Args,
    subscription::{EventStream, Subscriber},
};
use crate::rollup::rpc_calls::{RpcOutcome, RpcServerMetrics};
use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use std::{collections::HashMap, fmt::Write, panic::AssertUnwindSafe};
use tokio::{
    sync::OwnedSemaphorePermit,
    task::yield_now,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

/// Maximum live subscriptions of one connection.
const MAX_SUBSCRIPTIONS: usize = 100;
/// Maximum bytes of a request's id, which is echoed.
const MAX_ID: usize = 1024;

/// The response to a message, and the subscriptions that begin once it has been sent.
#[derive(Default)]
pub struct SessionResponse {
    /// Text of the response. With `None` nothing is sent: the message had only notifications, or an
    /// empty body.
    pub text: Option<String>,
    /// Parts of the response that follow `text`, if there are any; see [`Session::chunked`].
    pub rest: Option<ChunkedText>,
    /// Memory permit of the response; dropped when the text has been sent.
    pub held: Option<ResponseMemory>,
    pub subscriptions: Vec<Subscription>,
}

/// A new subscription. The response contains its `id`.
pub struct Subscription {
    pub id: String,
    pub namespace: String,
    pub events: EventStream,
    /// Token that `<namespace>_unsubscribe` cancels.
    pub token: CancellationToken,
    pub permit: OwnedSemaphorePermit,
}

/// The live subscriptions of a connection.
#[derive(Default)]
pub struct Live {
    /// Tokens by subscription id.
    pub tokens: Mutex<HashMap<String, CancellationToken>>,
    /// Memory of the events of all these subscriptions.
    pub memory: EventMemory,
}

impl Live {
    /// The id and the token of a new subscription, which counts as live from now on.
    fn begin(&self) -> Result<(String, CancellationToken), RpcError> {
        let mut tokens = self.tokens.lock();
        if tokens.len() >= MAX_SUBSCRIPTIONS {
            return Err(RpcError::server(
                "too many subscriptions on this connection",
            ));
        }
        let (id, token) = (random_id(), CancellationToken::new());
        tokens.insert(id.clone(), token.clone());
        Ok((id, token))
    }
}

/// Text that ends a response whose result was sent in parts.
pub const CLOSING_BRACE: &str = "}";

/// The methods and limits of one connection.
pub struct Session<'a> {
    pub api: &'a Api,
    pub allowance: &'a Allowance,
    /// Moment after which calls fail with code -32002. Only HTTP sets it, because a WebSocket's
    /// client can wait.
    pub deadline: Option<Instant>,
    /// Live subscriptions; `None` on HTTP, which has no subscriptions.
    pub subscriptions: Option<&'a Live>,
    /// Whether the response to a single request may be sent in parts. The last part is
    /// [`CLOSING_BRACE`].
    pub chunked: bool,
    /// Recorder of calls, on the rollup node's endpoint.
    pub metrics: Option<RpcServerMetrics>,
    /// The sender of the requests, which decides on the calls that are admitted.
    pub sender: &'a RequestSender,
}

/// One request as it was received. Members of the wrong kind count as absent, so that the id is
/// echoed even if other members are wrong.
#[derive(Default)]
struct RpcMessage<'a> {
    version: bool,
    /// Id of the request; echoed byte for byte.
    id: Option<&'a RawValue>,
    method: String,
    params: Option<&'a RawValue>,
}

impl<'a> RpcMessage<'a> {
    fn parse(json: &'a RawValue) -> Self {
        let Ok(members) = json::read::<RequestMembers<'a>>(json.get()) else {
            return Self::default();
        };
        let text = |value: Option<&RawValue>| {
            value.and_then(|value| json::read::<String>(value.get()).ok())
        };
        Self {
            version: text(members.jsonrpc).as_deref() == Some("2.0"),
            id: members.id,
            method: text(members.method).unwrap_or_default(),
            params: members.params,
        }
    }

    /// The id, if it is a short string or number, or null. Objects and lists are not valid ids.
    fn valid_id(&self) -> Option<&'a RawValue> {
        self.id
            .filter(|id| id.get().len() <= MAX_ID && !id.get().starts_with(['{', '[']))
    }

    fn is_call(&self) -> bool {
        self.version && self.valid_id().is_some() && !self.method.is_empty()
    }

    fn is_notification(&self) -> bool {
        self.version && self.id.is_none() && !self.method.is_empty()
    }
}

/// The response to one call, in geth's order of keys.
fn response(id: Option<&RawValue>, reply: &Reply) -> String {
    let id = id.map_or("null", RawValue::get);
    match reply {
        Ok(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{}}}"#, result.get()),
        Err(error) => format!(
            r#"{{"jsonrpc":"2.0","id":{id},"error":{}}}"#,
            error.to_json()
        ),
    }
}

/// The response to a message that is no request and no batch.
fn failed(code: i32, message: &str) -> SessionResponse {
    SessionResponse {
        text: Some(response(None, &Err(RpcError::new(code, message)))),
        ..SessionResponse::default()
    }
}

/// The error of a call that has not ended at its deadline.
fn timed_out() -> RpcError {
    RpcError::new(error::TIMEOUT, "request timed out")
}

/// The notification that carries one event of a subscription.
pub fn notification(namespace: &str, subscription: &str, result: &RawValue) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"{namespace}_subscription","params":{{"subscription":"{subscription}","result":{}}}}}"#,
        result.get()
    )
}

impl Session<'_> {
    /// Handles one message of the client, a request or a batch, and returns the response.
    pub async fn respond(&self, body: &[u8]) -> SessionResponse {
        if body.iter().all(u8::is_ascii_whitespace) {
            return SessionResponse::default();
        }
        let Ok(json) = serde_json::from_slice::<&RawValue>(body) else {
            return failed(error::PARSE, "parse error");
        };
        let mut answer = SessionResponse::default();
        if !json.get().starts_with('[') {
            let message = RpcMessage::parse(json);
            if let Some(chunked) = self.api.chunked(&message.method)
                && self.chunked
                && message.is_call()
            {
                let args = self.sender.admit(self.api, &message.method);
                let reply = match args.and_then(|()| Args::parse(message.params)) {
                    Ok(args) => {
                        let text = chunked(args, self.allowance.client);
                        self.begin_chunked(&message, text, &mut answer).await
                    }
                    Err(error) => Some(Err(error)),
                };
                if let Some(reply) = reply {
                    answer.text = Some(response(message.valid_id(), &reply));
                }
                return self.with_memory(answer);
            }
            if let Some(reply) = self.handle(&message, &mut answer).await {
                answer.text = Some(response(message.valid_id(), &reply));
            }
            return self.with_memory(answer);
        }
        self.batch(json, answer).await
    }

    /// Begins the response of a result in parts. If the result has only one part, returns it as the
    /// reply.
    async fn begin_chunked(
        &self,
        message: &RpcMessage<'_>,
        mut text: ChunkedText,
        answer: &mut SessionResponse,
    ) -> Option<Reply> {
        let first = match self.deadline {
            Some(deadline) => match timeout_at(deadline, text.next()).await {
                Ok(first) => first,
                Err(_) => return Some(Err(timed_out())),
            },
            None => text.next().await,
        };
        let first = match first {
            Some(Ok(first)) => String::from_utf8_lossy(&first).into_owned(),
            Some(Err(error)) => return Some(Err(error)),
            None => return Some(Err(crashed(&message.method))),
        };
        if text.has_ended() {
            let whole = RawValue::from_string(first);
            return Some(whole.map_err(|_| crashed(&message.method)));
        }
        let id = message.valid_id().map_or("null", RawValue::get);
        answer.text = Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{first}"#));
        answer.rest = Some(text);
        None
    }

    /// Handles a batch, one call after another, until the results exceed the limit or a call times
    /// out.
    async fn batch(&self, json: &RawValue, mut answer: SessionResponse) -> SessionResponse {
        let most = self.allowance.batch;
        let Ok(batch) = firsts(json.get(), most.saturating_add(1)) else {
            return failed(error::PARSE, "parse error");
        };
        if batch.is_empty() {
            return failed(error::INVALID_REQUEST, "empty batch");
        }
        let messages = batch.iter().map(|json| RpcMessage::parse(json));
        if batch.len() > most {
            let id = messages
                .into_iter()
                .find(RpcMessage::is_call)
                .and_then(|call| call.id);
            let error = Err(RpcError::new(error::INVALID_REQUEST, "batch too large"));
            return SessionResponse {
                text: Some(format!("[{}]", response(id, &error))),
                ..SessionResponse::default()
            };
        }
        let mut text = String::new();
        let mut results = 0;
        // The error that all remaining calls of the batch get instead of being executed.
        let mut stop: Option<RpcError> = None;
        for message in messages {
            if stop.is_none() {
                stop = self.before_next_call().await;
            }
            let reply = match &stop {
                Some(_) if message.is_notification() => None,
                Some(error) => Some(Err(error.clone())),
                None => self.handle(&message, &mut answer).await,
            };
            let Some(reply) = reply else { continue };
            results += weight(&reply);
            if let Err(error) = &reply
                && [error::TIMEOUT, error::RESPONSE_TOO_LARGE].contains(&error.code)
            {
                stop = Some(error.clone());
            }
            if results > self.allowance.batch_response && stop.is_none() {
                stop = Some(RpcError::new(
                    error::RESPONSE_TOO_LARGE,
                    "response too large",
                ));
            }
            let separator = if text.is_empty() { '[' } else { ',' };
            let _ = write!(text, "{separator}{}", response(message.valid_id(), &reply));
            // Many small results add up to a large response, and so do echoed ids.
            if self.allowance.cover(text.len(), &mut answer.held).is_err() {
                break;
            }
        }
        if !text.is_empty() {
            text.push(']');
            answer.text = Some(text);
        }
        self.with_memory(answer)
    }

    /// Lets other connections run before the next call of a batch, since short calls never wait.
    /// Returns the error of all remaining calls if the deadline has passed.
    async fn before_next_call(&self) -> Option<RpcError> {
        yield_now().await;
        let late = self
            .deadline
            .is_some_and(|deadline| deadline <= Instant::now());
        late.then(timed_out)
    }

    /// The response, or an error response if there is no memory for the whole text.
    fn with_memory(&self, mut answer: SessionResponse) -> SessionResponse {
        let size = answer.text.as_ref().map_or(0, String::len);
        if let Err(error) = self.allowance.cover(size, &mut answer.held) {
            (answer.text, answer.held) = (Some(response(None, &Err(error))), None);
        }
        answer
    }

    /// Executes one message and returns the reply. A notification is executed too, but gets `None`.
    async fn handle(
        &self,
        message: &RpcMessage<'_>,
        answer: &mut SessionResponse,
    ) -> Option<Reply> {
        if message.is_notification() {
            // A notification cannot begin a subscription: the client would not learn the
            // subscription's id.
            if !message.method.ends_with("_subscribe") {
                let _ = self.call(message, answer).await;
            }
            return None;
        }
        if !message.is_call() {
            return Some(Err(RpcError::new(
                error::INVALID_REQUEST,
                "invalid request",
            )));
        }
        let Some(metrics) = self.metrics else {
            return Some(self.call(message, answer).await);
        };
        let params = message.params.map_or(0, |params| params.get().len());
        let served = metrics.on_call(self.api.name_of(&message.method), params);
        let reply = self.call(message, answer).await;
        served.on_end(match &reply {
            Ok(result) => RpcOutcome::Result(result.get().len()),
            Err(error) => RpcOutcome::Refused(error.code.into()),
        });
        Some(reply)
    }

    async fn call(&self, message: &RpcMessage<'_>, answer: &mut SessionResponse) -> Reply {
        self.sender.admit(self.api, &message.method)?;
        if let Some(namespace) = message.method.strip_suffix("_subscribe") {
            return self.subscribe(namespace, message.params, answer).await;
        }
        let args = Args::parse(message.params);
        if let (Some(namespace), Some(live)) = (
            message.method.strip_suffix("_unsubscribe"),
            self.subscriptions,
        ) && self.api.has_subscriptions(namespace)
        {
            let id: String = args?.at_most(1)?.required()?;
            let token = live
                .tokens
                .lock()
                .remove(&id)
                .ok_or_else(|| RpcError::server("subscription not found"))?;
            token.cancel();
            return error::reply(true);
        }
        let Some(method) = self.api.method(&message.method) else {
            return Err(RpcError::method_not_found(&message.method));
        };
        let call = AssertUnwindSafe(method(args?, self.allowance.client)).catch_unwind();
        let outcome = match self.deadline {
            Some(deadline) => timeout_at(deadline, call).await.map_err(|_| timed_out())?,
            None => call.await,
        };
        self.allowance.hold(
            outcome.unwrap_or_else(|_| Err(crashed(&message.method))),
            &mut answer.held,
        )
    }

    async fn subscribe(
        &self,
        namespace: &str,
        params: Option<&RawValue>,
        answer: &mut SessionResponse,
    ) -> Reply {
        let Some(live) = self.subscriptions else {
            return Err(RpcError::new(
                error::METHOD_NOT_FOUND,
                "notifications not supported",
            ));
        };
        if !self.api.has_subscriptions(namespace) {
            return Err(RpcError::method_not_found(&format!(
                "{namespace}_subscribe"
            )));
        }
        let mut args = Args::parse(Some(params.unwrap_or(RawValue::NULL)))?;
        let name: String = args.required().map_err(|_| {
            RpcError::invalid_params("expected subscription name as first argument")
        })?;
        let Some(subscription) = self.api.subscription(namespace, &name) else {
            let text = format!(
                "no {:?} subscription in {namespace} namespace",
                error::cut(&name)
            );
            return Err(RpcError::new(error::METHOD_NOT_FOUND, text));
        };
        let Some(permit) = self.allowance.subscribe() else {
            return Err(RpcError::server("too many subscriptions on this server"));
        };
        let (id, token) = live.begin()?;
        let subscriber = Subscriber {
            memory: live.memory.clone(),
            caller: self.sender.caller.clone(),
        };
        let events = subscription(args, subscriber).await;
        let events = events.inspect_err(|_| {
            live.tokens.lock().remove(&id);
        })?;
        let reply = error::reply(&id);
        answer.subscriptions.push(Subscription {
            id,
            namespace: namespace.to_owned(),
            events,
            token,
            permit,
        });
        reply
    }
}
