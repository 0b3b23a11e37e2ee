//! Heads by subscription, and by polling if a subscription delivers none.

use super::{
    super::{
        L1Config,
        fake::{FakeL1, State, block, block_json, chain},
    },
    *,
};
use alloy_consensus::Header;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::json;
use std::sync::Arc;

struct Following {
    l1: Arc<FakeL1>,
    heads: watch::Receiver<L1Heads>,
    _stop: tokio_util::sync::DropGuard,
}

/// Follows the head with this poll interval, and neither the safe nor the finalized block.
async fn following(headers: &[Header], scheme: &str, poll: Duration) -> Following {
    following_epochs(headers, scheme, poll, Duration::ZERO).await
}

/// Follows the head with the poll interval `poll`, and the safe and finalized blocks with the
/// interval `epoch`.
async fn following_epochs(
    headers: &[Header],
    scheme: &str,
    poll: Duration,
    epoch: Duration,
) -> Following {
    let l1 = Arc::new(FakeL1::start().await);
    l1.set(headers);
    let client = L1Client::new(&L1Config::new(l1.url().replace("http", scheme))).unwrap();
    let (sender, heads) = watch::channel(L1Heads::default());
    let token = CancellationToken::new();
    tokio::spawn(follow_heads(client, sender, poll, epoch, token.clone()));
    Following {
        l1,
        heads,
        _stop: token.drop_guard(),
    }
}

impl Following {
    async fn until(&mut self, header: &Header) {
        let wanted = Some(block(header));
        let reached = self.heads.wait_for(|heads| heads.head == wanted);
        tokio::time::timeout(Duration::from_secs(20), reached)
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn a_subscription_brings_heads_without_polls() {
    let headers = chain(5, 100, 4, 1);
    let mut following = following(&headers[..1], "ws", Duration::from_secs(3600)).await;
    following.until(&headers[0]).await;
    for header in &headers[1..] {
        following.l1.new_head.send_replace(block_json(header));
        following.until(header).await;
    }
    // A head may move back. A false header is not used, but causes a poll.
    following.l1.new_head.send_replace(block_json(&headers[2]));
    following.until(&headers[2]).await;
    assert_eq!(following.l1.calls("eth_getBlockByNumber"), 1);
    following.l1.new_head.send_replace(forged(&headers[3]));
    following.until(&headers[0]).await;
    assert_eq!(following.l1.calls("eth_getBlockByNumber"), 2);
}

fn forged(header: &Header) -> serde_json::Value {
    let mut forged = block_json(header);
    forged["timestamp"] = json!("0x1");
    forged
}

#[tokio::test]
async fn a_subscription_of_unverifiable_headers_does_not_freeze_the_head() {
    let headers = chain(5, 100, 60, 1);
    let poll = Duration::from_millis(100);
    let mut following = following(&headers[..1], "ws", poll).await;
    following.until(&headers[0]).await;
    // Headers arrive so often that all polls would be skipped.
    let forge = {
        let l1 = following.l1.clone();
        let false_head = forged(&headers[0]);
        tokio::spawn(async move {
            loop {
                l1.new_head.send_replace(false_head.clone());
                tokio::time::sleep(poll / 2).await;
            }
        })
    };
    for count in [2, 3, 60] {
        tokio::time::sleep(4 * poll).await;
        following.l1.set(&headers[..count]);
        following.until(&headers[count - 1]).await;
    }
    // The subscription has been dropped, so headers no longer cause polls.
    let polls = following.l1.calls("eth_getBlockByNumber");
    tokio::time::sleep(10 * poll).await;
    let more = following.l1.calls("eth_getBlockByNumber") - polls;
    assert!(more <= 12, "{more} polls");
    forge.abort();
}

#[tokio::test]
async fn a_silent_subscription_is_replaced_by_polls() {
    let headers = chain(5, 100, 3, 1);
    let mut following = following(&headers[..1], "ws", Duration::from_millis(500)).await;
    following.until(&headers[0]).await;
    following.l1.new_head.send_replace(block_json(&headers[1]));
    following.until(&headers[1]).await;
    following.l1.set(&headers);
    following.until(&headers[2]).await;
}

#[tokio::test]
async fn polled_heads_go_back_with_l1_and_epochs_can_be_switched_off() {
    let headers = chain(5, 100, 3, 1);
    let mut following = following(&headers, "http", Duration::from_millis(20)).await;
    following.until(&headers[2]).await;
    following.l1.set(&headers[..1]);
    following.until(&headers[0]).await;
    assert_eq!(following.heads.borrow().finalized, None);
}

#[tokio::test]
async fn a_head_that_goes_back_is_recorded_with_its_depth() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let headers = chain(5, 100, 3, 1);
    let mut following = following(&headers, "http", Duration::from_millis(20)).await;
    following.until(&headers[2]).await;
    following.l1.set(&headers[..1]);
    following.until(&headers[0]).await;
    let text = recorder.handle().render();
    let depth = "op_node_default_l1_reorg_depth_sum 2";
    assert!(text.lines().any(|line| line == depth), "{text}");
}

/// Requests for the safe head run into their timeout.
#[tokio::test]
async fn a_safe_head_that_is_not_served_holds_up_no_other_head() {
    let headers = chain(5, 100, 6, 1);
    let (hour, often) = (Duration::from_secs(3600), Duration::from_millis(50));
    let mut following = following_epochs(&headers[..1], "ws", hour, often).await;
    following.until(&headers[0]).await;
    let withhold = |state: &mut State| {
        state.silent = Some("safe");
        let finalized = block_json(&headers[0]);
        state.tagged.insert("finalized", finalized);
    };
    withhold(&mut following.l1.state.lock());
    tokio::time::sleep(10 * often).await;
    let started = Instant::now();
    for header in &headers[1..] {
        following.l1.new_head.send_replace(block_json(header));
        following.until(header).await;
    }
    let taken = started.elapsed();
    assert!(taken < Duration::from_secs(5), "{taken:?}");
    assert_eq!(following.heads.borrow().finalized, Some(block(&headers[0])));
}
