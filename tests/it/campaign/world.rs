//! A chain in this process that grows by payments, contract creations and storage writes, and that
//! switches branches.

use crate::net::{Account, l1_attributes};
use alloy_consensus::Header;
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B64, B256, Bytes, TxKind, U256, hex, keccak256};
use alloy_rpc_types_engine::PayloadAttributes;
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use rand::{Rng, rngs::StdRng};
use serde_json::{Value, json};
use starling::chain::{self, Chain, Options, Threads, genesis, store::IndexWindow, view::View};
use starling_proto::{fork::Fork, payload::Payload};
use std::{path::Path, sync::Arc, time::Duration};
use tempfile::TempDir;

const CHAIN: u64 = 901;

/// Code of a contract that stores the second word of its input in the slot of the first word and
/// logs the first word as a topic. Without input the contract destroys itself.
const CREATE: [u8; 32] =
    hex!("76 36600657 33 ff 5b 602035600035 55 60003560006000 a1 00 600052 6017 6009 f3");

fn account() -> Account {
    let key = B256::with_last_byte(7);
    let secret = secp256k1::SecretKey::from_slice(key.as_slice()).expect("a key");
    Account {
        address: starling_proto::sign::address(&secret),
        key,
    }
}

/// The `config` object of a genesis file: an OP chain with every fork through Jovian.
pub fn config(chain_id: u64) -> Value {
    let mut config = json!({
        "chainId": chain_id,
        "londonBlock": 0,
        "optimism": { "eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250 },
    });
    for fork in &Fork::ALL[1..Fork::Karst as usize] {
        config[format!("{}Time", fork.name())] = 0.into();
    }
    config
}

/// Makes a data directory with the genesis block.
pub fn datadir() -> TempDir {
    let file = json!({
        "config": config(CHAIN),
        "timestamp": 1_700_000_000,
        "gasLimit": 30_000_000,
        "difficulty": "0",
        "baseFeePerGas": "0x3e8",
        "extraData": "0x01000000fa000000060000000000000000",
        "alloc": { account().address.to_string(): { "balance": "0x56bc75e2d63100000" } },
    });
    let dir = tempfile::tempdir().expect("a folder");
    chain::init(
        dir.path(),
        &genesis::parse(&file.to_string()).expect("a genesis"),
    )
    .expect("an empty folder");
    dir
}

pub struct World {
    chain: Chain,
    threads: Option<Threads>,
    runtime: tokio::runtime::Runtime,
}

impl World {
    pub fn open(dir: &Path, window: Option<u64>) -> Self {
        let options = Options {
            datadir: dir.into(),
            cache: 8 << 20,
            commit_interval: Duration::from_millis(20),
        };
        let (chain, threads) = Chain::open(&options).expect("a chain");
        chain.keep_states(window);
        chain.keep_logs(IndexWindow::All);
        chain.keep_addresses(true);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .expect("a runtime");
        Self {
            chain,
            threads: Some(threads),
            runtime,
        }
    }

    /// Appends `blocks` blocks to the head.
    pub fn extend(&self, rng: &mut StdRng, blocks: usize) {
        for _ in 0..blocks {
            self.make_head(self.build(self.chain.view().head().hash, rng).hash);
        }
        // Wait until the blocks are stored, not only executed.
        crate::net::wait("the blocks to be stored", Duration::from_secs(60), || {
            let view = self.chain.view();
            (view.stored() == view.head()).then_some(())
        });
    }

    /// Takes `steps` random steps, each of which extends the chain or switches branches, and prints
    /// them.
    pub fn run(&self, rng: &mut StdRng, steps: usize) {
        for _ in 0..steps {
            let view = self.chain.view();
            println!("stored {}", view.stored().number);
            let head = view.head();
            match rng.random_range(0..13) {
                0 if head.number > 3 => {
                    let fork = head.number - rng.random_range(1..=head.number.min(30) - 1);
                    self.branch_off(&view, fork, rng);
                }
                1 if head.number > 3 => self.rewind(&view, head.number - rng.random_range(1..4)),
                2 => self.sign(head.hash, rng),
                3..8 => self.import(head.hash, rng),
                _ => self.make_head(self.build(head.hash, rng).hash),
            }
        }
    }

    fn make_head(&self, hash: B256) {
        self.runtime
            .block_on(self.chain.forkchoice(hash, None, None))
            .expect("it can be the head");
    }

    /// Builds another branch from height `fork`. A driver makes each of its blocks the head.
    fn branch_off(&self, view: &View, fork: u64, rng: &mut StdRng) {
        println!("reorg {fork}");
        let mut at = view.hash_of(fork).expect("a read").expect("a block");
        for _ in 0..rng.random_range(1..5) {
            at = self.build(at, rng).hash;
            self.make_head(at);
        }
    }

    /// Sets the head back to the block at height `fork` of the chain.
    fn rewind(&self, view: &View, fork: u64) {
        println!("reorg {fork}");
        self.make_head(view.hash_of(fork).expect("a read").expect("a block"));
    }

    /// Builds a block that is logged to be signed, as by a sequencer: from then on peers may have
    /// it.
    fn sign(&self, parent: B256, rng: &mut StdRng) {
        let block = self.build(parent, rng);
        let origin = B256::from(rng.random::<[u8; 32]>());
        self.runtime
            .block_on(self.chain.log_before_sign(block.clone(), origin))
            .expect("it may be signed");
        println!(
            "signed {} {} {} {origin}",
            block.hash,
            block.number(),
            block.parent_hash()
        );
        self.make_head(block.hash);
    }

    /// Imports blocks as from a file, which are not logged.
    fn import(&self, parent: B256, rng: &mut StdRng) {
        let mut payloads = vec![];
        let mut at = parent;
        for _ in 0..rng.random_range(1..10) {
            payloads.push(self.build(at, rng));
            at = payloads[payloads.len() - 1].hash;
        }
        let imported = self
            .runtime
            .block_on(async { self.chain.import(payloads, Arc::default()).await?.await });
        let imported = imported.expect("the chain runs");
        assert_eq!(imported.refused, None);
    }

    /// Checks that a block that was signed for this height, parent and origin is still kept. The
    /// error says what is missing.
    pub fn keeps(&self, hash: B256, number: u64, parent: B256, origin: B256) -> Result<(), String> {
        let block = self
            .chain
            .payload(hash)
            .map_err(|error| error.to_string())?;
        let stored = self
            .chain
            .view()
            .hash_of(number)
            .map_err(|error| error.to_string())?;
        if block.is_none() && stored != Some(hash) {
            return Err(format!("block {number}, {hash}, is gone"));
        }
        let signed = self
            .chain
            .guards(number, parent)
            .map_err(|error| error.to_string())?;
        if signed
            .iter()
            .all(|guard| (guard.l1_origin, guard.hash) != (origin, hash))
        {
            return Err(format!(
                "block {number}, {hash}, was signed for its place, and the payload log has {signed:?}"
            ));
        }
        // Another block for the same height, parent and origin must be refused.
        if let Some(block) = block {
            let header = Header {
                mix_hash: !block.header.mix_hash,
                ..block.header.clone()
            };
            let other = Arc::new(Payload::sealed(header, block.transactions.clone()));
            if self
                .runtime
                .block_on(self.chain.log_before_sign(other, origin))
                .is_ok()
            {
                return Err(format!(
                    "another block can be signed in place of {number}, {hash}"
                ));
            }
        }
        Ok(())
    }

    /// Builds a block on a known parent. The block is executed but not made the head.
    fn build(&self, parent: B256, rng: &mut StdRng) -> Arc<Payload> {
        self.runtime.block_on(async {
            // Read the nonce from the parent's state: the builder refuses transactions that do not
            // fit that state.
            let state = self
                .chain
                .view_of(parent)
                .await
                .expect("it is known")
                .state();
            let next = state
                .account(account().address)
                .expect("a read")
                .map_or(0, |account| account.nonce);
            let attributes = OpPayloadAttributes {
                payload_attributes: PayloadAttributes {
                    timestamp: state.header().timestamp + 2,
                    prev_randao: rng.random::<[u8; 32]>().into(),
                    suggested_fee_recipient: Address::repeat_byte(0xfe),
                    withdrawals: Some(vec![]),
                    parent_beacon_block_root: Some(B256::ZERO),
                    ..Default::default()
                },
                transactions: Some(transactions(next, rng)),
                no_tx_pool: Some(true),
                gas_limit: Some(30_000_000),
                eip_1559_params: Some(B64::ZERO),
                min_base_fee: Some(0),
            };
            let id = self
                .chain
                .start(parent, attributes)
                .await
                .expect("a build begins");
            self.chain.seal(id).await.expect("a block").payload.clone()
        })
    }
}

/// The L1 attributes, and up to three transactions of the account, starting at nonce `next`. The
/// account's first transactions create contracts.
fn transactions(next: u64, rng: &mut StdRng) -> Vec<Bytes> {
    let sender = account();
    let deposit = TxDeposit {
        source_hash: rng.random::<[u8; 32]>().into(),
        from: Address::repeat_byte(9),
        to: TxKind::Call(Address::repeat_byte(9)),
        gas_limit: 50_000,
        input: l1_attributes(),
        ..Default::default()
    };
    let mut transactions = vec![OpTxEnvelope::from(deposit).encoded_2718().into()];
    for nonce in next..next + rng.random_range(0..4) {
        let contract = sender.address.create(rng.random_range(0..4));
        let (to, input) = match if nonce < 4 { 1 } else { rng.random_range(0..8) } {
            0 => (
                TxKind::Call(Address::from_word(keccak256(nonce.to_be_bytes()))),
                Bytes::new(),
            ),
            1 => (TxKind::Create, CREATE.into()),
            2 => (TxKind::Call(contract), Bytes::new()),
            kind => {
                let value = if kind == 3 {
                    0
                } else {
                    rng.random_range(0..1000u64)
                };
                let words = [rng.random_range(0..40u64), value]
                    .map(|word| U256::from(word).to_be_bytes::<32>());
                (TxKind::Call(contract), words.concat().into())
            }
        };
        let value = U256::from(u8::from(input.is_empty()));
        transactions.push(sender.sign(CHAIN, nonce, to, value, input, 200_000));
    }
    transactions
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.stop().expect("it stores what it has");
        }
    }
}
