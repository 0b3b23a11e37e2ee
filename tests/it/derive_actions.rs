//! A verifier that knows only L1 follows many things that L1 and a batcher may do. The L1 is made
//! of our core; it mines, reorganises and withholds blocks on command of the test. After each action
//! the verifier's safe head must equal the head of the chain from which the batches were made, and
//! must keep rising.

mod anvil;
pub mod author;
pub mod beacon;
mod blobs;
pub mod config_updates;
mod data;
mod endpoint;
mod finality;
mod forks;
pub mod l1;
pub mod network;
mod other_l1;
mod withheld;
pub mod world;

use alloy_primitives::U256;
use author::user_part;
use starling_proto::{
    fork::{Fork, ForkSchedule},
    system_config::Eip1559Params,
};
use world::{ActionPlan, ActionWorld, START, VerifierLinks};

/// Converts a number to an argument of a contract call.
fn word(value: u64) -> U256 {
    U256::from(value)
}

/// A batch in the last L1 block of its sequencing window still counts.
fn a_batch_in_the_last_possible_l1_block(world: &mut ActionWorld) {
    let window = world.author.rollup.seq_window_size;
    let epoch = world.author.origin(world.author.head());
    world.l1.mine_to(epoch + window - 1);
    let blocks = world.extend(epoch + 1);
    let call = world.post_singular(&blocks);
    world.l1.mine(&[call]);
    assert_eq!(world.l1.height(), epoch + window);
    world.settle();
}

/// A batch that is posted one L1 block too late is replaced by empty blocks, and the next batch
/// builds on these.
fn a_window_that_expires(world: &mut ActionWorld) {
    let window = world.author.rollup.seq_window_size;
    let epoch = world.author.origin(world.author.head()) + 1;
    let before = world.author.head().number();
    let late = world.extend(epoch);
    let late_call = world.post_span(&late);
    world.author.rewind(before);
    world.l1.mine_to(epoch + window);
    world.extend_empty(epoch);
    world.settle();
    let blocks = world.extend(world.l1.height() - 1);
    let call = world.post_span(&blocks);
    world.l1.mine(&[late_call, call]);
    world.settle();
}

/// Data of the old key are ignored from the L1 block on that announces the new key.
fn a_new_batcher_key(world: &mut ActionWorld) {
    let before = world.author.head().number();
    let epoch = world.author.origin(world.author.head());
    world.l1.mine_to(epoch + 4);
    let by_old = world.extend_empty(epoch + 1);
    let by_old = world.post_span(&by_old);
    world.author.rewind(before);
    let (announcement, old) = world.replace_batcher();
    let blocks = world.extend(epoch + 1);
    let call = world.post_span(&blocks);
    world.l1.mine(&[by_old, announcement, call]);
    let before = world.author.head().number();
    let by_old = world.extend_empty(epoch + 2);
    let span = world.author.span(&by_old);
    let item = world.channel(&[span]);
    world.author.rewind(before);
    let call = world.inbox(&old, item);
    world.l1.mine(&[call]);
    world.settle();
    let blocks = world.extend(epoch + 3);
    let call = world.post_span(&blocks);
    world.l1.mine(&[call]);
    world.settle();
}

/// A channel opened by the old key is completed by the new key. Later data of the old key are
/// ignored.
fn a_new_batcher_key_inside_a_channel(world: &mut ActionWorld) {
    let before = world.author.head().number();
    let epoch = world.author.origin(world.author.head());
    world.l1.mine_to(epoch + 4);
    let blocks = world.extend(epoch + 3);
    let items = world.items(&blocks, 2);
    let opening = world.calldata(&items[0]);
    world.l1.mine(&[opening]);
    let (announcement, old) = world.replace_batcher();
    let by_old = world.inbox(&old, items[1].clone());
    world.l1.mine(&[announcement, by_old]);
    let status = world.derived();
    assert_eq!(status["safe_l2"]["number"], before, "{status}");
    let closing = world.calldata(&items[1]);
    world.l1.mine(&[closing]);
    world.settle();
}

