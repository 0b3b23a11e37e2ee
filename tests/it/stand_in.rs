//! The HTTP layer of servers that stand in for an L1, a beacon node or an execution client. Each
//! connection has one request, answered on a separate thread until the test process ends.

use std::{
    io::{self, BufRead, BufReader, Read},
    net::{TcpListener, TcpStream},
};

/// Listens on a free port and calls `serve` for each connection. Returns the server's URL.
pub fn listen(serve: impl Fn(TcpStream) -> io::Result<()> + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            // Errors are ignored: the client may close the connection.
            std::thread::spawn(move || serve(stream).ok());
        }
    });
    url
}

pub struct HttpRequest {
    /// The path of the URL, with its query.
    pub path: String,
    pub body: String,
}

/// Reads the only request of a connection.
pub fn read_request(stream: &TcpStream) -> io::Result<HttpRequest> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line)? > 2 {
        let header = line.to_ascii_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(HttpRequest {
        path: first.split(' ').nth(1).unwrap_or_default().to_owned(),
        body: String::from_utf8(body).expect("text"),
    })
}

/// An HTTP response, after which the connection is closed.
pub fn response(status: u16, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}
