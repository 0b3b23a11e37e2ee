//! Tests of hostile transactions, forced and from the pool.

use super::*;
use alloy_eips::eip7702::{Authorization, SignedAuthorization};
use alloy_primitives::{Signature, TxKind};
use starling_proto::l1info::L1_BLOCK;

/// Genesis balance of the funded senders, in ether.
const FUNDS: u64 = 10;

/// Name of a deposit that L1 could have.
const DEPOSIT: &str = "deposit";

/// A transaction that is invalid in every block, for this reason.
struct Hostile {
    reason: &'static str,
    raw: Bytes,
}

impl Hostile {
    /// Whether an OP block may have this transaction, although the pool may not.
    fn is_deposit(&self) -> bool {
        self.reason == DEPOSIT
    }
}

/// A transfer by the funded sender, modified by `change`.
fn changed(reason: &'static str, change: impl FnOnce(&mut TxEip1559)) -> Hostile {
    let mut tx = transfer(0);
    change(&mut tx);
    encoded(reason, sign(1, tx).1)
}

fn encoded(reason: &'static str, raw: Bytes) -> Hostile {
    Hostile { reason, raw }
}

/// All transactions that are invalid in every block of `spec`.
fn hostile(spec: &ChainSpec) -> Vec<Hostile> {
    let mut all = transfers();
    all.extend(encodings());
    all.extend(by_fork(spec));
    all
}

/// Transfers with valid signatures that are invalid under every fork.
fn transfers() -> Vec<Hostile> {
    vec![
        changed("chain id", |tx| tx.chain_id = 1),
        changed("nonce too high", |tx| tx.nonce = 1),
        encoded("nonce too low", sign(3, transfer(4)).1),
        encoded("insufficient funds", sign(2, transfer(0)).1),
        changed("value", |tx| tx.value = ether(FUNDS)),
        encoded("a sender with code", sign(4, transfer(0)).1),
        changed("intrinsic gas", |tx| tx.gas_limit = 20_999),
        changed("block gas", |tx| tx.gas_limit = GAS_LIMIT + 1),
        changed("fee cap below the base fee", |tx| {
            (tx.max_fee_per_gas, tx.max_priority_fee_per_gas) = (10, 10);
        }),
        changed("tip above the fee cap", |tx| {
            tx.max_priority_fee_per_gas = tx.max_fee_per_gas + 1;
        }),
    ]
}

/// Types, encodings and signatures that are invalid under every fork.
fn encodings() -> Vec<Hostile> {
    let order = U256::from_be_bytes(secp256k1::constants::CURVE_ORDER);
    let (good, raw) = sign(1, transfer(0));
    let ChainTx::Op(OpTxEnvelope::Eip1559(good)) = good.into_inner() else {
        unreachable!()
    };
    let signed = good.signature();
    let mirrored = Signature::new(signed.r(), order - signed.s(), !signed.v());
    let mirrored = OpTxEnvelope::from(transfer(0).into_signed(mirrored)).encoded_2718();
    vec![
        encoded("blob", bytes!("03c0")),
        encoded("0x7d", bytes!("7dc0")),
        encoded("unknown type", bytes!("05c0")),
        encoded("no bytes", Bytes::new()),
        encoded("trailing bytes", [&raw[..], &[0]].concat().into()),
        encoded("high s", mirrored.into()),
        encoded(DEPOSIT, deposited(deposit(Address::ZERO, GAS_LIMIT)).1),
    ]
}

/// Transactions that are invalid under the forks of `spec` at the block's time.
fn by_fork(spec: &ChainSpec) -> Vec<Hostile> {
    let mut all = vec![];
    let active = spec.at(TIME + 2);
    if active.shanghai {
        all.push(changed("init code", |tx| {
            (tx.input, tx.gas_limit) = (vec![0; 49_153].into(), 5_000_000);
            tx.to = TxKind::Create;
        }));
    }
    if active.prague {
        all.push(changed("floor gas", |tx| {
            (tx.input, tx.gas_limit) = (vec![1; 10].into(), 21_399);
        }));
        all.push(encoded("no authorization", set_code(vec![])));
    } else {
        let authorization = Authorization {
            chain_id: U256::ZERO,
            address: Address::ZERO,
            nonce: 0,
        };
        let signed = authorization.into_signed(Signature::test_signature());
        all.push(encoded("set code", set_code(vec![signed])));
    }
    if active.osaka {
        all.push(changed("EIP-7825", |tx| tx.gas_limit = (1 << 24) + 1));
    }
    if active.is_op(Fork::Regolith) {
        let system = TxDeposit {
            is_system_transaction: true,
            ..deposit(Address::ZERO, 100_000)
        };
        all.push(encoded("system deposit", deposited(system).1));
    }
    if active.op.is_some() {
        // The sender's balance covers only gas and value.
        let cost = U256::from(21_000 * transfer(0).max_fee_per_gas);
        all.push(changed("L1 and operator fee", |tx| {
            tx.value = ether(FUNDS) - cost;
        }));
    }
    all
}

fn ether(count: u64) -> U256 {
    U256::from(count) * U256::from(10).pow(U256::from(18))
}

/// A transaction that sets code with these authorizations.
fn set_code(authorization_list: Vec<SignedAuthorization>) -> Bytes {
    let tx = TxEip7702 {
        chain_id: CHAIN,
        gas_limit: 100_000,
        max_fee_per_gas: 1_000_000,
        authorization_list,
        ..Default::default()
    };
    sign(1, tx).1
}

