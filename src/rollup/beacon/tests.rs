//! Endpoints that serve blobs, sidecars or neither, and endpoints that send wrong data, fail or
//! time out.

use super::{
    clock::{GENESIS, NO_SLOT_TIME, SPEC},
    *,
};
use crate::rollup::http::fake::{Canned, CannedServer};
use alloy_eips::eip4844::kzg_to_versioned_hash;
use serde_json::{Value, json};

const GENESIS_ANSWER: &str = r#"{"data":{"genesis_time":"1000"}}"#;
const SPEC_ANSWER: &str = r#"{"data":{"CONFIG_NAME":"x","SECONDS_PER_SLOT":"12"}}"#;
/// Time of a block in slot 3.
const BLOCK_TIME: u64 = 1040;

/// Blobs that differ in one element, with references at positions from 4 on.
fn blobs() -> Vec<(BlobRef, Blob, Value)> {
    let kzg = c_kzg::ethereum_kzg_settings(8);
    let one = |n: u8| {
        let mut blob = Blob::ZERO;
        blob.0[1] = n;
        let c_blob = c_kzg::Blob::new(blob.0);
        let commitment = kzg.blob_to_kzg_commitment(&c_blob).unwrap().to_bytes();
        let proof = kzg
            .compute_blob_kzg_proof(&c_blob, &commitment)
            .unwrap()
            .to_bytes();
        let id = BlobRef {
            index: 4 + u64::from(n),
            versioned_hash: kzg_to_versioned_hash(commitment.as_slice()),
        };
        let hex = |bytes: &[u8]| alloy_primitives::hex::encode_prefixed(bytes);
        let sidecar = json!({
            "index": id.index.to_string(), "blob": hex(&blob.0[..]),
            "kzg_commitment": hex(commitment.as_slice()), "kzg_proof": hex(proof.as_slice()),
        });
        (id, blob, sidecar)
    };
    (0..2).map(one).collect()
}

pub(super) fn ids() -> Vec<BlobRef> {
    blobs().into_iter().map(|(id, ..)| id).collect()
}

pub(super) fn blobs_answer() -> String {
    let list: Vec<_> = blobs()
        .into_iter()
        .rev()
        .map(|(_, _, sidecar)| sidecar["blob"].clone())
        .collect();
    json!({ "data": list }).to_string()
}

fn sidecars_answer() -> String {
    let list: Vec<_> = blobs().into_iter().map(|(.., sidecar)| sidecar).collect();
    json!({ "data": list }).to_string()
}

