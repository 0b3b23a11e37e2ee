//! The JSON text of a trace: kept in memory up to a limit, or passed to a sink in chunks as it
//! grows.
//!
//! Writing returns no errors. The first failure is kept and later text is dropped; callers check
//! [`TraceWriter::failed`] now and then. A sink may block while its reader is slow.

use super::TraceError;
use crate::chain::evm::StateError;
use alloy_primitives::{U256, hex};
use std::io::Write;

/// Size in bytes from which the text is passed to the sink.
const CHUNK: usize = 256 << 10;

/// Number of bytes that can be written after [`TraceWriter::position`] and still be rewound: until
/// then no chunk is passed to the sink.
const KEPT: usize = 1 << 10;

/// A function that receives the next chunk. It may block until there is room for the chunk.
pub type ChunkSink = Box<dyn FnMut(Vec<u8>) -> Result<(), StateError> + Send>;

/// The destination of a trace's text.
enum TextSink {
    /// Text kept in memory, up to `limit` bytes.
    Memory {
        limit: usize,
    },
    Chunks(ChunkSink),
}

/// JSON text to which a trace is appended.
pub struct TraceWriter {
    text: Vec<u8>,
    sink: TextSink,
    failure: Option<TraceError>,
}

impl TraceWriter {
    /// A writer that keeps the text in memory and fails if it exceeds `limit` bytes.
    pub fn in_memory(limit: usize) -> Self {
        Self::new(TextSink::Memory { limit })
    }

    /// A writer that passes the text to `sink` in chunks.
    pub fn in_chunks(sink: ChunkSink) -> Self {
        Self::new(TextSink::Chunks(sink))
    }

    fn new(sink: TextSink) -> Self {
        Self {
            text: Vec::new(),
            sink,
            failure: None,
        }
    }

    pub fn raw(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub fn bytes(&mut self, text: &[u8]) {
        if self.failure.is_some() {
            return;
        }
        self.text.extend_from_slice(text);
        match &mut self.sink {
            TextSink::Memory { limit } if self.text.len() > *limit => {
                self.failure = Some(TraceError::TooLarge(*limit >> 20));
                self.text = Vec::new();
            }
            TextSink::Chunks(_) if self.text.len() >= CHUNK => self.flush(),
            TextSink::Memory { .. } | TextSink::Chunks(_) => {}
        }
    }

    pub fn display(&mut self, value: impl std::fmt::Display) {
        let mut text = Vec::new();
        let _ = write!(text, "{value}");
        self.bytes(&text);
    }

    /// Appends a JSON string, with escapes.
    pub fn string(&mut self, text: &str) {
        let text = serde_json::to_vec(text).unwrap_or_default();
        self.bytes(&text);
    }

    /// Appends a value in quotes; its text must need no escapes.
    pub fn quoted(&mut self, value: impl std::fmt::Display) {
        self.display(format_args!("\"{value}\""));
    }

    /// Appends bytes as a string of hexadecimal digits with `0x`.
    pub fn data(&mut self, data: &[u8]) {
        self.raw("\"0x");
        for part in data.chunks(CHUNK) {
            self.raw(&hex::encode(part));
        }
        self.raw("\"");
    }

    /// Appends a quantity in hexadecimal digits.
    pub fn quantity(&mut self, number: U256) {
        self.quoted(format_args!("{number:#x}"));
    }

    /// The current position, for [`TraceWriter::rewind`]: the length of the text not yet passed to
    /// the sink. At least the next [`KEPT`] bytes can still be rewound.
    pub fn position(&mut self) -> usize {
        if self.text.len() + KEPT >= CHUNK {
            self.flush();
        }
        self.text.len()
    }

    /// Removes the text after this position. Fails if text before the position has been passed to
    /// the sink or dropped meanwhile.
    pub fn rewind(&mut self, position: usize) {
        if self.text.len() >= position {
            self.text.truncate(position);
        } else if self.failure.is_none() {
            let limit = match self.sink {
                TextSink::Memory { limit } => limit,
                TextSink::Chunks(_) => CHUNK,
            };
            self.failure = Some(TraceError::TooLarge(limit >> 20));
        }
    }

    pub fn failed(&self) -> bool {
        self.failure.is_some()
    }

    pub(super) fn take_failure(&mut self) -> Option<TraceError> {
        self.failure.take()
    }

    /// Passes the text so far to the sink.
    fn flush(&mut self) {
        if let TextSink::Chunks(sink) = &mut self.sink
            && let Err(error) = sink(std::mem::take(&mut self.text))
        {
            self.failure = Some(error.into());
        }
    }

    /// Ends the text. Returns the part that has not been passed to a sink.
    pub fn finish(self) -> Result<String, TraceError> {
        match self.failure {
            Some(failure) => Err(failure),
            None => String::from_utf8(self.text)
                .map_err(|error| StateError::Evm(error.to_string()).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn text_in_memory_is_bounded() {
        let mut writer = TraceWriter::in_memory(8);
        writer.quantity(U256::from(255));
        assert!(!writer.failed());
        writer.string("\"");
        assert!(writer.failed());
        assert!(matches!(writer.finish(), Err(TraceError::TooLarge(0))));
    }

    #[test]
    fn text_after_a_position_can_be_taken_back() {
        let (sender, chunks) = std::sync::mpsc::channel();
        let sink = move |chunk| {
            sender.send(chunk).unwrap();
            Ok(())
        };
        let mut writer = TraceWriter::in_chunks(Box::new(sink));
        let almost = CHUNK - 10;
        writer.bytes(&vec![b'a'; almost]);
        let position = writer.position();
        writer.bytes(&[b'b'; KEPT - 1]);
        writer.rewind(position);
        assert_eq!(writer.finish().unwrap(), "");
        assert_eq!(chunks.recv().unwrap(), vec![b'a'; almost]);
        assert!(chunks.recv().is_err());
        // Text that was dropped cannot be rewound.
        let mut writer = TraceWriter::in_memory(8);
        writer.raw("1234567");
        let position = writer.position();
        writer.raw("89");
        assert!(writer.take_failure().is_some());
        writer.rewind(position);
        assert!(matches!(writer.finish(), Err(TraceError::TooLarge(0))));
    }

    #[test]
    fn chunks_make_the_whole_text_and_a_failed_sink_ends_it() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let taken = seen.clone();
        let mut writer = TraceWriter::in_chunks(Box::new(move |chunk| {
            let mut seen = taken.lock().unwrap();
            seen.push(chunk.len());
            if seen.len() > 1 {
                return Err(StateError::Evm("gone".into()));
            }
            Ok(())
        }));
        writer.data(&vec![7; CHUNK]);
        assert!(!writer.failed());
        let whole: usize = seen.lock().unwrap().iter().sum();
        assert!(whole >= 2 * CHUNK, "{whole}");
        writer.bytes(&vec![b' '; CHUNK]);
        assert!(writer.failed());
        writer.bytes(&vec![b' '; CHUNK]);
        assert!(writer.finish().is_err());
        assert_eq!(seen.lock().unwrap().len(), 2);
    }
}
