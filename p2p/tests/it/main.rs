//! Real swarms on loopback.

mod discovery;
mod gate;
mod gossip;
mod hostile;
mod nat;
mod net;
mod peers;
mod range;
mod serving;
mod signer;
mod standing;
mod validator;
