//! Tests of span batches.

use crate::{
    CONTEXT, block,
    draw::{blocks, bytes, encoded},
};
use alloy_consensus::TxLegacy;
use alloy_primitives::{Bytes, Signature};
use proptest::{collection::vec, prelude::*};
use starling_proto::{
    batch::{self, Batch, BatchTransactions, SingularBatch},
    channel::BatchContext,
    span::{self, RebuildError, SpanBatch, SpanBlock, SpanBuildError, SpanBuilder, SpanError},
};

/// A chain whose id is so large that v of a signature needs more than 64 bits.
const LARGE_CHAIN: BatchContext = BatchContext {
    genesis_time: 1_000,
    block_time: 2,
    chain_id: u64::MAX,
};

/// Appends a singular batch to a span.
fn push(
    builder: &mut SpanBuilder,
    batch: &SingularBatch,
    begins_epoch: bool,
) -> Result<(), SpanBuildError> {
    let block = SpanBlock {
        epoch_number: batch.epoch_number,
        timestamp: batch.timestamp,
        transactions: batch.transactions.clone(),
    };
    builder.push(&block, batch.parent_hash, batch.epoch_hash, begins_epoch)
}

fn span_of(blocks: &[SingularBatch], context: BatchContext) -> Vec<u8> {
    let mut builder = SpanBuilder::new(context);
    let mut encoded = vec![builder.encode()];
    for block in blocks {
        push(&mut builder, block, true).unwrap();
        encoded.push(builder.encode());
    }
    for (blocks, before) in encoded.iter().enumerate() {
        assert_eq!(builder.encode_first(blocks), *before);
    }
    assert_eq!(builder.encode_first(encoded.len()), None);
    let encoded = encoded.pop().flatten().unwrap();
    assert_eq!(encoded.len(), builder.encoded_len());
    encoded
}

