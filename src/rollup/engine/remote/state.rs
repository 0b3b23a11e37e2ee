//! The heads of the execution client as this node knows them, and the calls that move them. The
//! caller holds the lock.

use super::{
    EngineClient, LabelMoves,
    blocks::link_of,
    branch::{RemoteBranch, hash_of},
    is_invalid_attributes,
    rpc::{EngineStatus, HeadHashes},
};
use crate::{
    chain::{ChainError, Heads},
    rollup::engine::error::{CoreError, EngineCause},
};
use alloy_primitives::B256;
use alloy_rpc_types_engine::PayloadId;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use serde_json::json;
use starling_proto::payload::BlockId;
use std::{collections::VecDeque, time::Instant};

/// Largest number of builds with a remembered timestamp. The rollup node usually has at most two
/// open builds: one of the sequencer and one of derivation.
const BUILDS: usize = 16;

/// The state under the lock of the [`EngineClient`].
#[derive(Default)]
pub(super) struct RemoteState {
    /// The heads of the execution client.
    pub heads: Heads,
    /// The newest derived block. The branch of a new head must contain it, except in `derive`.
    pub protected: Option<BlockId>,
    /// The head that the execution client reports, where it is known to differ from the head in
    /// `heads`. It is higher after a fork choice to a canonical block, at which op-geth leaves its
    /// head in place until a block is built there. It is lower while the client lacks the states of
    /// blocks that it has.
    pub reported: Option<BlockId>,
    /// The highest block that the client was told to fetch, while it lacks states.
    pub fetching: Option<BlockId>,
    /// Blocks that the client must execute again: the remaining fork choices of
    /// [`EngineClient::revive`], in order.
    pub revival: VecDeque<BlockId>,
    /// Whether the heads have been read from the execution client at least once.
    pub is_read: bool,
    /// Ids of open builds and the timestamps of their blocks, the oldest build first.
    builds: VecDeque<(PayloadId, u64)>,
    /// Time of the last call that set the heads on the execution client.
    pub heads_set_at: Option<Instant>,
}

impl RemoteState {
    /// Whether the client has blocks up to the head, but not their states.
    pub(super) fn is_stateless(&self) -> bool {
        let head = self.heads.head.number;
        self.reported.is_some_and(|reported| reported.number < head)
    }

    /// The block that the client is to fetch, of this one and those that were named before.
    pub(super) fn fetch(&mut self, block: BlockId) -> B256 {
        let target = self.fetching.filter(|at| at.number > block.number);
        self.fetching.insert(target.unwrap_or(block)).hash
    }

    /// The head that the client is expected to report.
    pub(super) fn expected(&self) -> BlockId {
        self.reported.unwrap_or(self.heads.head)
    }

    fn add_build(&mut self, id: PayloadId, time: u64) {
        self.builds.retain(|(other, _)| *other != id);
        self.builds.push_back((id, time));
        if self.builds.len() > BUILDS {
            self.builds.pop_front();
        }
    }

    /// Removes a build and returns the timestamp of its block; `None` if the id is unknown.
    pub(super) fn take_build(&mut self, id: PayloadId) -> Option<u64> {
        let at = self.builds.iter().position(|(other, _)| *other == id)?;
        self.builds.remove(at).map(|(_, time)| time)
    }
}

impl EngineClient {
    /// Makes the tip of a branch the head, with these safe and finalized heads, and starts a block
    /// on it if attributes are given. If the client has applied the heads, the state has them too,
    /// even when the attributes are invalid.
    pub(super) async fn set_heads(
        &self,
        state: &mut RemoteState,
        path: &RemoteBranch,
        moves: LabelMoves,
        attributes: Option<&OpPayloadAttributes>,
    ) -> Result<Option<PayloadId>, CoreError> {
        let heads = moves.applied(path.tip, &state.heads);
        let hashes = HeadHashes {
            head: heads.head.hash,
            safe: hash_of(heads.safe),
            finalized: hash_of(heads.finalized),
        };
        // The outcome is unknown until the response arrives, or if the caller cancels this call.
        self.suspect();
        let forks = &self.0.rollup.forks;
        let answer = self.0.rpc.forkchoice(hashes, attributes, forks).await;
        match answer {
            Ok((EngineStatus::Valid, id)) => {
                let before = state.expected();
                let may_differ = state.reported.is_some() || path.lowers(state.heads.head);
                self.on_heads_set(state, path, heads);
                if let (Some(id), Some(attributes)) = (id, attributes) {
                    state.add_build(id, attributes.payload_attributes.timestamp);
                }
                if may_differ {
                    state.reported = Some(before);
                    self.read_reported(state).await;
                }
                Ok(id)
            }
            Ok((EngineStatus::Invalid { reason, .. }, _)) if attributes.is_some() => {
                self.refused_attributes(path, reason).await
            }
            Ok((EngineStatus::Invalid { reason, .. }, _)) => {
                let block = heads.head.hash;
                Err(self.failure(EngineCause::InvalidHead { block, reason }))
            }
            Ok((EngineStatus::Syncing | EngineStatus::Accepted, _)) => {
                Err(self.failure(EngineCause::Syncing(heads.head.hash)))
            }
            // The client applies the heads before it checks the attributes.
            Err(error) if is_invalid_attributes(&error) && attributes.is_some() => {
                let refused = self.refused_attributes(path, error.cause.to_string()).await;
                if matches!(refused, Err(CoreError::Chain(_))) {
                    self.on_heads_set(state, path, heads);
                }
                refused
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The error for attributes that the client refuses: a verdict on them, unless the client lacks
    /// the state that they build on.
    async fn refused_attributes<T>(
        &self,
        path: &RemoteBranch,
        reason: String,
    ) -> Result<T, CoreError> {
        let block = path.tip.id.hash;
        if self.is_verdict(&reason, block).await? {
            return Err(ChainError::Build(reason).into());
        }
        Err(self.failure(EngineCause::MissingState { block, reason }))
    }

    /// Reads the client's own head after a fork choice that may have left it in place.
    async fn read_reported(&self, state: &mut RemoteState) {
        match self.header_at(json!("latest")).await {
            Ok(Some(latest)) => {
                let own = link_of(&latest).id;
                state.reported = (own != state.heads.head).then_some(own);
            }
            Ok(None) => self.suspect(),
            Err(error) => {
                tracing::debug!(%error, "the head of the execution client cannot be read");
                self.suspect();
            }
        }
    }

    /// Updates state and cache after the client has set these heads.
    fn on_heads_set(&self, state: &mut RemoteState, path: &RemoteBranch, heads: Heads) {
        let mut cache = self.0.cache.lock();
        if path.fork_point.number < state.heads.head.number {
            cache.cut(path.fork_point.number);
        }
        let cuts = cache.cuts();
        for block in &path.above {
            cache.add_canonical(*block, cuts);
        }
        cache.add_canonical(path.fork_point, cuts);
        drop(cache);
        (state.heads, state.reported) = (heads, None);
        state.heads_set_at = Some(Instant::now());
        self.trust();
    }
}
