//! The `engine` namespace: the methods by which a rollup node drives this chain. It is served on
//! the authenticated endpoint only.
//!
//! This file checks the fields of each version of a method, and the fork that the version is for,
//! in op-geth's order of checks. [`backend`] decides how a payload or a fork choice is handled. The
//! endpoint's body limit bounds a request.

pub mod bodies;
mod ethereum;
pub mod superchain;
pub mod types;

use super::{
    api::{
        Method::{Async, Quick, Read},
        Namespace,
    },
    context::RpcContext,
    error::{INVALID_PARAMS, Reply, RpcError, reply},
    params::{Args, Json},
};
use crate::chain::{
    ChainError,
    rows::ExecutedBlock,
    rules::{Active, ChainSpec},
};
use alloy_eips::eip7685::Requests;
use alloy_primitives::{B256, Bytes, U256};
use alloy_rpc_types_engine::{ForkchoiceState, PayloadId, PayloadStatus};
use backend::EngineError;
use ethereum::PayloadExtras;
use futures::{FutureExt, future::BoxFuture};
use serde_json::json;
use starling_proto::payload::{PayloadVersion, decode_transaction};
use std::sync::Arc;
use types::{AttributesJson, ForkchoiceJson, PayloadIdJson, PayloadJson, status_json};

pub use super::engine_backend::{self as backend, EngineContext};

pub const NAMESPACE: Namespace = Namespace {
    name: "engine",
    methods: &[
        (
            "engine_newPayloadV1",
            Async(|context, args| new_payload(context, args, 1)),
        ),
        (
            "engine_newPayloadV2",
            Async(|context, args| new_payload(context, args, 2)),
        ),
        (
            "engine_newPayloadV3",
            Async(|context, args| new_payload(context, args, 3)),
        ),
        (
            "engine_newPayloadV4",
            Async(|context, args| new_payload(context, args, 4)),
        ),
        (
            "engine_forkchoiceUpdatedV1",
            Async(|context, args| forkchoice_updated(context, args, 1)),
        ),
        (
            "engine_forkchoiceUpdatedV2",
            Async(|context, args| forkchoice_updated(context, args, 2)),
        ),
        (
            "engine_forkchoiceUpdatedV3",
            Async(|context, args| forkchoice_updated(context, args, 3)),
        ),
        (
            "engine_getPayloadV1",
            Async(|context, args| get_payload(context, args, 1)),
        ),
        (
            "engine_getPayloadV2",
            Async(|context, args| get_payload(context, args, 2)),
        ),
        (
            "engine_getPayloadV3",
            Async(|context, args| get_payload(context, args, 3)),
        ),
        (
            "engine_getPayloadV4",
            Async(|context, args| get_payload(context, args, 4)),
        ),
        (
            "engine_getPayloadV5",
            Async(|context, args| get_payload(context, args, 5)),
        ),
        ("engine_getPayloadBodiesByHashV1", Read(bodies::by_hash)),
        ("engine_getPayloadBodiesByRangeV1", Read(bodies::by_range)),
        (EXCHANGE_CAPABILITIES, Quick(exchange_capabilities)),
        (
            "engine_exchangeTransitionConfigurationV1",
            Quick(superchain::exchange_transition_configuration),
        ),
        ("engine_getClientVersionV1", Quick(client_version)),
        ("engine_signalSuperchainV1", Quick(superchain::signal)),
    ],
    subscriptions: &[],
};

const EXCHANGE_CAPABILITIES: &str = "engine_exchangeCapabilities";

pub const UNKNOWN_PAYLOAD: i32 = -38001;
pub const INVALID_FORKCHOICE: i32 = -38002;
pub const INVALID_ATTRIBUTES: i32 = -38003;
pub const TOO_LARGE: i32 = -38004;
pub const UNSUPPORTED_FORK: i32 = -38005;

