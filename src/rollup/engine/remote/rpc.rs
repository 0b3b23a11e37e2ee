//! Calls of the Engine API and of `eth` methods on one execution client: JSON-RPC over HTTP, with a
//! JWT in every request. One attempt per call, bounded in size and time.
//!
//! The version of a method that is called depends on the block's fork (op-node: version selectors).

use crate::{
    clock::unix_now,
    jwt::JwtSecret,
    rollup::{
        engine::error::{EngineCallError, EngineCause},
        http::{HttpFault, HttpTarget, excerpt},
        l2_response::L2ResponseError,
        rpc_calls::{RpcClientMetrics, RpcOutcome},
    },
};
use alloy_primitives::B256;
use alloy_rpc_types_engine::PayloadId;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use op_alloy_rpc_types_engine::{OpExecutionPayload, OpPayloadAttributes};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};
use starling_proto::{
    fork::{Fork, ForkSchedule},
    payload::{Payload, PayloadVersion, WirePayload},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Largest response in bytes: a block in hex, with room for the JSON around it.
const MAX_RESPONSE: usize = 128 << 20;

/// Error codes of the Engine API.
pub(super) const UNKNOWN_PAYLOAD: i64 = -38001;
pub(super) const INVALID_ATTRIBUTES: i64 = -38003;
const UNSUPPORTED_FORK: i64 = -38005;
const NO_METHOD: i64 = -32601;

/// The JSON-RPC connection to one execution client.
pub(super) struct EngineRpc {
    target: HttpTarget,
    secret: JwtSecret,
    timeout: Duration,
    /// Whether the last call reached the client. Changes are logged.
    reachable: AtomicBool,
}

/// The heads to set. A zero hash leaves the safe or the finalized head unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadHashes {
    pub head: B256,
    pub safe: B256,
    pub finalized: B256,
}

