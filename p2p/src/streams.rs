//! Streams of our own protocols: opened for whoever asks a peer, accepted for whoever answers.
//!
//! Requests come many at once, from one peer and from several, so those that came in wait in a queue until they are taken. A stream
//! is refused, which its peer sees as a reset before any answer, only when too many wait.
//!
//! What can overload it: peers that open streams faster than they are taken. One connection's wait among themselves: its excess is
//! refused and told ([`Event::Excess`]), once for all that come together.

use libp2p::{
    Multiaddr, PeerId, Stream, StreamProtocol,
    core::{
        Endpoint,
        transport::PortUse,
        upgrade::{InboundUpgrade, ReadyUpgrade, UpgradeInfo},
    },
    swarm::{
        ConnectionClosed, ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent,
        ConnectionId, FromSwarm, NetworkBehaviour, StreamUpgradeError, SubstreamProtocol, THandler,
        THandlerInEvent, THandlerOutEvent, ToSwarm,
        handler::{
            ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
        },
    },
};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    future::{Ready, ready},
    io,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Streams that came in and wait, of all connections together, and of one. A peer of our kind asks for 20 at once.
const QUEUE: usize = 256;
const QUEUE_PER_CONNECTION: usize = 32;
/// Streams that are wanted of one connection and not yet begun.
const WANTED: usize = 32;

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the peer does not speak the protocol")]
    Unsupported,
    #[error("the peer is not, or no longer, connected")]
    Disconnected,
    #[error("the stream failed: {0}")]
    Io(#[from] io::Error),
}

/// A stream that a peer opened.
pub struct Incoming {
    pub peer: PeerId,
    pub stream: Stream,
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub enum Event {
    /// The peer opened more streams than may wait.
    Excess { peer: PeerId },
}

struct Wanted {
    protocol: StreamProtocol,
    answer: Answer,
}

type Answer = oneshot::Sender<Result<Stream, OpenError>>;

/// Where streams can be asked for: the connections of each peer, the oldest first.
type Links = Arc<Mutex<HashMap<PeerId, Vec<(ConnectionId, mpsc::Sender<Wanted>)>>>>;

/// Opens streams.
#[derive(Clone)]
pub struct Control(Links);

impl Control {
    /// A stream to a connected peer, agreed on. The swarm gives up after ten seconds.
    pub async fn open_stream(
        &self,
        peer: PeerId,
        protocol: StreamProtocol,
    ) -> Result<Stream, OpenError> {
        let link = self
            .0
            .lock()
            .get(&peer)
            .and_then(|links| links.first())
            .map(|(_, link)| link.clone());
        let (answer, opened) = oneshot::channel();
        let wanted = Wanted { protocol, answer };
        link.ok_or(OpenError::Disconnected)?
            .send(wanted)
            .await
            .map_err(|_| OpenError::Disconnected)?;
        opened.await.unwrap_or(Err(OpenError::Disconnected))
    }
}

/// Who takes what comes in, by protocol.
type Takers = Arc<[(StreamProtocol, mpsc::Sender<Incoming>)]>;

/// The swarm's part.
pub struct Behaviour {
    takers: Takers,
    links: Links,
    events: VecDeque<Event>,
}

impl Behaviour {
    pub fn new() -> Self {
        Self {
            takers: Arc::new([]),
            links: Links::default(),
            events: VecDeque::new(),
        }
    }

    pub fn control(&self) -> Control {
        Control(self.links.clone())
    }

    /// The streams of these protocols that peers open on connections made from now on.
    pub fn accept(
        &mut self,
        protocols: impl IntoIterator<Item = StreamProtocol>,
    ) -> mpsc::Receiver<Incoming> {
        let (taker, incoming) = mpsc::channel(QUEUE);
        let more = protocols
            .into_iter()
            .map(|protocol| (protocol, taker.clone()));
        self.takers = self.takers.iter().cloned().chain(more).collect();
        incoming
    }

    fn handler(&self, peer: PeerId, connection: ConnectionId) -> Handler {
        let (link, wanted) = mpsc::channel(WANTED);
        self.links
            .lock()
            .entry(peer)
            .or_default()
            .push((connection, link));
        let places = Arc::new(Semaphore::new(QUEUE_PER_CONNECTION));
        Handler {
            peer,
            takers: self.takers.clone(),
            places,
            wanted,
            excess: false,
        }
    }

