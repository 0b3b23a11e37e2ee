//! The engine: what a rollup node may say to the chain, with the memory that the Engine API asks for on top of the chain's verbs.
//!
//! The Engine API server ([`crate::rpc::engine`]) ends here, and everything here ends in [`Chain`]'s verbs. New payloads and
//! fork choices are taken one after another; what is kept is bounded: payloads without a parent ([`memory::Memory`]), hashes of
//! refused blocks, and the last [`JOBS`] payloads asked for.

pub mod memory;
mod swarm;
#[cfg(test)]
mod tests;

use crate::chain::{
    Chain, ChainError, Heads, Inserted,
    driver::Driver,
    rules::Active,
    view::{ExecutedBlock, ReadError, View},
};
use alloy_primitives::B256;
use alloy_rpc_types_engine::{ForkchoiceState, PayloadId, PayloadStatus, PayloadStatusEnum};
use lru::LruCache;
use memory::Memory;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use starling_p2p::{Network, Provenance};
use starling_proto::payload::{BlockId, Payload};
use std::{num::NonZeroUsize, sync::Arc, time::Instant};
use tokio::sync::Mutex;

/// Payloads that were asked for and can still be fetched (op-geth: 10).
const JOBS: NonZeroUsize = NonZeroUsize::new(10).expect("not zero");
/// Blocks that one request connects at most, of which it holds the hashes: those of the payload log, and some that wait.
const MAX_WAY: usize = 65_536;
/// What is said of a block whose parent, or whose parent's parent, was refused.
const REJECTED_BEFORE: &str = "links to previously rejected block";

/// Why the engine could not do what it was asked. The numbers are the Engine API's codes.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// -38001
    #[error("Unknown payload")]
    UnknownPayload,
    /// -38002; the head has been applied.
    #[error("Invalid forkchoice state: {0}")]
    Forkchoice(String),
    /// -38003; the fork choice has been applied.
    #[error("Invalid payload attributes: {0}")]
    Attributes(String),
    /// -38005
    #[error("Unsupported fork")]
    UnsupportedFork,
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// The engine of one chain.
pub struct Engine {
    chain: Chain,
    /// Fetches the missing ancestors of a head that the rollup node names; `None` without a swarm.
    network: Option<Network>,
    memory: Mutex<Memory>,
    jobs: Mutex<LruCache<PayloadId, Job>>,
}

/// A payload that was asked for.
struct Job {
    parent: B256,
    attributes: OpPayloadAttributes,
    /// Once it has been fetched: the same block is given every time.
    block: Option<Arc<ExecutedBlock>>,
}

fn valid(hash: B256) -> PayloadStatus {
    PayloadStatus::new(PayloadStatusEnum::Valid, Some(hash))
}

fn invalid(latest_valid: Option<B256>, reason: impl Into<String>) -> PayloadStatus {
    PayloadStatus::new(
        PayloadStatusEnum::Invalid {
            validation_error: reason.into(),
        },
        latest_valid,
    )
}

fn syncing() -> PayloadStatus {
    PayloadStatus::new(PayloadStatusEnum::Syncing, None)
}

fn accepted() -> PayloadStatus {
    PayloadStatus::new(PayloadStatusEnum::Accepted, None)
}

/// The id of a payload, byte for byte op-geth's: absent withdrawals count as none, and byte 0 is the version of the method that
/// brought the attributes.
pub fn payload_id(parent: B256, attributes: &OpPayloadAttributes, version: u8) -> PayloadId {
    if attributes.payload_attributes.withdrawals.is_some() {
        return attributes.payload_id(&parent, version);
    }
    let mut attributes = attributes.clone();
    attributes.payload_attributes.withdrawals = Some(vec![]);
    attributes.payload_id(&parent, version)
}

