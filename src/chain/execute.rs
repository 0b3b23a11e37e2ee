//! Execution of blocks: the block loop of both rule sets, and the validation of a payload.
//!
//! The executor validates payloads ([`validate`]); the builder runs the same [`BlockExecution`]
//! transaction by transaction. The work grows with the block's gas. A block is invalid only for a
//! reason of its own: an unreadable state is a different error, which proves nothing about the
//! block.

use crate::chain::{
    changes::Changes,
    evm::{Deadline, Executed, ParentState, StateError, TraceError, TracePlace, Tracer, Vm},
    l1fee::{self, Footprint, L1AttributesError},
    receipt::{Receipt, block_bloom, receipts_root},
    rows::{ExecutedBlock, keys},
    rules::{Active, ChainSpec, MAX_TRANSACTION_GAS, MESSAGE_PASSER, NumberedFork},
    transaction::ChainTx,
    trie::Update,
};
use alloy_consensus::{Header, Transaction, Typed2718, transaction::Recovered};
use alloy_eips::{
    eip2935::HISTORY_STORAGE_ADDRESS, eip4788::BEACON_ROOTS_ADDRESS, eip7685::EMPTY_REQUESTS_HASH,
};
use alloy_primitives::{Address, B256, Bytes, U256, address, keccak256};
use alloy_trie::EMPTY_ROOT_HASH;
use starling_proto::{fork::Fork, payload::Payload};
use std::sync::Arc;

mod error;
mod ethereum;
mod paused;
mod prepare;

pub(crate) use error::or_none;
pub use error::{InvalidBlock, Refused, TransactError, ValidateError};
pub use ethereum::EthereumOutcome;
pub use paused::PausedExecution;
pub use prepare::{ExpectedTransactions, Preparation, recover, recover_forced};

/// The create2deployer contract. The Canyon fork sets its code without a transaction.
const CREATE2_DEPLOYER: Address = address!("13b0D85CcB8bf860b6b79AF3029fCA081AE9beF2");

/// The code of the create2deployer that Canyon sets (specs: canyon, create2deployer).
fn create2_deployer() -> Bytes {
    Bytes::from_static(include_bytes!("execute/create2deployer.bin"))
}

/// Applies the state changes at the start of a block with this header, before its first
/// transaction.
pub fn before_transactions(
    spec: &ChainSpec,
    header: &Header,
    vm: &mut Vm,
) -> Result<(), StateError> {
    let active = spec.at(header.timestamp);
    if spec.deploys_create2(header.timestamp) {
        vm.set_code(CREATE2_DEPLOYER, create2_deployer())?;
    }
    if let Some(root) = header.parent_beacon_block_root.filter(|_| active.cancun) {
        vm.system_call(BEACON_ROOTS_ADDRESS, root.into())?;
    }
    if active.prague {
        vm.system_call(HISTORY_STORAGE_ADDRESS, header.parent_hash.into())?;
    }
    Ok(())
}

/// A block being executed. `V` is its EVM, or the saved state of a paused one.
pub struct BlockExecution<V = Vm> {
    active: Active,
    gas_limit: u64,
    vm: V,
    receipts: Vec<Receipt>,
    gas_used: u64,
    da_footprint: u64,
    blob_gas_used: u64,
    /// Maximum blob gas of the block; zero on OP and before Cancun.
    max_blob_gas: u64,
    /// Whether Jovian is active in this block and not in its parent.
    activates_jovian: bool,
    /// DA footprint scalar, set by the first transaction of a Jovian block.
    footprint: Option<Footprint>,
    /// Whether signatures with a chain id (EIP-155) are still invalid.
    early_chain_ids: bool,
    /// State before the block, to compute the state roots in receipts; only on Ethereum before
    /// Byzantium.
    post_states: Option<ParentState>,
    /// The outcome of [`BlockExecution::after_transactions`]; `None` on OP.
    ethereum: Option<Box<EthereumOutcome>>,
}

/// The amounts that an admitted transaction adds to the totals of its block.
struct AdmittedTransaction {
    /// Data footprint that the transaction adds to the block.
    footprint: u64,
    blob_gas: u64,
    /// The sender's nonce before execution, for deposits from Regolith on.
    deposit_nonce: Option<u64>,
}

