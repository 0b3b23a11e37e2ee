//! Calls of the manager's task: at L1, at the signer, and on blocking threads for proofs.

use super::{SidecarForm, TxCandidate};
use crate::{
    chain::blobs::TxSidecar,
    clock::unix_now,
    rollup::l1::L1Client,
    txmgr::{
        blobs::{self, CellProofTime},
        fees::{BlobTips, FeeCaps, INTRINSIC_GAS, L1Fees, TxClass},
        l1::{self, CallTx},
        machine::{AccountReading, SignedTx},
        publish_result::PublishResult,
        sign::{TxSigner, UnsignedTx},
    },
};
use alloy_consensus::{TxEip1559, TxEip4844};
use alloy_eips::eip4844::Blob;
use alloy_primitives::{B256, Bytes, TxKind, U256};
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};

/// A transaction to send, with its sidecar.
pub(super) struct PreparedTx {
    candidate: TxCandidate,
    /// The sidecar, in the form used for the last signature. The candidate's blobs were moved into
    /// it.
    sidecar: Option<Mutex<Arc<TxSidecar>>>,
}

impl PreparedTx {
    pub fn class(&self) -> TxClass {
        match self.sidecar {
            Some(_) => TxClass::Blob,
            None => TxClass::Calldata,
        }
    }
}

/// Everything that the calls need.
pub(super) struct TxWorker {
    pub l1: L1Client,
    pub signer: TxSigner,
    pub chain_id: u64,
    pub cell_proofs: CellProofTime,
    pub custom_errors: Vec<String>,
    /// Timeout of one call (`--network-timeout`).
    pub timeout: Duration,
    pub tips: tokio::sync::Mutex<BlobTips>,
}

impl TxWorker {
    /// Builds the sidecar of a candidate with blobs.
    pub async fn prepare(&self, mut candidate: TxCandidate) -> Result<PreparedTx, String> {
        let blobs = std::mem::take(&mut candidate.blobs);
        let sidecar = if blobs.is_empty() {
            None
        } else {
            Some(Mutex::new(self.sidecar(blobs).await?))
        };
        if sidecar.is_some() && candidate.to.is_none() {
            return Err("blob txs cannot deploy contracts".into());
        }
        Ok(PreparedTx { candidate, sidecar })
    }

    async fn sidecar(&self, blobs: Vec<Blob>) -> Result<Arc<TxSidecar>, String> {
        let form = self.form();
        let made = tokio::task::spawn_blocking(move || blobs::sidecar(blobs, form)).await;
        let made = made.map_err(|error| error.to_string())?;
        made.map(Arc::new)
            .map_err(|error| format!("failed to make sidecar: {error}"))
    }

    fn form(&self) -> SidecarForm {
        self.cell_proofs.form(unix_now())
    }

    /// Returns the sidecar in the form that L1 currently requires, converted if necessary.
    async fn current_sidecar(
        &self,
        slot: &Mutex<Arc<TxSidecar>>,
    ) -> Result<Arc<TxSidecar>, String> {
        let (held, form) = (slot.lock().clone(), self.form());
        if SidecarForm::of(&held) == form {
            return Ok(held);
        }
        let convert = move || blobs::converted(Arc::unwrap_or_clone(held), form);
        let made = tokio::task::spawn_blocking(convert).await;
        let made = made.map_err(|error| error.to_string())?;
        let made = made.map(Arc::new).map_err(|error| error.to_string())?;
        *slot.lock() = made.clone();
        Ok(made)
    }

    pub async fn fees(&self, dynamic: bool, min_tip: u128) -> Result<L1Fees, String> {
        if dynamic {
            let mut tips = self.tips.lock().await;
            l1::fees(&self.l1, Some(&mut tips), min_tip).await
        } else {
            l1::fees(&self.l1, None, min_tip).await
        }
    }

