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

/// The namespaces of the servers that operators may start: those that geth serves by default, and
/// those that the configuration names.
pub(super) fn offered_namespaces(named: Vec<String>) -> Vec<String> {
    let mut offered = default_namespaces();
    offered.extend(named);
    offered
}

/// The namespaces of a server: `ours`, or those that the operator's request names instead, each of
/// which must be in `offered`. A caller of `admin` thus gets no method that the command line does
/// not allow.
fn changed_namespaces(
    ours: Vec<String>,
    request: Option<&str>,
    offered: &[String],
) -> Result<Vec<String>, ServerStartError> {
    let Some(named) = request.map(items) else {
        return Ok(ours);
    };
    match named.iter().find(|name| !offered.contains(name)) {
        Some(name) => Err(ServerStartError::Namespace(name.clone())),
        None => Ok(named),
    }
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
    /// This endpoint, with the values of the request in place of its own. The request may name the
    /// namespaces in `offered`.
    pub(super) fn changed(
        self,
        request: StartRequest,
        offered: &[String],
    ) -> Result<Self, ServerStartError> {
        let addr = changed_addr(self.addr, &request)?;
        let api = changed_namespaces(self.api, request.api.as_deref(), offered)?;
        let list = |given: Option<String>, ours| given.map_or(ours, |given| items(&given));
        Ok(Self {
            addr,
            api,
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
    /// This endpoint, with the values of the request in place of its own. The request may name the
    /// namespaces in `offered`.
    pub(super) fn changed(
        self,
        request: StartRequest,
        offered: &[String],
    ) -> Result<Self, ServerStartError> {
        let addr = changed_addr(self.addr, &request)?;
        let api = changed_namespaces(self.api, request.api.as_deref(), offered)?;
        let list = |given: Option<String>, ours| given.map_or(ours, |given| items(&given));
        Ok(Self {
            addr,
            api,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_started_server_serves_only_namespaces_that_the_command_line_names() {
        let offered = offered_namespaces(vec!["debug".to_owned()]);
        let api = |names: Option<&str>| {
            let request = StartRequest {
                api: names.map(str::to_owned),
                ..StartRequest::default()
            };
            let http = HttpEndpoint::default().changed(request.clone(), &offered);
            let ws = WsEndpoint::default().changed(request, &offered);
            let (http, ws) = (http.map(|end| end.api), ws.map(|end| end.api));
            assert_eq!(http.as_ref().ok(), ws.as_ref().ok());
            http
        };
        assert_eq!(api(None).unwrap(), ["eth", "net", "web3"]);
        assert_eq!(api(Some("eth, debug")).unwrap(), ["eth", "debug"]);
        for refused in ["testing", "eth,admin", "engine", "eth,,Debug"] {
            let error = api(Some(refused)).unwrap_err();
            assert!(matches!(error, ServerStartError::Namespace(_)), "{refused}");
        }
    }
}
