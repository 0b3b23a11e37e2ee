//! Safe blocks that were derived before a restart or a reset are finalized, even though the batcher
//! posts nothing afterwards that would move the safe head.

use super::world::{ActionPlan, ActionWorld, VerifierLinks};
use crate::net::{ask, wait};
use serde_json::json;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Number of L1 blocks above the finalized block.
const DEPTH: u64 = 3;

/// Posts a batch that is derived but not yet finalized.
fn derive_one_batch(world: &mut ActionWorld) {
    world.l1.mine_to(world.l1.height() + 2);
    let blocks = world.extend(world.l1.height() - 1);
    let call = world.post_span(&blocks);
    world.l1.mine(&[call]);
    let status = world.settle();
    assert!(status["finalized_l2"]["number"].as_u64() < Some(world.author.head().number()));
}

/// L1 finalizes the block with the batch, and the safe head is finalized with it.
fn finalize(world: &mut ActionWorld, batch: u64) {
    // The stand-in L1 computes the finalized block from the height before the new block: mine one
    // more.
    world.l1.mine_to(batch + DEPTH + 1);
    let head = json!(world.author.head().hash);
    wait("the safe head to be final", PATIENCE, || {
        let status = world.verifier.status()?;
        (status["finalized_l2"]["hash"] == head).then_some(())
    });
}

/// Applies `change`, and waits until derivation has restarted.
fn begins_anew(world: &mut ActionWorld, change: fn(&mut ActionWorld)) {
    let begun = |world: &ActionWorld| world.verifier.log().matches("derivation begins").count();
    let before = begun(world);
    change(world);
    wait("a new start of derivation", PATIENCE, || {
        (begun(world) > before).then_some(())
    });
    world.settle();
}

fn restart(world: &mut ActionWorld) {
    world.verifier.restart();
}

fn reset_by_operator(world: &mut ActionWorld) {
    let rpc = &world.verifier.rpc;
    ask(rpc, "admin_resetDerivationPipeline", json!([]));
}

/// Replaces an L1 block above the one with the batch.
fn reorganise_l1(world: &mut ActionWorld) {
    let batch = world.l1.height();
    world.l1.mine(&[]);
    world.settle();
    world.l1.rewind(batch);
    world.l1.mine(&[]);
}

#[test]
fn safe_blocks_become_final_though_no_batch_follows_a_restart_or_a_reset() {
    let plan = ActionPlan {
        window: 60,
        ..ActionPlan::default()
    };
    let mut world = ActionWorld::with_links(plan, |l1| VerifierLinks {
        l1: l1.url.clone(),
        options: vec!["--rpc.enable-admin".into()],
    });
    world.l1.finalized_depth = DEPTH as usize;
    for change in [restart, reset_by_operator, reorganise_l1] {
        derive_one_batch(&mut world);
        let batch = world.l1.height();
        begins_anew(&mut world, change);
        finalize(&mut world, batch);
    }
}
