//! The methods over a small chain: result values, shapes and errors.

use super::chain::{CHAIN_ID, CONTRACT, Chain, RICH, dynamic, legacy, signature};
use crate::chain::view::ExecutedBlock;
use alloy_consensus::{SignableTransaction, TxEip1559, TxEip7702, TxLegacy};
use alloy_eips::eip7702::{Authorization, SignedAuthorization};
use alloy_primitives::{Address, B256, Bytes, Log, TxKind, U256};
use op_alloy_consensus::TxDeposit;
use serde_json::{Value, json};
use starling_proto::fork::Fork;
use std::sync::Arc;

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

pub fn sorted<'a>(lists: &[&'a str]) -> Vec<&'a str> {
    let mut keys: Vec<_> = lists
        .iter()
        .flat_map(|list| list.split_whitespace())
        .collect();
    keys.sort_unstable();
    keys
}

const BLOCK: &str = "difficulty extraData gasLimit gasUsed hash logsBloom miner mixHash nonce number parentHash receiptsRoot \
    sha3Uncles size stateRoot timestamp totalDifficulty transactions transactionsRoot uncles baseFeePerGas";
const TRANSACTION: &str = "blockHash blockNumber from gas gasPrice hash input nonce to transactionIndex value type v r s blockTimestamp";
pub const RECEIPT: &str = "blockHash blockNumber contractAddress cumulativeGasUsed effectiveGasPrice from to gasUsed logs logsBloom \
    status transactionHash transactionIndex type";
const L1: &str = "l1GasUsed l1GasPrice l1Fee l1FeeScalar";
const ECOTONE: &str = "l1BaseFeeScalar l1BlobBaseFee l1BlobBaseFeeScalar";

#[tokio::test]
async fn blocks_have_their_forks_fields() {
    let later = "withdrawals withdrawalsRoot";
    let blob = "blobGasUsed excessBlobGas parentBeaconBlockRoot";
    for (fork, more) in [
        (Fork::Regolith, vec![]),
        (Fork::Canyon, vec![later]),
        (Fork::Ecotone, vec![later, blob]),
        (Fork::Isthmus, vec![later, blob, "requestsHash"]),
    ] {
        let mut chain = Chain::new(fork);
        let block = chain.add(&[(legacy(0), vec![])]);
        let json = chain
            .result("eth_getBlockByNumber", json!(["latest", false]))
            .await;
        let expected = sorted(&[&[BLOCK], &more[..]].concat());
        assert_eq!(keys(&json), expected, "{fork:?}");
        assert_eq!(json["hash"], json!(block.payload.hash));
        assert_eq!(json["totalDifficulty"], "0x0");
        assert_eq!(json["nonce"], "0x0000000000000000");
        assert_eq!(json["transactions"], json!(block.transaction_hashes()));
        let by_hash = chain
            .result("eth_getBlockByHash", json!([block.payload.hash, true]))
            .await;
        assert_eq!(
            by_hash["transactions"][1]["hash"],
            json!(block.transaction_hashes()[1])
        );
    }
}

#[tokio::test]
async fn the_size_is_that_of_the_rlp() {
    let mut chain = Chain::new(Fork::Ecotone);
    let block = chain.add(&[(legacy(0), vec![]), (dynamic(), vec![])]);
    let transactions = block.payload.decode_transactions().unwrap();
    let body = alloy_consensus::BlockBody {
        transactions,
        ommers: vec![],
        withdrawals: Some(Default::default()),
    };
    let rlp = alloy_rlp::encode(alloy_consensus::Block::new(
        block.payload.header.clone(),
        body,
    ));
    let json = chain
        .result("eth_getBlockByNumber", json!(["0x1", false]))
        .await;
    assert_eq!(json["size"], format!("{:#x}", rlp.len()));
}

