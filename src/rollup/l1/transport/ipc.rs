//! JSON-RPC over a Unix socket: a stream of JSON values, with or without white space between them
//! (geth's IPC has no framing).

use jsonrpsee::core::client::{ReceivedMessage, TransportReceiverT, TransportSenderT};
use std::io;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// Number of bytes for which a read from the socket makes room.
const CHUNK: usize = 64 << 10;

pub(super) struct IpcSender(OwnedWriteHalf);

pub(super) struct IpcReceiver {
    stream: OwnedReadHalf,
    splitter: JsonSplitter,
}

/// The sending and the receiving half of a connection, for JSON values of at most `max` bytes.
pub(super) fn split(stream: UnixStream, max: usize) -> (IpcSender, IpcReceiver) {
    let (read, write) = stream.into_split();
    let receiver = IpcReceiver {
        stream: read,
        splitter: JsonSplitter::new(max),
    };
    (IpcSender(write), receiver)
}

impl TransportSenderT for IpcSender {
    type Error = io::Error;

    async fn send(&mut self, message: String) -> io::Result<()> {
        self.0.write_all(message.as_bytes()).await
    }
}

impl TransportReceiverT for IpcReceiver {
    type Error = io::Error;

    async fn receive(&mut self) -> io::Result<ReceivedMessage> {
        loop {
            if let Some(value) = self.splitter.next()? {
                return Ok(ReceivedMessage::Bytes(value));
            }
            let mut chunk = Vec::with_capacity(CHUNK);
            if self.stream.read_buf(&mut chunk).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.splitter.push(&chunk);
        }
    }
}

/// Finds the end of each object or array in a stream. It does not check that the value is JSON,
/// which the parser does.
#[derive(Debug)]
struct JsonSplitter {
    buffer: Vec<u8>,
    /// Number of bytes in the buffer that have been scanned.
    seen: usize,
    /// Number of open brackets at the scanned position.
    depth: usize,
    in_string: bool,
    escaped: bool,
    max: usize,
}

impl JsonSplitter {
    fn new(max: usize) -> Self {
        Self {
            buffer: Vec::new(),
            seen: 0,
            depth: 0,
            in_string: false,
            escaped: false,
            max,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole value; `None` until more bytes arrive. Fails for a value that is too large,
    /// and for a value that is neither an object nor an array.
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text);
        while let Some(byte) = self.buffer.get(self.seen) {
            self.seen += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                byte if self.depth == 0 && byte.is_ascii_whitespace() => {
                    self.buffer.drain(..self.seen);
                    self.seen = 0;
                    continue;
                }
                _ => {}
            }
            if self.depth == 0 {
                let is_value = matches!(self.buffer.first(), Some(b'{' | b'['));
                if !is_value {
                    return Err(invalid("no JSON object where a response was expected"));
                }
                let rest = self.buffer.split_off(self.seen);
                self.seen = 0;
                return Ok(Some(std::mem::replace(&mut self.buffer, rest)));
            }
        }
        if self.buffer.len() > self.max {
            return Err(invalid("a response that is too large"));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn all(splitter: &mut JsonSplitter) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| splitter.next().unwrap()).collect()
    }

    #[test]
    fn an_endless_or_foreign_answer_is_refused() {
        let mut splitter = JsonSplitter::new(10);
        splitter.push(b"[[[[[[[[[[[[");
        assert!(splitter.next().is_err());
        for foreign in ["HTTP/1.1 400", "\"text\"", "}"] {
            let mut splitter = JsonSplitter::new(100);
            splitter.push(foreign.as_bytes());
            assert!(splitter.next().is_err(), "{foreign}");
        }
    }

    proptest! {
        #[test]
        fn values_are_found_whatever_the_pieces(
            texts in proptest::collection::vec("[\"\\\\{}a\\[\\] ]{0,12}", 1..8),
            pieces in proptest::collection::vec(1usize..9, 1..200),
        ) {
            let values: Vec<Value> = texts.iter().map(|text| json!({ "id": [text, { text: 1 }] })).collect();
            let stream: Vec<u8> = values.iter().flat_map(|value| format!("{value}\n ").into_bytes()).collect();
            let (mut splitter, mut found, mut rest) = (JsonSplitter::new(1000), vec![], &stream[..]);
            for piece in pieces.into_iter().chain([stream.len()]) {
                let (now, later) = rest.split_at(piece.min(rest.len()));
                splitter.push(now);
                found.extend(all(&mut splitter));
                rest = later;
            }
            let found: Vec<Value> = found.iter().map(|bytes| serde_json::from_slice(bytes).unwrap()).collect();
            prop_assert_eq!(found, values);
        }
    }
}
