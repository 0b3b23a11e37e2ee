//! The log of a hostile peer: its connections, and the requests for blocks that it got, with their
//! times. The peer writes a line for each, and the lab reads them as evidence.

use libp2p::PeerId;
use std::time::{SystemTime, UNIX_EPOCH};

/// An event of a hostile peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostileEvent {
    Connected,
    Disconnected,
    /// The node has requested headers or blocks. Requests for a status do not count: a node sends
    /// them to every peer.
    Requested,
}

impl HostileEvent {
    const ALL: [Self; 3] = [Self::Connected, Self::Disconnected, Self::Requested];

    fn word(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Disconnected => "disconnected",
            Self::Requested => "requested",
        }
    }

    /// The line of an event with this node at the present time.
    pub fn line(self, node: &PeerId) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let millis = now.unwrap_or_default().as_millis();
        format!("{millis} {} {node}", self.word())
    }
}

/// An event in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LoggedEvent {
    /// Milliseconds since 1970.
    at: u64,
    event: HostileEvent,
    /// Peer id of the node.
    node: String,
}

/// The log of a hostile peer. Lines that are no event are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostileLog {
    events: Vec<LoggedEvent>,
}

impl HostileLog {
    pub fn read(log: &str) -> Self {
        let event = |line: &str| {
            let mut words = line.split(' ');
            let at = words.next()?.parse().ok()?;
            let word = words.next()?;
            let event = HostileEvent::ALL.into_iter().find(|it| it.word() == word)?;
            let node = words.next()?.to_owned();
            Some(LoggedEvent { at, event, node })
        };
        Self {
            events: log.lines().filter_map(event).collect(),
        }
    }

    /// Number of a node's requests for headers or blocks after a time.
    pub fn requests_after(&self, node: &str, at: u64) -> u64 {
        let events = self.events.iter();
        let requests = events.filter(|it| it.event == HostileEvent::Requested);
        requests.filter(|it| it.node == node && it.at > at).count() as u64
    }

    /// Whether the peer was connected with a node at a time.
    pub fn is_connected_at(&self, node: &str, at: u64) -> bool {
        let mut connections = 0;
        for event in self
            .events
            .iter()
            .filter(|it| it.node == node && it.at <= at)
        {
            match event.event {
                HostileEvent::Connected => connections += 1,
                HostileEvent::Disconnected => connections -= 1,
                HostileEvent::Requested => {}
            }
        }
        connections > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        let node = PeerId::random();
        for event in HostileEvent::ALL {
            let log = HostileLog::read(&event.line(&node));
            let [logged] = &log.events[..] else {
                panic!("{log:?}");
            };
            assert_eq!((logged.event, &*logged.node), (event, &*node.to_string()));
            assert!(logged.at > 1_700_000_000_000);
        }
    }

    #[test]
    fn requests_and_connections_are_those_of_the_node() {
        let log = HostileLog::read(
            "1000 connected a\n1100 connected b\n1200 requested a\n1300 requested a\n\
             1300 requested b\n1400 connected a\n1500 disconnected a\n1600 disconnected a\n\
             sent 3 messages, served 4 requests\n",
        );
        let requests = [999, 1_200, 1_300].map(|at| log.requests_after("a", at));
        assert_eq!(requests, [2, 1, 0]);
        assert_eq!(log.requests_after("b", 0), 1);
        let connected = [999, 1_000, 1_550, 1_600].map(|at| log.is_connected_at("a", at));
        assert_eq!(connected, [false, true, true, false]);
        assert!(log.is_connected_at("b", 1_700));
    }
}