#[tokio::test]
async fn unknown_blocks_are_null_and_unset_tags_are_errors() {
    let chain = Chain::new(Fork::Ecotone);
    assert_eq!(
        chain
            .result("eth_getBlockByNumber", json!(["0x63", false]))
            .await,
        Value::Null
    );
    assert_eq!(
        chain
            .result("eth_getBlockByHash", json!([B256::ZERO, false]))
            .await,
        Value::Null
    );
    assert_eq!(
        chain.result("eth_getBlockReceipts", json!(["0x63"])).await,
        Value::Null
    );
    assert_eq!(
        chain
            .result("eth_getBlockReceipts", json!(["earliest"]))
            .await,
        json!([])
    );
    assert_eq!(
        chain
            .result("eth_getBlockTransactionCountByNumber", json!(["earliest"]))
            .await,
        "0x0"
    );
    assert_eq!(
        chain
            .error("eth_getBlockByNumber", json!(["safe", false]))
            .await,
        (-32000, "safe block not found".into())
    );
    let finalized = chain
        .error("eth_getBalance", json!([RICH, "finalized"]))
        .await;
    assert_eq!(finalized, (-32000, "finalized block not found".into()));
    assert_eq!(
        chain.error("eth_getBalance", json!([RICH, "0x63"])).await,
        (-32000, "header not found".into())
    );
    let by_hash = chain
        .error("eth_getBalance", json!([RICH, { "blockHash": B256::ZERO }]))
        .await;
    assert_eq!(by_hash, (-32000, "header not found".into()));
}

#[tokio::test]
async fn a_state_that_is_no_longer_kept_is_refused_and_the_oldest_is_named() {
    let mut chain = Chain::new(Fork::Ecotone);
    for _ in 0..6 {
        chain.add(&[]);
    }
    chain.store.keep_states(Some(2));
    chain.store.commit(&chain.blocks, None, None).unwrap();
    chain.publish();
    for block in ["0x4", "0x5", "0x6"] {
        assert_eq!(
            chain.result("eth_getBalance", json!([RICH, block])).await,
            "0xf4240"
        );
    }
    let pruned = "state at block #3 is pruned, the oldest state is at block #4";
    for (method, params) in [
        ("eth_getBalance", json!([RICH, "0x3"])),
        ("eth_getTransactionCount", json!([RICH, "0x3"])),
        ("eth_getCode", json!([CONTRACT, "0x3"])),
        ("eth_getStorageAt", json!([CONTRACT, "0x1", "0x3"])),
        ("eth_call", json!([{ "to": CONTRACT }, "0x3"])),
    ] {
        assert_eq!(
            chain.error(method, params).await,
            (-32000, pruned.into()),
            "{method}"
        );
    }
}

#[tokio::test]
async fn state_is_read_at_a_block() {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[]);
    let genesis = chain.context.chain.spec.genesis_hash;
    for block in [
        json!("latest"),
        json!("0x0"),
        json!("earliest"),
        json!({ "blockHash": genesis }),
        Value::Null,
    ] {
        assert_eq!(
            chain.result("eth_getBalance", json!([RICH, block])).await,
            "0xf4240"
        );
        assert_eq!(
            chain
                .result("eth_getTransactionCount", json!([RICH, block]))
                .await,
            "0x7"
        );
        assert_eq!(
            chain.result("eth_getCode", json!([CONTRACT, block])).await,
            "0x600000"
        );
        let value = chain
            .result("eth_getStorageAt", json!([CONTRACT, "0x1", block]))
            .await;
        assert_eq!(value, format!("0x{:064x}", 0x38));
    }
    assert_eq!(
        chain
            .result("eth_getTransactionCount", json!([RICH, "pending"]))
            .await,
        "0x7"
    );
    assert_eq!(
        chain.result("eth_getBalance", json!([Address::ZERO])).await,
        "0x0"
    );
    assert_eq!(chain.result("eth_getCode", json!([RICH])).await, "0x");
    assert_eq!(chain.result("eth_blockNumber", json!([])).await, "0x1");
    assert_eq!(chain.result("eth_chainId", json!([])).await, "0x385");
    assert_eq!(chain.result("net_version", json!([])).await, "901");
    assert_eq!(chain.result("eth_syncing", json!([])).await, false);
    assert_eq!(chain.result("eth_accounts", json!([])).await, json!([]));
    let modules = json!({ "eth": "1.0", "net": "1.0", "opp2p": "1.0", "rpc": "1.0", "txpool": "1.0", "web3": "1.0" });
    assert_eq!(chain.result("rpc_modules", json!([])).await, modules);
    let hash = "0x47173285a8d7341e5e972fc677286384f802f8ef42a5ec5f03bbfa254cb01fad";
    assert_eq!(
        chain
            .result("web3_sha3", json!(["0x68656c6c6f20776f726c64"]))
            .await,
        hash
    );
}

