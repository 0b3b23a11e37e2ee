//! What an operator may ask of the swarm, and see of it. Commands go to the swarm's task like all others; each is answered once it
//! is done.

use super::{Command, Network};
use crate::{
    discovery::DiscoveryReport,
    peers::{ledger::Entry, score::Scores},
    propagation::Passage,
};
use alloy_primitives::Address;
use ipnet::IpNet;
use libp2p::{Multiaddr, PeerId};
use serde::Serialize;
use std::{net::IpAddr, time::Duration};
use tokio::{sync::oneshot, time::timeout};

/// How long [`Network::connect`] waits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a wish was not fulfilled.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("the swarm has ended")]
    Gone,
    #[error("bad peer address: it does not end in /p2p/<peer id>")]
    NoPeerId,
    #[error("cannot connect to {peer}: {reason}")]
    Connect { peer: PeerId, reason: String },
    #[error("{0} is this node")]
    Ourselves(PeerId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Inbound,
    Outbound,
}

/// A peer that is or was connected, or is static; or this node itself.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerReport {
    pub id: PeerId,
    /// What discovery knows it by (`enr:…`).
    pub record: Option<String>,
    pub agent: String,
    pub protocol_version: String,
    /// What it listens on, or where it was dialled, each with `/p2p/<id>` at its end.
    pub addresses: Vec<Multiaddr>,
    pub protocols: Vec<String>,
    pub connected: bool,
    /// `None` while not connected.
    pub direction: Option<Direction>,
    pub is_static: bool,
    /// Static, or protected by an operator.
    pub protected: bool,
    /// Of the last ping's answer.
    pub latency: Duration,
    /// It listens to a topic of blocks.
    pub subscribed: bool,
    /// It is in the mesh of a topic of blocks.
    pub in_mesh: bool,
    pub scores: Scores,
}

/// A ban in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BanReport {
    /// A peer's id or an address.
    pub subject: String,
    /// Unix seconds.
    pub until: u64,
    pub reason: String,
}

/// What an operator blocked, and what is banned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    pub peers: Vec<PeerId>,
    pub addresses: Vec<IpAddr>,
    pub subnets: Vec<IpNet>,
    pub bans: Vec<BanReport>,
}

/// A topic and the peers in its mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshReport {
    pub topic: String,
    pub subscribers: Vec<PeerId>,
    pub mesh: Vec<PeerId>,
}

/// How far the gap below the newest block is filled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncReport {
    /// The block that is worked toward; `None` without a gap.
    pub target: Option<u64>,
    /// Blocks still to hand over below it.
    pub missing: u64,
    /// Whether the way down to a known block has been found.
    pub linked: bool,
    /// Blocks beside it that wait for their parents.
    pub waiting: u64,
    /// Requests in the air.
    pub requests: u64,
    /// Peers that many blocks at once can be asked of.
    pub peers: u64,
    /// Whom blocks are asked of one by one, with commas between.
    pub source: Option<String>,
    /// Something is missing, and every peer has failed lately.
    pub starved: bool,
    /// Nothing has come for a while: what is missing, and from whom.
    pub stalled: Option<String>,
}

/// The swarm at one moment.
#[derive(Clone, Debug)]
pub struct Report {
    pub local: PeerReport,
    /// Connected peers, and others that are known.
    pub peers: Vec<PeerReport>,
    pub refused: Refused,
    pub mesh: Vec<MeshReport>,
    pub sync: SyncReport,
    /// The newest blocks that came by gossip, newest first.
    pub blocks: Vec<Passage>,
}

/// What can be refused by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Peer(PeerId),
    Address(IpAddr),
    Subnet(IpNet),
}

type Done<T> = oneshot::Sender<T>;

#[derive(Debug)]
pub(crate) enum Control {
    Report(Done<Report>),
    Signer(Done<Option<Address>>),
    Ledger {
        peer: Option<PeerId>,
        limit: usize,
        done: Done<Vec<Entry>>,
    },
    Block {
        subject: Subject,
        blocked: bool,
        done: Done<()>,
    },
    Protect {
        peer: PeerId,
        protected: bool,
        done: Done<()>,
    },
    Connect {
        peer: PeerId,
        address: Multiaddr,
        done: Done<Result<(), String>>,
    },
    Disconnect {
        peer: PeerId,
        done: Done<()>,
    },
}

impl Network {
    pub async fn report(&self) -> Result<Report, ControlError> {
        self.ask(Control::Report).await
    }

    /// Whose blocks are accepted; `None`: nobody's. The one before may be accepted, too, until this one has signed a block.
    pub async fn signer(&self) -> Result<Option<Address>, ControlError> {
        self.ask(Control::Signer).await
    }

    /// What discovery does; `None` without it, and until its socket is bound.
    pub async fn discovery(&self) -> Option<DiscoveryReport> {
        let (done, answer) = oneshot::channel();
        self.questions.as_ref()?.send(done).await.ok()?;
        answer.await.ok()
    }

    /// The newest decisions, newest first; of one peer if one is named.
    pub async fn ledger(
        &self,
        peer: Option<PeerId>,
        limit: usize,
    ) -> Result<Vec<Entry>, ControlError> {
        self.ask(|done| Control::Ledger { peer, limit, done }).await
    }

    /// Refuses new connections, or no longer. Connections that exist stay. Ending the block of a peer or an address ends its ban too.
    pub async fn block(&self, subject: Subject, blocked: bool) -> Result<(), ControlError> {
        self.ask(|done| Control::Block {
            subject,
            blocked,
            done,
        })
        .await
    }

    /// A protected peer is never banned, nor dropped for being one too many.
    pub async fn protect(&self, peer: PeerId, protected: bool) -> Result<(), ControlError> {
        self.ask(|done| Control::Protect {
            peer,
            protected,
            done,
        })
        .await
    }

    /// Connects to the peer whose id the address ends in; returns when it has said who it is, within 30 seconds.
    pub async fn connect(&self, address: &Multiaddr) -> Result<(), ControlError> {
        let (address, peer) = crate::config::static_peer(address).ok_or(ControlError::NoPeerId)?;
        if peer == self.local {
            return Err(ControlError::Ourselves(peer));
        }
        let asked = self.ask(|done| Control::Connect {
            peer,
            address,
            done,
        });
        let outcome = timeout(CONNECT_TIMEOUT, asked)
            .await
            .unwrap_or_else(|_| Ok(Err("no answer within 30 s".into())))?;
        outcome.map_err(|reason| ControlError::Connect { peer, reason })
    }

    /// Closes the peer's connections and forgets it, its score, its ban and its block.
    pub async fn disconnect(&self, peer: PeerId) -> Result<(), ControlError> {
        self.ask(|done| Control::Disconnect { peer, done }).await
    }

    async fn ask<T>(&self, make: impl FnOnce(Done<T>) -> Control) -> Result<T, ControlError> {
        let (done, answer) = oneshot::channel();
        self.commands
            .send(Command::Control(make(done)))
            .await
            .map_err(|_| ControlError::Gone)?;
        answer.await.map_err(|_| ControlError::Gone)
    }
}
