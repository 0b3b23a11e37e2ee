//! Tests of the EVM, and helpers for other tests of execution: states built from allocs.

mod calls;
mod deadlines;
mod estimates;
mod forks;
mod tracers;

use super::*;
use crate::chain::{
    changes::{AccountChange, Changes, StorageChange},
    execute::recover,
    rules::{Eip1559Constants, Rules},
    store::{Identity, Store},
    trie,
    view::{State, View},
};
use alloy_consensus::{SignableTransaction, Signed, TxEip1559};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{KECCAK256_EMPTY, Signature, bytes};
use alloy_trie::EMPTY_ROOT_HASH;
use op_alloy_consensus::TxDeposit;
use starling_proto::{
    fork::{EthereumSchedule, ForkSchedule},
    l1info::L1InfoFormat,
    payload::Payload,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub const CHAIN: u64 = 901;
pub const GAS_LIMIT: u64 = 60_000_000;
/// Timestamp of the block after which calls run.
pub const TIME: u64 = 1_000;

/// A fixture file as JSON; `None`, recorded as a skip, if the fixtures are absent.
pub fn fixture(name: &str) -> Option<serde_json::Value> {
    let mut bytes = std::fs::read(starling_testkit::fixture(name)?).unwrap();
    if name.ends_with(".zst") {
        bytes = zstd::decode_all(bytes.as_slice()).unwrap();
    }
    Some(serde_json::from_slice(&bytes).unwrap())
}

/// An OP chain with every fork up to `last` at genesis.
pub fn op(last: Fork) -> ChainSpec {
    scheduled(ForkSchedule::from_genesis(last))
}

pub fn scheduled(forks: ForkSchedule) -> ChainSpec {
    let eip1559 = Eip1559Constants {
        elasticity: 6,
        denominator: 50,
        denominator_canyon: 250,
    };
    ChainSpec {
        chain_id: CHAIN,
        genesis_hash: B256::ZERO,
        genesis_time: 0,
        rules: Rules::Optimism { forks, eip1559 },
    }
}

pub fn ethereum() -> ChainSpec {
    let forks = EthereumSchedule {
        shanghai: Some(0),
        cancun: Some(0),
        prague: Some(0),
        ..Default::default()
    };
    ChainSpec {
        chain_id: CHAIN,
        genesis_hash: B256::ZERO,
        genesis_time: 0,
        rules: Rules::Ethereum {
            forks,
            blobs: Default::default(),
            deposit_contract: Default::default(),
            before_merge: None,
        },
    }
}

/// Initial contents of an account.
#[derive(Clone, Debug, Default)]
pub struct Alloc {
    pub nonce: u64,
    pub balance: U256,
    pub code: Bytes,
    pub storage: BTreeMap<U256, U256>,
}

impl Alloc {
    pub fn ether(ether: u64) -> Self {
        Self {
            balance: U256::from(ether) * U256::from(10).pow(U256::from(18)),
            ..Default::default()
        }
    }

    pub fn code(code: impl Into<Bytes>) -> Self {
        Self {
            nonce: 1,
            code: code.into(),
            ..Default::default()
        }
    }

    /// Adds the account, its code and its storage to the changes.
    fn add_to(self, changes: &mut Changes, address: Address) {
        let hash = keccak256(address);
        let code_hash = if self.code.is_empty() {
            KECCAK256_EMPTY
        } else {
            keccak256(&self.code)
        };
        let account = AccountChange {
            nonce: self.nonce,
            balance: self.balance,
            code_hash,
        };
        changes.accounts.insert(hash, Some(account));
        changes.codes.insert(code_hash, self.code);
        if !self.storage.is_empty() {
            let slots = self.storage.into_iter();
            let storage = StorageChange {
                wiped: false,
                slots: slots
                    .map(|(slot, value)| (keccak256(B256::from(slot)), value))
                    .collect(),
            };
            changes.storages.insert(hash, storage);
        }
    }

    pub fn slot(mut self, slot: u64, value: U256) -> Self {
        self.storage.insert(U256::from(slot), value);
        self
    }
}

/// A store with one block, whose state is built from an alloc.
pub struct Ground {
    pub store: Store,
    pub header: Header,
    _dir: tempfile::TempDir,
}

impl Ground {
    pub fn new(alloc: impl IntoIterator<Item = (Address, Alloc)>) -> Self {
        // The header can have only one of Holocene's and Jovian's forms of extra data. It has
        // Jovian's; tests of Holocene set their own.
        Self::with_header(
            alloc,
            Header {
                extra_data: bytes!("01 000000fa 00000006 0000000000000000"),
                ..Default::default()
            },
        )
    }

    pub fn with_header(alloc: impl IntoIterator<Item = (Address, Alloc)>, header: Header) -> Self {
        let mut changes = Changes::default();
        for (address, account) in alloc {
            account.add_to(&mut changes, address);
        }
        let update = trie::genesis(&changes).unwrap();
        let header = Header {
            state_root: update.state_root,
            timestamp: TIME,
            gas_limit: GAS_LIMIT,
            base_fee_per_gas: Some(1_000),
            withdrawals_root: Some(EMPTY_ROOT_HASH),
            excess_blob_gas: Some(0),
            blob_gas_used: Some(0),
            parent_beacon_block_root: Some(B256::ZERO),
            ..header
        };
        let genesis = Payload::sealed(header.clone(), Vec::new());
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity {
            chain_id: CHAIN,
            genesis_hash: genesis.hash,
        };
        let store =
            Store::create(dir.path(), 1 << 20, identity, &genesis, &update.overlay).unwrap();
        Self {
            store,
            header,
            _dir: dir,
        }
    }

    pub fn state(&self) -> State {
        Arc::new(View::new(self.store.snapshot().unwrap(), Vec::new(), None, None).unwrap()).state()
    }
}

fn asking<'a>(
    spec: &'a ChainSpec,
    state: State,
    block: &'a Header,
    input: &'a CallInput,
    overrides: &'a Overrides,
    limit: Duration,
) -> CallRequest<'a> {
    CallRequest {
        spec,
        state: state.into(),
        block,
        input,
        overrides,
        gas_cap: RPC_GAS_CAP,
        deadline: Deadline::after(limit),
    }
}

