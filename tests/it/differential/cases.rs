//! Generates transactions and requests, the same for the same seed. The generator knows the sent
//! and mined transactions, so that most requests have a result; some cases are wrong on purpose.

mod executions;
mod questions;
mod transactions;

use super::contracts::{
    CREATE, DESTROY, ENVIRONMENT, FAILING, LOG0, LOG2, LOG4, LOOPING, PROXY, REVERT, STORE,
};
use super::nodes::Block;
use alloy_consensus::{
    SignableTransaction, TxEip1559, TxEip7702, TxLegacy, crypto::secp256k1::sign_message,
};
use alloy_eips::{
    eip2718::Encodable2718,
    eip2930::{AccessList, AccessListItem},
    eip7702::Authorization,
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, hex, keccak256};
use op_alloy_consensus::OpTxEnvelope;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use starling::devnet::accounts;
use std::collections::HashSet;

const GWEI: u128 = 1_000_000_000;
const TOKEN: &str = include_str!("../../clients/contracts/Token.json");

/// One request. In the parameters `@block:N` stands for the hash of a block, and `@filter:N` for
/// the identifier of a filter.
#[derive(Clone, Debug)]
pub enum Case {
    Ask(&'static str, Value),
    /// A raw transaction that the node should include in its next block.
    Send(Bytes),
    /// A raw transaction, or invalid bytes, that the node should refuse or keep waiting.
    Refused(String),
}

#[derive(Clone)]
struct Account {
    address: Address,
    key: B256,
    nonce: u64,
}

impl Account {
    fn new(key: B256) -> Self {
        Self {
            address: accounts::address_of(&key.to_string()).expect("a key"),
            key,
            nonce: 0,
        }
    }

    fn sign<T: SignableTransaction<Signature>>(&self, tx: T) -> Bytes
    where
        OpTxEnvelope: From<alloy_consensus::Signed<T>>,
    {
        let signature = sign_message(self.key, tx.signature_hash()).expect("a signature");
        OpTxEnvelope::from(tx.into_signed(signature))
            .encoded_2718()
            .into()
    }
}

/// Account number `n` of those that delegate to code (EIP-7702).
fn authority(n: u8) -> Account {
    Account::new(keccak256([n]))
}

pub fn authorities() -> [Address; 4] {
    [0, 1, 2, 3].map(|n| authority(n).address)
}

pub struct Generator {
    rng: StdRng,
    /// Random choices for requests about executions.
    execution_rng: StdRng,
    chain_id: u64,
    /// Senders of transactions. The last two accounts send only transactions that are not mined.
    users: Vec<Account>,
    contracts: Vec<Address>,
    token: Option<Address>,
    sent: Vec<Bytes>,
    /// Transactions that run so many instructions that no list of them is requested.
    looping: HashSet<B256>,
    filters: usize,
}

impl Generator {
    pub fn new(seed: u64, chain_id: u64) -> Self {
        let users = accounts::all()
            .iter()
            .map(|account| Account::new(account.private_key.parse().expect("a key")))
            .collect();
        let contracts = [
            vec![
                STORE,
                LOG2,
                LOG0,
                LOG4,
                REVERT,
                DESTROY,
                PROXY,
                CREATE,
                ENVIRONMENT,
            ],
            FAILING.to_vec(),
        ]
        .concat();
        Self {
            rng: StdRng::seed_from_u64(seed),
            execution_rng: StdRng::seed_from_u64(!seed),
            chain_id,
            users,
            contracts,
            token: None,
            sent: vec![],
            looping: HashSet::new(),
            filters: 0,
        }
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_ratio(1, n)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from.choose(&mut self.rng)
            .expect("something to choose from")
            .clone()
    }

    fn below(&mut self, end: u64) -> u64 {
        self.rng.random_range(0..end)
    }

    fn bytes(&mut self, longest: u64) -> Vec<u8> {
        let length = self.below(longest + 1);
        (0..length)
            .map(|_| if self.one_in(3) { 0 } else { self.rng.random() })
            .collect()
    }

    fn word(&mut self) -> B256 {
        let value = match self.below(4) {
            0 => U256::ZERO,
            1 => U256::from(self.below(10)),
            2 => U256::from(self.rng.random::<u64>()),
            _ => U256::from_be_bytes(self.rng.random::<[u8; 32]>()),
        };
        value.into()
    }

    fn stranger(&mut self) -> Address {
        Address::repeat_byte(0xa0 + self.below(6) as u8)
    }

    /// A random address: a user, a contract, a precompile, a predeploy, or an unused address.
    fn anybody(&mut self) -> Address {
        match self.below(12) {
            0..4 => self.users[self.rng.random_range(0..10)].address,
            4..7 => self.pick(&self.contracts.clone()),
            7 => Address::with_last_byte(self.below(20) as u8),
            8 => self.token.unwrap_or(STORE),
            9 => self.pick(&[
                starling::devnet::genesis::L1_BLOCK,
                starling::devnet::genesis::GAS_PRICE_ORACLE,
                starling::devnet::genesis::MESSAGE_PASSER,
            ]),
            _ => self.stranger(),
        }
    }

