//! The router, and what stands around it: messages are unpacked before the router sees them.
//!
//! By itself the router unpacks a message, and hashes what comes out for its id, where it decides what becomes of it: in the swarm's
//! task, in which nothing else moves meanwhile. 10 MiB of zeros come in half a MiB and are 30 ms of work. So the connection that brought
//! a message unpacks it ([`Handler`]): a light one at once, a heavy or huge one on another thread as soon as there is a place for its
//! [`Load`]. The places are given in the order of asking and a connection asks for one at a time, so a heavy block waits for one heavy
//! message of every other peer at most, and a light one for none; static and protected peers have places of their own. A place is taken
//! until the message has been checked, or nobody wants it checked: what is unpacked and not yet judged is bounded, and a copy of a bomb
//! is known for one when it is looked at. While no signer is known, no block can be accepted, and only what is light is unpacked at all.
//!
//! Messages that no node of this network sends, on topics of others or with an author, are taken out before anything is done for them.
//!
//! What can overload it: bombs. They wait, and their senders with them: what follows on the same connection is read up to
//! [`WAITING`], then no more of it, nor does anything go out on it.

use crate::{
    behaviour::Gossip,
    gate::SharedRules,
    peers::Offence,
    propagation::SharedPropagation,
    topics::{Load, Parts, Snappy, unpack, weight},
};
use futures::{FutureExt, future::BoxFuture, ready};
use libp2p::{
    Multiaddr, PeerId,
    core::{Endpoint, transport::PortUse},
    gossipsub::{self, MessageId, RawMessage, TopicHash},
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

/// Messages of one load, of strangers and of static and protected peers, that are unpacked at once.
const PLACES: usize = 1;
/// Parts of frames, and bytes of messages in them, that may wait behind one that waits for a place, before no more is read; a frame that
/// was begun below it comes whole.
const WAITING: (usize, usize) = (64, 1 << 20);
/// Bombs that are remembered.
const BOMBS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

type RouterHandler = <Gossip as NetworkBehaviour>::ConnectionHandler;
type Inbound = <RouterHandler as ConnectionHandler>::InboundProtocol;
type Outbound = <RouterHandler as ConnectionHandler>::OutboundProtocol;
/// What the router's handler tells it of a peer.
type Heard = <RouterHandler as ConnectionHandler>::ToBehaviour;

/// What the router tells.
#[derive(Debug)]
pub enum Event {
    /// With a message that is not light comes its place, to be kept until the message has been checked.
    Gossip {
        event: gossipsub::Event,
        place: Option<OwnedSemaphorePermit>,
    },
    /// Seen before any check, or without one.
    Offence {
        peer: PeerId,
        offence: Offence,
        evidence: String,
    },
}

/// Where messages are unpacked that are not light.
#[derive(Clone)]
struct Places {
    heavy: Arc<Semaphore>,
    huge: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        let places = || Arc::new(Semaphore::new(PLACES));
        Self {
            heavy: places(),
            huge: places(),
        }
    }
}

/// The router, which is told what its handlers have unpacked.
pub struct Router {
    gossip: Gossip,
    snappy: Snappy,
    propagation: SharedPropagation,
    rules: SharedRules,
    /// For strangers, and for static and protected peers.
    places: [Places; 2],
    /// Ours.
    topics: Arc<HashSet<TopicHash>>,
    /// Whether a block can be accepted.
    listens: Arc<AtomicBool>,
    bombs: LruCache<MessageId, ()>,
    /// Messages with a place that the router has looked at and has not told of, if it will.
    looked_at: Vec<(MessageId, OwnedSemaphorePermit)>,
    offences: VecDeque<Event>,
}

impl Router {
    /// `gossip` is joined to its topics, and unpacks with `snappy`.
    pub fn new(
        gossip: Gossip,
        snappy: Snappy,
        propagation: SharedPropagation,
        rules: SharedRules,
    ) -> Self {
        let topics = Arc::new(gossip.topics().cloned().collect());
        Self {
            gossip,
            snappy,
            propagation,
            rules,
            places: Default::default(),
            topics,
            listens: Arc::new(AtomicBool::new(true)),
            bombs: LruCache::new(BOMBS),
            looked_at: Vec::new(),
            offences: VecDeque::new(),
        }
    }

    /// Whether blocks are accepted at all; if not, what is not light is passed over.
    pub fn listen(&self, listens: bool) {
        self.listens.store(listens, Ordering::Relaxed);
    }

