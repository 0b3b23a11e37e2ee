//! Verifies contract storage in an `eth_getProof` response (EIP-1186) against a block's state root.
//! Pure.

use super::{L1Block, RpcCause};
use alloy_primitives::{Address, B256, KECCAK256_EMPTY, keccak256};
use alloy_rpc_types_eth::EIP1186AccountProofResponse;
use alloy_trie::{Nibbles, TrieAccount, proof::verify_proof};

/// The value of a contract's slot after `block`; zero if the proof shows that the slot is empty.
/// Errors do not quote the proof, since the endpoint chooses its size.
pub(super) fn storage(
    proof: &EIP1186AccountProofResponse,
    contract: Address,
    slot: B256,
    block: &L1Block,
) -> Result<B256, RpcCause> {
    let untrue = |what: String| {
        RpcCause::Untrue(format!(
            "{what} does not lead to the state root of block {}",
            block.hash
        ))
    };
    let path = Nibbles::unpack(keccak256(contract));
    if verify_proof(block.state_root, path, None, &proof.account_proof).is_ok()
        || proof.code_hash == KECCAK256_EMPTY
    {
        return Err(RpcCause::Malformed(format!(
            "no contract at {contract} in block {}",
            block.hash
        )));
    }
    let account = TrieAccount {
        nonce: proof.nonce,
        balance: proof.balance,
        storage_root: proof.storage_hash,
        code_hash: proof.code_hash,
    };
    verify_proof(
        block.state_root,
        path,
        Some(alloy_rlp::encode(account)),
        &proof.account_proof,
    )
    .map_err(|_| untrue(format!("the proof of account {contract}")))?;
    let [slot_proof] = &proof.storage_proof[..] else {
        return Err(RpcCause::Malformed(format!(
            "{} slots are proven where one was requested",
            proof.storage_proof.len()
        )));
    };
    // A trie stores no zeros: the absence of a leaf proves that the slot is empty.
    let value = (!slot_proof.value.is_zero()).then(|| alloy_rlp::encode(slot_proof.value));
    verify_proof(
        proof.storage_hash,
        Nibbles::unpack(keccak256(slot)),
        value,
        &slot_proof.proof,
    )
    .map_err(|_| untrue(format!("the proof of slot {slot} of {contract}")))?;
    Ok(slot_proof.value.into())
}

#[cfg(test)]
mod tests;
