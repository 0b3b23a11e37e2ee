//! A small chain for tests of methods: a stored genesis block and executed blocks above it, without
//! an executor.

use crate::{
    chain::{
        ChainError, Heads,
        abandoned::Abandoned,
        changes::{AccountChange, Changes, KeyName, StorageChange},
        pool::Pool,
        receipt::Receipt,
        rules::{ChainSpec, Eip1559Constants, Rules},
        store::{Identity, Store},
        trie,
        view::{ExecutedBlock, View},
    },
    rpc::{
        NAMESPACES, Reader, RpcContext, TxRoute,
        api::Api,
        frame::{Live, Session},
        memory::Allowance,
        operator::RequestSender,
    },
};
use alloy_consensus::{
    Header, SignableTransaction, TxEip1559, TxLegacy, transaction::SignerRecoverable,
};
use alloy_eips::{
    eip2718::Encodable2718,
    eip2930::{AccessList, AccessListItem},
};
use alloy_primitives::{
    Address, B256, Bytes, KECCAK256_EMPTY, Log, Signature, TxKind, U256, keccak256,
};
use op_alloy_consensus::OpTxEnvelope;
use parking_lot::Mutex;
use rand::{Rng, rngs::StdRng};
use serde_json::{Value, json};
use starling_proto::{
    fork::{Fork, ForkSchedule},
    l1info::{L1Origin, l1_info_tx},
    payload::{BlockId, Payload},
    system_config::SystemConfig,
};
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::watch;

pub const CHAIN_ID: u64 = 901;
pub const CONTRACT: Address = Address::repeat_byte(0xcc);
pub const RICH: Address = Address::repeat_byte(0xaa);
/// Balance of the account that the send tests use, in wei.
pub const FUNDS: U256 = U256::from_limbs([1_000_000_000_000, 0, 0, 0]);
const CODE: [u8; 3] = [0x60, 0x00, 0x00];

/// A chain held in memory above a stored genesis block.
pub struct Chain {
    _dir: tempfile::TempDir,
    pub store: Store,
    pub blocks: Vec<Arc<ExecutedBlock>>,
    pub view: Arc<Mutex<Arc<View>>>,
    /// Every block that was made, for lookups of blocks that are not canonical.
    pub made: Arc<Mutex<BTreeMap<B256, Abandoned>>>,
    heads: watch::Sender<Heads>,
    pub context: Arc<RpcContext>,
    pub api: Api,
    /// Gas limit of the next blocks.
    pub gas_limit: u64,
    forks: ForkSchedule,
}

fn account(nonce: u64, balance: u64, code_hash: B256) -> Option<AccountChange> {
    Some(AccountChange {
        nonce,
        balance: U256::from(balance),
        code_hash,
    })
}

/// The genesis state: the contract with a value in slot 1, and the accounts that tests send from.
fn genesis_state() -> Changes {
    let code = Bytes::from(CODE);
    let hash = keccak256(&code);
    let storage = StorageChange {
        wiped: false,
        slots: BTreeMap::from([(keccak256(B256::with_last_byte(1)), U256::from(0x38))]),
    };
    let [used, delegated] =
        [super::hostile::USED, super::hostile::DELEGATED].map(super::hostile::address);
    let accounts = [
        (RICH, account(7, 1_000_000, KECCAK256_EMPTY)),
        (CONTRACT, account(1, 0, hash)),
        (super::send::SENDER, account(0, FUNDS.to(), KECCAK256_EMPTY)),
        (used, account(5, FUNDS.to(), KECCAK256_EMPTY)),
        (delegated, account(0, FUNDS.to(), hash)),
    ];
    Changes {
        accounts: accounts
            .into_iter()
            .map(|(address, account)| (keccak256(address), account))
            .collect(),
        storages: BTreeMap::from([(keccak256(CONTRACT), storage)]),
        codes: BTreeMap::from([(hash, code)]),
        names: accounts
            .iter()
            .map(|(address, _)| KeyName::Address(*address))
            .chain([KeyName::Slot(U256::from(1))])
            .collect(),
    }
}

