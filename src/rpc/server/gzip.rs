//! Compression of responses for clients that accept gzip, as in geth's servers.
//!
//! Small responses are sent uncompressed: their compression would cost more than it saves. Large
//! responses are compressed on the blocking pool, since a megabyte takes some milliseconds.

use flate2::{Compression, write::GzEncoder};
use http::HeaderValue;
use std::io::Write;

/// Smallest response that is compressed, in bytes: it does not fit into one packet.
const SMALLEST: usize = 1400;
/// Largest response that is compressed on a worker of the runtime, in bytes: this takes some
/// hundred microseconds.
const QUICK: usize = 32 << 10;

/// The bytes of a response.
pub enum Encoded {
    Plain(String),
    Gzip(Vec<u8>),
}

impl Encoded {
    /// Compresses the response if the client accepts gzip and the response is large enough.
    pub async fn new(text: String, accepted: bool) -> Self {
        if !accepted || text.len() < SMALLEST {
            return Self::Plain(text);
        }
        if text.len() <= QUICK {
            return Self::compressed(text);
        }
        let work = tokio::task::spawn_blocking(move || Self::compressed(text));
        // The work has no result only if it panics; the text of the response is then lost.
        work.await.unwrap_or(Self::Plain(String::new()))
    }

    fn compressed(text: String) -> Self {
        let mut encoder = GzEncoder::new(Vec::with_capacity(text.len() / 4), Compression::fast());
        let written = encoder.write_all(text.as_bytes());
        match written.and_then(|()| encoder.finish()) {
            Ok(bytes) => Self::Gzip(bytes),
            // Writing to memory does not fail.
            Err(_) => Self::Plain(text),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Plain(text) => text.as_bytes(),
            Self::Gzip(bytes) => bytes,
        }
    }

    /// The value of `Content-Encoding`.
    pub fn encoding(&self) -> Option<HeaderValue> {
        match self {
            Self::Plain(_) => None,
            Self::Gzip(_) => Some(HeaderValue::from_static("gzip")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read;

    #[tokio::test]
    async fn large_answers_are_compressed_for_those_who_accept_it() {
        for length in [0, SMALLEST - 1, SMALLEST, QUICK, QUICK + 1, 1 << 20] {
            let text: String = ('a'..='z').cycle().take(length).collect();
            let plain = Encoded::new(text.clone(), false).await;
            assert!(plain.encoding().is_none() && plain.bytes() == text.as_bytes());
            let packed = Encoded::new(text.clone(), true).await;
            assert_eq!(packed.encoding().is_some(), length >= SMALLEST, "{length}");
            if packed.encoding().is_some() {
                let mut unpacked = String::new();
                let mut decoder = GzDecoder::new(packed.bytes());
                decoder.read_to_string(&mut unpacked).unwrap();
                assert_eq!(unpacked, text);
            }
        }
    }
}
