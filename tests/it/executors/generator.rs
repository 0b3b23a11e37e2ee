//! Generates payload attributes such as a rollup node might send, the same for the same seed and
//! the same parents. The attributes are valid; [`super::wrong`] makes invalid ones from them.

use super::{
    accounts::{Account, authorities, users},
    code::{creation, random},
    contracts::*,
    precompiles,
};
use crate::typed;
use alloy_consensus::{TxEip1559, crypto::secp256k1::sign_message};
use alloy_eips::{
    eip2718::Encodable2718,
    eip2930::{AccessList, AccessListItem},
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, address, hex, keccak256};
use op_alloy_consensus::TxDeposit;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use starling::{
    chain::l1fee,
    devnet::genesis::{L2_CHAIN_ID as CHAIN, MESSAGE_PASSER},
};
use starling_proto::{
    attributes::is_upgrade_block,
    fork::{Fork, ForkSchedule},
    l1info::{L1BlockInfo, L1Origin, l1_info_tx},
    system_config::{Eip1559Params, FeeScalars, SystemConfig},
    upgrades::upgrade_transactions,
};
use std::collections::HashMap;

/// Fee cap in wei, above any base fee that results from the parameters below.
pub const MAX_FEE: u128 = 1_000_000_000_000_000;
/// Base fee in wei from which on blocks are built that lower it.
const HIGH_BASE_FEE: u64 = 10_000_000_000_000;
/// Gas limit of a transaction from Karst on (EIP-7825).
const MAX_GAS: u64 = 1 << 24;

/// The parent of the next block.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub hash: B256,
    pub number: u64,
    pub time: u64,
    /// Base fee in wei.
    pub base_fee: u64,
}

/// Target, input, gas and value of a generated call.
#[derive(Clone, Debug)]
pub struct Message {
    pub to: Address,
    pub input: Vec<u8>,
    pub gas: u64,
    /// Value in wei.
    pub value: u64,
}

pub struct Generator {
    pub rng: StdRng,
    pub forks: ForkSchedule,
    /// Whether to generate deposits with more init code than EIP-3860 allows, which op-geth refuses
    /// to run.
    oversized: bool,
    /// Accounts that send transactions.
    users: Vec<Account>,
    /// Accounts that delegate to code (EIP-7702).
    authorities: Vec<Account>,
    /// Contracts that transactions created, if the creations succeeded.
    created: Vec<Address>,
}

/// A block that is being put together.
struct Draft {
    fork: Fork,
    gas_left: u64,
    footprint_left: u64,
    footprint_scalar: u16,
    nonces: HashMap<Address, u64>,
    transactions: Vec<Bytes>,
}

impl Draft {
    /// Adds a user's transaction if gas and DA footprint have room for it.
    fn take(&mut self, raw: Bytes, gas_limit: u64) -> bool {
        let footprint = l1fee::da_footprint(&raw, self.footprint_scalar);
        if gas_limit > self.gas_left || footprint > self.footprint_left {
            return false;
        }
        self.gas_left -= gas_limit;
        self.footprint_left -= footprint;
        self.transactions.push(raw);
        true
    }
}

