//! The rules of each fork according to the specifications, implemented a second time and checked
//! against blocks.

use super::world::{Block, CHAIN, DEPOSITORS, MAX_FEE, Network, Sent};
use alloy_consensus::Header;
use alloy_eips::{
    eip2718::Encodable2718, eip2935::HISTORY_STORAGE_ADDRESS, eip4788::BEACON_ROOTS_ADDRESS,
};
use alloy_primitives::{Address, B256, U256, address, b256, hex, keccak256};
use alloy_trie::{EMPTY_ROOT_HASH, root::ordered_trie_root_with_encoder};
use op_alloy_consensus::{OpReceiptEnvelope, OpTxEnvelope, OpTxType, TxDeposit};
use starling::chain::{
    evm::{CallInput, CallRequest, CallStatus, Deadline, Overrides, RPC_GAS_CAP, call},
    l1fee,
    view::{State, View},
};
use starling_proto::{
    fork::Fork,
    l1info::{L1BlockInfo, L1InfoFormat},
    payload::{PayloadVersion, decode_transaction},
    upgrades::upgrade_transactions,
};
use std::{sync::Arc, time::Duration};

const SEQUENCER_FEE_VAULT: Address = address!("4200000000000000000000000000000000000011");
const BASE_FEE_VAULT: Address = address!("4200000000000000000000000000000000000019");
const L1_FEE_VAULT: Address = address!("420000000000000000000000000000000000001A");
const OPERATOR_FEE_VAULT: Address = address!("420000000000000000000000000000000000001B");
const GAS_PRICE_ORACLE: Address = address!("420000000000000000000000000000000000000F");
const MESSAGE_PASSER: Address = address!("4200000000000000000000000000000000000016");
const CREATE2_DEPLOYER: Address = address!("13b0D85CcB8bf860b6b79AF3029fCA081AE9beF2");
const CREATE2_DEPLOYER_CODE: B256 =
    b256!("b0550b5b431e30d38000efb7107aaa0ade03d48a7198a140edda9d27134468b2");

/// Checks all rules on one block.
pub fn check(network: &Network, block: &Block) {
    let forks = &network.rollup.forks;
    let rules = Rules {
        block,
        header: &block.executed.payload.header,
        fork: forks.at(block.time()),
        parent_fork: forks.at(block.parent.timestamp()),
        deploys_create2: forks.time(Fork::Canyon) == Some(block.time()),
    };
    rules.envelope();
    rules.l1_attributes();
    rules.transactions();
    rules.receipts();
    rules.header();
    rules.fees();
    rules.system_contracts();
}

struct Rules<'a> {
    block: &'a Block,
    header: &'a Header,
    fork: Fork,
    parent_fork: Fork,
    deploys_create2: bool,
}

