//! The EVM. Only this module uses revm's generic types. Other modules use [`Vm`] for blocks, and
//! [`call()`] and [`estimate_gas`] for simulated calls.
//!
//! A [`Vm`] runs the transactions of one block, in order, over the state of the parent block, and
//! returns the [`Changes`] of the block. Every block needs a new one, since it caches the block's
//! L1 fee parameters. Its cost is the gas that it may use, which callers bound: a block's gas
//! limit, or a call's gas and [`Deadline`].

mod access_list;
mod call;
mod call_logs;
mod codes;
mod deadline;
pub mod deploy;
mod ethereum;
mod overrides;
mod parent;
mod precompiles;
mod refusal;
mod simulated_calls;
mod text;
mod trace;
mod traced;
mod watch;

pub use call::{
    AccessListOutcome, CallError, CallInput, CallOutcome, CallRequest, CallSequence, CallStatus,
    EstimateError, RPC_GAS_CAP, TraceCallError, call, create_access_list, estimate_gas,
};
pub use call_logs::NumberedLog;
pub use deadline::{CancelOnDrop, Deadline, is_slow_precompile};
pub use op_revm::estimate_tx_compressed_size as estimated_size_scaled;
pub use overrides::{BlockOverrides, Overrides};
pub use parent::{ParentState, RecordedReads, RecordedState, StateError, WitnessState};
pub use precompiles::precompiles;
pub use refusal::CallRefusal;
pub use simulated_calls::{CallWithLogs, SimulatedCalls};
pub use text::revert_text;
pub use trace::{
    CallFrames, CallTracerConfig, ChunkSink, Erc7562Config, FlatCallConfig, FrameKind, FrameView,
    NamedTracer, ParityConfig, PrestateConfig, ScriptConnection, ScriptHost, ScriptSource,
    StructLogConfig, TraceError, TracePlace, TraceWriter, Tracer, TracerConfig, opcode_name,
    script::message as script_message,
};

use crate::chain::{
    changes::{AccountChange, Changes, KeyName, StorageChange},
    rules::ChainSpec,
    transaction::ChainTx,
};
use access_list::Accesses;
use alloy_consensus::{Header, transaction::Recovered};
use alloy_evm::{
    EthEvm, Evm, EvmEnv, EvmFactory, FromRecoveredTx, FromTxWithEncoded,
    precompiles::PrecompilesMap,
};
use alloy_op_evm::{OpEvm, OpEvmFactory, OpTx, OpTxError};
use alloy_primitives::{Address, B256, Bytes, Log, U256, keccak256, map::HashMap};
use deadline::{StateReader, interruptible};
use op_revm::{L1BlockInfo, OpHaltReason, OpSpecId, OpTransaction, OpTransactionError};
use precompiles::limit_pairing;
use revm::{
    Database, DatabaseCommit,
    bytecode::Bytecode,
    context::{BlockEnv, CfgEnv, TxEnv},
    context_interface::{
        JournalTr,
        block::BlobExcessGasAndPrice,
        result::{EVMError, ExecutionResult, HaltReason, InvalidTransaction, ResultAndState},
    },
    database::{
        BundleState, State,
        states::{CacheAccount, bundle_state::BundleRetention},
    },
    database_interface::bal::EvmDatabaseError,
    primitives::KECCAK_EMPTY,
    state::{Account as EvmAccount, AccountInfo, EvmState},
};
use starling_proto::fork::Fork;
use watch::Watcher;

/// Sender of the system calls at the start and the end of a block, for example EIP-4788's.
const SYSTEM_ADDRESS: Address = alloy_eips::eip4788::SYSTEM_ADDRESS;

/// Estimated bytes of an account, and of a slot, in revm's cache, including hash map overhead.
const ACCOUNT: usize = 256;
const SLOT: usize = 128;

/// The changes of a block so far, over the state of the block's parent.
type Db = State<StateReader>;
type DbError = EvmDatabaseError<StateError>;

/// An EVM for the transactions of one block.
pub struct Vm(VmKind);

enum VmKind {
    Optimism(Box<OpEvm<Db, Watcher, PrecompilesMap>>),
    Ethereum(Box<EthEvm<Db, Watcher, PrecompilesMap>>),
}

