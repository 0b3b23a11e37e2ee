//! Proofs, access lists, the pool's content, raw transactions, and every way to name a block.

use super::{
    chain::{CONTRACT, Chain, FUNDS, RICH, legacy},
    send::{SENDER, transfer},
};
use crate::chain::{
    changes::{AccountChange, Changes},
    view::ExecutedBlock,
};
use alloy_consensus::Header;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U256, keccak256};
use alloy_trie::{Nibbles, TrieAccount, proof::verify_proof};
use serde_json::{Value, json};
use starling_proto::{fork::Fork, payload::Payload};
use std::sync::Arc;

fn nodes(value: &Value) -> Vec<Bytes> {
    serde_json::from_value(value.clone()).unwrap()
}

#[tokio::test]
async fn proofs_hold_against_the_state_root() {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[]);
    chain.store.commit(&chain.blocks, None, None).unwrap();
    chain.add(&[]);
    let whole = format!("0x{:064x}", 1);
    // Above the store, at its head, and below it, where the unwind records lead back.
    for block in ["0x2", "0x1", "0x0"] {
        let root = chain
            .result("eth_getBlockByNumber", json!([block, false]))
            .await["stateRoot"]
            .clone();
        let root: B256 = serde_json::from_value(root).unwrap();
        let proof = chain
            .result(
                "eth_getProof",
                json!([CONTRACT, ["0x01", whole, "0x2"], block]),
            )
            .await;
        let account = TrieAccount {
            nonce: 1,
            balance: U256::ZERO,
            storage_root: serde_json::from_value(proof["storageHash"].clone()).unwrap(),
            code_hash: serde_json::from_value(proof["codeHash"].clone()).unwrap(),
        };
        let key = Nibbles::unpack(keccak256(CONTRACT));
        verify_proof(
            root,
            key,
            Some(alloy_rlp::encode(account)),
            &nodes(&proof["accountProof"]),
        )
        .unwrap();
        // Keys come back as they were given: 32 bytes, or a quantity.
        for (n, key, slot, value) in [
            (0, "0x1", 1, 0x38),
            (1, whole.as_str(), 1, 0x38),
            (2, "0x2", 2, 0),
        ] {
            let item = &proof["storageProof"][n];
            assert_eq!(
                (&item["key"], &item["value"]),
                (&json!(key), &json!(format!("{value:#x}")))
            );
            let key = Nibbles::unpack(keccak256(B256::with_last_byte(slot)));
            let leaf = (value != 0).then(|| alloy_rlp::encode(U256::from(value)));
            verify_proof(account.storage_root, key, leaf, &nodes(&item["proof"])).unwrap();
        }
        let nobody = chain
            .result("eth_getProof", json!([Address::ZERO, ["0x0"], block]))
            .await;
        verify_proof(
            root,
            Nibbles::unpack(keccak256(Address::ZERO)),
            None,
            &nodes(&nobody["accountProof"]),
        )
        .unwrap();
        assert_eq!(
            (&nobody["codeHash"], &nobody["storageHash"]),
            (&json!(B256::ZERO), &json!(B256::ZERO))
        );
        assert_eq!(
            nobody["storageProof"],
            json!([{ "key": "0x0", "value": "0x0", "proof": [] }])
        );
    }
    let many = chain
        .error(
            "eth_getProof",
            json!([CONTRACT, vec!["0x1"; 1025], "latest"]),
        )
        .await;
    assert_eq!(many, (-32602, "too many slots (max 1024)".into()));
}

