//! Tests of the task with a fake L1 whose responses to transactions can be scripted.

mod faults;
mod signer;

use super::*;
use crate::{
    chain::{kzg, tests::blobs::blob},
    rollup::{
        http_fake::{Canned, CannedServer},
        l1::L1Config,
    },
    secret::Secret,
};
use alloy_consensus::{
    EthereumTxEnvelope, Transaction, TxEip4844Variant, transaction::SignerRecoverable,
};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{B256, U64};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::VecDeque;

const KEY: &str = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";
const INBOX: Address = Address::repeat_byte(0xff);

type PoolTx = EthereumTxEnvelope<TxEip4844Variant<crate::chain::blobs::TxSidecar>>;

/// A scripted response to a published transaction.
#[derive(Clone)]
enum Ordered {
    /// A JSON-RPC error; the pool does not accept the transaction.
    Error(&'static str),
    /// HTTP status 429.
    TooMany,
    /// A JSON-RPC error with which providers limit the request rate.
    Limited,
    /// The pool accepts the transaction, but the response is cut off.
    Broken,
}

#[derive(Default)]
struct FakeL1 {
    orders: VecDeque<Ordered>,
    /// HTTP status of every response, if set.
    status: Option<u16>,
    /// Whether the account has no ether, so that calls and transactions fail.
    is_poor: bool,
    pool: Vec<PoolTx>,
    blocks: Vec<Vec<B256>>,
    base_fee: u64,
    /// Tips of the blob transactions in every block.
    tips: Vec<u64>,
    sent: Vec<PoolTx>,
}

impl FakeL1 {
    fn mine(&mut self) {
        let mined = self.pool.drain(..).map(|tx| *tx.tx_hash()).collect();
        self.blocks.push(mined);
    }

    fn nonce(&self, upto: usize) -> usize {
        self.blocks.iter().take(upto).map(Vec::len).sum()
    }

    /// Result of a call, or the message of its JSON-RPC error.
    fn result(&mut self, method: &str, params: &Value) -> Result<Value, String> {
        let head = self.blocks.len();
        let hex = |number: usize| json!(U64::from(number));
        Ok(match method {
            "eth_chainId" => json!("0x384"),
            "eth_blockNumber" => hex(head),
            "eth_getBlockByNumber" => {
                let blob = |tip: &u64| {
                    let fee = U64::from(self.base_fee + tip);
                    json!({ "type": "0x3", "maxPriorityFeePerGas": U64::from(*tip), "maxFeePerGas": fee })
                };
                let mut transactions: Vec<Value> = self.tips.iter().map(blob).collect();
                transactions.push(
                    json!({ "type": "0x2", "maxPriorityFeePerGas": "0x1", "maxFeePerGas": "0x1" }),
                );
                json!({ "number": hex(head), "baseFeePerGas": U64::from(self.base_fee), "transactions": transactions })
            }
            "eth_maxPriorityFeePerGas" | "eth_blobBaseFee" => json!("0x1"),
            "eth_getTransactionCount" => match params[1].as_str().unwrap() {
                "latest" => hex(self.nonce(head)),
                "pending" => hex(self.nonce(head) + self.pool.len()),
                block => hex(self.nonce(block.parse::<U64>().unwrap().to())),
            },
            "eth_getTransactionReceipt" => self.receipt(params[0].as_str().unwrap()),
            "eth_call" | "eth_estimateGas" | "eth_sendRawTransaction" if self.is_poor => {
                return Err(
                    "insufficient funds for gas * price + value: have 0 want 105000".into(),
                );
            }
            "eth_call" => json!("0x"),
            "eth_estimateGas" => json!("0x5300"),
            "eth_sendRawTransaction" => {
                let tx = self.record(params);
                if let Some(Ordered::Error(message)) = self.orders.front() {
                    let message = message.to_string();
                    self.orders.pop_front();
                    return Err(message);
                }
                if tx.nonce() < self.nonce(head) as u64 {
                    return Err("nonce too low: next nonce 9, tx nonce 8".into());
                }
                self.take(tx)
            }
            other => panic!("{other}"),
        })
    }

