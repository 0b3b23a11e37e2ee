//! The process that runs a tracer in JavaScript.
//!
//! A tracing call starts the program again as this process, and speaks with it over a socket that is
//! its standard input ([`crate::chain::evm::script_message`]). The script is untrusted: the process has limits on
//! memory, processor time, files and stack, sees no environment, is stopped while its call is paused,
//! and is killed when the time of the transaction is over. It ends when the socket closes.

mod engine;
#[cfg(test)]
mod tests;

use crate::chain::evm::{
    ScriptConnection, ScriptHost,
    script_message::{FromScript, MessageReader, ToScript, write_message},
};
use engine::ScriptEngine;
use nix::sys::resource::{Resource, setrlimit};
use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    thread,
};

/// The argument that starts the program as this process.
pub const ARGUMENT: &str = "script-host";
/// Bytes of memory: a megabyte for the engine, the rest for the script. Each of the started tracing
/// calls may have a process.
const MEMORY: u64 = 128 << 20;
/// Seconds of processor time, in case nobody ends the process.
const PROCESSOR_TIME: u64 = 150;
/// Bytes of the stack, which JSON and sorting need for nested values.
const STACK: usize = 64 << 20;

/// Starts script hosts as processes of this program.
pub fn processes() -> ScriptHost {
    ScriptHost::new(|| {
        let (stream, theirs) = UnixStream::pair()?;
        let process = Command::new(program()?)
            .arg(ARGUMENT)
            .env_clear()
            // The allocator would otherwise begin with a gigabyte of address space.
            .env("MIMALLOC_ARENA_RESERVE", "16MiB")
            .env("MIMALLOC_ARENA_EAGER_COMMIT", "0")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(ScriptConnection {
            stream,
            process: Some(process),
        })
    })
}

/// The running program, also if its file has been replaced.
fn program() -> io::Result<PathBuf> {
    let own = PathBuf::from("/proc/self/exe");
    if own.exists() {
        return Ok(own);
    }
    std::env::current_exe()
}

/// Runs the process.
pub fn run() -> ExitCode {
    if limit().is_err() {
        return ExitCode::FAILURE;
    }
    let Ok(input) = io::stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::FAILURE;
    };
    let serving = thread::Builder::new()
        .stack_size(STACK)
        .spawn(move || serve(UnixStream::from(input)));
    match serving.map(|thread| thread.join()) {
        Ok(Ok(Ok(()))) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn limit() -> nix::Result<()> {
    // Ends with the node: a process that is stopped then would stay.
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    for (resource, most) in [
        (Resource::RLIMIT_DATA, MEMORY + STACK as u64),
        (Resource::RLIMIT_CPU, PROCESSOR_TIME),
        (Resource::RLIMIT_FSIZE, 0),
        (Resource::RLIMIT_CORE, 0),
    ] {
        setrlimit(resource, most, most)?;
    }
    Ok(())
}

/// Serves a tracer until it closes the socket.
pub fn serve(stream: UnixStream) -> io::Result<()> {
    let mut reader = MessageReader::default();
    let mut engine = ScriptEngine::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some(message) = reader.read::<ToScript>(&mut stream)? {
        let answer = engine.handle(&message, &mut reader);
        write_message(&mut stream, &answer.unwrap_or_else(FromScript::Failed))?;
    }
    Ok(())
}
