//! A node without RPC: a chain that follows a swarm.

use super::*;
use crate::{chain::pool_maintenance, follow};
use parking_lot::Mutex;
use starling_p2p::{ChainGenesis, Config, Keypair, Multiaddr, Service};
use tokio::task::JoinSet;

pub(super) struct Member {
    pub chain: Chain,
    pub network: Network,
    pub address: Multiaddr,
    threads: Threads,
    token: CancellationToken,
    tasks: JoinSet<()>,
    datadir: Option<tempfile::TempDir>,
}

impl Member {
    /// Opens the chain in the world's directory, unless another one is given, and joins the swarm.
    pub async fn new(
        world: &World,
        datadir: Option<tempfile::TempDir>,
        signer: Address,
        token: &CancellationToken,
    ) -> Self {
        let (chain, threads) = world.open_in(datadir.as_ref().unwrap_or(&world.datadir));
        let rollup = &world.rollup;
        let genesis = ChainGenesis {
            id: rollup.genesis.l2,
            time: rollup.genesis.l2_time,
            block_time: rollup.block_time,
        };
        let mut config = Config::new(
            Keypair::generate_secp256k1(),
            rollup.l2_chain_id,
            rollup.forks.clone(),
            genesis,
        );
        (config.listen_ip, config.listen_tcp) = ([127, 0, 0, 1].into(), 0);
        config.unsafe_block_signer = Some(signer);
        let (service, network, events) = Service::new(config, Arc::new(chain.clone())).unwrap();
        let (token, mut tasks) = (token.child_token(), JoinSet::new());
        tasks.spawn(service.run(token.clone()));
        let follower = follow::run(
            Engine::Local(chain.clone()),
            None,
            network.clone(),
            events,
            token.clone(),
        );
        let heads = follow::report_heads(
            Engine::Local(chain.clone()),
            network.clone(),
            rollup.genesis.l2,
            token.clone(),
        );
        let maintenance = pool_maintenance::run(chain.clone(), token.clone());
        tasks.spawn(async { follower.await.unwrap() });
        tasks.spawn(async { heads.await.unwrap() });
        tasks.spawn(async { maintenance.await.unwrap() });
        let address = network
            .listen_addrs()
            .wait_for(|all| !all.is_empty())
            .await
            .unwrap()[0]
            .clone();
        Self {
            chain,
            network,
            address,
            threads,
            token,
            tasks,
            datadir,
        }
    }

    pub async fn until_number(&self, number: u64) {
        let mut heads = self.chain.heads();
        let reached = heads.wait_for(|heads| heads.head.number >= number);
        tokio::time::timeout(Duration::from_secs(240), reached)
            .await
            .unwrap()
            .unwrap();
    }

    /// Collects the blocks with this signer's signature that peers send from now on.
    pub async fn collect(&self, signer: Address) -> Arc<Mutex<Vec<Arc<Payload>>>> {
        let (all, mut blocks) = (
            Arc::new(Mutex::new(vec![])),
            self.network.blocks_signed_by(signer).await,
        );
        let collected = all.clone();
        tokio::spawn(async move {
            while let Some(block) = blocks.recv().await {
                collected.lock().push(block);
            }
        });
        all
    }

    /// Stops all tasks and closes the chain, so that its directory can be opened again. Returns the
    /// directory if it is not the world's.
    pub async fn stop(self) -> Option<tempfile::TempDir> {
        let Self {
            chain,
            network,
            threads,
            token,
            tasks,
            datadir,
            ..
        } = self;
        token.cancel();
        tasks.join_all().await;
        drop((chain, network));
        tokio::task::spawn_blocking(|| threads.stop())
            .await
            .unwrap()
            .unwrap();
        datadir
    }
}
