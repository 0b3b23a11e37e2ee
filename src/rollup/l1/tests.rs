//! The client with endpoints that send correct, false, malformed, oversized or no responses.

mod large;
mod recorded;
mod urgency;

use super::{
    fake::{FakeL1, block, block_json, chain},
    *,
};
use crate::rollup::http_fake::{Canned, CannedServer};
use alloy_consensus::{
    Eip658Value, Header, Receipt, ReceiptEnvelope, ReceiptWithBloom, proofs::calculate_receipt_root,
};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B64, LogData};
use serde_json::{Value, json};

fn client(l1: &FakeL1) -> L1Client {
    L1Client::new(&L1Config {
        timeout: Duration::from_millis(500),
        max_batch: 2,
        ..L1Config::new(l1.url())
    })
    .unwrap()
}

fn cause<T: std::fmt::Debug>(result: Result<T, L1Error>) -> RpcCause {
    result.unwrap_err().cause
}

/// Receipts of all kinds, their JSON, and the header that commits to them.
fn receipts() -> (Vec<ReceiptEnvelope>, Vec<Value>, Header) {
    let log = |n: u8| alloy_primitives::Log {
        address: Address::repeat_byte(n),
        data: LogData::new_unchecked(
            vec![B256::repeat_byte(n); usize::from(n % 5)],
            vec![n; usize::from(n)].into(),
        ),
    };
    let receipt = |success, gas, logs: Vec<u8>| {
        ReceiptWithBloom::from(Receipt {
            status: Eip658Value::Eip658(success),
            cumulative_gas_used: gas,
            logs: logs.into_iter().map(log).collect(),
        })
    };
    let envelopes = vec![
        ReceiptEnvelope::Legacy(receipt(true, 21_000, vec![])),
        ReceiptEnvelope::Eip1559(receipt(true, 90_000, vec![1, 2, 3])),
        ReceiptEnvelope::Eip4844(receipt(false, 120_000, vec![])),
        ReceiptEnvelope::Eip7702(receipt(true, 200_000, vec![4])),
        ReceiptEnvelope::Eip2930(receipt(true, 300_000, vec![5, 6])),
    ];
    let json = envelopes
        .iter()
        .map(|receipt| {
            let logs: Vec<_> = receipt
                .logs()
                .iter()
                .map(|log| json!({ "address": log.address, "topics": log.topics(), "data": log.data.data, "logIndex": "0x0" }))
                .collect();
            json!({
                "type": format!("{:#x}", receipt.tx_type() as u8),
                "status": if receipt.status() { "0x1" } else { "0x0" },
                "cumulativeGasUsed": format!("{:#x}", receipt.cumulative_gas_used()),
                "logs": logs,
            })
        })
        .collect();
    let header = Header {
        receipts_root: calculate_receipt_root(&envelopes),
        ..fake::header(7, B256::ZERO, 100, 1)
    };
    (envelopes, json, header)
}

#[tokio::test]
async fn blocks_are_found_by_tag_number_and_hash() {
    let l1 = FakeL1::start().await;
    let headers = chain(5, 100, 3, 1);
    l1.set(&headers);
    let client = client(&l1);
    assert_eq!(
        client.block(L1Tag::Latest).await.unwrap(),
        Some(block(&headers[2]))
    );
    assert_eq!(
        client.block_by_number(6).await.unwrap(),
        Some(block(&headers[1]))
    );
    assert_eq!(
        client
            .block_at(L1BlockAt::Hash(headers[0].hash_slow()))
            .await
            .unwrap(),
        Some(block(&headers[0]))
    );
    assert_eq!(client.block_by_number(8).await.unwrap(), None);
    assert_eq!(
        client.block_at(L1BlockAt::Hash(B256::ZERO)).await.unwrap(),
        None
    );
    assert_eq!(client.block(L1Tag::Safe).await.unwrap(), None, "null");
    l1.state.lock().answers.insert(
        "eth_getBlockByNumber",
        Err((-32000, "finalized block not found".into())),
    );
    assert_eq!(
        client.block(L1Tag::Finalized).await.unwrap(),
        None,
        "geth's error"
    );
    l1.state
        .lock()
        .answers
        .insert("eth_chainId", Ok(json!("0x384")));
    assert_eq!(client.chain_id().await.unwrap(), 900);
}