/// The changes of a block so far, from which execution can be resumed on another thread; a [`Vm`]
/// cannot be sent to another thread.
pub struct PausedVm {
    db: Db,
    /// The L1 fee parameters read in this block; `None` on Ethereum.
    l1_fees: Option<L1BlockInfo>,
}

/// Result of a transaction that was run.
#[derive(Clone, Debug)]
pub struct Executed {
    pub success: bool,
    pub gas_used: u64,
    pub logs: Vec<Log>,
}

/// The reason why a transaction was not run. The state is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The transaction is invalid at this position.
    #[error("{0}")]
    Invalid(String),
    /// The state could not be read; whether the transaction is valid is unknown.
    #[error(transparent)]
    State(#[from] StateError),
}

impl Vm {
    /// An EVM for the block with this header, on the state after its parent. The header's roots are
    /// not used.
    pub fn new(spec: &ChainSpec, header: &Header, parent: ParentState) -> Self {
        let db = state_of(StateReader::new(parent, None));
        Self::with(spec, block_env(spec, header), db, EvmUse::Block)
    }

    /// An EVM for a block that is executed again for a caller who waits until `deadline`.
    pub fn until(
        spec: &ChainSpec,
        header: &Header,
        parent: ParentState,
        deadline: Deadline,
    ) -> Self {
        let db = state_of(StateReader::new(parent, Some(deadline)));
        Self::with(spec, block_env(spec, header), db, EvmUse::Replay)
    }

    fn with(spec: &ChainSpec, block: BlockEnv, db: Db, purpose: EvmUse) -> Self {
        let timestamp = block.timestamp.saturating_to();
        Self(match spec.at(timestamp).op {
            Some(fork) => VmKind::Optimism(Box::new(op_evm(spec, fork, block, db, purpose))),
            None => VmKind::Ethereum(Box::new(ethereum::evm(spec, block, db, purpose))),
        })
    }

    /// The state with all changes so far.
    fn into_db(self) -> Db {
        match self.0 {
            VmKind::Optimism(evm) => evm.finish().0,
            VmKind::Ethereum(evm) => evm.finish().0,
        }
    }

    /// Sets the deadline of everything that is executed from now on.
    pub fn set_deadline(&mut self, deadline: Deadline) {
        self.db().database.set_deadline(deadline);
    }

    /// Keeps the changes so far and drops the state of the parent.
    pub fn pause(self) -> PausedVm {
        let l1_fees = match &self.0 {
            VmKind::Optimism(evm) => Some(evm.ctx().chain.clone()),
            VmKind::Ethereum(_) => None,
        };
        let mut db = self.into_db();
        db.database.detach();
        PausedVm { db, l1_fees }
    }

    /// Runs a transaction and keeps its changes. `raw` is its EIP-2718 form, from which the L1 fee
    /// is computed.
    pub fn transact(&mut self, tx: &Recovered<ChainTx>, raw: &Bytes) -> Result<Executed, VmError> {
        let (result, mut state) = self.run(environment(tx, raw)).map_err(VmError::from)?;
        let executed = self.settle(tx, result, &mut state);
        self.db().commit(state);
        Ok(executed)
    }

    /// The outcome of a transaction that has been run, corrected for deposits before Regolith.
    fn settle(
        &self,
        tx: &Recovered<ChainTx>,
        result: ExecutionResult<OpHaltReason>,
        state: &mut EvmState,
    ) -> Executed {
        let mut gas_used = result.tx_gas_used();
        if let Some(deposit) = tx.as_deposit().filter(|_| self.is_before_regolith()) {
            gas_used = if deposit.is_system_transaction {
                0
            } else {
                deposit.gas_limit
            };
            // If a creation cannot pay its value, op-revm halts before it increments the nonce,
            // while op-geth increments the nonce first.
            if deposit.to.is_create()
                && matches!(
                    result,
                    ExecutionResult::Halt {
                        reason: OpHaltReason::Base(HaltReason::OutOfFunds),
                        ..
                    }
                )
                && let Some(sender) = state.get_mut(&tx.signer())
            {
                sender.info.nonce = sender.info.nonce.wrapping_add(1);
                sender.mark_touch();
            }
        }
        Executed {
            success: result.is_success(),
            gas_used,
            logs: result.into_logs(),
        }
    }

