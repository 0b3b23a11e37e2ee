use super::*;
use alloy_eips::{eip4844::DATA_GAS_PER_BLOB, eip7685::EMPTY_REQUESTS_HASH};
use alloy_primitives::{B64, Bytes, U256, bytes};
use alloy_trie::EMPTY_ROOT_HASH;
use starling_proto::system_config::Eip1559Params;

const TIME: u64 = 1_000;

/// An OP chain with every fork up to `last` at genesis.
fn op(last: Fork) -> ChainSpec {
    scheduled(ForkSchedule::from_genesis(last))
}

fn scheduled(forks: ForkSchedule) -> ChainSpec {
    let eip1559 = Eip1559Constants {
        elasticity: 6,
        denominator: 50,
        denominator_canyon: 250,
    };
    ChainSpec {
        chain_id: 10,
        genesis_hash: B256::ZERO,
        genesis_time: 0,
        rules: Rules::Optimism { forks, eip1559 },
    }
}

fn ethereum(forks: EthereumSchedule) -> ChainSpec {
    ChainSpec {
        chain_id: 1,
        genesis_hash: B256::ZERO,
        genesis_time: 0,
        rules: Rules::Ethereum {
            forks,
            blobs: Default::default(),
            deposit_contract: Default::default(),
            before_merge: None,
        },
    }
}

fn cancun() -> EthereumSchedule {
    EthereumSchedule {
        shanghai: Some(0),
        cancun: Some(0),
        ..Default::default()
    }
}

fn parent(gas_used: u64, base_fee: u64) -> Header {
    Header {
        number: 7,
        timestamp: TIME,
        gas_limit: 60_000_000,
        gas_used,
        base_fee_per_gas: Some(base_fee),
        ..Default::default()
    }
}

#[test]
fn base_fee_moves_by_the_constants_of_the_childs_time() {
    let gwei = 1_000_000_000_000;
    let target = 10_000_000;
    let before = op(Fork::Regolith);
    assert_eq!(
        before.next_base_fee(&parent(target, gwei), TIME + 2),
        Ok(gwei)
    );
    // Gas used is twice the target: the base fee rises by one fiftieth. No gas used: it falls by
    // one fiftieth.
    assert_eq!(
        before.next_base_fee(&parent(2 * target, gwei), TIME + 2),
        Ok(gwei + gwei / 50)
    );
    assert_eq!(
        before.next_base_fee(&parent(0, gwei), TIME + 2),
        Ok(gwei - gwei / 50)
    );
    // A full block uses six times the target, so the rise is five times as large as with twice the
    // target.
    assert_eq!(
        before.next_base_fee(&parent(6 * target, gwei), TIME + 2),
        Ok(gwei + gwei / 10)
    );
    // Above the target the base fee always rises; below the target it may stay the same.
    assert_eq!(
        before.next_base_fee(&parent(target + 1, 7), TIME + 2),
        Ok(8)
    );
    assert_eq!(
        before.next_base_fee(&parent(target - 1, 7), TIME + 2),
        Ok(7)
    );
    // The parent is before Canyon, the child is in Canyon.
    let canyon =
        scheduled(ForkSchedule::from_genesis(Fork::Regolith).with(Fork::Canyon, Some(TIME + 2)));
    assert_eq!(
        canyon.next_base_fee(&parent(2 * target, gwei), TIME + 1),
        Ok(gwei + gwei / 50)
    );
    assert_eq!(
        canyon.next_base_fee(&parent(2 * target, gwei), TIME + 2),
        Ok(gwei + gwei / 250)
    );
    // The parent has no base fee, so the child is the first block with one.
    assert_eq!(
        before.next_base_fee(&Header::default(), TIME),
        Ok(INITIAL_BASE_FEE)
    );
}

#[test]
fn ethereum_base_fee_moves_by_an_eighth() {
    let spec = ethereum(cancun());
    let header = |gas_used| Header {
        gas_limit: 30_000_000,
        gas_used,
        base_fee_per_gas: Some(8_000_000_000),
        ..Default::default()
    };
    assert_eq!(
        spec.next_base_fee(&header(30_000_000), 1),
        Ok(9_000_000_000)
    );
    assert_eq!(spec.next_base_fee(&header(0), 1), Ok(7_000_000_000));
    assert_eq!(
        spec.next_base_fee(&header(15_000_000), 1),
        Ok(8_000_000_000)
    );
}

