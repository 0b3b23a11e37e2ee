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

#[test]
fn payload_ids_are_op_geths() {
    let Some(file) = fixture("engine/payload-id.json") else {
        return;
    };
    for vector in file["vectors"].as_array().unwrap() {
        let attributes = read::<AttributesJson>(&vector["attributes"])
            .into_attributes()
            .unwrap();
        let id = payload_id(
            read(&vector["parent_hash"]),
            &attributes,
            read(&vector["version"]),
        );
        assert_eq!(json!(id), vector["expected_payload_id"]);
        // Without withdrawals it is the id of an empty list.
        let mut absent = attributes.clone();
        absent.payload_attributes.withdrawals = None;
        assert_eq!(payload_id(read(&vector["parent_hash"]), &absent, 3), id);
        assert_eq!(payload_id(read(&vector["parent_hash"]), &absent, 1).0[0], 1);
    }
}

#[test]
fn attributes_of_a_real_chain_are_read() {
    let Some(file) = fixture("engine/payload-attributes-real.json") else {
        return;
    };
    let attributes = read::<AttributesJson>(&file["attributes"])
        .into_attributes()
        .unwrap();
    assert_eq!(
        serde_json::to_value(&attributes).unwrap(),
        file["attributes"]
    );
    let mut json = file["attributes"].clone();
    for (fee, want) in [(json!(257), 257), (json!("0x101"), 257), (json!(0), 0)] {
        json["minBaseFee"] = fee;
        assert_eq!(
            read::<AttributesJson>(&json)
                .into_attributes()
                .unwrap()
                .min_base_fee,
            Some(want)
        );
    }
    json["eip1559Params"] = json!("0x");
    assert_eq!(
        read::<AttributesJson>(&json)
            .into_attributes()
            .unwrap()
            .eip_1559_params,
        None
    );
    json["eip1559Params"] = json!("0x0102");
    assert!(read::<AttributesJson>(&json).into_attributes().is_err());
}

#[test]
fn extra_data_is_that_of_the_vectors() {
    use crate::chain::rules::{Eip1559Constants, ExtraData, Rules};
    use starling_proto::system_config::Eip1559Params;
    let Some(file) = fixture("engine/extra-data.json") else {
        return;
    };
    for vector in file["vectors"].as_array().unwrap() {
        // Those without extra data are about attributes, which the builder checks: see its tests.
        let Some(want) = vector["extraData"].as_str() else {
            continue;
        };
        let fork = if vector["fork"] == "jovian" {
            Fork::Jovian
        } else {
            Fork::Holocene
        };
        let [denominator, elasticity]: [u64; 2] = read(&vector["default"]);
        let spec = ChainSpec {
            chain_id: 1,
            genesis_hash: B256::ZERO,
            genesis_time: 0,
            rules: Rules::Optimism {
                forks: ForkSchedule::from_genesis(fork),
                eip1559: Eip1559Constants {
                    elasticity,
                    denominator,
                    denominator_canyon: denominator,
                },
            },
        };
        let params = Eip1559Params::decode(read(&vector["eip1559Params"]));
        let minimum = vector["minBaseFee"].as_u64().unwrap_or(0);
        assert_eq!(
            ExtraData::encode(&spec, 5, params, minimum)
                .unwrap()
                .to_string(),
            want
        );
    }
}

/// Payloads as other implementations write them: each is read in the version it has, a faulty one
/// is refused there.
#[test]
fn payloads_are_read_by_version() {
    let Some(file) = fixture("engine/payload-json/payload_mod.rs.json") else {
        return;
    };
    let jovian = ChainSpec {
        ..crate::chain::evm::tests::op(Fork::Jovian)
    };
    let specs = [Fork::Regolith, Fork::Canyon, Fork::Holocene, Fork::Jovian]
        .map(crate::chain::evm::tests::op);
    for literal in file["literals"].as_array().unwrap() {
        let name = literal["test"].as_str().unwrap();
        let payload: PayloadJson = read(&literal["json"]);
        let accepted: Vec<u8> = (2..=4)
            .filter(|version| {
                let spec = &specs[usize::from(*version) - 1];
                check_payload(spec, &payload, *version).is_ok()
                    && payload.check_fork(spec, *version).is_ok()
            })
            .collect();
        let want: &[u8] = match name {
            "serde_payload_input_enum_v4" => &[3, 4],
            "serde_payload_input_enum_v3" => &[3],
            "serde_payload_input_enum_v2" => &[2],
            _ => &[],
        };
        assert_eq!(accepted, want, "{name}");
        assert!(check_payload(&jovian, &payload, 2).is_err());
    }
    let Some(file) = fixture("engine/payload-json/payload_v3.rs.json") else {
        return;
    };
    let envelope = &file["literals"][0]["json"];
    let payload: PayloadJson = read(&envelope["executionPayload"]);
    assert!(check_payload(&specs[2], &payload, 3).is_ok());
}

