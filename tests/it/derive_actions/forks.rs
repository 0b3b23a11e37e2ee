//! A verifier whose batches and L1 cross forks: span batches before Delta, frames before and after
//! the activation of Holocene, type 4 transactions before and after Isthmus, and each fork in
//! succession. The forks of L1 change its blob fees.

use super::{
    author::Author,
    data::{grow, mine_items, stays_below},
    world::{ActionPlan, ActionWorld, START, VerifierLinks},
};
use crate::net::ask;
use alloy_primitives::U256;
use serde_json::{Value, json};
use starling_proto::{
    batch::SingularBatch,
    fork::{Fork, ForkSchedule},
    l1info::L1BlockInfo,
    payload::Payload,
};
use std::sync::Arc;

/// Seconds between L1 blocks.
const L1_PERIOD: u64 = 12;

/// The time that is `seconds` after both genesis blocks.
fn at(seconds: u64) -> Option<u64> {
    Some(START + seconds)
}

/// Mines L1 blocks until the head's timestamp is at least `time`.
fn mine_until(world: &mut ActionWorld, time: u64) {
    while world.l1.head().block.time < time {
        world.l1.mine(&[]);
    }
}

/// Posts one channel with a span batch of the blocks without their transactions, and then the
/// blocks as singular batches. If the span batch is valid, its empty blocks are derived.
fn post_an_empty_span_first(world: &mut ActionWorld, blocks: &[Arc<Payload>]) {
    let empty = |_, block: &mut starling_proto::span::SpanBlock| block.transactions = vec![].into();
    let mut batches = vec![world.author.span_with(blocks, empty)];
    let singular = blocks.iter().map(|block| world.author.singular(block));
    batches.extend(singular.map(|batch: SingularBatch| batch.encode()));
    let call = world.post(&batches);
    world.l1.mine(&[call]);
}

/// A span batch is dropped if the L1 block with its channel, or the L1 origin of its first block,
/// is before Delta. Later batches in the same channel are still read.
#[test]
fn a_verifier_skips_span_batches_before_delta_and_reads_on_in_their_channel() {
    let delta = 6 * L1_PERIOD;
    let mut world = ActionWorld::new(ActionPlan {
        forks: ForkSchedule::from_genesis(Fork::Canyon).with(Fork::Delta, at(delta)),
        ..ActionPlan::default()
    });
    let blocks = grow(&mut world);
    post_an_empty_span_first(&mut world, &blocks);
    assert!(world.l1.head().block.time < START + delta);
    world.settle();

    mine_until(&mut world, START + delta + L1_PERIOD);
    let blocks = world.extend(world.l1.height() - 1);
    let first_origin = world.author.origin(&blocks[0]);
    assert!(first_origin * L1_PERIOD < delta, "{first_origin}");
    post_an_empty_span_first(&mut world, &blocks);
    world.settle();

    let blocks = grow(&mut world);
    let call = world.post_span(&blocks);
    world.l1.mine(&[call]);
    world.settle();
}

/// Frames and complete batches from before Holocene are dropped at its first L1 block.
fn frames_on_both_sides_of_holocene(world: &mut ActionWorld, holocene: u64) {
    let blocks = grow(world);
    let items = world.items(&blocks, 3);
    // A batch that has to wait for the batches before it.
    let late = world.post_singular(&blocks[1..]);
    let opening = world.calldata(&items[0]);
    world.l1.mine(&[opening, late]);
    stays_below(world, &blocks[0]);
    assert!(world.l1.head().block.time < holocene);
    mine_until(world, holocene);
    mine_items(world, &items[1..]);
    stays_below(world, &blocks[0]);
    let first = world.post_singular(&blocks[..1]);
    world.l1.mine(&[first]);
    stays_below(world, &blocks[1]);
    mine_items(world, &items);
    world.settle();
}

