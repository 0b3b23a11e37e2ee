//! The batcher as a process, with stand-ins for a rollup node, an execution client and L1.

use super::*;
use crate::{
    cli::{self, Invocation},
    l2_source::RpcEndpoint,
    rollup::http_fake::{Canned, CannedServer},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use starling_testkit::free_port;
use std::time::Duration;

const KEY: &str = "59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d";
/// Longest wait for any event in these tests.
const PATIENCE: Duration = Duration::from_secs(20);

fn result(value: &Value) -> Canned {
    Canned::ok(json!({ "jsonrpc": "2.0", "id": 0, "result": value }))
}

fn no_method() -> Canned {
    let error = json!({ "code": -32601, "message": "the method does not exist" });
    Canned::ok(json!({ "jsonrpc": "2.0", "id": 0, "error": error }))
}

/// The stand-ins, and a switch that lets the rollup node respond.
struct Upstreams {
    rollup: CannedServer,
    eth: CannedServer,
    l1: CannedServer,
    is_up: Arc<Mutex<bool>>,
}

async fn upstreams(l1_chain_id: u64) -> Option<Upstreams> {
    let path = "derivation-live/jovian-span/op-node-rollup-config.json";
    let config: Value = serde_json::from_str(&starling_testkit::fixture_text(path)?).unwrap();
    let is_up = Arc::new(Mutex::new(false));
    let switch = is_up.clone();
    let rollup = CannedServer::start(move |request| {
        if !*switch.lock() {
            Canned::status(502, "")
        } else if request.contains("optimism_rollupConfig") {
            result(&config)
        } else {
            no_method()
        }
    })
    .await;
    let l1 = CannedServer::start(move |request| {
        if request.contains("eth_chainId") {
            result(&json!(format!("0x{l1_chain_id:x}")))
        } else {
            no_method()
        }
    })
    .await;
    let eth = CannedServer::start(|_| result(&json!(true))).await;
    Some(Upstreams {
        rollup,
        eth,
        l1,
        is_up,
    })
}

/// The L1 chain id of the recorded chain.
fn recorded_l1() -> Option<u64> {
    let path = "derivation-live/jovian-span/op-node-rollup-config.json";
    let config: Value = serde_json::from_str(&starling_testkit::fixture_text(path)?).unwrap();
    config["l1_chain_id"].as_u64()
}

impl Upstreams {
    fn config(&self, port: u16, more: &[&str]) -> BatcherProcessConfig {
        let line = [
            "op-batcher".to_owned(),
            format!("--l1-eth-rpc={}", self.l1.url()),
            format!("--l2-eth-rpc={}", self.eth.url()),
            format!("--rollup-rpc={}", self.rollup.url()),
            format!("--private-key={KEY}"),
            "--rpc.addr=127.0.0.1".to_owned(),
            format!("--rpc.port={port}"),
            "--stopped".to_owned(),
        ];
        let line = line
            .into_iter()
            .chain(more.iter().map(|one| one.to_string()));
        match cli::parse(line, &|_| None).unwrap().invocation {
            Invocation::Batcher(config) => *config,
            other => panic!("{other:?}"),
        }
    }
}

/// Repeats an RPC call until the server responds.
async fn call(
    endpoint: &RpcEndpoint,
    method: &'static str,
    params: Value,
) -> Result<Value, String> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let answer = endpoint.call::<Value>(method, params.clone()).await;
        match answer.map_err(|error| error.to_string()) {
            Err(text) if text.contains("onnect") && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer,
        }
    }
}

async fn check_settings(endpoint: &RpcEndpoint) {
    let ok = async |method, params| call(endpoint, method, params).await.unwrap();
    let said = async |method, params| call(endpoint, method, params).await.unwrap_err();
    assert_eq!(
        ok("rpc_modules", json!([])).await,
        json!({ "admin": "1.0", "health": "1.0", "rpc": "1.0", "txmgr": "1.0" })
    );
    assert_eq!(
        ok("health_status", json!([])).await,
        json!(crate::version::VERSION)
    );
    assert_eq!(
        ok("txmgr_getMinBaseFee", json!([])).await,
        json!(1_000_000_000)
    );
    assert_eq!(ok("txmgr_setMinBaseFee", json!([7])).await, json!(null));
    assert_eq!(ok("txmgr_getMinBaseFee", json!([])).await, json!(7));
    assert!(
        said("txmgr_setMinBaseFee", json!(["x"]))
            .await
            .contains("error -32602")
    );
}

