//! Invariants of the model: each connected node receives each block once, no block is faster than
//! the shortest path, and a seed gives one history.

use super::{
    BandwidthScope, LinkShare, ModelConfig, PeerRange, ProcessorLoad, node::ModelNode, simulate,
    topology::PeerTable,
};
use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};
use std::{collections::VecDeque, time::Duration};

const RUNGS: [&str; 6] = [
    "loopback",
    "lan",
    "cross-region",
    "home-dsl",
    "satellite",
    "lossy-5",
];

/// Networks in which no line is overloaded.
fn configs() -> impl Strategy<Value = ModelConfig> {
    let link = any::<bool>();
    let nodes = (2_u32..150, 1_u32..6, 1_u32..5_000);
    let shape = (2_u32..9, 0_u32..4, 0_u32..6);
    (
        nodes,
        shape,
        prop::sample::select(&RUNGS[..]),
        link,
        any::<u64>(),
    )
        .prop_map(
            |((nodes, blocks, bytes), (lo, more, above), rung, link, seed)| {
                let mut config = ModelConfig {
                    nodes,
                    blocks,
                    block_bytes: bytes,
                    links: vec![LinkShare::whole(rung)],
                    seed,
                    ..ModelConfig::default()
                };
                config.mesh.lo = lo;
                config.mesh.d = lo + more;
                config.mesh.hi = lo + more + above;
                if link {
                    config.scope = BandwidthScope::Link;
                }
                config
            },
        )
}

/// Number of hops from the publisher to each node over all connections.
fn distances(config: &ModelConfig) -> Vec<u64> {
    let table = PeerTable::random(config, &mut StdRng::seed_from_u64(config.seed));
    let mut distance = vec![u64::MAX; config.nodes as usize];
    distance[0] = 0;
    let mut queue = VecDeque::from([0]);
    while let Some(node) = queue.pop_front() {
        for entry in table.row(node) {
            let peer = table.peer[entry];
            if distance[peer as usize] == u64::MAX {
                distance[peer as usize] = distance[node as usize] + 1;
                queue.push_back(peer);
            }
        }
    }
    distance
}

/// Least time in ns over `hops` hops: each sends one copy, and all but the last check it.
fn least_ns(config: &ModelConfig, hops: u64) -> u64 {
    let up = config.links[0].rung.conditions.up;
    let sending = up.bandwidth.map_or(0.0, |it| {
        f64::from(config.block_bytes) * 1e9 / it.rate.get() as f64
    });
    let hop = (up.delay - up.jitter).as_nanos() as u64 + sending as u64;
    hops * hop + (hops - 1) * config.check_time().as_nanos() as u64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn each_connected_node_receives_each_block_once_and_never_too_early(config in configs()) {
        let outcome = simulate(&config).unwrap();
        let distances = distances(&config);
        for node in 1..config.nodes {
            let hops = distances[node as usize];
            let connected = hops != u64::MAX;
            let mut received = 0;
            for block in 0..config.blocks {
                let Some(after) = outcome.receipt(block, node) else {
                    prop_assert!(!connected, "node {node} has no block {block}");
                    continue;
                };
                received += 1;
                // Times are in whole microseconds.
                let least = least_ns(&config, hops) / 1_000;
                prop_assert!(u64::from(after) >= least, "{after} < {least} over {hops} hops");
            }
            let [copies, duplicates] = outcome.copies(node);
            prop_assert_eq!(copies, received + duplicates);
        }
        let report = outcome.report();
        prop_assert_eq!(report.passed(), Some(true), "{:?}", report.checks);
    }

    #[test]
    fn a_seed_gives_one_history(config in configs(), joins in 0_u32..3, silent in 0.0..0.5) {
        let joins = joins.min(config.nodes / 2);
        let config = ModelConfig { joins, silent, behind: 50, ..config };
        let first = simulate(&config).unwrap();
        let second = simulate(&config).unwrap();
        prop_assert_eq!(first.counts(), second.counts());
        prop_assert_eq!(first.report(), second.report());
    }
}

fn small(change: impl FnOnce(&mut ModelConfig)) -> ModelConfig {
    let mut config = ModelConfig {
        nodes: 300,
        blocks: 20,
        ..ModelConfig::default()
    };
    change(&mut config);
    config
}

#[test]
fn two_nodes_need_the_time_of_their_line() {
    let config = small(|it| {
        it.nodes = 2;
        it.links = vec![LinkShare::whole("lan")];
    });
    let outcome = simulate(&config).unwrap();
    // 5,120 bytes with 100 of framing at 1 Gbit/s, and the delay of 250 µs.
    assert_eq!(outcome.receipt(7, 1), Some(291));
    assert_eq!(outcome.copies(1), [20, 0]);
}

fn shared(nodes: u32, cores: u32) -> ModelConfig {
    small(|it| {
        it.nodes = nodes;
        it.links = vec![LinkShare::whole("lan")];
        it.peers = PeerRange {
            lo: nodes,
            hi: nodes,
        };
        it.processors = Some(ProcessorLoad {
            cores,
            copy: Duration::from_millis(1),
            import: Duration::from_millis(2),
            rest: Duration::from_millis(1),
        });
    })
}

#[test]
fn two_nodes_on_shared_processors_need_the_time_of_the_work_too() {
    let outcome = simulate(&shared(2, 1)).unwrap();
    // The line, the copy, and then the check of 225 µs and the import. Nobody waits for the rest.
    assert_eq!(outcome.receipt(7, 1), Some(291 + 1_000));
    let all = outcome.report().propagation.unwrap().all;
    assert_eq!((all.p50, all.max), (3.516, 3.516));
}

