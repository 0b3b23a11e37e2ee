//! Signs L1 transactions, with a key in this process or with a remote signer (`--signer.*`,
//! op-signer's `eth_signTransaction`).
//!
//! A remote signature is used only if it signs exactly the requested transaction with the account's
//! key. The transaction in the signer's response is never used.

pub mod mnemonic;
#[cfg(test)]
pub(crate) mod tests;

use crate::{
    chain::blobs::TxSidecar,
    rollup::signer::{Remote, RemoteCause, RemoteConfig, RemoteError},
    secret::Secret,
    txmgr::machine::SignedTx,
};
use alloy_consensus::{
    SignableTransaction, TxEip1559, TxEip4844, TxEip4844WithSidecar, TxEnvelope,
};
use alloy_eips::eip2718::{Decodable2718, Encodable2718};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256};
use mnemonic::MnemonicError;
use serde_json::{Value, json};
use starling_proto::sign::{self, SIGNATURE_LEN, SecretKey};
use std::{fmt, path::Path, sync::Arc};

/// Location of the account's key.
#[derive(Clone, Debug)]
pub enum TxSignerConfig {
    /// 32 bytes in hex, with or without 0x (`--private-key`).
    Key(Secret),
    /// BIP-39 words and a BIP-32 path (`--mnemonic`, `--hd-path`).
    Mnemonic { words: Secret, path: String },
    /// A remote signer (`--signer.*`).
    Remote(RemoteConfig),
}

/// Signer of one account's transactions.
#[derive(Clone)]
pub enum TxSigner {
    /// A key in this process.
    Key(SecretKey),
    /// A remote signer, which keeps the key.
    Remote(Remote),
}

/// The reason why a signer could not be opened, or did not sign. The message contains no part of a
/// key.
#[derive(Debug, thiserror::Error)]
pub enum TxSignError {
    #[error("failed to parse the private key: it is not 32 bytes of hex, with or without 0x")]
    Key,
    #[error("the key file {path} cannot be read: {cause}")]
    File { path: String, cause: std::io::Error },
    #[error("failed to create a wallet: {0}")]
    Mnemonic(#[from] MnemonicError),
    #[error(transparent)]
    Remote(#[from] RemoteError),
}

/// A transaction to sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnsignedTx {
    /// Type 2 (EIP-1559).
    Calldata(TxEip1559),
    /// Type 3 (EIP-4844), with the sidecar to publish.
    Blob(TxEip4844, Arc<TxSidecar>),
}

impl UnsignedTx {
    /// Hash that the signature signs.
    pub fn signing_hash(&self) -> B256 {
        match self {
            Self::Calldata(tx) => tx.signature_hash(),
            Self::Blob(tx, _) => tx.signature_hash(),
        }
    }

    /// Adds a signature and encodes the transaction for `eth_sendRawTransaction`.
    fn with_signature(self, signature: Signature) -> SignedTx {
        match self {
            Self::Calldata(tx) => {
                let gas = tx.gas_limit;
                let signed = tx.into_signed(signature);
                SignedTx {
                    hash: *signed.hash(),
                    raw: signed.encoded_2718().into(),
                    gas,
                }
            }
            Self::Blob(tx, sidecar) => {
                let gas = tx.gas_limit;
                // The transaction hash does not cover the sidecar.
                let hash = *tx.clone().into_signed(signature).hash();
                let sidecar = Arc::unwrap_or_clone(sidecar);
                let whole = TxEip4844WithSidecar { tx, sidecar };
                SignedTx {
                    hash,
                    raw: whole.into_signed(signature).encoded_2718().into(),
                    gas,
                }
            }
        }
    }

