//! Options of a dial, and the classification of a dial that failed.

use libp2p::{
    Multiaddr, PeerId, TransportError,
    swarm::{
        DialError,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use std::{error::Error, io};

/// Options of a dial of `peer` at `addresses`.
pub fn dial_options(peer: PeerId, addresses: Vec<Multiaddr>, condition: PeerCondition) -> DialOpts {
    // Use a fresh local port: from the listening port a second connection to the same peer could
    // not be distinguished from a closed one.
    DialOpts::peer_id(peer)
        .condition(condition)
        .addresses(addresses)
        .allocate_new_port()
        .build()
}

/// Whether a dial failed because no process accepts connections at one of the addresses: the dial
/// was refused, the machine is down, or there is no route to it.
pub fn is_unanswered(error: &DialError) -> bool {
    const UNANSWERED: [io::ErrorKind; 4] = [
        io::ErrorKind::ConnectionRefused,
        io::ErrorKind::TimedOut,
        io::ErrorKind::HostUnreachable,
        io::ErrorKind::NetworkUnreachable,
    ];
    let DialError::Transport(errors) = error else {
        return false;
    };
    errors.iter().any(|(_, error)| match error {
        TransportError::Other(error) => {
            io_errors(error).any(|error| UNANSWERED.contains(&error.kind()))
        }
        TransportError::MultiaddrNotSupported(_) => false,
    })
}

/// The I/O errors in a chain of causes.
fn io_errors(error: &io::Error) -> impl Iterator<Item = &io::Error> {
    std::iter::successors(Some(error as &(dyn Error + 'static)), |error| {
        next_cause(*error)
    })
    .filter_map(|error| error.downcast_ref())
}

fn next_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>() {
        // `io::Error::source` skips the error that it wraps: return that error first.
        Some(error) => error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
        None => error.source(),
    }
}