/// Blocks of real chains, put into the form of a payload: the hash comes out.
#[test]
fn real_blocks_keep_their_hash() {
    let names = ["bedrock_raw_block", "op_block_json", "temp_block_json"];
    for name in names {
        let Some(file) = fixture(&format!("engine/l2-blocks/{name}.txt")) else {
            return;
        };
        let block = file
            .get("result")
            .or(file.get("test_block_data"))
            .unwrap_or(&file);
        let mut payload = block.clone();
        for (to, from) in [
            ("feeRecipient", "miner"),
            ("prevRandao", "mixHash"),
            ("blockNumber", "number"),
            ("blockHash", "hash"),
        ] {
            payload[to] = block[from].clone();
        }
        let raw = |tx: &Value| json!(Bytes::from(read::<OpTxEnvelope>(tx).encoded_2718()));
        payload["transactions"] = block["transactions"]
            .as_array()
            .unwrap()
            .iter()
            .map(raw)
            .collect();
        let beacon_root: Option<B256> = block.get("parentBeaconBlockRoot").map(read);
        let version = if beacon_root.is_some() { 3 } else { 1 };
        let hash: B256 = read(&block["hash"]);
        assert_eq!(
            read::<PayloadJson>(&payload)
                .into_payload(version, beacon_root)
                .unwrap()
                .hash,
            hash,
            "{name}"
        );
        payload["gasUsed"] = json!("0x1");
        assert!(
            read::<PayloadJson>(&payload)
                .into_payload(version, beacon_root)
                .unwrap_err()
                .contains("block hash")
        );
    }
}

