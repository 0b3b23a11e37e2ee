//! Parts of the state by range: the slots of a contract, accounts, whole dumps.
//!
//! Tries are keyed by hashes. The node knows the addresses and slots behind these hashes only as
//! far as it has kept them (`--cache.preimages`); other entries are named by their hashes. Each
//! response has a bounded number of entries and names the start of the next response.

use crate::{
    chain::{
        changes::StorageChange,
        evm::Deadline,
        replay::Replay,
        rows::{account::decode_slot, keys},
        view::{Account, KeyNames, State, View},
    },
    rpc::{
        context::RpcContext,
        error::{Reply, RpcError, reply},
        eth::block_arg::{BlockArg, BlockTag},
        params::{Arg, Args, Count, Json},
        trace_session::{known_number, replay_by_hash},
    },
};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, keccak256};
use alloy_trie::EMPTY_ROOT_HASH;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serialize;
use std::{collections::BTreeMap, sync::Arc};

/// Maximum slots in one response.
const MAX_SLOTS: usize = 1024;
/// Entries between two checks of the deadline.
const CHECK_EVERY: usize = 64;
/// Maximum accounts in a dump (geth's limit for one response of `debug_accountRange`).
const MAX_ACCOUNTS: usize = 256;

/// The value of a slot. The slot's hash is the key of the map.
#[derive(Serialize)]
struct SlotEntry {
    /// The slot itself; `None` if only its hash is known.
    key: Option<B256>,
    value: B256,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct StorageRange {
    storage: Option<BTreeMap<B256, SlotEntry>>,
    next_key: Option<B256>,
}

/// `debug_storageRangeAt(block, index, address, start, count)`: slots of a contract before the
/// transaction at `index`, beginning with the first slot whose hash is at or after `start`.
pub fn storage_range_at(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let mut args = args.at_most(5)?;
    let (block, Json(index)): (BlockArg, Json<i64>) = (args.required()?, args.required()?);
    let (address, start): (Address, Bytes) = (args.required()?, args.required()?);
    let Count(count) = args.required()?;
    let view = context.view();
    let mut replay = match block {
        BlockArg::Hash(hash) => replay_by_hash(context, &view, hash, deadline)?,
        BlockArg::Tag(_) => {
            let number = known_number(context, &view, block)?;
            Replay::of_block(&context.chain.spec, &view, number, deadline)?
        }
    };
    replay.stand_before(usize::try_from(index).unwrap_or(usize::MAX))?;
    let changes = replay.vm().changes_so_far();
    let state = view
        .state_at(replay.header().number - 1)?
        .ok_or_else(|| RpcError::server("the state is pruned"))?;
    let account = keccak256(address);
    let mut start_hash = B256::ZERO;
    let length = start.len().min(32);
    start_hash[..length].copy_from_slice(&start[..length]);
    let gone = StorageChange {
        wiped: true,
        slots: BTreeMap::new(),
    };
    let change = match changes.accounts.get(&account) {
        Some(None) => Some(&gone),
        _ => changes.storages.get(&account),
    };
    let range = SlotRange {
        account,
        from: start_hash,
        count: usize::try_from(count).unwrap_or(MAX_SLOTS).min(MAX_SLOTS),
        change,
    };
    let mut range = range.read(&state, deadline)?;
    let names = state.names();
    for (hash, entry) in range.storage.iter_mut().flatten() {
        entry.key = names.slot(hash)?;
    }
    reply(range)
}

/// The slots of one account from `from` on. `change` is applied to them, because it is not in the
/// state yet.
struct SlotRange<'a> {
    account: B256,
    from: B256,
    count: usize,
    change: Option<&'a StorageChange>,
}

