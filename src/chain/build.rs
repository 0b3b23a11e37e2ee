//! Building a block: from attributes to an executed block, transaction by transaction.
//!
//! The builder thread starts one [`BlockBuilder`] per job, adds pool transactions and finishes the
//! block. The execution is the same that validates payloads, so the result is valid by
//! construction. The work is bounded by the block's gas limit.

use crate::chain::{
    evm::{ParentState, StateError},
    execute::{
        BlockExecution, Execution, ExpectedTransactions, InvalidBlock, TransactError,
        ValidateError, recover_forced,
    },
    l1fee::L1AttributesError,
    pool::conditional::{ConditionState, Conditional, UnmetCondition},
    rows::ExecutedBlock,
    rules::{Active, ChainSpec, ExtraData, ExtraDataError, Rules, TRANSFER_GAS, transaction_bytes},
    transaction::ChainTx,
};
use alloy_consensus::{Header, Transaction, transaction::Recovered};
use alloy_eips::{
    eip4895::Withdrawal,
    eip7685::{EMPTY_REQUESTS_HASH, Requests},
};
use alloy_primitives::{Address, B64, B256, Bytes, U256};
use alloy_trie::root::ordered_trie_root_encoded;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use starling_proto::{
    fork::{Fork, LagoonBlock},
    payload::{EthereumBody, MAX_WITHDRAWALS, Payload},
    system_config::Eip1559Params,
};
use std::sync::Arc;

/// The reason to leave out a transaction that would exceed the block's maximum size.
const TOO_LARGE: &str = "the block would be too large (EIP-7934)";