/// Result of executing a block.
#[derive(Debug)]
pub struct Execution {
    pub receipts: Vec<Receipt>,
    pub gas_used: u64,
    /// Data footprint of the block; zero before Jovian.
    pub da_footprint: u64,
    /// Blob gas used by the block; zero on OP.
    pub blob_gas_used: u64,
    /// Results of the steps after the transactions, on an Ethereum chain.
    pub ethereum: Option<Box<EthereumOutcome>>,
    pub changes: Changes,
}

impl BlockExecution {
    /// Begins a block and runs the system calls before its first transaction. Ignores the fields of
    /// `header` that execution computes.
    pub fn begin(
        spec: &ChainSpec,
        header: &Header,
        parent: ParentState,
    ) -> Result<Self, StateError> {
        let vm = Vm::new(spec, header, parent.clone());
        Self::begin_on(spec, header, parent, vm)
    }

    /// Like [`BlockExecution::begin`], but for a block executed again for a request. Execution
    /// fails after `deadline`.
    pub fn begin_again(
        spec: &ChainSpec,
        header: &Header,
        parent: ParentState,
        deadline: Deadline,
    ) -> Result<Self, StateError> {
        let vm = Vm::until(spec, header, parent.clone(), deadline);
        Self::begin_on(spec, header, parent, vm)
    }

    fn begin_on(
        spec: &ChainSpec,
        header: &Header,
        parent: ParentState,
        mut vm: Vm,
    ) -> Result<Self, StateError> {
        let active = spec.at(header.timestamp);
        let parent_time = parent.header().timestamp;
        let mined = spec.mined(header);
        let activates_jovian =
            active.is_op(Fork::Jovian) && !spec.at(parent_time).is_op(Fork::Jovian);
        before_transactions(spec, header, &mut vm)?;
        Ok(Self {
            active,
            gas_limit: header.gas_limit,
            vm,
            receipts: Vec::new(),
            gas_used: 0,
            da_footprint: 0,
            blob_gas_used: 0,
            max_blob_gas: spec
                .blob_params(header.timestamp)
                .map_or(0, |params| params.max_blob_gas_per_block()),
            activates_jovian,
            footprint: None,
            early_chain_ids: mined
                .is_some_and(|rules| !rules.is_active(NumberedFork::SpuriousDragon, header.number)),
            post_states: mined
                .filter(|rules| rules.has_post_states(header.number))
                .map(|_| parent),
            ethereum: None,
        })
    }

    /// Runs the next transaction. `raw` is its EIP-2718 encoding. A refused transaction changes
    /// nothing.
    pub fn transact(
        &mut self,
        tx: &Recovered<ChainTx>,
        raw: &Bytes,
    ) -> Result<&Receipt, TransactError> {
        let admitted = self.admit(tx, raw)?;
        let executed = self.vm.transact(tx, raw)?;
        Ok(self.record(tx, admitted, executed)?)
    }

    /// Like [`BlockExecution::transact`], but also traces the transaction.
    pub fn trace(
        &mut self,
        tx: &Recovered<ChainTx>,
        raw: &Bytes,
        tracer: &mut Option<Box<Tracer>>,
        place: &TracePlace,
    ) -> Result<&Receipt, TraceError> {
        let admitted = self.admit(tx, raw).map_err(|error| match error {
            TransactError::Refused(refused) => TraceError::Invalid(refused.to_string()),
            TransactError::State(error) => error.into(),
        })?;
        let executed = self.vm.trace(tx, raw, tracer, place)?;
        Ok(self.record(tx, admitted, executed)?)
    }

