//! JSON-RPC framing: bytes of a request or a batch in, text of the response out, by geth's rules (`facts`: JSON-RPC, framing).
//!
//! Both transports end here. A batch runs one call after another. What it may grow to, and what all answers together take until
//! their readers have them, is [`Allowance`].

use super::{
    api::{Api, EventStream},
    error::{self, Reply, RpcError},
    json::{Members, firsts},
    params::Args,
    schedule::Client,
};
use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use std::{collections::HashMap, fmt::Write, panic::AssertUnwindSafe, sync::Arc};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

/// Live subscriptions of one connection, and of an endpoint.
const MAX_SUBSCRIPTIONS: usize = 100;
const ALL_SUBSCRIPTIONS: usize = 4096;
/// Bytes of an id, which is echoed.
const MAX_ID: usize = 1024;

/// Limits of an endpoint on requests and responses, for one client.
#[derive(Clone, Debug)]
pub struct Allowance {
    /// Calls in one batch.
    pub batch: usize,
    /// Bytes of results in one batch; what follows the result that crosses the line is an error.
    pub batch_response: usize,
    /// KiB of all requests that are being worked on.
    requests: Arc<Semaphore>,
    most_requests: usize,
    /// KiB of all answers that are being made or wait for their readers.
    answers: Arc<Semaphore>,
    /// What of them the answers to one address may take.
    share: Option<Arc<Semaphore>>,
    /// Of all connections.
    subscriptions: Arc<Semaphore>,
    /// The client that heavy calls are scheduled for.
    client: Client,
}

/// Memory of a request, given back when dropped.
pub type Room = OwnedSemaphorePermit;

/// Memory of an answer, given back when dropped.
#[derive(Debug)]
pub struct Held {
    room: OwnedSemaphorePermit,
    share: Option<OwnedSemaphorePermit>,
}

/// Memory is counted in these. Answers below it are not counted: connections bound their number.
pub const KIB: usize = 1024;
/// Requests up to this size are not counted either. Each of 10,000 connections may hold one of them: 40 MB together.
pub const SMALL: usize = 4 * KIB;

/// Bytes of a result, or of an error's words and what a call reverted with.
fn weight(reply: &Reply) -> usize {
    match reply {
        Ok(result) => result.get().len(),
        Err(error) => error.message.len() + error.data.as_ref().map_or(0, |data| data.get().len()),
    }
}

impl Allowance {
    /// `requests` and `answers` in bytes.
    pub fn new(batch: usize, batch_response: usize, requests: usize, answers: usize) -> Self {
        let most = |bytes: usize| bytes.div_ceil(KIB).min(Semaphore::MAX_PERMITS);
        let memory = |bytes| Arc::new(Semaphore::new(most(bytes)));
        let most_requests = most(requests);
        let subscriptions = Arc::new(Semaphore::new(ALL_SUBSCRIPTIONS));
        let (requests, answers) = (memory(requests), memory(answers));
        let client = Client::Connection(0);
        Self {
            batch,
            batch_response,
            requests,
            most_requests,
            answers,
            share: None,
            subscriptions,
            client,
        }
    }

    /// The same for a client whose answers may take no more than `share`, in KiB.
    pub fn of(&self, client: Client, share: Option<Arc<Semaphore>>) -> Self {
        Self {
            client,
            share,
            ..self.clone()
        }
    }

    /// The memory of requests, in KiB.
    pub fn requests(&self) -> Arc<Semaphore> {
        self.requests.clone()
    }

    /// How many KiB more a request of this many bytes needs than it has.
    pub fn missing(&self, bytes: usize, room: Option<&Room>) -> u32 {
        let size = if bytes <= SMALL {
            0
        } else {
            bytes.div_ceil(KIB).min(self.most_requests)
        };
        u32::try_from(size.saturating_sub(room.map_or(0, Room::num_permits))).unwrap_or(u32::MAX)
    }

    /// Waits until there is room for what has arrived of a request: what is only announced takes none.
    pub async fn admit(&self, bytes: usize, room: &mut Option<Room>) {
        let missing = self.missing(bytes, room.as_ref());
        if missing > 0
            && let Ok(more) = self.requests.clone().acquire_many_owned(missing).await
        {
            merge(room, more);
        }
    }