/// The reason why no block can be built from these attributes.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("timestamp {have} is not after the parent's {parent}")]
    Timestamp { have: u64, parent: u64 },
    #[error("{0} is missing in the attributes")]
    Missing(&'static str),
    #[error("{0} is given before its fork")]
    Unexpected(&'static str),
    #[error("{0} withdrawals in the attributes, there can be none")]
    Withdrawals(usize),
    #[error("{0} withdrawals in the attributes, more than {MAX_WITHDRAWALS}")]
    TooManyWithdrawals(usize),
    #[error(transparent)]
    ExtraData(#[from] ExtraDataError),
    #[error(transparent)]
    Attributes(#[from] L1AttributesError),
    #[error(transparent)]
    Lagoon(#[from] LagoonBlock),
    /// A forced transaction is never dropped, since a block without it would belong to another
    /// chain.
    #[error("failed to force-include transaction {index}: {cause}")]
    Forced { index: usize, cause: String },
    /// The state could not be read. The attributes may still be valid.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Outcome of adding a pool transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Added {
    Yes,
    /// Not even the smallest transaction fits any more.
    Full,
    /// The transaction was left out for this reason. The block has not changed.
    Skipped(String),
}

/// A sealed block.
pub struct BuiltBlock {
    pub block: ExecutedBlock,
    /// Requests to the beacon chain (EIP-7685); none on OP.
    pub requests: Requests,
}

/// A block being built.
pub struct BlockBuilder {
    spec: Arc<ChainSpec>,
    parent: ParentState,
    /// The header, complete except for the fields that execution computes.
    header: Header,
    execution: BlockExecution,
    transactions: Vec<Bytes>,
    /// Bytes left for further transactions (EIP-7934).
    room: usize,
    senders: Vec<Address>,
    fees: U256,
    /// Withdrawals of the attributes, on Ethereum only.
    withdrawals: Vec<Withdrawal>,
}

impl BlockBuilder {
    /// Starts a block on the state `parent` and runs the forced transactions.
    pub fn start(
        spec: Arc<ChainSpec>,
        parent: impl Into<ParentState>,
        attributes: OpPayloadAttributes,
    ) -> Result<Self, BuildError> {
        Self::start_expected(spec, parent, attributes, None)
    }

    /// Like [`BlockBuilder::start`], but the last forced transactions may be prepared in
    /// `expected`.
    pub fn start_expected(
        spec: Arc<ChainSpec>,
        parent: impl Into<ParentState>,
        attributes: OpPayloadAttributes,
        expected: Option<ExpectedTransactions>,
    ) -> Result<Self, BuildError> {
        let parent = parent.into();
        spec.check_before_lagoon(attributes.payload_attributes.timestamp)?;
        let header = header_from(&spec, parent.header(), &attributes)?;
        let execution = BlockExecution::begin(&spec, &header, parent.clone())?;
        let mut builder = Self {
            room: spec.room_for_transactions(header.timestamp),
            spec,
            parent,
            header,
            execution,
            transactions: Vec::new(),
            senders: Vec::new(),
            fees: U256::ZERO,
            withdrawals: (attributes.payload_attributes.withdrawals).unwrap_or_default(),
        };
        let forced = attributes.transactions.unwrap_or_default();
        let recovered = recover_forced(&forced, expected);
        for (index, (raw, recovered)) in forced.into_iter().zip(recovered).enumerate() {
            builder.force(index, raw, recovered)?;
        }
        builder.execution.check_attributes(true)?;
        Ok(builder)
    }

    /// Runs and adds a transaction of the attributes. Fails if the transaction is not valid.
    fn force(
        &mut self,
        index: usize,
        raw: Bytes,
        recovered: Result<Recovered<ChainTx>, InvalidBlock>,
    ) -> Result<(), BuildError> {
        let tx = recovered.map_err(|error| BuildError::Forced {
            index,
            cause: match error {
                InvalidBlock::Undecodable { reason, .. } => reason,
                other => other.to_string(),
            },
        })?;
        let Some(room) = self.room.checked_sub(transaction_bytes(&raw)) else {
            let cause = TOO_LARGE.into();
            return Err(BuildError::Forced { index, cause });
        };
        match self.execution.transact(&tx, &raw) {
            Ok(_) => {}
            Err(TransactError::Refused(refused)) => {
                return Err(BuildError::Forced {
                    index,
                    cause: refused.to_string(),
                });
            }
            Err(TransactError::State(error)) => return Err(error.into()),
        }
        self.room = room;
        self.transactions.push(raw);
        self.senders.push(tx.signer());
        Ok(())
    }

    /// Adds a pool transaction if it fits. `raw` is its EIP-2718 encoding.
    pub fn add(&mut self, tx: &Recovered<ChainTx>, raw: &Bytes) -> Result<Added, StateError> {
        if self.execution.gas_left() < TRANSFER_GAS {
            return Ok(Added::Full);
        }
        if tx.is_deposit() {
            return Ok(Added::Skipped("a deposit can only be forced".to_owned()));
        }
        let Some(room) = self.room.checked_sub(transaction_bytes(raw)) else {
            return Ok(Added::Skipped(TOO_LARGE.to_owned()));
        };
        let before = self.execution.gas_used();
        match self.execution.transact(tx, raw) {
            Ok(_) => {}
            Err(TransactError::Refused(refused)) => return Ok(Added::Skipped(refused.to_string())),
            Err(TransactError::State(error)) => return Err(error),
        }
        let tip = tx.effective_tip_per_gas(self.base_fee()).unwrap_or(0);
        let gas_used = self.execution.gas_used() - before;
        self.fees = self
            .fees
            .saturating_add(U256::from(tip).saturating_mul(U256::from(gas_used)));
        self.room = room;
        self.transactions.push(raw.clone());
        self.senders.push(tx.signer());
        Ok(Added::Yes)
    }

    /// The first condition that the block so far does not meet; `None` if it meets all. Storage
    /// roots are those of the parent state, as in op-geth.
    pub fn meets(
        &mut self,
        conditional: Option<&Conditional>,
    ) -> Result<Option<UnmetCondition>, StateError> {
        let Some(conditional) = conditional else {
            return Ok(None);
        };
        let (number, time) = (self.header.number, self.header.timestamp);
        if let Err(unmet) = conditional.check_header(number, time) {
            return Ok(Some(unmet));
        }
        conditional.unmet_by(self)
    }

    /// Sets the extra data of a block of an Ethereum chain, unless `extra_data` is empty. On OP
    /// chains the attributes determine the extra data.
    pub fn set_extra_data(&mut self, extra_data: Bytes) {
        if matches!(self.spec.rules, Rules::Ethereum { .. }) && !extra_data.is_empty() {
            self.header.extra_data = extra_data;
        }
    }

    /// The block's base fee in wei per gas.
    pub fn base_fee(&self) -> u64 {
        self.header.base_fee_per_gas.unwrap_or(0)
    }

    /// Gas left for transactions.
    pub fn gas_left(&self) -> u64 {
        self.execution.gas_left()
    }

    /// Gas of the transactions so far.
    pub fn gas_used(&self) -> u64 {
        self.execution.gas_used()
    }

    /// Tips that pool transactions have paid to the fee recipient so far, in wei.
    pub fn fees(&self) -> U256 {
        self.fees
    }

    /// Computes the roots and seals the block.
    pub fn finish(self) -> Result<ExecutedBlock, StateError> {
        Ok(self.finish_with_requests()?.block)
    }

    /// Like [`BlockBuilder::finish`], but also returns the requests, which the consensus client
    /// needs.
    pub fn finish_with_requests(mut self) -> Result<BuiltBlock, StateError> {
        let body = EthereumBody {
            uncles: Vec::new(),
            withdrawals: std::mem::take(&mut self.withdrawals),
        };
        let unsealed = Payload::sealed(self.header.clone(), Vec::new()).with_ethereum(body);
        // The block is invalid only if a system contract of the chain does not follow its
        // specification.
        let ended = (self.execution).after_transactions(&self.spec, &self.parent, &unsealed);
        ended.map_err(|error| match error {
            ValidateError::Read(error) => error,
            ValidateError::Invalid(error) => StateError::Evm(error.to_string()),
        })?;
        let unsealed = UnsealedBuild {
            spec: self.spec,
            parent: self.parent,
            header: self.header,
            transactions: self.transactions,
            senders: self.senders,
            ethereum: unsealed.ethereum,
        };
        unsealed.seal(self.execution.finish())
    }

    /// Seals a copy of the block with the transactions added so far; more can be added afterwards.
    /// For OP chains only.
    pub fn so_far(&mut self) -> Result<ExecutedBlock, StateError> {
        let unsealed = UnsealedBuild {
            spec: self.spec.clone(),
            parent: self.parent.clone(),
            header: self.header.clone(),
            transactions: self.transactions.clone(),
            senders: self.senders.clone(),
            ethereum: None,
        };
        Ok(unsealed.seal(self.execution.so_far())?.block)
    }

    /// Adds transactions that the block must contain, like those of the attributes.
    pub fn force_more(&mut self, transactions: Vec<Bytes>) -> Result<(), BuildError> {
        let recovered = recover_forced(&transactions, None);
        for (raw, recovered) in transactions.into_iter().zip(recovered) {
            self.force(self.transactions.len(), raw, recovered)?;
        }
        Ok(())
    }

    /// The header, complete except for the fields that execution computes.
    pub fn header(&self) -> &Header {
        &self.header
    }
}

/// A block that has been executed but not sealed.
struct UnsealedBuild {
    spec: Arc<ChainSpec>,
    parent: ParentState,
    header: Header,
    transactions: Vec<Bytes>,
    senders: Vec<Address>,
    ethereum: Option<Arc<EthereumBody>>,
}

impl UnsealedBuild {
    fn seal(self, execution: Execution) -> Result<BuiltBlock, StateError> {
        let Self {
            spec,
            parent,
            mut header,
            transactions,
            senders,
            ethereum,
        } = self;
        let (outcome, update) = execution.outcome(&spec.at(header.timestamp), &parent)?;
        header.gas_used = outcome.gas_used;
        header.blob_gas_used = outcome.blob_gas_used;
        header.receipts_root = outcome.receipts_root;
        header.logs_bloom = outcome.logs_bloom;
        header.state_root = outcome.state_root;
        header.withdrawals_root = outcome.withdrawals_root;
        header.requests_hash = outcome.requests_hash;
        header.transactions_root = ordered_trie_root_encoded(&transactions);
        let payload = Payload {
            ethereum,
            ..Payload::sealed(header, transactions)
        };
        let block = ExecutedBlock::new(
            Arc::new(payload),
            senders,
            Arc::new(execution.receipts),
            Arc::new(update.overlay),
        );
        let requests = execution.ethereum.map(|outcome| outcome.requests);
        Ok(BuiltBlock {
            block,
            requests: requests.unwrap_or_default(),
        })
    }
}

impl ConditionState for BlockBuilder {
    type Error = StateError;

    fn storage_root(&mut self, address: Address) -> Result<Option<B256>, StateError> {
        let account = self.parent.account(address)?;
        Ok(account.map(|account| account.storage_root))
    }

    fn slot(&mut self, address: Address, key: B256) -> Result<B256, StateError> {
        self.execution.storage(address, key.into()).map(B256::from)
    }
}

/// Returns the value if the attribute is given exactly when its fork is active. Fails otherwise.
fn attribute<T>(
    name: &'static str,
    value: Option<T>,
    active: bool,
) -> Result<Option<T>, BuildError> {
    match (&value, active) {
        (None, true) => Err(BuildError::Missing(name)),
        (Some(_), false) => Err(BuildError::Unexpected(name)),
        _ => Ok(value),
    }
}

/// Checks the number of withdrawals. Only Ethereum blocks from Shanghai on may have any.
fn check_withdrawals(active: &Active, count: usize) -> Result<(), BuildError> {
    if count > 0 && (active.op.is_some() || !active.shanghai) {
        return Err(BuildError::Withdrawals(count));
    }
    if count > MAX_WITHDRAWALS {
        return Err(BuildError::TooManyWithdrawals(count));
    }
    Ok(())
}

/// The header of a block with these attributes, without the fields that execution computes (specs:
/// exec-engine, extended payload attributes).
pub fn header_from(
    spec: &ChainSpec,
    parent: &Header,
    attributes: &OpPayloadAttributes,
) -> Result<Header, BuildError> {
    let standard = &attributes.payload_attributes;
    let timestamp = standard.timestamp;
    let active = spec.at(timestamp);
    if timestamp <= parent.timestamp {
        return Err(BuildError::Timestamp {
            have: timestamp,
            parent: parent.timestamp,
        });
    }
    let withdrawals = standard.withdrawals.as_ref().map_or(0, Vec::len);
    check_withdrawals(&active, withdrawals)?;
    let beacon_root = attribute(
        "parentBeaconBlockRoot",
        standard.parent_beacon_block_root,
        active.cancun,
    )?;
    let params = attribute(
        "eip1559Params",
        attributes.eip_1559_params,
        active.is_op(Fork::Holocene),
    )?;
    let minimum = attribute(
        "minBaseFee",
        attributes.min_base_fee,
        active.is_op(Fork::Jovian),
    )?;
    // On OP the attributes always contain the gas limit, from SystemConfig. On Ethereum, without a
    // gas limit in the attributes, a block keeps its parent's.
    let gas_limit = match attributes.gas_limit {
        Some(limit) => limit,
        None if active.op.is_none() => parent.gas_limit,
        None => return Err(BuildError::Missing("gasLimit")),
    };
    let params = Eip1559Params::decode(params.unwrap_or(B64::ZERO));
    Ok(Header {
        parent_hash: parent.hash_slow(),
        beneficiary: standard.suggested_fee_recipient,
        number: parent.number.saturating_add(1),
        gas_limit,
        timestamp,
        extra_data: ExtraData::encode(spec, timestamp, params, minimum.unwrap_or(0))?,
        mix_hash: standard.prev_randao,
        base_fee_per_gas: Some(spec.next_base_fee(parent, timestamp)?),
        excess_blob_gas: active
            .cancun
            .then(|| spec.excess_blob_gas(parent, timestamp)),
        parent_beacon_block_root: beacon_root,
        requests_hash: active.prague.then_some(EMPTY_REQUESTS_HASH),
        ..Default::default()
    })
}

#[cfg(test)]
mod tests;
