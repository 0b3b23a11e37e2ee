use super::*;
use crate::chain::evm::{
    StructLogConfig, TraceWriter, TracerConfig,
    tests::{
        Alloc, GAS_LIMIT, Ground, TIME, address_of, deposit, deposited, ethereum, l1_attributes,
        op, scheduled, sign, transfer,
    },
};
use alloy_consensus::{SignableTransaction, TxEip1559, TxEip7702, TxLegacy};
use alloy_primitives::{TxKind, U256, b256, bytes};
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use starling_proto::{
    fork::ForkSchedule,
    l1info::{L1_BLOCK, L1BlockInfo, L1InfoFormat},
};

/// A header for a block on the ground, with the fields that execution reads.
fn header(ground: &Ground) -> Header {
    Header {
        parent_hash: ground.header.hash_slow(),
        number: 1,
        timestamp: TIME + 1,
        gas_limit: GAS_LIMIT,
        base_fee_per_gas: Some(1_000),
        parent_beacon_block_root: Some(B256::repeat_byte(0xbe)),
        ..Default::default()
    }
}

fn begin(spec: &ChainSpec, ground: &Ground, change: impl FnOnce(&mut Header)) -> BlockExecution {
    let mut header = header(ground);
    change(&mut header);
    BlockExecution::begin(spec, &header, ground.state().into()).unwrap()
}

/// Like [`begin`], but from Jovian on the L1 attributes with this footprint scalar run first.
fn begun(
    spec: &ChainSpec,
    ground: &Ground,
    scalar: u16,
    change: impl FnOnce(&mut Header),
) -> BlockExecution {
    let mut execution = begin(spec, ground, change);
    if execution.active.is_op(Fork::Jovian) {
        let (tx, raw) = deposited(l1_attributes(scalar));
        assert!(execution.transact(&tx, &raw).unwrap().success);
    }
    execution
}

type Tx = (Recovered<ChainTx>, Bytes);

fn refused(execution: &mut BlockExecution, (tx, raw): &Tx) -> Refused {
    match execution.transact(tx, raw) {
        Err(TransactError::Refused(refused)) => refused,
        other => panic!("{other:?}"),
    }
}

fn balance(changes: &Changes, address: Address) -> U256 {
    changes
        .accounts
        .get(&keccak256(address))
        .copied()
        .flatten()
        .map_or(U256::ZERO, |account| account.balance)
}

#[test]
fn failed_deposits_keep_the_mint_and_the_nonce() {
    let reverts = Address::repeat_byte(1);
    let ground = Ground::new([(reverts, Alloc::code(bytes!("6000 6000 fd")))]);
    for fork in Fork::ALL {
        let spec = op(fork);
        let mut execution = begin(&spec, &ground, |_| {});
        // Deposits that fail: one reverts, one cannot pay its value, one cannot pay for its
        // calldata.
        let failing = [
            TxDeposit {
                mint: 100,
                input: l1_attributes(0).input,
                ..deposit(reverts, 100_000)
            },
            TxDeposit {
                mint: 20,
                value: U256::from(1_000_000),
                ..deposit(Address::repeat_byte(2), 50_000)
            },
            TxDeposit {
                mint: 3,
                input: vec![1; 1_000].into(),
                ..deposit(Address::repeat_byte(2), 22_000)
            },
        ];
        let sender = failing[0].from;
        for tx in failing {
            let (tx, raw) = deposited(tx);
            execution.transact(&tx, &raw).unwrap();
        }
        let execution = execution.finish();
        let account = execution.changes.accounts[&keccak256(sender)].unwrap();
        assert_eq!(
            (account.nonce, account.balance),
            (3, U256::from(123)),
            "{fork:?}"
        );
        for (index, receipt) in execution.receipts.iter().enumerate() {
            assert!(!receipt.success);
            assert_eq!(
                receipt.deposit_nonce,
                (fork >= Fork::Regolith).then_some(index as u64),
                "{fork:?}"
            );
            assert_eq!(
                receipt.deposit_version,
                (fork >= Fork::Canyon).then_some(1),
                "{fork:?}"
            );
        }
        // From Regolith on, a revert returns the remaining gas. Before Regolith, and always if
        // nothing ran, the whole gas limit is used.
        let first = execution.receipts[0].cumulative_gas_used;
        assert_eq!(first < 100_000, fork >= Fork::Regolith, "{fork:?}");
        assert_eq!(execution.gas_used - first, 72_000, "{fork:?}");
    }
}

