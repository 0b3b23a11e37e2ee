//! The metrics of op-node, with the same names and labels, so that dashboards and alerts for
//! op-node work for this node too. Metrics of our own begin with `starling_p2p_` and are recorded
//! where their events happen.
//!
//! No label has a value that a peer can choose, so peers cannot increase the number of time series.
//! RPC reports single peers and blocks.

use metrics::{Counter, Gauge};
use std::time::Duration;

/// A gossipsub event that concerns a message or a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GossipEvent {
    Publish,
    /// A message that is not passed on: rejected or ignored.
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

/// Records one part of a peer's score. `kind` is one of our constants.
pub fn score(kind: &'static str, value: f64) {
    metrics::histogram!("op_node_default_peer_scores", "type" => kind).record(value);
}

/// Sets the number of blocks that wait for their parents.
pub fn quarantine(blocks: u64) {
    metrics::gauge!("op_node_default_p2p_payloads_quarantine_total").set(blocks as f64);
}

/// The role of this node in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// Records a `payload_by_number` request that ended, with its result code.
pub fn request(side: Side, number: u64, code: u8, elapsed: Duration) {
    let role = match side {
        Side::Client => "client",
        Side::Server => "server",
    };
    // Result codes without a defined meaning share one label.
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

/// Counters of the bytes read and written on streams, without the overhead of encryption and muxer.
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

    /// Counts a stream as open until the returned guard is dropped.
    pub fn stream(&self) -> OpenStream {
        self.streams.increment(1);
        OpenStream(self.streams.clone())
    }
}

/// A guard that counts one stream as open until it is dropped.
pub struct OpenStream(Gauge);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}
