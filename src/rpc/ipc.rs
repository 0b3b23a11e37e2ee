//! JSON-RPC over a local socket (geth: `geth.ipc`), for tools on this machine that may read the
//! data directory. Every namespace except `engine` is served. The socket file's mode admits only
//! its owner.
//!
//! Messages are JSON values one after another, with or without white space between them; each
//! response ends with a line feed. Clients can overload the socket by connections
//! ([`CONNECTIONS`]), by large or endless values ([`ServerLimits::ws_message`]), by large values
//! that do not arrive completely ([`ServerLimits::read`]), and by not reading, as over WebSocket.

mod values;

use super::{
    api::Api,
    limits::ServerLimits,
    memory::{Allowance, RequestMemory, SMALL},
    responder::{OutgoingMessage, ReceivedMessage, Responder},
    schedule::Client,
    subscription::{SubscriberLag, SubscriptionEnd},
};
use futures::stream;
use parking_lot::Mutex;
use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Semaphore, mpsc},
    time::{Instant, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use values::Splitter;

/// Maximum connections; further clients wait.
const CONNECTIONS: usize = 128;
/// Maximum messages that wait for the socket.
const QUEUE: usize = 32;
/// Bytes of one read from the socket.
const READ: usize = 64 << 10;

/// The reason why a local socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum IpcError {
    #[error(
        "another process serves {0}: stop it, or choose another path with --ipcpath, or turn the socket off with --ipcdisable"
    )]
    InUse(PathBuf),
    #[error(
        "{path} has {length} bytes and a path of a local socket at most {LONGEST}: choose a shorter one with --ipcpath, or turn the socket off with --ipcdisable"
    )]
    TooLong { path: PathBuf, length: usize },
    #[error(
        "cannot serve {path}: {source}; choose another path with --ipcpath, or turn the socket off with --ipcdisable"
    )]
    Io { path: PathBuf, source: io::Error },
}

/// Longest path of a socket, in bytes: the system's address structure has no room for more.
const LONGEST: usize = 103;

/// A socket that is bound and not yet served. The socket file is removed when the listener is
/// dropped.
pub struct IpcListener {
    socket: UnixListener,
    path: PathBuf,
    api: Arc<Api>,
    limits: ServerLimits,
    allowance: Allowance,
}

