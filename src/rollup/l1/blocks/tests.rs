//! Whole blocks: published ones, recorded chains, and falsified blocks of every kind.

use super::{
    super::{
        L1Config, RpcKind,
        fake::{FakeL1, recorded},
    },
    *,
};
use crate::rollup::http::fake::{Canned, CannedServer};
use alloy_primitives::{Address, address};
use serde_json::Value;
use starling_proto::{config_update::CONFIG_UPDATE_EVENT, derive::BlobRef};

const NOWHERE: Watched = Watched {
    inbox: Address::ZERO,
    portal: Address::ZERO,
    system_config: Address::ZERO,
};

/// The watched addresses of the rollup in a folder of `derivation-live`.
pub(crate) fn watched_of(folder: &str) -> Option<Watched> {
    let path = format!("derivation-live/{folder}/rollup.json");
    let rollup: Value = serde_json::from_str(&starling_testkit::fixture_text(&path)?).unwrap();
    let address = |name: &str| rollup[name].as_str().unwrap().parse().unwrap();
    Some(Watched {
        inbox: address("batch_inbox_address"),
        portal: address("deposit_contract_address"),
        system_config: address("l1_system_config_address"),
    })
}

fn reader(l1: &FakeL1, watched: Watched, change: impl Fn(&mut L1Config)) -> L1Blocks {
    let mut config = L1Config::new(l1.url());
    change(&mut config);
    L1Blocks::new(L1Client::new(&config).unwrap(), watched, 900)
}

async fn cause(blocks: &L1Blocks, at: L1BlockAt) -> RpcCause {
    blocks.get(at).await.unwrap_err().cause
}

fn full(value: &Value, trust: bool) -> Result<CheckedL1Block, RpcCause> {
    let raw = serde_json::value::to_raw_value(value).unwrap();
    response::full_block(&raw, &NOWHERE, trust, &HashMap::new())
}

/// Blocks of real L1 nodes: intact ones, and ones with a corrupted header, transaction or
/// withdrawal.
#[test]
fn published_blocks_are_accepted_and_corrupted_ones_refused() {
    let Some(folder) = starling_testkit::fixture("l1-source/blocks") else {
        return;
    };
    let mut seen = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path().display().to_string();
        let Some(name) = path.strip_suffix("_data.json") else {
            continue;
        };
        let read = |path: &str| -> Value {
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
        };
        let block = read(&path);
        let fails = read(&format!("{name}_metadata.json"))["fail"] == true;
        let answer = full(&block, false);
        assert_eq!(answer.is_err(), fails, "{name}: {answer:?}");
        assert!(full(&block, true).is_ok(), "{name}");
        if fails {
            seen.0 += 1;
            continue;
        }
        seen.1 += 1;
        // A changed, missing or moved transaction is detected.
        let mut forged = block.clone();
        forged["transactions"][1]["value"] = "0x1234567".into();
        let mut short = block.clone();
        short["transactions"].as_array_mut().unwrap().pop();
        let mut swapped = block.clone();
        swapped["transactions"].as_array_mut().unwrap().swap(0, 1);
        for lie in [forged, short, swapped] {
            let cause = full(&lie, false).unwrap_err();
            assert!(
                matches!(&cause, RpcCause::Untrue(text) if text.contains("transactions of block")),
                "{cause}"
            );
        }
    }
    assert_eq!(seen, (6, 2), "corrupted and intact");
}

/// A transaction to the inbox: sender, data, and for each blob its index in the block and its
/// versioned hash.
type Posted = (String, String, Vec<(u64, String)>);

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The transactions to this inbox, except those that set code, in a block's JSON.
fn recorded_transactions(block: &Value, inbox: Address) -> Vec<Posted> {
    let inbox = inbox.to_string().to_lowercase();
    let mut blobs = 0;
    let mut posted = vec![];
    for transaction in block["transactions"].as_array().unwrap() {
        let hashes = transaction["blobVersionedHashes"].as_array();
        let hashes = (blobs..).zip(hashes.into_iter().flatten().map(text));
        let hashes: Vec<_> = hashes.collect();
        blobs += hashes.len() as u64;
        if text(&transaction["to"]) == inbox && transaction["type"] != "0x4" {
            let [from, input] = ["from", "input"].map(|field| text(&transaction[field]));
            posted.push((from.to_lowercase(), input, hashes));
        }
    }
    posted
}

