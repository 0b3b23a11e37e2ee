//! Load over many connections: the rate at which a server responds, the time of a request, and the
//! load of the cores of server and client. Each connection sends its next request when it has
//! received the previous response.
//!
//! One thread serves all connections and does not parse responses, so that the server's core is
//! usually saturated before the client's core.

use super::client::{is_result, request};
use crate::support::{Times, process};
use futures::future::join_all;
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub const CONNECTIONS: usize = 32;
/// Share of a core above which it counts as busy.
const BUSY: f64 = 0.95;

/// A measured server.
#[derive(Clone, Copy)]
pub struct ServerUnderLoad {
    pub http: SocketAddr,
    /// Process id of the server.
    pub pid: u32,
}

/// Figures for one kind of request.
#[derive(Clone, Copy)]
pub struct RateFigures {
    /// Responses per second.
    pub rate: f64,
    pub p99: Duration,
    /// Share of a core that the server's process used, and share that this process used.
    pub server: f64,
    pub load: f64,
}

impl RateFigures {
    /// Whether this process could not keep the server busy, which makes `rate` a lower bound.
    pub fn is_bound_by_load(&self) -> bool {
        self.load > BUSY && self.server < BUSY
    }
}

/// Sends the requests with these bodies in rotation for the time `length`.
pub fn measure(server: ServerUnderLoad, bodies: &[String], length: Duration) -> RateFigures {
    let requests: Vec<String> = bodies.iter().map(|body| request(body, "")).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .expect("a runtime");
    let process = server.pid.to_string();
    let spent = || [process::processor_of(&process), process::processor()];
    let (before, begun) = (spent(), Instant::now());
    let connections =
        (0..CONNECTIONS).map(|first| connection(server.http, &requests, first, begun + length));
    let all = runtime.block_on(join_all(connections));
    let (after, seconds) = (spent(), begun.elapsed().as_secs_f64());
    let mut times = Times::default();
    all.into_iter().for_each(|more| times.append(more));
    let share = |side: usize| (after[side] - before[side]).as_secs_f64() / seconds;
    RateFigures {
        rate: times.len() as f64 / seconds,
        p99: times.percentile(99),
        server: share(0),
        load: share(1),
    }
}

/// Runs one connection, whose first request is number `first` of the rotation.
async fn connection(
    server: SocketAddr,
    requests: &[String],
    first: usize,
    until: Instant,
) -> Times {
    let mut socket = TcpStream::connect(server).await.expect("a connection");
    socket.set_nodelay(true).expect("an open connection");
    let (mut times, mut buffer) = (Times::default(), Vec::with_capacity(16 << 10));
    for turn in (first..).step_by(CONNECTIONS) {
        let request = &requests[turn % requests.len()];
        let asked = Instant::now();
        if asked >= until {
            break;
        }
        buffer.clear();
        socket
            .write_all(request.as_bytes())
            .await
            .expect("it is sent");
        while body_of(&buffer).is_none() {
            let read = socket.read_buf(&mut buffer).await.expect("an answer");
            assert!(read > 0, "the connection was closed after {request}");
        }
        times.push(asked.elapsed());
        let body = body_of(&buffer).unwrap_or_default();
        assert!(
            is_result(body),
            "{request}: {}",
            body[..body.len().min(200)].escape_ascii()
        );
    }
    times
}

/// The body of the response in `buffer`, once the response is complete.
fn body_of(buffer: &[u8]) -> Option<&[u8]> {
    let end = buffer.windows(4).position(|part| part == b"\r\n\r\n")? + 4;
    let (head, body) = buffer.split_at(end);
    let name = b"content-length:";
    let length = head.split(|byte| *byte == b'\n').find_map(|line| {
        let (key, value) = line.split_at_checked(name.len())?;
        let value = key.eq_ignore_ascii_case(name).then_some(value)?;
        std::str::from_utf8(value).ok()?.trim().parse().ok()
    });
    let is_whole = length.map_or_else(
        // A chunked body ends with this chunk, which JSON cannot contain: it escapes carriage
        // returns.
        || body.ends_with(b"\r\n0\r\n\r\n"),
        |length: usize| body.len() == length,
    );
    is_whole.then_some(body)
}
