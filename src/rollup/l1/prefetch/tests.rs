//! Tests which blocks are requested, and that all blocks arrive whatever fails.

use super::{
    super::{
        L1BlockAt, L1Client, L1Config, Watched,
        fake::{FakeL1, chain},
    },
    *,
};
use alloy_primitives::Address;
use proptest::prelude::*;
use std::time::Duration;

fn range(first: u64, count: u64) -> Option<FetchRange> {
    Some(FetchRange { first, count })
}

#[test]
fn requests_grow_with_small_blocks_and_stay_few() {
    let mut plan = FetchPlan::new(10, 2, 20);
    assert_eq!(
        plan.next_request(1000, 0, &mut 0),
        range(10, 1),
        "sizes are not known yet"
    );
    assert_eq!(plan.next_request(1000, 0, &mut 0), range(11, 1));
    assert_eq!(
        plan.next_request(1000, 0, &mut 0),
        None,
        "two are in flight"
    );
    for first in [10, 11] {
        plan.done(FetchRange { first, count: 1 }, 1, 1000);
    }
    assert_eq!(plan.next_request(1000, 0, &mut 0), range(12, 1));
    for _ in 0..20 {
        plan.done(range(12, 1).unwrap(), 1, 1000);
        plan.in_flight += 1;
        plan.blocks_in_flight += 1;
    }
    assert_eq!(plan.next_request(1000, 0, &mut 0), range(13, 20));
    plan.done(range(13, 20).unwrap(), 20, 20_000);
    assert_eq!(
        plan.next_request(35, 0, &mut 0),
        range(33, 3),
        "not above the head"
    );
    plan.done(range(33, 3).unwrap(), 3, 3_000_000);
    assert_eq!(
        plan.next_request(1000, READY_BYTES, &mut 0),
        None,
        "nothing ahead while too much waits"
    );
    assert_eq!(
        plan.next_request(1000, 0, &mut 0).unwrap().count,
        4,
        "fewer, since they are larger now"
    );
    plan.wanted = 5000;
    plan.next = 5000 + AHEAD;
    assert_eq!(
        plan.next_request(u64::MAX, 0, &mut 0),
        None,
        "not too far ahead"
    );
}

proptest! {
    /// Every block up to the head is requested until it arrives, whatever part of each request
    /// succeeds.
    #[test]
    fn no_block_is_lost(parts in proptest::collection::vec(0u64..25, 1..60), head in 0u64..200) {
        let mut plan = FetchPlan::new(0, 3, 20);
        let mut came = std::collections::BTreeSet::new();
        let mut in_flight = std::collections::VecDeque::new();
        let parts = parts.into_iter().chain([20]).cycle();
        for part in parts.take(5000) {
            let mut retries = plan.missing.len();
            while let Some(range) = plan.next_request(head, 0, &mut retries) {
                in_flight.push_back(range);
            }
            prop_assert!(in_flight.len() <= 3);
            let Some(range) = in_flight.pop_front() else { break };
            let part = part.min(range.count);
            came.extend(range.first..range.first + part);
            plan.done(range, part, 100 * part as usize);
        }
        prop_assert_eq!(came, (0..=head).collect());
    }
}

proptest! {
    /// Every block arrives, however large its neighbours are, from an endpoint that fails requests
    /// for several blocks above its size limit.
    #[test]
    fn requests_shrink_until_their_answers_fit(
        sizes in proptest::collection::vec(prop_oneof![100usize..50_000, 1_000_000..70_000_000usize], 1..200),
        limit in 100_000usize..30_000_000,
    ) {
        let mut plan = FetchPlan::new(0, 10, 20);
        let head = sizes.len() as u64 - 1;
        let mut came = std::collections::BTreeSet::new();
        let mut in_flight = std::collections::VecDeque::new();
        for request in 0.. {
            prop_assert!(request <= 3 * sizes.len(), "{request} requests");
            let mut retries = plan.missing.len();
            while let Some(range) = plan.next_request(head, 0, &mut retries) {
                in_flight.push_back(range);
            }
            let Some(range) = in_flight.pop_front() else { break };
            let blocks = range.first as usize..(range.first + range.count) as usize;
            let bytes: usize = sizes[blocks].iter().sum();
            if range.count > 1 && bytes > limit {
                plan.failed(range);
                let halves = plan.missing.iter().filter(|part| range.contains(part.first));
                prop_assert!(halves.clone().count() >= 2);
            } else {
                came.extend(range.first..range.first + range.count);
                plan.done(range, range.count, bytes);
            }
        }
        prop_assert_eq!(came, (0..=head).collect());
    }
}

