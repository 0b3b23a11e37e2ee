//! The transaction pool: transactions from wallets that are in no block yet.
//!
//! JSON-RPC adds transactions, the block builder reads [`Pool::best`], and pool maintenance calls
//! [`Pool::on_head`] when the head changes. Decisions are made from the arguments (state at the
//! head, time) without disk access. The lock is held only briefly. Many senders can overload the
//! pool. Counts are therefore bounded by [`PoolConfig`], bytes by slots of [`SLOT_SIZE`], and a
//! full pool evicts the worst-paying transactions first.

pub mod admit;
pub mod blobs;
mod book;
pub mod conditional;
pub mod journal;
#[cfg(test)]
mod tests;

use crate::chain::{
    blobs::TxSidecar,
    l1fee,
    miner::MinerSettings,
    rules::{ChainSpec, MAX_TRANSACTION_GAS},
    transaction::ChainTx,
};
use admit::MAX_SIZE;
use alloy_consensus::{Transaction, transaction::Recovered};
use alloy_primitives::{Address, B256, Bytes, U256};
use blobs::BlobRules;
use book::Book;
use conditional::Conditional;
use parking_lot::Mutex;
use starling_proto::{fork::Fork, l1info::L1BlockInfo};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::broadcast;

/// A transaction in the pool.
#[derive(Clone, Debug)]
pub struct PoolTx {
    pub tx: Recovered<ChainTx>,
    /// The EIP-2718 encoding as in a block, without blobs.
    pub raw: Bytes,
    pub hash: B256,
    /// Blobs with commitments and proofs; `None` unless this is a blob transaction.
    pub sidecar: Option<Arc<TxSidecar>>,
    /// Conditions under which a block may contain the transaction.
    pub conditional: Option<Arc<Conditional>>,
}

impl PoolTx {
    /// A transaction with a known sender, in the form without blobs.
    pub fn new(tx: Recovered<impl Into<ChainTx>>) -> Self {
        Self::with_sidecar(tx.map(Into::into), None)
    }

    /// A transaction with a known sender, with its blobs if it is a blob transaction.
    pub fn with_sidecar(tx: Recovered<ChainTx>, sidecar: Option<Arc<TxSidecar>>) -> Self {
        let raw = tx.encoded();
        Self {
            hash: alloy_primitives::keccak256(&raw),
            raw,
            tx,
            sidecar,
            conditional: None,
        }
    }

    /// Decodes a raw transaction for an OP chain, which has no blob transactions, and recovers its
    /// sender.
    pub fn decode(raw: Bytes) -> Result<Self, PoolError> {
        admit::decode(raw)
    }

    pub fn sender(&self) -> Address {
        self.tx.signer()
    }

    /// The most this transaction can cost in execution gas, blob gas and value, in wei; saturates.
    pub fn cost(&self) -> U256 {
        let blob_gas = U256::from(self.tx.blob_gas_used().unwrap_or(0));
        let blob_fee = U256::from(self.tx.max_fee_per_blob_gas().unwrap_or(0));
        U256::from(self.tx.gas_limit())
            .saturating_mul(U256::from(self.tx.max_fee_per_gas()))
            .saturating_add(blob_gas.saturating_mul(blob_fee))
            .saturating_add(self.tx.value())
    }

    /// Size of the transaction and its blobs in bytes.
    fn size(&self) -> usize {
        self.raw.len() + self.sidecar.as_ref().map_or(0, |sidecar| sidecar.size())
    }

    /// The tip per gas that a block builder earns at this base fee; `None` if the fee cap is below
    /// the base fee.
    pub fn effective_tip(&self, base_fee: u64) -> Option<u128> {
        self.tx.effective_tip_per_gas(base_fee)
    }
}

