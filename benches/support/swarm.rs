//! A swarm that feeds a chain of this process, for the gossip and range sync benches.

use starling::{chain::Chain, follow, rollup::engine::Engine};
use starling_p2p::{ChainGenesis, Config, Keypair, Multiaddr, Network, Service};
use starling_proto::{config::RollupConfig, payload::BlockId, sign};
use std::{sync::Arc, time::Duration};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Config of a loopback swarm for the chain of `genesis`, whose blocks have timestamps in the past.
pub fn config(
    rollup: &RollupConfig,
    genesis: ChainGenesis,
    static_peers: Vec<Multiaddr>,
) -> Config {
    Config {
        listen_ip: [127, 0, 0, 1].into(),
        listen_tcp: 0,
        static_peers,
        unsafe_block_signer: Some(sign::address(&super::sequencer())),
        gossip_threshold: Duration::from_secs(1 << 30),
        ..Config::new(
            Keypair::generate_secp256k1(),
            rollup.l2_chain_id,
            rollup.forks.clone(),
            genesis,
        )
    }
}

/// A running swarm, and the tasks that connect it with its chain.
pub struct ChainSwarm {
    pub network: Network,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl ChainSwarm {
    pub fn start(
        chain: &Chain,
        genesis: BlockId,
        config: Config,
        token: &CancellationToken,
    ) -> Self {
        let (service, network, events) =
            Service::new(config, Arc::new(chain.clone())).expect("the swarm starts");
        let mut tasks = JoinSet::new();
        let running = token.clone();
        tasks.spawn(async move {
            service.run(running).await;
            Ok(())
        });
        tasks.spawn(follow::run(
            Engine::Local(chain.clone()),
            None,
            network.clone(),
            events,
            token.clone(),
        ));
        tasks.spawn(follow::report_heads(
            Engine::Local(chain.clone()),
            network.clone(),
            genesis,
            token.clone(),
        ));
        Self { network, tasks }
    }

    /// The address that the swarm listens on; waits until it is known.
    pub async fn address(&self) -> Multiaddr {
        let mut addresses = self.network.listen_addrs();
        let listening = addresses.wait_for(|all| !all.is_empty());
        listening.await.expect("the swarm runs")[0].clone()
    }

    /// Waits until all tasks have ended after the token was cancelled.
    pub async fn ended(mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no task panics").expect("no task fails");
        }
    }
}
