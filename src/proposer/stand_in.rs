//! Stand-ins for tests: an L1 with an oracle and a factory, and a rollup node. Both are HTTP
//! servers whose responses a test can set, including wrong ones.

use super::contracts;
use crate::{
    chain::blobs::TxSidecar,
    rollup::http_fake::{Canned, CannedServer},
    txmgr::sign::TxSigner,
};
use alloy_consensus::{
    EthereumTxEnvelope, Transaction, TxEip4844Variant, transaction::SignerRecoverable,
};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, B256, Bytes, U64, U256, keccak256};
use parking_lot::Mutex;
use serde_json::{Value, json};
use starling_proto::output::output_root;
use std::{collections::HashMap, sync::Arc};

type PoolTx = EthereumTxEnvelope<TxEip4844Variant<TxSidecar>>;

/// Address of the target contract, oracle or factory.
pub(super) const CONTRACT: Address = Address::repeat_byte(0xde);
pub(super) const KEY: &str = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";
/// L2 blocks between two outputs.
pub(super) const STEP: u64 = 10;
/// The bond of a game, in wei.
pub(super) const BOND: u64 = 80;

pub(super) fn signer() -> TxSigner {
    TxSigner::from_hex(&crate::secret::Secret::new(KEY)).unwrap()
}

/// A game in the factory's list.
#[derive(Clone, Copy, Debug)]
pub(super) struct FakeGame {
    pub game_type: u32,
    pub created: u64,
    pub creator: Address,
    pub claim: B256,
    /// Whether the game has the function `claimData`.
    pub has_claims: bool,
}

/// The state of the stand-in L1.
pub(super) struct FakeChain {
    pub head: u64,
    /// Outputs in the oracle: L2 block and root.
    pub outputs: Vec<(u64, B256)>,
    pub proposer: Address,
    pub games: Vec<FakeGame>,
    pub pool: Vec<PoolTx>,
    /// Number of transactions that another process has in the pool, with our account's nonces.
    pub foreign_pool: u64,
    pub nonce: u64,
    /// Responses to return instead of the true ones, by method or call selector.
    pub lies: HashMap<String, Value>,
    /// Receipts by transaction hash: block number and success.
    receipts: HashMap<B256, (u64, bool)>,
    /// Whether each `eth_blockNumber` request mines a block.
    pub mines: bool,
}

fn word(value: u64) -> B256 {
    U256::from(value).into()
}

fn concat(words: &[B256]) -> Vec<u8> {
    words.iter().flat_map(|word| word.0).collect()
}

pub(super) fn l1_hash(number: u64) -> B256 {
    keccak256(number.to_be_bytes())
}

impl FakeChain {
    pub fn new() -> Self {
        Self {
            head: 1_000,
            outputs: vec![],
            proposer: signer().address(),
            games: vec![],
            pool: vec![],
            foreign_pool: 0,
            nonce: 0,
            lies: HashMap::new(),
            receipts: HashMap::new(),
            mines: true,
        }
    }

    /// Timestamp of L1's head, in Unix seconds.
    pub fn time(&self) -> u64 {
        1_700_000_000 + 12 * self.head
    }

    /// Mines a block with all transactions of the pool.
    pub fn mine(&mut self) {
        self.head += 1;
        self.nonce += std::mem::take(&mut self.foreign_pool);
        for tx in std::mem::take(&mut self.pool) {
            self.nonce = self.nonce.max(tx.nonce() + 1);
            let success = self.execute(&tx);
            self.receipts.insert(*tx.tx_hash(), (self.head, success));
        }
    }

    fn execute(&mut self, tx: &PoolTx) -> bool {
        if tx.to() != Some(CONTRACT) {
            return true;
        }
        let from = tx.recover_signer().unwrap();
        let input = tx.input();
        let read = |index| contracts::read_word(&input[4..], index).unwrap();
        if input[..4] == contracts::propose_output(B256::ZERO, 0, B256::ZERO, 0)[..4] {
            let number = contracts::read_u64(&input[4..], 1).unwrap();
            let l1 = contracts::read_u64(&input[4..], 3).unwrap();
            let fits = number == self.next_block() && read(2) == l1_hash(l1) && l1 < self.head;
            if from == self.proposer && fits {
                self.outputs.push((number, read(0)));
                return true;
            }
            return false;
        }
        let (game_type, claim) = (read(0), read(1));
        let exists = self.games.iter().any(|game| game.claim == claim);
        if exists || tx.value() != U256::from(BOND) {
            return false;
        }
        self.games.push(FakeGame {
            game_type: U256::from_be_bytes(game_type.0).to(),
            created: self.time(),
            creator: from,
            claim,
            has_claims: true,
        });
        true
    }