/// Changes gas limit, fee parameters and EIP-1559 parameters of SystemConfig in one L1 block.
fn new_gas_limits_and_fees(world: &mut ActionWorld) {
    let calls = [
        world.configure("setGasLimit(uint64)", &[word(40_000_000)]),
        world.configure(
            "setGasConfigEcotone(uint32,uint32)",
            &[word(2_000), word(900_000)],
        ),
        world.configure("setEIP1559Params(uint32,uint32)", &[word(100), word(3)]),
        world.configure(
            "setOperatorFeeScalars(uint32,uint64)",
            &[word(1_000), word(77)],
        ),
        world.configure("setMinBaseFee(uint64)", &[word(2_000_000_000)]),
        world.configure("setDAFootprintGasScalar(uint16)", &[word(500)]),
    ];
    world.l1.mine(&calls);
    let changed = world.l1.height();
    world.l1.mine_to(changed + 1);
    let blocks = world.extend(changed + 1);
    let header = &world.author.head().header;
    assert_eq!(header.gas_limit, 40_000_000);
    assert_eq!(header.base_fee_per_gas, Some(2_000_000_000));
    let params = Eip1559Params {
        denominator: 100,
        elasticity: 3,
    };
    assert_eq!(&header.extra_data[1..9], params.encode().as_slice());
    let call = world.post_span(&blocks);
    world.l1.mine(&[call]);
    world.settle();
}

/// From Holocene on a block with an invalid payload is reduced to its deposits, and the rest of its
/// span batch is dropped.
fn an_invalid_payload_inside_a_span(world: &mut ActionWorld) {
    let epoch = world.author.origin(world.author.head());
    let before = world.author.head().number();
    let blocks = world.extend(epoch + 1);
    assert!(blocks.len() > 4);
    let unfunded = world.author.transfer_with(1_000_000);
    let span = world.author.span_with(&blocks, |index, block| {
        if index == 2 {
            block.transactions.push(unfunded.clone());
        }
    });
    let call = world.post(&[span]);
    world.l1.mine(&[call]);
    world.author.rewind(before + 2);
    let origin = world.author.next_origin(&world.l1.chain).expect("L1");
    let origin = world.l1.chain[origin as usize].clone();
    world.author.append(&origin, &[]);
    assert_eq!(user_part(world.author.head()).len(), 0);
    world.settle();
    let blocks = world.extend(epoch + 2);
    let call = world.post_span(&blocks);
    world.l1.mine(&[call]);
    world.settle();
}

/// The L1 block with the batch is replaced by a block without. The safe head moves back, the unsafe
/// head stays, and the batch counts again when it is posted again.
fn an_orphaned_batch(world: &mut ActionWorld) {
    world.l1.mine(&[]);
    world.settle();
    let fork = world.l1.height();
    let before = world.author.head().number();
    let blocks = world.extend(fork - 1);
    let call = world.post_span(&blocks);
    world.l1.mine(std::slice::from_ref(&call));
    world.settle();
    world.l1.rewind(fork);
    world.l1.mine_to(fork + 2);
    let status = world.derived();
    assert_eq!(status["safe_l2"]["number"], before, "{status}");
    let head = serde_json::json!(world.author.head().hash);
    assert_eq!(status["unsafe_l2"]["hash"], head, "{status}");
    world.l1.mine(&[call]);
    world.settle();
}

/// L1 switches back and forth between two branches. Then the branch that became canonical last
/// grows.
fn branches_that_take_turns(world: &mut ActionWorld) {
    world.l1.mine(&[]);
    let fork = world.branch();
    let epoch = world.author.origin(world.author.head());
    let blocks = world.extend(epoch + 2);
    let call = world.post_span(&blocks);
    world.l1.mine(&[call]);
    world.l1.mine(&[]);
    world.settle();
    let one = world.branch();
    world.switch_to(&fork);
    let blocks = world.extend_empty(epoch + 1);
    let call = world.post_singular(&blocks);
    world.l1.mine(&[]);
    world.l1.mine(&[call]);
    world.l1.mine(&[]);
    world.settle();
    let other = world.branch();
    assert_ne!(one.1.last(), other.1.last());
    for branch in [&one, &other, &one, &other] {
        world.switch_to(branch);
        world.settle();
    }
    let blocks = world.extend(world.l1.height() - 1);
    let call = world.post_span(&blocks);
    world.l1.mine(&[call]);
    world.settle();
}

