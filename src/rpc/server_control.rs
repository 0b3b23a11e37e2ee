//! The handle with which methods start and stop the public servers of their node.
//!
//! Commands go to the server's task over a bounded channel, and callers wait for the outcome.

use std::net::SocketAddr;
use tokio::sync::{mpsc, oneshot};

/// Maximum commands that wait.
const COMMANDS: usize = 4;

/// A kind of public server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    Http,
    Ws,
}

impl ServerKind {
    /// geth's name for this kind of server.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Ws => "WebSocket",
        }
    }
}

/// A request to start a server. Values that are not given are those of the configuration.
#[derive(Clone, Debug, Default)]
pub struct StartRequest {
    pub host: Option<String>,
    pub port: Option<u16>,
    /// Namespaces, separated by commas.
    pub api: Option<String>,
    /// Origins that browsers may call from.
    pub origins: Option<String>,
    pub vhosts: Option<String>,
}

/// The reason why a server is not started.
#[derive(Debug, thiserror::Error)]
pub enum ServerStartError {
    #[error("{kind} server already running on {addr}", kind = .0.name(), addr = .1)]
    Running(ServerKind, SocketAddr),
    #[error("{0} is no address to listen on: give an IP address, or localhost")]
    Host(String),
    #[error(
        "the namespace {0} is not offered: the node has to be started with --http.api or --ws.api naming it"
    )]
    Namespace(String),
    #[error("{0}")]
    Bind(String),
    #[error("the server is stopping")]
    Stopping,
}

/// A command to the server's task.
pub enum ServerCommand {
    Start(
        ServerKind,
        StartRequest,
        oneshot::Sender<Result<SocketAddr, ServerStartError>>,
    ),
    /// Stops a server. The reply is sent at once: requests in flight, including the caller's own,
    /// may still end normally.
    Stop(ServerKind, oneshot::Sender<()>),
}

/// The handle through which commands are sent to a server.
#[derive(Clone)]
pub struct ServerHandle(mpsc::Sender<ServerCommand>);

/// The queue of commands that a server receives.
pub type ServerCommands = mpsc::Receiver<ServerCommand>;

/// Creates a handle and the queue of its commands.
pub fn server_control() -> (ServerHandle, ServerCommands) {
    let (sender, commands) = mpsc::channel(COMMANDS);
    (ServerHandle(sender), commands)
}

impl ServerHandle {
    pub async fn start(
        &self,
        kind: ServerKind,
        request: StartRequest,
    ) -> Result<SocketAddr, ServerStartError> {
        let (reply, started) = oneshot::channel();
        let sent = self
            .0
            .send(ServerCommand::Start(kind, request, reply))
            .await;
        sent.map_err(|_| ServerStartError::Stopping)?;
        started.await.map_err(|_| ServerStartError::Stopping)?
    }

    pub async fn stop(&self, kind: ServerKind) {
        let (reply, stopped) = oneshot::channel();
        if self.0.send(ServerCommand::Stop(kind, reply)).await.is_ok() {
            // A server that is already stopping counts as stopped.
            let _ = stopped.await;
        }
    }
}
