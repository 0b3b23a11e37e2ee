//! A fake op-signer over mutual TLS fails in various ways. Transactions are delayed, but none is
//! lost.

use super::*;
use crate::{
    rollup::signer::{Behaviour, StandIn, TransactionSigning},
    txmgr::sign::{
        TxSignerConfig,
        tests::{signed_as_asked, signed_otherwise},
    },
};
use alloy_consensus::TxEip1559;
use futures::future::join_all;

/// A signer that signs a modified transaction.
fn changed(change: fn(&mut TxEip1559)) -> Behaviour {
    signing(move |args| signed_otherwise(args, KEY, change))
}

fn signing(
    sign: impl Fn(&Value) -> Result<String, (i32, String)> + Send + Sync + 'static,
) -> Behaviour {
    let transaction: TransactionSigning = Arc::new(sign);
    Behaviour {
        transaction: Some(transaction),
        ..Behaviour::default()
    }
}

/// Faulty signers, with a name for each fault.
fn faults() -> Vec<(&'static str, Behaviour)> {
    let healthy = || signing(signed_as_asked);
    let other_key = |args: &Value| signed_otherwise(args, &"11".repeat(32), |_| ());
    vec![
        (
            "down",
            Behaviour {
                hangs_up: true,
                ..healthy()
            },
        ),
        (
            "slow",
            Behaviour {
                silent: true,
                ..healthy()
            },
        ),
        (
            "wrong certificate",
            Behaviour {
                untrusted: true,
                ..healthy()
            },
        ),
        (
            "forbids",
            Behaviour {
                status: Some(403),
                ..healthy()
            },
        ),
        (
            "garbage",
            Behaviour {
                body: Some("<html>".into()),
                ..healthy()
            },
        ),
        (
            "huge",
            Behaviour {
                body: Some("7".repeat(4 << 20)),
                ..healthy()
            },
        ),
        ("other nonce", changed(|tx| tx.nonce += 1)),
        ("other fee", changed(|tx| tx.max_fee_per_gas *= 100)),
        ("other chain", changed(|tx| tx.chain_id += 1)),
        (
            "other recipient",
            changed(|tx| tx.to = alloy_primitives::TxKind::Create),
        ),
        ("other key", signing(other_key)),
        ("refuses", signing(|_| Err((-32010, "unauthorized".into())))),
    ]
}

/// Submits a transaction while the signer fails. Nothing may be published before the signer works.
async fn recovers(name: &'static str, fault: Behaviour) {
    let stand_in = StandIn::start().await;
    let config = TxSignerConfig::Remote(stand_in.config.clone());
    let remote = TxSigner::open(&config).await.unwrap();
    *stand_in.behaviour.lock() = fault;
    let options = TxOptions {
        network_timeout: Duration::from_secs(1),
        ..options()
    };
    let running = running_with(options, &[], remote).await;
    let outcome = running.manager.send(calldata(1)).await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert!(running.l1.lock().sent.is_empty(), "{name}");
    *stand_in.behaviour.lock() = signing(signed_as_asked);
    running.confirm(1).await;
    let mined = outcome.await.unwrap().unwrap();
    assert!(mined.success, "{name}");
    let l1 = running.l1.lock();
    assert!(l1.sent.iter().all(|tx| tx.nonce() == 0), "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_failure_of_a_signer_delays_a_transaction_and_loses_none() {
    let faults = faults().into_iter();
    join_all(faults.map(|(name, fault)| recovers(name, fault))).await;
}

/// The caller gets the reason. The next request is signed as soon as the signer works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signer_that_fails_for_good_fails_the_request_with_its_sentence() {
    let stand_in = StandIn::start().await;
    let config = TxSignerConfig::Remote(stand_in.config.clone());
    let remote = TxSigner::open(&config).await.unwrap();
    *stand_in.behaviour.lock() = changed(|tx| tx.nonce += 1);
    let running = running_with(options(), &[], remote).await;
    let failure = running.manager.send(calldata(1)).await.await.unwrap();
    let failure = failure.unwrap_err().to_string();
    assert!(
        failure.starts_with("failed to create the tx: the signer at https://localhost:")
            && failure.ends_with("it signs another transaction"),
        "{failure}"
    );
    *stand_in.behaviour.lock() = signing(signed_as_asked);
    let outcome = running.manager.send(calldata(2)).await;
    running.confirm(1).await;
    assert!(outcome.await.unwrap().is_ok());
}
