//! Parses and checks the responses of a rollup node and of an execution client. Pure.

use crate::rollup::{l1::RpcCause, l2_response, output::RollupOutput};
use alloy_primitives::B256;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use starling_proto::{
    l1info::L2BlockRef,
    payload::{BlockId, Payload},
};

/// An L1 block as reported by a rollup node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L1Ref {
    pub id: BlockId,
    pub parent_hash: B256,
    /// Block time in Unix seconds.
    pub time: u64,
}

/// Heads as reported by a rollup node. A head that the node does not know is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceHeads {
    /// The newest L1 block from which all data has been derived.
    pub current_l1: Option<L1Ref>,
    pub head_l1: Option<L1Ref>,
    pub safe_l1: Option<L1Ref>,
    pub finalized_l1: Option<L1Ref>,
    pub unsafe_l2: Option<L2BlockRef>,
    pub safe_l2: Option<L2BlockRef>,
    /// The safe head derived from this chain's own data. Without interop a node has only one safe
    /// head.
    pub local_safe_l2: Option<L2BlockRef>,
    pub finalized_l2: Option<L2BlockRef>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct L1RefResponse {
    hash: B256,
    number: u64,
    parent_hash: B256,
    timestamp: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct L2RefResponse {
    hash: B256,
    number: u64,
    parent_hash: B256,
    timestamp: u64,
    #[serde(rename = "l1origin")]
    l1_origin: BlockId,
    sequence_number: u64,
}

#[derive(Deserialize)]
struct SyncStatusResponse {
    current_l1: L1RefResponse,
    head_l1: L1RefResponse,
    safe_l1: L1RefResponse,
    finalized_l1: L1RefResponse,
    unsafe_l2: L2RefResponse,
    safe_l2: L2RefResponse,
    /// Absent from responses of op-node versions without interop.
    local_safe_l2: Option<L2RefResponse>,
    finalized_l2: L2RefResponse,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OutputResponse {
    version: B256,
    output_root: B256,
    block_ref: L2RefResponse,
    withdrawal_storage_root: B256,
    state_root: B256,
}

impl L1RefResponse {
    /// The block; `None` for a zero hash, which stands for an unknown block.
    fn known(self) -> Option<L1Ref> {
        (!self.hash.is_zero()).then_some(L1Ref {
            id: BlockId {
                hash: self.hash,
                number: self.number,
            },
            parent_hash: self.parent_hash,
            time: self.timestamp,
        })
    }
}

impl From<L2RefResponse> for L2BlockRef {
    fn from(response: L2RefResponse) -> Self {
        Self {
            id: BlockId {
                hash: response.hash,
                number: response.number,
            },
            parent_hash: response.parent_hash,
            time: response.timestamp,
            origin: response.l1_origin,
            sequence_number: response.sequence_number,
        }
    }
}

impl L2RefResponse {
    fn known(self) -> Option<L2BlockRef> {
        (!self.hash.is_zero()).then(|| self.into())
    }
}

fn read<T: DeserializeOwned>(json: &RawValue) -> Result<T, RpcCause> {
    serde_json::from_str(json.get()).map_err(RpcCause::malformed)
}

/// Parses the response to `optimism_syncStatus`.
pub fn heads(response: &RawValue) -> Result<SourceHeads, RpcCause> {
    let status: SyncStatusResponse = read(response)?;
    let safe_l2 = status.safe_l2.known();
    Ok(SourceHeads {
        current_l1: status.current_l1.known(),
        head_l1: status.head_l1.known(),
        safe_l1: status.safe_l1.known(),
        finalized_l1: status.finalized_l1.known(),
        unsafe_l2: status.unsafe_l2.known(),
        safe_l2,
        local_safe_l2: status.local_safe_l2.map_or(safe_l2, L2RefResponse::known),
        finalized_l2: status.finalized_l2.known(),
    })
}

/// Parses the response to `optimism_outputAtBlock(number)`.
pub fn output(response: &RawValue, number: u64) -> Result<RollupOutput, RpcCause> {
    let response: OutputResponse = read(response)?;
    if !response.version.is_zero() {
        return Err(untrue(format!(
            "unsupported l2 output version: {}",
            response.version
        )));
    }
    check_number(number, response.block_ref.number)?;
    let (state, withdrawals) = (response.state_root, response.withdrawal_storage_root);
    let output = RollupOutput::new(response.block_ref.into(), state, withdrawals);
    if output.root != response.output_root {
        return Err(untrue(format!(
            "the output root of block {number} is {}, its parts give {}",
            response.output_root, output.root
        )));
    }
    Ok(output)
}

/// Parses the response to `eth_getBlockByNumber(number, false)`; `None` if it is null.
pub fn block_id(response: &RawValue, number: u64) -> Result<Option<BlockId>, RpcCause> {
    let Some(found) = l2_response::header(response)? else {
        return Ok(None);
    };
    check_number(number, found.header.number)?;
    let hash = found.hash;
    Ok(Some(BlockId { hash, number }))
}

/// Parses the response to `eth_getBlockByNumber(number, true)`; `None` if it is null. The block's
/// hash and transactions are checked against its header.
pub fn block(response: &RawValue, number: u64) -> Result<Option<Payload>, RpcCause> {
    let found = l2_response::block(response)?;
    if let Some(block) = &found {
        check_number(number, block.number())?;
    }
    Ok(found)
}

fn check_number(requested: u64, got: u64) -> Result<(), RpcCause> {
    if requested == got {
        Ok(())
    } else {
        Err(untrue(format!("requested block {requested}, got {got}")))
    }
}

fn untrue(text: String) -> RpcCause {
    RpcCause::Untrue(text)
}
