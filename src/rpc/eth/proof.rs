//! `eth_getProof` (EIP-1186): an account and its slots, with the trie nodes that prove them.

use super::{block_arg::BlockArg, state::StorageKey};
use crate::{
    chain::{evm::Deadline, trie::TrieError},
    rpc::{
        context::RpcContext,
        error::{Reply, RpcError, reply},
        params::{Args, List},
    },
};
use alloy_primitives::{Address, B256, Bytes, U64, U256};
use serde::Serialize;

/// Maximum slots in one request.
pub const MAX_SLOTS: usize = 1024;
/// Slots between two checks of the deadline. A slot costs tens of microseconds if its trie nodes
/// are cached.
const CHUNK: usize = 32;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AccountProofJson {
    address: Address,
    account_proof: Vec<Bytes>,
    balance: U256,
    code_hash: B256,
    nonce: U64,
    storage_hash: B256,
    storage_proof: Vec<SlotJson>,
}

#[derive(Debug, Serialize)]
struct SlotJson {
    /// The key of the slot: 32 bytes if the request has it in that form, otherwise a quantity.
    key: String,
    value: U256,
    proof: Vec<Bytes>,
}

impl From<TrieError> for RpcError {
    fn from(error: TrieError) -> Self {
        Self::server(error.to_string())
    }
}

/// `eth_getProof`: for an account that does not exist, the hashes are zeros, as geth prints them.
pub fn get_proof(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let mut args = args.at_most(3)?;
    let (address, List(keys)): (Address, List<String>) = (args.required()?, args.required()?);
    let block: BlockArg = args.optional()?.unwrap_or_default();
    if keys.len() > MAX_SLOTS {
        return Err(RpcError::invalid_params(format!(
            "too many slots (max {MAX_SLOTS})"
        )));
    }
    let keys = keys
        .iter()
        .map(|key| key.parse())
        .collect::<Result<Vec<StorageKey>, _>>()?;
    let view = block.view(context);
    let number = block.known_number(context, &view)?;
    let state = view.provable_state(number, address)?.ok_or_else(|| {
        let oldest = view.oldest_proof(address);
        RpcError::server(format!(
            "proofs at block #{number} are pruned, the oldest are at block #{oldest}"
        ))
    })?;
    deadline.check()?;
    let slots: Vec<U256> = keys.iter().map(|key| key.slot).collect();
    let mut chunks = slots.chunks(CHUNK);
    let mut proof = state.prove(address, chunks.next().unwrap_or_default())?;
    for chunk in chunks {
        deadline.check()?;
        proof.slots.extend(state.prove(address, chunk)?.slots);
    }
    let storage_proof = keys.iter().zip(proof.slots).map(|(key, slot)| SlotJson {
        key: if key.whole {
            B256::from(key.slot).to_string()
        } else {
            format!("{:#x}", key.slot)
        },
        value: slot.value,
        proof: slot.nodes,
    });
    reply(AccountProofJson {
        address,
        account_proof: proof.nodes,
        balance: proof.account.map_or(U256::ZERO, |account| account.balance),
        code_hash: proof
            .account
            .map_or(B256::ZERO, |account| account.code_hash),
        nonce: U64::from(proof.account.map_or(0, |account| account.nonce)),
        storage_hash: proof
            .account
            .map_or(B256::ZERO, |account| account.storage_root),
        storage_proof: storage_proof.collect(),
    })
}
