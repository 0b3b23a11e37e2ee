//! The clients that send requests to peers: single blocks by number (`client/by_number.rs`) and
//! headers and blocks by range (`client/by_range.rs`). One stream carries one request.

pub mod by_number;
pub mod by_range;