/// Makes the endpoint respond to every request for a block with this value.
fn answer_blocks(l1: &FakeL1, value: Value) {
    l1.state.lock().answers.extend([
        ("eth_getBlockByNumber", Ok(value.clone())),
        ("eth_getBlockByHash", Ok(value)),
    ]);
}

#[tokio::test]
async fn a_block_that_does_not_have_its_hash_is_found_out() {
    let l1 = FakeL1::start().await;
    let mut forged = block_json(&chain(5, 100, 1, 1)[0]);
    forged["timestamp"] = json!("0x1");
    answer_blocks(&l1, forged);
    assert!(
        matches!(cause(client(&l1).block_by_number(5).await), RpcCause::Untrue(text) if text.contains("claims the hash"))
    );
    let trusting = L1Client::new(&L1Config {
        trust: true,
        ..L1Config::new(l1.url())
    })
    .unwrap();
    assert_eq!(trusting.block_by_number(5).await.unwrap().unwrap().time, 1);
}

#[tokio::test]
async fn another_block_than_the_one_asked_for_is_found_out() {
    let l1 = FakeL1::start().await;
    let headers = chain(5, 100, 2, 1);
    let client = client(&l1);
    answer_blocks(&l1, block_json(&headers[1]));
    assert!(
        matches!(cause(client.block_by_number(5).await), RpcCause::Untrue(text) if text == "requested block 5, got 6")
    );
    assert!(matches!(
        cause(
            client
                .block_at(L1BlockAt::Hash(headers[0].hash_slow()))
                .await
        ),
        RpcCause::Untrue(_)
    ));
}

