//! The methods of the Engine API, with a chain behind them.

mod refusals;
mod vectors;

use super::{
    backend::{EngineBackend, halt::Halt, payload_id},
    *,
};
use crate::{
    chain::{
        evm::tests::{deposited, fixture, l1_attributes},
        tests::{datadir, open},
    },
    rpc::{TxRoute, api::Api, frame::Session, memory::Allowance, operator::RequestSender},
};
use alloy_eips::eip2718::Encodable2718;
use op_alloy_consensus::OpTxEnvelope;
use serde_json::Value;
use starling_proto::fork::{Fork, ForkSchedule};
use tokio_util::sync::CancellationToken;

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

/// The methods of the authenticated endpoint, with a chain behind them.
struct Server {
    api: Api,
    _dir: tempfile::TempDir,
}

impl Server {
    fn new() -> Self {
        Self::with_halt(None)
    }

    fn with_halt(halt: Option<Halt>) -> Self {
        let dir = datadir();
        let chain = open(dir.path()).0;
        let mut context = RpcContext::new((&chain).into(), TxRoute::Pool);
        context.engine = Some(EngineContext {
            engine: Arc::new(EngineBackend::new(chain, None)),
            halt,
        });
        let names = ["engine".to_owned(), "eth".to_owned()];
        Self {
            api: Api::new(
                &names,
                &crate::rpc::AUTH_NAMESPACES,
                &Arc::new(context),
                "--authrpc",
            ),
            _dir: dir,
        }
    }

    async fn call(&self, method: &str, params: Value) -> Value {
        let body =
            json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let allowance = Allowance::new(10, 1 << 20, 1 << 20, 1 << 20);
        let session = Session {
            api: &self.api,
            allowance: &allowance,
            deadline: None,
            subscriptions: None,
            chunked: false,
            metrics: None,
            sender: &RequestSender::default(),
        };
        serde_json::from_str(&session.respond(body.as_bytes()).await.text.unwrap()).unwrap()
    }

    async fn ask(&self, method: &str, params: Value) -> Value {
        let response = self.call(method, params).await;
        assert!(response["error"].is_null(), "{method}: {response}");
        response["result"].clone()
    }

    /// Code, message and detail of the error of a refused call.
    async fn refusal(&self, method: &str, params: Value) -> (i64, String, String) {
        let error = self.call(method, params).await["error"].clone();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (
            error["code"].as_i64().unwrap_or(0),
            text(&error["message"]),
            text(&error["data"]["err"]),
        )
    }
}

fn attributes(time: u64) -> Value {
    json!({
        "timestamp": format!("{time:#x}"), "prevRandao": B256::ZERO, "suggestedFeeRecipient": alloy_primitives::Address::ZERO,
        "withdrawals": [], "parentBeaconBlockRoot": B256::ZERO, "noTxPool": true, "gasLimit": "0x1c9c380",
        "eip1559Params": "0x0000000000000000", "minBaseFee": "0x0", "transactions": [deposited(l1_attributes(0)).1],
    })
}

/// A fork choice with `head`, and with zero for the safe and the finalized block.
fn forkchoice(head: &Value) -> Value {
    json!({ "headBlockHash": head, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO })
}

impl Server {
    async fn genesis_hash(&self) -> Value {
        self.ask("eth_getBlockByNumber", json!(["0x0", false]))
            .await["hash"]
            .clone()
    }

    /// Makes the genesis block the head, and starts to build a payload on it.
    async fn begin_payload(&self) -> Value {
        let state = forkchoice(&self.genesis_hash().await);
        let attributes = attributes(crate::chain::tests::GENESIS_TIME + 2);
        self.ask("engine_forkchoiceUpdatedV3", json!([state, attributes]))
            .await
    }

    /// The payload of the first block, which is built but not inserted.
    async fn built_payload(&self) -> Value {
        let id = self.begin_payload().await["payloadId"].clone();
        self.ask("engine_getPayloadV4", json!([id])).await["executionPayload"].clone()
    }
}

