//! The driver on an L1 with batcher transactions: span batches with invalid blocks, batches that
//! are posted too early, and blobs that no beacon node serves.

use super::*;
use crate::rollup::sequencer::tests::signed;
use alloy_consensus::{TxEip1559, TxEip4844, TxEnvelope, proofs::calculate_transaction_root};
use alloy_primitives::{B256, Bytes};
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use starling_proto::{
    attributes::attributes,
    batch::SingularBatch,
    channel::{ChannelCompression, ChannelWriter},
    fork::Fork,
    frame::{self, ChannelId},
    span::{BatchContext, SpanBlock, SpanBuilder},
};

/// A sequencing window, in L1 blocks, that never passes in these tests.
const LONG: u64 = 100;

/// Sets L1 to the first block of the world's L1 and new blocks with these transactions.
fn post(world: &World, salt: u8, posts: &[Vec<TxEnvelope>]) -> Vec<Header> {
    let mut headers = world.l1_headers[..1].to_vec();
    let mut blocks = vec![block_json(&headers[0])];
    for transactions in posts {
        let parent = &headers[headers.len() - 1];
        let (number, time) = (parent.number + 1, parent.timestamp + 12);
        let header = Header {
            transactions_root: calculate_transaction_root(transactions),
            ..header(number, parent.hash_slow(), time, salt)
        };
        let mut block = block_json(&header);
        block["transactions"] = serde_json::to_value(transactions).unwrap();
        blocks.push(block);
        headers.push(header);
    }
    world.l1.state.lock().blocks = blocks;
    let head = headers.last().map(block);
    world.l1_heads.send_modify(|heads| heads.head = head);
    headers
}

/// The batcher transaction with a channel of these batches.
fn channel(world: &World, id: u8, batches: &[Vec<u8>]) -> TxEnvelope {
    let id = ChannelId::repeat_byte(id);
    let mut writer = ChannelWriter::new(id, ChannelCompression::Zlib, true).unwrap();
    for batch in batches {
        writer.add(batch).unwrap();
    }
    writer.close().unwrap();
    let frames: Vec<_> = std::iter::from_fn(|| writer.next_frame(10_000).unwrap()).collect();
    let tx = TxEip1559 {
        chain_id: world.rollup.l1_chain_id,
        to: world.rollup.batch_inbox_address.into(),
        input: frame::encode(&frames).into(),
        ..Default::default()
    };
    signed(tx).into()
}

/// A batcher transaction with a blob.
fn blob_post(world: &World) -> TxEnvelope {
    let tx = TxEip4844 {
        chain_id: world.rollup.l1_chain_id,
        to: world.rollup.batch_inbox_address,
        blob_versioned_hashes: vec![B256::repeat_byte(1)],
        ..Default::default()
    };
    signed(tx).into()
}

/// Time of L2 block `number` in Unix seconds.
fn time_of(world: &World, number: u64) -> u64 {
    world.rollup.genesis.l2_time + number * world.rollup.block_time
}

/// A span batch of the blocks from 1 on, with the first L1 block as origin. `blocks` has the user
/// transactions of each block.
fn span(world: &World, blocks: &[&[Bytes]]) -> Vec<u8> {
    let genesis = &world.rollup.genesis;
    let mut span = SpanBuilder::new(BatchContext {
        genesis_time: genesis.l2_time,
        block_time: world.rollup.block_time,
        chain_id: world.rollup.l2_chain_id,
    });
    for (number, transactions) in (1..).zip(blocks) {
        let block = SpanBlock {
            epoch_number: genesis.l1.number,
            timestamp: time_of(world, number),
            transactions: transactions.to_vec().into(),
        };
        span.push(&block, genesis.l2.hash, genesis.l1.hash, false)
            .unwrap();
    }
    span.encode().unwrap()
}