#[test]
fn base_fee_parameters_come_from_a_holocene_parent() {
    let extra_data = bytes!("00 00000064 00000002"); // denominator 100, elasticity 2
    let fee = 1_000_000_000_000;
    let parent = Header {
        extra_data,
        ..parent(60_000_000, fee)
    };
    assert_eq!(
        op(Fork::Holocene).next_base_fee(&parent, TIME + 2),
        Ok(fee + fee / 100)
    );
    // The first block of Holocene still uses the constants.
    let first =
        scheduled(ForkSchedule::from_genesis(Fork::Granite).with(Fork::Holocene, Some(TIME + 2)));
    assert_eq!(first.next_base_fee(&parent, TIME + 2), Ok(fee + fee / 50));
}

#[test]
fn jovian_counts_the_data_footprint_and_keeps_a_minimum() {
    let spec = op(Fork::Jovian);
    let fee = 1_000_000_000_000u64;
    let extra = |minimum: u64| {
        [&bytes!("01 00000064 00000002")[..], &minimum.to_be_bytes()]
            .concat()
            .into()
    };
    let parent = |gas_used, footprint, minimum| Header {
        extra_data: extra(minimum),
        blob_gas_used: Some(footprint),
        ..parent(gas_used, fee)
    };
    assert_eq!(
        spec.next_base_fee(&parent(0, 60_000_000, 0), TIME + 2),
        Ok(fee + fee / 100)
    );
    assert_eq!(
        spec.next_base_fee(&parent(60_000_000, 1, 0), TIME + 2),
        Ok(fee + fee / 100)
    );
    assert_eq!(
        spec.next_base_fee(&parent(0, 0, 0), TIME + 2),
        Ok(fee - fee / 100)
    );
    assert_eq!(spec.next_base_fee(&parent(0, 0, fee), TIME + 2), Ok(fee));
    // The minimum applies also if the parent's base fee was below it.
    assert_eq!(
        spec.next_base_fee(&parent(60_000_000, 0, 3 * fee), TIME + 2),
        Ok(3 * fee)
    );
    // If the parent is before Jovian, neither the footprint nor the minimum is used.
    let first = scheduled(
        ForkSchedule::from_genesis(Fork::Holocene)
            .with(Fork::Isthmus, Some(0))
            .with(Fork::Jovian, Some(TIME + 2)),
    );
    let holocene = Header {
        extra_data: bytes!("00 00000064 00000002"),
        ..parent(0, 60_000_000, 0)
    };
    assert_eq!(
        first.next_base_fee(&holocene, TIME + 2),
        Ok(fee - fee / 100)
    );
}

#[test]
fn base_fee_saturates_on_absurd_numbers() {
    let spec = op(Fork::Holocene);
    let header = |gas_limit, extra_data| Header {
        gas_limit,
        extra_data,
        ..parent(u64::MAX, u64::MAX)
    };
    // An elasticity of 2^32 - 1, more than the gas limit, results in a target of zero.
    assert_eq!(
        spec.next_base_fee(&header(21_000, bytes!("00 00000001 ffffffff")), TIME + 2),
        Ok(u64::MAX)
    );
    assert_eq!(
        spec.next_base_fee(&header(u64::MAX, bytes!("00 00000001 00000002")), TIME + 2),
        Ok(u64::MAX)
    );
}

#[test]
fn extra_data_refuses_zeros_and_wrong_forms() {
    let holocene = op(Fork::Holocene).at(TIME);
    let jovian = op(Fork::Jovian).at(TIME);
    let decode = |bytes: Bytes, active: &Active| ExtraData::decode(&bytes, active);
    let params = BaseFeeParams {
        denominator: 250,
        elasticity: 6,
    };
    assert_eq!(
        decode(bytes!("00 000000fa 00000006"), &holocene),
        Ok(ExtraData {
            params,
            min_base_fee: 0
        })
    );
    let minimum = decode(bytes!("01 000000fa 00000006 000000000000ffff"), &jovian);
    assert_eq!(
        minimum,
        Ok(ExtraData {
            params,
            min_base_fee: 0xffff
        })
    );
    for active in [&holocene, &jovian] {
        let of = |params: &[u8]| -> Bytes {
            let version = u8::from(active.is_op(Fork::Jovian));
            let tail: &[u8] = if version == 1 { &[0; 8] } else { &[] };
            [&[version], params, tail].concat().into()
        };
        assert_eq!(
            decode(of(&[0, 0, 0, 0, 0, 0, 0, 6]), active),
            Err(ExtraDataError::ZeroDenominator)
        );
        assert_eq!(
            decode(of(&[0, 0, 0, 1, 0, 0, 0, 0]), active),
            Err(ExtraDataError::ZeroElasticity)
        );
        assert!(decode(of(&[0; 8]), active).is_err());
    }
    assert_eq!(
        decode(bytes!("01 000000fa 00000006"), &holocene),
        Err(ExtraDataError::Version { have: 1, want: 0 })
    );
    assert_eq!(
        decode(bytes!("00 000000fa 00000006"), &jovian),
        Err(ExtraDataError::Length { have: 9, want: 17 })
    );
    assert_eq!(
        decode(Bytes::new(), &holocene),
        Err(ExtraDataError::Length { have: 0, want: 9 })
    );
}