    /// Checks a transaction against the block's rules and the gas left in the block.
    fn admit(
        &mut self,
        tx: &Recovered<ChainTx>,
        raw: &Bytes,
    ) -> Result<AdmittedTransaction, TransactError> {
        self.check_type(tx)?;
        let deposit = tx.is_deposit();
        let regolith = self.active.is_op(Fork::Regolith);
        if self.receipts.is_empty() && self.active.is_op(Fork::Jovian) {
            self.footprint =
                Some(Footprint::of(tx.inner(), self.activates_jovian).map_err(Refused::from)?);
        }
        let (have, left) = (tx.gas_limit(), self.gas_left());
        let system = tx
            .as_deposit()
            .is_some_and(|deposit| deposit.is_system_transaction);
        if system && regolith {
            return Err(Refused::SystemDeposit(tx.signer()).into());
        }
        // Before Regolith, system deposits do not count towards the block's gas limit.
        if have > left && !system {
            return Err(Refused::GasLeft { have, left }.into());
        }
        // The gas cap of EIP-7825 does not apply to deposits, which were paid for on L1 and must be
        // included (specs: karst exec-engine).
        if self.active.osaka && !deposit && have > MAX_TRANSACTION_GAS {
            return Err(Refused::GasCap(have).into());
        }
        let footprint = if deposit { 0 } else { self.footprint(raw)? };
        let left = self.gas_limit.saturating_sub(self.da_footprint);
        if footprint > left {
            return Err(Refused::DataFootprint {
                have: footprint,
                left,
            }
            .into());
        }
        let blob_gas = self.blob_gas(tx)?;
        let deposit_nonce = if deposit && regolith {
            Some(self.vm.nonce(tx.signer())?)
        } else {
            None
        };

        Ok(AdmittedTransaction {
            footprint,
            blob_gas,
            deposit_nonce,
        })
    }

    /// Adds the receipt and the gas of a transaction that has run.
    fn record(
        &mut self,
        tx: &Recovered<ChainTx>,
        admitted: AdmittedTransaction,
        executed: Executed,
    ) -> Result<&Receipt, StateError> {
        let post_state = match &self.post_states {
            None => None,
            Some(parent) => {
                let changes = self.vm.changes_so_far();
                Some(Box::new(parent.update(&changes)?.state_root))
            }
        };
        self.gas_used = self.gas_used.saturating_add(executed.gas_used);
        self.da_footprint += admitted.footprint;
        self.blob_gas_used += admitted.blob_gas;
        self.receipts.push(Receipt {
            tx_type: tx.ty(),
            success: executed.success,
            cumulative_gas_used: self.gas_used,
            logs: executed.logs,
            deposit_nonce: admitted.deposit_nonce,
            deposit_version: (tx.is_deposit() && self.active.is_op(Fork::Canyon)).then_some(1),
            post_state,
        });
        Ok(&self.receipts[self.receipts.len() - 1])
    }

    /// The EVM, with the state at this point of the block.
    pub fn vm(&mut self) -> &mut Vm {
        &mut self.vm
    }

    pub fn into_vm(self) -> Vm {
        self.vm
    }

    /// Whether this type of transaction exists under the block's rules.
    fn check_type(&self, tx: &ChainTx) -> Result<(), Refused> {
        if self.early_chain_ids && tx.as_legacy().is_some() && tx.chain_id().is_some() {
            return Err(Refused::EarlyChainId);
        }
        let allowed = match (tx, self.active.op) {
            (ChainTx::Blob(_), fork) => fork.is_none(),
            (ChainTx::Op(op), None) => !op.is_deposit() && op.as_post_exec().is_none(),
            (ChainTx::Op(op), Some(_)) => op.as_post_exec().is_none(),
        };
        allowed.then_some(()).ok_or(Refused::Type(tx.ty()))
    }

    /// The blob gas of a transaction. Fails if it exceeds the blob gas left in the block. The EVM
    /// checks all other rules for blobs.
    fn blob_gas(&self, tx: &ChainTx) -> Result<u64, Refused> {
        let have = tx.blob_gas_used().unwrap_or(0);
        let left = self.max_blob_gas.saturating_sub(self.blob_gas_used);
        if have > left {
            return Err(Refused::BlobGas { have, left });
        }
        Ok(have)
    }

    /// The data footprint that a user transaction adds to the block's (specs: jovian exec-engine).
    fn footprint(&self, raw: &[u8]) -> Result<u64, Refused> {
        match self.footprint {
            None => Ok(0),
            Some(Footprint::Scalar(scalar)) => Ok(l1fee::da_footprint(raw, scalar)),
            Some(Footprint::DepositsOnly) => Err(Refused::NotDeposit),
        }
    }

