//! The router, and what stands around it: messages are unpacked before the router sees them.
//!
//! By itself the router unpacks a message, and hashes what comes out for its id, where it decides what becomes of it: in the swarm's
//! task, in which nothing else moves meanwhile. 10 MiB of zeros come in half a MiB and are 30 ms of work. So the connection that brought
//! a message unpacks it ([`Handler`]): a light one at once, a heavy one on another thread as soon as there is a place. The places are
//! given in the order of asking and a connection asks for one at a time, so a heavy block waits for one message of every other peer at
//! most, and a light one for none; static peers have places of their own. A place is taken until the router has looked at the message, so
//! what is unpacked and not yet seen is bounded.
//!
//! What can overload it: bombs. They wait, and their senders with them: of what follows on the same connection one frame is read.

use crate::{
    behaviour::Gossip,
    gate::SharedRules,
    propagation::SharedPropagation,
    topics::{LIGHT, Snappy, unpack, weight},
};
use futures::{FutureExt, future::BoxFuture, ready};
use libp2p::{
    Multiaddr, PeerId,
    core::{Endpoint, transport::PortUse},
    gossipsub::RawMessage,
    swarm::{
        ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour,
        SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm, handler::ConnectionEvent,
    },
};
use std::{
    collections::VecDeque,
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
    task::{Context, Poll},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Heavy messages of strangers, and of static peers, that are unpacked at once.
const PLACES: usize = 1;

type RouterHandler = <Gossip as NetworkBehaviour>::ConnectionHandler;
type Inbound = <RouterHandler as ConnectionHandler>::InboundProtocol;
type Outbound = <RouterHandler as ConnectionHandler>::OutboundProtocol;
/// What the router's handler tells it of a peer.
type Heard = <RouterHandler as ConnectionHandler>::ToBehaviour;

/// The router, which is told what its handlers have unpacked.
pub struct Router {
    gossip: Gossip,
    snappy: Snappy,
    propagation: SharedPropagation,
    rules: SharedRules,
    /// For strangers and for static peers.
    places: [Arc<Semaphore>; 2],
}

impl Router {
    /// `snappy` is the one that `gossip` unpacks with.
    pub fn new(gossip: Gossip, snappy: Snappy, propagation: SharedPropagation, rules: SharedRules) -> Self {
        let places = [(); 2].map(|()| Arc::new(Semaphore::new(PLACES)));
        Self { gossip, snappy, propagation, rules, places }
    }

    fn handler(&self, peer: &PeerId, router: RouterHandler) -> Handler {
        let places = self.places[usize::from(self.rules.lock().friends.contains(peer))].clone();
        Handler { router, places, parts: VecDeque::new(), unpacking: None }
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
    type ToSwarm = <Gossip as NetworkBehaviour>::ToSwarm;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let router = self.gossip.handle_established_inbound_connection(connection, peer, local, remote)?;
        Ok(self.handler(&peer, router))
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let router = self.gossip.handle_established_outbound_connection(connection, peer, address, role, port)?;
        Ok(self.handler(&peer, router))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        self.gossip.on_swarm_event(event);
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, connection: ConnectionId, told: THandlerOutEvent<Self>) {
        let Told { heard, unpacked, _place } = told;
        self.propagation.looks_at(Some(peer));
        self.snappy.expect(unpacked);
        self.gossip.on_connection_handler_event(peer, connection, heard);
        // It may have refused to look.
        self.snappy.expect(None);
        self.propagation.looks_at(None);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        self.gossip.poll(cx)
    }
}

/// What a handler tells: of messages one at a time, and unpacked.
pub struct Told {
    heard: Heard,
    unpacked: Option<Vec<u8>>,
    /// Of a heavy message.
    _place: Option<OwnedSemaphorePermit>,
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the bytes.
        f.debug_struct("Told").field("heard", &self.heard).finish_non_exhaustive()
    }
}

impl Told {
    fn new(heard: Heard, place: Option<OwnedSemaphorePermit>) -> Self {
        let unpacked = message(&heard).map(unpack);
        Self { heard, unpacked, _place: place }
    }
}

/// The first message of a frame.
fn message(heard: &Heard) -> Option<&RawMessage> {
    match heard {
        Heard::Message { rpc, .. } => rpc.messages.first(),
        _ => None,
    }
}

/// A frame as several with a message each; what else it says comes first.
fn apart(heard: Heard) -> VecDeque<Heard> {
    match heard {
        Heard::Message { mut rpc, invalid_messages } if rpc.messages.len() > 1 => {
            let messages = std::mem::take(&mut rpc.messages);
            let mut bare = rpc.clone();
            bare.subscriptions.clear();
            bare.control_msgs.clear();
            let alone = |message| {
                let mut rpc = bare.clone();
                rpc.messages.push(message);
                Heard::Message { rpc, invalid_messages: Vec::new() }
            };
            let rest = Heard::Message { rpc, invalid_messages };
            std::iter::once(rest).chain(messages.into_iter().map(alone)).collect()
        }
        heard => [heard].into(),
    }
}

/// The router's handler of a connection, behind which messages are unpacked.
pub struct Handler {
    router: RouterHandler,
    places: Arc<Semaphore>,
    /// Of the frame that came last, what the router has not been told.
    parts: VecDeque<Heard>,
    /// A heavy message; nothing comes of it if that panics.
    unpacking: Option<BoxFuture<'static, Option<Told>>>,
}

