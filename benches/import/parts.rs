//! The parts of an import, each measured alone: sender recovery, bare op-revm over an in-memory
//! database, the roots of the same changes over rows in memory, and a commit of the same rows to a
//! bare database with the store's options.

use crate::{
    cache,
    support::{Alloc, Ground, Times, process},
};
use alloy_consensus::transaction::Recovered;
use alloy_evm::{Evm, EvmEnv, EvmFactory, FromTxWithEncoded};
use alloy_op_evm::{OpEvmFactory, OpTx};
use alloy_primitives::{Address, B256, Bytes, U256};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions};
use op_revm::OpSpecId;
use rayon::prelude::*;
use revm::{
    DatabaseCommit,
    bytecode::Bytecode,
    context::{BlockEnv, CfgEnv},
    context_interface::block::BlobExcessGasAndPrice,
    database::InMemoryDB,
    state::AccountInfo,
};
use serde_json::Value;
use starling::chain::{
    Chain,
    evm::ParentState,
    execute::{BlockExecution, Execution, recover},
    rules::ChainSpec,
    store,
    transaction::ChainTx,
    trie::{self, RowIter, StateRows},
    view::{ExecutedBlock, Overlay, ReadError, View},
};
use starling_proto::payload::Payload;
use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// State rows in memory, as a trie reads them.
#[derive(Default)]
struct Memory {
    rows: HashMap<Bytes, Bytes>,
    keys: BTreeSet<Bytes>,
}

impl Memory {
    fn apply(&mut self, overlay: &Overlay) {
        for (key, row) in &overlay.rows {
            match &row.after {
                Some(value) => {
                    if self.rows.insert(key.clone(), value.clone()).is_none() {
                        self.keys.insert(key.clone());
                    }
                }
                None => {
                    self.rows.remove(key);
                    self.keys.remove(key);
                }
            }
        }
    }
}

impl StateRows for Memory {
    fn row(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok(self.rows.get(key).cloned())
    }

    fn scan<'a>(&'a self, prefix: &[u8], from: &[u8]) -> Result<RowIter<'a>, ReadError> {
        let prefix = prefix.to_vec();
        let keys = self
            .keys
            .range(Bytes::copy_from_slice(from)..)
            .take_while(move |key| key.starts_with(&prefix));
        Ok(Box::new(
            keys.map(|key| Ok((key.clone(), self.rows[key].clone()))),
        ))
    }
}

/// An in-memory database of the EVM with the accounts of a genesis file.
pub fn database(alloc: &Alloc) -> InMemoryDB {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let number = |text: &str| text.parse::<U256>().unwrap_or_default();
    let mut db = InMemoryDB::default();
    for (address, account) in alloc {
        let address: Address = address.parse().expect("an address");
        let balance = number(&text(account.get("balance")));
        let nonce = number(&text(account.get("nonce"))).to();
        let mut info = AccountInfo {
            balance,
            nonce,
            ..Default::default()
        };
        if let Some(code) = account.get("code") {
            let code = Bytecode::new_raw(text(Some(code)).parse().expect("code"));
            info.code_hash = code.hash_slow();
            info.code = Some(code);
        }
        db.insert_account_info(address, info);
        for (slot, value) in account
            .get("storage")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            db.insert_account_storage(address, number(slot), number(&text(Some(value))))
                .expect("nothing can fail in memory");
        }
    }
    db
}

/// Measures wall time and processor time of a part.
struct Clock {
    threads: process::Threads,
    begun: Instant,
}

impl Clock {
    fn start() -> Self {
        let threads = process::Threads::now();
        Self {
            threads,
            begun: Instant::now(),
        }
    }

    fn stop(self, times: &mut Times, processor: &mut Duration) {
        times.push(self.begun.elapsed());
        *processor += process::Threads::now().since(&self.threads).foreground();
    }
}

/// The parts of an import, with the time of each part for every block.
pub struct Parts {
    spec: ChainSpec,
    evm_state: InMemoryDB,
    trie_state: Memory,
    disk: Database,
    spaces: HashMap<&'static str, Keyspace>,
    pub recovery: Times,
    pub evm: Times,
    pub roots: Times,
    pub commit: Times,
    /// Bytes of the database batches of all blocks.
    pub batch_bytes: u64,
    /// Processor time of all parts, excluding the database's own threads.
    pub processor: Duration,
}

