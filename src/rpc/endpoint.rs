//! The configuration of endpoints, and the changes that an operator's request to start a server
//! makes to it.

use super::{
    api::Api,
    server::{Http, Ws},
    server_control::{ServerStartError, StartRequest},
};
use crate::jwt::JwtSecret;
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

/// Ports of servers that operators start without naming a port; they are geth's.
const HTTP_PORT: u16 = 8545;
const WS_PORT: u16 = 8546;

/// The HTTP endpoint (`--http.*`).
#[derive(Clone, Debug)]
pub struct HttpEndpoint {
    pub addr: SocketAddr,
    /// Names of the served namespaces.
    pub api: Vec<String>,
    /// Names accepted in the `Host` header. IP addresses are always accepted; `*` accepts all
    /// names.
    pub vhosts: Vec<String>,
    /// Origins that browsers may call from; `*` allows all.
    pub cors: Vec<String>,
    /// Prefix of the served paths. If it is empty, only `/` is served.
    pub prefix: String,
}

/// The rollup node's own RPC (`--rpc.*`).
#[derive(Clone, Debug)]
pub struct RollupEndpoint {
    pub http: HttpEndpoint,
    /// Whether the start fails if the port is in use. Otherwise the node runs without this
    /// endpoint.
    pub required: bool,
}

/// The WebSocket endpoint (`--ws.*`).
#[derive(Clone, Debug)]
pub struct WsEndpoint {
    pub addr: SocketAddr,
    /// Names of the served namespaces.
    pub api: Vec<String>,
    /// Origins that browsers may connect from. `*` allows all; an empty list allows
    /// `http://localhost` only.
    pub origins: Vec<String>,
    /// Prefix of the served paths. If it is empty, only `/` is served.
    pub prefix: String,
}

/// The local socket (`--ipcpath`), which serves every namespace except `engine`.
#[derive(Clone, Debug)]
pub struct IpcEndpoint {
    pub path: PathBuf,
    /// Whether the start fails if the socket cannot be bound. Otherwise the node runs without it.
    pub required: bool,
}

/// The authenticated endpoint (`--authrpc.*`): HTTP and WebSocket on one socket, for clients that
/// have the JWT secret.
#[derive(Clone, Debug)]
pub struct AuthEndpoint {
    pub addr: SocketAddr,
    /// Names accepted in the `Host` header, as in [`HttpEndpoint`].
    pub vhosts: Vec<String>,
    pub secret: JwtSecret,
}

impl HttpEndpoint {
    /// The HTTP side of a listener that serves the methods of `api`.
    pub(super) fn site(self, api: Arc<Api>) -> Http {
        Http {
            api,
            vhosts: self.vhosts,
            cors: self.cors,
            prefix: self.prefix,
        }
    }
}

/// Splits a list at its commas.
fn items(list: &str) -> Vec<String> {
    let items = list.split(',').map(str::trim);
    items
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The namespaces that geth serves by default.
fn default_namespaces() -> Vec<String> {
    ["eth", "net", "web3"].map(str::to_owned).to_vec()
}

/// The address of a server: `addr`, with the host and port that the operator's request changes.
fn changed_addr(addr: SocketAddr, request: &StartRequest) -> Result<SocketAddr, ServerStartError> {
    let ip = match request.host.as_deref() {
        None => addr.ip(),
        Some("localhost") => Ipv4Addr::LOCALHOST.into(),
        Some(host) => {
            let ip = host.parse();
            ip.map_err(|_| ServerStartError::Host(host.to_owned()))?
        }
    };
    Ok((ip, request.port.unwrap_or(addr.port())).into())
}

impl Default for HttpEndpoint {
    fn default() -> Self {
        Self {
            addr: (Ipv4Addr::LOCALHOST, HTTP_PORT).into(),
            api: default_namespaces(),
            vhosts: vec!["localhost".to_owned()],
            cors: vec![],
            prefix: String::new(),
        }
    }
}

impl HttpEndpoint {
    /// This endpoint, with the values of the request in place of its own.
    pub(super) fn changed(self, request: StartRequest) -> Result<Self, ServerStartError> {
        let addr = changed_addr(self.addr, &request)?;
        let list = |given: Option<String>, ours| given.map_or(ours, |given| items(&given));
        Ok(Self {
            addr,
            api: list(request.api, self.api),
            vhosts: list(request.vhosts, self.vhosts),
            cors: list(request.origins, self.cors),
            prefix: self.prefix,
        })
    }
}

impl Default for WsEndpoint {
    fn default() -> Self {
        Self {
            addr: (Ipv4Addr::LOCALHOST, WS_PORT).into(),
            api: default_namespaces(),
            origins: vec![],
            prefix: String::new(),
        }
    }
}

impl WsEndpoint {
    /// This endpoint, with the values of the request in place of its own.
    pub(super) fn changed(self, request: StartRequest) -> Result<Self, ServerStartError> {
        let addr = changed_addr(self.addr, &request)?;
        let list = |given: Option<String>, ours| given.map_or(ours, |given| items(&given));
        Ok(Self {
            addr,
            api: list(request.api, self.api),
            origins: list(request.origins, self.origins),
            prefix: self.prefix,
        })
    }
}

impl WsEndpoint {
    /// The WebSocket side of a listener that serves the methods of `api`.
    pub(super) fn site(self, api: Arc<Api>) -> Ws {
        Ws {
            api,
            origins: self.origins,
            prefix: self.prefix,
        }
    }
}