#[test]
fn nodes_wait_until_the_shared_processors_have_done_all_work() {
    let [one, four] = [1, 4].map(|cores| {
        let outcome = simulate(&shared(40, cores)).unwrap();
        let copies: u32 = (0..40).map(|node| outcome.copies(node)[0]).sum();
        let propagation = outcome.report().propagation.unwrap();
        assert_eq!((propagation.missed, propagation.all.count), (0, 20 * 39));
        // All checks, imports and the work after them, and about as many copies as each block has.
        let work = 39.0 * 3.225 + f64::from(copies) / 20.0;
        assert!(
            propagation.all.max > 0.7 * work / f64::from(cores),
            "{work}"
        );
        assert!(
            propagation.all.max < 1.5 * work / f64::from(cores) + 5.0,
            "{work}"
        );
        propagation.all.p50
    });
    assert!(one > 3.0 * four, "{one} {four}");
}

#[test]
fn other_seeds_give_other_histories() {
    let counts = [1, 2].map(|seed| simulate(&small(|it| it.seed = seed)).unwrap().counts());
    assert_ne!(counts[0], counts[1]);
}

#[test]
fn meshes_settle_between_their_bounds() {
    let report = simulate(&small(|_| ())).unwrap().report();
    let [least, median, most] = &report.mesh[..] else {
        panic!("three quantiles");
    };
    let last = |series: &crate::report::RunSeries| series.points[series.points.len() - 1][1];
    assert!(
        last(least) >= 6.0 && last(most) <= 12.0,
        "{} {}",
        last(least),
        last(most)
    );
    assert!((6.0..=12.0).contains(&last(median)));
    let traffic = report.traffic.unwrap();
    let duplicates = traffic.duplicates.unwrap();
    assert!(
        duplicates.mean > 2.0 && duplicates.mean < 12.0,
        "{duplicates:?}"
    );
}

#[test]
fn announcements_reach_nodes_whose_meshes_are_silent() {
    let config = small(|it| it.silent = 0.85);
    let outcome = simulate(&config).unwrap();
    assert!(outcome.counts().requested > 0);
    let some = |node: u32| {
        (0..20)
            .filter(|block| outcome.receipt(*block, node).is_some())
            .count()
    };
    let starved = (1..300).filter(|node| some(*node) < 18).count();
    assert!(starved < 30, "{starved} of 300 nodes miss blocks");
}

#[test]
fn large_blocks_are_saved_copies_by_idontwant() {
    let duplicates = |bytes| {
        let outcome = simulate(&small(|it| it.block_bytes = bytes)).unwrap();
        let saved = outcome.counts().unwanted;
        (
            saved,
            outcome.report().traffic.unwrap().duplicates.unwrap().mean,
        )
    };
    let (small, large) = (duplicates(16 << 10), duplicates(100 << 10));
    assert_eq!(small.0, 0);
    assert!(large.0 > 0 && large.1 < small.1, "{small:?} {large:?}");
}

#[test]
fn a_line_that_is_too_slow_drops_blocks_and_the_report_says_so() {
    let config = small(|it| {
        it.block_bytes = 1 << 20;
        it.links = vec![LinkShare::whole("3g")];
    });
    let outcome = simulate(&config).unwrap();
    assert!(outcome.counts().dropped > 0);
    let report = outcome.report();
    assert!(report.propagation.as_ref().is_some_and(|it| it.missed > 0));
    assert_eq!(report.passed(), Some(false));
}

#[test]
fn joining_nodes_fill_their_gap() {
    let config = small(|it| {
        it.joins = 10;
        it.behind = 2_000;
        it.blocks = 60;
        it.block_bytes = 50 << 10;
        it.import = Duration::from_millis(2);
    });
    let report = simulate(&config).unwrap().report();
    assert_eq!(report.passed(), Some(true), "{:?}", report.checks);
    let joining = report.joining.unwrap();
    assert_eq!((joining.joined, joining.unfinished), (10, 0));
    assert!(joining.gap.unwrap().p50 >= 2_000.0);
    // Two thousand blocks take four seconds to import, and 100 MB at 1 Gbit/s less than one.
    let (first, synced) = (joining.first_block.unwrap(), joining.synced.unwrap());
    assert!(
        synced.p50 > first.p50 + 4.0 && synced.max < first.max + 8.0,
        "{synced:?}"
    );
}

#[test]
fn the_slower_of_bandwidth_and_import_decides_a_range_sync() {
    let synced = |rung, import| {
        let config = small(|it| {
            it.nodes = 60;
            it.blocks = 200;
            it.joins = 3;
            it.links = vec![LinkShare::whole(rung)];
            it.import = Duration::from_millis(import);
        });
        simulate(&config)
            .unwrap()
            .report()
            .joining
            .unwrap()
            .synced
            .unwrap()
            .p50
    };
    let (fast, slow, line) = (synced("lan", 1), synced("lan", 20), synced("home-dsl", 1));
    assert!(slow > fast + 15.0, "{slow} {fast}");
    // A gap of 1,000 blocks of 5 KB at 11 Mbit/s.
    assert!(line > 3.6, "{line}");
}

#[test]
fn a_node_takes_little_memory() {
    assert!(size_of::<ModelNode>() <= 200);
}
