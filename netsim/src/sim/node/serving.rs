//! The serving side of a node: requests by number and by range, by the rules and rates of the
//! servers, and what hostile peers do instead.

use super::LiveNode;
use crate::sim::{
    chain::SharedChain,
    context::{CHAIN_ID, SimContext},
    hostile::Hostility,
    planted::PlantedBug,
    queue::{SimTime, sim_time},
    wires::{SimMessage, SimRequest},
};
use starling_p2p::{
    ChainHeads,
    machines::{
        LONGEST_WAIT, NumberRules, PEER_RATE, RangeRules, SHARED_RATE, TokenBucket, TokenRate,
    },
};
use starling_proto::{
    payload::BlockId,
    reqresp::{self, NumberRefusal},
};
use std::{collections::BTreeMap, time::Instant};

/// KiB per second that one peer is served by range: the default of `--p2p.range.serve-rate`.
const RANGE_RATE: TokenRate = TokenRate {
    rate: 64 << 10,
    burst: 64 << 10,
};
/// Number of blocks by which a hostile peer's head is above any that can be there.
const FALSE_HEAD: u64 = 100_000;

/// The servers of a node.
pub struct Serving {
    numbers: NumberRules,
    ranges: RangeRules,
    /// The token buckets of each peer: by number and by range.
    buckets: BTreeMap<usize, (TokenBucket, TokenBucket)>,
    shared: TokenBucket,
    /// Distance from the requested to the served block: not 0 if that bug is planted.
    shift: u64,
}

impl Serving {
    pub fn new(chain: &SharedChain, context: &SimContext) -> Self {
        let (genesis, now) = (context.chain_genesis(), context.instant());
        let blocks = chain.served();
        Self {
            numbers: NumberRules {
                genesis,
                forks: context.forks(),
                blocks: blocks.clone(),
            },
            ranges: RangeRules {
                chain_id: CHAIN_ID,
                genesis: genesis.id,
                blocks,
            },
            buckets: BTreeMap::new(),
            shared: TokenBucket::new(SHARED_RATE, now),
            shift: u64::from(context.has_bug(PlantedBug::ServedOffByOne)),
        }
    }

    fn buckets(&mut self, peer: usize, now: Instant) -> &mut (TokenBucket, TokenBucket) {
        self.buckets.entry(peer).or_insert_with(|| {
            (
                TokenBucket::new(PEER_RATE, now),
                TokenBucket::new(RANGE_RATE, now),
            )
        })
    }

    /// The response to a request by number, and the wait for its tokens.
    fn number(
        &mut self,
        peer: usize,
        number: u64,
        (now, unix): (Instant, u64),
    ) -> (SimTime, Vec<u8>) {
        let own = self.buckets(peer, now).0.take_within(LONGEST_WAIT, now);
        let wait = own.and_then(|own| {
            let shared = self.shared.take_within(LONGEST_WAIT - own, now)?;
            Some(own + shared)
        });
        let response = match wait {
            Some(_) => self.numbers.respond(number + self.shift, unix),
            None => Err(NumberRefusal::Other(3)),
        };
        let bytes = response.unwrap_or_else(|refusal| vec![refusal.code()]);
        (sim_time(wait.unwrap_or_default()), bytes)
    }
}

impl LiveNode {
    pub(super) fn serve(
        &mut self,
        from: usize,
        id: u64,
        request: &SimRequest,
        context: &mut SimContext,
    ) {
        let (now, unix) = (context.instant(), context.moment(self.me).unix);
        let (wait, frames) = match context.plan.nodes[self.me].hostile {
            Some(Hostility::Stalls) => return,
            Some(Hostility::Resets) => (0, Vec::new()),
            Some(Hostility::GarbageResponses) => (0, vec![vec![0x5a; 40]]),
            Some(Hostility::FalseBlocks) => (0, vec![self.other_block(request, context)]),
            hostile => match request {
                SimRequest::Number(_) if hostile == Some(Hostility::Refuses) => {
                    (0, vec![vec![NumberRefusal::NotFound.code()]])
                }
                SimRequest::Number(number) => {
                    let (wait, bytes) = self.serving.number(from, *number, (now, unix));
                    (wait, vec![bytes])
                }
                SimRequest::Range(bytes) => (0, self.range_response(hostile, bytes)),
            },
        };
        let mut wait = wait;
        for bytes in frames {
            let tokens = (bytes.len() >> 10) as u32;
            let bucket = &mut self.serving.buckets(from, now).1;
            wait += sim_time(bucket.take_many(tokens, now));
            context.send_after(wait, self.me, from, SimMessage::Frame { id, bytes });
        }
        context.send_after(wait, self.me, from, SimMessage::End { id });
    }

    fn range_response(&self, hostile: Option<Hostility>, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut heads = self.chain.lock().heads();
        let mut request = bytes;
        match hostile {
            Some(Hostility::FalseHead) => heads.head.number += FALSE_HEAD,
            // A request of no meaning is refused; a status still claims the blocks.
            Some(Hostility::Refuses) if !is_status(bytes) => request = &[],
            _ => {}
        }
        self.serving.ranges.respond(request, heads)
    }

    /// A response with another block than the requested one.
    fn other_block(&self, request: &SimRequest, context: &SimContext) -> Vec<u8> {
        let chain = self.chain.lock();
        let other = chain.at(1).unwrap_or_else(|| context.genesis.clone());
        match request {
            SimRequest::Number(_) => {
                reqresp::encode_response(&other, &context.forks()).unwrap_or_default()
            }
            SimRequest::Range(bytes) if is_status(bytes) => {
                let head: BlockId = chain.heads().head;
                let heads = ChainHeads {
                    head: BlockId {
                        number: head.number,
                        ..other.id()
                    },
                    ..chain.heads()
                };
                drop(chain);
                let mut frames = self.serving.ranges.respond(bytes, heads);
                frames.pop().unwrap_or_default()
            }
            SimRequest::Range(bytes) => {
                let heads = chain.heads();
                drop(chain);
                let request = false_request(bytes, other.id());
                let mut frames = self.serving.ranges.respond(&request, heads);
                frames.pop().unwrap_or_default()
            }
        }
    }
}

/// Whether the encoded request is one for a status.
fn is_status(bytes: &[u8]) -> bool {
    use starling_proto::wire::{RequestBody, decode_request};
    matches!(decode_request(bytes), Ok(RequestBody::Status(_)))
}

/// A request of the same kind for another block.
fn false_request(bytes: &[u8], other: BlockId) -> Vec<u8> {
    use starling_proto::wire::{
        BodiesRequest, HeadersRequest, LENGTH, Request, RequestBody, decode_request, frame,
    };
    let body = match decode_request(bytes) {
        Ok(RequestBody::Headers(request)) => RequestBody::Headers(HeadersRequest {
            number: other.number,
            hash: other.hash.to_vec(),
            ..request
        }),
        Ok(RequestBody::Bodies(request)) => RequestBody::Bodies(BodiesRequest {
            first: other.number,
            last: other.number,
            last_hash: other.hash.to_vec(),
            ..request
        }),
        _ => return Vec::new(),
    };
    frame(&Request { body: Some(body) })[LENGTH..].to_vec()
}
