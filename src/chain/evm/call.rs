//! Simulated calls: `eth_call`, `eth_estimateGas` and `eth_createAccessList`, with geth's semantics
//! and messages.
//!
//! Nothing is persisted. There is no L1 fee, since the call has no transaction envelope. Without a
//! gas price the base fee is zero, also for the BASEFEE opcode. Callers choose the block whose
//! environment is used. That block's gas limit does not bound a call; the gas and the deadline of
//! the [`CallRequest`] do.

mod sequence;

pub use sequence::{CallSequence, TraceCallError};

use super::{
    Db, Deadline, EvmUse, RunError, Vm,
    access_list::Accesses,
    block_env,
    deadline::StateReader,
    overrides::{Overrides, PrecompileOverride, override_state},
    parent::{ParentState, StateError},
    refusal::CallRefusal,
    state_of,
    text::{halt_text, revert_text},
};
use crate::chain::rules::{ChainSpec, MAX_TRANSACTION_GAS, TRANSFER_GAS};
use alloy_consensus::Header;
use alloy_eips::{eip2930::AccessList, eip7702::SignedAuthorization};
use alloy_op_evm::OpTx;
use alloy_primitives::{Address, B256, Bytes, Log, TxKind, U256};
use op_revm::{OpHaltReason, OpTransaction};
use revm::{
    context::{BlockEnv, TxEnv, either::Either},
    context_interface::result::ExecutionResult,
};
use std::collections::HashSet;

/// Default limit on the gas of one call (geth's `--rpc.gascap`).
pub const RPC_GAS_CAP: u64 = 50_000_000;
/// Gas that the callee of a call with value gets in addition.
const CALL_STIPEND: u64 = 2_300;
/// Gas that each authorization costs before anything is executed (EIP-7702).
const AUTHORIZATION_GAS: u64 = 25_000;
/// Estimation stops once (high - low) / high is below this many thousandths.
const ESTIMATE_TOLERANCE: u64 = 15;
/// Largest number of runs of a call before its access list must be stable. A new list changes the
/// gas of the next run, and that may change the addresses and slots that the call touches.
const ACCESS_LIST_RUNS: usize = 16;

/// A call as a JSON-RPC request describes it. Fees are in wei per gas: a call with both `gas_price`
/// and a field of EIP-1559 is refused.
#[derive(Clone, Debug, Default)]
pub struct CallInput {
    pub from: Address,
    /// The callee; `None` creates a contract.
    pub to: Option<Address>,
    /// Gas limit of the call, capped at [`CallRequest::gas_cap`]. Default: the cap, or for an
    /// estimate the block's gas limit.
    pub gas: Option<u64>,
    pub gas_price: Option<u128>,
    pub max_fee_per_gas: Option<u128>,
    pub max_priority_fee_per_gas: Option<u128>,
    pub value: U256,
    pub data: Bytes,
    /// Used only by `SimulatedCalls` with validation, which checks it. The address of a created
    /// contract is computed from the nonce in the state.
    pub nonce: Option<u64>,
    pub access_list: AccessList,
    /// An empty list is refused, unlike none.
    pub authorization_list: Option<Vec<SignedAuthorization>>,
    /// Blob hashes, for the opcode BLOBHASH. An empty list is refused, unlike none.
    pub blob_hashes: Option<Vec<B256>>,
}

impl CallInput {
    pub fn authorizations(&self) -> &[SignedAuthorization] {
        self.authorization_list.as_deref().unwrap_or_default()
    }
}

/// A call in the environment of `block`, on `state`. For the latest block, `block` is the head and
/// `state` is the state after the head.
pub struct CallRequest<'a> {
    pub spec: &'a ChainSpec,
    pub state: ParentState,
    pub block: &'a Header,
    pub input: &'a CallInput,
    pub overrides: &'a Overrides,
    /// Highest gas limit of one run.
    pub gas_cap: u64,
    /// Deadline for all runs of the call together.
    pub deadline: Deadline,
}

/// Result of a call.
#[derive(Clone, Debug)]
pub struct CallOutcome {
    pub gas_used: u64,
    /// Highest gas used during the call, before refunds.
    pub max_gas_used: u64,
    pub output: Bytes,
    pub status: CallStatus,
    pub logs: Vec<Log>,
}