impl SlotRange<'_> {
    fn read(&self, state: &State, deadline: &Deadline) -> Result<StorageRange, RpcError> {
        let mut changed: BTreeMap<B256, U256> = BTreeMap::new();
        let mut wiped = false;
        if let Some(change) = self.change {
            wiped = change.wiped;
            let later = change.slots.range(self.from..);
            changed.extend(later.map(|(slot, value)| (*slot, *value)));
        }
        let prefix = keys::storage_prefix(&self.account);
        let from = keys::slot(&self.account, &self.from);
        let mut range = StorageRange::default();
        let mut seen = 0;
        let add = |range: &mut StorageRange, slot: B256, value: U256| {
            if value.is_zero() {
                return true;
            }
            let entries = range.storage.get_or_insert_default();
            if entries.len() == self.count {
                range.next_key = Some(slot);
                return false;
            }
            let value = B256::from(value);
            entries.insert(slot, SlotEntry { key: None, value });
            true
        };
        if !wiped {
            for row in state.scan(&prefix, &from)? {
                let (key, value) = row?;
                seen += 1;
                if seen % CHECK_EVERY == 0 {
                    deadline.check()?;
                }
                let slot = B256::from_slice(&key[key.len() - 32..]);
                while let Some(entry) = changed.first_entry().filter(|it| *it.key() < slot) {
                    let (slot, value) = entry.remove_entry();
                    if !add(&mut range, slot, value) {
                        return Ok(range);
                    }
                }
                let value = match changed.remove(&slot) {
                    Some(value) => value,
                    None => decode_slot(&value)?,
                };
                if !add(&mut range, slot, value) {
                    return Ok(range);
                }
            }
        }
        for (slot, value) in changed {
            if !add(&mut range, slot, value) {
                break;
            }
        }
        Ok(range)
    }
}

/// An account of a dump.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DumpAccount {
    balance: String,
    nonce: u64,
    root: B256,
    code_hash: B256,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<Bytes>,
    /// Slot values by slot, or by the slot's hash if the slot is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    storage: Option<BTreeMap<B256, String>>,
    /// `None` if only the hash of the address is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<Address>,
    /// Hash of the address.
    key: B256,
}