/// Inputs of admission besides the transaction: the sender's account, and the chain at the head.
#[derive(Clone, Debug)]
pub struct Admission {
    pub nonce: u64,
    pub balance: U256,
    /// Whether the account has code. Such an account can send only because it is delegated
    /// (EIP-7702), and the pool holds at most one of its transactions at a time.
    pub delegated: bool,
    /// Wei per gas of the head block.
    pub base_fee: u64,
    pub block_gas_limit: u64,
    /// Cost of this transaction besides execution at the head: L1 data fee plus operator fee, in
    /// wei. Zero on an Ethereum chain.
    pub l1_cost: U256,
    /// Time in Unix seconds, about that of the next block. It selects the fork rules for the
    /// transaction.
    pub now: u64,
}

/// Rules of a chain for transactions at a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TxRules {
    chain_id: u64,
    /// Whether the limit on init code applies: EIP-3860, in Shanghai (Canyon).
    init_code_limit: bool,
    /// Whether Prague (Isthmus) is active: EIP-7702 transactions, and the calldata floor of
    /// EIP-7623.
    prague: bool,
    /// Maximum gas limit of a transaction: EIP-7825, in Osaka (Karst).
    gas_cap: Option<u64>,
    /// Gas of each block that pool transactions cannot use.
    reserved_gas: u64,
    /// Rules for blobs; `None` on OP and before Cancun.
    blobs: Option<BlobRules>,
    /// Whether this is an Ethereum chain, which can have blob transactions.
    ethereum: bool,
}

impl TxRules {
    fn at(spec: &ChainSpec, time: u64) -> Self {
        let active = spec.at(time);
        Self {
            chain_id: spec.chain_id,
            init_code_limit: active.shanghai,
            prague: active.prague,
            gas_cap: active.osaka.then_some(MAX_TRANSACTION_GAS),
            reserved_gas: if active.op.is_some() {
                L1_ATTRIBUTES_GAS
            } else {
                0
            },
            blobs: spec
                .blob_params(time)
                .map(|params| BlobRules::new(params, active.osaka)),
            ethereum: active.op.is_none(),
        }
    }
}

/// Gas that op-geth reserves for the L1 attributes deposit of each block.
const L1_ATTRIBUTES_GAS: u64 = 70_000;

/// Bytes of one slot. A larger transaction uses several slots (geth: `txSlotSize`).
pub const SLOT_SIZE: usize = 32 * 1024;

/// Limits of the pool, with op-geth's defaults (`--txpool.*`, `--rpc.txfeecap`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Minimum tip in wei per gas.
    pub min_tip: u128,
    /// Percentage by which a replacement must raise both the fee cap and the tip.
    pub price_bump: u128,
    /// Number of executable transactions of an account that a full pool evicts only if no account
    /// has more.
    pub account_slots: usize,
    /// Maximum number of executable transactions. All transactions together use at most
    /// `global_slots` + `global_queue` slots.
    pub global_slots: usize,
    /// Maximum number of non-executable transactions per account.
    pub account_queue: usize,
    /// Maximum number of non-executable transactions of all accounts.
    pub global_queue: usize,
    /// Time in seconds for which a non-executable transaction is kept.
    pub lifetime: u64,
    /// Maximum gas limit of a transaction (`--txpool.maxtxgas`).
    pub max_gas: Option<u64>,
    /// Maximum of `gas limit · fee cap` in wei. Zero means no maximum.
    pub tx_fee_cap: U256,
    /// Whether legacy transactions without a chain id are accepted.
    pub allow_unprotected: bool,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            min_tip: 1,
            price_bump: 10,
            account_slots: 16,
            global_slots: 5120,
            account_queue: 64,
            global_queue: 1024,
            lifetime: 3 * 60 * 60,
            max_gas: None,
            tx_fee_cap: U256::from(1_000_000_000_000_000_000u64),
            allow_unprotected: false,
        }
    }
}