/// Every block from Isthmus on has a type 4 transaction. A batch with such a transaction in the
/// block before Isthmus is dropped from that block on, whether it is a span batch or singular.
fn type_4_on_both_sides_of_isthmus(world: &mut ActionWorld, isthmus: u64) {
    mine_until(world, isthmus + 2 * L1_PERIOD);
    let period = world.author.rollup.block_time;
    let blocks = world.extend_by(world.l1.height() - 1, |author| {
        let next = author.head().timestamp() + period;
        if next < isthmus {
            vec![author.transfer()]
        } else {
            vec![author.set_code()]
        }
    });
    let first = blocks.iter().position(|block| block.timestamp() == isthmus);
    let last_before = first.expect("the first block of Isthmus") - 1;
    let early = world.author.set_code_with(1_000_000);
    let span = world.author.span_with(&blocks, |index, block| {
        if index == last_before {
            block.transactions.push(early.clone());
        }
    });
    let call = world.post(&[span]);
    world.l1.mine(&[call]);
    stays_below(world, &blocks[last_before]);
    let mut batch = world.author.singular(&blocks[last_before]);
    batch.transactions.push(early);
    let call = world.post(&[batch.encode()]);
    world.l1.mine(&[call]);
    stays_below(world, &blocks[last_before]);
    let call = world.post_span(&blocks[last_before..]);
    world.l1.mine(&[call]);
    world.settle();
}

#[test]
fn a_verifier_derives_frames_around_holocene_and_type_4_transactions_around_isthmus() {
    let (holocene, isthmus) = (6 * L1_PERIOD, 16 * L1_PERIOD);
    let forks = ForkSchedule::from_genesis(Fork::Granite)
        .with(Fork::Holocene, at(holocene))
        .with(Fork::Isthmus, at(isthmus));
    let mut world = ActionWorld::new(ActionPlan {
        forks,
        window: 20,
        ..ActionPlan::default()
    });
    frames_on_both_sides_of_holocene(&mut world, START + holocene);
    type_4_on_both_sides_of_isthmus(&mut world, START + isthmus);
}

/// Transfers, except in the first block of each fork, since two forks require an empty first block.
fn transfers(author: &Author) -> Vec<alloy_primitives::Bytes> {
    let rollup = &author.rollup;
    let next = author.head().timestamp() + rollup.block_time;
    if Fork::ALL
        .iter()
        .any(|fork| rollup.forks.time(*fork) == Some(next))
    {
        vec![]
    } else {
        vec![author.transfer()]
    }
}

/// Derives a batch after every two empty L1 blocks, until L1 has height `height`. Span and singular
/// batches alternate.
fn derive_batches(world: &mut ActionWorld, height: u64) {
    let mut is_span = false;
    while world.l1.height() < height {
        world.l1.mine_to(world.l1.height() + 2);
        let blocks = world.extend_by(world.l1.height() - 1, transfers);
        let forks = &world.author.rollup.forks;
        is_span = !is_span && forks.is_active(Fork::Delta, blocks[0].timestamp() - L1_PERIOD);
        let call = if is_span {
            world.post_span(&blocks)
        } else {
            world.post_singular(&blocks)
        };
        world.l1.mine(&[call]);
        world.settle();
    }
}

#[test]
fn a_verifier_derives_one_chain_from_regolith_to_karst() {
    let later = Fork::ALL.into_iter().filter(|fork| *fork > Fork::Regolith);
    let genesis = ForkSchedule::from_genesis(Fork::Regolith);
    let forks = later.zip(1..).fold(genesis, |forks, (fork, step)| {
        forks.with(fork, at(step * 2 * L1_PERIOD))
    });
    let last = forks.time(Fork::Karst).expect("it is planned");
    let mut world = ActionWorld::new(ActionPlan {
        forks,
        ..ActionPlan::default()
    });
    derive_batches(&mut world, (last - START) / L1_PERIOD + 4);
    assert!(world.author.head().timestamp() > last);
}

#[test]
fn a_verifier_derives_chains_that_begin_with_each_fork() {
    let later = Fork::ALL.into_iter().filter(|fork| *fork >= Fork::Regolith);
    for fork in later {
        let mut world = ActionWorld::new(ActionPlan {
            forks: ForkSchedule::from_genesis(fork),
            ..ActionPlan::default()
        });
        derive_batches(&mut world, 6);
    }
}

