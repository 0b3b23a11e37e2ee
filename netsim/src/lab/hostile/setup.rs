//! The processes of hostile peers: network keys drawn from the seed, and command lines.

use super::{HostilePlan, behaviour::HostileBehaviour};
use crate::lab::{
    error::LabError,
    network::{LabFolder, NET},
    network_key::NetworkKey,
    process::LabProcess,
};
use rand::{SeedableRng, rngs::StdRng};
use std::path::Path;

/// Number of keys of which a peer that wants requests takes the one with the lowest peer id: of
/// equal peers, a node requests from the one with the lowest id.
const KEYS: usize = 64;

/// A hostile peer's process and its peer id.
pub struct HostileNode {
    pub process: LabProcess,
    pub peer: String,
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
    let key = draw_key(plan.behaviour, seed);
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

fn draw_key(behaviour: HostileBehaviour, seed: u64) -> NetworkKey {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut best = NetworkKey::draw(&mut dice);
    for _ in 1..KEYS {
        if !behaviour.serves() {
            break;
        }
        let other = NetworkKey::draw(&mut dice);
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
        assert_eq!(draw_key(stall, 7).hex, draw_key(stall, 7).hex);
        assert_ne!(draw_key(stall, 7).hex, draw_key(stall, 8).hex);
        let is_low = |seed: &u64| draw_key(stall, *seed).peer <= draw_key(garbage, *seed).peer;
        let low = (0..8).filter(is_low);
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
