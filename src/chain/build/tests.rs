use super::*;
use crate::chain::{
    evm::tests::{
        Alloc, CHAIN, GAS_LIMIT, Ground, TIME, address_of, deposit, deposited, ethereum, fixture,
        l1_attributes, op, scheduled, sign, transfer,
    },
    execute::{ValidateError, validate},
    rules::MESSAGE_PASSER,
    view::View,
};
use alloy_consensus::{SignableTransaction, TxEip1559, TxEip7702};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, bytes};
use alloy_rpc_types_engine::PayloadAttributes;
use alloy_trie::EMPTY_ROOT_HASH;
use op_alloy_consensus::TxDeposit;
use starling_proto::fork::ForkSchedule;

/// The first transaction of a block.
fn first() -> Bytes {
    deposited(l1_attributes(0)).1
}

/// Attributes as a driver gives them for a block at `TIME + 2`.
fn attributes(spec: &ChainSpec, transactions: Vec<Bytes>) -> OpPayloadAttributes {
    attributes_at(spec, TIME + 2, transactions)
}

fn attributes_at(
    spec: &ChainSpec,
    timestamp: u64,
    transactions: Vec<Bytes>,
) -> OpPayloadAttributes {
    let active = spec.at(timestamp);
    OpPayloadAttributes {
        payload_attributes: PayloadAttributes {
            timestamp,
            prev_randao: B256::repeat_byte(3),
            suggested_fee_recipient: Address::repeat_byte(0xfe),
            withdrawals: active.shanghai.then(Vec::new),
            parent_beacon_block_root: active.cancun.then_some(B256::repeat_byte(4)),
            ..Default::default()
        },
        transactions: Some(transactions),
        no_tx_pool: None,
        gas_limit: active.op.map(|_| GAS_LIMIT / 2),
        eip_1559_params: active.is_op(Fork::Holocene).then_some(B64::ZERO),
        min_base_fee: active.is_op(Fork::Jovian).then_some(500),
    }
}

/// A ground whose header is a valid parent under `spec`, with funds for key 1.
fn ground(spec: &ChainSpec) -> Ground {
    let extra_data = ExtraData::encode(spec, TIME, Eip1559Params::default(), 0).unwrap();
    let passer = Alloc::code(bytes!("43 5f 55 00")).slot(1, U256::from(7));
    Ground::with_header(
        [(address_of(1), Alloc::ether(10)), (MESSAGE_PASSER, passer)],
        Header {
            extra_data,
            ..Default::default()
        },
    )
}

fn specs() -> impl Iterator<Item = ChainSpec> {
    Fork::ALL.into_iter().map(op).chain([ethereum()])
}

/// A block with a deposit (on OP) and two pool transactions, one of which calls the message passer.
fn build(spec: &ChainSpec, ground: &Ground) -> ExecutedBlock {
    let forced = spec.is_optimism().then(first).into_iter().collect();
    let spec = Arc::new(spec.clone());
    let mut builder =
        BlockBuilder::start(spec.clone(), ground.state(), attributes(&spec, forced)).unwrap();
    let before = builder.execution.gas_used();
    let call = sign(
        1,
        TxEip1559 {
            gas_limit: 100_000,
            to: MESSAGE_PASSER.into(),
            value: U256::ZERO,
            ..transfer(1)
        },
    );
    for (tx, raw) in [sign(1, transfer(0)), call] {
        assert_eq!(builder.add(&tx, &raw).unwrap(), Added::Yes);
    }
    assert_eq!(
        builder.fees(),
        U256::from(10 * (builder.execution.gas_used() - before))
    );
    builder.finish().unwrap()
}