impl CallOutcome {
    pub(super) fn new(result: ExecutionResult<OpHaltReason>) -> Self {
        let (gas_used, max_gas_used) = (
            result.tx_gas_used(),
            result.gas().total_gas_spent().max(result.tx_gas_used()),
        );
        let (status, output, logs) = match result {
            ExecutionResult::Success { output, logs, .. } => {
                (CallStatus::Success, output.into_data(), logs)
            }
            ExecutionResult::Revert { output, .. } => {
                (CallStatus::Revert(revert_text(&output)), output, Vec::new())
            }
            ExecutionResult::Halt { reason, .. } => {
                let reason = match &reason {
                    OpHaltReason::Base(reason) => halt_text(reason),
                    OpHaltReason::FailedDeposit => "failed deposit".to_owned(),
                };
                (CallStatus::Halt(reason), Bytes::new(), Vec::new())
            }
        };
        Self {
            gas_used,
            max_gas_used,
            output,
            status,
            logs,
        }
    }
}

/// The way in which a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallStatus {
    Success,
    /// The call reverted. The text is geth's message; the revert data are in the outcome's
    /// `output`.
    Revert(String),
    /// The call failed otherwise. The text is geth's message.
    Halt(String),
}

/// The reason why a call was not run, in geth's wording.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified")]
    BothFees,
    #[error("err: {refusal} (supplied gas {gas})")]
    Refused { refusal: CallRefusal, gas: u64 },
    #[error("intrinsic gas too low: {gas} gas is less than the authorizations take")]
    Authorizations { gas: u64 },
    #[error(
        "the access list grew in each of {ACCESS_LIST_RUNS} runs: what the call touches depends on its gas"
    )]
    Unsettled,
    #[error("account {0} has both 'state' and 'stateDiff'")]
    StateAndDiff(Address),
    #[error("{0}")]
    Override(String),
    #[error(transparent)]
    State(#[from] StateError),
}

/// The access list of a call: the addresses and slots that the call touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessListOutcome {
    pub list: AccessList,
    /// Gas used by the call with this access list.
    pub gas_used: u64,
    /// The reason why the call fails, in geth's wording.
    pub error: Option<String>,
}

/// The reason why gas cannot be estimated.
#[derive(Debug, thiserror::Error)]
pub enum EstimateError {
    /// JSON-RPC error code 3: geth's message, with the call's output as data.
    #[error("{message}")]
    Reverted { message: String, output: Bytes },
    #[error("{0}")]
    Halted(String),
    #[error("gas required exceeds allowance ({0})")]
    Allowance(u64),
    #[error("failed with {gas} gas: {refusal}")]
    Refused { refusal: CallRefusal, gas: u64 },
    /// The value alone exhausts the sender's balance, or the balance is zero.
    #[error("insufficient funds for transfer")]
    FundsForTransfer,
    #[error(transparent)]
    Call(CallError),
}

impl From<CallError> for EstimateError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused { refusal, gas } => Self::Refused { refusal, gas },
            other => Self::Call(other),
        }
    }
}

/// Runs a call once.
pub fn call(request: CallRequest<'_>) -> Result<CallOutcome, CallError> {
    let gas = request.gas();
    RepeatedCall::new(request, PrecompileOverride::Applied)?.run(gas)
}

/// The lowest gas limit with which a call succeeds, up to 1.5 % too high.
pub fn estimate_gas(request: CallRequest<'_>) -> Result<u64, EstimateError> {
    let (spec, input, gas_cap) = (request.spec, request.input, request.gas_cap);
    let given = input.gas.filter(|gas| *gas >= TRANSFER_GAS);
    // An override of the block's gas limit is seen by the call, but limits no estimate.
    let mut high = given.unwrap_or(request.block.gas_limit);
    let mut simulation = RepeatedCall::new(request, PrecompileOverride::Applied)?;
    if simulation.fee_cap > 0 {
        let balance = simulation.balance(input.from)?;
        if input.value >= balance {
            return Err(EstimateError::FundsForTransfer);
        }
        let available = balance.saturating_sub(input.value);
        high = high.min((available / U256::from(simulation.fee_cap)).saturating_to());
    }
    high = high.min(gas_cap);
    if spec.at(simulation.timestamp).osaka {
        high = high.min(MAX_TRANSACTION_GAS);
    }
    let plain = input.data.is_empty()
        && input.authorizations().is_empty()
        && input.access_list.0.is_empty();
    if plain
        && let Some(to) = input.to
        && simulation.has_no_code(to)?
        && matches!(
            simulation.try_run(TRANSFER_GAS),
            Ok(Some(CallOutcome {
                status: CallStatus::Success,
                ..
            }))
        )
    {
        return Ok(TRANSFER_GAS);
    }
    let first = match simulation.try_run(high)? {
        Some(outcome) => outcome,
        None => return Err(EstimateError::Allowance(high)),
    };
    match first.status {
        CallStatus::Success => Ok(search(&mut simulation, &first, high)?),
        CallStatus::Revert(message) => Err(EstimateError::Reverted {
            message,
            output: first.output,
        }),
        CallStatus::Halt(message) if message == "out of gas" => Err(EstimateError::Allowance(high)),
        CallStatus::Halt(message) => Err(EstimateError::Halted(message)),
    }
}

