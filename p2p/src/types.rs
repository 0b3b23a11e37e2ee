//! Plain types that several modules share: payloads exchanged with the chain, the swarm's queries
//! to the chain ([`Blocks`]), connected peers, and the progress of sync.
//!
//! Every module may use this file; this file uses no module.

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

/// A payload that the swarm hands to the chain, parents before children. The node must report its
/// verdict on every such payload with [`crate::Network::settled`].
#[derive(Clone, Debug)]
pub struct Event {
    /// The payload to execute.
    pub payload: Arc<Payload>,
    /// How the payload reached us: by gossip, as an ancestor of another payload, or over the Engine
    /// API.
    pub provenance: Provenance,
    /// The peer to charge if the chain finds the payload invalid.
    pub blame: Option<PeerId>,
}

/// The chain's verdict on a payload that the swarm handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The chain executed the payload, or at least keeps it: its children may be handed over.
    Ok,
    /// The payload is invalid for ever. The swarm neither hands over nor fetches the payload or its
    /// descendants again, as long as it remembers the refusal (the last 16,384 refused blocks).
    Invalid(String),
    /// The chain did not accept the payload (its parent is missing, or a queue is full). The swarm
    /// forgets the payload, and hands it over again when it is needed.
    Dropped,
}

/// The heads of the chain, as the swarm needs them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainHeads {
    /// The unsafe head.
    pub head: BlockId,
    /// The safe head.
    pub safe: BlockId,
}

/// The swarm's queries to the chain, implemented by the node. They are called on the threads that
/// check, fetch and serve, never in the swarm's task.
pub trait Blocks: Send + Sync + 'static {
    /// Whether the chain has executed this block, on any branch.
    fn knows(&self, hash: B256) -> bool;
    /// The canonical block of this height.
    fn block(&self, number: u64) -> Option<Payload>;
    /// The hash of the canonical block of this height.
    fn hash(&self, number: u64) -> Option<B256> {
        self.block(number).map(|block| block.hash)
    }
    /// Passes the RLP of the header of `from`, and then of its ancestors, to `take`, highest first,
    /// until `take` returns `false`. Passes nothing if `from` is not canonical. Stops early if the
    /// chain moves to another branch during the read.
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
    /// Passes the blocks from number `first` up to `last` to `take`, lowest first, until `take`
    /// returns `false`. `take` gets the RLP of the header and the RLP of the list of raw
    /// transactions. Returns `false` if `last` is not canonical, or if the chain moved to another
    /// branch during the read: the blocks passed to `take` may then lie on another branch.
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
        // Compare parent hashes too: the chain may move to another branch and back between two
        // reads.
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
    /// The name and version that the peer reports; empty until the peer is identified.
    pub agent: String,
    /// Whether we dialled the peer.
    pub outbound: bool,
    /// Whether the peer is static, or protected by an operator.
    pub protected: bool,
    /// Number of connections: usually one, and more for a moment when both sides dialled.
    pub connections: usize,
}

/// The first block and the block time of the L2 chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainGenesis {
    /// Hash and height of the first block.
    pub id: BlockId,
    /// Timestamp of the first block, in Unix seconds.
    pub time: u64,
    /// Seconds between blocks; 0 counts as 1.
    pub block_time: u64,
}

impl ChainGenesis {
    /// The timestamp of block `number`; `None` below genesis, or if the timestamp overflows.
    pub fn time_of(&self, number: u64) -> Option<u64> {
        number
            .checked_sub(self.id.number)?
            .checked_mul(self.block_time)?
            .checked_add(self.time)
    }

    /// The number of the newest block that is due at the Unix time `now`.
    pub fn number_at(&self, now: u64) -> u64 {
        self.id.number + now.saturating_sub(self.time) / self.block_time.max(1)
    }
}

/// A payload that arrived, and whether the chain knew it and its parent at that moment (`false` if
/// the chain was not queried).
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The payload.
    pub payload: Arc<Payload>,
    /// The peer that sent the payload; `None` for our own blocks and those of the Engine API.
    pub from: Option<PeerId>,
    /// Whether the chain had executed the payload.
    pub known: bool,
    /// Whether the chain had executed the payload's parent.
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
    /// Number of blocks found so far that are still to be handed over, the target included.
    pub missing: u64,
    /// Whether every hash is known from the target down to a block that the chain has executed.
    pub linked: bool,
    /// Number of payloads outside the gap that wait for their parents.
    pub waiting: u64,
    /// Requests in flight.
    pub requests: u64,
    /// Peers that serve ranges of blocks.
    pub peers: u64,
    /// Peers from which blocks are requested one by one, separated by commas.
    pub source: Option<String>,
    /// Whether blocks are missing and every peer has failed lately.
    pub starved: bool,
    /// The lowest missing block and the reasons why no peer delivers it, once nothing has arrived
    /// for a while.
    pub stalled: Option<String>,
}

/// A ban in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BanReport {
    /// The banned peer's id, or the banned address.
    pub subject: String,
    /// End of the ban, in Unix seconds.
    pub until: u64,
    /// The evidence for the ban, as text.
    pub reason: String,
}

/// The peers, addresses and subnets that an operator blocks, and the bans in force.
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

/// A topic, its subscribers and its mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshReport {
    /// Name of the topic.
    pub topic: String,
    /// Peers subscribed to the topic.
    pub subscribers: Vec<PeerId>,
    /// Peers in the topic's mesh.
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