    /// Whether Regolith is not active yet. Before Regolith a deposit uses its whole gas limit, and a
    /// system deposit uses none, whether or not it succeeds (op-geth: core/state_transition.go).
    fn is_before_regolith(&self) -> bool {
        matches!(&self.0, VmKind::Optimism(evm) if evm.cfg_env().spec == OpSpecId::BEDROCK)
    }

    /// Runs a system call and keeps its changes. Does nothing if there is no code at `contract`.
    pub fn system_call(&mut self, contract: Address, data: Bytes) -> Result<(), StateError> {
        self.system_call_output(contract, data).map(drop)
    }

    /// Runs a system call and keeps its changes. Returns the output: empty if there is no code at
    /// `contract`, `None` if the call failed.
    pub fn system_call_output(
        &mut self,
        contract: Address,
        data: Bytes,
    ) -> Result<Option<Bytes>, StateError> {
        if self
            .account(contract)?
            .is_none_or(|account| account.code_hash == KECCAK_EMPTY)
        {
            return Ok(Some(Bytes::new()));
        }
        let called = match &mut self.0 {
            VmKind::Optimism(evm) => evm
                .transact_system_call(SYSTEM_ADDRESS, contract, data)
                .map(|outcome| (succeeded(outcome.result), outcome.state))
                .map_err(op_error),
            VmKind::Ethereum(evm) => evm
                .transact_system_call(SYSTEM_ADDRESS, contract, data)
                .map(|outcome| (succeeded(outcome.result), outcome.state))
                .map_err(eth_error),
        };
        // A system call is not subject to the rules of transactions, so an error never makes the
        // block invalid.
        let (output, state) = called.map_err(|error| match VmError::from(error) {
            VmError::State(error) => error,
            VmError::Invalid(reason) => StateError::Evm(reason),
        })?;
        self.db().commit(state);
        Ok(output)
    }

    /// Adds to the balance of an account.
    pub fn credit(&mut self, address: Address, wei: U256) -> Result<(), StateError> {
        let mut info = self.account(address)?.unwrap_or_default();
        info.balance = info.balance.saturating_add(wei);
        let mut account = EvmAccount::from(info);
        account.mark_touch();
        self.db().commit(HashMap::from_iter([(address, account)]));
        Ok(())
    }

    /// Replaces the code at an address; balance, nonce and storage stay.
    pub fn set_code(&mut self, address: Address, code: Bytes) -> Result<(), StateError> {
        let mut info = self.account(address)?.unwrap_or_default();
        info.code_hash = keccak256(&code);
        info.code = Some(Bytecode::new_raw(code));
        let mut account = EvmAccount::from(info);
        account.mark_touch();
        self.db().commit(HashMap::from_iter([(address, account)]));
        Ok(())
    }

    /// The nonce of an account at this point of the block.
    pub fn nonce(&mut self, address: Address) -> Result<u64, StateError> {
        Ok(self.account(address)?.map_or(0, |account| account.nonce))
    }

    fn account(&mut self, address: Address) -> Result<Option<AccountInfo>, StateError> {
        self.db().basic(address).map_err(StateError::from)
    }

    fn precompiles(&mut self) -> &mut PrecompilesMap {
        match &mut self.0 {
            VmKind::Optimism(evm) => evm.components_mut().2,
            VmKind::Ethereum(evm) => evm.components_mut().2,
        }
    }

    /// Records the addresses and slots that later transactions touch in `accesses`.
    fn watch(&mut self, accesses: Accesses) {
        self.set_watcher(Watcher::Accesses(accesses));
    }

    /// The addresses and slots touched since [`Vm::watch`].
    fn accesses(&self) -> Option<&Accesses> {
        match &self.0 {
            VmKind::Optimism(evm) => evm.components().1,
            VmKind::Ethereum(evm) => evm.components().1,
        }
        .accesses()
    }

    /// Takes the logs of the last transaction; empty unless the observer records logs.
    fn take_logs(&mut self) -> Vec<NumberedLog> {
        match &mut self.0 {
            VmKind::Optimism(evm) => evm.components_mut().1,
            VmKind::Ethereum(evm) => evm.components_mut().1,
        }
        .take_logs()
    }

