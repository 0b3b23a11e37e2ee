//! The heads and logs that a client has received, and the block after which it resumes.

use super::{LOGS, World};
use alloy_primitives::{B256, U64};
use serde::Deserialize;
use starling_proto::payload::BlockId;
use std::collections::HashSet;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeadEvent {
    number: U64,
    hash: B256,
    parent_hash: B256,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogEvent {
    block_number: U64,
    block_hash: B256,
    removed: bool,
}

/// The chain formed by the heads that a client has received.
pub struct HeadTrail {
    /// Genesis, and the canonical heads above it.
    chain: Vec<BlockId>,
    /// Every received head, including those of abandoned blocks.
    seen: HashSet<B256>,
}

impl HeadTrail {
    pub fn new(genesis: BlockId) -> Self {
        Self {
            chain: vec![genesis],
            seen: HashSet::new(),
        }
    }

    pub fn top(&self) -> BlockId {
        *self.chain.last().expect("genesis stays")
    }

    pub fn count(&self) -> usize {
        self.seen.len()
    }

    pub fn above_genesis(&self) -> &[BlockId] {
        &self.chain[1..]
    }

    /// Adds a head. It may replace only blocks that the reorg abandons.
    pub fn add(&mut self, event: &str, world: &World) {
        let head: HeadEvent = serde_json::from_str(event).expect("a head");
        let (number, hash) = (head.number.to(), head.hash);
        assert!(self.seen.insert(hash), "head {number} {hash} comes twice");
        while self.top().hash != head.parent_hash {
            let top = self.top();
            assert!(
                world.old.contains(&top.hash),
                "head {number} does not build on {top:?}"
            );
            self.chain.pop();
        }
        assert_eq!(number, self.top().number + 1);
        self.chain.push(BlockId { number, hash });
    }
}

/// The logs of a block, as the node has sent them.
struct LogBlock {
    id: BlockId,
    logs: Vec<String>,
}

/// The logs that a client has received.
pub struct LogTrail {
    genesis: BlockId,
    /// Blocks with their logs. Only the newest block may lack some.
    blocks: Vec<LogBlock>,
    /// Number of logs that were reported as removed.
    pub removed: usize,
    /// Number of blocks that were dropped because some of their logs were missing.
    pub dropped: usize,
}

impl LogTrail {
    pub fn new(genesis: BlockId) -> Self {
        Self {
            genesis,
            blocks: vec![],
            removed: 0,
            dropped: 0,
        }
    }

    /// The newest block with a received log, or genesis.
    pub fn top(&self) -> BlockId {
        self.blocks.last().map_or(self.genesis, |block| block.id)
    }

    /// Whether the newest block has all of its logs.
    pub fn is_whole(&self) -> bool {
        let newest = self.blocks.last();
        newest.is_none_or(|block| block.logs.len() == LOGS)
    }

    /// The block after which the client resumes. A newest block with only some of its logs is
    /// dropped first: the node sends these logs again, or never if the block was abandoned.
    pub fn resume(&mut self) -> BlockId {
        if !self.is_whole() {
            self.blocks.pop();
            self.dropped += 1;
        }
        self.top()
    }

    pub fn all(&self) -> impl Iterator<Item = &String> {
        self.blocks.iter().flat_map(|block| &block.logs)
    }

    pub fn add(&mut self, event: &str, world: &World) {
        let log: LogEvent = serde_json::from_str(event).expect("a log");
        let (number, hash) = (log.block_number.to(), log.block_hash);
        let id = BlockId { number, hash };
        if log.removed {
            self.remove(id, event, world);
            return;
        }
        if self.top() != id {
            assert!(self.is_whole(), "{:?} has too few logs", self.top());
            assert_eq!(number, self.top().number + 1, "a block's logs are missing");
            self.blocks.push(LogBlock { id, logs: vec![] });
        }
        let newest = self.blocks.last_mut().expect("it was added");
        assert!(newest.logs.len() < LOGS, "a log of {id:?} comes twice");
        newest.logs.push(event.to_owned());
    }

    /// Removes the newest log.
    fn remove(&mut self, id: BlockId, event: &str, world: &World) {
        let top = self.top();
        assert!(
            id == top && world.old.contains(&id.hash),
            "a log of {id:?} is removed, after {top:?}"
        );
        let newest = self.blocks.last_mut().expect("it is the newest");
        let log = newest.logs.pop().expect("a log");
        let removed = log.replace(r#""removed":false"#, r#""removed":true"#);
        assert_eq!(removed, event);
        self.removed += 1;
        if newest.logs.is_empty() {
            self.blocks.pop();
        }
    }
}
