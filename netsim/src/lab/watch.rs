//! The heads of nodes over time. A task per node reads its head by RPC; [`HeadTrack`] decides what
//! is a new block and what is a reorg. A node that is frozen or down has no new heads.

use super::rpc::{self, LabBlock};
use alloy_primitives::B256;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Interval between two reads of a head. Four reads per block of a second.
pub const INTERVAL: Duration = Duration::from_millis(250);
/// Blocks below a new head that are read. More are read only at the height of the head before.
const DEPTH: usize = 64;

/// A head that a node had from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSample {
    pub at: Duration,
    pub number: u64,
    pub hash: B256,
}

/// A block that another block of the same height has replaced on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenReorg {
    pub at: Duration,
    pub number: u64,
    pub from: B256,
    pub to: B256,
}

/// All blocks that one node had.
#[derive(Clone, Debug, Default)]
pub struct HeadTrack {
    pub heads: Vec<HeadSample>,
    pub reorgs: Vec<SeenReorg>,
    /// The hash of the newest block of each height.
    pub chain: BTreeMap<u64, B256>,
    /// All hashes of each height with more than one.
    pub doubles: BTreeMap<u64, Vec<B256>>,
}

impl HeadTrack {
    pub fn head(&self) -> Option<HeadSample> {
        self.heads.last().copied()
    }

    /// Takes a head with some of the blocks below it.
    pub fn observe(&mut self, at: Duration, head: LabBlock, below: &[LabBlock]) {
        for block in [head].iter().chain(below) {
            let before = self.chain.insert(block.number, block.hash);
            let Some(from) = before.filter(|from| *from != block.hash) else {
                continue;
            };
            self.reorgs.push(SeenReorg {
                at,
                number: block.number,
                from,
                to: block.hash,
            });
            let hashes = self
                .doubles
                .entry(block.number)
                .or_insert_with(|| vec![from]);
            if !hashes.contains(&block.hash) {
                hashes.push(block.hash);
            }
        }
        let (number, hash) = (head.number, head.hash);
        let is_same = self
            .head()
            .is_some_and(|it| (it.number, it.hash) == (number, hash));
        if !is_same {
            self.heads.push(HeadSample { at, number, hash });
        }
    }
}

/// The tracks of all nodes, which tasks fill.
pub type HeadTracks = Arc<Vec<Mutex<HeadTrack>>>;

/// Reads the heads of one node until the task is aborted.
pub async fn follow(tracks: HeadTracks, node: usize, http: SocketAddr, start: Instant) {
    loop {
        if let Some(head) = rpc::block(http, None).await {
            let at = start.elapsed();
            let before = tracks[node].lock().clone_head();
            if before.head.is_none_or(|it| it.hash != head.hash) {
                let below = ancestors(http, head, &before).await;
                tracks[node].lock().observe(at, head, &below);
            }
        }
        sleep(INTERVAL).await;
    }
}

/// The part of a track that decides which blocks to read.
struct SeenBlocks {
    head: Option<HeadSample>,
    chain: BTreeMap<u64, B256>,
}

impl HeadTrack {
    fn clone_head(&self) -> SeenBlocks {
        let recent = self.chain.iter().rev().take(2 * DEPTH);
        SeenBlocks {
            head: self.head(),
            chain: recent.map(|(number, hash)| (*number, *hash)).collect(),
        }
    }
}

/// Blocks from the head down to the first one that is known.
async fn ancestors(http: SocketAddr, head: LabBlock, known: &SeenBlocks) -> Vec<LabBlock> {
    let mut below = Vec::new();
    let mut lowest = head;
    while below.len() < DEPTH && lowest.number > 0 {
        if known.chain.get(&(lowest.number - 1)) == Some(&lowest.parent) {
            return below;
        }
        let Some(parent) = rpc::block(http, Some(lowest.number - 1)).await else {
            return below;
        };
        // The chain has changed between two calls: the next read sees the new one whole.
        if parent.hash != lowest.parent {
            return below;
        }
        below.push(parent);
        lowest = parent;
    }
    if let Some(before) = known.head.filter(|it| it.number < lowest.number) {
        below.extend(rpc::block(http, Some(before.number)).await);
    }
    below
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64, branch: u8) -> LabBlock {
        let hash = |number: u64| B256::with_last_byte(number as u8 * 16 + branch);
        LabBlock {
            number,
            hash: hash(number),
            parent: hash(number.saturating_sub(1)),
        }
    }

    fn second(at: u64) -> Duration {
        Duration::from_secs(at)
    }

    #[test]
    fn a_longer_chain_and_a_lower_head_of_it_are_no_reorg() {
        let mut track = HeadTrack::default();
        track.observe(second(1), block(1, 0), &[]);
        track.observe(second(2), block(3, 0), &[block(2, 0)]);
        track.observe(second(3), block(2, 0), &[]);
        track.observe(second(3), block(2, 0), &[]);
        assert!(track.reorgs.is_empty() && track.doubles.is_empty());
        let heads: Vec<u64> = track.heads.iter().map(|head| head.number).collect();
        assert_eq!(heads, [1, 3, 2]);
        assert_eq!(track.chain.get(&3), Some(&block(3, 0).hash));
    }

    #[test]
    fn another_block_of_a_height_is_a_reorg() {
        let mut track = HeadTrack::default();
        track.observe(second(1), block(2, 0), &[block(1, 0)]);
        track.observe(second(2), block(3, 1), &[block(2, 1)]);
        let [reorg] = track.reorgs[..] else {
            panic!("{:?}", track.reorgs);
        };
        assert_eq!(
            (reorg.number, reorg.from, reorg.to),
            (2, block(2, 0).hash, block(2, 1).hash)
        );
        assert_eq!(track.doubles[&2], [block(2, 0).hash, block(2, 1).hash]);
    }
}