    /// Replaces the observer and returns the previous one.
    fn set_watcher(&mut self, watcher: Watcher) -> Watcher {
        let active = !matches!(watcher, Watcher::Idle);
        match &mut self.0 {
            VmKind::Optimism(evm) => {
                evm.set_inspector_enabled(active);
                std::mem::replace(evm.components_mut().1, watcher)
            }
            VmKind::Ethereum(evm) => {
                evm.set_inspector_enabled(active);
                std::mem::replace(evm.components_mut().1, watcher)
            }
        }
    }

    /// A storage slot at this point of the block.
    pub fn storage(&mut self, address: Address, slot: U256) -> Result<U256, StateError> {
        // revm's cache must load the account before its storage.
        self.account(address)?;
        self.db().storage(address, slot).map_err(StateError::from)
    }

    /// The net changes of everything that was executed.
    pub fn into_changes(mut self) -> Changes {
        let db = self.db();
        db.merge_transitions(BundleRetention::PlainState);
        changes(db.take_bundle())
    }

    /// The accounts that everything executed so far has changed.
    pub fn changed_accounts(&mut self) -> Vec<Address> {
        let db = self.db();
        db.merge_transitions(BundleRetention::PlainState);
        db.bundle_state.state.keys().copied().collect()
    }

    /// The net changes of everything executed so far.
    pub fn changes_so_far(&mut self) -> Changes {
        let db = self.db();
        db.merge_transitions(BundleRetention::PlainState);
        changes(db.bundle_state.clone())
    }

    /// Sets whether the fee cap of later transactions may be below the base fee, and makes them pay
    /// no L1 data fee and no operator fee. Otherwise op-revm would refund an operator fee that a
    /// call without an envelope was never charged.
    fn set_fees(&mut self, below_base_fee: bool) {
        match &mut self.0 {
            VmKind::Optimism(evm) => {
                let context = evm.ctx_mut();
                context.cfg.disable_base_fee = below_base_fee;
                context.chain = L1BlockInfo {
                    l2_block: Some(context.block.number),
                    operator_fee_scalar: Some(U256::ZERO),
                    operator_fee_constant: Some(U256::ZERO),
                    ..Default::default()
                };
            }
            VmKind::Ethereum(evm) => evm.ctx_mut().cfg.disable_base_fee = below_base_fee,
        }
    }

    /// Fails once the deadline of what is executed has passed.
    fn check_deadline(&mut self) -> Result<(), StateError> {
        self.db().database.check_deadline()
    }

    fn db(&mut self) -> &mut Db {
        match &mut self.0 {
            VmKind::Optimism(evm) => evm.db_mut(),
            VmKind::Ethereum(evm) => evm.db_mut(),
        }
    }

    /// Runs a transaction without keeping its changes. On an error nothing is changed.
    fn run(&mut self, tx: OpTx) -> Result<(ExecutionResult<OpHaltReason>, EvmState), RunError> {
        match &mut self.0 {
            VmKind::Optimism(evm) => {
                let ran = evm.transact_raw(tx);
                if ran.is_err() {
                    // Under a tracer, op-revm keeps the changes of a failed transaction.
                    evm.ctx_mut().journaled_state.finalize();
                }
                let ResultAndState { result, state } = ran.map_err(op_error)?;
                Ok((result, state))
            }
            VmKind::Ethereum(evm) => {
                let ResultAndState { result, state } =
                    evm.transact_raw(tx.0.base).map_err(eth_error)?;
                Ok((result.map_haltreason(OpHaltReason::Base), state))
            }
        }
    }
}

impl PausedVm {
    /// Approximate bytes of the accounts, slots and codes that have been read or changed so far.
    pub fn weight(&self) -> usize {
        let cache = &self.db.cache;
        let slots = |account: &CacheAccount| {
            let account = account.account.as_ref();
            account.map_or(0, |account| account.storage.len())
        };
        let accounts = cache.accounts.values();
        let accounts: usize = accounts.map(|it| ACCOUNT + slots(it) * SLOT).sum();
        let codes: usize = cache.contracts.values().map(Bytecode::len).sum();
        // revm's transitions contain the changed accounts and slots a second time.
        2 * accounts + codes
    }

