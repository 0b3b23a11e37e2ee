//! KZG commitments and proofs of blobs, with c-kzg. They serve the sidecars of blob transactions,
//! which have one proof per blob before Osaka (EIP-4844) and 128 cell proofs per blob from Osaka on
//! (EIP-7594). They also serve the blobs that a rollup reads.
//!
//! Verifying takes milliseconds per blob, and computing proofs takes several times as long. Callers
//! bound the number of blobs.

#[cfg(test)]
mod tests;

use super::blobs::TxSidecar;
use alloy_eips::{
    eip4844::{Blob, BlobTransactionSidecar, Bytes48},
    eip7594::{BlobTransactionSidecarEip7594, CELLS_PER_EXT_BLOB},
};
use c_kzg::{Cell, KzgSettings};
use std::sync::{LazyLock, OnceLock};

/// Size of the tables for cell proofs, as in geth and reth. These tables take 100 MB.
const CELL_TABLES: u64 = 8;
/// Whole blobs need no tables for commitments and proofs, so a node of `starling rollup` loads
/// none.
const NO_TABLES: u64 = 0;

/// The trusted setup with tables for cells, once it is loaded.
static CELL_SETUP: OnceLock<&'static KzgSettings> = OnceLock::new();

/// Indexes of all cells of an extended blob.
static CELLS: LazyLock<Vec<u64>> = LazyLock::new(|| (0..CELLS_PER_EXT_BLOB as u64).collect());

/// The trusted setup with tables for cells. Loads it at the first call.
fn cell_setup() -> &'static KzgSettings {
    CELL_SETUP.get_or_init(|| c_kzg::ethereum_kzg_settings(CELL_TABLES))
}

/// The trusted setup for whole blobs. This is the setup for cells if that is loaded, since loading
/// another one takes seconds.
fn blob_setup() -> &'static KzgSettings {
    (CELL_SETUP.get().copied()).unwrap_or_else(|| c_kzg::ethereum_kzg_settings(NO_TABLES))
}

/// Loads the trusted setup, which takes seconds, so that the first blob transaction need not wait.
pub fn load() {
    cell_setup();
}

/// Loads the trusted setup for whole blobs, which takes seconds if none is loaded. Must not run on
/// a rayon thread: other rayon threads would wait for it, and blocks are executed there.
pub fn load_for_blobs() {
    blob_setup();
}

/// Whether all proofs of a sidecar are valid for its blobs and commitments. Returns an error if a
/// blob is not a list of field elements, a commitment or proof is not a curve point, or a count is
/// wrong.
pub fn verify(sidecar: &TxSidecar) -> Result<bool, c_kzg::Error> {
    let blobs: Vec<c_kzg::Blob> = sidecar.blobs().iter().map(blob).collect();
    let commitments = points(sidecar.commitments());
    match sidecar {
        TxSidecar::Eip4844(sidecar) => {
            blob_setup().verify_blob_kzg_proof_batch(&blobs, &commitments, &points(&sidecar.proofs))
        }
        TxSidecar::Eip7594(sidecar) => {
            let mut cells = Vec::with_capacity(blobs.len() * CELLS_PER_EXT_BLOB);
            for blob in &blobs {
                let of_blob: Box<[Cell]> = cell_setup().compute_cells(blob)?;
                cells.extend(of_blob);
            }
            let repeated: Vec<_> = commitments
                .iter()
                .flat_map(|commitment| std::iter::repeat_n(*commitment, CELLS_PER_EXT_BLOB))
                .collect();
            let proofs = points(&sidecar.cell_proofs);
            cell_setup().verify_cell_kzg_proof_batch(
                &repeated,
                &CELLS.repeat(blobs.len()),
                &cells,
                &proofs,
            )
        }
    }
}

/// The commitment to a blob. Fails if the blob is not a list of field elements. Takes about 20 ms.
pub fn commitment(of: &Blob) -> Result<Bytes48, c_kzg::Error> {
    let commitment = blob_setup().blob_to_kzg_commitment(&blob(of))?;
    Ok(Bytes48::from(commitment.to_bytes().into_inner()))
}

/// Whether the proof of a whole blob is valid for the commitment. Returns an error if the blob is
/// not a list of field elements, or the commitment or proof is not a curve point.
pub fn verify_blob(of: &Blob, commitment: &Bytes48, proof: &Bytes48) -> Result<bool, c_kzg::Error> {
    let [commitment, proof] = [commitment, proof].map(|point| c_kzg::Bytes48::from(point.0));
    blob_setup().verify_blob_kzg_proof(&blob(of), &commitment, &proof)
}

/// Computes the proof of a whole blob (EIP-4844).
pub fn blob_proof(of: &Blob, commitment: &Bytes48) -> Result<Bytes48, c_kzg::Error> {
    let commitment = c_kzg::Bytes48::from(commitment.0);
    let proof = blob_setup().compute_blob_kzg_proof(&blob(of), &commitment)?;
    Ok(Bytes48::from(proof.to_bytes().into_inner()))
}

/// Computes the sidecar of these blobs before Osaka. Fails if a blob is not a list of field
/// elements.
pub fn sidecar(blobs: Vec<Blob>) -> Result<TxSidecar, c_kzg::Error> {
    let commitments = commitments(&blobs)?;
    let proofs = blobs.iter().zip(&commitments);
    let proofs = proofs.map(|(blob, commitment)| blob_proof(blob, commitment));
    Ok(TxSidecar::Eip4844(BlobTransactionSidecar {
        proofs: proofs.collect::<Result<_, _>>()?,
        blobs,
        commitments,
    }))
}

/// Computes the sidecar of these blobs from Osaka on. Fails like [`sidecar`].
pub fn cell_sidecar(blobs: Vec<Blob>) -> Result<TxSidecar, c_kzg::Error> {
    let mut cell_proofs = Vec::with_capacity(blobs.len() * CELLS_PER_EXT_BLOB);
    for one in &blobs {
        let (_, proofs) = cell_setup().compute_cells_and_kzg_proofs(&blob(one))?;
        let bytes = proofs.iter().map(|proof| proof.to_bytes().into_inner());
        cell_proofs.extend(bytes.map(Bytes48::from));
    }
    Ok(TxSidecar::Eip7594(BlobTransactionSidecarEip7594 {
        // Compute the commitments after the proofs, with the setup that the proofs have loaded.
        commitments: commitments(&blobs)?,
        blobs,
        cell_proofs,
    }))
}

fn commitments(blobs: &[Blob]) -> Result<Vec<Bytes48>, c_kzg::Error> {
    blobs.iter().map(commitment).collect()
}

fn blob(blob: &Blob) -> c_kzg::Blob {
    c_kzg::Blob::new(blob.0)
}

fn points(all: &[Bytes48]) -> Vec<c_kzg::Bytes48> {
    all.iter()
        .map(|point| c_kzg::Bytes48::from(point.0))
        .collect()
}