async fn check_throttling(endpoint: &RpcEndpoint) {
    let ok = async |method, params| call(endpoint, method, params).await.unwrap();
    let said = async |method, params| call(endpoint, method, params).await.unwrap_err();
    let controller = ok("admin_getThrottleController", json!([])).await;
    assert_eq!(controller["type"], "quadratic");
    assert_eq!(controller["max_block_size"], 130_000);
    let set = "admin_setThrottleController";
    assert_eq!(ok(set, json!(["step", null])).await, json!(null));
    let controller = ok("admin_getThrottleController", json!([])).await;
    assert_eq!(controller["type"], "step");
    assert!(
        said(set, json!(["cubic", null])).await.ends_with(
            "invalid controller type 'cubic', must be one of: [step linear quadratic pid]"
        )
    );
    assert!(
        said(set, json!(["pid", null]))
            .await
            .ends_with("cannot set PID controller type without configuration")
    );
    let pid = json!({ "kp": 0.3, "ki": 0.1, "kd": 0.1, "integral_max": 100, "output_max": 1, "sample_time": "2s" });
    assert_eq!(ok(set, json!(["pid", pid])).await, json!(null));
    assert_eq!(
        ok("admin_resetThrottleController", json!([])).await,
        json!(null)
    );
}

async fn check_start(endpoint: &RpcEndpoint) {
    let ok = async |method, params| call(endpoint, method, params).await.unwrap();
    let said = async |method, params| call(endpoint, method, params).await.unwrap_err();
    for method in ["admin_stopBatcher", "admin_flushBatcher"] {
        assert!(
            said(method, json!([]))
                .await
                .ends_with("batcher is not running")
        );
    }
    assert_eq!(ok("admin_startBatcher", json!([])).await, json!(null));
    assert!(
        said("admin_startBatcher", json!([]))
            .await
            .ends_with("batcher is already running")
    );
    assert!(
        said("admin_nodeInfo", json!([]))
            .await
            .contains("does not exist")
    );
}

#[tokio::test]
async fn a_batcher_waits_for_its_rollup_node_serves_its_rpc_and_ends_on_a_signal() {
    let Some(chain_id) = recorded_l1() else {
        return;
    };
    let upstreams = upstreams(chain_id).await.unwrap();
    let port = free_port();
    let signals = StopSignals::default();
    let config = upstreams.config(port, &["--rpc.enable-admin"]);
    let process = tokio::spawn(run_batcher(config, signals.clone()));
    while upstreams.rollup.count() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(upstreams.l1.count(), 0, "L1 comes after the rollup node");
    *upstreams.is_up.lock() = true;
    let url = format!("http://127.0.0.1:{port}");
    let endpoint = RpcEndpoint::new("batcher", &url, PATIENCE).unwrap();
    check_settings(&endpoint).await;
    check_throttling(&endpoint).await;
    check_start(&endpoint).await;
    signals.closing.cancel();
    // The batcher runs, but its rollup node has no heads: no block is loaded that would have to be
    // posted.
    let ended = tokio::time::timeout(PATIENCE, process).await;
    ended.expect("an end").unwrap().unwrap();
}

#[tokio::test]
async fn without_admin_only_health_is_served() {
    let Some(chain_id) = recorded_l1() else {
        return;
    };
    let upstreams = upstreams(chain_id).await.unwrap();
    *upstreams.is_up.lock() = true;
    let port = free_port();
    let signals = StopSignals::default();
    let process = tokio::spawn(run_batcher(upstreams.config(port, &[]), signals.clone()));
    let url = format!("http://127.0.0.1:{port}");
    let endpoint = RpcEndpoint::new("batcher", &url, PATIENCE).unwrap();
    assert!(call(&endpoint, "health_status", json!([])).await.is_ok());
    for method in ["admin_startBatcher", "txmgr_getMinBaseFee"] {
        let said = call(&endpoint, method, json!([])).await.unwrap_err();
        assert!(said.contains("does not exist/is not available"), "{said}");
    }
    signals.closing.cancel();
    process.await.unwrap().unwrap();
}

