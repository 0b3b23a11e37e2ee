//! Overrides for a simulated call: of accounts, and of the block's environment.

use super::{Db, StateError, Vm, call::CallError};
use alloy_consensus::Header;
use alloy_eips::eip4895::Withdrawal;
use alloy_evm::{overrides::OverrideBlockHashes, precompiles::DynPrecompile};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256, map::HashMap};
use alloy_rpc_types_eth::state::{AccountOverride, StateOverride};
use revm::{
    Database, DatabaseCommit,
    bytecode::Bytecode,
    context::BlockEnv,
    context_interface::block::BlobExcessGasAndPrice,
    state::{Account as EvmAccount, EvmStorageSlot},
};
use std::collections::{BTreeMap, HashSet};

/// Overrides of the state and of the block environment.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub state: StateOverride,
    pub block: BlockOverrides,
}

/// Fields of a block that the caller of a simulation sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockOverrides {
    pub number: Option<U256>,
    pub difficulty: Option<U256>,
    /// Time of the block, Unix seconds.
    pub time: Option<u64>,
    pub gas_limit: Option<u64>,
    pub fee_recipient: Option<Address>,
    pub prev_randao: Option<B256>,
    /// Base fee in wei per gas.
    pub base_fee: Option<u64>,
    /// Wei per blob gas, which is not a field of the header.
    pub blob_base_fee: Option<u128>,
    /// Parent's beacon block root. Only a simulated block has one, not the environment of a call.
    pub beacon_root: Option<B256>,
    /// Withdrawals. Only a simulated block has them, not the environment of a call.
    pub withdrawals: Option<Vec<Withdrawal>>,
    /// Hashes that BLOCKHASH returns, by number.
    pub block_hashes: BTreeMap<u64, B256>,
}

/// The meaning of an override of an account that is a precompile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrecompileOverride {
    /// The account is no longer a precompile, and may have been moved.
    Applied,
    /// The account stays a precompile and cannot be moved.
    Refused,
}

impl BlockOverrides {
    /// Refuses overrides that the environment of a call does not have, in geth's words.
    pub(super) fn check_for_call(&self) -> Result<(), CallError> {
        let refused = |name: &str| {
            let text = format!("block override {name:?} is not supported for this RPC method");
            Err(CallError::Override(text))
        };
        if self.beacon_root.is_some() {
            return refused("beaconRoot");
        }
        if self.withdrawals.is_some() {
            return refused("withdrawals");
        }
        Ok(())
    }

    pub(super) fn apply(&self, env: &mut BlockEnv) {
        env.number = self.number.unwrap_or(env.number);
        env.difficulty = self.difficulty.unwrap_or(env.difficulty);
        env.timestamp = self.time.map_or(env.timestamp, U256::from);
        env.gas_limit = self.gas_limit.unwrap_or(env.gas_limit);
        env.beneficiary = self.fee_recipient.unwrap_or(env.beneficiary);
        env.prevrandao = self.prev_randao.or(env.prevrandao);
        env.basefee = self.base_fee.unwrap_or(env.basefee);
        if let Some(blob_gasprice) = self.blob_base_fee {
            let blob = env.blob_excess_gas_and_price;
            env.blob_excess_gas_and_price = Some(BlobExcessGasAndPrice {
                excess_blob_gas: blob.map_or(0, |blob| blob.excess_blob_gas),
                blob_gasprice,
            });
        }
    }

    pub(super) fn apply_hashes(&self, db: &mut Db) {
        db.override_block_hashes(self.block_hashes.clone());
    }

    /// Hides the hash of `block`, on whose state a call runs: geth knows it only for the block
    /// itself and, in a trace, for the next block.
    pub(super) fn hide_hash(&self, block: &Header, db: &mut Db) {
        if self.number.is_some() {
            db.override_block_hashes(BTreeMap::from([(block.number, B256::ZERO)]));
        }
    }

    /// Whether the block after `block` is simulated.
    pub(super) fn is_next(&self, block: &Header) -> bool {
        self.number == Some(U256::from(block.number) + U256::from(1))
    }
}