#[test]
fn zero_parameters_of_attributes_become_the_constants() {
    let (zero, given) = (
        Eip1559Params::default(),
        Eip1559Params {
            denominator: 1,
            elasticity: 2,
        },
    );
    let jovian = op(Fork::Jovian);
    assert_eq!(
        ExtraData::encode(&jovian, TIME, zero, 9).unwrap(),
        bytes!("01 000000fa 00000006 0000000000000009")
    );
    assert_eq!(
        ExtraData::encode(&jovian, TIME, given, 0).unwrap(),
        bytes!("01 00000001 00000002 0000000000000000")
    );
    assert_eq!(
        ExtraData::encode(&op(Fork::Holocene), TIME, zero, 9).unwrap(),
        bytes!("00 000000fa 00000006")
    );
    assert_eq!(
        ExtraData::encode(&op(Fork::Granite), TIME, given, 9).unwrap(),
        Bytes::new()
    );
    for (denominator, elasticity) in [(0, 1), (1, 0)] {
        assert!(
            ExtraData::encode(
                &jovian,
                TIME,
                Eip1559Params {
                    denominator,
                    elasticity
                },
                0
            )
            .is_err()
        );
    }
}

/// A header that is valid on its parent under `spec`.
fn valid(spec: &ChainSpec, parent: &Header) -> Header {
    let timestamp = parent.timestamp + 2;
    let active = spec.at(timestamp);
    Header {
        parent_hash: parent.hash_slow(),
        number: parent.number + 1,
        timestamp,
        gas_limit: parent.gas_limit,
        extra_data: ExtraData::encode(spec, timestamp, Eip1559Params::default(), 0).unwrap(),
        base_fee_per_gas: Some(spec.next_base_fee(parent, timestamp).unwrap()),
        withdrawals_root: active.shanghai.then_some(EMPTY_ROOT_HASH),
        parent_beacon_block_root: active.cancun.then_some(B256::ZERO),
        excess_blob_gas: active.cancun.then_some(0),
        blob_gas_used: active.cancun.then_some(0),
        requests_hash: active
            .prague
            .then_some(alloy_eips::eip7685::EMPTY_REQUESTS_HASH),
        ..Default::default()
    }
}

fn check(
    spec: &ChainSpec,
    parent: &Header,
    change: impl FnOnce(&mut Header),
) -> Result<(), HeaderError> {
    let mut header = valid(spec, parent);
    change(&mut header);
    spec.check_header(&header, parent, parent.hash_slow())
}

fn parent_of(spec: &ChainSpec) -> Header {
    let extra_data = ExtraData::encode(spec, TIME, Eip1559Params::default(), 0).unwrap();
    Header {
        extra_data,
        ..parent(0, 1_000_000)
    }
}

/// The rules of every fork, each with a parent header.
fn forks_with_parents() -> impl Iterator<Item = (ChainSpec, Header)> {
    Fork::ALL.into_iter().map(op).map(|spec| {
        let parent = parent_of(&spec);
        (spec, parent)
    })
}

#[test]
fn the_place_time_and_constants_of_a_header_are_checked() {
    use HeaderError as E;
    for (spec, parent) in forks_with_parents() {
        let check = |change: fn(&mut Header)| check(&spec, &parent, change);
        assert!(matches!(
            check(|h| h.parent_hash = B256::ZERO),
            Err(E::ParentHash { .. })
        ));
        assert_eq!(
            check(|h| h.number += 1),
            Err(E::Number { have: 9, want: 8 })
        );
        assert_eq!(
            check(|h| h.timestamp = TIME),
            Err(E::Timestamp {
                have: TIME,
                parent: TIME
            })
        );
        assert!(matches!(
            check(|h| h.difficulty = U256::ONE),
            Err(E::Difficulty(_))
        ));
        assert!(matches!(
            check(|h| h.nonce = B64::with_last_byte(1)),
            Err(E::Nonce(_))
        ));
        assert!(matches!(
            check(|h| h.ommers_hash = B256::ZERO),
            Err(E::Uncles(_))
        ));
    }
}

