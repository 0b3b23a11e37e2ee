use super::*;
use crate::{
    config::RollupGenesis,
    fork::ForkSchedule,
    l1info::{L1Origin, l1_info_tx},
    payload::BlockId,
};
use alloy_consensus::Header;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, Bytes, LogData, keccak256};
use op_alloy_consensus::OpTxEnvelope;
use proptest::prelude::*;

const CONTRACT: Address = Address::repeat_byte(0x5c);

fn word(value: u128) -> B256 {
    U256::from(value).into()
}

/// A `ConfigUpdate` log with these values.
fn update(kind: u8, values: &[B256]) -> Log {
    let head = [word(32), word(values.len() as u128 * 32)];
    log(
        vec![CONFIG_UPDATE_EVENT, B256::ZERO, B256::with_last_byte(kind)],
        [&head, values].concat().concat(),
    )
}

fn log(topics: Vec<B256>, data: Vec<u8>) -> Log {
    Log {
        address: CONTRACT,
        data: LogData::new_unchecked(topics, data.into()),
    }
}

fn config() -> SystemConfig {
    SystemConfig {
        batcher_addr: Address::repeat_byte(1),
        overhead: word(188),
        scalar: word(684_000),
        gas_limit: 30_000_000,
        ..Default::default()
    }
}

/// Applies a log to [`config`], and checks that an error leaves the configuration unchanged.
fn apply(log: &Log, ecotone: bool) -> Result<SystemConfig, ConfigUpdateError> {
    let mut changed = config();
    match changed.apply_log(log, ecotone) {
        Ok(()) => Ok(changed),
        Err(error) => {
            assert_eq!(changed, config(), "{error}");
            Err(error)
        }
    }
}

#[test]
fn the_event_is_what_solidity_hashes() {
    assert_eq!(
        CONFIG_UPDATE_EVENT,
        keccak256("ConfigUpdate(uint256,uint8,bytes)")
    );
}

#[test]
fn every_type_changes_its_own_parameter() {
    let changed = |kind, values: &[B256]| apply(&update(kind, values), true).unwrap();
    let address = Address::repeat_byte(9);
    assert_eq!(
        changed(0, &[address.into_word()]),
        SystemConfig {
            batcher_addr: address,
            ..config()
        }
    );
    assert_eq!(
        changed(2, &[word(7)]),
        SystemConfig {
            gas_limit: 7,
            ..config()
        }
    );
    assert_eq!(
        changed(3, &[address.into_word()]),
        config(),
        "the unsafe signer is not derived"
    );
    let eip1559 = Eip1559Params {
        denominator: 250,
        elasticity: 6,
    };
    assert_eq!(
        changed(4, &[word(250 << 32 | 6)]),
        SystemConfig {
            eip1559,
            ..config()
        }
    );
    let operator_fee = SystemConfig {
        operator_fee_scalar: 5,
        operator_fee_constant: 6,
        ..config()
    };
    assert_eq!(changed(5, &[word(5 << 64 | 6)]), operator_fee);
    assert_eq!(
        changed(6, &[word(8)]),
        SystemConfig {
            min_base_fee: 8,
            ..config()
        }
    );
    assert_eq!(
        changed(7, &[word(9)]),
        SystemConfig {
            da_footprint_gas_scalar: 9,
            ..config()
        }
    );
}

#[test]
fn fee_scalars_follow_ecotone() {
    let version_1 = FeeScalars {
        base_fee: 1,
        blob_base_fee: 2,
    }
    .encode();
    let log = update(1, &[word(5), version_1]);
    let before = apply(&log, false).unwrap();
    assert_eq!((before.overhead, before.scalar), (word(5), version_1));
    let after = apply(&log, true).unwrap();
    assert_eq!(
        (after.overhead, after.scalar),
        (B256::ZERO, version_1),
        "the overhead ends with Ecotone"
    );
}

/// A scalar of this version with one byte set.
fn scalar_with(version: u8, byte: usize) -> B256 {
    let mut scalar = B256::with_last_byte(9);
    scalar[byte] = 0xff;
    scalar[0] = version;
    scalar
}