/// The L1Block contract's storage with L1 fees of every kind and an operator fee.
fn l1_block_with_fees() -> Alloc {
    let word = |parts: &[(u64, u32)]| {
        parts.iter().fold(U256::ZERO, |word, (value, shift)| {
            word | U256::from(*value) << *shift
        })
    };
    Alloc::code(bytes!("00"))
        .slot(1, U256::from(47_036_678_951u64))
        .slot(5, U256::from(2_100))
        .slot(6, U256::from(684_000))
        .slot(3, word(&[(1_368, 96), (810_949, 64)]))
        .slot(7, U256::from(57_422_457_042u64))
        .slot(8, word(&[(2_000_000, 64), (77, 0)]))
}

/// A parent block whose state has funds for keys 1, 3 (nonce 5) and 4 (a contract).
fn ground_with_fees(spec: &ChainSpec) -> Ground {
    let used = Alloc {
        nonce: 5,
        ..Alloc::ether(FUNDS)
    };
    let contract = Alloc {
        code: bytes!("00"),
        ..Alloc::ether(FUNDS)
    };
    let accounts = [
        (address_of(1), Alloc::ether(FUNDS)),
        (address_of(3), used),
        (address_of(4), contract),
        (L1_BLOCK, l1_block_with_fees()),
    ];
    let extra_data = ExtraData::encode(spec, TIME, Eip1559Params::default(), 0).unwrap();
    Ground::with_header(
        accounts,
        Header {
            extra_data,
            ..Default::default()
        },
    )
}

/// A parent block, and the first transactions of a block on it.
struct NextBlock {
    spec: Arc<ChainSpec>,
    ground: Ground,
    begun: Vec<Bytes>,
}

impl NextBlock {
    fn new(spec: ChainSpec) -> Self {
        // From Jovian on, a block must begin with the L1 attributes.
        let jovian = spec.at(TIME + 2).is_op(Fork::Jovian);
        Self {
            ground: ground_with_fees(&spec),
            begun: jovian.then(first).into_iter().collect(),
            spec: Arc::new(spec),
        }
    }

    fn start(&self, forced: Vec<Bytes>) -> Result<BlockBuilder, BuildError> {
        let all = [self.begun.clone(), forced].concat();
        let attributes = attributes(&self.spec, all);
        BlockBuilder::start(self.spec.clone(), self.ground.state(), attributes)
    }

    fn assert_invalid_in_a_payload(&self, empty: &Header, hostile: &Hostile) {
        let transactions = [self.begun.clone(), vec![hostile.raw.clone()]].concat();
        let header = Header {
            transactions_root: ordered_trie_root_encoded(&transactions),
            ..empty.clone()
        };
        let payload = Arc::new(Payload::sealed(header, transactions));
        let judged = validate(&self.spec, self.ground.state(), payload);
        match judged.map(|_| ()) {
            // A deposit is allowed in an OP block, where it changes the outcome. It is only refused
            // from the pool.
            Err(ValidateError::Invalid(
                InvalidBlock::GasUsed { .. } | InvalidBlock::ReceiptsRoot { .. },
            )) if hostile.is_deposit() && self.spec.is_optimism() => {}
            Err(ValidateError::Invalid(
                InvalidBlock::Transaction { index, .. }
                | InvalidBlock::Undecodable { index, .. }
                | InvalidBlock::Signature { index },
            )) if index == self.begun.len() => {}
            other => panic!("{} under {:?}: {other:?}", hostile.reason, self.spec.rules),
        }
    }

    /// Checks that the transaction is an error if it is forced, and is not dropped.
    fn assert_error_if_forced(&self, hostile: &Hostile) {
        if hostile.is_deposit() {
            return;
        }
        let forced = self.start(vec![hostile.raw.clone()]);
        let at = self.begun.len();
        assert!(
            matches!(forced.map(|_| ()), Err(BuildError::Forced { index, .. }) if index == at),
            "{} under {:?}",
            hostile.reason,
            self.spec.rules
        );
    }

    /// Checks that the transaction is left out if it comes from the pool, and that the block
    /// continues without it.
    fn assert_left_out_of_the_pool(&self, hostile: &Hostile) {
        let Ok(tx) = crate::chain::execute::recover(0, &hostile.raw) else {
            return;
        };
        let name = format!("{} under {:?}", hostile.reason, self.spec.rules);
        let mut builder = self.start(vec![]).unwrap();
        let added = builder.add(&tx, &hostile.raw).unwrap();
        assert!(matches!(added, Added::Skipped(_)), "{name}");
        let (tx, raw) = sign(3, transfer(5));
        assert_eq!(builder.add(&tx, &raw).unwrap(), Added::Yes, "{name}");
        assert_eq!(
            builder.finish().unwrap().payload.transactions,
            [self.begun.clone(), vec![raw]].concat(),
            "{name}"
        );
    }
}

#[test]
fn hostile_transactions_find_no_place_in_a_block_whichever_way_they_come() {
    for spec in specs() {
        let block = NextBlock::new(spec);
        let empty = block.start(vec![]).unwrap().finish().unwrap();
        for hostile in hostile(&block.spec) {
            block.assert_invalid_in_a_payload(&empty.payload.header, &hostile);
            block.assert_error_if_forced(&hostile);
            block.assert_left_out_of_the_pool(&hostile);
        }
    }
}