impl Rules<'_> {
    fn envelope(&self) {
        let want = match self.fork {
            fork if fork < Fork::Canyon => PayloadVersion::V1,
            fork if fork < Fork::Ecotone => PayloadVersion::V2,
            fork if fork < Fork::Isthmus => PayloadVersion::V3,
            _ => PayloadVersion::V4,
        };
        assert_eq!(self.block.executed.payload.version(), want);
    }

    fn header(&self) {
        let Self {
            header,
            fork,
            block,
            ..
        } = self;
        let upgrade_gas = if self.activates(Fork::Karst) {
            55_370_657
        } else {
            0
        };
        assert_eq!(header.gas_limit, block.config.gas_limit + upgrade_gas);
        assert_eq!(header.base_fee_per_gas, Some(self.base_fee()));
        assert_eq!(header.extra_data, self.extra_data());
        assert_eq!(header.beneficiary, SEQUENCER_FEE_VAULT);
        assert_eq!(header.mix_hash, block.origin.mix_hash);
        assert_eq!(
            header.parent_beacon_block_root,
            block
                .origin
                .parent_beacon_root
                .filter(|_| *fork >= Fork::Ecotone)
        );
        assert_eq!(
            header.excess_blob_gas,
            (*fork >= Fork::Ecotone).then_some(0)
        );
        let no_requests = b256!("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(
            header.requests_hash,
            (*fork >= Fork::Isthmus).then_some(no_requests)
        );
        assert_eq!(header.withdrawals_root, self.withdrawals_root());
        let footprint = match fork {
            fork if *fork < Fork::Ecotone => None,
            fork if *fork < Fork::Jovian => Some(0),
            _ => Some(
                self.block
                    .sent
                    .iter()
                    .map(|sent| l1fee::da_footprint(&sent.raw, self.footprint_scalar()))
                    .sum(),
            ),
        };
        assert_eq!(header.blob_gas_used, footprint);
    }

    fn withdrawals_root(&self) -> Option<B256> {
        let passer = |view: &Arc<View>| {
            view.state()
                .account(MESSAGE_PASSER)
                .unwrap()
                .unwrap()
                .storage_root
        };
        // The users' transactions initiate withdrawals, each of which changes the message passer's
        // storage.
        assert_eq!(
            passer(&self.block.before) != passer(&self.block.after),
            !self.block.sent.is_empty() || self.rewrites_passer(),
            "{} block {}",
            self.fork.name(),
            self.block.number()
        );
        match self.fork {
            fork if fork < Fork::Canyon => None,
            fork if fork < Fork::Isthmus => Some(EMPTY_ROOT_HASH),
            _ => Some(passer(&self.block.after)),
        }
    }

    /// Whether the block gives the message passer's proxy a new implementation, as Karst does.
    fn rewrites_passer(&self) -> bool {
        self.activates(Fork::Karst)
    }

    fn activates(&self, fork: Fork) -> bool {
        self.parent_fork < fork && self.fork >= fork
    }

    fn footprint_scalar(&self) -> u16 {
        match self.block.config.da_footprint_gas_scalar {
            0 => 400,
            scalar => scalar,
        }
    }

    fn base_fee(&self) -> u64 {
        let parent = &self.block.parent.header;
        let word = |from: usize| {
            u64::from(u32::from_be_bytes(
                parent.extra_data[from..from + 4].try_into().unwrap(),
            ))
        };
        let (denominator, elasticity) = match self.parent_fork {
            fork if fork >= Fork::Holocene => (word(1), word(5)),
            _ if self.fork >= Fork::Canyon => (250, 6),
            _ => (50, 6),
        };
        let (mut used, mut least) = (parent.gas_used, 0);
        if self.parent_fork >= Fork::Jovian {
            used = used.max(parent.blob_gas_used.unwrap());
            least = word(9) << 32 | word(13);
        }
        let (fee, target) = (
            i128::from(parent.base_fee_per_gas.unwrap()),
            i128::from(parent.gas_limit / elasticity),
        );
        let away = i128::from(used) - target;
        let step = fee * away.abs() / target / i128::from(denominator);
        let next = match away.signum() {
            0 => fee,
            1 => fee + step.max(1),
            _ => fee - step,
        };
        u64::try_from(next).unwrap().max(least)
    }

    fn extra_data(&self) -> Vec<u8> {
        let config = &self.block.config;
        let params = match config.eip1559.denominator {
            0 => hex!("000000fa00000006"),
            _ => config.eip1559.encode().0,
        };
        match self.fork {
            fork if fork < Fork::Holocene => vec![],
            fork if fork < Fork::Jovian => [&[0], params.as_slice()].concat(),
            _ => [&[1], params.as_slice(), &config.min_base_fee.to_be_bytes()].concat(),
        }
    }

    fn deposit(&self, index: usize) -> TxDeposit {
        match decode_transaction(&self.block.executed.payload.transactions[index]).unwrap() {
            OpTxEnvelope::Deposit(deposit) => deposit.into_inner(),
            other => panic!("transaction {index} is {other:?}"),
        }
    }

    fn l1_attributes(&self) {
        let deposit = self.deposit(0);
        let regolith = self.fork >= Fork::Regolith;
        assert_eq!(deposit.is_system_transaction, !regolith);
        assert_eq!(
            deposit.gas_limit,
            if regolith { 1_000_000 } else { 150_000_000 }
        );
        let info = L1BlockInfo::decode(&deposit.input).unwrap();
        // The L1 attributes of a fork's activation block still have the previous fork's format.
        let want = match self.parent_fork {
            fork if fork < Fork::Ecotone => L1InfoFormat::Bedrock,
            fork if fork < Fork::Isthmus => L1InfoFormat::Ecotone,
            Fork::Isthmus => L1InfoFormat::Isthmus,
            _ => L1InfoFormat::Jovian,
        };
        let (config, origin) = (&self.block.config, &self.block.origin);
        assert_eq!(info.format, want);
        assert_eq!(
            (info.number, info.time, info.hash),
            (origin.number, origin.time, origin.hash)
        );
        assert_eq!(info.base_fee, U256::from(origin.base_fee));
        assert_eq!(info.sequence_number, self.block.number() % 3);
        assert_eq!(info.batcher_addr, config.batcher_addr);
        if want == L1InfoFormat::Bedrock {
            assert_eq!(
                (info.overhead, info.scalar),
                (config.overhead, config.scalar)
            );
        } else {
            let scalars = config.fee_scalars().unwrap();
            assert_eq!(
                (info.base_fee_scalar, info.blob_base_fee_scalar),
                (scalars.base_fee, scalars.blob_base_fee)
            );
            assert!(info.blob_base_fee > U256::ONE);
        }
        if want >= L1InfoFormat::Isthmus {
            let operator = (config.operator_fee_scalar, config.operator_fee_constant);
            assert_eq!(
                (info.operator_fee_scalar, info.operator_fee_constant),
                operator
            );
        }
        if want == L1InfoFormat::Jovian {
            assert_eq!(info.da_footprint_gas_scalar, self.footprint_scalar());
        }
    }

    /// Checks the order and completeness of L1 attributes, deposits, upgrades and user
    /// transactions.
    fn transactions(&self) {
        let upgrades: Vec<_> = Fork::ALL
            .into_iter()
            .filter(|fork| self.activates(*fork))
            .flat_map(upgrade_transactions)
            .collect();
        assert!(upgrades.is_empty() || self.block.sent.is_empty());
        let forced: Vec<_> = self
            .block
            .deposits
            .iter()
            .chain(&upgrades)
            .cloned()
            .collect();
        for (index, deposit) in forced.iter().enumerate() {
            assert_eq!(self.deposit(index + 1), *deposit);
        }
        let all = &self.block.executed.payload.transactions;
        assert_eq!(all.len(), 1 + forced.len() + self.block.sent.len());
        for (raw, sent) in all[1 + forced.len()..].iter().zip(&self.block.sent) {
            assert_eq!(*raw, sent.raw);
        }
    }

    fn receipts(&self) {
        let receipts = &self.block.executed.receipts;
        let deposits = receipts.len() - self.block.sent.len();
        for (index, receipt) in receipts.iter().enumerate() {
            let deposit = index < deposits;
            assert_eq!(receipt.tx_type == 0x7e, deposit);
            assert_eq!(
                receipt.deposit_nonce.is_some(),
                deposit && self.fork >= Fork::Regolith
            );
            assert_eq!(
                receipt.deposit_version,
                (deposit && self.fork >= Fork::Canyon).then_some(1)
            );
            // The only deposit that fails is the one whose sender cannot pay its value.
            let poor = deposit && self.deposit(index).from == DEPOSITORS[1];
            let want = if deposit {
                !poor
            } else {
                self.block.sent[index - deposits].success
            };
            assert_eq!(
                receipt.success,
                want,
                "{} block {} transaction {index}",
                self.fork.name(),
                self.block.number()
            );
            if deposit {
                self.gas_of_deposit(index, poor);
            } else {
                assert!(self.gas_used(index) > 0);
            }
        }
        self.deposit_effects();
        let root = ordered_trie_root_with_encoder(receipts, |receipt, out| {
            let tx_type = OpTxType::try_from(receipt.tx_type).unwrap();
            // Before Canyon the receipts root omits the deposit nonce that the receipts have since
            // Regolith.
            let nonce = receipt.deposit_nonce.filter(|_| self.fork >= Fork::Canyon);
            let envelope = OpReceiptEnvelope::from_parts(
                receipt.success,
                receipt.cumulative_gas_used,
                &receipt.logs,
                tx_type,
                nonce,
                receipt.deposit_version,
            );
            envelope.encode_2718(out);
        });
        assert_eq!(self.header.receipts_root, root);
        assert_eq!(
            self.header.gas_used,
            receipts.last().unwrap().cumulative_gas_used
        );
    }

    /// Before Regolith the system transaction uses no gas, and every other deposit uses its whole
    /// gas limit. From Regolith on only a `poor` deposit, which fails, uses its whole gas limit.
    fn gas_of_deposit(&self, index: usize, poor: bool) {
        let (used, deposit) = (self.gas_used(index), self.deposit(index));
        let regolith = self.fork >= Fork::Regolith;
        if !regolith && index == 0 {
            assert_eq!(used, 0);
        } else if !regolith || poor {
            assert_eq!(used, deposit.gas_limit);
        } else if DEPOSITORS.contains(&deposit.from) {
            assert_eq!(used, 21_000);
        } else {
            assert!(used > 0);
        }
    }

    /// A deposit's mint and nonce increment are kept whether the deposit succeeds or not.
    fn deposit_effects(&self) {
        for (index, deposit) in self.block.deposits.iter().enumerate() {
            let nonce = |state: &State| {
                state
                    .account(deposit.from)
                    .unwrap()
                    .map_or(0, |it| it.nonce)
            };
            let (before, after) = (self.block.before.state(), self.block.after.state());
            assert_eq!(nonce(&after), nonce(&before) + 1);
            let receipt = &self.block.executed.receipts[index + 1];
            if self.fork >= Fork::Regolith {
                assert_eq!(receipt.deposit_nonce, Some(nonce(&before)));
            }
            let gone = if receipt.success {
                deposit.value
            } else {
                U256::ZERO
            };
            assert_eq!(
                self.gained(deposit.from),
                signed(U256::from(deposit.mint)) - signed(gone)
            );
        }
    }

    fn gas_used(&self, index: usize) -> u64 {
        let receipts = &self.block.executed.receipts;
        receipts[index].cumulative_gas_used
            - if index == 0 {
                0
            } else {
                receipts[index - 1].cumulative_gas_used
            }
    }

    fn gained(&self, address: Address) -> i128 {
        let balance = |view: &Arc<View>| {
            view.state()
                .account(address)
                .unwrap()
                .map_or(U256::ZERO, |account| account.balance)
        };
        signed(balance(&self.block.after)) - signed(balance(&self.block.before))
    }

    /// Checks payers, amounts and receivers of fees.
    fn fees(&self) {
        let info = L1BlockInfo::of(&self.block.executed.payload).unwrap();
        let first = self.block.executed.receipts.len() - self.block.sent.len();
        let base_fee = u128::from(self.header.base_fee_per_gas.unwrap());
        let mut vaults = [0u128; 4];
        for (
            index,
            Sent {
                raw,
                sender,
                value,
                tip,
                ..
            },
        ) in self.block.sent.iter().enumerate()
        {
            let gas = u128::from(self.gas_used(first + index));
            let l1 = l1fee::receipt_cost(&info, self.fork, raw).fee.to::<u128>();
            assert!(l1 > 0);
            let operator = self.operator_fee(gas);
            let tip = gas * (*tip).min(MAX_FEE - base_fee);
            let paid = value.to::<u128>() + gas * base_fee + tip + l1 + operator;
            assert_eq!(
                self.gained(*sender),
                -(paid as i128),
                "{} block {} {sender}",
                self.fork.name(),
                self.block.number()
            );
            for (vault, part) in vaults.iter_mut().zip([gas * base_fee, tip, l1, operator]) {
                *vault += part;
            }
        }
        for (vault, want) in [
            BASE_FEE_VAULT,
            SEQUENCER_FEE_VAULT,
            L1_FEE_VAULT,
            OPERATOR_FEE_VAULT,
        ]
        .into_iter()
        .zip(vaults)
        {
            assert_eq!(
                self.gained(vault),
                want as i128,
                "{vault} of block {}",
                self.block.number()
            );
        }
    }

    fn operator_fee(&self, gas: u128) -> u128 {
        let config = &self.block.config;
        let (scalar, constant) = (
            u128::from(config.operator_fee_scalar),
            u128::from(config.operator_fee_constant),
        );
        match self.fork {
            fork if fork < Fork::Isthmus => 0,
            Fork::Isthmus => gas * scalar / 1_000_000 + constant,
            _ => gas * scalar * 100 + constant,
        }
    }

    /// Checks the system calls at the start of a block, for contracts that the parent has or an
    /// upgrade brought.
    fn system_contracts(&self) {
        let (before, after) = (self.block.before.state(), self.block.after.state());
        if self.deploys_create2 {
            assert_eq!(
                after.account(CREATE2_DEPLOYER).unwrap().unwrap().code_hash,
                CREATE2_DEPLOYER_CODE
            );
        } else {
            let hash = |state: &State| {
                state
                    .account(CREATE2_DEPLOYER)
                    .unwrap()
                    .map(|it| it.code_hash)
            };
            assert_eq!(hash(&before), hash(&after));
        }
        if self.parent_fork >= Fork::Ecotone {
            let slot = self.block.time() % 8_191;
            let read = |slot: u64| {
                after
                    .storage(BEACON_ROOTS_ADDRESS, U256::from(slot))
                    .unwrap()
            };
            assert_eq!(read(slot), U256::from(self.block.time()));
            assert_eq!(
                Some(B256::from(read(slot + 8_191))),
                self.block.origin.parent_beacon_root
            );
        }
        if self.parent_fork >= Fork::Isthmus {
            let slot = (self.block.number() - 1) % 8_191;
            let hash = after
                .storage(HISTORY_STORAGE_ADDRESS, U256::from(slot))
                .unwrap();
            assert_eq!(B256::from(hash), self.block.parent.hash);
        }
    }
}

