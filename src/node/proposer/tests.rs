//! The proposer as a process, before the programs that it depends on respond.

use super::*;
use crate::{
    cli::{self, Invocation},
    rollup::http_fake::{Canned, CannedServer},
};
use std::time::Duration;

const KEY: &str = "59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d";
/// Longest wait for any event in these tests.
const PATIENCE: Duration = Duration::from_secs(20);

fn config(rollup: &CannedServer, l1: &CannedServer) -> ProposerProcessConfig {
    let line = [
        "op-proposer".to_owned(),
        format!("--l1-eth-rpc={}", l1.url()),
        format!("--rollup-rpc={}", rollup.url()),
        format!("--l2oo-address=0x{}", "11".repeat(20)),
        format!("--private-key={KEY}"),
        "--rpc.port=0".to_owned(),
    ];
    match cli::parse(line, &|_| None).unwrap().invocation {
        Invocation::Proposer(config) => *config,
        other => panic!("{other:?}"),
    }
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("not {what}"));
}

/// The proposer waits first for the rollup node, then for L1; a signal ends either wait.
#[tokio::test]
async fn a_proposer_waits_for_its_upstreams_until_a_signal() {
    let Some(status) =
        starling_testkit::fixture_text("derivation-live/jovian-span/sync-status.json")
    else {
        return;
    };
    let body = format!(r#"{{"jsonrpc":"2.0","id":0,"result":{status}}}"#);
    let away = CannedServer::start(|_| Canned::status(502, "")).await;
    let here = CannedServer::start(move |_| Canned::ok(&body)).await;
    let l1 = CannedServer::start(|_| Canned::html()).await;
    for rollup in [&away, &here] {
        let signals = StopSignals::default();
        let process = tokio::spawn(run_proposer(config(rollup, &l1), signals.clone()));
        until("asked", || rollup.count() > 0).await;
        if std::ptr::eq(rollup, &here) {
            until("at L1", || l1.count() > 0).await;
        } else {
            assert_eq!(l1.count(), 0, "L1 comes after the rollup node");
        }
        signals.closing.cancel();
        let ended = tokio::time::timeout(PATIENCE, process).await;
        ended.expect("an end").unwrap().unwrap();
    }
}
