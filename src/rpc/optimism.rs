//! The `optimism` namespace: the rollup node's heads, configuration and outputs, in op-node's
//! shapes.
//!
//! Responses come from the driver's published status and from the core; no method waits for
//! derivation.

use super::{
    api::{Method, Namespace},
    context::RollupContext,
    error::{Reply, RpcError, reply},
    params::{Args, Quantity},
};
use crate::{
    rollup::{
        handle::RollupHandle,
        l1::L1Block,
        output::{self, OutputError},
        status::RollupStatus,
    },
    version::VERSION,
};
use alloy_primitives::B256;
use futures::{FutureExt, future::BoxFuture};
use serde::Serialize;
use serde_json::value::RawValue;
use starling_proto::{l1info::L2BlockRef, payload::BlockId};
use std::{fmt::Display, sync::Arc};

pub const NAMESPACE: Namespace = Namespace {
    name: "optimism",
    methods: &[
        (
            "optimism_outputAtBlock",
            Method::RollupAsync(output_at_block),
        ),
        ("optimism_safeHeadAtL1Block", Method::RollupAsync(safe_head)),
        ("optimism_syncStatus", Method::RollupAsync(sync_status)),
        ("optimism_rollupConfig", Method::Rollup(rollup_config)),
        ("optimism_version", Method::Plain(version)),
        ("optimism_dependencySet", Method::Plain(dependency_set)),
    ],
    subscriptions: &[],
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct L1RefJson {
    hash: B256,
    number: u64,
    parent_hash: B256,
    timestamp: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct L2RefJson {
    hash: B256,
    number: u64,
    parent_hash: B256,
    timestamp: u64,
    #[serde(rename = "l1origin")]
    l1_origin: BlockId,
    sequence_number: u64,
}

/// The response of `optimism_syncStatus`. Heads that are not known yet are all zeros, not null.
#[derive(Serialize)]
struct SyncStatusJson {
    current_l1: L1RefJson,
    current_l1_finalized: L1RefJson,
    head_l1: L1RefJson,
    safe_l1: L1RefJson,
    finalized_l1: L1RefJson,
    unsafe_l2: L2RefJson,
    safe_l2: L2RefJson,
    finalized_l2: L2RefJson,
    pending_safe_l2: L2RefJson,
    local_safe_l2: L2RefJson,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OutputJson {
    version: B256,
    output_root: B256,
    block_ref: L2RefJson,
    withdrawal_storage_root: B256,
    state_root: B256,
    sync_status: SyncStatusJson,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SafeHeadJson {
    l1_block: BlockId,
    safe_head: BlockId,
}

fn l1_ref(block: Option<L1Block>) -> L1RefJson {
    let block = block.unwrap_or_default();
    L1RefJson {
        hash: block.hash,
        number: block.number,
        parent_hash: block.parent_hash,
        timestamp: block.time,
    }
}

fn l2_ref(block: Option<L2BlockRef>) -> L2RefJson {
    let zero = BlockId::default();
    let block = block.unwrap_or(L2BlockRef {
        id: zero,
        parent_hash: B256::ZERO,
        time: 0,
        origin: zero,
        sequence_number: 0,
    });
    L2RefJson {
        hash: block.id.hash,
        number: block.id.number,
        parent_hash: block.parent_hash,
        timestamp: block.time,
        l1_origin: block.origin,
        sequence_number: block.sequence_number,
    }
}

impl SyncStatusJson {
    /// Combines the driver's heads with the unsafe head, which comes from the core.
    fn new(status: &RollupStatus, unsafe_l2: L2BlockRef) -> Self {
        Self {
            current_l1: l1_ref(status.current_l1),
            current_l1_finalized: l1_ref(status.finalized_l1),
            head_l1: l1_ref(status.head_l1),
            safe_l1: l1_ref(status.safe_l1),
            finalized_l1: l1_ref(status.finalized_l1),
            unsafe_l2: l2_ref(Some(unsafe_l2)),
            safe_l2: l2_ref(status.safe_l2),
            finalized_l2: l2_ref(status.finalized_l2),
            pending_safe_l2: l2_ref(status.pending_safe_l2),
            local_safe_l2: l2_ref(status.local_safe_l2),
        }
    }
}

/// The error of methods about the derived chain on a node that derives no chain.
pub(super) const NO_DERIVATION: &str = "this node derives no chain: run `starling node` or `starling rollup`; if this is one, its log says at the start what it lacks";

pub(super) fn rollup(context: &RollupContext) -> Result<&RollupHandle, RpcError> {
    let missing = || RpcError::server(NO_DERIVATION);
    context.rollup.as_ref().ok_or_else(missing)
}

impl From<OutputError> for RpcError {
    fn from(error: OutputError) -> Self {
        Self::server(error.to_string())
    }
}

/// Puts the step that failed before its error, as op-node does.
pub(super) fn within<E: Display>(step: &str) -> impl FnOnce(E) -> RpcError + '_ {
    move |error| RpcError::server(format!("{step}: {error}"))
}

/// Reads the driver's heads and the unsafe head.
async fn status(rollup: &RollupHandle) -> Result<SyncStatusJson, RpcError> {
    let status = rollup.driver.status();
    let unsafe_l2 = output::unsafe_l2(rollup, &status).await?;
    Ok(SyncStatusJson::new(&status, unsafe_l2))
}

/// `optimism_syncStatus()`: the heads of L1 and L2.
fn sync_status(context: Arc<RollupContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        reply(status(rollup(&context)?).await?)
    }
    .boxed()
}

/// `optimism_outputAtBlock(number)`: the output root of a canonical block, and the values that it
/// is computed from.
fn output_at_block(context: Arc<RollupContext>, mut args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let Quantity(number) = args.required()?;
        args.at_most(1)?;
        let rollup = rollup(&context)?;
        // Reading the output may read the state of the local core, which needs a permit.
        let _permit = context.read_permit().await?;
        let block = output::block_at(rollup, number).await;
        let block = block.map_err(within("failed to get L2 block ref with sync status"))?;
        let BlockId { hash, number } = block.reference.id;
        let output = output::of_block(rollup, &block).await;
        let place = format!("failed to get L2 output at block {hash}:{number}");
        let output = output.map_err(within(&place))?;
        reply(OutputJson {
            version: B256::ZERO,
            output_root: output.root,
            block_ref: l2_ref(Some(output.block)),
            withdrawal_storage_root: output.withdrawal_root,
            state_root: output.state_root,
            sync_status: status(rollup).await?,
        })
    }
    .boxed()
}

/// `optimism_safeHeadAtL1Block(number)`: the safe head after derivation had processed this L1
/// block, and the L1 block that the safe head was derived from.
fn safe_head(context: Arc<RollupContext>, mut args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let Quantity(number) = args.required()?;
        args.at_most(1)?;
        let disabled = || RpcError::server("safe head database not enabled");
        let records = rollup(&context)?.safe_db.clone().ok_or_else(disabled)?;
        let read = move || {
            let found = records.at_l1(number);
            found.map_err(|error| RpcError::server(error.to_string()))
        };
        let found = context.read("optimism_safeHeadAtL1Block", read).await?;
        let safe = found.ok_or_else(|| RpcError::server("not found"))?;
        reply(SafeHeadJson {
            l1_block: safe.derived_from,
            safe_head: safe.l2,
        })
    }
    .boxed()
}

/// `optimism_rollupConfig()`: the fields of rollup.json.
fn rollup_config(context: &RollupContext, args: Args) -> Reply {
    args.at_most(0)?;
    RawValue::from_string(rollup(context)?.config.to_json())
        .map_err(|error| RpcError::server(error.to_string()))
}

/// `optimism_version()`: the version of the node.
fn version(args: Args) -> Reply {
    args.at_most(0)?;
    reply(VERSION)
}

/// `optimism_dependencySet()`: an error, because a chain without interop has no dependency set.
fn dependency_set(args: Args) -> Reply {
    args.at_most(0)?;
    Err(RpcError::server("not found"))
}
