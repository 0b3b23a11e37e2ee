//! Faults of L1 that last for a while, tested over HTTP.

use super::*;

/// L1 refuses every call for a second, as an overloaded provider does.
#[tokio::test]
async fn an_l1_that_is_busy_or_broken_is_asked_until_it_answers() {
    for status in [429, 500, 503] {
        let running = running(options(), &[]).await;
        let first = running.manager.send(calldata(1)).await;
        running
            .wait("the pool is filled", |l1| l1.pool.len() == 1)
            .await;
        running.l1.lock().status = Some(status);
        let second = running.manager.send(calldata(2)).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        running.l1.lock().status = None;
        running.confirm(2).await;
        assert!(first.await.unwrap().is_ok(), "{status}");
        assert!(second.await.unwrap().is_ok(), "{status}");
    }
}

/// With `max_retries` 0, a single refusal would fail the request. None of these responses is a
/// refusal.
#[tokio::test]
async fn a_limit_of_rate_or_a_broken_answer_is_no_refusal_of_the_transaction() {
    let options = TxOptions {
        max_retries: 0,
        ..options()
    };
    let orders = [Ordered::Limited, Ordered::TooMany, Ordered::Broken];
    let running = running(options, &orders).await;
    let outcome = running.manager.send(calldata(1)).await;
    running.wait("every order", |l1| l1.orders.is_empty()).await;
    running.confirm(1).await;
    assert!(outcome.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_pool_that_forgets_a_transaction_gets_it_again() {
    let running = running(options(), &[]).await;
    let outcome = running.manager.send(calldata(1)).await;
    running
        .wait("the pool is filled", |l1| l1.pool.len() == 1)
        .await;
    running.l1.lock().pool.clear();
    running.confirm(1).await;
    assert!(outcome.await.unwrap().is_ok());
    let sent = running.l1.lock().sent.clone();
    assert_eq!(sent[0].tx_hash(), sent[1].tx_hash(), "unchanged");
}

#[tokio::test]
async fn fees_times_ten_are_paid_by_the_replacement() {
    let options = TxOptions {
        resubmission_timeout: Duration::from_millis(500),
        ..options()
    };
    let running = running(options, &[]).await;
    let outcome = running.manager.send(calldata(1)).await;
    running
        .wait("the pool is filled", |l1| l1.pool.len() == 1)
        .await;
    running.l1.lock().base_fee *= 10;
    let pays = |l1: &FakeL1| {
        let offered = l1.pool.first().map(|tx| tx.max_fee_per_gas());
        offered >= Some(20_000_000_000)
    };
    running.wait("a replacement", pays).await;
    running.confirm(1).await;
    assert!(outcome.await.unwrap().is_ok());
    assert_eq!(running.l1.lock().sent[0].nonce(), 0);
}

/// Attempts to create a transaction are five seconds apart.
#[tokio::test]
async fn an_empty_account_sends_as_soon_as_it_is_filled() {
    let running = running(options(), &[]).await;
    running.l1.lock().is_poor = true;
    let outcome = running.manager.send(calldata(1)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(running.l1.lock().sent.is_empty());
    running.l1.lock().is_poor = false;
    running.confirm(1).await;
    assert!(outcome.await.unwrap().is_ok());
}

#[tokio::test]
async fn each_answer_of_a_pool_is_counted_by_its_label() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let orders = [
        Ordered::Error("txpool is full"),
        Ordered::Error("nonce too low: next nonce 1, tx nonce 0"),
        Ordered::Error("address already reserved"),
        Ordered::Error("already known"),
    ];
    let running = running(options(), &orders).await;
    let outcome = running.manager.send(calldata(1)).await;
    running.wait("every order", |l1| l1.orders.is_empty()).await;
    running.confirm(1).await;
    outcome.await.unwrap().unwrap();
    let text = handle.render();
    let shows = |line: &str| text.lines().any(|shown| shown == line);
    for label in [
        "unknown_error",
        "nonce_too_low",
        "pending_tx_of_incompatible_type",
        "tx_already_known",
    ] {
        let line = format!("test_txmgr_tx_publish_error_count{{error=\"{label}\"}} 1");
        assert!(shows(&line), "{line} in {text}");
    }
    assert!(shows("test_txmgr_tx_type 2"), "{text}");
    assert!(shows("test_txmgr_tx_gas_bump 0"), "{text}");
    assert!(
        shows("test_txmgr_confirm_total{status=\"success\"} 1"),
        "{text}"
    );
}

#[tokio::test]
async fn replacements_are_counted() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let orders = [Ordered::Error("replacement transaction underpriced")];
    let running = running(options(), &orders).await;
    let outcome = running.manager.send(calldata(1)).await;
    running.confirm(1).await;
    outcome.await.unwrap().unwrap();
    let text = handle.render();
    assert!(text.contains("test_txmgr_tx_gas_bump 1"), "{text}");
}
