//! Builds responses from the chain, in the JSON that Ethereum's Beacon API defines
//! (github.com/ethereum/beacon-APIs).

use crate::{
    chain::{
        Chain, ChainError,
        blobs::{RETENTION, TxSidecar},
        kzg,
        rules::ChainSpec,
        view::{ReadError, View},
    },
    rollup::beacon::SlotClock,
};
use alloy_eips::eip4844::{Blob, Bytes48, DATA_GAS_PER_BLOB, kzg_to_versioned_hash};
use alloy_primitives::B256;
use hyper::StatusCode;
use serde::Serialize;
use serde_json::json;
use starling_proto::payload::Payload;
use std::sync::Arc;

/// Slots of an epoch.
const SLOTS_PER_EPOCH: u64 = 32;
/// Largest number of hashes or indexes in one request. A block has fewer blobs.
const MAX_WANTED: usize = 256;

/// The reason why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("only GET is served")]
    Method,
    #[error("there is no such path: this server has only those that blobs need")]
    Path,
    #[error("{0}")]
    Malformed(String),
    #[error("no block in slot {0}")]
    NoBlock(u64),
    #[error("the blobs of slot {0} are not kept here")]
    NoBlobs(u64),
    #[error("{0}")]
    Failed(#[from] ChainError),
    #[error("{0}")]
    Read(#[from] ReadError),
    #[error("a proof cannot be computed: {0}")]
    Kzg(#[from] c_kzg::Error),
    #[error("{0}")]
    Json(#[from] serde_json::Error),
}

impl Refusal {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Path | Self::NoBlock(_) | Self::NoBlobs(_) => StatusCode::NOT_FOUND,
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::Failed(_) | Self::Read(_) | Self::Kzg(_) | Self::Json(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }

    pub fn body(&self) -> Vec<u8> {
        json!({ "code": self.status().as_u16(), "message": self.to_string() })
            .to_string()
            .into()
    }
}

/// The response for a path whose data does not depend on blocks; `None` for any other path.
pub(super) fn of_chain(path: &str, spec: &ChainSpec, clock: &SlotClock) -> Option<Vec<u8>> {
    let data = match path {
        "/eth/v1/node/version" => {
            json!({ "version": concat!("starling/v", env!("CARGO_PKG_VERSION")) })
        }
        "/eth/v1/beacon/genesis" => json!({
            "genesis_time": clock.genesis_time.to_string(),
            "genesis_validators_root": B256::ZERO,
            "genesis_fork_version": "0x00000000",
        }),
        "/eth/v1/config/spec" => {
            let epochs = RETENTION / (SLOTS_PER_EPOCH * clock.seconds_per_slot);
            json!({
                "SECONDS_PER_SLOT": clock.seconds_per_slot.to_string(),
                "SLOTS_PER_EPOCH": SLOTS_PER_EPOCH.to_string(),
                "MIN_EPOCHS_FOR_BLOB_SIDECARS_REQUESTS": epochs.to_string(),
                "MIN_GENESIS_TIME": clock.genesis_time.to_string(),
                "DEPOSIT_CHAIN_ID": spec.chain_id.to_string(),
                "DEPOSIT_NETWORK_ID": spec.chain_id.to_string(),
            })
        }
        _ => return None,
    };
    Some(json!({ "data": data }).to_string().into())
}

/// A request for blobs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BlobRequest {
    slot: u64,
    form: BlobForm,
}

/// The requested blobs of a slot and the form of the response. An empty list requests all blobs.
#[derive(Debug, PartialEq, Eq)]
enum BlobForm {
    /// Blobs alone, with these versioned hashes.
    Blobs(Vec<B256>),
    /// Blobs with commitment and proof, at these indexes.
    Sidecars(Vec<u64>),
}

impl BlobRequest {
    pub fn parse(path: &str, query: &str) -> Result<Self, Refusal> {
        let slot = |text: &str| {
            let slot = text.parse();
            slot.map_err(|_| Refusal::Malformed(format!("{text:?} is no number of a slot")))
        };
        if let Some(text) = path.strip_prefix("/eth/v1/beacon/blobs/") {
            let form = BlobForm::Blobs(values(query, "versioned_hashes")?);
            Ok(Self {
                slot: slot(text)?,
                form,
            })
        } else if let Some(text) = path.strip_prefix("/eth/v1/beacon/blob_sidecars/") {
            let form = BlobForm::Sidecars(values(query, "indices")?);
            Ok(Self {
                slot: slot(text)?,
                form,
            })
        } else {
            Err(Refusal::Path)
        }
    }
}

/// The values of a query parameter, which may be repeated and may have comma-separated values.
fn values<T: std::str::FromStr>(query: &str, name: &str) -> Result<Vec<T>, Refusal> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let texts = pairs
        .filter(|(key, _)| *key == name)
        .flat_map(|(_, value)| value.split(','));
    let malformed = |text: &str| Refusal::Malformed(format!("{name}={text} cannot be read"));
    let values = texts
        .take(MAX_WANTED + 1)
        .map(|text| text.parse().map_err(|_| malformed(text)))
        .collect::<Result<Vec<_>, _>>()?;
    if values.len() > MAX_WANTED {
        return Err(Refusal::Malformed(format!("more than {MAX_WANTED} {name}")));
    }
    Ok(values)
}

/// Response with blobs or sidecars.
#[derive(Serialize)]
struct BlobsJson<T> {
    execution_optimistic: bool,
    finalized: bool,
    data: Vec<T>,
}

/// A blob sidecar. It has no beacon block header, because this L1 has no beacon blocks.
#[derive(Serialize)]
struct SidecarJson<'a> {
    index: String,
    blob: &'a Blob,
    kzg_commitment: &'a Bytes48,
    kzg_proof: Bytes48,
}