/// From Ecotone on an update keeps the old scalars unless the new word has one of the two defined
/// forms (op-node: CheckEcotoneL1SystemConfigScalar). Before Ecotone every word is taken.
#[test]
fn an_update_with_an_undefined_fee_scalar_is_ignored_from_ecotone_on() {
    let in_words = |version: u8, padding: std::ops::Range<usize>| {
        let undefined = padding.clone().map(move |byte| scalar_with(version, byte));
        let defined = (padding.end..32).map(move |byte| scalar_with(version, byte));
        (undefined, defined)
    };
    let (wide, narrow) = in_words(0, 1..28);
    let (padded, packed) = in_words(1, 1..24);
    let unknown = (2..=255).map(|version| scalar_with(version, 31));
    let two_to_the_32 = std::iter::once(word(1 << 32));
    for scalar in wide.chain(padded).chain(unknown).chain(two_to_the_32) {
        let update = update(1, &[word(5), scalar]);
        let refused = apply(&update, true);
        assert!(
            matches!(refused, Err(ConfigUpdateError::FeeScalar(_))),
            "{scalar}: {refused:?}"
        );
        assert_eq!(
            apply(&update, false).map(|config| config.scalar),
            Ok(scalar)
        );
    }
    for scalar in narrow.chain(packed) {
        let changed = apply(&update(1, &[word(5), scalar]), true);
        let expected = SystemConfig {
            overhead: B256::ZERO,
            scalar,
            ..config()
        };
        assert_eq!(changed, Ok(expected));
    }
}

#[test]
fn every_rule_about_topics_holds() {
    let data = update(2, &[word(7)]).data.data.to_vec();
    let with = |topics: &[B256]| apply(&log(topics.to_vec(), data.clone()), true);
    let (zero, two) = (B256::ZERO, B256::with_last_byte(2));
    assert!(with(&[CONFIG_UPDATE_EVENT, zero, two]).is_ok());
    assert_eq!(
        with(&[CONFIG_UPDATE_EVENT, zero]),
        Err(ConfigUpdateError::Topics(2))
    );
    assert_eq!(
        with(&[CONFIG_UPDATE_EVENT, zero, two, zero]),
        Err(ConfigUpdateError::Topics(4))
    );
    assert_eq!(with(&[two, zero, two]), Err(ConfigUpdateError::Event));
    assert_eq!(
        with(&[CONFIG_UPDATE_EVENT, two, two]),
        Err(ConfigUpdateError::Version(two))
    );
    for unknown in [B256::with_last_byte(8), B256::repeat_byte(2)] {
        assert_eq!(
            with(&[CONFIG_UPDATE_EVENT, zero, unknown]),
            Err(ConfigUpdateError::Type(unknown))
        );
    }
}

#[test]
fn every_rule_about_lengths_and_offsets_holds() {
    for (kind, values) in [(0, 1), (1, 2), (2, 1), (4, 1), (5, 1), (6, 1), (7, 1)] {
        let good = update(kind, &vec![B256::ZERO; values]);
        assert!(apply(&good, true).is_ok(), "type {kind}");
        let with = |edit: fn(&mut Vec<u8>)| {
            let mut data = good.data.data.to_vec();
            edit(&mut data);
            apply(&log(good.topics().to_vec(), data), true)
        };
        let expected = values * 32;
        let length = |claimed: usize| {
            Err(ConfigUpdateError::Length {
                claimed: U256::from(claimed),
                expected,
            })
        };
        assert_eq!(
            with(|data| data[31] = 33),
            Err(ConfigUpdateError::Offset(U256::from(33)))
        );
        assert_eq!(with(|data| data[63] += 1), length(expected + 1));
        assert_eq!(with(|data| data[63] += 32), length(expected + 32));
        assert_eq!(
            with(|data| data.push(0)),
            Err(ConfigUpdateError::Trailing(1))
        );
        for cut in [1, 32] {
            let short = good.data.data.len() - cut;
            let cut = apply(
                &log(good.topics().to_vec(), good.data.data[..short].to_vec()),
                true,
            );
            assert!(matches!(
                cut,
                Err(ConfigUpdateError::Abi(AbiError::Short { .. }))
            ));
        }
        assert!(matches!(
            with(|data| data.clear()),
            Err(ConfigUpdateError::Abi(_))
        ));
    }
}

#[test]
fn every_rule_about_values_holds() {
    for kind in [0, 2, 6, 7] {
        let wide = apply(&update(kind, &[B256::repeat_byte(0xff)]), true);
        assert_eq!(
            wide,
            Err(AbiError::Padding { index: 2 }.into()),
            "type {kind}"
        );
    }
    for half in [250 << 32, 6] {
        assert!(matches!(
            apply(&update(4, &[word(half)]), true),
            Err(ConfigUpdateError::Eip1559(_))
        ));
    }
    assert!(
        apply(&update(4, &[B256::ZERO]), true).is_ok(),
        "both zero means the chain's constants"
    );
}

fn rollup() -> RollupConfig {
    RollupConfig {
        genesis: RollupGenesis {
            l2: BlockId {
                hash: B256::repeat_byte(2),
                number: 0,
            },
            system_config: config(),
            ..Default::default()
        },
        block_time: 2,
        forks: ForkSchedule::from_genesis(Fork::Jovian),
        l1_system_config_address: CONTRACT,
        ..Default::default()
    }
}

