//! Tests of batches that are late, early, partial, overlapping, contradicting or invalid.

use crate::network::{Network, WINDOW};
use alloy_primitives::{B256, Bytes};
use starling_proto::{batch::SingularBatch, derive::DropReason, fork::Fork, span::SpanBlock};

/// A network with nine L2 blocks on three L1 blocks. The L2 blocks are not posted yet.
fn nine_blocks(fork: Fork) -> Network {
    let mut network = Network::new(fork);
    network.sequence(9);
    network
}

/// Every combination of batch stage and kind of batch.
const STAGES: [(Fork, bool); 4] = [
    (Fork::Granite, false),
    (Fork::Granite, true),
    (Fork::Holocene, false),
    (Fork::Holocene, true),
];

#[test]
fn a_batch_in_the_last_possible_l1_block() {
    for (fork, is_span) in STAGES {
        let mut network = nine_blocks(fork);
        network.mine_to(WINDOW - 1);
        network.post_blocks(1..=9, is_span);
        assert_eq!(network.mine(), WINDOW);
        network.expect(&[]);
        network.moves_on();
    }
}

/// One L1 block later the sequencing window of epoch 0 has expired. Blocks 1 and 2 are then forced
/// to be empty, so no batch fits. The L1 block with the batches ends the window of epoch 1.
#[test]
fn a_batch_after_the_last_possible_l1_block() {
    use DropReason::*;
    for (fork, is_span) in STAGES {
        let mut network = nine_blocks(fork);
        network.mine_to(WINDOW);
        network.derive();
        assert_eq!(network.contents(), [(0, 0); 2], "{fork:?} {is_span}");
        network.post_blocks(1..=9, is_span);
        network.mine();
        network.derive();
        network.l2.clone_from(&network.verifier.chain);
        let epochs = [0, 0, 1, 1, 1].map(|epoch| (epoch, 0));
        assert_eq!(network.contents(), epochs, "{fork:?} {is_span}");
        let drops: &[_] = match (fork, is_span) {
            // The batches of blocks 1 and 2 are past, those of 3 to 6 have another parent, 7 to 9
            // wait.
            (Fork::Granite, false) => &[(PastBatch, 2), (BatchParent, 4)],
            (Fork::Granite, true) => &[(BatchWindow, 1)],
            (_, false) => &[(PastBatch, 2), (BatchParent, 1), (ChannelFlushed, 1)],
            (_, true) => &[(BatchWindow, 1), (ChannelFlushed, 1)],
        };
        network.expect(drops);
        network.moves_on();
    }
}

/// A batch that fits the forced chain, but keeps an L1 origin whose window has expired.
#[test]
fn a_late_batch_on_the_forced_chain() {
    use DropReason::{BatchWindow, ChannelFlushed};
    for (fork, is_span) in STAGES {
        let mut network = Network::new(fork);
        network.mine_to(WINDOW);
        network.derive();
        network.l2.clone_from(&network.verifier.chain);
        let user = network.transaction();
        network.build_at(0, &[user]);
        network.post_blocks(3..=3, is_span);
        network.mine();
        network.derive();
        network.l2.clone_from(&network.verifier.chain);
        let epochs = [0, 0, 1, 1, 1].map(|epoch| (epoch, 0));
        assert_eq!(network.contents(), epochs, "{fork:?} {is_span}");
        let drops = [(BatchWindow, 1), (ChannelFlushed, 1)];
        network.expect(if fork == Fork::Granite {
            &drops[..1]
        } else {
            &drops
        });
        network.moves_on();
    }
}

/// Windows that expire one after another: every epoch is filled with empty blocks.
#[test]
fn expired_windows() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = Network::new(fork);
        network.mine_to(WINDOW + 3);
        network.derive();
        let expected: Vec<_> = [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
            .map(|epoch| (epoch, 0))
            .into();
        assert_eq!(network.contents(), expected, "{fork:?}");
        assert!(
            network
                .verifier
                .pipeline
                .drain_drops()
                .iter()
                .next()
                .is_none()
        );
        network.moves_on();
    }
}

