//! Tests of the status of gaps, with simulated reports and with a real swarm.

use super::*;
use crate::chain::tests::{datadir, open};
use alloy_consensus::Header;
use alloy_primitives::B256;
use starling_p2p::{ChainGenesis, Config, Keypair, Service};
use starling_proto::{
    fork::{Fork, ForkSchedule},
    payload::Payload,
};
use std::sync::Arc;

fn status(starting: u64, highest: u64) -> Option<SyncStatus> {
    Some(SyncStatus { starting, highest })
}

/// A tracker with a simulated clock.
struct Timed {
    tracker: Tracker,
    now: Instant,
}

impl Timed {
    fn new() -> Self {
        Self {
            tracker: Tracker::default(),
            now: Instant::now(),
        }
    }

    /// The status at an update `seconds` later.
    fn after(&mut self, seconds: u64, head: u64, target: Option<u64>) -> Option<SyncStatus> {
        self.now += Duration::from_secs(seconds);
        self.tracker.update(self.now, head, target)
    }
}

#[test]
fn a_gap_is_reported_from_its_first_missing_block_until_its_last_is_executed() {
    let mut timed = Timed::new();
    assert_eq!(timed.after(1, 10, None), None);
    assert!(!timed.tracker.needs_report(2), "the head is fresh");
    assert!(timed.tracker.needs_report(60));
    assert_eq!(timed.after(1, 10, Some(500)), status(10, 500));
    assert_eq!(timed.after(1, 200, Some(501)), status(10, 501));
    assert!(timed.tracker.needs_report(0), "until it ends");
    // The swarm has sent the last blocks, and the executor still runs them. Some take longer than
    // the time between two updates.
    for head in [480, 480, 481, 481, 481, 482] {
        assert_eq!(timed.after(9, head, None), status(10, 501), "{head}");
    }
    // A lower gap, of a side branch, does not replace the higher target.
    assert_eq!(timed.after(1, 483, Some(490)), status(10, 501));
    assert_eq!(timed.after(1, 501, None), None);
    assert!(!timed.tracker.needs_report(0));
}

#[test]
fn a_gap_without_progress_is_given_up() {
    let mut timed = Timed::new();
    assert_eq!(timed.after(1, 10, Some(500)), status(10, 500));
    // While the swarm reports the gap, the status stays, however long no block arrives.
    assert_eq!(timed.after(600, 10, Some(500)), status(10, 500));
    assert_eq!(timed.after(29, 10, None), status(10, 500));
    assert_eq!(timed.after(1, 10, None), None);
    // The next synchronisation starts at the present head.
    assert_eq!(timed.after(1, 12, Some(40)), status(12, 40));
    assert_eq!(timed.after(600, 12, Some(30)), status(12, 30));
    assert_eq!(timed.after(1, 12, None), status(12, 30));
    assert_eq!(timed.after(30, 12, Some(12)), None, "a side branch");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_the_swarm_has_to_fill_reaches_eth_syncing() {
    let datadir = datadir();
    let (chain, _threads) = open(datadir.path());
    let genesis = ChainGenesis {
        id: chain.view().head(),
        time: chain.view().header().timestamp,
        block_time: 2,
    };
    let forks = ForkSchedule::from_genesis(Fork::Ecotone);
    let config = Config {
        listen_ip: [127, 0, 0, 1].into(),
        listen_tcp: 0,
        ..Config::new(Keypair::generate_secp256k1(), 901, forks, genesis)
    };
    let (service, network, _events) = Service::new(config, Arc::new(chain.clone())).unwrap();
    let token = CancellationToken::new();
    let _guard = token.clone().drop_guard();
    tokio::spawn(service.run(token.clone()));
    let sender = watch::Sender::new(None);
    let mut receiver = sender.subscribe();
    let engine = Engine::Local(chain.clone());
    tokio::spawn(run(engine, network.clone(), sender, token));

    let orphan = Header {
        number: 40,
        parent_hash: B256::repeat_byte(1),
        ..Default::default()
    };
    network
        .fetch_below(Arc::new(Payload::sealed(orphan, vec![])))
        .await;
    let reported = receiver.wait_for(|reported| *reported == status(0, 40));
    tokio::time::timeout(Duration::from_secs(20), reported)
        .await
        .expect("it is reported in time")
        .unwrap();
}