#[test]
fn a_verifier_follows_windows_keys_parameters_and_short_l1_reorgs() {
    let mut world = ActionWorld::new(ActionPlan::default());
    a_batch_in_the_last_possible_l1_block(&mut world);
    a_window_that_expires(&mut world);
    a_new_batcher_key(&mut world);
    a_new_batcher_key_inside_a_channel(&mut world);
    new_gas_limits_and_fees(&mut world);
    an_invalid_payload_inside_a_span(&mut world);
    an_orphaned_batch(&mut world);
    branches_that_take_turns(&mut world);
}

/// Like every reset, one under `--l2.skip-sync-start-check` begins below the batches that L1 has lost.
#[test]
fn an_orphaned_batch_lowers_the_safe_head_though_the_start_check_is_skipped() {
    let mut world = ActionWorld::with_links(ActionPlan::default(), |l1| VerifierLinks {
        l1: l1.url.clone(),
        options: vec!["--l2.skip-sync-start-check".into()],
    });
    an_orphaned_batch(&mut world);
}

/// Conflicting unsafe blocks are above the safe head when the batch arrives.
fn conflicting_unsafe_blocks(world: &mut ActionWorld) {
    let epoch = world.author.origin(world.author.head());
    let before = world.author.head().number();
    world.l1.mine_to(epoch + 5);
    let conflicting = world.extend_empty(epoch + 4);
    world.verifier.process = None;
    let file = world.verifier.folder.path().join("conflicting.rlp");
    let raw = conflicting
        .iter()
        .flat_map(|block| starling::transfer::block_file::encode(block));
    std::fs::write(&file, raw.collect::<Vec<_>>()).expect("a file");
    world.verifier.import(&file);
    world.verifier.restart();
    let status = world.derived();
    let head = serde_json::json!(world.author.head().hash);
    assert_eq!(status["unsafe_l2"]["hash"], head, "{status}");
    world.author.rewind(before);
    let blocks = world.extend(epoch + 3);
    let call = world.post_span(&blocks);
    world.l1.mine(&[call]);
    let status = world.settle();
    assert_eq!(status["unsafe_l2"], status["safe_l2"]);
    assert!(
        world.verifier.log().contains("L2 reorg"),
        "unsafe blocks were replaced"
    );
}

#[test]
fn a_verifier_follows_an_l1_reorg_of_64_blocks_and_overrides_conflicting_blocks() {
    let mut world = ActionWorld::new(ActionPlan {
        l1_period: 2,
        window: 20,
        ..ActionPlan::default()
    });
    // L1 block 8, which belongs to both branches, contains the batch of blocks 1 to 6.
    for first in [0, 8] {
        if first > 0 {
            assert_eq!(world.l1.height() - first, 64);
            world.l1.rewind(first);
            world.author.rewind(6);
        }
        while world.l1.height() < 72 {
            world.l1.mine_to(world.l1.height() + 7);
            let blocks = world.extend(world.l1.height() - 1);
            let call = world.post_span(&blocks);
            world.l1.mine(&[call]);
        }
        world.settle();
    }
    conflicting_unsafe_blocks(&mut world);
}

/// Before Holocene the whole span batch is dropped, even if some of its blocks are valid.
fn an_invalid_payload_before_holocene(world: &mut ActionWorld) {
    world.l1.mine_to(2);
    let blocks = world.extend(0);
    let unfunded = world.author.transfer_with(1_000_000);
    let span = world.author.span_with(&blocks, |index, block| {
        if index == 3 {
            block.transactions.push(unfunded.clone());
        }
    });
    let bad = world.post(&[span]);
    world.l1.mine(&[bad]);
    let status = world.derived();
    assert_eq!(status["safe_l2"]["number"], 0, "{status}");
    let good = world.post_span(&blocks);
    world.l1.mine(&[good]);
    world.settle();
}