    fn receipt(&self, hash: &str) -> Value {
        let hash: B256 = hash.parse().unwrap();
        let block = self.blocks.iter().position(|block| block.contains(&hash));
        block.map_or(Value::Null, |block| {
            json!({
                "blockNumber": U64::from(block + 1), "blockHash": B256::repeat_byte(7), "status": "0x1",
                "gasUsed": "0x5208", "effectiveGasPrice": "0x3b9aca00",
            })
        })
    }

    fn record(&mut self, params: &Value) -> PoolTx {
        let raw: Bytes = params[0].as_str().unwrap().parse().unwrap();
        let tx = PoolTx::decode_2718_exact(&raw).unwrap();
        assert_eq!(
            tx.recover_signer().unwrap(),
            crate::devnet::accounts::owner()
        );
        self.sent.push(tx.clone());
        tx
    }

    fn take(&mut self, tx: PoolTx) -> Value {
        self.pool.retain(|other| other.nonce() != tx.nonce());
        let hash = *tx.tx_hash();
        self.pool.push(tx);
        self.pool.sort_by_key(PoolTx::nonce);
        json!(hash)
    }

    /// JSON-RPC response to one call of a batch.
    fn one(&mut self, call: &Value) -> Value {
        match self.result(call["method"].as_str().unwrap(), &call["params"]) {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": call["id"], "result": result }),
            Err(message) => {
                json!({ "jsonrpc": "2.0", "id": call["id"], "error": { "code": -32000, "message": message } })
            }
        }
    }

    fn respond(&mut self, request: &str) -> Canned {
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        if let Some(status) = self.status {
            return Canned::status(status, "slow down");
        }
        if let Some(calls) = body.as_array() {
            let responses: Vec<Value> = calls.iter().map(|call| self.one(call)).collect();
            return Canned::ok(json!(responses));
        }
        if body["method"] != "eth_sendRawTransaction" {
            return Canned::ok(self.one(&body));
        }
        match self.orders.front().cloned() {
            Some(Ordered::TooMany) => {
                self.orders.pop_front();
                Canned::status(429, "slow down")
            }
            Some(Ordered::Limited) => {
                self.orders.pop_front();
                let error = json!({ "code": -32005, "message": "limit exceeded" });
                let response = json!({ "jsonrpc": "2.0", "id": body["id"], "error": error });
                Canned::ok(response)
            }
            Some(Ordered::Broken) => {
                self.orders.pop_front();
                let tx = self.record(&body["params"]);
                Canned::Half(self.take(tx).to_string().into_bytes())
            }
            _ => Canned::ok(self.one(&body)),
        }
    }
}

/// A running task and its fake L1.
struct Running {
    l1: Arc<Mutex<FakeL1>>,
    manager: TxManagerHandle,
    closing: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), TxManagerError>>,
    _server: CannedServer,
}

fn options() -> TxOptions {
    TxOptions {
        num_confirmations: 2,
        receipt_query_interval: Duration::from_millis(30),
        retry_interval: Duration::from_millis(10),
        rebroadcast_interval: Duration::from_millis(400),
        resubmission_timeout: Duration::from_secs(2),
        network_timeout: Duration::from_secs(5),
        ..TxOptions::default()
    }
}

async fn running(options: TxOptions, orders: &[Ordered]) -> Running {
    let signer = TxSigner::from_hex(&Secret::new(KEY)).unwrap();
    running_with(options, orders, signer).await
}

async fn running_with(options: TxOptions, orders: &[Ordered], signer: TxSigner) -> Running {
    let l1 = Arc::new(Mutex::new(FakeL1 {
        orders: orders.iter().cloned().collect(),
        base_fee: 2_000_000_000,
        ..FakeL1::default()
    }));
    let served = l1.clone();
    let server = CannedServer::start(move |request| served.lock().respond(request)).await;
    let client = L1Client::new(&L1Config::new(server.url())).unwrap();
    let parts = TxManagerParts {
        options,
        l1: client,
        signer,
        metrics: "test_",
    };
    let (manager, task) = super::manager(parts).await.unwrap();
    let closing = CancellationToken::new();
    let task = tokio::spawn(task.run(closing.clone(), CancellationToken::new()));
    Running {
        l1,
        manager,
        closing,
        task,
        _server: server,
    }
}

fn calldata(byte: u8) -> TxCandidate {
    TxCandidate {
        to: Some(INBOX),
        data: vec![byte].into(),
        blobs: vec![],
        gas_limit: 21_040,
        value: U256::ZERO,
    }
}

