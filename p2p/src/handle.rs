//! The node's side of the swarm: what it may ask ([`Network`]), what it is told ([`Event`]), what it must answer ([`Blocks`],
//! [`Network::settled`]).

mod control;

pub(crate) use control::Control;
pub use control::{
    BanReport, ControlError, Direction, MeshReport, PeerReport, Refused, Report, Subject,
    SyncReport,
};

use crate::discovery::Question;
use alloy_primitives::{Address, B256};
use libp2p::{Multiaddr, PeerId};
use starling_proto::{
    payload::{BlockId, Payload},
    wire,
};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// How a payload came to us; it decides what is trusted about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// Gossip, signed by this address.
    Signed(Address),
    /// Its hash is the parent hash of a trusted payload.
    Linked {
        /// Height of the signed block above it.
        tip: u64,
    },
    /// The Engine API (JWT).
    Engine,
    /// An ancestor, linked by parent hashes, of the payload `of`, which came over the Engine API.
    Ancestor { of: BlockId },
    /// `admin_postUnsafePayload`.
    Admin,
    /// Derived from L1.
    Derived,
    /// Built by this node.
    Built,
    /// Read from a file or the payload log.
    Imported,
}

/// A payload for the chain. Parents come first; every one must be answered with [`Network::settled`].
#[derive(Clone, Debug)]
pub struct Event {
    pub payload: Arc<Payload>,
    pub provenance: Provenance,
    /// Whom to blame if the chain finds it invalid.
    pub blame: Option<PeerId>,
}

/// The chain's verdict on a payload handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Executed, or at least kept: children may be handed over.
    Ok,
    /// It breaks a rule, for ever. Neither it nor its descendants are handed over or fetched again.
    Invalid(String),
    /// The chain did not take it (no parent there, no room). It is forgotten, and handed over again when it is needed again.
    Dropped,
}

/// What the swarm needs to know of the chain's heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    pub head: BlockId,
    pub safe: BlockId,
}

/// What the chain answers to the swarm. Called from the threads that check, fetch and serve, never from the swarm task.
pub trait Blocks: Send + Sync + 'static {
    /// Whether the chain has executed this block (on any branch).
    fn knows(&self, hash: B256) -> bool;
    /// The canonical block of this height.
    fn block(&self, number: u64) -> Option<Payload>;
    /// The hash of the canonical block of this height.
    fn hash(&self, number: u64) -> Option<B256> {
        self.block(number).map(|block| block.hash)
    }
    /// Hands the RLP of the headers of a block and of its ancestors to `take`, highest first, until that says `false`. Nothing if the
    /// block is not, or no longer, canonical.
    fn headers(&self, from: BlockId, take: &mut dyn FnMut(&[u8]) -> bool) {
        if self.hash(from.number) == Some(from.hash) {
            let blocks = (0..=from.number)
                .rev()
                .map_while(|number| self.block(number));
            blocks
                .map(|block| wire::encode_block(&block))
                .all(|[header, _]| take(&header));
        }
    }
    /// Hands the blocks from `first` up to `last` to `take`, lowest first, until that says `false`: the RLP of the header, and that of
    /// the list of raw transactions. Nothing if the last is not, or no longer, canonical: then it is `false`.
    fn bodies(
        &self,
        first: u64,
        last: BlockId,
        take: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> bool {
        let canonical = self.hash(last.number) == Some(last.hash);
        if canonical {
            let blocks = (first..=last.number).map_while(|number| self.block(number));
            blocks
                .map(|block| wire::encode_block(&block))
                .all(|[header, list]| take(&header, &list));
        }
        canonical
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
    pub id: PeerId,
    /// Where the connection leads.
    pub address: Multiaddr,
    /// What it calls itself; empty until it said so.
    pub agent: String,
    /// We dialled it.
    pub outbound: bool,
    /// A static peer, or one that an operator protects.
    pub protected: bool,
    /// One, but for moments when both sides dialled.
    pub connections: usize,
}

/// A cloneable handle to the swarm task. Commands go through a bounded channel; once the swarm has ended they do nothing.
#[derive(Clone, Debug)]
pub struct Network {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) peers: watch::Receiver<Vec<PeerInfo>>,
    pub(crate) listen_addrs: watch::Receiver<Vec<Multiaddr>>,
    /// To discovery, if there is one.
    pub(crate) questions: Option<mpsc::Sender<Question>>,
    pub(crate) local: PeerId,
}

