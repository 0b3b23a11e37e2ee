//! Verifiers whose endpoint serves an L1 other than their rollup's, from the start or after a
//! while.

use super::{
    endpoint::StandInL1,
    l1::CoreL1,
    world::{ActionFiles, ActionPlan, ActionWorld, START, VerifierLinks},
};
use crate::{derive::verifier::Verifier, net::wait};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// Mines an L1 block with a batch, and waits until the batch is derived.
fn derive_one_batch(world: &mut ActionWorld) {
    world.l1.mine_to(world.l1.height() + 2);
    let blocks = world.extend(world.l1.height() - 1);
    let call = world.post_span(&blocks);
    world.l1.mine(&[call]);
    world.settle();
}

/// The endpoint switches to a branch without a finalized block. No head moves and the log gives the
/// reason once. Derivation continues when the endpoint serves the right branch again.
#[test]
fn an_l1_that_reverts_a_finalized_block_is_named_and_not_followed() {
    let mut endpoint = None;
    let mut world = ActionWorld::with_links(ActionPlan::default(), |l1| VerifierLinks {
        l1: endpoint.insert(StandInL1::start(&l1.url)).url.clone(),
        options: vec![],
    });
    let endpoint = endpoint.expect("it is started");
    world.l1.finalized_depth = 2;
    derive_one_batch(&mut world);
    derive_one_batch(&mut world);
    let finalized =
        |world: &ActionWorld| world.verifier.status()?["finalized_l2"]["number"].as_u64();
    wait("a finalized block", PATIENCE, || {
        finalized(&world).filter(|number| *number > 0)
    });
    let (before, safe) = (finalized(&world), world.verifier.safe());
    let genesis = ActionFiles::new(&ActionPlan::default()).l1_genesis;
    let mut other = CoreL1::start(&genesis.to_string(), 12);
    other.rewind(0);
    other.mine_to(world.l1.height() + 5);
    endpoint.set_upstream(&other.url);
    let sentence = "L1 has reverted a finalized block";
    wait("the sentence", PATIENCE, || {
        world.verifier.log().contains(sentence).then_some(())
    });
    // The search for a common block is repeated after one and after two more seconds.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(world.verifier.log().matches(sentence).count(), 1);
    assert_eq!((finalized(&world), world.verifier.safe()), (before, safe));
    endpoint.set_upstream(&world.l1.url);
    derive_one_batch(&mut world);
}

/// An L1 with another genesis block makes the node exit with an error message.
#[test]
fn an_l1_with_another_genesis_block_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    ActionFiles::new(&ActionPlan::default()).write(folder.path());
    let other = ActionFiles::new(&ActionPlan {
        start: START + 1_000,
        ..ActionPlan::default()
    });
    let l1 = CoreL1::start(&other.l1_genesis.to_string(), 12);
    let mut verifier = Verifier::start(folder.path(), &l1.url, &[]);
    let process = verifier.process.as_mut().expect("a started process");
    let status = wait("the end of the node", PATIENCE, || {
        process.child.try_wait().expect("a process")
    });
    assert!(!status.success());
    let log = verifier.log();
    assert!(log.contains("incorrect L1 genesis block hash"), "{log}");
    assert!(
        log.contains("serves another chain with the same id"),
        "{log}"
    );
}
