//! Limits of an endpoint on connections, sizes, memory and time.

use std::time::Duration;

/// Limits on one client, and on all clients of an endpoint together.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Maximum connections. At the limit, an idle connection is closed for a new one. If no
    /// connection is idle, the new one waits.
    pub connections: usize,
    /// Maximum WebSockets among the connections. At the limit, a new WebSocket is refused with HTTP
    /// status 503.
    pub ws_connections: usize,
    /// Maximum bytes of one request body.
    pub body: usize,
    /// Maximum bytes of all request bodies and WebSocket messages in memory. Those of up to 4 KiB
    /// do not count.
    pub body_memory: usize,
    /// Maximum bytes of all responses in memory; a response beyond that is refused.
    pub response_memory: usize,
    /// Maximum calls in one batch.
    pub batch: usize,
    /// Maximum bytes of the results of one batch.
    pub batch_response: usize,
    /// Maximum bytes of one WebSocket message.
    pub ws_message: usize,
    /// Timeout of the head of a connection's first request, and of a request's body. Also the
    /// timeout of a message of a WebSocket or a local socket that takes memory of requests.
    pub read: Duration,
    /// Timeout of writing a response, from its first byte on. Also the timeout of handling a
    /// request.
    pub write: Duration,
    /// Timeout of an idle connection between two requests.
    pub idle: Duration,
    /// Timeout of writing a WebSocket message. A client that is too slow gets the same time again
    /// to take the rest of the message and the close frame.
    pub ws_write: Duration,
    /// Interval of pings. A WebSocket whose client sends nothing for two intervals is closed.
    pub ws_ping: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            ws_connections: 2_000,
            body: 5 << 20,
            body_memory: 128 << 20,
            response_memory: 256 << 20,
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