#[tokio::test]
async fn an_answer_that_is_no_block_is_malformed() {
    let l1 = FakeL1::start().await;
    let client = client(&l1);
    let whole = block_json(&chain(5, 100, 1, 1)[0]);
    let broken = [
        ("receiptsRoot", Value::Null),
        ("hash", json!("0x12")),
        ("number", json!(-1)),
        ("extraData", json!("0xzz")),
    ]
    .map(|(field, value)| {
        let mut broken = whole.clone();
        broken[field] = value;
        broken
    });
    let nonsense = [json!([]), json!("latest"), json!({}), json!(7)];
    for answer in broken.into_iter().chain(nonsense) {
        answer_blocks(&l1, answer.clone());
        assert!(
            matches!(
                cause(client.block_by_number(5).await),
                RpcCause::Malformed(_)
            ),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn a_block_that_proof_of_stake_does_not_allow_is_found_out() {
    let l1 = FakeL1::start().await;
    let client = client(&l1);
    let sound = &chain(5, 100, 1, 1)[0];
    for header in [
        Header {
            difficulty: U256::from(1),
            ..sound.clone()
        },
        Header {
            nonce: B64::repeat_byte(1),
            ..sound.clone()
        },
        Header {
            ommers_hash: B256::ZERO,
            ..sound.clone()
        },
        Header {
            extra_data: vec![0; 33].into(),
            ..sound.clone()
        },
        Header {
            base_fee_per_gas: None,
            ..sound.clone()
        },
    ] {
        answer_blocks(&l1, block_json(&header));
        assert!(
            matches!(cause(client.block_by_number(5).await), RpcCause::Untrue(_)),
            "{header:?}"
        );
    }
}

/// Makes the endpoint respond to every request for a block's receipts with this value.
fn answer_receipts(l1: &FakeL1, receipts: Value) {
    let answers = &mut l1.state.lock().answers;
    answers.insert("eth_getBlockReceipts", Ok(receipts));
}

#[tokio::test]
async fn receipts_of_every_type_are_checked_against_the_header() {
    let l1 = FakeL1::start().await;
    let (envelopes, json, header) = receipts();
    let (client, block) = (client(&l1), block(&header));
    answer_receipts(&l1, json!(json));
    let expected: Vec<_> = envelopes
        .iter()
        .map(|receipt| (receipt.status(), receipt.logs().to_vec()))
        .collect();
    assert_eq!(client.receipts(&block).await.unwrap(), expected);

    let mut forged = json.clone();
    forged[1]["logs"][0]["data"] = json!("0x02");
    let mut failed_as_success = json.clone();
    failed_as_success[2]["status"] = json!("0x1");
    for lie in [&json[1..], &forged, &failed_as_success, &[]] {
        answer_receipts(&l1, json!(lie));
        assert!(matches!(
            cause(client.receipts(&block).await),
            RpcCause::Untrue(_)
        ));
    }
}

#[tokio::test]
async fn encoded_receipts_are_checked_against_the_header() {
    let l1 = FakeL1::start().await;
    let (envelopes, _, header) = receipts();
    let config = L1Config {
        kind: RpcKind::DebugGeth,
        ..L1Config::new(l1.url())
    };
    let (client, block) = (L1Client::new(&config).unwrap(), block(&header));
    let encoded = envelopes
        .iter()
        .map(|receipt| Bytes::from(receipt.encoded_2718()));
    let encoded: Vec<_> = encoded.collect();
    let answer = |receipts: &[Bytes]| {
        let mut state = l1.state.lock();
        let answers = &mut state.answers;
        answers.insert("debug_getRawReceipts", Ok(json!(receipts)));
    };
    answer(&encoded);
    let found = client.receipts(&block).await.unwrap();
    let logs: Vec<_> = found.iter().map(|(_, logs)| logs.len()).collect();
    assert_eq!(logs, [0, 3, 0, 1, 2]);
    answer(&encoded[1..]);
    let cause = cause(client.receipts(&block).await);
    assert!(matches!(cause, RpcCause::Untrue(_)), "{cause}");
}

#[tokio::test]
async fn malformed_and_missing_receipts_are_told_apart() {
    let l1 = FakeL1::start().await;
    let (_, json, header) = receipts();
    let (client, block) = (client(&l1), block(&header));
    for (field, value) in [
        ("status", Value::Null),
        ("type", json!("0x100")),
        ("cumulativeGasUsed", json!("x")),
        ("logs", json!(1)),
    ] {
        let mut broken = json.clone();
        broken[0][field] = value;
        answer_receipts(&l1, json!(broken));
        assert!(
            matches!(cause(client.receipts(&block).await), RpcCause::Malformed(_)),
            "{field}"
        );
    }
    let mut topics = json.clone();
    topics[1]["logs"][0]["topics"] = json!(vec![B256::ZERO; 5]);
    answer_receipts(&l1, json!(topics));
    assert!(
        matches!(cause(client.receipts(&block).await), RpcCause::Malformed(text) if text == "a log with 5 topics")
    );
    answer_receipts(&l1, Value::Null);
    assert_eq!(
        cause(client.receipts(&block).await),
        RpcCause::Missing(block.hash)
    );
}

#[tokio::test]
async fn receipts_of_a_block_without_transactions_are_not_requested() {
    let l1 = FakeL1::start().await;
    let empty = fake::block(&fake::header(1, B256::ZERO, 1, 1));
    assert!(client(&l1).receipts(&empty).await.unwrap().is_empty());
    assert_eq!(l1.state.lock().calls.len(), 0);
}

/// The endpoint has a block with these receipts, but serves them only one by one. Returns the
/// hashes of the transactions.
fn answer_single_receipts(l1: &FakeL1, header: &Header, receipts: Vec<Value>) -> Vec<B256> {
    let hashes: Vec<_> = (0..receipts.len())
        .map(|i| B256::with_last_byte(i as u8 + 1))
        .collect();
    let mut state = l1.state.lock();
    let mut value = block_json(header);
    value["transactions"] = json!(hashes);
    state.blocks = vec![value];
    state.receipts = hashes
        .iter()
        .map(|hash| hash.to_string())
        .zip(receipts)
        .collect();
    let missing = "the method eth_getBlockReceipts does not exist";
    let missing = Err((-32601, missing.into()));
    state.answers.insert("eth_getBlockReceipts", missing);
    hashes
}

/// Each receipt is well-formed; only the root of all receipts shows that one is false.
#[tokio::test]
async fn after_a_false_receipt_among_single_ones_another_endpoint_is_read() {
    let (lying, honest) = (FakeL1::start().await, FakeL1::start().await);
    let (envelopes, json, header) = receipts();
    let mut forged = json.clone();
    forged[2]["status"] = json!("0x1");
    answer_single_receipts(&lying, &header, forged);
    answer_single_receipts(&honest, &header, json);
    let urls = format!("{},{}", lying.url(), honest.url());
    let (client, block) = (L1Client::new(&L1Config::new(urls)).unwrap(), block(&header));
    let error = client.receipts(&block).await.unwrap_err();
    assert!(matches!(error.cause, RpcCause::Untrue(_)), "{error}");
    assert_eq!(*error.endpoint, *lying.url());
    let found = client.receipts(&block).await.unwrap();
    assert_eq!(found.len(), envelopes.len());
}

#[tokio::test]
async fn without_block_receipts_they_are_fetched_one_by_one() {
    let l1 = FakeL1::start().await;
    let (envelopes, json, header) = receipts();
    let hashes = answer_single_receipts(&l1, &header, json);
    let (client, block) = (client(&l1), block(&header));
    for _ in 0..2 {
        assert_eq!(
            client.receipts(&block).await.unwrap().len(),
            envelopes.len()
        );
    }
    assert_eq!(
        l1.calls("eth_getBlockReceipts"),
        1,
        "not requested again within a minute"
    );
    assert_eq!(l1.calls("eth_getTransactionReceipt"), 2 * envelopes.len());
    l1.state.lock().receipts.remove(&hashes[3].to_string());
    assert!(
        matches!(cause(client.receipts(&block).await), RpcCause::Untrue(text) if text.contains("has no receipt"))
    );
}

#[tokio::test]
async fn errors_say_where_and_what_and_no_secret() {
    let l1 = FakeL1::start().await;
    let url = format!(
        "http://user:hunter2@127.0.0.1:{}/v3/apikey?token=x",
        l1.port
    );
    let with_secret = L1Client::new(&L1Config::new(url)).unwrap();
    l1.state
        .lock()
        .answers
        .insert("eth_chainId", Err((-32005, "daily limit reached".into())));
    let error = with_secret.chain_id().await.unwrap_err();
    let expected = format!(
        "L1 at http://127.0.0.1:{}: eth_chainId: error -32005: daily limit reached",
        l1.port
    );
    assert_eq!(error.to_string(), expected);
    assert!(!format!("{error:?}").contains("hunter2") && !format!("{error:?}").contains("apikey"));

    // No server listens on a port that was just released.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let gone = L1Client::new(&L1Config::new(format!("http://127.0.0.1:{port}"))).unwrap();
    let error = gone.chain_id().await.unwrap_err();
    assert!(
        matches!(&error.cause, RpcCause::Transport(text) if text.contains("refused")),
        "{error}"
    );
    assert!(matches!(
        L1Client::new(&L1Config::new("ftp://x")),
        Err(L1Error {
            cause: RpcCause::Transport(_),
            ..
        })
    ));
}

#[tokio::test]
async fn slow_and_huge_answers_are_cut_off() {
    let l1 = FakeL1::start().await;
    l1.state.lock().answers.insert(
        "eth_chainId",
        Ok(json!("0x".to_owned() + &"0".repeat(100_000))),
    );
    let small = L1Client::new(&L1Config {
        max_response_bytes: 10_000,
        ..L1Config::new(l1.url())
    })
    .unwrap();
    let large = cause(small.chain_id().await);
    assert_eq!(large, RpcCause::TooLarge(10_000));
    l1.state.lock().delay = Duration::from_secs(5);
    let error = client(&l1).chain_id().await.unwrap_err();
    assert!(matches!(error.cause, RpcCause::Timeout(_)), "{error}");
}

#[tokio::test]
async fn the_system_contract_is_read_and_missed() {
    let l1 = FakeL1::start().await;
    let (signer, contract) = (Address::repeat_byte(0x55), Address::repeat_byte(0x5c));
    l1.set_with_storage(
        chain(1, 100, 1, 1),
        contract,
        UNSAFE_BLOCK_SIGNER_SLOT,
        signer.into_word(),
    );
    let at = &client(&l1).block(L1Tag::Latest).await.unwrap().unwrap();
    l1.state.lock().answers.insert(
        "eth_call",
        Ok(json!(B256::left_padding_from(&60_000_000u64.to_be_bytes()))),
    );
    let read = client(&l1).system_contract(contract, at).await.unwrap();
    assert_eq!(
        (read.unsafe_block_signer, read.gas_limit),
        (signer, 60_000_000)
    );
    l1.state.lock().answers.insert("eth_call", Ok(json!("0x")));
    let error = client(&l1)
        .system_contract(contract, at)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&format!("no SystemConfig contract at {contract}")),
        "{error}"
    );
    l1.state
        .lock()
        .answers
        .insert("eth_call", Ok(json!(B256::repeat_byte(0xff))));
    assert!(matches!(
        cause(client(&l1).system_contract(contract, at).await),
        RpcCause::Untrue(_)
    ));
}

/// The endpoint serves no storage proofs, and this call needs none.
#[tokio::test]
async fn the_batcher_of_the_system_contract_is_read_by_a_plain_call() {
    let l1 = FakeL1::start().await;
    let (batcher, contract) = (Address::repeat_byte(0xba), Address::repeat_byte(0x5c));
    let answer = |value: Value| l1.state.lock().answers.insert("eth_call", Ok(value));
    answer(json!(batcher.into_word()));
    assert_eq!(client(&l1).batcher_of(contract).await.unwrap(), batcher);
    answer(json!("0x"));
    let error = client(&l1).batcher_of(contract).await.unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("0 bytes where 32 were expected")
    );
}