/// Searches for the lowest gas limit up to `high` with which the call succeeds. `first` is the
/// outcome of the call with `high`.
fn search(
    simulation: &mut RepeatedCall,
    first: &CallOutcome,
    mut high: u64,
) -> Result<u64, CallError> {
    let mut enough = |gas| -> Result<bool, CallError> {
        Ok(simulation
            .try_run(gas)?
            .is_some_and(|outcome| outcome.status == CallStatus::Success))
    };
    let mut low = first.gas_used.saturating_sub(1);
    // A call passes on at most 63/64 of its gas: the gas used and the stipend must fit into that.
    let likely = first
        .max_gas_used
        .saturating_add(CALL_STIPEND)
        .saturating_mul(64)
        / 63;
    if likely < high {
        if enough(likely)? {
            high = likely
        } else {
            low = likely
        }
    }
    while low.saturating_add(1) < high {
        if (high - low) * 1000 / high < ESTIMATE_TOLERANCE {
            break;
        }
        // Most calls need little more gas than they use, so never try more than twice `low`.
        let middle = (high.midpoint(low)).min(low.saturating_mul(2).max(1));
        if enough(middle)? {
            high = middle
        } else {
            low = middle
        }
    }
    Ok(high)
}

/// The access list of a call: the addresses and slots that it touches, except addresses that are
/// warm anyway. Runs the call again with each new list until the list is stable.
pub fn create_access_list(request: CallRequest<'_>) -> Result<AccessListOutcome, CallError> {
    let (input, gas) = (request.input, request.gas());
    // Recovering the signers costs time, so refuse more authorizations than the gas can pay for.
    if (input.authorizations().len() as u64).saturating_mul(AUTHORIZATION_GAS) > gas {
        return Err(CallError::Authorizations { gas });
    }
    let mut simulation = RepeatedCall::new(request, PrecompileOverride::Refused)?;
    let to = match input.to {
        Some(to) => to,
        None => input.from.create(simulation.vm.nonce(input.from)?),
    };
    let mut warm: HashSet<Address> = simulation.vm.precompiles().addresses().copied().collect();
    warm.extend([input.from, to]);
    warm.extend(
        input
            .authorizations()
            .iter()
            .filter_map(|authorization| authorization.recover_authority().ok()),
    );
    let mut list = input.access_list.clone();
    for _ in 0..ACCESS_LIST_RUNS {
        let mut accesses = Accesses::new(warm.clone());
        accesses.extend(&list);
        simulation.set_access_list(accesses.list());
        list = accesses.list();
        simulation.vm.watch(accesses);
        let outcome = simulation.run(gas)?;
        let touched = simulation
            .vm
            .accesses()
            .map(Accesses::list)
            .unwrap_or_default();
        if touched == list {
            let error = match outcome.status {
                CallStatus::Success => None,
                CallStatus::Revert(_) => Some("execution reverted".to_owned()),
                CallStatus::Halt(message) => Some(message),
            };
            return Ok(AccessListOutcome {
                list,
                gas_used: outcome.gas_used,
                error,
            });
        }
        list = touched;
    }
    Err(CallError::Unsettled)
}

impl CallRequest<'_> {
    /// Gas limit of a single run.
    fn gas(&self) -> u64 {
        self.input.gas.unwrap_or(self.gas_cap).min(self.gas_cap)
    }
}

/// A call that can be run repeatedly with different gas.
struct RepeatedCall {
    vm: Vm,
    tx: TxEnv,
    /// The block's timestamp, in Unix seconds.
    timestamp: u64,
    /// The block's base fee in wei per gas; zero for a call without a gas price.
    base_fee: u64,
    /// Highest fee that the call pays, in wei per gas.
    fee_cap: u128,
}

impl RepeatedCall {
    fn new(request: CallRequest<'_>, precompiles: PrecompileOverride) -> Result<Self, CallError> {
        let gas = request.gas();
        let CallRequest {
            spec,
            state,
            block,
            input,
            overrides,
            deadline,
            ..
        } = request;
        let Overrides {
            state: accounts,
            block: fields,
        } = overrides;
        fields.check_for_call()?;
        let tx = transaction(input, gas)?;
        let mut env = block_env(spec, block);
        fields.apply(&mut env);
        let mut db = state_of(StateReader::new(state, Some(deadline)));
        fields.hide_hash(block, &mut db);
        fields.apply_hashes(&mut db);
        let mut simulation = Self::on(spec, env, db, tx);
        override_state(&mut simulation.vm, accounts, precompiles)?;
        Ok(simulation)
    }

