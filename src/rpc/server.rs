//! The accept loop and the HTTP rules in front of JSON-RPC: methods, sizes, hosts, origins and time
//! limits, as in geth.
//!
//! Clients can overload the server in these ways, each of which has a bound:
//!
//! - connections: [`ServerLimits::connections`]. At the limit, the connection that has been idle
//!   for longest is closed, see [`Connections`].
//! - WebSockets: [`ServerLimits::ws_connections`].
//! - request bodies: 5 MiB each, [`ServerLimits::body_memory`] together, counted as they arrive.
//! - responses: [`ServerLimits::response_memory`] together.
//! - clients that do not read: a response that takes too long ends the connection.
//! - clients that do not send: time limits on head, body and idleness.
//!
//! One public address may use only a part of the connections, WebSockets and response memory
//! ([`Shares`]).

mod exposure;
mod gzip;
mod headers;
mod upgrade;

use super::{
    access::Access,
    api::Api,
    chunked::ChunkedText,
    connections::{Admitted, Busy, Connections},
    error::RpcError,
    frame::{self, Session, SessionResponse},
    health,
    http_metrics::HttpMetrics,
    io::WriteTimeout,
    limits::ServerLimits,
    memory::{Allowance, KIB, RequestMemory, ResponseMemory},
    operator::RequestSender,
    schedule::Client,
    shares::Shares,
};
use crate::{jwt::JwtSecret, rollup::rpc_calls::RpcServerMetrics};
use bytes::Bytes;
use futures::{StreamExt, stream};
use gzip::Encoded;
use headers::{
    KeyPath, accepts_gzip, bearer, content_length, cors_headers, host_allowed, is_json, is_of_page,
    is_preflight, key_path, path_served,
};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{
    BodyExt, Either, Full, LengthLimitError, Limited, StreamBody, combinators::UnsyncBoxBody,
};
use hyper::{
    body::{Body, Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use soketto::handshake::http::is_upgrade_request;
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use upgrade::OpenWs;

/// The HTTP side of a listener: its methods, and the hosts and origins that may call them.
pub struct Http {
    pub api: Arc<Api>,
    pub vhosts: Vec<String>,
    pub cors: Vec<String>,
    /// Prefix of the served paths. If it is empty, only `/` is served.
    pub prefix: String,
}

/// The WebSocket side of a listener: its methods, and the origins that may call them.
pub struct Ws {
    pub api: Arc<Api>,
    pub origins: Vec<String>,
    /// Prefix of the served paths. If it is empty, only `/` is served.
    pub prefix: String,
}

/// One listening socket. It serves HTTP, WebSockets, or both; the `Upgrade` header of a request
/// decides between them.
pub struct Listener {
    pub socket: TcpListener,
    pub site: Arc<Site>,
}

/// The endpoint that a listener serves.
pub struct Site {
    pub http: Option<Http>,
    /// The WebSocket side; `None` while no WebSockets are served.
    ws: Mutex<Option<Arc<OpenWs>>>,
    pub limits: ServerLimits,
    /// JWT secret required of every request.
    secret: Option<JwtSecret>,
    /// Recorder of requests and calls, on the rollup node's endpoint.
    metrics: Option<HttpMetrics>,
    /// Keys and budgets of callers; with `None`, everybody is served without a limit on calls.
    access: Option<Arc<Access>>,
    connections: Arc<Connections>,
    ws_permits: Arc<Semaphore>,
    allowance: Allowance,
    /// Per-address limit on connections.
    connection_shares: Shares,
    /// Per-address limit on WebSockets.
    ws_shares: Shares,
    /// Per-address limit on the memory of responses, in KiB.
    response_shares: Shares,
}

/// Timeout of a connection's first request head on an endpoint where clients must authenticate. A
/// client that sends no head in time loses its connection.
const AUTH_HEAD: Duration = Duration::from_secs(5);

/// Grace period of requests in flight when the server stops.
const STOP: Duration = Duration::from_secs(5);

impl Site {
    pub fn new(
        http: Option<Http>,
        ws: Option<Ws>,
        limits: ServerLimits,
        connections: Arc<Connections>,
    ) -> Self {
        let ws_permits = Arc::new(Semaphore::new(limits.ws_connections));
        let allowance = Allowance::new(
            limits.batch,
            limits.batch_response,
            limits.body_memory,
            limits.response_memory,
        );
        let connection_shares = Shares::new(limits.connections.div_ceil(2));
        let ws_shares = Shares::new(limits.ws_connections.div_ceil(2));
        let response_shares = Shares::new(
            limits
                .response_memory
                .div_ceil(4)
                .max(limits.batch_response)
                .div_ceil(KIB),
        );
        Self {
            http,
            ws: Mutex::new(ws.map(OpenWs::new)),
            limits,
            secret: None,
            metrics: None,
            access: None,
            connections,
            ws_permits,
            allowance,
            connection_shares,
            ws_shares,
            response_shares,
        }
    }

    /// Records requests and calls as metrics under op-node's names.
    pub fn recorded(self) -> Self {
        Self {
            metrics: Some(HttpMetrics),
            ..self
        }
    }

    /// Serves only callers that `access` admits, within their budgets.
    pub fn with_access(self, access: Option<Arc<Access>>) -> Self {
        Self { access, ..self }
    }

    pub fn with_secret(self, secret: JwtSecret) -> Self {
        Self {
            secret: Some(secret),
            ..self
        }
    }
}

impl Listener {
    /// Accepts connections until `token` is cancelled, then lets the requests in flight end.
    /// Connections are tasks of this function: when it returns, all connections have ended.
    pub async fn run(self, token: CancellationToken) {
        let tasks = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = token.cancelled() => break,
                accepted = self.socket.accept() => accepted,
            };
            match accepted {
                Ok((socket, peer)) => {
                    // Checked before an idle connection is closed: an address at its limit must not
                    // close the connections of other addresses.
                    let Ok(share) = self
                        .site
                        .connection_shares
                        .of(peer.ip())
                        .map(Semaphore::try_acquire_owned)
                        .transpose()
                    else {
                        tracing::debug!(%peer, "refused an RPC connection: too many from this address");
                        continue;
                    };
                    let admitted = tokio::select! {
                        () = token.cancelled() => break,
                        admitted = self.site.connections.admit(&token) => admitted,
                    };
                    let site = self.site.clone();
                    let client = Client::of(peer.ip(), admitted.number);
                    let client = if site.secret.is_some() {
                        Client::RollupNode(admitted.number)
                    } else {
                        client
                    };
                    let allowance = site
                        .allowance
                        .of(client, site.response_shares.of(peer.ip()));
                    let peer = Arc::new(ClientConnection {
                        address: peer,
                        allowance,
                        admitted,
                        _share: share,
                    });
                    tasks.spawn(connection(socket, peer, site, tasks.clone()));
                }
                Err(error) => {
                    // Mostly the process has run out of file descriptors: only waiting helps.
                    tracing::warn!(%error, "an RPC connection could not be accepted");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        drop(self.socket);
        tasks.close();
        tasks.wait().await;
    }
}

/// State that the requests of a connection share.
struct ClientConnection {
    address: SocketAddr,
    allowance: Allowance,
    admitted: Arc<Admitted>,
    /// Permit from the connection limit of the client's address.
    _share: Option<OwnedSemaphorePermit>,
}

async fn connection(
    socket: TcpStream,
    peer: Arc<ClientConnection>,
    site: Arc<Site>,
    tasks: TaskTracker,
) {
    let _ = socket.set_nodelay(true);
    let socket = TokioIo::new(WriteTimeout::new(socket, site.limits.write));
    let began = Arc::new(AtomicBool::new(false));
    let service = service_fn(|request: Request<Incoming>| {
        began.store(true, Ordering::Relaxed);
        let (site, tasks, peer) = (site.clone(), tasks.clone(), peer.clone());
        async move { Ok::<_, Infallible>(site.respond_recorded(request, &tasks, peer).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(site.limits.idle);
    let connection = http.serve_connection(socket, service).with_upgrades();
    tokio::pin!(connection);
    // hyper has one timeout for idleness and for the head of a request, so the first head gets a
    // timer of its own.
    let first = sleep(if site.secret.is_some() {
        site.limits.read.min(AUTH_HEAD)
    } else {
        site.limits.read
    });
    tokio::pin!(first);
    let (mut waiting, mut stopping) = (true, false);
    loop {
        tokio::select! {
            outcome = &mut connection => {
                if let Err(error) = outcome {
                    tracing::debug!(peer = %peer.address, %error, "RPC connection ended");
                }
                return;
            }
            () = &mut first, if waiting => {
                waiting = false;
                if stopping || !began.load(Ordering::Relaxed) {
                    return;
                }
            }
            // The server stops, or the connection is idle and its permit is needed for another
            // client.
            () = peer.admitted.close.cancelled(), if !stopping => {
                if !began.load(Ordering::Relaxed) {
                    return;
                }
                (stopping, waiting) = (true, true);
                first.as_mut().reset(Instant::now() + STOP);
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// A response body that is complete, or one that is made while it is sent.
type RpcBody = Either<Full<Bytes>, UnsyncBoxBody<Bytes, RpcError>>;
type HttpResponse = Response<RpcBody>;

/// The body of a response. Once it has been sent, its memory is released and its connection becomes
/// idle.
struct SentResponse {
    body: Encoded,
    _held: Option<ResponseMemory>,
    _busy: Busy,
}

impl AsRef<[u8]> for SentResponse {
    fn as_ref(&self) -> &[u8] {
        self.body.bytes()
    }
}

/// The HTTP response for an RPC response. It is compressed if the client accepts `gzip`, unless it
/// is made while it is sent.
async fn http_response(answer: SessionResponse, gzip: bool, busy: Busy) -> HttpResponse {
    let text = answer.text.unwrap_or_default();
    if let Some(rest) = answer.rest {
        return chunked_json(Bytes::from(text), rest, busy);
    }
    let body = Encoded::new(text, gzip).await;
    let encoding = body.encoding();
    let sent = SentResponse {
        body,
        _held: answer.held,
        _busy: busy,
    };
    let mut response = Response::new(RpcBody::Left(Full::from(Bytes::from_owner(sent))));
    let headers = response.headers_mut();
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    headers.extend(encoding.map(|encoding| (header::CONTENT_ENCODING, encoding)));
    if gzip {
        let vary = HeaderValue::from_static("Accept-Encoding");
        headers.insert(header::VARY, vary);
    }
    response
}

/// An HTTP error in the form of Go's `http.Error`.
fn refused(status: StatusCode, text: &str) -> HttpResponse {
    let mut response = Response::new(RpcBody::Left(Full::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

fn empty(status: StatusCode) -> HttpResponse {
    let mut response = Response::new(RpcBody::Left(Full::default()));
    *response.status_mut() = status;
    response
}

fn json(body: String) -> HttpResponse {
    let mut response = Response::new(RpcBody::Left(Full::from(body)));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// A response whose result is sent while it is being made. If making the result fails after the
/// first part, the connection is closed before the end of the body. The client thus learns that the
/// result is incomplete.
fn chunked_json(first: Bytes, rest: ChunkedText, busy: Busy) -> HttpResponse {
    let first = stream::once(async { Ok(first) });
    let rest = stream::unfold((rest, busy), |(mut rest, busy)| async {
        let part = rest.next().await?;
        Some((part, (rest, busy)))
    });
    let last = stream::once(async { Ok(Bytes::from_static(frame::CLOSING_BRACE.as_bytes())) });
    let parts = first.chain(rest).chain(last);
    let body = StreamBody::new(parts.map(|part| part.map(Frame::data)));
    let mut response = Response::new(RpcBody::Right(UnsyncBoxBody::new(body)));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

impl Site {
    /// Like [`Site::respond`], and records the request if the endpoint has metrics.
    async fn respond_recorded(
        self: Arc<Self>,
        request: Request<Incoming>,
        tasks: &TaskTracker,
        peer: Arc<ClientConnection>,
    ) -> HttpResponse {
        let metrics = self.metrics;
        let in_flight = metrics.map(|metrics| metrics.on_request(request.method()));
        let response = self.respond(request, tasks, peer).await;
        if let Some(in_flight) = in_flight {
            in_flight.on_response(response.status(), response.size_hint().exact());
        }
        response
    }

    /// Responds to any request. A client that fails authentication or a WebSocket handshake is
    /// disconnected, which frees its permit at once.
    async fn respond(
        self: Arc<Self>,
        request: Request<Incoming>,
        tasks: &TaskTracker,
        peer: Arc<ClientConnection>,
    ) -> HttpResponse {
        let closing = |mut answer: HttpResponse| {
            answer
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
            answer
        };
        if let Some(Err(reason)) = self
            .secret
            .as_ref()
            .map(|secret| secret.check(request.headers()))
        {
            return closing(refused(StatusCode::UNAUTHORIZED, &reason));
        }
        let busy = peer.admitted.busy();
        let ws = self.ws.lock().clone();
        if let Some(ws) = ws.filter(|_| is_upgrade_request(&request)) {
            return self
                .upgrade(ws, request, tasks, peer, busy)
                .unwrap_or_else(|refusal| closing(*refusal));
        }
        self.http(request, &peer, busy).await
    }

    /// The sender of a request to a path below `prefix`, or the response of a refusal. The last
    /// part of the path may be the key.
    fn identify(
        &self,
        prefix: &str,
        request: &Request<Incoming>,
        peer: &ClientConnection,
    ) -> Result<RequestSender, Box<HttpResponse>> {
        let path = request.uri().path();
        let not_found = || Box::new(empty(StatusCode::NOT_FOUND));
        let is_page = is_of_page(request.headers());
        let sender = |caller| RequestSender { caller, is_page };
        let Some(access) = &self.access else {
            let served = path_served(prefix, path);
            return served.then_some(sender(None)).ok_or_else(not_found);
        };
        let KeyPath { served, key } = key_path(prefix, path);
        if !served {
            return Err(not_found());
        }
        let key = bearer(request.headers()).or(key);
        let caller = access.caller(key, peer.address.ip());
        caller
            .map(|caller| sender(Some(caller)))
            .map_err(|denied| Box::new(refused(StatusCode::UNAUTHORIZED, &denied.to_string())))
    }

    /// Responds to a request that is not a WebSocket upgrade.
    async fn http(
        &self,
        request: Request<Incoming>,
        peer: &ClientConnection,
        busy: Busy,
    ) -> HttpResponse {
        let Some(http) = &self.http else {
            return empty(StatusCode::NOT_FOUND);
        };
        let path = request.uri().path();
        if path == health::PATH && http.api.serves(health::NAMESPACE.name) {
            return json(health::body());
        }
        let cors = cors_headers(&http.cors, &request);
        let preflight = cors.is_some() && is_preflight(&request);
        let sender = match self.identify(&http.prefix, &request, peer) {
            Ok(sender) => sender,
            // A browser sends its preflight request without the key.
            Err(_) if preflight && self.access.is_some() => RequestSender::default(),
            Err(refusal) => return *refusal,
        };
        if !host_allowed(&http.vhosts, request.headers()) {
            return refused(StatusCode::FORBIDDEN, "invalid host specified");
        }
        let mut response = if preflight {
            empty(StatusCode::NO_CONTENT)
        } else {
            let answering = self.post(http, request, &peer.allowance, &sender, busy);
            answering.await
        };
        for (name, value) in cors.iter().flatten() {
            response.headers_mut().append(name, value.clone());
        }
        response
    }

    /// Responds to a POST request. The rules are those of geth's `rpc/http.go`, in its order.
    async fn post(
        &self,
        http: &Http,
        request: Request<Incoming>,
        allowance: &Allowance,
        sender: &RequestSender,
        busy: Busy,
    ) -> HttpResponse {
        let limit = self.limits.body;
        let length = content_length(request.headers());
        let chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
        if request.method() == Method::GET
            && length.unwrap_or(0) == 0
            && !chunked
            && request.uri().query().is_none()
        {
            return empty(StatusCode::OK);
        }
        if request.method() != Method::POST && request.method() != Method::OPTIONS {
            return refused(StatusCode::METHOD_NOT_ALLOWED, "method not allowed");
        }
        if let Some(length) = length.filter(|length| *length > limit as u64) {
            return refused(
                StatusCode::PAYLOAD_TOO_LARGE,
                &format!("content length too large ({length}>{limit})"),
            );
        }
        if request.method() == Method::OPTIONS {
            return empty(StatusCode::OK);
        }
        if !is_json(request.headers()) {
            let text = "invalid content type, only application/json is supported";
            return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
        }
        let deadline = Instant::now() + self.limits.write;
        let gzip = accepts_gzip(request.headers());
        let body = timeout(self.limits.read, self.body(request.into_body(), allowance)).await;
        let (body, _memory) = match body {
            Err(_) => return empty(StatusCode::REQUEST_TIMEOUT),
            Ok(Err(refusal)) => return *refusal,
            Ok(Ok(body)) => body,
        };
        let session = Session {
            api: &http.api,
            allowance,
            deadline: Some(deadline),
            subscriptions: None,
            chunked: true,
            metrics: self.metrics.map(|_| RpcServerMetrics),
            sender,
        };
        http_response(session.respond(&body).await, gzip, busy).await
    }

    /// Reads a request body; memory is reserved as its bytes arrive.
    async fn body(
        &self,
        body: Incoming,
        allowance: &Allowance,
    ) -> Result<(Vec<u8>, RequestMemory), Box<HttpResponse>> {
        let limit = self.limits.body;
        let (mut body, mut whole) = (Limited::new(body, limit), Vec::new());
        let mut held = RequestMemory::default();
        while let Some(frame) = body.frame().await {
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => {
                    allowance.admit(whole.len() + data.len(), &mut held).await;
                    whole.extend_from_slice(&data);
                }
                // Trailers are ignored.
                Ok(Err(_)) => {}
                Err(error) if error.is::<LengthLimitError>() => {
                    let text = format!("content length too large (>{limit})");
                    return Err(Box::new(refused(StatusCode::PAYLOAD_TOO_LARGE, &text)));
                }
                Err(_) => return Err(Box::new(empty(StatusCode::BAD_REQUEST))),
            }
        }
        Ok((whole, held))
    }
}
