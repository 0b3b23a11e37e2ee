//! Tests of forks inside batches and channels, and of chains that begin in each fork.

use crate::{
    network::{L1_TIME, Network, START, rollup},
    transactions::set_code,
};
use starling_proto::{
    config::RollupConfig, derive::DropReason, fork::Fork, upgrades::upgrade_transactions,
};

/// The fork preceding `fork`.
fn before(fork: Fork) -> Fork {
    Fork::ALL[fork as usize - 1]
}

/// A rollup with every earlier fork active from genesis, and `fork` this many seconds after
/// genesis.
fn activating(fork: Fork, seconds: u64) -> RollupConfig {
    let mut config = rollup(before(fork));
    config.forks = config.forks.with(fork, Some(START + seconds));
    config
}

fn since(fork: Fork) -> impl Iterator<Item = Fork> {
    Fork::ALL.into_iter().filter(move |other| *other >= fork)
}

#[test]
fn every_fork_at_genesis() {
    for fork in since(Fork::Regolith) {
        for is_span in [false, true]
            .into_iter()
            .take(1 + usize::from(fork >= Fork::Delta))
        {
            let mut network = Network::new(fork);
            network.sequence(9);
            network.post_blocks(1..=9, is_span);
            network.mine();
            network.expect(&[]);
            network.moves_on();
        }
    }
}

/// One fork activates every four blocks. Every five blocks are posted in a channel, so that batches
/// and channels of both kinds cross forks.
#[test]
fn one_chain_from_regolith_to_karst() {
    for is_span in [false, true] {
        let mut config = rollup(Fork::Regolith);
        for (fork, at) in since(Fork::Canyon).zip(1..) {
            config.forks = config
                .forks
                .with(fork, Some(START + at * 4 * config.block_time));
        }
        let mut network = Network::with(config);
        for round in 0..12 {
            let first = network.head().number() + 1;
            network.sequence(5);
            let origin = network.reference(&network.l2[first as usize]).origin.number;
            let time = network.l1[origin as usize].input.block.time;
            let delta = network.rollup.forks.is_active(Fork::Delta, time);
            network.post_blocks(first..=first + 4, is_span && delta);
            network.mine();
            network.expect(&[]);
            assert_eq!(network.verifier.chain.len(), 5 * round + 6);
        }
        let has_upgrade = |fork: &Fork| {
            let last = upgrade_transactions(*fork).into_iter().next_back();
            last.is_some_and(|upgrade| {
                let raw = alloy_eips::eip2718::Encodable2718::encoded_2718(&upgrade);
                let mut all = network.l2.iter().flat_map(|block| &block.transactions);
                all.any(|transaction| transaction[..] == raw[..])
            })
        };
        let upgrades: Vec<Fork> = since(Fork::Canyon).filter(has_upgrade).collect();
        let expected = [
            Fork::Ecotone,
            Fork::Fjord,
            Fork::Isthmus,
            Fork::Jovian,
            Fork::Karst,
        ];
        assert_eq!(upgrades, expected);
        network.moves_on();
    }
}

/// Each fork from Ecotone on activates at block 5 of a span of nine blocks.
#[test]
fn a_fork_in_mid_span() {
    for fork in since(Fork::Ecotone) {
        let mut network = Network::with(activating(fork, 10));
        network.sequence(9);
        network.post_blocks(1..=9, true);
        network.mine();
        network.expect(&[]);
        let limits: Vec<u64> = network
            .l2
            .iter()
            .map(|block| block.header.gas_limit)
            .collect();
        let upgrade = if fork == Fork::Karst { 55_370_657 } else { 0 };
        assert_eq!(
            limits[4..=6],
            [30_000_000, 30_000_000 + upgrade, 30_000_000]
        );
        network.moves_on();
    }
}

