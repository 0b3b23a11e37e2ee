//! Otterscan's searches through the address index return the same pages as a scan of all blocks.
//! Tested with random chains, addresses and pages, with blocks in memory, unwinds, and an
//! incomplete index.

use super::chain::*;
use crate::chain::{store::ValueIndex, view::ExecutedBlock};
use alloy_consensus::Transaction;
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, B256, Bytes, Log, TxKind};
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use starling_proto::fork::Fork;
use std::sync::Arc;

const BEFORE: &str = "ots_searchTransactionsBefore";
const AFTER: &str = "ots_searchTransactionsAfter";

struct World {
    chain: Chain,
    /// All canonical blocks above genesis.
    all: Vec<Arc<ExecutedBlock>>,
    rng: StdRng,
    on: bool,
}

/// A page of transactions, as a scan of all blocks finds it.
#[derive(Debug, PartialEq, Eq)]
struct NaivePage {
    hashes: Vec<B256>,
    first: bool,
    last: bool,
}

fn address(rng: &mut StdRng) -> Address {
    Address::repeat_byte(rng.random_range(1..6))
}

/// The addresses that take part in the transaction at `index`, read from the block itself.
fn addresses_of(block: &ExecutedBlock, index: usize) -> Vec<Address> {
    let raw = &block.payload.transactions[index];
    let tx = OpTxEnvelope::decode_2718(&mut raw.as_ref()).unwrap();
    let (from, receipt) = (block.senders[index], &block.receipts[index]);
    let nonce = receipt.deposit_nonce.unwrap_or(tx.nonce());
    let mut all = vec![from, tx.to().unwrap_or_else(|| from.create(nonce))];
    all.extend(receipt.logs.iter().map(|log| log.address));
    all
}

impl World {
    fn new(seed: u64) -> Self {
        let mut chain = Chain::new(Fork::Canyon);
        chain.store.keep_addresses(true);
        chain.store.extend_index(ValueIndex::Addresses).unwrap();
        chain.publish();
        chain.serve(&["ots"]);
        Self {
            chain,
            all: vec![],
            rng: StdRng::seed_from_u64(seed),
            on: true,
        }
    }

    fn transaction(&mut self) -> (OpTxEnvelope, Vec<Log>) {
        let rng = &mut self.rng;
        let logs = (0..rng.random_range(0..3))
            .map(|_| Log::new_unchecked(address(rng), vec![], Bytes::new()))
            .collect();
        if rng.random_range(0..5) == 0 {
            return (legacy(rng.random_range(0..1 << 40)), logs);
        }
        let to = match rng.random_range(0..4) {
            0 => TxKind::Create,
            _ => TxKind::Call(address(rng)),
        };
        let deposit = TxDeposit {
            source_hash: rng.random::<[u8; 32]>().into(),
            from: address(rng),
            to,
            ..Default::default()
        };
        (deposit.into(), logs)
    }

    fn grow(&mut self, blocks: usize) {
        for _ in 0..blocks {
            let count = self.rng.random_range(0..4);
            let transactions: Vec<_> = (0..count).map(|_| self.transaction()).collect();
            self.all.push(self.chain.add(&transactions));
        }
    }

    fn turn(&mut self) {
        self.on = !self.on;
        self.chain.store.keep_addresses(self.on);
        self.chain.store.prune().unwrap();
    }

    /// A random address that takes part in some transaction, or one that takes part in none.
    fn wanted(&mut self) -> Address {
        if self.all.is_empty() || self.rng.random_range(0..8) == 0 {
            return Address::repeat_byte(0x99);
        }
        let block = &self.all[self.rng.random_range(0..self.all.len())];
        let index = self.rng.random_range(0..block.payload.transactions.len());
        let addresses = addresses_of(block, index);
        addresses[self.rng.random_range(0..addresses.len())]
    }

