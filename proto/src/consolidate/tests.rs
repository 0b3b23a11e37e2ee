//! Tests with a block that agrees with its attributes, and with one difference at a time.

use super::*;
use crate::fork::ForkSchedule;
use alloy_consensus::Header;
use alloy_rpc_types_engine::PayloadAttributes;
use proptest::prelude::*;

const PARENT: B256 = B256::repeat_byte(1);

fn rollup(last: Fork) -> RollupConfig {
    RollupConfig {
        forks: ForkSchedule::from_genesis(last),
        ..Default::default()
    }
}

/// Attributes with all forks up to `last`, and the block that follows from them.
fn pair(last: Fork, params: Eip1559Params) -> (OpPayloadAttributes, Payload) {
    let active = |fork| rollup(last).forks.is_active(fork, 1_000);
    let attributes = OpPayloadAttributes {
        payload_attributes: PayloadAttributes {
            timestamp: 1_000,
            prev_randao: B256::repeat_byte(2),
            suggested_fee_recipient: Address::repeat_byte(3),
            withdrawals: active(Fork::Canyon).then(Vec::new),
            parent_beacon_block_root: active(Fork::Ecotone).then(|| B256::repeat_byte(4)),
            ..Default::default()
        },
        transactions: Some(vec![vec![0x7e, 1].into(), vec![2, 3].into()]),
        no_tx_pool: Some(true),
        gas_limit: Some(30_000_000),
        eip_1559_params: active(Fork::Holocene).then(|| params.encode()),
        min_base_fee: active(Fork::Jovian).then_some(7),
    };
    let root = if active(Fork::Isthmus) {
        Some(B256::repeat_byte(5))
    } else {
        active(Fork::Canyon).then_some(EMPTY_WITHDRAWALS)
    };
    let header = Header {
        parent_hash: PARENT,
        timestamp: 1_000,
        mix_hash: B256::repeat_byte(2),
        beneficiary: Address::repeat_byte(3),
        gas_limit: 30_000_000,
        withdrawals_root: root,
        parent_beacon_block_root: attributes.payload_attributes.parent_beacon_block_root,
        extra_data: extra_data(None, &attributes),
        ..Default::default()
    };
    let transactions = attributes.transactions.clone().unwrap();
    (attributes, Payload::sealed(header, transactions))
}

fn all_agree(last: Fork) {
    let params = Eip1559Params {
        denominator: 9,
        elasticity: 4,
    };
    let (attributes, block) = pair(last, params);
    assert_eq!(
        consolidates(&rollup(last), PARENT, &attributes, &block),
        Ok(()),
        "{last:?}"
    );
}

#[test]
fn the_block_that_follows_from_attributes_consolidates_under_every_fork() {
    Fork::ALL.into_iter().for_each(all_agree);
}

#[test]
fn every_difference_is_named() {
    use AttributesMismatch as Mismatch;
    type Change = fn(&mut Payload);
    type Expected = fn(&Mismatch) -> bool;
    let cases: [(Change, Expected); 11] = [
        (
            |b| b.header.parent_hash = B256::ZERO,
            |m| matches!(m, Mismatch::Parent { .. }),
        ),
        (
            |b| b.header.timestamp += 1,
            |m| matches!(m, Mismatch::Timestamp { .. }),
        ),
        (
            |b| b.header.mix_hash = B256::ZERO,
            |m| matches!(m, Mismatch::PrevRandao { .. }),
        ),
        (
            |b| drop(b.transactions.pop()),
            |m| matches!(m, Mismatch::TransactionCount { .. }),
        ),
        (
            |b| b.transactions[1] = vec![9].into(),
            |m| matches!(m, Mismatch::Transaction { index: 1 }),
        ),
        (
            |b| b.header.gas_limit -= 1,
            |m| matches!(m, Mismatch::GasLimit { .. }),
        ),
        (
            |b| b.header.withdrawals_root = None,
            |m| matches!(m, Mismatch::WithdrawalsRoot(None)),
        ),
        (
            |b| b.header.parent_beacon_block_root = None,
            |m| matches!(m, Mismatch::BeaconRoot { .. }),
        ),
        (
            |b| b.header.beneficiary = Address::ZERO,
            |m| matches!(m, Mismatch::FeeRecipient { .. }),
        ),
        (
            |b| b.header.extra_data = Bytes::new(),
            |m| matches!(m, Mismatch::ExtraData { .. }),
        ),
        (
            |b| b.header.extra_data = [&b.header.extra_data[..], &[0]].concat().into(),
            |m| matches!(m, Mismatch::ExtraData { .. }),
        ),
    ];
    for (i, (change, expected)) in cases.into_iter().enumerate() {
        let (attributes, mut block) = pair(Fork::Jovian, Eip1559Params::default());
        change(&mut block);
        let found = consolidates(&rollup(Fork::Jovian), PARENT, &attributes, &block);
        assert!(found.as_ref().is_err_and(expected), "case {i}: {found:?}");
    }
}

#[test]
fn parameters_of_zero_stand_for_the_constants_of_the_chain() {
    let (attributes, block) = pair(Fork::Holocene, Eip1559Params::default());
    assert_eq!(block.header.extra_data[..], [0, 0, 0, 0, 250, 0, 0, 0, 6]);
    let own = ChainOpConfig {
        eip1559_elasticity: 2,
        eip1559_denominator: 8,
        eip1559_denominator_canyon: Some(32),
    };
    let expected = [0, 0, 0, 0, 32, 0, 0, 0, 2];
    assert_eq!(extra_data(Some(own), &attributes)[..], expected);
}

#[test]
fn withdrawals_are_those_of_the_blocks_fork() {
    let (mut attributes, block) = pair(Fork::Ecotone, Eip1559Params::default());
    attributes.payload_attributes.withdrawals = None;
    let found = consolidates(&rollup(Fork::Ecotone), PARENT, &attributes, &block);
    assert_eq!(found, Err(AttributesMismatch::Withdrawals));
    let (attributes, mut block) = pair(Fork::Ecotone, Eip1559Params::default());
    block.header.withdrawals_root = Some(B256::ZERO);
    let found = consolidates(&rollup(Fork::Ecotone), PARENT, &attributes, &block);
    let root = Some(B256::ZERO);
    assert_eq!(found, Err(AttributesMismatch::WithdrawalsRoot(root)));
}

proptest! {
    #[test]
    fn any_parameters_are_the_extra_data(denominator in 1u32.., elasticity: u32) {
        let params = Eip1559Params { denominator, elasticity };
        let (attributes, _) = pair(Fork::Jovian, params);
        let data = extra_data(None, &attributes);
        prop_assert_eq!(data[0], 1);
        prop_assert_eq!(&data[1..9], &params.encode()[..]);
        prop_assert_eq!(&data[9..], 7u64.to_be_bytes());
    }
}