#[tokio::test]
async fn proofs_reach_back_as_far_as_the_window_and_the_oldest_is_named() {
    let chain = Chain::new(Fork::Ecotone);
    let add = |blocks| {
        for _ in 0..blocks {
            let parent = chain.view.lock().clone();
            let block = chain.block(&parent, &[], "");
            let account = AccountChange {
                nonce: parent.head().number,
                balance: U256::ONE,
                code_hash: KECCAK256_EMPTY,
            };
            let changes = Changes {
                accounts: [(keccak256(Address::repeat_byte(7)), Some(account))].into(),
                ..Default::default()
            };
            let update = parent.state().update(&changes).unwrap();
            let header = Header {
                state_root: update.state_root,
                ..block.payload.header.clone()
            };
            let payload = Payload::sealed(header, block.payload.transactions.clone());
            let (senders, receipts) = (block.senders.clone(), block.receipts.clone());
            let block = ExecutedBlock::new(
                Arc::new(payload),
                senders,
                receipts,
                Arc::new(update.overlay),
            );
            chain.store.commit(&[Arc::new(block)], None, None).unwrap();
            chain.publish();
        }
    };
    add(400);
    let passer = "0x4200000000000000000000000000000000000016";
    let roots = async |block: &str| {
        let header = chain
            .result("eth_getBlockByNumber", json!([block, false]))
            .await;
        let root: B256 = serde_json::from_value(header["stateRoot"].clone()).unwrap();
        (root, header["hash"].clone())
    };
    // By number, hash and tag.
    for block in ["0x0", "0x1", "0xc8", "0x18f", "latest"] {
        let (root, hash) = roots(block).await;
        for named in [json!(block), hash.clone(), json!({ "blockHash": hash })] {
            let proof = chain
                .result("eth_getProof", json!([Address::ZERO, [], named]))
                .await;
            let key = Nibbles::unpack(keccak256(Address::ZERO));
            verify_proof(root, key, None, &nodes(&proof["accountProof"])).unwrap();
            assert_eq!(
                chain
                    .result("eth_getProof", json!([CONTRACT, ["0x1"], named]))
                    .await["storageProof"][0]["value"],
                "0x38"
            );
        }
    }
    assert_eq!(
        chain.result("eth_capabilities", json!([])).await["stateproofs"]["oldestBlock"],
        "0x0"
    );
    // As small as it can be.
    chain.store.keep_proofs(1).unwrap();
    add(1);
    assert_eq!(
        chain.result("eth_capabilities", json!([])).await["stateproofs"]["oldestBlock"],
        "0x111"
    );
    chain
        .result("eth_getProof", json!([CONTRACT, [], "0x111"]))
        .await;
    let pruned = "proofs at block #272 are pruned, the oldest are at block #273";
    assert_eq!(
        chain
            .error("eth_getProof", json!([CONTRACT, [], "0x110"]))
            .await,
        (-32000, pruned.into())
    );
    // A withdrawal can be proven still.
    let (root, _) = roots("0x1").await;
    let proof = chain
        .result("eth_getProof", json!([passer, ["0x0"], "0x1"]))
        .await;
    let key = Nibbles::unpack(keccak256(passer.parse::<Address>().unwrap()));
    verify_proof(root, key, None, &nodes(&proof["accountProof"])).unwrap();
}

#[tokio::test]
async fn access_lists_name_what_a_call_touches() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    let other = Address::repeat_byte(0xee);
    // sload(1); balance(0xee…); sload(49,973,000 < gas): another slot once the list has cost some
    // gas.
    let code = format!(
        "0x60015450 73{} 3150 5a6302fa870810 5450 00",
        "ee".repeat(20)
    )
    .replace(' ', "");
    let code = json!({ CONTRACT.to_string(): { "code": code } });
    let call = json!({ "from": SENDER, "to": CONTRACT });
    let answer = chain
        .result("eth_createAccessList", json!([call, "latest", code]))
        .await;
    let slot = |n: u8| B256::with_last_byte(n);
    let list = json!([
        { "address": CONTRACT, "storageKeys": [slot(0), slot(1)] },
        { "address": other, "storageKeys": [] },
    ]);
    assert_eq!(answer["accessList"], list);
    assert!(answer.get("error").is_none());
    // The gas is that of the call with this list.
    let with = json!({ "from": SENDER, "to": CONTRACT, "accessList": list });
    assert_eq!(
        chain
            .result("eth_createAccessList", json!([with, "latest", code]))
            .await,
        answer
    );
    // 21,000 + two addresses + two slots, and the warm accesses.
    let gas = u64::from_str_radix(&answer["gasUsed"].as_str().unwrap()[2..], 16).unwrap();
    assert!(
        (21_000 + 2 * 2400 + 2 * 1900..31_500).contains(&gas),
        "{gas}"
    );

    // A call that fails has a list too.
    let revert = json!({ CONTRACT.to_string(): { "code": "0x60055460006000fd" } });
    let answer = chain
        .result("eth_createAccessList", json!([call, "latest", revert]))
        .await;
    assert_eq!(answer["error"], "execution reverted");
    assert_eq!(
        answer["accessList"],
        json!([{ "address": CONTRACT, "storageKeys": [slot(5)] }])
    );
    // Neither sender, callee nor precompiles stand there by themselves.
    let plain =
        json!({ CONTRACT.to_string(): { "code": "0x333150 303150 60013150 00".replace(' ', "") } });
    let answer = chain
        .result("eth_createAccessList", json!([call, "latest", plain]))
        .await;
    assert_eq!(answer["accessList"], json!([]));
}