/// A block with a transaction of every type, and the JSON of its transactions.
struct TypedTransactions {
    chain: Chain,
    responses: Vec<Value>,
}

impl TypedTransactions {
    /// The transactions: the deposit of the L1 attributes, a legacy, a dynamic-fee and a set-code
    /// transaction, a legacy transaction without chain id, and a user's deposit.
    async fn new() -> Self {
        let mut chain = Chain::new(Fork::Isthmus);
        let authorization = Authorization {
            chain_id: U256::from(CHAIN_ID),
            address: CONTRACT,
            nonce: 1,
        };
        let authorization =
            SignedAuthorization::new_unchecked(authorization, 1, U256::from(2), U256::from(3));
        let set_code = TxEip7702 {
            chain_id: CHAIN_ID,
            max_fee_per_gas: 5000,
            max_priority_fee_per_gas: 5000,
            authorization_list: vec![authorization],
            ..Default::default()
        };
        let unprotected = TxLegacy {
            gas_price: 2000,
            to: TxKind::Call(RICH),
            ..Default::default()
        };
        let user = TxDeposit {
            mint: 6,
            to: TxKind::Call(RICH),
            from: RICH,
            ..Default::default()
        };
        let block = chain.add(&[
            (legacy(0), vec![]),
            (dynamic(), vec![]),
            (set_code.into_signed(signature()).into(), vec![]),
            (unprotected.into_signed(signature()).into(), vec![]),
            (user.into(), vec![]),
        ]);
        let mut responses = Vec::new();
        for hash in block.transaction_hashes() {
            let response = chain.result("eth_getTransactionByHash", json!([hash]));
            responses.push(response.await);
        }
        Self { chain, responses }
    }

    /// Members of the transaction at `index`.
    fn members<const N: usize>(&self, index: usize, names: [&str; N]) -> [&str; N] {
        names.map(|name| self.responses[index][name].as_str().unwrap())
    }
}

#[tokio::test]
async fn transactions_have_their_types_fields() {
    let TypedTransactions { chain, responses } = TypedTransactions::new().await;
    let fees = "maxFeePerGas maxPriorityFeePerGas accessList chainId yParity";
    let set_code = format!("{fees} authorizationList");
    let deposit = "sourceHash depositReceiptVersion mint";
    let fields = [deposit, "chainId", fees, &set_code, "", deposit];
    for (n, (response, more)) in responses.iter().zip(fields).enumerate() {
        assert_eq!(
            keys(response),
            sorted(&[TRANSACTION, more]),
            "transaction {n}"
        );
        assert_eq!(response["transactionIndex"], format!("{n:#x}"));
        assert_eq!(response["blockTimestamp"], "0x3ea");
        let index = json!(["0x1", format!("{n:#x}")]);
        assert_eq!(
            &chain
                .result("eth_getTransactionByBlockNumberAndIndex", index)
                .await,
            response
        );
    }
    assert_eq!(responses.len(), 6);
    for (method, params) in [
        (
            "eth_getTransactionByBlockNumberAndIndex",
            json!(["0x1", "0x6"]),
        ),
        ("eth_getTransactionByHash", json!([B256::ZERO])),
    ] {
        assert_eq!(chain.result(method, params).await, Value::Null, "{method}");
    }
}

/// Deposits have the nonce from their receipt, no price, and no signature.
#[tokio::test]
async fn deposits_have_their_receipts_nonce_and_what_they_mint() {
    let all = TypedTransactions::new().await;
    assert_eq!(
        all.members(0, ["type", "nonce", "gasPrice"]),
        ["0x7e", "0x28", "0x0"]
    );
    assert_eq!(
        all.members(0, ["v", "r", "depositReceiptVersion"]),
        ["0x0", "0x0", "0x1"]
    );
    assert_eq!(all.members(0, ["mint"]), ["0x0"], "nothing is minted");
    assert_eq!(all.members(5, ["mint"]), ["0x6"]);
}