/// A batch for blocks whose ancestors are posted later. Before Holocene the batch waits. In
/// Holocene it is dropped and must be posted again.
#[test]
fn early_batches() {
    for (fork, is_span) in STAGES {
        let mut network = nine_blocks(fork);
        network.post_blocks(5..=9, is_span);
        network.mine();
        let early: &[_] = &[
            (DropReason::FutureBatch, 1),
            (DropReason::ChannelFlushed, 1),
        ];
        network.expect_head(0, if fork == Fork::Granite { &[] } else { early });
        network.post_blocks(1..=4, is_span);
        network.mine();
        if fork == Fork::Holocene {
            network.expect_head(4, &[]);
            network.post_blocks(5..=9, is_span);
            network.mine();
        }
        network.expect(&[]);
        network.moves_on();
    }
}

#[test]
fn batches_posted_twice() {
    for (fork, is_span) in STAGES {
        let mut network = nine_blocks(fork);
        network.post_blocks(1..=9, is_span);
        network.post_blocks(1..=9, is_span);
        network.mine();
        let batches = if is_span { 1 } else { 9 };
        network.expect(&[(DropReason::PastBatch, batches)]);
        network.moves_on();
    }
}

#[test]
fn spans_that_overlap_the_safe_chain() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        network.post_blocks(1..=3, true);
        network.mine();
        network.expect_head(3, &[]);
        network.post_blocks(2..=5, true);
        network.post_blocks(1..=7, true);
        network.post_blocks(7..=9, true);
        network.mine();
        network.expect(&[]);
        network.moves_on();
    }
}

/// Spans from block `first` on that contradict the safe chain: with other transactions, another L1
/// origin, or another parent.
#[test]
fn spans_that_contradict_the_safe_chain() {
    use DropReason::{BatchParent, ChannelFlushed, SpanOverlap};
    for fork in [Fork::Granite, Fork::Holocene] {
        for first in [2, 3, 6] {
            let mut network = nine_blocks(fork);
            network.post_blocks(1..=6, false);
            network.mine();
            network.expect_head(6, &[]);
            let good = network.l2.clone();

            network.l2.truncate(first as usize);
            network.sequence(10 - first);
            network.post_blocks(first..=9, true);
            if first < 6 {
                network.post_blocks(first + 1..=9, true);
            }
            if first % 3 == 0 {
                let user = good[first as usize].transactions[1..].to_vec();
                network.l2.truncate(first as usize);
                network.build_at(first / 3 - 1, &user);
                network.sequence(9 - first);
                network.post_blocks(first..=9, true);
            }
            network.l2 = good;
            network.mine();
            let overlaps = 1 + u64::from(first % 3 == 0);
            let parents = u64::from(first < 6);
            let mut drops = vec![(SpanOverlap, overlaps)];
            drops.extend((parents > 0).then_some((BatchParent, parents)));
            drops.extend((fork == Fork::Holocene).then_some((ChannelFlushed, overlaps + parents)));
            network.expect_head(6, &drops);
            network.post_blocks(7..=9, true);
            network.mine();
            network.expect(&[]);
            network.moves_on();
        }
    }
}

/// A block of a span breaks a rule. In Holocene the blocks before it remain; before Holocene none
/// does.
#[test]
fn a_partial_span() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        let set_code = crate::transactions::set_code(1);
        network.l2.truncate(6);
        network.build(&[set_code]);
        network.sequence(3);
        network.post_blocks(1..=9, true);
        network.mine();
        let mut drops = vec![(DropReason::BatchTransaction, 1)];
        if fork == Fork::Holocene {
            drops.extend([(DropReason::SpanRest, 1), (DropReason::ChannelFlushed, 1)]);
        }
        network.expect_head(if fork == Fork::Granite { 0 } else { 5 }, &drops);
        network.moves_on();
    }
}

