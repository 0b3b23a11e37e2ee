//! Cuts incoming WebSocket frames into small fragments (RFC 6455, section 5.4).
//!
//! The WebSocket library allocates a whole frame as soon as its header announces the length. A
//! frame may be as long as a message, so a header of a few bytes could allocate megabytes. Behind
//! this reader, the buffer of a message grows only as the message arrives. Bytes beyond [`SMALL`]
//! wait for memory of requests, and must arrive in time.

use crate::rpc::memory::{Allowance, RequestMemory, SMALL};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, BufReader, ReadBuf},
    time::{Instant, Sleep},
};

/// Bytes of a fragment. It is a multiple of the masking key's four bytes, so that every fragment
/// begins with the key's first byte. It is at most [`SMALL`], so that the first fragment takes no
/// memory of requests before its bytes arrive.
const FRAGMENT: u64 = SMALL as u64;
/// Bytes of the longest header: two bytes, eight of length, four of masking key.
const HEADER: usize = 14;
const FINAL: u8 = 0x80;
const MASKED: u8 = 0x80;

/// Memory of the message that is arriving. The reader of the message takes the memory out.
pub type IncomingMemory = Arc<Mutex<RequestMemory>>;

/// A socket from which frames are read as fragments; writes pass unchanged.
pub struct Fragments<S> {
    socket: BufReader<S>,
    /// The header of the client's frame; `have` is the number of its bytes that have arrived.
    header: [u8; HEADER],
    have: usize,
    /// The header of the current fragment; `given` is the number of its bytes that the library has
    /// read.
    made: Vec<u8>,
    given: usize,
    /// Missing bytes of the current fragment (`fragment`), and of the client's frame after this
    /// fragment (`frame`).
    fragment: u64,
    frame: u64,
    /// Set if a fragment must begin next; true if this fragment is the first of its frame.
    due: Option<bool>,
    /// Bytes of the message so far.
    message: usize,
    longest: u64,
    allowance: Allowance,
    /// Wait for the memory of the next fragment, if there is one.
    waiting: Option<BoxFuture<'static, RequestMemory>>,
    held: IncomingMemory,
    limit: Duration,
    late: Pin<Box<Sleep>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Fragments<S> {
    /// A reader that cuts frames. Frames longer than `longest` are passed on uncut, and the library
    /// refuses them. A message beyond [`SMALL`] must arrive within `limit`.
    pub fn new(socket: S, longest: usize, limit: Duration, allowance: &Allowance) -> Self {
        Self {
            socket: BufReader::new(socket),
            header: [0; HEADER],
            have: 0,
            made: Vec::with_capacity(HEADER),
            given: 0,
            fragment: 0,
            frame: 0,
            due: None,
            message: 0,
            longest: longest as u64,
            allowance: allowance.clone(),
            waiting: None,
            held: IncomingMemory::default(),
            limit,
            late: Box::pin(tokio::time::sleep(limit)),
        }
    }

    pub fn incoming(&self) -> IncomingMemory {
        self.held.clone()
    }

    /// Reads the header of the client's next frame. Returns false at the end of the socket.
    fn poll_header(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            let need = match self.have {
                0 | 1 => 2,
                _ => 2 + self.length_bytes() + if self.header[1] & MASKED == 0 { 0 } else { 4 },
            };
            if self.have == need {
                return Poll::Ready(Ok(true));
            }
            let mut part = ReadBuf::new(&mut self.header[self.have..need]);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut part))?;
            match part.filled().len() {
                0 => return Poll::Ready(Ok(false)),
                more => self.have += more,
            }
        }
    }

    fn length_bytes(&self) -> usize {
        match self.header[1] & !MASKED {
            126 => 2,
            127 => 8,
            _ => 0,
        }
    }

    /// Begins a frame whose header is complete. The frame is cut, unless it is a control frame or
    /// too long: such a frame is passed on uncut.
    fn begin(&mut self) {
        let mut bytes = [0; 8];
        let length = match self.length_bytes() {
            0 => u64::from(self.header[1] & !MASKED),
            wide => {
                bytes[8 - wide..].copy_from_slice(&self.header[2..2 + wide]);
                u64::from_be_bytes(bytes)
            }
        };
        let control = self.header[0] & 0x08 != 0;
        if control || length > self.longest {
            self.made.extend_from_slice(&self.header[..self.have]);
            (self.fragment, self.have) = (length, 0);
            return;
        }
        if self.message == 0 {
            self.late.as_mut().reset(Instant::now() + self.limit);
        }
        (self.frame, self.due) = (length, Some(true));
    }

    /// Waits for the memory of the next fragment, and makes the fragment's header.
    fn poll_fragment(&mut self, cx: &mut Context<'_>, first: bool) -> Poll<io::Result<()>> {
        let size = self.frame.min(FRAGMENT);
        let message = self.message + size as usize;
        if self.waiting.is_none() {
            self.waiting = self.allowance.reserve(message, &mut self.held.lock());
        }
        if let Some(waiting) = &mut self.waiting {
            let more = ready!(waiting.as_mut().poll(cx));
            self.waiting = None;
            self.held.lock().merge(more);
        }
        self.frame -= size;
        let last = self.frame == 0;
        let code = if first { self.header[0] & !FINAL } else { 0 };
        let end = if last { self.header[0] & FINAL } else { 0 };
        let (masked, mask) = (self.header[1] & MASKED, 2 + self.length_bytes());
        self.made.push(code | end);
        match u8::try_from(size) {
            Ok(short) if short < 126 => self.made.push(masked | short),
            _ => {
                self.made.push(masked | 126);
                self.made.extend_from_slice(&(size as u16).to_be_bytes());
            }
        }
        self.made.extend_from_slice(&self.header[mask..self.have]);
        (self.fragment, self.due) = (size, None);
        self.message = if end == 0 { message } else { 0 };
        if last {
            self.have = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Fails if a message that takes request memory has not arrived in time.
    fn in_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let large = self.message > SMALL || self.frame > 0;
        if large && self.late.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Fragments<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            this.in_time(cx)?;
            if this.given < this.made.len() {
                let size = buffer.remaining().min(this.made.len() - this.given);
                buffer.put_slice(&this.made[this.given..this.given + size]);
                this.given += size;
                return Poll::Ready(Ok(()));
            }
            (this.given, _) = (0, this.made.clear());
            if this.fragment > 0 {
                let size = usize::try_from(this.fragment)
                    .unwrap_or(usize::MAX)
                    .min(buffer.remaining());
                let mut part = ReadBuf::new(buffer.initialize_unfilled_to(size));
                ready!(Pin::new(&mut this.socket).poll_read(cx, &mut part))?;
                let read = part.filled().len();
                buffer.advance(read);
                this.fragment -= read as u64;
                return Poll::Ready(Ok(()));
            }
            if this.frame > 0 && this.due.is_none() {
                this.due = Some(false);
            }
            match this.due {
                Some(first) => ready!(this.poll_fragment(cx, first))?,
                None => {
                    if !ready!(this.poll_header(cx))? {
                        return Poll::Ready(Ok(()));
                    }
                    this.begin();
                }
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Fragments<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soketto::{
        Data,
        connection::{Builder, Mode},
    };
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::compat::TokioAsyncReadCompatExt;

    const LONG: Duration = Duration::from_secs(600);

    fn allowance(requests: usize) -> Allowance {
        Allowance::new(1000, 1 << 20, requests, 1 << 20)
    }

    #[tokio::test]
    async fn messages_are_the_same_behind_it() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let fragments = Fragments::new(server, 1 << 20, LONG, &allowance(1 << 20));
        let room = fragments.incoming();
        let (mut sender, _) = Builder::<_>::new(client.compat(), Mode::Client).finish();
        let (_, mut receiver) = Builder::new(fragments.compat(), Mode::Server).finish();
        for size in [0, 1, 125, 126, 4096, 4097, 65_535, 65_536, 100_001, 300_000] {
            let sent: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            let mut received = Vec::new();
            let (sent_well, got) = futures::join!(
                async {
                    sender.send_binary(&sent).await?;
                    sender.flush().await
                },
                receiver.receive_data(&mut received)
            );
            sent_well.unwrap();
            assert_eq!((got.unwrap(), &received), (Data::Binary(size), &sent));
            let kib = std::mem::take(&mut *room.lock()).shared_kib();
            assert_eq!(kib, if size > SMALL { size.div_ceil(1024) } else { 0 });
        }
    }

    #[tokio::test]
    async fn what_is_only_announced_takes_nothing() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let allowance = allowance(1 << 20);
        let mut fragments = Fragments::new(server, 32 << 20, LONG, &allowance);
        let mut announced = vec![0x82, 0x80 | 127];
        announced.extend_from_slice(&(32u64 << 20).to_be_bytes());
        announced.extend_from_slice(&[0; 4]);
        client.write_all(&announced).await.unwrap();
        let mut header = [0; 8];
        fragments.read_exact(&mut header).await.unwrap();
        assert_eq!(
            header,
            [0x02, 0x80 | 126, 0x10, 0, 0, 0, 0, 0],
            "a fragment of 4 KiB that is not the last"
        );
        assert_eq!(allowance.free_requests(), 1024);
    }

    #[tokio::test]
    async fn a_large_message_must_come_in_time() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let mut fragments = Fragments::new(
            server,
            32 << 20,
            Duration::from_millis(100),
            &allowance(1 << 20),
        );
        let mut begun = vec![0x82, 127];
        begun.extend_from_slice(&(1u64 << 20).to_be_bytes());
        begun.extend_from_slice(&[7; 100_000]);
        client.write_all(&begun).await.unwrap();
        let error = fragments.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
