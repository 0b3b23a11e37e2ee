//! Reorgs of L1. The pipeline requests a reset, the verifier finds the start point, and the result
//! must equal a fresh derivation.

use crate::{
    network::{Network, WINDOW},
    verifier::Verifier,
};
use starling_proto::{
    derive::{PipelineStep, ResetReason},
    fork::Fork,
    payload::Payload,
};

impl Network {
    fn is_canonical(&self, block: &Payload) -> bool {
        let origin = self.reference(block).origin;
        let on_l1 = self.l1.get(origin.number as usize);
        on_l1.is_some_and(|mined| mined.input.block.hash == origin.hash)
    }

    /// The block from which a verifier restarts after a reorg: the parent of the first block in an
    /// epoch that is more than a sequencing window before the newest canonical epoch.
    fn start_point(&self) -> u64 {
        let chain = &self.verifier.chain;
        let canonical = chain.iter().rev().find(|block| self.is_canonical(block));
        let newest = self.reference(canonical.unwrap()).origin.number;
        let is_start = |block: &Payload| {
            let block = self.reference(block);
            block.sequence_number == 0 && block.origin.number + WINDOW < newest
        };
        let start = chain[1..].iter().rev().find(|block| is_start(block));
        start.map_or(0, |block| block.number() - 1)
    }

    /// Derives until the pipeline detects the reorg, and restarts it.
    fn recover(&mut self) {
        let stop = self.run();
        let is_reorg = matches!(stop, PipelineStep::Reset(ResetReason::L1Reorg { .. }));
        assert!(is_reorg, "{stop:?}");
        assert!(
            matches!(self.run(), PipelineStep::Reset(_)),
            "until the reset"
        );
        let start = self.start_point();
        self.verifier.reset(start);
        self.derive();
        self.verifier.pipeline.drain_drops();
    }

    /// Checks that a verifier that starts at genesis has the same chain, with only canonical
    /// origins.
    fn agrees_with_a_fresh_derivation(&self) {
        let chain = &self.verifier.chain;
        assert!(chain.iter().all(|block| self.is_canonical(block)));
        let genesis = chain[0].clone();
        let mut fresh = Verifier::new(self.rollup.clone(), self.schedule.clone(), genesis);
        fresh.run(&self.l1, &self.blobs);
        let ids = |chain: &[std::sync::Arc<Payload>]| {
            chain.iter().map(|block| block.id()).collect::<Vec<_>>()
        };
        assert_eq!(ids(&fresh.chain), ids(chain));
    }

    /// Sequences and posts L2 blocks, 18 at a time, for at least this many L1 blocks.
    fn work(&mut self, l1_blocks: u64) {
        let until = self.l1_head() + l1_blocks;
        while self.l1_head() < until {
            let first = self.head().number() + 1;
            self.sequence(18);
            let is_span = self.l1_head().is_multiple_of(2);
            self.post_blocks(first..=self.head().number(), is_span);
            self.mine();
        }
    }
}

#[test]
fn an_orphaned_batch() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = Network::new(fork);
        network.sequence(9);
        network.post_blocks(1..=9, false);
        let posted = network.mine();
        network.expect(&[]);
        network.fork_l1(posted);
        network.mine_to(posted + 1);
        network.recover();
        assert_eq!(
            network.verifier.chain.len(),
            1,
            "no batch is on this branch"
        );
        // The batcher posts the orphaned data again.
        network.post_blocks(1..=9, false);
        network.mine();
        network.expect(&[]);
        network.agrees_with_a_fresh_derivation();
        network.moves_on();
    }
}

/// A batch with an orphaned L1 origin is not valid on the other branch.
#[test]
fn a_batch_with_an_orphaned_origin() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = Network::new(fork);
        network.sequence(9);
        network.post_blocks(1..=9, false);
        network.mine();
        network.expect(&[]);
        let old = network.l2.clone();
        let orphans = network.fork_l1(3);
        network.mine();
        network.inbox = orphans[1].input.inbox.clone();
        network.mine_to(5);
        network.recover();
        // Block 9 has L1 block 3 as its origin.
        assert_eq!(network.verifier.chain.len(), 9);
        assert_eq!(network.verifier.chain[8].id(), old[8].id());
        network.agrees_with_a_fresh_derivation();
        network.moves_on();
    }
}

/// L1 switches back and forth between two branches with contradicting batches.
#[test]
fn flip_flop() {
    for fork in [Fork::Granite, Fork::Holocene] {
        let mut network = Network::new(fork);
        network.sequence(9);
        network.post_blocks(1..=9, true);
        let posted = network.mine();
        network.expect(&[]);
        let chain_a = network.l2.clone();
        let mut branch_a = network.fork_l1(posted);

        network.l2.truncate(4);
        network.sequence(6);
        network.post_blocks(1..=9, true);
        network.mine_to(posted + 1);
        network.recover();
        network.expect(&[]);
        let chain_b = network.l2.clone();
        assert_ne!(chain_a[9].id(), chain_b[9].id());

        for flips in 1..=6 {
            let other = network.fork_l1(posted);
            network.l1.append(&mut branch_a);
            branch_a = other;
            network.mine_to(posted + 1 + flips);
            network.recover();
            network.l2 = if flips % 2 == 1 {
                chain_a.clone()
            } else {
                chain_b.clone()
            };
            network.expect(&[]);
            network.agrees_with_a_fresh_derivation();
        }
        network.moves_on();
    }
}

/// Reorgs of up to 64 blocks, which are several sequencing windows.
#[test]
fn deep_reorgs() {
    for fork in [Fork::Granite, Fork::Holocene, Fork::Karst] {
        for depth in [1, 2, 7, 20, 64] {
            let mut network = Network::new(fork);
            network.work(90);
            network.derive();
            let derived = network.verifier.chain.len();
            assert_eq!(derived, network.l2.len(), "{fork:?}");
            let head = network.l1_head();
            network.fork_l1(head + 1 - depth);
            network.mine_to(head + 1);
            network.recover();
            network.agrees_with_a_fresh_derivation();
            network.moves_on();
            network.work(10);
            network.derive();
            assert_eq!(
                network.verifier.chain.len(),
                network.l2.len(),
                "{fork:?} {depth}"
            );
            network.agrees_with_a_fresh_derivation();
        }
    }
}
