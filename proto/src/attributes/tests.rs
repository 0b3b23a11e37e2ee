//! Tests of attributes against a real activation block, and of their changes from block to block.

use super::*;
use crate::{
    config::RollupGenesis,
    config_update::CONFIG_UPDATE_EVENT,
    deposit::deposit_to_log,
    l1info::{L1BlockInfo, L1InfoFormat},
    payload::decode_transaction,
    system_config::Eip1559Params,
};
use alloy_consensus::Header;
use alloy_primitives::{LogData, U256};
use op_alloy_consensus::OpTxEnvelope;

const CONTRACT: Address = Address::repeat_byte(0xdd);
const SYSTEM_CONFIG: Address = Address::repeat_byte(0x5c);

fn schedule() -> BlobSchedule {
    BlobSchedule::new(vec![
        (0, BlobSchedule::CANCUN),
        (1_000, BlobSchedule::PRAGUE),
    ])
}

fn l1(number: u64, time: u64) -> L1Block {
    L1Block {
        number,
        hash: B256::with_last_byte(number as u8),
        parent_hash: B256::with_last_byte(number as u8 - 1),
        time,
        base_fee: 7,
        mix_hash: B256::repeat_byte(0x3d),
        excess_blob_gas: Some(10 << 20),
        parent_beacon_root: Some(B256::repeat_byte(0xbe)),
        receipts_root: B256::ZERO,
        state_root: B256::ZERO,
    }
}

/// A chain with all forks up to `last` and two-second blocks. Genesis is at time 100, on L1 block
/// 10.
fn chain(last: Fork) -> (RollupConfig, Payload) {
    let genesis = Payload::sealed(
        Header {
            timestamp: 100,
            gas_limit: 30_000_000,
            ..Default::default()
        },
        vec![],
    );
    let system_config = SystemConfig {
        batcher_addr: Address::repeat_byte(0xba),
        scalar: crate::system_config::FeeScalars {
            base_fee: 5,
            blob_base_fee: 6,
        }
        .encode(),
        gas_limit: 30_000_000,
        ..Default::default()
    };
    let rollup = RollupConfig {
        genesis: RollupGenesis {
            l1: l1(10, 95).id(),
            l2: genesis.id(),
            l2_time: 100,
            system_config,
        },
        block_time: 2,
        forks: ForkSchedule::from_genesis(last),
        deposit_contract_address: CONTRACT,
        l1_system_config_address: SYSTEM_CONFIG,
        ..Default::default()
    };
    (rollup, genesis)
}

/// The block with these attributes. Only the fields that the next attributes depend on are filled
/// in.
fn block(parent: &Payload, attributes: &OpPayloadAttributes) -> Payload {
    let mut extra_data = vec![1];
    extra_data.extend(attributes.eip_1559_params.unwrap_or_default());
    extra_data.extend(attributes.min_base_fee.unwrap_or_default().to_be_bytes());
    if extra_data[1..9] == [0; 8] {
        extra_data[1..9].copy_from_slice(&[0, 0, 0, 250, 0, 0, 0, 6]);
    }
    let header = Header {
        parent_hash: parent.hash,
        number: parent.number() + 1,
        timestamp: attributes.payload_attributes.timestamp,
        gas_limit: attributes.gas_limit.unwrap(),
        extra_data: extra_data.into(),
        ..Default::default()
    };
    Payload::sealed(header, attributes.transactions.clone().unwrap())
}