#[test]
fn a_deposited_creation_that_cannot_pay_its_value_bumps_the_nonce() {
    let ground = Ground::new([]);
    for fork in Fork::ALL {
        let mut execution = begin(&op(fork), &ground, |_| {});
        let poor = TxDeposit {
            mint: 5,
            value: U256::from(6),
            to: TxKind::Create,
            ..deposit(Address::ZERO, 100_000)
        };
        let sender = poor.from;
        for (index, tx) in [
            TxDeposit {
                input: l1_attributes(0).input,
                ..poor.clone()
            },
            poor,
        ]
        .into_iter()
        .enumerate()
        {
            let (tx, raw) = deposited(TxDeposit {
                value: U256::from(6 + 5 * index),
                ..tx
            });
            assert!(!execution.transact(&tx, &raw).unwrap().success);
        }
        let execution = execution.finish();
        let account = execution.changes.accounts[&keccak256(sender)].unwrap();
        assert_eq!(
            (account.nonce, account.balance, execution.gas_used),
            (2, U256::from(10), 200_000),
            "{fork:?}"
        );
        assert_eq!(execution.changes.accounts.len(), 1, "{fork:?}");
    }
}

#[test]
fn before_regolith_only_system_deposits_are_outside_of_the_gas_limit() {
    let fails = Address::repeat_byte(1);
    let ground = Ground::new([(fails, Alloc::code(bytes!("5f 5f fd")))]);
    let target = Address::repeat_byte(2);
    let tx = deposited(deposit(target, GAS_LIMIT + 1));
    let system = deposited(TxDeposit {
        is_system_transaction: true,
        ..deposit(target, 150_000_000)
    });
    let reverted = deposited(TxDeposit {
        is_system_transaction: true,
        ..deposit(fails, 150_000_000)
    });
    let too_poor = deposited(TxDeposit {
        is_system_transaction: true,
        value: U256::ONE,
        ..deposit(target, 150_000_000)
    });
    let mut before = begin(&op(Fork::Bedrock), &ground, |_| {});
    for (tx, success) in [(&system, true), (&reverted, false), (&too_poor, false)] {
        assert_eq!(before.transact(&tx.0, &tx.1).unwrap().success, success);
        assert_eq!(
            before.gas_used(),
            0,
            "a system deposit uses no gas, whatever becomes of it"
        );
    }
    let mut after = begin(&op(Fork::Regolith), &ground, |_| {});
    for execution in [&mut before, &mut after] {
        assert!(
            matches!(refused(execution, &tx), Refused::GasLeft { have, left } if (have, left) == (GAS_LIMIT + 1, GAS_LIMIT))
        );
    }
}

/// An invalid deposit is included as failed, but a system deposit makes its block invalid (op-geth:
/// ErrSystemTxNotSupported).
#[test]
fn from_regolith_on_a_system_deposit_is_refused() {
    let ground = Ground::new([]);
    let tx = TxDeposit {
        is_system_transaction: true,
        ..deposit(Address::repeat_byte(2), 100_000)
    };
    let from = tx.from;
    let (tx, raw) = deposited(tx);
    for fork in Fork::ALL {
        let mut execution = begun(&op(fork), &ground, 0, |_| {});
        if fork < Fork::Regolith {
            assert!(execution.transact(&tx, &raw).unwrap().success);
            continue;
        }
        let refused = refused(&mut execution, &(tx.clone(), raw.clone()));
        assert!(
            matches!(refused, Refused::SystemDeposit(address) if address == from),
            "{fork:?}: {refused}"
        );
    }
}

