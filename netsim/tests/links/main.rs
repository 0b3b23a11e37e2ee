//! Tests of links with real sockets: they measure whether links follow their conditions. Time
//! limits allow for a busy machine; `benches/links.rs` prints the exact figures.

mod hostile;
mod net;
mod packet;
mod reachability;
mod tcp;
mod udp;
