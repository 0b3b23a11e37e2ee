//! Reasons why this machine has no packet backend. Each one names the refused step and the remedy,
//! since a run prints it and falls back to the stream backend.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum PacketRefusal {
    #[error(
        "a network namespace was refused ({error}): it needs CAP_SYS_ADMIN; run as root outside of a \
         container, or allow user namespaces"
    )]
    Namespace { error: io::Error },
    #[error(
        "a user namespace was refused ({error}): run as root outside of a container, or allow user \
         namespaces"
    )]
    User { error: io::Error },
    #[error(
        "the entry into a network namespace was refused ({error}): it needs CAP_SYS_ADMIN and a new \
         thread; run as root, and raise the limit of threads"
    )]
    Enter { error: io::Error },
    #[error("/dev/net/tun cannot be opened ({error}): load the module tun")]
    Device { error: io::Error },
    #[error("a TUN device was refused ({error}): the process needs CAP_NET_ADMIN")]
    Interface { error: io::Error },
    #[error("a TUN device cannot be polled ({error}): raise the limits of open files and of epoll")]
    Poll { error: io::Error },
    #[error(
        "{step} was refused by the kernel ({error}): use a kernel with rtnetlink and IPv4, or the \
         backend `stream`"
    )]
    Setup {
        step: &'static str,
        error: io::Error,
    },
    #[error("only Linux has network namespaces: use the backend `stream`")]
    Unsupported,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_its_step_and_a_remedy() {
        let error = || io::ErrorKind::PermissionDenied.into();
        let step = "the route over link0";
        let refusals = [
            (PacketRefusal::Namespace { error: error() }, "namespace"),
            (PacketRefusal::User { error: error() }, "user namespace"),
            (PacketRefusal::Enter { error: error() }, "entry"),
            (PacketRefusal::Device { error: error() }, "/dev/net/tun"),
            (PacketRefusal::Interface { error: error() }, "TUN device"),
            (PacketRefusal::Poll { error: error() }, "polled"),
            (
                PacketRefusal::Setup {
                    step,
                    error: error(),
                },
                step,
            ),
            (PacketRefusal::Unsupported, "Linux"),
        ];
        for (refusal, named) in refusals {
            let text = refusal.to_string();
            let (cause, remedy) = text.rsplit_once(": ").expect(&text);
            assert!(cause.contains(named) && remedy.len() > 10, "{text}");
        }
    }
}