/// The init code limit of EIP-3860 applies to transactions, but not to deposits (specs PR 938).
#[test]
fn init_code_above_the_limit_runs_in_a_deposit() {
    // Init code that stores 1 in slot 0 and returns no code.
    let mut init = bytes!("6001 6000 55 00").to_vec();
    init.resize(49_153, 0);
    let ground = Ground::new([(address_of(1), Alloc::ether(100))]);
    for fork in Fork::ALL {
        let mut execution = begun(&op(fork), &ground, 0, |_| {});
        let made = TxDeposit {
            to: TxKind::Create,
            input: init.clone().into(),
            ..deposit(Address::ZERO, 5_000_000)
        };
        let (tx, raw) = deposited(made);
        let created = tx.signer().create(execution.vm.nonce(tx.signer()).unwrap());
        assert!(execution.transact(&tx, &raw).unwrap().success, "{fork:?}");
        let input = init.clone().into();
        let (tx, raw) = sign(
            1,
            alloy_consensus::TxEip1559 {
                to: TxKind::Create,
                input,
                gas_limit: 5_000_000,
                ..transfer(0)
            },
        );
        assert_eq!(
            execution.transact(&tx, &raw).is_err(),
            fork >= Fork::Canyon,
            "{fork:?}"
        );
        assert!(
            execution
                .finish()
                .changes
                .storages
                .contains_key(&keccak256(created)),
            "{fork:?}"
        );
    }
}

/// A deposit with the calldata of L1 attributes.
fn attributes_deposit(input: Bytes) -> Tx {
    deposited(TxDeposit {
        input,
        ..deposit(Address::repeat_byte(8), 100_000)
    })
}

/// Calldata of Jovian's length with the selector of Isthmus.
fn isthmus_calldata() -> Vec<u8> {
    let mut calldata = l1_attributes(400).input.to_vec();
    calldata[..4].copy_from_slice(&L1InfoFormat::Isthmus.selector());
    calldata
}

#[test]
fn from_jovian_on_a_block_begins_with_the_l1_attributes() {
    let ground = Ground::new([(address_of(1), Alloc::ether(1))]);
    let user = sign(1, transfer(0));
    let short = Bytes::from(l1_attributes(400).input[..177].to_vec());
    for fork in [Fork::Jovian, Fork::Karst] {
        let empty = begin(&op(fork), &ground, |_| {});
        assert_eq!(
            empty.check_attributes(false),
            Err(L1AttributesError::Missing)
        );
        let mut execution = begin(&op(fork), &ground, |_| {});
        assert!(matches!(
            refused(&mut execution, &user),
            Refused::Attributes(L1AttributesError::Missing)
        ));
        for input in [Bytes::new(), short.clone(), isthmus_calldata().into()] {
            assert!(matches!(
                refused(&mut execution, &attributes_deposit(input)),
                Refused::Attributes(L1AttributesError::NoScalar)
            ));
        }
        let (tx, raw) = attributes_deposit(l1_attributes(400).input);
        execution.transact(&tx, &raw).unwrap();
        assert_eq!(execution.check_attributes(true), Ok(()));
        execution.transact(&user.0, &user.1).unwrap();
    }
    for fork in Fork::ALL.into_iter().filter(|fork| *fork < Fork::Jovian) {
        let mut execution = begin(&op(fork), &ground, |_| {});
        assert_eq!(execution.check_attributes(true), Ok(()), "{fork:?}");
        execution.transact(&user.0, &user.1).unwrap();
    }
}

/// L1 attributes in the format of Isthmus have no scalar. The block that activates Jovian has such
/// attributes, and only deposits may follow.
#[test]
fn only_deposits_follow_the_attributes_of_isthmus_in_jovians_first_block() {
    let ground = Ground::new([(address_of(1), Alloc::ether(1))]);
    let user = sign(1, transfer(0));
    let crossing =
        scheduled(ForkSchedule::from_genesis(Fork::Isthmus).with(Fork::Jovian, Some(TIME + 1)));
    for (spec, built) in [
        (op(Fork::Jovian), Err(L1AttributesError::NoScalar)),
        (crossing, Ok(())),
    ] {
        let mut execution = begin(&spec, &ground, |_| {});
        let (tx, raw) = attributes_deposit(isthmus_calldata()[..176].to_vec().into());
        execution.transact(&tx, &raw).unwrap();
        assert!(matches!(
            refused(&mut execution, &user),
            Refused::NotDeposit
        ));
        execution.transact(&tx, &raw).unwrap();
        assert_eq!(
            (
                execution.check_attributes(false),
                execution.check_attributes(true)
            ),
            (Ok(()), built)
        );
        assert_eq!(execution.finish().da_footprint, 0);
    }
}

