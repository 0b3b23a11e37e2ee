//! Links with real sockets: what the conditions promise is measured through them. Bounds of time are
//! those of a busy machine; `benches/links.rs` prints the exact figures.

mod hostile;
mod net;
mod reachability;
mod tcp;
mod udp;
