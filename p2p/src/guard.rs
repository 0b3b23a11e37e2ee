//! A muxer around yamux that notices a gossip stream which the router gave up, and a peer that opens streams without end; and that
//! always comes to an end.
//!
//! When a peer's stream holds what cannot be gossip (a frame larger than any message, bytes that are no protobuf), the router closes
//! its half and forgets the stream, and tells nobody. Yamux then neither resets the stream nor answers on it, so the peer's router
//! goes on writing into it until its window is full, and waits for ever: that peer would be mute until somebody restarts. So the
//! connection is closed, which the swarm reports, and the peer may come back with clean streams.
//!
//! No honest peer gets here: a stream that ended, or failed, is closed only after its end has been read.
//!
//! A stream costs memory before it has said what it is for, and nobody hears of those that never do. So they are counted here, where
//! they come in.
//!
//! Closing says goodbye and waits until that is written, which on a dead link may take as long as TCP hopes. A connection counts as
//! open until then, so the wait is bounded.

use crate::metrics::{Meter, Open};
use futures::{
    AsyncRead, AsyncWrite, ready,
    task::{AtomicWaker, Context, Poll},
};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::Sleep;

/// Streams that a peer has open at once on one connection. A node of our kind has 40 at most; past twice as many it is no node.
pub const INBOUND: usize = 96;
/// For the goodbye of a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Of an inbound stream this many first bytes are looked at: they name the protocol.
const PROTOCOL: usize = 256;
/// How the router's protocols begin.
const GOSSIP: [&[u8]; 2] = [b"/meshsub/", b"/floodsub/"];

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    #[error("the peer sent what is no gossip frame")]
    Framing,
    #[error("the peer opened more than {INBOUND} streams")]
    Streams,
    #[error(transparent)]
    Muxer(#[from] io::Error),
}