/// The error with this code. Its detail is in `data.err`, as in op-geth.
pub fn error(code: i32, err: impl Into<String>) -> RpcError {
    let message = match code {
        UNKNOWN_PAYLOAD => "Unknown payload",
        INVALID_FORKCHOICE => "Invalid forkchoice state",
        INVALID_ATTRIBUTES => "Invalid payload attributes",
        TOO_LARGE => "Too large request",
        UNSUPPORTED_FORK => "Unsupported fork",
        _ => "Invalid parameters",
    };
    RpcError {
        data: reply(json!({ "err": err.into() })).ok(),
        ..RpcError::new(code, message)
    }
}

fn params(err: &str) -> RpcError {
    error(INVALID_PARAMS, err)
}

impl From<EngineError> for RpcError {
    fn from(failed: EngineError) -> Self {
        match failed {
            EngineError::UnknownPayload => Self::new(UNKNOWN_PAYLOAD, "Unknown payload"),
            EngineError::UnsupportedFork => error(
                UNSUPPORTED_FORK,
                "the payload is of another fork than this method serves",
            ),
            EngineError::Forkchoice(err) => error(INVALID_FORKCHOICE, err),
            EngineError::Attributes(err) => error(INVALID_ATTRIBUTES, err),
            EngineError::Chain(failed) => failed.into(),
        }
    }
}

impl From<ChainError> for RpcError {
    fn from(failed: ChainError) -> Self {
        Self::server(failed.to_string())
    }
}

/// The backend of the Engine API. This never fails on the authenticated endpoint, which is served
/// only with a backend.
fn engine(context: &RpcContext) -> Result<&EngineContext, RpcError> {
    context
        .engine
        .as_ref()
        .ok_or_else(|| RpcError::server("there is no engine"))
}

fn new_payload(context: Arc<RpcContext>, mut args: Args, version: u8) -> BoxFuture<'static, Reply> {
    async move {
        let Json(payload): Json<PayloadJson> = args.required()?;
        let blobs: Option<Json<Vec<B256>>> = if version >= 3 { args.optional()? } else { None };
        let beacon_root: Option<B256> = if version >= 3 { args.optional()? } else { None };
        let requests: Option<Json<Vec<Bytes>>> = if version >= 4 { args.optional()? } else { None };
        args.at_most(if version < 3 { 1 } else { version.into() })?;
        check_payload(&context.chain.spec, &payload, version)?;
        let mut extras = PayloadExtras::default();
        if version >= 3 {
            let blobs = blobs
                .ok_or_else(|| params("nil versionedHashes post-cancun"))?
                .0;
            if beacon_root.is_none() {
                return Err(params("nil beaconRoot post-cancun"));
            }
            if version >= 4 && requests.is_none() {
                return Err(params("nil executionRequests post-prague"));
            }
            payload.check_fork(&context.chain.spec, version)?;
            extras = PayloadExtras {
                blob_hashes: Some(blobs),
                beacon_root,
                requests: requests.map(|Json(requests)| requests),
            };
        }
        let optimism = context.chain.spec.is_optimism();
        if let Some(reason) = foreign(&extras).filter(|_| optimism) {
            return reply(status_json(&types::refused(reason)));
        }
        // The hashes of all transactions are computed here: do not block a worker of the runtime.
        let rebuilt = tokio::task::spawn_blocking(move || {
            if optimism {
                payload.into_payload(version, beacon_root)
            } else {
                ethereum::into_payload(payload, extras)
            }
        });
        let status = match rebuilt
            .await
            .map_err(|_| super::error::crashed("engine_newPayload"))?
        {
            Ok(payload) => {
                engine(&context)?
                    .engine
                    .new_payload(Arc::new(payload))
                    .await?
            }
            Err(reason) => types::refused(&reason),
        };
        reply(status_json(&status))
    }
    .boxed()
}

/// A sentence about a part that no block of an OP chain has; `None` if the payload has no such
/// part.
fn foreign(extras: &PayloadExtras) -> Option<&'static str> {
    let blobs = extras.blob_hashes.as_ref();
    let requests = extras.requests.as_ref();
    if blobs.is_some_and(|blobs| !blobs.is_empty()) {
        Some("there are no blobs in a block of this chain")
    } else if requests.is_some_and(|requests| !requests.is_empty()) {
        Some("there are no execution requests in a block of this chain")
    } else {
        None
    }
}