#[tokio::test]
async fn an_access_list_that_never_settles_is_an_error() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    // sload(gas): every run touches another slot.
    let code = json!({ CONTRACT.to_string(): { "code": "0x5a545000" } });
    let (code, message) = chain
        .error(
            "eth_createAccessList",
            json!([{ "to": CONTRACT }, "latest", code]),
        )
        .await;
    assert!(
        code == -32000 && message.starts_with("the access list grew in each of 16 runs"),
        "{message}"
    );
}

#[tokio::test]
async fn the_pool_is_shown_by_sender_and_nonce() {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[]);
    let hash = chain
        .result("eth_sendRawTransaction", json!([transfer(0, 21_000)]))
        .await;
    let queued = chain
        .result("eth_sendRawTransaction", json!([transfer(2, 21_000)]))
        .await;
    let sender = SENDER.to_checksum(None);
    assert_ne!(sender, SENDER.to_string().to_lowercase());
    assert_eq!(
        chain.result("txpool_status", json!([])).await,
        json!({ "pending": "0x1", "queued": "0x1" })
    );
    let content = chain.result("txpool_content", json!([])).await;
    let first = &content["pending"][&sender]["0"];
    assert_eq!(
        *first,
        chain
            .result("eth_getTransactionByHash", json!([hash]))
            .await
    );
    assert_eq!(content["queued"][&sender]["2"]["hash"], queued);
    let of = chain.result("txpool_contentFrom", json!([SENDER])).await;
    assert_eq!(
        of,
        json!({ "pending": content["pending"][&sender], "queued": content["queued"][&sender] })
    );
    let none = chain.result("txpool_contentFrom", json!([RICH])).await;
    assert_eq!(none, json!({ "pending": {}, "queued": {} }));
    let inspect = chain.result("txpool_inspect", json!([])).await;
    let to = Address::repeat_byte(1).to_checksum(None);
    assert_eq!(
        inspect["pending"][&sender]["0"],
        format!("{to}: 0 wei + 21000 gas × 2000000 wei")
    );
    assert_eq!(
        chain.result("eth_pendingTransactions", json!([])).await,
        json!([])
    );
    let raw = chain
        .result("eth_getRawTransactionByHash", json!([hash]))
        .await;
    assert_eq!(raw, json!(transfer(0, 21_000)));
}