    /// An EVM that resumes the block with this header, on the state after its parent.
    pub fn resume(
        self,
        spec: &ChainSpec,
        header: &Header,
        parent: ParentState,
        deadline: Deadline,
    ) -> Vm {
        let Self { mut db, l1_fees } = self;
        db.database = StateReader::new(parent, Some(deadline));
        let mut vm = Vm::with(spec, block_env(spec, header), db, EvmUse::Replay);
        if let (VmKind::Optimism(evm), Some(l1_fees)) = (&mut vm.0, l1_fees) {
            evm.ctx_mut().chain = l1_fees;
        }
        vm
    }
}

/// The purpose for which an EVM is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvmUse {
    /// Executing a block of the chain, without a deadline.
    Block,
    /// Executing a block again, within a deadline.
    Replay,
    /// Simulated calls, within a deadline.
    Simulation,
}

/// A state that records its changes.
fn state_of(reader: StateReader) -> Db {
    State::builder()
        .with_database(reader)
        .with_bundle_update()
        .build()
}

/// Converts a transaction to revm's form.
fn environment(tx: &Recovered<ChainTx>, raw: &Bytes) -> OpTx {
    match tx.inner() {
        ChainTx::Op(op) => OpTx::from_encoded_tx(op, tx.signer(), raw.clone()),
        ChainTx::Blob(blob) => OpTx(OpTransaction {
            base: TxEnv::from_recovered_tx(blob, tx.signer()),
            enveloped_tx: Some(raw.clone()),
            deposit: Default::default(),
        }),
    }
}

fn op_evm(
    spec: &ChainSpec,
    fork: Fork,
    block: BlockEnv,
    db: Db,
    purpose: EvmUse,
) -> OpEvm<Db, Watcher, PrecompilesMap> {
    let mut cfg = CfgEnv::new()
        .with_chain_id(spec.chain_id)
        .with_spec_and_mainnet_gas_params(op_spec_id(fork));
    if purpose == EvmUse::Simulation {
        for_simulation(&mut cfg);
    }
    let env = EvmEnv::new(cfg, block);
    let mut evm =
        OpEvmFactory::<OpTx>::default().create_evm_with_inspector(db, env, Watcher::default());
    evm.set_inspector_enabled(false);
    if fork >= Fork::Karst {
        limit_pairing(evm.components_mut().2);
    }
    if purpose != EvmUse::Block {
        let mut inner = evm.into_inner();
        interruptible(&mut inner.0.instruction);
        evm = OpEvm::new(inner, false);
    }
    evm
}

/// The output of a call that succeeded; `None` if it failed.
fn succeeded<H>(result: ExecutionResult<H>) -> Option<Bytes> {
    result
        .is_success()
        .then(|| result.into_output().unwrap_or_default())
}

/// Disables the checks that do not apply to simulated calls: nonce, sender's code, chain id, block
/// gas limit and EIP-7825's cap.
fn for_simulation<S>(cfg: &mut CfgEnv<S>) {
    cfg.tx_gas_limit_cap = Some(u64::MAX);
    cfg.disable_nonce_check = true;
    cfg.disable_eip3607 = true;
    cfg.disable_block_gas_limit = true;
    cfg.tx_chain_id_check = false;
}

fn op_spec_id(fork: Fork) -> OpSpecId {
    match fork {
        Fork::Bedrock => OpSpecId::BEDROCK,
        Fork::Regolith => OpSpecId::REGOLITH,
        Fork::Canyon | Fork::Delta => OpSpecId::CANYON,
        Fork::Ecotone => OpSpecId::ECOTONE,
        Fork::Fjord => OpSpecId::FJORD,
        Fork::Granite => OpSpecId::GRANITE,
        Fork::Holocene => OpSpecId::HOLOCENE,
        Fork::Isthmus => OpSpecId::ISTHMUS,
        Fork::Jovian => OpSpecId::JOVIAN,
        Fork::Karst => OpSpecId::KARST,
    }
}

