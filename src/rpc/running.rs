//! The listeners of a running server: those of its configuration, and those that operators start
//! and stop.

use super::{
    server::{Listener, Site},
    server_control::{ServerCommand, ServerCommands, ServerKind, ServerStartError, StartRequest},
};
use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use std::{net::SocketAddr, sync::Arc};
use tokio_util::sync::CancellationToken;

/// A server that an operator starts, before it is bound.
pub struct UnboundServer {
    pub addr: SocketAddr,
    /// Prefix of the names of the server's options.
    pub flag: &'static str,
    pub site: Site,
}

/// Creates and binds the servers that an operator starts.
pub struct Binder {
    pub make: MakeServer,
    pub bind: BindServer,
}

type MakeServer =
    Box<dyn Fn(ServerKind, StartRequest) -> Result<UnboundServer, ServerStartError> + Send + Sync>;
type BindServer = fn(UnboundServer) -> BoxFuture<'static, Result<Listener, ServerStartError>>;

/// A listener that serves HTTP, WebSocket or both. An operator cannot stop it if `kinds` is empty.
pub struct ServedListener {
    pub kinds: Vec<ServerKind>,
    pub listener: Listener,
}

impl ServedListener {
    /// A listener that operators cannot stop.
    pub fn fixed(listener: Listener) -> Self {
        let kinds = Vec::new();
        Self { kinds, listener }
    }
}

/// The running listeners of a server.
pub struct Running {
    token: CancellationToken,
    bind: Binder,
    tasks: FuturesUnordered<BoxFuture<'static, ()>>,
    live: Vec<LiveServer>,
}

/// A public server that is running.
struct LiveServer {
    kinds: Vec<ServerKind>,
    addr: SocketAddr,
    site: Arc<Site>,
    token: CancellationToken,
}

impl LiveServer {
    /// Stops a kind of server, as in geth. If WebSocket is stopped, HTTP continues on the same
    /// listener. If HTTP is stopped, the whole listener ends. Returns whether the listener has
    /// ended.
    fn stop(&mut self, kind: ServerKind) -> bool {
        if !self.kinds.contains(&kind) {
            return false;
        }
        tracing::info!(kind = kind.name(), addr = %self.addr, "a server was stopped");
        let goes_on = kind == ServerKind::Ws && self.kinds.contains(&ServerKind::Http);
        if goes_on {
            self.site.close_ws();
            self.kinds.retain(|other| *other != kind);
        } else {
            self.token.cancel();
        }
        !goes_on
    }
}

impl Running {
    /// No listeners yet. All listeners end when `token` is cancelled.
    pub fn new(token: CancellationToken, bind: Binder) -> Self {
        Self {
            token,
            bind,
            tasks: FuturesUnordered::new(),
            live: Vec::new(),
        }
    }

    /// Runs a task, which must end when the token that it is given is cancelled.
    pub fn run(&mut self, task: impl FnOnce(CancellationToken) -> BoxFuture<'static, ()>) {
        self.tasks.push(task(self.token.clone()));
    }

    /// Serves a listener until it is stopped, or until the server ends.
    pub fn serve(&mut self, ServedListener { kinds, listener }: ServedListener) {
        let token = self.token.child_token();
        if let Ok(addr) = listener.socket.local_addr()
            && !kinds.is_empty()
        {
            self.live.push(LiveServer {
                kinds,
                addr,
                site: listener.site.clone(),
                token: token.clone(),
            });
        }
        self.tasks.push(Box::pin(listener.run(token)));
    }

    /// Carries out commands until the server is cancelled, then waits until all listeners have
    /// ended.
    pub async fn until_cancelled(mut self, mut commands: ServerCommands) {
        loop {
            tokio::select! {
                () = self.token.cancelled() => break,
                Some(command) = commands.recv() => self.execute(command).await,
                Some(()) = self.tasks.next(), if !self.tasks.is_empty() => {}
            }
        }
        while self.tasks.next().await.is_some() {}
    }

    async fn execute(&mut self, command: ServerCommand) {
        match command {
            ServerCommand::Start(kind, request, reply) => {
                let started = self.start(kind, request).await;
                // The caller may have disconnected.
                let _ = reply.send(started);
            }
            ServerCommand::Stop(kind, reply) => {
                self.live.retain_mut(|live| !live.stop(kind));
                let _ = reply.send(());
            }
        }
    }

    async fn start(
        &mut self,
        kind: ServerKind,
        request: StartRequest,
    ) -> Result<SocketAddr, ServerStartError> {
        if let Some(live) = self.live.iter().find(|live| live.kinds.contains(&kind)) {
            return Err(ServerStartError::Running(kind, live.addr));
        }
        let server = (self.bind.make)(kind, request)?;
        let addr = server.addr;
        // A listener of HTTP can also serve WebSocket on its address, as in geth.
        let shared = |live: &&mut LiveServer| kind == ServerKind::Ws && live.addr == addr;
        if let Some(live) = self.live.iter_mut().find(shared) {
            live.site.open_ws(server.site);
            live.kinds.push(kind);
            tracing::info!(kind = kind.name(), %addr, "a server was started");
            return Ok(addr);
        }
        let listener = (self.bind.bind)(server).await?;
        let addr = listener.socket.local_addr();
        let addr = addr.map_err(|error| ServerStartError::Bind(error.to_string()))?;
        tracing::info!(kind = kind.name(), %addr, "a server was started");
        let kinds = vec![kind];
        self.serve(ServedListener { kinds, listener });
        Ok(addr)
    }
}