impl Running {
    async fn wait(&self, what: &str, until: impl Fn(&FakeL1) -> bool) {
        for _ in 0..6000 {
            if until(&self.l1.lock()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{what} did not happen");
    }

    /// Mines a block once `pool` transactions are in the pool, and then another block.
    async fn confirm(&self, pool: usize) {
        self.wait("the pool is filled", |l1| l1.pool.len() == pool)
            .await;
        let mut l1 = self.l1.lock();
        l1.mine();
        l1.mine();
    }
}

#[tokio::test]
async fn each_passing_fault_of_a_publication_is_survived() {
    let orders = [
        Ordered::TooMany,
        Ordered::Error("txpool is full"),
        Ordered::Error("nonce too high: tx nonce 0, gapped nonce 0"),
        Ordered::Broken,
        Ordered::Error("already known"),
    ];
    let running = running(options(), &orders).await;
    let outcome = running.manager.send(calldata(1)).await;
    running.wait("every order", |l1| l1.orders.is_empty()).await;
    running.confirm(1).await;
    let mined = outcome.await.unwrap().unwrap();
    let l1 = running.l1.lock();
    assert_eq!((mined.block, mined.success), (1, true));
    assert!(
        l1.sent.iter().all(|tx| *tx.tx_hash() == mined.hash),
        "one transaction only"
    );
    assert_eq!(l1.sent[0].gas_limit(), 21_040);
}

#[tokio::test]
async fn an_underpriced_replacement_is_raised_at_once() {
    let orders = [Ordered::Error("replacement transaction underpriced")];
    let running = running(options(), &orders).await;
    let outcome = running.manager.send(calldata(1)).await;
    running.confirm(1).await;
    outcome.await.unwrap().unwrap();
    let l1 = running.l1.lock();
    let [first, second] = &l1.sent[..] else {
        panic!("{} transactions", l1.sent.len());
    };
    assert_eq!(first.nonce(), second.nonce());
    assert_eq!(first.max_fee_per_gas(), 5_000_000_000);
    assert_eq!(second.max_fee_per_gas(), 5_500_000_000);
    assert_eq!(second.max_priority_fee_per_gas(), Some(1_100_000_000));
    // The estimate is below the first transaction's gas limit, so that limit is kept.
    assert_eq!(second.gas_limit(), 0x5300);
}

#[tokio::test]
async fn many_transactions_keep_their_order_and_a_stop_waits_for_them() {
    let never = Duration::from_secs(3600);
    let each_once = TxOptions {
        retry_interval: never,
        rebroadcast_interval: never,
        resubmission_timeout: never,
        ..options()
    };
    let running = running(each_once, &[]).await;
    let mut outcomes = Vec::new();
    for byte in 0..8 {
        outcomes.push(running.manager.send(calldata(byte)).await);
    }
    running
        .wait("the pool is filled", |l1| l1.pool.len() == 8)
        .await;
    // The manager publishes another transaction once it has processed the eighth acceptance.
    let refusal = Ordered::Error("txpool is full");
    running.l1.lock().orders.push_back(refusal);
    let refused = running.manager.send(calldata(8)).await;
    running
        .wait("the ninth publication", |l1| l1.orders.is_empty())
        .await;
    running.closing.cancel();
    assert_eq!(refused.await.unwrap(), Err(SendFailure::Closed));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!running.task.is_finished(), "eight are in the pool");
    running.confirm(8).await;
    for outcome in outcomes {
        outcome.await.unwrap().unwrap();
    }
    running.task.await.unwrap().unwrap();
    let sent = running.l1.lock().sent.clone();
    let bytes: Vec<u8> = sent.iter().map(|tx| tx.input()[0]).collect();
    assert_eq!(bytes, (0..9).collect::<Vec<_>>());
    let late = running.manager.send(calldata(9));
    assert_eq!(late.await.await.unwrap(), Err(SendFailure::Closed));
}

#[tokio::test]
async fn blobs_are_sent_with_the_sidecar_of_the_fork() {
    for (cell_proof_time, form) in [(u64::MAX, SidecarForm::Blobs), (1, SidecarForm::Cells)] {
        let options = TxOptions {
            cell_proof_time,
            ..options()
        };
        let running = running(options, &[]).await;
        let candidate = TxCandidate {
            data: Bytes::new(),
            blobs: vec![blob(1), blob(2)],
            gas_limit: 21_000,
            ..calldata(0)
        };
        let outcome = running.manager.send(candidate).await;
        running.confirm(1).await;
        outcome.await.unwrap().unwrap();
        let l1 = running.l1.lock();
        let PoolTx::Eip4844(tx) = &l1.sent[0] else {
            panic!("{:?}", l1.sent[0].tx_type());
        };
        let TxEip4844Variant::TxEip4844WithSidecar(tx) = tx.tx() else {
            panic!("no sidecar");
        };
        assert_eq!(SidecarForm::of(&tx.sidecar), form);
        assert!(kzg::verify(&tx.sidecar).unwrap());
        assert_eq!(tx.tx.blob_versioned_hashes.len(), 2);
        assert_eq!(tx.tx.max_fee_per_blob_gas, 1_000_000_000);
    }
}

#[tokio::test]
async fn blob_transactions_take_their_tip_from_recent_ones_where_that_is_wanted() {
    let options = TxOptions {
        blob_tip_cap_dynamic: true,
        ..options()
    };
    let running = running(options, &[]).await;
    running.l1.lock().tips = vec![30, 10, 20];
    running.l1.lock().mine();
    let candidate = TxCandidate {
        blobs: vec![blob(1)],
        gas_limit: 21_000,
        ..calldata(0)
    };
    let outcome = running.manager.send(candidate).await;
    running.confirm(1).await;
    outcome.await.unwrap().unwrap();
    // Two blocks with tips 10, 20 and 30 each: the percentile is the fourth of six tips.
    let sent = running.l1.lock().sent[0].clone();
    assert_eq!(sent.max_priority_fee_per_gas(), Some(20));
    assert_eq!(sent.max_fee_per_gas(), 4_000_000_020);
}

#[tokio::test]
async fn the_rpc_changes_what_the_next_transaction_offers() {
    let running = running(options(), &[]).await;
    let api = async |method: &str, params: &str| {
        let response = running.manager.api(method.into(), params.into()).await;
        response.unwrap().map(|value| value.get().to_owned())
    };
    assert_eq!(
        api("txmgr_getMinBaseFee", "[]").await,
        Ok("1000000000".into())
    );
    assert_eq!(
        api("txmgr_setMinBaseFee", "[7000000000]").await,
        Ok("null".into())
    );
    assert!(api("txmgr_setNothing", "[1]").await.is_err());
    let outcome = running.manager.send(calldata(1)).await;
    running.confirm(1).await;
    outcome.await.unwrap().unwrap();
    assert_eq!(running.l1.lock().sent[0].max_fee_per_gas(), 15_000_000_000);
}

#[tokio::test]
async fn a_second_process_ends_the_task_with_a_sentence() {
    let running = running(options(), &[]).await;
    for turn in 0..3 {
        let outcome = running.manager.send(calldata(turn)).await;
        running.confirm(1).await;
        outcome.await.unwrap().expect("one nonce is no evidence");
        let mut l1 = running.l1.lock();
        l1.blocks.push(vec![B256::repeat_byte(turn); 2]);
        l1.mine();
    }
    let outcome = running.manager.send(calldata(3)).await;
    let failure = outcome.await.unwrap().unwrap_err().to_string();
    assert!(
        failure.contains("another process has the same key; stop one of them"),
        "{failure}"
    );
    let error = running.task.await.unwrap().unwrap_err().to_string();
    assert_eq!(error, failure);
}

#[tokio::test]
async fn options_that_cannot_work_are_refused_at_start() {
    let server = CannedServer::start(|_| Canned::Silence).await;
    let parts = TxManagerParts {
        options: TxOptions {
            num_confirmations: 0,
            ..TxOptions::default()
        },
        l1: L1Client::new(&L1Config::new(server.url())).unwrap(),
        signer: TxSigner::from_hex(&Secret::new(KEY)).unwrap(),
        metrics: "test_txmgr_",
    };
    let error = super::manager(parts).await.err().unwrap().to_string();
    assert!(
        error.starts_with("invalid config: NumConfirmations must not be 0"),
        "{error}"
    );
}
