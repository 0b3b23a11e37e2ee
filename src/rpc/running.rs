//! The listeners of a server that runs: those of its configuration, and those that operators start
//! and stop.

use super::{
    server::Listener,
    server_control::{ServerCommand, ServerCommands, ServerKind, ServerStartError, StartRequest},
};
use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use std::net::SocketAddr;
use tokio_util::sync::CancellationToken;

/// Binds a server that an operator starts.
pub type Binder = Box<
    dyn Fn(ServerKind, StartRequest) -> BoxFuture<'static, Result<Listener, ServerStartError>>
        + Send
        + Sync,
>;

/// A listener that serves one kind of server, or both.
pub struct ServedListener {
    pub kinds: Vec<ServerKind>,
    pub listener: Listener,
}

impl ServedListener {
    /// A listener that stays until the end.
    pub fn fixed(listener: Listener) -> Self {
        let kinds = Vec::new();
        Self { kinds, listener }
    }
}

/// Listeners that run.
pub struct Running {
    token: CancellationToken,
    bind: Binder,
    tasks: FuturesUnordered<BoxFuture<'static, ()>>,
    live: Vec<LiveServer>,
}

/// A public server that runs.
struct LiveServer {
    kinds: Vec<ServerKind>,
    addr: SocketAddr,
    token: CancellationToken,
}

impl Running {
    /// Everything ends when `token` is cancelled.
    pub fn new(token: CancellationToken, bind: Binder) -> Self {
        Self {
            token,
            bind,
            tasks: FuturesUnordered::new(),
            live: Vec::new(),
        }
    }

    /// Runs a task that ends with the token given to it.
    pub fn run(&mut self, task: impl FnOnce(CancellationToken) -> BoxFuture<'static, ()>) {
        self.tasks.push(task(self.token.clone()));
    }

    /// Serves a listener until the server of one of its kinds is stopped.
    pub fn serve(&mut self, ServedListener { kinds, listener }: ServedListener) {
        let token = self.token.child_token();
        if let Ok(addr) = listener.socket.local_addr()
            && !kinds.is_empty()
        {
            let token = token.clone();
            self.live.push(LiveServer { kinds, addr, token });
        }
        self.tasks.push(Box::pin(listener.run(token)));
    }

    /// Carries out commands until the end, then waits for all listeners.
    pub async fn until_cancelled(mut self, mut commands: ServerCommands) {
        loop {
            tokio::select! {
                () = self.token.cancelled() => break,
                Some(command) = commands.recv() => self.obey(command).await,
                Some(()) = self.tasks.next(), if !self.tasks.is_empty() => {}
            }
        }
        while self.tasks.next().await.is_some() {}
    }

    async fn obey(&mut self, command: ServerCommand) {
        match command {
            ServerCommand::Start(kind, request, reply) => {
                let started = self.start(kind, request).await;
                // The caller may be gone.
                let _ = reply.send(started);
            }
            ServerCommand::Stop(kind, reply) => {
                let stopped = self.live.extract_if(.., |live| live.kinds.contains(&kind));
                for live in stopped {
                    tracing::info!(kind = kind.name(), addr = %live.addr, "a server was stopped");
                    live.token.cancel();
                }
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
        let listener = (self.bind)(kind, request).await?;
        let addr = listener.socket.local_addr();
        let addr = addr.map_err(|error| ServerStartError::Bind(error.to_string()))?;
        tracing::info!(kind = kind.name(), %addr, "a server was started");
        let kinds = vec![kind];
        self.serve(ServedListener { kinds, listener });
        Ok(addr)
    }
}