/// The reason why a transaction is refused. The texts follow geth's, because wallets and tools
/// compare them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    #[error("already known")]
    AlreadyKnown,
    #[error("nonce too low: next nonce {next}, tx nonce {nonce}")]
    NonceTooLow { next: u64, nonce: u64 },
    #[error("nonce has max value")]
    NonceMax,
    #[error("replacement transaction underpriced")]
    ReplacementUnderpriced,
    #[error("transaction gas price below minimum: gas tip cap {tip}, minimum needed {minimum}")]
    TipTooLow { tip: u128, minimum: u128 },
    /// The pool is full of better-paying transactions.
    #[error("transaction underpriced")]
    Underpriced,
    #[error("account limit exceeded: {limit} queued transactions")]
    AccountQueueFull { limit: usize },
    #[error("max priority fee per gas higher than max fee per gas")]
    TipAboveFeeCap,
    #[error("insufficient funds for gas * price + value: balance {balance}, tx cost {cost}, overshot {}", cost.saturating_sub(*balance))]
    InsufficientFunds { balance: U256, cost: U256 },
    #[error(
        "insufficient funds for gas * price + value: balance {balance}, queued cost {queued}, tx cost {cost}, overshot {}",
        queued.saturating_add(*cost).saturating_sub(*balance)
    )]
    Overdraft {
        balance: U256,
        queued: U256,
        cost: U256,
    },
    #[error(
        "insufficient funds for gas * price + value: balance {balance}, queued cost {queued}, tx bumped {bump}, overshot {}",
        queued.saturating_add(*bump).saturating_sub(*balance)
    )]
    BumpOverdraft {
        balance: U256,
        queued: U256,
        bump: U256,
    },
    #[error("intrinsic gas too low: gas {gas}, minimum needed {minimum}")]
    IntrinsicGas { gas: u64, minimum: u64 },
    #[error("insufficient gas for floor data gas cost: gas {gas}, minimum needed {minimum}")]
    FloorGas { gas: u64, minimum: u64 },
    #[error("exceeds block gas limit")]
    ExceedsBlockGas,
    #[error("transaction gas limit too high (cap: {cap}, tx: {gas})")]
    GasCap { cap: u64, gas: u64 },
    #[error("oversized data: transaction size {size}, limit {limit}")]
    Oversized { size: usize, limit: usize },
    #[error("max initcode size exceeded: code size {size}, limit {limit}")]
    InitCode { size: usize, limit: usize },
    #[error("transaction type not supported")]
    TypeNotSupported,
    #[error("transaction type not supported: type 4 rejected, pool not yet in Prague")]
    SetCodeTooEarly,
    #[error("transaction type not supported: type 3 rejected, pool not yet in Cancun")]
    BlobsTooEarly,
    #[error("missing sidecar in blob transaction")]
    NoSidecar,
    #[error("blobless blob transaction")]
    NoBlobs,
    #[error("too many blobs in transaction: have {have}, permitted {most}")]
    TooManyBlobs { have: usize, most: u64 },
    #[error("invalid sidecar version {moment}-osaka: {version}")]
    SidecarVersion { moment: &'static str, version: u8 },
    #[error("invalid number of {have} {name}, expected {want}")]
    SidecarCount {
        name: &'static str,
        have: usize,
        want: usize,
    },
    #[error("blob {index}: computed hash {computed} mismatches transaction one {hash}")]
    BlobHash {
        index: usize,
        computed: B256,
        hash: B256,
    },
    #[error("KZG verification error: {0}")]
    BlobProof(String),
    #[error("transaction gas price below minimum: blob fee cap 0, minimum needed 1")]
    BlobFeeTooLow,
    #[error("nonce too high: tx nonce {nonce}, gapped nonce {gap}")]
    BlobGap { nonce: u64, gap: u64 },
    #[error("account limit exceeded: pooled {limit} txs")]
    AccountBlobsFull { limit: usize },
    /// A sender's transactions in the pool are either all blob transactions or all others.
    #[error("address already reserved")]
    Reserved,
    #[error("set code tx must have at least one authorization tuple")]
    NoAuthorizations,
    #[error("gapped-nonce tx from delegated accounts")]
    DelegatedGap,
    #[error("in-flight transaction limit reached for delegated accounts")]
    DelegatedInFlight,
    #[error("authority already reserved")]
    AuthorityReserved,
    #[error("invalid sender: invalid chain id for signer: have {have} want {want}")]
    ChainId { have: u64, want: u64 },
    #[error("only replay-protected (EIP-155) transactions allowed over RPC")]
    Unprotected,
    #[error("tx fee ({fee} ether) exceeds the configured cap ({cap} ether)")]
    FeeCap { fee: String, cap: String },
    #[error("invalid sender: {0}")]
    InvalidSender(&'static str),
    #[error("{0}")]
    Decode(String),
}

/// Effects of a new head on the pool.
#[derive(Clone, Debug, Default)]
pub struct HeadChange {
    /// Hashes of the transactions in blocks that have become canonical.
    pub mined: Vec<B256>,
    /// Transactions of the blocks that were abandoned. Deposits among them are ignored.
    pub abandoned: Vec<PoolTx>,
    /// Base fee of the new head in wei per gas.
    pub base_fee: u64,
    pub block_gas_limit: u64,
    /// Present time, Unix seconds.
    pub now: u64,
    /// L1 attributes of the new head, to compute the costs besides execution; `None` if it has
    /// none.
    pub l1: Option<(L1BlockInfo, Fork)>,
}

impl HeadChange {
    /// The most that a transaction may cost at the new head, in wei.
    fn cost(&self, tx: &PoolTx) -> U256 {
        let l1 = self.l1.as_ref();
        let l1_cost = l1.map_or(U256::ZERO, |(info, fork)| {
            l1fee::admission_cost(info, *fork, &tx.raw, tx.tx.gas_limit())
        });
        tx.cost().saturating_add(l1_cost)
    }
}

/// The number of transactions and senders in the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Number of executable transactions.
    pub pending: usize,
    /// Number of transactions behind a nonce gap.
    pub queued: usize,
    pub senders: usize,
}

