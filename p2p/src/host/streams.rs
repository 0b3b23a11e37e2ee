//! Streams of our own protocols: clients open them to request blocks, and servers accept them.
//!
//! Many requests arrive at once, from one peer and from several, so inbound streams wait in a queue
//! until a server accepts them. A stream is refused only when the queue, or the connection's part
//! of it, is full; its peer sees a reset before any response.
//!
//! Overload: peers that open streams faster than servers accept them. Each connection has its own
//! limit of waiting streams. A stream above the limit is refused. All streams refused before the
//! next poll are reported as one [`StreamsEvent::Excess`].

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

/// Largest number of inbound streams that wait for one server, and of one connection. A peer that
/// runs this node opens 20 at once.
const QUEUE: usize = 256;
const QUEUE_PER_CONNECTION: usize = 32;
/// Largest number of waiting requests for outbound streams per connection.
const WANTED: usize = 32;

/// The reason why a stream was not opened.
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
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub enum StreamsEvent {
    /// The peer opened more streams than may wait.
    Excess { peer: PeerId },
}

struct Wanted {
    protocol: StreamProtocol,
    answer: StreamReply,
}

type StreamReply = oneshot::Sender<Result<Stream, OpenError>>;

/// For each peer, the queues of requests for outbound streams: one per connection, oldest first.
type ConnectionQueues = Arc<Mutex<HashMap<PeerId, Vec<(ConnectionId, mpsc::Sender<Wanted>)>>>>;

/// A handle for opening streams to connected peers.
#[derive(Clone)]
pub struct Control(ConnectionQueues);

impl Control {
    /// Opens a stream to a connected peer and negotiates the protocol. libp2p times out after ten
    /// seconds.
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

/// The channels to the takers of inbound streams, one for each protocol.
type Takers = Arc<[(StreamProtocol, mpsc::Sender<Incoming>)]>;

/// The libp2p behaviour. It passes inbound streams to their takers, the servers.
pub struct StreamsBehaviour {
    takers: Takers,
    links: ConnectionQueues,
    events: VecDeque<StreamsEvent>,
}

impl StreamsBehaviour {
    pub fn new() -> Self {
        Self {
            takers: Arc::new([]),
            links: ConnectionQueues::default(),
            events: VecDeque::new(),
        }
    }

    pub fn control(&self) -> Control {
        Control(self.links.clone())
    }

    /// Registers the protocols and returns the receiver of their inbound streams. Only connections
    /// made from now on accept them.
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

    fn handler(&self, peer: PeerId, connection: ConnectionId) -> StreamsHandler {
        let (link, wanted) = mpsc::channel(WANTED);
        self.links
            .lock()
            .entry(peer)
            .or_default()
            .push((connection, link));
        let permits = Arc::new(Semaphore::new(QUEUE_PER_CONNECTION));
        StreamsHandler {
            peer,
            takers: self.takers.clone(),
            permits,
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

impl NetworkBehaviour for StreamsBehaviour {
    type ConnectionHandler = StreamsHandler;
    type ToSwarm = StreamsEvent;

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
            // Another behaviour may have refused the connection after this one had accepted it.
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
        StreamExcess: THandlerOutEvent<Self>,
    ) {
        self.events.push_back(StreamsEvent::Excess { peer });
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<StreamsEvent, THandlerInEvent<Self>>> {
        // No waker is needed: the swarm polls again after a handler's event.
        self.events.pop_front().map_or(Poll::Pending, |event| {
            Poll::Ready(ToSwarm::GenerateEvent(event))
        })
    }
}

/// The streams handler of one connection.
pub struct StreamsHandler {
    peer: PeerId,
    takers: Takers,
    /// Permits for the inbound streams that wait.
    permits: Arc<Semaphore>,
    wanted: mpsc::Receiver<Wanted>,
    /// Whether streams were refused since the last report.
    excess: bool,
}

/// The handler's report that streams were refused.
#[derive(Debug)]
pub struct StreamExcess;

impl StreamsHandler {
    fn take(&mut self, stream: Stream, protocol: &StreamProtocol) {
        let Some((_, taker)) = self.takers.iter().find(|(other, _)| other == protocol) else {
            return;
        };
        let Ok(permit) = self.permits.clone().try_acquire_owned() else {
            self.excess = true;
            return;
        };
        // If the queue is full, drop the stream without an offence: the streams may be other
        // peers'.
        let _ = taker.try_send(Incoming {
            peer: self.peer,
            stream,
            _permit: permit,
        });
    }
}

impl ConnectionHandler for StreamsHandler {
    type FromBehaviour = Infallible;
    type ToBehaviour = StreamExcess;
    type InboundProtocol = AnyOf;
    type OutboundProtocol = ReadyUpgrade<StreamProtocol>;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = StreamReply;

    fn listen_protocol(&self) -> SubstreamProtocol<AnyOf> {
        SubstreamProtocol::new(AnyOf(self.takers.clone()), ())
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<ReadyUpgrade<StreamProtocol>, StreamReply, StreamExcess>> {
        if std::mem::take(&mut self.excess) {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(StreamExcess));
        }
        match self.wanted.poll_recv(cx) {
            Poll::Ready(Some(Wanted { protocol, answer })) => {
                let protocol = SubstreamProtocol::new(ReadyUpgrade::new(protocol), answer);
                Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol })
            }
            // A closed channel means that the connection is being closed.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn on_behaviour_event(&mut self, event: Infallible) {
        match event {}
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, AnyOf, ReadyUpgrade<StreamProtocol>, (), StreamReply>,
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

/// Negotiates an inbound stream of any protocol that has a taker.
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