fn signed(value: U256) -> i128 {
    value.to::<u128>() as i128
}

/// Checks that the gas price oracle at the head knows the crossed forks for which it has a flag,
/// and that its fees are those of the attributes. (The oracle of the genesis state may be older
/// than its fork.)
pub fn check_contracts(network: &Network) {
    let view = network.view();
    let fork = network.rollup.forks.at(view.header().timestamp);
    let ask = |signature: &str| {
        let input = CallInput {
            to: Some(GAS_PRICE_ORACLE),
            data: keccak256(signature)[..4].to_vec().into(),
            ..Default::default()
        };
        let (spec, overrides, deadline) = (
            network.spec(),
            Overrides::default(),
            Deadline::after(Duration::from_secs(600)),
        );
        let (state, block) = (view.state().into(), view.header());
        let outcome = call(CallRequest {
            spec,
            state,
            block,
            input: &input,
            overrides: &overrides,
            gas_cap: RPC_GAS_CAP,
            deadline,
        })
        .unwrap();
        assert_eq!(outcome.status, CallStatus::Success, "{signature}");
        U256::from_be_slice(&outcome.output)
    };
    for (since, question) in [
        (Fork::Ecotone, "isEcotone()"),
        (Fork::Fjord, "isFjord()"),
        (Fork::Isthmus, "isIsthmus()"),
        (Fork::Jovian, "isJovian()"),
    ] {
        if fork >= since && network.start < since {
            assert_eq!(ask(question), U256::ONE, "{question}");
        }
    }
    let info = L1BlockInfo::of(&view.payload(view.head().number).unwrap().unwrap()).unwrap();
    assert_eq!(ask("l1BaseFee()"), info.base_fee);
    if fork >= Fork::Ecotone {
        assert_eq!(
            ask("blobBaseFeeScalar()"),
            U256::from(info.blob_base_fee_scalar)
        );
        assert_eq!(ask("blobBaseFee()"), info.blob_base_fee);
    }
    assert_eq!(network.rollup.l2_chain_id, CHAIN);
}