impl GuardError {
    /// What the guard has to say about the end of a connection.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// Set by a stream, read by its connection.
#[derive(Debug, Default)]
struct Alarm {
    raised: AtomicBool,
    waker: AtomicWaker,
}

/// The connection.
pub struct Guard<M> {
    muxer: M,
    meter: Meter,
    alarm: Arc<Alarm>,
    /// The peer's streams.
    inbound: Arc<AtomicUsize>,
    /// Runs while the connection is being closed.
    closing: Option<Pin<Box<Sleep>>>,
}

impl<M> Guard<M> {
    pub fn new(muxer: M, meter: Meter) -> Self {
        Self { muxer, meter, alarm: Arc::default(), inbound: Arc::default(), closing: None }
    }
}

impl<M> StreamMuxer for Guard<M>
where
    M: StreamMuxer + Unpin,
    M::Substream: Unpin,
    M::Error: Send + Sync + 'static,
{
    type Substream = GuardedStream<M::Substream>;
    type Error = GuardError;

    fn poll_inbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Self::Substream, GuardError>> {
        let stream = ready!(Pin::new(&mut self.muxer).poll_inbound(cx)).map_err(failed)?;
        let place = Place::take(&self.inbound);
        Poll::Ready(match self.inbound.load(Ordering::Relaxed) > INBOUND {
            true => Err(GuardError::Streams),
            false => Ok(GuardedStream::inbound(stream, self.meter.clone(), self.alarm.clone(), place)),
        })
    }

    fn poll_outbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Self::Substream, GuardError>> {
        let stream = ready!(Pin::new(&mut self.muxer).poll_outbound(cx)).map_err(failed)?;
        Poll::Ready(Ok(GuardedStream::outbound(stream, self.meter.clone())))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), GuardError>> {
        let limit = self.closing.get_or_insert_with(|| Box::pin(tokio::time::sleep(CLOSE_TIMEOUT)));
        if limit.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.muxer).poll_close(cx).map_err(failed)
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, GuardError>> {
        self.alarm.waker.register(cx.waker());
        if self.alarm.raised.load(Ordering::Acquire) {
            return Poll::Ready(Err(GuardError::Framing));
        }
        Pin::new(&mut self.muxer).poll(cx).map_err(failed)
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> GuardError {
    GuardError::Muxer(io::Error::other(error))
}

/// One of a connection's inbound streams, counted as long as it is there.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream of a guarded connection.
pub struct GuardedStream<S> {
    stream: S,
    meter: Meter,
    _open: Open,
    _place: Option<Place>,
    /// What an inbound stream is watched by, until its end has been read.
    watch: Option<Watch>,
}

struct Watch {
    alarm: Arc<Alarm>,
    /// The first bytes read.
    start: Vec<u8>,
}

impl<S> GuardedStream<S> {
    fn inbound(stream: S, meter: Meter, alarm: Arc<Alarm>, place: Place) -> Self {
        let watch = Watch { alarm, start: Vec::new() };
        Self { stream, _open: meter.stream(), meter, _place: Some(place), watch: Some(watch) }
    }

    fn outbound(stream: S, meter: Meter) -> Self {
        Self { stream, _open: meter.stream(), meter, _place: None, watch: None }
    }
}

impl Watch {
    fn read(&mut self, bytes: &[u8]) {
        let room = PROTOCOL.saturating_sub(self.start.len());
        self.start.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn is_gossip(&self) -> bool {
        GOSSIP.iter().any(|name| self.start.windows(name.len()).any(|part| part == *name))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        match &read {
            Poll::Pending => {}
            Poll::Ready(Ok(n)) if *n > 0 => {
                self.meter.read(*n);
                if let Some(watch) = &mut self.watch {
                    watch.read(&buf[..*n]);
                }
            }
            Poll::Ready(_) if !buf.is_empty() => self.watch = None,
            Poll::Ready(_) => {}
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(n)) = &wrote {
            self.meter.wrote(*n);
        }
        wrote
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The router writes nothing on inbound streams: it closes one only when it is done with what came in.
        if let Some(watch) = self.watch.take_if(|watch| watch.is_gossip()) {
            watch.alarm.raised.store(true, Ordering::Release);
            watch.alarm.waker.wake();
        }
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{AsyncReadExt, AsyncWriteExt, executor::block_on, io::Cursor};

    /// A connection whose other end has gone silent.
    struct Dead;

    impl StreamMuxer for Dead {
        type Substream = Cursor<Vec<u8>>;
        type Error = io::Error;

        fn poll_inbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<Self::Substream>> {
            Poll::Pending
        }
        fn poll_outbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<Self::Substream>> {
            Poll::Pending
        }
        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<StreamMuxerEvent>> {
            Poll::Pending
        }
    }

    /// A connection on which a stream comes in whenever one is looked for.
    struct Flood;

    impl StreamMuxer for Flood {
        type Substream = Cursor<Vec<u8>>;
        type Error = io::Error;

        fn poll_inbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<Self::Substream>> {
            Poll::Ready(Ok(Cursor::default()))
        }
        fn poll_outbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<Self::Substream>> {
            Poll::Pending
        }
        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<StreamMuxerEvent>> {
            Poll::Pending
        }
    }

    #[test]
    fn streams_come_in_as_others_end_and_not_without_end() {
        let mut guard = Guard::new(Flood, Meter::new());
        let mut next = || block_on(std::future::poll_fn(|cx| Pin::new(&mut guard).poll_inbound(cx)));
        for _ in 0..3 * INBOUND {
            next().unwrap();
        }
        let mut held: Vec<_> = (0..INBOUND).map(|_| next().unwrap()).collect();
        assert!(matches!(next(), Err(GuardError::Streams)));
        held.pop();
        held.push(next().unwrap());
        assert!(matches!(next(), Err(GuardError::Streams)));
    }

    #[tokio::test]
    async fn a_dead_connection_is_closed_too() {
        let mut guard = Guard::new(Dead, Meter::new());
        let closed = std::future::poll_fn(|cx| Pin::new(&mut guard).poll_close(cx));
        tokio::time::timeout(Duration::from_secs(60), closed).await.expect("the wait is bounded").unwrap();
    }

    /// Reads `bytes` of a stream, the end too if it comes, and closes; says whether that is an alarm.
    fn alarms(stream: &[u8], bytes: usize) -> bool {
        let alarm = Arc::new(Alarm::default());
        let cursor = Cursor::new(stream.to_vec());
        let mut guarded = GuardedStream::inbound(cursor, Meter::new(), alarm.clone(), Place::take(&Arc::default()));
        let mut buffer = vec![0; bytes];
        let mut done = 0;
        while done < bytes {
            match block_on(guarded.read(&mut buffer[done..])).unwrap() {
                0 => break,
                n => done += n,
            }
        }
        block_on(guarded.close()).unwrap();
        alarm.raised.load(Ordering::Acquire)
    }

    #[test]
    fn only_a_gossip_stream_given_up_before_its_end_raises_the_alarm() {
        let gossip = b"\x13/multistream/1.0.0\n\x0f/meshsub/1.1.0\nbytes of a frame";
        let request = b"\x13/multistream/1.0.0\n\x2a/opstack/req/payload_by_number/901/0\n12345678";
        assert!(alarms(gossip, gossip.len()));
        assert!(!alarms(gossip, gossip.len() + 1), "its end was read");
        assert!(!alarms(request, request.len()));
        assert!(!alarms(b"", 1));
    }
}