#[test]
fn karst_caps_the_gas_of_a_transaction_but_not_of_a_deposit() {
    let ground = Ground::new([(address_of(1), Alloc::ether(100))]);
    let asking = |gas_limit, nonce| {
        sign(
            1,
            alloy_consensus::TxEip1559 {
                gas_limit,
                ..transfer(nonce)
            },
        )
    };
    let mut karst = begun(&op(Fork::Karst), &ground, 0, |_| {});
    let most = asking(1 << 24, 0);
    karst.transact(&most.0, &most.1).unwrap();
    assert!(
        matches!(refused(&mut karst, &asking((1 << 24) + 1, 1)), Refused::GasCap(gas) if gas == (1 << 24) + 1)
    );
    let big = deposited(deposit(Address::repeat_byte(2), 30_000_000));
    assert!(karst.transact(&big.0, &big.1).unwrap().success);
    let mut jovian = begun(&op(Fork::Jovian), &ground, 0, |_| {});
    let more = asking((1 << 24) + 1, 0);
    jovian.transact(&more.0, &more.1).unwrap();
}

#[test]
fn the_jovian_footprint_has_the_scalar_of_the_first_transaction_and_is_bounded_by_the_gas_limit() {
    // With a scalar of 400, each small transaction has a footprint of 40,000. The scalar in the
    // state, 7 in bytes 18 and 19 of slot 8, is not read.
    let scalars = U256::from(7) << 96;
    let ground = Ground::new([
        (address_of(1), Alloc::ether(1)),
        (L1_BLOCK, Alloc::code(bytes!("00")).slot(8, scalars)),
    ]);
    let (first, second) = (sign(1, transfer(0)), sign(1, transfer(1)));
    let mut roomy = begun(&op(Fork::Jovian), &ground, 400, |h| h.gas_limit = 80_000);
    roomy.transact(&first.0, &first.1).unwrap();
    roomy.transact(&second.0, &second.1).unwrap();
    assert_eq!(roomy.finish().da_footprint, 80_000);
    let mut tight = begun(&op(Fork::Jovian), &ground, 400, |h| h.gas_limit = 79_999);
    tight.transact(&first.0, &first.1).unwrap();
    assert!(matches!(
        refused(&mut tight, &second),
        Refused::DataFootprint {
            have: 40_000,
            left: 39_999
        }
    ));
    // A deposit adds no footprint, and a refused transaction has added none.
    let free = deposited(deposit(Address::repeat_byte(2), 21_000));
    tight.transact(&free.0, &free.1).unwrap();
    assert_eq!(tight.finish().da_footprint, 40_000);
    let mut before = begin(&op(Fork::Isthmus), &ground, |h| h.gas_limit = 79_999);
    before.transact(&first.0, &first.1).unwrap();
    before.transact(&second.0, &second.1).unwrap();
    assert_eq!(before.finish().da_footprint, 0);
}

#[test]
fn create2deployer_is_deployed_at_canyons_time_exactly() {
    let code_hash = b256!("b0550b5b431e30d38000efb7107aaa0ade03d48a7198a140edda9d27134468b2");
    assert_eq!(keccak256(create2_deployer()), code_hash);
    let old = Alloc {
        nonce: 4,
        balance: U256::from(5),
        ..Default::default()
    }
    .slot(1, U256::from(6));
    let ground = Ground::new([(CREATE2_DEPLOYER, old)]);
    // With a block time of one second, Canyon is active in two blocks within two seconds after the
    // last block without it. Only the first of the two deploys the code.
    let spec =
        scheduled(ForkSchedule::from_genesis(Fork::Regolith).with(Fork::Canyon, Some(TIME + 2)));
    for (time, deploys) in [(TIME + 1, false), (TIME + 2, true), (TIME + 3, false)] {
        let changes = begin(&spec, &ground, |h| h.timestamp = time)
            .finish()
            .changes;
        let Some(account) = changes.accounts.get(&keccak256(CREATE2_DEPLOYER)) else {
            assert!(!deploys, "{time}");
            continue;
        };
        assert!(deploys, "{time}");
        assert_eq!(
            *account,
            Some(crate::chain::changes::AccountChange {
                nonce: 4,
                balance: U256::from(5),
                code_hash
            })
        );
        assert_eq!(changes.codes[&code_hash], create2_deployer());
        assert!(changes.storages.is_empty());
    }
}

