//! Overrides for a simulated call: of accounts, and of the block's environment.

use super::{Db, Vm, call::CallError};
use alloy_evm::overrides::{OverrideBlockHashes, StateOverrideError, apply_state_overrides};
use alloy_primitives::{Address, U256};
use alloy_rpc_types_eth::{BlockOverrides, state::StateOverride};
use revm::context::BlockEnv;
use std::collections::{BTreeSet, HashSet};

/// Overrides of the state and of the block environment.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub state: StateOverride,
    pub block: BlockOverrides,
}

impl Overrides {
    pub(super) fn apply_to_block(&self, env: &mut BlockEnv) {
        override_block(env, &self.block);
    }

    /// Applies the overrides of accounts and of block hashes to the state.
    pub(super) fn apply_to_state(&self, db: &mut Db) -> Result<(), CallError> {
        if let Some(hashes) = &self.block.block_hash {
            db.override_block_hashes(hashes.clone());
        }
        override_accounts(db, &self.state)
    }
}

pub(super) fn override_block(env: &mut BlockEnv, overrides: &BlockOverrides) {
    let BlockOverrides {
        number,
        difficulty,
        time,
        gas_limit,
        coinbase,
        random,
        base_fee,
        ..
    } = overrides;
    env.number = number.unwrap_or(env.number);
    env.difficulty = difficulty.unwrap_or(env.difficulty);
    env.timestamp = time.map_or(env.timestamp, U256::from);
    env.gas_limit = gas_limit.unwrap_or(env.gas_limit);
    env.beneficiary = coinbase.unwrap_or(env.beneficiary);
    env.prevrandao = random.or(env.prevrandao);
    env.basefee = base_fee.map_or(env.basefee, |fee| fee.saturating_to());
}

/// Applies the overrides of accounts and of precompiles.
pub(super) fn override_state(vm: &mut Vm, overrides: &StateOverride) -> Result<(), CallError> {
    override_precompiles(vm, overrides)?;
    override_accounts(vm.db(), overrides)
}

fn override_accounts(db: &mut Db, overrides: &StateOverride) -> Result<(), CallError> {
    apply_state_overrides(overrides.clone(), db).map_err(|error| match error {
        StateOverrideError::BothStateAndStateDiff(account) => CallError::StateAndDiff(account),
        StateOverrideError::InvalidBytecode(error) => CallError::Override(error.to_string()),
        StateOverrideError::Database(error) => CallError::State(error.into()),
    })
}

/// Applies the overrides of precompiles: an overridden address is no longer a precompile, and the
/// precompile may be moved to another address. Errors are reported in the order of addresses, as in
/// geth.
pub(super) fn override_precompiles(
    vm: &mut Vm,
    overrides: &StateOverride,
) -> Result<(), CallError> {
    let precompiles = vm.precompiles();
    let known: HashSet<Address> = precompiles.addresses().copied().collect();
    let addresses: BTreeSet<&Address> = overrides.keys().collect();
    let mut moves = Vec::new();
    for from in addresses {
        let Some(to) = overrides[from].move_precompile_to else {
            if known.contains(from) {
                precompiles.apply_precompile(from, |_| None);
            }
            continue;
        };
        if !known.contains(from) {
            return Err(CallError::Override(format!(
                "account {from} is not a precompile"
            )));
        }
        if overrides.contains_key(&to) {
            return Err(CallError::Override(format!(
                "account {to} is already overridden"
            )));
        }
        moves.push((*from, to));
    }
    precompiles
        .move_precompiles(moves)
        .map_err(|error| CallError::Override(error.to_string()))
}