    /// A random address to call, and the calldata.
    fn message(&mut self) -> (Address, Vec<u8>) {
        match self.below(18) {
            0 | 1 => (self.stranger(), vec![]),
            2 => (self.stranger(), self.bytes(80)),
            3 => (STORE, self.word().to_vec()),
            4 => (STORE, vec![]),
            5 => (LOG2, [self.topic().to_vec(), self.bytes(70)].concat()),
            6 => (LOG0, self.bytes(40)),
            7 => (LOG4, (0..4).flat_map(|_| self.topic()).collect()),
            8 => (REVERT, self.revert_data()),
            9 | 16 => (ENVIRONMENT, vec![]),
            10 => {
                let precompile = self.pick(&[
                    1u64, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 256,
                ]);
                let target = B256::from(U256::from(precompile));
                (PROXY, [target.to_vec(), self.bytes(400)].concat())
            }
            11 => {
                let (to, data) = if self.one_in(2) {
                    (REVERT, self.revert_data())
                } else {
                    (LOG0, self.bytes(33))
                };
                (PROXY, [to.into_word().to_vec(), data].concat())
            }
            12 => (CREATE, self.creation()),
            13 => (self.pick(&FAILING), vec![]),
            14 => (
                Address::with_last_byte(1 + self.below(17) as u8),
                self.bytes(300),
            ),
            _ => self.token_call(),
        }
    }

    fn topic(&mut self) -> B256 {
        B256::with_last_byte(self.below(4) as u8)
    }

    fn token_call(&mut self) -> (Address, Vec<u8>) {
        let token = self.token.unwrap_or(STORE);
        let to = self.users[self.rng.random_range(0..8)].address;
        let amount = if self.one_in(3) {
            U256::MAX >> 1
        } else {
            U256::from(self.below(9))
        };
        let data = match self.below(6) {
            0 => selector("totalSupply()").to_vec(),
            1 => [
                selector("balanceOf(address)").to_vec(),
                to.into_word().to_vec(),
            ]
            .concat(),
            2 => selector("failWithReason()").to_vec(),
            3 => [
                selector("failWithPanic(uint256)").to_vec(),
                B256::ZERO.to_vec(),
            ]
            .concat(),
            _ => [
                selector("transfer(address,uint256)").to_vec(),
                to.into_word().to_vec(),
                amount.to_be_bytes_vec(),
            ]
            .concat(),
        };
        (token, data)
    }

    fn revert_data(&mut self) -> Vec<u8> {
        let string = |text: &[u8]| {
            let words = [U256::from(32), U256::from(text.len())]
                .map(|word| word.to_be_bytes::<32>())
                .concat();
            [
                selector("Error(string)").to_vec(),
                words,
                text.to_vec(),
                vec![0; 31 - (text.len() + 31) % 32],
            ]
            .concat()
        };
        let panic = |code: u64| {
            [
                selector("Panic(uint256)").to_vec(),
                U256::from(code).to_be_bytes_vec(),
            ]
            .concat()
        };
        match self.below(6) {
            0 => vec![],
            1 => string(b"no"),
            2 => panic(self.pick(&[0, 1, 0x11, 0x12, 0x21, 0x22, 0x31, 0x32, 0x41, 0x51, 0x99])),
            3 => [selector("Custom(uint256)").to_vec(), self.word().to_vec()].concat(),
            4 => string("it hurts: \u{e4}\u{20ac}\n".as_bytes()),
            _ => self.bytes(50),
        }
    }

    fn creation(&mut self) -> Vec<u8> {
        match self.below(7) {
            // Init code that returns part of itself.
            0 | 1 => hex!("600b5f8160095f39f3602a5f5260205ff3").to_vec(),
            2 => hex!("5f5ffd").to_vec(),
            3 => hex!("60ef5f5360015ff3").to_vec(),
            4 => vec![0xfe],
            5 => vec![],
            _ => hex!("6160015ff3").to_vec(),
        }
    }

    fn access_list(&mut self) -> AccessList {
        let items = self.below(3);
        let item = |this: &mut Self| AccessListItem {
            address: this.anybody(),
            storage_keys: (0..this.below(3)).map(|_| this.topic()).collect(),
        };
        (0..items).map(|_| item(self)).collect::<Vec<_>>().into()
    }
}

fn selector(signature: &str) -> [u8; 4] {
    keccak256(signature)[..4].try_into().expect("four bytes")
}

/// Init code of the token that the external clients use, followed by the arguments: name and
/// supply.
fn token_creation() -> Vec<u8> {
    let artifact: Value = serde_json::from_str(TOKEN).expect("JSON");
    let mut input = hex::decode(artifact["bytecode"].as_str().expect("bytecode")).expect("hex");
    for word in [
        U256::from(0x40),
        U256::from(1_000),
        U256::from(1),
        U256::from(b'T') << 248,
    ] {
        input.extend_from_slice(&word.to_be_bytes::<32>());
    }
    input
}