/// The singular batch of L2 block `number`, with the user transactions `user`.
fn singular(world: &World, chain: &Chain, number: u64, user: &[Bytes]) -> Vec<u8> {
    let block = chain.view().payload(number).unwrap().unwrap();
    let batch = SingularBatch {
        parent_hash: block.parent_hash(),
        epoch_number: world.rollup.genesis.l1.number,
        epoch_hash: world.rollup.genesis.l1.hash,
        timestamp: block.timestamp(),
        transactions: user.to_vec().into(),
    };
    batch.encode()
}

/// A world on one L1 block, with a transfer in L2 block 1 and empty blocks above.
async fn sequenced(last: Fork) -> (World, Chain, crate::chain::Threads) {
    let world = World::through(last, 10, 1).await;
    let (chain, threads) = world.open();
    submit(&chain, transfer(0));
    world.sequence(&chain).await;
    assert!(chain.view().head().number >= 4 && transactions(&chain, 1) == 2);
    (world, chain, threads)
}

/// A block on `parent`, with the first L1 block as origin and no user transactions. Moves no head.
async fn without_transactions(world: &World, chain: &Chain, parent: &Payload) -> Arc<Payload> {
    let (l1, schedule) = (
        block(&world.l1_headers[0]),
        BlobSchedule::new(vec![(0, BlobSchedule::CANCUN)]),
    );
    let derived = attributes(&world.rollup, &schedule, parent, &l1, None).unwrap();
    let attributes = OpPayloadAttributes {
        no_tx_pool: Some(true),
        ..derived.attributes
    };
    let id = chain.start(parent.hash, attributes).await.unwrap();
    chain.seal(id).await.unwrap().payload.clone()
}

fn id_of(chain: &Chain, number: u64) -> BlockId {
    let hash = chain.view().hash_of(number).unwrap().unwrap();
    BlockId { number, hash }
}

/// A block in the middle of a span batch replaces the unsafe chain, and the next block turns out
/// invalid.
#[tokio::test(flavor = "multi_thread")]
async fn before_holocene_the_unsafe_chain_returns_when_the_rest_of_a_span_is_invalid() {
    let (world, chain, _threads) = sequenced(Fork::Granite).await;
    let (head, two) = (chain.view().head(), id_of(&chain, 2));
    let too_high = &[transfer(7)][..];
    let invalid = span(&world, &[&[], too_high, &[]]);
    let good = span(&world, &[&[transfer(0)], &[]]);
    let posts = [
        vec![channel(&world, 1, &[invalid])],
        vec![channel(&world, 2, &[good])],
    ];
    let l1 = post(&world, 1, &posts[..1]);
    let running = RunningDriver::start(driver(&world, &chain, LONG, 0));
    let status = running.derives(&l1[1]).await;
    assert_eq!(chain.view().head(), head);
    let safe = |status: RollupStatus| {
        let RollupStatus {
            safe_l2,
            local_safe_l2,
            pending_safe_l2,
            ..
        } = status;
        [safe_l2, local_safe_l2, pending_safe_l2].map(|block| block.unwrap().id)
    };
    assert_eq!(safe(status), [world.rollup.genesis.l2; 3]);
    // The next valid span finds the reinstated chain.
    let l1 = post(&world, 1, &posts);
    let status = running.derives(&l1[2]).await;
    assert_eq!(safe(status), [two; 3]);
    assert_eq!(chain.view().head(), head);
    running.stop().await;
}

/// Batches in L1 blocks from which the safe head was derived are never applied again. This includes
/// batches that were dropped as too early and would be valid now.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_applies_no_batch_that_was_dropped_before_it() {
    let (world, chain, _threads) = sequenced(Fork::Jovian).await;
    let two = id_of(&chain, 2);
    let early = singular(&world, &chain, 3, &[]);
    let posts = [
        vec![channel(&world, 1, &[early])],
        vec![channel(&world, 2, &[span(&world, &[&[transfer(0)], &[]])])],
    ];
    let l1 = post(&world, 1, &posts);
    for start in ["first", "second"] {
        let running = RunningDriver::start(driver(&world, &chain, LONG, 0));
        let status = running.derives(&l1[2]).await;
        assert_eq!(status.safe_l2.unwrap().id, two, "{start}");
        running.stop().await;
    }
}

