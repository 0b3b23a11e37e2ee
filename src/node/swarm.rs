//! The node's part in the swarm: the configuration, the creation of the swarm, and the tasks by
//! which the execution core follows it.

use super::{check_same_chain, rollup_config};
use crate::{
    chain::Chain,
    cli::config::{FollowingConfig, P2pConfig, P2pKey},
    follow,
    rollup::engine::Engine,
    rpc::{SyncStatus, engine::backend::EngineBackend},
    tasks::Tasks,
};
use anyhow::{Context, anyhow};
use starling_p2p::{Blocks, Event, Network, Service};
use starling_proto::{config::RollupConfig, network::overrides::ForkOverrides, payload::BlockId};
use std::{path::Path, sync::Arc};
use tokio::sync::{mpsc, watch};

/// A swarm whose task has not been started.
pub(super) struct Swarm {
    service: Service,
    pub(super) network: Network,
    events: mpsc::Receiver<Event>,
    /// The first block of the L2 chain. It is reported as safe head until another safe head is
    /// known.
    genesis: BlockId,
}

/// Creates the swarm of a chain. The swarm serves the chain's blocks to peers.
pub(super) fn join(
    blocks: Arc<dyn Blocks>,
    rollup: &RollupConfig,
    config: starling_p2p::Config,
) -> anyhow::Result<Swarm> {
    let (service, network, events) = Service::new(config, blocks)?;
    Ok(Swarm {
        service,
        network,
        events,
        genesis: rollup.genesis.l2,
    })
}

/// Creates the swarm of a node with a rollup half.
pub(super) fn join_with(
    chain: &Chain,
    rollup: &RollupConfig,
    config: &P2pConfig,
) -> anyhow::Result<Swarm> {
    let blocks = Arc::new(chain.clone());
    join(blocks, rollup, swarm_config(rollup, config)?)
}

/// Creates the swarm of an execution core alone, whose block signer comes from the configuration.
pub(super) fn join_alone(
    chain: &Chain,
    datadir: &Path,
    following: &FollowingConfig,
    overrides: &ForkOverrides,
) -> anyhow::Result<Swarm> {
    let rollup = rollup_config(&following.rollup, overrides)?;
    check_same_chain(chain, &rollup, datadir, &following.rollup)?;
    let config = starling_p2p::Config {
        unsafe_block_signer: following.signer,
        ..swarm_config(&rollup, &following.p2p)?
    };
    join(Arc::new(chain.clone()), &rollup, config)
}

/// Runs the swarm, and lets the core follow it. `engine_api` is set if a rollup node may drive the
/// core.
pub(super) fn spawn(
    tasks: &Tasks,
    engine: &Engine,
    engine_api: Option<Arc<EngineBackend>>,
    swarm: Swarm,
    syncing: watch::Sender<Option<SyncStatus>>,
) {
    let Swarm {
        service,
        network,
        events,
        genesis,
    } = swarm;
    let token = || tasks.token();
    let engine = || engine.clone();
    tasks.spawn("swarm", {
        let token = token();
        async move {
            service.run(token).await;
            Ok(())
        }
    });
    tasks.spawn(
        "follower",
        follow::run(engine(), engine_api, network.clone(), events, token()),
    );
    tasks.spawn(
        "progress",
        follow::progress::run(engine(), Some(network.clone()), token()),
    );
    tasks.spawn(
        "sync status",
        follow::sync_status::run(engine(), network.clone(), syncing, token()),
    );
    tasks.spawn(
        "heads to the swarm",
        follow::report_heads(engine(), network, genesis, token()),
    );
}

/// The swarm configuration of this chain. Creates the network key if its file is missing.
pub fn swarm_config(
    rollup: &RollupConfig,
    config: &P2pConfig,
) -> anyhow::Result<starling_p2p::Config> {
    let identity = match &config.key {
        P2pKey::File(path) => starling_p2p::identity::load_or_create(path)?,
        P2pKey::Given(secret) => starling_p2p::identity::from_hex(secret.expose())
            .ok_or_else(|| anyhow!("--p2p.priv.raw is no secp256k1 key"))?,
    };
    let genesis = starling_p2p::ChainGenesis {
        id: rollup.genesis.l2,
        time: rollup.genesis.l2_time,
        block_time: rollup.block_time,
    };
    let mut swarm =
        starling_p2p::Config::new(identity, rollup.l2_chain_id, rollup.forks.clone(), genesis);
    swarm.listen_ip = config.listen_ip;
    (swarm.listen_tcp, swarm.listen_quic) = (config.listen_tcp, config.listen_quic);
    swarm.static_peers = config
        .static_peers
        .iter()
        .map(|peer| {
            peer.parse()
                .with_context(|| format!("--p2p.static: {peer} is no multiaddr"))
        })
        .collect::<anyhow::Result<_>>()?;
    swarm.gossip_threshold = config.gossip_threshold;
    swarm.sync_req_resp = config.req_resp;
    swarm.mesh = config.mesh;
    swarm.only_request_static = config.only_request_static;
    (swarm.peer_limits, swarm.policy) = (config.peer_limits, config.policy);
    swarm.restrict = config.restrict.clone();
    swarm.peerstore = config.peerstore.clone();
    swarm.discovery = config.discovery.clone();
    if let Some(discovery) = &mut swarm.discovery {
        discovery.bootnodes = config
            .bootnodes
            .clone()
            .unwrap_or_else(|| starling_p2p::discovery::defaults::bootnodes(rollup.l1_chain_id));
    }
    swarm.nat = config.nat.then(starling_p2p::NatConfig::default);
    Ok(swarm)
}
