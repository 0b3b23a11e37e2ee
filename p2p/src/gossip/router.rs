//! gossipsub, and the unpacking of messages around it.
//!
//! gossipsub by itself unpacks a message, and hashes the result for its id, in the swarm's task,
//! which blocks meanwhile: 10 MiB of zeros arrive as half a MiB and take 30 ms. So the connection
//! that received a message unpacks it ([`UnpackingHandler`]): a light message at once, a heavy or
//! huge one on another thread as soon as there is a permit for its [`Load`]. Permits are given in
//! the order of requests, and a connection requests one at a time. A heavy message thus waits for
//! at most one heavy message of every other connection, and a light message for none of them.
//! Trusted (static and protected) peers have permits of their own. A permit is held until the
//! message has been checked or dropped. This bounds the unpacked messages without a verdict. Also,
//! a copy of a bomb is mostly unpacked after the verdict on the bomb, so it is recognised. While no
//! signer is known, no block can be accepted, and only light messages are unpacked.
//!
//! Messages that no node of this network sends, on other topics or with an author, are removed
//! before they are unpacked.
//!
//! Overload: bombs. They wait for permits, and later gossip of the same connection waits behind
//! them. Behind a waiting message, up to [`MAX_PENDING_PARTS`] parts and [`MAX_PENDING_BYTES`] are
//! read from the same connection; then no gossip is read from or written to it.