#[test]
fn the_system_calls_write_only_where_there_is_code() {
    // Code that stores the first word of calldata in slot 0.
    let store = || Alloc::code(bytes!("5f 35 5f 55 00"));
    let with = Ground::new([
        (BEACON_ROOTS_ADDRESS, store()),
        (HISTORY_STORAGE_ADDRESS, store()),
    ]);
    let without = Ground::new([]);
    for (spec, beacon, history) in [
        (op(Fork::Canyon), false, false),
        (op(Fork::Ecotone), true, false),
        (op(Fork::Isthmus), true, true),
        (ethereum(), true, true),
    ] {
        assert_eq!(
            begin(&spec, &without, |_| {}).finish().changes,
            Changes::default()
        );
        let changes = begin(&spec, &with, |_| {}).finish().changes;
        let slot = |address: Address| -> Option<B256> {
            changes
                .storages
                .get(&keccak256(address))?
                .slots
                .values()
                .next()
                .map(|value| B256::from(*value))
        };
        assert_eq!(
            slot(BEACON_ROOTS_ADDRESS),
            beacon.then_some(B256::repeat_byte(0xbe))
        );
        assert_eq!(
            slot(HISTORY_STORAGE_ADDRESS),
            history.then_some(with.header.hash_slow())
        );
        // The changes do not include the system address, which is the sender of the calls.
        assert_eq!(
            changes.accounts.len(),
            usize::from(beacon) + usize::from(history)
        );
    }
}

#[test]
fn types_are_allowed_from_their_fork_on() {
    let ground = Ground::new([(address_of(1), Alloc::ether(1))]);
    let authorization = alloy_eips::eip7702::Authorization {
        chain_id: U256::ZERO,
        address: Address::ZERO,
        nonce: 0,
    };
    let signed = authorization.into_signed(alloy_primitives::Signature::test_signature());
    let set_code = sign(
        1,
        TxEip7702 {
            chain_id: crate::chain::evm::tests::CHAIN,
            gas_limit: 100_000,
            max_fee_per_gas: 1_000_000,
            to: Address::repeat_byte(2),
            authorization_list: vec![signed],
            ..Default::default()
        },
    );
    for fork in Fork::ALL {
        let mut execution = begun(&op(fork), &ground, 0, |_| {});
        assert_eq!(
            execution.transact(&set_code.0, &set_code.1).is_ok(),
            fork >= Fork::Isthmus,
            "{fork:?}"
        );
    }
    let mut execution = begin(&ethereum(), &ground, |_| {});
    assert!(matches!(
        refused(&mut execution, &deposited(deposit(Address::ZERO, 21_000))),
        Refused::Type(0x7e)
    ));
    execution.transact(&set_code.0, &set_code.1).unwrap();
    // Blob transactions and type 0x7D are refused already by decoding.
    for bad in [bytes!("03c0"), bytes!("7dc0"), Bytes::new()] {
        assert!(matches!(
            recover(3, &bad),
            Err(InvalidBlock::Undecodable { index: 3, .. })
        ));
    }
}

#[test]
fn a_signature_in_the_upper_half_is_refused() {
    let tx = TxLegacy {
        chain_id: Some(crate::chain::evm::tests::CHAIN),
        gas_limit: 21_000,
        ..Default::default()
    };
    let hash = tx.signature_hash();
    let (good, _) = sign(1, tx.clone());
    let Some(good) = good.as_legacy() else {
        panic!()
    };
    let order = U256::from_be_bytes(secp256k1::constants::CURVE_ORDER);
    let signature = good.signature();
    let upper =
        alloy_primitives::Signature::new(signature.r(), order - signature.s(), !signature.v());
    assert!(upper.recover_address_from_prehash(&hash).is_ok());
    let raw = Bytes::from(alloy_eips::eip2718::Encodable2718::encoded_2718(
        &OpTxEnvelope::from(tx.into_signed(upper)),
    ));
    assert!(matches!(
        recover(0, &raw),
        Err(InvalidBlock::Signature { index: 0 })
    ));
}

