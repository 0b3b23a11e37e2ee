//! The builder: the thread on which blocks are built, from a view, so that building never delays
//! the executor.
//!
//! One job at a time: a new `Start` replaces an unfinished one. Blocks without pool transactions are
//! built by [`build_at_once`] instead, on a thread of the caller: they replace no job, and no job
//! waits for them. Between `Start` and `Seal` it keeps
//! adding pool transactions as they arrive, in slices of [`SLICE`], so that a `Seal` waits for at
//! most one; sealing computes the roots. Bounded by the block's gas limit and by [`JOB_LIFETIME`].
//! The pool is queried again only after it has changed, and for a bounded share of the time.

use crate::chain::{
    build::{Added, BlockBuilder, BuildError},
    miner::MinerSettings,
    pool::{Pool, PoolTx},
    rows::ExecutedBlock,
    types::{ChainError, Shared},
    view::View,
};
use alloy_primitives::{Address, B256, map::HashSet};
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

/// How often an open job looks for new pool transactions.
const POOL_POLL: Duration = Duration::from_millis(10);
/// The pool is not queried again for this many times the duration of the last query, since a query
/// to a large pool takes milliseconds.
const POOL_REST: u32 = 10;
/// How often a builder without a job looks whether the chain is being stopped.
const IDLE_POLL: Duration = Duration::from_secs(1);
/// How long a job adds transactions before it looks for requests.
const SLICE: Duration = Duration::from_millis(5);
/// A job that is sealed at once still adds transactions for this long, so that a sequencer behind
/// the clock does not build empty blocks.
const FILL_AT_LEAST: Duration = Duration::from_millis(100);
/// A job that nobody seals is dropped after this long.
const JOB_LIFETIME: Duration = Duration::from_secs(60);

/// Requests to the builder. A `Seal` ends the build that a `Start` with the same id has begun.
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
}

struct BuildJob {
    id: PayloadId,
    builder: BlockBuilder,
    fill: Option<Fill>,
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
        let wait = match &job {
            None => IDLE_POLL,
            Some(_) if more => Duration::ZERO,
            Some(_) => POOL_POLL,
        };
        match requests.recv_timeout(wait) {
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
                let started = BuildJob::start(&shared, id, &parent, *attributes);
                let _ = reply.send(started.map(|started| job = Some(started)));
            }
            Ok(Build::Seal { id, reply }) => {
                let sealed = match job.take_if(|open| open.id == id) {
                    Some(open) => open.seal(&shared.pool),
                    None => Err(ChainError::UnknownPayload),
                };
                let _ = reply.send(sealed);
            }
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

/// Builds and seals a block with the transactions of these attributes and none of the pool. Runs as
/// long as the block takes to execute.
pub fn build_at_once(
    shared: &Shared,
    parent: &Arc<View>,
    attributes: OpPayloadAttributes,
) -> Result<Arc<ExecutedBlock>, ChainError> {
    let attributes = OpPayloadAttributes {
        no_tx_pool: Some(true),
        ..attributes
    };
    let id = attributes.payload_id(&parent.head().hash, 3);
    BuildJob::start(shared, id, parent, attributes)?.seal(&shared.pool)
}

impl BuildJob {
    fn start(
        shared: &Shared,
        id: PayloadId,
        parent: &Arc<View>,
        mut attributes: OpPayloadAttributes,
    ) -> Result<Self, ChainError> {
        let settings = shared.pool.miner();
        settings.complete(&shared.spec.rules, parent.header(), &mut attributes);
        let extra_data = settings.extra_data.clone();
        let fill = (!attributes.no_tx_pool.unwrap_or(false)).then(|| Fill {
            settings,
            ..Default::default()
        });
        let mut builder = BlockBuilder::start(shared.spec.clone(), parent.state(), attributes)
            .map_err(|error| match error {
                BuildError::State(error) => error.into(),
                error => ChainError::Build(error.to_string()),
            })?;
        builder.set_extra_data(extra_data);
        Ok(Self {
            id,
            builder,
            fill,
            started: Instant::now(),
        })
    }

    fn seal(mut self, pool: &Pool) -> Result<Arc<ExecutedBlock>, ChainError> {
        let started = Instant::now();
        if let Some(fill) = &mut self.fill {
            fill.run(
                &mut self.builder,
                pool,
                (started + SLICE).max(self.started + FILL_AT_LEAST),
            );
        }
        let block = self.builder.finish().map(Arc::new);
        metrics::histogram!("starling_seal_seconds").record(started.elapsed().as_secs_f64());
        Ok(block?)
    }
}

/// Progress of adding pool transactions to one block.
#[derive(Default)]
struct Fill {
    /// Version of the pool when `queue` was taken from it.
    version: Option<u64>,
    /// Earliest time of the next query to the pool.
    not_before: Option<Instant>,
    /// Transactions still to be tried, best first, nonces of one sender in order.
    queue: std::vec::IntoIter<Arc<PoolTx>>,
    /// Senders with a transaction that was left out of this queue: their later nonces cannot
    /// follow.
    closed: HashSet<Address>,
    /// Transactions in the block.
    added: HashSet<B256>,
    /// Transactions that were tried and left out. A replacement of the same nonce is still tried.
    left_out: HashSet<B256>,
    /// Settings as of the start of the block.
    settings: MinerSettings,
    /// Estimated batch bytes (Fjord) of the added transactions; counted only if they are limited.
    da_used: u64,
    /// Whether no further transaction can be added.
    done: bool,
}

impl Fill {
    /// Adds pool transactions until the deadline. Returns whether there are more to try now.
    fn run(&mut self, builder: &mut BlockBuilder, pool: &Pool, deadline: Instant) -> bool {
        if self.done {
            return false;
        }
        if self.queue.as_slice().is_empty() {
            // The version is read first: a change during the query is then seen by the next one.
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
            self.offer(builder, &tx);
            if self.done {
                return false;
            }
        }
        true
    }

    /// Adds a transaction to the block, or leaves it out.
    fn offer(&mut self, builder: &mut BlockBuilder, tx: &PoolTx) {
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
        match builder.add(&tx.tx, &tx.raw) {
            Ok(Added::Yes) => {
                self.added.insert(tx.hash);
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