/// The pool of the first endpoint refuses a transaction, and the second endpoint is unreachable.
#[tokio::test]
async fn a_refusal_is_the_answer_although_the_next_endpoint_is_away() {
    let refuses = CannedServer::start(|_| {
        let error = json!({ "code": -32000, "message": "address already reserved" });
        Canned::ok(json!({ "jsonrpc": "2.0", "id": 0, "error": error }))
    })
    .await;
    // Nothing listens on port 1.
    let urls = format!("{},http://127.0.0.1:1", refuses.url());
    let client = L1Client::new(&L1Config::new(urls)).unwrap();
    for _ in 0..3 {
        let is_final = |message: &str| message.contains("reserved");
        let sent = client.publish(&Bytes::from_static(&[2]), is_final).await;
        let refusal = sent.unwrap();
        let said = refusal.expect_err("a refusal").to_string();
        assert_eq!(said, "error -32000: address already reserved");
    }
    let read = client.plain_call::<Value>("eth_call", json!([])).await;
    assert!(matches!(cause(read), RpcCause::Refused { .. }));
}

/// The first pool is full, or its node limits transaction fees; the next endpoint may accept the
/// transaction.
#[tokio::test]
async fn after_a_refusal_that_is_not_final_the_next_endpoint_is_tried() {
    let refuses = CannedServer::start(|_| {
        let error = json!({ "code": -32000, "message": "txpool is full" });
        Canned::ok(json!({ "jsonrpc": "2.0", "id": 0, "error": error }))
    })
    .await;
    let takes = CannedServer::start(|_| {
        Canned::ok(json!({ "jsonrpc": "2.0", "id": 0, "result": B256::ZERO }))
    })
    .await;
    let publish = async |second: &str| {
        let urls = format!("{},{second}", refuses.url());
        let client = L1Client::new(&L1Config::new(urls)).unwrap();
        let sent = client.publish(&Bytes::from_static(&[2]), |_| false).await;
        sent.unwrap().map_err(|cause| cause.to_string())
    };
    assert_eq!(publish(&takes.url()).await, Ok(()));
    let said = publish("http://127.0.0.1:1").await.unwrap_err();
    assert_eq!(said, "error -32000: txpool is full");
}