#[test]
fn what_is_built_is_valid() {
    for spec in specs() {
        let ground = ground(&spec);
        let built = build(&spec, &ground);
        let judged = validate(&spec, ground.state(), built.payload.clone())
            .unwrap_or_else(|error| panic!("{:?}: {error}", spec.rules));
        assert_eq!(judged.overlay, built.overlay);
        assert_eq!(judged.receipts, built.receipts);
        assert_eq!(judged.senders, built.senders);
        let header = &built.payload.header;
        let active = spec.at(TIME + 2);
        assert_eq!(
            header.gas_limit,
            if active.op.is_some() {
                GAS_LIMIT / 2
            } else {
                GAS_LIMIT
            }
        );
        assert_eq!(header.beneficiary, Address::repeat_byte(0xfe));
        assert_eq!(header.mix_hash, B256::repeat_byte(3));
        assert_eq!(
            header.parent_beacon_block_root,
            active.cancun.then_some(B256::repeat_byte(4))
        );
        if active.is_op(Fork::Jovian) {
            assert_eq!(
                header.extra_data,
                bytes!("01 000000fa 00000006 00000000000001f4")
            );
        }
        let passer = header
            .withdrawals_root
            .is_some_and(|root| root != EMPTY_ROOT_HASH);
        assert_eq!(passer, active.is_op(Fork::Isthmus));
    }
}

#[test]
fn a_chain_walks_through_every_fork() {
    // One fork every four seconds from Regolith on, blocks of two seconds: each fork has a block
    // that activates it and one after.
    let times = Fork::ALL
        .into_iter()
        .enumerate()
        .map(|(index, fork)| (fork, Some(TIME + 4 * index as u64)));
    let spec = Arc::new(scheduled(ForkSchedule::from_times(times)));
    let ground = ground(&op(Fork::Bedrock));
    let mut blocks = Vec::new();
    let mut header = ground.header.clone();
    for nonce in 0..24 {
        let view = View::new(ground.store.snapshot().unwrap(), blocks.clone(), None, None).unwrap();
        let state = Arc::new(view).state();
        let timestamp = header.timestamp + 2;
        let forced = vec![first()];
        let mut attributes = attributes_at(&spec, timestamp, forced);
        attributes.gas_limit = Some(GAS_LIMIT + nonce);
        let mut builder = BlockBuilder::start(spec.clone(), &state, attributes).unwrap();
        let (tx, raw) = sign(
            1,
            TxEip1559 {
                gas_limit: 100_000,
                to: MESSAGE_PASSER.into(),
                ..transfer(nonce)
            },
        );
        assert_eq!(builder.add(&tx, &raw).unwrap(), Added::Yes);
        let built = builder.finish().unwrap();
        let judged = validate(&spec, &state, built.payload.clone())
            .unwrap_or_else(|error| panic!("{timestamp}: {error}"));
        assert_eq!(judged.overlay, built.overlay);
        // The header reads back as it was: no field is there without those before it.
        let read = <Header as alloy_rlp::Decodable>::decode(
            &mut alloy_rlp::encode(&built.payload.header).as_slice(),
        )
        .unwrap();
        assert_eq!(read, built.payload.header);
        header = read;
        blocks.push(Arc::new(built));
    }
    assert_eq!(spec.at(header.timestamp).op, Some(Fork::Karst));
}

#[test]
fn every_result_in_the_header_is_compared() {
    let spec = op(Fork::Jovian);
    let ground = ground(&spec);
    let built = build(&spec, &ground);
    let judge = |change: fn(&mut Header)| {
        let mut header = built.payload.header.clone();
        change(&mut header);
        let payload = Payload::sealed(header, built.payload.transactions.clone());
        match validate(&spec, ground.state(), Arc::new(payload)) {
            Err(ValidateError::Invalid(invalid)) => invalid,
            other => panic!("{other:?}"),
        }
    };
    use InvalidBlock as I;
    assert!(matches!(judge(|h| h.gas_used += 1), I::GasUsed { have, want } if have == want + 1));
    assert!(matches!(
        judge(|h| h.blob_gas_used = Some(1)),
        I::BlobGasUsed {
            have: Some(1),
            want: Some(0)
        }
    ));
    assert!(matches!(
        judge(|h| h.receipts_root.0[0] ^= 1),
        I::ReceiptsRoot { .. }
    ));
    assert!(matches!(judge(|h| h.logs_bloom.0[0] ^= 1), I::LogsBloom));
    assert!(matches!(
        judge(|h| h.state_root.0[0] ^= 1),
        I::StateRoot { .. }
    ));
    assert!(matches!(
        judge(|h| h.withdrawals_root = Some(EMPTY_ROOT_HASH)),
        I::WithdrawalsRoot { .. }
    ));
    let absent = I::BlobGasUsed {
        have: Some(1),
        want: None,
    }
    .to_string();
    assert_eq!(absent, "blob gas used is 1, want none");
    assert!(matches!(
        judge(|h| h.transactions_root.0[0] ^= 1),
        I::TransactionsRoot { .. }
    ));
    assert!(matches!(
        judge(|h| h.base_fee_per_gas = Some(0)),
        I::Header(_)
    ));
}

