//! The status of gaps, by hand and from a real swarm.

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

#[test]
fn a_gap_is_reported_from_its_first_missing_block_until_its_last_is_executed() {
    let mut tracker = Tracker::default();
    assert_eq!(tracker.update(10, None), None);
    assert!(!tracker.needs_report(2), "the head is fresh");
    assert!(tracker.needs_report(60));
    assert_eq!(tracker.update(10, Some(500)), status(10, 500));
    assert_eq!(tracker.update(200, Some(501)), status(10, 501));
    assert!(tracker.needs_report(0), "until it ends");
    // The swarm has handed over the last blocks, and the executor still runs them.
    assert_eq!(tracker.update(480, None), status(10, 501));
    assert_eq!(tracker.update(501, None), None);
    assert!(!tracker.needs_report(0));
}

#[test]
fn a_gap_that_is_given_up_is_no_longer_reported() {
    let mut tracker = Tracker::default();
    assert_eq!(tracker.update(10, Some(500)), status(10, 500));
    assert_eq!(tracker.update(10, None), None, "the head does not advance");
    // The next one begins where the head is now.
    assert_eq!(tracker.update(12, Some(40)), status(12, 40));
    assert_eq!(tracker.update(12, Some(12)), None, "a side branch");
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
