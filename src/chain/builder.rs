//! The builder: the thread on which blocks are built on a view, so that filling a block from the
//! pool does not occupy the executor.
//!
//! The builder has one job at a time: a new `Start` replaces an unfinished one. Only a `Derive` is
//! built otherwise, by [`build_at_once`] on the executor's thread; it replaces no job. Between
//! `Start` and `Seal`, a job keeps adding pool transactions as they arrive, unless the attributes
//! exclude the pool. It does so in slices of [`SLICE`], between which requests are served. A `Seal`
//! fills for one more slice, or until the job is `FILL_AT_LEAST` old if that is later, and then
//! computes the roots. A job is bounded by the block's gas limit and by [`JOB_LIFETIME`]. The pool
//! is queried again only after it has changed, and after a pause of `POOL_REST` times the last
//! query's duration.

use crate::chain::{
    blobs::{BlobStoreError, BlockSidecar, TxSidecar},
    build::{Added, BlockBuilder, BuildError},
    execute::ExpectedTransactions,
    miner::MinerSettings,
    pool::{Pool, PoolTx},
    rows::ExecutedBlock,
    transaction::BLOB_TYPE,
    types::{ChainError, Shared},
    view::View,
};
use alloy_primitives::{
    Address, B256, Bytes, keccak256,
    map::{HashMap, HashSet},
};
use alloy_rpc_types_engine::PayloadId;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Interval at which an open job looks for new pool transactions.
const POOL_POLL: Duration = Duration::from_millis(10);
/// Pause between two queries of the pool, as a multiple of the duration of the last one. A query of
/// a large pool takes milliseconds.
const POOL_REST: u32 = 10;
/// Time for which a job adds transactions before the builder looks for requests again.
const SLICE: Duration = Duration::from_millis(5);
/// Age of a job until which a `Seal` adds transactions while there are any. A sequencer that is
/// behind the clock therefore does not build empty blocks.
const FILL_AT_LEAST: Duration = Duration::from_millis(100);
/// Time after which a job without a `Seal` is dropped.
const JOB_LIFETIME: Duration = Duration::from_secs(60);

/// Requests to the builder. A `Seal` ends the build that a `Start` with the same id began.
pub enum Build {
    Start {
        id: PayloadId,
        parent: Arc<View>,
        attributes: Box<OpPayloadAttributes>,
        reply: oneshot::Sender<Result<(), ChainError>>,
    },
    Seal {
        id: PayloadId,
        reply: oneshot::Sender<Result<Arc<ExecutedBlock>, ChainError>>,
    },
    /// Wake up: the chain is to stop.
    Wake,
}

struct BuildJob {
    id: PayloadId,
    builder: BlockBuilder,
    fill: Option<Fill>,
    /// Blobs of the transactions that the attributes force into the block, by transaction hash.
    forced: HashMap<B256, Arc<TxSidecar>>,
    started: Instant,
}

