//! The server over real sockets: HTTP rules, JSON-RPC framing, WebSocket sessions.

mod access;
mod address_search;
mod admin;
mod admin_geth;
mod bounds;
mod call;
mod chain;
mod chain_trace;
mod chunked;
mod debug;
mod event_memory;
mod filters;
mod fixtures;
mod foreign_page;
mod framing;
mod heads;
mod historical;
mod hostile;
mod http;
mod log_index;
mod lookups;
mod names;
mod opp2p;
mod ots;
mod overrides;
mod pending;
mod pool;
mod proofs;
mod scripts;
mod send;
mod simulate;
mod table;
mod trace;
mod transports;
mod values;
mod waiting;
mod websocket;

use super::{
    BoundAddrs, RpcServer,
    access::Access,
    api::Api,
    connections::Connections,
    error::{Reply, RpcError, reply},
    limits::ServerLimits,
    server::{Http, Ws},
    subscription::{SubscriberLag, SubscriptionEnd},
};
use futures::{FutureExt, StreamExt, stream};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A server with test methods; it stops when dropped.
struct Server {
    addrs: BoundAddrs,
    token: CancellationToken,
    running: JoinHandle<()>,
    _guard: DropGuard,
}

/// Settings of the server that tests change.
struct Setup {
    vhosts: Vec<String>,
    cors: Vec<String>,
    origins: Vec<String>,
    prefix: String,
    limits: ServerLimits,
    access: Option<Arc<Access>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            vhosts: vec!["localhost".into()],
            cors: vec![],
            origins: vec![],
            prefix: String::new(),
            limits: ServerLimits::default(),
            access: None,
        }
    }
}

fn toys() -> Api {
    let mut api = Api::default();
    api.insert("toy_echo", |mut args| {
        async move {
            let first: String = args.required()?;
            reply(first)
        }
        .boxed()
    });
    api.insert("toy_fail", |_| {
        async {
            Err(RpcError {
                data: Some(reply("0x12")?),
                ..RpcError::new(3, "execution reverted \"so\"")
            })
        }
        .boxed()
    });
    api.insert("toy_crash", |_| {
        async { panic!("a toy that breaks") }.boxed()
    });
    api.insert("toy_sleep", |_| {
        async { std::future::pending::<Reply>().await }.boxed()
    });
    api.insert("toy_big", |mut args| {
        async move { reply("x".repeat(args.required::<super::params::Count>()?.0 as usize)) }
            .boxed()
    });
    api.insert_subscription("toy", "count", |_| {
        Ok(stream::iter(0..3)
            .map(|n| Ok(reply(n).unwrap().into()))
            .chain(stream::pending())
            .boxed())
    });
    api.insert_subscription("toy", "flood", |_| {
        Ok(stream::repeat_with(|| Ok(reply("x".repeat(100_000)).unwrap().into())).boxed())
    });
    api.insert_subscription("toy", "never", |_| Ok(stream::pending().boxed()));
    api.insert_subscription("toy", "brief", |_| {
        Ok(stream::iter([Ok(reply(7).unwrap().into())]).boxed())
    });
    for (kind, end) in [
        ("slow", SubscriptionEnd::Slow(SubscriberLag::Blocks(9))),
        ("crowded", SubscriptionEnd::Overloaded),
        ("broken", SubscriptionEnd::Failed("é".repeat(100))),
    ] {
        api.insert_subscription("toy", kind, move |_| {
            let events = [Ok(reply(7).unwrap().into()), Err(end.clone())];
            Ok(stream::iter(events).boxed())
        });
    }
    api
}

impl Server {
    async fn start(setup: Setup) -> Self {
        Self::of(toys(), setup).await
    }

    async fn of(api: Api, setup: Setup) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let api = Arc::new(api);
        let http = Http {
            api: api.clone(),
            vhosts: setup.vhosts,
            cors: setup.cors,
            prefix: setup.prefix.clone(),
        };
        let ws = Ws {
            api,
            origins: setup.origins,
            prefix: setup.prefix,
        };
        let (server, addrs) = {
            let connections = Connections::new(setup.limits.connections);
            let (http, ws) = (Some((any, http)), Some((any, ws)));
            RpcServer::bind_sites(http, ws, setup.limits, &connections, &setup.access)
                .await
                .unwrap()
        };
        let token = CancellationToken::new();
        let running = tokio::spawn(server.run(token.clone()));
        Self {
            addrs,
            running,
            _guard: token.clone().drop_guard(),
            token,
        }
    }

    async fn plain() -> Self {
        Self::start(Setup::default()).await
    }

    /// Sends bytes to the HTTP port, and reads until the server closes the connection or `wait` is
    /// over.
    async fn raw(&self, request: &[u8], wait: Duration) -> String {
        let mut socket = TcpStream::connect(self.addrs.http.unwrap()).await.unwrap();
        let _ = socket.write_all(request).await;
        read_all(&mut socket, wait).await
    }

    /// Sends one HTTP request with a body. Returns the status of the response and its whole text.
    async fn http(&self, head: &str, body: &str) -> (u16, String) {
        let length = if body.is_empty() {
            String::new()
        } else {
            format!("content-length: {}\r\n", body.len())
        };
        let request = format!("{head}\r\nconnection: close\r\n{length}\r\n{body}");
        let response = self.raw(request.as_bytes(), Duration::from_secs(10)).await;
        let status = response
            .get(9..12)
            .and_then(|status| status.parse().ok())
            .unwrap_or_else(|| panic!("no status in {response:?}"));
        (status, response)
    }

    /// Sends a JSON-RPC body by POST. Returns the body of the response.
    async fn post(&self, body: &str) -> String {
        let (status, response) = self.http(POST, body).await;
        assert_eq!(status, 200, "{response}");
        response.split_once("\r\n\r\n").unwrap().1.to_owned()
    }
}

const POST: &str = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";

async fn read_all(socket: &mut TcpStream, wait: Duration) -> String {
    let mut response = Vec::new();
    let _ = tokio::time::timeout(wait, socket.read_to_end(&mut response)).await;
    String::from_utf8_lossy(&response).into_owned()
}
