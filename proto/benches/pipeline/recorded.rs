//! Chains that op-node derived: `../shared/fixtures/derivation-live`.

use crate::feed::Feed;
use alloy_consensus::{Header, TxEnvelope};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, Bytes, Log};
use alloy_rlp::{Decodable, Header as RlpHeader};
use serde_json::Value;
use starling_proto::{
    attributes::{L1Block, ReceiptLogs},
    config::RollupConfig,
    derive::{L1Input, RelevantLogs, inbox_transactions},
    l1_config::L1ChainConfig,
    payload::Payload,
};
use starling_testkit::{fixture, fixture_text};
use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

/// A folder of the fixtures; `None` where they are absent.
pub fn load(name: &str) -> Option<Feed> {
    let folder = fixture(&format!("derivation-live/{name}"))?;
    let text = |file: &str| fixture_text(&format!("derivation-live/{name}/{file}"));
    let rollup = RollupConfig::from_json(&text("rollup.json")?).expect("a rollup config");
    let l1_config = text("l1-chain-config.json")?;
    let genesis = Payload {
        hash: rollup.genesis.l2.hash,
        header: Header {
            number: rollup.genesis.l2.number,
            timestamp: rollup.genesis.l2_time,
            ..Header::default()
        },
        transactions: Vec::new(),
    };
    let blocks = lines(&folder.join("l2.jsonl.zst")).into_iter();
    let blocks = blocks.map(|line| payload(&read::<Bytes>(&line["raw"])));
    let l1 = lines(&folder.join("l1.jsonl.zst")).into_iter();
    Some(Feed {
        l1: l1.map(|line| l1_input(&line, &rollup)).collect(),
        l2: std::iter::once(genesis)
            .chain(blocks)
            .map(Arc::new)
            .collect(),
        schedule: L1ChainConfig::from_json(&l1_config)
            .expect("an L1 config")
            .blobs,
        blobs: blobs(&folder.join("blobs")),
        rollup: Arc::new(rollup),
    })
}

fn unpack(path: &Path) -> Vec<u8> {
    let packed = fs::read(path).expect("a fixture");
    zstd::decode_all(packed.as_slice()).expect("zstd")
}

fn lines(path: &Path) -> Vec<Value> {
    let text = unpack(path);
    let lines = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).expect("JSON"))
        .collect()
}

/// Blobs by versioned hash, which is the name of the file.
fn blobs(folder: &Path) -> BTreeMap<B256, Bytes> {
    let files = fs::read_dir(folder).into_iter().flatten();
    let files = files.map(|file| file.expect("a folder").path());
    let blob = |path: std::path::PathBuf| {
        let name = path.file_name()?.to_str()?.strip_suffix(".zst")?.to_owned();
        Some((name.parse().ok()?, unpack(&path).into()))
    };
    files.filter_map(blob).collect()
}

fn number(value: &Value) -> u64 {
    let text = value.as_str().unwrap_or_default();
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a quantity")
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).expect("a value of its type")
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn l1_input(line: &Value, rollup: &RollupConfig) -> L1Input {
    let block = &line["block"];
    let raw: Vec<Vec<u8>> = items(&block["transactions"])
        .map(|transaction| read::<TxEnvelope>(transaction).encoded_2718())
        .collect();
    let receipts: Vec<ReceiptLogs> = items(&line["receipts"])
        .map(|receipt| {
            let logs: Vec<Log> = read(&receipt["logs"]);
            (number(&receipt["status"]) == 1, logs)
        })
        .collect();
    L1Input {
        block: L1Block {
            number: number(&block["number"]),
            hash: read(&block["hash"]),
            parent_hash: read(&block["parentHash"]),
            time: number(&block["timestamp"]),
            base_fee: number(&block["baseFeePerGas"]),
            mix_hash: read(&block["mixHash"]),
            excess_blob_gas: block.get("excessBlobGas").map(number),
            parent_beacon_root: block.get("parentBeaconBlockRoot").map(read),
            receipts_root: read(&block["receiptsRoot"]),
            state_root: read(&block["stateRoot"]),
        },
        logs: RelevantLogs::of(&receipts, rollup),
        inbox: inbox_transactions(raw.iter().map(Vec::as_slice), rollup.batch_inbox_address),
    }
}

/// A block from the RLP `[header, transactions, uncles, withdrawals?]`.
fn payload(raw: &[u8]) -> Payload {
    let mut body = RlpHeader::decode_bytes(&mut &raw[..], true).expect("a block");
    let header = Header::decode(&mut body).expect("a header");
    let mut list = RlpHeader::decode_bytes(&mut body, true).expect("a list");
    let mut transactions = Vec::new();
    while !list.is_empty() {
        let item = list;
        let header = RlpHeader::decode(&mut list).expect("an item");
        let (content, rest) = list.split_at(header.payload_length);
        let whole = &item[..item.len() - rest.len()];
        transactions.push(Bytes::copy_from_slice(if header.list {
            whole
        } else {
            content
        }));
        list = rest;
    }
    Payload::sealed(header, transactions)
}