use super::{
    timing::SharedTimings,
    topics::{Load, MessageParts, Snappy, unpack, weight},
};
use crate::peers::{Offence, gate::SharedGateRules};
use futures::{FutureExt, future::BoxFuture, ready};
use libp2p::{
    Multiaddr, PeerId,
    core::{Endpoint, transport::PortUse},
    gossipsub::{self, MessageId, RawMessage, TopicHash, WhitelistSubscriptionFilter},
    swarm::{
        ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm,
        NetworkBehaviour, SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
        handler::ConnectionEvent,
    },
};
use lru::LruCache;
use std::{
    collections::{HashSet, VecDeque},
    fmt,
    num::NonZeroUsize,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Number of messages of one load that may be unpacked and unchecked at a time: of trusted peers,
/// and as many of untrusted ones.
const PERMITS: usize = 1;
/// Largest number of parts of frames, and of bytes of their messages, that are read behind a
/// message that waits for a permit. A frame that begins below these bounds is read whole.
const MAX_PENDING_PARTS: usize = 64;
const MAX_PENDING_BYTES: usize = 1 << 20;
/// Number of bombs that are remembered, so that copies of them are recognised.
const BOMBS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// gossipsub with our unpacking. It accepts subscriptions to the topics of blocks only.
pub type Gossipsub = gossipsub::Behaviour<Snappy, WhitelistSubscriptionFilter>;

type RouterHandler = <Gossipsub as NetworkBehaviour>::ConnectionHandler;
type Inbound = <RouterHandler as ConnectionHandler>::InboundProtocol;
type Outbound = <RouterHandler as ConnectionHandler>::OutboundProtocol;
/// A report of gossipsub's handler to gossipsub: a frame, or a fact about the peer.
type GossipsubReport = <RouterHandler as ConnectionHandler>::ToBehaviour;

/// An event of the router.
#[derive(Debug)]
pub enum RouterEvent {
    /// An event of gossipsub. A heavy or huge message comes with its permit, to be held until the
    /// message has been checked.
    Gossip {
        event: gossipsub::Event,
        permit: Option<OwnedSemaphorePermit>,
    },
    /// An offence that the router found before any check.
    Offence {
        peer: PeerId,
        offence: Offence,
        evidence: String,
    },
}

/// Permits to unpack heavy and huge messages.
#[derive(Clone)]
struct LoadPermits {
    heavy: Arc<Semaphore>,
    huge: Arc<Semaphore>,
}

impl Default for LoadPermits {
    fn default() -> Self {
        let permits = || Arc::new(Semaphore::new(PERMITS));
        Self {
            heavy: permits(),
            huge: permits(),
        }
    }
}

impl LoadPermits {
    fn of(&self, load: Load) -> &Arc<Semaphore> {
        match load {
            Load::Light | Load::Heavy => &self.heavy,
            Load::Huge => &self.huge,
        }
    }
}

/// The permits of trusted (static and protected) peers, and those of all other peers.
#[derive(Clone, Default)]
struct UnpackPermits {
    trusted: LoadPermits,
    untrusted: LoadPermits,
}

/// A wrapper of gossipsub whose connection handlers unpack messages before gossipsub gets them.
pub struct Router {
    gossip: Gossipsub,
    snappy: Snappy,
    timings: SharedTimings,
    rules: SharedGateRules,
    permits: UnpackPermits,
    /// The topics that this node has joined.
    topics: Arc<HashSet<TopicHash>>,
    /// Whether blocks can be accepted, that is, whether a signer is known.
    accepting: Arc<AtomicBool>,
    bombs: LruCache<MessageId, ()>,
    /// Messages with a permit that gossipsub has got and not yet reported. gossipsub never reports
    /// duplicates, so their entries are removed when gossipsub is idle.
    unreported: Vec<(MessageId, OwnedSemaphorePermit)>,
    offences: VecDeque<RouterEvent>,
}

impl Router {
    /// A router around `gossip`, which has joined its topics and unpacks with `snappy`.
    pub fn new(
        gossip: Gossipsub,
        snappy: Snappy,
        timings: SharedTimings,
        rules: SharedGateRules,
    ) -> Self {
        let topics = Arc::new(gossip.topics().cloned().collect());
        Self {
            gossip,
            snappy,
            timings,
            rules,
            permits: UnpackPermits::default(),
            topics,
            accepting: Arc::new(AtomicBool::new(true)),
            bombs: LruCache::new(BOMBS),
            unreported: Vec::new(),
            offences: VecDeque::new(),
        }
    }

    /// Sets whether blocks can be accepted. If not, heavy and huge messages are dropped.
    pub fn set_accepting(&self, accepting: bool) {
        self.accepting.store(accepting, Ordering::Relaxed);
    }

    /// Marks a message as a bomb. Peers that send copies of it are then charged, although gossipsub
    /// does not report copies.
    pub fn condemn(&mut self, message: MessageId) {
        self.bombs.put(message, ());
    }

    /// Forgets all bombs. Called when the signer has changed: a message that was refused under the
    /// old signer may be valid for other peers.
    pub fn forget_bombs(&mut self) {
        self.bombs.clear();
    }

    fn handler(&self, peer: PeerId, router: RouterHandler) -> UnpackingHandler {
        let (rules, permits) = (self.rules.clone(), self.permits.clone());
        let (topics, accepting) = (self.topics.clone(), self.accepting.clone());
        UnpackingHandler {
            router,
            peer,
            rules,
            permits,
            topics,
            accepting,
            parts: VecDeque::new(),
            unpacking: None,
        }
    }

    fn charge(&mut self, peer: PeerId, offence: Offence, evidence: String) {
        self.offences.push_back(RouterEvent::Offence {
            peer,
            offence,
            evidence,
        });
    }
}

impl Deref for Router {
    type Target = Gossipsub;

    fn deref(&self) -> &Gossipsub {
        &self.gossip
    }
}

impl DerefMut for Router {
    fn deref_mut(&mut self) -> &mut Gossipsub {
        &mut self.gossip
    }
}

impl NetworkBehaviour for Router {
    type ConnectionHandler = UnpackingHandler;
    type ToSwarm = RouterEvent;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let router = self
            .gossip
            .handle_established_inbound_connection(connection, peer, local, remote)?;
        Ok(self.handler(peer, router))
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let router = self
            .gossip
            .handle_established_outbound_connection(connection, peer, address, role, port)?;
        Ok(self.handler(peer, router))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        self.gossip.on_swarm_event(event);
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        report: THandlerOutEvent<Self>,
    ) {
        let HandlerReport {
            report,
            unpacked,
            strays,
            permit,
        } = report;
        if strays > 0 {
            let evidence =
                format!("{strays} messages in one frame with an author, or on topics of others");
            self.charge(peer, Offence::Stray(strays), evidence);
        }
        if let Some(parts) = unpacked.as_deref().map(MessageParts::of) {
            let (id, bloat) = (MessageId::new(&parts.id), parts.bloat());
            if bloat > 0 && self.bombs.contains(&id) {
                self.charge(
                    peer,
                    Offence::Bomb(bloat),
                    "a copy of a message that was refused as one".into(),
                );
            }
            self.unreported.extend(permit.map(|permit| (id, permit)));
        }
        self.timings.set_sender(Some(peer));
        self.snappy.expect(unpacked);
        self.gossip
            .on_connection_handler_event(peer, connection, report);
        // gossipsub may have dropped the message without transforming it: clear the slot.
        self.snappy.expect(None);
        self.timings.set_sender(None);
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        if let Some(offence) = self.offences.pop_front() {
            return Poll::Ready(ToSwarm::GenerateEvent(offence));
        }
        let Poll::Ready(event) = self.gossip.poll(cx) else {
            // gossipsub is idle: messages still listed were duplicates or from graylisted peers;
            // release their permits.
            self.unreported.clear();
            return Poll::Pending;
        };
        Poll::Ready(event.map_out(|event| {
            let index = match &event {
                gossipsub::Event::Message { message_id, .. } => {
                    self.unreported.iter().position(|(id, _)| id == message_id)
                }
                _ => None,
            };
            RouterEvent::Gossip {
                event,
                permit: index.map(|index| self.unreported.swap_remove(index).1),
            }
        }))
    }
}

