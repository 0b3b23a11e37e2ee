//! Block signatures: the bytes that a sequencer signs, and the recovery of the signer (specs:
//! rollup-node-p2p, block signatures).
//!
//! Only pure functions over bytes. Recovery costs about 40 µs. It is the first expensive check of a
//! gossiped block, before any decoding.

use alloy_primitives::{Address, B256, Keccak256, keccak256};
use secp256k1::{
    Message, PublicKey, SECP256K1,
    ecdsa::{RecoverableSignature, RecoveryId},
};
use thiserror::Error;

pub use secp256k1::SecretKey;

/// Bytes of a signature: r ‖ s ‖ recovery id.
pub const SIGNATURE_LEN: usize = 65;

/// The domain of block signatures. Only this one, all zeros, is in use.
pub const DOMAIN_BLOCKS_V1: B256 = B256::ZERO;

/// The reason why a signer cannot be recovered, or a key not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum SignError {
    #[error("recovery id {0} is not in 0..=3")]
    RecoveryId(u8),
    #[error("signature does not recover to a public key")]
    Unrecoverable,
    #[error("secret key is not 32 hex-encoded bytes below the curve order")]
    SecretKey,
}

/// Hash of the signed bytes of a gossip message: `[parent beacon block root ‖] SSZ payload`.
pub fn payload_hash(signed_bytes: &[u8]) -> B256 {
    keccak256(signed_bytes)
}

/// The hash to be signed: `keccak(domain ‖ chain id, 32 bytes big-endian ‖ payload hash)`, without
/// any prefix.
pub fn signing_hash(chain_id: u64, payload_hash: B256) -> B256 {
    let mut hasher = Keccak256::new();
    hasher.update(DOMAIN_BLOCKS_V1);
    hasher.update(B256::left_padding_from(&chain_id.to_be_bytes()));
    hasher.update(payload_hash);
    hasher.finalize()
}

/// Signs the bytes of a block for `chain_id`. Deterministic (RFC 6979), low s, recovery id 0 or 1.
pub fn sign(secret: &SecretKey, chain_id: u64, signed_bytes: &[u8]) -> [u8; SIGNATURE_LEN] {
    sign_hash(secret, signing_hash(chain_id, payload_hash(signed_bytes)))
}

/// Signs the result of [`signing_hash`].
pub fn sign_hash(secret: &SecretKey, signing_hash: B256) -> [u8; SIGNATURE_LEN] {
    let signature = SECP256K1.sign_ecdsa_recoverable(&Message::from_digest(signing_hash.0), secret);
    let (id, r_s) = signature.serialize_compact();
    let mut out = [0; SIGNATURE_LEN];
    out[..64].copy_from_slice(&r_s);
    out[64] = i32::from(id) as u8;
    out
}

/// Recovers the signer of these bytes for `chain_id`. Every recovery id in 0..=3 is accepted.
pub fn recover(
    signature: &[u8; SIGNATURE_LEN],
    chain_id: u64,
    signed_bytes: &[u8],
) -> Result<Address, SignError> {
    recover_hash(
        signature,
        signing_hash(chain_id, payload_hash(signed_bytes)),
    )
}

/// Recovers the signer of this signing hash.
pub fn recover_hash(
    signature: &[u8; SIGNATURE_LEN],
    signing_hash: B256,
) -> Result<Address, SignError> {
    let id = RecoveryId::try_from(i32::from(signature[64]))
        .map_err(|_| SignError::RecoveryId(signature[64]))?;
    let signature = RecoverableSignature::from_compact(&signature[..64], id)
        .map_err(|_| SignError::Unrecoverable)?;
    let key = SECP256K1
        .recover_ecdsa(&Message::from_digest(signing_hash.0), &signature)
        .map_err(|_| SignError::Unrecoverable)?;
    Ok(public_key_address(&key))
}

/// The address of a secret key.
pub fn address(secret: &SecretKey) -> Address {
    public_key_address(&secret.public_key(SECP256K1))
}

/// Reads a secret key from hex, with or without `0x`.
pub fn secret_from_hex(hex: &str) -> Result<SecretKey, SignError> {
    let bytes: B256 = hex.trim().parse().map_err(|_| SignError::SecretKey)?;
    SecretKey::from_slice(bytes.as_slice()).map_err(|_| SignError::SecretKey)
}

fn public_key_address(key: &PublicKey) -> Address {
    // The first byte of the uncompressed form is a tag, not part of the key.
    Address::from_raw_public_key(&key.serialize_uncompressed()[1..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::b256;
    use proptest::prelude::*;

    #[test]
    fn the_known_signing_hash() {
        let hash = signing_hash(10, payload_hash(&[0x99; 32]));
        assert_eq!(
            hash,
            b256!("44a0e2b1aba1aae1771eddae1dcd2ad18a8cdac8891517153f03253e49d3f206")
        );
    }

    #[test]
    fn hostile_signatures_are_errors() {
        assert_eq!(recover(&[0; 65], 10, b"x"), Err(SignError::Unrecoverable));
        assert_eq!(
            recover(&[0xff; 65], 10, b"x"),
            Err(SignError::RecoveryId(0xff))
        );
        let mut all_ones = [0xff; 65];
        all_ones[64] = 3;
        assert_eq!(recover(&all_ones, 10, b"x"), Err(SignError::Unrecoverable));
        for bad in ["", "0x", "0x00", &"00".repeat(32), &"ff".repeat(32), "zz"] {
            assert_eq!(secret_from_hex(bad), Err(SignError::SecretKey), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_signature_recovers_to_its_signer_on_its_chain_only(
            secret in prop::array::uniform32(1u8..), chain_id: u64, bytes in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let secret = SecretKey::from_slice(&secret);
            prop_assume!(secret.is_ok());
            let secret = secret.unwrap();
            let signature = sign(&secret, chain_id, &bytes);
            prop_assert_eq!(recover(&signature, chain_id, &bytes), Ok(address(&secret)));
            prop_assert_ne!(recover(&signature, chain_id.wrapping_add(1), &bytes), Ok(address(&secret)));
        }

        #[test]
        fn recovery_never_panics(signature in prop::collection::vec(any::<u8>(), 65)) {
            let _ = recover(&signature.try_into().unwrap(), 1, b"");
        }
    }
}
