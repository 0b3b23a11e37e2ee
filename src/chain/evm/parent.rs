//! The state on which a block is executed. It is the state of a view, with or without a record of
//! the reads, or a bare witness.

use crate::chain::{
    changes::Changes,
    evm::codes,
    rows::{Account, Overlay, ReadError},
    trie::{StateReads, TrieError, Update, Witness},
    view::State,
};
use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use alloy_rlp::Decodable;
use parking_lot::Mutex;
use revm::{
    DatabaseRef,
    bytecode::Bytecode,
    database_interface::{DBErrorMarker, bal::EvmDatabaseError},
    primitives::KECCAK_EMPTY,
    state::AccountInfo,
};
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

/// The state after the parent of a block. Cheap to clone.
#[derive(Clone)]
pub enum ParentState {
    View(State),
    /// The state of a view, with a record of everything that is read.
    Recorded(Arc<RecordedState>),
    Witness(Arc<WitnessState>),
}

/// A state of a view, and the parts of it that have been read.
pub struct RecordedState {
    state: State,
    reads: Mutex<RecordedReads>,
}

/// Parts of a state that have been read.
#[derive(Clone, Debug, Default)]
pub struct RecordedReads {
    /// Accounts and slots that were read.
    pub state: StateReads,
    /// Codes that were read, by hash.
    pub codes: BTreeMap<B256, Bytes>,
    /// The oldest block whose hash was read by BLOCKHASH.
    pub oldest_block: Option<u64>,
}

impl RecordedState {
    pub fn new(state: State) -> Arc<Self> {
        let reads = Mutex::default();
        Arc::new(Self { state, reads })
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn reads(&self) -> RecordedReads {
        self.reads.lock().clone()
    }

    fn note_account(&self, address: Address) {
        let mut reads = self.reads.lock();
        reads.state.entry(keccak256(address)).or_default();
    }

    fn note_slot(&self, address: Address, slot: U256) {
        let mut reads = self.reads.lock();
        let slots = reads.state.entry(keccak256(address)).or_default();
        slots.insert(keccak256(B256::from(slot)));
    }

    fn note_code(&self, hash: B256, code: Bytes) {
        self.reads.lock().codes.insert(hash, code);
    }

    fn note_block(&self, number: u64) {
        let mut reads = self.reads.lock();
        let oldest = reads
            .oldest_block
            .map_or(number, |oldest| oldest.min(number));
        reads.oldest_block = Some(oldest);
    }
}

/// The state after a block, as far as a witness proves it.
pub struct WitnessState {
    pub witness: Witness,
    /// The header whose state root the witness proves.
    pub header: Header,
}

/// The reason why a state cannot be read. Whether the block is valid is then unknown.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StateError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Trie(#[from] TrieError),
    #[error("the code {0} is missing")]
    Code(B256),
    #[error("the hash of block {0} is missing")]
    BlockHash(u64),
    /// The deadline of a simulated call has passed, or the call was cancelled. The text is geth's.
    #[error("execution aborted (timeout = {0:?})")]
    Aborted(Duration),
    /// An internal error of the EVM.
    #[error("the EVM failed: {0}")]
    Evm(String),
}

impl DBErrorMarker for StateError {}

impl From<EvmDatabaseError<StateError>> for StateError {
    fn from(error: EvmDatabaseError<StateError>) -> Self {
        match error {
            EvmDatabaseError::Database(error) => error,
            // This node does not use revm's block access lists, so this error never occurs.
            EvmDatabaseError::Bal(error) => Self::Evm(error.to_string()),
        }
    }
}

impl From<State> for ParentState {
    fn from(state: State) -> Self {
        Self::View(state)
    }
}

impl From<&State> for ParentState {
    fn from(state: &State) -> Self {
        Self::View(state.clone())
    }
}

impl From<WitnessState> for ParentState {
    fn from(state: WitnessState) -> Self {
        Self::Witness(Arc::new(state))
    }
}

impl fmt::Debug for ParentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state of block {}", self.header().number)
    }
}

impl ParentState {
    /// A state with this header only: accounts, slots and codes cannot be read.
    pub fn header_only(&self) -> Self {
        Self::from(WitnessState {
            witness: Witness::default(),
            header: self.header().clone(),
        })
    }