/// Compares the kept logs with the recorded receipts. Returns the number of logs of watched
/// contracts.
fn assert_recorded_logs(data: &L1BlockData, receipts: &Value, watched: &Watched) -> usize {
    let watched =
        [watched.portal, watched.system_config].map(|address| address.to_string().to_lowercase());
    if data.receipts.is_empty() {
        let receipts = receipts.to_string();
        for event in [DEPOSIT, CONFIG_UPDATE_EVENT] {
            assert!(!receipts.contains(&event.to_string()));
        }
        return 0;
    }
    let receipts = receipts.as_array().unwrap().iter();
    let logs = receipts.flat_map(|receipt| receipt["logs"].as_array().unwrap());
    let logs: Vec<_> = logs
        .map(|log| (text(&log["address"]), text(&log["data"])))
        .collect();
    let kept: Vec<_> = data.receipts.iter().flat_map(|(_, logs)| logs).collect();
    assert_eq!(kept.len(), logs.len(), "every log keeps its position");
    let mut relevant = 0;
    for (kept, (address, bytes)) in kept.iter().zip(&logs) {
        assert_eq!(kept.address.to_string().to_lowercase(), *address);
        if watched.contains(address) {
            relevant += 1;
            assert_eq!(kept.data.data.to_string(), *bytes);
        }
    }
    relevant
}

/// Compares the parsed block with values taken directly from the recorded JSON. Returns the number
/// of transactions to the inbox and of relevant logs.
fn assert_recorded(data: &L1BlockData, line: &Value, watched: &Watched) -> (usize, usize) {
    let block = &line["block"];
    assert_eq!(data.block.hash.to_string(), text(&block["hash"]));
    let found = data.inbox.iter().map(|transaction| {
        let blobs = transaction.blobs.iter();
        let blobs = blobs.map(|blob| (blob.index, blob.versioned_hash.to_string()));
        let sender = transaction.sender.to_string().to_lowercase();
        (sender, transaction.calldata.to_string(), blobs.collect())
    });
    let found: Vec<Posted> = found.collect();
    assert_eq!(found, recorded_transactions(block, watched.inbox));
    let relevant = assert_recorded_logs(data, &line["receipts"], watched);
    (found.len(), relevant)
}

const DEPOSIT: B256 = starling_proto::deposit::DEPOSIT_EVENT;

#[tokio::test]
async fn recorded_chains_are_read_whole() {
    for (folder, trust) in [
        ("hostile-1", false),
        ("jovian-blobs", false),
        ("ladder-singular", true),
    ] {
        let (Some(lines), Some(watched)) = (recorded(folder), watched_of(folder)) else {
            return;
        };
        let l1 = FakeL1::start().await;
        l1.set_recorded(&lines);
        let blocks = reader(&l1, watched, |config| config.trust = trust);
        let mut seen = (0, 0);
        let mut first = 0;
        while first < lines.len() as u64 {
            let fetched = blocks.range(first, 1000).await.unwrap();
            assert_eq!(fetched.blocks.len(), 20.min(lines.len() - first as usize));
            for (data, line) in fetched.blocks.iter().zip(&lines[first as usize..]) {
                let (inbox, logs) = assert_recorded(data, line, &watched);
                seen = (seen.0 + inbox, seen.1 + logs);
            }
            first += fetched.blocks.len() as u64;
        }
        assert!(seen.0 > 10 && seen.1 > 0, "{folder}: {seen:?}");
        assert!(
            blocks.range(first, 5).await.unwrap().blocks.is_empty(),
            "above the head"
        );
        assert_eq!(blocks.get(L1BlockAt::Number(first)).await.unwrap(), None);
        if !trust {
            let receipts = l1.calls("eth_getBlockReceipts");
            assert!(
                receipts < lines.len(),
                "{folder}: the bloom spares receipts ({receipts})"
            );
        }
    }
}

