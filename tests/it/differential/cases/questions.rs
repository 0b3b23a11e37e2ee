//! Requests about state, blocks, transactions, logs, calls and fees; and malformed requests.

use super::*;

impl Generator {
    /// A random request about the chain after these blocks.
    pub fn question(&mut self, blocks: &[Block]) -> Case {
        let (method, params) = match self.below(56) {
            0 => self.constant(),
            1..4 => ("eth_getBalance", json!([self.anybody(), self.tag(blocks)])),
            4..6 => (
                "eth_getTransactionCount",
                json!([self.anybody(), self.tag(blocks)]),
            ),
            6 => ("eth_getCode", json!([self.anybody(), self.tag(blocks)])),
            7 | 8 => (
                "eth_getStorageAt",
                json!([self.anybody(), self.slot(), self.tag(blocks)]),
            ),
            9 => (
                "eth_getProof",
                json!([self.anybody(), [self.topic()], "latest"]),
            ),
            10..13 => (
                "eth_getTransactionReceipt",
                json!([self.transaction_hash(blocks)]),
            ),
            13 | 14 => (
                "eth_getTransactionByHash",
                json!([self.transaction_hash(blocks)]),
            ),
            15 => (
                "eth_getTransactionByBlockNumberAndIndex",
                json!([self.number(blocks), self.index()]),
            ),
            16 => (
                "eth_getTransactionByBlockHashAndIndex",
                json!([self.block_hash(blocks), self.index()]),
            ),
            17 | 18 => (
                "eth_getBlockByNumber",
                json!([self.number(blocks), self.rng.random::<bool>()]),
            ),
            19 => (
                "eth_getBlockByHash",
                json!([self.block_hash(blocks), self.rng.random::<bool>()]),
            ),
            20 => ("eth_getBlockReceipts", json!([self.number(blocks)])),
            21 => self.counts(blocks),
            22..26 => ("eth_getLogs", json!([self.filter(blocks)])),
            26..33 => ("eth_call", self.call(blocks, true)),
            33..36 | 43..46 => ("eth_estimateGas", self.call(blocks, false)),
            36 | 37 => ("eth_createAccessList", self.plain_call()),
            38 | 42 | 49 => self.fee_history(blocks),
            39 => ("eth_getRawTransactionByHash", json!([self.sent_hash()])),
            40 => ("web3_sha3", json!([hex::encode_prefixed(self.bytes(40))])),
            41 | 46..49 => self.filters(blocks),
            50..54 => self.rare(blocks),
            _ => self.malformed(),
        };
        Case::Ask(method, params)
    }

    fn constant(&mut self) -> (&'static str, Value) {
        let methods = [
            "eth_blockNumber",
            "eth_chainId",
            "net_version",
            "net_listening",
            "net_peerCount",
            "web3_clientVersion",
            "eth_syncing",
            "eth_accounts",
            "eth_gasPrice",
            "eth_maxPriorityFeePerGas",
            "eth_blobBaseFee",
            "txpool_status",
        ];
        (self.pick(&methods), json!([]))
    }

    pub(super) fn number(&mut self, blocks: &[Block]) -> Value {
        match self.below(10) {
            0 => json!("latest"),
            1 => json!("earliest"),
            2 => json!(self.pick(&["safe", "finalized"])),
            3 => json!(format!("{:#x}", blocks.len() as u64 + self.below(5))),
            _ => json!(format!("{:#x}", self.below(blocks.len() as u64))),
        }
    }

    pub(super) fn tag(&mut self, blocks: &[Block]) -> Value {
        match self.below(8) {
            0 | 1 => json!("latest"),
            2 => json!("pending"),
            3 => json!({ "blockHash": self.block_hash(blocks) }),
            4 => json!({ "blockNumber": format!("{:#x}", self.below(blocks.len() as u64)) }),
            _ => self.number(blocks),
        }
    }

    pub(super) fn block_hash(&mut self, blocks: &[Block]) -> Value {
        if self.one_in(12) {
            json!(B256::repeat_byte(0xee))
        } else {
            json!(format!("@block:{}", self.below(blocks.len() as u64)))
        }
    }

    pub(super) fn transaction_hash(&mut self, blocks: &[Block]) -> Value {
        let all: Vec<B256> = blocks
            .iter()
            .flat_map(|block| block.transactions.iter().copied())
            .collect();
        if self.one_in(15) || all.is_empty() {
            json!(B256::repeat_byte(0xdd))
        } else {
            json!(self.pick(&all))
        }
    }

