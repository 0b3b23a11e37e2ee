//! The state at one point of a transaction, as a tracer reads it: while the EVM runs, or before or
//! after the transaction.

use super::super::{Db, StateError};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256};
use revm::{
    Database,
    bytecode::Bytecode,
    context_interface::ContextTr,
    inspector::JournalExt,
    state::{AccountInfo, EvmState},
};

/// Reads of the state at one point. If a read fails, the tracer gets an empty account or zero, and
/// the error is kept so that the EVM is stopped with it.
pub(super) trait PointState {
    fn info(&mut self, address: Address) -> Result<AccountInfo, StateError>;

    fn slot_value(&mut self, address: Address, slot: U256) -> Result<U256, StateError>;

    fn code_by_hash(&mut self, hash: B256) -> Result<Bytecode, StateError>;

    /// Keeps this error, unless an earlier one is kept.
    fn fail(&mut self, error: StateError);

    fn account(&mut self, address: Address) -> AccountInfo {
        self.info(address).unwrap_or_else(|error| {
            self.fail(error);
            AccountInfo::default()
        })
    }

    fn slot(&mut self, address: Address, slot: U256) -> U256 {
        self.slot_value(address, slot).unwrap_or_else(|error| {
            self.fail(error);
            U256::ZERO
        })
    }

    fn code_of(&mut self, info: &AccountInfo) -> Bytes {
        if let Some(code) = &info.code {
            return code.original_bytes();
        }
        if info.code_hash == KECCAK256_EMPTY || info.code_hash.is_zero() {
            return Bytes::new();
        }
        match self.code_by_hash(info.code_hash) {
            Ok(code) => code.original_bytes(),
            Err(error) => {
                self.fail(error);
                Bytes::new()
            }
        }
    }

    fn code(&mut self, address: Address) -> Bytes {
        let info = self.account(address);
        self.code_of(&info)
    }
}

/// The address to which this code delegates (EIP-7702); `None` if it is other code.
pub(super) fn delegation(code: &[u8]) -> Option<Address> {
    let target = code.strip_prefix(&[0xef, 0x01, 0x00])?;
    Address::try_from(target).ok()
}

/// The state while the EVM runs.
pub(super) struct LiveState<'a, CTX> {
    pub context: &'a mut CTX,
    pub failure: &'a mut Option<StateError>,
}

impl<CTX: ContextTr<Db = Db, Journal: JournalExt>> PointState for LiveState<'_, CTX> {
    fn info(&mut self, address: Address) -> Result<AccountInfo, StateError> {
        if let Some(account) = self.context.journal_ref().evm_state().get(&address) {
            return Ok(account.info.clone());
        }
        read_account(self.context.db_mut(), address)
    }

    fn slot_value(&mut self, address: Address, slot: U256) -> Result<U256, StateError> {
        if let Some(account) = self.context.journal_ref().evm_state().get(&address) {
            if let Some(value) = account.storage.get(&slot) {
                return Ok(value.present_value);
            }
            if account.is_created() {
                return Ok(U256::ZERO);
            }
        }
        read_slot(self.context.db_mut(), address, slot)
    }

    fn code_by_hash(&mut self, hash: B256) -> Result<Bytecode, StateError> {
        self.context
            .db_mut()
            .code_by_hash(hash)
            .map_err(StateError::from)
    }

    fn fail(&mut self, error: StateError) {
        self.failure.get_or_insert(error);
    }
}

/// The state before a transaction, or, with the transaction's changes in `changed`, after it.
pub(super) struct SettledState<'a> {
    pub db: &'a mut Db,
    pub changed: Option<&'a EvmState>,
    pub failure: &'a mut Option<StateError>,
}

impl PointState for SettledState<'_> {
    fn info(&mut self, address: Address) -> Result<AccountInfo, StateError> {
        if let Some(account) = self.changed.and_then(|changed| changed.get(&address)) {
            return Ok(account.info.clone());
        }
        read_account(self.db, address)
    }

    fn slot_value(&mut self, address: Address, slot: U256) -> Result<U256, StateError> {
        if let Some(account) = self.changed.and_then(|changed| changed.get(&address)) {
            if let Some(value) = account.storage.get(&slot) {
                return Ok(value.present_value);
            }
            if account.is_created() {
                return Ok(U256::ZERO);
            }
        }
        read_slot(self.db, address, slot)
    }

    fn code_by_hash(&mut self, hash: B256) -> Result<Bytecode, StateError> {
        self.db.code_by_hash(hash).map_err(StateError::from)
    }

    fn fail(&mut self, error: StateError) {
        self.failure.get_or_insert(error);
    }
}

fn read_account(db: &mut Db, address: Address) -> Result<AccountInfo, StateError> {
    Ok(db
        .basic(address)
        .map_err(StateError::from)?
        .unwrap_or_default())
}

fn read_slot(db: &mut Db, address: Address, slot: U256) -> Result<U256, StateError> {
    // revm's cache must load the account before its storage.
    read_account(db, address)?;
    db.storage(address, slot).map_err(StateError::from)
}