#[tokio::test]
async fn cached_blocks_cost_a_header_by_number_and_nothing_by_hash() {
    let (Some(lines), Some(watched)) = (recorded("hostile-1"), watched_of("hostile-1")) else {
        return;
    };
    let l1 = FakeL1::start().await;
    l1.set_recorded(&lines);
    let blocks = reader(&l1, watched, |_| {});
    let data = blocks.get(L1BlockAt::Number(7)).await.unwrap().unwrap();
    let calls = || l1.state.lock().calls.len();
    let before = calls();
    assert_eq!(
        blocks.get(L1BlockAt::Hash(data.block.hash)).await.unwrap(),
        Some(data.clone())
    );
    assert_eq!(calls(), before);
    assert_eq!(blocks.get(L1BlockAt::Number(7)).await.unwrap(), Some(data));
    assert_eq!(calls(), before + 1);
    assert_eq!(L1Blocks::cache_size(0, 3600), 5400);
    assert_eq!(L1Blocks::cache_size(900, 3600), 900);
}

/// An endpoint with a recorded block, relevant transactions and receipts, all of which it can
/// falsify.
struct LyingL1 {
    l1: FakeL1,
    watched: Watched,
    line: Value,
    at: L1BlockAt,
}

impl LyingL1 {
    /// Starts the endpoint; `None`, recorded as a skip, if the fixtures are absent.
    async fn start() -> Option<Self> {
        let (lines, watched) = (recorded("hostile-1")?, watched_of("hostile-1")?);
        let with_logs = |line: &&Value| line["receipts"].to_string().contains(&DEPOSIT.to_string());
        let line = lines.iter().find(with_logs).unwrap().clone();
        let number = line["block"]["number"].as_str().unwrap();
        let at = L1BlockAt::Number(u64::from_str_radix(&number[2..], 16).unwrap());
        Some(Self {
            l1: FakeL1::start().await,
            watched,
            line,
            at,
        })
    }

    /// Serves the changed block for every requested block, whatever its number.
    fn falsify(&self, change: impl FnOnce(&mut Value)) {
        let mut lie = self.line.clone();
        change(&mut lie);
        self.l1.set_recorded(&[lie]);
        let mut state = self.l1.state.lock();
        let block = state.blocks[0].clone();
        state.answers.insert("eth_getBlockByNumber", Ok(block));
    }

    fn reader(&self, trust: bool) -> L1Blocks {
        reader(&self.l1, self.watched, |config| config.trust = trust)
    }

    /// The error that the changed block causes.
    async fn cause_of(&self, change: impl FnOnce(&mut Value)) -> RpcCause {
        self.falsify(change);
        let error = self.reader(false).get(self.at).await.unwrap_err();
        let method = format!("L1 at {}: eth_getBlock", self.l1.url());
        assert!(error.to_string().starts_with(&method));
        error.cause
    }
}

