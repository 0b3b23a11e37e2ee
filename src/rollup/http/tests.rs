//! Tests of URLs, credentials, `Retry-After` and gzip.

use super::{fake::*, *};
use crate::{
    l2_source::{L2Endpoints, L2Source, RpcSource},
    rollup::{
        beacon::{BeaconClient, BeaconConfig},
        l1::{L1Client, L1Config},
    },
    rpc::forward::ForwardClient,
    secret::Secret,
};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A server that sends every response in gzip.
async fn gzip_server(text: &'static str) -> CannedServer {
    CannedServer::start(move |_| Canned::gzip(text)).await
}

/// Checks that the server got requests, and that each accepts gzip.
fn assert_gzip_accepted(server: &CannedServer) {
    let requests = server.requests.lock();
    assert!(!requests.is_empty());
    let accepts = |request: &String| request.to_lowercase().contains("accept-encoding: gzip\r\n");
    assert!(requests.iter().all(accepts), "{requests:?}");
}

#[tokio::test]
async fn every_client_accepts_gzip_and_reads_it() {
    let rpc = gzip_server(r#"{"jsonrpc":"2.0","id":0,"result":"0x7"}"#).await;
    let l1 = L1Client::new(&L1Config::new(rpc.url())).unwrap();
    assert_eq!(l1.head_number().await.unwrap(), 7);
    let history = ForwardClient::new(&rpc.url(), 4096, TIMEOUT).unwrap();
    let found = history.request("eth_getBalance", "[]").await.unwrap();
    assert_eq!(found.get(), "\"0x7\"");
    assert_gzip_accepted(&rpc);

    let l2 = gzip_server(r#"{"jsonrpc":"2.0","id":0,"result":null}"#).await;
    let endpoints = L2Endpoints {
        rollup: vec![l2.url()],
        eth: vec![l2.url()],
        check_interval: TIMEOUT,
        timeout: TIMEOUT,
    };
    let source = L2Source::Rpc(Arc::new(RpcSource::new(&endpoints).unwrap()));
    assert!(source.block(5).await.unwrap().is_none());
    assert_gzip_accepted(&l2);

    let node = gzip_server(r#"{"data":{"version":"fake/1"}}"#).await;
    let beacon = BeaconClient::new(&BeaconConfig::new(vec![Secret::new(node.url())]));
    beacon.unwrap().check_health().await.unwrap();
    assert_gzip_accepted(&node);
}

/// The size of a response that is unpacked counts, and the status of a failure counts more than its
/// body.
#[tokio::test]
async fn the_limit_of_a_response_holds_for_its_unpacked_body() {
    let server = CannedServer::start(|request| match request.split_whitespace().nth(1) {
        Some("/bomb") => Canned::gzip(vec![b'0'; 1 << 20]),
        _ => Canned::Reply {
            status: 429,
            headers: vec!["content-encoding: br".into(), "retry-after: 7".into()],
            body: b"packed".to_vec(),
        },
    })
    .await;
    let target = HttpTarget::new(&server.url(), HeaderMap::new()).unwrap();
    let bomb = target.get("/bomb", 64 << 10, TIMEOUT).await;
    assert_eq!(bomb.err(), Some(HttpFault::TooLarge(64 << 10)));
    let whole = target.get("/bomb", 1 << 20, TIMEOUT).await;
    assert_eq!(whole.unwrap().body.len(), 1 << 20);
    let busy = target.get("/busy", 1 << 20, TIMEOUT).await.unwrap();
    assert_eq!(busy.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(busy.retry_after, Some(Duration::from_secs(7)));
}

#[test]
fn endpoints_are_named_without_credentials() {
    for (url, name) in [
        (
            "http://user:secret@host:8545/v3/key?token=x",
            "http://host:8545",
        ),
        ("https://host", "https://host"),
        ("wss://a@b@host/key", "wss://host"),
        ("host/key", "host"),
    ] {
        assert_eq!(endpoint_of(url), name);
    }
}

#[test]
fn a_long_error_is_cut_between_characters() {
    assert_eq!(excerpt("short"), "short");
    let exact = "ä".repeat(MAX_EXCERPT);
    assert_eq!(excerpt(&exact), exact);
    assert_eq!(excerpt(format!("{exact}ä")), format!("{exact}…"));
}

#[test]
fn a_user_name_becomes_a_header_and_leaves_the_url() {
    let url = "http://us%65r:p%40ss@host:1/base/?key=1";
    let endpoint = HttpTarget::new(url, HeaderMap::new()).unwrap();
    assert_eq!(endpoint.base, "http://host:1/base/?key=1");
    let expected = format!("Basic {}", BASE64_STANDARD.encode("user:p@ss"));
    assert_eq!(endpoint.headers[header::AUTHORIZATION], expected);
    assert!(
        !format!("{:?}", endpoint.headers).contains(&expected),
        "marked as sensitive"
    );
    assert_eq!(percent_decoded("%zz%4"), b"%zz%4");
    for url in [
        "ftp://host",
        "http://",
        "http://a b",
        "http:///path",
        "",
        "http://host/#x",
    ] {
        let error = HttpTarget::new(url, HeaderMap::new())
            .map(drop)
            .unwrap_err();
        assert!(url.is_empty() || !error.contains(url), "{error}");
    }
}

#[test]
fn retry_after_is_read_in_both_forms() {
    let seconds = |value, now| retry_after_of(value, now).map(|rest| rest.as_secs());
    assert_eq!(seconds("7", 0), Some(7));
    assert_eq!(seconds("99999999", 0), Some(3600), "at most an hour");
    // The example of RFC 9110, and dates around leap days.
    assert_eq!(
        http_date("Sun, 06 Nov 1994 08:49:37 GMT"),
        Some(784_111_777)
    );
    assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
    assert_eq!(
        http_date("Thu, 29 Feb 2024 23:59:59 GMT"),
        Some(1_709_251_199)
    );
    assert_eq!(
        http_date("Fri, 01 Mar 2024 00:00:00 GMT"),
        Some(1_709_251_200)
    );
    assert_eq!(
        seconds("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_770),
        Some(7)
    );
    assert_eq!(
        seconds("Sun, 06 Nov 1994 08:49:37 GMT", 1_800_000_000),
        Some(0)
    );
    for nonsense in [
        "",
        "soon",
        "-1",
        "Sun, 99 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1 08:49:37 GMT",
    ] {
        assert_eq!(seconds(nonsense, 0), None, "{nonsense}");
    }
}
