//! Messages and streams that hostile peers send unasked: garbage, floods of requests, half frames.

use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::{PeerId, Stream, StreamProtocol};
use libp2p_stream::Control;
use rand::{Rng, RngCore, rngs::StdRng};
use starling_proto::{gossip::MAX_MESSAGE_LEN, reqresp};
use std::{collections::VecDeque, io, time::Duration};
use tokio::time::{sleep, timeout};

/// Pause after a stream that was refused.
const PAUSE: Duration = Duration::from_millis(50);
/// Number of open requests of a flood. A node closes connections with more streams than an honest
/// node opens, which is another rule.
const MAX_OPEN_REQUESTS: usize = 64;
/// Time for which a half frame is kept open: longer than any node waits for the rest.
const HALF_FRAME_HOLD: Duration = Duration::from_secs(60);
/// Bytes of a half frame.
const HALF_FRAME_BYTES: usize = 64 << 10;
/// The name of gossipsub's protocol that every version understands.
const GOSSIP: &str = "/meshsub/1.1.0";
/// Number of kinds of garbage.
pub const KINDS: u64 = 4;

/// A message that is no block. The kinds take turns, and no two messages are equal.
pub fn garbage(count: u64, dice: &mut StdRng) -> Vec<u8> {
    let mut noise = vec![0; dice.random_range(200..2_000)];
    dice.fill_bytes(&mut noise);
    let packed = |bytes: &[u8]| {
        let packed = snap::raw::Encoder::new().compress_vec(bytes);
        packed.unwrap_or_default()
    };
    match count % KINDS {
        // The length in front of the snappy data never ends.
        0 => [&[0xff; 12], &noise[..]].concat(),
        // A length above that of any message.
        1 => [&varint(MAX_MESSAGE_LEN as u64 + 1), &noise[..]].concat(),
        // Shorter than a signature.
        2 => packed(&noise[..40]),
        // A recovery id that does not exist.
        _ => {
            noise[64] = 0xff;
            packed(&noise)
        }
    }
}

/// An integer in protobuf's encoding.
fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

/// Sends requests to one node without reading a response, until the task is aborted.
pub async fn flood(mut control: Control, node: PeerId, chain: u64) {
    let [protocol, _] = reqresp::protocol_ids(chain);
    let mut open = VecDeque::new();
    for number in 1u64.. {
        let stream = open_stream(&mut control, node, &protocol).await;
        match send(stream, &reqresp::encode_request(number)).await {
            Ok(stream) => open.push_back(stream),
            Err(_) => sleep(PAUSE).await,
        }
        if open.len() > MAX_OPEN_REQUESTS {
            open.pop_front();
        }
    }
}

/// Begins a gossip frame, and begins another when the node has closed the connection, until the
/// task is aborted.
pub async fn half_frames(mut control: Control, node: PeerId) {
    let half = [varint(8 << 20), vec![1; HALF_FRAME_BYTES]].concat();
    loop {
        let stream = open_stream(&mut control, node, GOSSIP).await;
        if let Ok(mut stream) = send(stream, &half).await {
            // The node writes nothing on this stream, so the read ends with the connection.
            let _ = timeout(HALF_FRAME_HOLD, stream.read(&mut [0; 1])).await;
        }
        sleep(PAUSE).await;
    }
}

async fn open_stream(control: &mut Control, node: PeerId, protocol: &str) -> io::Result<Stream> {
    let protocol = StreamProtocol::try_from_owned(protocol.to_owned());
    let protocol = protocol.map_err(io::Error::other)?;
    let stream = control.open_stream(node, protocol).await;
    stream.map_err(io::Error::other)
}

async fn send(stream: io::Result<Stream>, bytes: &[u8]) -> io::Result<Stream> {
    let mut stream = stream?;
    stream.write_all(bytes).await?;
    stream.flush().await?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use starling_proto::{
        gossip::{PayloadFlag, decompress},
        sign::{self, SIGNATURE_LEN},
    };

    #[test]
    fn no_kind_of_garbage_is_a_block() {
        let mut dice = StdRng::seed_from_u64(1);
        for count in 0..4 * KINDS {
            let message = garbage(count, &mut dice);
            let unpacked = decompress(&message);
            let is_whole = unpacked.flag == PayloadFlag::Decompressed;
            assert_eq!(is_whole, count % KINDS >= 2, "{count}");
            if let Some((signature, wire)) = unpacked.bytes.split_first_chunk::<SIGNATURE_LEN>()
                && is_whole
            {
                assert!(sign::recover(signature, 901, wire).is_err());
            }
        }
    }

    #[test]
    fn a_length_is_encoded_as_protobuf_has_it() {
        assert_eq!(varint(8 << 20), [0x80, 0x80, 0x80, 0x04]);
        assert_eq!(varint(5), [5]);
    }
}