#[tokio::test]
async fn every_lie_about_a_block_is_named() {
    let Some(lying) = LyingL1::start().await else {
        return;
    };
    let other = recorded("hostile-1").unwrap().swap_remove(0);
    type Change<'a> = &'a dyn Fn(&mut Value);
    let lies: [(&str, Change<'_>); 5] = [
        ("claims the hash", &|line| {
            line["block"]["timestamp"] = "0x1".into();
        }),
        ("the transactions of block", &|line| {
            line["block"]["transactions"] = Value::Array(vec![]);
        }),
        ("the withdrawals of block", &|line| {
            line["block"]["withdrawals"] = Value::Null;
        }),
        ("the receipts of block", &|line| {
            line["receipts"][0]["cumulativeGasUsed"] = "0x1".into();
        }),
        ("requested block", &|line| *line = other.clone()),
    ];
    for (words, change) in lies {
        let cause = lying.cause_of(change).await;
        assert!(
            matches!(&cause, RpcCause::Untrue(text) if text.contains(words)),
            "{cause}"
        );
    }
    // A reorg between two calls: the block was served, and its receipts are gone.
    let gone = lying.cause_of(|line| line["receipts"] = Value::Null).await;
    assert!(matches!(gone, RpcCause::Missing(_)), "{gone}");
}

#[tokio::test]
async fn unknown_fields_of_a_header_are_named_and_a_trusted_endpoint_may_have_them() {
    let Some(lying) = LyingL1::start().await else {
        return;
    };
    let hash = B256::repeat_byte(1);
    let unknown = lying.cause_of(|line| {
        line["block"]["hash"] = hash.to_string().into();
        line["block"]["inclusionListHash"] = "0x1".into();
    });
    let text = unknown.await.to_string();
    assert!(
        text.contains("(inclusionListHash)") && text.contains("--l1.trustrpc"),
        "{text}"
    );
    let trusted = lying.reader(true).get(lying.at).await.unwrap().unwrap();
    assert_eq!(trusted.block.hash, hash);
}

/// The hash of a transaction without blobs does not cover a list of blobs, so an endpoint may add
/// one.
#[test]
fn transactions_with_blobs_and_no_others_move_the_indexes_of_later_blobs() {
    let (Some(lines), Some(watched)) = (recorded("jovian-blobs"), watched_of("jovian-blobs"))
    else {
        return;
    };
    let read = |block: &Value| {
        let raw = serde_json::value::to_raw_value(block).unwrap();
        let full = response::full_block(&raw, &watched, true, &HashMap::new()).unwrap();
        let blobs = full.inbox.into_iter().flat_map(|posted| posted.blobs);
        blobs.collect::<Vec<_>>()
    };
    let mut blocks = lines.iter().map(|line| line["block"].clone());
    let mut block = blocks.find(|block| !read(block).is_empty()).unwrap();
    let expected = read(&block);
    let stranger = serde_json::json!({
        "type": "0x2", "hash": B256::ZERO, "to": Address::ZERO, "blobVersionedHashes": [B256::ZERO],
    });
    block["transactions"]
        .as_array_mut()
        .unwrap()
        .insert(0, stranger);
    assert_eq!(read(&block), expected);
    block["transactions"][0]["type"] = "0x3".into();
    let moved = expected.into_iter().map(|blob| BlobRef {
        index: blob.index + 1,
        ..blob
    });
    assert_eq!(read(&block), moved.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_trusted_endpoint_is_not_believed_about_receipts() {
    let Some(lying) = LyingL1::start().await else {
        return;
    };
    lying.falsify(|line| line["receipts"][0]["cumulativeGasUsed"] = "0x1".into());
    lying.l1.state.lock().answers.clear();
    assert!(matches!(
        cause(&lying.reader(true), lying.at).await,
        RpcCause::Untrue(_) | RpcCause::Malformed(_)
    ));
}

#[tokio::test]
async fn a_reorg_between_the_blocks_of_a_batch_ends_it() {
    let (Some(lines), Some(watched)) = (recorded("hostile-1"), watched_of("hostile-1")) else {
        return;
    };
    let l1 = FakeL1::start().await;
    let headers = super::super::fake::chain(3, 100, 2, 1);
    l1.set_recorded(&lines[..3]);
    let other = headers.iter().map(super::super::fake::block_json);
    l1.state.lock().blocks.extend(other);
    let blocks = reader(&l1, watched, |_| {});
    assert_eq!(blocks.range(0, 5).await.unwrap().blocks.len(), 3);
    assert_eq!(
        blocks.range(3, 5).await.unwrap().blocks.len(),
        2,
        "the other branch by itself"
    );
}

/// Some endpoints return an error instead of null for a number above their head.
#[tokio::test]
async fn a_refusal_above_the_head_ends_a_batch_without_an_error() {
    let block = super::super::fake::block_json(&super::super::fake::header(0, B256::ZERO, 100, 1));
    let server = CannedServer::start(move |request| {
        let body = request.split_once("\r\n\r\n").unwrap().1;
        let calls: Vec<Value> = serde_json::from_str(body).unwrap();
        let replies = calls.iter().map(|call| {
            if call["params"][0] == "0x0" {
                json!({ "id": call["id"], "result": block })
            } else {
                let error = json!({ "code": -32000, "message": "unknown block" });
                json!({ "id": call["id"], "error": error })
            }
        });
        Canned::ok(replies.collect::<Value>())
    })
    .await;
    let client = L1Client::new(&L1Config::new(server.url())).unwrap();
    let blocks = L1Blocks::new(client, NOWHERE, 10);
    assert_eq!(blocks.range(0, 3).await.unwrap().blocks.len(), 1);
}

/// A transaction with a type above the last known one, in a block with correct roots.
#[tokio::test]
async fn transactions_of_unknown_types_are_verified_by_their_encoding() {
    let raw = Bytes::from_static(&[0x3f, 1, 2, 3]);
    let hash = alloy_primitives::keccak256(&raw);
    let root = alloy_trie::root::ordered_trie_root_with_encoder(
        std::slice::from_ref(&raw),
        |bytes, out| {
            out.extend_from_slice(bytes);
        },
    );
    let header = alloy_consensus::Header {
        transactions_root: root,
        ..super::super::fake::header(1, B256::ZERO, 100, 1)
    };
    let mut block = super::super::fake::block_json(&header);
    block["transactions"] = json!([{ "type": "0x3f", "hash": hash, "frames": [] }]);
    let l1 = FakeL1::start().await;
    l1.state.lock().blocks = vec![block];
    let say = |answer| {
        l1.state
            .lock()
            .answers
            .insert("eth_getRawTransactionByHash", answer)
    };
    let at = L1BlockAt::Number(1);

    say(Ok(json!(raw)));
    let data = reader(&l1, NOWHERE, |_| {}).get(at).await.unwrap().unwrap();
    assert!(data.inbox.is_empty(), "derivation reads none of them");
    say(Ok(json!("0x3f010204")));
    let lie = cause(&reader(&l1, NOWHERE, |_| {}), at).await;
    assert!(
        matches!(&lie, RpcCause::Untrue(text) if text.contains("transactions of block")),
        "{lie}"
    );
    say(Err((-32601, "the method does not exist".into())));
    let text = cause(&reader(&l1, NOWHERE, |_| {}), at).await.to_string();
    assert!(
        text.contains("has the type 63") && text.contains("--l1.trustrpc"),
        "{text}"
    );
    let trusting = reader(&l1, NOWHERE, |config| config.trust = true);
    assert!(trusting.get(at).await.unwrap().unwrap().inbox.is_empty());
}

#[tokio::test]
async fn receipts_come_by_the_method_of_the_kind_of_endpoint() {
    let (Some(lines), Some(watched)) = (recorded("hostile-1"), watched_of("hostile-1")) else {
        return;
    };
    let l1 = FakeL1::start().await;
    l1.set_recorded(&lines);
    {
        let mut state = l1.state.lock();
        for receipt in lines
            .iter()
            .flat_map(|line| line["receipts"].as_array().unwrap())
        {
            let hash = receipt["transactionHash"].as_str().unwrap().to_owned();
            state.receipts.insert(hash, receipt.clone());
        }
    }
    let all = async |kind| {
        let blocks = reader(&l1, watched, |config| config.kind = kind);
        blocks.range(0, 20).await.unwrap().blocks
    };
    let standard = all(RpcKind::Standard).await;
    assert!(standard.iter().any(|data| !data.receipts.is_empty()));
    assert_eq!(l1.calls("eth_getTransactionReceipt"), 0);
    assert_eq!(all(RpcKind::Basic).await, standard);
    assert!(l1.calls("eth_getTransactionReceipt") > 0);
    // Methods that the endpoint lacks are skipped.
    assert_eq!(all(RpcKind::Any).await, standard);
    let missing = Err((
        -32601,
        "the method eth_getBlockReceipts does not exist".into(),
    ));
    l1.state
        .lock()
        .answers
        .insert("eth_getBlockReceipts", missing);
    assert_eq!(all(RpcKind::Infura).await, standard);
}

#[test]
fn a_deposit_of_an_l1_that_is_a_rollup_is_known() {
    let from = address!("00000000000000000000000000000000000000aa");
    let deposit = op_alloy_consensus::TxDeposit {
        source_hash: B256::repeat_byte(1),
        from,
        to: alloy_primitives::TxKind::Call(Address::ZERO),
        input: Bytes::from_static(b"\0frames"),
        ..Default::default()
    };
    let encoded: Bytes = alloy_eips::eip2718::Encodable2718::encoded_2718(&deposit).into();
    let root = alloy_trie::root::ordered_trie_root_with_encoder(
        std::slice::from_ref(&encoded),
        |bytes, out| {
            out.extend_from_slice(bytes);
        },
    );
    let header = alloy_consensus::Header {
        transactions_root: root,
        ..super::super::fake::header(1, B256::ZERO, 100, 1)
    };
    let mut block = super::super::fake::block_json(&header);
    let envelope = op_alloy_consensus::OpTxEnvelope::from(deposit);
    let mut transaction = serde_json::to_value(&envelope).unwrap();
    transaction["hash"] = json!(alloy_primitives::keccak256(&encoded));
    block["transactions"] = json!([transaction]);
    let read = full(&block, false).unwrap().inbox.remove(0);
    assert_eq!((read.sender, &read.calldata[..]), (from, &b"\0frames"[..]));
}