impl Chain {
    pub fn new(fork: Fork) -> Self {
        let forks = ForkSchedule::from_genesis(fork);
        let eip1559 = Eip1559Constants {
            elasticity: 6,
            denominator: 50,
            denominator_canyon: 250,
        };
        Self::with_rules(
            Rules::Optimism {
                forks: forks.clone(),
                eip1559,
            },
            forks,
        )
    }

    fn with_rules(rules: Rules, forks: ForkSchedule) -> Self {
        let update = trie::genesis(&genesis_state()).unwrap();
        let header = Header {
            state_root: update.state_root,
            timestamp: 1000,
            gas_limit: 30_000_000,
            base_fee_per_gas: Some(1000),
            ..Default::default()
        };
        let genesis = Payload::sealed(header, vec![]);
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity {
            chain_id: CHAIN_ID,
            genesis_hash: genesis.hash,
        };
        let store =
            Store::create(dir.path(), 8 << 20, identity, &genesis, &update.overlay).unwrap();
        let view = Arc::new(View::new(store.snapshot().unwrap(), vec![], None, None).unwrap());
        let view = Arc::new(Mutex::new(view));
        let heads = watch::Sender::new(Heads {
            head: genesis.id(),
            ..Default::default()
        });
        let spec = ChainSpec {
            chain_id: CHAIN_ID,
            genesis_hash: genesis.hash,
            genesis_time: 1000,
            rules,
        };
        let made = Arc::<Mutex<BTreeMap<_, _>>>::default();
        let (newest, found) = (view.clone(), made.clone());
        let reader = Reader {
            pool: Arc::new(Pool::new(&spec)),
            spec: Arc::new(spec),
            heads: heads.subscribe(),
            view: Arc::new(move || newest.lock().clone()),
            abandoned: Arc::new(move |hash: B256| Ok(found.lock().get(&hash).cloned())),
            rejected: Arc::new(Vec::new),
            config: Arc::new(|| Ok(Value::Null)),
            set_head: Arc::new(|_| Box::pin(async { Err(ChainError::Stopped) })),
        };
        let context = RpcContext::new(reader, TxRoute::Pool);
        let mut chain = Self {
            _dir: dir,
            store,
            blocks: vec![],
            view,
            made,
            heads,
            context: Arc::new(context),
            api: Api::default(),
            gas_limit: 30_000_000,
            forks,
        };
        chain.bind();
        chain
    }

    /// Makes the table of methods for the present context.
    fn bind(&mut self) {
        self.serve(&["eth", "net", "opp2p", "txpool", "web3", "unheard-of"]);
    }

    /// Makes a table with the methods of these namespaces.
    pub fn serve(&mut self, names: &[&str]) {
        let names: Vec<String> = names.iter().copied().map(String::from).collect();
        self.api = Api::new(&names, &NAMESPACES, &self.context, "--http.api");
    }

    /// The same chain with a changed context.
    pub fn with(mut self, change: impl FnOnce(&mut RpcContext)) -> Self {
        self.api = Api::default();
        change(Arc::get_mut(&mut self.context).expect("nothing else holds it"));
        self.bind();
        self
    }

    pub fn with_route(self, route: TxRoute) -> Self {
        self.with(|context| context.route = route)
    }

    pub fn head(&self) -> BlockId {
        self.view.lock().head()
    }