/// A span batch crosses the first block of a fork; every block of the batch has a transaction.
fn a_fork_inside_a_span(world: &mut ActionWorld, fork: Fork) {
    let time = world.author.rollup.forks.time(fork).expect("it is planned");
    world.l1.mine(&[]);
    while world.l1.head().block.time < time + 24 {
        world.l1.mine(&[]);
    }
    let blocks = world.extend(world.l1.height() - 1);
    let times = [&blocks[0], &blocks[blocks.len() - 1]].map(|block| block.timestamp());
    assert!(
        times[0] < time && time < times[1],
        "{times:?} around {time}"
    );
    let call = world.post_span(&blocks);
    world.l1.mine(&[call]);
    world.settle();
}

/// The batch of a fork's first block has a transaction, so this batch and the following ones are
/// dropped.
fn a_transaction_in_the_first_block(world: &mut ActionWorld, fork: Fork, is_span: bool) {
    let rollup = &world.author.rollup;
    let block_time = rollup.block_time;
    let time = rollup.forks.time(fork).expect("it is planned");
    while world.l1.head().block.time < time + 24 {
        world.l1.mine(&[]);
    }
    let blocks = world.extend_by(world.l1.height() - 1, |author| {
        let next = author.head().timestamp() + block_time;
        if next == time {
            vec![]
        } else {
            vec![author.transfer()]
        }
    });
    let first = blocks.iter().position(|block| block.timestamp() == time);
    let first = first.expect("the first block of the fork");
    assert!(first > 0 && first + 1 < blocks.len());
    let transaction = world.author.transfer_with(1_000_000);
    let bad = if is_span {
        vec![world.author.span_with(&blocks, |index, block| {
            if index == first {
                block.transactions.push(transaction.clone());
            }
        })]
    } else {
        let batches = blocks.iter().map(|block| {
            let mut batch = world.author.singular(block);
            if block.timestamp() == time {
                batch.transactions.push(transaction.clone());
            }
            batch.encode()
        });
        batches.collect()
    };
    let bad = world.post(&bad);
    world.l1.mine(&[bad]);
    let status = world.derived();
    let safe = blocks[first - 1].number();
    assert_eq!(status["safe_l2"]["number"], safe, "{status}");
    let good = world.post_span(&blocks[first..]);
    world.l1.mine(&[good]);
    world.settle();
}

#[test]
fn a_verifier_follows_forks_inside_spans_and_drops_transactions_in_first_blocks() {
    let at = |seconds: u64| Some(START + seconds);
    let forks = ForkSchedule::from_genesis(Fork::Granite)
        .with(Fork::Holocene, at(72))
        .with(Fork::Isthmus, at(120))
        .with(Fork::Jovian, at(168))
        .with(Fork::Karst, at(216));
    let mut world = ActionWorld::new(ActionPlan {
        forks,
        ..ActionPlan::default()
    });
    an_invalid_payload_before_holocene(&mut world);
    a_fork_inside_a_span(&mut world, Fork::Holocene);
    a_fork_inside_a_span(&mut world, Fork::Isthmus);
    a_transaction_in_the_first_block(&mut world, Fork::Jovian, true);
    a_transaction_in_the_first_block(&mut world, Fork::Karst, false);
}

/// Derives span batches and singular batches on a chain with this block time.
fn derives_blocks_every(seconds: u64) {
    let mut world = ActionWorld::new(ActionPlan {
        l2_period: seconds,
        ..ActionPlan::default()
    });
    for round in 0..3 {
        world.l1.mine_to(world.l1.height() + 3);
        let blocks = world.extend(world.l1.height() - 1);
        let call = if round == 1 {
            world.post_singular(&blocks)
        } else {
            world.post_span(&blocks)
        };
        world.l1.mine(&[call]);
        world.settle();
    }
}

#[test]
fn a_verifier_derives_blocks_of_one_and_of_twelve_seconds() {
    derives_blocks_every(1);
    derives_blocks_every(12);
}
