use super::*;
use crate::{fork::Fork, payload::BlockId, system_config::FeeScalars};
use alloy_consensus::Header;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::TxKind;
use proptest::prelude::*;

const ORIGIN: L1Origin = L1Origin {
    hash: B256::repeat_byte(0x77),
    number: 42,
    time: 1_700_000_000,
    base_fee: 9,
    blob_base_fee: 1 << 70,
};

fn config() -> SystemConfig {
    SystemConfig {
        batcher_addr: Address::repeat_byte(0xba),
        overhead: B256::with_last_byte(188),
        scalar: FeeScalars {
            base_fee: 1368,
            blob_base_fee: 810_949,
        }
        .encode(),
        operator_fee_scalar: 20_000,
        operator_fee_constant: 500,
        da_footprint_gas_scalar: 7,
        ..Default::default()
    }
}

/// The L1 attributes of a block at time 100 with a parent at 98.
fn build(forks: &ForkSchedule, config: &SystemConfig) -> L1BlockInfo {
    let deposit = l1_info_tx(forks, config, &ORIGIN, 3, 100, 98).unwrap();
    L1BlockInfo::decode(&deposit.input).unwrap()
}

fn block(number: u64, transactions: Vec<Bytes>) -> Payload {
    Payload::sealed(
        Header {
            number,
            ..Default::default()
        },
        transactions,
    )
}

fn raw(deposit: TxDeposit) -> Bytes {
    OpTxEnvelope::from(deposit).encoded_2718().into()
}

#[test]
fn each_fork_takes_its_format_from_the_block_after_its_activation() {
    for (fork, before, after) in [
        (Fork::Ecotone, L1InfoFormat::Bedrock, L1InfoFormat::Ecotone),
        (Fork::Fjord, L1InfoFormat::Ecotone, L1InfoFormat::Ecotone),
        (Fork::Isthmus, L1InfoFormat::Ecotone, L1InfoFormat::Isthmus),
        (Fork::Jovian, L1InfoFormat::Isthmus, L1InfoFormat::Jovian),
        (Fork::Karst, L1InfoFormat::Jovian, L1InfoFormat::Jovian),
    ] {
        let forks = ForkSchedule::from_genesis(fork).with(fork, Some(100));
        assert_eq!(L1InfoFormat::at(&forks, 98, 96), before, "before {fork:?}");
        assert_eq!(L1InfoFormat::at(&forks, 100, 98), before, "at {fork:?}");
        assert_eq!(
            L1InfoFormat::at(&forks, 101, 99),
            before,
            "a block that steps over {fork:?} activates it"
        );
        assert_eq!(L1InfoFormat::at(&forks, 102, 100), after, "after {fork:?}");
        let at_genesis = ForkSchedule::from_genesis(fork);
        assert_eq!(
            L1InfoFormat::at(&at_genesis, 100, 98),
            after,
            "{fork:?} at genesis has no activation"
        );
    }
    let all_at_once = ForkSchedule::from_times(Fork::ALL.map(|fork| (fork, Some(100))));
    assert_eq!(
        L1InfoFormat::at(&all_at_once, 100, 98),
        L1InfoFormat::Bedrock
    );
    assert_eq!(
        L1InfoFormat::at(&all_at_once, 102, 100),
        L1InfoFormat::Jovian
    );
}

