//! Networks whose nodes find each other: the lab takes their static peers from their command lines,
//! turns discovery on, and gives all of them one bootnode.
//!
//! The program has no command for a bootnode alone, so the bootnode is a replica whose address the
//! others know at the start. Nodes advertise one address to all peers, so there are no links
//! between them.

use super::{network::LabNode, topology::LabRole};
use alloy_primitives::hex;
use libp2p::{PeerId, identity::PublicKey};

/// Options of static networks.
const STATIC: [&str; 2] = ["--p2p.static=", "--p2p.no-discovery"];

/// Makes nodes find each other through the bootnode among them, if there is one.
pub fn connect(nodes: &mut [LabNode]) {
    let bootnode = nodes.iter().find(|node| node.role == LabRole::Bootnode);
    let Some(enode) = bootnode.and_then(enode) else {
        return;
    };
    for node in nodes.iter_mut().filter(|node| node.role.is_l2()) {
        let enode = (node.role != LabRole::Bootnode).then_some(enode.as_str());
        discover(&mut node.process.args, enode);
    }
}

/// Changes one command line.
fn discover(args: &mut Vec<String>, enode: Option<&str>) {
    args.retain(|arg| !STATIC.iter().any(|option| arg.starts_with(option)));
    args.extend(enode.map(|enode| format!("--p2p.bootnodes={enode}")));
}

/// The address of a node's discovery. Its UDP port is that of its swarm.
fn enode(node: &LabNode) -> Option<String> {
    let key = public_key(&node.peer)?;
    Some(format!("enode://{key}@{}", node.swarm?))
}

/// The public key in a peer id, without the first byte, which is the same for all keys.
fn public_key(peer: &str) -> Option<String> {
    let peer: PeerId = peer.parse().ok()?;
    let key = PublicKey::try_decode_protobuf(peer.as_ref().digest()).ok()?;
    let key = key.try_into_secp256k1().ok()?;
    Some(hex::encode(&key.to_bytes_uncompressed()[1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_p2p::Bootnode;

    #[test]
    fn the_program_reads_the_address_of_a_bootnode() {
        let key = starling_p2p::identity::from_hex(&"11".repeat(32)).unwrap();
        let peer = key.public().to_peer_id();
        let key = public_key(&peer.to_string()).unwrap();
        let bootnode: Bootnode = format!("enode://{key}@127.0.0.1:9222").parse().unwrap();
        let Bootnode::Enode(enode) = bootnode else {
            panic!("{bootnode:?}");
        };
        assert_eq!((enode.peer, enode.udp), (peer, 9222));
        assert_eq!(public_key("no peer"), None);
    }

    #[test]
    fn static_peers_are_replaced_by_the_bootnode() {
        let mut args = ["node", "--p2p.static=/ip4/x", "--p2p.no-discovery", "--x"]
            .map(str::to_owned)
            .to_vec();
        discover(&mut args, Some("enode://k@h:1"));
        assert_eq!(args, ["node", "--x", "--p2p.bootnodes=enode://k@h:1"]);
        let mut bootnode = vec!["--p2p.static=/ip4/x".to_owned()];
        discover(&mut bootnode, None);
        assert!(bootnode.is_empty());
    }
}
