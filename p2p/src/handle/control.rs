//! Commands of an operator, and the reports that an operator sees. All but the report of discovery
//! use the same channel to the swarm's task as other commands. Each method returns once the task
//! has carried out its command.

use super::{Network, SwarmCommand};
use crate::{
    address::static_peer,
    discovery::DiscoveryReport,
    gossip::timing::BlockTiming,
    peers::{ledger::LedgerEntry, score::Scores},
    types::{MeshReport, RefusedPeers, Subject, SyncReport},
};
use alloy_primitives::Address;
use libp2p::{Multiaddr, PeerId};
use std::time::Duration;
use tokio::{sync::oneshot, time::timeout};

/// Time limit of [`Network::connect`].
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The swarm's task has ended.
    #[error("the swarm has ended")]
    Gone,
    /// The address has no peer id.
    #[error("bad peer address: it does not end in /p2p/<peer id>")]
    NoPeerId,
    /// The connection failed.
    #[error("cannot connect to {peer}: {reason}")]
    Connect {
        /// The peer that we dialled.
        peer: PeerId,
        /// The cause, as text.
        reason: String,
    },
    /// The peer id is our own.
    #[error("{0} is this node")]
    Ourselves(PeerId),
}

/// The direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The peer dialled us.
    Inbound,
    /// We dialled the peer.
    Outbound,
}

/// A peer that is or was connected, or is static; or this node itself.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerReport {
    /// The id of the peer.
    pub id: PeerId,
    /// The peer's node record (`enr:…`), if discovery found it.
    pub record: Option<String>,
    /// The name and version that the peer reports; empty until it is identified.
    pub agent: String,
    /// The protocol version that the peer reports.
    pub protocol_version: String,
    /// The addresses that the peer listens on, or was dialled at, each with `/p2p/<id>` at its end.
    pub addresses: Vec<Multiaddr>,
    /// The protocols that the peer supports.
    pub protocols: Vec<String>,
    /// Whether the peer is connected.
    pub connected: bool,
    /// Direction of the oldest connection; `None` while not connected.
    pub direction: Option<Direction>,
    /// Whether the peer is in `--p2p.static`.
    pub is_static: bool,
    /// Whether the peer is static, or protected by an operator.
    pub protected: bool,
    /// Round-trip time of the last ping.
    pub latency: Duration,
    /// Whether the peer is subscribed to a topic of blocks.
    pub subscribed: bool,
    /// Whether the peer is in the mesh of a topic of blocks.
    pub in_mesh: bool,
    /// The scores of the peer.
    pub scores: Scores,
}

/// The state of the swarm at one moment.
#[derive(Clone, Debug)]
pub struct SwarmReport {
    /// This node.
    pub local: PeerReport,
    /// Connected peers, static peers, and peers that disconnected lately.
    pub peers: Vec<PeerReport>,
    /// Blocked peers, addresses and subnets, and the bans in force.
    pub refused: RefusedPeers,
    /// The mesh of every topic.
    pub mesh: Vec<MeshReport>,
    /// Progress of sync.
    pub sync: SyncReport,
    /// The newest blocks that came by gossip, newest first.
    pub blocks: Vec<BlockTiming>,
}

/// The channel for the response to a command.
type ReplyTo<T> = oneshot::Sender<T>;

/// A command of an operator.
#[derive(Debug)]
pub(crate) enum OperatorCommand {
    Report(ReplyTo<SwarmReport>),
    Signer(ReplyTo<Option<Address>>),
    Ledger {
        peer: Option<PeerId>,
        limit: usize,
        done: ReplyTo<Vec<LedgerEntry>>,
    },
    Block {
        subject: Subject,
        blocked: bool,
        done: ReplyTo<()>,
    },
    Protect {
        peer: PeerId,
        protected: bool,
        done: ReplyTo<()>,
    },
    Connect {
        peer: PeerId,
        address: Multiaddr,
        done: ReplyTo<Result<(), String>>,
    },
    Disconnect {
        peer: PeerId,
        done: ReplyTo<()>,
    },
}

impl Network {
    /// The state of the swarm.
    pub async fn report(&self) -> Result<SwarmReport, NetworkError> {
        self.request(OperatorCommand::Report).await
    }

    /// The signer whose blocks are accepted; `None` if no blocks are accepted. The previous signer
    /// may be accepted too, until the current one has signed a block.
    pub async fn signer(&self) -> Result<Option<Address>, NetworkError> {
        self.request(OperatorCommand::Signer).await
    }

    /// The state of discovery. `None` if discovery is off or its socket is not yet bound.
    pub async fn discovery(&self) -> Option<DiscoveryReport> {
        let (done, reply) = oneshot::channel();
        self.report_requests.as_ref()?.send(done).await.ok()?;
        reply.await.ok()
    }

    /// At most `limit` of the newest ledger entries, newest first. If `peer` is given, only its
    /// entries.
    pub async fn ledger(
        &self,
        peer: Option<PeerId>,
        limit: usize,
    ) -> Result<Vec<LedgerEntry>, NetworkError> {
        self.request(|done| OperatorCommand::Ledger { peer, limit, done })
            .await
    }

    /// Blocks new connections with `subject`, or unblocks it. Existing connections stay. Unblocking
    /// a peer or an address also ends its ban.
    pub async fn block(&self, subject: Subject, blocked: bool) -> Result<(), NetworkError> {
        self.request(|done| OperatorCommand::Block {
            subject,
            blocked,
            done,
        })
        .await
    }

    /// Protects a peer, or ends the protection. A protected peer is never banned or trimmed.
    pub async fn protect(&self, peer: PeerId, protected: bool) -> Result<(), NetworkError> {
        self.request(|done| OperatorCommand::Protect {
            peer,
            protected,
            done,
        })
        .await
    }

    /// Connects to the peer whose id is at the end of the address. Returns when the peer is
    /// identified, or with an error if the connection fails or 30 seconds have passed.
    pub async fn connect(&self, address: &Multiaddr) -> Result<(), NetworkError> {
        let (address, peer) = static_peer(address).ok_or(NetworkError::NoPeerId)?;
        if peer == self.local {
            return Err(NetworkError::Ourselves(peer));
        }
        let connected = self.request(|done| OperatorCommand::Connect {
            peer,
            address,
            done,
        });
        let outcome = timeout(CONNECT_TIMEOUT, connected)
            .await
            .unwrap_or_else(|_| Ok(Err("no answer within 30 s".into())))?;
        outcome.map_err(|reason| NetworkError::Connect { peer, reason })
    }

    /// Closes the peer's connections, drops its score, ends its ban, and unblocks it.
    pub async fn disconnect(&self, peer: PeerId) -> Result<(), NetworkError> {
        self.request(|done| OperatorCommand::Disconnect { peer, done })
            .await
    }

    async fn request<T>(
        &self,
        make: impl FnOnce(ReplyTo<T>) -> OperatorCommand,
    ) -> Result<T, NetworkError> {
        let (done, reply) = oneshot::channel();
        self.commands
            .send(SwarmCommand::Operator(make(done)))
            .await
            .map_err(|_| NetworkError::Gone)?;
        reply.await.map_err(|_| NetworkError::Gone)
    }
}