impl Parts {
    /// `datadir` has the genesis block; the measurement changes its files.
    pub fn new(ground: &Ground, evm_state: InMemoryDB, datadir: &Path) -> Self {
        // Use the store's options. Each keyspace keeps the options that it was created with.
        let disk = Database::builder(datadir.join("chain"))
            .cache_size(cache() / 2)
            .worker_threads(1);
        let disk = disk
            .journal_compression(CompressionType::None)
            .open()
            .expect("the database opens");
        let open = |name: &'static str| {
            (
                name,
                disk.keyspace(name, KeyspaceCreateOptions::default)
                    .expect("a keyspace"),
            )
        };
        let spaces =
            HashMap::from(["state", "history", "blocks", "index", "code", "meta"].map(open));
        let mut trie_state = Memory::default();
        trie_state.apply(&ground.genesis.overlay);
        Self {
            spec: ground.genesis.spec.clone(),
            evm_state,
            trie_state,
            disk,
            spaces,
            recovery: Times::default(),
            evm: Times::default(),
            roots: Times::default(),
            commit: Times::default(),
            batch_bytes: 0,
            processor: Duration::ZERO,
        }
    }

    /// Resets the measurements.
    pub fn clear(&mut self) {
        (self.batch_bytes, self.processor) = (0, Duration::ZERO);
        for times in [
            &mut self.recovery,
            &mut self.evm,
            &mut self.roots,
            &mut self.commit,
        ] {
            *times = Times::default();
        }
    }

    pub fn sum(&self) -> Duration {
        [&self.recovery, &self.evm, &self.roots, &self.commit]
            .map(Times::sum)
            .iter()
            .sum()
    }

    /// Measures the parts of a block that the chain has just imported.
    pub fn measure(&mut self, chain: &Chain, payload: &Arc<Payload>) {
        let recovered = self.measure_recovery(payload);
        self.measure_evm(payload, &recovered);
        let view = chain.view();
        let execution = self.execute(&view, payload, &recovered);
        let overlay = self.measure_roots(&view, payload, &execution);
        let senders = recovered.iter().map(|tx| tx.signer()).collect();
        self.measure_commit(ExecutedBlock::new(
            payload.clone(),
            senders,
            Arc::new(execution.receipts),
            Arc::new(overlay),
        ));
    }

    fn measure_recovery(&mut self, payload: &Payload) -> Vec<Recovered<ChainTx>> {
        let clock = Clock::start();
        let recovered = payload
            .transactions
            .par_iter()
            .enumerate()
            .map(|(index, raw)| recover(index, raw).expect("it is signed"))
            .collect();
        clock.stop(&mut self.recovery, &mut self.processor);
        recovered
    }

    fn measure_evm(&mut self, payload: &Payload, recovered: &[Recovered<ChainTx>]) {
        let txs: Vec<_> = recovered
            .iter()
            .zip(&payload.transactions)
            .map(|(tx, raw)| {
                let op = tx.as_op().expect("there are no blobs on OP");
                OpTx::from_encoded_tx(op, tx.signer(), raw.clone())
            })
            .collect();
        let env = self.env(payload);
        let clock = Clock::start();
        let mut evm = OpEvmFactory::<OpTx>::default().create_evm(&mut self.evm_state, env);
        for tx in txs {
            let outcome = evm.transact_raw(tx).expect("the transaction is valid");
            evm.db_mut().commit(outcome.state);
        }
        drop(evm);
        clock.stop(&mut self.evm, &mut self.processor);
    }

    /// Executes the block as the chain does, without timing it, since the other parts need the
    /// result.
    fn execute(
        &self,
        view: &Arc<View>,
        payload: &Payload,
        recovered: &[Recovered<ChainTx>],
    ) -> Execution {
        let parent = ParentState::from(
            view.state_at(payload.number() - 1)
                .expect("a read")
                .expect("the parent is near"),
        );
        let mut execution =
            BlockExecution::begin(&self.spec, &payload.header, parent).expect("the block begins");
        for (tx, raw) in recovered.iter().zip(&payload.transactions) {
            execution
                .transact(tx, raw)
                .expect("the transaction is valid");
        }
        execution.finish()
    }

    fn measure_roots(&mut self, view: &View, payload: &Payload, execution: &Execution) -> Overlay {
        let before = view
            .header_of(payload.number() - 1)
            .expect("a header")
            .expect("it is near")
            .state_root;
        let clock = Clock::start();
        let update = trie::update(&self.trie_state, before, &execution.changes).expect("the roots");
        clock.stop(&mut self.roots, &mut self.processor);
        assert_eq!(
            update.state_root,
            payload.header.state_root,
            "block {}",
            payload.number()
        );
        self.trie_state.apply(&update.overlay);
        update.overlay
    }

    fn measure_commit(&mut self, block: ExecutedBlock) {
        let rows = store::written_rows(&[Arc::new(block)]);
        let weight = |row: &store::WrittenRow| {
            row.key.len() + row.value.as_ref().map_or(0, |value| value.len())
        };
        self.batch_bytes += rows.iter().map(weight).sum::<usize>() as u64;
        let clock = Clock::start();
        let mut batch = self.disk.batch();
        for row in &rows {
            let (space, key) = (&self.spaces[row.keyspace], row.key.as_ref());
            match &row.value {
                Some(value) => batch.insert(space, key, value.as_ref()),
                None => batch.remove(space, key),
            }
        }
        batch.commit().expect("the commit");
        clock.stop(&mut self.commit, &mut self.processor);
    }

    fn env(&self, payload: &Payload) -> EvmEnv<OpSpecId> {
        let header = &payload.header;
        let cfg = CfgEnv::new()
            .with_chain_id(self.spec.chain_id)
            .with_spec_and_mainnet_gas_params(OpSpecId::JOVIAN);
        let block = BlockEnv {
            number: U256::from(header.number),
            beneficiary: header.beneficiary,
            timestamp: U256::from(header.timestamp),
            gas_limit: header.gas_limit,
            basefee: header.base_fee_per_gas.unwrap_or_default(),
            prevrandao: Some(B256::ZERO),
            blob_excess_gas_and_price: Some(BlobExcessGasAndPrice {
                excess_blob_gas: 0,
                blob_gasprice: 1,
            }),
            ..Default::default()
        };
        EvmEnv::new(cfg, block)
    }
}
