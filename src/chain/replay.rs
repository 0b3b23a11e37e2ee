//! Replays of blocks: a block is executed again, transaction by transaction, on the state before
//! it, for tracers and other callers that need a state inside a block.
//!
//! A [`Replay`] runs a block exactly as the executor does, with the system calls before its first
//! transaction, deposits and code set by forks. It reads one [`View`] and stores nothing. Its cost
//! is the block's gas, bounded by a [`Deadline`]. The block need not be canonical:
//! [`Replay::of_payload`] runs any block with a canonical parent.

use crate::chain::{
    build::{BuildError, header_from},
    evm::{Deadline, ParentState, RecordedState, StateError, TraceError, TracePlace, Tracer, Vm},
    execute::{
        BlockExecution, InvalidBlock, PausedExecution, TransactError, ValidateError, recover,
    },
    receipt::Receipt,
    rules::{ChainSpec, MESSAGE_PASSER},
    transaction::ChainTx,
    trie::TrieError,
    view::{ReadError, State, View},
};
use alloy_consensus::{Header, transaction::Recovered};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use starling_proto::payload::Payload;
use std::sync::Arc;

/// The reason why a block cannot be executed again.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("block #{0} not found")]
    UnknownNumber(u64),
    #[error("block {0:#x} not found")]
    UnknownHash(B256),
    #[error("genesis is not traceable")]
    Genesis,
    #[error(
        "state at block #{number} is pruned, the oldest state is at block #{oldest}: ask a node with a longer --history.state"
    )]
    Pruned { number: u64, oldest: u64 },
    #[error("transaction index {index} out of range for block {block:#x}")]
    Index { index: usize, block: B256 },
    #[error(transparent)]
    Block(#[from] InvalidBlock),
    #[error(transparent)]
    Attributes(#[from] BuildError),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Trie(#[from] TrieError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A block that is being executed again.
pub struct Replay {
    payload: Arc<Payload>,
    parent: ParentState,
    senders: Vec<Address>,
    execution: BlockExecution,
    /// Number of transactions that have been executed.
    done: usize,
}

impl Replay {
    /// Starts to replay the block of this number in `view`.
    pub fn of_block(
        spec: &ChainSpec,
        view: &Arc<View>,
        number: u64,
        deadline: &Deadline,
    ) -> Result<Self, ReplayError> {
        let payload = view
            .payload(number)?
            .ok_or(ReplayError::UnknownNumber(number))?;
        let senders = view.senders(&payload)?;
        Self::on(spec, view, payload, senders, deadline)
    }

    /// Starts to replay a block whose parent is in `view`.
    pub fn of_payload(
        spec: &ChainSpec,
        view: &Arc<View>,
        payload: Arc<Payload>,
        deadline: &Deadline,
    ) -> Result<Self, ReplayError> {
        let senders = recover_senders(&payload, deadline)?;
        Self::on(spec, view, payload, senders, deadline)
    }

    /// Starts to replay the block of this number in `view`, on a state that records all reads.
    pub fn recorded(
        spec: &ChainSpec,
        view: &Arc<View>,
        number: u64,
        deadline: &Deadline,
    ) -> Result<RecordedReplay, ReplayError> {
        let payload = view
            .payload(number)?
            .ok_or(ReplayError::UnknownNumber(number))?;
        let senders = view.senders(&payload)?;
        Self::record(spec, view, payload, senders, deadline)
    }

    /// Starts a block with these attributes and no other transactions, on a block of `view`, with a
    /// state that records all reads.
    pub fn of_attributes(
        spec: &ChainSpec,
        view: &Arc<View>,
        parent: B256,
        attributes: OpPayloadAttributes,
        deadline: &Deadline,
    ) -> Result<RecordedReplay, ReplayError> {
        let unknown = || ReplayError::UnknownHash(parent);
        let number = view.number_of(parent)?.ok_or_else(unknown)?;
        let before = view.header_of(number)?.ok_or_else(unknown)?;
        let header = header_from(spec, &before, &attributes)?;
        let transactions = attributes.transactions.unwrap_or_default();
        let payload = Arc::new(Payload::sealed(header, transactions));
        let senders = recover_senders(&payload, deadline)?;
        Self::record(spec, view, payload, senders, deadline)
    }

    fn record(
        spec: &ChainSpec,
        view: &Arc<View>,
        payload: Arc<Payload>,
        senders: Vec<Address>,
        deadline: &Deadline,
    ) -> Result<RecordedReplay, ReplayError> {
        let recorded = RecordedState::new(state_before(spec, view, &payload)?);
        let parent = ParentState::Recorded(recorded.clone());
        let replay = Self::begin(spec, parent, payload, senders, deadline)?;
        Ok(RecordedReplay { replay, recorded })
    }

    fn on(
        spec: &ChainSpec,
        view: &Arc<View>,
        payload: Arc<Payload>,
        senders: Vec<Address>,
        deadline: &Deadline,
    ) -> Result<Self, ReplayError> {
        let parent = state_before(spec, view, &payload)?.into();
        Self::begin(spec, parent, payload, senders, deadline)
    }

    fn begin(
        spec: &ChainSpec,
        parent: ParentState,
        payload: Arc<Payload>,
        senders: Vec<Address>,
        deadline: &Deadline,
    ) -> Result<Self, ReplayError> {
        let header = &payload.header;
        let execution =
            BlockExecution::begin_again(spec, header, parent.clone(), deadline.clone())?;
        Ok(Self {
            payload,
            parent,
            senders,
            execution,
            done: 0,
        })
    }

    pub fn header(&self) -> &Header {
        &self.payload.header
    }

    pub fn payload(&self) -> &Arc<Payload> {
        &self.payload
    }

    /// The state before the block's first transaction.
    pub fn parent(&self) -> &ParentState {
        &self.parent
    }

    /// Number of transactions in the block.
    pub fn count(&self) -> usize {
        self.payload.transactions.len()
    }

    /// Number of transactions that have been executed.
    pub fn done(&self) -> usize {
        self.done
    }

    /// The hash of the transaction at `index`.
    pub fn tx_hash(&self, index: usize) -> Option<B256> {
        self.payload.transactions.get(index).map(keccak256)
    }

    /// The block and the index of the next transaction, for the tracer.
    pub fn place(&self) -> TracePlace {
        TracePlace {
            block_hash: Some(self.payload.hash),
            block_number: self.payload.number(),
            tx_hash: self.tx_hash(self.done),
            tx_index: self.done,
        }
    }

    /// Decodes the next transaction.
    fn next(&self) -> Result<NextTransaction, ReplayError> {
        let index = self.done;
        let (Some(raw), Some(sender)) = (
            self.payload.transactions.get(index),
            self.senders.get(index),
        ) else {
            return Err(self.out_of_range(index));
        };
        let tx = ChainTx::decode(raw).map_err(|error| InvalidBlock::Undecodable {
            index,
            reason: error.to_string(),
        })?;
        Ok(NextTransaction {
            tx: Recovered::new_unchecked(tx, *sender),
            raw: raw.clone(),
        })
    }

    fn out_of_range(&self, index: usize) -> ReplayError {
        ReplayError::Index {
            index,
            block: self.payload.hash,
        }
    }

    /// Executes the next transaction. After an error it is still the next one.
    pub fn step(&mut self) -> Result<&Receipt, ReplayError> {
        let NextTransaction { tx, raw } = self.next()?;
        let index = self.done;
        let ran = self.execution.transact(&tx, &raw);
        let receipt = ran.map_err(|error| match error {
            TransactError::Refused(cause) => InvalidBlock::Transaction { index, cause }.into(),
            TransactError::State(error) => ReplayError::State(error),
        })?;
        self.done += 1;
        Ok(receipt)
    }

    /// Executes all transactions before the one at `index`.
    pub fn skip_to(&mut self, index: usize) -> Result<(), ReplayError> {
        if index > self.count() {
            return Err(self.out_of_range(index));
        }
        while self.done < index {
            self.step()?;
        }
        Ok(())
    }

    /// Executes all transactions before the one at `index`. Fails if the block has no transaction
    /// there, except that index 0 of an empty block is allowed.
    pub fn stand_before(&mut self, index: usize) -> Result<(), ReplayError> {
        if index >= self.count() && index > 0 {
            return Err(self.out_of_range(index));
        }
        self.skip_to(index)
    }

    /// Executes and traces the next transaction. After an error it is still the next one.
    pub fn trace(&mut self, tracer: &mut Option<Box<Tracer>>) -> Result<&Receipt, ReplayError> {
        let NextTransaction { tx, raw } = self.next()?;
        let place = self.place();
        let receipt = self.execution.trace(&tx, &raw, tracer, &place)?;
        self.done += 1;
        Ok(receipt)
    }

    /// Pauses the replay and releases the state before the block.
    pub fn pause(self) -> PausedReplay {
        PausedReplay {
            payload: self.payload,
            senders: self.senders,
            execution: self.execution.pause(),
            done: self.done,
        }
    }

    /// Sets the deadline for all further execution.
    pub fn set_deadline(&mut self, deadline: Deadline) {
        self.execution.vm().set_deadline(deadline);
    }

    /// The state root at this point of the block.
    pub fn state_root(&mut self) -> Result<B256, ReplayError> {
        let changes = self.execution.vm().changes_so_far();
        Ok(self.parent.update(&changes)?.state_root)
    }

    /// Runs the steps after the last transaction of the block.
    fn after_transactions(&mut self, spec: &ChainSpec) -> Result<(), ReplayError> {
        let (parent, payload) = (&self.parent, &self.payload);
        let ended = self.execution.after_transactions(spec, parent, payload);
        ended.map_err(|error| match error {
            ValidateError::Invalid(error) => error.into(),
            ValidateError::Read(error) => error.into(),
        })
    }

    /// The EVM, with the state at this point of the block.
    pub fn vm(&mut self) -> &mut Vm {
        self.execution.vm()
    }

    pub fn into_vm(self) -> Vm {
        self.execution.into_vm()
    }
}

/// A paused replay, kept for the next request. It has no view, so it pins no snapshot of the store.
pub struct PausedReplay {
    payload: Arc<Payload>,
    senders: Vec<Address>,
    execution: PausedExecution,
    done: usize,
}

impl PausedReplay {
    /// The hash of the block.
    pub fn block(&self) -> B256 {
        self.payload.hash
    }

    /// Number of transactions that have been executed.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Whether all transactions have been executed.
    pub fn is_complete(&self) -> bool {
        self.done == self.payload.transactions.len()
    }

    /// Approximate bytes held in memory.
    pub fn weight(&self) -> usize {
        self.execution.weight() + self.payload.weight()
    }

    /// Continues the replay on the state of `view`, which must contain the block's parent.
    pub fn resume(
        self,
        spec: &ChainSpec,
        view: &Arc<View>,
        deadline: &Deadline,
    ) -> Result<Replay, ReplayError> {
        let parent = state_before(spec, view, &self.payload)?.into();
        let (header, deadline) = (&self.payload.header, deadline.clone());
        let execution = self.execution.resume(spec, header, &parent, deadline);
        Ok(Replay {
            execution,
            parent,
            payload: self.payload,
            senders: self.senders,
            done: self.done,
        })
    }
}

/// Recovers the senders of a block that may not have been executed before.
fn recover_senders(payload: &Payload, deadline: &Deadline) -> Result<Vec<Address>, ReplayError> {
    let mut senders = Vec::with_capacity(payload.transactions.len());
    for (index, raw) in payload.transactions.iter().enumerate() {
        deadline.check()?;
        senders.push(recover(index, raw)?.signer());
    }
    Ok(senders)
}

/// The state before a block, whose parent must be in `view`.
fn state_before(
    spec: &ChainSpec,
    view: &Arc<View>,
    payload: &Payload,
) -> Result<State, ReplayError> {
    let header = &payload.header;
    let before = header.number.checked_sub(1).ok_or(ReplayError::Genesis)?;
    if payload.hash == spec.genesis_hash {
        return Err(ReplayError::Genesis);
    }
    if view.hash_of(before)? != Some(header.parent_hash) {
        return Err(ReplayError::UnknownHash(header.parent_hash));
    }
    view.state_at(before)?.ok_or_else(|| ReplayError::Pruned {
        number: before,
        oldest: view.oldest_state(),
    })
}

/// A replay of a block on a state that records all reads.
pub struct RecordedReplay {
    replay: Replay,
    recorded: Arc<RecordedState>,
}

/// The data needed to execute a block without a database.
pub struct BlockWitness {
    /// The parent's header, followed by older headers as far as the block reads their hashes.
    /// Newest first.
    pub headers: Vec<Header>,
    pub codes: Vec<Bytes>,
    /// Nodes of the state and storage tries.
    pub nodes: Vec<Bytes>,
}

impl RecordedReplay {
    /// Executes the whole block and collects the data that execution needed.
    pub fn witness(mut self, spec: &ChainSpec, view: &View) -> Result<BlockWitness, ReplayError> {
        self.replay.skip_to(self.replay.count())?;
        self.replay.after_transactions(spec)?;
        let changes = self.replay.vm().changes_so_far();
        let mut reads = self.recorded.reads();
        // The withdrawals root is the storage root of this account, so its nodes are needed too.
        reads.state.entry(keccak256(MESSAGE_PASSER)).or_default();
        let state = self.recorded.state();
        let nodes = state.witness_nodes(&reads.state, &changes)?;
        let newest = state.header().number;
        let oldest = reads.oldest_block.unwrap_or(newest).min(newest);
        let mut headers = Vec::new();
        for number in (oldest..=newest).rev() {
            headers.extend(view.header_of(number)?);
        }
        Ok(BlockWitness {
            headers,
            codes: reads.codes.into_values().collect(),
            nodes,
        })
    }
}

/// A decoded transaction and its EIP-2718 bytes.
struct NextTransaction {
    tx: Recovered<ChainTx>,
    raw: Bytes,
}