#[tokio::test]
async fn raw_transactions_and_uncles() {
    let mut chain = Chain::new(Fork::Ecotone);
    let block = chain.add(&[(legacy(3), vec![])]);
    let (hash, raw) = (
        block.payload.hash,
        json!(Bytes::from(legacy(3).encoded_2718())),
    );
    let tx = block.transaction_hashes()[1];
    assert_eq!(
        chain
            .result("eth_getRawTransactionByHash", json!([tx]))
            .await,
        raw
    );
    assert_eq!(
        chain
            .result(
                "eth_getRawTransactionByBlockNumberAndIndex",
                json!(["latest", "0x1"])
            )
            .await,
        raw
    );
    assert_eq!(
        chain
            .result(
                "eth_getRawTransactionByBlockHashAndIndex",
                json!([hash, "0x1"])
            )
            .await,
        raw
    );
    assert_eq!(
        chain
            .result(
                "eth_getRawTransactionByBlockHashAndIndex",
                json!([hash, "0x2"])
            )
            .await,
        "0x"
    );
    assert_eq!(
        chain
            .result("eth_getRawTransactionByHash", json!([B256::ZERO]))
            .await,
        "0x"
    );
    assert_eq!(
        chain
            .result("eth_getUncleCountByBlockNumber", json!(["latest"]))
            .await,
        "0x0"
    );
    assert_eq!(
        chain
            .result("eth_getUncleCountByBlockHash", json!([hash]))
            .await,
        "0x0"
    );
    assert_eq!(
        chain
            .result("eth_getUncleCountByBlockHash", json!([B256::ZERO]))
            .await,
        Value::Null
    );
    assert_eq!(
        chain
            .result("eth_getUncleByBlockNumberAndIndex", json!(["0x1", "0x0"]))
            .await,
        Value::Null
    );
    assert_eq!(
        chain
            .result("eth_getUncleByBlockHashAndIndex", json!([hash, "0x0"]))
            .await,
        Value::Null
    );
    for method in [
        "eth_sendTransaction",
        "eth_signTransaction",
        "eth_sign",
        "eth_resend",
    ] {
        assert_eq!(
            chain.error(method, json!([{ "from": RICH }])).await,
            (-32000, "unknown account".into())
        );
    }
    assert_eq!(chain.result("eth_blobBaseFee", json!([])).await, "0x1");
    let next = chain
        .result("eth_feeHistory", json!(["0x1", "latest", []]))
        .await["baseFeePerGas"][1]
        .clone();
    assert_eq!(chain.result("eth_baseFee", json!([])).await, next);
}

#[tokio::test]
async fn slots_of_many_accounts_at_once() {
    let chain = Chain::new(Fork::Ecotone);
    let wanted = json!({ CONTRACT.to_string(): [B256::with_last_byte(1), B256::ZERO], RICH.to_string(): [B256::ZERO] });
    let values = chain
        .result("eth_getStorageValues", json!([wanted, "latest"]))
        .await;
    let expected = json!({ CONTRACT.to_string().to_lowercase(): [B256::with_last_byte(0x38), B256::ZERO], RICH.to_string().to_lowercase(): [B256::ZERO] });
    assert_eq!(values, expected);
    assert_eq!(
        chain.error("eth_getStorageValues", json!([{}])).await,
        (-32602, "empty request".into())
    );
    let many = json!([{ CONTRACT.to_string(): vec![B256::ZERO; 1025] }]);
    assert_eq!(
        chain.error("eth_getStorageValues", many).await,
        (-32602, "too many slots (max 1024)".into())
    );
}

