//! A verifier whose L1 endpoint withholds blocks, falsifies blocks, or does not respond, on
//! command.

use super::{
    endpoint::{L1Fault, StandInL1},
    word,
    world::{ActionPlan, ActionWorld, VerifierLinks},
};
use crate::net::wait;
use std::time::Duration;

/// Longest wait for requests, each of which may take its full timeout.
const PATIENCE: Duration = Duration::from_secs(120);
/// Faulty responses before the fault ends; the last one is the response to a retry.
const SPOILED: usize = 2;

/// While L1 cannot be read, the safe head stays and the log names the cause. The safe head rises
/// once L1 can be read again.
fn fail(
    world: &mut ActionWorld,
    endpoint: &StandInL1,
    (fault, cause): (L1Fault, &str),
    gas_limit: u64,
) {
    let before = world.author.head().number();
    endpoint.set(fault);
    world.l1.mine_to(world.l1.height() + 1);
    let blocks = world.extend(world.l1.height() - 1);
    // Include an L1 log that derivation reads, so that the receipts are requested.
    let configure = world.configure("setGasLimit(uint64)", &[word(gas_limit)]);
    let batch = world.post_span(&blocks);
    world.l1.mine(&[configure, batch]);
    wait("spoiled requests", PATIENCE, || {
        let is_named = world.verifier.log().contains(cause);
        (is_named && endpoint.spoiled() >= SPOILED).then_some(())
    });
    assert_eq!(world.verifier.safe(), Some(before), "{fault:?}");
    endpoint.set(L1Fault::None);
    world.settle();
}

#[test]
fn an_l1_endpoint_that_withholds_and_falsifies_changes_no_safe_block() {
    let mut endpoint = None;
    let plan = ActionPlan {
        window: 40,
        ..ActionPlan::default()
    };
    let mut world = ActionWorld::with_links(plan, |l1| {
        let url = endpoint.insert(StandInL1::start(&l1.url)).url.clone();
        VerifierLinks {
            l1: url,
            options: vec![],
        }
    });
    let endpoint = endpoint.expect("it is started");
    world.l1.mine_to(3);
    let faults = [
        (
            L1Fault::Withheld,
            "which is not above the head that it reported",
        ),
        (L1Fault::OtherBlock, "requested block"),
        (L1Fault::CutBlock, "the transactions of block"),
        (L1Fault::NoLogs, "the receipts of block"),
        (L1Fault::Refused, "out of order"),
        (L1Fault::Busy, "HTTP status 503"),
        (L1Fault::Html, "a web page"),
        (L1Fault::Half, "before message length reached"),
        (L1Fault::Silence, "no response within"),
    ];
    for (gas_limit, fault) in (30_000_000..).zip(faults) {
        fail(&mut world, &endpoint, fault, gas_limit);
    }
}
