//! Who signs: a signer that fails, a rival with the same key. Real swarms, and real sequencers on them.

use super::*;
use crate::{
    follow,
    rollup::signer::{Behaviour, Remote, StandIn},
};
use starling_p2p::{Config, Genesis, Keypair, Multiaddr, Service};

/// A node without RPC: a chain that follows a swarm.
struct Member {
    chain: Chain,
    network: Network,
    address: Multiaddr,
    _threads: Threads,
    _datadir: Option<tempfile::TempDir>,
}

impl Member {
    async fn new(world: &World, datadir: Option<tempfile::TempDir>, signer: Address, token: &CancellationToken) -> Self {
        let (chain, threads) = world.open_in(datadir.as_ref().unwrap_or(&world.datadir));
        let rollup = &world.rollup;
        let genesis = Genesis { id: rollup.genesis.l2, time: rollup.genesis.l2_time, block_time: rollup.block_time };
        let mut config = Config::new(Keypair::generate_secp256k1(), rollup.l2_chain_id, rollup.forks.clone(), genesis);
        (config.listen_ip, config.listen_tcp) = ([127, 0, 0, 1].into(), 0);
        config.unsafe_block_signer = Some(signer);
        let (service, network, events) = Service::new(config, Arc::new(chain.clone())).unwrap();
        tokio::spawn(service.run(token.clone()));
        tokio::spawn(follow::run(chain.clone(), None, network.clone(), events, token.clone()));
        tokio::spawn(follow::report_heads(chain.clone(), network.clone(), rollup.genesis.l2, token.clone()));
        let address = network.listen_addrs().wait_for(|all| !all.is_empty()).await.unwrap()[0].clone();
        Self { chain, network, address, _threads: threads, _datadir: datadir }
    }

    async fn until_number(&self, number: u64) {
        let mut heads = self.chain.heads();
        let reached = heads.wait_for(|heads| heads.head.number >= number);
        tokio::time::timeout(Duration::from_secs(120), reached).await.unwrap().unwrap();
    }
}

/// A block on `parent` that no sequencer here would make.
async fn rival_block(world: &World, chain: &Chain, salt: u8) -> Arc<Payload> {
    let parent = chain.view().payload(0).unwrap().unwrap();
    let origin = block(&world.l1_headers[0]);
    let blobs = BlobSchedule::new(vec![(0, BlobSchedule::CANCUN)]);
    let mut derived = attributes(&world.rollup, &blobs, &parent, &origin, None).unwrap().attributes;
    derived.no_tx_pool = Some(true);
    derived.payload_attributes.prev_randao = B256::repeat_byte(salt);
    let id = chain.start(parent.hash, derived).await.unwrap();
    chain.seal(id).await.unwrap().payload.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sequencers_with_one_key_notice_each_other_and_stop() {
    let world = World::new(6, 2).await;
    let token = CancellationToken::new();
    let address = key().address();
    let nodes =
        [Member::new(&world, None, address, &token).await, Member::new(&world, Some(world.another()), address, &token).await];
    // Alone, each makes a chain of its own: one has a transaction that the other has not.
    submit(&nodes[0].chain, transfer(0));
    let mut handles = vec![];
    for node in &nodes {
        let (sequencer, handle) = world.sequencer_of(&node.chain, config(), key(), Some(node.network.clone()));
        tokio::spawn(sequencer.run(token.clone()));
        handles.push(handle);
    }
    for (node, handle) in nodes.iter().zip(&handles) {
        node.until_number(3).await;
        assert_eq!(handle.status(), SequencerStatus { active: true, reason: None });
    }
    assert_ne!(nodes[0].chain.view().hash_of(3).unwrap(), nodes[1].chain.view().hash_of(3).unwrap());

    nodes[0].network.connect(&nodes[1].address).await.unwrap();
    for handle in &handles {
        let mut status = handle.watch();
        let stopped = status.wait_for(|status| !status.active);
        let reason = tokio::time::timeout(Duration::from_secs(120), stopped).await.unwrap().unwrap().reason.clone().unwrap();
        assert!(reason.contains(&address.to_string()) && reason.contains("another sequencer runs with the same key"), "{reason}");
        assert_eq!(handle.stop().await, Err(ControlError::NotRunning), "it has stopped and not ended");
    }

    // One of them goes on when it is told to, and the other's old blocks do not stop it.
    let head = nodes[0].chain.view().head();
    handles[0].start(head.hash).await.unwrap();
    nodes[0].until_number(head.number + 2).await;
    assert_eq!(handles[0].status(), SequencerStatus { active: true, reason: None });
    token.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_block_that_we_would_make_and_did_not_sign_is_foreign() {
    let world = World::new(4, 1).await;
    let (chain, _threads) = world.open();
    let (mut sequencer, handle) = world.sequencer(&chain, config());
    let foreign = rival_block(&world, &chain, 7).await;
    // Signed by an earlier life of this sequencer, which was killed before it moved the head.
    let own = rival_block(&world, &chain, 8).await;
    chain.log_before_sign(own.clone(), block(&world.l1_headers[0]).hash).await.unwrap();

    sequencer.on_witnessed(&own).unwrap();
    assert!(handle.active(), "its own block comes back");
    // What the leader before has made up to the head with which it gave way.
    sequencer.since = foreign.number();
    sequencer.on_witnessed(&foreign).unwrap();
    assert!(handle.active(), "made before this one took over");

    sequencer.since = 0;
    sequencer.on_witnessed(&foreign).unwrap();
    let status = handle.status();
    assert!(!status.active && status.reason.as_ref().unwrap().contains(&foreign.hash.to_string()), "{status:?}");
    // A stopped one follows whoever sequences now.
    let other = rival_block(&world, &chain, 9).await;
    sequencer.on_witnessed(&other).unwrap();
    assert_eq!(handle.status(), status);
}

/// Not one block leaves without a signature; the block in the log is the one that is signed in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_waits_until_the_remote_signer_signs_it() {
    let world = World::new(4, 1).await;
    let token = CancellationToken::new();
    let stand_in = StandIn::start().await;
    let signer = Signer::Remote(Remote::connect(&stand_in.config).await.unwrap());
    let sequencing = Member::new(&world, None, signer.address(), &token).await;
    let replica = Member::new(&world, Some(world.another()), signer.address(), &token).await;
    replica.network.connect(&sequencing.address).await.unwrap();

    *stand_in.behaviour.lock() = Behaviour { status: Some(403), ..Default::default() };
    let (sequencer, handle) = world.sequencer_of(&sequencing.chain, config(), signer, Some(sequencing.network.clone()));
    let task = tokio::spawn(sequencer.run(token.clone()));
    // A transaction that comes later is not in it.
    let until_calls = async |count| {
        while stand_in.calls.lock().len() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), until_calls(3)).await.unwrap();
    submit(&sequencing.chain, transfer(0));
    let before = stand_in.calls.lock().len();
    tokio::time::timeout(Duration::from_secs(120), until_calls(before + 2)).await.unwrap();
    let genesis = world.rollup.genesis.l2;
    assert_eq!((sequencing.chain.view().head(), replica.chain.view().head()), (genesis, genesis));
    assert!(handle.active(), "it goes on trying");
    let waiting = sequencing.chain.signed(1, genesis.hash, block(&world.l1_headers[0]).hash).unwrap().unwrap();

    *stand_in.behaviour.lock() = Behaviour { old: true, ..Default::default() };
    replica.until_number(2).await;
    assert_eq!(replica.chain.view().hash_of(1).unwrap(), Some(waiting));
    token.cancel();
    task.await.unwrap().unwrap();
}
