//! The responses of hostile peers to requests for statuses, headers and blocks.

use super::{behaviour::HostileBehaviour, chain::SeenChain, log::HostileEvent};
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::{PeerId, Stream};
use parking_lot::Mutex;
use starling_proto::{
    reqresp::{self, NumberRefusal, REQUEST_LEN},
    wire::{
        self, ChunkBuilder, LENGTH, MAX_REQUEST, RangeRefusal, RequestBody, Response, ResponseBody,
    },
};
use std::{future::pending, io, sync::Arc};

/// Blocks above the true head that a false status claims: years of blocks.
const FALSE_DISTANCE: u64 = 1_000_000_000;

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedProtocol {
    /// Starling's own protocol for statuses, headers and blocks.
    Range,
    /// The network's `payload_by_number`.
    Number,
}

/// Serves one stream of a node.
pub async fn serve(
    protocol: ServedProtocol,
    node: PeerId,
    mut stream: Stream,
    behaviour: HostileBehaviour,
    chain: Arc<Mutex<SeenChain>>,
) -> io::Result<()> {
    let response = match protocol {
        ServedProtocol::Range => {
            let request = read_range(&mut stream).await?;
            if !matches!(request, RequestBody::Status(_)) {
                println!("{}", HostileEvent::Requested.line(&node));
            }
            range_response(behaviour, &chain.lock(), request).map(|body| {
                let body = Some(body);
                wire::frame(&Response { body })
            })
        }
        ServedProtocol::Number => {
            let mut request = [0; REQUEST_LEN];
            stream.read_exact(&mut request).await?;
            println!("{}", HostileEvent::Requested.line(&node));
            number_response(behaviour, &chain.lock(), u64::from_le_bytes(request))
        }
    };
    let Some(response) = response else {
        // The stream stays open until its requester closes the connection.
        return pending().await;
    };
    stream.write_all(&response).await?;
    stream.close().await
}

async fn read_range(stream: &mut Stream) -> io::Result<RequestBody> {
    let mut length = [0; LENGTH];
    stream.read_exact(&mut length).await?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_REQUEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut request = vec![0; length];
    stream.read_exact(&mut request).await?;
    wire::decode_request(&request).map_err(io::Error::other)
}

/// The response to a range request; `None` for no response at all.
fn range_response(
    behaviour: HostileBehaviour,
    chain: &SeenChain,
    request: RequestBody,
) -> Option<ResponseBody> {
    let refusal = |refusal: RangeRefusal| ResponseBody::Refusal(refusal as u32);
    if let RequestBody::Status(_) = request {
        let status = status(behaviour, chain).map(ResponseBody::Status);
        return Some(status.unwrap_or(refusal(RangeRefusal::Failed)));
    }
    match behaviour {
        HostileBehaviour::Stall => None,
        HostileBehaviour::ForkedChain => {
            Some(forged_chunk(chain, request).unwrap_or(refusal(RangeRefusal::NotFound)))
        }
        _ => Some(refusal(RangeRefusal::NotFound)),
    }
}

/// The claimed status; `None` while the peer has seen no block.
fn status(behaviour: HostileBehaviour, chain: &SeenChain) -> Option<wire::Status> {
    let mut head = chain.newest()?.id();
    if behaviour == HostileBehaviour::FalseHead {
        head.number += FALSE_DISTANCE;
        head.hash = alloy_primitives::keccak256(head.hash);
    }
    Some(wire::Status {
        chain_id: chain.rollup.l2_chain_id,
        genesis_hash: chain.rollup.genesis.l2.hash.to_vec(),
        head: Some(head.into()),
        oldest: chain.rollup.genesis.l2.number + 1,
        safe: None,
        finalized: None,
    })
}

/// Headers or blocks of another branch, as many as were requested.
fn forged_chunk(chain: &SeenChain, request: RequestBody) -> Option<ResponseBody> {
    let mut chunk = ChunkBuilder::default();
    match request {
        RequestBody::Headers(asked) => {
            let lowest = asked.number.saturating_sub(u64::from(asked.count)) + 1;
            for number in (lowest..=asked.number).rev() {
                chunk.push(&[&wire::encode_block(&chain.forged_block(number)?)[0]]);
            }
            Some(ResponseBody::Headers(chunk.finish().ok()?))
        }
        RequestBody::Bodies(asked) => {
            for number in asked.first..=asked.last {
                chunk.push(&[&wire::encode_block(&chain.forged_block(number)?).concat()]);
            }
            Some(ResponseBody::Bodies(chunk.finish().ok()?))
        }
        RequestBody::Status(_) => None,
    }
}

/// The response to a request by number; `None` for no response at all.
fn number_response(behaviour: HostileBehaviour, chain: &SeenChain, number: u64) -> Option<Vec<u8>> {
    let not_found = vec![NumberRefusal::NotFound.code()];
    match behaviour {
        HostileBehaviour::Stall => None,
        HostileBehaviour::ForkedChain => {
            let forged = chain.forged_block(number);
            let response =
                forged.and_then(|block| reqresp::encode_response(&block, &chain.rollup.forks).ok());
            Some(response.unwrap_or(not_found))
        }
        _ => Some(not_found),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::chain::tests::seen, *};
    use starling_proto::wire::{BodiesRequest, HeadersRequest, StatusRequest};

    fn asked() -> [RequestBody; 2] {
        let hash = vec![1; 32];
        [
            RequestBody::Headers(HeadersRequest {
                number: 7,
                hash: hash.clone(),
                count: 3,
            }),
            RequestBody::Bodies(BodiesRequest {
                first: 5,
                last: 7,
                last_hash: hash,
                max_bytes: 1 << 20,
            }),
        ]
    }

    fn head(behaviour: HostileBehaviour) -> u64 {
        match range_response(behaviour, &seen(7), RequestBody::Status(StatusRequest {})) {
            Some(ResponseBody::Status(status)) => status.head.unwrap().number,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_a_false_head_lies_about_the_head() {
        assert_eq!(head(HostileBehaviour::FalseHead), 7 + FALSE_DISTANCE);
        assert_eq!(head(HostileBehaviour::ForkedChain), 7);
        assert_eq!(head(HostileBehaviour::Stall), 7);
    }

    #[test]
    fn a_forked_chain_serves_what_was_requested_from_another_branch() {
        let chain = seen(7);
        for request in asked() {
            let count = match range_response(HostileBehaviour::ForkedChain, &chain, request) {
                Some(ResponseBody::Headers(chunk) | ResponseBody::Bodies(chunk)) => chunk.count,
                other => panic!("{other:?}"),
            };
            assert_eq!(count, 3);
        }
        let response = number_response(HostileBehaviour::ForkedChain, &chain, 7).unwrap();
        let block = reqresp::decode_response(&response).unwrap();
        let block = block.into_payload().expect("it is valid by itself");
        assert_ne!(block.hash, chain.newest().unwrap().hash);
    }

    #[test]
    fn a_stalling_peer_responds_to_status_requests_only() {
        for request in asked() {
            assert!(range_response(HostileBehaviour::Stall, &seen(7), request).is_none());
        }
        assert!(number_response(HostileBehaviour::Stall, &seen(7), 7).is_none());
    }
}