    fn forget(&self, peer: &PeerId, connection: ConnectionId) {
        let mut all = self.links.lock();
        if let Some(links) = all.get_mut(peer) {
            links.retain(|(other, _)| *other != connection);
            if links.is_empty() {
                all.remove(peer);
            }
        }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Event;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer, connection))
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer, connection))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionClosed(ConnectionClosed {
                peer_id,
                connection_id,
                ..
            }) => self.forget(&peer_id, connection_id),
            // Another behaviour may have refused a connection after this one took it.
            FromSwarm::ListenFailure(failure) => {
                failure
                    .peer_id
                    .iter()
                    .for_each(|peer| self.forget(peer, failure.connection_id));
            }
            FromSwarm::DialFailure(failure) => {
                failure
                    .peer_id
                    .iter()
                    .for_each(|peer| self.forget(peer, failure.connection_id));
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        _: ConnectionId,
        Excess: THandlerOutEvent<Self>,
    ) {
        self.events.push_back(Event::Excess { peer });
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Event, THandlerInEvent<Self>>> {
        // The swarm polls again after a handler's event.
        self.events.pop_front().map_or(Poll::Pending, |event| {
            Poll::Ready(ToSwarm::GenerateEvent(event))
        })
    }
}

/// One connection's part.
pub struct Handler {
    peer: PeerId,
    takers: Takers,
    /// For streams that wait.
    places: Arc<Semaphore>,
    wanted: mpsc::Receiver<Wanted>,
    /// Some were refused that the behaviour has not heard of.
    excess: bool,
}

/// Streams were refused.
#[derive(Debug)]
pub struct Excess;

impl Handler {
    fn take(&mut self, stream: Stream, protocol: &StreamProtocol) {
        let Some((_, taker)) = self.takers.iter().find(|(other, _)| other == protocol) else {
            return;
        };
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            self.excess = true;
            return;
        };
        // That the others' streams fill the queue is not this peer's fault.
        let _ = taker.try_send(Incoming {
            peer: self.peer,
            stream,
            _place: place,
        });
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Infallible;
    type ToBehaviour = Excess;
    type InboundProtocol = AnyOf;
    type OutboundProtocol = ReadyUpgrade<StreamProtocol>;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Answer;

    fn listen_protocol(&self) -> SubstreamProtocol<AnyOf> {
        SubstreamProtocol::new(AnyOf(self.takers.clone()), ())
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<ReadyUpgrade<StreamProtocol>, Answer, Excess>> {
        if std::mem::take(&mut self.excess) {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(Excess));
        }
        match self.wanted.poll_recv(cx) {
            Poll::Ready(Some(Wanted { protocol, answer })) => {
                let protocol = SubstreamProtocol::new(ReadyUpgrade::new(protocol), answer);
                Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol })
            }
            // Closed: the connection is being forgotten.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn on_behaviour_event(&mut self, event: Infallible) {
        match event {}
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, AnyOf, ReadyUpgrade<StreamProtocol>, (), Answer>,
    ) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol: (stream, protocol),
                ..
            }) => {
                self.take(stream, &protocol);
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound {
                protocol: stream,
                info: answer,
            }) => {
                let _ = answer.send(Ok(stream));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError {
                error,
                info: answer,
            }) => {
                let _ = answer.send(Err(match error {
                    StreamUpgradeError::Timeout => io::Error::from(io::ErrorKind::TimedOut).into(),
                    StreamUpgradeError::Io(error) => error.into(),
                    StreamUpgradeError::NegotiationFailed => OpenError::Unsupported,
                    StreamUpgradeError::Apply(never) => match never {},
                }));
            }
            _ => {}
        }
    }
}

/// Accepts a stream of any protocol that has a taker.
pub struct AnyOf(Takers);

impl UpgradeInfo for AnyOf {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0
            .iter()
            .map(|(protocol, _)| protocol.clone())
            .collect::<Vec<_>>()
            .into_iter()
    }
}

impl InboundUpgrade<Stream> for AnyOf {
    type Output = (Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}
