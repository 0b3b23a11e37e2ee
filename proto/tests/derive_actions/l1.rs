//! Tests with an L1 that is slow, changes the batcher or the configuration, or carries data in
//! every form.

use crate::{
    network::{L1_TIME, Network, START, STRANGER, TIMEOUT, rollup},
    transactions::{address_word, config_log, deposit},
};
use alloy_primitives::{Address, B256, U256};
use starling_proto::{
    config::RollupConfig,
    derive::{DropReason, PipelineStep},
    fork::{BlobSchedule, Fork},
    l1info::L1BlockInfo,
    system_config::FeeScalars,
};

/// A network with a sequencing window that no test here exceeds. Its nine L2 blocks are not posted
/// yet.
fn nine_blocks(fork: Fork) -> Network {
    let mut config = rollup(fork);
    config.seq_window_size = 200;
    let mut network = Network::with(config);
    network.sequence(9);
    network
}

/// The network of [`nine_blocks`], with the data items of a channel of its blocks, one frame each.
fn nine_blocks_in_pieces(fork: Fork, pieces: usize) -> (Network, Vec<Vec<u8>>) {
    let mut network = nine_blocks(fork);
    let batches = network.singular(1..=9);
    let pieces = network.pieces(&batches, pieces);
    (network, pieces)
}

/// Forks with their channel timeouts: the configured one, and Granite's.
const TIMEOUTS: [(Fork, u64); 4] = [
    (Fork::Bedrock, TIMEOUT),
    (Fork::Fjord, TIMEOUT),
    (Fork::Granite, 50),
    (Fork::Holocene, 50),
];

#[test]
fn a_channel_that_closes_in_its_last_block() {
    for (fork, timeout) in TIMEOUTS {
        let (mut network, pieces) = nine_blocks_in_pieces(fork, 2);
        network.post(pieces[0].clone());
        let opened = network.mine();
        network.mine_to(opened + timeout - 1);
        network.post(pieces[1].clone());
        assert_eq!(network.mine(), opened + timeout);
        network.expect(&[]);
        network.moves_on();
    }
}

/// One L1 block later the channel has timed out, so its closing frame belongs to no channel. The
/// bank opens a new channel for this frame, which lacks the first frames.
#[test]
fn a_channel_that_closes_late() {
    for (fork, timeout) in TIMEOUTS {
        let (mut network, pieces) = nine_blocks_in_pieces(fork, 2);
        network.post(pieces[0].clone());
        let opened = network.mine();
        network.mine_to(opened + timeout);
        network.post(pieces[1].clone());
        network.mine();
        let mut drops = vec![(DropReason::ChannelTimeout, 1)];
        drops.extend((fork == Fork::Holocene).then_some((DropReason::Frame, 1)));
        network.expect_head(0, &drops);
        // Before Canyon, this incomplete channel blocks the bank until it times out.
        if fork == Fork::Bedrock {
            network.mine_to(opened + 2 * timeout + 2);
            network.expect_head(0, &[(DropReason::ChannelTimeout, 1)]);
        }
        network.post_blocks(1..=9, false);
        network.mine();
        network.expect(&[]);
        network.moves_on();
    }
}

/// Frames with the id of a channel that timed out open it again, and it can then be completed.
#[test]
fn a_channel_that_is_opened_again() {
    for (fork, timeout) in TIMEOUTS {
        let (mut network, pieces) = nine_blocks_in_pieces(fork, 3);
        network.post(pieces[0].clone());
        network.post(pieces[1].clone());
        let opened = network.mine();
        network.mine_to(opened + timeout);
        network.post(pieces[0].clone());
        let again = network.mine();
        network.expect_head(0, &[(DropReason::ChannelTimeout, 1)]);
        network.post(pieces[1].clone());
        network.mine_to(again + timeout - 1);
        network.post(pieces[2].clone());
        network.mine();
        network.expect(&[]);
        network.moves_on();
    }
}

/// L1 blocks come late: L2 keeps its L1 origin meanwhile, and later moves through all of them.
#[test]
fn gaps_in_l1() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = nine_blocks(fork);
        network.l1_time = 20 * L1_TIME;
        network.mine();
        network.l1_time = L1_TIME;
        network.sequence(100);
        network.post_blocks(1..=60, true);
        network.mine();
        network.post_blocks(61..=109, true);
        network.mine();
        network.expect(&[]);
        let epochs: Vec<u64> = network.contents().iter().map(|(epoch, _)| *epoch).collect();
        assert_eq!(epochs[8..68], [3; 60], "the gap");
        assert!(epochs[68..].windows(2).all(|pair| pair[1] - pair[0] <= 1));
        network.moves_on();
    }
}