/// Every method that takes a block takes it in every form.
#[tokio::test]
async fn every_method_knows_every_name_of_a_block() {
    let mut chain = Chain::new(Fork::Ecotone);
    let block = chain.add(&[]);
    chain
        .store
        .commit(
            &chain.blocks,
            Some(block.payload.id()),
            Some(block.payload.id()),
        )
        .unwrap();
    let snapshot = chain.store.snapshot().unwrap();
    let view = crate::chain::view::View::new(
        snapshot,
        vec![],
        Some(block.payload.id()),
        Some(block.payload.id()),
    )
    .unwrap();
    *chain.view.lock() = std::sync::Arc::new(view);
    let hash = block.payload.hash;
    let tags = ["latest", "pending", "safe", "finalized", "0x1"].map(|tag| json!(tag));
    let objects = [
        json!({ "blockNumber": "0x1" }),
        json!({ "blockNumber": "latest" }),
        json!({ "blockHash": hash }),
        json!({ "blockHash": hash, "requireCanonical": true }),
        json!(hash),
    ];
    let call = json!({ "to": CONTRACT });
    // With a state: tags and EIP-1898 objects.
    for (method, before) in [
        ("eth_getBalance", vec![json!(RICH)]),
        ("eth_getTransactionCount", vec![json!(RICH)]),
        ("eth_getCode", vec![json!(CONTRACT)]),
        ("eth_getStorageAt", vec![json!(CONTRACT), json!("0x1")]),
        (
            "eth_getStorageValues",
            vec![json!({ CONTRACT.to_string(): [B256::ZERO] })],
        ),
        ("eth_getProof", vec![json!(CONTRACT), json!(["0x1"])]),
        ("eth_call", vec![call.clone()]),
        ("eth_estimateGas", vec![call.clone()]),
        ("eth_createAccessList", vec![call.clone()]),
        ("eth_getBlockReceipts", vec![]),
    ] {
        let params =
            |block: &Value| Value::from([&before[..], std::slice::from_ref(block)].concat());
        let expected = chain.result(method, params(&tags[0])).await;
        for block in tags.iter().chain(&objects) {
            assert_eq!(
                chain.result(method, params(block)).await,
                expected,
                "{method} at {block}"
            );
        }
        chain.result(method, params(&json!("earliest"))).await;
        if method != "eth_getBlockReceipts" {
            let unknown = [
                (json!("0x2"), "header not found"),
                (
                    json!({ "blockHash": B256::ZERO }),
                    "header for hash not found",
                ),
            ];
            for (block, message) in unknown {
                assert_eq!(
                    chain.error(method, params(&block)).await,
                    (-32000, message.into()),
                    "{method} at {block}"
                );
            }
        }
        let both = json!({ "blockHash": hash, "blockNumber": "0x1" });
        assert_eq!(
            chain.error(method, params(&both)).await.0,
            -32602,
            "{method}"
        );
    }
    // By number: tags.
    for (method, after) in [
        ("eth_getBlockByNumber", vec![json!(true)]),
        ("eth_getHeaderByNumber", vec![]),
        ("eth_getBlockTransactionCountByNumber", vec![]),
        ("eth_getUncleCountByBlockNumber", vec![]),
        (
            "eth_getTransactionByBlockNumberAndIndex",
            vec![json!("0x0")],
        ),
        (
            "eth_getRawTransactionByBlockNumberAndIndex",
            vec![json!("0x0")],
        ),
        ("eth_getUncleByBlockNumberAndIndex", vec![json!("0x0")]),
    ] {
        let params =
            |block: &Value| Value::from([std::slice::from_ref(block), &after[..]].concat());
        let expected = chain.result(method, params(&tags[0])).await;
        for block in &tags {
            assert_eq!(
                chain.result(method, params(block)).await,
                expected,
                "{method} at {block}"
            );
        }
        chain.result(method, params(&json!("earliest"))).await;
    }
    for tag in &tags {
        chain
            .result("eth_feeHistory", json!(["0x1", tag, []]))
            .await;
        chain
            .result("eth_getLogs", json!([{ "fromBlock": tag, "toBlock": tag }]))
            .await;
    }
}

