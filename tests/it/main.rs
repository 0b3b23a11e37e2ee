//! The integration tests: one binary.

mod bad_input;
mod campaign;
mod clients;
mod crash;
mod damaged;
mod devnet;
mod devnet_use;
mod differential;
mod engine;
mod exec_blocks;
mod executors;
mod following;
mod foreign;
mod foreign_peer;
mod forks;
mod l1_fees;
mod late;
mod metrics;
mod net;
mod p2p_options;
mod real_contracts;
mod rpc_fields;
mod tidy;
mod tools;
mod vectors;
mod version;
