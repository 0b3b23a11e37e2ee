//! Unpacks responses in gzip. Every request accepts gzip, as those of op-node do, since paid
//! endpoints charge for bytes and some proxies compress without being asked. The limit of a
//! response's size is that of the unpacked body, so that a small response cannot fill the memory.
//! A large body is unpacked on the blocking pool.

use super::HttpFault;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http::{HeaderMap, header};
use std::io::Read;

/// Largest body that is unpacked on a worker of the runtime, in bytes. A body grows to at most 1032
/// times its size, which takes some milliseconds here.
const QUICK: usize = 4 << 10;

/// The packing of a response's body.
#[derive(Clone, Debug, PartialEq, Eq)]
enum BodyPacking {
    Plain,
    Gzip,
    /// The name of an encoding that no request accepts.
    Foreign(String),
}

impl BodyPacking {
    fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all(header::CONTENT_ENCODING).iter();
        let names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        let names: Vec<String> = names
            .map(|name| String::from_utf8_lossy(name).trim().to_ascii_lowercase())
            .filter(|name| !name.is_empty() && name != "identity")
            .collect();
        match names.as_slice() {
            [] => Self::Plain,
            [name] if matches!(name.as_str(), "gzip" | "x-gzip") => Self::Gzip,
            _ => Self::Foreign(names.join(", ")),
        }
    }
}

/// The unpacked body of a response with these headers. Fails if it has more than `max_bytes` bytes.
pub(super) async fn unpacked(
    headers: &HeaderMap,
    body: Bytes,
    max_bytes: usize,
) -> Result<Bytes, HttpFault> {
    match BodyPacking::of(headers) {
        BodyPacking::Plain => Ok(body),
        // A response without a body may have the header all the same.
        _ if body.is_empty() => Ok(body),
        BodyPacking::Gzip if body.len() <= QUICK => gunzip(&body, max_bytes),
        BodyPacking::Gzip => {
            let work = tokio::task::spawn_blocking(move || gunzip(&body, max_bytes));
            work.await
                .unwrap_or_else(|error| Err(HttpFault::Broken(error.to_string())))
        }
        BodyPacking::Foreign(names) => Err(HttpFault::Broken(format!(
            "the response has the encoding {}, and the request accepts gzip only",
            super::excerpt(names)
        ))),
    }
}

fn gunzip(packed: &[u8], max_bytes: usize) -> Result<Bytes, HttpFault> {
    let mut body = Vec::new();
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX);
    // One more byte than allowed shows that the body is too large.
    let mut decoder = MultiGzDecoder::new(packed).take(limit.saturating_add(1));
    decoder
        .read_to_end(&mut body)
        .map_err(|error| HttpFault::Broken(format!("the response is damaged gzip: {error}")))?;
    if body.len() > max_bytes {
        return Err(HttpFault::TooLarge(max_bytes));
    }
    Ok(body.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(vec![], Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    async fn read(encoding: &str, body: Vec<u8>, max_bytes: usize) -> Result<Bytes, HttpFault> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, encoding.parse().unwrap());
        unpacked(&headers, body.into(), max_bytes).await
    }

    #[tokio::test]
    async fn a_body_is_unpacked_and_its_limit_is_that_of_the_unpacked_size() {
        let text = "{\"result\":null}".repeat(10_000).into_bytes();
        for encoding in ["gzip", "GZIP", "x-gzip", "identity, gzip"] {
            let body = read(encoding, gzip(&text), text.len()).await;
            assert_eq!(body.as_deref(), Ok(&text[..]), "{encoding}");
        }
        let less = text.len() - 1;
        let refused = read("gzip", gzip(&text), less).await;
        assert_eq!(refused, Err(HttpFault::TooLarge(less)));
        assert_eq!(read("identity", text.clone(), 0).await, Ok(text.into()));
        // Members that follow one another are one body, as in Go.
        let members = [gzip(b"ab"), gzip(b"cd")].concat();
        assert_eq!(read("gzip", members, 4).await.as_deref(), Ok(&b"abcd"[..]));
        assert_eq!(read("gzip", vec![], 4).await.as_deref(), Ok(&b""[..]));
    }

    #[tokio::test]
    async fn a_gzip_bomb_is_refused_at_the_limit() {
        let bomb = gzip(&vec![b' '; 16 << 20]);
        assert!(bomb.len() < 32 << 10, "{}", bomb.len());
        for max_bytes in [1, 4096, 1 << 20] {
            let refused = read("gzip", bomb.clone(), max_bytes).await;
            assert_eq!(refused, Err(HttpFault::TooLarge(max_bytes)));
        }
    }

    #[tokio::test]
    async fn damaged_and_foreign_bodies_are_named() {
        let packed = gzip(&[7; 1000]);
        let mut flipped = packed.clone();
        *flipped.last_mut().unwrap() ^= 1;
        for damaged in [b"{}".to_vec(), packed[..packed.len() - 4].to_vec(), flipped] {
            let error = read("gzip", damaged, 4096).await.unwrap_err().to_string();
            assert!(error.starts_with("the response is damaged gzip"), "{error}");
        }
        for foreign in ["br", "deflate", "gzip, gzip", "zstd"] {
            let error = read(foreign, packed.clone(), 4096).await.unwrap_err();
            let expected = format!("the response has the encoding {foreign}, ");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}