#[test]
fn each_get_payload_serves_its_forks() {
    let served = |fork| {
        (1..=5)
            .filter(|version| serves(*version, &crate::chain::evm::tests::op(fork).at(5)))
            .collect::<Vec<u8>>()
    };
    assert_eq!(served(Fork::Regolith), [1, 2]);
    assert_eq!(served(Fork::Canyon), [2]);
    assert_eq!(served(Fork::Ecotone), [3]);
    assert_eq!(served(Fork::Holocene), [3]);
    assert_eq!(served(Fork::Isthmus), [4]);
    assert_eq!(served(Fork::Jovian), [4]);
    assert_eq!(served(Fork::Karst), [4, 5]);
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
async fn refusals_have_the_codes_of_the_engine_api() {
    let server = Server::new();
    let hash = server
        .ask("eth_getBlockByNumber", json!(["0x0", false]))
        .await["hash"]
        .clone();
    let zero = B256::ZERO;
    let state = json!({ "headBlockHash": hash, "safeBlockHash": zero, "finalizedBlockHash": zero });
    let time = crate::chain::tests::GENESIS_TIME + 2;
    let without = |name: &str| {
        let mut attributes = attributes(time);
        attributes.as_object_mut().unwrap().remove(name);
        attributes
    };
    let with = |name: &str, value: Value| {
        let mut attributes = attributes(time);
        attributes[name] = value;
        attributes
    };
    let invalid = "Invalid payload attributes";
    for (version, attributes, code, message, detail) in [
        (
            1,
            attributes(time),
            -32602,
            "Invalid parameters",
            "withdrawals and beacon root not supported in V1",
        ),
        (
            2,
            attributes(time),
            -38003,
            invalid,
            "unexpected beacon root",
        ),
        (
            2,
            without("parentBeaconBlockRoot"),
            -38005,
            "Unsupported fork",
            "fcuV2 must",
        ),
        (
            3,
            without("withdrawals"),
            -38003,
            invalid,
            "missing withdrawals",
        ),
        (
            3,
            without("parentBeaconBlockRoot"),
            -38003,
            invalid,
            "missing beacon root",
        ),
        (
            3,
            without("gasLimit"),
            -38003,
            invalid,
            "gasLimit is missing",
        ),
        (
            3,
            without("eip1559Params"),
            -38003,
            invalid,
            "eip1559Params is missing",
        ),
        (
            3,
            without("minBaseFee"),
            -38003,
            invalid,
            "minBaseFee is missing",
        ),
        (
            3,
            with("eip1559Params", json!("0x0000000000000001")),
            -38003,
            invalid,
            "denominator",
        ),
        (
            3,
            with("eip1559Params", json!("0x00")),
            -38003,
            invalid,
            "want 8",
        ),
        (
            3,
            with("transactions", json!([])),
            -38003,
            invalid,
            "missing L1 attributes deposit transaction",
        ),
        (
            3,
            with("transactions", json!(["0x02c0"])),
            -38003,
            invalid,
            "transaction 0 is not valid",
        ),
        (
            3,
            with("transactions", json!(["0x7d"])),
            -38003,
            invalid,
            "transaction 0 is not valid",
        ),
        (
            3,
            with("timestamp", json!("0x1")),
            -38003,
            invalid,
            "timestamp",
        ),
    ] {
        let method = format!("engine_forkchoiceUpdatedV{version}");
        let refusal = server.refusal(&method, json!([state, attributes])).await;
        assert_eq!(
            (refusal.0, refusal.1.as_str()),
            (code, message),
            "{refusal:?}"
        );
        assert!(refusal.2.contains(detail), "{refusal:?}");
    }
    let lost = json!({ "headBlockHash": hash, "safeBlockHash": B256::repeat_byte(1), "finalizedBlockHash": zero });
    let refusal = server
        .refusal("engine_forkchoiceUpdatedV3", json!([lost]))
        .await;
    assert_eq!(
        refusal,
        (
            -38002,
            "Invalid forkchoice state".into(),
            "safe block not available in database".into()
        )
    );
    let none = json!({ "headBlockHash": zero, "safeBlockHash": zero, "finalizedBlockHash": zero });
    let answer = server
        .ask("engine_forkchoiceUpdatedV3", json!([none]))
        .await;
    assert_eq!(
        answer["payloadStatus"],
        json!({ "status": "INVALID", "latestValidHash": null, "validationError": null })
    );

    let hashes = vec![zero; 1025];
    assert_eq!(
        server
            .refusal("engine_getPayloadBodiesByHashV1", json!([hashes]))
            .await
            .0,
        -38004
    );
    assert_eq!(
        server
            .refusal("engine_getPayloadBodiesByRangeV1", json!(["0x1", "0x401"]))
            .await
            .0,
        -38004
    );
    for range in [json!(["0x0", "0x1"]), json!(["0x1", "0x0"]), json!(["0x1"])] {
        assert_eq!(
            server
                .refusal("engine_getPayloadBodiesByRangeV1", range)
                .await
                .0,
            -32602
        );
    }
}

#[tokio::test]
async fn heads_move_before_attributes_are_refused() {
    for (name, wrong) in [
        ("eip1559Params", json!("0x00")),
        ("transactions", json!(["0x7d"])),
        ("timestamp", json!("0x1")),
    ] {
        let server = Server::new();
        let hash = server
            .ask("eth_getBlockByNumber", json!(["0x0", false]))
            .await["hash"]
            .clone();
        let state = json!({ "headBlockHash": hash, "safeBlockHash": hash, "finalizedBlockHash": B256::ZERO });
        let mut attributes = attributes(crate::chain::tests::GENESIS_TIME + 2);
        attributes[name] = wrong;
        assert_eq!(
            server
                .refusal("engine_forkchoiceUpdatedV3", json!([state, attributes]))
                .await
                .0,
            -38003
        );
        assert_eq!(
            server
                .ask("eth_getBlockByNumber", json!(["safe", false]))
                .await["hash"],
            hash,
            "{name}"
        );
    }
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
