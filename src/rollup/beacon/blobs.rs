//! Builds requests for blobs, and checks blobs in responses against versioned hashes. Pure.

use super::{BeaconCause, MAX_BLOBS};
use crate::chain::kzg;
use alloy_eips::eip4844::{Blob, Bytes48, kzg_to_versioned_hash};
use alloy_primitives::Bytes;
use rayon::prelude::*;
use serde::Deserialize;
use starling_proto::derive::BlobRef;

/// One element of a blob sidecars response. The block header and its proof are not read, since an
/// L1 transaction commits to the blob by its versioned hash.
#[derive(Deserialize)]
pub(super) struct Sidecar {
    index: super::Quoted,
    blob: Bytes,
    kzg_commitment: Bytes,
    kzg_proof: Bytes,
}

pub(super) fn blobs_path(slot: u64, wanted: &[BlobRef]) -> String {
    let hashes = wanted
        .iter()
        .map(|blob| format!("versioned_hashes={}", blob.versioned_hash));
    with_query(format!("/eth/v1/beacon/blobs/{slot}"), hashes)
}

pub(super) fn sidecars_path(slot: u64, wanted: &[BlobRef]) -> String {
    let indexes = wanted.iter().map(|blob| format!("indices={}", blob.index));
    with_query(all_sidecars_path(slot), indexes)
}

pub(super) fn all_sidecars_path(slot: u64) -> String {
    format!("/eth/v1/beacon/blob_sidecars/{slot}")
}

fn with_query(path: String, parameters: impl Iterator<Item = String>) -> String {
    let parameters: Vec<_> = parameters.collect();
    format!("{path}?{}", parameters.join("&"))
}

/// The wanted blobs in the order of `wanted`. The response may have another order and further
/// blobs. Two wanted blobs with the same hash are the same blob.
pub(super) fn match_blobs(
    response: Vec<Bytes>,
    wanted: &[BlobRef],
) -> Result<Vec<Box<Blob>>, BeaconCause> {
    bounded(response.len())?;
    kzg::load_for_blobs();
    let found = response.par_iter().map(|bytes| {
        let blob = blob(bytes)?;
        let commitment = kzg::commitment(&blob).map_err(|_| not_a_blob())?;
        Ok::<_, BeaconCause>((kzg_to_versioned_hash(commitment.as_slice()), blob))
    });
    let found = found.collect::<Result<Vec<_>, _>>()?;
    let found_hash = |id: &BlobRef| {
        let blob = found.iter().find(|(hash, _)| *hash == id.versioned_hash);
        let blob = blob.map(|(_, blob)| blob.clone());
        blob.ok_or_else(|| missing(id, found.len()))
    };
    wanted.iter().map(found_hash).collect()
}

/// The wanted blobs among sidecars, in the order of `wanted`. A sidecar must have the wanted index,
/// a commitment with the wanted versioned hash, and a valid proof of its blob.
pub(super) fn match_sidecars(
    response: Vec<Sidecar>,
    wanted: &[BlobRef],
) -> Result<Vec<Box<Blob>>, BeaconCause> {
    bounded(response.len())?;
    kzg::load_for_blobs();
    let check = |id: &BlobRef| {
        let sidecar = response.iter().find(|sidecar| sidecar.index.0 == id.index);
        let sidecar = sidecar.ok_or_else(|| missing(id, response.len()))?;
        let commitment = bytes48(&sidecar.kzg_commitment)?;
        let hash = kzg_to_versioned_hash(commitment.as_slice());
        if hash != id.versioned_hash {
            return Err(BeaconCause::Untrue(format!(
                "the sidecar with index {} has the versioned hash {hash}, not {}",
                id.index, id.versioned_hash
            )));
        }
        let blob = blob(&sidecar.blob)?;
        let proof = bytes48(&sidecar.kzg_proof)?;
        match kzg::verify_blob(&blob, &commitment, &proof) {
            Ok(true) => Ok(blob),
            _ => Err(BeaconCause::Untrue(format!(
                "the proof of the blob with versioned hash {hash} is not valid"
            ))),
        }
    };
    wanted.par_iter().map(check).collect()
}

fn bounded(blobs: usize) -> Result<(), BeaconCause> {
    if blobs <= MAX_BLOBS {
        return Ok(());
    }
    Err(BeaconCause::Untrue(format!("{blobs} blobs of one block")))
}

fn blob(bytes: &Bytes) -> Result<Box<Blob>, BeaconCause> {
    let length = || BeaconCause::Malformed(format!("a blob of {} bytes", bytes.len()));
    let array = <Box<[u8; 131_072]>>::try_from(bytes.to_vec().into_boxed_slice());
    array
        .map(|array| Box::new(Blob::new(*array)))
        .map_err(|_| length())
}

/// Converts the bytes of a commitment or proof.
fn bytes48(bytes: &Bytes) -> Result<Bytes48, BeaconCause> {
    let length = || BeaconCause::Malformed(format!("{} bytes where 48 are expected", bytes.len()));
    Bytes48::try_from(&bytes[..]).map_err(|_| length())
}

fn not_a_blob() -> BeaconCause {
    BeaconCause::Untrue("a blob whose field elements are out of range".into())
}

fn missing(id: &BlobRef, got: usize) -> BeaconCause {
    BeaconCause::Untrue(format!(
        "the blob with versioned hash {} and index {} is not among the {got} it sent",
        id.versioned_hash, id.index
    ))
}

#[cfg(test)]
mod tests;
