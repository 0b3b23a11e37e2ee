//! Events of a subscription on their way to the client, and the reasons why a subscription ends.
//!
//! A namespace makes the events ([`EventStream`]), a transport sends them. When a subscription ends by
//! itself its client would miss events, so the transport closes the connection, with the reason where
//! its protocol has a place for one, and names slow clients in the log.

use super::{error::RpcError, memory::MemoryPermit};
use crate::chain::Heads;
use futures::stream::BoxStream;
use serde_json::value::RawValue;
use std::{fmt, ops::Deref};
use tokio::sync::watch;

/// The events of a subscription. An error is the last item: after it events are missing. A stream
/// without one ends with its source, when the node stops.
pub type EventStream = BoxStream<'static, Result<SubscriptionEvent, SubscriptionEnd>>;

/// An event of a subscription.
pub struct SubscriptionEvent {
    json: Box<RawValue>,
    /// Memory that is held until the event has been sent; `None` for a small one.
    pub held: Option<MemoryPermit>,
    /// `None` for an event that belongs to no block.
    pub position: Option<ChainPosition>,
}

impl SubscriptionEvent {
    pub fn large(json: Box<RawValue>, held: MemoryPermit) -> Self {
        Self {
            held: Some(held),
            ..json.into()
        }
    }

    pub fn of_block(json: Box<RawValue>, position: ChainPosition) -> Self {
        Self {
            position: Some(position),
            ..json.into()
        }
    }
}

impl From<Box<RawValue>> for SubscriptionEvent {
    fn from(json: Box<RawValue>) -> Self {
        Self {
            json,
            held: None,
            position: None,
        }
    }
}

impl Deref for SubscriptionEvent {
    type Target = RawValue;

    fn deref(&self) -> &RawValue {
        &self.json
    }
}

/// The place on the chain of a client that has taken an event.
#[derive(Clone, Debug)]
pub struct ChainPosition {
    pub number: u64,
    pub heads: watch::Receiver<Heads>,
}

impl ChainPosition {
    fn lag(&self) -> SubscriberLag {
        let head = self.heads.borrow().head.number;
        SubscriberLag::Blocks(head.saturating_sub(self.number))
    }
}

/// How much a slow client has not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriberLag {
    /// Blocks between the last event that was sent and the head.
    Blocks(u64),
    /// Transactions that were dropped before the client had taken those before them.
    Transactions(u64),
    /// Messages that wait, where none of them belongs to a block.
    Messages(usize),
}

impl fmt::Display for SubscriberLag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocks(count) => write!(f, "{count} blocks"),
            Self::Transactions(count) => write!(f, "{count} transactions"),
            Self::Messages(count) => write!(f, "{count} messages"),
        }
    }
}

/// The reason why a subscription ends although its client wants more. Clients read the sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscriptionEnd {
    #[error("the subscriber reads too slowly: it is {0} behind")]
    Slow(SubscriberLag),
    #[error("too many events wait for their readers: subscribe again later")]
    Overloaded,
    #[error("{0}")]
    Failed(String),
}

impl From<RpcError> for SubscriptionEnd {
    fn from(error: RpcError) -> Self {
        Self::Failed(error.message)
    }
}

/// The newest event that a connection has sent, from which the lag of its client follows.
#[derive(Default)]
pub struct SentEvents {
    newest: Option<ChainPosition>,
}

impl SentEvents {
    /// Records a message that has been sent.
    pub fn on_sent(&mut self, position: Option<ChainPosition>) {
        if position.is_some() {
            self.newest = position;
        }
    }

    /// The lag of a client that does not take the message at `next`. So many others wait behind it.
    pub fn lag(&self, next: Option<&ChainPosition>, waiting: usize) -> SubscriberLag {
        let position = self.newest.as_ref().or(next);
        position.map_or(SubscriberLag::Messages(waiting + 1), ChainPosition::lag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_proto::payload::BlockId;

    fn at(number: u64, heads: &watch::Sender<Heads>) -> ChainPosition {
        let heads = heads.subscribe();
        ChainPosition { number, heads }
    }

    #[test]
    fn the_lag_is_counted_from_the_last_event_that_was_sent() {
        let heads = watch::Sender::new(Heads::default());
        heads.send_modify(|heads| {
            heads.head = BlockId {
                number: 20,
                ..BlockId::default()
            }
        });
        let mut sent = SentEvents::default();
        assert_eq!(sent.lag(None, 32), SubscriberLag::Messages(33));
        let next = at(15, &heads);
        assert_eq!(sent.lag(Some(&next), 32), SubscriberLag::Blocks(5));
        sent.on_sent(Some(at(12, &heads)));
        sent.on_sent(None);
        assert_eq!(sent.lag(Some(&next), 32), SubscriberLag::Blocks(8));
        let told = SubscriptionEnd::Slow(sent.lag(None, 0)).to_string();
        assert_eq!(
            told,
            "the subscriber reads too slowly: it is 8 blocks behind"
        );
    }
}