/// The response to a request for blobs. Reads files. If a stored sidecar has cell proofs only, the
/// proof of each requested blob is computed, which takes 40 ms.
pub(super) fn blobs(
    chain: &Chain,
    clock: &SlotClock,
    wanted: &BlobRequest,
) -> Result<Vec<u8>, Refusal> {
    let view = chain.view();
    let blocks = blocks_in(&view, clock, wanted.slot)?;
    let last = blocks.last().ok_or(Refusal::NoBlock(wanted.slot))?;
    let finalized = chain.heads().borrow().finalized;
    let finalized = finalized.is_some_and(|finalized| last.number() <= finalized.number);
    let mut sidecars = Vec::new();
    for block in &blocks {
        sidecars.extend(sidecars_of(chain, block, wanted.slot)?);
    }
    match &wanted.form {
        BlobForm::Blobs(hashes) => {
            let is_wanted = |commitment: &Bytes48| {
                hashes.is_empty() || hashes.contains(&kzg_to_versioned_hash(commitment.as_slice()))
            };
            let blobs = each_blob(&sidecars);
            let data = blobs.filter(|blob| is_wanted(blob.commitment));
            json_of(finalized, data.map(|blob| blob.blob).collect())
        }
        BlobForm::Sidecars(indexes) => {
            let wanted = each_blob(&sidecars).zip(0..);
            let wanted = wanted.filter(|(_, index)| indexes.is_empty() || indexes.contains(index));
            let data = wanted.map(|(blob, index)| {
                Ok(SidecarJson {
                    index: index.to_string(),
                    blob: blob.blob,
                    kzg_commitment: blob.commitment,
                    kzg_proof: blob.proof()?,
                })
            });
            json_of(finalized, data.collect::<Result<_, Refusal>>()?)
        }
    }
}

fn json_of<T: Serialize>(finalized: bool, data: Vec<T>) -> Result<Vec<u8>, Refusal> {
    Ok(serde_json::to_vec(&BlobsJson {
        execution_optimistic: false,
        finalized,
        data,
    })?)
}

/// One blob of a transaction's sidecar.
struct OneBlob<'a> {
    blob: &'a Blob,
    commitment: &'a Bytes48,
    sidecar: &'a TxSidecar,
    /// Position of the blob in `sidecar`.
    position: usize,
}

impl OneBlob<'_> {
    fn proof(&self) -> Result<Bytes48, Refusal> {
        let known = self.sidecar.as_eip4844();
        match known.and_then(|sidecar| sidecar.proofs.get(self.position)) {
            Some(proof) => Ok(*proof),
            None => Ok(kzg::blob_proof(self.blob, self.commitment)?),
        }
    }
}

fn each_blob(sidecars: &[Arc<TxSidecar>]) -> impl Iterator<Item = OneBlob<'_>> {
    sidecars.iter().flat_map(|sidecar| {
        let blobs = sidecar.blobs().iter().zip(sidecar.commitments());
        blobs
            .enumerate()
            .map(|(position, (blob, commitment))| OneBlob {
                blob,
                commitment,
                sidecar,
                position,
            })
    })
}

/// The sidecars of a block in block order. Fails unless all blobs of the block are stored.
fn sidecars_of(chain: &Chain, block: &Payload, slot: u64) -> Result<Vec<Arc<TxSidecar>>, Refusal> {
    let count = block.header.blob_gas_used.unwrap_or(0) / DATA_GAS_PER_BLOB;
    if count == 0 {
        return Ok(vec![]);
    }
    let stored = chain.blobs(block)?.ok_or(Refusal::NoBlobs(slot))?;
    let sidecars: Vec<_> = stored.into_iter().map(|stored| stored.sidecar).collect();
    let kept: usize = sidecars.iter().map(|sidecar| sidecar.blobs().len()).sum();
    if kept as u64 == count {
        Ok(sidecars)
    } else {
        Err(Refusal::NoBlobs(slot))
    }
}

/// The canonical blocks in a slot, oldest first.
fn blocks_in(view: &View, clock: &SlotClock, slot: u64) -> Result<Vec<Arc<Payload>>, Refusal> {
    let head = view.head().number;
    let start = slot
        .checked_mul(clock.seconds_per_slot)
        .and_then(|offset| clock.genesis_time.checked_add(offset));
    let Some(start) = start.filter(|start| *start <= view.header().timestamp) else {
        return Ok(vec![]);
    };
    // Binary search for the first block at or after the slot's start.
    let (mut low, mut high) = (0, head);
    while low < high {
        let middle = low + (high - low) / 2;
        match view.header_of(middle)? {
            Some(header) if header.timestamp >= start => high = middle,
            _ => low = middle + 1,
        }
    }
    let mut blocks = Vec::new();
    for number in low..=head {
        let Some(block) = view.payload(number)? else {
            break;
        };
        if clock.slot(block.timestamp()) != Some(slot) {
            break;
        }
        blocks.push(block);
    }
    Ok(blocks)
}
