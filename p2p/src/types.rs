//! Plain types that several modules share: payloads on their way to and from the chain, the queries
//! that the chain answers ([`Blocks`]), connected peers, and the progress of sync.
//!
//! Every module may use this file, and it uses none of them.

use alloy_primitives::B256;
use ipnet::IpNet;
use libp2p::{Multiaddr, PeerId};
use serde::Serialize;
pub use starling_proto::provenance::Provenance;
use starling_proto::{
    payload::{BlockId, Payload},
    wire,
};
use std::{net::IpAddr, sync::Arc};

/// A payload for the chain. Parents come first; every one must be answered with
/// [`crate::Network::settled`].
#[derive(Clone, Debug)]
pub struct Event {
    /// The payload to execute.
    pub payload: Arc<Payload>,
    /// Its origin.
    pub provenance: Provenance,
    /// The peer to charge if the chain finds the payload invalid.
    pub blame: Option<PeerId>,
}

/// The chain's verdict on a payload handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Executed, or at least kept: children may be handed over.
    Ok,
    /// Invalid for ever: neither the payload nor its descendants are handed over or fetched again.
    Invalid(String),
    /// The chain did not take the payload (its parent is missing, or a queue is full). It is
    /// forgotten, and handed over again when it is needed.
    Dropped,
}

/// The chain's heads that the swarm needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainHeads {
    /// The unsafe head.
    pub head: BlockId,
    /// The safe head.
    pub safe: BlockId,
}

/// The chain's side: queries of the swarm. Called from the threads that check, fetch and serve,
/// never from the swarm's task.
pub trait Blocks: Send + Sync + 'static {
    /// Whether the chain has executed this block (on any branch).
    fn knows(&self, hash: B256) -> bool;
    /// The canonical block of this height.
    fn block(&self, number: u64) -> Option<Payload>;
    /// The hash of the canonical block of this height.
    fn hash(&self, number: u64) -> Option<B256> {
        self.block(number).map(|block| block.hash)
    }
    /// Hands the RLP of the headers of a block and of its ancestors to `take`, highest first, until
    /// that says `false`. Nothing if the block is not, or no longer, canonical. Ends where the chain
    /// has moved to another branch during the read.
    fn headers(&self, from: BlockId, take: &mut dyn FnMut(&[u8]) -> bool) {
        let mut expected = from.hash;
        for number in (0..=from.number).rev() {
            let Some(block) = self.block(number).filter(|block| block.hash == expected) else {
                return;
            };
            expected = block.parent_hash();
            let [header, _] = wire::encode_block(&block);
            if !take(&header) {
                return;
            }
        }
    }
    /// Hands the blocks from `first` up to `last` to `take`, lowest first, until that says `false`:
    /// the RLP of the header, and that of the list of raw transactions. `false` if they are not
    /// ancestors of the last or that is not, or no longer, canonical: those handed to `take` may then
    /// lie on another branch.
    fn bodies(
        &self,
        first: u64,
        last: BlockId,
        take: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> bool {
        let is_canonical = |block: BlockId| self.hash(block.number) == Some(block.hash);
        if !is_canonical(last) {
            return false;
        }
        // The blocks are read one by one, and the chain may move to another branch and back meanwhile.
        let mut newest: Option<BlockId> = None;
        for block in (first..=last.number).map_while(|number| self.block(number)) {
            if newest.is_some_and(|parent| parent.hash != block.parent_hash()) {
                return false;
            }
            newest = Some(block.id());
            let [header, list] = wire::encode_block(&block);
            if !take(&header, &list) {
                break;
            }
        }
        is_canonical(last) && newest.is_none_or(|block| block == last || is_canonical(block))
    }
    /// The lowest block that can be read, with its transactions.
    fn oldest(&self) -> u64 {
        0
    }
    /// The finalized block, once it is known.
    fn finalized(&self) -> Option<BlockId> {
        None
    }
}

