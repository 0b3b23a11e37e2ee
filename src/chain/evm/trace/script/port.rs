//! The connection to the process that runs a script: starts the process, exchanges messages, and
//! kills the process when the transaction's time is over.

use super::message::{FromScript, MessageReader, ToScript, write_message};
use crate::chain::evm::{Deadline, StateError};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{fmt, io, os::unix::net::UnixStream, process::Child, sync::Arc, time::Duration};

/// Time between two checks of the clock while a script runs.
const LOOK: Duration = Duration::from_millis(10);
/// Number of messages from a script between two checks of the clock.
const LOOK_EVERY: u32 = 64;

/// A running script host: a process, or in tests a thread.
pub struct ScriptConnection {
    pub stream: UnixStream,
    pub process: Option<Child>,
}

impl Drop for ScriptConnection {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // An error is harmless: the process may already have ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Starts script hosts.
#[derive(Clone)]
pub struct ScriptHost(Arc<dyn Fn() -> io::Result<ScriptConnection> + Send + Sync>);

impl ScriptHost {
    pub fn new(start: impl Fn() -> io::Result<ScriptConnection> + Send + Sync + 'static) -> Self {
        Self(Arc::new(start))
    }

    pub fn start(&self) -> io::Result<ScriptConnection> {
        (self.0)()
    }
}

impl fmt::Debug for ScriptHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptHost")
    }
}

/// The reason why a script produced no result.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// An exception, or another failure of the script itself.
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

/// The tracer's end of the connection to a script host.
pub(super) struct ScriptPort {
    connection: ScriptConnection,
    reader: MessageReader,
    deadline: Option<Deadline>,
    /// Number of messages since the last check of the clock.
    messages: u32,
}

impl ScriptPort {
    pub fn open(host: &ScriptHost) -> Result<Self, ScriptError> {
        let failed = |error: io::Error| ScriptError::Start(error.to_string());
        let connection = host.start().map_err(failed)?;
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

    /// Sets the deadline of everything that the script does from now on.
    pub fn set_deadline(&mut self, deadline: Option<Deadline>) {
        self.deadline = deadline;
    }

    pub fn send(&mut self, message: &ToScript) -> Result<(), ScriptError> {
        write_message(&mut self.connection.stream, message).map_err(|_| ScriptError::Gone)
    }

    /// Receives the next message. Fails at the deadline, even if the script sends requests without
    /// end.
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

    /// Checks the clock. The check may block while other calls run. The process is stopped
    /// meanwhile, since it would otherwise run beside those calls.
    fn look(&self) -> Result<(), StateError> {
        let Some(deadline) = &self.deadline else {
            return Ok(());
        };
        self.signal(Signal::SIGSTOP);
        let checked = deadline.check();
        self.signal(Signal::SIGCONT);
        checked
    }

    fn signal(&self, signal: Signal) {
        let process = self.connection.process.as_ref();
        // The process id stays valid until the process is waited for, even after it has ended.
        if let Some(id) = process.and_then(|process| i32::try_from(process.id()).ok()) {
            let _ = kill(Pid::from_raw(id), signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        process::{Command, Stdio},
        thread::sleep,
        time::Instant,
    };

    /// Waits until a process is in a state, given as the state's letter in `/proc`.
    fn wait_for(state: &str, process: u32) {
        let stat = || std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while !stat().rsplit(')').next().unwrap().starts_with(state) {
            assert!(Instant::now() < end, "{}", stat());
            sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_process_does_not_run_while_its_call_is_paused() {
        let host = ScriptHost::new(|| {
            let (stream, theirs) = UnixStream::pair()?;
            // Keeps the other end of the connection open without ever replying.
            std::mem::forget(theirs);
            let endless = ["-c", "while :; do :; done"];
            let mut process = Command::new("sh");
            let process = Some(process.args(endless).stdin(Stdio::null()).spawn()?);
            Ok(ScriptConnection { stream, process })
        });
        let mut port = ScriptPort::open(&host).unwrap();
        let id = port.connection.process.as_ref().unwrap().id();
        wait_for(" R", id);
        let deadline = Deadline::after(Duration::from_secs(60));
        let paused = deadline.with_check_hook(Arc::new(move |_, _| {
            wait_for(" T", id);
            true
        }));
        port.set_deadline(Some(paused));
        port.look().unwrap();
        wait_for(" R", id);
        let over = Deadline::after(Duration::ZERO);
        port.set_deadline(Some(over));
        assert!(matches!(port.receive(), Err(ScriptError::State(_))));
    }
}