    /// The page that a scan of all blocks finds.
    fn naive(&self, method: &str, address: Address, block: u64, size: usize) -> NaivePage {
        let below = method == BEFORE;
        let inside = |number: u64| match (block, below) {
            (0, _) => true,
            (block, true) => number < block,
            (block, false) => number > block,
        };
        let mut blocks: Vec<_> = self.all.iter().collect();
        if below {
            blocks.reverse();
        }
        let (mut hashes, mut more) = (vec![], false);
        for one in blocks
            .into_iter()
            .filter(|one| inside(one.payload.number()))
        {
            let all = one.transaction_hashes().iter().enumerate();
            let mut found: Vec<_> = all
                .filter(|(index, _)| addresses_of(one, *index).contains(&address))
                .map(|(_, hash)| *hash)
                .collect();
            if !found.is_empty() && hashes.len() >= size {
                more = true;
                break;
            }
            found.reverse();
            let at = if below { hashes.len() } else { 0 };
            hashes.splice(at..at, found);
        }
        NaivePage {
            hashes,
            first: if below { block == 0 } else { !more },
            last: if below { !more } else { block == 0 },
        }
    }

    /// Compares one page of the index with the scan. Returns whether the index returned a page.
    async fn check(&mut self) -> bool {
        let address = self.wanted();
        let block = self.rng.random_range(0..self.all.len() as u64 + 3);
        let size = self.rng.random_range(1..=25);
        let method = [BEFORE, AFTER][self.rng.random_range(0..2)];
        let params = json!([address, block, size]);
        let response = self.chain.ask(method, params.clone()).await;
        let asked = format!("{method} {params}");
        if let Some(error) = response.get("error") {
            let first = self.chain.view.lock().addresses_from();
            let message = error["message"].as_str().unwrap();
            match first {
                None => assert!(message.contains("--index.addresses"), "{message}"),
                Some(first) => {
                    let start = format!("the index of addresses covers block #{first} and later");
                    assert!(first > 0 && message.starts_with(&start), "{message}");
                }
            }
            return false;
        }
        assert!(self.on, "{asked}");
        let found = page(&response["result"]);
        assert_eq!(found, self.naive(method, address, block, size), "{asked}");
        true
    }
}

/// The page in a response, whose receipts must be those of its transactions.
fn page(response: &Value) -> NaivePage {
    let hashes = |list: &str, member: &str| -> Vec<B256> {
        let list = response[list].as_array().unwrap();
        let hash = |one: &Value| one[member].as_str().unwrap().parse().unwrap();
        list.iter().map(hash).collect()
    };
    assert_eq!(hashes("txs", "hash"), hashes("receipts", "transactionHash"));
    NaivePage {
        hashes: hashes("txs", "hash"),
        first: response["firstPage"].as_bool().unwrap(),
        last: response["lastPage"].as_bool().unwrap(),
    }
}

#[tokio::test]
async fn pages_by_index_are_those_of_a_scan_of_all_blocks() {
    let (mut answered, mut refused) = (0, 0);
    for seed in 0..6 {
        let mut world = World::new(seed);
        for turn in 0..40 {
            match world.rng.random_range(0..9) {
                0..4 => world.grow(8),
                4..7 => world.chain.store_some(&world.all, &mut world.rng),
                7 => world.chain.unwind_some(&mut world.all, &mut world.rng),
                // Turn the index on more often than off.
                _ if !world.on || turn % 3 == 0 => world.turn(),
                _ => {}
            }
            if turn % 4 != 0 {
                world
                    .chain
                    .store
                    .extend_index(ValueIndex::Addresses)
                    .unwrap();
            }
            world.chain.publish();
            for _ in 0..8 {
                let by_index = world.check().await;
                answered += usize::from(by_index);
                refused += usize::from(!by_index);
            }
        }
    }
    assert!(answered > 800, "{answered} answered, {refused} refused");
    assert!(refused > 50, "{answered} answered, {refused} refused");
}

