//! Derivation's L1 blocks from endpoints that limit the size of a response.

use crate::rollup::{
    http::fake::{Canned, CannedServer},
    l1::{
        L1BlockAt, L1Blocks, L1Client, L1Config, Prefetcher, Watched,
        fake::{block_json, header},
        gate::USUAL_RESPONSE,
    },
};
use alloy_consensus::{
    Eip658Value, Receipt, ReceiptEnvelope, ReceiptWithBloom, proofs::calculate_receipt_root,
};
use alloy_primitives::{Address, B256, Log, LogData};
use serde_json::{Value, json};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// The reaction of an endpoint if a response would exceed its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AboveLimit {
    /// Refuses the later calls of a batch, as geth does.
    RefusesCalls,
    /// Returns an HTTP error status for the whole request, as proxies do.
    RefusesRequest,
    /// Sends no response before the timeout, as over a slow link.
    IsSlow,
    /// Sends the whole response, which exceeds the client's limit.
    Answers,
}

/// An L1 with receipts whose logs have chosen sizes.
#[derive(Default)]
struct LargeL1 {
    blocks: Vec<Value>,
    /// Receipts by the hash of a block or of a transaction.
    receipts: HashMap<String, Value>,
}

impl LargeL1 {
    /// For each block, `shapes` has the number of receipts and the bytes of log data in each.
    fn new(shapes: &[(usize, usize)]) -> Self {
        let mut chain = Self::default();
        let mut parent = B256::ZERO;
        for (number, (count, bytes)) in (0..).zip(shapes) {
            let data = vec![number as u8; *bytes];
            let log = Log {
                address: Address::repeat_byte(7),
                data: LogData::new_unchecked(vec![], data.into()),
            };
            let receipt = ReceiptWithBloom::from(Receipt {
                status: Eip658Value::Eip658(true),
                cumulative_gas_used: 1,
                logs: vec![log.clone()],
            });
            let envelopes = vec![ReceiptEnvelope::Eip1559(receipt); *count];
            let header = alloy_consensus::Header {
                receipts_root: calculate_receipt_root(&envelopes),
                ..header(number, parent, 100, 1)
            };
            parent = header.hash_slow();
            let receipt = json!({
                "type": "0x2", "status": "0x1", "cumulativeGasUsed": "0x1",
                "logs": [{ "address": log.address, "topics": [], "data": log.data.data }],
            });
            let place = |index: usize| {
                let place = 1000 * number + index as u64 + 1;
                B256::left_padding_from(&place.to_be_bytes())
            };
            let hashes: Vec<B256> = (0..*count).map(place).collect();
            let mut block = block_json(&header);
            let transaction = |hash: &B256| json!({ "type": "0x2", "hash": hash });
            block["transactions"] = hashes.iter().map(transaction).collect();
            chain.blocks.push(block);
            let list = json!(vec![&receipt; *count]);
            chain.receipts.insert(parent.to_string(), list);
            let single = hashes
                .iter()
                .map(|hash| (hash.to_string(), receipt.clone()));
            chain.receipts.extend(single);
        }
        chain
    }

    fn answer(&self, call: &Value) -> Value {
        let first = call["params"][0].as_str().unwrap();
        match call["method"].as_str().unwrap() {
            "eth_getBlockByNumber" => {
                let number = usize::from_str_radix(&first[2..], 16).unwrap();
                self.blocks.get(number).cloned().unwrap_or_default()
            }
            "eth_getBlockByHash" => {
                let mut blocks = self.blocks.iter().filter(|block| block["hash"] == first);
                let mut block = blocks.next().cloned().unwrap_or_default();
                let transactions = block["transactions"].as_array().cloned();
                let hashes = transactions.into_iter().flatten();
                block["transactions"] = hashes.map(|whole| whole["hash"].clone()).collect();
                block
            }
            _ => self.receipts.get(first).cloned().unwrap_or_default(),
        }
    }