/// L1 has no block for longer than the sequencer drift: from then on L2 blocks are empty.
#[test]
fn a_gap_beyond_the_sequencer_drift() {
    for is_span in [false, true] {
        let mut network = nine_blocks(Fork::Ecotone);
        network.l1_time = 700;
        network.mine();
        network.l1_time = L1_TIME;
        // L1 block 3 is at second 18, and the drift is 600 seconds.
        network.sequence(300);
        let user = network.transaction();
        network.build(&[user]);
        network.post_blocks(1..=309, is_span);
        network.post_blocks(310..=310, is_span);
        network.mine();
        network.expect_head(309, &[(DropReason::SequencerDrift, 1)]);
        network.l2.truncate(310);
        network.build(&[]);
        network.post_blocks(310..=310, is_span);
        network.mine();
        network.expect(&[]);
    }
}

/// Frames by the old key count up to and including the L1 block that changes the key. Frames by the
/// new key complete the channel.
#[test]
fn the_batcher_changes_its_key_inside_the_channel_timeout() {
    let other = Address::repeat_byte(0xbb);
    for fork in [Fork::Fjord, Fork::Granite, Fork::Holocene] {
        let (mut network, pieces) = nine_blocks_in_pieces(fork, 3);
        network.post(pieces[0].clone());
        network.mine();
        network.log(config_log(0, &[address_word(other)]));
        network.post(pieces[1].clone());
        network.batcher = other;
        network.post(pieces[1].clone());
        network.mine();
        network.expect_head(0, &[(DropReason::Sender, 1)]);
        network.post(pieces[2].clone());
        network.batcher = STRANGER;
        network.post(pieces[2].clone());
        network.mine();
        network.expect(&[(DropReason::Sender, 1)]);
        network.batcher = other;
        network.moves_on();
        network.moves_on();
        let info = L1BlockInfo::of(network.head()).unwrap();
        assert_eq!(info.batcher_addr, other);
    }
}

/// The L1 attributes of the head after a configuration log in L1 block 2.
fn configured(fork: Fork, kind: u8, words: &[U256]) -> (Network, L1BlockInfo) {
    let mut network = Network::new(fork);
    network.mine();
    network.log(config_log(kind, words));
    network.mine();
    network.sequence(9);
    network.post_blocks(1..=9, true);
    network.mine();
    network.expect(&[]);
    network.moves_on();
    let info = L1BlockInfo::of(network.head()).unwrap();
    (network, info)
}

#[test]
fn the_gas_limit_changes_with_the_epoch() {
    for fork in [Fork::Granite, Fork::Holocene, Fork::Karst] {
        let (network, _) = configured(fork, 2, &[U256::from(40_000_000)]);
        let limits = network
            .verifier
            .chain
            .iter()
            .map(|block| block.header.gas_limit);
        let limits: Vec<u64> = limits.collect();
        let (before, after) = limits.split_at(6);
        assert_eq!(before, [30_000_000; 6], "{fork:?}");
        assert!(after.iter().all(|limit| *limit == 40_000_000), "{fork:?}");
    }
}

#[test]
fn fee_scalars_change_with_the_epoch() {
    let scalars = FeeScalars {
        base_fee: 77,
        blob_base_fee: 88,
    };
    let words = [U256::from(5), U256::from_be_bytes(scalars.encode().0)];
    for fork in [Fork::Ecotone, Fork::Holocene, Fork::Karst] {
        let (_, info) = configured(fork, 1, &words);
        assert_eq!(
            (info.base_fee_scalar, info.blob_base_fee_scalar),
            (77, 88),
            "{fork:?}"
        );
    }
    let (_, info) = configured(Fork::Delta, 1, &[U256::from(5), U256::from(9)]);
    assert_eq!(info.overhead, B256::from(U256::from(5)));
    assert_eq!(info.scalar, B256::from(U256::from(9)));

    let operator = (U256::from(12) << 64) | U256::from(34);
    let (_, info) = configured(Fork::Isthmus, 5, &[operator]);
    assert_eq!(
        (info.operator_fee_scalar, info.operator_fee_constant),
        (12, 34)
    );
    let (_, info) = configured(Fork::Jovian, 7, &[U256::from(500)]);
    assert_eq!(info.da_footprint_gas_scalar, 500);
    let (network, _) = configured(Fork::Jovian, 6, &[U256::from(1_000_000)]);
    assert_eq!(
        network.head().header.extra_data[9..],
        1_000_000_u64.to_be_bytes()
    );
    let params = (U256::from(100) << 32) | U256::from(3);
    let (network, _) = configured(Fork::Holocene, 4, &[params]);
    let expected = [0, 0, 0, 0, 100, 0, 0, 0, 3];
    assert_eq!(network.head().header.extra_data[..], expected);
}

