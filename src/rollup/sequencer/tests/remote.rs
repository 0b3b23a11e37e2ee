//! A sequencer with a core behind an Engine API and a signing log of its own.

use super::*;
use crate::rollup::{
    engine::remote::testing::{GethStandIn, ServedCore},
    l1::fake::header,
};

/// A fork of an L1 chain: its first `kept` blocks, then `new` other blocks.
fn forked(headers: &[Header], kept: usize, new: usize) -> Vec<Header> {
    let mut fork = headers[..kept].to_vec();
    for _ in 0..new {
        let last = fork.last().unwrap();
        let (number, time) = (last.number + 1, last.timestamp + 12);
        fork.push(header(number, last.hash_slow(), time, 2));
    }
    fork
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequencer_over_the_engine_api_keeps_time_and_follows_l1_reorgs() {
    let world = World::new(40, 4).await;
    let (chain, _threads) = world.open();
    let served = ServedCore::start(&chain).await;
    let engine = served.engine(&world.rollup).await;
    let log = world.datadir.path().join("signed");
    let log = SigningLog::Own(SigningLog::open_own(&log).unwrap());
    let (sequencer, _handle) =
        world.sequencer_over(engine.clone(), log.clone(), config(), key(), None);
    let token = CancellationToken::new();
    let task = tokio::spawn(sequencer.run(token.clone()));
    submit(&chain, transfer(0));
    until_time(&chain, since_epoch().as_secs() + 1).await;
    let view = chain.view();
    let head = view.head();
    let mut mined = false;
    for number in 1..=head.number {
        let payload = view.payload(number).unwrap().unwrap();
        let signed = log.signed(number, payload.parent_hash()).unwrap();
        assert_eq!(signed.last().map(|last| last.hash), Some(payload.hash));
        mined |= payload.transactions.len() == 2;
    }
    assert!(mined, "the pool of the core is used");

    // L1 replaces its last two blocks: the head is rewound, and other blocks are built.
    let fork = forked(&world.l1_headers, 2, 3);
    world.show_l1(&fork);
    let canonical = |payload: &Payload| {
        let origin = origin_of(&world, payload);
        fork.iter().any(|header| block(header).id() == origin)
    };
    let followed = async {
        loop {
            let view = chain.view();
            let payload = view.payload(view.head().number).unwrap().unwrap();
            if payload.number() > head.number && canonical(&payload) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), followed)
        .await
        .unwrap();
    assert_eq!(engine.heads().borrow().head, chain.view().head());
    token.cancel();
    task.await.unwrap().unwrap();
}

/// While the core is unreachable no blocks are built. Sequencing continues without intervention
/// when the core is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_core_that_is_away_is_waited_for() {
    let world = World::new(20, 3).await;
    let (chain, _threads) = world.open();
    let served = ServedCore::start(&chain).await;
    let engine = served.engine(&world.rollup).await;
    let log = world.datadir.path().join("signed");
    let log = SigningLog::Own(SigningLog::open_own(&log).unwrap());
    let (sequencer, handle) = world.sequencer_over(engine, log, config(), key(), None);
    let token = CancellationToken::new();
    let task = tokio::spawn(sequencer.run(token.clone()));
    until_time(&chain, since_epoch().as_secs()).await;
    let addr = served.addr;
    served.stop().await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let during = chain.view().head();
    assert!(!task.is_finished() && handle.active());
    let _served = ServedCore::start_at(&chain, addr).await;
    until_time(&chain, since_epoch().as_secs() + 1).await;
    assert!(chain.view().head().number > during.number);
    token.cancel();
    task.await.unwrap().unwrap();
}

/// The hashes of the blocks from 1 to `last` that the client marks canonical.
fn marked(geth: &GethStandIn, last: u64) -> Vec<B256> {
    (1..=last)
        .map(|number| geth.marked(number).unwrap())
        .collect()
}

/// Waits until the client reports a head that satisfies `holds`.
async fn until_head(geth: &GethStandIn, holds: impl Fn(u64, B256) -> bool) {
    let reached = async {
        loop {
            let (number, hash) = geth.head();
            if holds(number, hash) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reached)
        .await
        .unwrap();
}

/// The client leaves its head in place at a fork choice to a lower block, and comes back from a kill
/// at an old block while it still has later ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_sequencer_over_a_client_like_op_geth_outlives_kills_and_l1_reorgs() {
    let world = World::new(40, 4).await;
    let (chain, _threads) = world.open();
    let served = ServedCore::start(&chain).await;
    let geth = GethStandIn::start(&served).await;
    let engine = geth.engine(&world.rollup).await;
    let log = world.datadir.path().join("signed");
    let log = SigningLog::Own(SigningLog::open_own(&log).unwrap());
    let token = CancellationToken::new();
    if let Engine::Remote(client) = &engine {
        tokio::spawn(client.clone().watch(token.clone()));
    }
    let (sequencer, handle) = world.sequencer_over(engine.clone(), log, config(), key(), None);
    let task = tokio::spawn(sequencer.run(token.clone()));
    until_head(&geth, |number, _| number >= 20).await;
    // The last case loses every state, which a peer has.
    for (kept, lost) in [(1, 0), (12, 3), (0, 2)] {
        let before = geth.head().0;
        let signed = marked(&geth, before);
        geth.kill(kept, before - lost);
        until_head(&geth, |number, _| number > before).await;
        assert_eq!(marked(&geth, before), signed, "{kept} {lost}");
    }

    let (fork, head) = (forked(&world.l1_headers, 2, 3), geth.head());
    world.show_l1(&fork);
    until_head(&geth, |number, hash| {
        let payload = chain.payload(hash).unwrap();
        number >= head.0
            && payload.is_some_and(|payload| {
                let origin = origin_of(&world, &payload);
                fork.iter().any(|header| block(header).id() == origin)
            })
    })
    .await;
    assert!(handle.active());
    token.cancel();
    task.await.unwrap().unwrap();
}