/// A report of a connection's handler: a frame with at most one message, unpacked.
pub struct HandlerReport {
    report: GossipsubReport,
    unpacked: Option<Vec<u8>>,
    /// Number of messages that were removed from the frame.
    strays: u32,
    /// Permit of a heavy or huge message.
    permit: Option<OwnedSemaphorePermit>,
}

impl fmt::Debug for HandlerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leave out the unpacked bytes: they may be megabytes.
        f.debug_struct("HandlerReport")
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

impl HandlerReport {
    fn new(Part { report, strays }: Part, permit: Option<OwnedSemaphorePermit>) -> Self {
        let unpacked = message(&report).map(unpack);
        Self {
            report,
            unpacked,
            strays,
            permit,
        }
    }
}

/// A part of a frame, with at most one message.
struct Part {
    report: GossipsubReport,
    strays: u32,
}

impl Part {
    fn of(report: GossipsubReport) -> Self {
        Self { report, strays: 0 }
    }

    fn bytes(&self) -> usize {
        message(&self.report).map_or(0, |message| message.data.len())
    }

    fn load(&self) -> Load {
        Load::of(message(&self.report).map_or(0, weight))
    }
}

/// The first message of a frame, if there is one.
fn message(report: &GossipsubReport) -> Option<&RawMessage> {
    match report {
        GossipsubReport::Message { rpc, .. } => rpc.messages.first(),
        _ => None,
    }
}

/// Splits a frame into one part per message; subscriptions and control messages are in the first
/// part. Messages outside `topics`, and those that the strict no-sign policy forbids, are removed
/// and counted.
fn split(report: GossipsubReport, topics: &HashSet<TopicHash>) -> VecDeque<Part> {
    let GossipsubReport::Message {
        mut rpc,
        invalid_messages,
    } = report
    else {
        return [Part::of(report)].into();
    };
    let came = rpc.messages.len() + invalid_messages.len();
    rpc.messages
        .retain(|message| topics.contains(&message.topic));
    let strays = u32::try_from(came - rpc.messages.len()).unwrap_or(u32::MAX);
    let whole = |rpc| GossipsubReport::Message {
        rpc,
        invalid_messages: Vec::new(),
    };
    if rpc.messages.len() < 2 {
        return [Part {
            report: whole(rpc),
            strays,
        }]
        .into();
    }
    let messages = std::mem::take(&mut rpc.messages);
    let mut bare = rpc.clone();
    bare.subscriptions.clear();
    bare.control_msgs.clear();
    let alone = |message| {
        let mut rpc = bare.clone();
        rpc.messages.push(message);
        Part::of(whole(rpc))
    };
    std::iter::once(Part {
        report: whole(rpc),
        strays,
    })
    .chain(messages.into_iter().map(alone))
    .collect()
}

/// The handler of one connection. It wraps gossipsub's handler and unpacks the messages that
/// arrive.
pub struct UnpackingHandler {
    router: RouterHandler,
    peer: PeerId,
    /// The rules, which list the trusted peers. They are looked up for each heavy or huge message,
    /// since they may change.
    rules: SharedGateRules,
    permits: UnpackPermits,
    topics: Arc<HashSet<TopicHash>>,
    accepting: Arc<AtomicBool>,
    /// Parts of frames that were read and not yet reported to gossipsub.
    parts: VecDeque<Part>,
    /// The heavy or huge message that is being unpacked or waits for its permit. The result is
    /// `None` if unpacking panics.
    unpacking: Option<BoxFuture<'static, Option<HandlerReport>>>,
}