    fn next_block(&self) -> u64 {
        STEP * (self.outputs.len() as u64 + 1)
    }

    /// Executes a call; `None` means that the call reverts.
    fn call(&self, to: Address, data: &[u8]) -> Option<Vec<u8>> {
        let is = |call: &Bytes| data[..4] == call[..4];
        let argument = || contracts::read_word(&data[4..], 0).unwrap();
        let index = || contracts::read_u64(&data[4..], 0).unwrap() as usize;
        let address = |index: usize| Address::with_last_byte(index as u8 + 1);
        if to != CONTRACT {
            let game = self.games.iter().enumerate();
            let (_, game) = game.into_iter().find(|(index, _)| address(*index) == to)?;
            let creator = game.creator.into_word();
            return if is(&contracts::root_claim_data()) && game.has_claims {
                let zero = B256::ZERO;
                Some(concat(&[zero, zero, creator, zero, game.claim, zero, zero]))
            } else if is(&contracts::game_creator()) {
                Some(concat(&[creator]))
            } else {
                None
            };
        }
        Some(if is(&contracts::version()) {
            let mut answer = concat(&[word(32), word(5)]);
            answer.extend(b"1.2.3");
            answer
        } else if is(&contracts::next_block_number()) {
            concat(&[word(self.next_block())])
        } else if is(&contracts::oracle_proposer()) {
            concat(&[self.proposer.into_word()])
        } else if is(&contracts::game_count()) {
            concat(&[word(self.games.len() as u64)])
        } else if is(&contracts::game_at_index(0)) {
            let game = self.games.get(index())?;
            let words = [
                word(game.game_type.into()),
                word(game.created),
                address(index()).into_word(),
            ];
            concat(&words)
        } else if is(&contracts::game_implementation(0)) {
            concat(&[Address::repeat_byte(0x99).into_word()])
        } else if is(&contracts::init_bond(0)) {
            concat(&[word(BOND)])
        } else if is(&contracts::games(0, B256::ZERO, &[])) {
            let claim = contracts::read_word(&data[4..], 1).unwrap();
            let found = self.games.iter().position(|game| game.claim == claim);
            let found = found.map_or(B256::ZERO, |index| address(index).into_word());
            concat(&[found, B256::ZERO])
        } else {
            // An old factory has no function `gameArgs`.
            let _ = argument();
            return None;
        })
    }

    fn result(&mut self, method: &str, params: &Value) -> Result<Value, String> {
        let hex = |number: u64| json!(U64::from(number));
        Ok(match method {
            "eth_chainId" => json!("0x384"),
            "eth_blockNumber" => hex(self.head),
            "eth_getBlockByNumber" => {
                let number = params[0].as_str().unwrap().parse::<U64>();
                let number = number.map_or(self.head, |number| number.to());
                json!({
                    "number": hex(number), "hash": l1_hash(number), "timestamp": hex(self.time()),
                    "baseFeePerGas": "0x3b9aca00", "transactions": [],
                })
            }
            "eth_maxPriorityFeePerGas" | "eth_blobBaseFee" => json!("0x1"),
            "eth_getBalance" => json!("0xde0b6b3a7640000"),
            "eth_getTransactionCount" if params[1] == "pending" => {
                let own = self.pool.iter().map(|tx| tx.nonce() + 1).max();
                hex(own.unwrap_or_default().max(self.nonce + self.foreign_pool))
            }
            "eth_getTransactionCount" => hex(self.nonce),
            "eth_getTransactionReceipt" => {
                let hash: B256 = params[0].as_str().unwrap().parse().unwrap();
                self.receipts.get(&hash).map_or(Value::Null, |(block, success)| {
                    json!({
                        "blockNumber": hex(*block), "blockHash": l1_hash(*block), "gasUsed": "0x5208",
                        "status": hex((*success).into()), "effectiveGasPrice": "0x3b9aca00",
                    })
                })
            }
            "eth_call" => {
                let data = &params[0];
                let bytes =
                    |value: &Value| value.as_str().unwrap_or("0x").parse::<Bytes>().unwrap();
                let input = bytes(&data["data"]);
                if input.len() < 4 {
                    return Ok(json!("0x"));
                }
                if let Some(lie) = self.lies.get(&hex::encode(&input[..4])) {
                    return Ok(lie.clone());
                }
                let to: Address = data["to"].as_str().unwrap().parse().unwrap();
                let answer = self.call(to, &input);
                json!(Bytes::from(answer.ok_or("execution reverted")?))
            }
            "eth_estimateGas" => json!("0x30d40"),
            "eth_sendRawTransaction" => {
                let raw: Bytes = params[0].as_str().unwrap().parse().unwrap();
                let tx = PoolTx::decode_2718_exact(&raw).unwrap();
                let hash = *tx.tx_hash();
                if tx.nonce() < self.nonce {
                    return Err("nonce too low".into());
                }
                self.pool.retain(|other| other.nonce() != tx.nonce());
                self.pool.push(tx);
                json!(hash)
            }
            other => panic!("{other}"),
        })
    }