impl Engine {
    pub fn new(chain: Chain, network: Option<Network>) -> Self {
        Self {
            chain,
            network,
            memory: Mutex::default(),
            jobs: Mutex::new(LruCache::new(JOBS)),
        }
    }

    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Executes a payload; no head moves. One whose parent is unknown waits for it. One of a branch that is too long, or leaves ours too
    /// far below, to be executed beside our chain is accepted: it is kept, and executed when a fork choice leads there.
    pub async fn new_payload(&self, payload: Arc<Payload>) -> Result<PayloadStatus, ChainError> {
        let mut memory = self.memory.lock().await;
        self.chain.drive(|driver| driver.on_payload(Instant::now()));
        let (hash, parent) = (payload.hash, payload.parent_hash());
        if let Some(rejected) = memory.rejected(hash) {
            return Ok(invalid(rejected.latest_valid, rejected.reason.clone()));
        }
        if let Some(latest_valid) = memory
            .rejected(parent)
            .map(|rejected| rejected.latest_valid)
        {
            memory.reject(hash, latest_valid, REJECTED_BEFORE);
            return Ok(invalid(latest_valid, REJECTED_BEFORE));
        }
        match self.insert(&mut memory, payload.clone()).await? {
            Inserted::Valid => {
                self.connect(&mut memory, hash).await?;
                Ok(valid(hash))
            }
            Inserted::Invalid {
                latest_valid,
                reason,
            } => Ok(invalid(latest_valid, reason)),
            Inserted::NoRoom => self.keep(&mut memory, payload).await,
            // The log lets go what is far below the stored head.
            Inserted::Syncing
                if memory.is_kept(&parent) && self.find(&mut memory, parent).await?.is_some() =>
            {
                self.keep(&mut memory, payload).await
            }
            Inserted::Syncing => {
                memory.wait(payload);
                Ok(self
                    .bring(&mut memory, hash, false)
                    .await?
                    .unwrap_or_else(syncing))
            }
        }
    }

    /// Keeps a payload that cannot be executed now where it takes no memory.
    async fn keep(
        &self,
        memory: &mut Memory,
        payload: Arc<Payload>,
    ) -> Result<PayloadStatus, ChainError> {
        let hash = payload.hash;
        self.chain.keep(payload).await?;
        memory.keep(hash);
        Ok(accepted())
    }

    /// [`Chain::insert`], remembering what is refused.
    async fn insert(
        &self,
        memory: &mut Memory,
        payload: Arc<Payload>,
    ) -> Result<Inserted, ChainError> {
        let hash = payload.hash;
        let inserted = self.chain.insert(payload, Provenance::Engine).await?;
        if let Inserted::Invalid {
            latest_valid,
            reason,
        } = &inserted
        {
            memory.reject(hash, *latest_valid, reason);
        }
        Ok(inserted)
    }

    /// Executes what waits for `parent`, and for what that brings.
    async fn connect(&self, memory: &mut Memory, parent: B256) -> Result<(), ChainError> {
        let mut parents = vec![parent];
        while let Some(parent) = parents.pop() {
            for child in memory.waiting_for(parent) {
                let hash = child.hash;
                match self.insert(memory, child).await? {
                    Inserted::Valid => parents.push(hash),
                    Inserted::Invalid { .. } => {}
                    Inserted::Syncing | Inserted::NoRoom => continue,
                }
                memory.arrived(&hash);
            }
        }
        Ok(())
    }

