//! Hostile transactions, forced and from the pool.

use super::*;

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
    let ChainTx::Op(OpTxEnvelope::Eip1559(good)) = good.into_inner() else {
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