/// Runs until every sender is gone or the chain is stopped.
pub fn run(shared: Arc<Shared>, requests: Receiver<Build>) {
    let mut job: Option<BuildJob> = None;
    while !shared.is_stopping() {
        let mut more = false;
        if let Some(BuildJob {
            fill: Some(fill),
            builder,
            ..
        }) = &mut job
        {
            more = fill.run(builder, &shared.pool, Instant::now() + SLICE);
        }
        let request = match &job {
            None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(_) if more => requests.recv_timeout(Duration::ZERO),
            Some(_) => requests.recv_timeout(POOL_POLL),
        };
        match request {
            Ok(Build::Start {
                id,
                parent,
                attributes,
                reply,
            }) => {
                if job.as_ref().is_some_and(|open| open.id == id) {
                    let _ = reply.send(Ok(()));
                    continue;
                }
                let started = BuildJob::start(&shared, id, &parent, *attributes, None);
                let _ = reply.send(started.map(|started| job = Some(started)));
            }
            Ok(Build::Seal { id, reply }) => {
                let sealed = match job.take_if(|open| open.id == id) {
                    Some(open) => open.seal(&shared),
                    None => Err(ChainError::UnknownPayload),
                };
                let _ = reply.send(sealed);
            }
            Ok(Build::Wake) => {}
            Err(RecvTimeoutError::Timeout) => {
                if job
                    .as_ref()
                    .is_some_and(|open| open.started.elapsed() > JOB_LIFETIME)
                {
                    tracing::warn!("a block was started and never sealed");
                    job = None;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Builds and seals a block with the transactions of these attributes and none of the pool. Takes
/// as long as the block takes to execute.
pub fn build_at_once(
    shared: &Shared,
    parent: &Arc<View>,
    attributes: OpPayloadAttributes,
    expected: Option<ExpectedTransactions>,
) -> Result<Arc<ExecutedBlock>, ChainError> {
    let attributes = OpPayloadAttributes {
        no_tx_pool: Some(true),
        ..attributes
    };
    let id = attributes.payload_id(&parent.head().hash, 3);
    BuildJob::start(shared, id, parent, attributes, expected)?.seal(shared)
}

impl BuildJob {
    fn start(
        shared: &Shared,
        id: PayloadId,
        parent: &Arc<View>,
        mut attributes: OpPayloadAttributes,
        expected: Option<ExpectedTransactions>,
    ) -> Result<Self, ChainError> {
        let settings = shared.pool.miner();
        settings.complete(&shared.spec.rules, parent.header(), &mut attributes);
        let extra_data = settings.extra_data.clone();
        let fill = (!attributes.no_tx_pool.unwrap_or(false)).then(|| Fill {
            settings,
            ..Default::default()
        });
        let forced = forced_blobs(shared, attributes.transactions.iter().flatten())?;
        let spec = shared.spec.clone();
        let mut builder = BlockBuilder::start_expected(spec, parent.state(), attributes, expected)
            .map_err(|error| match error {
                BuildError::State(error) => error.into(),
                error => ChainError::Build(error.to_string()),
            })?;
        builder.set_extra_data(extra_data);
        Ok(Self {
            id,
            builder,
            fill,
            forced,
            started: Instant::now(),
        })
    }

    fn seal(mut self, shared: &Shared) -> Result<Arc<ExecutedBlock>, ChainError> {
        let started = Instant::now();
        let mut sidecars = self.forced;
        if let Some(mut fill) = self.fill {
            fill.run(
                &mut self.builder,
                &shared.pool,
                (started + SLICE).max(self.started + FILL_AT_LEAST),
            );
            sidecars.extend(fill.sidecars);
        }
        let block = self.builder.finish().map(Arc::new)?;
        store_blobs(shared, &block, &sidecars)?;
        metrics::histogram!("starling_seal_seconds").record(started.elapsed().as_secs_f64());
        Ok(block)
    }
}

/// The blobs of forced transactions. Fails if they are not in the pool. On OP there are none:
/// execution refuses blob transactions.
fn forced_blobs<'a>(
    shared: &Shared,
    transactions: impl Iterator<Item = &'a Bytes>,
) -> Result<HashMap<B256, Arc<TxSidecar>>, ChainError> {
    let ethereum = !shared.spec.is_optimism();
    let blobs = transactions.filter(|raw| ethereum && raw.first() == Some(&BLOB_TYPE));
    let sidecar = |raw: &Bytes| {
        let hash = keccak256(raw);
        let pooled = shared.pool.get(&hash).and_then(|tx| tx.sidecar.clone());
        let sidecar = pooled.ok_or_else(|| {
            ChainError::Build(format!(
                "the blobs of transaction {hash} are not in the pool"
            ))
        })?;
        Ok((hash, sidecar))
    };
    blobs.map(sidecar).collect()
}

/// Stores the blobs of a sealed block, before the block is published. Waits for space on a full
/// disk.
fn store_blobs(
    shared: &Shared,
    block: &ExecutedBlock,
    sidecars: &HashMap<B256, Arc<TxSidecar>>,
) -> Result<(), ChainError> {
    if sidecars.is_empty() {
        return Ok(());
    }
    let hashes = block.transaction_hashes().iter();
    let in_order: Vec<BlockSidecar> = hashes
        .filter_map(|hash| {
            Some(BlockSidecar {
                transaction: *hash,
                sidecar: sidecars.get(hash)?.clone(),
            })
        })
        .collect();
    let (time, hash) = (block.payload.timestamp(), block.payload.hash);
    let write = || shared.blobs.put(time, hash, &in_order);
    Ok(shared.retry_while_full(BlobStoreError::is_full, write)?)
}

/// Progress of adding pool transactions to one block.
#[derive(Default)]
struct Fill {
    /// Version of the pool at the time when `queue` was filled.
    version: Option<u64>,
    /// Earliest time of the next query to the pool.
    not_before: Option<Instant>,
    /// Transactions still to be tried, best first, nonces of one sender in order.
    queue: std::vec::IntoIter<Arc<PoolTx>>,
    /// Senders of transactions that were left out since `queue` was filled. Their later nonces
    /// cannot be executed.
    closed: HashSet<Address>,
    /// Hashes of the pool transactions in the block.
    added: HashSet<B256>,
    /// Blobs of the transactions in `added`, by transaction hash.
    sidecars: HashMap<B256, Arc<TxSidecar>>,
    /// Transactions that were tried and left out. A replacement with the same nonce is still tried.
    left_out: HashSet<B256>,
    /// Settings at the start of the block.
    settings: MinerSettings,
    /// Estimated batch bytes (Fjord) of the added transactions. Counted only if a limit is set.
    da_used: u64,
    /// Whether no further transaction can be added.
    done: bool,
}

impl Fill {
    /// Adds pool transactions until the deadline. Returns whether the queue has more to try.
    fn run(&mut self, builder: &mut BlockBuilder, pool: &Pool, deadline: Instant) -> bool {
        if self.done {
            return false;
        }
        if self.queue.as_slice().is_empty() {
            // Read the version first: a change of the pool during the query then leads to another
            // query.
            let (version, started) = (Some(pool.version()), Instant::now());
            if self.version == version || self.not_before.is_some_and(|moment| started < moment) {
                return false;
            }
            self.version = version;
            self.queue = pool.best(builder.base_fee()).into_iter();
            self.not_before = Some(Instant::now() + started.elapsed() * POOL_REST);
            self.closed.clear();
        }
        while Instant::now() < deadline {
            let Some(tx) = self.queue.next() else {
                return false;
            };
            self.offer(builder, pool, &tx);
            if self.done {
                return false;
            }
        }
        true
    }

    /// Adds a transaction to the block, or leaves it out.
    fn offer(&mut self, builder: &mut BlockBuilder, pool: &Pool, tx: &PoolTx) {
        let sender = tx.sender();
        if self.added.contains(&tx.hash) || self.closed.contains(&sender) {
            return;
        }
        if self.left_out.contains(&tx.hash) {
            self.closed.insert(sender);
            return;
        }
        let pays = tx.effective_tip(builder.base_fee()) >= self.settings.min_tip;
        let Some(da_after) = self
            .settings
            .da_after(self.da_used, &tx.raw)
            .filter(|_| pays)
        else {
            self.left_out.insert(tx.hash);
            self.closed.insert(sender);
            return;
        };
        match builder.meets(tx.conditional.as_deref()) {
            Ok(None) => {}
            Ok(Some(unmet)) => {
                tracing::debug!(hash = %tx.hash, %unmet, "a conditional transaction left the pool");
                self.closed.insert(sender);
                pool.remove(&tx.hash);
                return;
            }
            Err(error) => {
                tracing::error!(%error, "building stopped taking pool transactions");
                self.done = true;
                return;
            }
        }
        match builder.add(&tx.tx, &tx.raw) {
            Ok(Added::Yes) => {
                self.added.insert(tx.hash);
                if let Some(sidecar) = &tx.sidecar {
                    self.sidecars.insert(tx.hash, sidecar.clone());
                }
                self.da_used = da_after;
            }
            Ok(Added::Full) => self.done = true,
            Ok(Added::Skipped(reason)) => {
                tracing::debug!(hash = %tx.hash, %reason, "a pool transaction was left out of the block");
                self.left_out.insert(tx.hash);
                self.closed.insert(sender);
            }
            Err(error) => {
                tracing::error!(%error, "building stopped taking pool transactions");
                self.done = true;
            }
        }
    }
}

#[cfg(test)]
mod tests;