    /// Checks that a Jovian block begins with the L1 attributes, as op-geth requires. They contain
    /// the scalar of the data footprint. With `building`, a missing scalar is an error, except in
    /// the block that activates Jovian.
    pub fn check_attributes(&self, building: bool) -> Result<(), L1AttributesError> {
        match self.footprint {
            _ if self.receipts.is_empty() && self.active.is_op(Fork::Jovian) => {
                Err(L1AttributesError::Missing)
            }
            Some(Footprint::DepositsOnly) if building && !self.activates_jovian => {
                Err(L1AttributesError::NoScalar)
            }
            _ => Ok(()),
        }
    }

    /// Gas left for transactions.
    pub fn gas_left(&self) -> u64 {
        self.gas_limit.saturating_sub(self.gas_used)
    }

    pub fn gas_used(&self) -> u64 {
        self.gas_used
    }

    /// The value of a storage slot at this point of the block.
    pub fn storage(&mut self, address: Address, slot: U256) -> Result<U256, StateError> {
        self.vm.storage(address, slot)
    }

    /// Runs the steps after the last transaction of a block. An Ethereum chain has requests,
    /// withdrawals and, before the merge, rewards. An OP chain has no such steps. `payload` contains
    /// the uncles and withdrawals.
    pub fn after_transactions(
        &mut self,
        spec: &ChainSpec,
        parent: &ParentState,
        payload: &Payload,
    ) -> Result<(), ValidateError> {
        if self.active.op.is_none() {
            let outcome = ethereum::end(spec, payload, parent, &self.receipts, &mut self.vm)?;
            self.ethereum = Some(Box::new(outcome));
        }
        Ok(())
    }

    /// The result of executing the block so far, as if the block ended here.
    pub fn so_far(&mut self) -> Execution {
        Execution {
            receipts: self.receipts.clone(),
            gas_used: self.gas_used,
            da_footprint: self.da_footprint,
            blob_gas_used: self.blob_gas_used,
            ethereum: self.ethereum.clone(),
            changes: self.vm.changes_so_far(),
        }
    }

    /// Ends the block and returns the result of its execution.
    pub fn finish(self) -> Execution {
        let Self {
            vm,
            receipts,
            gas_used,
            da_footprint,
            blob_gas_used,
            ethereum,
            ..
        } = self;
        Execution {
            receipts,
            gas_used,
            da_footprint,
            blob_gas_used,
            ethereum,
            changes: vm.into_changes(),
        }
    }
}

/// Header fields that only execution can compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutionOutcome {
    pub gas_used: u64,
    /// The header's blob gas used; `None` before Cancun.
    pub blob_gas_used: Option<u64>,
    pub receipts_root: B256,
    pub logs_bloom: alloy_primitives::Bloom,
    pub state_root: B256,
    /// The header's withdrawals root; `None` before Shanghai.
    pub withdrawals_root: Option<B256>,
    /// The header's requests hash; `None` before Prague.
    pub requests_hash: Option<B256>,
}

impl Execution {
    /// Computes the header fields. `parent` is the state on which the block was executed.
    pub fn outcome(
        &self,
        active: &Active,
        parent: &ParentState,
    ) -> Result<(ExecutionOutcome, Update), StateError> {
        let update = || parent.update(&self.changes);
        let receipts = || {
            (
                receipts_root(&self.receipts, active.op),
                block_bloom(&self.receipts),
            )
        };
        let (update, (receipts_root, logs_bloom)) = if self.receipts.len() < prepare::PARALLEL {
            (update(), receipts())
        } else {
            rayon::join(update, receipts)
        };
        let mut update = update?;
        let ethereum = self.ethereum.as_deref();
        if let Some(row) = ethereum.and_then(|outcome| outcome.total_difficulty.clone()) {
            update.overlay.rows.insert(keys::total_difficulty(), row);
        }
        let outcome = ExecutionOutcome {
            gas_used: self.gas_used,
            // On OP the field contains the data footprint, since there are no blobs.
            blob_gas_used: active
                .cancun
                .then_some(self.da_footprint + self.blob_gas_used),
            receipts_root,
            logs_bloom,
            state_root: update.state_root,
            withdrawals_root: if !active.shanghai {
                None
            } else if active.is_op(Fork::Isthmus) {
                Some(message_passer_root(parent, &update)?)
            } else {
                Some(ethereum.map_or(EMPTY_ROOT_HASH, |outcome| outcome.withdrawals_root))
            },
            requests_hash: active.prague.then(|| {
                ethereum.map_or(EMPTY_REQUESTS_HASH, |outcome| {
                    outcome.requests.requests_hash()
                })
            }),
        };
        Ok((outcome, update))
    }
}

