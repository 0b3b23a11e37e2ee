//! Network keys of nodes, with their peer ids.

use alloy_primitives::{B256, hex};
use libp2p::PeerId;
use rand::RngCore;
use starling_p2p::identity;

/// The key of a node in the swarm.
pub struct NetworkKey {
    pub peer: PeerId,
    /// The secret, as the file of `--p2p.priv.path` has it.
    pub hex: String,
}

impl NetworkKey {
    pub fn draw(dice: &mut impl RngCore) -> Self {
        loop {
            let mut secret = B256::ZERO;
            dice.fill_bytes(secret.as_mut_slice());
            let hex = hex::encode(secret);
            // Nearly all numbers of 256 bits are keys.
            if let Some(key) = identity::from_hex(&hex) {
                let peer = key.public().to_peer_id();
                return Self { peer, hex };
            }
        }
    }
}
