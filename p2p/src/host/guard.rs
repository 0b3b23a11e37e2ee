//! A wrapper of the yamux and QUIC muxers. It closes a connection whose gossip streams are stuck,
//! and bounds the inbound streams and the time that closing takes.
//!
//! When a peer's stream has bytes that cannot be gossip (a frame larger than any message, bytes
//! that are not protobuf), gossipsub closes its half, forgets the stream and reports nothing. Yamux
//! then neither resets the stream nor replies on it. The peer's gossipsub therefore writes until
//! the stream's window is full and then waits for ever: no gossip would arrive from the peer until
//! one side restarts. So the connection is closed, which the swarm reports, and the peer may
//! reconnect with fresh streams.
//!
//! No honest peer is affected: a stream that ended, or failed, is closed only after its end has
//! been read.
//!
//! An incomplete frame keeps the memory of its first part, and no later frame can overtake it. So a
//! frame has a time limit, after which the connection is closed, too. A frame of which bytes still
//! arrived is slow, and a frame of which nothing arrived any more is half: only repeated half frames
//! lead to a ban.
//!
//! A stream uses memory before its protocol is negotiated, and no behaviour learns of streams whose
//! negotiation never ends. So inbound streams are counted here.
//!
//! Closing a connection writes a last message and waits for it. On a dead link this wait lasts as
//! long as TCP retries. A connection counts as open until then, so the wait is bounded.

use crate::metrics::{Meter, OpenStream};
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
    time::{Duration, Instant},
};
use tokio::time::Sleep;

/// Largest number of streams that a peer may have open on one connection. This node opens at most
/// 40, and no honest node opens twice as many.
pub const INBOUND: usize = 96;
/// Time limit for closing a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for a whole frame of gossip: a block that is a minute old is useless.
const FRAME: Duration = Duration::from_secs(20);
/// Number of bytes at the start of an inbound stream that are searched for the protocol's name.
const PROTOCOL: usize = 256;
/// Prefixes of gossipsub's protocols.
const GOSSIP: [&[u8]; 2] = [b"/meshsub/", b"/floodsub/"];

/// The reason why the guard closed a connection.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    #[error("the peer sent what is no gossip frame")]
    Framing,
    #[error("the peer has begun a gossip frame and not sent it within {FRAME:?}")]
    HalfFrame,
    #[error("the peer's gossip frame has not arrived whole within {FRAME:?}")]
    SlowFrame,
    #[error("the peer opened more than {INBOUND} streams")]
    Streams,
    #[error(transparent)]
    Muxer(#[from] io::Error),
}