/// A chain whose later blocks keep the additional gas of the Karst upgrade.
#[test]
fn karst_gas_that_is_kept() {
    let config = RollupConfig {
        keep_karst_upgrade_gas: true,
        ..activating(Fork::Karst, 10)
    };
    let mut network = Network::with(config);
    network.sequence(9);
    network.post_blocks(1..=9, true);
    network.mine();
    network.expect(&[]);
    assert_eq!(network.head().header.gas_limit, 85_370_657);
    network.moves_on();
}

/// Before Delta a span is skipped alone. Two conditions apply: the L1 block with its channel, and
/// the L1 origin of its first block, must be in Delta.
#[test]
fn a_span_before_delta() {
    let mut network = Network::with(activating(Fork::Delta, 5 * L1_TIME));
    network.sequence(12);
    assert_eq!(network.l1_head(), 4);
    // L1 block 5 is the first in Delta. The first L2 block with origin 5 is number 15.
    let mut batches = vec![network.span(1..=3)];
    batches.extend(network.singular(1..=3));
    let item = network.channel(&batches);
    network.l1.pop();
    network.post(item);
    network.mine();
    network.expect_head(3, &[(DropReason::SpanBeforeDelta, 1)]);

    network.l2.truncate(4);
    network.sequence(17);
    let mut batches = vec![network.span(4..=14)];
    batches.extend(network.singular(4..=14));
    batches.push(network.span(15..=20));
    let item = network.channel(&batches);
    network.post(item);
    network.mine();
    network.expect(&[(DropReason::SpanBeforeDelta, 1)]);
    network.moves_on();
}

/// A span with the first L1 origin in Delta is only valid if it is posted in an L1 block in Delta.
/// The same applies if the origin was not derived yet when the span was read.
#[test]
fn a_span_that_is_posted_before_the_first_l1_block_of_delta() {
    let mut network = Network::with(activating(Fork::Delta, 5 * L1_TIME));
    network.sequence(17);
    assert_eq!(network.l1_head(), 5);
    let mut batches = network.singular(1..=14);
    batches.push(network.span(15..=17));
    let item = network.channel(&batches);
    network.l1.truncate(4);
    network.post(item.clone());
    assert_eq!(network.mine(), 4);
    network.expect_head(14, &[(DropReason::SpanBeforeDelta, 1)]);
    network.mine();
    network.expect_head(14, &[]);
    network.post(item);
    network.mine();
    network.expect(&[(DropReason::PastBatch, 14)]);
    network.moves_on();
}

/// Frames and batches from before Holocene are lost at its first L1 block. Channels posted as a
/// whole afterwards are read.
#[test]
fn frames_across_the_activation_of_holocene() {
    let mut network = Network::with(activating(Fork::Holocene, 5 * L1_TIME));
    network.sequence(9);
    let pieces = {
        let batches = network.singular(1..=9);
        network.pieces(&batches, 3)
    };
    network.post(pieces[0].clone());
    network.post_blocks(5..=9, false);
    network.mine();
    network.expect_head(0, &[]);
    // The queued batches 5 to 9 are lost without being counted. The frames belong to no channel.
    network.post(pieces[1].clone());
    network.post(pieces[2].clone());
    network.post_blocks(1..=4, false);
    assert_eq!(network.mine(), 5);
    network.expect_head(4, &[(DropReason::Frame, 2)]);
    network.post_blocks(5..=9, true);
    network.mine();
    network.expect(&[]);
    network.moves_on();
}

/// A span accepted before Holocene: its blocks are built with the old stage's rules until the L1
/// block in which Holocene activates.
#[test]
fn a_span_in_the_last_l1_block_before_holocene() {
    let mut network = Network::with(activating(Fork::Holocene, 5 * L1_TIME));
    network.sequence(9);
    network.post_blocks(1..=9, true);
    assert_eq!(network.mine(), 4);
    network.expect(&[]);
    assert_eq!(network.verifier.safe, [(9, 4)], "one span concludes once");
    network.sequence(9);
    network.post_blocks(10..=18, true);
    network.mine();
    network.expect(&[]);
    assert_eq!(network.verifier.safe.len(), 10, "every block concludes");
    network.moves_on();
}