#[derive(Debug)]
pub(crate) enum Command {
    Publish {
        payload: Arc<Payload>,
        signature: [u8; 65],
    },
    Settled {
        hash: B256,
        settled: Settled,
    },
    Heads(Heads),
    Driven(bool),
    FetchBelow(Arc<Payload>),
    Signer(Address),
    Doubt(oneshot::Sender<Address>),
    Witness(Witness),
    Control(Control),
}

/// Who is told of the blocks that peers send and one address signed.
#[derive(Debug)]
pub(crate) struct Witness {
    pub signer: Address,
    pub blocks: mpsc::Sender<Arc<Payload>>,
}

/// Blocks that a witness has not looked at yet; past it they are not told.
const WITNESSED: usize = 16;

impl Network {
    /// Gossips a block that this node built and signed. Returns when the swarm has taken it, not when a peer has. The block passes
    /// the same check as any other; one that finds no subscriber is sent again when one comes.
    pub async fn publish(&self, payload: Arc<Payload>, signature: [u8; 65]) {
        let _ = self
            .commands
            .send(Command::Publish { payload, signature })
            .await;
    }

    /// The verdict on a payload handed over as an [`Event`].
    pub async fn settled(&self, hash: B256, settled: Settled) {
        let _ = self.commands.send(Command::Settled { hash, settled }).await;
    }

    /// Tells the swarm where the chain stands.
    pub async fn heads(&self, heads: Heads) {
        let _ = self.commands.send(Command::Heads(heads)).await;
    }

    /// Reports whether a rollup node moves the head. If so, ancestors are fetched only for the payloads that [`Network::fetch_below`]
    /// names; otherwise for every gossiped block whose parent is unknown.
    pub async fn driven(&self, driven: bool) {
        let _ = self.commands.send(Command::Driven(driven)).await;
    }

    /// Fetches the missing ancestors of a payload that came over the Engine API. They are handed over parents first, and the payload after
    /// them. Calling it again for the same payload is harmless.
    pub async fn fetch_below(&self, payload: Arc<Payload>) {
        let _ = self.commands.send(Command::FetchBelow(payload)).await;
    }

    /// The unsafe block signer that L1 names now; zero is none, and blocks are ignored. The one before stays accepted for a while
    /// (`gossip::Signers`). Answers a doubt.
    pub async fn set_signer(&self, signer: Address) {
        let _ = self.commands.send(Command::Signer(signer)).await;
    }

    /// Waits until peers send blocks by a signer that is unknown. What they did is judged by the next [`Network::set_signer`].
    /// `None` when the swarm has ended. One caller at a time.
    pub async fn signer_in_doubt(&self) -> Option<Address> {
        let (asker, asked) = oneshot::channel();
        self.commands.send(Command::Doubt(asker)).await.ok()?;
        asked.await.ok()
    }

    /// The accepted blocks that peers send and `signer` has signed, from now on: also ours when they come back and have been
    /// forgotten. For one receiver; a later one takes its place.
    pub async fn blocks_signed_by(&self, signer: Address) -> mpsc::Receiver<Arc<Payload>> {
        let (blocks, witnessed) = mpsc::channel(WITNESSED);
        let _ = self
            .commands
            .send(Command::Witness(Witness { signer, blocks }))
            .await;
        witnessed
    }

    pub fn peer_count(&self) -> usize {
        self.peers.borrow().len()
    }

    pub fn peers(&self) -> Vec<PeerInfo> {
        self.peers.borrow().clone()
    }

    /// The addresses we listen on, each with `/p2p/<our id>` at its end. Filled soon after the swarm runs.
    pub fn listen_addrs(&self) -> watch::Receiver<Vec<Multiaddr>> {
        self.listen_addrs.clone()
    }

    pub fn local_peer_id(&self) -> PeerId {
        self.local
    }
}