fn parts(config: &BatcherProcessConfig, run_switch: RunSwitch) -> BatcherUpstream {
    BatcherUpstream {
        source: L2Source::Rpc(Arc::new(RpcSource::new(&config.l2).unwrap())),
        l1: l1_client(config.batcher.l1.as_ref().unwrap(), None).unwrap(),
        targets: Vec::new(),
        flag: "rpc",
        run_switch,
    }
}

/// A batcher that the node starts again keeps the setting of the switch.
#[tokio::test]
async fn the_last_command_says_whether_the_next_batcher_runs() {
    let Some(chain_id) = recorded_l1() else {
        return;
    };
    let upstreams = upstreams(chain_id).await.unwrap();
    *upstreams.is_up.lock() = true;
    let port = free_port();
    let config = upstreams.config(port, &["--rpc.enable-admin"]);
    let run_switch = RunSwitch::new(false);
    let parts = parts(&config, run_switch.clone());
    let started = start(config.batcher, parts, &CancellationToken::new()).await;
    let _service = started.unwrap().unwrap();
    let url = format!("http://127.0.0.1:{port}");
    let endpoint = RpcEndpoint::new("batcher", &url, PATIENCE).unwrap();
    for (method, is_on) in [("admin_startBatcher", true), ("admin_stopBatcher", false)] {
        assert_eq!(call(&endpoint, method, json!([])).await, Ok(json!(null)));
        assert_eq!(run_switch.is_on(), is_on, "{method}");
    }
}

/// All parts of a service that fails to start must end, since the node starts the service again.
#[tokio::test]
async fn a_batcher_whose_rpc_cannot_be_bound_does_not_run() {
    let Some(chain_id) = recorded_l1() else {
        return;
    };
    let upstreams = upstreams(chain_id).await.unwrap();
    *upstreams.is_up.lock() = true;
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = upstreams.config(
        holder.local_addr().unwrap().port(),
        &["--poll-interval=10ms"],
    );
    let parts = parts(&config, RunSwitch::new(true));
    let started = start(config.batcher, parts, &CancellationToken::new()).await;
    let said = crate::telemetry::sentence(&started.err().expect("a failure"));
    assert!(said.contains("--rpc.port"), "{said}");
    let asked = || (upstreams.rollup.count(), upstreams.l1.count());
    let before = asked();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(asked(), before);
}

#[tokio::test]
async fn a_signal_ends_the_waiting_for_a_rollup_node() {
    let Some(chain_id) = recorded_l1() else {
        return;
    };
    let upstreams = upstreams(chain_id).await.unwrap();
    let signals = StopSignals::default();
    let process = tokio::spawn(run_batcher(upstreams.config(0, &[]), signals.clone()));
    while upstreams.rollup.count() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    signals.closing.cancel();
    let ended = tokio::time::timeout(PATIENCE, process).await;
    ended.expect("an end").unwrap().unwrap();
}

#[tokio::test]
async fn an_l1_of_another_chain_and_wrong_options_are_one_sentence() {
    let Some(chain_id) = recorded_l1() else {
        return;
    };
    let other = upstreams(chain_id + 1).await.unwrap();
    *other.is_up.lock() = true;
    let run = async |more: &[&str]| {
        let config = other.config(0, more);
        let ended = run_batcher(config, StopSignals::default()).await;
        crate::telemetry::sentence(&ended.unwrap_err())
    };
    let said = run(&[]).await;
    let expected = format!(
        "has the chain id {}, and the rollup's L1 is {chain_id}: give another endpoint with --l1-eth-rpc",
        chain_id + 1
    );
    assert!(said.ends_with(&expected), "{said}");
    let said = run(&["--sub-safety-margin=51"]).await;
    assert!(
        said.starts_with(
            "invalid channel configuration: channel timeout is less than the safety margin"
        ),
        "{said}"
    );
    assert!(!said.contains(KEY));
}