#[test]
fn a_block_applies_its_good_updates_around_the_bad_ones() {
    let elsewhere = Log {
        address: Address::ZERO,
        ..update(2, &[word(1)])
    };
    let other_event = log(vec![B256::ZERO], Vec::new());
    let logs = [
        update(2, &[word(8)]),
        update(9, &[word(1)]),
        update(6, &[word(4)]),
        elsewhere,
        other_event,
    ];
    let failed = [update(2, &[word(99)])];
    let mut config = config();
    let errors = config.apply_receipts([(true, &logs[..]), (false, &failed[..])], &rollup(), 0);
    assert_eq!((config.gas_limit, config.min_base_fee), (8, 4));
    assert_eq!(errors, [ConfigUpdateError::Type(B256::with_last_byte(9))]);
}

#[test]
fn ecotone_is_decided_by_the_time_of_the_l1_block() {
    let logs = [update(1, &[word(5), FeeScalars::default().encode()])];
    let mut rollup = rollup();
    rollup.forks = ForkSchedule::from_genesis(Fork::Ecotone).with(Fork::Ecotone, Some(100));
    for (l1_time, overhead) in [(99, word(5)), (100, B256::ZERO)] {
        let mut config = config();
        config.apply_receipts([(true, &logs[..])], &rollup, l1_time);
        assert_eq!(config.overhead, overhead);
    }
}

#[test]
fn every_form_of_the_fee_scalar_is_read() {
    let read = |scalar| {
        let config = SystemConfig { scalar, ..config() };
        (config.fee_scalars(), FeeScalars::decode(scalar))
    };
    let scalars = |base_fee, blob_base_fee| {
        Ok(FeeScalars {
            base_fee,
            blob_base_fee,
        })
    };
    assert_eq!(
        read(word(684_000)),
        (scalars(684_000, 0), scalars(684_000, 0))
    );
    let wide = word(1 << 32);
    assert_eq!(
        read(wide),
        (scalars(u32::MAX, 0), Err(FeeScalarError::Wide(wide))),
        "a word that was set before Ecotone saturates"
    );
    let version_1 = FeeScalars {
        base_fee: 3,
        blob_base_fee: 4,
    }
    .encode();
    assert_eq!(read(version_1), (scalars(3, 4), scalars(3, 4)));
    let padded = scalar_with(1, 23);
    let error = FeeScalarError::Padding(padded);
    assert_eq!(read(padded), (Err(error), Err(error)));
    let unknown = B256::repeat_byte(2);
    let error = FeeScalarError::Version(unknown);
    assert_eq!(read(unknown), (Err(error), Err(error)));
}

/// A block at `time` built with `config`.
fn block(rollup: &RollupConfig, config: &SystemConfig, time: u64, extra_data: Vec<u8>) -> Payload {
    let deposit = l1_info_tx(
        &rollup.forks,
        config,
        &L1Origin::default(),
        0,
        time,
        time - rollup.block_time,
    )
    .unwrap();
    let header = Header {
        number: 1,
        timestamp: time,
        gas_limit: config.gas_limit,
        extra_data: extra_data.into(),
        ..Default::default()
    };
    Payload::sealed(
        header,
        vec![OpTxEnvelope::from(deposit).encoded_2718().into()],
    )
}

/// Extra data of Jovian: denominator 250, elasticity 6, minimum base fee 11.
const JOVIAN_EXTRA: [u8; 17] = [1, 0, 0, 0, 250, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 11];

#[test]
fn a_block_tells_the_configuration_it_was_built_with() {
    let built = SystemConfig {
        overhead: B256::ZERO,
        scalar: FeeScalars {
            base_fee: 5,
            blob_base_fee: 6,
        }
        .encode(),
        eip1559: Eip1559Params {
            denominator: 250,
            elasticity: 6,
        },
        operator_fee_scalar: 7,
        operator_fee_constant: 8,
        min_base_fee: 11,
        da_footprint_gas_scalar: 9,
        ..config()
    };
    let mut rollup = rollup();
    assert_eq!(
        SystemConfig::of(&block(&rollup, &built, 100, JOVIAN_EXTRA.to_vec()), &rollup),
        Ok(built.clone())
    );

    rollup.forks = ForkSchedule::from_genesis(Fork::Holocene);
    let mut extra = JOVIAN_EXTRA[..9].to_vec();
    extra[0] = 0;
    let holocene = SystemConfig {
        operator_fee_scalar: 0,
        operator_fee_constant: 0,
        min_base_fee: 0,
        da_footprint_gas_scalar: 0,
        ..built.clone()
    };
    assert_eq!(
        SystemConfig::of(&block(&rollup, &built, 100, extra), &rollup),
        Ok(holocene)
    );

    rollup.forks = ForkSchedule::from_genesis(Fork::Delta);
    let bedrock = SystemConfig {
        eip1559: Eip1559Params::default(),
        ..config()
    };
    assert_eq!(
        SystemConfig::of(&block(&rollup, &config(), 100, Vec::new()), &rollup),
        Ok(bedrock)
    );
}