/// Recorded responses of real L1 nodes, intact and corrupted. Only headers are parsed here, not the
/// withdrawals of the body.
#[test]
fn published_headers_are_accepted_and_corrupted_ones_refused() {
    let Some(folder) = starling_testkit::fixture("l1-source") else {
        return;
    };
    let mut seen = (0, 0);
    for kind in ["headers", "blocks"] {
        for entry in std::fs::read_dir(folder.join(kind)).unwrap() {
            let path = entry.unwrap().path().display().to_string();
            let Some(name) = path.strip_suffix("_data.json") else {
                continue;
            };
            if name.contains("bad-withdrawals") && !name.ends_with("-hash") {
                continue;
            }
            let read = |path: String| {
                serde_json::from_reader::<_, Value>(std::fs::File::open(path).unwrap()).unwrap()
            };
            let fails = read(format!("{name}_metadata.json"))["fail"] == true;
            let answer = response::block(read(path.clone()), false);
            assert_eq!(answer.is_err(), fails, "{name}: {answer:?}");
            assert!(response::block(read(path.clone()), true).is_ok(), "{name}");
            if fails { seen.0 += 1 } else { seen.1 += 1 }
        }
    }
    assert_eq!(seen, (8, 4), "corrupted and intact");
}

#[tokio::test]
async fn heads_are_followed() {
    let l1 = FakeL1::start().await;
    let headers = chain(5, 100, 2, 1);
    l1.set(&headers[..1]);
    let (sender, mut receiver) = tokio::sync::watch::channel(L1Heads::default());
    let token = tokio_util::sync::CancellationToken::new();
    let interval = Duration::from_millis(20);
    let task = tokio::spawn(follow_heads(
        client(&l1),
        sender,
        interval,
        interval,
        token.clone(),
    ));
    receiver
        .wait_for(|heads| heads.head == Some(block(&headers[0])))
        .await
        .unwrap();
    l1.set(&headers);
    receiver
        .wait_for(|heads| heads.head == Some(block(&headers[1])))
        .await
        .unwrap();
    assert_eq!(receiver.borrow().safe, None);
    let tagged = [("safe", 1), ("finalized", 0)].map(|(tag, at)| (tag, block_json(&headers[at])));
    l1.state.lock().tagged = tagged.into();
    let [finalized, safe] = [0, 1].map(|at| Some(block(&headers[at])));
    let both = receiver.wait_for(|heads| heads.safe == safe && heads.finalized == finalized);
    tokio::time::timeout(Duration::from_secs(20), both)
        .await
        .unwrap()
        .unwrap();
    // A failing endpoint does not change the heads.
    l1.state
        .lock()
        .answers
        .insert("eth_getBlockByNumber", Err((-32000, "busy".into())));
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(receiver.borrow().head, Some(block(&headers[1])));
    token.cancel();
    task.await.unwrap();
}