#[test]
fn a_format_carries_its_own_parameters_only() {
    let bedrock = build(&ForkSchedule::from_genesis(Fork::Delta), &config());
    assert_eq!(
        (bedrock.overhead, bedrock.scalar),
        (config().overhead, config().scalar)
    );
    assert_eq!(
        (bedrock.base_fee_scalar, bedrock.blob_base_fee),
        (0, U256::ZERO)
    );

    let ecotone = build(&ForkSchedule::from_genesis(Fork::Holocene), &config());
    assert_eq!(
        (ecotone.base_fee_scalar, ecotone.blob_base_fee_scalar),
        (1368, 810_949)
    );
    assert_eq!(ecotone.blob_base_fee, U256::from(1u128 << 70));
    assert_eq!(
        (ecotone.operator_fee_scalar, ecotone.overhead),
        (0, B256::ZERO)
    );

    let isthmus = build(&ForkSchedule::from_genesis(Fork::Isthmus), &config());
    assert_eq!(
        (isthmus.operator_fee_scalar, isthmus.operator_fee_constant),
        (20_000, 500)
    );
    assert_eq!(isthmus.da_footprint_gas_scalar, 0);

    let jovian = build(&ForkSchedule::from_genesis(Fork::Jovian), &config());
    assert_eq!(jovian.da_footprint_gas_scalar, 7);
    assert_eq!(
        jovian.origin(),
        BlockId {
            hash: ORIGIN.hash,
            number: 42
        }
    );
    assert_eq!(
        (jovian.sequence_number, jovian.time, jovian.base_fee),
        (3, ORIGIN.time, U256::from(9))
    );
    assert_eq!(jovian.batcher_addr, config().batcher_addr);
    let unset = SystemConfig {
        da_footprint_gas_scalar: 0,
        ..config()
    };
    assert_eq!(
        build(&ForkSchedule::from_genesis(Fork::Jovian), &unset).da_footprint_gas_scalar,
        400
    );
}

#[test]
fn the_transaction_is_a_system_transaction_before_regolith_only() {
    let deposit = |fork| {
        l1_info_tx(
            &ForkSchedule::from_genesis(fork),
            &config(),
            &ORIGIN,
            3,
            100,
            98,
        )
        .unwrap()
    };
    let bedrock = deposit(Fork::Bedrock);
    assert_eq!(
        (bedrock.gas_limit, bedrock.is_system_transaction),
        (150_000_000, true)
    );
    let regolith = deposit(Fork::Regolith);
    assert_eq!(
        (regolith.gas_limit, regolith.is_system_transaction),
        (1_000_000, false)
    );
    assert_eq!(
        (regolith.from, regolith.to),
        (DEPOSITOR, TxKind::Call(L1_BLOCK))
    );
    assert_eq!((regolith.mint, regolith.value), (0, U256::ZERO));
    assert_eq!(regolith.source_hash, l1_info_source_hash(ORIGIN.hash, 3));
}

#[test]
fn an_unknown_fee_scalar_is_an_error_from_ecotone_on() {
    let config = SystemConfig {
        scalar: B256::repeat_byte(2),
        ..config()
    };
    let build = |fork| {
        l1_info_tx(
            &ForkSchedule::from_genesis(fork),
            &config,
            &ORIGIN,
            0,
            100,
            98,
        )
    };
    assert!(build(Fork::Delta).is_ok());
    assert_eq!(
        build(Fork::Ecotone),
        Err(FeeScalarError::Version(config.scalar))
    );
}

#[test]
fn hostile_calldata_are_errors() {
    assert!(matches!(
        L1BlockInfo::decode(&[]),
        Err(L1InfoError::Selector(_))
    ));
    assert!(matches!(
        L1BlockInfo::decode(&[1, 2, 3]),
        Err(L1InfoError::Selector(_))
    ));
    assert!(matches!(
        L1BlockInfo::decode(&[0; 178]),
        Err(L1InfoError::Selector(_))
    ));
    for format in L1InfoFormat::ALL {
        let good = L1BlockInfo::empty(format).encode().to_vec();
        for len in 4..good.len() {
            assert_eq!(
                L1BlockInfo::decode(&good[..len]),
                Err(L1InfoError::Length { format, len })
            );
        }
        let long = [&good[..], &[0]].concat();
        assert_eq!(
            L1BlockInfo::decode(&long),
            Err(L1InfoError::Length {
                format,
                len: long.len()
            })
        );
        let batcher = if format == L1InfoFormat::Bedrock {
            4 + 5 * 32
        } else {
            132
        };
        let mut padded = good.clone();
        padded[batcher] = 1;
        assert!(
            L1BlockInfo::decode(&padded).is_err(),
            "{format:?} with a batcher that is no address"
        );
    }
    let mut wide_number = L1BlockInfo::empty(L1InfoFormat::Bedrock).encode().to_vec();
    wide_number[4] = 1;
    assert_eq!(
        L1BlockInfo::decode(&wide_number),
        Err(AbiError::Padding { index: 0 }.into())
    );
}