/// L1 attributes with fees and scalars, in the format that `fork` uses.
fn l1_info_of(fork: Fork) -> L1BlockInfo {
    let format = match fork {
        fork if fork < Fork::Ecotone => L1InfoFormat::Bedrock,
        fork if fork < Fork::Isthmus => L1InfoFormat::Ecotone,
        Fork::Isthmus => L1InfoFormat::Isthmus,
        _ => L1InfoFormat::Jovian,
    };
    L1BlockInfo {
        format,
        number: 0,
        time: 0,
        base_fee: U256::from(47_036_678_951u64),
        hash: B256::ZERO,
        sequence_number: 0,
        batcher_addr: Address::ZERO,
        overhead: B256::from(U256::from(2_100)),
        scalar: B256::from(U256::from(684_000)),
        base_fee_scalar: 1_368,
        blob_base_fee_scalar: 810_949,
        blob_base_fee: U256::from(57_422_457_042u64),
        operator_fee_scalar: 2_000_000,
        operator_fee_constant: 77,
        da_footprint_gas_scalar: 400,
    }
}

/// The L1Block contract, with the values of [`l1_info_of`] in its storage.
fn l1_block_contract() -> Alloc {
    let word = |parts: &[(u64, u32)]| {
        parts.iter().fold(U256::ZERO, |word, (value, shift)| {
            word | U256::from(*value) << *shift
        })
    };
    // The slots: L1 base fee, overhead, scalar, the scalars of Ecotone in bytes 16 to 24, blob base
    // fee, and the scalars of operator fee and footprint.
    Alloc::code(bytes!("00"))
        .slot(1, U256::from(47_036_678_951u64))
        .slot(5, U256::from(2_100))
        .slot(6, U256::from(684_000))
        .slot(3, word(&[(1_368, 96), (810_949, 64)]))
        .slot(7, U256::from(57_422_457_042u64))
        .slot(8, word(&[(400, 96), (2_000_000, 64), (77, 0)]))
}

#[test]
fn execution_charges_the_fees_that_receipts_show() {
    let ground = Ground::new([
        (address_of(1), Alloc::ether(1_000)),
        (L1_BLOCK, l1_block_contract()),
    ]);
    for fork in Fork::ALL {
        let info = l1_info_of(fork);
        let noise: Vec<u8> = (0..40u8).flat_map(|n| keccak256([n]).0).collect();
        let (tx, raw) = sign(
            1,
            alloy_consensus::TxEip1559 {
                gas_limit: 500_000,
                input: noise.into(),
                ..transfer(0)
            },
        );
        let mut execution = begun(&op(fork), &ground, 400, |_| {});
        let before = execution.gas_used();
        execution.transact(&tx, &raw).unwrap();
        let execution = execution.finish();
        let gas_used = execution.gas_used - before;
        let vault = |last| {
            balance(
                &execution.changes,
                address!("4200000000000000000000000000000000000000").with_last(last),
            )
        };
        let cost = l1fee::receipt_cost(&info, fork, &raw);
        let operator = l1fee::operator_fee(&info, fork, gas_used);
        assert_eq!(vault(0x1a), cost.fee, "{fork:?}");
        assert!(!cost.fee.is_zero());
        assert_eq!(vault(0x1b), operator, "{fork:?}");
        assert_eq!(operator.is_zero(), fork < Fork::Isthmus);
        assert_eq!(vault(0x19), U256::from(gas_used * 1_000), "{fork:?}");
        let ether = U256::from(10).pow(U256::from(18)) * U256::from(1_000);
        let paid = U256::from(gas_used * 1_010) + cost.fee + operator + U256::ONE;
        assert_eq!(
            balance(&execution.changes, address_of(1)),
            ether - paid,
            "{fork:?}"
        );
        if fork >= Fork::Jovian {
            assert_eq!(execution.da_footprint, cost.da_footprint);
        }
        // The pool must require at least the amount that execution charges up front.
        assert!(l1fee::admission_cost(&info, fork, &raw, 500_000) >= cost.fee + operator);
    }
}

trait WithLast {
    fn with_last(self, last: u8) -> Address;
}

impl WithLast for Address {
    fn with_last(mut self, last: u8) -> Address {
        self.0[19] = last;
        self
    }
}

