//! The state at one point of a transaction, as a tracer reads it: while the EVM runs, or before or
//! after the transaction.

use super::super::{Db, StateError, watch::WatchedContext};
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256};
use revm::{
    Database,
    bytecode::Bytecode,
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

impl<CTX: WatchedContext> PointState for LiveState<'_, CTX> {
    fn info(&mut self, address: Address) -> Result<AccountInfo, StateError> {
        if let Some(account) = self.context.journal_ref().state.get(&address) {
            return Ok(account.info.clone());
        }
        read_account(self.context.db_mut(), address)
    }

    fn slot_value(&mut self, address: Address, slot: U256) -> Result<U256, StateError> {
        if let Some(account) = self.context.journal_ref().state.get(&address) {
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

/// The state while the EVM runs, and what the transaction has accessed so far.
pub(super) trait LivePoint: PointState {
    fn is_warm(&self, address: Address) -> bool;

    fn is_slot_warm(&self, address: Address, slot: U256) -> bool;

    /// The value of a slot before the transaction.
    fn original_slot(&mut self, address: Address, slot: U256) -> U256;

    /// Whether the account exists, even if it is empty: before Spurious Dragon there are empty ones.
    fn exists(&mut self, address: Address) -> bool;
}

impl<CTX: WatchedContext> LivePoint for LiveState<'_, CTX> {
    fn is_warm(&self, address: Address) -> bool {
        let journal = self.context.journal_ref();
        let loaded = journal.state.get(&address);
        loaded.is_some_and(|account| !account.is_cold_transaction_id(journal.transaction_id))
            || journal.warm_addresses.is_warm(&address)
    }

    fn is_slot_warm(&self, address: Address, slot: U256) -> bool {
        let journal = self.context.journal_ref();
        let account = journal.state.get(&address);
        let loaded = account.and_then(|account| account.storage.get(&slot));
        loaded.is_some_and(|slot| !slot.is_cold_transaction_id(journal.transaction_id))
            || journal.warm_addresses.is_storage_warm(&address, &slot)
    }

    fn original_slot(&mut self, address: Address, slot: U256) -> U256 {
        let journal = self.context.journal_ref();
        let account = journal.state.get(&address);
        match account.and_then(|account| account.storage.get(&slot)) {
            Some(slot) if !slot.is_cold_transaction_id(journal.transaction_id) => {
                slot.original_value()
            }
            _ => self.slot(address, slot),
        }
    }

    fn exists(&mut self, address: Address) -> bool {
        if let Some(account) = self.context.journal_ref().state.get(&address) {
            return !account.is_loaded_as_not_existing_not_touched();
        }
        match self.context.db_mut().basic(address) {
            Ok(account) => account.is_some(),
            Err(error) => {
                self.fail(error.into());
                false
            }
        }
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
