//! The range requests in flight, by request id.

use super::{
    ClientEvent, FetchError, RangeRequest,
    by_range::{RangeClient, RangeResponse, ResponseSender},
};
use libp2p::PeerId;
use std::collections::HashMap;
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
};

/// Capacity of the queue of response parts. A task waits while the queue is full.
const RESPONSES: usize = 32;

/// The range requests in flight.
pub struct RangeTasks {
    tasks: JoinSet<()>,
    in_flight: HashMap<u64, (PeerId, AbortHandle)>,
    /// Parts of responses, with the ids of their requests.
    responses: mpsc::Receiver<(u64, RangeResponse)>,
    /// The sending end, cloned for each task. Kept here, so that the channel stays open.
    sender: mpsc::Sender<(u64, RangeResponse)>,
}

impl RangeTasks {
    pub fn new() -> Self {
        let (sender, responses) = mpsc::channel(RESPONSES);
        Self {
            tasks: JoinSet::new(),
            in_flight: HashMap::new(),
            responses,
            sender,
        }
    }

    pub fn fetch(&mut self, client: &RangeClient, id: u64, peer: PeerId, request: RangeRequest) {
        // Reap finished tasks: their results are in `responses`.
        while self.tasks.try_join_next().is_some() {}
        let responses = ResponseSender {
            id,
            responses: self.sender.clone(),
        };
        let fetch = client.clone().fetch(peer, request, responses);
        let task = self.tasks.spawn(fetch);
        self.in_flight.insert(id, (peer, task));
    }

    pub fn cancel(&mut self, id: u64) {
        if let Some((_, task)) = self.in_flight.remove(&id) {
            task.abort();
        }
    }

    /// The next part of a response; pends while there is none.
    pub async fn next(&mut self) -> ClientEvent {
        while let Some((id, response)) = self.responses.recv().await {
            match response {
                RangeResponse::Links(links) => return ClientEvent::Links { id, links },
                RangeResponse::Blocks(blocks) => {
                    let count = blocks.len() as u64;
                    metrics::counter!("starling_p2p_range_blocks_total").increment(count);
                    return ClientEvent::Blocks { id, blocks };
                }
                RangeResponse::End(outcome) => {
                    // The request may have been cancelled while its end was queued: drop the end.
                    if let Some((peer, _)) = self.in_flight.remove(&id) {
                        let result = outcome.as_ref().map_or_else(FetchError::label, |()| "ok");
                        metrics::counter!("starling_p2p_range_total", "result" => result)
                            .increment(1);
                        return ClientEvent::RangeEnded { id, peer, outcome };
                    }
                }
            }
        }
        // Never reached: `sender` keeps the channel open.
        std::future::pending().await
    }
}
