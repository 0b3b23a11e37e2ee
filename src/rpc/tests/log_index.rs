//! `eth_getLogs` through the log index returns the same logs as a scan of all receipts. Tested with
//! random chains, filters and ranges, with blocks in memory, unwinds, pruning, and an incomplete
//! index.

use super::chain::*;
use crate::{
    chain::{
        store::{IndexWindow, ValueIndex},
        view::ExecutedBlock,
    },
    rpc::bounds::LogLimits,
};
use alloy_primitives::{Address, B256, Bytes, Log};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use starling_proto::fork::Fork;
use std::sync::Arc;

/// Number of different addresses and topics: small, so that logs share them.
const VALUES: u8 = 5;

struct World {
    chain: Chain,
    /// All canonical blocks above genesis.
    all: Vec<Arc<ExecutedBlock>>,
    rng: StdRng,
}

/// A filter, and the range of the query.
struct Asked {
    addresses: Vec<Address>,
    topics: Vec<Vec<B256>>,
    from: u64,
    to: u64,
}

impl Asked {
    fn matches(&self, log: &Log) -> bool {
        let topic = |(position, wanted): (usize, &Vec<B256>)| match log.topics().get(position) {
            Some(topic) => wanted.is_empty() || wanted.contains(topic),
            None => false,
        };
        (self.addresses.is_empty() || self.addresses.contains(&log.address))
            && self.topics.iter().enumerate().all(topic)
    }

    fn json(&self) -> Value {
        json!([{
            "fromBlock": format!("{:#x}", self.from), "toBlock": format!("{:#x}", self.to),
            "address": self.addresses, "topics": self.topics,
        }])
    }
}

/// Block number and index of a log in the response.
fn place(log: &Value) -> (u64, u64) {
    let number = |name: &str| {
        let text = log[name].as_str().unwrap();
        u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
    };
    (number("blockNumber"), number("logIndex"))
}

impl World {
    fn new(seed: u64) -> Self {
        let chain = Chain::new(Fork::Canyon);
        chain.store.keep_logs(IndexWindow::All);
        Self {
            chain,
            all: vec![],
            rng: StdRng::seed_from_u64(seed),
        }
    }

    fn log(&mut self) -> Log {
        let topics = (0..self.rng.random_range(0..=4))
            .map(|_| B256::repeat_byte(self.rng.random_range(0..VALUES)))
            .collect();
        Log::new_unchecked(
            Address::repeat_byte(self.rng.random_range(0..VALUES)),
            topics,
            Bytes::new(),
        )
    }

    fn grow(&mut self, blocks: usize) {
        for _ in 0..blocks {
            let logs = (0..self.rng.random_range(0..3))
                .map(|_| self.log())
                .collect();
            let nonce = self.rng.random_range(0..1 << 40);
            let block = self.chain.add(&[(legacy(nonce), logs)]);
            self.all.push(block);
        }
    }

    fn ask(&mut self) -> Asked {
        let rng = &mut self.rng;
        let value = |rng: &mut StdRng| rng.random_range(0..VALUES + 1);
        let addresses = (0..rng.random_range(0..3))
            .map(|_| Address::repeat_byte(value(rng)))
            .collect();
        let mut topics = vec![];
        for _ in 0..rng.random_range(0..4) {
            let some = (0..rng.random_range(0..3)).map(|_| B256::repeat_byte(value(rng)));
            topics.push(some.collect());
        }
        let head = self.all.len() as u64;
        let from = rng.random_range(0..=head);
        let to = rng.random_range(from..=head);
        Asked {
            addresses,
            topics,
            from,
            to,
        }
    }

    /// Positions of the matching logs, found by a scan of the receipts.
    fn expected(&self, asked: &Asked) -> Vec<(u64, u64)> {
        let mut places = vec![];
        for block in &self.all {
            let number = block.payload.number();
            let logs = block.receipts.iter().flat_map(|receipt| &receipt.logs);
            for (index, log) in logs.enumerate() {
                if (asked.from..=asked.to).contains(&number) && asked.matches(log) {
                    places.push((number, index as u64));
                }
            }
        }
        places
    }

    async fn check(&mut self) -> usize {
        let asked = self.ask();
        let response = self.chain.result("eth_getLogs", asked.json()).await;
        let found: Vec<_> = response.as_array().unwrap().iter().map(place).collect();
        assert_eq!(found, self.expected(&asked), "{}", asked.json());
        found.len()
    }
}

#[tokio::test]
async fn logs_by_index_are_those_of_the_receipts() {
    let mut found = 0;
    for seed in 0..6 {
        let mut world = World::new(seed);
        for turn in 0..40 {
            match world.rng.random_range(0..8) {
                0..4 => world.grow(12),
                4..6 => world.chain.store_some(&world.all, &mut world.rng),
                6 => world.chain.unwind_some(&mut world.all, &mut world.rng),
                _ => {
                    let window = match world.rng.random_range(0..4) {
                        0 => IndexWindow::All,
                        1 => IndexWindow::Off,
                        _ => IndexWindow::Blocks(20),
                    };
                    world.chain.store.keep_logs(window);
                    world.chain.store.prune().unwrap();
                }
            }
            if turn % 5 == 0 {
                let index = ValueIndex::Logs;
                world.chain.store.extend_index(index).unwrap();
            }
            world.chain.publish();
            for _ in 0..10 {
                found += world.check().await;
            }
        }
    }
    assert!(found > 5_000, "{found}");
}

/// The error names the widest range that works; one block more does not work.
#[tokio::test]
async fn the_widest_range_that_works_is_named_by_index_too() {
    let mut world = World::new(7);
    world.grow(60);
    world.chain.store.commit(&world.all, None, None).unwrap();
    world.chain.blocks.clear();
    world.chain.publish();
    let limits = LogLimits {
        logs: 5,
        ..LogLimits::default()
    };
    let World { chain, all, rng } = world;
    let chain = chain.with(|context| context.bounds.logs = limits);
    let mut world = World { chain, all, rng };
    let mut refused = 0;
    for _ in 0..200 {
        let mut asked = world.ask();
        let response = world.chain.ask("eth_getLogs", asked.json()).await;
        let count = world.expected(&asked).len();
        let Some(error) = response.get("error") else {
            assert!(count <= 5 || asked.from == asked.to);
            continue;
        };
        assert!(count > 5);
        let widest = error["data"]["toBlock"].as_str().unwrap();
        asked.to = u64::from_str_radix(widest.trim_start_matches("0x"), 16).unwrap();
        let shown = world.chain.result("eth_getLogs", asked.json()).await;
        assert_eq!(
            shown.as_array().unwrap().len(),
            world.expected(&asked).len()
        );
        asked.to += 1;
        assert!(world.chain.ask("eth_getLogs", asked.json()).await["error"].is_object());
        refused += 1;
    }
    assert!(refused > 20, "{refused}");
}
