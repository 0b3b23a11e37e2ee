//! Calls that run one after another, each on the state after the earlier calls, in blocks whose
//! environment the caller chooses (`eth_simulateV1`, `eth_callMany`).
//!
//! Nothing is persisted. The bounds are the gas limit that the caller sets for each call, and one
//! deadline for all calls together.

use super::{
    BlockOverrides, CallError, CallInput, CallOutcome, CallRefusal, Deadline, EvmUse, NumberedLog,
    ParentState, StateError, Vm, block_env,
    call::transaction,
    call_logs::CallLogs,
    deadline::StateReader,
    overrides::{Overrides, PrecompileOverride, override_state},
    state_of,
    watch::Watcher,
};
use crate::chain::{changes::Changes, rules::ChainSpec};
use alloy_consensus::Header;
use alloy_evm::overrides::OverrideBlockHashes;
use alloy_op_evm::OpTx;
use alloy_primitives::{Address, B256, Bytes, U256, map::HashMap};
use alloy_rpc_types_eth::state::StateOverride;
use op_revm::OpTransaction;
use revm::{
    DatabaseCommit,
    context::{BlockEnv, TxEnv},
    state::Account as EvmAccount,
};
use std::{collections::BTreeMap, sync::Arc};

/// A sequence of calls, currently in one block, on the state after the earlier calls and blocks.
pub struct SimulatedCalls {
    spec: Arc<ChainSpec>,
    vm: Vm,
    /// Base fee in wei per gas.
    base_fee: u64,
    /// Whether nonces and fees are checked as in a block. If not, any nonce is valid, and a call
    /// without a fee pays none.
    validation: bool,
}

/// Result of one call of a sequence.
#[derive(Clone, Debug)]
pub struct CallWithLogs {
    pub outcome: CallOutcome,
    /// The logs, numbered within the block.
    pub logs: Vec<NumberedLog>,
}

/// An observer that records the logs of a block, with `transfers` also transfers of value.
fn recorder(transfers: bool) -> Watcher {
    Watcher::Logs(CallLogs::new(transfers))
}

impl SimulatedCalls {
    /// Starts a sequence in the environment of the block with this header.
    pub fn new(
        spec: Arc<ChainSpec>,
        header: &Header,
        state: ParentState,
        deadline: Deadline,
        validation: bool,
    ) -> Self {
        let env = block_env(&spec, header);
        let base_fee = env.basefee;
        let db = state_of(StateReader::new(state, Some(deadline)));
        let vm = Vm::with(&spec, env, db, EvmUse::Simulation);
        Self {
            spec,
            vm,
            base_fee,
            validation,
        }
    }

    /// Continues in the environment of another block, whose logs are numbered from zero. With
    /// `transfers`, transfers of value are recorded as logs too.
    pub fn enter(self, header: &Header, blob_base_fee: Option<u128>, transfers: bool) -> Self {
        let mut env = block_env(&self.spec, header);
        let overrides = BlockOverrides {
            blob_base_fee,
            ..BlockOverrides::default()
        };
        overrides.apply(&mut env);
        self.go_on(env, recorder(transfers))
    }

    /// Continues in the environment of a block with these overrides.
    pub fn enter_overridden(
        self,
        header: &Header,
        overrides: &Overrides,
    ) -> Result<Self, CallError> {
        let Overrides { state, block } = overrides;
        block.check_for_call()?;
        let mut env = block_env(&self.spec, header);
        block.apply(&mut env);
        let mut next = self.go_on(env, Watcher::Idle);
        block.apply_hashes(next.vm.db());
        next.override_state(state)?;
        Ok(next)
    }

    fn go_on(self, env: BlockEnv, watcher: Watcher) -> Self {
        let base_fee = env.basefee;
        let mut vm = Vm::with(&self.spec, env, self.vm.into_db(), EvmUse::Simulation);
        vm.set_watcher(watcher);
        Self {
            vm,
            base_fee,
            ..self
        }
    }

    pub fn override_state(&mut self, overrides: &StateOverride) -> Result<(), CallError> {
        override_state(&mut self.vm, overrides, PrecompileOverride::Applied)
    }

    /// The EVM, for the system calls at the start of a block.
    pub fn vm(&mut self) -> &mut Vm {
        &mut self.vm
    }

    /// Sets the hashes that BLOCKHASH returns, by number.
    pub fn set_block_hashes(&mut self, hashes: BTreeMap<u64, B256>) {
        self.vm.db().override_block_hashes(hashes);
    }

