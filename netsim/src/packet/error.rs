//! Reasons why this machine has no packet backend. Each one names the refused step and the remedy,
//! since a run prints it and falls back to the stream backend.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum PacketRefusal {
    #[error("a network namespace was refused ({error}): run as root, or allow user namespaces")]
    Namespace { error: io::Error },
    #[error("a user namespace was refused ({error}): run as root")]
    User { error: io::Error },
    #[error("/dev/net/tun cannot be opened ({error}): load the module tun")]
    Device { error: io::Error },
    #[error("a TUN device was refused ({error}): the process needs CAP_NET_ADMIN")]
    Interface { error: io::Error },
    #[error("{step} was refused by the kernel ({error})")]
    Setup {
        step: &'static str,
        error: io::Error,
    },
    #[error("only Linux has network namespaces")]
    Unsupported,
}
