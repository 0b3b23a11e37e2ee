//! Limits of an endpoint on connections, sizes, memory and time.

use std::time::Duration;

/// Limits on one client, and on all clients of an endpoint together.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Connections. At the limit an idle one is closed for a new one; if none is idle, the new one
    /// waits.
    pub connections: usize,
    /// WebSockets among the connections; at the limit a new one is refused with 503.
    pub ws_connections: usize,
    /// Bytes of one request body.
    pub body: usize,
    /// Bytes of all request bodies and WebSocket messages in memory, except those of up to 4 KiB.
    pub body_memory: usize,
    /// Bytes of all answers in memory; an answer beyond it is refused.
    pub answer_memory: usize,
    /// Calls in one batch.
    pub batch: usize,
    /// Bytes of results in one batch.
    pub batch_response: usize,
    /// Bytes of one WebSocket message.
    pub ws_message: usize,
    /// Timeout of the head of a connection's first request, and of a request's body.
    pub read: Duration,
    /// Timeout of writing a response, from its first byte on; also of handling a request.
    pub write: Duration,
    /// Timeout of an idle connection between two requests.
    pub idle: Duration,
    /// Timeout of writing a WebSocket message. A client that is too slow has as long again to take the
    /// rest of it, and the close frame.
    pub ws_write: Duration,
    /// Interval of pings; a WebSocket that is silent for twice as long is closed.
    pub ws_ping: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            ws_connections: 2_000,
            body: 5 << 20,
            body_memory: 128 << 20,
            answer_memory: 256 << 20,
            batch: 1000,
            batch_response: 25_000_000,
            ws_message: 32 << 20,
            read: Duration::from_secs(30),
            write: Duration::from_secs(30),
            idle: Duration::from_secs(120),
            ws_write: Duration::from_secs(10),
            ws_ping: Duration::from_secs(30),
        }
    }
}