#[test]
fn type_4_around_isthmus() {
    for is_span in [false, true] {
        let mut network = Network::with(activating(Fork::Isthmus, 10));
        network.sequence(4);
        network.build(&[]);
        network.build(&[set_code(1)]);
        network.sequence(3);
        network.post_blocks(1..=9, is_span);
        network.mine();
        network.expect(&[]);
        network.moves_on();

        // One block earlier this type of transaction is not allowed.
        let mut network = Network::with(activating(Fork::Isthmus, 10));
        network.sequence(3);
        let good = network.l2.clone();
        network.build(&[set_code(1)]);
        network.build(&[]);
        network.post_blocks(1..=5, is_span);
        network.mine_to(4);
        let mut drops = vec![
            (DropReason::BatchTransaction, 1),
            (DropReason::ChannelFlushed, 1),
        ];
        drops.extend(is_span.then_some((DropReason::SpanRest, 1)));
        network.expect_head(3, &drops);
        network.l2 = good;
        network.moves_on();
    }
}

/// Batches with user transactions for the first block of Jovian or Karst are dropped, whatever
/// their kind. An empty batch for this block is applied.
#[test]
fn user_transactions_in_the_first_block_of_jovian_and_karst() {
    for fork in [Fork::Jovian, Fork::Karst] {
        for is_span in [false, true] {
            let mut network = Network::with(activating(fork, 10));
            network.sequence(4);
            let good = network.l2.clone();
            let user = network.transaction();
            network.build(&[user]);
            network.sequence(4);
            network.post_blocks(1..=9, is_span);
            network.mine();
            let mut drops = vec![
                (DropReason::ActivationBlock, 1),
                (DropReason::ChannelFlushed, 1),
            ];
            drops.extend(is_span.then_some((DropReason::SpanRest, 1)));
            network.expect_head(4, &drops);
            network.l2 = good;
            network.sequence(5);
            network.post_blocks(5..=9, is_span);
            network.mine();
            network.expect(&[]);
            network.moves_on();
        }
    }
}

/// Forks before Jovian do not require that their first block is empty, although a sequencer leaves
/// some of these blocks empty.
#[test]
fn user_transactions_in_the_first_block_of_earlier_forks() {
    for fork in [
        Fork::Canyon,
        Fork::Ecotone,
        Fork::Fjord,
        Fork::Granite,
        Fork::Holocene,
        Fork::Isthmus,
    ] {
        let mut network = Network::with(activating(fork, 10));
        network.sequence(4);
        let user = network.transaction();
        network.build(&[user]);
        network.sequence(4);
        network.post_blocks(1..=9, false);
        network.mine();
        network.expect(&[]);
        network.moves_on();
    }
}

/// L1 blocks every 12 seconds, with L2 blocks every 1, 2 or 12 seconds.
#[test]
fn block_times() {
    for block_time in [1, 2, 12] {
        for fork in [Fork::Granite, Fork::Holocene] {
            let mut config = rollup(fork);
            config.block_time = block_time;
            let mut network = Network::with(config);
            network.l1_time = 12;
            let blocks = 5 * 12 / block_time + 1;
            network.sequence(blocks);
            network.post_blocks(1..=blocks, true);
            network.mine();
            network.expect(&[]);
            let epochs: Vec<u64> = network.contents().iter().map(|(epoch, _)| *epoch).collect();
            let expected: Vec<u64> = (1..=blocks)
                .map(|number| number * block_time / 12)
                .collect();
            assert_eq!(epochs, expected);
            // The sequencing windows expire at the same L1 block for every block time.
            network.mine_to(crate::network::WINDOW + 6);
            network.derive();
            let last = network.contents().last().unwrap().0;
            assert_eq!(last, 6, "{fork:?} {block_time}");
            network.moves_on();
        }
    }
}
