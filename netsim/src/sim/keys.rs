//! Block signatures of a world: an address and a checksum of the signed bytes.
//!
//! Real signatures would take longer than all machines together. A world needs only two of their
//! properties: the signer can be recovered, and other bytes do not recover to it.

use alloy_primitives::Address;
use starling_proto::sign::{SIGNATURE_LEN, SignError};
use std::hash::{DefaultHasher, Hasher};

/// The address of key number `key`.
pub fn address(key: u8) -> Address {
    Address::repeat_byte(key + 1)
}

fn checksum(signer: &[u8], chain_id: u64, signed: &[u8]) -> [u8; 8] {
    let mut hasher = DefaultHasher::new();
    hasher.write(signer);
    hasher.write_u64(chain_id);
    hasher.write(signed);
    hasher.finish().to_le_bytes()
}

/// The signature of `signed` by `signer`.
pub fn sign(signer: Address, chain_id: u64, signed: &[u8]) -> [u8; SIGNATURE_LEN] {
    let mut signature = [0; SIGNATURE_LEN];
    signature[..20].copy_from_slice(signer.as_slice());
    signature[20..28].copy_from_slice(&checksum(signer.as_slice(), chain_id, signed));
    signature
}

/// The signer of `signed`: what [`starling_proto::sign::recover`] is to real signatures.
pub fn recover(
    signature: &[u8; SIGNATURE_LEN],
    chain_id: u64,
    signed: &[u8],
) -> Result<Address, SignError> {
    let (signer, rest) = signature.split_at(20);
    if rest[..8] == checksum(signer, chain_id, signed) {
        Ok(Address::from_slice(signer))
    } else {
        Err(SignError::Unrecoverable)
    }
}