/// Checks which members a payload must have in this version of the method, as in geth's
/// `eth/catalyst/api.go`.
fn check_payload(spec: &ChainSpec, payload: &PayloadJson, version: u8) -> Result<(), RpcError> {
    let active = spec.at(payload.timestamp());
    match version {
        1 if payload.withdrawals.is_some() => Err(params("withdrawals not supported in V1")),
        2 if active.cancun => Err(params("can't use newPayloadV2 post-cancun")),
        2 if active.shanghai && payload.withdrawals.is_none() => {
            Err(params("nil withdrawals post-shanghai"))
        }
        2 if !active.shanghai && payload.withdrawals.is_some() => {
            Err(params("non-nil withdrawals pre-shanghai"))
        }
        2 if payload.excess_blob_gas.is_some() => Err(params("non-nil excessBlobGas pre-cancun")),
        2 if payload.blob_gas_used.is_some() => Err(params("non-nil blobGasUsed pre-cancun")),
        3.. if payload.withdrawals.is_none() => Err(params("nil withdrawals post-shanghai")),
        3.. if payload.excess_blob_gas.is_none() => Err(params("nil excessBlobGas post-cancun")),
        3.. if payload.blob_gas_used.is_none() => Err(params("nil blobGasUsed post-cancun")),
        4.. if spec.is_optimism() && payload.withdrawals_root.is_none() => {
            Err(params("nil withdrawalsRoot post-isthmus"))
        }
        _ => Ok(()),
    }
}

fn forkchoice_updated(
    context: Arc<RpcContext>,
    mut args: Args,
    version: u8,
) -> BoxFuture<'static, Reply> {
    async move {
        let Json(state): Json<ForkchoiceJson> = args.required()?;
        let attributes: Option<Json<AttributesJson>> = args.optional()?;
        args.at_most(2)?;
        let spec = context.chain.spec.clone();
        let attributes = attributes
            .map(|Json(attributes)| check_attributes(&spec, attributes, version))
            .transpose()?;
        let state = ForkchoiceState::from(state);
        let (attributes, problem) = match attributes {
            Some(Ok(attributes)) => (Some(attributes), None),
            Some(Err(problem)) => (None, Some(problem)),
            None => (None, None),
        };
        let (status, id) = engine(&context)?
            .engine
            .forkchoice(state, attributes, version)
            .await?;
        // Wrong attribute values are reported after the heads have moved, as in op-geth.
        match problem {
            Some(problem) if status.is_valid() => Err(error(INVALID_ATTRIBUTES, problem)),
            _ => reply(forkchoice_json(&status, id)),
        }
    }
    .boxed()
}

fn forkchoice_json(status: &PayloadStatus, id: Option<PayloadId>) -> serde_json::Value {
    json!({ "payloadStatus": status_json(status), "payloadId": id })
}

type Attributes = op_alloy_rpc_types_engine::OpPayloadAttributes;

