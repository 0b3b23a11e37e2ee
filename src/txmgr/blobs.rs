//! Builds sidecars of blob transactions: with one proof per blob until L1's Osaka fork (EIP-4844),
//! with 128 cell proofs per blob from Osaka on (EIP-7594).
//!
//! Computing a blob's proof takes milliseconds, its cell proofs more than a hundred. Call these
//! functions on a blocking thread.

use crate::chain::{blobs::TxSidecar, kzg};
use alloy_eips::eip4844::Blob;

/// Seconds after the fork during which sidecars keep the old form. L1's head may be up to one slot
/// behind our clock (as in op-service).
const SLOT: u64 = 12;
/// Value of `--txmgr.cell-proof-time` if the operator sets none.
pub const UNSET_CELL_PROOF_TIME: u64 = u64::MAX;
/// Chain id and Osaka time (Unix seconds) of the public L1 chains: Mainnet, Sepolia, Holesky,
/// Hoodi.
const OSAKA: [(u64, u64); 4] = [
    (1, 1_764_798_551),
    (11_155_111, 1_760_427_360),
    (17_000, 1_759_308_480),
    (560_048, 1_761_677_592),
];

/// Form of a sidecar's proofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SidecarForm {
    /// Version 0: one proof per blob.
    Blobs,
    /// Version 1: 128 cell proofs per blob.
    Cells,
}

impl SidecarForm {
    /// Loads the data needed for proofs of this form, which takes seconds the first time.
    pub fn load(self) {
        match self {
            Self::Blobs => kzg::load_for_blobs(),
            Self::Cells => kzg::load(),
        }
    }

    /// Returns the form of an existing sidecar.
    pub fn of(sidecar: &TxSidecar) -> Self {
        match sidecar {
            TxSidecar::Eip4844(_) => Self::Blobs,
            TxSidecar::Eip7594(_) => Self::Cells,
        }
    }
}

/// Time (Unix seconds) from which on sidecars have cell proofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellProofTime(u64);

impl CellProofTime {
    /// `given` is the value of `--txmgr.cell-proof-time`. If it is [`UNSET_CELL_PROOF_TIME`], the
    /// time is the Osaka time on a public L1 chain; other L1 chains then get no cell proofs.
    pub fn new(given: u64, l1_chain_id: u64) -> Self {
        let known = OSAKA.iter().find(|(chain, _)| *chain == l1_chain_id);
        match known {
            Some((_, time)) if given == UNSET_CELL_PROOF_TIME => Self(*time),
            _ => Self(given),
        }
    }

    /// Form to use at `now` (Unix seconds).
    pub fn form(self, now: u64) -> SidecarForm {
        if now.saturating_sub(SLOT) > self.0 {
            SidecarForm::Cells
        } else {
            SidecarForm::Blobs
        }
    }
}

/// Builds the sidecar of `blobs`. Fails if a blob is not a list of valid field elements.
pub fn sidecar(blobs: Vec<Blob>, form: SidecarForm) -> Result<TxSidecar, c_kzg::Error> {
    match form {
        SidecarForm::Blobs => kzg::sidecar(blobs),
        SidecarForm::Cells => kzg::cell_sidecar(blobs),
    }
}

/// Converts a sidecar to another form, for a transaction still pending at the fork. The
/// transaction's hash does not change.
pub fn converted(sidecar: TxSidecar, form: SidecarForm) -> Result<TxSidecar, c_kzg::Error> {
    if SidecarForm::of(&sidecar) == form {
        return Ok(sidecar);
    }
    self::sidecar(sidecar.blobs().to_vec(), form)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::tests::blobs::blob;

    #[test]
    fn the_form_follows_the_given_time_or_that_of_the_chain() {
        let form = |given, chain, now| CellProofTime::new(given, chain).form(now);
        assert_eq!(
            form(100, 1, 112),
            SidecarForm::Blobs,
            "twelve seconds later"
        );
        assert_eq!(form(100, 1, 113), SidecarForm::Cells);
        assert_eq!(form(0, 900, 12), SidecarForm::Blobs);
        assert_eq!(form(0, 900, 13), SidecarForm::Cells);
        for (chain, osaka) in OSAKA {
            assert_eq!(
                form(UNSET_CELL_PROOF_TIME, chain, osaka + 12),
                SidecarForm::Blobs
            );
            assert_eq!(
                form(UNSET_CELL_PROOF_TIME, chain, osaka + 13),
                SidecarForm::Cells
            );
        }
        assert_eq!(
            form(UNSET_CELL_PROOF_TIME, 900, u64::MAX),
            SidecarForm::Blobs
        );
    }

    #[test]
    fn both_forms_are_valid_and_convert_into_each_other() {
        let blobs = vec![blob(1), blob(2)];
        let old = sidecar(blobs.clone(), SidecarForm::Blobs).unwrap();
        let new = sidecar(blobs, SidecarForm::Cells).unwrap();
        assert!(kzg::verify(&old).unwrap() && kzg::verify(&new).unwrap());
        assert_eq!(old.commitments(), new.commitments());
        assert_eq!(SidecarForm::of(&new), SidecarForm::Cells);
        assert_eq!(converted(old.clone(), SidecarForm::Cells).unwrap(), new);
        assert_eq!(converted(new, SidecarForm::Blobs).unwrap(), old);
    }
}