const LONG: Duration = Duration::from_secs(600);

fn call(
    spec: &ChainSpec,
    state: State,
    block: &Header,
    input: &CallInput,
    overrides: &Overrides,
) -> Result<CallOutcome, CallError> {
    super::call(asking(spec, state, block, input, overrides, LONG))
}

fn estimate_gas(
    spec: &ChainSpec,
    state: State,
    block: &Header,
    input: &CallInput,
    overrides: &Overrides,
) -> Result<u64, EstimateError> {
    super::estimate_gas(asking(spec, state, block, input, overrides, LONG))
}

/// A transaction signed with the private key that is `key` repeated, and the transaction's EIP-2718
/// bytes.
pub fn sign<T>(key: u8, tx: T) -> (Recovered<ChainTx>, Bytes)
where
    T: SignableTransaction<Signature>,
    Signed<T>: Encodable2718,
{
    let key = secp256k1::SecretKey::from_slice(&[key; 32]).unwrap();
    let message = secp256k1::Message::from_digest(tx.signature_hash().0);
    let (id, bytes) = secp256k1::SECP256K1
        .sign_ecdsa_recoverable(&message, &key)
        .serialize_compact();
    let signature = Signature::from_bytes_and_parity(&bytes, i32::from(id) != 0);
    let raw = Bytes::from(tx.into_signed(signature).encoded_2718());
    (recover(0, &raw).unwrap(), raw)
}

/// The address of the private key that is `key` repeated.
pub fn address_of(key: u8) -> Address {
    sign(key, transfer(0)).0.signer()
}

/// A transfer of one wei.
pub fn transfer(nonce: u64) -> TxEip1559 {
    TxEip1559 {
        chain_id: CHAIN,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 1_000_000,
        max_priority_fee_per_gas: 10,
        to: Address::repeat_byte(0x77).into(),
        value: U256::ONE,
        ..Default::default()
    }
}

/// A deposit that calls `to` with this gas limit.
pub fn deposit(to: Address, gas_limit: u64) -> TxDeposit {
    let from = Address::repeat_byte(0xdd);
    TxDeposit {
        source_hash: B256::repeat_byte(7),
        from,
        to: to.into(),
        gas_limit,
        ..Default::default()
    }
}

/// A deposit whose calldata has the format of Jovian's L1 attributes: the selector, zeros, and the
/// DA footprint scalar.
pub fn l1_attributes(footprint_scalar: u16) -> TxDeposit {
    let jovian = L1InfoFormat::Jovian;
    let mut calldata = jovian.selector().to_vec();
    calldata.resize(jovian.len() - 2, 0);
    calldata.extend(footprint_scalar.to_be_bytes());
    TxDeposit {
        input: calldata.into(),
        ..deposit(Address::repeat_byte(9), 50_000)
    }
}

pub fn deposited(tx: TxDeposit) -> (Recovered<ChainTx>, Bytes) {
    let raw = Bytes::from(tx.encoded_2718());
    (recover(0, &raw).unwrap(), raw)
}

const ZERO: Address = Address::ZERO;
