//! An HTTP test server with scripted responses, including malformed and missing ones.

use flate2::{Compression, write::GzEncoder};
use parking_lot::Mutex;
use std::{io::Write, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// A scripted response, or the lack of a response.
pub(crate) enum Canned {
    Reply {
        status: u16,
        headers: Vec<String>,
        body: Vec<u8>,
    },
    /// Sends the first half of this body, then closes the connection.
    Half(Vec<u8>),
    Silence,
}

impl Canned {
    pub(crate) fn ok(body: impl ToString) -> Self {
        Self::status(200, body)
    }

    pub(crate) fn status(status: u16, body: impl ToString) -> Self {
        Self::Reply {
            status,
            headers: vec![],
            body: body.to_string().into_bytes(),
        }
    }

    /// A response of this text in gzip.
    pub(crate) fn gzip(text: impl AsRef<[u8]>) -> Self {
        let mut encoder = GzEncoder::new(vec![], Compression::fast());
        encoder.write_all(text.as_ref()).unwrap();
        Self::Reply {
            status: 200,
            headers: vec!["content-encoding: gzip".into()],
            body: encoder.finish().unwrap(),
        }
    }

    pub(crate) fn html() -> Self {
        Self::ok("<html><body>sign in</body></html>")
    }
}

pub(crate) struct CannedServer {
    pub port: u16,
    /// Head and body of every request so far.
    pub requests: Arc<Mutex<Vec<String>>>,
    _task: JoinSet<()>,
}

impl CannedServer {
    /// Starts the server. `answer` receives the head and the body of each request and returns the
    /// response.
    pub(crate) async fn start(answer: impl Fn(&str) -> Canned + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(vec![]));
        let (answer, seen) = (Arc::new(answer), requests.clone());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, seen) = (answer.clone(), seen.clone());
                connections.spawn(async move {
                    serve(stream, &*answer, &seen).await;
                });
            }
        });
        Self {
            port,
            requests,
            _task: task,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.lock().len()
    }
}

async fn serve(
    mut stream: TcpStream,
    answer: &(impl Fn(&str) -> Canned + Sync),
    seen: &Mutex<Vec<String>>,
) -> Option<()> {
    let mut request = String::new();
    let mut chunk = [0; 4096];
    loop {
        let count = stream
            .read(&mut chunk)
            .await
            .ok()
            .filter(|count| *count > 0)?;
        request += std::str::from_utf8(&chunk[..count]).ok()?;
        let Some((head, body)) = request.split_once("\r\n\r\n") else {
            continue;
        };
        let lower = head.to_lowercase();
        let length = lower
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
            break;
        }
    }
    seen.lock().push(request.clone());
    let (status, headers, body, sent) = match answer(&request) {
        Canned::Reply {
            status,
            headers,
            body,
        } => (status, headers, body.clone(), body.len()),
        Canned::Half(body) => (200, vec![], body.clone(), body.len() / 2),
        Canned::Silence => {
            tokio::time::sleep(Duration::from_secs(600)).await;
            return None;
        }
    };
    let mut head = format!(
        "HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    for header in headers {
        head += &format!("{header}\r\n");
    }
    stream
        .write_all(format!("{head}\r\n").as_bytes())
        .await
        .ok()?;
    stream.write_all(&body[..sent]).await.ok()
}
