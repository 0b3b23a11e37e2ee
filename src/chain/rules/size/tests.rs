//! Block sizes, compared with the lengths of alloy's encodings.

use super::*;
use crate::chain::{
    evm::tests::{op, sign, transfer},
    rules::{EthereumSchedule, Rules},
};
use alloy_consensus::{Block, BlockBody, Header, TxEnvelope, TxLegacy};
use alloy_eips::{eip2718::Decodable2718, eip4895::Withdrawal};
use alloy_primitives::{Address, B256};
use starling_proto::{
    fork::Fork,
    payload::{EthereumBody, MAX_WITHDRAWALS},
};

/// Activation time of Osaka.
const OSAKA: u64 = 300;

fn ethereum() -> ChainSpec {
    let forks = EthereumSchedule {
        shanghai: Some(0),
        cancun: Some(0),
        prague: Some(0),
        osaka: Some(OSAKA),
    };
    ChainSpec {
        rules: Rules::Ethereum {
            forks,
            blobs: Default::default(),
            deposit_contract: Address::ZERO,
            before_merge: None,
        },
        ..op(Fork::Karst)
    }
}

fn header(timestamp: u64) -> Header {
    Header {
        timestamp,
        withdrawals_root: Some(B256::ZERO),
        ..Default::default()
    }
}

#[test]
fn the_size_is_that_of_the_encoded_block() {
    let legacy = TxLegacy {
        to: Address::repeat_byte(7).into(),
        input: vec![1; 300].into(),
        ..Default::default()
    };
    let all = [sign(1, transfer(0)).1, sign(1, legacy).1];
    for transactions in [&all[..0], &all[..1], &all] {
        for header in [header(0), Header::default()] {
            let decode = |raw: &Bytes| TxEnvelope::decode_2718_exact(raw).unwrap();
            for count in 0..3 {
                let withdrawals = vec![Withdrawal::default(); count];
                let shanghai = header.withdrawals_root.is_some();
                let body = BlockBody {
                    transactions: transactions.iter().map(decode).collect(),
                    ommers: vec![header.clone(); count],
                    withdrawals: shanghai.then(|| withdrawals.clone().into()),
                };
                let ours = EthereumBody {
                    uncles: body.ommers.clone(),
                    withdrawals,
                };
                let payload = Payload::sealed(header.clone(), transactions.to_vec());
                let expected = Block::new(header.clone(), body).length();
                assert_eq!(block_bytes(&payload.with_ethereum(ours)), expected);
            }
        }
    }
}

#[test]
fn blocks_of_ethereum_are_bounded_from_osaka_on() {
    let block = |time, bytes: usize| Payload::sealed(header(time), vec![vec![1; bytes].into()]);
    let size_of = |bytes: usize| block_bytes(&block(OSAKA, bytes));
    let largest = MAX_BLOCK_BYTES - (size_of(1 << 20) - (1 << 20));
    let check = |spec: &ChainSpec, time, bytes: usize| spec.check_size(&block(time, bytes));
    let (have, limit) = (MAX_BLOCK_BYTES + 1, MAX_BLOCK_BYTES);
    assert_eq!(limit, 8_388_608);
    assert_eq!(check(&ethereum(), OSAKA, largest), Ok(()));
    let refused = Err(BlockSizeError { have, limit });
    assert_eq!(check(&ethereum(), OSAKA, largest + 1), refused);
    assert_eq!(check(&ethereum(), OSAKA - 1, 2 * limit), Ok(()));
    assert_eq!(check(&op(Fork::Karst), OSAKA, 2 * limit), Ok(()));
}

#[test]
fn a_builder_keeps_room_for_the_largest_header() {
    let header = Header {
        extra_data: vec![1; 32].into(),
        gas_limit: u64::MAX,
        gas_used: u64::MAX,
        number: u64::MAX,
        timestamp: u64::MAX,
        base_fee_per_gas: Some(u64::MAX),
        withdrawals_root: Some(B256::ZERO),
        blob_gas_used: Some(u64::MAX),
        excess_blob_gas: Some(u64::MAX),
        parent_beacon_block_root: Some(B256::ZERO),
        requests_hash: Some(B256::ZERO),
        ..Default::default()
    };
    let transaction = Bytes::from(vec![1; MAX_BLOCK_BYTES / 2]);
    let withdrawal = Withdrawal {
        index: u64::MAX,
        validator_index: u64::MAX,
        address: Address::repeat_byte(1),
        amount: u64::MAX,
    };
    let payload = Payload::sealed(header, vec![transaction.clone()]);
    let payload = payload.with_ethereum(EthereumBody {
        uncles: vec![],
        withdrawals: vec![withdrawal; MAX_WITHDRAWALS],
    });
    let envelope = block_bytes(&payload) - transaction_bytes(&transaction);
    assert!(envelope <= ENVELOPE_BYTES, "{envelope} bytes");
}