    /// No peer has reason to send this message: whoever sends a copy of it is charged, though the router will not tell of it again.
    pub fn condemn(&mut self, message: MessageId) {
        self.bombs.put(message, ());
    }

    /// Whose word counts has changed: what was refused before may have been accepted by others.
    pub fn forget_bombs(&mut self) {
        self.bombs.clear();
    }

    fn handler(&self, peer: PeerId, router: RouterHandler) -> Handler {
        let (rules, places) = (self.rules.clone(), self.places.clone());
        let (topics, listens) = (self.topics.clone(), self.listens.clone());
        Handler {
            router,
            peer,
            rules,
            places,
            topics,
            listens,
            parts: VecDeque::new(),
            unpacking: None,
        }
    }

    fn charge(&mut self, peer: PeerId, offence: Offence, evidence: String) {
        self.offences.push_back(Event::Offence {
            peer,
            offence,
            evidence,
        });
    }
}

impl Deref for Router {
    type Target = Gossip;

    fn deref(&self) -> &Gossip {
        &self.gossip
    }
}

impl DerefMut for Router {
    fn deref_mut(&mut self) -> &mut Gossip {
        &mut self.gossip
    }
}

impl NetworkBehaviour for Router {
    type ConnectionHandler = Handler;
    type ToSwarm = Event;

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
        told: THandlerOutEvent<Self>,
    ) {
        let Told {
            heard,
            unpacked,
            strays,
            place,
        } = told;
        if strays > 0 {
            let evidence =
                format!("{strays} messages in one frame with an author, or on topics of others");
            self.charge(peer, Offence::Stray(strays), evidence);
        }
        if let Some(parts) = unpacked.as_deref().map(Parts::of) {
            let (id, bloat) = (MessageId::new(&parts.id), parts.bloat());
            if bloat > 0 && self.bombs.contains(&id) {
                self.charge(
                    peer,
                    Offence::Bomb(bloat),
                    "a copy of a message that was refused as one".into(),
                );
            }
            self.looked_at.extend(place.map(|place| (id, place)));
        }
        self.propagation.looks_at(Some(peer));
        self.snappy.expect(unpacked);
        self.gossip
            .on_connection_handler_event(peer, connection, heard);
        // It may have refused to look.
        self.snappy.expect(None);
        self.propagation.looks_at(None);
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        if let Some(offence) = self.offences.pop_front() {
            return Poll::Ready(ToSwarm::GenerateEvent(offence));
        }
        let Poll::Ready(event) = self.gossip.poll(cx) else {
            // It has told all that it will: the others were copies, or of a peer that it does not hear.
            self.looked_at.clear();
            return Poll::Pending;
        };
        Poll::Ready(event.map_out(|event| {
            let index = match &event {
                gossipsub::Event::Message { message_id, .. } => {
                    self.looked_at.iter().position(|(id, _)| id == message_id)
                }
                _ => None,
            };
            Event::Gossip {
                event,
                place: index.map(|index| self.looked_at.swap_remove(index).1),
            }
        }))
    }
}

/// What a handler tells: of messages one at a time, and unpacked.
pub struct Told {
    heard: Heard,
    unpacked: Option<Vec<u8>>,
    /// Messages of the frame that were taken out.
    strays: u32,
    /// Of a message that is not light.
    place: Option<OwnedSemaphorePermit>,
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the bytes.
        f.debug_struct("Told")
            .field("heard", &self.heard)
            .finish_non_exhaustive()
    }
}

impl Told {
    fn new(Part { heard, strays }: Part, place: Option<OwnedSemaphorePermit>) -> Self {
        let unpacked = message(&heard).map(unpack);
        Self {
            heard,
            unpacked,
            strays,
            place,
        }
    }
}

/// A frame with at most one message.
struct Part {
    heard: Heard,
    strays: u32,
}

impl Part {
    fn of(heard: Heard) -> Self {
        Self { heard, strays: 0 }
    }

    fn bytes(&self) -> usize {
        message(&self.heard).map_or(0, |message| message.data.len())
    }

    fn load(&self) -> Load {
        Load::of(message(&self.heard).map_or(0, weight))
    }
}

/// The first message of a frame.
fn message(heard: &Heard) -> Option<&RawMessage> {
    match heard {
        Heard::Message { rpc, .. } => rpc.messages.first(),
        _ => None,
    }
}

