//! A verifier whose L1 endpoint withholds blocks, falsifies them, or does not answer, by order.

use super::{
    endpoint::{L1Fault, StandInL1},
    word,
    world::{ActionPlan, ActionWorld, VerifierLinks},
};
use crate::net::wait;
use std::time::Duration;

/// Longest wait for requests, of which each may take its time limit.
const PATIENCE: Duration = Duration::from_secs(120);
/// Requests that are spoiled before the endpoint is well again: the last one is a retry.
const SPOILED: usize = 2;

/// While L1 cannot be read the safe head stands still; it moves on when L1 can.
fn fail(world: &mut ActionWorld, endpoint: &StandInL1, fault: L1Fault, gas_limit: u64) {
    let before = world.author.head().number();
    endpoint.set(fault);
    world.l1.mine_to(world.l1.height() + 1);
    let blocks = world.extend(world.l1.height() - 1);
    // A log that derivation reads, so that it needs the receipts.
    let configure = world.configure("setGasLimit(uint64)", &[word(gas_limit)]);
    let batch = world.post_span(&blocks);
    world.l1.mine(&[configure, batch]);
    wait("spoiled requests", PATIENCE, || {
        (endpoint.spoiled() >= SPOILED).then_some(())
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
        L1Fault::Withheld,
        L1Fault::OtherBlock,
        L1Fault::CutBlock,
        L1Fault::NoLogs,
        L1Fault::Refused,
        L1Fault::Busy,
        L1Fault::Html,
        L1Fault::Half,
        L1Fault::Silence,
    ];
    for (gas_limit, fault) in (30_000_000..).zip(faults) {
        fail(&mut world, &endpoint, fault, gas_limit);
    }
    let log = world.verifier.log();
    let causes = [
        "which is not above the head that it reported",
        "requested block",
        "the transactions of block",
        "the receipts of block",
        "out of order",
        "HTTP status 503",
        "a web page",
        "no answer in time",
    ];
    for cause in causes {
        assert!(log.contains(cause), "the log names {cause:?}");
    }
}