/// Walks through all pages from the newest to the oldest, and back.
#[tokio::test]
async fn pages_follow_each_other_without_gaps() {
    let mut world = World::new(7);
    world.grow(120);
    world
        .chain
        .store
        .commit(&world.all[..100], None, None)
        .unwrap();
    world
        .chain
        .store
        .extend_index(ValueIndex::Addresses)
        .unwrap();
    world.chain.publish();
    let address = Address::repeat_byte(2);
    let everything = world.naive(BEFORE, address, 0, usize::MAX).hashes;
    assert!(everything.len() > 60, "{}", everything.len());
    for method in [BEFORE, AFTER] {
        let (mut walked, mut block, mut pages) = (vec![], 0u64, 0);
        loop {
            let params = json!([address, block, 10]);
            let response = world.chain.result(method, params).await;
            let NaivePage {
                hashes,
                first,
                last,
            } = page(&response);
            pages += 1;
            let (begins, ends, at) = if method == BEFORE {
                (first, last, walked.len())
            } else {
                (last, first, 0)
            };
            assert_eq!(begins, pages == 1);
            walked.splice(at..at, hashes);
            let txs = response["txs"].as_array().unwrap();
            let edge = if method == BEFORE {
                txs.last()
            } else {
                txs.first()
            };
            let number = edge.unwrap()["blockNumber"].as_str().unwrap();
            block = u64::from_str_radix(number.trim_start_matches("0x"), 16).unwrap();
            if ends {
                break;
            }
            assert!(pages < 20);
        }
        assert!(pages > 3);
        assert_eq!(walked, everything, "{method}");
    }
}

#[tokio::test]
async fn receipts_have_the_time_of_their_block_and_all_logs() {
    let mut world = World::new(8);
    let log = Log::new_unchecked(CONTRACT, vec![], Bytes::from_static(&[1]));
    let block = world.chain.add(&[(legacy(3), vec![log])]);
    let response = world
        .chain
        .result(BEFORE, json!([CONTRACT, "0x0", "0x5"]))
        .await;
    let receipt = &response["receipts"][0];
    assert_eq!(receipt["logs"].as_array().unwrap().len(), 1);
    let time = format!("{:#x}", block.payload.timestamp());
    assert_eq!(receipt["timestamp"], time);
    assert_eq!(response["txs"][0]["blockNumber"], "0x1");
}

#[tokio::test]
async fn bad_input_is_refused() {
    let mut world = World::new(9);
    world.grow(3);
    let who = Address::repeat_byte(2);
    for method in [BEFORE, AFTER] {
        for (params, code, start) in [
            (json!([]), -32602, "missing value for required argument 0"),
            (
                json!([who]),
                -32602,
                "missing value for required argument 1",
            ),
            (
                json!([who, 0]),
                -32602,
                "missing value for required argument 2",
            ),
            (
                json!([who, 0, 5, 6]),
                -32602,
                "too many arguments, want at most 3",
            ),
            (json!(["0x12", 0, 5]), -32602, "invalid argument 0"),
            (json!([who, -1, 5]), -32602, "invalid argument 1"),
            (json!([who, "latest", 5]), -32602, "invalid argument 1"),
            (json!([who, 0, 1.5]), -32602, "invalid argument 2"),
            (json!([who, 0, {}]), -32602, "invalid argument 2"),
            (json!([who, 0, 0]), -32602, "page size must be at least 1"),
            (json!([who, 0, 26]), -32000, "max allowed page size: 25"),
            (
                json!([who, 0, u64::MAX]),
                -32000,
                "max allowed page size: 25",
            ),
        ] {
            let found = world.chain.error(method, params.clone()).await;
            assert!(
                found.0 == code && found.1.starts_with(start),
                "{method} {params}: {found:?}"
            );
        }
        // Block number beyond the head: all transactions are below it, and none are above.
        let params = json!([who, u64::MAX, 25]);
        let found = page(&world.chain.result(method, params).await);
        let expected = world.naive(method, who, u64::MAX, 25);
        assert_eq!(found, expected);
    }
}