/// A malformed configuration log changes nothing; the L1 traversal counts it.
#[test]
fn a_configuration_log_that_cannot_be_read() {
    let mut network = nine_blocks(Fork::Holocene);
    network.log(config_log(99, &[U256::from(1)]));
    network.log(config_log(2, &[U256::MAX]));
    network.mine();
    network.sequence(9);
    network.post_blocks(1..=18, true);
    network.mine();
    network.expect(&[(DropReason::ConfigLog, 2)]);
    network.moves_on();
}

#[test]
fn deposits_are_in_the_first_block_of_their_epoch() {
    let mut network = Network::new(Fork::Holocene);
    network.log(deposit(1));
    network.log(deposit(2));
    network.mine();
    network.sequence(9);
    network.post_blocks(1..=9, true);
    network.mine();
    network.expect(&[]);
    let counts = network.verifier.chain[1..].iter();
    let counts: Vec<_> = counts.map(|block| block.transactions.len()).collect();
    assert_eq!(counts, [2, 2, 4, 2, 2, 2, 2, 2, 2]);
    network.moves_on();
}

/// Frames of one channel, in the blobs of two transactions and in calldata, are read in block
/// order.
#[test]
fn several_blobs_and_calldata_in_one_block() {
    for fork in [Fork::Ecotone, Fork::Granite, Fork::Holocene] {
        let (mut network, pieces) = nine_blocks_in_pieces(fork, 6);
        network.post_blobs(&pieces[..2]);
        network.post(pieces[2].clone());
        network.batcher = STRANGER;
        network.post_blobs(&pieces[..1]);
        network.batcher = crate::network::BATCHER;
        network.post_blobs(&pieces[3..5]);
        network.post(pieces[5].clone());
        network.mine();
        network.expect(&[(DropReason::Sender, 1)]);
        assert_eq!(network.verifier.fetched.len(), 4);
        network.moves_on();
    }
}

/// The blob base fee: e^(excess / fraction).
fn price(excess: u64, fraction: u64) -> f64 {
    (excess as f64 / fraction as f64).exp()
}

/// Blob base fees with the fractions of Cancun, Prague, BPO1 and BPO2, as L1 passes these forks. A
/// rollup with a Pectra blob schedule uses Cancun's fraction until the schedule's time.
#[test]
fn blob_schedules_of_l1() {
    let at = |number: u64| START + number * L1_TIME;
    let steps = vec![
        (0, BlobSchedule::CANCUN),
        (at(3), BlobSchedule::PRAGUE),
        (at(6), BlobSchedule::BPO1),
        (at(9), BlobSchedule::BPO2),
    ];
    for pectra in [None, Some(at(5))] {
        let config = RollupConfig {
            pectra_blob_schedule_time: pectra,
            seq_window_size: 200,
            ..rollup(Fork::Karst)
        };
        let mut network = Network::on(config, BlobSchedule::new(steps.clone()));
        network.excess_blob_gas = 50_000_000;
        network.sequence(36);
        network.post_blocks(1..=36, true);
        network.mine();
        network.expect(&[]);
        for block in &network.verifier.chain[3..] {
            let info = L1BlockInfo::of(block).unwrap();
            let fraction = match info.number {
                0..3 => 3_338_477,
                3..5 if pectra.is_some() => 3_338_477,
                3..6 => 5_007_716,
                6..9 => 8_346_193,
                _ => 11_684_671,
            };
            let ratio = info.blob_base_fee.to::<u64>() as f64 / price(50_000_000, fraction);
            assert!((0.98..=1.0).contains(&ratio), "{}: {ratio}", info.number);
        }
        network.moves_on();
    }
}

/// Data are read from every L1 block up to the head, at which the pipeline idles.
#[test]
fn the_pipeline_idles_at_the_head_of_l1() {
    let mut network = nine_blocks(Fork::Holocene);
    for _ in 0..3 {
        let head = network.mine();
        let PipelineStep::Idle { origin, next } = network.run() else {
            panic!("idle");
        };
        assert_eq!((origin.map(|id| id.number), next), (Some(head), head + 1));
    }
}