fn block_env(spec: &ChainSpec, header: &Header) -> BlockEnv {
    let mined = spec.mined(header);
    let blob = match spec.blob_params(header.timestamp) {
        Some(params) => {
            let excess_blob_gas = header.excess_blob_gas.unwrap_or(0);
            BlobExcessGasAndPrice {
                excess_blob_gas,
                blob_gasprice: params.calc_blob_fee(excess_blob_gas),
            }
        }
        // OP blocks have no blobs: BLOBBASEFEE is 1. Blocks before Cancun have no such instruction,
        // but a call on their state may override the time.
        None => BlobExcessGasAndPrice {
            excess_blob_gas: 0,
            blob_gasprice: 1,
        },
    };
    BlockEnv {
        number: U256::from(header.number),
        beneficiary: header.beneficiary,
        timestamp: U256::from(header.timestamp),
        gas_limit: header.gas_limit,
        basefee: header.base_fee_per_gas.unwrap_or_default(),
        // Blocks before the merge have a difficulty, later blocks have randomness instead.
        difficulty: mined.map_or(U256::ZERO, |_| header.difficulty),
        prevrandao: mined.is_none().then_some(header.mix_hash),
        blob_excess_gas_and_price: Some(blob),
        ..Default::default()
    }
}

/// The reason why the EVM did not run a transaction.
enum RunError {
    Invalid(InvalidTransaction),
    /// The transaction is invalid by a rule of OP only.
    InvalidOp(String),
    State(StateError),
}

impl From<RunError> for VmError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Invalid(error) => Self::Invalid(error.to_string()),
            RunError::InvalidOp(error) => Self::Invalid(error),
            RunError::State(error) => Self::State(error),
        }
    }
}

fn op_error(error: EVMError<DbError, OpTxError>) -> RunError {
    match error {
        EVMError::Transaction(OpTxError(OpTransactionError::Base(error))) => {
            RunError::Invalid(error)
        }
        EVMError::Transaction(error) => RunError::InvalidOp(error.to_string()),
        EVMError::Database(error) => RunError::State(error.into()),
        other => RunError::State(StateError::Evm(other.to_string())),
    }
}

fn eth_error(error: EVMError<DbError>) -> RunError {
    match error {
        EVMError::Transaction(error) => RunError::Invalid(error),
        EVMError::Database(error) => RunError::State(error.into()),
        other => RunError::State(StateError::Evm(other.to_string())),
    }
}

/// Converts revm's bundle to changes by trie key. Touched accounts that are empty are removed
/// (EIP-161).
fn changes(bundle: BundleState) -> Changes {
    let mut changes = Changes::default();
    for (address, account) in bundle.state {
        let hash = keccak256(address);
        let Some(info) = &account.info else {
            if account.original_info.is_some() {
                changes.accounts.insert(hash, None);
            }
            continue;
        };
        let wiped = account.status.was_destroyed();
        let slots = account.storage.iter().filter(|(_, slot)| {
            if wiped {
                !slot.present_value.is_zero()
            } else {
                slot.is_changed()
            }
        });
        let mut names = Vec::new();
        let slots: Vec<(B256, U256)> = slots
            .map(|(slot, value)| {
                names.push(KeyName::Slot(*slot));
                (keccak256(B256::from(*slot)), value.present_value)
            })
            .collect();
        let storage = StorageChange {
            wiped,
            slots: slots.into_iter().collect(),
        };
        let changed = storage.wiped || !storage.slots.is_empty();
        if !changed && !account.is_info_changed() {
            continue;
        }
        changes.names.push(KeyName::Address(address));
        changes.names.append(&mut names);
        let (nonce, balance, code_hash) = (info.nonce, info.balance, info.code_hash);
        changes.accounts.insert(
            hash,
            Some(AccountChange {
                nonce,
                balance,
                code_hash,
            }),
        );
        if changed {
            changes.storages.insert(hash, storage);
        }
        if account.is_contract_changed()
            && code_hash != KECCAK_EMPTY
            && let Some(code) = info
                .code
                .as_ref()
                .or_else(|| bundle.contracts.get(&code_hash))
        {
            changes.codes.insert(code_hash, code.original_bytes());
        }
    }
    changes
}

#[cfg(test)]
pub(crate) mod tests;
