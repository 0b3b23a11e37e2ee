//! Real swarms on loopback.

mod gossip;
mod hostile;
mod net;
mod peers;
mod serving;
