//! A scratch EVM on an empty state, for building a genesis that has contracts. It runs creation
//! code and calls, and the resulting contracts are added to the alloc. Its input is the program's
//! own bytecode, never a peer's.

use alloy_primitives::{Address, Bytes, Log, TxKind, U256};
use revm::{
    Context, ExecuteCommitEvm, MainBuilder, MainContext,
    context::{TxEnv, result::ExecutionResult},
    database::{CacheDB, EmptyDB},
    primitives::hardfork::SpecId,
    state::{AccountInfo, Bytecode},
};
use std::collections::BTreeMap;

/// Gas limit of each run: enough for the contracts of a genesis, and below EIP-7825's cap.
const GAS_LIMIT: u64 = 16_000_000;

#[derive(Debug, thiserror::Error)]
pub enum ScratchError {
    #[error("the call to {to:?} from {from} reverted with {output}")]
    Reverted {
        from: Address,
        to: TxKind,
        output: Bytes,
    },
    #[error("the call to {to:?} from {from} failed: {reason}")]
    Failed {
        from: Address,
        to: TxKind,
        reason: String,
    },
}

/// Result of a successful call.
#[derive(Clone, Debug)]
pub struct ScratchOutcome {
    pub output: Bytes,
    pub logs: Vec<Log>,
}

/// Nonce, code and storage of a contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contract {
    pub nonce: u64,
    pub code: Bytes,
    /// Slots whose value is not zero.
    pub storage: BTreeMap<U256, U256>,
}

/// A state that is empty at first, in which code runs with Prague's rules. Gas is free.
#[derive(Debug, Default)]
pub struct Scratch {
    db: CacheDB<EmptyDB>,
}

impl Scratch {
    /// Runs creation code (with its arguments appended) and moves the resulting contract to
    /// `address`. The constructor runs at another address, so code that stores its own address is
    /// not supported.
    pub fn deploy(&mut self, address: Address, creation: Bytes) -> Result<(), ScratchError> {
        let builder = Address::repeat_byte(0xde);
        let (_, created) = self.run(builder, TxKind::Create, U256::ZERO, creation)?;
        let created = created.and_then(|created| self.db.cache.accounts.remove(&created));
        let account = created.ok_or_else(|| ScratchError::Failed {
            from: builder,
            to: TxKind::Create,
            reason: "no contract came out".into(),
        })?;
        self.db.cache.accounts.insert(address, account);
        Ok(())
    }

    /// Sets an account of a genesis, with its nonce, code and storage.
    pub fn insert(&mut self, address: Address, contract: Contract) {
        let info = AccountInfo {
            nonce: contract.nonce,
            ..AccountInfo::from_bytecode(Bytecode::new_legacy(contract.code))
        };
        self.db.insert_account_info(address, info);
        for (slot, value) in contract.storage {
            // The database is in memory, so an insertion cannot fail.
            let Ok(()) = self.db.insert_account_storage(address, slot, value);
        }
    }

    /// Sets an account that has only this balance: no nonce and no code.
    pub fn fund(&mut self, address: Address, balance: U256) {
        self.db.insert_account_info(
            address,
            AccountInfo {
                balance,
                ..Default::default()
            },
        );
    }

    /// Calls a contract and keeps the call's changes.
    pub fn call(
        &mut self,
        from: Address,
        to: Address,
        value: U256,
        data: Bytes,
    ) -> Result<ScratchOutcome, ScratchError> {
        self.run(from, TxKind::Call(to), value, data)
            .map(|(outcome, _)| outcome)
    }

    /// The contract at an address; `None` if there is no code.
    pub fn contract(&self, address: Address) -> Option<Contract> {
        let account = self.db.cache.accounts.get(&address)?;
        let code = match &account.info.code {
            Some(code) => code.clone(),
            None => self
                .db
                .cache
                .contracts
                .get(&account.info.code_hash)?
                .clone(),
        };
        let code = code.original_bytes();
        let storage = account
            .storage
            .iter()
            .filter(|(_, value)| !value.is_zero())
            .map(|(slot, value)| (*slot, *value))
            .collect();
        (!code.is_empty()).then_some(Contract {
            nonce: account.info.nonce,
            code,
            storage,
        })
    }

    fn run(
        &mut self,
        from: Address,
        to: TxKind,
        value: U256,
        data: Bytes,
    ) -> Result<(ScratchOutcome, Option<Address>), ScratchError> {
        let failed = |reason: String| ScratchError::Failed { from, to, reason };
        let mut evm = Context::mainnet()
            .with_db(&mut self.db)
            .modify_cfg_chained(|cfg| {
                cfg.set_spec_and_mainnet_gas_params(SpecId::PRAGUE);
                cfg.disable_nonce_check = true;
                cfg.tx_chain_id_check = false;
            })
            .build_mainnet();
        let tx = TxEnv::builder()
            .caller(from)
            .kind(to)
            .value(value)
            .data(data)
            .gas_limit(GAS_LIMIT)
            .gas_price(0);
        let tx = tx
            .chain_id(None)
            .build()
            .map_err(|error| failed(format!("{error:?}")))?;
        match evm
            .transact_commit(tx)
            .map_err(|error| failed(error.to_string()))?
        {
            ExecutionResult::Success { output, logs, .. } => {
                let created = output.address().copied();
                Ok((
                    ScratchOutcome {
                        output: output.into_data(),
                        logs,
                    },
                    created,
                ))
            }
            ExecutionResult::Revert { output, .. } => {
                Err(ScratchError::Reverted { from, to, output })
            }
            ExecutionResult::Halt { reason, .. } => Err(failed(format!("{reason:?}"))),
        }
    }
}