    /// Adds to the balance of an account.
    pub fn credit(&mut self, address: Address, wei: U256) -> Result<(), StateError> {
        self.vm.credit(address, wei)
    }

    fn commit(&mut self, address: Address, mut account: EvmAccount) {
        account.mark_touch();
        let changes = HashMap::from_iter([(address, account)]);
        self.vm.db().commit(changes);
    }

    /// The net changes of all calls so far, relative to the state at the start of the sequence.
    pub fn changes(&mut self) -> Changes {
        self.vm.changes_so_far()
    }

    /// Runs a call with this gas limit and keeps its changes. The sender's nonce in the state is
    /// used; with validation, a nonce in `input` must equal it. A refused call changes nothing.
    pub fn run(&mut self, input: &CallInput, gas: u64) -> Result<CallWithLogs, CallError> {
        let mut tx = transaction(input, gas)?;
        tx.gas_limit = gas;
        let nonce = self.vm.nonce(tx.caller)?;
        self.check(&tx, nonce, input.nonce)
            .map_err(|error| error.refused(gas))?;
        let free = tx.gas_price == 0 && tx.gas_priority_fee.unwrap_or(0) == 0;
        self.vm.set_fees(!self.validation && free);
        // revm refuses the highest nonce even if nonces are not checked.
        tx.nonce = nonce.min(u64::MAX - 1);
        let request = OpTx(OpTransaction {
            base: tx.clone(),
            enveloped_tx: Some(Bytes::new()),
            deposit: Default::default(),
        });
        let (result, state) = self.vm.run(request).map_err(|error| {
            match CallRefusal::new(error, &tx, self.base_fee) {
                Ok(refusal) => CallError::Refused { refusal, gas },
                Err(error) => CallError::State(error),
            }
        })?;
        self.vm.db().commit(state);
        if nonce == u64::MAX {
            self.wrap_nonce(tx.caller)?;
        }
        let logs = self.vm.take_logs();
        Ok(CallWithLogs {
            outcome: CallOutcome::new(result),
            logs,
        })
    }

    /// Sets a sender's nonce to zero after the highest nonce, as geth does; revm leaves it at the
    /// highest.
    fn wrap_nonce(&mut self, address: Address) -> Result<(), StateError> {
        let mut info = self.vm.account(address)?.unwrap_or_default();
        info.nonce = 0;
        self.commit(address, EvmAccount::from(info));
        Ok(())
    }

    /// geth's checks of a transaction against the state, in geth's order. `state` is the nonce in
    /// the state, `given` the nonce in the call.
    fn check(&mut self, tx: &TxEnv, state: u64, given: Option<u64>) -> Result<(), UnrunCall> {
        let from = tx.caller;
        if self.validation {
            let nonce = given.unwrap_or(state);
            if nonce < state {
                let tx = nonce;
                return Err(CallRefusal::NonceTooLow { from, tx, state }.into());
            }
            if nonce > state {
                let tx = nonce;
                return Err(CallRefusal::NonceTooHigh { from, tx, state }.into());
            }
            if nonce == u64::MAX {
                return Err(CallRefusal::NonceMax { from, nonce }.into());
            }
        }
        let (fee, tip) = (tx.gas_price, tx.gas_priority_fee.unwrap_or(0));
        if self.validation || fee > 0 || tip > 0 {
            if tip > fee {
                return Err(CallRefusal::TipAboveFee { from, tip, fee }.into());
            }
            let base_fee = self.base_fee;
            if fee < base_fee.into() {
                let refusal = CallRefusal::FeeBelowBase {
                    from,
                    fee,
                    base_fee,
                };
                return Err(refusal.into());
            }
        }
        let cost = U256::from(tx.gas_limit).saturating_mul(U256::from(fee));
        let want = cost.saturating_add(tx.value);
        let account = self.vm.account(from)?;
        let have = account.map_or(U256::ZERO, |account| account.balance);
        if have < want {
            return Err(CallRefusal::Funds { from, have, want }.into());
        }
        Ok(())
    }
}

/// The reason why a call is not run.
enum UnrunCall {
    Refused(CallRefusal),
    State(StateError),
}

impl From<CallRefusal> for UnrunCall {
    fn from(refusal: CallRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StateError> for UnrunCall {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl UnrunCall {
    /// The error for a call with this gas limit.
    fn refused(self, gas: u64) -> CallError {
        match self {
            Self::Refused(refusal) => CallError::Refused { refusal, gas },
            Self::State(error) => CallError::State(error),
        }
    }
}