#[test]
fn an_invalid_transaction_makes_a_block_invalid() {
    let spec = op(Fork::Jovian);
    let ground = ground(&spec);
    let built = build(&spec, &ground);
    let mut transactions = built.payload.transactions.clone();
    transactions.swap(1, 2);
    let header = Header {
        transactions_root: ordered_trie_root_encoded(&transactions),
        ..built.payload.header.clone()
    };
    let error = validate(
        &spec,
        ground.state(),
        Arc::new(Payload::sealed(header, transactions)),
    )
    .unwrap_err();
    assert!(
        matches!(
            error,
            ValidateError::Invalid(InvalidBlock::Transaction { index: 1, .. })
        ),
        "{error}"
    );
}

#[test]
fn an_invalid_forced_transaction_is_an_error_with_its_index() {
    let spec = Arc::new(op(Fork::Jovian));
    let ground = ground(&spec);
    let good = first();
    for bad in [
        bytes!("03c0"),
        bytes!("7dc0"),
        sign(1, transfer(5)).1,
        sign(2, transfer(0)).1,
    ] {
        let forced = vec![good.clone(), sign(1, transfer(0)).1, bad];
        match BlockBuilder::start(spec.clone(), ground.state(), attributes(&spec, forced))
            .map(|_| ())
        {
            Err(BuildError::Forced { index: 2, cause }) => assert!(!cause.is_empty()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn attributes_must_fit_their_fork() {
    let start = |spec: &ChainSpec, change: fn(&mut OpPayloadAttributes)| {
        let ground = ground(spec);
        let mut attributes = attributes(spec, Vec::new());
        change(&mut attributes);
        BlockBuilder::start(Arc::new(spec.clone()), ground.state(), attributes).map(|_| ())
    };
    let (granite, holocene, jovian) = (op(Fork::Granite), op(Fork::Holocene), op(Fork::Jovian));
    use BuildError as E;
    assert!(matches!(
        start(&jovian, |a| a.payload_attributes.timestamp = TIME),
        Err(E::Timestamp {
            have: TIME,
            parent: TIME
        })
    ));
    assert!(matches!(
        start(&jovian, |a| a.gas_limit = None),
        Err(E::Missing("gasLimit"))
    ));
    assert!(matches!(
        start(&jovian, |a| a.eip_1559_params = None),
        Err(E::Missing("eip1559Params"))
    ));
    assert!(matches!(
        start(&granite, |a| a.eip_1559_params = Some(B64::ZERO)),
        Err(E::Unexpected("eip1559Params"))
    ));
    assert!(matches!(
        start(&jovian, |a| a.min_base_fee = None),
        Err(E::Missing("minBaseFee"))
    ));
    assert!(matches!(
        start(&holocene, |a| a.min_base_fee = Some(0)),
        Err(E::Unexpected("minBaseFee"))
    ));
    assert!(matches!(
        start(&jovian, |a| a.eip_1559_params =
            Some(B64::with_last_byte(1))),
        Err(E::ExtraData(_))
    ));
    let no_root: fn(&mut OpPayloadAttributes) =
        |a| a.payload_attributes.parent_beacon_block_root = None;
    assert!(matches!(
        start(&jovian, no_root),
        Err(E::Missing("parentBeaconBlockRoot"))
    ));
    let withdrawal: fn(&mut OpPayloadAttributes) =
        |a| a.payload_attributes.withdrawals = Some(vec![Default::default()]);
    assert!(matches!(start(&jovian, withdrawal), Err(E::Withdrawals(1))));
}

#[test]
fn attributes_without_l1_attributes_are_refused_from_jovian_on() {
    for fork in Fork::ALL {
        let spec = Arc::new(op(fork));
        let ground = ground(&spec);
        let start =
            |forced| BlockBuilder::start(spec.clone(), ground.state(), attributes(&spec, forced));
        let user = sign(1, transfer(0)).1;
        if fork < Fork::Jovian {
            start(vec![]).unwrap();
            start(vec![user]).unwrap();
            continue;
        }
        let text = "missing L1 attributes deposit transaction";
        assert!(
            matches!(start(vec![]).map(|_| ()), Err(BuildError::Attributes(error)) if error.to_string() == text)
        );
        assert!(
            matches!(start(vec![user]).map(|_| ()), Err(BuildError::Forced { index: 0, cause }) if cause == text)
        );
        // A block of nobody's making without them is invalid, too.
        let built = start(vec![first()]).unwrap().finish().unwrap();
        let header = Header {
            transactions_root: EMPTY_ROOT_HASH,
            ..built.payload.header.clone()
        };
        let judged = validate(
            &spec,
            ground.state(),
            Arc::new(Payload::sealed(header, vec![])),
        )
        .map(|_| ());
        assert!(
            matches!(
                judged,
                Err(ValidateError::Invalid(InvalidBlock::Attributes(_)))
            ),
            "{judged:?}"
        );
    }
}

/// The vectors without extra data: attributes from which none can be made.
#[test]
fn attributes_without_extra_data_are_refused_as_the_vectors_say() {
    let Some(file) = fixture("engine/extra-data.json") else {
        return;
    };
    let refused: Vec<_> = file["vectors"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|vector| vector["error"].is_string())
        .collect();
    assert_eq!(refused.len(), 2);
    for vector in refused {
        let spec = op(if vector["fork"] == "jovian" {
            Fork::Jovian
        } else {
            Fork::Holocene
        });
        let ground = ground(&spec);
        let attributes = OpPayloadAttributes {
            eip_1559_params: Some(vector["eip1559Params"].as_str().unwrap().parse().unwrap()),
            min_base_fee: vector["minBaseFee"].as_u64(),
            ..attributes(&spec, Vec::new())
        };
        let error = BlockBuilder::start(Arc::new(spec), ground.state(), attributes)
            .map(|_| ())
            .unwrap_err();
        let as_the_vector_says = match vector["error"].as_str().unwrap() {
            "minBaseFee required" => matches!(error, BuildError::Missing("minBaseFee")),
            "minBaseFee must be absent" => matches!(error, BuildError::Unexpected("minBaseFee")),
            other => panic!("{other}"),
        };
        assert!(as_the_vector_says, "{vector}: {error}");
    }
}

#[test]
fn pool_transactions_that_do_not_fit_are_left_out() {
    let spec = Arc::new(op(Fork::Jovian));
    let ground = ground(&spec);
    let attributes = OpPayloadAttributes {
        gas_limit: Some(80_000),
        ..attributes(&spec, vec![first()])
    };
    let mut builder = BlockBuilder::start(spec.clone(), ground.state(), attributes).unwrap();
    let left = builder.gas_left();
    assert!((42_000..63_000).contains(&left), "{left}");
    let mut add = |(tx, raw): (Recovered<OpTxEnvelope>, Bytes)| builder.add(&tx, &raw).unwrap();
    assert!(matches!(add(sign(1, transfer(1))), Added::Skipped(_)));
    assert!(matches!(
        add(sign(
            1,
            TxEip1559 {
                gas_limit: left + 1,
                ..transfer(0)
            }
        )),
        Added::Skipped(_)
    ));
    assert!(matches!(
        add(sign(
            1,
            TxEip1559 {
                max_fee_per_gas: 10,
                ..transfer(0)
            }
        )),
        Added::Skipped(_)
    ));
    assert!(matches!(
        add(deposited(deposit(Address::ZERO, 21_000))),
        Added::Skipped(_)
    ));
    assert_eq!(add(sign(1, transfer(0))), Added::Yes);
    assert_eq!(add(sign(1, transfer(1))), Added::Yes);
    assert_eq!(add(sign(1, transfer(2))), Added::Full);
    let block = builder.finish().unwrap();
    assert_eq!(block.payload.transactions.len(), 3);
    validate(&spec, ground.state(), block.payload).unwrap();
}

/// Transactions that no block of `spec` may hold for a reason of their own: by name, as bytes; the
/// type decides who may decode them.
fn hostile(spec: &ChainSpec) -> Vec<(&'static str, Bytes)> {
    let tx = |change: &dyn Fn(&mut TxEip1559)| {
        let mut tx = transfer(0);
        change(&mut tx);
        sign(1, tx).1
    };
    let set_code = TxEip7702 {
        chain_id: CHAIN,
        gas_limit: 100_000,
        max_fee_per_gas: 1_000_000,
        ..Default::default()
    };
    let order = U256::from_be_bytes(secp256k1::constants::CURVE_ORDER);
    let (good, raw) = sign(1, transfer(0));
    let OpTxEnvelope::Eip1559(good) = good.into_inner() else {
        unreachable!()
    };
    let signed = good.signature();
    let mirrored = alloy_primitives::Signature::new(signed.r(), order - signed.s(), !signed.v());
    let mirrored = OpTxEnvelope::from(transfer(0).into_signed(mirrored)).encoded_2718();
    let mut trailing = raw.to_vec();
    trailing.push(0);
    let mut all = vec![
        ("chain id", tx(&|tx| tx.chain_id = 1)),
        ("nonce too high", tx(&|tx| tx.nonce = 1)),
        ("nonce too low", sign(3, transfer(4)).1),
        ("insufficient funds", sign(2, transfer(0)).1),
        (
            "value",
            tx(&|tx| tx.value = U256::from(10).pow(U256::from(19))),
        ),
        ("a sender with code", sign(4, transfer(0)).1),
        ("intrinsic gas", tx(&|tx| tx.gas_limit = 20_999)),
        ("block gas", tx(&|tx| tx.gas_limit = GAS_LIMIT + 1)),
        (
            "fee cap below the base fee",
            tx(&|tx| (tx.max_fee_per_gas, tx.max_priority_fee_per_gas) = (10, 10)),
        ),
        (
            "tip above the fee cap",
            tx(&|tx| tx.max_priority_fee_per_gas = tx.max_fee_per_gas + 1),
        ),
        ("blob", bytes!("03c0")),
        ("0x7d", bytes!("7dc0")),
        ("unknown type", bytes!("05c0")),
        ("no bytes", Bytes::new()),
        ("trailing bytes", trailing.into()),
        ("high s", mirrored.into()),
        (
            "system deposit",
            deposited(TxDeposit {
                is_system_transaction: true,
                ..deposit(Address::ZERO, GAS_LIMIT)
            })
            .1,
        ),
    ];
    let active = spec.at(TIME + 2);
    if active.shanghai {
        all.push((
            "init code",
            tx(&|tx| {
                (tx.input, tx.gas_limit, tx.to) = (
                    vec![0; 49_153].into(),
                    5_000_000,
                    alloy_primitives::TxKind::Create,
                )
            }),
        ));
    }
    if active.prague {
        all.push((
            "floor gas",
            tx(&|tx| (tx.input, tx.gas_limit) = (vec![1; 10].into(), 21_399)),
        ));
        all.push(("no authorization", sign(1, set_code).1));
    } else {
        let authorization = alloy_eips::eip7702::Authorization {
            chain_id: U256::ZERO,
            address: Address::ZERO,
            nonce: 0,
        };
        let signed = authorization.into_signed(alloy_primitives::Signature::test_signature());
        all.push((
            "set code",
            sign(
                1,
                TxEip7702 {
                    authorization_list: vec![signed],
                    ..set_code
                },
            )
            .1,
        ));
    }
    if active.osaka {
        all.push(("EIP-7825", tx(&|tx| tx.gas_limit = (1 << 24) + 1)));
    }
    if active.op.is_some() {
        // Its balance is enough for gas and value only.
        let cost = 21_000 * transfer(0).max_fee_per_gas;
        all.push((
            "L1 and operator fee",
            tx(&|tx| tx.value = U256::from(10).pow(U256::from(19)) - U256::from(cost)),
        ));
    }
    all
}

#[test]
fn hostile_transactions_find_no_place_in_a_block_whichever_way_they_come() {
    for spec in specs() {
        let spec = Arc::new(spec);
        // L1 fee of every kind, operator fee.
        let word = |parts: &[(u64, u32)]| {
            parts.iter().fold(U256::ZERO, |word, (value, shift)| {
                word | U256::from(*value) << *shift
            })
        };
        let l1_block = Alloc::code(bytes!("00"))
            .slot(1, U256::from(47_036_678_951u64))
            .slot(5, U256::from(2_100))
            .slot(6, U256::from(684_000))
            .slot(3, word(&[(1_368, 96), (810_949, 64)]))
            .slot(7, U256::from(57_422_457_042u64))
            .slot(8, word(&[(2_000_000, 64), (77, 0)]));
        let funded = [
            (address_of(1), Alloc::ether(10)),
            (
                address_of(3),
                Alloc {
                    nonce: 5,
                    ..Alloc::ether(10)
                },
            ),
            (
                address_of(4),
                Alloc {
                    code: bytes!("00"),
                    ..Alloc::ether(10)
                },
            ),
            (starling_proto::l1info::L1_BLOCK, l1_block),
        ];
        let extra_data = ExtraData::encode(&spec, TIME, Eip1559Params::default(), 0).unwrap();
        let ground = Ground::with_header(
            funded,
            Header {
                extra_data,
                ..Default::default()
            },
        );
        // From Jovian on a block begins with the L1 attributes.
        let begun: Vec<Bytes> = spec
            .at(TIME + 2)
            .is_op(Fork::Jovian)
            .then(first)
            .into_iter()
            .collect();
        let at = begun.len();
        let attributes = |forced: Vec<Bytes>| attributes(&spec, [begun.clone(), forced].concat());
        let empty = BlockBuilder::start(spec.clone(), ground.state(), attributes(vec![]))
            .unwrap()
            .finish()
            .unwrap();
        for (name, raw) in hostile(&spec) {
            let name = format!("{name} under {:?}", spec.rules);
            // A payload with it is invalid.
            let system = raw.first() == Some(&0x7e);
            let transactions = [begun.clone(), vec![raw.clone()]].concat();
            let header = Header {
                transactions_root: ordered_trie_root_encoded(&transactions),
                ..empty.payload.header.clone()
            };
            let judged = validate(
                &spec,
                ground.state(),
                Arc::new(Payload::sealed(header, transactions)),
            );
            match judged.map(|_| ()) {
                // A deposit may stand in a block of OP, which then has another outcome; it only may
                // not come from a pool.
                Err(ValidateError::Invalid(
                    InvalidBlock::GasUsed { .. } | InvalidBlock::ReceiptsRoot { .. },
                )) if system && spec.is_optimism() => {}
                Err(ValidateError::Invalid(
                    InvalidBlock::Transaction { index, .. }
                    | InvalidBlock::Undecodable { index, .. }
                    | InvalidBlock::Signature { index },
                )) if index == at => {}
                other => panic!("{name}: {other:?}"),
            }
            // As a forced transaction it is an error, never dropped.
            if !system {
                let forced = BlockBuilder::start(
                    spec.clone(),
                    ground.state(),
                    attributes(vec![raw.clone()]),
                );
                assert!(
                    matches!(forced.map(|_| ()), Err(BuildError::Forced { index, .. }) if index == at),
                    "{name}"
                );
            }
            // From the pool it is left out, and the block goes on without it.
            let Ok(tx) = crate::chain::execute::recover(0, &raw) else {
                continue;
            };
            let mut builder =
                BlockBuilder::start(spec.clone(), ground.state(), attributes(vec![])).unwrap();
            assert!(
                matches!(builder.add(&tx, &raw).unwrap(), Added::Skipped(_)),
                "{name}"
            );
            let (tx, raw) = sign(3, transfer(5));
            assert_eq!(builder.add(&tx, &raw).unwrap(), Added::Yes, "{name}");
            assert_eq!(
                builder.finish().unwrap().payload.transactions,
                [begun.clone(), vec![raw]].concat(),
                "{name}"
            );
        }
    }
}
