//! A real core behind a real Engine API on a loopback port, and clients connected to it.

mod geth;

pub(crate) use geth::GethStandIn;

use super::{EngineClient, EngineEndpoint};
use crate::{
    chain::Chain,
    jwt::JwtSecret,
    rollup::engine::Engine,
    rpc::{
        AuthEndpoint, RpcConfig, RpcContext, RpcServer, TxRoute,
        engine::{EngineContext, backend::EngineBackend},
    },
};
use starling_proto::config::RollupConfig;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The JWT secret of every test core.
pub(crate) fn secret() -> JwtSecret {
    JwtSecret::from_hex(&"5a".repeat(32)).unwrap()
}

/// A core served over the Engine API until [`ServedCore::stop`].
pub(crate) struct ServedCore {
    pub addr: SocketAddr,
    token: CancellationToken,
    task: JoinHandle<()>,
}

impl ServedCore {
    pub(crate) async fn start(chain: &Chain) -> Self {
        Self::start_at(chain, ([127, 0, 0, 1], 0).into()).await
    }

    pub(crate) async fn start_at(chain: &Chain, addr: SocketAddr) -> Self {
        let mut context = RpcContext::new(chain.into(), TxRoute::Pool);
        context.engine = Some(EngineContext {
            engine: Arc::new(EngineBackend::new(chain.clone(), None)),
            halt: None,
        });
        let config = RpcConfig {
            auth: Some(AuthEndpoint {
                addr,
                vhosts: vec!["*".into()],
                secret: secret(),
            }),
            ..Default::default()
        };
        let (server, bound) = RpcServer::bind(config, context).await.unwrap();
        let token = CancellationToken::new();
        let stop = token.clone();
        Self {
            addr: bound.auth.unwrap(),
            token,
            task: tokio::spawn(async move { server.run(stop).await }),
        }
    }

    /// A client of the core that has not connected yet.
    pub(crate) fn client(&self, rollup: &Arc<RollupConfig>, secret: JwtSecret) -> EngineClient {
        let endpoint = EngineEndpoint {
            url: format!("http://{}", self.addr),
            secret,
            timeout: Duration::from_secs(10),
        };
        EngineClient::new(&endpoint, rollup.clone(), None).unwrap()
    }

    /// A connected engine over the core.
    pub(crate) async fn engine(&self, rollup: &Arc<RollupConfig>) -> Engine {
        let client = self.client(rollup, secret());
        client.connect("rollup.json").await.unwrap();
        Engine::Remote(client)
    }

    /// Closes the port and all connections.
    pub(crate) async fn stop(self) {
        self.token.cancel();
        self.task.await.unwrap();
    }
}
