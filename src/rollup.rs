//! The rollup side of the node: L1, and (on the sequencer) the making of blocks.
//!
//! [`l1`] reads L1, [`l1_config`] has its blob fee schedule, [`origin`] chooses the L1 origin of a new L2 block, [`sequencer`]
//! makes blocks on time, [`signer`] signs them, [`unsafe_signer`] learns from L1 whose signatures count. Knows no libp2p and no EVM:
//! blocks go to the chain and to the swarm through their handles.

mod http;
pub mod l1;
pub mod l1_config;
pub mod origin;
pub mod sequencer;
pub mod signer;
pub mod unsafe_signer;