    /// A call in the environment `env`, on the state `db`.
    fn on(spec: &ChainSpec, mut env: BlockEnv, db: Db, tx: TxEnv) -> Self {
        let fee_cap = tx.gas_price;
        if fee_cap == 0 {
            env.basefee = 0;
        }
        Self {
            tx,
            timestamp: env.timestamp.saturating_to(),
            base_fee: env.basefee,
            fee_cap,
            vm: Vm::with(spec, env, db, EvmUse::Simulation),
        }
    }

    /// The call as a transaction for the EVM, with this gas limit.
    fn with_gas(&self, gas: u64) -> OpTx {
        let base = TxEnv {
            gas_limit: gas,
            ..self.tx.clone()
        };
        OpTx(OpTransaction {
            base,
            enveloped_tx: Some(Bytes::new()),
            deposit: Default::default(),
        })
    }

    fn set_access_list(&mut self, list: AccessList) {
        self.tx.tx_type = self.tx.tx_type.max(1);
        self.tx.access_list = list;
    }

    fn balance(&mut self, address: Address) -> Result<U256, CallError> {
        Ok(self
            .vm
            .account(address)?
            .map_or(U256::ZERO, |account| account.balance))
    }

    fn has_no_code(&mut self, address: Address) -> Result<bool, CallError> {
        Ok(self
            .vm
            .account(address)?
            .is_none_or(|account| account.is_empty_code_hash()))
    }

    /// Runs the call; `None` if `gas` is less than the intrinsic gas or the floor of the call data.
    fn try_run(&mut self, gas: u64) -> Result<Option<CallOutcome>, CallError> {
        match self.run(gas) {
            Err(CallError::Refused {
                refusal: CallRefusal::IntrinsicGas { .. } | CallRefusal::FloorGas { .. },
                ..
            }) => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// Runs the call with this gas limit, without keeping its changes.
    fn run(&mut self, gas: u64) -> Result<CallOutcome, CallError> {
        // Later runs may read nothing and jump nowhere.
        self.vm.check_deadline()?;
        let (result, _) = self
            .vm
            .run(self.with_gas(gas))
            .map_err(|error| self.call_error(error, gas))?;
        Ok(CallOutcome::new(result))
    }

    /// Converts the reason why a call was not run to an error with geth's values.
    fn call_error(&self, error: RunError, gas: u64) -> CallError {
        match CallRefusal::new(error, &self.tx, self.base_fee) {
            Ok(refusal) => CallError::Refused { refusal, gas },
            Err(error) => CallError::State(error),
        }
    }
}

/// The call as a transaction for the EVM, still without a gas limit. `gas` is the limit that errors
/// name.
pub(super) fn transaction(input: &CallInput, gas: u64) -> Result<TxEnv, CallError> {
    let dynamic = input.max_fee_per_gas.is_some() || input.max_priority_fee_per_gas.is_some();
    if dynamic && input.gas_price.is_some() {
        return Err(CallError::BothFees);
    }
    if let Some(refusal) = CallRefusal::of_lists(input) {
        return Err(CallError::Refused { refusal, gas });
    }
    let fee = input.gas_price.or(input.max_fee_per_gas).unwrap_or(0);
    let tx_type = if input.authorization_list.is_some() {
        4
    } else if dynamic {
        2
    } else {
        u8::from(!input.access_list.0.is_empty())
    };
    Ok(TxEnv {
        tx_type,
        caller: input.from,
        gas_price: fee,
        gas_priority_fee: (tx_type == 2 || tx_type == 4)
            .then(|| input.max_priority_fee_per_gas.unwrap_or(0)),
        kind: input.to.map_or(TxKind::Create, TxKind::Call),
        value: input.value,
        data: input.data.clone(),
        // revm refuses the highest nonce even if nonces are not checked.
        nonce: input.nonce.unwrap_or(0).min(u64::MAX - 1),
        chain_id: None,
        access_list: input.access_list.clone(),
        authorization_list: input
            .authorizations()
            .iter()
            .cloned()
            .map(Either::Left)
            .collect(),
        // The call pays for no blob, so its type stays as it is.
        blob_hashes: input.blob_hashes.clone().unwrap_or_default(),
        ..Default::default()
    })
}