    /// Executes the blocks that lead to `tip` from a block of the chain, out of what waits and of the payload log, which has blocks
    /// that the chain forgot when it left their branch. `None` if some are missing. With `lead` the head goes along where the blocks
    /// cannot be executed otherwise; without, those that wait are kept then.
    async fn bring(
        &self,
        memory: &mut Memory,
        tip: B256,
        lead: bool,
    ) -> Result<Option<PayloadStatus>, ChainError> {
        let mut way = Vec::new();
        let mut at = tip;
        while !self.chain.knows(at) {
            if let Some(rejected) = memory.rejected(at) {
                let (latest_valid, reason) = (rejected.latest_valid, rejected.reason.clone());
                return Ok(Some(reject_all(
                    memory,
                    &way,
                    latest_valid,
                    if way.is_empty() {
                        &reason
                    } else {
                        REJECTED_BEFORE
                    },
                )));
            }
            let Some(payload) = self.find(memory, at).await? else {
                return Ok(None);
            };
            if way.len() == MAX_WAY {
                return Ok(None);
            }
            way.push(at);
            at = payload.parent_hash();
        }
        while let Some(hash) = way.pop() {
            let Some(payload) = self.find(memory, hash).await? else {
                return Ok(None);
            };
            let mut inserted = self.insert(memory, payload.clone()).await?;
            if lead && inserted == Inserted::NoRoom {
                let to = ForkchoiceState {
                    head_block_hash: payload.parent_hash(),
                    ..Default::default()
                };
                if self.go_to(&to).await?.is_some() {
                    inserted = self.insert(memory, payload).await?;
                }
            }
            match inserted {
                Inserted::Valid => memory.arrived(&hash),
                Inserted::Invalid {
                    latest_valid,
                    reason,
                } => {
                    let reason = if way.is_empty() {
                        &reason
                    } else {
                        REJECTED_BEFORE
                    };
                    return Ok(Some(reject_all(memory, &way, latest_valid, reason)));
                }
                Inserted::NoRoom if !lead => {
                    for hash in way.into_iter().chain([hash]) {
                        if let Some(payload) = memory.waiting(&hash) {
                            self.keep(memory, payload).await?;
                        }
                    }
                    return Ok(Some(accepted()));
                }
                Inserted::Syncing | Inserted::NoRoom => return Ok(None),
            }
        }
        Ok(Some(valid(tip)))
    }

    /// A block that waits, or that the chain or its payload log has.
    async fn find(
        &self,
        memory: &mut Memory,
        hash: B256,
    ) -> Result<Option<Arc<Payload>>, ChainError> {
        if let Some(payload) = memory.waiting(&hash) {
            return Ok(Some(payload));
        }
        let chain = self.chain.clone();
        blocking(move || chain.payload(hash)).await
    }

    /// Moves the heads and, if attributes are given, begins a payload on the head. `version` is that of the method called. From the first
    /// call on, the rollup node drives. An unknown head is fetched from the swarm, and becomes the head when it has been executed.
    ///
    /// A head that is an ancestor of the present one is made the head like any other: a rollup node rewinds its unsafe chain so.
    /// Zero for the safe or finalized block leaves it where it is, or takes it down to the last block that the new branch shares.
    pub async fn forkchoice(
        &self,
        state: ForkchoiceState,
        attributes: Option<OpPayloadAttributes>,
        version: u8,
    ) -> Result<(PayloadStatus, Option<PayloadId>), EngineError> {
        let head = state.head_block_hash;
        if head.is_zero() {
            return Ok((
                PayloadStatus::new(
                    PayloadStatusEnum::Invalid {
                        validation_error: String::new(),
                    },
                    None,
                ),
                None,
            ));
        }
        let mut memory = self.memory.lock().await;
        self.chain
            .drive(|driver| driver.on_forkchoice(Instant::now()));
        memory.wanted = None;
        let before = *self.chain.heads().borrow();
        let place = match self.reach(&mut memory, &state).await? {
            Ok(place) => place,
            Err(status) => {
                if status.is_invalid() {
                    self.chain.drive(Driver::on_settled);
                    self.go_back(&mut memory, before).await?;
                } else {
                    self.want(&mut memory, state).await?;
                }
                return Ok((status, None));
            }
        };
        self.chain.drive(Driver::on_settled);
        if let Some(problem) = place.problem {
            return Err(EngineError::Forkchoice(problem));
        }
        let id = match attributes {
            Some(attributes) => Some(self.start(head, attributes, version).await?),
            None => None,
        };
        Ok((valid(head), id))
    }

    /// Makes a block the head that is known or can be brought. Inside, the status of one for which neither is true.
    async fn reach(
        &self,
        memory: &mut Memory,
        state: &ForkchoiceState,
    ) -> Result<Result<Place, PayloadStatus>, ChainError> {
        let head = state.head_block_hash;
        // Twice: a branch that can no longer be stood on beside ours is forgotten, and then brought again.
        for _ in 0..2 {
            if !self.chain.knows(head) {
                match self.bring(memory, head, true).await? {
                    None => break,
                    Some(status) if status.is_invalid() => return Ok(Err(status)),
                    Some(_) => {}
                }
            }
            if let Some(place) = self.go_to(state).await? {
                return Ok(Ok(place));
            }
        }
        Ok(Err(syncing()))
    }