#[tokio::test]
async fn transactions_have_minimal_signatures_and_the_price_paid() {
    let all = TypedTransactions::new().await;
    // Quantities are minimal. `v` follows EIP-155, or is 27 or 28 without a chain id.
    let protected = format!("{:#x}", 901 * 2 + 36);
    assert_eq!(
        all.members(1, ["r", "s", "v"]),
        ["0x1234", "0x5678", &protected]
    );
    assert_eq!(all.members(4, ["v"]), ["0x1c"]);
    // The price paid: base fee plus tip, but at most the fee cap.
    assert_eq!(
        all.members(2, ["gasPrice", "v", "yParity"]),
        ["0x44c", "0x1", "0x1"]
    );
    assert_eq!(all.members(3, ["gasPrice"]), ["0x1388"]);
    assert_eq!(all.responses[2]["to"], Value::Null);
}

/// Fields of receipts by fork: those of deposits, and those about the costs on L1.
fn receipt_fields() -> [(Fork, &'static str, Vec<&'static str>); 7] {
    let operator = "operatorFeeScalar operatorFeeConstant";
    let canyon = "depositNonce depositReceiptVersion";
    [
        (Fork::Bedrock, "", vec![L1]),
        (Fork::Regolith, "depositNonce", vec![L1]),
        (Fork::Canyon, canyon, vec![L1]),
        (Fork::Ecotone, canyon, vec![L1, ECOTONE]),
        (Fork::Holocene, canyon, vec![L1, ECOTONE]),
        (Fork::Isthmus, canyon, vec![L1, ECOTONE, operator]),
        (
            Fork::Jovian,
            canyon,
            vec![L1, ECOTONE, operator, "daFootprintGasScalar"],
        ),
    ]
}

#[tokio::test]
async fn receipts_have_their_forks_fields() {
    for (fork, deposit, l1) in receipt_fields() {
        let mut chain = Chain::new(fork);
        let block = chain.add(&[(dynamic(), vec![])]);
        let all = chain
            .result("eth_getBlockReceipts", json!(["latest"]))
            .await;
        let footprint = if fork >= Fork::Jovian {
            "blobGasUsed"
        } else {
            ""
        };
        assert_eq!(
            keys(&all[0]),
            sorted(&[&[RECEIPT, deposit], &l1[..]].concat()),
            "{fork:?}"
        );
        assert_eq!(
            keys(&all[1]),
            sorted(&[&[RECEIPT, footprint], &l1[..]].concat()),
            "{fork:?}"
        );
        assert_eq!(all[0]["l1Fee"], "0x0");
        let scalar = if fork >= Fork::Ecotone {
            "0.001368"
        } else {
            "0.684"
        };
        assert_eq!(all[1]["l1FeeScalar"], scalar);
        assert_eq!(all[1]["l1GasPrice"], "0x77359400");
        let one = chain
            .result(
                "eth_getTransactionReceipt",
                json!([block.transaction_hashes()[1]]),
            )
            .await;
        assert_eq!(one, all[1]);
        // With `geth_exact_receipts`, the fields are those of op-geth.
        let chain = chain.with(|context| context.geth_exact_receipts = true);
        let exact = chain
            .result("eth_getBlockReceipts", json!(["latest"]))
            .await;
        assert_eq!(keys(&exact[0]), sorted(&[RECEIPT, deposit]), "{fork:?}");
        assert_eq!(exact[1].get("l1FeeScalar").is_some(), fork < Fork::Ecotone);
        assert_eq!(exact[1]["l1Fee"], all[1]["l1Fee"]);
    }
}

