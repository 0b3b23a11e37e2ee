//! The block `pending`: a block that the node built, or the newest flashblock.

use super::{
    chain::Chain,
    send::{SENDER, transfer},
};
use crate::{
    chain::{build::BlockBuilder, rules::ChainSpec, view::View},
    pending::{
        Pending,
        built::BuiltPending,
        flashblocks::{self, FlashblockWorker, NewestFlashblock},
    },
};
use alloy_primitives::{Address, B64, B256, Bytes, U64, keccak256};
use alloy_rpc_types_engine::PayloadAttributes;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use serde_json::{Value, json};
use soketto::handshake::{Server, server::Response};
use starling_proto::fork::Fork;
use std::{
    io::Write,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::net::TcpListener;
use tokio_util::{compat::TokioAsyncReadCompatExt, sync::CancellationToken};

const RANDAO: B256 = B256::repeat_byte(5);
const RECIPIENT: Address = Address::repeat_byte(6);

/// A chain of two blocks whose `pending` block is the newest flashblock, and the source of its
/// flashblocks.
struct FlashChain {
    chain: Chain,
    newest: Arc<NewestFlashblock>,
    worker: FlashblockWorker,
}

impl FlashChain {
    fn new() -> Self {
        let newest = Arc::new(NewestFlashblock::default());
        let mut chain = Chain::new(Fork::Ecotone);
        chain.add(&[]);
        let given = newest.clone();
        let chain = chain.with(|context| context.pending = Pending::Flashblocks(given));
        let viewed = chain.view.clone();
        let spec = chain.context.chain.spec.clone();
        let head: Arc<dyn Fn() -> Arc<View> + Send + Sync> =
            Arc::new(move || viewed.lock().clone());
        let worker = FlashblockWorker::new(spec, head, newest.clone());
        Self {
            chain,
            newest,
            worker,
        }
    }

    fn spec(&self) -> Arc<ChainSpec> {
        self.chain.context.chain.spec.clone()
    }

    fn head(&self) -> Arc<View> {
        self.chain.view.lock().clone()
    }

    fn take(&mut self, part: &Value) -> Result<(), String> {
        let message = part.to_string();
        let taken = self.worker.on_message(message.as_bytes(), Instant::now());
        taken.map_err(|error| error.to_string())
    }

    /// The next nonce of the account that sends the flashblocks' transactions.
    async fn nonce(&self, tag: &str) -> Value {
        let params = json!([SENDER, tag]);
        self.chain.result("eth_getTransactionCount", params).await
    }

    async fn pending_number(&self) -> u64 {
        let block = self
            .chain
            .result("eth_getBlockByNumber", json!(["pending", false]));
        let number: U64 = serde_json::from_value(block.await["number"].clone()).unwrap();
        number.to()
    }
}

/// The L1 attributes transaction of the newest block, to be used in the next block.
fn attributes_transaction(parent: &View) -> Bytes {
    let number = parent.head().number;
    let block = parent.payload(number).unwrap().unwrap();
    block.transactions[0].clone()
}

/// The flashblocks of a block on `parent` that contains these transactions, one transaction in each
/// flashblock.
fn parts(spec: &Arc<ChainSpec>, parent: &Arc<View>, id: u8, transactions: &[Bytes]) -> Vec<Value> {
    let time = parent.header().timestamp + 2;
    let first = attributes_transaction(parent);
    let attributes = OpPayloadAttributes {
        payload_attributes: PayloadAttributes {
            timestamp: time,
            prev_randao: RANDAO,
            suggested_fee_recipient: RECIPIENT,
            withdrawals: Some(vec![]),
            parent_beacon_block_root: Some(B256::ZERO),
            ..Default::default()
        },
        transactions: Some(vec![first.clone()]),
        no_tx_pool: Some(true),
        gas_limit: Some(30_000_000),
        ..Default::default()
    };
    let mut builder = BlockBuilder::start(spec.clone(), parent.state(), attributes).unwrap();
    let base = json!({
        "parent_hash": parent.head().hash,
        "parent_beacon_block_root": B256::ZERO,
        "fee_recipient": RECIPIENT,
        "prev_randao": RANDAO,
        "block_number": U64::from(parent.head().number + 1),
        "gas_limit": U64::from(30_000_000),
        "timestamp": U64::from(time),
        "extra_data": "0x",
        "base_fee_per_gas": U64::from(builder.base_fee()),
    });
    let mut parts = Vec::new();
    for (index, raw) in [&[first], transactions].concat().into_iter().enumerate() {
        if index > 0 {
            builder.force_more(vec![raw.clone()]).unwrap();
        }
        parts.push(json!({
            "payload_id": B64::repeat_byte(id),
            "index": index,
            "base": (index == 0).then(|| base.clone()),
            "diff": {
                "state_root": B256::ZERO,
                "receipts_root": B256::ZERO,
                "gas_used": U64::from(builder.gas_used()),
                "block_hash": B256::ZERO,
                "transactions": [raw],
                "withdrawals": [],
            },
            "metadata": { "block_number": parent.head().number + 1 },
        }));
    }
    parts
}

#[tokio::test]
async fn the_newest_flashblock_is_pending_in_every_method() {
    let mut flash = FlashChain::new();
    let transactions = [transfer(0, 21_000), transfer(1, 21_000)];
    let parts = parts(&flash.spec(), &flash.head(), 1, &transactions);
    assert_eq!(flash.pending_number().await, 1);
    flash.take(&parts[0]).unwrap();
    assert_eq!(flash.pending_number().await, 2);
    let hash = keccak256(&transactions[0]);
    let chain = &flash.chain;
    assert_eq!(
        chain
            .result("eth_getTransactionReceipt", json!([hash]))
            .await,
        Value::Null
    );
    flash.take(&parts[1]).unwrap();
    let chain = &flash.chain;
    let receipt = chain
        .result("eth_getTransactionReceipt", json!([hash]))
        .await;
    assert_eq!(
        (&receipt["blockNumber"], &receipt["status"]),
        (&json!("0x2"), &json!("0x1"))
    );
    let found = chain
        .result("eth_getTransactionByHash", json!([hash]))
        .await;
    assert_eq!(found["blockNumber"], "0x2");
    assert_eq!(flash.nonce("latest").await, "0x0");
    assert_eq!(flash.nonce("pending").await, "0x1");
    let balance = async |tag: &str| chain.result("eth_getBalance", json!([SENDER, tag])).await;
    assert_ne!(balance("latest").await, balance("pending").await);
    let block = chain
        .result("eth_getBlockByNumber", json!(["pending", true]))
        .await;
    assert_eq!(block["transactions"].as_array().unwrap().len(), 2);
    assert_eq!(block["transactions"][1]["blockHash"], block["hash"]);
    let receipts = chain
        .result("eth_getBlockReceipts", json!(["pending"]))
        .await;
    assert_eq!(receipts[1], receipt);
    let number = json!([{ "data": "0x4360005260206000f3" }, "pending"]);
    let seen = chain.result("eth_call", number).await;
    assert_eq!(seen, json!(format!("{:#066x}", 2)), "NUMBER in a call");
    let logs = json!([{ "fromBlock": "0x1", "toBlock": "pending" }]);
    assert_eq!(chain.result("eth_getLogs", logs).await, json!([]));
    flash.take(&parts[2]).unwrap();
    assert_eq!(flash.nonce("pending").await, "0x2");
}

#[tokio::test]
async fn a_gap_a_lie_or_another_parent_leaves_the_latest_block() {
    let transactions = [transfer(0, 21_000), transfer(1, 21_000)];
    for (wrong, problem) in [
        ("gap", "part 2 follows part 0"),
        ("gas", "gas here"),
        ("transaction", "failed to force-include"),
        ("withdrawals", "no withdrawals"),
    ] {
        let mut flash = FlashChain::new();
        let mut parts = parts(&flash.spec(), &flash.head(), 1, &transactions);
        flash.take(&parts[0]).unwrap();
        assert_eq!(flash.pending_number().await, 2);
        let part = match wrong {
            "gap" => parts[2].clone(),
            _ => {
                let diff = &mut parts[1]["diff"];
                match wrong {
                    "gas" => diff["gas_used"] = json!("0x1"),
                    "transaction" => diff["transactions"] = json!([transfer(7, 21_000)]),
                    _ => diff["withdrawals"] = json!([{}]),
                }
                parts[1].clone()
            }
        };
        let error = flash.take(&part).unwrap_err();
        assert!(error.contains(problem), "{wrong}: {error}");
        assert_eq!(flash.pending_number().await, 1, "{wrong}");
    }
    let mut flash = FlashChain::new();
    let mut foreign = parts(&flash.spec(), &flash.head(), 1, &transactions);
    foreign[0]["base"]["parent_hash"] = json!(B256::repeat_byte(7));
    flash.take(&foreign[0]).unwrap();
    assert_eq!(flash.pending_number().await, 1, "of another parent");
}

#[tokio::test]
async fn a_block_whose_base_is_not_what_the_rules_make_it_is_refused() {
    for (member, value, problem) in [
        ("base_fee_per_gas", "0x5", "the base fee"),
        ("block_number", "0x3", "the number"),
        ("extra_data", "0x01", "the extra data"),
        ("timestamp", "0x0", "timestamp"),
        ("gas_limit", "0xffffffffffffffff", "times the parent's"),
    ] {
        let mut flash = FlashChain::new();
        let mut parts = parts(&flash.spec(), &flash.head(), 1, &[]);
        parts[0]["base"][member] = json!(value);
        let error = flash.take(&parts[0]).unwrap_err();
        assert!(error.contains(problem), "{member}: {error}");
        assert_eq!(flash.pending_number().await, 1, "{member}");
    }
}

#[tokio::test]
async fn flashblocks_run_ahead_of_the_head_no_further_than_a_bound() {
    let mut flash = FlashChain::new();
    let mut parent = flash.head();
    let mut ahead = 0;
    while ahead < 70 {
        let part = &parts(&flash.spec(), &parent, ahead as u8 + 1, &[])[0];
        flash.take(part).unwrap();
        let pending = flash.newest.on(&flash.head(), Instant::now()).unwrap();
        if pending.head() == parent.head() {
            break;
        }
        (parent, ahead) = (pending, ahead + 1);
    }
    assert_eq!(ahead, 64);
}

#[tokio::test]
async fn a_reorg_and_silence_leave_the_latest_block_and_the_next_block_builds_on_the_pending_one() {
    let mut flash = FlashChain::new();
    let first = parts(&flash.spec(), &flash.head(), 1, &[transfer(0, 21_000)]);
    first.iter().for_each(|part| flash.take(part).unwrap());
    let pending = flash.newest.on(&flash.head(), Instant::now()).unwrap();
    let silent = Instant::now() + Duration::from_secs(6);
    assert!(flash.newest.on(&flash.head(), silent).is_none(), "silence");
    let second = parts(&flash.spec(), &pending, 2, &[transfer(1, 21_000)]);
    second.iter().for_each(|part| flash.take(part).unwrap());
    assert_eq!(flash.pending_number().await, 3);
    let count = flash
        .chain
        .result("eth_getTransactionCount", json!([SENDER, "pending"]));
    assert_eq!(count.await, "0x2");
    let pending = flash.newest.on(&flash.head(), Instant::now()).unwrap();
    let mut foreign = parts(&flash.spec(), &pending, 3, &[]);
    foreign[0]["base"]["parent_hash"] = json!(B256::repeat_byte(7));
    flash.take(&foreign[0]).unwrap();
    assert_eq!(flash.pending_number().await, 3, "of another parent");
    // The new head is another block than the pending one.
    flash.chain.add(&[]);
    assert_eq!(flash.pending_number().await, 2);
    assert!(
        flash.newest.on(&flash.head(), Instant::now()).is_none(),
        "a reorg"
    );
}

fn packed(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = brotli::CompressorWriter::new(&mut out, 4096, 5, 22);
    writer.write_all(text.as_bytes()).unwrap();
    drop(writer);
    out
}

#[tokio::test]
async fn flashblocks_come_from_a_websocket_as_text_or_brotli() {
    let flash = FlashChain::new();
    let parts = parts(
        &flash.spec(),
        &flash.head(),
        1,
        &[transfer(0, 21_000), transfer(1, 21_000)],
    );
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", socket.local_addr().unwrap());
    let sequencer = tokio::spawn(async move {
        // The first connection sends junk and ends; the node then connects again.
        for junk in [true, false] {
            let (stream, _) = socket.accept().await.unwrap();
            let mut server = Server::new(stream.compat());
            let key = server.receive_request().await.unwrap().key();
            let accept = Response::Accept {
                key,
                protocol: None,
            };
            server.send_response(&accept).await.unwrap();
            let (mut sender, _receiver) = server.into_builder().finish();
            if junk {
                sender.send_text("no flashblock").await.unwrap();
                sender.flush().await.unwrap();
                continue;
            }
            sender.send_text(parts[0].to_string()).await.unwrap();
            sender
                .send_binary(packed(&parts[1].to_string()))
                .await
                .unwrap();
            sender.send_binary(parts[2].to_string()).await.unwrap();
            sender.flush().await.unwrap();
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
    });
    let token = CancellationToken::new();
    let viewed = flash.chain.view.clone();
    let reading = tokio::spawn(flashblocks::run(
        url.parse().unwrap(),
        flash.spec(),
        Arc::new(move || viewed.lock().clone()),
        flash.newest.clone(),
        token.clone(),
    ));
    let deadline = Instant::now() + Duration::from_secs(20);
    while flash.nonce("pending").await != "0x2" {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    token.cancel();
    reading.await.unwrap();
    sequencer.abort();
}

#[tokio::test]
async fn a_sequencer_computes_a_pending_block_of_its_pool() {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[]);
    let chain = chain.with(|context| context.pending = Pending::Built(BuiltPending::default()));
    let raw = transfer(0, 21_000);
    let hash = chain.result("eth_sendRawTransaction", json!([raw])).await;
    let block = chain
        .result("eth_getBlockByNumber", json!(["pending", false]))
        .await;
    assert_eq!(
        (&block["number"], &block["hash"]),
        (&json!("0x2"), &Value::Null)
    );
    assert_eq!(block["transactions"][1], hash);
    assert_eq!(block["transactions"].as_array().unwrap().len(), 2);
    let balance = async |tag: &str| chain.result("eth_getBalance", json!([SENDER, tag])).await;
    assert_ne!(balance("latest").await, balance("pending").await);
    // The block is only a guess, so its transactions are not mined.
    assert_eq!(
        chain
            .result("eth_getTransactionReceipt", json!([hash]))
            .await,
        Value::Null
    );
    let latest = chain
        .result("eth_getBlockByNumber", json!(["latest", false]))
        .await;
    assert_eq!(latest["number"], "0x1");
    // Within two seconds after it was built, the same block is returned again.
    let again = chain
        .result("eth_getBlockByNumber", json!(["pending", false]))
        .await;
    assert_eq!(again, block);
}
