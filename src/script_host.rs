//! The process that runs a tracer written in JavaScript.
//!
//! A tracing call starts this program again as the script process. Both communicate over a socket,
//! which is the process's standard input ([`crate::chain::evm::script_message`]). The script is
//! untrusted. The process has limits on memory, processor time, files and stack, and an almost
//! empty environment. It is paused while its call is paused, and killed when the time of the
//! transaction is over. It ends when the socket closes.

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

/// The command-line argument that starts the program as a script process.
pub const ARGUMENT: &str = "script-host";
/// Memory limit in bytes: a megabyte for the JavaScript engine, the rest for the script. Each
/// running tracing call may have its own process.
const MEMORY: u64 = 128 << 20;
/// Limit of processor time in seconds, in case the node does not end the process.
const PROCESSOR_TIME: u64 = 150;
/// Stack size in bytes. JSON and sorting need much stack for nested values.
const STACK: usize = 64 << 20;

/// Starts script processes from this program's own file.
pub fn processes() -> ScriptHost {
    ScriptHost::new(|| {
        let (stream, theirs) = UnixStream::pair()?;
        let process = Command::new(program()?)
            .arg(ARGUMENT)
            .env_clear()
            // By default the allocator would reserve a gigabyte of address space.
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

/// The path of the running program, which works even if its file has been replaced.
fn program() -> io::Result<PathBuf> {
    let own = PathBuf::from("/proc/self/exe");
    if own.exists() {
        return Ok(own);
    }
    std::env::current_exe()
}

/// Runs the script process until its socket closes.
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
    // End this process together with the node. A process that is paused at that time would
    // otherwise remain.
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

/// Serves the tracer's messages until the tracer closes the socket.
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