    async fn serve(self, limit: usize, excess: AboveLimit) -> CannedServer {
        let chain = Arc::new(self);
        CannedServer::start(move |request| {
            let body = request.split_once("\r\n\r\n").unwrap().1;
            let body: Value = serde_json::from_str(body).unwrap();
            let calls = body.as_array().cloned();
            let mut bytes = 0;
            let mut replies = vec![];
            for call in calls.as_ref().unwrap_or(&vec![body]) {
                let result = chain.answer(call);
                bytes += result.to_string().len();
                replies.push(if bytes > limit && excess == AboveLimit::RefusesCalls {
                    let error = json!({ "code": -32003, "message": "response too large" });
                    json!({ "id": call["id"], "error": error })
                } else {
                    json!({ "id": call["id"], "result": result })
                });
            }
            match excess {
                AboveLimit::RefusesRequest if bytes > limit => Canned::status(413, ""),
                AboveLimit::IsSlow if bytes > limit => Canned::Silence,
                _ if calls.is_some() => Canned::ok(Value::from(replies)),
                _ => Canned::ok(&replies[0]),
            }
        })
        .await
    }
}

fn blocks_of(server: &CannedServer, limit: usize) -> L1Blocks {
    let config = L1Config {
        trust: true,
        timeout: Duration::from_millis(500),
        max_response_bytes: limit as u32,
        ..L1Config::new(server.url())
    };
    let nowhere = Address::ZERO;
    let watched = Watched {
        inbox: nowhere,
        portal: nowhere,
        system_config: nowhere,
    };
    L1Blocks::new(L1Client::new(&config).unwrap(), watched, 10)
}

/// Blocks that are fetched in batches of twenty, then blocks whose receipts need a response of
/// their own, and a block whose receipts exceed any response.
fn small_and_large() -> Vec<(usize, usize)> {
    let mut shapes = vec![(1, 10); 120];
    shapes.extend([(5, 2_000); 30]);
    shapes.push((20, 3_000));
    shapes.extend([(1, 10); 9]);
    shapes
}

async fn assert_all_come(excess: AboveLimit) {
    const LIMIT: usize = 40_000;
    let shapes = small_and_large();
    let head = shapes.len() as u64 - 1;
    let server = LargeL1::new(&shapes).serve(LIMIT, excess).await;
    let most = match excess {
        AboveLimit::Answers => LIMIT + 2_000,
        _ => 64 << 20,
    };
    let mut prefetcher = Prefetcher::new(blocks_of(&server, most), 4, 20);
    let mut failures = 0;
    for (number, (count, _)) in (0..).zip(&shapes) {
        let data = loop {
            match prefetcher.next(number, head).await {
                Ok(data) => break data.expect("a block below the head"),
                Err(error) => {
                    failures += 1;
                    assert!(failures < 40, "{excess:?}: {error}");
                }
            }
        };
        assert_eq!(data.block.number, number);
        assert_eq!(data.receipts.len(), *count);
    }
    let requests = server.count();
    assert!(requests < 2 * shapes.len(), "{excess:?}: {requests}");
}

#[tokio::test]
async fn no_limit_on_answers_stops_derivation() {
    for excess in [
        AboveLimit::RefusesCalls,
        AboveLimit::RefusesRequest,
        AboveLimit::Answers,
    ] {
        assert_all_come(excess).await;
    }
}

#[tokio::test]
async fn no_slow_link_stops_derivation() {
    assert_all_come(AboveLimit::IsSlow).await;
}

#[tokio::test]
async fn one_answer_of_unusual_size_is_accepted() {
    let bytes = USUAL_RESPONSE as usize;
    let server = LargeL1::new(&[(1, bytes)])
        .serve(usize::MAX, AboveLimit::Answers)
        .await;
    let config = L1Config {
        trust: true,
        ..L1Config::new(server.url())
    };
    let watched = Watched {
        inbox: Address::ZERO,
        portal: Address::ZERO,
        system_config: Address::ZERO,
    };
    let blocks = L1Blocks::new(L1Client::new(&config).unwrap(), watched, 10);
    let data = blocks.get(L1BlockAt::Number(0)).await.unwrap().unwrap();
    assert_eq!(data.receipts.len(), 1);
    assert_eq!(
        server.count(),
        3,
        "the receipts twice, the second time without the limit"
    );
}

#[tokio::test]
async fn receipts_that_fit_no_answer_at_once_are_read_one_by_one() {
    let server = LargeL1::new(&[(20, 3_000)])
        .serve(40_000, AboveLimit::RefusesCalls)
        .await;
    let client = L1Client::new(&L1Config::new(server.url())).unwrap();
    let block = client.block_by_number(0).await.unwrap().unwrap();
    assert_eq!(client.receipts(&block).await.unwrap().len(), 20);
    let blocks = blocks_of(&server, 64 << 20);
    let data = blocks.get(L1BlockAt::Number(0)).await.unwrap().unwrap();
    assert_eq!(data.receipts.len(), 20);
}