    /// The hash of a sent transaction; never of a deposit, since anvil crashes when its raw bytes
    /// are requested.
    fn sent_hash(&mut self) -> B256 {
        let sent = self.pick(&self.sent.clone());
        keccak256(sent)
    }

    fn index(&mut self) -> Value {
        json!(format!("{:#x}", self.below(12)))
    }

    fn slot(&mut self) -> Value {
        match self.below(4) {
            0 => json!(format!("{:#x}", self.below(4))),
            1 => json!(B256::from(U256::from(self.below(9)))),
            _ => json!(self.topic()),
        }
    }

    fn counts(&mut self, blocks: &[Block]) -> (&'static str, Value) {
        match self.below(4) {
            0 => (
                "eth_getBlockTransactionCountByNumber",
                json!([self.number(blocks)]),
            ),
            1 => (
                "eth_getBlockTransactionCountByHash",
                json!([self.block_hash(blocks)]),
            ),
            2 => (
                "eth_getUncleCountByBlockNumber",
                json!([self.number(blocks)]),
            ),
            _ => (
                "eth_getUncleCountByBlockHash",
                json!([self.block_hash(blocks)]),
            ),
        }
    }

    fn filter(&mut self, blocks: &[Block]) -> Value {
        let mut filter = json!({});
        match self.below(6) {
            0 => filter["blockHash"] = self.block_hash(blocks),
            1 => filter["fromBlock"] = json!("earliest"),
            2 => {
                filter["fromBlock"] = self.number(blocks);
                filter["toBlock"] = self.number(blocks);
            }
            3 => {}
            _ => {
                let from = self.below(blocks.len() as u64);
                filter["fromBlock"] = json!(format!("{from:#x}"));
                filter["toBlock"] = json!("latest");
            }
        }
        match self.below(4) {
            0 => filter["address"] = json!(self.pick(&[LOG0, LOG2, LOG4])),
            1 => filter["address"] = json!([LOG2, self.anybody()]),
            2 if self.token.is_some() => filter["address"] = json!(self.token),
            _ => {}
        }
        if self.one_in(2) {
            let count = self.below(5);
            let topics: Vec<Value> = (0..count)
                .map(|_| match self.below(4) {
                    0 => Value::Null,
                    1 => json!([self.topic(), self.topic()]),
                    2 => json!([]),
                    _ => json!(self.topic()),
                })
                .collect();
            filter["topics"] = json!(topics);
        }
        filter
    }

    fn plain_call(&mut self) -> Value {
        let (to, data) = self.message();
        let from = self.users[self.rng.random_range(0..10)].address;
        json!([{ "from": from, "to": to, "data": hex::encode_prefixed(data) }, "latest"])
    }

    fn call(&mut self, blocks: &[Block], anywhere: bool) -> Value {
        let (to, data) = self.message();
        let mut object = json!({ "to": to });
        if self.one_in(12) {
            object["to"] = Value::Null;
            object[self.data_name()] = json!(hex::encode_prefixed(self.creation()));
        } else if !data.is_empty() {
            object[self.data_name()] = json!(hex::encode_prefixed(data));
        }
        if !self.one_in(8) {
            object["from"] = json!(self.users[self.rng.random_range(0..10)].address);
        }
        if self.one_in(12) {
            object["from"] = json!(self.anybody());
        }
        if self.one_in(4) {
            object["value"] = json!(format!("{:#x}", self.below(200)));
        }
        if self.one_in(25) {
            object["value"] = json!(format!("{:#x}", U256::from(10).pow(U256::from(23))));
        }
        if self.one_in(4) {
            object["gas"] = json!(format!(
                "{:#x}",
                self.pick(&[
                    5_000u64,
                    5_000,
                    21_000,
                    22_000,
                    60_000,
                    1_000_000,
                    40_000_000,
                    100_000_000
                ])
            ));
        }
        self.add_fees_or_more(&mut object);
        if !anywhere {
            return if self.one_in(2) {
                json!([object])
            } else {
                json!([object, "latest"])
            };
        }
        let tag = self.tag(blocks);
        if self.one_in(5) {
            let overrides = self.overrides();
            return json!([object, tag, overrides]);
        }
        json!([object, tag])
    }

