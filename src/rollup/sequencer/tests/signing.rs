//! Signing with a failing signer, and with a second sequencer that has the same key. Uses real
//! swarms with real sequencers.

use super::{member::Member, *};
use crate::{
    chain::tests::killed,
    rollup::signer::{Behaviour, Remote, StandIn},
};
use tokio::sync::Semaphore;

/// A block on the head that no sequencer in these tests would build. The L1 chain has one block.
pub(super) async fn rival_block(world: &World, chain: &Chain, salt: u8) -> Arc<Payload> {
    let parent = chain
        .view()
        .payload(chain.view().head().number)
        .unwrap()
        .unwrap();
    let origin = block(&world.l1_headers[0]);
    let blobs = BlobSchedule::new(vec![(0, BlobSchedule::CANCUN)]);
    let mut derived = attributes(&world.rollup, &blobs, &parent, &origin, None)
        .unwrap()
        .attributes;
    derived.no_tx_pool = Some(true);
    derived.payload_attributes.prev_randao = B256::repeat_byte(salt);
    let id = chain.start(parent.hash, derived).await.unwrap();
    chain.seal(id).await.unwrap().payload.clone()
}

/// Starts a sequencer with the same key on each of two unconnected nodes. Waits until each has
/// built its own chain: the first chain has a transaction that the second one lacks.
async fn sequence_apart(
    world: &World,
    nodes: &[Member; 2],
    token: &CancellationToken,
) -> [SequencerHandle; 2] {
    submit(&nodes[0].chain, transfer(0));
    let handles = nodes.each_ref().map(|node| {
        let network = Some(node.network.clone());
        let (sequencer, handle) = world.sequencer_of(&node.chain, config(), key(), network);
        tokio::spawn(sequencer.run(token.clone()));
        handle
    });
    for (node, handle) in nodes.iter().zip(&handles) {
        node.until_number(3).await;
        assert_eq!(handle.status(), ACTIVE);
    }
    let [first, second] = nodes.each_ref().map(|node| node.chain.view());
    assert_ne!(first.hash_of(3).unwrap(), second.hash_of(3).unwrap());
    handles
}