/// Applies the overrides of accounts in the order of their addresses, which decides which of several
/// errors is reported.
pub(super) fn override_state(
    vm: &mut Vm,
    overrides: &StateOverride,
    precompiles: PrecompileOverride,
) -> Result<(), CallError> {
    let known = match precompiles {
        PrecompileOverride::Applied => vm.precompiles().addresses().copied().collect(),
        PrecompileOverride::Refused => HashSet::new(),
    };
    for (address, account) in sorted(overrides) {
        check_move(&known, overrides, *address, account)?;
        override_account(vm.db(), *address, account)?;
    }
    if precompiles == PrecompileOverride::Applied {
        override_precompiles(vm, overrides);
    }
    Ok(())
}

fn sorted(overrides: &StateOverride) -> BTreeMap<&Address, &AccountOverride> {
    overrides.iter().collect()
}

/// Refuses a move of an account that is none of the `known` precompiles, or to an account that is
/// overridden.
fn check_move(
    known: &HashSet<Address>,
    overrides: &StateOverride,
    from: Address,
    account: &AccountOverride,
) -> Result<(), CallError> {
    let refused = |text| Err(CallError::Override(text));
    match account.move_precompile_to {
        Some(_) if !known.contains(&from) => refused(format!("account {from} is not a precompile")),
        Some(to) if overrides.contains_key(&to) => {
            refused(format!("account {to} is already overridden"))
        }
        _ => Ok(()),
    }
}

fn override_account(
    db: &mut Db,
    address: Address,
    account: &AccountOverride,
) -> Result<(), CallError> {
    let slots = match (&account.state, &account.state_diff) {
        (Some(_), Some(_)) => return Err(CallError::StateAndDiff(address)),
        (slots, diff) => slots.as_ref().or(diff.as_ref()),
    };
    let mut info = db.basic(address).map_err(StateError::from)?;
    let info = info.get_or_insert_default();
    info.nonce = account.nonce.unwrap_or(info.nonce);
    info.balance = account.balance.unwrap_or(info.balance);
    if let Some(code) = &account.code {
        info.code_hash = keccak256(code);
        info.code = Some(bytecode(code));
    }
    let mut changed = EvmAccount::from(info.clone());
    changed.mark_touch();
    if account.state.is_some() {
        // An account that is destroyed and created again has no earlier slot.
        let mut gone = EvmAccount::default();
        gone.mark_touch();
        gone.mark_selfdestruct();
        db.commit(HashMap::from_iter([(address, gone)]));
        changed.mark_created();
    } else if slots.is_some_and(|slots| !slots.is_empty()) && info.is_empty() {
        // Slots of an empty account are kept only if the account is created with them.
        changed.mark_created();
    }
    for (slot, value) in slots.into_iter().flatten() {
        let (slot, value) = (U256::from_be_bytes(slot.0), U256::from_be_bytes(value.0));
        // The inverted earlier value makes the slot count as changed.
        let changed_slot = EvmStorageSlot::new_changed(!value, value, 0);
        changed.storage.insert(slot, changed_slot);
    }
    db.commit(HashMap::from_iter([(address, changed)]));
    Ok(())
}

/// The code as the EVM runs it. A delegation that is malformed is code that cannot be run.
fn bytecode(code: &Bytes) -> Bytecode {
    Bytecode::new_raw_checked(code.clone()).unwrap_or_else(|_| Bytecode::new_legacy(code.clone()))
}

/// Removes the precompiles at overridden addresses, and installs precompiles at the addresses to which
/// they are moved. The moves have been checked.
pub(super) fn override_precompiles(vm: &mut Vm, overrides: &StateOverride) {
    let precompiles = vm.precompiles();
    let mut moved: Vec<(Address, DynPrecompile)> = Vec::new();
    for (from, account) in sorted(overrides) {
        if precompiles.get(from).is_none() {
            continue;
        }
        precompiles.apply_precompile(from, |precompile| {
            moved.extend(account.move_precompile_to.zip(precompile));
            None
        });
    }
    for (to, precompile) in moved {
        precompiles.apply_precompile(&to, |_| Some(precompile));
    }
}
