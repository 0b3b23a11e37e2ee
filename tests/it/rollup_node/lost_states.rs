//! op-geth is killed under a sequencing `starling rollup`, with storage that loses states at a kill,
//! and an L1 reorg takes its head back. Each test prints how long the pauses were.

use super::*;
use crate::{
    foreign::programs::{GethStorage, op_geth_on},
    l1_reorg::Proxy,
};
use std::{sync::Arc, time::Instant};

/// op-geth that was stopped once keeps the states of that moment. After a kill it comes back there
/// and still has all later blocks, which it must execute again.
#[test]
fn op_geth_with_path_storage_loses_its_states_and_no_block() {
    let Some([program]) = programs([GETH]) else {
        return;
    };
    let net = Network::start(100);
    let mut geth = op_geth_on(GethStorage::Path, net.path(), &program, "geth", &[]);
    let mut rollup = rollup_node(net.path(), "rollup", &geth, &sequencing(&net));
    reaches(&geth, 20);
    geth.stop();
    geth.restart();
    geth = geth.ready();
    for round in 0..3 {
        let before = reaches(&geth, 100 + 5 * round);
        let signed: Vec<Value> = (1..=before)
            .map(|number| hash_at(&geth.url, number))
            .collect();
        geth.restart();
        let began = Instant::now();
        geth = geth.ready();
        reaches(&geth, before + 1);
        let took = began.elapsed();
        eprintln!("kill {round} at block {before}: on after {took:?}");
        let after: Vec<Value> = (1..=before)
            .map(|number| hash_at(&geth.url, number))
            .collect();
        assert_eq!(after, signed);
    }
    rollup.check();
}

#[test]
fn l1_reorgs_rewind_op_geth_once() {
    let Some([program]) = programs([GETH]) else {
        return;
    };
    let net = Network::start(5);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let proxy = Arc::new(Proxy::of(&net.l1.url, 2));
    let l1 = runtime.block_on(proxy.clone().serve());
    let geth = op_geth_on(GethStorage::Path, net.path(), &program, "geth", &[]);
    let options = [sequencing(&net), vec![format!("--l1={l1}")]].concat();
    let rollup = rollup_node(net.path(), "rollup", &geth, &options);
    reaches(&net.l1, 5);
    reaches(&geth, 12);
    proxy.reorganise(3);
    let began = Instant::now();
    let before = hash_at(&geth.url, 12);
    let rewound = || rollup.log().matches("L1 reorg: the head is").count();
    wait("the head to be rewound", PATIENCE, || {
        (rewound() > 0).then_some(())
    });
    let head = geth.head().expect("it answers");
    wait("a block after the reorg", PATIENCE, || {
        let moved = hash_at(&geth.url, 12) != before || geth.head()? > head;
        moved.then_some(())
    });
    eprintln!("L1 reorg: a block after {:?}", began.elapsed());
    reaches(&geth, head + 5);
    // The head that op-geth leaves in place is not taken for news.
    assert!(!rollup.log().contains("another head than it was given"));
}