    /// Makes a block that is known the head; the other heads follow as far as they can. `None` if the chain cannot go there.
    async fn go_to(&self, state: &ForkchoiceState) -> Result<Option<Place>, ChainError> {
        let head = state.head_block_hash;
        let present = self.chain.view();
        // The way back to an ancestor of the head need not be known to say what is on it.
        let ancestor = {
            let present = present.clone();
            blocking(move || present.number_of(head).map_err(ChainError::read)).await?
        };
        let target = match ancestor {
            Some(number) => Target {
                view: present,
                head: number,
            },
            None => match self.chain.view_of(head).await {
                Err(ChainError::UnknownBlock(_)) => return Ok(None),
                view => view.map(|view| Target {
                    head: view.head().number,
                    view,
                })?,
            },
        };
        let (chain, kept, state) = (self.chain.clone(), *self.chain.heads().borrow(), *state);
        let place =
            blocking(move || place(&chain, &target, &kept, &state).map_err(ChainError::read))
                .await?;
        let (safe, finalized) = (
            place.safe.map(|id| id.hash),
            place.finalized.map(|id| id.hash),
        );
        match self.chain.forkchoice(head, safe, finalized).await {
            Err(ChainError::UnknownBlock(_)) => Ok(None),
            moved => moved.map(|()| Some(place)),
        }
    }

    /// Takes the heads back to where they were before the chain was led along a branch that turned out to be invalid.
    async fn go_back(&self, memory: &mut Memory, to: Heads) -> Result<(), ChainError> {
        let heads = || *self.chain.heads().borrow();
        if heads() == to {
            return Ok(());
        }
        let hash = |id: Option<BlockId>| id.map_or(B256::ZERO, |id| id.hash);
        let state = ForkchoiceState {
            head_block_hash: to.head.hash,
            safe_block_hash: hash(to.safe),
            finalized_block_hash: hash(to.finalized),
        };
        let _ = self.reach(memory, &state).await?;
        if heads() != to {
            tracing::error!(lost = %to.head, head = %heads().head, "not all blocks of the abandoned branch are logged: the head stays below it");
        }
        Ok(())
    }

    async fn start(
        &self,
        parent: B256,
        attributes: OpPayloadAttributes,
        version: u8,
    ) -> Result<PayloadId, EngineError> {
        let id = payload_id(parent, &attributes, version);
        let mut jobs = self.jobs.lock().await;
        if jobs.get(&id).is_none() {
            self.chain
                .start_as(id, parent, attributes.clone())
                .await
                .map_err(of_build)?;
            jobs.put(
                id,
                Job {
                    parent,
                    attributes,
                    block: None,
                },
            );
        }
        Ok(id)
    }

    /// The payload of this id, the same every time. `serves` says whether the method called may serve a block of these rules.
    pub async fn payload(
        &self,
        id: PayloadId,
        serves: impl Fn(&Active) -> bool,
    ) -> Result<Arc<ExecutedBlock>, EngineError> {
        let mut jobs = self.jobs.lock().await;
        let job = jobs.get_mut(&id).ok_or(EngineError::UnknownPayload)?;
        if !serves(
            &self
                .chain
                .spec()
                .at(job.attributes.payload_attributes.timestamp),
        ) {
            return Err(EngineError::UnsupportedFork);
        }
        if let Some(block) = &job.block {
            return Ok(block.clone());
        }
        let block = match self.chain.seal(id).await {
            // Another build took the builder in between: this one is made again.
            Err(ChainError::UnknownPayload) => {
                self.chain
                    .start_as(id, job.parent, job.attributes.clone())
                    .await
                    .map_err(of_build)?;
                self.chain.seal(id).await
            }
            sealed => sealed,
        }?;
        // Whoever has it may publish it before it comes back as a new payload.
        self.chain.keep(block.payload.clone()).await?;
        job.block = Some(block.clone());
        Ok(block)
    }
}

fn of_build(error: ChainError) -> EngineError {
    match error {
        ChainError::Build(reason) => EngineError::Attributes(reason),
        other => other.into(),
    }
}