    /// Adds fees, an access list or a nonce to some calls.
    fn add_fees_or_more(&mut self, object: &mut Value) {
        match self.below(16) {
            0 => object["gasPrice"] = json!(format!("{:#x}", 2 * GWEI)),
            1 => object["maxFeePerGas"] = json!(format!("{:#x}", 2 * GWEI)),
            2 => {
                object["maxFeePerGas"] = json!("0x1");
                object["maxPriorityFeePerGas"] = json!(self.pick(&["0x0", "0x2"]));
            }
            3 => {
                object["gasPrice"] = json!("0x77359400");
                object["maxFeePerGas"] = json!("0x77359400");
            }
            4 => object["gasPrice"] = json!("0x1"),
            5 => object["accessList"] = json!(self.access_list()),
            6 => object["nonce"] = json!("0x7"),
            _ => {}
        }
    }

    fn data_name(&mut self) -> &'static str {
        if self.one_in(2) { "data" } else { "input" }
    }

    fn overrides(&mut self) -> Value {
        let who = self.anybody();
        let change = match self.below(6) {
            0 => json!({ "balance": "0xde0b6b3a7640000" }),
            1 => {
                json!({ "code": "0x5f545f5260205ff3", "stateDiff": { B256::ZERO.to_string(): self.word() } })
            }
            2 => json!({ "nonce": "0x9" }),
            3 => json!({ "state": { B256::ZERO.to_string(): self.word() } }),
            4 => json!({ "state": {}, "stateDiff": {} }),
            _ => {
                return json!({ STORE.to_string(): { "stateDiff": { B256::ZERO.to_string(): self.word() } } });
            }
        };
        json!({ who.to_string(): change })
    }

    fn fee_history(&mut self, blocks: &[Block]) -> (&'static str, Value) {
        let count = json!(format!("{:#x}", self.below(6)));
        let percentiles = self.pick(&[
            json!([]),
            json!([10, 50.5, 100]),
            json!([25, 50, 75]),
            json!([50, 10]),
            json!([101]),
            Value::Null,
        ]);
        let mut params = json!([count, self.number(blocks)]);
        if !percentiles.is_null() {
            params.as_array_mut().expect("a list").push(percentiles);
        }
        ("eth_feeHistory", params)
    }

    fn filters(&mut self, blocks: &[Block]) -> (&'static str, Value) {
        let some = json!([format!(
            "@filter:{}",
            self.below(self.filters.max(1) as u64)
        )]);
        match self.below(8) {
            0..2 => {
                self.filters += 1;
                ("eth_newFilter", json!([self.filter(blocks)]))
            }
            2 => {
                self.filters += 1;
                ("eth_newBlockFilter", json!([]))
            }
            3..6 => ("eth_getFilterChanges", some),
            6 => ("eth_getFilterLogs", some),
            _ => ("eth_uninstallFilter", some),
        }
    }

    /// Cases that random choice alone would produce too seldom.
    fn rare(&mut self, blocks: &[Block]) -> (&'static str, Value) {
        let from = self.users[9].address;
        let stranger = Address::repeat_byte(0x99);
        let beyond = format!("{:#x}", blocks.len() + 3);
        match self.below(14) {
            n @ 0..4 => (
                "eth_estimateGas",
                rare_estimates(from, stranger)[n as usize].clone(),
            ),
            4 => (
                "eth_call",
                json!([{ "from": from, "to": ENVIRONMENT }, "pending"]),
            ),
            5 => (
                "eth_call",
                json!([{ "from": from, "to": ENVIRONMENT, "maxFeePerGas": "0x77359400" }, "latest"]),
            ),
            6 => (
                "eth_feeHistory",
                json!([
                    "0x8",
                    format!("{:#x}", blocks.len() - 1),
                    [5, 20, 35, 50, 65, 80, 95]
                ]),
            ),
            7 => (
                "eth_getProof",
                json!([self.pick(&[STORE, PROXY, stranger]), [B256::ZERO], "latest"]),
            ),
            8 => (
                "eth_createAccessList",
                json!([{ "from": from, "to": CREATE, "data": "0x6160015ff3" }, "latest"]),
            ),
            9 => {
                self.filters += 1;
                ("eth_newFilter", json!([{ "fromBlock": beyond }]))
            }
            10 => (
                self.pick(&["eth_gasPrice", "eth_maxPriorityFeePerGas"]),
                json!([]),
            ),
            11 => (
                self.pick(&["net_listening", "net_peerCount", "web3_clientVersion"]),
                json!([]),
            ),
            12 => ("eth_getBlockTransactionCountByNumber", json!([beyond])),
            _ => (
                "eth_call",
                json!([{ "to": STORE, "chainId": "0x2", "data": "0x11", "input": "0x11" }, "latest"]),
            ),
        }
    }

    fn malformed(&mut self) -> (&'static str, Value) {
        let all = [
            malformed_lookups(),
            malformed_logs_and_calls(),
            malformed_others(),
        ];
        self.pick(&all.concat())
    }
}