/// One connected peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The id of the peer.
    pub id: PeerId,
    /// The remote address of the oldest connection.
    pub address: Multiaddr,
    /// The name and version that the peer reports; empty until it is identified.
    pub agent: String,
    /// Whether we dialled the peer.
    pub outbound: bool,
    /// A static peer, or one that an operator protects.
    pub protected: bool,
    /// Number of connections: one, or two for a moment when both sides dialled.
    pub connections: usize,
}

/// The L2 chain's first block and its block time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainGenesis {
    /// Hash and height of the first block.
    pub id: BlockId,
    /// Its timestamp, in Unix seconds.
    pub time: u64,
    /// Seconds between blocks, at least 1.
    pub block_time: u64,
}

impl ChainGenesis {
    /// The timestamp of block `number`; `None` below genesis or past the range of time.
    pub fn time_of(&self, number: u64) -> Option<u64> {
        number
            .checked_sub(self.id.number)?
            .checked_mul(self.block_time)?
            .checked_add(self.time)
    }

    /// The number a block of the timestamp `now` would have.
    pub fn number_at(&self, now: u64) -> u64 {
        self.id.number + now.saturating_sub(self.time) / self.block_time.max(1)
    }
}

/// A payload that arrived, and whether the chain knew it and its parent at that moment.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The payload.
    pub payload: Arc<Payload>,
    /// The peer that sent it; `None` for blocks of our own and of the Engine API.
    pub from: Option<PeerId>,
    /// The chain has executed it.
    pub known: bool,
    /// The chain has executed its parent.
    pub parent_known: bool,
}

impl Arrival {
    /// Looks the payload up in the chain. May read the disk: never call it in the swarm's task.
    pub fn of(payload: Payload, from: Option<PeerId>, blocks: &dyn Blocks) -> Self {
        let (known, parent_known) = (
            blocks.knows(payload.hash),
            blocks.knows(payload.parent_hash()),
        );
        Self {
            payload: Arc::new(payload),
            from,
            known,
            parent_known,
        }
    }
}

/// Progress of filling the gap below the newest block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncReport {
    /// Height of the block at the top of the gap; `None` without a gap.
    pub target: Option<u64>,
    /// Blocks still to hand over below it.
    pub missing: u64,
    /// Whether the way down to a known block has been found.
    pub linked: bool,
    /// Blocks beside the gap that wait for their parents.
    pub waiting: u64,
    /// Requests in flight.
    pub requests: u64,
    /// Peers that serve ranges of blocks.
    pub peers: u64,
    /// Peers from which blocks are requested one by one, separated by commas.
    pub source: Option<String>,
    /// Whether blocks are missing and every peer has failed lately.
    pub starved: bool,
    /// The missing block and the peer it is requested from, once nothing has arrived for a while.
    pub stalled: Option<String>,
}

/// A ban in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BanReport {
    /// A peer's id or an address.
    pub subject: String,
    /// End of the ban, in Unix seconds.
    pub until: u64,
    /// The evidence for the ban, as text.
    pub reason: String,
}

/// An operator's blocks, and the bans in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedPeers {
    /// Blocked peers.
    pub peers: Vec<PeerId>,
    /// Blocked addresses.
    pub addresses: Vec<IpAddr>,
    /// Blocked subnets.
    pub subnets: Vec<IpNet>,
    /// Bans of peers and addresses.
    pub bans: Vec<BanReport>,
}

/// A topic and the peers in its mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshReport {
    /// Name of the topic.
    pub topic: String,
    /// Peers subscribed to it.
    pub subscribers: Vec<PeerId>,
    /// Peers in its mesh.
    pub mesh: Vec<PeerId>,
}

/// A peer, address or subnet that an operator blocks or unblocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A peer, by its id.
    Peer(PeerId),
    /// A single address.
    Address(IpAddr),
    /// All addresses of a network.
    Subnet(IpNet),
}
