//! Methods that read accounts.

use super::block_arg::{BlockArg, BlockTag};
use crate::{
    chain::{
        memory_only,
        rows::Account,
        view::{ReadError, State},
    },
    rpc::{
        context::RpcContext,
        error::{Reply, RpcError, reply},
        eth::proof::MAX_SLOTS,
        params::{Args, Json},
    },
};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U64, U256};
use serde::Serialize;
use std::{collections::BTreeMap, str::FromStr};

pub fn get_balance(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let (address, block): (Address, BlockArg) =
        (args.required()?, args.optional()?.unwrap_or_default());
    let account = block
        .state(context, &block.view(context))?
        .account(address)?;
    reply(account.map_or(U256::ZERO, |account| account.balance))
}

/// `eth_getTransactionCount`: the account's nonce. With `pending`, the sender's executable
/// transactions in the pool count too.
pub fn get_transaction_count(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let (address, block): (Address, BlockArg) =
        (args.required()?, args.optional()?.unwrap_or_default());
    let account = block
        .state(context, &block.view(context))?
        .account(address)?;
    let nonce = account.map_or(0, |account| account.nonce);
    let pending = block == BlockArg::Tag(BlockTag::Pending);
    // The pool may be locked while a block is removed from it.
    if pending && memory_only::refuses() {
        return Err(ReadError::NotInMemory.into());
    }
    reply(U64::from(if pending {
        context.chain.pool.next_nonce(&address, nonce)
    } else {
        nonce
    }))
}

pub fn get_code(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let (address, block): (Address, BlockArg) =
        (args.required()?, args.optional()?.unwrap_or_default());
    let state = block.state(context, &block.view(context))?;
    reply(code_of(&state, state.account(address)?)?)
}

/// An account as the state trie holds it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AccountJson {
    balance: U256,
    nonce: U64,
    storage_root: B256,
    code_hash: B256,
}

/// `eth_getAccount`: null if the account does not exist.
pub fn get_account(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let (address, block): (Address, BlockArg) =
        (args.required()?, args.optional()?.unwrap_or_default());
    let account = block
        .state(context, &block.view(context))?
        .account(address)?;
    reply(account.map(|account| AccountJson {
        balance: account.balance,
        nonce: U64::from(account.nonce),
        storage_root: account.storage_root,
        code_hash: account.code_hash,
    }))
}

#[derive(Serialize)]
struct AccountInfoJson {
    balance: U256,
    nonce: U64,
    code: Bytes,
}

/// `eth_getAccountInfo`: zeros if the account does not exist.
pub fn get_account_info(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let (address, block): (Address, BlockArg) =
        (args.required()?, args.optional()?.unwrap_or_default());
    let state = block.state(context, &block.view(context))?;
    let account = state.account(address)?;
    reply(AccountInfoJson {
        balance: account.map_or(U256::ZERO, |account| account.balance),
        nonce: U64::from(account.map_or(0, |account| account.nonce)),
        code: code_of(&state, account)?,
    })
}

/// The code of an account, empty if it has none.
fn code_of(state: &State, account: Option<Account>) -> Result<Bytes, ReadError> {
    let code = match account {
        Some(account) if account.code_hash != KECCAK256_EMPTY => state.code(account.code_hash)?,
        _ => None,
    };
    Ok(code.unwrap_or_default())
}

pub fn get_storage_at(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(3)?;
    let (address, key): (Address, String) = (args.required()?, args.required()?);
    let block: BlockArg = args.optional()?.unwrap_or_default();
    let StorageKey { slot, .. } = key.parse()?;
    let value = block
        .state(context, &block.view(context))?
        .storage(address, slot)?;
    reply(B256::from(value))
}

/// `eth_getStorageValues`: slots of many accounts at once.
pub fn get_storage_values(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let Json(wanted): Json<BTreeMap<Address, Vec<B256>>> = args.required()?;
    let block: BlockArg = args.optional()?.unwrap_or_default();
    let count: usize = wanted.values().map(Vec::len).sum();
    if count == 0 {
        return Err(RpcError::invalid_params("empty request"));
    }
    if count > MAX_SLOTS {
        return Err(RpcError::invalid_params(format!(
            "too many slots (max {MAX_SLOTS})"
        )));
    }
    let state = block.state(context, &block.view(context))?;
    let values = wanted.into_iter().map(|(address, slots)| {
        let value = |slot: B256| state.storage(address, slot.into()).map(B256::from);
        Ok((
            address,
            slots
                .into_iter()
                .map(value)
                .collect::<Result<Vec<_>, ReadError>>()?,
        ))
    });
    reply(values.collect::<Result<BTreeMap<_, _>, ReadError>>()?)
}

/// A storage key: hex of at most 32 bytes, with or without prefix and leading zeros.
pub struct StorageKey {
    pub slot: U256,
    /// Whether all 32 bytes were given.
    pub whole: bool,
}

impl FromStr for StorageKey {
    type Err = RpcError;

    fn from_str(text: &str) -> Result<Self, RpcError> {
        let digits = text
            .strip_prefix("0x")
            .or_else(|| text.strip_prefix("0X"))
            .unwrap_or(text);
        if digits.len() > 64 {
            return Err(RpcError::invalid_params(format!(
                "storage key too long (want at most 32 bytes): {text:?}"
            )));
        }
        let key: Option<Bytes> = format!("{digits:0>64}").parse().ok();
        let key = key.ok_or_else(|| {
            RpcError::invalid_params(format!("invalid hex in storage key: {text:?}"))
        })?;
        Ok(Self {
            slot: U256::from_be_slice(&key),
            whole: digits.len() > 62,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_keys_come_in_many_forms() {
        let storage_key = |text: &str| text.parse::<StorageKey>().map(|key| (key.slot, key.whole));
        for one in ["0x1", "0x01", "1"] {
            assert_eq!(storage_key(one).unwrap(), (U256::from(1), false));
        }
        assert_eq!(
            storage_key(&format!("0x{:064x}", 1)).unwrap(),
            (U256::from(1), true)
        );
        assert_eq!(storage_key("0x").unwrap(), (U256::ZERO, false));
        let error = storage_key("0xasdf").unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            (-32602, "invalid hex in storage key: \"0xasdf\"")
        );
        assert_eq!(storage_key(&"0".repeat(65)).unwrap_err().code, -32602);
    }
}