/// The transactions of one sender by nonce: first the executable ones, then the others.
pub type Content = (Vec<Arc<PoolTx>>, Vec<Arc<PoolTx>>);

/// Number of new transactions by which a subscriber may lag before it loses the oldest.
const NEW_TRANSACTIONS: usize = 4096;

/// The pool. Shared as `Arc<Pool>`.
pub struct Pool {
    spec: ChainSpec,
    config: PoolConfig,
    book: Mutex<Book>,
    pending: broadcast::Sender<B256>,
    version: AtomicU64,
    miner: Mutex<MinerSettings>,
}

impl Pool {
    /// An empty pool with the default limits.
    pub fn new(spec: &ChainSpec) -> Self {
        Self::with_config(spec, PoolConfig::default())
    }

    pub fn with_config(spec: &ChainSpec, config: PoolConfig) -> Self {
        let book = Mutex::new(Book::new(config.clone()));
        let pending = broadcast::channel(NEW_TRANSACTIONS).0;
        Self {
            spec: spec.clone(),
            book,
            config,
            pending,
            version: AtomicU64::new(0),
            miner: Mutex::default(),
        }
    }

    /// The settings of block building.
    pub fn miner(&self) -> MinerSettings {
        self.miner.lock().clone()
    }

    /// Changes the settings of block building. Transactions below a raised minimum tip are dropped.
    pub fn set_miner(&self, change: impl FnOnce(&mut MinerSettings)) {
        let settings = {
            let mut settings = self.miner.lock();
            let before = settings.clone();
            change(&mut settings);
            // A batcher sends its limits with every poll.
            if *settings == before {
                return;
            }
            settings.clone()
        };
        tracing::info!(?settings, "block building settings changed");
        if let Some(tip) = settings.min_tip {
            self.book.lock().drop_below(tip);
            self.changed();
        }
    }

    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Decodes a raw transaction for this chain and recovers its sender. On Ethereum a blob
    /// transaction must include its blobs.
    pub fn decode(&self, raw: Bytes) -> Result<PoolTx, PoolError> {
        if self.spec.is_optimism() || !blobs::is_blob(&raw) {
            return admit::decode(raw);
        }
        // Admission checks the blob limit at the time of the next block.
        blobs::decode(&raw, self.spec.max_blobs())
    }

