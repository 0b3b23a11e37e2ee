//! Real swarms on loopback.

mod gate;
mod gossip;
mod hostile;
mod net;
mod peers;
mod serving;
mod signer;
mod standing;
