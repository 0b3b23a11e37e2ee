//! Tests of offences, bans, and the ledger's entries about them.

use crate::{
    attackers::{LARGEST, answer_with_another, throw_bombs},
    net::*,
};
use futures::{AsyncWriteExt, StreamExt};
use libp2p::{Stream, StreamProtocol};
use starling_p2p::{Config, LedgerChange, PeerId, Policy, Scoring, Subject};
use starling_proto::{gossip as wire, payload::PayloadVersion, reqresp};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

fn garbage(i: u32) -> Vec<u8> {
    [&[0xff, 0xff, 0xff, 0xff, 0x0f][..], &i.to_le_bytes()].concat()
}

/// Sends garbage until `enough`, each message when the previous one has surely been checked.
async fn send_garbage(raw: &mut Raw, mut enough: impl AsyncFnMut() -> bool) {
    for i in 0..2000 {
        if enough().await {
            return;
        }
        let _ = raw.0.behaviour_mut().gossip.publish(v4_topic(), garbage(i));
        raw.drive(tokio::time::sleep(Duration::from_millis(20)))
            .await;
    }
    panic!("garbage had no consequence");
}

/// Sends garbage until the node has closed the connection.
async fn misbehave(raw: &mut Raw, node: &Node) {
    let (id, network) = (raw.id(), node.network.clone());
    send_garbage(raw, async || {
        network.peers().iter().all(|peer| peer.id != id)
    })
    .await;
}

