//! Our L1 with the blob transactions that a real op-batcher posted on geth. The transactions are
//! accepted in network form, mined, shown as geth showed them, and their blobs are served to our
//! beacon client after `kill -9`.

use crate::net::{Running, ask, call, number, starling, wait};
use alloy_consensus::{SignableTransaction, TxEip4844, TxEip4844WithSidecar};
use alloy_eips::{eip2718::Encodable2718, eip4844::Blob};
use alloy_primitives::{B256, Bytes, Signature, U256};
use serde_json::{Value, json};
use starling::{
    chain::kzg,
    clock::unix_now,
    devnet::genesis::l1_genesis_of,
    rollup::beacon::{BeaconClient, BeaconConfig},
    secret::Secret,
};
use starling_proto::derive::BlobRef;
use starling_testkit::free_port;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(120);
/// Number of recorded transactions that are replayed.
const COUNT: usize = 8;

/// A blob transaction as geth returned it, with its receipt and its blobs.
struct Recorded {
    transaction: Value,
    receipt: Value,
    blobs: Vec<Blob>,
}

/// Reads the recorded transactions. `None`, recorded as a skip, if the fixtures are absent.
fn recording() -> Option<Vec<Recorded>> {
    let folder = starling_testkit::fixture("derivation-live")?.join("jovian-blobs");
    let unpacked = |path: PathBuf| {
        let packed = std::fs::read(path).expect("a file of the recording");
        zstd::decode_all(&packed[..]).expect("zstd")
    };
    let text = String::from_utf8(unpacked(folder.join("l1.jsonl.zst"))).expect("text");
    let mut recorded = Vec::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let transactions = line["block"]["transactions"].as_array().expect("a list");
        let receipts = line["receipts"].as_array().expect("a list");
        for (transaction, receipt) in transactions.iter().zip(receipts) {
            let hashes = transaction["blobVersionedHashes"].as_array();
            let blob = |hash: &Value| {
                let name = format!("{}.zst", hash.as_str().expect("a hash"));
                Blob::from_slice(&unpacked(folder.join("blobs").join(name)))
            };
            if let Some(hashes) = hashes.filter(|_| recorded.len() < COUNT) {
                recorded.push(Recorded {
                    transaction: transaction.clone(),
                    receipt: receipt.clone(),
                    blobs: hashes.iter().map(blob).collect(),
                });
            }
        }
    }
    assert_eq!(recorded.len(), COUNT);
    Some(recorded)
}

impl Recorded {
    fn field<T: serde::de::DeserializeOwned>(&self, name: &str) -> T {
        serde_json::from_value(self.transaction[name].clone())
            .unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn quantity(&self, name: &str) -> u64 {
        number(&self.transaction[name])
    }

    /// The transaction in network form, with proofs that this test computes.
    fn network_form(&self) -> Bytes {
        let tx = TxEip4844 {
            chain_id: self.quantity("chainId"),
            nonce: self.quantity("nonce"),
            gas_limit: self.quantity("gas"),
            max_fee_per_gas: self.quantity("maxFeePerGas").into(),
            max_priority_fee_per_gas: self.quantity("maxPriorityFeePerGas").into(),
            to: self.field("to"),
            value: self.field("value"),
            access_list: self.field("accessList"),
            blob_versioned_hashes: self.field("blobVersionedHashes"),
            max_fee_per_blob_gas: self.quantity("maxFeePerBlobGas").into(),
            input: self.field("input"),
        };
        let sidecar = kzg::sidecar(self.blobs.clone()).expect("blobs");
        let (r, s): (U256, U256) = (self.field("r"), self.field("s"));
        let signature = Signature::new(r, s, self.quantity("yParity") == 1);
        let signed = TxEip4844WithSidecar { tx, sidecar }.into_signed(signature);
        signed.encoded_2718().into()
    }
}

/// An L1 that runs as a process.
pub(crate) struct L1 {
    command: Vec<String>,
    pub(crate) url: String,
    pub(crate) beacon: String,
    process: Option<Running>,
}

impl L1 {
    pub(crate) fn start(dir: &Path, chain_id: u64, funded: &str) -> Self {
        let alloc = json!({ funded: { "balance": "0x56bc75e2d63100000" } });
        let mut genesis = l1_genesis_of(chain_id, alloc.as_object().expect("an object").clone());
        genesis["timestamp"] = (unix_now() - 100).into();
        Self::of_genesis(dir, &genesis)
    }

    /// Starts an L1 on this genesis, with a block every second.
    pub(crate) fn of_genesis(dir: &Path, genesis: &Value) -> Self {
        Self::init(dir, genesis);
        Self::of_datadir(dir, &["--dev.period=1"])
    }

    /// Makes the data directory of an L1 in `dir`.
    pub(crate) fn init(dir: &Path, genesis: &Value) {
        let file = dir.join("genesis.json");
        std::fs::write(&file, genesis.to_string()).expect("a file");
        let datadir = format!("--datadir={}", dir.join("l1").display());
        let init = starling().args(["init", &datadir]).arg(&file).output();
        assert!(init.expect("init starts").status.success());
    }

    /// Starts an L1 on the data directory that [`L1::init`] has made in `dir`.
    pub(crate) fn of_datadir(dir: &Path, options: &[&str]) -> Self {
        let [http, beacon] = [free_port(), free_port()];
        let mut command = vec![
            "execution".to_owned(),
            format!("--datadir={}", dir.join("l1").display()),
            "--http".into(),
            "--http.addr=127.0.0.1".into(),
            format!("--http.port={http}"),
            format!("--dev.beacon.port={beacon}"),
        ];
        command.extend(options.iter().map(|option| (*option).to_owned()));
        let mut l1 = Self {
            command,
            url: format!("http://127.0.0.1:{http}"),
            beacon: format!("http://127.0.0.1:{beacon}"),
            process: None,
        };
        l1.run();
        l1
    }