#[tokio::test]
async fn a_payload_is_built_and_fetched_with_its_forks_version_only() {
    let server = Server::new();
    let begun = server.begin_payload().await;
    assert_eq!(
        begun["payloadStatus"],
        json!({ "status": "VALID", "latestValidHash": server.genesis_hash().await, "validationError": null })
    );
    let id = begun["payloadId"].clone();
    assert!(id.as_str().unwrap().starts_with("0x03"), "{id}");
    for version in [1, 2, 3, 5] {
        let method = format!("engine_getPayloadV{version}");
        assert_eq!(
            server.refusal(&method, json!([id])).await.0,
            -38005,
            "{method}"
        );
    }
    let unknown = server
        .refusal("engine_getPayloadV4", json!(["0x0300000000000000"]))
        .await;
    assert_eq!((unknown.0, unknown.1.as_str()), (-38001, "Unknown payload"));
    let envelope = server.ask("engine_getPayloadV4", json!([id])).await;
    let members: Vec<_> = envelope.as_object().unwrap().keys().cloned().collect();
    let wanted = [
        "blobsBundle",
        "blockValue",
        "executionPayload",
        "executionRequests",
        "parentBeaconBlockRoot",
        "shouldOverrideBuilder",
    ];
    assert_eq!(members, wanted);
    assert_eq!(
        envelope,
        server.ask("engine_getPayloadV4", json!([id])).await
    );
    let payload = &envelope["executionPayload"];
    assert_eq!(payload["withdrawals"], json!([]));
    assert!(payload["withdrawalsRoot"].is_string());
}

#[tokio::test]
async fn bodies_are_listed_by_hash_when_inserted_and_by_number_when_canonical() {
    let server = Server::new();
    let payload = server.built_payload().await;
    let hash = &payload["blockHash"];
    let inserted = server
        .ask("engine_newPayloadV4", json!([payload, [], B256::ZERO, []]))
        .await;
    assert_eq!(
        inserted,
        json!({ "status": "VALID", "latestValidHash": hash, "validationError": null })
    );
    let body = json!({ "transactions": payload["transactions"], "withdrawals": [] });
    let given = attributes(crate::chain::tests::GENESIS_TIME + 2);
    assert_eq!(body["transactions"], given["transactions"]);
    let by_hash = async || {
        let hashes = json!([[hash, B256::ZERO]]);
        server.ask("engine_getPayloadBodiesByHashV1", hashes).await
    };
    let by_range = async |first: &str, count: &str| {
        let range = json!([first, count]);
        server.ask("engine_getPayloadBodiesByRangeV1", range).await
    };
    assert_eq!(by_hash().await, json!([body, null]), "not the head yet");
    assert_eq!(by_range("0x1", "0x1").await, json!([]));
    server
        .ask(
            "engine_forkchoiceUpdatedV3",
            json!([forkchoice(hash), null]),
        )
        .await;
    assert_eq!(by_hash().await, json!([body, null]));
    assert_eq!(by_range("0x1", "0x400").await, json!([body]));
    assert_eq!(by_range("0x2", "0x1").await, json!([]));
}

/// A payload is refused by the versions of the method that serve other forks.
#[tokio::test]
async fn a_new_payload_of_another_fork_is_refused() {
    let server = Server::new();
    let payload = server.built_payload().await;
    for (version, params, code, detail) in [
        (
            1,
            json!([payload]),
            -32602,
            "withdrawals not supported in V1",
        ),
        (
            2,
            json!([payload]),
            -32602,
            "can't use newPayloadV2 post-cancun",
        ),
        (
            3,
            json!([payload, [], B256::ZERO]),
            -38005,
            "newPayloadV3 must only be called for cancun payloads",
        ),
    ] {
        let refusal = server
            .refusal(&format!("engine_newPayloadV{version}"), params)
            .await;
        assert_eq!((refusal.0, refusal.2.as_str()), (code, detail));
    }
}

#[tokio::test]
async fn a_new_payload_without_a_part_of_its_version_is_refused() {
    let server = Server::new();
    let payload = server.built_payload().await;
    let zero = B256::ZERO;
    let without = |name: &str| {
        let mut payload = payload.clone();
        payload.as_object_mut().unwrap().remove(name);
        json!([payload, [], zero, []])
    };
    for (params, detail) in [
        (
            json!([payload, null, zero, []]),
            "nil versionedHashes post-cancun",
        ),
        (json!([payload, [], null, []]), "nil beaconRoot post-cancun"),
        (
            json!([payload, [], zero, null]),
            "nil executionRequests post-prague",
        ),
        (without("withdrawals"), "nil withdrawals post-shanghai"),
        (without("excessBlobGas"), "nil excessBlobGas post-cancun"),
        (without("blobGasUsed"), "nil blobGasUsed post-cancun"),
        (
            without("withdrawalsRoot"),
            "nil withdrawalsRoot post-isthmus",
        ),
    ] {
        let refusal = server.refusal("engine_newPayloadV4", params).await;
        assert_eq!((refusal.0, refusal.2.as_str()), (-32602, detail));
    }
}