#[test]
fn a_version_0_scalar_comes_back_as_version_1_from_ecotone_on() {
    let mut rollup = rollup();
    rollup.forks = ForkSchedule::from_genesis(Fork::Ecotone);
    let read = SystemConfig::of(&block(&rollup, &config(), 100, Vec::new()), &rollup).unwrap();
    assert_eq!(
        read.scalar,
        FeeScalars {
            base_fee: 684_000,
            blob_base_fee: 0
        }
        .encode()
    );
    assert_eq!(read.overhead, B256::ZERO);
}

#[test]
fn genesis_has_the_configured_configuration_and_no_other() {
    let genesis = Payload::sealed(Header::default(), Vec::new());
    let mut rollup = rollup();
    let wrong = SystemConfigError::WrongGenesis {
        got: genesis.hash,
        expected: rollup.genesis.l2.hash,
    };
    assert_eq!(SystemConfig::of(&genesis, &rollup), Err(wrong));
    rollup.genesis.l2.hash = genesis.hash;
    assert_eq!(SystemConfig::of(&genesis, &rollup), Ok(config()));
}

#[test]
fn wrong_extra_data_and_missing_attributes_are_errors() {
    let rollup = rollup();
    for extra in [
        Vec::new(),
        JOVIAN_EXTRA[..9].to_vec(),
        vec![0; 17],
        vec![1; 18],
    ] {
        let read = SystemConfig::of(&block(&rollup, &config(), 100, extra), &rollup);
        assert!(
            matches!(read, Err(SystemConfigError::ExtraData { .. })),
            "{read:?}"
        );
    }
    let empty = Payload::sealed(
        Header {
            number: 1,
            ..Default::default()
        },
        vec![Bytes::new()],
    );
    assert!(matches!(
        SystemConfig::of(&empty, &rollup),
        Err(SystemConfigError::L1Info(_))
    ));
}

#[test]
fn the_gas_of_the_karst_upgrade_leaves_with_its_block_unless_kept() {
    let mut rollup = rollup();
    rollup.forks = ForkSchedule::from_genesis(Fork::Karst).with(Fork::Karst, Some(100));
    let raised = SystemConfig {
        gas_limit: 30_000_000 + KARST_UPGRADE_GAS,
        ..config()
    };
    let read = |rollup: &RollupConfig, time| {
        SystemConfig::of(&block(rollup, &raised, time, JOVIAN_EXTRA.to_vec()), rollup)
            .unwrap()
            .gas_limit
    };
    assert_eq!(read(&rollup, 100), 30_000_000);
    assert_eq!(
        read(&rollup, 102),
        raised.gas_limit,
        "only the activation block was raised"
    );
    rollup.keep_karst_upgrade_gas = true;
    assert_eq!(read(&rollup, 100), raised.gas_limit);
}

proptest! {
    #[test]
    fn a_configuration_survives_json(
        batcher: [u8; 20], words: [[u8; 32]; 2], longs: [u64; 3], ints: [u32; 3], gas_scalar: u16,
    ) {
        let config = SystemConfig {
            batcher_addr: batcher.into(),
            overhead: words[0].into(),
            scalar: words[1].into(),
            gas_limit: longs[0],
            eip1559: Eip1559Params { denominator: ints[0], elasticity: ints[1] },
            operator_fee_scalar: ints[2],
            operator_fee_constant: longs[1],
            min_base_fee: longs[2],
            da_footprint_gas_scalar: gas_scalar,
        };
        let json = serde_json::to_string(&config).unwrap();
        prop_assert_eq!(serde_json::from_str::<SystemConfig>(&json).unwrap(), config);
    }

    #[test]
    fn scalars_survive_their_packing(base_fee: u32, blob_base_fee: u32) {
        let scalars = FeeScalars { base_fee, blob_base_fee };
        prop_assert_eq!(FeeScalars::decode(scalars.encode()), Ok(scalars));
    }

    #[test]
    fn eip1559_parameters_survive_their_packing(denominator: u32, elasticity: u32) {
        let params = Eip1559Params { denominator, elasticity };
        prop_assert_eq!(Eip1559Params::decode(params.encode()), params);
    }

    #[test]
    fn any_update_is_read_without_panic(kind in 0u8..10, data in prop::collection::vec(any::<u8>(), 0..200)) {
        let topics = vec![CONFIG_UPDATE_EVENT, B256::ZERO, B256::with_last_byte(kind)];
        let _ = config().apply_log(&log(topics, data), true);
    }
}
