//! Real swarms on loopback.

mod gate;
mod gossip;
mod hostile;
mod net;
mod peers;
mod range;
mod serving;
mod standing;