#[test]
fn the_extra_data_gas_and_base_fee_of_a_header_are_checked() {
    use HeaderError as E;
    for (spec, parent) in forks_with_parents() {
        let check = |change: fn(&mut Header)| check(&spec, &parent, change);
        assert_eq!(check(|_| {}), Ok(()));
        assert!(matches!(
            check(|h| h.extra_data = vec![0; 33].into()),
            Err(E::ExtraDataLength(33))
        ));
        assert!(matches!(
            check(|h| h.extra_data = vec![0; 8].into()),
            Err(E::ExtraData(_))
        ));
        assert!(matches!(
            check(|h| h.gas_limit = 1 << 63),
            Err(E::GasLimit(_))
        ));
        assert!(matches!(
            check(|h| h.gas_used = h.gas_limit + 1),
            Err(E::GasUsed { .. })
        ));
        assert!(matches!(
            check(|h| h.base_fee_per_gas = h.base_fee_per_gas.map(|fee| fee + 1)),
            Err(E::BaseFee { .. })
        ));
        assert!(matches!(
            check(|h| h.base_fee_per_gas = None),
            Err(E::Missing("base fee"))
        ));
        // The gas limit may be any value, and so may the mix hash.
        assert_eq!(
            check(|h| (h.gas_limit, h.mix_hash) = (90_000_000, B256::repeat_byte(1))),
            Ok(())
        );
    }
}

#[test]
fn fields_of_forks_are_there_exactly_from_their_fork_on() {
    use HeaderError as E;
    for fork in Fork::ALL {
        let spec = op(fork);
        let parent = parent_of(&spec);
        type Toggle = fn(&mut Header);
        let fields: [(&str, Fork, Toggle); 5] = [
            ("withdrawals root", Fork::Canyon, |h| {
                h.withdrawals_root = h.withdrawals_root.xor(Some(EMPTY_ROOT_HASH))
            }),
            ("parent beacon block root", Fork::Ecotone, |h| {
                h.parent_beacon_block_root = h.parent_beacon_block_root.xor(Some(B256::ZERO))
            }),
            ("excess blob gas", Fork::Ecotone, |h| {
                h.excess_blob_gas = h.excess_blob_gas.xor(Some(0))
            }),
            ("blob gas used", Fork::Ecotone, |h| {
                h.blob_gas_used = h.blob_gas_used.xor(Some(0))
            }),
            ("requests hash", Fork::Isthmus, |h| {
                h.requests_hash = h.requests_hash.xor(Some(B256::ZERO))
            }),
        ];
        for (name, since, toggle) in fields {
            let want = if fork >= since {
                E::Missing(name)
            } else {
                E::Unexpected(name)
            };
            assert_eq!(check(&spec, &parent, toggle), Err(want), "{fork:?}");
        }
        let withdrawals = check(&spec, &parent, |h| {
            h.withdrawals_root = h.withdrawals_root.map(|_| B256::repeat_byte(1))
        });
        assert_eq!(
            withdrawals.is_ok(),
            !(Fork::Canyon..Fork::Isthmus).contains(&fork),
            "{fork:?}"
        );
        if fork >= Fork::Ecotone {
            assert!(matches!(
                check(&spec, &parent, |h| h.excess_blob_gas = Some(1)),
                Err(E::ExcessBlobGas { .. })
            ));
            let footprint = check(&spec, &parent, |h| h.blob_gas_used = Some(h.gas_limit));
            assert_eq!(footprint.is_ok(), fork >= Fork::Jovian, "{fork:?}");
            assert!(check(&spec, &parent, |h| h.blob_gas_used = Some(h.gas_limit + 1)).is_err());
        }
        if fork >= Fork::Isthmus {
            assert!(matches!(
                check(&spec, &parent, |h| h.requests_hash = Some(B256::ZERO)),
                Err(E::RequestsHash { .. })
            ));
        }
    }
}

#[test]
fn ethereum_headers_move_their_gas_limit_slowly() {
    let spec = ethereum(cancun());
    let parent = Header {
        excess_blob_gas: Some(0),
        blob_gas_used: Some(0),
        ..parent(0, 1_000_000)
    };
    let bound = parent.gas_limit / 1024;
    assert_eq!(
        check(&spec, &parent, |h| h.extra_data = bytes!("cafe")),
        Ok(())
    );
    assert_eq!(check(&spec, &parent, |h| h.gas_limit += bound - 1), Ok(()));
    assert!(matches!(
        check(&spec, &parent, |h| h.gas_limit += bound),
        Err(HeaderError::GasLimitChange { .. })
    ));
    assert!(matches!(
        check(&spec, &parent, |h| h.gas_limit = 4_999),
        Err(HeaderError::GasLimit(4_999))
    ));
}