/// A frame as several with a message each; what else it says comes first. Without messages that are on no topic of `topics`, and those
/// that strict no-sign forbids, which the router has put aside.
fn apart(heard: Heard, topics: &HashSet<TopicHash>) -> VecDeque<Part> {
    let Heard::Message {
        mut rpc,
        invalid_messages,
    } = heard
    else {
        return [Part::of(heard)].into();
    };
    let came = rpc.messages.len() + invalid_messages.len();
    rpc.messages
        .retain(|message| topics.contains(&message.topic));
    let strays = u32::try_from(came - rpc.messages.len()).unwrap_or(u32::MAX);
    let whole = |rpc| Heard::Message {
        rpc,
        invalid_messages: Vec::new(),
    };
    if rpc.messages.len() < 2 {
        return [Part {
            heard: whole(rpc),
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
        heard: whole(rpc),
        strays,
    })
    .chain(messages.into_iter().map(alone))
    .collect()
}

/// The router's handler of a connection, behind which messages are unpacked.
pub struct Handler {
    router: RouterHandler,
    peer: PeerId,
    /// Whether the peer is a friend may change.
    rules: SharedRules,
    places: [Places; 2],
    topics: Arc<HashSet<TopicHash>>,
    listens: Arc<AtomicBool>,
    /// What came, and the router has not been told.
    parts: VecDeque<Part>,
    /// A message that is not light; nothing comes of it if that panics.
    unpacking: Option<BoxFuture<'static, Option<Told>>>,
}

impl Handler {
    /// Tells a light message unpacked, and begins with another if it can be accepted.
    fn tell(&mut self, mut part: Part) -> Option<Told> {
        let load = part.load();
        if load == Load::Light {
            return Some(Told::new(part, None));
        }
        if !self.listens.load(Ordering::Relaxed) {
            metrics::counter!("starling_p2p_gossip_total", "verdict" => "no_signer").increment(1);
            if let Heard::Message { rpc, .. } = &mut part.heard {
                rpc.messages.clear();
            }
            return Some(Told::new(part, None));
        }
        let places = &self.places[usize::from(self.rules.lock().friends.contains(&self.peer))];
        let places = if load == Load::Heavy {
            &places.heavy
        } else {
            &places.huge
        }
        .clone();
        let unpacking = async move {
            let place = places.acquire_owned().await.ok();
            tokio::task::spawn_blocking(move || Told::new(part, place))
                .await
                .ok()
        };
        self.unpacking = Some(unpacking.boxed());
        None
    }

    fn is_full(&self) -> bool {
        let bytes: usize = self.parts.iter().map(Part::bytes).sum();
        self.parts.len() >= WAITING.0 || bytes >= WAITING.1
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = <RouterHandler as ConnectionHandler>::FromBehaviour;
    type ToBehaviour = Told;
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

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<Outbound, (), Told>> {
        loop {
            if let Some(unpacking) = &mut self.unpacking
                && let Poll::Ready(told) = unpacking.poll_unpin(cx)
            {
                self.unpacking = None;
                if let Some(told) = told {
                    return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(told));
                }
            }
            if self.unpacking.is_none()
                && let Some(part) = self.parts.pop_front()
            {
                match self.tell(part) {
                    Some(told) => {
                        return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(told));
                    }
                    None => continue,
                }
            }
            // The router's handler writes and reads in one: while a message waits or is unpacked, what we have to say goes out as long
            // as there is room for what comes in.
            if self.is_full() {
                return Poll::Pending;
            }
            match ready!(self.router.poll(cx)) {
                ConnectionHandlerEvent::NotifyBehaviour(heard) => {
                    self.parts.extend(apart(heard, &self.topics))
                }
                event => {
                    return Poll::Ready(event.map_custom(|heard| Told::new(Part::of(heard), None)));
                }
            }
        }
    }

    /// What has been read is told, also if its sender is gone before there was a place for it.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Option<Told>> {
        if let Some(unpacking) = &mut self.unpacking {
            let told = ready!(unpacking.poll_unpin(cx));
            self.unpacking = None;
            if told.is_some() {
                return Poll::Ready(told);
            }
        }
        // Of what is not light no more than that: a peer that was hung up on has no more work made for it.
        while let Some(part) = self.parts.pop_front() {
            if part.load() == Load::Light {
                return Poll::Ready(Some(Told::new(part, None)));
            }
        }
        self.router
            .poll_close(cx)
            .map(|heard| heard.map(|heard| Told::new(Part::of(heard), None)))
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
