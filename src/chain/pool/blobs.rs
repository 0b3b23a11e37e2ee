//! Blob transactions (EIP-4844, EIP-7594) in the pool of an Ethereum chain: their network encoding,
//! and the rules that only apply to them. The texts of refusals are geth's
//! (`core/txpool/validation.go`, `core/txpool/blobpool`).

use super::{
    MAX_SIZE, PoolError, PoolTx,
    admit::{malformed, unsigned},
};
use crate::chain::{
    blobs::TxSidecar,
    kzg,
    transaction::{BLOB_TYPE, ChainTx},
};
use alloy_consensus::{
    Signed, Transaction, TxEip4844, TxEip4844WithSidecar, transaction::Recovered,
};
use alloy_eips::{
    eip2718::Decodable2718,
    eip4844::{BYTES_PER_BLOB, BYTES_PER_COMMITMENT, kzg_to_versioned_hash},
    eip7594::CELLS_PER_EXT_BLOB,
    eip7840::BlobParams,
};
use alloy_primitives::Bytes;
use std::sync::Arc;

/// Maximum number of blob transactions of one sender in the pool.
pub(super) const MAX_PER_ACCOUNT: usize = 16;
/// Percentage by which a replacement must raise fee cap, tip and blob fee cap.
pub(super) const PRICE_BUMP: u128 = 100;
/// Bytes of one blob with its commitment, its cell proofs and their RLP headers.
const BLOB_SIZE: usize =
    BYTES_PER_BLOB + (CELLS_PER_EXT_BLOB + 1) * (BYTES_PER_COMMITMENT + 1) + 16;

/// Rules for the blobs of one transaction at a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlobRules {
    pub max_blobs: u64,
    /// Whether proofs must be cell proofs (EIP-7594).
    pub osaka: bool,
}

impl BlobRules {
    pub fn new(params: BlobParams, osaka: bool) -> Self {
        Self {
            max_blobs: params.max_blobs_per_tx.min(params.max_blob_count),
            osaka,
        }
    }
}

/// Decodes the network encoding, `3 ‖ rlp([tx, blobs, commitments, proofs])` or `3 ‖ rlp([tx, 1,
/// blobs, commitments, cell proofs])`, and recovers the sender. `max_blobs` bounds the work.
pub fn decode(raw: &Bytes, max_blobs: u64) -> Result<PoolTx, PoolError> {
    let limit = MAX_SIZE + max_blobs as usize * BLOB_SIZE;
    if raw.len() > limit {
        return Err(PoolError::Oversized {
            size: raw.len(),
            limit,
        });
    }
    let whole = match Signed::<TxEip4844WithSidecar<TxSidecar>>::decode_2718_exact(raw) {
        Ok(whole) => whole,
        Err(error) => {
            let mined = Signed::<TxEip4844>::decode_2718_exact(raw);
            return Err(match mined {
                Ok(_) => PoolError::NoSidecar,
                Err(_) => PoolError::Decode(malformed(raw, &error.to_string())),
            });
        }
    };
    let (whole, signature, hash) = whole.into_parts();
    let (tx, sidecar) = whole.into_parts();
    let tx = ChainTx::Blob(Signed::new_unchecked(tx, signature, hash));
    let signer = tx.signer().map_err(|_| unsigned(&tx))?;
    let tx = Recovered::new_unchecked(tx, signer);
    Ok(PoolTx::with_sidecar(tx, Some(Arc::new(sidecar))))
}

/// Checks the number of blobs and their hashes.
pub(super) fn check(tx: &PoolTx, rules: Option<&BlobRules>) -> Result<(), PoolError> {
    let rules = rules.ok_or(PoolError::BlobsTooEarly)?;
    let sidecar = tx.sidecar.as_deref().ok_or(PoolError::NoSidecar)?;
    let hashes = tx.tx.blob_versioned_hashes().unwrap_or_default();
    if hashes.is_empty() {
        return Err(PoolError::NoBlobs);
    }
    if hashes.len() as u64 > rules.max_blobs {
        return Err(PoolError::TooManyBlobs {
            have: hashes.len(),
            most: rules.max_blobs,
        });
    }
    let (proofs, each, version) = match sidecar {
        TxSidecar::Eip4844(sidecar) => (sidecar.proofs.len(), 1, 0),
        TxSidecar::Eip7594(sidecar) => (sidecar.cell_proofs.len(), CELLS_PER_EXT_BLOB, 1),
    };
    if sidecar.is_eip7594() != rules.osaka {
        let moment = if rules.osaka { "post" } else { "pre" };
        return Err(PoolError::SidecarVersion { moment, version });
    }
    for (name, have, want) in [
        ("blobs", sidecar.blobs().len(), hashes.len()),
        (
            "blob commitments",
            sidecar.commitments().len(),
            hashes.len(),
        ),
        ("blob proofs", proofs, each * hashes.len()),
    ] {
        if have != want {
            return Err(PoolError::SidecarCount { name, have, want });
        }
    }
    for (index, (commitment, hash)) in sidecar.commitments().iter().zip(hashes).enumerate() {
        let computed = kzg_to_versioned_hash(commitment.as_slice());
        if computed != *hash {
            return Err(PoolError::BlobHash {
                index,
                computed,
                hash: *hash,
            });
        }
    }
    match tx.tx.max_fee_per_blob_gas() {
        None | Some(0) => Err(PoolError::BlobFeeTooLow),
        Some(_) => Ok(()),
    }
}

/// Verifies the KZG proofs. This is the most expensive check: call it last.
pub(super) fn check_proofs(tx: &PoolTx) -> Result<(), PoolError> {
    let Some(sidecar) = tx.sidecar.as_deref() else {
        return Ok(());
    };
    match kzg::verify(sidecar) {
        Ok(true) => Ok(()),
        Ok(false) => Err(PoolError::BlobProof("invalid proof".to_owned())),
        Err(error) => Err(PoolError::BlobProof(error.to_string())),
    }
}

/// Whether these bytes encode a blob transaction, with or without its blobs.
pub(super) fn is_blob(raw: &[u8]) -> bool {
    raw.len() > 1 && raw[0] == BLOB_TYPE
}