#[test]
fn expected_answers_in_flight_are_bounded() {
    let mut plan = FetchPlan::new(0, 100, 20);
    plan.average = 10 << 20;
    let mut count = 0;
    while let Some(range) = plan.next_request(1000, 0, &mut 0) {
        assert_eq!(range.count, 1);
        count += 1;
    }
    assert_eq!(count, 3, "30 MiB");
    plan.average = 100 << 20;
    for first in 0..3 {
        assert_eq!(plan.next_request(1000, 0, &mut 0), None);
        plan.done(FetchRange { first, count: 1 }, 0, 0);
    }
    assert!(plan.next_request(1000, 0, &mut 3).is_some(), "one always");
}

async fn fake(count: u64) -> (FakeL1, Vec<alloy_consensus::Header>) {
    let l1 = FakeL1::start().await;
    let headers = chain(0, 100, count, 1);
    l1.set(&headers);
    (l1, headers)
}

fn prefetcher(l1: &FakeL1) -> Prefetcher {
    let client = L1Client::new(&L1Config::new(l1.url())).unwrap();
    let [inbox, portal, system_config] = [1, 2, 3].map(Address::with_last_byte);
    let watched = Watched {
        inbox,
        portal,
        system_config,
    };
    Prefetcher::new(L1Blocks::new(client, watched, 10), 10, 20)
}

#[tokio::test]
async fn blocks_come_in_order_and_once() {
    let (l1, headers) = fake(100).await;
    let mut prefetcher = prefetcher(&l1);
    for (number, header) in (0..).zip(&headers) {
        let data = prefetcher.next(number, 99).await.unwrap().unwrap();
        assert_eq!(data.block.hash, header.hash_slow());
        let again = prefetcher.next(number, 99).await.unwrap().unwrap();
        assert_eq!(
            again.block.hash, data.block.hash,
            "until the next is requested"
        );
    }
    assert_eq!(l1.calls("eth_getBlockByNumber"), 100);
    assert_eq!(l1.calls("eth_getBlockReceipts"), 0);
    assert_eq!(prefetcher.next(100, 99).await.unwrap(), None);
    // Requesting an earlier block drops the later ones, since a reorg may have replaced them.
    let replaced = chain(0, 100, 100, 2);
    l1.set(&replaced);
    let data = prefetcher.next(40, 99).await.unwrap().unwrap();
    assert_eq!(data.block.hash, replaced[40].hash_slow());
    prefetcher.restart(41);
    assert!(prefetcher.next(41, 99).await.unwrap().is_some());
}

#[tokio::test]
async fn slow_answers_are_waited_for_together() {
    let (l1, _) = fake(200).await;
    l1.state.lock().delay = Duration::from_millis(200);
    let mut prefetcher = prefetcher(&l1);
    let begin = std::time::Instant::now();
    for number in 0..200 {
        assert!(prefetcher.next(number, 199).await.unwrap().is_some());
    }
    // With one request per block, one after the other, this would take forty seconds.
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn a_failure_is_returned_for_the_wanted_block_and_repaired() {
    let (l1, headers) = fake(60).await;
    let mut prefetcher = prefetcher(&l1);
    assert!(prefetcher.next(0, 59).await.unwrap().is_some());
    let (mut number, mut failures) = (1, 0);
    while number < 60 {
        if number % 7 == 3 && failures <= number / 7 {
            let refused = Err((-32000, "made to fail".into()));
            l1.state
                .lock()
                .answers
                .insert("eth_getBlockByNumber", refused);
            prefetcher.restart(number);
        } else {
            l1.state.lock().answers.clear();
        }
        match prefetcher.next(number, 59).await {
            Ok(Some(data)) => {
                assert_eq!(data.block.hash, headers[number as usize].hash_slow());
                number += 1;
            }
            Ok(None) => panic!("block {number} is below the head"),
            Err(error) => {
                assert!(error.to_string().contains("made to fail"), "{error}");
                failures += 1;
            }
        }
    }
    assert!(failures > 3, "{failures}");
    let blocks = &prefetcher.blocks;
    assert!(blocks.get(L1BlockAt::Number(59)).await.unwrap().is_some());
}

#[tokio::test]
async fn blocks_of_all_ended_requests_are_ready_before_they_are_wanted() {
    let (l1, _) = fake(200).await;
    let mut prefetcher = prefetcher(&l1);
    assert!(prefetcher.next(0, 199).await.unwrap().is_some());
    // The next block is already fetched at each of these calls, so no call waits for a request.
    let mut ready = 0;
    for _ in 0..100 {
        assert!(prefetcher.next(1, 199).await.unwrap().is_some());
        ready = prefetcher.ready_from(1).count();
        if ready > 100 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(ready > 100, "{ready} blocks are ready");
}
