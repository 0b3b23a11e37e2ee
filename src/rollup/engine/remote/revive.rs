//! Has an execution client execute blocks again whose states it has lost.
//!
//! See [`held`](super::held) for the fault. A client that executes payloads is revived at once, by
//! fork choices. One that does not, such as an op-geth that has lost every state above genesis, has
//! to fetch a state from its own peers: it is only told which block to fetch.

use super::{
    EngineClient, RemoteState,
    blocks::link_of,
    cache::BlockLink,
    held::{HeldSearch, twin},
    rpc::{EngineStatus, HeadHashes},
};
use crate::{
    chain::Heads,
    rollup::engine::{
        BlockAt,
        error::{CoreError, EngineCause},
    },
};
use alloy_primitives::{B256, U64};
use serde_json::json;
use starling_proto::payload::{BlockId, Payload};
use std::sync::Arc;

/// Largest number of blocks that one fork choice has the client execute, so that the call ends
/// within its time limit.
const STEP: usize = 32;

/// The blocks that a client has and does not count as its chain, though it marks them canonical.
struct StatelessBlocks {
    /// The lowest block.
    first: Arc<Payload>,
    top: BlockLink,
    /// Whether the client's head is the twin of `first` already, as after an interruption.
    is_displaced: bool,
}

impl EngineClient {
    /// The heads that count, from those that the client reports. The client is revived first if it
    /// has blocks above its head. If it cannot be revived, the highest of these blocks counts as
    /// the head: blocks are neither built nor signed again below it.
    pub(super) async fn settle_head(
        &self,
        state: &mut RemoteState,
        mut client: Heads,
    ) -> Result<Heads, CoreError> {
        let kept = state.heads;
        if state.reported == Some(client.head) && self.is_marked(kept.head).await? {
            if let Some(block) = state.fetching {
                self.ask_to_fetch(state, block).await;
            }
            (client.head, client.timestamp) = (kept.head, kept.timestamp);
            return Ok(client);
        }
        (state.reported, state.fetching) = (None, None);
        let Some(held) = self.held_above(&client).await? else {
            return Ok(client);
        };
        let (head, top) = (client.head, held.top);
        tracing::warn!(%head, top = %top.id, endpoint = %self.endpoint(), "the execution client has blocks above its head whose states it has lost; it has to execute them again");
        if self.revive(state, &held).await? {
            tracing::info!(top = %top.id, endpoint = %self.endpoint(), "the execution client has executed its blocks again");
            return self.client_heads().await;
        }
        tracing::warn!(%head, top = %top.id, endpoint = %self.endpoint(), "the execution client does not execute blocks until it has fetched a state from peers of its own: give it a peer that has the chain, or restore its data directory");
        state.reported = Some(head);
        if kept.head.number > top.id.number {
            self.ask_to_fetch(state, kept.head).await;
        }
        (client.head, client.timestamp) = (top.id, top.timestamp);
        Ok(client)
    }

    /// Whether the client marks this block canonical, above its head too.
    async fn is_marked(&self, block: BlockId) -> Result<bool, CoreError> {
        let found = self.header_at(json!(U64::from(block.number))).await?;
        Ok(found.is_some_and(|found| found.hash == block.hash))
    }

    /// The blocks that the client has above its head; `None` if there are none.
    async fn held_above(&self, client: &Heads) -> Result<Option<StatelessBlocks>, CoreError> {
        let head = client.head;
        let above = json!(U64::from(head.number.saturating_add(1)));
        let Some(above) = self.header_at(above).await? else {
            return Ok(None);
        };
        // The client may have moved its head meanwhile.
        let latest = self.header_at(json!("latest")).await?;
        if latest.is_none_or(|latest| latest.hash != head.hash) {
            return Ok(None);
        }
        let is_displaced = above.header.parent_hash != head.hash;
        let first = if is_displaced {
            above.header.parent_hash
        } else {
            above.hash
        };
        let Some(first) = self.block(BlockAt::Hash(first)).await? else {
            return Ok(None);
        };
        if is_displaced && twin(&first).hash != head.hash {
            return Ok(None);
        }
        let mut search = HeldSearch::new(above.header.number);
        let mut top = link_of(&above);
        while let Ok(number) = search.next_check() {
            let found = self.header_at(json!(U64::from(number))).await?;
            search.record(number, found.is_some());
            if let Some(found) = found {
                top = link_of(&found);
            }
        }
        Ok(Some(StatelessBlocks {
            first,
            top,
            is_displaced,
        }))
    }

    /// Makes the client execute these blocks again. Returns false if it executes no payloads.
    async fn revive(
        &self,
        state: &mut RemoteState,
        held: &StatelessBlocks,
    ) -> Result<bool, CoreError> {
        let mut steps = vec![held.first.id()];
        let (from, to) = (held.first.number(), held.top.id.number);
        for number in (from..to).step_by(STEP).skip(1) {
            let found = self.header_at(json!(U64::from(number))).await?;
            steps.extend(found.map(|found| link_of(&found).id));
        }
        steps.push(held.top.id);
        if !held.is_displaced {
            let twin = twin(&held.first);
            let status = self.0.rpc.new_payload(&twin).await?;
            if status != EngineStatus::Valid {
                tracing::debug!(?status, "the execution client does not execute a payload");
                return Ok(false);
            }
            steps.insert(0, twin.id());
        }
        state.revival = steps.into();
        self.continue_revival(state).await?;
        Ok(true)
    }

    /// Makes the remaining fork choices of a revival, which may have been cancelled by the caller.
    pub(super) async fn continue_revival(&self, state: &mut RemoteState) -> Result<(), CoreError> {
        while let Some(step) = state.revival.front() {
            let hash = step.hash;
            match self.name_head(hash).await {
                Ok(EngineStatus::Valid) => drop(state.revival.pop_front()),
                Ok(_) => {
                    state.revival.clear();
                    return Err(self.failure(EngineCause::Syncing(hash)));
                }
                Err(error) => {
                    // A client that has not answered yet still executes this step.
                    if !matches!(&error, CoreError::Remote(error) if matches!(error.cause, EngineCause::Timeout(_)))
                    {
                        state.revival.clear();
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Names a block that the client cannot execute for want of a state, so that it fetches what it
    /// lacks from its own peers (op-node: the fork choice after an unsafe payload). The highest
    /// named block stays the target.
    pub(super) async fn ask_to_fetch(&self, state: &mut RemoteState, block: BlockId) {
        let block = state.fetch(block);
        match self.name_head(block).await {
            Ok(status) => {
                tracing::debug!(%block, ?status, "the execution client is told to fetch a block");
            }
            Err(error) => {
                tracing::debug!(%block, %error, "the execution client cannot be told to fetch a block");
            }
        }
    }

    /// Sends a fork choice with a head alone.
    pub(super) async fn name_head(&self, head: B256) -> Result<EngineStatus, CoreError> {
        let hashes = HeadHashes {
            head,
            safe: B256::ZERO,
            finalized: B256::ZERO,
        };
        let forks = &self.0.rollup.forks;
        Ok(self.0.rpc.forkchoice(hashes, None, forks).await?.0)
    }
}
