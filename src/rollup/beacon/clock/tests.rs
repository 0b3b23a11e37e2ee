//! Endpoints of different beacon chains, and archives that serve blobs only.

use super::{
    super::tests::{assert_found, blobs_answer, client},
    *,
};
use crate::rollup::http::fake::{Canned, CannedServer};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// The slot of the wanted blobs if genesis is [`RIGHT`].
const SLOT: u64 = 3;
const RIGHT: u64 = 1000;
/// A slot that has no blobs.
const NONE: u64 = 999;

/// The response of an endpoint with genesis time `genesis` and the wanted blobs in `slot`. `None`
/// makes the endpoint an archive that serves blobs only.
fn answer(request: &str, genesis: Option<u64>, slot: u64) -> Canned {
    let path = request.split_whitespace().nth(1).unwrap_or_default();
    let blobs = format!("/eth/v1/beacon/blobs/{slot}?");
    match (path, genesis) {
        (GENESIS, Some(time)) => Canned::ok(format!(r#"{{"data":{{"genesis_time":"{time}"}}}}"#)),
        (SPEC, Some(_)) => Canned::ok(r#"{"data":{"SECONDS_PER_SLOT":"12"}}"#),
        (path, _) if path.starts_with(&blobs) => Canned::ok(blobs_answer()),
        _ => Canned::status(404, "{}"),
    }
}

async fn endpoint(genesis: Option<u64>, slot: u64) -> CannedServer {
    CannedServer::start(move |request| answer(request, genesis, slot)).await
}

#[tokio::test]
async fn an_endpoint_of_another_beacon_chain_spoils_no_other() {
    let good = endpoint(Some(RIGHT), SLOT).await;
    // A wrong genesis before the block, and one after it.
    for genesis in [RIGHT - 500, RIGHT + 500] {
        let other = endpoint(Some(genesis), NONE).await;
        for urls in [[other.url(), good.url()], [good.url(), other.url()]] {
            let client = client(&urls, |_| {});
            for _ in 0..2 {
                assert_found(&client).await;
            }
        }
    }
}

#[tokio::test]
async fn a_fallback_of_another_beacon_chain_does_no_harm_while_the_first_is_away() {
    let is_back = Arc::new(AtomicBool::new(false));
    let back = is_back.clone();
    let first = CannedServer::start(move |request| {
        if back.load(Ordering::Relaxed) {
            answer(request, Some(RIGHT), SLOT)
        } else {
            Canned::html()
        }
    })
    .await;
    let other = endpoint(Some(RIGHT - 500), NONE).await;
    let client = client(&[first.url(), other.url()], |_| {});
    let wanted = super::super::tests::ids();
    client.blobs(RIGHT + 40, &wanted).await.unwrap_err();
    is_back.store(true, Ordering::Relaxed);
    assert_found(&client).await;
}

#[tokio::test]
async fn an_archive_that_has_blobs_alone_counts_slots_as_the_others_do() {
    let node = endpoint(Some(RIGHT), NONE).await;
    let archive = endpoint(None, SLOT).await;
    for urls in [[node.url(), archive.url()], [archive.url(), node.url()]] {
        assert_found(&client(&urls, |_| {})).await;
    }
}
