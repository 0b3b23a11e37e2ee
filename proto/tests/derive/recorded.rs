//! Reads chains that op-node derived, from `../shared/fixtures/derivation-live`, for the test
//! `derive` and the bench `pipeline`.

use alloy_consensus::{Header, TxEnvelope};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, Bytes, Log};
use alloy_rlp::{Decodable, Header as RlpHeader};
use serde_json::Value;
use starling_proto::{
    attributes::{L1Block, ReceiptLogs},
    config::RollupConfig,
    derive::{BlobRef, L1Input, RelevantLogs, inbox_transactions},
    fork::BlobSchedule,
    l1_config::L1ChainConfig,
    payload::Payload,
};
use starling_testkit::{fixture, fixture_text};
use std::{collections::BTreeMap, sync::Arc};

/// A recorded chain: one folder of the fixtures.
pub struct Recording {
    pub name: String,
    pub rollup: Arc<RollupConfig>,
    pub schedule: BlobSchedule,
    /// L1 blocks by number.
    pub l1: BTreeMap<u64, L1Input>,
    /// Consecutive L2 blocks, from genesis on.
    pub l2: Vec<Arc<Payload>>,
}

impl Recording {
    /// Reads a folder; `None` if the fixtures are absent.
    pub fn load(name: &str) -> Option<Self> {
        let path = |file: &str| format!("derivation-live/{name}/{file}");
        let rollup = fixture_text(&path("rollup.json"))?;
        let rollup = RollupConfig::from_json(&rollup).expect("a rollup config");
        let l1_config = fixture_text(&path("l1-chain-config.json"))?;
        let l1_config = L1ChainConfig::from_json(&l1_config).expect("an L1 config");
        let genesis = Payload {
            hash: rollup.genesis.l2.hash,
            header: Header {
                number: rollup.genesis.l2.number,
                timestamp: rollup.genesis.l2_time,
                ..Header::default()
            },
            transactions: Vec::new(),
            ethereum: None,
        };
        let blocks = lines(&path("l2.jsonl.zst"))?.into_iter().map(|line| {
            let payload = payload(&read::<Bytes>(&line["raw"]));
            assert_eq!(payload.hash, read::<B256>(&line["hash"]));
            payload
        });
        let l1 = lines(&path("l1.jsonl.zst"))?.into_iter().map(|line| {
            let input = l1_input(&line, &rollup);
            (input.block.number, input)
        });
        Some(Self {
            name: name.to_owned(),
            l1: l1.collect(),
            l2: std::iter::once(genesis)
                .chain(blocks)
                .map(Arc::new)
                .collect(),
            schedule: l1_config.blobs,
            rollup: Arc::new(rollup),
        })
    }

    pub fn blob(&self, blob: &BlobRef) -> Bytes {
        let (name, hash) = (&self.name, blob.versioned_hash);
        let path = format!("derivation-live/{name}/blobs/{hash}.zst");
        unpack(&path).expect("the fixtures").into()
    }
}

fn unpack(path: &str) -> Option<Vec<u8>> {
    let packed = std::fs::read(fixture(path)?).expect("a fixture");
    Some(zstd::decode_all(packed.as_slice()).expect("zstd"))
}

/// The JSON values in a file with one value per line.
pub fn lines(path: &str) -> Option<Vec<Value>> {
    let text = unpack(path)?;
    let lines = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let values = lines.map(|line| serde_json::from_slice(line).expect("JSON"));
    Some(values.collect())
}

pub fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).expect("a value of its type")
}

fn number(value: &Value) -> u64 {
    let text = value.as_str().expect("a quantity");
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a quantity")
}

fn items(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn l1_input(line: &Value, rollup: &RollupConfig) -> L1Input {
    let block = &line["block"];
    let raw: Vec<Vec<u8>> = items(&block["transactions"])
        .iter()
        .map(|transaction| read::<TxEnvelope>(transaction).encoded_2718())
        .collect();
    let receipts: Vec<ReceiptLogs> = items(&line["receipts"])
        .iter()
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

/// Decodes a block from the RLP list `[header, transactions, uncles, withdrawals?]`.
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