    /// A block on `parent` with the L1 attributes and these transactions, each with its logs.
    pub fn block(
        &self,
        parent: &Arc<View>,
        transactions: &[(OpTxEnvelope, Vec<Log>)],
        extra: &str,
    ) -> Arc<ExecutedBlock> {
        let time = parent.header().timestamp + 2;
        let mut all = vec![(l1_attributes(&self.forks, time), vec![])];
        all.extend_from_slice(transactions);
        let active = |fork| self.forks.is_active(fork, time);
        let mut receipts = Vec::new();
        let (mut raw, mut senders) = (Vec::new(), Vec::new());
        for (n, (tx, logs)) in all.iter().enumerate() {
            senders.push(tx.recover_signer().unwrap());
            raw.push(Bytes::from(tx.encoded_2718()));
            receipts.push(Receipt {
                tx_type: alloy_consensus::Typed2718::ty(tx),
                success: true,
                cumulative_gas_used: 50_000 * (n as u64 + 1),
                logs: logs.clone(),
                deposit_nonce: (tx.is_deposit() && active(Fork::Regolith)).then_some(40 + n as u64),
                deposit_version: (tx.is_deposit() && active(Fork::Canyon)).then_some(1),
                post_state: None,
            });
        }
        let changes = Changes::default();
        let update = parent.state().update(&changes).unwrap();
        let header = Header {
            parent_hash: parent.head().hash,
            number: parent.head().number + 1,
            timestamp: time,
            state_root: update.state_root,
            gas_limit: self.gas_limit,
            gas_used: 50_000 * all.len() as u64,
            base_fee_per_gas: Some(1000),
            extra_data: Bytes::copy_from_slice(extra.as_bytes()),
            logs_bloom: all.iter().flat_map(|(_, logs)| logs).collect(),
            withdrawals_root: active(Fork::Canyon).then_some(alloy_trie::EMPTY_ROOT_HASH),
            blob_gas_used: active(Fork::Ecotone).then_some(0),
            excess_blob_gas: active(Fork::Ecotone).then_some(0),
            parent_beacon_block_root: active(Fork::Ecotone).then_some(B256::ZERO),
            requests_hash: active(Fork::Isthmus)
                .then_some(alloy_eips::eip7685::EMPTY_REQUESTS_HASH),
            ..Default::default()
        };
        let (payload, receipts) = (Arc::new(Payload::sealed(header, raw)), Arc::new(receipts));
        let made = Abandoned {
            payload: payload.clone(),
            receipts: Some(receipts.clone()),
        };
        self.made.lock().insert(payload.hash, made);
        Arc::new(ExecutedBlock::new(
            payload,
            senders,
            receipts,
            Arc::new(update.overlay),
        ))
    }

    /// Adds one block to the chain.
    pub fn add(&mut self, transactions: &[(OpTxEnvelope, Vec<Log>)]) -> Arc<ExecutedBlock> {
        let parent = self.view.lock().clone();
        let block = self.block(&parent, transactions, "");
        self.blocks.push(block.clone());
        self.publish();
        block
    }

    /// Stores some blocks that are only in memory, and drops some stored blocks from memory.
    pub fn store_some(&mut self, all: &[Arc<ExecutedBlock>], rng: &mut StdRng) {
        let stored = self.store.head().number as usize;
        let count = rng.random_range(0..=all.len() - stored);
        let blocks = &all[stored..stored + count];
        self.store.commit(blocks, None, None).unwrap();
        let kept = rng.random_range(0..4).min(stored + count);
        self.blocks = all[stored + count - kept..].to_vec();
        self.publish();
    }

    /// Unwinds some stored blocks, and drops all blocks above the new stored head.
    pub fn unwind_some(&mut self, all: &mut Vec<Arc<ExecutedBlock>>, rng: &mut StdRng) {
        let stored = self.store.head().number;
        for _ in 0..rng.random_range(0..6).min(stored) {
            self.store.unwind_one().unwrap();
        }
        all.truncate(self.store.head().number as usize);
        self.blocks.clear();
        self.publish();
    }

    pub fn publish(&self) {
        let view = View::new(
            self.store.snapshot().unwrap(),
            self.blocks.clone(),
            None,
            None,
        )
        .unwrap();
        let head = view.head();
        *self.view.lock() = Arc::new(view);
        self.heads.send_modify(|heads| heads.head = head);
    }

