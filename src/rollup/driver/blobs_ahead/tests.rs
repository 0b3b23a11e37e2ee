//! Blobs of two blocks, and a beacon node that counts requests and fails once.

use super::*;
use crate::{
    rollup::{
        beacon::BeaconConfig,
        http::fake::{Canned, CannedServer},
    },
    secret::Secret,
};
use alloy_eips::eip4844::{Blob, kzg_to_versioned_hash};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A blob that differs from the others in one element, set by `n`.
pub(in crate::rollup::driver) fn blob(n: u8) -> (BlobRef, Blob) {
    let mut blob = Blob::ZERO;
    blob.0[1] = n;
    let kzg = c_kzg::ethereum_kzg_settings(0);
    let commitment = kzg
        .blob_to_kzg_commitment(&c_kzg::Blob::new(blob.0))
        .unwrap();
    let id = BlobRef {
        index: n.into(),
        versioned_hash: kzg_to_versioned_hash(commitment.as_slice()),
    };
    (id, blob)
}

/// A beacon node with blob `n` in slot `n`, which is at second 12 n. Its requests fail while
/// `is_down`.
pub(in crate::rollup::driver) async fn beacon(is_down: Arc<AtomicBool>) -> CannedServer {
    CannedServer::start(move |request| {
        let path = request.split_whitespace().nth(1).unwrap_or_default();
        if path.ends_with("/genesis") {
            return Canned::ok(r#"{"data":{"genesis_time":"0"}}"#);
        }
        if is_down.load(Ordering::Relaxed) {
            return Canned::status(500, "");
        }
        let slot = path.split(['/', '?']).nth(5).unwrap().parse().unwrap();
        let blob = alloy_primitives::hex::encode_prefixed(&blob(slot).1.0[..]);
        Canned::ok(json!({ "data": [blob] }))
    })
    .await
}

fn ahead_of(server: &CannedServer, max_in_flight: usize) -> BlobsAhead {
    let mut config = BeaconConfig::new(vec![Secret::new(server.url())]);
    config.seconds_per_slot = 12;
    BlobsAhead::new(BeaconClient::new(&config).unwrap(), max_in_flight)
}

pub(in crate::rollup::driver) fn block(number: u8) -> L1Block {
    L1Block {
        number: number.into(),
        time: 12 * u64::from(number),
        hash: B256::repeat_byte(number),
        ..L1Block::default()
    }
}

pub(in crate::rollup::driver) fn blob_requests(server: &CannedServer) -> usize {
    let requests = server.requests.lock();
    let blobs = requests.iter().filter(|head| head.contains("/blobs/"));
    blobs.count()
}

async fn assert_taken(ahead: &mut BlobsAhead, number: u8) {
    let (id, blob) = blob(number);
    let taken = ahead.take(&block(number), &[id]).await.unwrap();
    assert_eq!(taken, [Bytes::copy_from_slice(&blob.0[..])]);
}

#[tokio::test]
async fn blobs_fetched_ahead_cost_no_second_request() {
    let server = beacon(Arc::default()).await;
    let mut ahead = ahead_of(&server, 2);
    ahead.start(&block(1), vec![blob(1).0]);
    assert!(ahead.has_room());
    ahead.start(&block(2), vec![blob(2).0]);
    assert!(!ahead.has_room(), "two requests are in flight");
    assert_taken(&mut ahead, 1).await;
    assert_taken(&mut ahead, 2).await;
    assert!(ahead.has_room());
    assert_eq!(blob_requests(&server), 2);
}

#[tokio::test]
async fn blobs_that_are_never_taken_do_not_occupy_requests() {
    let server = beacon(Arc::default()).await;
    let mut ahead = ahead_of(&server, 2);
    ahead.start(&block(1), vec![blob(1).0]);
    ahead.start(&block(2), vec![blob(2).0]);
    let has_room = async {
        while !ahead.has_room() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(10), has_room).await;
    in_time.expect("the requests have ended");
    assert_taken(&mut ahead, 2).await;
    assert_eq!(blob_requests(&server), 2, "the answer was kept");
}

#[tokio::test]
async fn a_request_that_failed_ahead_is_reported_and_repeated() {
    let is_down = Arc::new(AtomicBool::new(true));
    let server = beacon(is_down.clone()).await;
    let mut ahead = ahead_of(&server, 2);
    ahead.start(&block(1), vec![blob(1).0]);
    let error = ahead.take(&block(1), &[blob(1).0]).await.unwrap_err();
    assert!(error.to_string().contains("500"), "{error}");
    is_down.store(false, Ordering::Relaxed);
    assert_taken(&mut ahead, 1).await;
}

#[tokio::test]
async fn blobs_of_another_block_or_other_blobs_are_not_taken() {
    let server = beacon(Arc::default()).await;
    let mut ahead = ahead_of(&server, 4);
    let mut abandoned = block(1);
    abandoned.hash = B256::repeat_byte(9);
    ahead.start(&abandoned, vec![blob(1).0]);
    assert_taken(&mut ahead, 1).await;
    ahead.start(&block(2), vec![blob(1).0]);
    assert_taken(&mut ahead, 2).await;
    assert!(ahead.blocks.is_empty());
}

#[tokio::test]
async fn no_more_blobs_are_held_than_the_bound() {
    let server = beacon(Arc::default()).await;
    let mut ahead = ahead_of(&server, 1000);
    for number in 1..=22 {
        assert!(ahead.has_room());
        ahead.start(&block(number), vec![blob(number).0; 6]);
    }
    assert!(!ahead.has_room(), "132 blobs");
    assert_taken(&mut ahead, 22).await;
    assert!(ahead.has_room());
    assert!(ahead.blocks.is_empty(), "those of earlier blocks, too");
    ahead.start(&block(23), vec![blob(23).0]);
    ahead.clear();
    assert!(ahead.blocks.is_empty());
}
