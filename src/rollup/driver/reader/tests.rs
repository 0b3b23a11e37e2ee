//! The reader with a beacon node that counts requests.

use super::*;
use crate::rollup::{
    driver::blobs_ahead::tests::{beacon, blob, blob_requests, block},
    http_fake::CannedServer,
    l1::{L1Config, Watched, fake::FakeL1},
};
use crate::secret::Secret;
use std::time::Duration;

fn reader(l1: &FakeL1, beacon: &CannedServer) -> L1Reader {
    let client = L1Client::new(&L1Config::new(l1.url())).unwrap();
    let rollup = Arc::new(RollupConfig::default());
    let blocks = L1Blocks::new(client, Watched::from(&*rollup), 10);
    let mut config = crate::rollup::beacon::BeaconConfig::new(vec![Secret::new(beacon.url())]);
    config.seconds_per_slot = 12;
    let beacon = BeaconClient::new(&config).unwrap();
    L1Reader::new(blocks, 10, 20, Some(beacon), rollup)
}

/// Waits until the blobs of block `number` have been fetched ahead.
async fn fetched_ahead(reader: &mut L1Reader, number: u8) {
    let ahead = reader.blobs.as_mut().unwrap();
    ahead.start(&block(number), vec![blob(number).0]);
    let ended = async {
        while ahead.has_requests() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(30), ended);
    ended.await.expect("the request ends");
}

/// L1 may have another branch after a reset: blobs fetched before it are dropped and free their
/// memory.
#[tokio::test]
async fn a_reset_forgets_the_blobs_that_were_fetched_ahead() {
    let l1 = FakeL1::start().await;
    let server = beacon(Arc::default()).await;
    let mut reader = reader(&l1, &server);
    fetched_ahead(&mut reader, 1).await;
    let wanted = [blob(1).0];
    reader.blobs(&block(1), &wanted).await.unwrap();
    assert_eq!(blob_requests(&server), 1, "it was fetched ahead");
    fetched_ahead(&mut reader, 2).await;
    reader.next_blobs = 3;
    reader.on_reset();
    assert_eq!(reader.next_blobs, 0);
    let wanted = [blob(2).0];
    reader.blobs(&block(2), &wanted).await.unwrap();
    assert_eq!(blob_requests(&server), 3, "it is fetched again");
}

/// Servers behind one address may disagree: one server has reported a head that another one lacks.
#[tokio::test]
async fn a_block_below_the_reported_head_that_is_not_served_is_named() {
    let l1 = FakeL1::start().await;
    let server = beacon(Arc::default()).await;
    let mut reader = reader(&l1, &server);
    let missing = reader.input(17, 20, None).await;
    let by_hash = reader.canonical_hash(18).await;
    for (error, number) in [(missing.unwrap_err(), 17), (by_hash.unwrap_err(), 18)] {
        let sentence = error.to_string();
        for part in [l1.url(), format!("no block {number},")] {
            assert!(sentence.contains(&part), "{part}: {sentence}");
        }
    }
}