    pub async fn ask(&self, method: &str, params: Value) -> Value {
        ask_of(&self.api, method, params).await
    }

    pub async fn result(&self, method: &str, params: Value) -> Value {
        let response = self.ask(method, params).await;
        response
            .get("result")
            .unwrap_or_else(|| panic!("{method}: {response}"))
            .clone()
    }

    pub async fn error(&self, method: &str, params: Value) -> (i64, String) {
        let response = self.ask(method, params).await;
        let error = response
            .get("error")
            .unwrap_or_else(|| panic!("{method}: {response}"));
        (
            error["code"].as_i64().unwrap(),
            error["message"].as_str().unwrap().to_owned(),
        )
    }

    /// Checks that a call fails with code -32000 and a message that begins with `start`.
    pub async fn fails(&self, method: &str, params: Value, start: &str) {
        let (code, message) = self.error(method, params).await;
        assert!(
            code == -32000 && message.starts_with(start),
            "{method}: {code} {message}"
        );
    }
}

/// The response of `api` to a request.
pub async fn ask_of(api: &Api, method: &str, params: Value) -> Value {
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let live = Live::default();
    let allowance = Allowance::new(1000, 25_000_000, 128 << 20, 256 << 20);
    let session = Session {
        api,
        allowance: &allowance,
        deadline: None,
        subscriptions: Some(&live),
        chunked: false,
        metrics: None,
        sender: &RequestSender::default(),
    };
    let response = session.respond(request.to_string().as_bytes()).await;
    serde_json::from_str(&response.text.unwrap()).unwrap()
}

fn l1_attributes(forks: &ForkSchedule, time: u64) -> OpTxEnvelope {
    let scalar = if forks.is_active(Fork::Ecotone, time) {
        // Version 1 of the scalars: that of the blob base fee, and that of the base fee.
        let mut scalar = [0; 32];
        scalar[0] = 1;
        scalar[24..28].copy_from_slice(&810_949u32.to_be_bytes());
        scalar[28..].copy_from_slice(&1368u32.to_be_bytes());
        B256::from(scalar)
    } else {
        B256::from(U256::from(684_000))
    };
    let config = SystemConfig {
        batcher_addr: Address::repeat_byte(0xba),
        overhead: B256::from(U256::from(188)),
        scalar,
        operator_fee_scalar: 3,
        operator_fee_constant: 5,
        ..Default::default()
    };
    let origin = L1Origin {
        hash: B256::repeat_byte(9),
        number: 77,
        time,
        base_fee: 2_000_000_000,
        blob_base_fee: 7,
    };
    l1_info_tx(forks, &config, &origin, 0, time, time - 1)
        .unwrap()
        .into()
}

/// A fixed signature, which recovers to an arbitrary address.
pub fn signature() -> Signature {
    Signature::new(U256::from(0x1234), U256::from(0x5678), true)
}

pub fn legacy(nonce: u64) -> OpTxEnvelope {
    let to = TxKind::Call(RICH);
    TxLegacy {
        chain_id: Some(CHAIN_ID),
        nonce,
        gas_price: 2000,
        gas_limit: 21_000,
        to,
        ..Default::default()
    }
    .into_signed(signature())
    .into()
}

pub fn dynamic() -> OpTxEnvelope {
    let access_list = AccessList(vec![AccessListItem {
        address: CONTRACT,
        storage_keys: vec![B256::ZERO],
    }]);
    TxEip1559 {
        chain_id: CHAIN_ID,
        nonce: 3,
        gas_limit: 100_000,
        max_fee_per_gas: 5000,
        max_priority_fee_per_gas: 100,
        to: TxKind::Create,
        value: U256::from(5),
        access_list,
        input: Bytes::from_static(&[1, 2, 3]),
    }
    .into_signed(signature())
    .into()
}