/// Status of a payload or of a head, as returned by the Engine API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EngineStatus {
    Valid,
    Invalid {
        latest_valid: Option<B256>,
        reason: String,
    },
    Syncing,
    Accepted,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PayloadStatusResponse {
    status: String,
    latest_valid_hash: Option<B256>,
    validation_error: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ForkchoiceResponse {
    payload_status: PayloadStatusResponse,
    payload_id: Option<PayloadId>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EnvelopeResponse {
    execution_payload: serde_json::Map<String, Value>,
    parent_beacon_block_root: Option<B256>,
}

#[derive(Deserialize)]
struct EngineResponse {
    #[serde(default)]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    error: Option<EngineErrorBody>,
}

#[derive(Deserialize)]
struct EngineErrorBody {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
    #[serde(default)]
    data: Value,
}

impl EngineErrorBody {
    /// Converts a JSON-RPC error, with op-geth's detail from `data.err`.
    fn cause(self) -> EngineCause {
        let detail = self.data.get("err").and_then(Value::as_str);
        let message = match detail {
            Some(detail) => format!("{}: {detail}", self.message),
            None => self.message,
        };
        EngineCause::Refused {
            code: self.code,
            message: excerpt(message),
        }
    }
}

impl PayloadStatusResponse {
    fn status(self) -> Result<EngineStatus, EngineCause> {
        Ok(match self.status.as_str() {
            "VALID" => EngineStatus::Valid,
            "SYNCING" => EngineStatus::Syncing,
            "ACCEPTED" => EngineStatus::Accepted,
            "INVALID" | "INVALID_BLOCK_HASH" => EngineStatus::Invalid {
                latest_valid: self.latest_valid_hash,
                reason: excerpt(self.validation_error.unwrap_or_else(|| self.status.clone())),
            },
            other => {
                return Err(EngineCause::Malformed(excerpt(format!(
                    "the status {other}"
                ))));
            }
        })
    }
}

impl EngineRpc {
    pub(super) fn new(url: &str, secret: JwtSecret, timeout: Duration) -> Result<Self, String> {
        Ok(Self {
            target: HttpTarget::new(url, HeaderMap::new())?,
            secret,
            timeout,
            reachable: AtomicBool::new(true),
        })
    }

    /// Scheme, host and port of the execution client.
    pub(super) fn name(&self) -> &Arc<str> {
        self.target.name()
    }

    pub(super) fn error(&self, method: &'static str, cause: EngineCause) -> EngineCallError {
        EngineCallError {
            endpoint: self.name().clone(),
            method,
            cause,
        }
    }

    /// Executes a payload with `engine_newPayload`.
    pub(super) async fn new_payload(
        &self,
        payload: &Payload,
    ) -> Result<EngineStatus, EngineCallError> {
        let version = payload.version();
        let body = json!(payload.to_execution_payload(version));
        let root = payload.header.parent_beacon_block_root;
        let (method, params) = match version {
            PayloadVersion::V1 | PayloadVersion::V2 => ("engine_newPayloadV2", json!([body])),
            PayloadVersion::V3 => ("engine_newPayloadV3", json!([body, [], root])),
            PayloadVersion::V4 => ("engine_newPayloadV4", json!([body, [], root, []])),
        };
        let answer: PayloadStatusResponse = self.call(method, params).await?;
        answer.status().map_err(|cause| self.error(method, cause))
    }

    /// Sets the heads, and starts to build a block on the head if attributes are given.
    pub(super) async fn forkchoice(
        &self,
        heads: HeadHashes,
        attributes: Option<&OpPayloadAttributes>,
        forks: &ForkSchedule,
    ) -> Result<(EngineStatus, Option<PayloadId>), EngineCallError> {
        let time = attributes.map(|attributes| attributes.payload_attributes.timestamp);
        let method = forkchoice_method(forks, time);
        let state = json!({
            "headBlockHash": heads.head,
            "safeBlockHash": heads.safe,
            "finalizedBlockHash": heads.finalized,
        });
        let answer: ForkchoiceResponse = self.call(method, json!([state, attributes])).await?;
        let status = answer.payload_status.status();
        let status = status.map_err(|cause| self.error(method, cause))?;
        Ok((status, answer.payload_id))
    }

    /// Ends a build and returns its block, whose timestamp is `time`.
    pub(super) async fn get_payload(
        &self,
        id: PayloadId,
        time: u64,
        forks: &ForkSchedule,
    ) -> Result<Payload, EngineCallError> {
        let mut method = payload_method(forks, time);
        let mut answer = self.call(method, json!([id])).await;
        // V5 differs from V4 only in blob sidecars, and L2 has no blobs. Clients without V5 serve
        // Karst blocks through V4.
        if let Err(error) = &answer
            && method == GET_PAYLOAD_V5
            && matches!(error.cause, EngineCause::Refused { code, .. } if [NO_METHOD, UNSUPPORTED_FORK].contains(&code))
        {
            method = "engine_getPayloadV4";
            answer = self.call(method, json!([id])).await;
        }
        payload_of(answer?).map_err(|cause| self.error(method, cause))
    }

    /// Calls `method` once; `params` is a JSON array. Absent and null results are equivalent.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<T, EngineCallError> {
        let answer = self.call_raw(method, params).await?;
        serde_json::from_str(answer.get())
            .map_err(|error| self.error(method, EngineCause::Malformed(excerpt(error))))
    }

    /// Calls `method` once and parses the response with `read`.
    pub(super) async fn call_checked<T>(
        &self,
        method: &'static str,
        params: Value,
        read: impl FnOnce(&RawValue) -> Result<T, L2ResponseError>,
    ) -> Result<T, EngineCallError> {
        let answer = self.call_raw(method, params).await?;
        read(&answer).map_err(|cause| self.error(method, EngineCause::Malformed(cause.to_string())))
    }

    async fn call_raw(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<Box<RawValue>, EngineCallError> {
        let began = Instant::now();
        let metrics = RpcClientMetrics::ENGINE;
        metrics.on_call(method, params.to_string().len());
        let answer = self.exchange(method, params).await;
        metrics.on_end(method, began.elapsed(), outcome_of(&answer));
        let reached = !matches!(
            answer,
            Err(EngineCause::Unreachable(_) | EngineCause::Timeout(_))
        );
        let endpoint = self.name();
        if self.reachable.swap(reached, Ordering::Relaxed) != reached {
            match &answer {
                Err(cause) if !reached => {
                    tracing::warn!(%endpoint, %cause, "the execution client does not answer; it is called again until it does");
                }
                _ => tracing::info!(%endpoint, "the execution client answers again"),
            }
        }
        answer.map_err(|cause| self.error(method, cause))
    }

    async fn exchange(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<Box<RawValue>, EngineCause> {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let mut headers = HeaderMap::new();
        if let Ok(mut token) = HeaderValue::from_str(&self.secret.authorization(unix_now())) {
            token.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, token);
        }
        let body = body.to_string().into_bytes();
        let sent = self
            .target
            .post_with(headers, body, MAX_RESPONSE, self.timeout);
        let reply = sent.await.map_err(|fault| match fault {
            HttpFault::Timeout(_) => EngineCause::Timeout(self.timeout),
            HttpFault::Broken(text) => EngineCause::Unreachable(text),
            fault @ HttpFault::TooLarge(_) => EngineCause::Malformed(fault.to_string()),
        })?;
        let response = serde_json::from_slice::<EngineResponse>(&reply.body);
        match (reply.status, response) {
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
                let text = String::from_utf8_lossy(&reply.body);
                Err(EngineCause::Unauthorized(excerpt(text.trim())))
            }
            (_, Ok(response)) if response.error.is_some() => Err(response
                .error
                .map_or(EngineCause::NoPayloadId, EngineErrorBody::cause)),
            (status, _) if !status.is_success() => Err(EngineCause::Status(status.as_u16())),
            (_, Ok(response)) => Ok(response.result.unwrap_or_else(|| RawValue::NULL.to_owned())),
            (_, Err(error)) => Err(EngineCause::Malformed(excerpt(error))),
        }
    }
}

/// The outcome of a call for metrics.
fn outcome_of(answer: &Result<Box<RawValue>, EngineCause>) -> RpcOutcome {
    match answer {
        Ok(result) => RpcOutcome::Result(result.get().len()),
        Err(EngineCause::Refused { code, .. }) => RpcOutcome::Refused(*code),
        Err(EngineCause::Status(status)) => RpcOutcome::Status(*status),
        Err(_) => RpcOutcome::Failed,
    }
}

const GET_PAYLOAD_V5: &str = "engine_getPayloadV5";

/// The `engine_forkchoiceUpdated` version that starts a block with timestamp `time`; the newest
/// version if no block is started.
fn forkchoice_method(forks: &ForkSchedule, time: Option<u64>) -> &'static str {
    match time {
        Some(time) if !forks.is_active(Fork::Canyon, time) => "engine_forkchoiceUpdatedV1",
        Some(time) if !forks.is_active(Fork::Ecotone, time) => "engine_forkchoiceUpdatedV2",
        _ => "engine_forkchoiceUpdatedV3",
    }
}

