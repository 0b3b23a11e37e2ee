//! Tests with real swarms on loopback.

mod attackers;
mod counters;
mod discovery;
mod gate;
mod gossip;
mod hostile;
mod nat;
mod net;
mod peers;
mod quic;
mod range;
mod serving;
mod signer;
mod standing;
mod validator;