/// State overrides, in calls and estimates alike.
#[tokio::test]
async fn overrides_pretend() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    let word = |n: u64| json!(format!("0x{n:064x}"));
    let run = async |code: &str, state: Value, block: Value| {
        let mut account = state;
        account["code"] = json!(code);
        let overrides = json!({ CONTRACT.to_string(): account });
        let params = json!([{ "to": CONTRACT }, "latest", overrides, block]);
        chain.result("eth_estimateGas", params.clone()).await;
        chain.result("eth_call", params).await
    };
    let returning = |op: &str| format!("0x{op}60005260206000f3");
    let slot = |n: u64| returning(&format!("60{n:02x}54"));
    let key = B256::with_last_byte(2).to_string();
    // Slot 1 holds 0x38: a difference leaves it, a whole state does not.
    assert_eq!(
        run(
            &slot(1),
            json!({ "stateDiff": { &key: word(7) } }),
            json!({})
        )
        .await,
        word(0x38)
    );
    assert_eq!(
        run(
            &slot(2),
            json!({ "stateDiff": { &key: word(7) } }),
            json!({})
        )
        .await,
        word(7)
    );
    assert_eq!(
        run(&slot(1), json!({ "state": { &key: word(7) } }), json!({})).await,
        word(0)
    );
    assert_eq!(
        run(&returning("47"), json!({ "balance": "0x63" }), json!({})).await,
        word(0x63)
    );
    // TIMESTAMP, GASLIMIT, COINBASE, PREVRANDAO.
    assert_eq!(
        run(&returning("42"), json!({}), json!({ "time": "0xffff" })).await,
        word(0xffff)
    );
    assert_eq!(
        run(
            &returning("45"),
            json!({}),
            json!({ "gasLimit": "0x1000000" })
        )
        .await,
        word(0x0100_0000)
    );
    let coinbase = json!({ "feeRecipient": Address::with_last_byte(9) });
    assert_eq!(run(&returning("41"), json!({}), coinbase).await, word(9));
    let random = json!({ "prevRandao": B256::with_last_byte(8) });
    assert_eq!(run(&returning("44"), json!({}), random).await, word(8));
    let both = json!({ CONTRACT.to_string(): { "state": {}, "stateDiff": {} } });
    for method in ["eth_call", "eth_estimateGas", "eth_createAccessList"] {
        let (code, message) = chain
            .error(method, json!([{ "to": CONTRACT }, "latest", both]))
            .await;
        assert_eq!(
            (code, message),
            (
                -32000,
                format!("account {CONTRACT} has both 'state' and 'stateDiff'")
            ),
            "{method}"
        );
    }
    // A poor sender made rich.
    let poor = json!({ "from": Address::repeat_byte(5), "to": RICH, "value": "0x1" });
    let rich = json!({ Address::repeat_byte(5).to_string(): { "balance": format!("{FUNDS:#x}") } });
    assert_eq!(
        chain
            .error("eth_estimateGas", json!([poor, "latest"]))
            .await
            .0,
        -32000
    );
    assert_eq!(
        chain
            .result("eth_estimateGas", json!([poor, "latest", rich]))
            .await,
        "0x5208"
    );
}

#[tokio::test]
async fn a_batcher_sets_the_data_limits_of_blocks() {
    let mut chain = Chain::new(Fork::Isthmus);
    assert_eq!(
        chain
            .error("miner_setMaxDASize", json!(["0x0", "0x0"]))
            .await
            .0,
        -32601,
        "only where it is named"
    );
    chain.serve(&["miner"]);
    assert_eq!(
        chain
            .result("miner_setMaxDASize", json!(["0x12c", "0x5208"]))
            .await,
        true
    );
    let settings = chain.context.chain.pool.miner();
    assert_eq!(
        (settings.max_tx_da, settings.max_block_da),
        (Some(300), Some(21_000))
    );
    assert_eq!(
        chain
            .result(
                "miner_setMaxDASize",
                json!(["0x0", "0xffffffffffffffffffff"])
            )
            .await,
        true
    );
    let settings = chain.context.chain.pool.miner();
    assert_eq!(
        (settings.max_tx_da, settings.max_block_da),
        (None, Some(u64::MAX))
    );
    let missing = chain.error("miner_setMaxDASize", json!(["0x1"])).await;
    assert_eq!(
        missing,
        (-32602, "missing value for required argument 1".into())
    );

    assert_eq!(
        chain
            .result("miner_setGasPrice", json!(["0x3b9aca00"]))
            .await,
        true
    );
    assert_eq!(
        chain
            .result("miner_setGasLimit", json!(["0x1c9c380"]))
            .await,
        true
    );
    assert_eq!(
        chain.result("miner_setExtra", json!(["made here"])).await,
        true
    );
    let settings = chain.context.chain.pool.miner();
    assert_eq!(
        (settings.min_tip, settings.gas_limit),
        (Some(1_000_000_000), Some(30_000_000))
    );
    assert_eq!(settings.extra_data.as_ref(), b"made here");
    let long = chain
        .error(
            "miner_setExtra",
            json!(["a text of more than thirty-two bytes"]),
        )
        .await;
    assert_eq!(long, (-32000, "extra exceeds max length. 36 > 32".into()));
}
