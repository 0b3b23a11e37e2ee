//! The configuration of endpoints, and what an operator's request to start one changes.

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

/// geth's ports of servers that operators start without naming any.
const HTTP_PORT: u16 = 8545;
const WS_PORT: u16 = 8546;

/// `--http.*`.
#[derive(Clone, Debug)]
pub struct HttpEndpoint {
    pub addr: SocketAddr,
    /// Names of namespaces.
    pub api: Vec<String>,
    /// Names accepted in the `Host` header; addresses always are, `*` accepts all.
    pub vhosts: Vec<String>,
    /// Origins that browsers may call from; `*` allows all.
    pub cors: Vec<String>,
    /// Prefix of the paths that are served; empty for `/` alone.
    pub prefix: String,
}

/// `--rpc.*`: the rollup node's own RPC.
#[derive(Clone, Debug)]
pub struct RollupEndpoint {
    pub http: HttpEndpoint,
    /// Whether a port that is taken is an error. Otherwise this endpoint is left out.
    pub required: bool,
}

/// `--ws.*`.
#[derive(Clone, Debug)]
pub struct WsEndpoint {
    pub addr: SocketAddr,
    /// Names of namespaces.
    pub api: Vec<String>,
    /// Origins that browsers may connect from; `*` allows all, none means this machine only.
    pub origins: Vec<String>,
    /// Prefix of the paths that are served; empty for `/` alone.
    pub prefix: String,
}

/// `--ipcpath`: the local socket, which serves every namespace.
#[derive(Clone, Debug)]
pub struct IpcEndpoint {
    pub path: PathBuf,
    /// Whether a socket that cannot be bound is an error. Otherwise it is left out.
    pub required: bool,
}

/// `--authrpc.*`: HTTP and WebSocket on one socket, for clients that know the secret.
#[derive(Clone, Debug)]
pub struct AuthEndpoint {
    pub addr: SocketAddr,
    /// As in [`HttpEndpoint`].
    pub vhosts: Vec<String>,
    pub secret: JwtSecret,
}

impl HttpEndpoint {
    /// The HTTP side of a listener with these methods.
    pub(super) fn site(self, api: Arc<Api>) -> Http {
        Http {
            api,
            vhosts: self.vhosts,
            cors: self.cors,
            prefix: self.prefix,
        }
    }
}

/// The items of a list that is separated by commas.
fn items(list: &str) -> Vec<String> {
    let items = list.split(',').map(str::trim);
    items
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The namespaces that geth serves where none are named.
fn default_namespaces() -> Vec<String> {
    ["eth", "net", "web3"].map(str::to_owned).to_vec()
}

/// The address that a request to start a server leaves or changes.
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
    /// This endpoint with what the request gives.
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
    /// This endpoint with what the request gives.
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
    /// The WebSocket side of a listener with these methods.
    pub(super) fn site(self, api: Arc<Api>) -> Ws {
        Ws {
            api,
            origins: self.origins,
            prefix: self.prefix,
        }
    }
}
