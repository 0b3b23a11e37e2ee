//! JSON-RPC over one persistent connection. The body of a response is passed on in pieces, since a
//! trace may be larger than memory.

use serde_json::{Value, json};
use starling::jwt::JwtSecret;
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// Largest number of bytes of a body that are passed on at once.
const PIECE: usize = 64 << 10;

/// The JSON-RPC request body of one call.
pub fn body(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
}

/// An HTTP request with this body. `headers` are whole header lines with their line ends.
pub fn request(body: &str, headers: &str) -> String {
    format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Whether a response that begins with the bytes `start` is a result, not an error.
pub fn is_result(start: &[u8]) -> bool {
    let start = &start[..start.len().min(100)];
    start.windows(9).any(|part| part == b"\"result\":")
}

pub struct Client {
    connection: BufReader<TcpStream>,
    /// The JWT secret, for an Engine API.
    secret: Option<JwtSecret>,
}

impl Client {
    /// Connects to a server. Each read times out after `patience`.
    pub fn connect(addr: SocketAddr, patience: Duration) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&addr, patience)?;
        socket.set_read_timeout(Some(patience))?;
        socket.set_nodelay(true)?;
        Ok(Self {
            connection: BufReader::with_capacity(1024, socket),
            secret: None,
        })
    }

    pub fn with_secret(self, secret: JwtSecret) -> Self {
        Self {
            secret: Some(secret),
            ..self
        }
    }

    /// Sends one call and returns the result.
    pub fn call(&mut self, method: &str, params: &Value) -> io::Result<Value> {
        let answer = self.post(&body(method, params))?;
        serde_json::from_slice(&answer).map_err(io::Error::other)
    }

    /// Sends the call in `body` and returns the response body, unparsed.
    pub fn post(&mut self, body: &str) -> io::Result<Vec<u8>> {
        let mut answer = Vec::new();
        self.exchange(body, |piece| {
            answer.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(answer)
    }

    /// Sends the call in `body`, and passes the pieces of the response to `take` until `take`
    /// fails.
    pub fn exchange(
        &mut self,
        body: &str,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let secret = self.secret.as_ref();
        let authorization = secret.map(|secret| secret.authorization(crate::support::unix_now()));
        let headers = authorization.map(|token| format!("authorization: {token}\r\n"));
        let request = request(body, &headers.unwrap_or_default());
        self.connection.get_mut().write_all(request.as_bytes())?;
        let (mut length, mut chunked) = (0, false);
        loop {
            let line = self.line()?;
            if let Some(text) = line.strip_prefix("content-length: ") {
                length = text.parse().map_err(io::Error::other)?;
            }
            chunked |= line == "transfer-encoding: chunked";
            if line.is_empty() {
                break;
            }
        }
        if !chunked {
            return self.pieces(length, &mut take);
        }
        loop {
            let size = usize::from_str_radix(&self.line()?, 16).map_err(io::Error::other)?;
            self.pieces(size, &mut take)?;
            self.line()?;
            if size == 0 {
                return Ok(());
            }
        }
    }

    /// Reads a line, in lower case and without its line end.
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.connection.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim().to_ascii_lowercase())
    }

    fn pieces(
        &mut self,
        mut length: usize,
        take: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut piece = vec![0; length.min(PIECE)];
        while length > 0 {
            let most = length.min(PIECE);
            let read = self.connection.read(&mut piece[..most])?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            take(&piece[..read])?;
            length -= read;
        }
        Ok(())
    }
}