/// A chain on which each fork with blobs activates 100 seconds after the previous one, the first at
/// 100.
fn blob_forks() -> ChainSpec {
    let forks = EthereumSchedule {
        shanghai: Some(0),
        cancun: Some(100),
        prague: Some(200),
        osaka: Some(300),
    };
    let mut spec = ethereum(forks);
    if let Rules::Ethereum { blobs, .. } = &mut spec.rules {
        blobs.scheduled = vec![(400, BlobParams::bpo1()), (500, BlobParams::bpo2())];
    }
    spec
}

#[test]
fn blob_parameters_follow_the_schedule() {
    let spec = blob_forks();
    assert_eq!(spec.blob_params(99), None);
    let counts = [100, 199, 200, 299, 300, 399, 400, 499, 500, u64::MAX].map(|time| {
        let params = spec.blob_params(time).unwrap();
        (
            params.target_blob_count,
            params.max_blob_count,
            params.max_blobs_per_tx,
        )
    });
    let (cancun, prague, osaka) = ((3, 6, 6), (6, 9, 9), (6, 9, 6));
    let (bpo1, bpo2) = ((10, 15, 6), (14, 21, 6));
    let expected = [
        cancun, cancun, prague, prague, osaka, osaka, bpo1, bpo1, bpo2, bpo2,
    ];
    assert_eq!(counts, expected);
    assert_eq!(spec.max_blobs(), 9);
    assert_eq!(op(Fork::Karst).max_blobs(), 0);
}

/// The values are those of geth's `TestCalcBlobFee`.
#[test]
fn the_blob_base_fee_grows_with_the_excess() {
    let spec = ethereum(cancun());
    for (excess, fee) in [(0, 1), (2_314_057, 1), (2_314_058, 2), (10 << 20, 23)] {
        let header = Header {
            excess_blob_gas: Some(excess),
            ..parent(0, 7)
        };
        assert_eq!(spec.blob_base_fee(&header), Some(fee), "{excess}");
        assert_eq!(op(Fork::Karst).blob_base_fee(&header), Some(1));
    }
    assert_eq!(spec.blob_base_fee(&parent(0, 7)), None);
}

#[test]
fn from_osaka_on_blobs_have_a_reserve_price() {
    let spec = blob_forks();
    let excess = |base_fee, blobs, time| {
        let parent = Header {
            excess_blob_gas: Some(0),
            blob_gas_used: Some(blobs * DATA_GAS_PER_BLOB),
            ..parent(0, base_fee)
        };
        spec.excess_blob_gas(&parent, time) / DATA_GAS_PER_BLOB
    };
    assert_eq!(
        excess(1_000_000_000, 6, 250),
        0,
        "Prague: exactly the target"
    );
    assert_eq!(excess(1_000_000_000, 9, 250), 3);
    // EIP-7918: the excess never falls while a blob is cheaper than its share of execution gas.
    assert_eq!(excess(1_000_000_000, 6, 350), 2);
    assert_eq!(excess(1_000_000_000, 9, 350), 3);
    assert_eq!(excess(1, 6, 350), 0);
    assert_eq!(excess(1, 9, 350), 3);
    assert_eq!(excess(1_000_000_000, 15, 450), 5);
}

#[test]
fn ethereum_headers_have_whole_blobs_up_to_the_maximum() {
    let spec = blob_forks();
    let parent = Header {
        timestamp: 450,
        number: 7,
        gas_limit: 30_000_000,
        base_fee_per_gas: Some(7),
        excess_blob_gas: Some(0),
        blob_gas_used: Some(0),
        ..Default::default()
    };
    let check = |used: u64| {
        let header = Header {
            parent_hash: parent.hash_slow(),
            timestamp: 462,
            number: 8,
            gas_limit: parent.gas_limit,
            base_fee_per_gas: Some(spec.next_base_fee(&parent, 462).unwrap()),
            withdrawals_root: Some(EMPTY_ROOT_HASH),
            parent_beacon_block_root: Some(B256::ZERO),
            excess_blob_gas: Some(0),
            blob_gas_used: Some(used),
            requests_hash: Some(EMPTY_REQUESTS_HASH),
            ..Default::default()
        };
        spec.check_header(&header, &parent, parent.hash_slow())
    };
    check(0).unwrap();
    check(15 * DATA_GAS_PER_BLOB).unwrap();
    let limit = 15 * DATA_GAS_PER_BLOB;
    let have = 16 * DATA_GAS_PER_BLOB;
    assert_eq!(check(have), Err(HeaderError::BlobGasLimit { have, limit }));
    assert_eq!(check(1), Err(HeaderError::PartialBlob(1)));
}
