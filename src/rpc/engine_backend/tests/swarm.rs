//! Blocks of the swarm while a rollup node drives: they do not move the head, but fill the gap
//! below a missing head.

use super::*;

/// Handles a block of the swarm as the follower does.
async fn from_swarm(world: &World, block: &Arc<Payload>, provenance: Provenance) -> Inserted {
    let inserted = world
        .engine
        .chain
        .follow(block.clone(), provenance)
        .await
        .unwrap();
    world
        .engine
        .on_swarm_block(block.hash, provenance, &inserted)
        .await
        .unwrap();
    inserted
}

/// Handles a valid block that arrived by gossip.
async fn gossip(world: &World, block: &Arc<Payload>) {
    let inserted = from_swarm(world, block, Provenance::Signed(Address::ZERO)).await;
    assert_eq!(inserted, Inserted::Valid);
}

#[tokio::test]
async fn blocks_of_the_swarm_do_not_move_the_head_that_a_rollup_node_drives() {
    let (maker, world) = (World::new(), World::new());
    let blocks = maker.chain(&maker.genesis(), 60, 0).await;
    for block in &blocks[..30] {
        gossip(&world, block).await;
        assert_eq!(world.head(), block.hash, "nobody else moves it");
    }
    // The rollup node's head is twenty blocks behind the swarm.
    for at in 30..40 {
        world.make_head(blocks[at - 20].hash).await;
        gossip(&world, &blocks[at]).await;
        assert_eq!(world.head(), blocks[at - 20].hash);
        assert!(world.engine.chain.knows(blocks[at].hash));
    }
    // The rollup node's head is level with the swarm.
    for block in &blocks[40..50] {
        gossip(&world, block).await;
        assert_ne!(world.head(), block.hash);
        assert_eq!(
            world.engine.new_payload(block.clone()).await.unwrap(),
            valid(block.hash)
        );
        world.make_head(block.hash).await;
    }
    // The rollup node sends nothing for a while, and then returns.
    let later = |time| {
        world
            .engine
            .chain
            .update_head_owner(|owner| owner.on_time(Instant::now() + time))
    };
    later(head_owner::SILENCE - Duration::from_secs(60));
    gossip(&world, &blocks[50]).await;
    assert_eq!(world.head(), blocks[49].hash);
    later(head_owner::SILENCE);
    gossip(&world, &blocks[51]).await;
    assert_eq!(world.head(), blocks[51].hash);
    world.make_head(blocks[20].hash).await;
    gossip(&world, &blocks[52]).await;
    assert_eq!(world.head(), blocks[20].hash);
}

#[tokio::test]
async fn a_head_that_was_named_before_it_was_there_becomes_the_head() {
    let (maker, world) = (World::new(), World::new());
    let genesis = maker.genesis();
    let blocks = maker.chain(&genesis, 9, 0).await;
    let zero = B256::ZERO;
    for block in &blocks[5..7] {
        assert_eq!(
            world.engine.new_payload(block.clone()).await.unwrap(),
            syncing()
        );
        assert_eq!(
            world.choose(block.hash, genesis.hash, zero).await.unwrap(),
            syncing()
        );
    }
    let below = Provenance::Ancestor { of: blocks[5].id() };
    for block in &blocks[..4] {
        from_swarm(&world, block, below).await;
        assert_eq!(world.head(), block.hash, "the head follows");
    }
    from_swarm(&world, &blocks[4], below).await;
    assert_eq!(
        (world.head(), world.marked()[0]),
        (blocks[6].hash, Some(genesis.hash)),
        "waiting payloads are executed, too"
    );
    // A head that the rollup node has not sent as a payload may still arrive by gossip, unless
    // another fork choice comes first.
    assert_eq!(
        world.choose(blocks[7].hash, zero, zero).await.unwrap(),
        syncing()
    );
    gossip(&world, &blocks[7]).await;
    assert_eq!(world.head(), blocks[7].hash);
    assert_eq!(
        world.choose(blocks[8].hash, zero, zero).await.unwrap(),
        syncing()
    );
    world.make_head(blocks[2].hash).await;
    gossip(&world, &blocks[8]).await;
    assert_eq!(world.head(), blocks[2].hash);
}

#[tokio::test]
async fn a_named_head_with_an_invalid_ancestor_is_invalid() {
    let (maker, world) = (World::new(), World::new());
    let genesis = maker.genesis();
    let blocks = maker.chain(&genesis, 2, 0).await;
    let bad = alloy_consensus::Header {
        state_root: B256::ZERO,
        ..blocks[0].header.clone()
    };
    let bad = Arc::new(Payload::sealed(bad, blocks[0].transactions.clone()));
    let on = |parent: &Payload| {
        let header = alloy_consensus::Header {
            parent_hash: parent.hash,
            number: parent.number() + 1,
            ..bad.header.clone()
        };
        Arc::new(Payload::sealed(header, vec![]))
    };
    let child = on(&bad);
    let named = [on(&child)];
    let tip = on(&named[0]);
    for block in [&named[0], &tip] {
        assert_eq!(
            world.engine.new_payload(block.clone()).await.unwrap(),
            syncing()
        );
    }
    assert_eq!(
        world
            .choose(tip.hash, B256::ZERO, B256::ZERO)
            .await
            .unwrap(),
        syncing()
    );
    let provenance = Provenance::Ancestor { of: named[0].id() };
    from_swarm(&world, &bad, provenance).await;
    let status = world
        .choose(tip.hash, B256::ZERO, B256::ZERO)
        .await
        .unwrap();
    assert!(
        status.is_invalid() && status.latest_valid_hash == Some(genesis.hash),
        "{status:?}"
    );
    assert_eq!(world.head(), genesis.hash);
}
