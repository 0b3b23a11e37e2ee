//! Reads blocks of the execution client, from the cache if possible.

use super::{EngineClient, RemoteState, branch::RemoteBranch, cache::BlockLink};
use crate::{
    chain::{ChainError, rules::MESSAGE_PASSER},
    rollup::{
        engine::{
            BlockAt,
            error::{CoreError, EngineCallError, EngineCause},
        },
        http::excerpt,
        l2_response::{self, HashedHeader, L2ResponseError},
    },
};
use alloy_primitives::{B256, U64, keccak256};
use alloy_rpc_types_eth::EIP1186AccountProofResponse;
use alloy_trie::{Nibbles, TrieAccount, proof::verify_proof};
use serde_json::{Value, json};
use starling_proto::payload::{BlockId, Payload};
use std::sync::Arc;

const BY_HASH: &str = "eth_getBlockByHash";
const BY_NUMBER: &str = "eth_getBlockByNumber";
const GET_PROOF: &str = "eth_getProof";
const GET_BALANCE: &str = "eth_getBalance";

/// Largest number of blocks above the fork point on a branch that may become the head. Only blocks
/// missing from the cache are read.
const MAX_BRANCH: usize = 4_096;

impl EngineClient {
    /// Implements [`Engine::block`](crate::rollup::engine::Engine::block).
    pub(in crate::rollup::engine) async fn block(
        &self,
        at: BlockAt,
    ) -> Result<Option<Arc<Payload>>, CoreError> {
        let head = self.0.heads.borrow().head;
        let hash = match at {
            BlockAt::Head => head.hash,
            BlockAt::Hash(hash) => hash,
            BlockAt::Number(number) if number > head.number => return Ok(None),
            BlockAt::Number(number) => {
                let known = self.0.cache.lock().canonical(number);
                match known {
                    Some(hash) => hash,
                    None => return self.block_by_number(number).await,
                }
            }
        };
        if let Some(block) = self.0.cache.lock().block(hash) {
            return Ok(Some(block));
        }
        let found = self.whole_block(BY_HASH, json!([hash, true])).await?;
        match found {
            Some(block) if block.hash != hash => Err(self.wrong(BY_HASH, block.id())),
            found => Ok(found),
        }
    }

    async fn block_by_number(&self, number: u64) -> Result<Option<Arc<Payload>>, CoreError> {
        let cuts = self.0.cache.lock().cuts();
        let params = json!([U64::from(number), true]);
        let Some(block) = self.whole_block(BY_NUMBER, params).await? else {
            return Ok(None);
        };
        if block.number() != number {
            return Err(self.wrong(BY_NUMBER, block.id()));
        }
        self.0.cache.lock().add_canonical(block.id(), cuts);
        Ok(Some(block))
    }

    async fn whole_block(
        &self,
        method: &'static str,
        params: Value,
    ) -> Result<Option<Arc<Payload>>, CoreError> {
        let read = self.0.rpc.call_checked(method, params, l2_response::block);
        let block = read.await.map_err(|error| self.suspected(error))?;
        let block = block.map(Arc::new);
        if let Some(block) = &block {
            self.0.cache.lock().add_block(block.clone());
        }
        Ok(block)
    }

    /// The header of the block with this tag or number; `None` if the client has no such block.
    pub(super) async fn header_at(
        &self,
        tag: Value,
    ) -> Result<Option<HashedHeader>, EngineCallError> {
        let params = json!([tag, false]);
        let read = self
            .0
            .rpc
            .call_checked(BY_NUMBER, params, l2_response::header);
        read.await
    }

    /// The id, parent and time of a block on any branch. Fails if the client does not have the
    /// block.
    pub(super) async fn known_link(&self, hash: B256) -> Result<BlockLink, CoreError> {
        let found = self.link(hash).await?;
        Ok(found.ok_or(ChainError::UnknownBlock(hash))?)
    }

    /// The id, parent and time of a block on any branch; `None` if the client does not have the
    /// block.
    pub(super) async fn link(&self, hash: B256) -> Result<Option<BlockLink>, CoreError> {
        if let Some(link) = self.0.cache.lock().link(hash) {
            return Ok(Some(link));
        }
        let params = json!([hash, false]);
        let read = self
            .0
            .rpc
            .call_checked(BY_HASH, params, l2_response::header);
        let found = read.await.map_err(|error| self.suspected(error))?;
        let Some(link) = found.map(|found| link_of(&found)) else {
            return Ok(None);
        };
        if link.id.hash != hash {
            return Err(self.wrong(BY_HASH, link.id));
        }
        self.0.cache.lock().add_link(link);
        Ok(Some(link))
    }