    /// Makes room for an answer of this many bytes in all, or refuses it: who reads slowly must not cost others their memory.
    fn cover(&self, bytes: usize, held: &mut Option<Held>) -> Result<(), RpcError> {
        let missing =
            (bytes / KIB).saturating_sub(held.as_ref().map_or(0, |held| held.room.num_permits()));
        if missing == 0 {
            return Ok(());
        }
        let take = |from: &Arc<Semaphore>| {
            let room = u32::try_from(missing)
                .ok()
                .and_then(|missing| from.clone().try_acquire_many_owned(missing).ok());
            let refused = "response too large: too many answers wait for their readers";
            room.ok_or_else(|| RpcError::new(error::RESPONSE_TOO_LARGE, refused))
        };
        let share = self.share.as_ref().map(take).transpose()?;
        let room = take(&self.answers)?;
        match held {
            Some(held) => {
                held.room.merge(room);
                if let Some(share) = share {
                    merge(&mut held.share, share);
                }
            }
            None => *held = Some(Held { room, share }),
        }
        Ok(())
    }

    /// Makes room for one more result.
    fn hold(&self, reply: Reply, held: &mut Option<Held>) -> Reply {
        let before = held
            .as_ref()
            .map_or(0, |held| held.room.num_permits() * KIB);
        self.cover(before + weight(&reply), held)?;
        reply
    }
}

/// Adds to a permit, if there is one.
pub fn merge(room: &mut Option<Room>, more: Room) {
    match room {
        Some(room) => room.merge(more),
        None => *room = Some(more),
    }
}

/// What goes back to the client, and the subscriptions that begin once it has gone.
#[derive(Default)]
pub struct Answer {
    /// `None`: nothing is sent (notifications only, or an empty body).
    pub text: Option<String>,
    /// To be dropped when the text has been sent.
    pub held: Option<Held>,
    pub subscriptions: Vec<Subscription>,
}

/// A subscription that its client has been told of by `id`.
pub struct Subscription {
    pub id: String,
    pub namespace: String,
    pub events: EventStream,
    /// Cancelled by `<namespace>_unsubscribe`.
    pub token: CancellationToken,
    pub place: OwnedSemaphorePermit,
}

/// The live subscriptions of a connection, by id.
pub type Live = Mutex<HashMap<String, CancellationToken>>;

/// What a connection allows its requests.
pub struct Session<'a> {
    pub api: &'a Api,
    pub allowance: &'a Allowance,
    /// Answers after this moment are -32002. HTTP only: nobody waits on a WebSocket.
    pub deadline: Option<Instant>,
    /// `None` where there cannot be any (HTTP).
    pub subscriptions: Option<&'a Live>,
}

/// One request of the wire. Members of the wrong kind count as absent, so that the id is echoed whatever else is wrong.
#[derive(Default)]
struct Message<'a> {
    version: bool,
    /// Echoed byte for byte.
    id: Option<&'a RawValue>,
    method: String,
    params: Option<&'a RawValue>,
}

impl<'a> Message<'a> {
    fn parse(json: &'a RawValue) -> Self {
        let Ok(members) = serde_json::from_str::<Members<'a>>(json.get()) else {
            return Self::default();
        };
        let text = |value: Option<&RawValue>| {
            value.and_then(|v| serde_json::from_str::<String>(v.get()).ok())
        };
        Self {
            version: text(members.jsonrpc).as_deref() == Some("2.0"),
            id: members.id,
            method: text(members.method).unwrap_or_default(),
            params: members.params,
        }
    }

    /// The id if it is a string, a number or null, and short; objects and lists are no ids.
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

/// The notification that carries one event of a subscription.
pub fn notification(namespace: &str, subscription: &str, result: &RawValue) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"{namespace}_subscription","params":{{"subscription":"{subscription}","result":{}}}}}"#,
        result.get()
    )
}

