//! The heads that the execution client has, and the calls that move them. The caller holds the lock.

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

/// Builds whose times are remembered. A rollup node has one open, and derivation another.
const BUILDS: usize = 16;

/// The state under the client's lock.
#[derive(Default)]
pub(super) struct RemoteState {
    /// The heads that the client has.
    pub heads: Heads,
    /// The newest derived block, which every head keeps.
    pub protected: Option<BlockId>,
    /// Whether the heads have been read from the client before.
    pub is_read: bool,
    /// Ids of builds and the timestamps of their blocks, the oldest first.
    builds: VecDeque<(PayloadId, u64)>,
    /// Time of the last call that set the heads.
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

    /// Forgets a build; returns the timestamp of its block.
    pub(super) fn take_build(&mut self, id: PayloadId) -> Option<u64> {
        let at = self.builds.iter().position(|(other, _)| *other == id)?;
        self.builds.remove(at).map(|(_, time)| time)
    }
}

impl EngineClient {
    /// Makes the tip of a branch the head, with these labels, and begins a block on it if attributes
    /// are given. The state has the new heads if the client has applied them, also if the attributes
    /// are invalid.
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
        // Until the answer is here, and if the caller goes away, the outcome is unknown.
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
            // The heads have been applied before the attributes were checked.
            Err(error) if is_invalid_attributes(&error) && attributes.is_some() => {
                self.on_heads_set(state, path, heads);
                Err(ChainError::Build(error.cause.to_string()).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The client has these heads now.
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
