//! Tests of the throttling task with execution clients that accept the DA limits, refuse them, or
//! are unreachable.

use super::*;
use crate::rollup::http_fake::{Canned, CannedServer};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_millis(500);

fn target(server: &CannedServer) -> ThrottleTarget {
    ThrottleTarget::at(&server.url(), TIMEOUT).unwrap()
}

/// A running task, with its inputs and outputs.
struct Running {
    load: watch::Sender<DataLoad>,
    throttling: watch::Receiver<bool>,
    throttle: ThrottleHandle,
    token: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), TargetError>>,
}

fn run(options: ThrottleOptions, targets: Vec<ThrottleTarget>) -> Running {
    let (load, received) = watch::channel(DataLoad::default());
    let (flag, throttling) = watch::channel(false);
    let (throttle, task) = super::throttle(ThrottleParts {
        options,
        targets,
        load: received,
        throttling: flag,
    });
    let token = CancellationToken::new();
    let task = tokio::spawn(task.run(token.clone()));
    Running {
        load,
        throttling,
        throttle,
        token,
        task,
    }
}

impl Running {
    fn load(&self, unsafe_da_bytes: u64) {
        self.load.send_replace(DataLoad { unsafe_da_bytes });
    }

    async fn end(self) -> Result<(), TargetError> {
        self.token.cancel();
        self.task.await.unwrap()
    }
}

/// Waits until the server has received a request that contains `text`.
async fn request(server: &CannedServer, text: &str) {
    let came = async {
        while !server.requests.lock().iter().any(|one| one.contains(text)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let came = tokio::time::timeout(Duration::from_secs(10), came).await;
    came.unwrap_or_else(|_| panic!("no {text} in {:?}", server.requests.lock()));
}

fn result(value: bool) -> Canned {
    Canned::ok(json!({ "jsonrpc": "2.0", "id": 0, "result": value }))
}

fn refusal(code: i32) -> Canned {
    let error = json!({ "code": code, "message": "no" });
    Canned::ok(json!({ "jsonrpc": "2.0", "id": 0, "error": error }))
}

#[tokio::test]
async fn every_builder_gets_the_limits_of_every_reading() {
    let servers = [
        CannedServer::start(|_| result(true)).await,
        CannedServer::start(|_| result(true)).await,
    ];
    let options = ThrottleOptions {
        curve: ThrottleCurve::Linear,
        ..ThrottleOptions::default()
    };
    let mut running = run(options, servers.iter().map(target).collect());
    running.load(0);
    for server in &servers {
        // The block limit without throttling: 130,000.
        request(server, r#""miner_setMaxDASize","params":["0x0","0x1fbd0"]"#).await;
    }
    assert!(!*running.throttling.borrow());
    running.load(8_000_000);
    for server in &servers {
        // Limits at half intensity: 10,075 and 66,000.
        request(server, r#""params":["0x275b","0x101d0"]"#).await;
    }
    running.throttling.changed().await.unwrap();
    assert!(*running.throttling.borrow_and_update());
    assert_eq!(running.throttle.info().current_load, 8_000_000);
    // The limits are sent again for the same load, since a builder may have been restarted.
    let before = servers[0].count();
    running.load(8_000_000);
    while servers[0].count() == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    running.load(100);
    running.throttling.changed().await.unwrap();
    assert!(!*running.throttling.borrow_and_update());
    assert!(running.end().await.is_ok());
}

#[tokio::test]
async fn a_builder_without_the_method_ends_the_batcher_with_op_batchers_sentence() {
    for code in [-32601, -32600, -32699] {
        let server = CannedServer::start(move |_| refusal(code)).await;
        let running = run(ThrottleOptions::default(), vec![target(&server)]);
        running.load(1);
        let ended = tokio::time::timeout(Duration::from_secs(10), running.task).await;
        let error = ended.expect("the task ends").unwrap().unwrap_err();
        let expected = format!(
            "miner_setMaxDASize unavailable at {}, either enable it or disable throttling (--http.api=…,miner there, or --throttle.unsafe-da-bytes-lower-threshold=0 here): ",
            server.url()
        );
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}

/// Other errors than an unknown method are retried, and new limits are sent at once.
#[tokio::test]
async fn a_builder_that_fails_is_tried_again() {
    let answers = [
        || refusal(-32000),
        || result(false),
        || Canned::status(503, ""),
        || Canned::html(),
    ];
    for answer in answers {
        let server = CannedServer::start(move |_| answer()).await;
        let healthy = CannedServer::start(|_| result(true)).await;
        let running = run(
            ThrottleOptions::default(),
            vec![target(&server), target(&healthy)],
        );
        running.load(1);
        request(&server, "miner_setMaxDASize").await;
        running.load(12_800_000);
        // Limits at full intensity: 150 and 2,000. The failing builder does not delay the healthy
        // one.
        request(&healthy, r#""params":["0x96","0x7d0"]"#).await;
        assert!(running.end().await.is_ok());
    }
}

#[tokio::test]
async fn a_failure_is_retried_without_a_reading() {
    let server = CannedServer::start(|_| refusal(-32000)).await;
    let (sender, limits) =
        watch::channel(ThrottleController::new(ThrottleOptions::default()).limits());
    let target = target(&server);
    let informed = keep_informed(&target, limits, Duration::from_millis(10));
    tokio::pin!(informed);
    sender.send_modify(|_| ());
    let three = async {
        while server.count() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = &mut informed => panic!("the readings have not ended"),
        came = tokio::time::timeout(Duration::from_secs(10), three) => assert!(came.is_ok()),
    }
    drop(sender);
    assert!(informed.await.is_ok());
}

#[tokio::test]
async fn a_threshold_of_zero_sends_nothing() {
    let server = CannedServer::start(|_| refusal(-32601)).await;
    let options = ThrottleOptions {
        lower_threshold: 0,
        ..ThrottleOptions::default()
    };
    let running = run(options, vec![target(&server)]);
    running.load(50_000_000);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.count(), 0);
    assert!(running.end().await.is_ok());
}

#[tokio::test]
async fn without_builders_the_flag_is_set_all_the_same() {
    let mut running = run(ThrottleOptions::default(), vec![]);
    running.load(50_000_000);
    let changed = tokio::time::timeout(Duration::from_secs(5), running.throttling.changed()).await;
    assert!(changed.is_ok());
    assert!(running.end().await.is_ok());
}
