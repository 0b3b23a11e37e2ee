//! Events of a subscription on their way to the client, and the reasons why a subscription ends.
//!
//! A namespace makes the events ([`EventStream`]), and a transport sends them. If a subscription
//! ends by itself, its client would miss events. The transport then closes the connection, gives
//! the reason if its protocol has a field for it, and logs slow clients.

use super::{
    access::Caller,
    error::RpcError,
    memory::{EventMemory, MemoryPermit, ResponseMemory},
};
use crate::chain::Heads;
use futures::stream::BoxStream;
use serde_json::value::RawValue;
use std::{fmt, ops::Deref};
use tokio::sync::watch;

/// The events of a subscription. An error is the last item, because events after it are missing. A
/// stream that ends without an error has lost its source, when the node stops.
pub type EventStream = BoxStream<'static, Result<SubscriptionEvent, SubscriptionEnd>>;

/// The client that begins a subscription.
#[derive(Clone, Default)]
pub struct Subscriber {
    /// Memory of the events of the client's connection.
    pub memory: EventMemory,
    /// The caller that pays for the work of the subscription; `None` if calls are not limited.
    pub caller: Option<Caller>,
}

/// An event of a subscription.
pub struct SubscriptionEvent {
    json: Box<RawValue>,
    /// Memory that is held until the event has been sent; `None` for a small event.
    pub held: Option<ResponseMemory>,
    /// Position of the event on the chain; `None` for an event that belongs to no block.
    pub position: Option<ChainPosition>,
}

impl SubscriptionEvent {
    pub fn large(json: Box<RawValue>, held: MemoryPermit) -> Self {
        Self {
            held: Some(held.into()),
            ..json.into()
        }
    }

    pub fn of_block(
        json: Box<RawValue>,
        held: Option<ResponseMemory>,
        position: ChainPosition,
    ) -> Self {
        Self {
            json,
            held,
            position: Some(position),
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

/// The position on the chain that a client reaches when it takes an event.
#[derive(Clone, Debug)]
pub struct ChainPosition {
    pub number: u64,
    pub heads: watch::Receiver<Heads>,
}

/// The lag of a slow client: the amount that it has not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriberLag {
    /// Number of blocks from the block of the first waiting event up to the head.
    Blocks(u64),
    /// Number of transactions that were dropped before the client had taken the earlier ones.
    Transactions(u64),
    /// Number of waiting messages, none of which belongs to a block.
    Messages(usize),
}

impl SubscriberLag {
    /// The lag behind the head of a client that does not take `event`.
    pub fn of_block(event: &ChainPosition) -> Self {
        let head = event.heads.borrow().head.number;
        Self::Blocks(head.saturating_sub(event.number) + 1)
    }

    /// The lag of a client that does not take the `waiting` messages.
    pub fn of_messages(waiting: impl Iterator<Item = Option<ChainPosition>>) -> Self {
        let (mut count, mut first) = (0, None);
        for position in waiting {
            count += 1;
            first = first.or(position);
        }
        first.map_or(Self::Messages(count), |event| Self::of_block(&event))
    }
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

/// The reason why a subscription ends although its client has not ended it. A WebSocket's client
/// gets the text.
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

#[cfg(test)]
mod tests {
    use super::*;
    use starling_proto::payload::BlockId;

    fn at(number: u64, heads: &watch::Sender<Heads>) -> ChainPosition {
        let heads = heads.subscribe();
        ChainPosition { number, heads }
    }

    #[test]
    fn the_lag_is_counted_from_the_first_event_that_waits() {
        let heads = watch::Sender::new(Heads::default());
        heads.send_modify(|heads| {
            heads.head = BlockId {
                number: 20,
                ..BlockId::default()
            }
        });
        let responses = (0..33).map(|_| None);
        let lag = SubscriberLag::of_messages(responses);
        assert_eq!(lag, SubscriberLag::Messages(33));
        let waiting = [None, Some(at(13, &heads)), Some(at(15, &heads))];
        let lag = SubscriberLag::of_messages(waiting.into_iter());
        assert_eq!(lag, SubscriberLag::Blocks(8));
        let reason = SubscriptionEnd::Slow(lag).to_string();
        assert_eq!(
            reason,
            "the subscriber reads too slowly: it is 8 blocks behind"
        );
    }
}
