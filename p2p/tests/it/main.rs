//! Real swarms on loopback.

mod discovery;
mod gate;
mod gossip;
mod hostile;
mod net;
mod peers;
mod serving;
mod standing;
