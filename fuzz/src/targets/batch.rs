//! Batches with their type byte.

use crate::InputKind;
use alloy_primitives::{B256, Bytes};
use starling_proto::{
    batch::{self, Batch, SingularBatch},
    channel::BatchContext,
};

pub const CONTEXT: BatchContext = BatchContext {
    genesis_time: 1_000,
    block_time: 2,
    chain_id: 420,
};

pub fn target(data: &[u8]) -> InputKind {
    let mut outcome = InputKind::default();
    match batch::decode(&Bytes::copy_from_slice(data), &CONTEXT) {
        Ok(Batch::Singular(singular)) => {
            let encoded = singular.encode();
            assert!(data.starts_with(&encoded), "every byte is accounted for");
            outcome.scale(singular.transactions.len());
        }
        Ok(Batch::Span(span)) => {
            outcome.add(&"span");
            outcome.scale(span.blocks.len());
        }
        Err(error) => outcome.add(&(&error, error.skips_only_this_batch())),
    }
    outcome
}

/// A batch of a block with these transactions.
fn block(number: u64, transactions: Vec<Bytes>) -> SingularBatch {
    SingularBatch {
        parent_hash: B256::repeat_byte(1),
        epoch_number: 10 + number / 3,
        epoch_hash: B256::repeat_byte(2),
        timestamp: CONTEXT.genesis_time + CONTEXT.block_time * number,
        transactions: transactions.into(),
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = super::span::seeds();
    seeds.iter_mut().for_each(|seed| seed.insert(0, 1));
    let transactions = vec![vec![2; 3].into(), vec![9; 70].into()];
    seeds.extend([
        block(0, vec![]).encode(),
        block(1_000_000, transactions).encode(),
    ]);
    seeds
}