impl Drop for IpcListener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl IpcListener {
    /// Binds the socket at `path`. A socket file that an earlier process left behind is replaced.
    pub fn bind(path: &Path, api: Arc<Api>, limits: ServerLimits) -> Result<Self, IpcError> {
        let failed = |source| IpcError::Io {
            path: path.to_owned(),
            source,
        };
        let length = path.as_os_str().len();
        if length > LONGEST {
            let path = path.to_owned();
            return Err(IpcError::TooLong { path, length });
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(IpcError::InUse(path.to_owned()));
        }
        let socket = bind_private(path).map_err(failed)?;
        let allowance = Allowance::new(
            limits.batch,
            limits.batch_response,
            limits.body_memory,
            limits.response_memory,
        );
        Ok(Self {
            socket,
            path: path.to_owned(),
            api,
            limits,
            allowance,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts connections until `token` is cancelled. All connections have ended when it returns.
    pub async fn run(self, token: CancellationToken) {
        let tasks = TaskTracker::new();
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        let mut number = 0;
        loop {
            let accepted = async {
                let permit = permits.clone().acquire_owned().await;
                (permit, self.socket.accept().await)
            };
            let (permit, accepted) = tokio::select! {
                () = token.cancelled() => break,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((socket, _)) => {
                    number += 1;
                    let allowance = self.allowance.of(Client::Local(number), None);
                    let (api, limits) = (self.api.clone(), self.limits.clone());
                    let token = token.clone();
                    tasks.spawn(async move {
                        let _permit = permit;
                        tokio::select! {
                            () = token.cancelled() => {}
                            () = session(socket, number, &api, &limits, &allowance) => {}
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a local RPC connection could not be accepted");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
        tasks.close();
        tasks.wait().await;
    }
}

/// Binds the socket in a directory that only this user may enter. The socket thus has its mode
/// before other users can reach it.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)?;
    let private = parent.join(format!(".{}", std::process::id()));
    match std::fs::remove_dir_all(&private) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::create_dir(&private)?;
    let bound = (|| {
        std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o700))?;
        let inner = private.join("s");
        let socket = UnixListener::bind(&inner)?;
        std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&inner, path)?;
        Ok(socket)
    })();
    std::fs::remove_dir_all(&private)?;
    bound
}

/// Serves connection `number` until either side ends it.
async fn session(
    socket: UnixStream,
    number: u64,
    api: &Api,
    limits: &ServerLimits,
    allowance: &Allowance,
) {
    let (reader, writer) = socket.into_split();
    let (queue, messages) = mpsc::channel(QUEUE);
    let responder = Responder::new(api, allowance, queue);
    let end = Mutex::new(None);
    // The responder is dropped when reading ends. This closes the queue, and the writer returns
    // once the queue is empty.
    let reading = async {
        let ended = read(reader, responder, limits, allowance).await;
        *end.lock() = ended;
        std::future::pending::<()>().await
    };
    let stalled = tokio::select! {
        () = reading => None,
        outcome = write(writer, messages, limits) => outcome.unwrap_or_else(|error| {
            tracing::debug!(%error, "a local RPC connection was dropped");
            None
        }),
    };
    let lagging = match end.into_inner() {
        Some(SubscriptionEnd::Slow(lag)) => Some(lag),
        _ => None,
    };
    if let Some(lag) = stalled.or(lagging) {
        tracing::warn!(connection = number, %lag, "dropped a client of the local socket that reads too slowly");
    }
}

/// The reading side of a connection.
struct IpcReader {
    reader: OwnedReadHalf,
    splitter: Splitter,
    chunk: Vec<u8>,
}

/// Reads requests and responds to them. Returns when the client has disconnected or has not sent a
/// large value in time, or with the reason why a subscription ended.
async fn read(
    reader: OwnedReadHalf,
    responder: Responder<'_>,
    limits: &ServerLimits,
    allowance: &Allowance,
) -> Option<SubscriptionEnd> {
    let incoming = IpcReader {
        reader,
        splitter: Splitter::new(limits.ws_message),
        chunk: vec![0; READ],
    };
    let messages = stream::unfold(incoming, |mut incoming| async move {
        let mut held = RequestMemory::default();
        // The time by which a value that takes memory of requests must be complete. Without it, the
        // memory could be held by incomplete values that all wait for more memory.
        let mut end = None;
        loop {
            if let Some(value) = incoming.splitter.take() {
                return Some((ReceivedMessage::new(value, held), incoming));
            }
            let read = incoming.reader.read(&mut incoming.chunk);
            let count = match before(end, read).await? {
                Ok(0) | Err(_) => return None,
                Ok(count) => count,
            };
            let pending = incoming.splitter.pending() + count;
            if pending > SMALL && end.is_none() {
                end = Some(Instant::now() + limits.read);
            }
            before(end, allowance.admit(pending, &mut held)).await?;
            if incoming.splitter.push(&incoming.chunk[..count]).is_err() {
                return None;
            }
        }
    });
    responder.serve(messages).await
}

/// The output of `step`, which receives a part of a value. Returns `None` after the time `end`, by
/// which the value must be complete.
async fn before<T>(end: Option<Instant>, step: impl Future<Output = T>) -> Option<T> {
    let Some(end) = end else {
        return Some(step.await);
    };
    let output = timeout_at(end, step).await.ok();
    if output.is_none() {
        tracing::warn!("dropped a client of the local socket whose request did not arrive in time");
    }
    output
}

/// Writes queued messages, each with a line feed. Returns the client's lag if the client did not
/// take a message in time.
async fn write(
    mut writer: OwnedWriteHalf,
    mut messages: mpsc::Receiver<OutgoingMessage>,
    limits: &ServerLimits,
) -> io::Result<Option<SubscriberLag>> {
    while let Some(mut message) = messages.recv().await {
        message.text.push('\n');
        match timeout(limits.ws_write, writer.write_all(message.text.as_bytes())).await {
            Ok(written) => written?,
            Err(_) => {
                messages.close();
                let behind = std::iter::from_fn(|| messages.try_recv().ok());
                let behind = behind.map(|message| message.position);
                let waiting = std::iter::once(message.position).chain(behind);
                return Ok(Some(SubscriberLag::of_messages(waiting)));
            }
        }
    }
    Ok(None)
}