impl Generator {
    pub fn new(seed: u64, forks: ForkSchedule, oversized: bool) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        Self {
            rng,
            forks,
            oversized,
            users: users(),
            authorities: authorities(),
            created: vec![],
        }
    }

    pub fn one_in(&mut self, n: u32) -> bool {
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

    /// A random number of at most `bits` bits, with every bit length equally likely.
    fn sized(&mut self, bits: u32) -> u64 {
        let bits = self.rng.random_range(0..=bits);
        if bits == 0 {
            0
        } else {
            self.rng.random::<u64>() >> (64 - bits)
        }
    }

    fn word(&mut self) -> B256 {
        match self.below(3) {
            0 => B256::with_last_byte(self.below(5) as u8),
            1 => U256::from(self.sized(64)).into(),
            _ => self.rng.random::<[u8; 32]>().into(),
        }
    }

    /// Attributes of a block on `on`. `nonces` are the accounts' nonces there.
    pub fn attributes(&mut self, on: &Head, nonces: HashMap<Address, u64>) -> Value {
        let time = self.next_time(on);
        let fork = self.forks.at(time);
        let falling = on.base_fee > HIGH_BASE_FEE;
        let upgrade = is_upgrade_block(&self.forks, on.time, time);
        let gas_limit = match self.below(5) {
            _ if upgrade || falling => 150_000_000,
            0 => 8_000_000,
            1 => 15_000_000,
            2 => 60_000_000,
            _ => 30_000_000,
        };
        let config = self.config();
        let mut draft = Draft {
            fork,
            gas_left: gas_limit,
            footprint_left: gas_limit,
            footprint_scalar: 0,
            nonces,
            transactions: vec![],
        };
        self.system_transactions(&mut draft, &config, on, time);
        for _ in 0..self.below(4) {
            self.deposit(&mut draft);
        }
        if !upgrade && !self.one_in(10) {
            for _ in 0..self.below(12) {
                self.transaction(&mut draft);
            }
        }
        let params = self.eip1559_params(falling);
        let minimum = if falling { 0 } else { self.sized(34) };
        let recipient = self.fee_recipient();
        let mut json = json!({
            "timestamp": format!("{time:#x}"),
            "prevRandao": B256::from(self.rng.random::<[u8; 32]>()),
            "suggestedFeeRecipient": recipient,
            "transactions": draft.transactions,
            "noTxPool": true,
            "gasLimit": format!("{gas_limit:#x}"),
        });
        if fork >= Fork::Canyon {
            json["withdrawals"] = json!([]);
        }
        if fork >= Fork::Ecotone {
            json["parentBeaconBlockRoot"] = json!(B256::from(self.rng.random::<[u8; 32]>()));
        }
        if fork >= Fork::Holocene {
            json["eip1559Params"] = json!(params.encode());
        }
        if fork >= Fork::Jovian {
            json["minBaseFee"] = json!(minimum);
        }
        json
    }

    /// The time of the next block. The interval is steady while forks are ahead, so that no fork is
    /// skipped.
    fn next_time(&mut self, on: &Head) -> u64 {
        let steady = Fork::ALL
            .into_iter()
            .any(|fork| self.forks.time(fork).is_some_and(|time| time > on.time));
        let step = if steady {
            2
        } else {
            self.pick(&[1, 2, 2, 2, 12])
        };
        on.time + step
    }

    /// Random base fee parameters, or parameters that lower the base fee fast.
    fn eip1559_params(&mut self, falling: bool) -> Eip1559Params {
        match self.below(4) {
            _ if falling => Eip1559Params {
                denominator: 8,
                elasticity: 1,
            },
            0 => Eip1559Params::default(),
            _ => Eip1559Params {
                denominator: 1 + self.sized(9) as u32,
                elasticity: 1 + self.below(8) as u32,
            },
        }
    }

    fn fee_recipient(&mut self) -> Address {
        match self.below(4) {
            0 => address!("4200000000000000000000000000000000000011"),
            1 => self.users[0].address,
            2 => Address::with_last_byte(self.below(20) as u8),
            _ => self.rng.random::<[u8; 20]>().into(),
        }
    }

    fn config(&mut self) -> SystemConfig {
        let ecotone = FeeScalars {
            base_fee: self.sized(22) as u32,
            blob_base_fee: self.sized(22) as u32,
        };
        SystemConfig {
            batcher_addr: self.rng.random::<[u8; 20]>().into(),
            overhead: U256::from(self.sized(12)).into(),
            scalar: ecotone.encode(),
            operator_fee_scalar: self.sized(32) as u32,
            operator_fee_constant: self.sized(60),
            da_footprint_gas_scalar: self.sized(16) as u16,
            ..Default::default()
        }
    }

    /// The L1 attributes, and the upgrade transactions of forks that activate in this block.
    fn system_transactions(
        &mut self,
        draft: &mut Draft,
        config: &SystemConfig,
        on: &Head,
        time: u64,
    ) {
        let origin = L1Origin {
            hash: self.rng.random::<[u8; 32]>().into(),
            number: 1_000 + on.number / 6,
            time,
            base_fee: self.sized(38),
            blob_base_fee: 1 + u128::from(self.sized(36)),
        };
        let mut config = config.clone();
        if draft.fork < Fork::Ecotone || self.forks.activates(Fork::Ecotone, on.time, time) {
            config.scalar = U256::from(self.sized(21)).into();
        }
        let first = l1_info_tx(&self.forks, &config, &origin, on.number % 6, time, on.time)
            .expect("a scalar of version 0 or 1");
        draft.footprint_scalar = L1BlockInfo::decode(&first.input)
            .expect("our own attributes")
            .da_footprint_gas_scalar;
        if !first.is_system_transaction {
            draft.gas_left -= first.gas_limit;
        }
        draft.transactions.push(first.encoded_2718().into());
        for fork in Fork::ALL
            .into_iter()
            .filter(|fork| self.forks.activates(*fork, on.time, time))
        {
            for upgrade in upgrade_transactions(fork) {
                draft.gas_left -= upgrade.gas_limit;
                draft.transactions.push(upgrade.encoded_2718().into());
            }
        }
    }

    /// Adds a deposit if there is gas for it. The deposit may mint, pay, create or call, and may
    /// fail without making the block invalid.
    fn deposit(&mut self, draft: &mut Draft) {
        let from = match self.below(6) {
            0 => Address::ZERO,
            1 => self.users[1].address,
            2 => STORE,
            3 => self.rng.random::<[u8; 20]>().into(),
            n => Address::repeat_byte(0xe0 + n as u8),
        };
        let mint = match self.below(4) {
            0 => u128::from(self.sized(60)),
            1 => 1 << 100,
            _ => 0,
        };
        let value = match self.below(8) {
            0 => U256::from(self.rng.random::<u128>()),
            1 => U256::MAX,
            2 | 3 => U256::from(mint).min(U256::from(self.sized(60))),
            4 => U256::from(self.below(3)),
            _ => U256::ZERO,
        };
        let (to, input, gas) = match self.below(3) {
            0 => (TxKind::Create, creation(&mut self.rng), 600_000),
            _ => {
                let message = self.message();
                (TxKind::Call(message.to), message.input, message.gas)
            }
        };
        let mut tx = TxDeposit {
            source_hash: self.rng.random::<[u8; 32]>().into(),
            from,
            to,
            mint,
            value,
            gas_limit: gas,
            is_system_transaction: draft.fork < Fork::Regolith && self.one_in(5),
            input: input.into(),
        };
        self.make_extreme(&mut tx);
        let counted = if tx.is_system_transaction {
            0
        } else {
            tx.gas_limit
        };
        if counted > draft.gas_left {
            return;
        }
        draft.gas_left -= counted;
        if let Some(nonce) = draft.nonces.get_mut(&from) {
            *nonce += 1;
        }
        draft.transactions.push(tx.encoded_2718().into());
    }

    /// Changes some deposits: too little gas, just enough gas, or much input.
    fn make_extreme(&mut self, tx: &mut TxDeposit) {
        match self.below(12) {
            // A gas limit below the intrinsic gas, or equal to it.
            0 => {
                tx.gas_limit =
                    intrinsic_gas(&tx.input, tx.to, 0, 0).saturating_sub(self.below(30_000))
            }
            1 => tx.gas_limit = 21_000,
            2 => tx.input = vec![self.below(2) as u8; self.below(3_000) as usize].into(),
            3 if self.oversized => {
                let input = [&random(&mut self.rng)[..], &[0; 49_153]].concat();
                (tx.to, tx.input, tx.gas_limit) = (TxKind::Create, input.into(), 5_000_000);
            }
            _ => {}
        }
    }

    /// Adds a user's transaction if there is room for it.
    fn transaction(&mut self, draft: &mut Draft) {
        let user = self.below(self.users.len() as u64) as usize;
        let from = self.users[user].address;
        let mut tx = self.call_or_creation();
        tx.nonce = draft.nonces[&from];
        let mut kind = self.below(if draft.fork >= Fork::Isthmus { 5 } else { 4 });
        if tx.to.is_create() && kind == 4 {
            kind = 2;
        }
        if kind != 0 {
            tx.access_list = self.access_list();
        }
        let authorizations = if kind == 4 {
            self.authorizations(draft)
        } else {
            vec![]
        };
        let least = least_gas(&tx, authorizations.len());
        let most = if draft.fork >= Fork::Karst {
            MAX_GAS
        } else {
            u64::MAX
        };
        let wanted = if self.one_in(12) {
            least
        } else {
            least.max(tx.gas_limit)
        };
        tx.gas_limit = wanted.min(most);
        tx.max_priority_fee_per_gas = u128::from(self.sized(34));
        let protected = !self.one_in(2);
        let (to, gas_limit, nonce) = (tx.to, tx.gas_limit, tx.nonce);
        let account = &self.users[user];
        let raw = match (kind, to) {
            (0, _) => account.sign(typed::legacy(tx, protected)),
            (1, _) => account.sign(typed::listed(tx)),
            (4, TxKind::Call(to)) => account.sign(typed::delegating(tx, to, authorizations)),
            _ => account.sign(tx),
        };
        if gas_limit >= least && draft.take(raw, gas_limit) {
            draft.nonces.insert(from, nonce + 1);
            if to.is_create() {
                self.remember(from.create(nonce));
            }
        }
    }

    /// A random transaction with nonce 0 and no tip. Its gas limit exceeds the usual need.
    fn call_or_creation(&mut self) -> TxEip1559 {
        let common = TxEip1559 {
            chain_id: CHAIN,
            max_fee_per_gas: MAX_FEE,
            ..Default::default()
        };
        if self.below(8) == 0 {
            return TxEip1559 {
                to: TxKind::Create,
                input: creation(&mut self.rng).into(),
                gas_limit: 400_000,
                value: U256::from(self.below(2)),
                ..common
            };
        }
        let message = self.message();
        TxEip1559 {
            to: TxKind::Call(message.to),
            input: message.input.into(),
            gas_limit: message.gas,
            value: U256::from(message.value),
            ..common
        }
    }

    fn remember(&mut self, contract: Address) {
        if self.created.len() == 40 {
            self.created.remove(0);
        }
        self.created.push(contract);
    }

    /// Random delegations, some of which are ignored: for another chain, with a wrong nonce, or
    /// with an invalid signature.
    fn authorizations(&mut self, draft: &mut Draft) -> Vec<SignedAuthorization> {
        (0..1 + self.below(3))
            .map(|_| {
                let authority = self.below(self.authorities.len() as u64) as usize;
                let Account {
                    address: signer,
                    key,
                } = self.authorities[authority];
                let address = match self.below(4) {
                    0 => Address::ZERO,
                    1 => self.pick(&PROXIES),
                    2 => Address::with_last_byte(self.below(10) as u8),
                    _ => self.pick(&[STORE, CREATE, DESTROY, ENVIRONMENT, FILL, REVERT]),
                };
                let nonce = draft.nonces[&signer];
                let chain_id = U256::from(self.pick(&[CHAIN, CHAIN, 0, 0, 1]));
                let right = chain_id != U256::ONE && !self.one_in(6);
                let authorization = Authorization {
                    chain_id,
                    address,
                    nonce: if right { nonce } else { nonce + 1 },
                };
                if self.one_in(10) {
                    return authorization.into_signed(Signature::test_signature());
                }
                if right {
                    draft.nonces.insert(signer, nonce + 1);
                }
                let signature =
                    sign_message(key, authorization.signature_hash()).expect("a signature");
                authorization.into_signed(signature)
            })
            .collect()
    }

    fn access_list(&mut self) -> AccessList {
        let items = self.below(3);
        let item = |this: &mut Self| AccessListItem {
            address: this.anybody(),
            storage_keys: (0..this.below(4)).map(|_| this.word()).collect(),
        };
        (0..items).map(|_| item(self)).collect::<Vec<_>>().into()
    }

    fn anybody(&mut self) -> Address {
        match self.below(8) {
            0 => self.users[0].address,
            1 => self.pick(
                &self
                    .authorities
                    .iter()
                    .map(|account| account.address)
                    .collect::<Vec<_>>(),
            ),
            2 => Address::with_last_byte(self.below(20) as u8),
            3 if !self.created.is_empty() => self.pick(&self.created.clone()),
            4 => self.rng.random::<[u8; 20]>().into(),
            5 => self.pick(&[DESTROY, CREATE, CREATE2, REVERT]),
            6 => Address::repeat_byte(0xe0 + self.below(6) as u8),
            _ => self.pick(&[STORE, FILL, LOG0, LOG4, ENVIRONMENT]),
        }
    }

    /// A random address to call, with input, gas and value.
    fn message(&mut self) -> Message {
        let (to, input, gas) = match self.below(20) {
            0 | 1 => (self.anybody(), vec![], 60_000),
            2 => (STORE, self.words(2), 60_000),
            3 => (self.pick(&[LOG0, LOG4]), self.words(5), 60_000),
            4 => (REVERT, self.words(2), 50_000),
            5 => (DESTROY, self.anybody().into_word().to_vec(), 90_000),
            6 | 7 => {
                let inner = if self.one_in(2) {
                    STORE
                } else {
                    self.anybody()
                };
                let input = [inner.into_word().to_vec(), self.words(2)].concat();
                (self.pick(&PROXIES), input, 200_000)
            }
            8 => (CREATE, creation(&mut self.rng), 400_000),
            9 | 10 => self.create2(),
            11 => (ENVIRONMENT, vec![], 600_000),
            12 => (FILL, self.words(1), 250_000),
            13 => (self.pick(&[RECURSE, LOOP]), vec![], 200_000),
            14 => (INSPECT, self.anybody().into_word().to_vec(), 150_000),
            15 => (self.pick(&NEWER), self.words(1), 100_000),
            16 => {
                // Calldata of initiateWithdrawal(address,uint256,bytes)
                let arguments = [
                    self.word(),
                    B256::from(U256::from(100_000)),
                    U256::from(96).into(),
                    B256::ZERO,
                ];
                let input = [hex!("c2b3e5ac").to_vec(), arguments.concat()].concat();
                (MESSAGE_PASSER, input, 300_000)
            }
            17 => self.system_contract(),
            _ => return precompiles::message(&mut self.rng),
        };
        Message {
            to,
            input,
            gas,
            value: if self.one_in(4) { self.below(100) } else { 0 },
        }
    }

    /// A factory contract, the input that makes it create a contract, and gas. Some contracts
    /// repeat earlier ones, so that their address is in use, or free again.
    fn create2(&mut self) -> (Address, Vec<u8>, u64) {
        let factory = self.pick(&[CREATE2, CREATE2_AND_CALL]);
        let salt = B256::with_last_byte(self.below(3) as u8);
        let init = if self.one_in(3) {
            creation(&mut self.rng)
        } else {
            hex!("600280600b6000396000f333ff").to_vec()
        };
        self.remember(factory.create2(salt, keccak256(&init)));
        (factory, [salt.to_vec(), init].concat(), 500_000)
    }

    fn words(&mut self, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| self.word()).collect()
    }

    /// A call to a system contract, through a proxy contract that stores the result.
    fn system_contract(&mut self) -> (Address, Vec<u8>, u64) {
        let (to, input) = match self.below(4) {
            0 => (
                hex!("000F3df6D732807Ef1319fB7B8bB8522d0Beac02"),
                U256::from(1_700_000_000 + self.below(2_000)).to_be_bytes_vec(),
            ),
            1 => (
                hex!("0000F90827F1C53a10cb7A02335B175320002935"),
                U256::from(self.below(2_000)).to_be_bytes_vec(),
            ),
            // Selectors of number(), basefee(), sequenceNumber()
            2 => (
                hex!("4200000000000000000000000000000000000015"),
                self.pick(&[hex!("8381f58a"), hex!("5cf24969"), hex!("64ca23ef")])
                    .to_vec(),
            ),
            // Calldata of getL1Fee(bytes)
            _ => {
                let arguments = [
                    B256::with_last_byte(32),
                    B256::with_last_byte(32),
                    self.word(),
                ]
                .concat();
                (
                    hex!("420000000000000000000000000000000000000F"),
                    [hex!("49948e0e").to_vec(), arguments].concat(),
                )
            }
        };
        (
            PROXIES[0],
            [Address::from(to).into_word().to_vec(), input].concat(),
            300_000,
        )
    }
}

/// Least gas limit of a transaction with this many authorizations.
fn least_gas(tx: &TxEip1559, authorizations: usize) -> u64 {
    let keys: usize = tx
        .access_list
        .iter()
        .map(|item| item.storage_keys.len())
        .sum();
    let listed = tx.access_list.len() as u64 * 2_400 + keys as u64 * 1_900;
    intrinsic_gas(&tx.input, tx.to, listed, authorizations)
}

/// Intrinsic gas of a transaction: at least the amount that any fork requires.
fn intrinsic_gas(input: &[u8], to: TxKind, listed: u64, authorizations: usize) -> u64 {
    let zeros = input.iter().filter(|byte| **byte == 0).count() as u64;
    let others = input.len() as u64 - zeros;
    let creation = if to.is_create() {
        32_000 + 2 * input.len().div_ceil(32) as u64
    } else {
        0
    };
    let usual =
        21_000 + 4 * zeros + 16 * others + creation + listed + 25_000 * authorizations as u64;
    usual.max(21_000 + 10 * (zeros + 4 * others))
}