fn info(attributes: &OpPayloadAttributes) -> L1BlockInfo {
    match decode_transaction(&attributes.transactions.as_ref().unwrap()[0]).unwrap() {
        OpTxEnvelope::Deposit(deposit) => L1BlockInfo::decode(&deposit.input).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// With an excess as after hours of full blocks, the blob base fee differs by orders of magnitude
/// between schedules.
#[test]
fn the_l1_attributes_carry_the_blob_base_fee_of_the_l1s_schedule() {
    let config = r#"{"chainId": 900, "cancunTime": 0, "pragueTime": 100, "osakaTime": 200, "bpo1Time": 300, "bpo2Time": 400,
        "blobSchedule": {
            "cancun": {"target": 3, "max": 6, "baseFeeUpdateFraction": 3338477},
            "prague": {"target": 6, "max": 9, "baseFeeUpdateFraction": 5007716},
            "osaka": {"target": 6, "max": 9, "baseFeeUpdateFraction": 5007716},
            "bpo1": {"target": 10, "max": 15, "baseFeeUpdateFraction": 8346193},
            "bpo2": {"target": 14, "max": 21, "baseFeeUpdateFraction": 11684671}}}"#;
    let schedule = crate::l1_config::L1ChainConfig::from_json(config)
        .unwrap()
        .blobs;
    let (mut rollup, parent) = chain(Fork::Jovian);
    rollup.block_time = 1_000;
    for (time, fee) in [
        (99, 3_194_333),
        (100, 21_689),
        (299, 21_689),
        (300, 399),
        (399, 399),
        (400, 72),
    ] {
        let origin = L1Block {
            excess_blob_gas: Some(50_000_000),
            ..l1(10, time)
        };
        let built = attributes(&rollup, &schedule, &parent, &origin, None)
            .unwrap()
            .attributes;
        assert_eq!(info(&built).blob_base_fee, U256::from(fee), "at {time}");
    }
}

#[test]
fn the_blob_fee_is_that_of_eip_4844_and_never_overflows() {
    for (excess, fee) in [(0, 1), (2_314_057, 1), (2_314_058, 2), (10 << 20, 23)] {
        assert_eq!(fake_exponential(excess, BlobSchedule::CANCUN), Some(fee));
    }
    assert_eq!(fake_exponential(u64::MAX, 1), None);
    let block = L1Block {
        excess_blob_gas: Some(u64::MAX),
        ..l1(10, 0)
    };
    assert_eq!(block.blob_base_fee(&schedule(), None), None);
    assert_eq!(
        L1Block {
            excess_blob_gas: None,
            ..block
        }
        .blob_base_fee(&schedule(), None),
        Some(1)
    );
    // For the same excess, Prague lowers the fee unless the rollup keeps Cancun's fraction.
    let late = l1(10, 2_000);
    assert_eq!(late.blob_base_fee(&schedule(), None), Some(8));
    assert_eq!(late.blob_base_fee(&schedule(), Some(2_001)), Some(23));
    assert_eq!(late.blob_base_fee(&schedule(), Some(2_000)), Some(8));
}

#[test]
fn blocks_of_an_epoch_count_and_take_their_values_from_origin_and_parent() {
    let (rollup, genesis) = chain(Fork::Jovian);
    let first = attributes(&rollup, &schedule(), &genesis, &l1(10, 95), None)
        .unwrap()
        .attributes;
    assert_eq!(info(&first).sequence_number, 1);
    assert_eq!(info(&first).format, L1InfoFormat::Jovian);
    assert_eq!(info(&first).blob_base_fee, U256::from(23));
    assert_eq!(first.transactions.as_ref().unwrap().len(), 1);
    assert_eq!(first.payload_attributes.timestamp, 102);
    assert_eq!(
        first.payload_attributes.prev_randao,
        B256::repeat_byte(0x3d)
    );
    assert_eq!(
        first.payload_attributes.suggested_fee_recipient,
        FEE_RECIPIENT
    );
    assert_eq!(
        first.payload_attributes.parent_beacon_block_root,
        Some(B256::repeat_byte(0xbe))
    );
    assert_eq!(first.payload_attributes.withdrawals, Some(vec![]));
    assert_eq!(
        (first.gas_limit, first.min_base_fee, first.no_tx_pool),
        (Some(30_000_000), Some(0), None)
    );
    assert_eq!(first.eip_1559_params, Some(Default::default()));
}

/// Receipts of an L1 block: a failed transaction, and two successful ones with deposits (one of
/// another contract) and configuration updates (one of an unknown type).
fn deposits_and_updates() -> Vec<ReceiptLogs> {
    let deposit = |contract, gas_limit| {
        let deposit = TxDeposit {
            from: CONTRACT,
            to: CONTRACT.into(),
            gas_limit,
            ..Default::default()
        };
        deposit_to_log(contract, &deposit)
    };
    let update = |kind: u64, value: u64| Log {
        address: SYSTEM_CONFIG,
        data: LogData::new_unchecked(
            vec![CONFIG_UPDATE_EVENT, B256::ZERO, U256::from(kind).into()],
            [U256::from(32), U256::from(32), U256::from(value)]
                .map(|w| w.to_be_bytes::<32>())
                .concat()
                .into(),
        ),
    };
    vec![
        (false, vec![deposit(CONTRACT, 1)]),
        (
            true,
            vec![deposit(CONTRACT, 2), update(2, 40_000_000), update(99, 0)],
        ),
        (
            true,
            vec![
                deposit(SYSTEM_CONFIG, 3),
                deposit(CONTRACT, 4),
                update(4, 9 << 32 | 8),
            ],
        ),
    ]
}

#[test]
fn the_first_block_of_an_epoch_brings_deposits_and_configuration_that_the_next_inherits() {
    let (rollup, genesis) = chain(Fork::Jovian);
    let first = attributes(&rollup, &schedule(), &genesis, &l1(10, 95), None)
        .unwrap()
        .attributes;
    let parent = block(&genesis, &first);
    let receipts = deposits_and_updates();
    let derived = attributes(&rollup, &schedule(), &parent, &l1(11, 104), Some(&receipts)).unwrap();
    let next = derived.attributes;
    assert_eq!(derived.ignored.len(), 1);
    assert_eq!(info(&next).sequence_number, 0);
    assert_eq!(info(&next).number, 11);
    assert_eq!(next.gas_limit, Some(40_000_000));
    assert_eq!(
        next.eip_1559_params,
        Some(
            Eip1559Params {
                denominator: 9,
                elasticity: 8
            }
            .encode()
        )
    );
    let gas: Vec<_> = next.transactions.as_ref().unwrap()[1..]
        .iter()
        .map(|tx| match decode_transaction(tx).unwrap() {
            OpTxEnvelope::Deposit(deposit) => deposit.gas_limit,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(gas, [2, 4]);

    // The next block takes its configuration from its parent, not from L1.
    let parent = block(&parent, &next);
    let after = attributes(&rollup, &schedule(), &parent, &l1(11, 104), None)
        .unwrap()
        .attributes;
    assert_eq!(
        (after.gas_limit, info(&after).sequence_number),
        (Some(40_000_000), 1)
    );
}

#[test]
fn wrong_origins_are_refused() {
    let (rollup, genesis) = chain(Fork::Jovian);
    let build = |origin: L1Block| {
        attributes(&rollup, &schedule(), &genesis, &origin, Some(&[])).map(|_| ())
    };
    assert!(matches!(
        build(l1(12, 100)),
        Err(AttributesError::Origin { .. })
    ));
    assert!(matches!(
        build(L1Block {
            hash: B256::ZERO,
            ..l1(10, 95)
        }),
        Err(AttributesError::Origin { .. })
    ));
    assert!(matches!(
        build(L1Block {
            parent_hash: B256::ZERO,
            ..l1(11, 95)
        }),
        Err(AttributesError::Origin { .. })
    ));
    assert!(matches!(
        build(l1(11, 103)),
        Err(AttributesError::Time { .. })
    ));
    assert!(build(l1(11, 102)).is_ok());
    assert!(matches!(
        build(L1Block {
            excess_blob_gas: Some(u64::MAX),
            ..l1(11, 102)
        }),
        Err(AttributesError::BlobBaseFee(_))
    ));
    let missing = attributes(&rollup, &schedule(), &genesis, &l1(11, 102), None);
    assert!(matches!(missing, Err(AttributesError::NoReceipts)));
    let bad_deposit = Log {
        address: CONTRACT,
        data: LogData::new_unchecked(vec![crate::deposit::DEPOSIT_EVENT], Bytes::new()),
    };
    let critical = attributes(
        &rollup,
        &schedule(),
        &genesis,
        &l1(11, 102),
        Some(&[(true, vec![bad_deposit])]),
    );
    assert!(matches!(critical, Err(AttributesError::Deposit(_))));
}

#[test]
fn old_forks_leave_out_what_came_later() {
    let (rollup, genesis) = chain(Fork::Regolith);
    let got = attributes(&rollup, &schedule(), &genesis, &l1(10, 95), None)
        .unwrap()
        .attributes;
    assert_eq!(info(&got).format, L1InfoFormat::Bedrock);
    assert_eq!(got.payload_attributes.withdrawals, None);
    assert_eq!(got.payload_attributes.parent_beacon_block_root, None);
    assert_eq!((got.eip_1559_params, got.min_base_fee), (None, None));
}

#[test]
fn every_fork_activates_with_its_transactions_after_the_deposits() {
    for (fork, count) in [
        (Fork::Ecotone, 6),
        (Fork::Fjord, 3),
        (Fork::Granite, 0),
        (Fork::Isthmus, 8),
        (Fork::Jovian, 5),
        (Fork::Karst, 31),
    ] {
        let before = Fork::ALL[fork as usize - 1];
        let (mut rollup, genesis) = chain(before);
        rollup.forks = rollup.forks.with(fork, Some(102));
        let got = attributes(&rollup, &schedule(), &genesis, &l1(10, 95), None)
            .unwrap()
            .attributes;
        assert_eq!(
            got.transactions.as_ref().unwrap().len(),
            1 + count,
            "{fork:?}"
        );
        assert_eq!(is_upgrade_block(&rollup.forks, 100, 102), count > 0);
        assert!(!is_upgrade_block(&rollup.forks, 102, 104));
        let upgrade_gas = if fork == Fork::Karst {
            KARST_UPGRADE_GAS
        } else {
            0
        };
        assert_eq!(got.gas_limit, Some(30_000_000 + upgrade_gas), "{fork:?}");
        let next = attributes(
            &rollup,
            &schedule(),
            &block(&genesis, &got),
            &l1(10, 95),
            None,
        );
        if fork >= Fork::Jovian {
            assert_eq!(
                next.unwrap().attributes.gas_limit,
                Some(30_000_000),
                "{fork:?}"
            );
        }
    }
}

/// The block that activated Jovian on Celo Sepolia.
#[test]
fn a_real_activation_block_is_reproduced() {
    let name =
        "exec-blocks/celo-sepolia/sepolia-post-jovian-basefee-change_block-20465049.json.zst";
    let Some(path) = starling_testkit::fixture(name) else {
        return;
    };
    let file = std::fs::File::open(path).unwrap();
    #[derive(serde::Deserialize)]
    struct Fixture {
        parent_header: Header,
        executing_payload: OpPayloadAttributes,
    }
    let fixture: Fixture = serde_json::from_reader(zstd::Decoder::new(file).unwrap()).unwrap();
    // The fixture omits the empty list of withdrawals.
    let mut expected = fixture.executing_payload;
    expected.payload_attributes.withdrawals = Some(vec![]);
    let told = info(&expected);
    assert_eq!(told.format, L1InfoFormat::Isthmus);

    // The parent's transactions are not published. Its L1 attributes differ only in the sequence
    // number.
    let (mut rollup, _) = chain(Fork::Isthmus);
    rollup.block_time = 1;
    rollup.forks = rollup.forks.with(Fork::Jovian, Some(1_773_749_037));
    let before = L1BlockInfo {
        sequence_number: told.sequence_number - 1,
        ..told.clone()
    };
    let parent_info = TxDeposit {
        input: before.encode(),
        ..Default::default()
    };
    let parent = Payload::sealed(fixture.parent_header, vec![encode(&parent_info)]);

    let schedule = BlobSchedule::of_chain(11_155_111).unwrap();
    let origin = L1Block {
        mix_hash: expected.payload_attributes.prev_randao,
        parent_beacon_root: expected.payload_attributes.parent_beacon_block_root,
        ..origin_of(&told, &schedule)
    };
    let got = attributes(&rollup, &schedule, &parent, &origin, None)
        .unwrap()
        .attributes;
    assert_eq!(got.payload_attributes, expected.payload_attributes);
    assert!(
        OpPayloadAttributes {
            no_tx_pool: expected.no_tx_pool,
            ..got
        } == expected
    );
}

/// An L1 block as described by these L1 attributes, with an excess blob gas that results in their
/// fee.
fn origin_of(info: &L1BlockInfo, schedule: &BlobSchedule) -> L1Block {
    let with_excess = |excess| L1Block {
        number: info.number,
        hash: info.hash,
        time: info.time,
        base_fee: info.base_fee.to(),
        excess_blob_gas: Some(excess),
        ..Default::default()
    };
    let fee = Some(info.blob_base_fee.to());
    (0..10_000)
        .map(|blobs| with_excess(blobs * 131_072))
        .find(|block| block.blob_base_fee(schedule, None) == fee)
        .unwrap_or_else(|| panic!("no excess for a fee of {}", info.blob_base_fee))
}