    /// Creates and signs a transaction. `tx` is `None` for a filler.
    pub async fn sign(
        &self,
        tx: Option<Arc<PreparedTx>>,
        class: TxClass,
        nonce: u64,
        caps: FeeCaps,
        replaced_gas: Option<u64>,
    ) -> Result<SignedTx, String> {
        let (candidate, sidecar) = match tx {
            Some(tx) => match &tx.sidecar {
                Some(slot) => (
                    tx.candidate.clone(),
                    Some(self.current_sidecar(slot).await?),
                ),
                None => (tx.candidate.clone(), None),
            },
            None => self.filler(class).await?,
        };
        let blobs = sidecar
            .as_ref()
            .map(|sidecar| sidecar.versioned_hashes().collect());
        let call = CallTx {
            from: self.signer.address(),
            to: candidate.to,
            data: candidate.data,
            value: candidate.value,
            caps,
            blobs: blobs.unwrap_or_default(),
        };
        let gas = self.gas(&call, candidate.gas_limit, replaced_gas).await?;
        let unsigned = self.unsigned(call, nonce, gas, sidecar);
        let signed = tokio::time::timeout(self.timeout, self.signer.sign(unsigned)).await;
        let signed = signed.map_err(|_| format!("no signature within {:?}", self.timeout))?;
        signed.map_err(|error| error.to_string())
    }

    /// A filler: an empty transaction to the account itself, with an empty blob for class blob.
    async fn filler(
        &self,
        class: TxClass,
    ) -> Result<(TxCandidate, Option<Arc<TxSidecar>>), String> {
        let candidate = TxCandidate {
            to: Some(self.signer.address()),
            data: Bytes::new(),
            blobs: Vec::new(),
            gas_limit: INTRINSIC_GAS,
            value: U256::ZERO,
        };
        let sidecar = match class {
            TxClass::Calldata => None,
            TxClass::Blob => Some(self.sidecar(vec![Blob::ZERO]).await?),
        };
        Ok((candidate, sidecar))
    }

    /// Gas limit of a transaction: `given` after a check, or an estimate if `given` is zero. A
    /// replacement gets at least the gas limit of the transaction that it replaces.
    async fn gas(&self, call: &CallTx, given: u64, replaced: Option<u64>) -> Result<u64, String> {
        let gas = match replaced {
            // 21,000 gas is the minimum, so there is nothing to estimate.
            Some(_) if given == INTRINSIC_GAS => given,
            Some(replaced) => l1::gas(&self.l1, call, None).await?.max(replaced),
            None => l1::gas(&self.l1, call, (given > 0).then_some(given)).await?,
        };
        Ok(gas)
    }

    fn unsigned(
        &self,
        call: CallTx,
        nonce: u64,
        gas_limit: u64,
        sidecar: Option<Arc<TxSidecar>>,
    ) -> UnsignedTx {
        match (sidecar, call.to) {
            (Some(sidecar), Some(to)) => {
                let tx = TxEip4844 {
                    chain_id: self.chain_id,
                    nonce,
                    gas_limit,
                    max_fee_per_gas: call.caps.fee,
                    max_priority_fee_per_gas: call.caps.tip,
                    to,
                    value: call.value,
                    input: call.data,
                    blob_versioned_hashes: call.blobs,
                    max_fee_per_blob_gas: call.caps.blob_fee.unwrap_or_default(),
                    ..TxEip4844::default()
                };
                UnsignedTx::Blob(tx, sidecar)
            }
            (_, to) => UnsignedTx::Calldata(TxEip1559 {
                chain_id: self.chain_id,
                nonce,
                gas_limit,
                max_fee_per_gas: call.caps.fee,
                max_priority_fee_per_gas: call.caps.tip,
                to: to.map_or(TxKind::Create, TxKind::Call),
                value: call.value,
                input: call.data,
                ..TxEip1559::default()
            }),
        }
    }

    pub async fn publish(&self, raw: &Bytes) -> PublishResult {
        l1::publish(&self.l1, raw, &self.custom_errors).await
    }

    pub async fn reading(
        &self,
        deep_block: Option<u64>,
        with_age: bool,
        hashes: &[B256],
    ) -> Result<AccountReading, String> {
        let mut reading = l1::reading(&self.l1, self.signer.address(), deep_block, hashes).await?;
        if with_age {
            reading.head_age = l1::head_age(&self.l1, unix_now()).await;
        }
        Ok(reading)
    }
}
