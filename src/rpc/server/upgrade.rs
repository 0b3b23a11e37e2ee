//! The WebSocket side of a listener: its handshakes, and whether it serves WebSockets now. An
//! operator may stop WebSocket while HTTP continues on the same port, and start it again.

use super::{ClientConnection, HttpResponse, RpcBody, Site, Ws, headers::origin_allowed, refused};
use crate::rpc::{connections::Busy, operator::RequestSender, ws};
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The WebSocket side of a listener, while it is served.
pub(super) struct OpenWs {
    pub(super) side: Ws,
    /// Ends the open WebSockets when cancelled.
    token: CancellationToken,
}

impl OpenWs {
    pub(super) fn new(side: Ws) -> Arc<Self> {
        let token = CancellationToken::new();
        Arc::new(Self { side, token })
    }
}

impl Site {
    /// Serves WebSockets from now on, with the WebSocket side of `other`.
    pub fn open_ws(&self, other: Self) {
        *self.ws.lock() = other.ws.into_inner();
    }

    /// Stops serving WebSockets; open WebSockets end.
    pub fn close_ws(&self) {
        if let Some(ws) = self.ws.lock().take() {
            ws.token.cancel();
        }
    }

    /// Responds to a WebSocket handshake, or returns an HTTP error. The session runs as a task
    /// beside its connection. The connection stays busy until the session ends.
    pub(super) fn upgrade(
        self: Arc<Self>,
        ws: Arc<OpenWs>,
        mut request: Request<Incoming>,
        tasks: &TaskTracker,
        peer: Arc<ClientConnection>,
        busy: Busy,
    ) -> Result<HttpResponse, Box<HttpResponse>> {
        let sender = self.identify(&ws.side.prefix, &request, &peer)?;
        if !origin_allowed(&ws.side.origins, request.headers()) {
            return Err(Box::new(refused(
                StatusCode::FORBIDDEN,
                "origin not allowed",
            )));
        }
        let share = self
            .ws_shares
            .of(peer.address.ip())
            .map(Semaphore::try_acquire_owned)
            .transpose();
        let (Ok(share), Ok(permit)) = (share, self.ws_permits.clone().try_acquire_owned()) else {
            return Err(Box::new(refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many WebSocket connections",
            )));
        };
        let mut handshake = soketto::handshake::http::Server::new();
        let response = match handshake.receive_request(&request) {
            Ok(response) => response.map(|()| RpcBody::Left(Full::default())),
            Err(error) => {
                return Err(Box::new(refused(
                    StatusCode::BAD_REQUEST,
                    &error.to_string(),
                )));
            }
        };
        let upgraded = hyper::upgrade::on(&mut request);
        tasks.spawn(async move {
            let _permits = (share, permit, busy);
            if let Ok(socket) = upgraded.await {
                self.serve_ws(&ws, socket, &peer, sender).await;
            }
        });
        Ok(response)
    }

    /// Serves a WebSocket until the client ends it, its connection is closed, or WebSocket is
    /// stopped.
    async fn serve_ws(
        &self,
        ws: &OpenWs,
        socket: Upgraded,
        peer: &ClientConnection,
        sender: RequestSender,
    ) {
        let token = peer.admitted.close.child_token();
        let session = ws::session(
            TokioIo::new(socket),
            peer.address,
            ws.side.api.clone(),
            &self.limits,
            &peer.allowance,
            sender,
            token.clone(),
        );
        tokio::pin!(session);
        tokio::select! {
            () = &mut session => {}
            () = ws.token.cancelled() => {
                token.cancel();
                session.await;
            }
        }
    }
}