#[test]
fn a_block_tells_its_place_above_l1() {
    let genesis = RollupGenesis {
        l1: BlockId {
            hash: B256::repeat_byte(1),
            number: 5,
        },
        l2: block(0, Vec::new()).id(),
        ..Default::default()
    };
    let at_genesis = L2BlockRef::of(&block(0, Vec::new()), &genesis).unwrap();
    assert_eq!(
        (at_genesis.origin, at_genesis.sequence_number),
        (genesis.l1, 0)
    );
    let impostor = Payload::sealed(
        Header {
            gas_limit: 1,
            ..Default::default()
        },
        Vec::new(),
    );
    let wrong = L1InfoError::WrongGenesis {
        got: impostor.hash,
        expected: genesis.l2.hash,
    };
    assert_eq!(L2BlockRef::of(&impostor, &genesis), Err(wrong));

    let deposit = l1_info_tx(
        &ForkSchedule::from_genesis(Fork::Jovian),
        &config(),
        &ORIGIN,
        3,
        100,
        98,
    )
    .unwrap();
    let payload = block(1, vec![raw(deposit)]);
    let place = L2BlockRef::of(&payload, &genesis).unwrap();
    assert_eq!(
        (place.id, place.origin.number, place.sequence_number),
        (payload.id(), 42, 3)
    );

    assert!(matches!(
        L2BlockRef::of(&block(1, Vec::new()), &genesis),
        Err(L1InfoError::Empty(_))
    ));
    let not_deposit = block(1, vec![Bytes::from_static(&[2, 0xc0])]);
    assert!(matches!(
        L2BlockRef::of(&not_deposit, &genesis),
        Err(L1InfoError::NotAttributes(_))
    ));
    let other_deposit = block(1, vec![raw(TxDeposit::default())]);
    assert!(matches!(
        L2BlockRef::of(&other_deposit, &genesis),
        Err(L1InfoError::Selector(_))
    ));
}

proptest! {
    #[test]
    fn attributes_survive_their_calldata(
        format in prop::sample::select(&L1InfoFormat::ALL[..]), words: [[u8; 32]; 4], batcher: [u8; 20],
        longs: [u64; 4], ints: [u32; 3], gas_scalar: u16,
    ) {
        let since = |fork| format >= fork;
        let blob = since(L1InfoFormat::Ecotone);
        let info = L1BlockInfo {
            format,
            number: longs[0],
            time: longs[1],
            base_fee: U256::from_be_bytes(words[0]),
            hash: words[1].into(),
            sequence_number: longs[2],
            batcher_addr: batcher.into(),
            overhead: if blob { B256::ZERO } else { words[2].into() },
            scalar: if blob { B256::ZERO } else { words[3].into() },
            base_fee_scalar: if blob { ints[0] } else { 0 },
            blob_base_fee_scalar: if blob { ints[1] } else { 0 },
            blob_base_fee: if blob { U256::from_be_bytes(words[2]) } else { U256::ZERO },
            operator_fee_scalar: if since(L1InfoFormat::Isthmus) { ints[2] } else { 0 },
            operator_fee_constant: if since(L1InfoFormat::Isthmus) { longs[3] } else { 0 },
            da_footprint_gas_scalar: if since(L1InfoFormat::Jovian) { gas_scalar } else { 0 },
        };
        let calldata = info.encode();
        prop_assert_eq!(calldata.len(), format.len());
        prop_assert_eq!(L1BlockInfo::decode(&calldata), Ok(info));
    }

    #[test]
    fn any_calldata_are_read_without_panic(
        format in prop::sample::select(&L1InfoFormat::ALL[..]), rest in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let _ = L1BlockInfo::decode(&rest);
        let mut sized = [&format.selector()[..], &rest].concat();
        sized.resize(format.len(), 0xff);
        let _ = L1BlockInfo::decode(&sized);
    }
}
