//! Unsafe blocks that the verifier received before they were on L1. Blocks that match the derived
//! ones are kept. From the first difference on they are replaced.

use crate::network::Network;
use starling_proto::fork::Fork;

/// A network whose verifier has received nine unsafe blocks. They are posted unchanged, or changed
/// from block `changed` on.
fn heard(fork: Fork, changed: Option<usize>) -> Network {
    let mut network = Network::new(fork);
    network.sequence(9);
    let blocks = network.l2[1..]
        .iter()
        .map(|block| (block.number(), block.clone()));
    network.verifier.heard = blocks.collect();
    if let Some(changed) = changed {
        network.l2.truncate(changed);
        network.sequence(10 - changed as u64);
    }
    network.post_blocks(1..=9, true);
    network.mine();
    network.expect(&[]);
    network
}

#[test]
fn unsafe_blocks_that_l1_confirms() {
    for fork in Fork::ALL.into_iter().filter(|fork| *fork >= Fork::Delta) {
        let mut network = heard(fork, None);
        assert_eq!(network.verifier.consolidated, 9, "{fork:?}");
        network.moves_on();
    }
}

#[test]
fn conflicting_unsafe_blocks() {
    for fork in [Fork::Granite, Fork::Holocene, Fork::Karst] {
        for changed in 1..=9 {
            let mut network = heard(fork, Some(changed));
            assert_eq!(
                network.verifier.consolidated,
                changed as u64 - 1,
                "{fork:?}"
            );
            assert!(network.verifier.heard.is_empty());
            network.moves_on();
        }
    }
}

/// An unsafe block with the derived user transactions but another L1 origin differs in its first
/// transaction.
#[test]
fn an_unsafe_block_with_another_origin() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = Network::new(fork);
        network.sequence(3);
        let user: Vec<_> = network.batch(3).transactions.iter().collect();
        let good = network.l2.clone();
        network.l2.truncate(3);
        let other = network.build_at(0, &user);
        network.verifier.heard = [(3, other)].into();
        network.l2 = good;
        network.post_blocks(1..=3, false);
        network.mine();
        network.expect(&[]);
        assert_eq!(network.verifier.consolidated, 0);
        network.moves_on();
    }
}