/// The index of the sequencer that stops by itself first, and its reason.
async fn first_to_stop(handles: &[SequencerHandle; 2]) -> (usize, String) {
    let [mut first, mut second] = handles.each_ref().map(SequencerHandle::watch);
    let stopped = async {
        tokio::select! {
            stopped = first.wait_for(|status| !status.active) => (0, stopped.unwrap().reason.clone()),
            stopped = second.wait_for(|status| !status.active) => (1, stopped.unwrap().reason.clone()),
        }
    };
    let stopped = tokio::time::timeout(Duration::from_secs(120), stopped).await;
    let (at, reason) = stopped.unwrap();
    (at, reason.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sequencers_with_one_key_notice_each_other_and_stop() {
    let world = World::new(6, 2).await;
    let token = CancellationToken::new();
    let address = key().address();
    let nodes = [
        Member::new(&world, None, address, &token).await,
        Member::new(&world, Some(world.another()), address, &token).await,
    ];
    let handles = sequence_apart(&world, &nodes, &token).await;

    nodes[0].network.connect(&nodes[1].address).await.unwrap();
    let (at, reason) = first_to_stop(&handles).await;
    assert!(
        reason.contains(&address.to_string())
            && reason.contains("another sequencer runs with the same key"),
        "{reason}"
    );
    assert_eq!(
        handles[at].stop().await,
        Err(SequencerControlError::NotRunning),
        "it has stopped and not ended"
    );

    // After its rival is stopped, the sequencer continues on command, and the rival's old blocks do
    // not stop it.
    let _ = handles[1 - at].stop().await;
    let head = nodes[at].chain.view().head();
    handles[at].start(head.hash).await.unwrap();
    nodes[at].until_number(head.number + 2).await;
    assert_eq!(handles[at].status(), ACTIVE);
    token.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_block_of_a_living_sequencer_that_was_not_signed_here_stops_sequencing() {
    let world = World::new(4, 1).await;
    let (chain, _threads) = world.open();
    let (mut sequencer, handle) = world.sequencer(&chain, config());
    let foreign = rival_block(&world, &chain, 7).await;
    // This sequencer signed the block before a restart, and was killed before it moved the head.
    let own = rival_block(&world, &chain, 8).await;
    chain
        .log_before_sign(own.clone(), block(&world.l1_headers[0]).hash)
        .await
        .unwrap();

    sequencer.report(true, None);
    // The block's timestamp is long after the start of the period.
    sequencer.period = SequencingPeriod::new(foreign.timestamp() - 100);
    sequencer.on_own_key_block(&own).unwrap();
    assert!(handle.active(), "its own block comes back");
    sequencer.period = SequencingPeriod::new(foreign.timestamp());
    sequencer.on_own_key_block(&foreign).unwrap();
    assert!(handle.active(), "the leader before may have made it");

    sequencer.period = SequencingPeriod::new(foreign.timestamp() - 100);
    sequencer.on_own_key_block(&foreign).unwrap();
    let status = handle.status();
    assert!(
        !status.active
            && status
                .reason
                .as_ref()
                .unwrap()
                .contains(&foreign.hash.to_string()),
        "{status:?}"
    );
    // A stopped sequencer ignores the blocks of the active one.
    let other = rival_block(&world, &chain, 9).await;
    sequencer.on_own_key_block(&other).unwrap();
    assert_eq!(handle.status(), status);
}

/// A leader that has ended, the node of the next leader, and the old leader's last block, which is
/// signed and not yet published. Both chains have the same head, `base`.
struct Succession {
    world: World,
    token: CancellationToken,
    dead: Member,
    leader: Member,
    base: BlockId,
    last: Arc<Payload>,
}

impl Succession {
    async fn new() -> Self {
        let world = World::new(6, 1).await;
        let token = CancellationToken::new();
        let address = key().address();
        let dead = Member::new(&world, None, address, &token).await;
        let leader = Member::new(&world, Some(world.another()), address, &token).await;
        leader.network.connect(&dead.address).await.unwrap();
        let (sequencer, handle) =
            world.sequencer_of(&dead.chain, config(), key(), Some(dead.network.clone()));
        let reign = tokio::spawn(sequencer.run(token.clone()));
        leader.until_number(3).await;
        let stood = handle.stop().await.unwrap();
        reign.abort();
        let base = dead.chain.view().head();
        assert_eq!(base.hash, stood);
        leader.until_number(base.number).await;
        let last = rival_block(&world, &dead.chain, 7).await;
        Self {
            world,
            token,
            dead,
            leader,
            base,
            last,
        }
    }

    /// Publishes a block with the signature of the old leader.
    async fn publish(&self, block: &Arc<Payload>) {
        let chain_id = self.world.rollup.l2_chain_id;
        let signature = key().sign(chain_id, block).await.unwrap();
        self.dead.network.publish(block.clone(), signature).await;
    }

    /// Starts the new leader and publishes the old leader's last block, before the new leader has
    /// built its block of that height or after it.
    async fn succeed(&self, before: bool) -> SequencerHandle {
        // While L1 returns errors, the new leader builds no block.
        if before {
            let away = Err((-32000, "away".into()));
            let answers = &mut self.world.l1.state.lock().answers;
            answers.insert("eth_getBlockByNumber", away);
        }
        let network = Some(self.leader.network.clone());
        let (sequencer, handle) =
            self.world
                .sequencer_of(&self.leader.chain, config(), key(), network);
        tokio::spawn(sequencer.run(self.token.clone()));
        if !before {
            self.leader.until_number(self.base.number + 1).await;
        }
        self.publish(&self.last).await;
        until_known(&self.leader.chain, self.last.hash).await;
        self.world.l1.state.lock().answers.clear();
        handle
    }
}

/// The old leader's last block arrives before or after the new leader has built its block of that
/// height. Then a block arrives that only an active second sequencer can have built.
async fn a_dead_leaders_last_block_arrives(before: bool) {
    let succession = Succession::new().await;
    let handle = succession.succeed(before).await;
    let Succession {
        world,
        dead,
        leader,
        base,
        last,
        ..
    } = &succession;
    leader.until_number(base.number + 3).await;
    assert_eq!(handle.status(), ACTIVE);
    let canonical = leader.chain.view().hash_of(last.number()).unwrap();
    assert_eq!(
        canonical == Some(last.hash),
        before,
        "the first valid block of a height stays"
    );

    // The old leader is still active after all: it builds on our block.
    dead.until_number(base.number + 3).await;
    let rival = rival_block(world, &dead.chain, 8).await;
    succession.publish(&rival).await;
    let mut status = handle.watch();
    let stopped = tokio::time::timeout(
        Duration::from_secs(120),
        status.wait_for(|status| !status.active),
    )
    .await
    .unwrap();
    let reason = stopped.unwrap().reason.clone().unwrap();
    assert!(
        reason.contains("it is built on a block that was made here"),
        "{reason}"
    );
    succession.token.cancel();
}

async fn until_known(chain: &Chain, hash: B256) {
    let known = async {
        while !chain.knows(hash) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), known)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_leaders_block_that_arrives_first_is_built_on_and_stops_nobody() {
    a_dead_leaders_last_block_arrives(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_leaders_block_that_arrives_after_ours_is_passed_over_and_stops_nobody() {
    a_dead_leaders_last_block_arrives(false).await;
}

/// No block is published without a signature. The block in the log is the one that is finally
/// signed.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_waits_until_the_remote_signer_signs_it() {
    let world = World::new(4, 1).await;
    let token = CancellationToken::new();
    let stand_in = StandIn::start().await;
    let signer = Signer::Remote(Remote::connect(&stand_in.config).await.unwrap());
    let sequencing = Member::new(&world, None, signer.address(), &token).await;
    let replica = Member::new(&world, Some(world.another()), signer.address(), &token).await;
    replica.network.connect(&sequencing.address).await.unwrap();

    *stand_in.behaviour.lock() = Behaviour {
        status: Some(403),
        ..Default::default()
    };
    let recorder = PrometheusBuilder::new().build_recorder();
    let (sequencer, handle) = metrics::with_local_recorder(&recorder, || {
        let network = Some(sequencing.network.clone());
        world.sequencer_of(&sequencing.chain, config(), signer, network)
    });
    let task = tokio::spawn(sequencer.run(token.clone()));
    // A transaction that is submitted later must not be in the block.
    let until_calls = async |count| {
        while stand_in.calls.lock().len() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), until_calls(3))
        .await
        .unwrap();
    submit(&sequencing.chain, transfer(0));
    let before = stand_in.calls.lock().len();
    tokio::time::timeout(Duration::from_secs(120), until_calls(before + 2))
        .await
        .unwrap();
    let genesis = world.rollup.genesis.l2;
    assert_eq!(
        (sequencing.chain.view().head(), replica.chain.view().head()),
        (genesis, genesis)
    );
    assert!(handle.active(), "it goes on trying");
    let refused = counted(&recorder, "publishing_errors_total");
    assert!(refused >= before as u64, "{refused} of more than {before}");
    let waiting = sequencing.chain.guards(1, genesis.hash).unwrap()[0].hash;

    *stand_in.behaviour.lock() = Behaviour {
        old: true,
        ..Default::default()
    };
    replica.until_number(2).await;
    assert_eq!(replica.chain.view().hash_of(1).unwrap(), Some(waiting));
    token.cancel();
    task.await.unwrap().unwrap();
}

/// Waits for `more` further requests to the signer.
async fn more_calls(stand_in: &StandIn, more: usize) {
    let until = stand_in.calls.lock().len() + more;
    let called = async {
        while stand_in.calls.lock().len() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), called)
        .await
        .unwrap();
}

/// The signer refuses to sign while L1 advances to the next origin.
async fn refuse_while_l1_moves_on(stand_in: &StandIn, world: &World) {
    *stand_in.behaviour.lock() = Behaviour {
        status: Some(403),
        ..Default::default()
    };
    more_calls(stand_in, 2).await;
    world.show_l1(&world.l1_headers);
    more_calls(stand_in, 2).await;
}

/// Copies the files while the signer delays a signature, then lets it sign. Signing and publishing
/// write nothing to these files, so the copy is that of a process that was killed after it published
/// the block and before the block became the head. Also returns the number of the head in the copy.
async fn kill_while_signing(
    stand_in: &StandIn,
    world: &World,
    sequencing: &Member,
) -> (tempfile::TempDir, u64) {
    let hold = Arc::new(Semaphore::new(0));
    *stand_in.behaviour.lock() = Behaviour {
        hold: Some(hold.clone()),
        ..Default::default()
    };
    more_calls(stand_in, 1).await;
    let killed = killed(world.datadir.path());
    let head = sequencing.chain.view().head().number;
    hold.add_permits(1);
    (killed, head)
}

fn assert_one_block_per_parent(blocks: &[Arc<Payload>]) {
    for (i, one) in blocks.iter().enumerate() {
        let other = blocks[..i].iter().find(|other| {
            other.number() == one.number() && other.parent_hash() == one.parent_hash()
        });
        assert!(
            other.is_none_or(|other| other.hash == one.hash),
            "two signed blocks of height {} on one parent",
            one.number()
        );
    }
}

/// The signer fails once while L1 advances to the next origin. Then the process is killed after the
/// block is published and before it becomes the head.
#[tokio::test(flavor = "multi_thread")]
async fn one_block_is_signed_per_height_and_parent_when_the_signer_fails_l1_moves_on_and_the_process_is_killed()
 {
    let world = World::new(20, 2).await;
    world.show_l1(&world.l1_headers[..1]);
    let token = CancellationToken::new();
    let stand_in = StandIn::start().await;
    let remote = Signer::Remote(Remote::connect(&stand_in.config).await.unwrap());
    let sequencing = Member::new(&world, None, remote.address(), &token).await;
    let replica = Member::new(&world, Some(world.another()), remote.address(), &token).await;
    let gossip = replica.collect(remote.address()).await;
    replica.network.connect(&sequencing.address).await.unwrap();
    let sequence = |member: &Member, token| {
        let network = Some(member.network.clone());
        let (sequencer, handle) =
            world.sequencer_of(&member.chain, config(), remote.clone(), network);
        (tokio::spawn(sequencer.run(token)), handle)
    };
    let (running, _handle) = sequence(&sequencing, token.child_token());
    // Blocks from here on could use the next origin, but L1 does not serve it yet.
    replica.until_number(8).await;
    refuse_while_l1_moves_on(&stand_in, &world).await;
    let (killed, head) = kill_while_signing(&stand_in, &world, &sequencing).await;
    replica.until_number(head + 1).await;
    running.abort();
    sequencing.stop().await;

    *stand_in.behaviour.lock() = Behaviour::default();
    let restarted = Member::new(&world, Some(killed), remote.address(), &token).await;
    restarted.network.connect(&replica.address).await.unwrap();
    let (_task, _handle) = sequence(&restarted, token.clone());
    replica.until_number(head + 4).await;
    token.cancel();
    let gossip = gossip.lock();
    let origins: std::collections::HashSet<_> = gossip
        .iter()
        .map(|block| origin_of(&world, block))
        .collect();
    assert_eq!(origins.len(), 2, "L1 moved on");
    assert_one_block_per_parent(&gossip);
}

#[tokio::test]
async fn one_stale_answer_of_l1_leads_to_no_second_signed_block() {
    let world = World::new(6, 2).await;
    let (chain, _threads) = world.open();
    let (mut sequencer, _handle) = world.sequencer(&chain, config());
    let parent = chain.view().payload(0).unwrap().unwrap();
    let [epoch, next] = [0, 1].map(|at| block(&world.l1_headers[at]));
    // This block, with the second L1 block as its origin, was sent to the signer, and the response
    // was lost.
    let sent = rival_block(&world, &chain, 7).await;
    chain
        .log_before_sign(sent.clone(), next.hash)
        .await
        .unwrap();
    let orphan = [
        world.l1_headers[0].clone(),
        Header {
            gas_used: 1,
            ..world.l1_headers[1].clone()
        },
    ];
    let reorganised =
        Err::<Option<B256>, _>(SequencerError::SignedBlockReorganised(sent.hash).to_string());
    for _ in 0..2 {
        for _ in 1..CONFIRMATIONS {
            world.show_l1(&orphan);
            let answer = sequencer.block_to_resign(&parent, epoch.id()).await;
            assert_eq!(answer.map_err(|error| error.to_string()), reorganised);
        }
        world.show_l1(&world.l1_headers);
        assert_eq!(
            sequencer
                .block_to_resign(&parent, epoch.id())
                .await
                .unwrap(),
            Some(sent.hash),
            "the answers were stale"
        );
    }
    world.show_l1(&orphan);
    for _ in 1..CONFIRMATIONS {
        sequencer
            .block_to_resign(&parent, epoch.id())
            .await
            .unwrap_err();
    }
    assert_eq!(
        sequencer
            .block_to_resign(&parent, epoch.id())
            .await
            .unwrap(),
        None,
        "L1 was reorganised"
    );
}