/// Runs the raw peer until the node charges it for this reason; returns the change of its score.
async fn owes(node: &Node, raw: &mut Raw, reason: &str) -> f64 {
    let id = raw.id();
    raw.drive(node.charged(id, reason)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_a_ban_with_evidence_that_ends() {
    let policy = Policy {
        duration: Duration::from_secs(3),
        ..Policy::default()
    };
    let node = Node::start(Config { policy, ..config() }).await;
    let mut raw = Raw::connected_to(&node, false).await;
    misbehave(&mut raw, &node).await;
    let verdicts = node.verdicts(raw.id()).await;
    let reasons: Vec<&str> = verdicts.iter().map(|(reason, _)| *reason).collect();
    assert_eq!(reasons, ["it_dialled", "score", "banned"]);
    assert!(matches!(verdicts[1].1, LedgerChange::Banned { .. }));
    let report = node.network.report().await.unwrap();
    assert_eq!(report.refused.bans.len(), 1);
    assert!(
        report.refused.bans[0].reason.contains("garbage"),
        "{:?}",
        report.refused.bans
    );
    assert!(!raw.is_let_in(&node).await, "while it lasts");
    assert_eq!(node.network.peer_count(), 0);

    let network = node.network.clone();
    let over = async {
        while !network.report().await.unwrap().refused.bans.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONG, over).await.unwrap();
    assert!(raw.is_let_in(&node).await, "and it begins anew");
    assert!(
        node.verdicts(raw.id())
            .await
            .contains(&("expired", LedgerChange::Unbanned))
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bans_and_blocks_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let stored = || Config {
        peerstore: Some(folder.path().join("store")),
        ..config()
    };
    let node = Node::start(stored()).await;
    let mut raw = Raw::connected_to(&node, false).await;
    misbehave(&mut raw, &node).await;
    let blocked = PeerId::random();
    node.network
        .block(Subject::Peer(blocked), true)
        .await
        .unwrap();
    node.network
        .block(Subject::Subnet("10.0.0.0/8".parse().unwrap()), true)
        .await
        .unwrap();
    node.stop().await;

    let node = Node::start(stored()).await;
    assert!(!raw.is_let_in(&node).await);
    let refused = node.network.report().await.unwrap().refused;
    assert_eq!(
        (refused.peers, refused.subnets.len(), refused.bans.len()),
        (vec![blocked], 1, 1)
    );
    assert_eq!(node.verdicts(raw.id()).await[0].0, "kept");
    // An operator's command ends the ban at once and permanently.
    node.network
        .block(Subject::Peer(raw.id()), false)
        .await
        .unwrap();
    assert!(raw.is_let_in(&node).await);
    node.stop().await;
    let node = Node::start(stored()).await;
    assert!(raw.is_let_in(&node).await);
    node.stop().await;

    // A store in memory keeps no bans.
    let node = Node::start(config()).await;
    misbehave(&mut Raw::connected_to(&node, false).await, &node).await;
    node.stop().await;
    let node = Node::start(config()).await;
    assert!(node.network.report().await.unwrap().refused.bans.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn options_of_scoring_and_banning_change_who_is_banned() {
    let policy = Policy::default();
    let spared = [
        Policy {
            scoring: Scoring::None,
            ..policy
        },
        Policy {
            ban: false,
            ..policy
        },
        Policy {
            threshold: -10_000.0,
            ..policy
        },
    ];
    for policy in spared {
        let node = Node::start(Config { policy, ..config() }).await;
        let mut raw = Raw::connected_to(&node, false).await;
        let mut sent = 0;
        send_garbage(&mut raw, async || {
            sent += 1;
            sent > 20
        })
        .await;
        let cost = owes(&node, &mut raw, "too_large").await;
        assert_eq!(cost == 0.0, policy.scoring == Scoring::None);
        assert!(!node.has_banned(raw.id()).await);
        assert_eq!(node.network.peer_count(), 1);
    }
    // With a higher threshold, fewer offences lead to a ban.
    let node = Node::start(Config {
        policy: Policy {
            threshold: -10.0,
            ..policy
        },
        ..config()
    })
    .await;
    let mut raw = Raw::connected_to(&node, false).await;
    raw.publish(garbage(0));
    raw.gone_from(&node).await;
    assert!(!raw.is_let_in(&node).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn static_and_protected_peers_are_never_banned_only_reported_and_still_heard() {
    let blocks = chain(1, vec![]);
    for is_static in [true, false] {
        let mut raw = Raw::new(false);
        let address = format!("/ip4/127.0.0.1/tcp/1/p2p/{}", raw.id())
            .parse()
            .unwrap();
        let node = Node::start(if is_static {
            with_static(&[&address])
        } else {
            config()
        })
        .await;
        raw.reconnect(&node).await;
        let (id, network) = (raw.id(), node.network.clone());
        if !is_static {
            network.protect(id, true).await.unwrap();
        }
        send_garbage(&mut raw, async || {
            let entries = network.ledger(Some(id), 100).await.unwrap();
            entries
                .iter()
                .any(|entry| entry.change == LedgerChange::Spared && entry.reason == "protected")
        })
        .await;
        raw.delivers(&node, &blocks[0]).await;
        assert_eq!(node.network.peer_count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_outside_the_clock_window_cost_nobody_anything() {
    let blocks = chain(30, vec![]);
    let node = Node::start(Config {
        gossip_threshold: Duration::from_secs(1),
        ..config()
    })
    .await;
    let mut raw = Raw::connected_to(&node, false).await;
    let id = raw.id();
    for (before, block) in (0..).zip(&blocks[..20]) {
        raw.publish(message(block));
        raw.drive(node.noted(id, "too_old", before + 1)).await;
    }
    assert_eq!(
        node.debts(raw.id()).await,
        [("too_old", 0.0)],
        "it is named"
    );
    assert_eq!(node.network.peer_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_block_again_and_again_is_an_offence() {
    let blocks = chain(2, vec![]);
    let node = Node::start(config()).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let mut honest = Raw::connected_to(&node, false).await;
    honest.delivers(&node, &blocks[0]).await;
    raw.send_frame(&node, frame(&vec![message(&blocks[0]); 40]))
        .await;
    assert!(owes(&node, &mut raw, "replay").await <= -1.0);
    assert!(
        node.debts(honest.id()).await.is_empty(),
        "a few copies are none"
    );
    // A peer that continues is banned; messages of other peers are still accepted.
    raw.send_frame(&node, frame(&vec![message(&blocks[0]); 128]))
        .await;
    raw.gone_from(&node).await;
    assert!(node.has_banned(raw.id()).await);
    honest.delivers(&node, &blocks[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_bombs_are_a_ban_and_a_large_block_is_none() {
    let node = Node::start(config()).await;
    let mut bomber = Raw::connected_to(&node, false).await;
    let mut honest = Raw::connected_to(&node, false).await;
    tokio::time::timeout(LONG, throw_bombs(&mut bomber, &node, LARGEST))
        .await
        .expect("it hangs up");
    bomber.gone_from(&node).await;
    let debts = node.debts(bomber.id()).await;
    // Messages that were in flight at the time of the ban are counted, too.
    assert!(
        debts
            .iter()
            .any(|(reason, change)| *reason == "bomb" && *change <= -160.0),
        "{debts:?}"
    );
    assert!(node.has_banned(bomber.id()).await);
    assert!(!bomber.is_let_in(&node).await);

    // A large block by an unknown signer is refused, but it is no offence beyond that.
    let large = &heavy_chain(1, 6 << 20)[0];
    honest.publish(
        wire::encode_message(&sign_as_stranger(large), &large.to_wire(PayloadVersion::V4)).unwrap(),
    );
    assert_eq!(owes(&node, &mut honest, "wrong_signer").await, -2.0);
    honest.delivers(&node, large).await;
    assert_eq!(node.debts(honest.id()).await, [("wrong_signer", -2.0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signer_we_do_not_know_is_charged_little() {
    let blocks = chain(1, vec![]);
    let node = Node::start(config()).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let v4 = blocks[0].to_wire(PayloadVersion::V4);
    raw.publish(wire::encode_message(&sign_as_stranger(&blocks[0]), &v4).unwrap());
    assert_eq!(owes(&node, &mut raw, "wrong_signer").await, -2.0);
}

/// Runs the raw peer until the node has accepted `count` blocks.
async fn accepted(node: &Node, raw: &mut Raw, count: usize) {
    let enough = async {
        let start = Instant::now();
        while node.network.report().await.unwrap().blocks.len() < count {
            assert!(start.elapsed() < LONG, "{count} blocks are not accepted");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        start.elapsed()
    };
    raw.drive(enough).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_seventh_block_of_a_height_is_an_offence_and_the_next_height_passes() {
    let node = Node::start(config()).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let rivals: Vec<_> = (1..=7).map(|i| chain(1, vec![i; 9]).remove(0)).collect();
    for (i, block) in rivals[..6].iter().enumerate() {
        raw.publish(message(block));
        accepted(&node, &mut raw, i + 1).await;
    }
    raw.publish(message(&rivals[6]));
    assert_eq!(owes(&node, &mut raw, "too_many_blocks").await, -2.0);
    raw.publish(message(&chain(2, vec![])[1]));
    accepted(&node, &mut raw, 7).await;
}

/// Every stream announces a large message and sends only a part of it.
#[tokio::test(flavor = "multi_thread")]
async fn halves_of_frames_hold_up_nobody() {
    let blocks = chain(1, vec![]);
    let node = Node::start(config()).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let mut honest = Raw::connected_to(&node, false).await;
    let (mut control, peer) = (
        raw.0.behaviour().streams.new_control(),
        node.network.local_peer_id(),
    );
    let flood = async move {
        let mut held = Vec::new();
        for _ in 0..40 {
            // The router refuses streams of a peer that opens many.
            let Ok(mut stream) = control
                .open_stream(peer, StreamProtocol::new("/meshsub/1.1.0"))
                .await
            else {
                break;
            };
            // Announce a frame of 8 MiB.
            let _ = stream
                .write_all(&[&[0x80, 0x80, 0x80, 0x04][..], &[1; 100_000]].concat())
                .await;
            held.push(stream);
        }
        held
    };
    let flood = tokio::spawn(flood);
    raw.drive(eventually(LONG, || flood.is_finished())).await;
    let held = flood.await.unwrap();
    assert!(!held.is_empty());
    honest.delivers(&node, &blocks[0]).await;
    assert_eq!(owes(&node, &mut raw, "half_frame").await, -4.0);

    // A peer that keeps its connection with half a frame is disconnected after the time limit.
    let mut patient = Raw::connected_to(&node, false).await;
    let _held = patient
        .send_frame(&node, vec![0x80, 0x80, 0x80, 0x04, 1, 1])
        .await;
    assert_eq!(owes(&node, &mut patient, "half_frame").await, -4.0);
    patient.gone_from(&node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_of_very_many_messages_is_no_gossip_and_one_of_a_few_is_heard_whole() {
    let blocks = chain(6, vec![]);
    let node = Node::start(config()).await;
    let mut raw = Raw::connected_to(&node, false).await;
    raw.send_frame(
        &node,
        frame(
            &blocks
                .iter()
                .map(|block| message(block))
                .collect::<Vec<_>>(),
        ),
    )
    .await;
    let chain = node.chain.clone();
    raw.drive(eventually(LONG, || {
        blocks.iter().all(|block| chain.has(block))
    }))
    .await;
    assert!(node.debts(raw.id()).await.is_empty());
    raw.send_frame(&node, frame(&(0..200).map(garbage).collect::<Vec<_>>()))
        .await;
    assert_eq!(owes(&node, &mut raw, "framing").await, -20.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_gossip_are_an_offence() {
    let node = Node::start(config()).await;
    let mut raw = Raw::connected_to(&node, false).await;
    raw.publish(vec![1; 11 << 20]);
    assert_eq!(owes(&node, &mut raw, "framing").await, -20.0);
    assert_eq!(node.verdicts(raw.id()).await.last().unwrap().0, "framing");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_faster_than_checks_are_an_offence() {
    let blocks = chain(20, vec![]);
    let node = Node::start(config()).await;
    let mut raw = Raw::connected_to(&node, false).await;
    // The chain is busy, and each check queries it.
    let ((done, wait), chain) = (std::sync::mpsc::channel::<()>(), node.chain.clone());
    let busy = std::thread::spawn(move || {
        let _hashes = chain.hashes.lock();
        let _ = wait.recv();
    });
    eventually(LONG, || node.chain.hashes.is_locked()).await;
    let _stream = raw
        .send_frame(
            &node,
            frame(
                &blocks
                    .iter()
                    .map(|block| message(block))
                    .collect::<Vec<_>>(),
            ),
        )
        .await;
    // Two messages are checked and four wait.
    let id = raw.id();
    raw.drive(node.noted(id, "flood", 14)).await;
    assert_eq!(node.times(id, "flood").await, 14);
    drop(done);
    busy.join().unwrap();
    let chain = node.chain.clone();
    raw.drive(eventually(LONG, || chain.has(&blocks[0]))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_never_sent_and_streams_by_the_dozen_are_offences() {
    let node = Node::start(config()).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let mut held = Vec::new();
    for _ in 0..40 {
        let protocol =
            StreamProtocol::try_from_owned(reqresp::protocol_ids(CHAIN)[0].clone()).unwrap();
        let mut control = raw.0.behaviour().streams.new_control();
        let opened = control.open_stream(node.network.local_peer_id(), protocol);
        if let Ok(mut stream) = raw.drive(opened).await {
            // Send half a request.
            let _ = stream.write_all(&[1; 4]).await;
            held.push(stream);
        }
    }
    assert!(owes(&node, &mut raw, "excess_streams").await <= -1.0);
    assert!(owes(&node, &mut raw, "stalled_stream").await <= -4.0);
}

/// Lets a node request blocks from a peer that responds with `answer`, until the peer is charged
/// for `reason`. Returns the change of the peer's score.
async fn charged_for(
    reason: &str,
    answer: impl AsyncFn(&mut Stream) + Send + Sync + 'static,
) -> f64 {
    let blocks = chain(12, vec![]);
    let node = Node::start_with(config(), &blocks[..1]).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let mut incoming = raw.accept_numbers();
    let serve = async {
        while let Some((_, mut stream)) = incoming.next().await {
            answer(&mut stream).await;
            let _ = stream.close().await;
        }
    };
    raw.publish(message(&blocks[11]));
    tokio::select! {
        change = owes(&node, &mut raw, reason) => change,
        () = serve => panic!("nothing more is asked"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_answers_are_offences_and_not_having_a_block_is_none() {
    assert!(
        charged_for("malformed_response", async |stream| drop(
            stream.write_all(&[0; 100]).await
        ))
        .await
            <= -5.0
    );
    assert!(
        charged_for("no_response", async |stream| drop(
            stream.write_all(&[200]).await
        ))
        .await
            <= -1.0
    );
    // A block of another branch is valid by itself, but is not the parent that its child names.
    let wrong = charged_for("wrong_block", async |stream| {
        answer_with_another(stream, &chain(11, vec![7])).await
    });
    assert!(wrong.await <= -2.0);

    let blocks = chain(12, vec![]);
    let node = Node::start_with(config(), &blocks[..1]).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let mut incoming = raw.accept_numbers();
    raw.publish(message(&blocks[11]));
    let mut asked = 0;
    while asked < 3 {
        tokio::select! {
            Some((_, mut stream)) = incoming.next() => {
                let _ = stream.write_all(&[1]).await;
                let _ = stream.close().await;
                asked += 1;
            }
            _ = raw.0.select_next_some() => {}
        }
    }
    assert!(node.debts(raw.id()).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn valid_answers_are_a_merit() {
    // A gap that is short enough to be filled by number.
    let blocks = chain(12, vec![]);
    let server = Node::start_with(config(), &blocks[..11]).await;
    let node = Node::start_with(with_static(&[&server.address]), &blocks[..1]).await;
    server.peers(1).await;
    server.publish(&blocks[11]).await;
    node.receives(&blocks[11]).await;
    let id = server.network.local_peer_id();
    let debts = node.debts(id).await;
    assert!(
        debts
            .iter()
            .any(|(reason, change)| *reason == "valid_response" && (0.5..=5.5).contains(change)),
        "{debts:?}"
    );
    let report = node.network.report().await.unwrap();
    assert!(report.peers[0].scores.req_resp.valid_responses > 5.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_may_stand_for_many_stays_open_until_an_operator_closes_it() {
    let node = Node::start(config()).await;
    for _ in 0..3 {
        misbehave(&mut Raw::connected_to(&node, false).await, &node).await;
    }
    assert!(
        Raw::new(false).is_let_in(&node).await,
        "a neighbour of three banned peers"
    );
    let refused = node.network.report().await.unwrap().refused;
    assert!(
        !refused.bans.iter().any(|ban| ban.subject == "127.0.0.1"),
        "{:?}",
        refused.bans
    );
    let here = || Subject::Address("127.0.0.1".parse().unwrap());
    node.network.block(here(), true).await.unwrap();
    assert!(
        !Raw::new(false).is_let_in(&node).await,
        "a new name does not help"
    );
    node.network.block(here(), false).await.unwrap();
    assert!(Raw::new(false).is_let_in(&node).await);
}
