//! The methods of the Engine API on a chain behind them.

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
    rpc::{TxRoute, api::Api, frame::Session, memory::Allowance},
};
use alloy_eips::eip2718::Encodable2718;
use op_alloy_consensus::OpTxEnvelope;
use serde_json::Value;
use starling_proto::fork::{Fork, ForkSchedule};
use tokio_util::sync::CancellationToken;

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

/// A chain behind the authenticated endpoint's methods.
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
        };
        serde_json::from_str(&session.answer(body.as_bytes()).await.text.unwrap()).unwrap()
    }

    async fn ask(&self, method: &str, params: Value) -> Value {
        let answer = self.call(method, params).await;
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Code, message and detail of a refusal.
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

#[tokio::test]
async fn a_payload_is_built_fetched_and_listed() {
    let server = Server::new();
    let genesis = server
        .ask("eth_getBlockByNumber", json!(["0x0", false]))
        .await;
    let zero = B256::ZERO;
    let state = |head: &Value| json!({ "headBlockHash": head, "safeBlockHash": zero, "finalizedBlockHash": zero });
    let time = crate::chain::tests::GENESIS_TIME + 2;
    let begun = server
        .ask(
            "engine_forkchoiceUpdatedV3",
            json!([state(&genesis["hash"]), attributes(time)]),
        )
        .await;
    assert_eq!(
        begun["payloadStatus"],
        json!({ "status": "VALID", "latestValidHash": genesis["hash"], "validationError": null })
    );
    let id = begun["payloadId"].clone();
    assert!(id.as_str().unwrap().starts_with("0x03"), "{id}");
    for (method, code) in [
        ("engine_getPayloadV1", -38005),
        ("engine_getPayloadV2", -38005),
        ("engine_getPayloadV3", -38005),
        ("engine_getPayloadV5", -38005),
    ] {
        assert_eq!(
            server.refusal(method, json!([id])).await.0,
            code,
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

    let inserted = server
        .ask("engine_newPayloadV4", json!([payload, [], zero, []]))
        .await;
    assert_eq!(
        inserted,
        json!({ "status": "VALID", "latestValidHash": payload["blockHash"], "validationError": null })
    );
    let body = json!({ "transactions": attributes(time)["transactions"], "withdrawals": [] });
    // A block that was built and received, and is not the head.
    let bodies = server
        .ask(
            "engine_getPayloadBodiesByHashV1",
            json!([[payload["blockHash"], zero]]),
        )
        .await;
    assert_eq!(bodies, json!([body, null]));
    assert_eq!(
        server
            .ask("engine_getPayloadBodiesByRangeV1", json!(["0x1", "0x1"]))
            .await,
        json!([])
    );
    server
        .ask(
            "engine_forkchoiceUpdatedV3",
            json!([state(&payload["blockHash"]), null]),
        )
        .await;
    let bodies = server
        .ask(
            "engine_getPayloadBodiesByHashV1",
            json!([[payload["blockHash"], zero]]),
        )
        .await;
    assert_eq!(bodies, json!([body, null]));
    assert_eq!(
        server
            .ask("engine_getPayloadBodiesByRangeV1", json!(["0x1", "0x400"]))
            .await,
        json!([body])
    );
    assert_eq!(
        server
            .ask("engine_getPayloadBodiesByRangeV1", json!(["0x2", "0x1"]))
            .await,
        json!([])
    );
}

/// One parameter or member after another that does not belong to the method or to the fork.
#[tokio::test]
async fn a_new_payload_has_the_parts_of_its_version() {
    let server = Server::new();
    let genesis = server
        .ask("eth_getBlockByNumber", json!(["0x0", false]))
        .await;
    let zero = B256::ZERO;
    let state = json!({ "headBlockHash": genesis["hash"], "safeBlockHash": zero, "finalizedBlockHash": zero });
    let attributes = attributes(crate::chain::tests::GENESIS_TIME + 2);
    let id = server
        .ask("engine_forkchoiceUpdatedV3", json!([state, attributes]))
        .await["payloadId"]
        .clone();
    let payload = server.ask("engine_getPayloadV4", json!([id])).await["executionPayload"].clone();
    let without = |name: &str| {
        let mut payload = payload.clone();
        payload.as_object_mut().unwrap().remove(name);
        payload
    };
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
            json!([payload, [], zero]),
            -38005,
            "newPayloadV3 must only be called for cancun payloads",
        ),
        (
            4,
            json!([payload, null, zero, []]),
            -32602,
            "nil versionedHashes post-cancun",
        ),
        (
            4,
            json!([payload, [], null, []]),
            -32602,
            "nil beaconRoot post-cancun",
        ),
        (
            4,
            json!([payload, [], zero, null]),
            -32602,
            "nil executionRequests post-prague",
        ),
        (
            4,
            json!([without("withdrawals"), [], zero, []]),
            -32602,
            "nil withdrawals post-shanghai",
        ),
        (
            4,
            json!([without("excessBlobGas"), [], zero, []]),
            -32602,
            "nil excessBlobGas post-cancun",
        ),
        (
            4,
            json!([without("blobGasUsed"), [], zero, []]),
            -32602,
            "nil blobGasUsed post-cancun",
        ),
        (
            4,
            json!([without("withdrawalsRoot"), [], zero, []]),
            -32602,
            "nil withdrawalsRoot post-isthmus",
        ),
    ] {
        let refusal = server
            .refusal(&format!("engine_newPayloadV{version}"), params)
            .await;
        assert_eq!((refusal.0, refusal.2.as_str()), (code, detail));
    }
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
async fn what_it_can_and_who_it_is() {
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
    // The namespaces that op-geth serves there (node/defaults.go): `miner` is one of the open
    // endpoints'.
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
            // Major, minor and patch are the second half's first three numbers.
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