fn payload_method(forks: &ForkSchedule, time: u64) -> &'static str {
    let active = |fork| forks.is_active(fork, time);
    match () {
        () if active(Fork::Karst) => GET_PAYLOAD_V5,
        () if active(Fork::Isthmus) => "engine_getPayloadV4",
        () if active(Fork::Ecotone) => "engine_getPayloadV3",
        () => "engine_getPayloadV2",
    }
}

/// Parses an execution payload in the version that matches its fields.
fn execution_payload(
    members: serde_json::Map<String, Value>,
) -> Result<OpExecutionPayload, serde_json::Error> {
    let has = |name: &str| members.contains_key(name);
    let (v2, v3, v4) = (
        has("withdrawals"),
        has("blobGasUsed"),
        has("withdrawalsRoot"),
    );
    let body = Value::Object(members);
    Ok(match () {
        () if v4 && v3 => OpExecutionPayload::V4(serde_json::from_value(body)?),
        () if v3 => OpExecutionPayload::V3(serde_json::from_value(body)?),
        () if v2 => OpExecutionPayload::V2(serde_json::from_value(body)?),
        () => OpExecutionPayload::V1(serde_json::from_value(body)?),
    })
}

/// The block in a response to `engine_getPayload`. Its hash is recomputed and checked.
fn payload_of(answer: EnvelopeResponse) -> Result<Payload, EngineCause> {
    fn malformed(error: impl std::fmt::Display) -> EngineCause {
        EngineCause::Malformed(excerpt(error))
    }
    let mut members = answer.execution_payload;
    // Clients may send the fields of later forks as null.
    members.retain(|_, value| !value.is_null());
    let payload = execution_payload(members).map_err(malformed)?;
    let root = answer.parent_beacon_block_root;
    let wire = WirePayload::from_execution_payload(payload, root).map_err(malformed)?;
    wire.into_payload().map_err(malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollup::http_fake::{Canned, CannedServer};
    use alloy_consensus::{Header, constants::EMPTY_WITHDRAWALS};
    use alloy_eips::eip7685::EMPTY_REQUESTS_HASH;

    #[test]
    fn methods_are_those_of_the_blocks_fork() {
        let forks = [
            Fork::Regolith,
            Fork::Canyon,
            Fork::Ecotone,
            Fork::Isthmus,
            Fork::Karst,
        ];
        let forks = ForkSchedule::from_times(Fork::ALL.into_iter().map(|fork| {
            (
                fork,
                forks
                    .iter()
                    .rposition(|at| *at <= fork)
                    .map(|at| at as u64 * 10),
            )
        }));
        let at = |time| {
            let number = |method: &str| method[method.len() - 2..].to_owned();
            [
                number(forkchoice_method(&forks, Some(time))),
                number(payload_method(&forks, time)),
            ]
        };
        assert_eq!(at(9), ["V1", "V2"]);
        assert_eq!(at(10), ["V2", "V2"]);
        assert_eq!(at(20), ["V3", "V3"]);
        assert_eq!(at(30), ["V3", "V4"]);
        assert_eq!(at(40), ["V3", "V5"]);
        assert_eq!(
            forkchoice_method(&forks, None),
            "engine_forkchoiceUpdatedV3"
        );
    }

    #[tokio::test]
    async fn calls_are_recorded_by_method_and_outcome() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let server = CannedServer::start(|request| {
            let refusal =
                json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -38002, "message": "no"}});
            if request.contains("eth_chainId") {
                Canned::ok(r#"{"jsonrpc":"2.0","id":1,"result":"0x385"}"#)
            } else {
                Canned::ok(refusal)
            }
        });
        let secret = JwtSecret::from_hex(&"5a".repeat(32)).unwrap();
        let server = server.await;
        let url = server.url();
        let rpc = EngineRpc::new(&url, secret, Duration::from_secs(10)).unwrap();
        rpc.call::<String>("eth_chainId", json!([])).await.unwrap();
        let refused = rpc.call::<String>("engine_forkchoiceUpdatedV3", json!([]));
        refused.await.unwrap_err();
        let text = recorder.handle().render();
        for line in [
            "responses_total{rpc=\"engine-api\",method=\"eth_chainId\",error=\"<nil>\"} 1",
            "results_size_total{rpc=\"engine-api\",method=\"eth_chainId\"} 7",
            "responses_total{rpc=\"engine-api\",method=\"engine_forkchoiceUpdatedV3\",error=\"rpc_-38002\"} 1",
        ] {
            let line = format!("op_node_default_rpc_client_{line}");
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }

    #[test]
    fn blocks_of_every_fork_are_read_as_they_are_answered() {
        let base = Header {
            base_fee_per_gas: Some(7),
            extra_data: vec![1].into(),
            ..Header::default()
        };
        let canyon = Header {
            withdrawals_root: Some(EMPTY_WITHDRAWALS),
            ..base.clone()
        };
        let ecotone = Header {
            blob_gas_used: Some(0),
            excess_blob_gas: Some(0),
            parent_beacon_block_root: Some(B256::repeat_byte(3)),
            ..canyon.clone()
        };
        let isthmus = Header {
            withdrawals_root: Some(B256::repeat_byte(4)),
            requests_hash: Some(EMPTY_REQUESTS_HASH),
            ..ecotone.clone()
        };
        for header in [base, canyon, ecotone, isthmus] {
            let block = Payload::sealed(header, vec![]);
            let mut body = json!(block.to_execution_payload(block.version()));
            // geth also sends the fields of later forks, as null.
            for field in [
                "withdrawals",
                "blobGasUsed",
                "excessBlobGas",
                "withdrawalsRoot",
            ] {
                body[field] = body[field].take();
            }
            let answer = json!({
                "executionPayload": body,
                "blockValue": "0x0",
                "parentBeaconBlockRoot": block.header.parent_beacon_block_root,
            });
            let answer = serde_json::from_value(answer).unwrap();
            assert_eq!(payload_of(answer).unwrap(), block);
        }
    }
}