    /// The hash of the canonical block of this number; `None` if the number is above the head.
    pub(super) async fn canonical_hash(
        &self,
        state: &RemoteState,
        number: u64,
    ) -> Result<Option<B256>, CoreError> {
        if number > state.heads.head.number {
            return Ok(None);
        }
        let (known, cuts) = {
            let cache = self.0.cache.lock();
            (cache.canonical(number), cache.cuts())
        };
        if known.is_some() {
            return Ok(known);
        }
        let read = self.header_at(json!(U64::from(number))).await;
        let Some(found) = read.map_err(|error| self.suspected(error))? else {
            return Ok(None);
        };
        let link = link_of(&found);
        if link.id.number != number {
            return Err(self.wrong(BY_NUMBER, link.id));
        }
        let mut cache = self.0.cache.lock();
        cache.add_link(link);
        cache.add_canonical(link.id, cuts);
        Ok(Some(link.id.hash))
    }

    pub(super) async fn is_canonical(
        &self,
        state: &RemoteState,
        block: BlockId,
    ) -> Result<bool, CoreError> {
        let hash = self.canonical_hash(state, block.number).await?;
        Ok(hash == Some(block.hash))
    }

    /// Whether the cache has this block as canonical, so that it has been executed already.
    pub(super) fn is_known_canonical(&self, block: &Payload) -> bool {
        self.0.cache.lock().canonical(block.number()) == Some(block.hash)
    }

    /// The branch from the canonical chain to `tip`. Fails if it is longer than [`MAX_BRANCH`].
    pub(super) async fn path_to(
        &self,
        state: &RemoteState,
        tip: BlockLink,
    ) -> Result<RemoteBranch, CoreError> {
        let (mut above, mut at) = (Vec::new(), tip);
        while !self.is_canonical(state, at.id).await? {
            above.push(at.id);
            if above.len() > MAX_BRANCH {
                let (head, most) = (tip.id.hash, MAX_BRANCH);
                return Err(self.failure(EngineCause::TooDeep { head, most }));
            }
            at = self.known_link(at.parent).await?;
        }
        above.reverse();
        Ok(RemoteBranch {
            tip,
            fork_point: at.id,
            above,
        })
    }

    /// The message passer's storage root after a block, proven against the block's state root.
    pub(in crate::rollup) async fn message_passer_root(
        &self,
        block: &Payload,
    ) -> Result<B256, CoreError> {
        let params = json!([MESSAGE_PASSER, [], U64::from(block.number())]);
        let state_root = block.header.state_root;
        let read = self.0.rpc.call_checked(GET_PROOF, params, |answer| {
            let proof = serde_json::from_str(answer.get())
                .map_err(|error| L2ResponseError::Malformed(excerpt(error)))?;
            storage_root(&proof, state_root)
        });
        Ok(read.await?)
    }

    /// Whether the client can read the state after a block.
    pub(super) async fn has_state(&self, block: B256) -> Result<bool, CoreError> {
        let params = json!([MESSAGE_PASSER, { "blockHash": block }]);
        match self.0.rpc.call::<Value>(GET_BALANCE, params).await {
            Ok(_) => Ok(true),
            Err(EngineCallError {
                cause: EngineCause::Refused { .. },
                ..
            }) => Ok(false),
            Err(error) => Err(self.suspected(error)),
        }
    }

    /// The error for a response with another block than the requested one.
    fn wrong(&self, method: &'static str, got: BlockId) -> CoreError {
        let cause = EngineCause::Malformed(format!("it sent block {got}, which was not asked for"));
        self.0.rpc.error(method, cause).into()
    }
}

pub(super) fn link_of(found: &HashedHeader) -> BlockLink {
    let HashedHeader { hash, header } = found;
    BlockLink {
        id: BlockId {
            number: header.number,
            hash: *hash,
        },
        parent: header.parent_hash,
        timestamp: header.timestamp,
    }
}

/// The message passer's storage root, if the account proof matches this state root.
fn storage_root(
    proof: &EIP1186AccountProofResponse,
    state_root: B256,
) -> Result<B256, L2ResponseError> {
    let account = TrieAccount {
        nonce: proof.nonce,
        balance: proof.balance,
        storage_root: proof.storage_hash,
        code_hash: proof.code_hash,
    };
    let path = Nibbles::unpack(keccak256(MESSAGE_PASSER));
    let account = Some(alloy_rlp::encode(account));
    verify_proof(state_root, path, account, &proof.account_proof).map_err(|_| {
        L2ResponseError::Untrue(format!(
            "the proof of the message passer does not lead to the state root {state_root}"
        ))
    })?;
    Ok(proof.storage_hash)
}