    fn answer(&mut self, request: &Value) -> Value {
        let method = request["method"].as_str().unwrap();
        if self.mines && method == "eth_blockNumber" {
            // L1 advances with every poll of the transaction manager.
            self.mine();
        }
        let result = match self.lies.get(method) {
            Some(lie) => Ok(lie.clone()),
            None => self.result(method, &request["params"]),
        };
        let id = &request["id"];
        match result {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(message) => {
                json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32000, "message": message } })
            }
        }
    }
}

/// A running stand-in L1.
pub(super) struct FakeL1 {
    pub chain: Arc<Mutex<FakeChain>>,
    pub server: CannedServer,
}

impl FakeL1 {
    pub async fn start() -> Self {
        let chain = Arc::new(Mutex::new(FakeChain::new()));
        let served = chain.clone();
        let server = serve(move |request| served.lock().answer(request)).await;
        Self { chain, server }
    }

    pub fn lie(&self, call: &Bytes, answer: Value) {
        let selector = hex::encode(&call[..4]);
        self.chain.lock().lies.insert(selector, answer);
    }
}

/// Starts a JSON-RPC server with these responses; it also serves batches.
async fn serve(answer: impl Fn(&Value) -> Value + Send + Sync + 'static) -> CannedServer {
    CannedServer::start(move |request| {
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        Canned::ok(match body.as_array() {
            Some(calls) => calls.iter().map(&answer).collect(),
            None => answer(&body),
        })
    })
    .await
}

/// The state of the stand-in rollup node.
#[derive(Default)]
pub(super) struct FakeNode {
    pub current_l1: u64,
    pub finalized: u64,
    /// Whether outputs have a root that does not match their parts.
    pub is_lying: bool,
}

fn l2_ref(number: u64) -> Value {
    let origin = json!({ "hash": l1_hash(0), "number": 0 });
    json!({
        "hash": keccak256([number as u8, 2]), "number": number, "parentHash": B256::ZERO,
        "timestamp": 2 * number, "l1origin": origin, "sequenceNumber": 0,
    })
}

/// The output root at an L2 block.
pub(super) fn root_at(number: u64) -> B256 {
    output_root(word(number), word(7), keccak256([number as u8, 2]))
}

impl FakeNode {
    fn status(&self) -> Value {
        let l1 = json!({
            "hash": l1_hash(self.current_l1), "number": self.current_l1,
            "parentHash": B256::ZERO, "timestamp": 1,
        });
        let l2 = l2_ref(self.finalized);
        json!({
            "current_l1": l1, "current_l1_finalized": l1, "head_l1": l1, "safe_l1": l1,
            "finalized_l1": l1, "unsafe_l2": l2, "safe_l2": l2, "finalized_l2": l2,
            "pending_safe_l2": l2, "cross_unsafe_l2": l2, "local_safe_l2": l2,
        })
    }

    fn answer(&self, request: &Value) -> Value {
        let id = &request["id"];
        let result = match request["method"].as_str().unwrap() {
            "optimism_syncStatus" => self.status(),
            "optimism_outputAtBlock" => {
                let number = request["params"][0].as_str().unwrap();
                let number: u64 = number.parse::<U64>().unwrap().to();
                let root = if self.is_lying {
                    B256::repeat_byte(6)
                } else {
                    root_at(number)
                };
                json!({
                    "version": B256::ZERO, "outputRoot": root, "blockRef": l2_ref(number),
                    "withdrawalStorageRoot": word(7), "stateRoot": word(number),
                    "syncStatus": self.status(),
                })
            }
            other => panic!("{other}"),
        };
        json!({ "jsonrpc": "2.0", "id": id, "result": result })
    }

    pub async fn start(node: Arc<Mutex<Self>>) -> CannedServer {
        serve(move |request| node.lock().answer(request)).await
    }
}
