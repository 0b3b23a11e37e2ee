//! The heads of the execution client as this node knows them, and the calls that move them. The
//! caller holds the lock.

use super::{
    EngineClient, LabelMoves,
    branch::{RemoteBranch, hash_of},
    is_invalid_attributes,
    rpc::{EngineStatus, HeadHashes},
};
use crate::{
    chain::{ChainError, Heads},
    rollup::engine::error::{CoreError, EngineCause},
};
use alloy_rpc_types_engine::PayloadId;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
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
    /// Whether the heads have been read from the execution client at least once.
    pub is_read: bool,
    /// Ids of open builds and the timestamps of their blocks, the oldest build first.
    builds: VecDeque<(PayloadId, u64)>,
    /// Time of the last call that set the heads on the execution client.
    pub heads_set_at: Option<Instant>,
}

impl RemoteState {
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
                self.on_heads_set(state, path, heads);
                if let (Some(id), Some(attributes)) = (id, attributes) {
                    state.add_build(id, attributes.payload_attributes.timestamp);
                }
                Ok(id)
            }
            Ok((EngineStatus::Invalid { reason, .. }, _)) if attributes.is_some() => {
                Err(ChainError::Build(reason).into())
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
                self.on_heads_set(state, path, heads);
                Err(ChainError::Build(error.cause.to_string()).into())
            }
            Err(error) => Err(error.into()),
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
        state.heads = heads;
        state.heads_set_at = Some(Instant::now());
        self.trust();
    }
}