#[tokio::test]
async fn a_new_payload_with_blobs_requests_or_another_hash_is_invalid() {
    let server = Server::new();
    let payload = server.built_payload().await;
    let zero = B256::ZERO;

    for (params, reason) in [
        (json!([payload, [zero], zero, []]), "there are no blobs"),
        (
            json!([payload, [], zero, ["0x00"]]),
            "there are no execution requests",
        ),
        (json!([payload, [], B256::repeat_byte(1), []]), "block hash"),
    ] {
        let status = server.ask("engine_newPayloadV4", params).await;
        assert_eq!(
            (&status["status"], &status["latestValidHash"]),
            (&json!("INVALID"), &Value::Null)
        );
        assert!(
            status["validationError"].as_str().unwrap().contains(reason),
            "{status}"
        );
    }
    assert_eq!(
        server
            .ask("engine_newPayloadV4", json!([payload, [], zero, []]))
            .await["status"],
        "VALID"
    );
}

#[tokio::test]
async fn every_version_of_a_method_is_among_the_capabilities() {
    let server = Server::new();
    let names = server
        .ask(
            "engine_exchangeCapabilities",
            json!([["engine_newPayloadV9"]]),
        )
        .await;
    let names: Vec<String> = read(&names);
    for (prefix, versions) in [
        ("newPayload", 1..=4),
        ("forkchoiceUpdated", 1..=3),
        ("getPayload", 1..=5),
    ] {
        for version in versions {
            assert!(
                names.contains(&format!("engine_{prefix}V{version}")),
                "{prefix} {version}"
            );
        }
    }
    assert!(!names.contains(&EXCHANGE_CAPABILITIES.to_owned()));
}

#[tokio::test]
async fn the_client_version_names_the_program() {
    let server = Server::new();
    let me = server
        .ask(
            "engine_getClientVersionV1",
            json!([{ "code": "OP", "name": "x", "version": "1", "commit": "0x" }]),
        )
        .await;
    assert_eq!(
        (
            me[0]["code"].as_str().unwrap().len(),
            me[0]["name"].as_str()
        ),
        (2, Some("starling"))
    );
}

#[tokio::test]
async fn superchain_signals_and_transition_configurations_are_answered() {
    let server = Server::new();
    let supported = server.ask("engine_signalSuperchainV1", json!([null])).await;
    let signal = json!([{ "recommended": supported, "required": supported }]);
    assert_eq!(
        server.ask("engine_signalSuperchainV1", signal).await,
        supported
    );
    let transition = json!({ "terminalTotalDifficulty": "0x0", "terminalBlockHash": B256::ZERO, "terminalBlockNumber": "0x0" });
    assert_eq!(
        server
            .ask(
                "engine_exchangeTransitionConfigurationV1",
                json!([transition])
            )
            .await,
        transition
    );
}

/// The namespaces are those of op-geth's authenticated endpoint (node/defaults.go). `miner` belongs
/// to the open endpoints.
#[tokio::test]
async fn the_authenticated_endpoint_has_three_namespaces() {
    let server = Server::new();
    assert_eq!(
        server.ask("rpc_modules", json!([])).await,
        json!({ "engine": "1.0", "eth": "1.0", "rpc": "1.0" })
    );
    for method in ["net_version", "miner_setMaxDASize"] {
        assert_eq!(
            server.call(method, json!([])).await["error"]["code"],
            -32601
        );
    }
}

#[tokio::test]
async fn a_required_version_stops_a_node_that_may_be_stopped() {
    use superchain::HaltAt::{Major, Minor, Patch};
    for (at, stopping) in [
        (None, 0),
        (Some(Major), 1),
        (Some(Minor), 2),
        (Some(Patch), 3),
    ] {
        let token = CancellationToken::new();
        let server = Server::with_halt(at.map(|at| Halt {
            at,
            token: token.clone(),
        }));
        let supported: B256 = read(&server.ask("engine_signalSuperchainV1", json!([null])).await);
        let newer = |place: usize| {
            let mut version = supported;
            // Major, minor and patch are the first three numbers of the second half.
            version[16 + 4 * place + 3] += 1;
            version
        };
        let signal = |recommended: B256, required: B256| {
            let params = json!([{ "recommended": recommended, "required": required }]);
            async {
                assert_eq!(
                    server.ask("engine_signalSuperchainV1", params).await,
                    json!(supported)
                )
            }
        };
        for place in (stopping..3).rev() {
            signal(newer(0), newer(place)).await;
            assert!(
                !token.is_cancelled(),
                "{at:?}: a newer number {place} is no reason to stop"
            );
        }
        if stopping > 0 {
            signal(supported, newer(stopping - 1)).await;
            assert!(token.is_cancelled(), "{at:?}");
        }
    }
}