/// Before Holocene the whole span is dropped, and the head moves back to the span's parent. In
/// Holocene the invalid block is replaced by its deposits, and the rest of the span is dropped.
#[test]
fn an_invalid_payload_inside_a_span() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        network.post_blocks(1..=2, true);
        network.mine();
        network.expect_head(2, &[]);
        let bad = network.batch(6).transactions.iter().next().unwrap();
        network.verifier.refused.insert(bad);
        network.post_blocks(3..=9, true);
        network.mine();
        if fork == Fork::Granite {
            let drops = [(DropReason::InvalidBlock, 1), (DropReason::SpanRest, 1)];
            network.derive();
            assert_eq!(network.verifier.safe.last(), Some(&(2, 4)));
            let head = network.verifier.pipeline.pending_safe().unwrap();
            assert_eq!(head.id, network.l2[2].id());
            network.verifier.chain.truncate(3);
            network.expect_head(2, &drops);
        } else {
            network.l2.truncate(6);
            network.build(&[]);
            let drops = [
                (DropReason::InvalidBlock, 1),
                (DropReason::SpanRest, 1),
                (DropReason::ChannelFlushed, 1),
            ];
            network.expect(&drops);
            assert_eq!(network.verifier.safe.last(), Some(&(6, 5)));
        }
        network.moves_on();
    }
}

/// An invalid block in a singular batch: before Holocene the batch is dropped, and later batches do
/// not fit.
#[test]
fn an_invalid_payload_in_a_singular_batch() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        // Transactions that do not decode: the batch rules do not check this, but the engine does.
        let broken = Bytes::from_static(&[2, 0xff, 0xff]);
        network.verifier.refused.insert(broken.clone());
        network.l2.truncate(4);
        network.build(&[broken]);
        network.sequence(2);
        network.post_blocks(1..=6, false);
        network.mine();
        if fork == Fork::Granite {
            let drops = [(DropReason::InvalidBlock, 1)];
            network.expect_head(3, &drops);
        } else {
            network.l2.truncate(4);
            network.build(&[]);
            network.expect(&[
                (DropReason::InvalidBlock, 1),
                (DropReason::ChannelFlushed, 1),
            ]);
        }
        network.moves_on();
    }
}

/// The batch of block 4 is changed. Valid batches precede and follow it in the same channel.
#[test]
fn batches_that_break_a_rule() {
    type Change = fn(&mut SingularBatch);
    use DropReason::*;
    let cases: [(Change, DropReason); 11] = [
        (|batch| batch.parent_hash = B256::ZERO, BatchParent),
        (|batch| batch.epoch_hash = B256::ZERO, BatchOrigin),
        (|batch| batch.epoch_number = 0, BatchOrigin),
        (|batch| batch.epoch_number = 3, BatchOrigin),
        (|batch| batch.epoch_number = u64::MAX, BatchOrigin),
        (|batch| batch.timestamp = 0, PastBatch),
        (|batch| batch.timestamp -= 1, PastBatch),
        (
            |batch| batch.transactions.push(Bytes::new()),
            BatchTransaction,
        ),
        (
            |batch| batch.transactions.push([0x7e, 1].into()),
            BatchTransaction,
        ),
        (
            |batch| batch.transactions.push([0x7d, 1].into()),
            BatchTransaction,
        ),
        (
            |batch| batch.transactions.push([4, 1].into()),
            BatchTransaction,
        ),
    ];
    for fork in [Fork::Granite, Fork::Holocene] {
        for (change, reason) in &cases {
            let mut network = nine_blocks(fork);
            let mut batches = network.singular(1..=4);
            let mut batch = network.batch(4);
            change(&mut batch);
            batches.insert(3, batch.encode());
            let item = network.channel(&batches);
            network.post(item);
            network.mine();
            // Holocene also drops the channel, unless the batch is only past.
            let is_flushed = fork == Fork::Holocene && *reason != PastBatch;
            let mut drops = vec![(*reason, 1)];
            drops.extend(is_flushed.then_some((ChannelFlushed, 1)));
            network.expect_head(if is_flushed { 3 } else { 4 }, &drops);
            network.moves_on();
        }
    }
}

/// The parts of a span batch.
struct SpanParts {
    blocks: Vec<SpanBlock>,
    parent: B256,
    origin: Option<B256>,
}