#[derive(Serialize)]
struct Dump {
    root: String,
    /// Accounts by checksummed address. An account whose address is unknown has the key
    /// `pre(hash)`, as in geth.
    accounts: BTreeMap<String, DumpAccount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Parts that a dump leaves out.
#[derive(Clone, Copy, Default)]
struct DumpOptions {
    no_code: bool,
    no_storage: bool,
    /// Whether accounts whose address is unknown are left out.
    only_known: bool,
}

/// The account at which a dump starts: bytes in hex, or in base64 as in the member `next`.
struct DumpStart(Bytes);

impl Arg for DumpStart {
    fn from_json(json: &str) -> Result<Self, String> {
        if let Ok(bytes) = Bytes::from_json(json) {
            return Ok(Self(bytes));
        }
        let text = String::from_json(json)?;
        STANDARD
            .decode(text)
            .map(|bytes| Self(bytes.into()))
            .map_err(|error| error.to_string())
    }
}

/// `debug_accountRange(block, start, count, nocode, nostorage, incompletes)`: accounts of the state
/// after a block.
pub fn account_range(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let mut args = args.at_most(6)?;
    let (block, DumpStart(start)): (BlockArg, DumpStart) = (args.required()?, args.required()?);
    let Count(count) = args.required()?;
    let (no_code, no_storage, incompletes): (bool, bool, bool) =
        (args.required()?, args.required()?, args.required()?);
    let options = DumpOptions {
        no_code,
        no_storage,
        only_known: !incompletes,
    };
    let count = match usize::try_from(count) {
        Ok(0) | Err(_) => MAX_ACCOUNTS,
        Ok(count) => count.min(MAX_ACCOUNTS),
    };
    let view = context.view();
    reply(dump(
        context, &view, block, &start, count, options, deadline,
    )?)
}

/// `debug_dumpBlock(number)`: the first accounts of the state after a block. The rest of a large
/// state has to be read with `debug_accountRange`.
pub fn dump_block(context: &RpcContext, args: Args, deadline: &Deadline) -> Reply {
    let tag: BlockTag = args.at_most(1)?.required()?;
    let options = DumpOptions::default();
    let view = context.view();
    let block = BlockArg::Tag(tag);
    reply(dump(
        context,
        &view,
        block,
        &[],
        MAX_ACCOUNTS,
        options,
        deadline,
    )?)
}

fn dump(
    context: &RpcContext,
    view: &Arc<View>,
    block: BlockArg,
    start: &[u8],
    count: usize,
    options: DumpOptions,
    deadline: &Deadline,
) -> Result<Dump, RpcError> {
    let number = known_number(context, view, block)?;
    let state = BlockArg::Tag(BlockTag::Number(number)).state(context, view)?;
    let mut from = B256::ZERO;
    let length = start.len().min(32);
    from[..length].copy_from_slice(&start[..length]);
    let mut dump = Dump {
        root: format!("{:x}", state.header().state_root),
        accounts: BTreeMap::new(),
        next: None,
    };
    let names = state.names();
    let mut unknown = false;
    let rows = state.scan(&keys::account_prefix(), &keys::account(&from))?;
    for row in rows {
        let (key, row) = row?;
        deadline.check()?;
        let hash = B256::from_slice(&key[key.len() - 32..]);
        if dump.accounts.len() == count {
            dump.next = Some(STANDARD.encode(hash));
            break;
        }
        let address = names.address(&hash)?;
        if options.only_known && address.is_none() {
            unknown = true;
            continue;
        }
        let account = Account::decode(&row)?;
        let mut entry = dump_account(&state, hash, &account, options, deadline)?;
        entry.address = address;
        entry.storage = entry
            .storage
            .map(|slots| named(&names, slots))
            .transpose()?;
        let name = address.map_or_else(|| format!("pre({hash})"), |it| it.to_string());
        dump.accounts.insert(name, entry);
    }
    if unknown && dump.accounts.is_empty() {
        let text = "no address behind the hashes of accounts is known: call with `incompletes` set to true, or run the node with --cache.preimages";
        return Err(RpcError::server(text));
    }
    Ok(dump)
}

/// Replaces the hash of each slot by the slot itself, where it is known.
fn named(
    names: &KeyNames,
    slots: BTreeMap<B256, String>,
) -> Result<BTreeMap<B256, String>, RpcError> {
    let slots = slots.into_iter();
    slots
        .map(|(hash, value)| Ok((names.slot(&hash)?.unwrap_or(hash), value)))
        .collect()
}

fn dump_account(
    state: &State,
    hash: B256,
    account: &Account,
    options: DumpOptions,
    deadline: &Deadline,
) -> Result<DumpAccount, RpcError> {
    let code = match account.code_hash {
        KECCAK256_EMPTY => None,
        _ if options.no_code => None,
        code_hash => state.code(code_hash)?,
    };
    let mut storage = None;
    if !options.no_storage && account.storage_root != EMPTY_ROOT_HASH {
        let range = SlotRange {
            account: hash,
            from: B256::ZERO,
            count: MAX_SLOTS,
            change: None,
        };
        let range = range.read(state, deadline)?;
        if range.next_key.is_some() {
            let text = format!(
                "the account {hash} has more than {MAX_SLOTS} slots: call with `nostorage` set to true, and read its slots with debug_storageRangeAt"
            );
            return Err(RpcError::server(text));
        }
        let slots = range.storage.unwrap_or_default().into_iter();
        let short = |value: B256| format!("{:02x}", U256::from_be_bytes(value.0));
        storage = Some(
            slots
                .map(|(slot, entry)| (slot, short(entry.value)))
                .collect(),
        );
    }
    Ok(DumpAccount {
        balance: account.balance.to_string(),
        nonce: account.nonce,
        root: account.storage_root,
        code_hash: account.code_hash,
        code,
        storage,
        address: None,
        key: hash,
    })
}
