//! A JSON-RPC client that keeps its connection.

use serde_json::{Value, json};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

pub struct Client(BufReader<TcpStream>);

impl Client {
    /// Connects. Each read waits for at most `patience`.
    pub fn connect(addr: SocketAddr, patience: Duration) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&addr, patience)?;
        socket.set_read_timeout(Some(patience))?;
        socket.set_nodelay(true)?;
        Ok(Self(BufReader::with_capacity(1024, socket)))
    }

    /// The answer to one call.
    pub fn call(&mut self, method: &str, params: &Value) -> io::Result<Value> {
        let body =
            json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let head = format!(
            "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}",
            body.len()
        );
        self.0
            .get_mut()
            .write_all(format!("{head}\r\n\r\n{body}").as_bytes())?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            length = line
                .strip_prefix("content-length: ")
                .and_then(|text| text.parse().ok())
                .unwrap_or(length);
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        serde_json::from_slice(&body).map_err(io::Error::other)
    }
}