/// A beacon node whose response to a request for blobs is `answer`.
async fn node(answer: impl Fn(&str) -> Canned + Send + Sync + 'static) -> CannedServer {
    CannedServer::start(move |request| {
        let path = request.split_whitespace().nth(1).unwrap_or_default();
        match path.trim_start_matches("/base") {
            GENESIS => Canned::ok(GENESIS_ANSWER),
            SPEC => Canned::ok(SPEC_ANSWER),
            VERSION => Canned::ok(r#"{"data":{"version":"fake/1"}}"#),
            path => answer(path),
        }
    })
    .await
}

pub(super) fn client(urls: &[String], change: impl Fn(&mut BeaconConfig)) -> BeaconClient {
    let mut config = BeaconConfig::new(urls.iter().map(Secret::new).collect());
    config.timeout = Duration::from_millis(1500);
    change(&mut config);
    BeaconClient::new(&config).unwrap()
}

pub(super) async fn assert_found(client: &BeaconClient) {
    let found = client.blobs(BLOCK_TIME, &ids()).await.unwrap();
    let expected: Vec<_> = blobs()
        .into_iter()
        .map(|(_, blob, _)| Box::new(blob))
        .collect();
    assert!(found == expected);
}

fn paths(server: &CannedServer) -> Vec<String> {
    let path = |request: &String| request.split([' ', '?']).nth(1).unwrap().to_owned();
    server.requests.lock().iter().map(path).collect()
}

#[tokio::test]
async fn blobs_come_in_the_order_asked_for_with_the_header_on_every_request() {
    let answer = blobs_answer();
    let server = node(move |_| Canned::ok(&answer)).await;
    let url = format!("http://u:secret@127.0.0.1:{}/base/", server.port);
    let client = client(&[url], |config| {
        config.addresses[0].header = Some(Secret::new("X-Key: hidden"))
    });
    client.check_health().await.unwrap();
    assert_found(&client).await;
    assert_found(&client).await;
    assert!(client.blobs(BLOCK_TIME, &[]).await.unwrap().is_empty());
    let expected = [
        VERSION,
        GENESIS,
        SPEC,
        "/eth/v1/beacon/blobs/3",
        "/eth/v1/beacon/blobs/3",
    ];
    assert_eq!(paths(&server), expected.map(|path| format!("/base{path}")));
    for request in server.requests.lock().iter() {
        let request = request.to_lowercase();
        assert!(request.contains("x-key: hidden") && request.contains("accept: application/json"));
        assert!(request.contains("authorization: basic "));
    }
}

#[tokio::test]
async fn sidecars_are_asked_for_where_there_are_no_blobs() {
    for status in [404, 405] {
        let server = node(move |path| {
            if path.starts_with("/eth/v1/beacon/blobs/") {
                return Canned::status(status, "{}");
            }
            assert_eq!(path, "/eth/v1/beacon/blob_sidecars/3?indices=4&indices=5");
            Canned::ok(sidecars_answer())
        })
        .await;
        let client = client(&[server.url()], |config| config.seconds_per_slot = 12);
        assert_found(&client).await;
        assert_found(&client).await;
        let sidecars = "/eth/v1/beacon/blob_sidecars/3";
        assert_eq!(
            paths(&server),
            [GENESIS, "/eth/v1/beacon/blobs/3", sidecars, sidecars]
        );
    }
    let server = node(|path| {
        assert_eq!(path, "/eth/v1/beacon/blob_sidecars/3");
        Canned::ok(sidecars_answer())
    })
    .await;
    assert_found(&client(&[server.url()], |config| {
        config.fetch_all_sidecars = true
    }))
    .await;
}

/// The beacon node is updated to a version that serves `/blobs` and no sidecars.
#[tokio::test]
async fn an_endpoint_that_loses_its_sidecars_is_asked_for_blobs_again() {
    let is_updated = Arc::new(AtomicBool::new(false));
    let updated = is_updated.clone();
    let server = node(move |path| {
        let wants_blobs = path.starts_with("/eth/v1/beacon/blobs/");
        if wants_blobs != updated.load(Ordering::Relaxed) {
            Canned::status(404, "{}")
        } else if wants_blobs {
            Canned::ok(blobs_answer())
        } else {
            Canned::ok(sidecars_answer())
        }
    })
    .await;
    let client = client(&[server.url()], |config| config.seconds_per_slot = 12);
    assert_found(&client).await;
    is_updated.store(true, Ordering::Relaxed);
    let error = client.blobs(BLOCK_TIME, &ids()).await.unwrap_err();
    assert_eq!(error.cause, BeaconCause::NotFound);
    assert_found(&client).await;
}

#[tokio::test]
async fn each_endpoint_gets_its_own_header_and_no_other() {
    let servers = [
        node(|_| Canned::status(404, "{}")).await,
        node(|_| Canned::status(404, "{}")).await,
        node(|_| Canned::ok(blobs_answer())).await,
    ];
    let urls = servers.each_ref().map(CannedServer::url);
    let client = client(&urls, |config| {
        config.addresses[0].header = Some(Secret::new("X-Key: main"));
        config.addresses[2].header = Some(Secret::new("X-Key: archive"));
    });
    assert_found(&client).await;
    for (server, expected) in servers.iter().zip([Some("main"), None, Some("archive")]) {
        assert!(server.count() > 0);
        for request in server.requests.lock().iter() {
            let request = request.to_lowercase();
            let key = request
                .lines()
                .find_map(|line| line.strip_prefix("x-key: "));
            assert_eq!(key, expected, "{request}");
        }
    }
}

#[tokio::test]
async fn slots_of_zero_seconds_are_refused() {
    let server = CannedServer::start(|request| {
        let path = request.split_whitespace().nth(1).unwrap_or_default();
        Canned::ok(match path {
            GENESIS => GENESIS_ANSWER,
            _ => r#"{"data":{"SECONDS_PER_SLOT":"0"}}"#,
        })
    })
    .await;
    let client = client(&[server.url()], |_| {});
    let error = client.blobs(BLOCK_TIME, &ids()).await.unwrap_err();
    assert_eq!(error.cause, BeaconCause::Untrue(NO_SLOT_TIME.into()));
}

#[test]
fn an_endpoint_that_lies_or_fails_is_tried_last() {
    let status = |code| BeaconCause::Status {
        code,
        retry_after: None,
    };
    for broken in [
        BeaconCause::Untrue("a lie".into()),
        BeaconCause::Malformed("no JSON".into()),
        BeaconCause::Transport("reset".into()),
        status(401),
        BeaconCause::BeforeGenesis {
            time: 1,
            genesis: 2,
        },
    ] {
        assert_eq!(broken.fault(), Some(EndpointFault::Broken), "{broken}");
    }
    for code in [429, 500, 503] {
        assert_eq!(status(code).fault(), Some(EndpointFault::Busy(None)));
    }
    assert_eq!(BeaconCause::NotFound.fault(), None);
}

#[tokio::test]
async fn a_fallback_has_what_the_first_lacks_and_is_kept() {
    let first = node(|_| Canned::status(404, "{}")).await;
    let second = node(|_| Canned::html()).await;
    let third = node(|_| Canned::ok(blobs_answer())).await;
    let client = client(&[first.url(), second.url(), third.url()], |_| {});
    assert_found(&client).await;
    assert_found(&client).await;
    let count = |server: &CannedServer| {
        paths(server)
            .iter()
            .filter(|path| path.contains("blob"))
            .count()
    };
    assert_eq!((count(&first), count(&second), count(&third)), (2, 1, 2));
}

#[tokio::test]
async fn bad_answers_are_named_with_endpoint_and_path() {
    let short = {
        let mut answer: Value = serde_json::from_str(&blobs_answer()).unwrap();
        answer["data"].as_array_mut().unwrap().pop();
        answer.to_string()
    };
    let forged = blobs_answer().replacen("0x0001", "0x0002", 1);
    type Answers = Vec<(&'static str, Box<dyn Fn() -> Canned + Send + Sync>)>;
    let answers: Answers = vec![
        ("a web page where JSON was expected", Box::new(Canned::html)),
        ("an empty response", Box::new(|| Canned::ok(""))),
        (
            "body",
            Box::new(|| Canned::Half(blobs_answer().into_bytes())),
        ),
        ("no response within", Box::new(|| Canned::Silence)),
        ("HTTP status 500", Box::new(|| Canned::status(500, "{}"))),
        (
            "is not among the 1 it sent",
            Box::new(move || Canned::ok(&short)),
        ),
        (
            "is not among the 2 it sent",
            Box::new(move || Canned::ok(&forged)),
        ),
        ("HTTP status 404", Box::new(|| Canned::status(404, "{}"))),
        ("missing field `data`", Box::new(|| Canned::ok("{}"))),
    ];
    for (words, answer) in answers {
        let server = node(move |_| answer()).await;
        let url = format!("http://u:secret@127.0.0.1:{}", server.port);
        let error = client(&[url], |_| {})
            .blobs(BLOCK_TIME, &ids())
            .await
            .unwrap_err();
        let text = error.to_string();
        let named = format!(
            "beacon API at http://127.0.0.1:{}: /eth/v1/beacon/blob",
            server.port
        );
        assert!(
            text.starts_with(&named) && text.contains(words),
            "{words}: {text}"
        );
        assert_eq!(
            error.cause == BeaconCause::NotFound,
            words == "HTTP status 404"
        );
    }
}

/// Status 404 means that the endpoint lacks the blobs only on the paths of blobs.
#[tokio::test]
async fn a_server_without_a_beacon_api_is_named() {
    let server = CannedServer::start(|_| Canned::status(404, "{}")).await;
    let client = client(&[server.url()], |_| {});
    let error = client.blobs(BLOCK_TIME, &ids()).await.unwrap_err();
    assert_eq!(
        (error.path.as_str(), &error.cause),
        (GENESIS, &BeaconCause::NoBeaconApi)
    );
    let text = error.to_string();
    assert!(
        text.contains("--l1.beacon") && !text.contains("expired"),
        "{text}"
    );
}

#[test]
fn errors_about_long_answers_are_short() {
    let long = "x".repeat(1 << 20);
    for body in [
        json!({ "data": long }).to_string(),
        json!({ "data": { (long.clone()): 1 } }).to_string(),
        json!({ "data": [{ "index": long }] }).to_string(),
        json!({ "data": [long] }).to_string(),
    ] {
        let blobs = fuzzing::blobs(200, body.as_bytes(), &ids()).unwrap_err();
        let sidecars = fuzzing::sidecars(200, body.as_bytes(), &ids()).unwrap_err();
        for error in [blobs, sidecars].map(|error| error.to_string()) {
            assert!(error.len() < 400, "{} bytes", error.len());
            assert!(error.starts_with("malformed response: "), "{error}");
        }
    }
}

#[tokio::test]
async fn an_endpoint_that_lacks_blobs_counts_more_than_one_that_fails() {
    let lacking = node(|_| Canned::status(404, "{}")).await;
    let failing = node(|_| Canned::status(500, "{}")).await;
    for urls in [
        [lacking.url(), failing.url()],
        [failing.url(), lacking.url()],
    ] {
        let error = client(&urls, |_| {})
            .blobs(BLOCK_TIME, &ids())
            .await
            .unwrap_err();
        assert_eq!(error.cause, BeaconCause::NotFound);
    }
}

#[tokio::test]
async fn a_busy_endpoint_rests() {
    let server = node(|_| Canned::Reply {
        status: 429,
        headers: vec!["retry-after: 60".into()],
        body: vec![],
    })
    .await;
    let client = client(&[server.url()], |config| config.seconds_per_slot = 12);
    client.blobs(BLOCK_TIME, &ids()).await.unwrap_err();
    let error = client.blobs(BLOCK_TIME, &ids()).await.unwrap_err();
    assert!(
        matches!(error.cause, BeaconCause::CoolingDown(_)),
        "{error}"
    );
    assert_eq!(paths(&server), [GENESIS, "/eth/v1/beacon/blobs/3"]);
}

#[tokio::test]
async fn a_cooldown_within_the_time_limit_of_a_request_is_waited_for() {
    let requests = Arc::new(Mutex::new(vec![]));
    let (times, answer) = (requests.clone(), blobs_answer());
    let server = node(move |_| {
        times.lock().push(Instant::now());
        if times.lock().len() > 1 {
            return Canned::ok(&answer);
        }
        Canned::Reply {
            status: 429,
            headers: vec!["retry-after: 1".into()],
            body: vec![],
        }
    })
    .await;
    let client = client(&[server.url()], |config| config.seconds_per_slot = 12);
    let wanted = ids();
    client.blobs(BLOCK_TIME, &wanted).await.unwrap_err();
    client.blobs(BLOCK_TIME, &wanted).await.unwrap();
    let requests = requests.lock();
    let pause = requests[1] - requests[0];
    assert!(pause >= Duration::from_secs(1), "{pause:?}");
}

#[tokio::test]
async fn the_health_check_fails_after_its_tries_or_is_ignored() {
    let gone = ["http://127.0.0.1:1".to_owned()];
    let begin = Instant::now();
    let error = client(&gone, |_| {}).check_health().await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("beacon API at http://127.0.0.1:1: /eth/v1/node/version: "),
        "{error}"
    );
    assert!(begin.elapsed() > Duration::from_secs(7));
    client(&gone, |config| config.ignore_health = true)
        .check_health()
        .await
        .unwrap();
}

#[tokio::test]
async fn slots_follow_from_the_published_answers() {
    let read = |name: &str| starling_testkit::fixture_text(&format!("blobs/beacon-api/{name}"));
    let genesis = read("eth_v1_beacon_genesis_goerli.json");
    let spec = read("eth_v1_config_spec_goerli.json");
    let (Some(genesis), Some(spec)) = (genesis, spec) else {
        return;
    };
    let server = CannedServer::start(move |request| {
        Canned::ok(if request.contains(GENESIS) {
            &genesis
        } else {
            &spec
        })
    })
    .await;
    let clock = client(&[server.url()], |_| {}).clock_of(0).await.unwrap();
    let mainnet = SlotClock {
        genesis_time: 1_606_824_023,
        seconds_per_slot: 12,
    };
    assert_eq!(clock, mainnet);
    assert_eq!(clock.slot(1_606_824_023), Some(0));
    assert_eq!(clock.slot(1_606_824_046), Some(1));
    assert_eq!(clock.slot(1_606_824_022), None);

    let early = client(&[server.url()], |_| {})
        .blobs(7, &ids())
        .await
        .unwrap_err();
    assert!(
        matches!(early.cause, BeaconCause::BeforeGenesis { time: 7, .. }),
        "{early}"
    );
    let server = node(|_| Canned::ok("")).await;
    let clock = client(&[server.url()], |config| config.seconds_per_slot = 3);
    assert_eq!(clock.clock_of(0).await.unwrap().seconds_per_slot, 3);
    assert_eq!(paths(&server), [GENESIS]);
}

#[test]
fn a_wrong_configuration_is_named_without_its_secrets() {
    let refused = |urls: &[&str], header: Option<&str>| {
        let urls = urls.iter().map(|url| Secret::new(*url));
        let mut config = BeaconConfig::new(urls.collect());
        for address in &mut config.addresses {
            address.header = header.map(Secret::new);
        }
        BeaconClient::new(&config)
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    let good = "http://127.0.0.1:1";
    for header in ["X-Key:hidden", "hidden", "X Key: hidden", "X-Key: hid\nden"] {
        let text = refused(&[good], Some(header));
        assert!(
            text.starts_with("--l1.beacon-header") && !text.contains("hid"),
            "{text}"
        );
    }
    for urls in [&["ftp://u:hidden@host"][..], &[]] {
        let text = refused(urls, None);
        assert!(
            text.starts_with("--l1.beacon") && !text.contains("hidden"),
            "{text}"
        );
    }
}
