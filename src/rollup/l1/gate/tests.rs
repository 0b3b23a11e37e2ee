//! Urgent requests beside permanently waiting bulk requests, with a simulated clock.

use super::*;

fn gate(max_concurrency: usize) -> L1Gate {
    let config = L1Config {
        max_concurrency,
        ..L1Config::new("")
    };
    L1Gate::new(&config, Instant::now())
}

/// For ten minutes a node fetches blocks in batches of 20, at ten calls per second, with one urgent
/// call every second.
#[test]
fn bulk_calls_do_not_delay_urgent_ones() {
    let start = Instant::now();
    let mut rate = RateLimit::new(10.0, 20, start).unwrap();
    let (mut sent, mut slowest) = (0, Duration::ZERO);
    let mut retry_at = start;
    for tick in 0..6000u32 {
        let now = start + Duration::from_millis(100) * tick;
        if tick % 10 == 5 {
            let RateStep::Send(wait) = take(&mut rate, Urgency::Urgent, 1, now) else {
                panic!("urgent calls are reserved at once");
            };
            slowest = slowest.max(wait);
        }
        if now >= retry_at {
            match take(&mut rate, Urgency::Bulk, 20, now) {
                RateStep::Send(_) => sent += 20,
                RateStep::Retry(wait) => retry_at = now + wait,
            }
        }
    }
    assert!(slowest <= Duration::from_millis(200), "{slowest:?}");
    // Ten minutes allow 6,000 calls, of which 600 are urgent.
    assert!(sent >= 4_000, "{sent} bulk calls");
}

#[tokio::test]
async fn bulk_requests_leave_a_permit() {
    for (max_concurrency, bulk) in [(2, 1), (10, 9), (1000, MAX_BULK_REQUESTS)] {
        let gate = gate(max_concurrency);
        let mut held = vec![];
        for _ in 0..bulk {
            held.push(gate.enter(Urgency::Bulk, 20).await.unwrap());
        }
        let one_more = gate.enter(Urgency::Bulk, 20);
        tokio::pin!(one_more);
        assert!(futures::poll!(&mut one_more).is_pending());
        let urgent = gate.enter(Urgency::Urgent, 1);
        tokio::pin!(urgent);
        let urgent = futures::poll!(urgent);
        assert!(urgent.is_ready(), "{max_concurrency}");
        held.pop();
        assert!(one_more.await.is_ok());
    }
}

#[tokio::test]
async fn a_request_that_waits_for_the_rate_holds_no_permit() {
    let config = L1Config {
        max_concurrency: 1,
        max_batch: 1,
        rate_limit: 0.001,
        ..L1Config::new("")
    };
    let gate = L1Gate::new(&config, Instant::now());
    drop(gate.enter(Urgency::Bulk, 1).await.unwrap());
    let waiting = gate.enter(Urgency::Urgent, 1);
    tokio::pin!(waiting);
    assert!(futures::poll!(&mut waiting).is_pending());
    assert_eq!(gate.requests.available_permits(), 1);
}

#[tokio::test]
async fn one_large_answer_at_a_time() {
    let gate = gate(10);
    let first = gate.enter_large().await.unwrap();
    let second = gate.enter_large();
    tokio::pin!(second);
    assert!(futures::poll!(&mut second).is_pending());
    drop(first);
    assert!(second.await.is_ok());
}
