//! The metrics of the network's reference node, by its names and labels, so that its dashboards and alarms show this node too. What
//! that node does not count begins with `starling_p2p_` and is counted where it happens.
//!
//! No label holds what a peer can choose, so nobody can make their number grow: peers and blocks one by one are shown by RPC.

use metrics::{Counter, Gauge};
use std::time::Duration;

/// What happens to messages and peers of the gossip router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GossipEvent {
    Publish,
    /// Not passed on: rejected or ignored.
    Reject,
    /// Another copy of a message.
    Duplicate,
    Deliver,
    AddPeer,
    RemovePeer,
}

pub fn gossip(event: GossipEvent) {
    let label = match event {
        GossipEvent::Publish => "PUBLISH_MESSAGE",
        GossipEvent::Reject => "REJECT_MESSAGE",
        GossipEvent::Duplicate => "DUPLICATE_MESSAGE",
        GossipEvent::Deliver => "DELIVER_MESSAGE",
        GossipEvent::AddPeer => "ADD_PEER",
        GossipEvent::RemovePeer => "REMOVE_PEER",
    };
    metrics::counter!("op_node_default_p2p_gossip_events_total", "type" => label).increment(1);
}

pub fn peers(count: usize) {
    metrics::gauge!("op_node_default_p2p_peer_count").set(count as f64);
}

fn verdict(allowed: bool) -> &'static str {
    if allowed { "allow" } else { "deny" }
}

pub fn dial(allowed: bool) {
    metrics::counter!("op_node_default_p2p_dials", "result" => verdict(allowed)).increment(1);
}

pub fn accept(allowed: bool) {
    metrics::counter!("op_node_default_p2p_accepts", "result" => verdict(allowed)).increment(1);
}

pub fn peer_unbanned() {
    metrics::counter!("op_node_default_p2p_peer_unbans").increment(1);
}

pub fn address_unbanned() {
    metrics::counter!("op_node_default_p2p_ip_unbans").increment(1);
}

/// `kind`: a word of ours.
pub fn score(kind: &'static str, value: f64) {
    metrics::histogram!("op_node_default_peer_scores", "type" => kind).record(value);
}

/// Blocks that wait until their parents are there.
pub fn quarantine(blocks: u64) {
    metrics::gauge!("op_node_default_p2p_payloads_quarantine_total").set(blocks as f64);
}

/// On which side of a request we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// A `payload_by_number` that ended, with its result code.
pub fn request(side: Side, number: u64, code: u8, elapsed: Duration) {
    let role = match side {
        Side::Client => "client",
        Side::Server => "server",
    };
    // Of the codes of peers only those with a meaning are told apart.
    let code = match code {
        0 => "0",
        1 => "1",
        2 => "2",
        _ => "3",
    };
    let labels = [
        ("p2p_role", role),
        ("p2p_method", "payload_by_number"),
        ("result_code", code),
    ];
    metrics::counter!("op_node_default_p2p_req_total", &labels).increment(1);
    metrics::histogram!("op_node_default_p2p_req_duration_seconds", &labels)
        .record(elapsed.as_secs_f64());
    metrics::gauge!("op_node_default_p2p_payload_by_number", "p2p_role" => role).set(number as f64);
}

/// What streams carry, without what encryption and the muxer add.
#[derive(Clone)]
pub struct Meter {
    read: Counter,
    written: Counter,
    streams: Gauge,
}

impl Meter {
    pub fn new() -> Self {
        let bytes = |direction| metrics::counter!("op_node_default_p2p_bandwidth_bytes_total", "direction" => direction);
        Self {
            read: bytes("in"),
            written: bytes("out"),
            streams: metrics::gauge!("op_node_default_p2p_stream_count"),
        }
    }

    pub fn read(&self, bytes: usize) {
        self.read.increment(bytes as u64);
    }

    pub fn wrote(&self, bytes: usize) {
        self.written.increment(bytes as u64);
    }

    /// A stream, which counts as open until it is dropped.
    pub fn stream(&self) -> Open {
        self.streams.increment(1);
        Open(self.streams.clone())
    }
}

/// An open stream.
pub struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}