fn assert_span(batch: Batch, blocks: &[SingularBatch]) {
    let Batch::Span(span) = batch else {
        panic!("no span batch");
    };
    let last = blocks.last().unwrap();
    assert_eq!(span.parent_check[..], blocks[0].parent_hash[..20]);
    assert_eq!(span.l1_origin_check[..], last.epoch_hash[..20]);
    assert_eq!(span.blocks.len(), blocks.len());
    for (found, block) in span.blocks.zip(blocks) {
        assert_eq!(found.epoch_number, block.epoch_number);
        assert_eq!(found.timestamp, block.timestamp);
        assert_eq!(found.transactions, block.transactions);
        let kinds = |list: &BatchTransactions| {
            let first_bytes = list.first_bytes().map(Option::unwrap);
            first_bytes.map(|byte| byte.min(0x80)).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&found.transactions), kinds(&block.transactions));
        let encoded: usize = found.transactions.iter().map(|bytes| bytes.len()).sum();
        assert!(found.transactions.size() <= encoded);
        assert!(block.transactions.size() <= encoded + 9 * block.transactions.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn span_batches_survive_with_anything_after(blocks in blocks(CONTEXT), after in bytes(0..20)) {
        let mut encoded = span_of(&blocks, CONTEXT);
        for end in 0..encoded.len() {
            let error = batch::decode(&encoded[..end].to_vec().into(), &CONTEXT).unwrap_err();
            prop_assert!(!error.skips_only_this_batch(), "{}", error);
        }
        encoded.extend_from_slice(&after);
        assert_span(batch::decode(&encoded.into(), &CONTEXT).unwrap(), &blocks);
    }

    #[test]
    fn signatures_of_the_largest_chain_id_survive(blocks in blocks(LARGE_CHAIN)) {
        let encoded = span_of(&blocks, LARGE_CHAIN);
        assert_span(batch::decode(&encoded.into(), &LARGE_CHAIN).unwrap(), &blocks);
    }

    #[test]
    fn arbitrary_columns_never_panic(body in vec(any::<u8>(), 0..400), blocks in 1..4u8) {
        let _ = span::decode(&body.clone().into(), &CONTEXT);
        let prefix = [&[5, 5][..], &[9; 40], &[blocks]].concat();
        let _ = span::decode(&[prefix, body].concat().into(), &CONTEXT);
    }
}

/// The first columns of a span batch, up to the block count.
fn span_prefix(blocks: &[u8]) -> Vec<u8> {
    [&[5, 5][..], &[9; 40], blocks].concat()
}

const TEN_MILLION: [u8; 4] = [0x80, 0xad, 0xe2, 0x04];
const TEN_MILLION_AND_ONE: [u8; 4] = [0x81, 0xad, 0xe2, 0x04];

#[test]
fn announced_elements_of_a_span_cost_nothing() {
    let decode = |parts: &[&[u8]]| span::decode(&parts.concat().into(), &CONTEXT).unwrap_err();
    let blocks = |count: &[u8]| span_prefix(count);
    assert_eq!(decode(&[&blocks(&[0])]), SpanError::NoBlock);
    assert_eq!(
        decode(&[&blocks(&TEN_MILLION)]),
        SpanError::Truncated("origin_bits")
    );
    let too_many = decode(&[&blocks(&TEN_MILLION_AND_ONE)]);
    assert_eq!(too_many, SpanError::TooLarge("block_count"));
    let bits = vec![0; 1_250_000];
    let no_counts = decode(&[&blocks(&TEN_MILLION), &bits]);
    assert_eq!(no_counts, SpanError::Truncated("block_tx_counts"));
    let one = blocks(&[1]);
    let no_bits = decode(&[&one, &[0], &TEN_MILLION]);
    assert_eq!(no_bits, SpanError::Truncated("contract_creation_bits"));
    let too_many = decode(&[&one, &[0], &TEN_MILLION_AND_ONE]);
    assert_eq!(too_many, SpanError::TooLarge("block_tx_counts"));
    let sum = decode(&[&blocks(&[2]), &[0], &TEN_MILLION, &[1]]);
    assert_eq!(sum, SpanError::TooLarge("block_tx_counts"));
    let signatures = decode(&[&one, &[0], &TEN_MILLION, &bits, &bits]);
    assert_eq!(signatures, SpanError::Truncated("tx_sigs"));
    let long = [0xff; 10];
    assert_eq!(decode(&[&long]), SpanError::Varint("rel_timestamp"));
    assert_eq!(decode(&[&long[..9]]), SpanError::Truncated("rel_timestamp"));
}

/// A span batch with one block that has one transaction.
pub fn one_transaction(bits: [u8; 3], to: &[u8], data: &[u8], rest: &[u8]) -> Vec<u8> {
    let [origin, creation, parity] = bits;
    let head = [origin, 1, creation, parity];
    [&span_prefix(&[1]), &head[..], &[4; 64], to, data, rest].concat()
}

fn decode_one(bits: [u8; 3], to: &[u8], data: &[u8], rest: &[u8]) -> Result<SpanBatch, SpanError> {
    span::decode(&one_transaction(bits, to, data, rest).into(), &CONTEXT)
}

#[test]
fn faults_of_columns_end_a_channel() {
    let decode = decode_one;
    let (to, legacy, rest) = ([6; 20], [0xc3, 1, 2, 3], [7, 8, 1]);
    assert!(decode([0; 3], &to, &legacy, &rest).is_ok());
    assert!(decode([1, 1, 1], &[], &legacy, &rest).is_ok());
    let fault = |error| Err(error);
    assert_eq!(
        decode([2, 0, 0], &to, &legacy, &rest),
        fault(SpanError::Bits("origin_bits"))
    );
    let bits = SpanError::Bits("contract_creation_bits");
    assert_eq!(decode([0, 2, 0], &to, &legacy, &rest), fault(bits));
    assert_eq!(
        decode([0, 0, 2], &to, &legacy, &rest),
        fault(SpanError::Bits("y_parity_bits"))
    );
    let bits = SpanError::Bits("protected_bits");
    assert_eq!(decode([0; 3], &to, &legacy, &[7, 8, 2]), fault(bits));
    assert_eq!(
        decode([0; 3], &to, &[0x83, 1, 2, 3], &rest),
        fault(SpanError::Data)
    );
    let long = [&[0xfa, 0x98, 0x96, 0x7d][..], &vec![0; 9_999_997]].concat();
    assert_eq!(
        decode([0; 3], &to, &long, &rest),
        fault(SpanError::TooLarge("tx_datas"))
    );
    // A type byte of 0 counts as a legacy transaction, and this one has no protected bit.
    let zero = [&[0][..], &legacy].concat();
    let missing = SpanError::Truncated("protected_bits");
    assert_eq!(decode([0; 3], &to, &zero, &[7, 8]), fault(missing));
}

#[test]
fn faults_of_transactions_cost_one_batch() {
    let decode = decode_one;
    let (to, rest) = ([6; 20], [7, 8, 1]);
    let zero = [0, 0xc3, 1, 2, 3];
    let transaction = |error| Err(SpanError::Transaction(error));
    let type_0 = transaction(RebuildError::Type(0));
    assert_eq!(decode([0; 3], &to, &zero, &rest), type_0);
    let blob = [3, 0xc3, 1, 2, 3];
    assert_eq!(
        decode([0; 3], &to, &blob, &rest),
        transaction(RebuildError::Type(3))
    );
    let set_code = [4, 0xc6, 1, 2, 3, 4, 0xc0, 0xc0];
    assert!(decode([0; 3], &to, &set_code, &rest).is_ok());
    let creation = transaction(RebuildError::Creation);
    assert_eq!(decode([0, 1, 0], &[], &set_code, &rest), creation);
    // Cases: a number with a leading zero; too few and too many fields; a list in place of the
    // data; keys of 31 bytes; an access list in a legacy transaction.
    let short_key = [
        &[1, 0xf8, 59, 1, 2, 3, 0xf7, 0xf6, 0x94][..],
        &[0; 20],
        &[0xe0, 0x9f],
        &[5; 31],
    ]
    .concat();
    for data in [
        &[0xc3, 0, 2, 3][..],
        &[0xc2, 1, 2],
        &[0xc4, 1, 2, 3, 4],
        &[0xc3, 1, 2, 0xc0],
        &[0xc4, 1, 2, 3, 0xc0],
        &[0xc4, 0x81, 1, 2, 3],
        &[1, 0xc3, 1, 2, 3],
        &[4, 0xc7, 1, 2, 3, 4, 0xc0, 0xc1, 1],
        &short_key,
    ] {
        let error = decode([0; 3], &to, data, &rest);
        assert_eq!(error, transaction(RebuildError::Data), "{data:?}");
    }
    // Integers may have any length, as in geth.
    let wide = [&[0xe8, 0xa5][..], &[1; 37], &[2, 3]].concat();
    assert!(decode([0; 3], &to, &wide, &rest).is_ok());
}

#[test]
fn times_and_origins_of_a_span_wrap_instead_of_panicking() {
    let maximum = [&[0xff; 9][..], &[1]].concat();
    let body = [&maximum, &[0][..], &[9; 40], &[2, 0b10, 0, 0]].concat();
    let span = span::decode(&body.into(), &CONTEXT).unwrap();
    assert_eq!(
        (span.first.epoch_number, span.last.epoch_number),
        (u64::MAX, 0)
    );
    assert_eq!(span.first.timestamp, CONTEXT.genesis_time - 1);
    let numbers: Vec<_> = span.blocks.map(|block| block.epoch_number).collect();
    assert_eq!(numbers, [u64::MAX, 0]);
}

#[test]
fn a_builder_refuses_blocks_that_a_span_cannot_hold() {
    let mut builder = SpanBuilder::new(CONTEXT);
    assert_eq!(builder.encode(), None);
    let early = SingularBatch {
        timestamp: 999,
        ..block(0, vec![])
    };
    assert_eq!(
        push(&mut builder, &early, true),
        Err(SpanBuildError::Timestamp(999))
    );
    push(&mut builder, &block(3, vec![]), true).unwrap();
    let before = builder.encode();
    let time = block(5, vec![]);
    assert_eq!(
        push(&mut builder, &time, false),
        Err(SpanBuildError::Timestamp(time.timestamp))
    );
    let epoch = SingularBatch {
        epoch_number: 12,
        ..block(4, vec![])
    };
    assert_eq!(
        push(&mut builder, &epoch, false),
        Err(SpanBuildError::Epoch(12))
    );
    let other_chain = TxLegacy {
        chain_id: Some(14),
        ..Default::default()
    };
    let other_chain = encoded(other_chain, &Signature::test_signature());
    let deposit = Bytes::from_static(&[0x7e, 0xc0]);
    for (bytes, error) in [
        (other_chain, RebuildError::ChainId),
        (deposit, RebuildError::Type(0x7e)),
        (Bytes::from_static(&[3, 0xc0]), RebuildError::Type(3)),
        (Bytes::new(), RebuildError::Data),
        (Bytes::from_static(&[0xc1, 1]), RebuildError::Data),
    ] {
        let index = 0;
        let refused = push(&mut builder, &block(4, vec![bytes]), false);
        assert_eq!(refused, Err(SpanBuildError::Transaction { index, error }));
    }
    assert_eq!(
        (builder.encode(), builder.blocks(), builder.transactions()),
        (before, 1, 0)
    );
}