/// A chain whose block has logs with one topic each: two logs of the first user transaction, one of
/// the second.
fn chain_with_logs() -> (Chain, Arc<ExecutedBlock>) {
    let mut chain = Chain::new(Fork::Canyon);
    let log =
        |n: u8| Log::new_unchecked(CONTRACT, vec![B256::repeat_byte(n)], Bytes::from(vec![n]));
    let block = chain.add(&[(legacy(0), vec![log(1), log(2)]), (dynamic(), vec![log(3)])]);
    (chain, block)
}

/// The last log of [`chain_with_logs`], as receipts and filters show it.
fn last_log(block: &ExecutedBlock) -> Value {
    json!({
        "address": CONTRACT,
        "topics": [B256::repeat_byte(3)],
        "data": "0x03",
        "blockNumber": "0x1",
        "blockHash": block.payload.hash,
        "blockTimestamp": "0x3ea",
        "transactionHash": block.transaction_hashes()[2],
        "transactionIndex": "0x2",
        "logIndex": "0x2",
        "removed": false,
    })
}

#[tokio::test]
async fn a_receipt_tells_of_its_own_transaction_only() {
    let (chain, block) = chain_with_logs();
    let all = chain
        .result("eth_getBlockReceipts", json!([block.payload.hash]))
        .await;
    let created = block.senders[2].create(3);
    assert_eq!(all[2]["contractAddress"], json!(created));
    assert_eq!(
        (&all[1]["contractAddress"], &all[2]["to"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(
        (&all[2]["gasUsed"], &all[2]["cumulativeGasUsed"]),
        (&json!("0xc350"), &json!("0x249f0"))
    );
    assert_eq!(
        (&all[1]["effectiveGasPrice"], &all[2]["effectiveGasPrice"]),
        (&json!("0x7d0"), &json!("0x44c"))
    );
    assert_eq!(all[2]["logs"], json!([last_log(&block)]));
    assert_eq!(
        chain
            .result("eth_getTransactionReceipt", json!([B256::ZERO]))
            .await,
        Value::Null
    );
}

#[tokio::test]
async fn logs_are_filtered_by_topic_block_address_and_range() {
    let (chain, block) = chain_with_logs();
    let filter = json!([{ "fromBlock": "earliest", "topics": [[B256::repeat_byte(3), B256::repeat_byte(9)]] }]);
    assert_eq!(
        chain.result("eth_getLogs", filter).await,
        json!([last_log(&block)])
    );
    assert_eq!(
        chain
            .result("eth_getLogs", json!([{ "blockHash": block.payload.hash }]))
            .await
            .as_array()
            .unwrap()
            .len(),
        3
    );
    let none = json!([{ "address": RICH }]);
    assert_eq!(chain.result("eth_getLogs", none).await, json!([]));
}

#[tokio::test]
async fn reversed_ranges_of_logs_and_ranges_above_the_head_are_refused() {
    let (chain, _) = chain_with_logs();
    let reversed = "invalid block range params";
    let beyond = "block range extends beyond current head block";
    for (filter, message) in [
        (json!({ "fromBlock": "0x2", "toBlock": "0x1" }), reversed),
        (json!({ "fromBlock": "0x1", "toBlock": "0x0" }), reversed),
        (json!({ "toBlock": "0x0" }), reversed),
        (json!({ "fromBlock": "0x9" }), reversed),
        (json!({ "toBlock": "0x1" }), reversed),
        (json!({ "toBlock": "0x9" }), reversed),
        (json!({ "fromBlock": "0x1", "toBlock": "0x9" }), beyond),
        (
            json!({ "fromBlock": "pending" }),
            "pending logs are not supported",
        ),
    ] {
        assert_eq!(
            chain.error("eth_getLogs", json!([filter])).await,
            (-32602, message.into()),
            "{filter}"
        );
    }
}

#[tokio::test]
async fn the_tip_rises_when_blocks_are_full() {
    let mut chain = Chain::new(Fork::Canyon);
    assert_eq!(
        chain.result("eth_maxPriorityFeePerGas", json!([])).await,
        "0xf4240"
    );
    let paying = |tip| {
        let fees = TxEip1559 {
            chain_id: CHAIN_ID,
            max_fee_per_gas: tip + 1000,
            max_priority_fee_per_gas: tip,
            ..Default::default()
        };
        (fees.into_signed(signature()).into(), vec![])
    };
    // The block has three transactions of 50,000 gas. The first gas limit leaves room for a fourth,
    // the second does not.
    for (gas_limit, tip, suggested) in [
        (200_000, 2_000_000_000, 1_000_000),
        (199_999, 2_000_000_000, 2_200_000_000),
        (199_999, 10, 1_000_000),
        (199_999, 600_000_000_000, 500_000_000_000u64),
    ] {
        chain.gas_limit = gas_limit;
        chain.add(&[paying(tip), paying(tip)]);
        assert_eq!(
            chain.result("eth_maxPriorityFeePerGas", json!([])).await,
            format!("{suggested:#x}")
        );
        assert_eq!(
            chain.result("eth_gasPrice", json!([])).await,
            format!("{:#x}", suggested + 1000)
        );
    }
}

#[tokio::test]
async fn fee_history_is_bounded() {
    let mut chain = Chain::new(Fork::Canyon);
    chain.add(&[(dynamic(), vec![])]);
    let beyond = chain
        .error("eth_feeHistory", json!(["0x1", "0x9", []]))
        .await;
    assert_eq!(
        beyond,
        (
            -32000,
            "request beyond head block: requested 9, head 1".into()
        )
    );
    let none = chain
        .result("eth_feeHistory", json!(["0x0", "latest", []]))
        .await;
    assert_eq!(none, json!({ "oldestBlock": "0x0", "gasUsedRatio": null }));
    let history = chain
        .result("eth_feeHistory", json!(["0xffff", "latest", [0, 100]]))
        .await;
    assert_eq!(history["oldestBlock"], "0x0");
    assert_eq!(
        history["gasUsedRatio"],
        json!([0.0, 100_000.0 / 30_000_000.0])
    );
    assert_eq!(history["reward"], json!([["0x0", "0x0"], ["0x0", "0x64"]]));
    assert_eq!(history["baseFeePerGas"].as_array().unwrap().len(), 3);
    assert_eq!(history["baseFeePerBlobGas"], json!(["0x0", "0x0", "0x0"]));
}

/// A receipt is the same whether it comes from memory, from the store, or from the cache of decoded
/// blocks.
#[tokio::test]
async fn receipts_read_alone_are_those_of_the_block() {
    let mut chain = Chain::new(Fork::Jovian);
    let log = |n: u8| Log::new_unchecked(CONTRACT, vec![B256::repeat_byte(n)], vec![n; 40].into());
    let block = chain.add(&[
        (legacy(0), vec![log(1)]),
        (dynamic(), vec![]),
        (legacy(2), vec![log(2), log(3)]),
    ]);
    let mut responses = Vec::new();
    for (stored, decoded) in [(false, false), (true, false), (true, true)] {
        if stored && !decoded {
            chain.store.commit(&chain.blocks, None, None).unwrap();
            chain.blocks.clear();
            chain.publish();
            chain = chain.with(|context| context.blocks = Default::default());
        }
        let all = chain.result("eth_getBlockReceipts", json!(["0x1"])).await;
        let full = chain
            .result("eth_getBlockByNumber", json!(["0x1", true]))
            .await;
        for (index, hash) in block.transaction_hashes().iter().enumerate() {
            assert_eq!(
                chain
                    .result("eth_getTransactionReceipt", json!([hash]))
                    .await,
                all[index],
                "{index}, stored: {stored}"
            );
            let transaction = chain
                .result("eth_getTransactionByHash", json!([hash]))
                .await;
            assert_eq!(
                transaction, full["transactions"][index],
                "{index}, stored: {stored}"
            );
        }
        let logs = chain
            .result(
                "eth_getLogs",
                json!([{ "fromBlock": "0x0", "topics": [B256::repeat_byte(3)] }]),
            )
            .await;
        assert_eq!(logs, json!([all[3]["logs"][1]]));
        responses.push((all, full));
    }
    assert!(responses.windows(2).all(|pair| pair[0] == pair[1]));
    assert!(
        chain.context.blocks.cached(&block.payload.hash).is_some(),
        "decoded once"
    );
}
