//! The connection to the process that runs a script: its start, its messages, and its end when the
//! time of the transaction is over.

use super::message::{FromScript, MessageReader, ToScript, write_message};
use crate::chain::evm::{Deadline, StateError};
use std::{fmt, io, os::unix::net::UnixStream, process::Child, sync::Arc, time::Duration};

/// Time between two looks at the clock while a script runs.
const LOOK: Duration = Duration::from_millis(10);
/// Messages of a script between two looks at the clock.
const LOOK_EVERY: u32 = 64;

/// A running script host: a process, unless it is a thread of a test.
pub struct ScriptConnection {
    pub stream: UnixStream,
    pub process: Option<Child>,
}

impl Drop for ScriptConnection {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // The process may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The start of a script host.
#[derive(Clone)]
pub struct ScriptHost(Arc<dyn Fn() -> io::Result<ScriptConnection> + Send + Sync>);

impl ScriptHost {
    pub fn new(start: impl Fn() -> io::Result<ScriptConnection> + Send + Sync + 'static) -> Self {
        Self(Arc::new(start))
    }
}

impl fmt::Debug for ScriptHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptHost")
    }
}

/// Why a script did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The exception or the failure of the script itself.
    #[error("{0}")]
    Script(String),
    #[error("the tracer {0:?} is a script, and scripts are turned off (--rpc.jstracers)")]
    TurnedOff(String),
    #[error("the process that runs the script cannot be started: {0}")]
    Start(String),
    #[error(
        "the process that ran the script ended: the script took more memory, stack or time than it may"
    )]
    Gone,
    #[error(transparent)]
    State(#[from] StateError),
}

/// A tracer's side of the connection.
pub(super) struct ScriptPort {
    connection: ScriptConnection,
    reader: MessageReader,
    deadline: Option<Deadline>,
    /// Messages since the last look at the clock.
    messages: u32,
}

impl ScriptPort {
    pub fn open(host: &ScriptHost) -> Result<Self, ScriptError> {
        let failed = |error: io::Error| ScriptError::Start(error.to_string());
        let connection = (host.0)().map_err(failed)?;
        connection
            .stream
            .set_read_timeout(Some(LOOK))
            .map_err(failed)?;
        Ok(Self {
            connection,
            reader: MessageReader::default(),
            deadline: None,
            messages: 0,
        })
    }

    /// Bounds the time of what the script does from now on.
    pub fn set_deadline(&mut self, deadline: Option<Deadline>) {
        self.deadline = deadline;
    }

    pub fn send(&mut self, message: &ToScript) -> Result<(), ScriptError> {
        write_message(&mut self.connection.stream, message).map_err(|_| ScriptError::Gone)
    }

    /// The next message. Fails at the deadline, also if the script asks without end.
    pub fn receive(&mut self) -> Result<FromScript, ScriptError> {
        self.messages += 1;
        if self.messages >= LOOK_EVERY {
            self.messages = 0;
            self.look()?;
        }
        loop {
            match self.reader.read(&mut self.connection.stream) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => return Err(ScriptError::Gone),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    self.look()?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                    let text = "the result of the script is larger than 32 MB";
                    return Err(ScriptError::Script(text.to_owned()));
                }
                Err(_) => return Err(ScriptError::Gone),
            }
        }
    }

    fn look(&self) -> Result<(), StateError> {
        self.deadline.as_ref().map_or(Ok(()), Deadline::check)
    }
}
