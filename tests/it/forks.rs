//! Every fork: chains that begin at each fork, and chains that cross each fork. Blocks are built
//! from attributes as by a sequencer, encoded for the wire, executed again by a second node, and
//! checked against each rule ([`rules`]).
//!
//! The genesis states are those of published chains that began at the fork, so that the upgrades
//! find the contracts that they were written for.

mod rules;
mod world;

use starling_proto::{
    fork::{Fork, ForkSchedule},
    upgrades::upgrade_transactions,
};
use world::{Block, GENESIS_TIME, Network};

/// Number of upgrade transactions of each fork (specs: derivation page of each).
const UPGRADES: [(Fork, usize); 5] = [
    (Fork::Ecotone, 6),
    (Fork::Fjord, 3),
    (Fork::Isthmus, 8),
    (Fork::Jovian, 5),
    (Fork::Karst, 31),
];

fn since(first: Fork) -> impl Iterator<Item = Fork> {
    Fork::ALL.into_iter().filter(move |fork| *fork >= first)
}

/// `start` and all earlier forks at genesis; each later fork at its number of seconds after
/// genesis.
fn schedule(start: Fork, later: impl IntoIterator<Item = (Fork, u64)>) -> ForkSchedule {
    let forks = ForkSchedule::from_genesis(start);
    later.into_iter().fold(forks, |forks, (fork, after)| {
        forks.with(fork, Some(GENESIS_TIME + after))
    })
}

/// Builds and checks this many blocks; `None` if the fixtures are absent.
async fn run(
    start: Fork,
    forks: ForkSchedule,
    block_time: u64,
    blocks: usize,
) -> Option<(Network, Vec<Block>)> {
    let mut network = Network::open(start, forks, block_time)?;
    let mut made = Vec::new();
    for _ in 0..blocks {
        let block = network.advance().await;
        rules::check(&network, &block);
        made.push(block);
    }
    rules::check_contracts(&network);
    Some((network, made))
}

/// The forks that activate in a block.
fn activated<'a>(network: &'a Network, block: &'a Block) -> impl Iterator<Item = Fork> + 'a {
    Fork::ALL.into_iter().filter(|fork| {
        network
            .rollup
            .forks
            .activates(*fork, block.parent.timestamp(), block.time())
    })
}

#[test]
fn every_upgrade_is_there() {
    for fork in Fork::ALL {
        let count = UPGRADES
            .iter()
            .find(|(upgrade, _)| *upgrade == fork)
            .map_or(0, |(_, count)| *count);
        assert_eq!(upgrade_transactions(fork).len(), count, "{}", fork.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_begins_at_each_fork() {
    for fork in Fork::ALL {
        let Some((network, blocks)) = run(fork, ForkSchedule::from_genesis(fork), 2, 7).await
        else {
            return;
        };
        assert!(
            blocks
                .iter()
                .all(|block| activated(&network, block).count() == 0 && !block.sent.is_empty())
        );
        assert_eq!(
            network.follower_head(),
            blocks[6].executed.payload.id(),
            "{}",
            fork.name()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_crosses_each_fork() {
    for pair in Fork::ALL.windows(2) {
        let [before, fork] = [pair[0], pair[1]];
        // The third block, in the middle of an epoch, is the fork's first block.
        let Some((network, blocks)) = run(before, schedule(before, [(fork, 8)]), 2, 8).await else {
            return;
        };
        let crossing: Vec<_> = blocks
            .iter()
            .filter(|block| activated(&network, block).count() > 0)
            .collect();
        assert_eq!(
            crossing
                .iter()
                .map(|block| block.number())
                .collect::<Vec<_>>(),
            [4],
            "{}",
            fork.name()
        );
        assert_eq!(network.follower_head(), blocks[7].executed.payload.id());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_crosses_all_forks_block_by_block() {
    let later = since(Fork::Regolith).map(|fork| (fork, 2 * fork as u64));
    let Some((network, blocks)) = run(Fork::Bedrock, schedule(Fork::Bedrock, later), 2, 14).await
    else {
        return;
    };
    for (fork, block) in since(Fork::Regolith).zip(&blocks) {
        assert_eq!(activated(&network, block).collect::<Vec<_>>(), [fork]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_one_second_blocks_crosses_all_forks() {
    let later = since(Fork::Regolith).map(|fork| (fork, 1 + 3 * fork as u64));
    let Some((network, blocks)) = run(Fork::Bedrock, schedule(Fork::Bedrock, later), 1, 36).await
    else {
        return;
    };
    assert_eq!(
        blocks
            .iter()
            .filter(|block| activated(&network, block).count() == 1)
            .count(),
        10
    );
}

/// A fork's time may be between two blocks. The next block is then the fork's first block, and
/// Canyon's forced deployment does not happen.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_crosses_forks_between_its_blocks() {
    let later = since(Fork::Regolith).map(|fork| (fork, 1 + 4 * fork as u64));
    let Some((network, blocks)) = run(Fork::Bedrock, schedule(Fork::Bedrock, later), 2, 24).await
    else {
        return;
    };
    assert_eq!(
        blocks
            .iter()
            .filter(|block| activated(&network, block).count() == 1)
            .count(),
        10
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_crosses_all_forks_at_once() {
    let later = since(Fork::Regolith).map(|fork| (fork, 4));
    let Some((network, blocks)) = run(Fork::Bedrock, schedule(Fork::Bedrock, later), 2, 5).await
    else {
        return;
    };
    assert_eq!(activated(&network, &blocks[1]).count(), 10);
    let upgrades: usize = UPGRADES.iter().map(|(_, count)| count).sum();
    assert_eq!(blocks[1].executed.receipts.len(), 1 + upgrades);
}

/// Chains that activated Karst before its gas rule was known keep Karst's upgrade gas in the gas
/// limit until L1 sets another limit.
#[tokio::test(flavor = "multi_thread")]
async fn the_gas_of_karst_stays_where_it_is_kept() {
    for keep in [false, true] {
        let forks = schedule(Fork::Jovian, [(Fork::Karst, 2)]);
        let Some(mut network) = Network::open(Fork::Jovian, forks, 2) else {
            return;
        };
        network.rollup.keep_karst_upgrade_gas = keep;
        let mut limits = Vec::new();
        for _ in 0..3 {
            limits.push(network.advance().await.executed.payload.header.gas_limit);
        }
        let usual = network.rollup.genesis.system_config.gas_limit;
        let raised = usual + 55_370_657;
        // The third block begins an epoch whose L1 block sets the gas limit.
        assert_eq!(
            limits,
            [
                raised,
                if keep { raised } else { usual },
                world::gas_limit(1)
            ]
        );
    }
}