#[test]
fn touched_empty_accounts_and_destroyed_ones_are_gone() {
    let (empty, dies) = (Address::repeat_byte(0x77), Address::repeat_byte(0x66));
    // Code that runs SELFDESTRUCT to the zero address.
    let ground = Ground::new([
        (address_of(1), Alloc::ether(1)),
        (empty, Alloc::default()),
        (dies, Alloc::code(bytes!("5f ff")).slot(1, U256::from(1))),
    ]);
    let run = |fork| {
        let mut execution = begin(&op(fork), &ground, |_| {});
        for (nonce, to) in [(0, empty), (1, dies)] {
            let (tx, raw) = sign(
                1,
                alloy_consensus::TxEip1559 {
                    value: U256::ZERO,
                    gas_limit: 60_000,
                    to: to.into(),
                    ..transfer(nonce)
                },
            );
            assert!(execution.transact(&tx, &raw).unwrap().success);
        }
        execution.finish().changes
    };
    let canyon = run(Fork::Canyon);
    assert_eq!(canyon.accounts[&keccak256(empty)], None);
    assert_eq!(canyon.accounts[&keccak256(dies)], None);
    // From Ecotone on, only accounts created in the same transaction are destroyed (EIP-6780).
    let ecotone = run(Fork::Ecotone);
    assert_eq!(ecotone.accounts[&keccak256(empty)], None);
    assert!(!ecotone.accounts.contains_key(&keccak256(dies)));
}

/// op-revm keeps the accounts that a refused transaction has loaded. If they stayed warm, a block
/// that we build without the transaction would have other gas than the same block elsewhere.
#[test]
fn a_refused_transaction_warms_nothing() {
    let (reader, poor) = (Address::repeat_byte(0x55), address_of(3));
    // Pushes the address, reads its balance, and stores it.
    let mut code = vec![0x73];
    code.extend(poor.as_slice());
    code.extend([0x31, 0x5f, 0x55]);
    let ground = Ground::new([
        (address_of(1), Alloc::ether(1)),
        (reader, Alloc::code(code)),
    ]);
    let reads = TxEip1559 {
        gas_limit: 100_000,
        to: reader.into(),
        value: U256::ZERO,
        ..transfer(0)
    };
    for spec in [op(Fork::Isthmus), op(Fork::Jovian), ethereum()] {
        let gas_with = |refusals: &[Tx]| {
            let mut execution = begun(&spec, &ground, 0, |_| {});
            for refusal in refusals {
                refused(&mut execution, refusal);
            }
            let before = execution.gas_used();
            let (tx, raw) = sign(1, reads.clone());
            assert!(execution.transact(&tx, &raw).unwrap().success);
            execution.gas_used() - before
        };
        let (no_ether, nonce) = (sign(3, transfer(0)), sign(3, transfer(7)));
        assert_eq!(gas_with(&[no_ether, nonce]), gas_with(&[]));
    }
}

/// A tracer or its timeout may end a transaction after its sender's nonce has changed.
#[test]
fn a_transaction_whose_trace_failed_is_executed_as_if_untraced() {
    let code = bytes!("60016001015f55 60025f55 00");
    let contract = Address::repeat_byte(0x55);
    let ground = Ground::new([
        (address_of(1), Alloc::ether(1)),
        (contract, Alloc::code(code)),
    ]);
    let (tx, raw) = sign(
        1,
        TxEip1559 {
            gas_limit: 100_000,
            to: contract.into(),
            ..transfer(0)
        },
    );
    for spec in [op(Fork::Isthmus), op(Fork::Jovian), ethereum()] {
        let outcome = |traces: usize| {
            let mut execution = begun(&spec, &ground, 0, |_| {});
            for _ in 0..traces {
                let config = TracerConfig::StructLog(StructLogConfig::default());
                let tracer = Tracer::new(config, TraceWriter::in_memory(200));
                let place = TracePlace::default();
                let failed = execution.trace(&tx, &raw, &mut Some(Box::new(tracer)), &place);
                assert!(matches!(failed, Err(TraceError::TooLarge(_))), "{failed:?}");
            }
            let receipt = execution.transact(&tx, &raw).unwrap().clone();
            let changes = execution.finish().changes;
            (receipt, changes.accounts, changes.storages)
        };
        assert_eq!(outcome(2), outcome(0));
    }
}