/// A record from which derivation may begin.
#[derive(Clone, Copy, Debug)]
enum RecordKind {
    /// Block 2, the last one of an L1 block's batches.
    Whole,
    Genesis,
    /// The newest one after a reset to block 1, in the middle of an L1 block's batches.
    Reset,
    /// Block 1 with the L1 block of its batch, as if that L1 block had no other batch. Earlier builds
    /// wrote this at such a reset.
    Middle,
}

impl RecordKind {
    /// Leaves records of which the newest one is of this kind. `whole` are the records of genesis, of
    /// block 2 and of later blocks.
    async fn prepare(self, world: &World, chain: &Chain, whole: &[SafeRecord]) {
        let records = records(world);
        records.truncate(0).unwrap();
        for record in whole {
            records.record(*record).unwrap();
        }
        match self {
            Self::Whole => records.truncate(2).unwrap(),
            Self::Genesis => records.truncate(1).unwrap(),
            Self::Reset => {
                let (driver, _handle) = driver(world, chain, LONG, 0);
                let at = |number| driver.block_ref_at(number);
                let heads = StartHeads {
                    head: at(4).await.unwrap().unwrap(),
                    safe: at(1).await.unwrap().unwrap(),
                    finalized: at(0).await.unwrap().unwrap(),
                    first_l1: 0,
                    lowest_orphaned: None,
                };
                driver.move_heads(&heads).await.unwrap();
            }
            Self::Middle => records
                .record(SafeRecord {
                    l2: id_of(chain, 1),
                    derived_from: whole[1].derived_from,
                })
                .unwrap(),
        }
    }
}

/// Derivation continues after the L1 block of the newest record, so batches of that L1 block which
/// are not in the safe chain would be skipped for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_from_a_record_of_any_kind_misses_no_batch() {
    let (world, chain, _threads) = sequenced(Fork::Jovian).await;
    let transfers = [transfer(0)];
    let batch = |number, user: &[Bytes]| singular(&world, &chain, number, user);
    let posts = [
        vec![channel(&world, 1, &[batch(1, &transfers), batch(2, &[])])],
        vec![channel(&world, 2, &[batch(3, &[])])],
        vec![channel(&world, 3, &[batch(4, &[])])],
    ];
    let l1 = post(&world, 1, &posts);
    let running = RunningDriver::start(driver(&world, &chain, LONG, 0));
    running.derives(&l1[3]).await;
    running.stop().await;
    let whole = records(&world).newest(usize::MAX).unwrap();
    let safe: Vec<_> = whole.iter().map(|record| record.l2.number).collect();
    assert_eq!(safe, [0, 2, 3, 4]);
    for kind in [
        RecordKind::Whole,
        RecordKind::Genesis,
        RecordKind::Reset,
        RecordKind::Middle,
    ] {
        kind.prepare(&world, &chain, &whole).await;
        let running = RunningDriver::start(driver(&world, &chain, LONG, 0));
        let status = running.derives(&l1[3]).await;
        running.stop().await;
        assert_eq!(status.safe_l2.unwrap().id, id_of(&chain, 4), "{kind:?}");
        let written = records(&world).newest(usize::MAX).unwrap();
        assert_eq!(written, whole, "{kind:?}");
    }
}