    /// Admits a transaction. It becomes executable once all earlier nonces of its sender are
    /// present.
    pub fn add(&self, tx: PoolTx, at: &Admission) -> Result<B256, PoolError> {
        let hash = tx.hash;
        if self.book.lock().get(&hash).is_some() {
            return Err(PoolError::AlreadyKnown);
        }
        let min_tip = self.miner.lock().min_tip.unwrap_or(self.config.min_tip);
        admit::check(
            &tx,
            at,
            &TxRules::at(&self.spec, at.now),
            &self.config,
            min_tip,
        )?;
        let authorities = admit::authorities(&tx);
        let promoted = self.book.lock().add(tx, authorities, at)?;
        self.changed();
        self.announce(promoted);
        Ok(hash)
    }

    pub fn get(&self, hash: &B256) -> Option<Arc<PoolTx>> {
        self.book.lock().get(hash)
    }

    /// The executable transactions for a block with this base fee: best effective tip first, the
    /// nonces of a sender in order. If one transaction fails, the later ones of its sender cannot
    /// be used either.
    pub fn best(&self, base_fee: u64) -> Vec<Arc<PoolTx>> {
        self.book.lock().best(base_fee)
    }

    /// A number that grows after every change of the pool. While it is unchanged, the result of
    /// [`Pool::best`] is unchanged too.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The sender's next nonce after its pending transactions; `state_nonce` if it has none.
    pub fn next_nonce(&self, sender: &Address, state_nonce: u64) -> u64 {
        self.book
            .lock()
            .next_nonce(sender)
            .map_or(state_nonce, |next| next.max(state_nonce))
    }

    /// Drops a transaction, such as one whose conditions the builder found unmet. Later
    /// transactions of its sender stay in the pool, behind a nonce gap.
    pub fn remove(&self, hash: &B256) {
        self.book.lock().remove(hash);
        self.changed();
    }

    /// Updates the pool to a new head: drops mined, stale and expired transactions, reinstates
    /// those of abandoned blocks, and promotes transactions that became executable.
    ///
    /// `account` returns a sender's nonce and balance at the new head. It returns `None` if the
    /// state cannot be read: the sender's transactions then stay as they are. It is called without
    /// the lock, so that adding a transaction never waits for the store.
    pub fn on_head(
        &self,
        change: HeadChange,
        mut account: impl FnMut(Address) -> Option<(u64, U256)>,
    ) {
        let mut senders = self.book.lock().senders();
        senders.extend(change.abandoned.iter().map(PoolTx::sender));
        senders.sort_unstable();
        senders.dedup();
        let accounts: BTreeMap<_, _> = senders
            .into_iter()
            .filter_map(|sender| Some((sender, account(sender)?)))
            .collect();
        let abandoned = change.abandoned.iter().map(admit::authorities).collect();
        let promoted = self.book.lock().on_head(change, abandoned, &accounts);
        self.changed();
        self.announce(promoted);
    }

    /// Hashes of transactions as they become executable. A subscriber that lags by more than
    /// [`NEW_TRANSACTIONS`] loses the oldest ones, and receives an error that reports the loss.
    pub fn subscribe(&self) -> broadcast::Receiver<B256> {
        self.pending.subscribe()
    }

    pub fn stats(&self) -> PoolStats {
        self.book.lock().stats()
    }

    /// All transactions in the pool, by sender (`txpool_content`).
    pub fn content(&self) -> BTreeMap<Address, Content> {
        self.book.lock().content()
    }

    pub fn content_of(&self, sender: &Address) -> Content {
        self.book.lock().content_of(sender)
    }

    fn announce(&self, promoted: Vec<Arc<PoolTx>>) {
        for tx in promoted {
            // An error means that there are no subscribers.
            let _ = self.pending.send(tx.hash);
        }
    }
}