/// The descendants of a refused block are refused. Gives the status of the last of them.
fn reject_all(
    memory: &mut Memory,
    hashes: &[B256],
    latest_valid: Option<B256>,
    reason: &str,
) -> PayloadStatus {
    for hash in hashes {
        memory.reject(*hash, latest_valid, reason);
    }
    invalid(latest_valid, reason)
}

/// A branch: that of a view, up to a block.
struct Target {
    view: Arc<View>,
    head: u64,
}

impl Target {
    fn number_of(&self, hash: B256) -> Result<Option<u64>, ReadError> {
        Ok(self
            .view
            .number_of(hash)?
            .filter(|number| *number <= self.head))
    }

    fn hash_of(&self, number: u64) -> Result<Option<B256>, ReadError> {
        if number > self.head {
            Ok(None)
        } else {
            self.view.hash_of(number)
        }
    }
}

/// Where the safe and the finalized head go.
#[derive(Debug, Default, PartialEq, Eq)]
struct Place {
    safe: Option<BlockId>,
    finalized: Option<BlockId>,
    /// What is wrong with what was named. It has no effect then, and the head moves all the same, as in op-geth.
    problem: Option<String>,
}

/// Finalized first, then safe, as op-geth does it. One that is not named gives way to the other.
fn place(
    chain: &Chain,
    target: &Target,
    kept: &Heads,
    state: &ForkchoiceState,
) -> Result<Place, ReadError> {
    let present = chain.view();
    let named = |what: &str, hash: B256| -> Result<Result<BlockId, String>, ReadError> {
        Ok(match target.number_of(hash)? {
            Some(number) => Ok(BlockId { number, hash }),
            None if chain.knows(hash) => Err(format!("{what} block not in canonical chain")),
            None => Err(format!("{what} block not available in database")),
        })
    };
    let mut safe = kept
        .safe
        .map(|id| shared(&present, target, id))
        .transpose()?;
    let mut finalized = kept
        .finalized
        .map(|id| shared(&present, target, id))
        .transpose()?;
    let refused = |safe, finalized, problem| {
        Ok(Place {
            safe,
            finalized,
            problem: Some(problem),
        })
    };
    if !state.finalized_block_hash.is_zero() {
        let id = match named("final", state.finalized_block_hash)? {
            Ok(id) => id,
            Err(problem) => return refused(safe, finalized, problem),
        };
        if !state.safe_block_hash.is_zero()
            && let Ok(safe_id) = named("safe", state.safe_block_hash)?
            && safe_id.number < id.number
        {
            return refused(
                safe,
                finalized,
                "final block is above the safe block".into(),
            );
        }
        finalized = Some(id);
        safe = safe.map(|safe| if safe.number < id.number { id } else { safe });
    }
    if !state.safe_block_hash.is_zero() {
        let id = match named("safe", state.safe_block_hash)? {
            Ok(id) => id,
            Err(problem) => return refused(safe, finalized, problem),
        };
        safe = Some(id);
        finalized = finalized.map(|finalized| {
            if finalized.number > id.number {
                id
            } else {
                finalized
            }
        });
    }
    Ok(Place {
        safe,
        finalized,
        problem: None,
    })
}

/// The newest block at or below `id`, a block of the present branch, that the target's branch has too.
fn shared(present: &View, target: &Target, id: BlockId) -> Result<BlockId, ReadError> {
    if target.number_of(id.hash)? == Some(id.number) {
        return Ok(id);
    }
    let mut number = id.number.min(target.head);
    loop {
        let hash = target.hash_of(number)?;
        if let Some(hash) = hash
            && (number == 0 || present.hash_of(number)? == Some(hash))
        {
            return Ok(BlockId { number, hash });
        }
        number = number.checked_sub(1).ok_or(ReadError::Unlinked(0))?;
    }
}

/// Reads of the store stay off the runtime's workers.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, ChainError> + Send + 'static,
) -> Result<T, ChainError> {
    tokio::task::spawn_blocking(read)
        .await
        .unwrap_or(Err(ChainError::Stopped))
}