/// Checks which members the attributes must have in this version of the method. The inner error is
/// about wrong values, and is reported after the heads have moved.
fn check_attributes(
    spec: &ChainSpec,
    json: AttributesJson,
    version: u8,
) -> Result<Result<Attributes, String>, RpcError> {
    let active = spec.at(json.timestamp());
    let wrong = |err: &str| Err(error(INVALID_ATTRIBUTES, err));
    let fork = |err: &str| Err(error(UNSUPPORTED_FORK, err));
    let (withdrawals, beacon_root) = (
        json.withdrawals.is_some(),
        json.parent_beacon_block_root.is_some(),
    );
    match version {
        1 if withdrawals || beacon_root => {
            return Err(params("withdrawals and beacon root not supported in V1"));
        }
        1 if active.shanghai => return Err(params("fcuV1 called post-shanghai")),
        2 if beacon_root => return wrong("unexpected beacon root"),
        2 if withdrawals && !active.shanghai => return wrong("withdrawals before shanghai"),
        2 if !withdrawals && active.shanghai && !active.cancun => {
            return wrong("missing withdrawals");
        }
        2 if active.cancun => {
            return fork("fcuV2 must only be called with paris and shanghai payloads");
        }
        3 if !withdrawals => return wrong("missing withdrawals"),
        3 if !beacon_root => return wrong("missing beacon root"),
        3 if !active.cancun => {
            return fork("fcuV3 must only be called for cancun or later payloads");
        }
        _ => {}
    }
    let attributes = match json.into_attributes() {
        Ok(attributes) => attributes,
        Err(problem) => return Ok(Err(problem)),
    };
    for (index, raw) in attributes.transactions.iter().flatten().enumerate() {
        if let Err(cause) = decode_transaction(raw) {
            return Ok(Err(format!("transaction {index} is not valid: {cause}")));
        }
    }
    Ok(Ok(attributes))
}

/// Whether `engine_getPayloadV<version>` serves a block under these rules. V4 has no upper bound:
/// all rollup nodes call it from Isthmus on, and older ones still call it after Karst, where newer
/// ones call V5.
fn serves(version: u8, active: &Active) -> bool {
    match version {
        1 => !active.shanghai,
        2 => !active.cancun,
        3 => active.cancun && !active.prague,
        4 => active.prague,
        _ => active.osaka,
    }
}

fn get_payload(context: Arc<RpcContext>, mut args: Args, version: u8) -> BoxFuture<'static, Reply> {
    async move {
        let PayloadIdJson(id) = args.required()?;
        args.at_most(1)?;
        let block = engine(&context)?
            .engine
            .payload(id, |active| serves(version, active))
            .await?;
        if version == 1 {
            return reply(block.payload.to_execution_payload(block.payload.version()));
        }
        let optimism = context.chain.spec.is_optimism();
        let mut envelope = payload_envelope(&block, &Requests::default(), optimism);
        if let Some(members) = envelope.as_object_mut() {
            if version < 3 {
                members
                    .retain(|name, _| ["executionPayload", "blockValue"].contains(&name.as_str()));
            } else {
                let root = block.payload.header.parent_beacon_block_root;
                members.insert("parentBeaconBlockRoot".to_owned(), json!(root));
            }
            if version < 4 {
                members.remove("executionRequests");
            }
        }
        reply(envelope)
    }
    .boxed()
}

/// A block in the envelope of the newest version of `engine_getPayload`.
pub(super) fn payload_envelope(
    block: &ExecutedBlock,
    requests: &Requests,
    optimism: bool,
) -> serde_json::Value {
    let payload = &block.payload;
    // On Ethereum, the payload has the list of withdrawals but not its root.
    let version = if optimism {
        payload.version()
    } else {
        payload.version().min(PayloadVersion::V3)
    };
    json!({
        "executionPayload": payload.to_execution_payload(version),
        "blockValue": types::block_value(block).unwrap_or(U256::ZERO),
        "blobsBundle": { "commitments": [], "proofs": [], "blobs": [] },
        "shouldOverrideBuilder": false,
        "executionRequests": requests,
    })
}

/// `engine_exchangeCapabilities`: all methods of the namespace except this one.
fn exchange_capabilities(_: &RpcContext, mut args: Args) -> Reply {
    let Json(_): Json<Vec<String>> = args.required()?;
    args.at_most(1)?;
    reply(
        NAMESPACE
            .methods
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| *name != EXCHANGE_CAPABILITIES)
            .collect::<Vec<_>>(),
    )
}

fn client_version(_: &RpcContext, mut args: Args) -> Reply {
    let _: Option<Json<serde_json::Value>> = args.optional()?;
    args.at_most(1)?;
    reply(json!([{
        "code": "SL",
        "name": "starling",
        "version": concat!("v", env!("CARGO_PKG_VERSION")),
        "commit": format!("0x{}", crate::version::COMMIT),
    }]))
}

#[cfg(test)]
mod tests;
