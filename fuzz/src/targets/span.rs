//! Columns of a span batch. If an honest batcher could have made the span, it is also encoded and
//! decoded again.

use super::batch::CONTEXT;
use crate::InputKind;
use alloy_consensus::{
    SignableTransaction, TxEip1559, TxEip2930, TxEip7702, TxLegacy,
    transaction::RlpEcdsaEncodableTx,
};
use alloy_primitives::{B256, Bytes, Signature, TxKind};
use starling_proto::span::{self, SpanBatch, SpanBlock, SpanBuilder};

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    match span::decode(&Bytes::copy_from_slice(data), &CONTEXT) {
        Ok(span) => {
            let transactions = span.blocks.clone().map(|block| block.transactions.len());
            let transactions = transactions.sum::<usize>();
            assert!(span.blocks.len() + 64 * transactions <= data.len());
            outcome.scale(span.blocks.len());
            outcome.scale(transactions);
            if let Some(encoded) = encode(&span) {
                let again = span::decode(&encoded[1..].to_vec().into(), &CONTEXT)
                    .expect("our own encoding");
                assert!(again == span, "decoding survives a round trip");
                outcome.add(&"again");
            }
        }
        Err(error) => outcome.add(&error),
    }
    outcome
}

/// Encodes the batch again; `None` if its numbers wrap, or do not fit the types of a transaction.
fn encode(span: &SpanBatch) -> Option<Vec<u8>> {
    let parent_hash = B256::right_padding_from(span.parent_check.as_slice());
    let epoch_hash = B256::right_padding_from(span.l1_origin_check.as_slice());
    let mut builder = SpanBuilder::new(CONTEXT);
    for block in span.blocks.clone() {
        builder.push(&block, parent_hash, epoch_hash, true).ok()?;
    }
    builder.encode()
}

fn encoded<T: RlpEcdsaEncodableTx + SignableTransaction<Signature>>(transaction: T) -> Bytes {
    let mut out = Vec::new();
    transaction.eip2718_encode(&Signature::test_signature(), &mut out);
    out.into()
}

/// One transaction of each type.
fn transactions() -> Vec<Bytes> {
    let chain_id = CONTEXT.chain_id;
    let to = TxKind::Call(B256::repeat_byte(3)[..20].try_into().expect("20 bytes"));
    let legacy = |chain_id, to| TxLegacy {
        chain_id,
        to,
        nonce: 300,
        gas_limit: 21_000,
        ..Default::default()
    };
    vec![
        encoded(legacy(None, to)),
        encoded(legacy(Some(chain_id), TxKind::Create)),
        encoded(TxEip2930 {
            chain_id,
            input: vec![5; 60].into(),
            ..Default::default()
        }),
        encoded(TxEip1559 {
            chain_id,
            to,
            max_fee_per_gas: 1 << 40,
            ..Default::default()
        }),
        encoded(TxEip7702 {
            chain_id,
            ..Default::default()
        }),
    ]
}

pub fn seeds() -> Vec<Vec<u8>> {
    let block = |number: u64, transactions: Vec<Bytes>| SpanBlock {
        epoch_number: 10 + number / 3,
        timestamp: CONTEXT.genesis_time + CONTEXT.block_time * number,
        transactions: transactions.into(),
    };
    let span = |blocks: &[SpanBlock]| {
        let mut builder = SpanBuilder::new(CONTEXT);
        for block in blocks {
            let pushed = builder.push(block, B256::repeat_byte(1), B256::repeat_byte(2), true);
            pushed.expect("consecutive blocks");
        }
        builder.encode().expect("a block")[1..].to_vec()
    };
    let full: Vec<_> = (0..5).map(|number| block(number, transactions())).collect();
    let empty: Vec<_> = (0..40).map(|number| block(number, vec![])).collect();
    vec![
        span(&full),
        span(&full[..1]),
        span(&empty),
        span(&empty[..1]),
    ]
}