    /// Arguments for `eth_signTransaction`, without the sidecar (op-service: `TransactionArgs`).
    fn arguments(&self, from: Address) -> Value {
        match self {
            Self::Calldata(tx) => json!({
                "from": from,
                "to": match tx.to { TxKind::Call(to) => Some(to), TxKind::Create => None },
                "gas": U256::from(tx.gas_limit),
                "maxFeePerGas": U256::from(tx.max_fee_per_gas),
                "maxPriorityFeePerGas": U256::from(tx.max_priority_fee_per_gas),
                "value": tx.value,
                "nonce": U256::from(tx.nonce),
                "input": tx.input,
                "accessList": tx.access_list,
                "chainId": U256::from(tx.chain_id),
            }),
            Self::Blob(tx, _) => json!({
                "from": from,
                "to": tx.to,
                "gas": U256::from(tx.gas_limit),
                "maxFeePerGas": U256::from(tx.max_fee_per_gas),
                "maxPriorityFeePerGas": U256::from(tx.max_priority_fee_per_gas),
                "value": tx.value,
                "nonce": U256::from(tx.nonce),
                "input": tx.input,
                "accessList": tx.access_list,
                "chainId": U256::from(tx.chain_id),
                "blobVersionedHashes": tx.blob_versioned_hashes,
                "maxFeePerBlobGas": U256::from(tx.max_fee_per_blob_gas),
            }),
        }
    }
}

impl TxSigner {
    /// Reads the key, or connects to the remote signer and checks that it responds.
    pub async fn open(config: &TxSignerConfig) -> Result<Self, TxSignError> {
        match config {
            TxSignerConfig::Key(key) => Self::from_hex(key),
            TxSignerConfig::Mnemonic { words, path } => {
                Ok(Self::Key(mnemonic::secret_key(words, path)?))
            }
            TxSignerConfig::Remote(remote) => Ok(Self::Remote(Remote::connect(remote).await?)),
        }
    }

    /// Parses a private key from a flag or an environment variable.
    pub fn from_hex(key: &Secret) -> Result<Self, TxSignError> {
        let key = sign::secret_from_hex(key.expose());
        key.map(Self::Key).map_err(|_| TxSignError::Key)
    }

    /// Address of the account whose transactions are signed.
    pub fn address(&self) -> Address {
        match self {
            Self::Key(key) => sign::address(key),
            Self::Remote(remote) => remote.address(),
        }
    }

    /// Signs a transaction with the key of [`TxSigner::address`].
    pub async fn sign(&self, tx: UnsignedTx) -> Result<SignedTx, TxSignError> {
        let signature = match self {
            Self::Key(key) => signature_of(&sign::sign_hash(key, tx.signing_hash())),
            Self::Remote(remote) => {
                let answer = remote
                    .sign_transaction(&tx.arguments(remote.address()))
                    .await?;
                checked(&answer, &tx, remote.address()).map_err(|cause| remote.error(cause))?
            }
        };
        Ok(tx.with_signature(signature))
    }
}

/// Returns the signature in a signer's response, if it signs `tx` with the key of `wanted`.
fn checked(answer: &Bytes, tx: &UnsignedTx, wanted: Address) -> Result<Signature, RemoteCause> {
    let malformed = RemoteCause::Malformed;
    let signed =
        TxEnvelope::decode_2718_exact(answer).map_err(|error| malformed(error.to_string()))?;
    let (signed_hash, signature) = (signed.signature_hash(), *signed.signature());
    if signed_hash != tx.signing_hash() {
        return Err(malformed("it signs another transaction".into()));
    }
    // L1 accepts only the lower one of the two valid values of s.
    if signature.normalize_s().is_some() {
        return Err(malformed(
            "s is in the upper half of the curve's order".into(),
        ));
    }
    let signed_by = sign::recover_hash(&bytes_of(&signature), signed_hash)
        .map_err(|error| malformed(error.to_string()))?;
    if signed_by == wanted {
        Ok(signature)
    } else {
        Err(RemoteCause::WrongKey { signed_by, wanted })
    }
}

/// The signature as r ‖ s ‖ recovery id.
fn bytes_of(signature: &Signature) -> [u8; SIGNATURE_LEN] {
    let mut bytes = [0; SIGNATURE_LEN];
    bytes[..32].copy_from_slice(&signature.r().to_be_bytes::<32>());
    bytes[32..64].copy_from_slice(&signature.s().to_be_bytes::<32>());
    bytes[64] = signature.v().into();
    bytes
}

fn signature_of(bytes: &[u8; SIGNATURE_LEN]) -> Signature {
    let word = |at: usize| U256::from_be_slice(&bytes[at..at + 32]);
    Signature::new(word(0), word(32), bytes[64] == 1)
}

/// Reads a key from a file that contains its hex digits, and white space at most.
pub fn key_from_file(path: &Path) -> Result<Secret, TxSignError> {
    let text = std::fs::read_to_string(path).map_err(|cause| TxSignError::File {
        path: path.display().to_string(),
        cause,
    })?;
    Ok(Secret::new(text.trim()))
}

/// Prints only the address.
impl fmt::Debug for TxSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TxSigner({})", self.address())
    }
}