    pub(crate) fn run(&mut self) {
        let child = starling()
            .args(&self.command)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.expect("the program starts");
        self.process = Some(Running { child });
        wait("the L1", PATIENCE, || {
            call(&self.url, "eth_chainId", json!([])).ok()
        });
    }

    pub(crate) fn kill9(&mut self) {
        self.process = None;
    }

    /// Fetches the blobs of a block with our beacon client.
    fn blobs(&self, block: &Value, wanted: &[BlobRef]) -> Vec<Box<Blob>> {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let config = BeaconConfig::new(vec![Secret::new(self.beacon.clone())]);
            let client = BeaconClient::new(&config).expect("a client");
            client.check_health().await.expect("its version");
            let time = number(&block["timestamp"]);
            client.blobs(time, wanted).await.expect("the blobs")
        })
    }
}

/// Compares a response with geth's: the same members, and equal values of the members in `same`.
/// Members in `more` are ignored.
fn compare(ours: &Value, geths: &Value, same: &[&str], more: &[&str]) {
    let names = |value: &Value| {
        let object = value.as_object().expect("an object");
        let names = object.keys().filter(|name| !more.contains(&name.as_str()));
        names.cloned().collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(names(ours), names(geths));
    for name in same {
        assert_eq!(ours[name], geths[name], "{name}");
    }
}

/// Members of a receipt that do not depend on the block of the transaction.
const RECEIPT: [&str; 11] = [
    "type",
    "status",
    "from",
    "to",
    "gasUsed",
    "blobGasUsed",
    "blobGasPrice",
    "transactionHash",
    "contractAddress",
    "logs",
    "logsBloom",
];

/// Members of a transaction that do not depend on its block.
const TRANSACTION: [&str; 18] = [
    "type",
    "hash",
    "from",
    "to",
    "gas",
    "nonce",
    "value",
    "input",
    "chainId",
    "v",
    "r",
    "s",
    "yParity",
    "accessList",
    "maxFeePerGas",
    "maxPriorityFeePerGas",
    "maxFeePerBlobGas",
    "blobVersionedHashes",
];

/// Waits until a transaction is mined, compares it and its receipt with the recorded ones, and
/// returns the number of its block.
fn assert_mined(l1: &L1, recorded: &Recorded) -> u64 {
    let hash = &recorded.transaction["hash"];
    let receipt = wait("a receipt", PATIENCE, || {
        let receipt = ask(&l1.url, "eth_getTransactionReceipt", json!([hash]));
        (!receipt.is_null()).then_some(receipt)
    });
    compare(&receipt, &recorded.receipt, &RECEIPT, &[]);
    let transaction = ask(&l1.url, "eth_getTransactionByHash", json!([hash]));
    let more = ["blockTimestamp"];
    compare(&transaction, &recorded.transaction, &TRANSACTION, &more);
    number(&receipt["blockNumber"])
}

/// Checks that the block at `height` contains only these transactions, that its blobs are served,
/// and that the fee history counts its blob gas.
fn assert_served(l1: &L1, height: u64, transactions: &[&Recorded]) {
    let tag = format!("{height:#x}");
    let block = ask(&l1.url, "eth_getBlockByNumber", json!([tag, false]));
    let blobs: Vec<&Blob> = transactions.iter().flat_map(|one| &one.blobs).collect();
    assert!(blobs.len() <= 6);
    assert_eq!(number(&block["blobGasUsed"]), 131_072 * blobs.len() as u64);
    let hashes = transactions
        .iter()
        .flat_map(|one| one.field::<Vec<B256>>("blobVersionedHashes"));
    let blob_ref = |(index, versioned_hash)| BlobRef {
        index,
        versioned_hash,
    };
    let wanted: Vec<BlobRef> = (0..).zip(hashes).map(blob_ref).collect();
    let served = l1.blobs(&block, &wanted);
    let served: Vec<&Blob> = served.iter().map(|blob| &**blob).collect();
    assert_eq!(served, blobs, "block {height}");
    let history = ask(&l1.url, "eth_feeHistory", json!(["0x1", tag, []]));
    let used = history["blobGasUsedRatio"][0].as_f64().expect("a number");
    assert!((used - blobs.len() as f64 / 6.0).abs() < 1e-9, "{history}");
    assert_eq!(history["baseFeePerBlobGas"], json!(["0x1", "0x1"]));
}

#[test]
fn the_blob_transactions_of_a_real_batcher_are_mined_shown_and_served() {
    let Some(recorded) = recording() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let (chain_id, sender) = (
        recorded[0].quantity("chainId"),
        recorded[0].field::<String>("from"),
    );
    let mut l1 = L1::start(dir.path(), chain_id, &sender);
    for one in &recorded {
        let params = json!([one.network_form()]);
        let sent = ask(&l1.url, "eth_sendRawTransaction", params);
        assert_eq!(sent, one.transaction["hash"]);
    }
    let mut blocks: BTreeMap<u64, Vec<&Recorded>> = BTreeMap::new();
    for one in &recorded {
        let height = assert_mined(&l1, one);
        blocks.entry(height).or_default().push(one);
    }
    l1.kill9();
    l1.run();
    for (height, transactions) in blocks {
        assert_served(&l1, height, &transactions);
    }
    assert_eq!(ask(&l1.url, "eth_blobBaseFee", json!([])), "0x1");
}
