//! A data directory without the log index and the address index. Starling builds both in the
//! background, even if it is killed repeatedly, and then returns the same results as a scan of
//! every block.

use crate::{
    campaign::world::{World, datadir},
    net::{Running, ask, call, starling, wait},
    tools::succeeds,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use starling_testkit::free_port;
use std::{collections::BTreeSet, path::Path, process::Stdio, time::Duration};
use tempfile::TempDir;

const BLOCKS: usize = 400;
const PATIENCE: Duration = Duration::from_secs(120);
/// Number of kills within which the indexes must be complete. The runs become longer on average, so
/// that a slow machine makes progress, too.
const MAX_KILLS: u64 = 30;
const SEARCH: &str = "ots_searchTransactionsBefore";

/// Makes a data directory whose blocks are not indexed.
fn without_indexes() -> TempDir {
    let (source, target, files) = (datadir(), datadir(), tempfile::tempdir().unwrap());
    World::open(source.path(), None).extend(&mut StdRng::seed_from_u64(21), BLOCKS);
    let blocks = files.path().join("blocks.rlp");
    let blocks = blocks.to_str().unwrap();
    succeeds(source.path(), &format!("export {blocks}"));
    let import = format!("import {blocks} --history.logs.disable --gcmode=archive");
    succeeds(target.path(), &import);
    target
}

/// First block of each index, as `db stats` prints it.
fn begins(dir: &Path) -> [String; 2] {
    let told = succeeds(dir, "db stats");
    ["oldest indexed logs ", "oldest by address "].map(|name| {
        let line = told.lines().find_map(|line| line.strip_prefix(name));
        line.expect("its line").trim().to_owned()
    })
}

/// Starts a core on the directory, with its RPC on this port.
fn start(dir: &Path, port: u16, options: &[&str]) -> Running {
    let mut command = starling();
    command
        .args(["execution", "--http", "--http.api=eth,ots"])
        .args(["--gcmode=archive", "--authrpc.port=0", "--ipcdisable"])
        .arg(format!("--http.port={port}"))
        .arg("--datadir")
        .arg(dir)
        .args(options)
        .stderr(Stdio::null());
    Running::spawn(&mut command)
}

/// Waits for a core's RPC. Returns its URL.
fn served(port: u16) -> String {
    let url = format!("http://127.0.0.1:{port}");
    wait("the RPC", PATIENCE, || {
        call(&url, "eth_chainId", json!([])).ok()
    });
    url
}

#[test]
fn indexes_are_built_in_the_background_over_kills() {
    let dir = without_indexes();
    let absent = [(BLOCKS + 1).to_string(), "none".to_owned()];
    assert_eq!(begins(dir.path()), absent);
    let whole = ["0".to_owned(), "0".to_owned()];
    let (mut rng, mut states) = (StdRng::seed_from_u64(22), vec![absent]);
    for kill in 1.. {
        assert!(kill < MAX_KILLS, "{states:?}");
        let mut node = start(dir.path(), free_port(), &["--index.addresses"]);
        std::thread::sleep(Duration::from_millis(kill * rng.random_range(200..600)));
        node.kill9();
        let told = succeeds(dir.path(), "db verify");
        assert!(told.contains("nothing is damaged"), "{told}");
        states.push(begins(dir.path()));
        if states.last() == Some(&whole) {
            break;
        }
    }
    println!("{states:?}");
    let port = free_port();
    let node = start(dir.path(), port, &["--index.addresses"]);
    check_answers(&served(port));
    drop(node);

    // Without the option the address index is dropped, and the error of a search names the option.
    let port = free_port();
    let _node = start(dir.path(), port, &[]);
    let params = json!([format!("0x{:040x}", 9), 0, 5]);
    let error = call(&served(port), SEARCH, params).unwrap_err();
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("--index.addresses"), "{message}");
}

/// The logs and addresses in every block and receipt, read without an index.
#[derive(Default)]
struct Blocks {
    logs: Vec<Value>,
    /// Hash of each transaction, and the addresses that occur in it, oldest first.
    transactions: Vec<(Value, BTreeSet<String>)>,
}

impl Blocks {
    fn read(url: &str) -> Self {
        let mut read = Self::default();
        for number in 0..=BLOCKS {
            let receipts = ask(url, "eth_getBlockReceipts", json!([format!("{number:#x}")]));
            for receipt in receipts.as_array().unwrap() {
                let logs = receipt["logs"].as_array().unwrap();
                let members = ["from", "to", "contractAddress"].map(|name| &receipt[name]);
                let addresses = members
                    .into_iter()
                    .chain(logs.iter().map(|log| &log["address"]));
                let addresses = addresses.filter_map(Value::as_str).map(str::to_lowercase);
                let hash = receipt["transactionHash"].clone();
                read.transactions.push((hash, addresses.collect()));
                read.logs.extend(logs.iter().cloned());
            }
        }
        read
    }
}

/// Compares the results of searches in both indexes with the blocks.
fn check_answers(url: &str) {
    let blocks = Blocks::read(url);
    assert!(blocks.logs.len() > 50, "{} logs", blocks.logs.len());
    let topics: BTreeSet<_> = blocks
        .logs
        .iter()
        .map(|log| log["topics"][0].to_string())
        .collect();
    for topic in topics {
        let topic: Value = serde_json::from_str(&topic).unwrap();
        let filter = json!([{ "fromBlock": "0x0", "toBlock": "latest", "topics": [topic] }]);
        let expected = blocks.logs.iter().filter(|log| log["topics"][0] == topic);
        let found = ask(url, "eth_getLogs", filter);
        assert_eq!(found, Value::Array(expected.cloned().collect()), "{topic}");
    }
    let addresses: BTreeSet<_> = blocks
        .transactions
        .iter()
        .flat_map(|(_, all)| all)
        .collect();
    assert!(addresses.len() > 6, "{addresses:?}");
    for address in addresses {
        let takes_part = blocks.transactions.iter().rev();
        let takes_part = takes_part.filter(|(_, all)| all.contains(address));
        let expected: BTreeSet<_> = takes_part.map(|(hash, _)| hash.to_string()).collect();
        assert_eq!(searched(url, address), expected, "{address}");
    }
}

/// Hashes of all transactions that a paged search finds for an address.
fn searched(url: &str, address: &str) -> BTreeSet<String> {
    let (mut found, mut below) = (BTreeSet::new(), json!(0));
    for _ in 0..=BLOCKS {
        let page = ask(url, SEARCH, json!([address, below, 25]));
        for tx in page["txs"].as_array().unwrap() {
            assert!(found.insert(tx["hash"].to_string()), "{tx} comes twice");
            below = tx["blockNumber"].clone();
        }
        if page["lastPage"] == json!(true) {
            return found;
        }
    }
    panic!("{address}: there is no last page");
}