/// The storage root of `L2ToL1MessagePasser` after a block (specs: isthmus exec-engine).
fn message_passer_root(parent: &ParentState, update: &Update) -> Result<B256, StateError> {
    match update.storage_roots.get(&keccak256(MESSAGE_PASSER)) {
        Some(root) => Ok(*root),
        None => Ok(parent
            .account(MESSAGE_PASSER)?
            .map_or(EMPTY_ROOT_HASH, |account| account.storage_root)),
    }
}

/// Executes a payload on the state of its parent and checks all header fields. Where an error of a
/// header field has "have" and "want", these are the value in the header and the computed one.
pub fn validate(
    spec: &ChainSpec,
    parent: impl Into<ParentState>,
    payload: Arc<Payload>,
) -> Result<ExecutedBlock, ValidateError> {
    validate_prepared(spec, parent, Preparation::later(payload))
}

/// Like [`validate`], for a payload whose preparation may have begun already.
pub fn validate_prepared(
    spec: &ChainSpec,
    parent: impl Into<ParentState>,
    preparation: Preparation,
) -> Result<ExecutedBlock, ValidateError> {
    let parent = parent.into();
    let payload = preparation.payload().clone();
    let header = &payload.header;
    spec.check_header(header, parent.header(), parent.hash())?;
    spec.check_size(&payload).map_err(InvalidBlock::from)?;
    let recovered = preparation.finish()?;
    if !spec.is_optimism() {
        ethereum::check_body(spec, &payload, &parent)?;
    } else if payload.ethereum.is_some() {
        return Err(InvalidBlock::Foreign.into());
    }

    let mut execution = BlockExecution::begin(spec, header, parent.clone())?;
    for (index, (tx, raw)) in recovered.iter().zip(&payload.transactions).enumerate() {
        match execution.transact(tx, raw) {
            Ok(_) => {}
            Err(TransactError::Refused(cause)) => {
                return Err(InvalidBlock::Transaction { index, cause }.into());
            }
            Err(TransactError::State(error)) => return Err(error.into()),
        }
    }
    execution
        .check_attributes(false)
        .map_err(InvalidBlock::from)?;
    execution.after_transactions(spec, &parent, &payload)?;
    let execution = execution.finish();
    // Compare gas used first: the comparison is cheap, and an invalid block usually differs there.
    if header.gas_used != execution.gas_used {
        return Err(InvalidBlock::GasUsed {
            have: header.gas_used,
            want: execution.gas_used,
        }
        .into());
    }
    let (outcome, update) = execution.outcome(&spec.at(header.timestamp), &parent)?;
    outcome.compare(header)?;
    let senders = recovered.iter().map(|tx| tx.signer()).collect();
    Ok(ExecutedBlock::new(
        payload,
        senders,
        Arc::new(execution.receipts),
        Arc::new(update.overlay),
    ))
}

impl ExecutionOutcome {
    /// Compares the outcome with a header, except gas used.
    fn compare(&self, header: &Header) -> Result<(), InvalidBlock> {
        let Self {
            blob_gas_used,
            receipts_root,
            logs_bloom,
            state_root,
            withdrawals_root,
            requests_hash,
            ..
        } = *self;
        if header.blob_gas_used != blob_gas_used {
            return Err(InvalidBlock::BlobGasUsed {
                have: header.blob_gas_used,
                want: blob_gas_used,
            });
        }
        if header.receipts_root != receipts_root {
            return Err(InvalidBlock::ReceiptsRoot {
                have: header.receipts_root,
                want: receipts_root,
            });
        }
        if header.logs_bloom != logs_bloom {
            return Err(InvalidBlock::LogsBloom);
        }
        if header.state_root != state_root {
            return Err(InvalidBlock::StateRoot {
                have: header.state_root,
                want: state_root,
            });
        }
        if header.withdrawals_root != withdrawals_root {
            return Err(InvalidBlock::WithdrawalsRoot {
                have: header.withdrawals_root,
                want: withdrawals_root,
            });
        }
        if header.requests_hash != requests_hash {
            return Err(InvalidBlock::RequestsHash {
                have: header.requests_hash,
                want: requests_hash,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