impl SpanParts {
    fn shift(&mut self, epochs: i64, seconds: i64) {
        for block in &mut self.blocks {
            block.epoch_number = block.epoch_number.checked_add_signed(epochs).unwrap();
            block.timestamp = block.timestamp.checked_add_signed(seconds).unwrap();
        }
    }
}

/// A change to the span of blocks 4 to 9 on safe block 3, and the expected drops.
struct BrokenSpan {
    change: fn(&mut SpanParts),
    before_holocene: Vec<DropReason>,
    since_holocene: Vec<DropReason>,
}

impl BrokenSpan {
    /// A change for which the span is dropped with this reason; from Holocene on its channel, too.
    fn new(reason: DropReason, change: fn(&mut SpanParts)) -> Self {
        Self {
            change,
            before_holocene: vec![reason],
            since_holocene: vec![reason, DropReason::ChannelFlushed],
        }
    }
}

fn broken_spans() -> [BrokenSpan; 8] {
    use DropReason::*;
    [
        BrokenSpan::new(BatchParent, |span| span.parent = B256::ZERO),
        BrokenSpan::new(BatchOrigin, |span| span.origin = Some(B256::ZERO)),
        // The first L1 origin is more than one above the parent's, or below it.
        BrokenSpan::new(BatchOrigin, |span| span.shift(2, 0)),
        BrokenSpan::new(BatchOrigin, |span| span.shift(-1, 0)),
        // The L1 origin is later than the block.
        BrokenSpan {
            since_holocene: vec![BatchTime, SpanRest, ChannelFlushed],
            ..BrokenSpan::new(BatchTime, |span| span.shift(1, 0))
        },
        // Timestamps between those of the chain; one case begins with the genesis block.
        BrokenSpan::new(BatchTime, |span| span.shift(0, -1)),
        BrokenSpan::new(BatchTime, |span| span.shift(0, -3)),
        BrokenSpan {
            since_holocene: vec![BatchUndecided],
            ..BrokenSpan::new(BatchParent, |span| span.shift(0, -8))
        },
    ]
}

/// Changes the span of blocks 4 to 9 on safe block 3, and posts it.
fn post_changed_span(network: &mut Network, change: fn(&mut SpanParts)) {
    let mut parts = SpanParts {
        blocks: (4..=9).map(|number| network.span_block(number)).collect(),
        parent: network.l2[3].hash,
        origin: None,
    };
    change(&mut parts);
    let span = network.span_of(&parts.blocks, parts.parent, parts.origin);
    let item = network.channel(&[span]);
    network.post(item);
}

#[test]
fn spans_that_break_a_rule() {
    for fork in [Fork::Granite, Fork::Holocene] {
        for broken in broken_spans() {
            let mut network = nine_blocks(fork);
            network.post_blocks(1..=3, false);
            network.mine_to(6);
            network.expect_head(3, &[]);
            post_changed_span(&mut network, broken.change);
            network.mine();
            let drops = if fork == Fork::Granite {
                broken.before_holocene
            } else {
                broken.since_holocene
            };
            let drops: Vec<_> = drops.iter().map(|reason| (*reason, 1)).collect();
            network.expect_head(3, &drops);
            network.post_blocks(4..=9, true);
            network.mine();
            network.expect(&[]);
            network.moves_on();
        }
    }
}

/// A span whose last L1 origin is not derived yet: before Holocene it waits, in Holocene it is
/// skipped.
#[test]
fn a_span_that_is_ahead_of_l1() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        network.post_blocks(1..=9, true);
        // L1 block 3 is the origin of L2 block 9. The batch is in L1 block 3 and in the block
        // before.
        let posted = std::mem::take(&mut network.inbox);
        network.l1[2].input.inbox.clone_from(&posted);
        network.l1[3].input.inbox = posted;
        let skipped = [(DropReason::BatchUndecided, 1)];
        network.expect(if fork == Fork::Granite {
            &[(DropReason::PastBatch, 1)]
        } else {
            &skipped
        });
        network.moves_on();
    }
}
