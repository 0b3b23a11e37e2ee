//! Urgent requests beside the bulk requests of a derivation that catches up.

use crate::rollup::{
    http::fake::{Canned, CannedServer},
    l1::{L1Client, L1Config, RpcCause, transport::RpcCall},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Serves every call. A batch gets the response of `batches`, if that returns one.
async fn server(batches: fn() -> Option<Canned>) -> CannedServer {
    CannedServer::start(move |request| {
        let body = request.split_once("\r\n\r\n").unwrap().1;
        let body: Value = serde_json::from_str(body).unwrap();
        let reply = |call: &Value| json!({ "id": call["id"], "result": "0x384" });
        match body.as_array() {
            None => Canned::ok(reply(&body)),
            Some(calls) => {
                batches().unwrap_or_else(|| Canned::ok(calls.iter().map(reply).collect::<Value>()))
            }
        }
    })
    .await
}

fn batch() -> Vec<RpcCall> {
    let call = |number| RpcCall {
        method: "eth_getBlockByNumber",
        params: json!([number, true]),
    };
    (0..20).map(call).collect()
}

#[tokio::test]
async fn bulk_requests_do_not_use_up_the_rate_limit() {
    let server = server(|| None).await;
    let client = L1Client::new(&L1Config {
        rate_limit: 10.0,
        ..L1Config::new(server.url())
    })
    .unwrap();
    let mut bulk = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let client = client.for_bulk();
        bulk.spawn(async move { client.request(&batch(), |_| Ok(())).await });
    }
    bulk.join_next().await.unwrap().unwrap().unwrap();
    let begin = Instant::now();
    for _ in 0..5 {
        client.chain_id().await.unwrap();
    }
    // If two hundred calls were reserved before, this would take twenty seconds.
    let elapsed = begin.elapsed();
    assert!(elapsed < Duration::from_secs(15), "{elapsed:?}");
}

#[tokio::test]
async fn hanging_bulk_requests_do_not_use_up_the_permits() {
    let server = server(|| Some(Canned::Silence)).await;
    let client = L1Client::new(&L1Config::new(server.url())).unwrap();
    let mut bulk = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let client = client.for_bulk();
        bulk.spawn(async move { client.request(&batch(), |_| Ok(())).await });
    }
    while server.count() < 9 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let begin = Instant::now();
    assert_eq!(client.chain_id().await.unwrap(), 900);
    assert!(begin.elapsed() < Duration::from_secs(5), "a permit is kept");
}

#[tokio::test]
async fn a_pause_demanded_of_bulk_requests_is_theirs() {
    let server = server(|| {
        Some(Canned::Reply {
            status: 429,
            headers: vec!["retry-after: 30".into()],
            body: vec![],
        })
    })
    .await;
    let client = L1Client::new(&L1Config::new(server.url())).unwrap();
    let bulk = client.for_bulk();
    let busy = bulk.request(&batch(), |_| Ok(())).await.unwrap_err().cause;
    assert!(matches!(busy, RpcCause::Status { code: 429, .. }), "{busy}");
    assert_eq!(client.chain_id().await.unwrap(), 900);
    let resting = bulk.chain_id().await.unwrap_err().cause;
    assert!(matches!(resting, RpcCause::CoolingDown(_)), "{resting}");
    assert_eq!(server.count(), 2, "the pause is kept by bulk requests");
}