    /// The header of the block that results in this state.
    pub fn header(&self) -> &Header {
        match self {
            Self::View(state) => state.header(),
            Self::Recorded(recorded) => recorded.state.header(),
            Self::Witness(state) => &state.header,
        }
    }

    /// The hash of the block that results in this state.
    pub fn hash(&self) -> B256 {
        match self {
            Self::View(state) => state.hash(),
            Self::Recorded(recorded) => recorded.state.hash(),
            Self::Witness(state) => state.header.hash_slow(),
        }
    }

    pub fn account(&self, address: Address) -> Result<Option<Account>, StateError> {
        Ok(match self {
            Self::View(state) => state.account(address)?,
            Self::Recorded(recorded) => {
                recorded.note_account(address);
                recorded.state.account(address)?
            }
            Self::Witness(state) => state.witness.account(state.header.state_root, address)?,
        })
    }

    /// Computes the roots and rows after these changes. A witness has no rows, so it yields only
    /// the roots.
    pub fn update(&self, changes: &Changes) -> Result<Update, StateError> {
        Ok(match self {
            Self::View(state) => state.update(changes)?,
            Self::Recorded(recorded) => recorded.state.update(changes)?,
            Self::Witness(state) => {
                let roots = state.witness.update(state.header.state_root, changes)?;
                Update {
                    state_root: roots.state_root,
                    storage_roots: roots.storage_roots,
                    overlay: Overlay::default(),
                }
            }
        })
    }
}

impl WitnessState {
    /// The hash of block `number`: the block itself or an ancestor. `None` unless the witness has
    /// the headers of all blocks between the ancestor and this block.
    fn block_hash(&self, number: u64) -> Option<B256> {
        let mut hash = self.header.hash_slow();
        let mut header = self.header.clone();
        while header.number > number {
            hash = header.parent_hash;
            if header.number == number + 1 {
                break;
            }
            header = Header::decode(&mut self.witness.code(hash)?.as_ref()).ok()?;
        }
        (header.number <= number + 1).then_some(hash)
    }
}

impl DatabaseRef for ParentState {
    type Error = StateError;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, StateError> {
        Ok(self.account(address)?.map(|account| AccountInfo {
            balance: account.balance,
            nonce: account.nonce,
            code_hash: account.code_hash,
            account_id: None,
            code: None,
        }))
    }

    fn code_by_hash_ref(&self, hash: B256) -> Result<Bytecode, StateError> {
        if hash == KECCAK_EMPTY {
            return Ok(Bytecode::default());
        }
        match self {
            Self::View(state) => {
                codes::analysed(hash, || state.code(hash)?.ok_or(StateError::Code(hash)))
            }
            Self::Recorded(recorded) => {
                let read = || recorded.state.code(hash)?.ok_or(StateError::Code(hash));
                let code = codes::analysed(hash, read)?;
                recorded.note_code(hash, code.original_bytes());
                Ok(code)
            }
            // The witness must have every code that is read, so do not use the shared cache.
            Self::Witness(state) => Ok(Bytecode::new_raw(
                state.witness.code(hash).ok_or(StateError::Code(hash))?,
            )),
        }
    }

    fn storage_ref(&self, address: Address, slot: U256) -> Result<U256, StateError> {
        Ok(match self {
            Self::View(state) => state.storage(address, slot)?,
            Self::Recorded(recorded) => {
                recorded.note_slot(address, slot);
                recorded.state.storage(address, slot)?
            }
            Self::Witness(state) => {
                state
                    .witness
                    .storage(state.header.state_root, address, slot)?
            }
        })
    }

    fn block_hash_ref(&self, number: u64) -> Result<B256, StateError> {
        // A simulated call may override the block number: blocks above the parent have no hash.
        if number > self.header().number {
            return Ok(B256::ZERO);
        }
        let hash = match self {
            Self::View(state) => state.block_hash(number)?,
            Self::Recorded(recorded) => {
                recorded.note_block(number);
                recorded.state.block_hash(number)?
            }
            Self::Witness(state) => state.block_hash(number),
        };
        hash.ok_or(StateError::BlockHash(number))
    }
}