/// L1 forks, each with the number of its first block and its entry of the blob schedule: target,
/// maximum, update fraction (EIP-7691, EIP-7892).
const L1_FORKS: [(&str, u64, [u64; 3]); 4] = [
    ("prague", 3, [6, 9, 5_007_716]),
    ("osaka", 6, [6, 9, 5_007_716]),
    ("bpo1", 9, [10, 15, 8_346_193]),
    ("bpo2", 12, [14, 21, 11_684_671]),
];
/// Excess blob gas of L1's genesis. With Cancun's fraction the price of blob gas is then e^15 wei.
const EXCESS: u64 = 50_000_000;

fn with_blob_forks(genesis: &mut Value) {
    for (fork, block, [target, max, fraction]) in L1_FORKS {
        let config = &mut genesis["config"];
        config[format!("{fork}Time")] = (START + block * L1_PERIOD).into();
        config["blobSchedule"][fork] =
            json!({"target": target, "max": max, "baseFeeUpdateFraction": fraction});
    }
    genesis["excessBlobGas"] = format!("{EXCESS:#x}").into();
}

/// Checks that the blob fee in a block's L1 attributes is the one that L1 reports for its block,
/// and that it follows from that L1 block's excess blob gas with the update fraction of its fork.
fn check_blob_fee(world: &ActionWorld, block: &Payload) -> u64 {
    let info = L1BlockInfo::of(block).expect("L1 attributes");
    let number = format!("{:#x}", info.number);
    let history = ask(&world.l1.url, "eth_feeHistory", json!(["0x1", number, []]));
    let fee = format!("{:#x}", info.blob_base_fee);
    assert_eq!(history["baseFeePerBlobGas"][0], fee, "{history}");
    let later = L1_FORKS.iter().rev();
    let fork = later.clone().find(|(_, first, _)| *first <= info.number);
    let fraction = fork.map_or(3_338_477, |(_, _, [_, _, fraction])| *fraction);
    let excess = world.l1.chain[info.number as usize].block.excess_blob_gas;
    let price = (excess.expect("Cancun") as f64 / fraction as f64).exp();
    let ratio = f64::from(u32::try_from(info.blob_base_fee).expect("a fee")) / price;
    assert!((0.97..=1.0).contains(&ratio), "{}: {ratio}", info.number);
    fraction
}

/// Batches in blobs under each blob schedule of L1. The last batch uses more blobs than Prague
/// allows in a block.
#[test]
fn a_verifier_derives_under_the_blob_schedules_of_prague_bpo1_and_bpo2() {
    let plan = ActionPlan {
        l1_genesis: with_blob_forks,
        ..ActionPlan::default()
    };
    let mut world = ActionWorld::with_links(plan, |l1| VerifierLinks {
        l1: l1.url.clone(),
        options: vec![format!("--l1.beacon={}", l1.beacon)],
    });
    world.l1.maintain_pool();
    while world.l1.height() < 14 {
        world.l1.mine_to(world.l1.height() + 1);
        let blocks = world.extend(world.l1.height() - 1);
        let is_last = world.l1.height() >= 13;
        let items = world.items(&blocks, if is_last { 12 } else { 2 });
        let calls: Vec<_> = items.chunks(6).map(|items| world.blobs(items)).collect();
        world.l1.mine(&calls);
        world.settle();
        if is_last {
            assert!(items.len() > 9, "{} blobs", items.len());
        }
    }
    let blocks = &world.author.chain[1..];
    let mut fractions: Vec<_> = blocks
        .iter()
        .map(|block| check_blob_fee(&world, block))
        .collect();
    fractions.dedup();
    assert_eq!(fractions, [3_338_477, 5_007_716, 8_346_193, 11_684_671]);
    let last = L1BlockInfo::of(world.author.head()).expect("L1 attributes");
    assert!(last.blob_base_fee > U256::from(1));
}