/// Gas estimates for a precompile, for a sender without ether, and with gas limits that are too
/// low.
fn rare_estimates(from: Address, stranger: Address) -> [Value; 4] {
    [
        json!([{ "from": from, "to": Address::with_last_byte(9) }]),
        json!([{ "from": stranger, "to": stranger, "value": "0x1" }]),
        json!([{ "from": from, "to": REVERT, "gas": "0x1388", "data": "0x1234" }]),
        json!([{ "from": from, "to": STORE, "gas": "0x1388" }]),
    ]
}

fn malformed_lookups() -> Vec<(&'static str, Value)> {
    vec![
        ("eth_getBalance", json!([])),
        ("eth_getBalance", json!(["0x12", "latest"])),
        ("eth_getBalance", json!(["12", "latest"])),
        ("eth_getBalance", json!([Address::ZERO, "newest"])),
        ("eth_getBalance", json!([Address::ZERO, "0x01"])),
        ("eth_getBalance", json!([Address::ZERO, "latest", 1])),
        ("eth_getBalance", json!([Address::ZERO])),
        ("eth_getBalance", json!([7, "latest"])),
        (
            "eth_getBalance",
            json!([Address::ZERO, { "blockHash": B256::ZERO, "blockNumber": "0x0" }]),
        ),
        ("eth_getBlockByNumber", json!(["latest"])),
        ("eth_getBlockByNumber", json!(["0x", true])),
        ("eth_getBlockByNumber", json!([1, true])),
        ("eth_getBlockByNumber", json!(["0x1", "yes"])),
        ("eth_getBlockByHash", json!(["0x1234", true])),
        ("eth_getTransactionReceipt", json!(["0x1234"])),
        ("eth_getTransactionReceipt", json!([])),
        ("eth_getTransactionByHash", json!([null])),
        ("eth_getStorageAt", json!([STORE, "0xzz", "latest"])),
        (
            "eth_getStorageAt",
            json!([STORE, hex::encode_prefixed([1; 33]), "latest"]),
        ),
        ("eth_getStorageAt", json!([STORE, "0x0"])),
    ]
}

fn malformed_logs_and_calls() -> Vec<(&'static str, Value)> {
    vec![
        ("eth_getLogs", json!([])),
        (
            "eth_getLogs",
            json!([{ "fromBlock": "0x2", "toBlock": "0x1" }]),
        ),
        (
            "eth_getLogs",
            json!([{ "blockHash": B256::ZERO, "fromBlock": "0x1" }]),
        ),
        ("eth_getLogs", json!([{ "address": "0x12" }])),
        ("eth_getLogs", json!([{ "topics": ["0x12"] }])),
        (
            "eth_getLogs",
            json!([{ "topics": [null, null, null, null, null] }]),
        ),
        ("eth_call", json!([])),
        ("eth_call", json!([{ "to": "0x12" }, "latest"])),
        (
            "eth_call",
            json!([{ "to": STORE, "data": "0x1" }, "latest"]),
        ),
        (
            "eth_call",
            json!([{ "to": STORE, "data": "0x11", "input": "0x22" }, "latest"]),
        ),
        (
            "eth_call",
            json!([{ "to": STORE, "value": "10" }, "latest"]),
        ),
        (
            "eth_call",
            json!([{ "to": STORE, "gas": "0x10000000000000000" }, "latest"]),
        ),
        (
            "eth_call",
            json!([{ "to": STORE, "chainId": "0x1" }, "latest"]),
        ),
    ]
}

fn malformed_others() -> Vec<(&'static str, Value)> {
    vec![
        ("eth_sendRawTransaction", json!(["0x"])),
        ("eth_sendRawTransaction", json!(["02"])),
        ("eth_sendRawTransaction", json!([])),
        ("eth_feeHistory", json!(["0x1"])),
        ("eth_getFilterChanges", json!(["0x7777777"])),
        ("eth_uninstallFilter", json!(["0x7777777"])),
        ("eth_nothing", json!([])),
        ("nothing", json!([])),
        ("eth_chainId", json!([1])),
        ("web3_sha3", json!(["0x1"])),
        (
            "eth_getTransactionByBlockNumberAndIndex",
            json!(["0x1", "1"]),
        ),
        ("eth_getProof", json!([STORE, "0x0", "latest"])),
    ]
}