impl UnpackingHandler {
    /// Unpacks a light message at once and returns it. For a heavier message, starts the unpacking,
    /// or drops the message if no block can be accepted.
    fn unpack_part(&mut self, mut part: Part) -> Option<HandlerReport> {
        let load = part.load();
        if load == Load::Light {
            return Some(HandlerReport::new(part, None));
        }
        if !self.accepting.load(Ordering::Relaxed) {
            metrics::counter!("starling_p2p_gossip_total", "verdict" => "no_signer").increment(1);
            if let GossipsubReport::Message { rpc, .. } = &mut part.report {
                rpc.messages.clear();
            }
            return Some(HandlerReport::new(part, None));
        }
        let trusted = self.rules.lock().trusted_peers.contains(&self.peer);
        let permits = if trusted {
            &self.permits.trusted
        } else {
            &self.permits.untrusted
        };
        let permits = permits.of(load).clone();
        let unpacking = async move {
            let permit = permits.acquire_owned().await.ok();
            tokio::task::spawn_blocking(move || HandlerReport::new(part, permit))
                .await
                .ok()
        };
        self.unpacking = Some(unpacking.boxed());
        None
    }

    fn is_full(&self) -> bool {
        let bytes: usize = self.parts.iter().map(Part::bytes).sum();
        self.parts.len() >= MAX_PENDING_PARTS || bytes >= MAX_PENDING_BYTES
    }
}

impl ConnectionHandler for UnpackingHandler {
    type FromBehaviour = <RouterHandler as ConnectionHandler>::FromBehaviour;
    type ToBehaviour = HandlerReport;
    type InboundProtocol = Inbound;
    type OutboundProtocol = Outbound;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = ();

    fn listen_protocol(&self) -> SubstreamProtocol<Inbound> {
        self.router.listen_protocol()
    }

    fn connection_keep_alive(&self) -> bool {
        self.router.connection_keep_alive()
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Outbound, (), HandlerReport>> {
        loop {
            if let Some(unpacking) = &mut self.unpacking
                && let Poll::Ready(report) = unpacking.poll_unpin(cx)
            {
                self.unpacking = None;
                if let Some(report) = report {
                    return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(report));
                }
            }
            if self.unpacking.is_none()
                && let Some(part) = self.parts.pop_front()
            {
                match self.unpack_part(part) {
                    Some(report) => {
                        return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(report));
                    }
                    None => continue,
                }
            }
            // gossipsub's handler writes and reads in one call, and the messages read go to
            // `parts`. `parts` fills up behind a message that waits for its permit or is being
            // unpacked. While `parts` is full we cannot read, so we cannot write either.
            if self.is_full() {
                return Poll::Pending;
            }
            match ready!(self.router.poll(cx)) {
                ConnectionHandlerEvent::NotifyBehaviour(report) => {
                    self.parts.extend(split(report, &self.topics))
                }
                event => {
                    return Poll::Ready(
                        event.map_custom(|report| HandlerReport::new(Part::of(report), None)),
                    );
                }
            }
        }
    }

    /// Reports the light parts that were read, and a message being unpacked, after a disconnect.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Option<HandlerReport>> {
        if let Some(unpacking) = &mut self.unpacking {
            let report = ready!(unpacking.poll_unpin(cx));
            self.unpacking = None;
            if report.is_some() {
                return Poll::Ready(report);
            }
        }
        // Report light messages only. Heavy and huge ones are discarded: do no more work for a
        // closed connection.
        while let Some(part) = self.parts.pop_front() {
            if part.load() == Load::Light {
                return Poll::Ready(Some(HandlerReport::new(part, None)));
            }
        }
        self.router
            .poll_close(cx)
            .map(|report| report.map(|report| HandlerReport::new(Part::of(report), None)))
    }

    fn on_behaviour_event(&mut self, event: Self::FromBehaviour) {
        self.router.on_behaviour_event(event);
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<'_, Inbound, Outbound>) {
        self.router.on_connection_event(event);
    }
}

#[cfg(test)]
mod tests;
