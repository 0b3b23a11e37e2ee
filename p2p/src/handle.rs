//! The node's side of the swarm: commands and reports ([`Network`]).
//!
//! The node receives [`crate::Event`]s, reports a verdict on each with [`Network::settled`], and
//! implements [`crate::Blocks`].

mod control;

pub(crate) use control::OperatorCommand;
pub use control::{Direction, NetworkError, PeerReport, SwarmReport};

use crate::{
    discovery::ReportRequest,
    gossip::OwnKeyWatch,
    types::{ChainHeads, PeerInfo, Settled},
};
use alloy_primitives::{Address, B256};
use libp2p::{Multiaddr, PeerId};
use starling_proto::payload::Payload;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// A cloneable handle to the swarm's task. Commands are sent over a bounded channel. Once the swarm
/// has ended, commands do nothing.
#[derive(Clone, Debug)]
pub struct Network {
    pub(crate) commands: mpsc::Sender<SwarmCommand>,
    pub(crate) peers: watch::Receiver<Vec<PeerInfo>>,
    pub(crate) listen_addrs: watch::Receiver<Vec<Multiaddr>>,
    /// Requests for discovery's report; `None` without discovery.
    pub(crate) report_requests: Option<mpsc::Sender<ReportRequest>>,
    pub(crate) local: PeerId,
}

/// A command of the node to the swarm's task.
#[derive(Debug)]
pub(crate) enum SwarmCommand {
    Publish {
        payload: Arc<Payload>,
        signature: [u8; 65],
    },
    Settled {
        hash: B256,
        settled: Settled,
    },
    Heads(ChainHeads),
    Driven(bool),
    FetchBelow(Arc<Payload>),
    Signer(Address),
    UnknownSigner(oneshot::Sender<Address>),
    OwnKeyWatch(OwnKeyWatch),
    Operator(OperatorCommand),
}

/// Capacity of the channel of an own-key watch, in blocks. Further blocks are dropped.
const WATCHED: usize = 16;

impl Network {
    /// Gossips a block that this node built and signed. Returns when the command is queued, not
    /// when a peer has received the block. The block passes the same check as any other. If no peer
    /// is subscribed, the block is sent again when a peer subscribes.
    pub async fn publish(&self, payload: Arc<Payload>, signature: [u8; 65]) {
        let _ = self
            .commands
            .send(SwarmCommand::Publish { payload, signature })
            .await;
    }

    /// Reports the chain's verdict on a payload that was handed over as an [`crate::Event`].
    pub async fn settled(&self, hash: B256, settled: Settled) {
        let _ = self
            .commands
            .send(SwarmCommand::Settled { hash, settled })
            .await;
    }

    /// Reports the chain's heads to the swarm.
    pub async fn heads(&self, heads: ChainHeads) {
        let _ = self.commands.send(SwarmCommand::Heads(heads)).await;
    }

    /// Reports whether a rollup node moves the head. If so, ancestors are fetched only for the
    /// payloads that [`Network::fetch_below`] names; otherwise for every gossiped block whose
    /// parent is unknown.
    pub async fn driven(&self, driven: bool) {
        let _ = self.commands.send(SwarmCommand::Driven(driven)).await;
    }

    /// Fetches the missing ancestors of a payload that came over the Engine API. The ancestors are
    /// handed over parents first, and the payload after them. A second call for the same payload is
    /// harmless.
    pub async fn fetch_below(&self, payload: Arc<Payload>) {
        let _ = self.commands.send(SwarmCommand::FetchBelow(payload)).await;
    }

    /// Sets the unsafe block signer to the one that L1 names now. The zero address means no signer:
    /// all blocks are then ignored. The previous signer stays accepted for a while
    /// (`gossip::Signers`). The call also decides the offences held for an unknown signer.
    pub async fn set_signer(&self, signer: Address) {
        let _ = self.commands.send(SwarmCommand::Signer(signer)).await;
    }

    /// Waits until peers send blocks by an unknown signer, and returns that signer. Offences for
    /// its blocks are held until the next [`Network::set_signer`]. Returns `None` when the swarm
    /// has ended. One caller at a time.
    pub async fn unknown_signer(&self) -> Option<Address> {
        let (waiter, reported) = oneshot::channel();
        self.commands
            .send(SwarmCommand::UnknownSigner(waiter))
            .await
            .ok()?;
        reported.await.ok()
    }

    /// Opens a channel of the blocks that peers send from now on, that the check accepts and that
    /// `signer` has signed. A block of our own is among them if a peer sends it back after the
    /// check has forgotten it. There is one receiver: a later call replaces an earlier one.
    pub async fn blocks_signed_by(&self, signer: Address) -> mpsc::Receiver<Arc<Payload>> {
        let (blocks, watched) = mpsc::channel(WATCHED);
        let _ = self
            .commands
            .send(SwarmCommand::OwnKeyWatch(OwnKeyWatch { signer, blocks }))
            .await;
        watched
    }

    /// Number of connected peers.
    pub fn peer_count(&self) -> usize {
        self.peers.borrow().len()
    }

    /// The connected peers.
    pub fn peers(&self) -> Vec<PeerInfo> {
        self.peers.borrow().clone()
    }

    /// A watch channel of the connected peers, updated with every change.
    pub fn peers_watch(&self) -> watch::Receiver<Vec<PeerInfo>> {
        self.peers.clone()
    }

    /// The addresses we listen on, each with `/p2p/<our id>` at its end. The list is empty until
    /// shortly after the swarm starts.
    pub fn listen_addrs(&self) -> watch::Receiver<Vec<Multiaddr>> {
        self.listen_addrs.clone()
    }

    /// The peer id of this node.
    pub fn local_peer_id(&self) -> PeerId {
        self.local
    }
}