impl GuardError {
    /// The guard's reason for closing the connection; `None` if another cause closed it.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// Flags that streams set and their connection reads.
#[derive(Debug, Default)]
struct Alarm {
    framing: AtomicBool,
    half_frame: AtomicBool,
    slow_frame: AtomicBool,
    waker: AtomicWaker,
}

impl Alarm {
    fn raise(&self, which: &AtomicBool) {
        which.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// A guarded connection.
pub struct ConnectionGuard<M> {
    muxer: M,
    meter: Meter,
    alarm: Arc<Alarm>,
    /// Number of streams that the peer has open.
    inbound: Arc<AtomicUsize>,
    /// Time limit of the close, set while the connection is being closed.
    closing: Option<Pin<Box<Sleep>>>,
}

impl<M> ConnectionGuard<M> {
    pub fn new(muxer: M, meter: Meter) -> Self {
        Self {
            muxer,
            meter,
            alarm: Arc::default(),
            inbound: Arc::default(),
            closing: None,
        }
    }
}

impl<M> StreamMuxer for ConnectionGuard<M>
where
    M: StreamMuxer + Unpin,
    M::Substream: Unpin,
    M::Error: Send + Sync + 'static,
{
    type Substream = GuardedStream<M::Substream>;
    type Error = GuardError;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, GuardError>> {
        let stream = ready!(Pin::new(&mut self.muxer).poll_inbound(cx)).map_err(failed)?;
        let count = StreamCount::add(&self.inbound);
        if self.inbound.load(Ordering::Relaxed) > INBOUND {
            return Poll::Ready(Err(GuardError::Streams));
        }
        Poll::Ready(Ok(GuardedStream::inbound(
            stream,
            self.meter.clone(),
            FrameWatch::new(self.alarm.clone(), FRAME),
            count,
        )))
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, GuardError>> {
        let stream = ready!(Pin::new(&mut self.muxer).poll_outbound(cx)).map_err(failed)?;
        Poll::Ready(Ok(GuardedStream::outbound(stream, self.meter.clone())))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), GuardError>> {
        let limit = self
            .closing
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(CLOSE_TIMEOUT)));
        if limit.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.muxer).poll_close(cx).map_err(failed)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, GuardError>> {
        self.alarm.waker.register(cx.waker());
        if self.alarm.framing.load(Ordering::Acquire) {
            return Poll::Ready(Err(GuardError::Framing));
        }
        if self.alarm.half_frame.load(Ordering::Acquire) {
            return Poll::Ready(Err(GuardError::HalfFrame));
        }
        if self.alarm.slow_frame.load(Ordering::Acquire) {
            return Poll::Ready(Err(GuardError::SlowFrame));
        }
        Pin::new(&mut self.muxer).poll(cx).map_err(failed)
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> GuardError {
    GuardError::Muxer(io::Error::other(error))
}

/// Counts one inbound stream of a connection until this value is dropped.
struct StreamCount(Arc<AtomicUsize>);

impl StreamCount {
    fn add(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for StreamCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream of a guarded connection.
pub struct GuardedStream<S> {
    stream: S,
    meter: Meter,
    _open: OpenStream,
    _count: Option<StreamCount>,
    /// The frame watch of an inbound stream, until the end of the stream has been read.
    watch: Option<FrameWatch>,
}

/// Watches the frames of an inbound stream.
struct FrameWatch {
    alarm: Arc<Alarm>,
    /// The first bytes of the stream, at most [`PROTOCOL`] of them.
    start: Vec<u8>,
    /// Whether the first bytes name a protocol of gossipsub.
    gossip: bool,
    frames: Frames,
    /// Time limit for a whole frame. A frame of which nothing arrives for half of it is abandoned.
    limit: Duration,
    /// Time of the last bytes.
    last_read: Instant,
    /// The number of the incomplete frame, and its timeout.
    patience: Option<(u64, Pin<Box<Sleep>>)>,
}

impl<S> GuardedStream<S> {
    fn inbound(stream: S, meter: Meter, watch: FrameWatch, count: StreamCount) -> Self {
        Self {
            stream,
            _open: meter.stream(),
            meter,
            _count: Some(count),
            watch: Some(watch),
        }
    }

    fn outbound(stream: S, meter: Meter) -> Self {
        Self {
            stream,
            _open: meter.stream(),
            meter,
            _count: None,
            watch: None,
        }
    }
}

impl FrameWatch {
    fn new(alarm: Arc<Alarm>, limit: Duration) -> Self {
        Self {
            alarm,
            start: Vec::new(),
            gossip: false,
            frames: Frames::default(),
            limit,
            last_read: Instant::now(),
            patience: None,
        }
    }

    fn read(&mut self, bytes: &[u8]) {
        let room = PROTOCOL.saturating_sub(self.start.len());
        if room > 0 {
            self.start
                .extend_from_slice(&bytes[..bytes.len().min(room)]);
            self.gossip |= GOSSIP
                .iter()
                .any(|name| self.start.windows(name.len()).any(|part| part == *name));
        }
        self.frames.read(bytes);
        self.last_read = Instant::now();
    }

    /// Handles the end of the stream, even in the middle of a frame.
    fn end(mut self) {
        self.frames = Frames::default();
    }

    /// Called while no further bytes are available: starts or checks the timeout of an incomplete
    /// frame.
    fn wait(&mut self, cx: &mut Context<'_>) {
        let Some(frame) = self.frames.open().filter(|_| self.gossip) else {
            self.patience = None;
            return;
        };
        let limit = self.limit;
        self.patience.take_if(|(other, _)| *other != frame);
        let (_, patience) = self
            .patience
            .get_or_insert_with(|| (frame, Box::pin(tokio::time::sleep(limit))));
        if patience.as_mut().poll(cx).is_ready() {
            let is_slow = self.last_read.elapsed() < limit / 2;
            let alarm = &self.alarm;
            alarm.raise(if is_slow {
                &alarm.slow_frame
            } else {
                &alarm.half_frame
            });
        }
    }
}

impl Drop for FrameWatch {
    /// A frame may be incomplete here: gossipsub drops a stream when the peer opens another one.
    fn drop(&mut self) {
        if self.gossip && self.frames.open().is_some() {
            self.alarm.raise(&self.alarm.half_frame);
        }
    }
}

/// Finds the ends of frames in a stream. Each frame follows its length, a varint. The lines that
/// negotiate a protocol have the same form.
#[derive(Debug, Default)]
struct Frames {
    /// Number of frames that have arrived whole.
    whole: u64,
    /// The received part of the next frame's length, and the number of bits received.
    length: u64,
    bits: u32,
    /// Number of bytes of the current frame that have not arrived.
    missing: u64,
}

impl Frames {
    fn read(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.missing > 0 {
                let part = bytes
                    .len()
                    .min(usize::try_from(self.missing).unwrap_or(usize::MAX));
                self.missing -= part as u64;
                bytes = &bytes[part..];
            } else {
                // Bits past the 64th are dropped: gossipsub refuses such lengths by itself.
                self.length |= u64::from(first & 0x7f).checked_shl(self.bits).unwrap_or(0);
                self.bits = self.bits.saturating_add(7);
                bytes = rest;
                if first & 0x80 != 0 {
                    continue;
                }
                (self.missing, self.length, self.bits) = (self.length, 0, 0);
            }
            self.whole += u64::from(self.missing == 0);
        }
    }

    /// The number of the incomplete frame; `None` between frames.
    fn open(&self) -> Option<u64> {
        (self.missing > 0 || self.bits > 0).then_some(self.whole)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        match &read {
            Poll::Pending => {
                if let Some(watch) = &mut self.watch {
                    watch.wait(cx);
                }
            }
            Poll::Ready(Ok(n)) if *n > 0 => {
                self.meter.read(*n);
                if let Some(watch) = &mut self.watch {
                    watch.read(&buf[..*n]);
                }
            }
            Poll::Ready(_) if !buf.is_empty() => {
                self.watch.take().into_iter().for_each(FrameWatch::end)
            }
            Poll::Ready(_) => {}
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
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
        // gossipsub writes nothing on inbound streams. It closes one before its end only after a
        // frame that could not be decoded.
        if let Some(watch) = self.watch.take_if(|watch| watch.gossip) {
            watch.alarm.raise(&watch.alarm.framing);
            watch.end();
        }
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{AsyncReadExt, AsyncWriteExt, executor::block_on, io::Cursor};

    /// A connection whose remote end does not respond any more.
    struct Dead;

    impl StreamMuxer for Dead {
        type Substream = Cursor<Vec<u8>>;
        type Error = io::Error;

        fn poll_inbound(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<io::Result<Self::Substream>> {
            Poll::Pending
        }
        fn poll_outbound(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<io::Result<Self::Substream>> {
            Poll::Pending
        }
        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<StreamMuxerEvent>> {
            Poll::Pending
        }
    }

    /// A connection on which another inbound stream is always ready.
    struct Flood;

    impl StreamMuxer for Flood {
        type Substream = Cursor<Vec<u8>>;
        type Error = io::Error;

        fn poll_inbound(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<io::Result<Self::Substream>> {
            Poll::Ready(Ok(Cursor::default()))
        }
        fn poll_outbound(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<io::Result<Self::Substream>> {
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
        let mut guard = ConnectionGuard::new(Flood, Meter::new());
        let mut next = || {
            block_on(std::future::poll_fn(|cx| {
                Pin::new(&mut guard).poll_inbound(cx)
            }))
        };
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
        let mut guard = ConnectionGuard::new(Dead, Meter::new());
        let closed = std::future::poll_fn(|cx| Pin::new(&mut guard).poll_close(cx));
        tokio::time::timeout(Duration::from_secs(60), closed)
            .await
            .expect("the wait is bounded")
            .unwrap();
    }

    /// Reads up to `bytes` bytes of a stream and closes it. Returns whether the alarm is raised.
    fn alarms(stream: &[u8], bytes: usize) -> bool {
        let alarm = Arc::new(Alarm::default());
        let cursor = Cursor::new(stream.to_vec());
        let watch = FrameWatch::new(alarm.clone(), FRAME);
        let mut guarded = GuardedStream::inbound(
            cursor,
            Meter::new(),
            watch,
            StreamCount::add(&Arc::default()),
        );
        let mut buffer = vec![0; bytes];
        let mut done = 0;
        while done < bytes {
            match block_on(guarded.read(&mut buffer[done..])).unwrap() {
                0 => break,
                n => done += n,
            }
        }
        block_on(guarded.close()).unwrap();
        alarm.framing.load(Ordering::Acquire)
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

    #[test]
    fn frames_are_counted_however_their_bytes_come() {
        let mut stream = b"\x13/multistream/1.0.0\n\x0f/meshsub/1.1.0\n".to_vec();
        stream.extend([&[0x80, 0x01][..], &[7; 128], &[0], &[0x83, 0x00], &[9; 3]].concat());
        for step in [1, 2, 3, 50, 1000] {
            let mut frames = Frames::default();
            stream.chunks(step).for_each(|part| frames.read(part));
            assert_eq!(
                (frames.whole, frames.open()),
                (5, None),
                "in parts of {step}"
            );
            frames.read(&[0x80]);
            assert_eq!(frames.open(), Some(5), "half a length");
            frames.read(&[0x01, 1]);
            assert_eq!(frames.open(), Some(5));
            // A varint of a length that never ends.
            let mut endless = Frames::default();
            endless.read(&[0xff; 100]);
            assert_eq!(endless.open(), Some(0));
        }
    }

    /// A stream that yields the given bytes and then pends for ever.
    struct Stuck(Vec<u8>);

    impl AsyncRead for Stuck {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            let part = self.0.len().min(buf.len());
            buf[..part].copy_from_slice(&self.0[..part]);
            self.0.drain(..part);
            if part == 0 {
                Poll::Pending
            } else {
                Poll::Ready(Ok(part))
            }
        }
    }

    /// Whether the alarm is raised for a stream that yields these bytes and then pends.
    async fn is_given_up(protocol: &[u8], frames: &[u8]) -> bool {
        let alarm = Arc::new(Alarm::default());
        let stuck = Stuck([b"\x13/multistream/1.0.0\n", protocol, frames].concat());
        let watch = FrameWatch::new(alarm.clone(), Duration::from_millis(20));
        let mut guarded = GuardedStream::inbound(
            stuck,
            Meter::new(),
            watch,
            StreamCount::add(&Arc::default()),
        );
        let mut buffer = [0; 1024];
        while let Ok(Ok(n)) =
            tokio::time::timeout(Duration::from_millis(200), guarded.read(&mut buffer)).await
        {
            assert!(n > 0);
        }
        alarm.half_frame.load(Ordering::Acquire)
    }

    #[tokio::test]
    async fn a_frame_that_does_not_end_raises_the_alarm_and_a_quiet_stream_does_not() {
        let gossip = b"\x0f/meshsub/1.1.0\n";
        assert!(is_given_up(gossip, &[3, 1, 2]).await);
        assert!(
            is_given_up(gossip, &[1, 9, 0x80]).await,
            "a whole one, and a part of the next"
        );
        assert!(!is_given_up(gossip, &[3, 1, 2, 3]).await);
        assert!(!is_given_up(gossip, &[]).await);
        assert!(
            !is_given_up(b"\x10/ipfs/ping/1.0.0\n", &[200, 1, 2]).await,
            "frames of other protocols are not watched"
        );
    }

    /// A stream of a frame that does not end: one byte arrives at a time.
    struct Trickle(Pin<Box<Sleep>>);

    const TRICKLE: Duration = Duration::from_millis(20);

    impl AsyncRead for Trickle {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            ready!(self.0.as_mut().poll(cx));
            self.0 = Box::pin(tokio::time::sleep(TRICKLE));
            buf[0] = 1;
            Poll::Ready(Ok(1))
        }
    }

    #[tokio::test]
    async fn a_frame_that_still_grows_at_its_time_limit_is_slow_and_not_half() {
        let alarm = Arc::new(Alarm::default());
        // The longest time between two bytes may be 40 times the usual one.
        let limit = 80 * TRICKLE;
        let mut watch = FrameWatch::new(alarm.clone(), limit);
        watch.read(b"\x13/multistream/1.0.0\n\x0f/meshsub/1.1.0\n\x80\x80\x80\x04");
        let mut guarded = GuardedStream::inbound(
            Trickle(Box::pin(tokio::time::sleep(TRICKLE))),
            Meter::new(),
            watch,
            StreamCount::add(&Arc::default()),
        );
        let begun = Instant::now();
        let is_raised = |alarm: &AtomicBool| alarm.load(Ordering::Acquire);
        while !is_raised(&alarm.slow_frame) && !is_raised(&alarm.half_frame) {
            assert!(begun.elapsed() < 20 * limit, "no alarm is raised");
            guarded.read_exact(&mut [0; 1]).await.unwrap();
        }
        assert!(is_raised(&alarm.slow_frame) && !is_raised(&alarm.half_frame));
    }
}