/// The second driver's search finds the record of the first driver canonical. Then L1 replaces the
/// record's block. The batches of the new block must be applied, although its number is the same.
#[tokio::test(flavor = "multi_thread")]
async fn batches_count_where_l1_replaces_the_block_of_the_newest_record_after_the_search() {
    let (world, chain, _threads) = sequenced(Fork::Jovian).await;
    let first = channel(&world, 1, &[span(&world, &[&[transfer(0)], &[]])]);
    let second = channel(&world, 2, &[singular(&world, &chain, 3, &[])]);
    let l1 = post(&world, 1, &[vec![first.clone()]]);
    let running = RunningDriver::start(driver(&world, &chain, LONG, 0));
    let status = running.derives(&l1[1]).await;
    assert_eq!(status.safe_l2.unwrap().id, id_of(&chain, 2));
    running.stop().await;
    let (mut driver, handle) = driver(&world, &chain, LONG, 0);
    while driver.pipeline.origin() != Some(&block(&l1[0])) {
        driver.step().await.unwrap();
    }
    assert_eq!(driver.safe.unwrap().id, id_of(&chain, 2), "the record");
    let replaced = post(&world, 2, &[vec![first, second]]);
    let running = RunningDriver::start((driver, handle));
    let status = running.derives(&replaced[1]).await;
    assert_eq!(status.safe_l2.unwrap().id, id_of(&chain, 3));
    running.stop().await;
}

/// Beacon nodes serve only the blobs of canonical L1 blocks.
#[tokio::test(flavor = "multi_thread")]
async fn blobs_that_cannot_be_read_are_given_up_with_their_l1_block() {
    let (world, chain, _threads) = sequenced(Fork::Jovian).await;
    let good = vec![channel(&world, 1, &[span(&world, &[&[transfer(0)]])])];
    let running = RunningDriver::start(driver(&world, &chain, LONG, 0));
    let blobs = |salt| {
        let l1 = post(&world, salt, &[vec![], vec![blob_post(&world)]]);
        let status = running.handle.clone();
        let read = block(&l1[1]);
        async move {
            let is_there = || status.status().current_l1 == Some(read);
            until("the blobs are missing", is_there).await;
        }
    };
    blobs(1).await;
    let replaced = post(&world, 2, &[good.clone(), vec![]]);
    let status = running.derives(&replaced[2]).await;
    assert_eq!(status.safe_l2.unwrap().id, id_of(&chain, 1));
    blobs(3).await;
    let shorter = post(&world, 4, &[good]);
    let status = running.derives(&shorter[1]).await;
    assert_eq!(status.safe_l2.unwrap().id, id_of(&chain, 1));
    running.stop().await;
}

/// The head may move to another branch after a block is compared and before the block is protected.
/// A span batch must not be compared with that branch, nor be replaced by the batch behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_span_is_compared_with_the_derived_chain_alone() {
    let (world, chain, _threads) = sequenced(Fork::Granite).await;
    let (own, transfers) = (id_of(&chain, 2), &[transfer(0)][..]);
    let batches = [
        span(&world, &[transfers, &[]]),
        span(&world, &[transfers, &[], &[transfer(1)]]),
        singular(&world, &chain, 3, &[]),
    ];
    let l1 = post(&world, 1, &[vec![channel(&world, 1, &batches)]]);
    let (mut driver, handle) = driver(&world, &chain, LONG, 0);
    let pending = |driver: &RollupDriver| driver.pipeline.pending_safe().map(|block| block.id);
    while pending(&driver) != Some(own) {
        driver.step().await.unwrap();
    }
    chain.protect(None).await.unwrap().await.unwrap();
    let mut other = chain.view().payload(0).unwrap().unwrap();
    for _ in 0..3 {
        other = without_transactions(&world, &chain, &other).await;
    }
    chain.forkchoice(other.hash, None, None).await.unwrap();
    let running = RunningDriver::start((driver, handle));
    let status = running.derives(&l1[1]).await;
    assert_eq!(status.safe_l2.unwrap().id, id_of(&chain, 3));
    assert_eq!(id_of(&chain, 2), own);
    assert_eq!(transactions(&chain, 3), 2, "the span counts");
    running.stop().await;
}
