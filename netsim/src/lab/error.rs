//! Errors of the lab. An error in a scenario file names the line of its key, if the file has the key,
//! and the nearest valid word; an error of a node shows the end of its log.

use crate::{LinkConditionError, packet::PacketNetworkError};
use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

/// A scenario that is refused. `line` counts from one; it is zero for a key that the file does not
/// have, and for a scenario built in Rust.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}{message}", place(*.line))]
pub struct LabFileError {
    pub line: usize,
    pub message: String,
}

impl LabFileError {
    pub(super) fn new(line: usize, message: impl Into<String>) -> Self {
        Self {
            line,
            message: message.into(),
        }
    }
}

fn place(line: usize) -> String {
    if line == 0 {
        return String::new();
    }
    format!("{line}: ")
}

/// A run that could not begin or was broken off.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("{}:{}{error}", path.display(), if error.line == 0 { " " } else { "" })]
    File { path: PathBuf, error: LabFileError },
    #[error("the scenario {name} is refused: {error}")]
    Scenario { name: String, error: LabFileError },
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("the threads that carry the links cannot be started: {0}")]
    LinkThreads(io::Error),
    #[error("{name} cannot be started as {}: {error}", program.display())]
    Start {
        name: String,
        program: PathBuf,
        error: io::Error,
    },
    #[error("{name} exited unexpectedly ({status}); its log ends with:\n{tail}")]
    Died {
        name: String,
        status: String,
        tail: String,
    },
    #[error("{name} did not respond within {} s; its log ends with:\n{tail}", limit.as_secs())]
    Silent {
        name: String,
        limit: Duration,
        tail: String,
    },
    #[error("{what} of {name} took more than {} s, and was ended", limit.as_secs())]
    Slow {
        name: String,
        what: &'static str,
        limit: Duration,
    },
    #[error("the description of the network {} is not understood: {reason}; use a `starling` program \
         of this netsim's version", path.display())]
    Description { path: PathBuf, reason: String },
    #[error(
        "the verbs `fill-disk` and `move` need a mount namespace, which this machine refuses: \
         {reason}; run as root outside of a container, or leave these verbs out"
    )]
    Mounts { reason: String },
    #[error(
        "the verb `move` needs a name server on {address}, and it cannot be opened: {error}; run as \
         root, end other runs, or leave this verb out"
    )]
    Dns {
        address: SocketAddr,
        error: io::Error,
    },
    #[error(
        "the link from {from} to {to} cannot listen on {}: {error}; end other runs, or raise the \
         limit of open files",
        listener(address)
    )]
    Listen {
        from: String,
        to: String,
        address: SocketAddr,
        error: io::Error,
    },
    #[error("the L1 cannot be changed: {reason}; the end of its log, l1.log, may say why")]
    L1 { reason: String },
    #[error(transparent)]
    Link(#[from] LinkConditionError),
    #[error(transparent)]
    Packet(#[from] PacketNetworkError),
    #[error("interrupted")]
    Interrupted,
}

impl LabError {
    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { path, error }
    }

    /// The error of a link that cannot listen on an address; port zero is any free one.
    pub(super) fn listen(
        from: &str,
        to: &str,
        address: impl Into<SocketAddr>,
    ) -> impl FnOnce(io::Error) -> Self {
        let (from, to, address) = (from.to_owned(), to.to_owned(), address.into());
        move |error| Self::Listen {
            from,
            to,
            address,
            error,
        }
    }
}

fn listener(address: &SocketAddr) -> String {
    if address.port() == 0 {
        return format!("a free port of {}", address.ip());
    }
    address.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_cannot_listen_is_named_with_its_address() {
        let error = |port| {
            let error = io::ErrorKind::AddrInUse.into();
            LabError::listen("a", "seq", ([127, 0, 0, 1], port))(error).to_string()
        };
        assert_eq!(
            error(0),
            "the link from a to seq cannot listen on a free port of 127.0.0.1: address in use; end \
             other runs, or raise the limit of open files"
        );
        assert!(error(9).contains("cannot listen on 127.0.0.1:9: "));
    }
}
