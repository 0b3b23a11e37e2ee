//! The builder: the thread on which blocks are built, from a view, so that building never holds up the executor.
//!
//! One job at a time: a new `Start` replaces an unfinished one. From `Start` to `Seal` it keeps adding pool transactions as they
//! come, in slices of [`SLICE`], so that a `Seal` waits for no more than one; sealing computes the roots. Bounded by the block's gas
//! limit and by [`JOB_LIFETIME`]. The pool is asked again only after it has changed, and then at a bounded share of the time.

use crate::chain::{
    ChainError, Shared,
    build::{Added, BlockBuilder, BuildError},
    miner::MinerSettings,
    pool::{Pool, PoolTx},
    view::{ExecutedBlock, View},
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
/// After asking the pool for its best it is left alone this many times longer than it took to answer: a large one takes milliseconds.
const POOL_REST: u32 = 10;
/// How often a builder without a job looks whether the chain is being stopped.
const IDLE_POLL: Duration = Duration::from_secs(1);
/// How long a job adds transactions before it looks for requests.
const SLICE: Duration = Duration::from_millis(5);
/// A job that is sealed at once still takes transactions for so long: a sequencer behind the clock does not make empty blocks.
const FILL_AT_LEAST: Duration = Duration::from_millis(100);
/// A job that nobody seals is dropped after this long.
const JOB_LIFETIME: Duration = Duration::from_secs(60);

/// What the builder is asked.
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

struct Job {
    id: PayloadId,
    builder: BlockBuilder,
    fill: Option<Fill>,
    started: Instant,
}

/// Runs until every sender is gone or the chain is stopped.
pub fn run(shared: Arc<Shared>, requests: Receiver<Build>) {
    let mut job: Option<Job> = None;
    while !shared.is_stopping() {
        let mut more = false;
        if let Some(Job {
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
                mut attributes,
                reply,
            }) => {
                if job.as_ref().is_some_and(|open| open.id == id) {
                    let _ = reply.send(Ok(()));
                    continue;
                }
                let settings = shared.pool.miner();
                settings.complete(&shared.spec.rules, parent.header(), &mut attributes);
                let extra_data = settings.extra_data.clone();
                let fill = (!attributes.no_tx_pool.unwrap_or(false)).then(|| Fill {
                    settings,
                    ..Default::default()
                });
                let started = BlockBuilder::start(shared.spec.clone(), parent.state(), *attributes);
                let _ = reply.send(match started {
                    Ok(mut builder) => {
                        builder.set_extra_data(extra_data);
                        job = Some(Job {
                            id,
                            builder,
                            fill,
                            started: Instant::now(),
                        });
                        Ok(())
                    }
                    Err(BuildError::State(error)) => Err(ChainError::store(error)),
                    Err(error) => Err(ChainError::Build(error.to_string())),
                });
            }
            Ok(Build::Seal { id, reply }) => {
                let Some(mut open) = job.take_if(|open| open.id == id) else {
                    let _ = reply.send(Err(ChainError::UnknownPayload));
                    continue;
                };
                let started = Instant::now();
                if let Some(fill) = &mut open.fill {
                    fill.run(
                        &mut open.builder,
                        &shared.pool,
                        (started + SLICE).max(open.started + FILL_AT_LEAST),
                    );
                }
                let block = open
                    .builder
                    .finish()
                    .map(Arc::new)
                    .map_err(ChainError::store);
                metrics::histogram!("starling_seal_seconds")
                    .record(started.elapsed().as_secs_f64());
                let _ = reply.send(block);
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

/// How far the pool has been worked through for one block.
#[derive(Default)]
struct Fill {
    /// Of the pool when `queue` was taken from it.
    version: Option<u64>,
    /// When the pool may be asked again.
    not_before: Option<Instant>,
    /// What is still to be tried, best first, nonces of one sender in order.
    queue: std::vec::IntoIter<Arc<PoolTx>>,
    /// Senders of whom a transaction has been left out of this queue: their later nonces cannot follow.
    closed: HashSet<Address>,
    /// In the block, or left out of it; not tried again. Only the transaction itself is meant: another one may take its nonce.
    added: HashSet<B256>,
    left_out: HashSet<B256>,
    /// Settings as of the start of the block.
    settings: MinerSettings,
    /// Estimated batch bytes (Fjord) of the added transactions; counted only if they are limited.
    da_used: u64,
    done: bool,
}

impl Fill {
    /// Adds pool transactions until the deadline. Whether some are left.
    fn run(&mut self, builder: &mut BlockBuilder, pool: &Pool, deadline: Instant) -> bool {
        if self.done {
            return false;
        }
        if self.queue.as_slice().is_empty() {
            let (version, asked) = (Some(pool.version()), Instant::now());
            if self.version == version || self.not_before.is_some_and(|moment| asked < moment) {
                return false;
            }
            self.version = version;
            self.queue = pool.best(builder.base_fee()).into_iter();
            self.not_before = Some(Instant::now() + asked.elapsed() * POOL_REST);
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