impl Handler {
    /// Tells a light message unpacked, and begins with a heavy one.
    fn tell(&mut self, heard: Heard) -> Option<Told> {
        if message(&heard).is_none_or(|message| weight(message) <= LIGHT) {
            return Some(Told::new(heard, None));
        }
        let places = self.places.clone();
        let unpacking = async move {
            let place = places.acquire_owned().await.ok();
            tokio::task::spawn_blocking(move || Told::new(heard, place)).await.ok()
        };
        self.unpacking = Some(unpacking.boxed());
        None
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
                && let Some(heard) = self.parts.pop_front()
            {
                match self.tell(heard) {
                    Some(told) => return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(told)),
                    None => continue,
                }
            }
            // While one is unpacked, what we have to say goes out, and one frame more comes in.
            if !self.parts.is_empty() {
                return Poll::Pending;
            }
            match ready!(self.router.poll(cx)) {
                ConnectionHandlerEvent::NotifyBehaviour(heard) => self.parts = apart(heard),
                event => return Poll::Ready(event.map_custom(|heard| Told::new(heard, None))),
            }
        }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Option<Told>> {
        self.router.poll_close(cx).map(|heard| heard.map(|heard| Told::new(heard, None)))
    }

    fn on_behaviour_event(&mut self, event: Self::FromBehaviour) {
        self.router.on_behaviour_event(event);
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<'_, Inbound, Outbound>) {
        self.router.on_connection_event(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Mesh,
        topics::{self, Topics, gossip_config},
    };
    use futures::StreamExt;
    use libp2p::{
        Swarm, SwarmBuilder,
        gossipsub::{self, IdentTopic, MessageAuthenticity},
        noise,
        swarm::SwarmEvent,
        tcp, yamux,
    };
    use starling_proto::gossip::{self as wire, Decompressed, Flag};
    use std::time::Duration;

    const CHAIN: u64 = 901;
    const LONG: Duration = Duration::from_secs(60);

    fn topic() -> IdentTopic {
        IdentTopic::new(wire::topic(CHAIN, starling_proto::payload::PayloadVersion::V4))
    }

    fn router() -> Router {
        let (propagation, snappy, filter) = (SharedPropagation::default(), Snappy::default(), Topics::new(CHAIN).filter());
        let config = gossip_config(Mesh::default(), &propagation).unwrap();
        let anonymous = MessageAuthenticity::Anonymous;
        let mut gossip = Gossip::new_with_subscription_filter_and_transform(anonymous, config, filter, snappy.clone()).unwrap();
        gossip.subscribe(&topic()).unwrap();
        Router::new(gossip, snappy, propagation, SharedRules::default())
    }

    fn swarm() -> Swarm<Router> {
        let tcp = SwarmBuilder::with_new_identity().with_tokio().with_tcp(
            tcp::Config::default(),
            noise::Config::new,
            yamux::Config::default,
        );
        let idle = |config: libp2p::swarm::Config| config.with_idle_connection_timeout(LONG);
        tcp.unwrap().with_behaviour(|_| router()).unwrap().with_swarm_config(idle).build()
    }

    fn publish(swarm: &mut Swarm<Router>, bytes: Vec<u8>) {
        let tagged = Decompressed { flag: Flag::Decompressed, bytes }.into_tagged();
        let topic = topic().hash();
        swarm.behaviour_mut().publish(topic.clone(), topics::seal(topic.as_str(), tagged, 1)).unwrap();
    }

    fn is_subscribed(event: &SwarmEvent<gossipsub::Event>) -> bool {
        matches!(event, SwarmEvent::Behaviour(gossipsub::Event::Subscribed { .. }))
    }

    /// Three peers send to a node in which there is no place for what is heavy and from a stranger.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_heavy_waits_for_a_place_and_what_is_light_or_of_a_static_peer_does_not() {
        let (mut node, mut heavy, mut light, mut friend) = (swarm(), swarm(), swarm(), swarm());
        node.behaviour().rules.lock().friends.insert(*friend.local_peer_id());
        node.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
        let address = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = node.select_next_some().await {
                break address;
            }
        };
        heavy.dial(address.clone()).unwrap();
        light.dial(address.clone()).unwrap();
        let mut places = node.behaviour().places[0].clone().acquire_many_owned(PLACES as u32).await.ok();
        assert!(places.is_some());
        let (large, of_friend) = (vec![7; LIGHT + 1], vec![8; LIGHT + 1]);
        let mut came = Vec::new();
        let exchange = async {
            loop {
                tokio::select! {
                    event = heavy.select_next_some() => if is_subscribed(&event) {
                        publish(&mut heavy, large.clone());
                        // After a heavy one on the same connection.
                        publish(&mut heavy, vec![0]);
                    },
                    event = light.select_next_some() => if is_subscribed(&event) {
                        publish(&mut light, vec![1]);
                    },
                    event = friend.select_next_some() => if is_subscribed(&event) {
                        publish(&mut friend, of_friend.clone());
                    },
                    event = node.select_next_some() => {
                        let SwarmEvent::Behaviour(gossipsub::Event::Message { message, .. }) = event else { continue };
                        let (_, bytes) = Decompressed::untag(topics::Parts::of(&message.data).tagged);
                        came.push(bytes.to_vec());
                        match bytes {
                            [30] => friend.dial(address.clone()).unwrap(),
                            [0] => break,
                            bytes if *bytes == of_friend => drop(places.take()),
                            [i] => publish(&mut light, vec![i + 1]),
                            _ => {}
                        }
                    }
                }
            }
        };
        tokio::time::timeout(LONG, exchange).await.expect("everything comes");
        let expected: Vec<Vec<u8>> = (1..=30).map(|i| vec![i]).chain([of_friend, large, vec![0]]).collect();
        assert!(came == expected, "{:?}", came.iter().map(Vec::len).collect::<Vec<_>>());
    }
}