impl Session<'_> {
    /// Answers one message of the client: a request or a batch.
    pub async fn answer(&self, body: &[u8]) -> Answer {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Answer::default();
        }
        let failed = |code, message: &str| Answer {
            text: Some(response(None, &Err(RpcError::new(code, message)))),
            ..Answer::default()
        };
        let Ok(json) = serde_json::from_slice::<&RawValue>(body) else {
            return failed(error::PARSE, "parse error");
        };
        let mut answer = Answer::default();
        if !json.get().starts_with('[') {
            let message = Message::parse(json);
            if let Some(reply) = self.handle(&message, &mut answer).await {
                answer.text = Some(response(message.valid_id(), &reply));
            }
            return self.paid(answer);
        }
        let most = self.allowance.batch;
        let Ok(batch) = firsts(json.get(), most.saturating_add(1)) else {
            return failed(error::PARSE, "parse error");
        };
        if batch.is_empty() {
            return failed(error::INVALID_REQUEST, "empty batch");
        }
        let messages = batch.iter().map(|json| Message::parse(json));
        if batch.len() > most {
            let id = messages
                .into_iter()
                .find(Message::is_call)
                .and_then(|call| call.id);
            let error = Err(RpcError::new(error::INVALID_REQUEST, "batch too large"));
            return Answer {
                text: Some(format!("[{}]", response(id, &error))),
                ..Answer::default()
            };
        }
        let mut text = String::new();
        let mut results = 0;
        // Why the rest of the batch is not executed.
        let mut stop: Option<RpcError> = None;
        for message in messages {
            let reply = match &stop {
                Some(_) if message.is_notification() => None,
                Some(error) => Some(Err(error.clone())),
                None => self.handle(&message, &mut answer).await,
            };
            let Some(reply) = reply else { continue };
            results += weight(&reply);
            match &reply {
                Ok(_) => {}
                Err(error) if [error::TIMEOUT, error::RESPONSE_TOO_LARGE].contains(&error.code) => {
                    stop = Some(error.clone())
                }
                Err(_) => {}
            }
            if results > self.allowance.batch_response && stop.is_none() {
                stop = Some(RpcError::new(
                    error::RESPONSE_TOO_LARGE,
                    "response too large",
                ));
            }
            let separator = if text.is_empty() { '[' } else { ',' };
            let _ = write!(text, "{separator}{}", response(message.valid_id(), &reply));
            // Many small ones are a large answer too, and ids are echoed.
            if self.allowance.cover(text.len(), &mut answer.held).is_err() {
                break;
            }
        }
        if !text.is_empty() {
            text.push(']');
            answer.text = Some(text);
        }
        self.paid(answer)
    }

    /// The answer if there is memory for all of its text.
    fn paid(&self, mut answer: Answer) -> Answer {
        let size = answer.text.as_ref().map_or(0, String::len);
        if let Err(error) = self.allowance.cover(size, &mut answer.held) {
            (answer.text, answer.held) = (Some(response(None, &Err(error))), None);
        }
        answer
    }

    /// The reply to one message; `None` for a notification, which is executed all the same.
    async fn handle(&self, message: &Message<'_>, answer: &mut Answer) -> Option<Reply> {
        if message.is_notification() {
            // Nobody would learn the id of a subscription made this way.
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
        Some(self.call(message, answer).await)
    }

    async fn call(&self, message: &Message<'_>, answer: &mut Answer) -> Reply {
        if let Some(namespace) = message.method.strip_suffix("_subscribe") {
            return self.subscribe(namespace, message.params, answer);
        }
        let args = Args::parse(message.params);
        if let (Some(namespace), Some(live)) = (
            message.method.strip_suffix("_unsubscribe"),
            self.subscriptions,
        ) && self.api.has_subscriptions(namespace)
        {
            let id: String = args?.at_most(1)?.required()?;
            let token = live
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
            Some(deadline) => timeout_at(deadline, call)
                .await
                .map_err(|_| RpcError::new(error::TIMEOUT, "request timed out"))?,
            None => call.await,
        };
        self.allowance.hold(
            outcome.unwrap_or_else(|_| Err(crashed(&message.method))),
            &mut answer.held,
        )
    }

    fn subscribe(&self, namespace: &str, params: Option<&RawValue>, answer: &mut Answer) -> Reply {
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
        if live.lock().len() >= MAX_SUBSCRIPTIONS {
            return Err(RpcError::server(
                "too many subscriptions on this connection",
            ));
        }
        let Ok(place) = self.allowance.subscriptions.clone().try_acquire_owned() else {
            return Err(RpcError::server("too many subscriptions on this server"));
        };
        let events = subscription(args)?;
        let (id, token) = (random_id(), CancellationToken::new());
        let reply = error::reply(&id);
        live.lock().insert(id.clone(), token.clone());
        answer.subscriptions.push(Subscription {
            id,
            namespace: namespace.to_owned(),
            events,
            token,
            place,
        });
        reply
    }
}

pub fn crashed(method: &str) -> RpcError {
    tracing::error!(method, "an RPC method crashed");
    RpcError::new(error::INTERNAL, "method handler crashed")
}

/// The id of a subscription or a filter, which nobody else can guess: 16 random bytes, as a quantity.
pub fn random_id() -> String {
    format!("{:#x}", rand::random::<u128>())
}
