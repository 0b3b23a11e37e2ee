//! The processes of hostile peers: network keys drawn from the seed, and command lines.

use super::{HostilePlan, behaviour::HostileBehaviour};
use crate::lab::{
    error::LabError,
    network::{LabFolder, NET},
    process::LabProcess,
};
use alloy_primitives::{B256, hex};
use libp2p::PeerId;
use rand::{RngCore, SeedableRng, rngs::StdRng};
use starling_p2p::identity;
use std::path::Path;

/// Number of keys of which a peer that wants requests takes the one with the lowest peer id: of
/// equal peers, a node requests from the one with the lowest id.
const KEYS: usize = 64;

/// A hostile peer's process and its peer id.
pub struct HostileNode {
    pub process: LabProcess,
    pub peer: String,
}

/// A network key with its peer id.
struct HostileKey {
    peer: PeerId,
    hex: String,
}

/// Plans the process of the peer with this index among all nodes. `targets` are multiaddrs.
pub fn node(
    plan: &HostilePlan,
    index: usize,
    targets: &[String],
    netsim: &Path,
    folder: LabFolder,
    seed: u64,
) -> Result<HostileNode, LabError> {
    let seed = seed.wrapping_add(index as u64);
    let key = network_key(plan.behaviour, seed);
    let rollup = folder.file(NET).join("rollup.json");
    let mut args = vec![
        "hostile".to_owned(),
        plan.behaviour.word().to_owned(),
        format!("--key={}", key.hex),
        format!("--rollup-config={}", rollup.display()),
        format!("--seed={seed}"),
    ];
    args.extend(targets.iter().map(|target| format!("--target={target}")));
    let log = folder.file(&format!("{}.log", plan.name));
    Ok(HostileNode {
        process: LabProcess::new(&plan.name, netsim, args, log, folder.path),
        peer: key.peer.to_string(),
    })
}

fn network_key(behaviour: HostileBehaviour, seed: u64) -> HostileKey {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut draw = || loop {
        let mut secret = B256::ZERO;
        dice.fill_bytes(secret.as_mut_slice());
        let hex = hex::encode(secret);
        // Nearly all numbers of 256 bits are keys.
        if let Some(key) = identity::from_hex(&hex) {
            let peer = key.public().to_peer_id();
            return HostileKey { peer, hex };
        }
    };
    let mut best = draw();
    for _ in 1..KEYS {
        if !behaviour.serves() {
            break;
        }
        let other = draw();
        if other.peer < best.peer {
            best = other;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::{
        super::{HostileGroup, peers},
        *,
    };

    #[test]
    fn a_seed_gives_one_key_and_peers_that_want_requests_have_low_ids() {
        let (garbage, stall) = (HostileBehaviour::Garbage, HostileBehaviour::Stall);
        assert_eq!(network_key(stall, 7).hex, network_key(stall, 7).hex);
        assert_ne!(network_key(stall, 7).hex, network_key(stall, 8).hex);
        let low = (0..8)
            .filter(|seed| network_key(stall, *seed).peer <= network_key(garbage, *seed).peer);
        assert_eq!(low.count(), 8);
    }

    #[test]
    fn peers_have_seeds_of_their_own() {
        let netsim = Path::new("/netsim");
        let folder = LabFolder {
            path: Path::new("/run"),
            prefix: "",
            taken: &Default::default(),
        };
        let plans = peers(&[HostileGroup {
            count: 2,
            ..HostileGroup::new(HostileBehaviour::Garbage, Default::default())
        }]);
        let seeds = [4, 5].map(|index| {
            let node = node(&plans[index - 4], index, &[], netsim, folder, 70).unwrap();
            let mut args = node.process.args.into_iter();
            args.find(|arg| arg.starts_with("--seed=")).unwrap()
        });
        assert_eq!(seeds, ["--seed=74", "--seed=75"]);
    }
}
