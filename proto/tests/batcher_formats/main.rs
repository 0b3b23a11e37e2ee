//! Round trips of the batcher's formats, and hostile bytes for every decoder.

mod batches;
mod channels;
mod compress;
mod draw;
mod frames;
mod spans;

use alloy_primitives::{B256, Bytes};
use starling_proto::{batch::SingularBatch, channel::BatchContext};

const CONTEXT: BatchContext = BatchContext {
    genesis_time: 1_000,
    block_time: 2,
    chain_id: 13,
};

fn block(number: u64, transactions: Vec<Bytes>) -> SingularBatch {
    SingularBatch {
        parent_hash: B256::repeat_byte(1),
        epoch_number: 10,
        epoch_hash: B256::repeat_byte(2),
        timestamp: CONTEXT.genesis_time + CONTEXT.block_time * number,
        transactions: transactions.into(),
    }
}
