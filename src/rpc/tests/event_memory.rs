//! Memory of events: until an event is sent, and while clients do not read.

use super::{
    Api,
    chain::{CONTRACT, Chain, legacy},
    heads::subscribe_with,
};
use crate::rpc::{
    error::reply,
    memory::{Allowance, EventMemory, RequestMemory, ResponseMemory},
    responder::{ReceivedMessage, Responder},
    subscription::{EventStream, SubscriptionEnd, SubscriptionEvent},
};
use alloy_primitives::{Bytes, Log};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use starling_proto::fork::Fork;
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};

/// Memory of events in KiB.
const MEMORY: usize = 256;

/// A chain, and the memory of its events.
fn chain() -> (Chain, Arc<Semaphore>) {
    let memory = Arc::new(Semaphore::new(MEMORY));
    let bound = memory.clone();
    let chain = Chain::new(Fork::Canyon).with(move |context| context.bounds.events = bound);
    (chain, memory)
}

async fn subscribe(chain: &Chain, kind: &str, params: Value) -> EventStream {
    subscribe_with(chain, kind, &params).await.unwrap()
}

/// Adds a block whose logs have `kib` KiB as JSON each, or slightly more.
fn add_logs(chain: &mut Chain, count: usize, kib: usize) {
    let data = Bytes::from(vec![1; 512 * kib]);
    let log = Log::new_unchecked(CONTRACT, vec![], data);
    chain.add(&[(legacy(1), vec![log; count])]);
}

#[tokio::test]
async fn each_event_of_a_batch_holds_its_memory_until_it_has_been_sent() {
    let (mut chain, memory) = chain();
    let mut logs = subscribe(&chain, "logs", json!([{}])).await;
    add_logs(&mut chain, 3, 20);
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(logs.next().await.unwrap().unwrap());
    }
    let part = |event: &SubscriptionEvent| {
        let [shared, connection] = event.held.as_ref().unwrap().parts();
        assert_eq!(shared, connection);
        shared
    };
    for event in &taken {
        assert!((20..=21).contains(&part(event)), "{}", part(event));
    }
    drop(logs);
    let held: usize = taken.iter().map(part).sum();
    assert_eq!(memory.available_permits(), MEMORY - held);
    taken.clear();
    assert_eq!(memory.available_permits(), MEMORY);
}

#[tokio::test]
async fn heads_continue_while_the_memory_of_events_is_used_up() {
    let (mut chain, memory) = chain();
    let seen = chain.head();
    for _ in 0..60 {
        chain.add(&[]);
    }
    let from = json!({ "from": { "number": "0x0", "hash": seen.hash } });
    let mut heads = subscribe(&chain, "newHeads", json!([from])).await;
    let mut logs = subscribe(&chain, "logs", json!([{}])).await;
    let _all = memory.acquire_many(MEMORY as u32).await.unwrap();
    for number in 1..=60 {
        let head = heads.next().await.unwrap().unwrap();
        let head: Value = serde_json::from_str(head.get()).unwrap();
        assert_eq!(head["number"], json!(format!("{number:#x}")));
    }
    add_logs(&mut chain, 1, 20);
    let end = logs.next().await.unwrap().err();
    assert_eq!(end, Some(SubscriptionEnd::Overloaded));
}

/// Logs of some 240 KiB for each of 20 subscriptions.
#[tokio::test]
async fn all_subscriptions_of_a_client_that_does_not_read_share_the_memory_of_its_events() {
    const FREE: usize = 16 << 10;
    let memory = Arc::new(Semaphore::new(FREE));
    let bound = memory.clone();
    let mut chain = Chain::new(Fork::Canyon).with(move |context| context.bounds.events = bound);
    let allowance = Allowance::new(20, 1 << 20, 1 << 20, 1 << 20);
    let (queue, mut messages) = mpsc::channel(32);
    let api = std::mem::take(&mut chain.api);
    let responder = Responder::new(&api, &allowance, queue);
    let request =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["logs", {}] });
    let requests = json!(vec![request; 20]).to_string().into_bytes();
    let requests = ReceivedMessage::new(requests, RequestMemory::default());
    let client = async {
        messages.recv().await.unwrap();
        add_logs(&mut chain, 12, 20);
        let held = || FREE - memory.available_permits();
        while held() < 900 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(held() <= 1024, "{} KiB", held());
        for _ in 0..20 * 12 {
            messages.recv().await.unwrap();
            assert!(held() <= 1024, "{} KiB", held());
        }
    };
    tokio::select! {
        _ = responder.serve(stream::iter([requests]).chain(stream::pending())) => unreachable!(),
        () = client => {}
    }
    assert_eq!(memory.available_permits(), FREE);
}

/// A batch of 3 MiB, one event of which is larger than the memory of the connection.
#[tokio::test]
async fn a_batch_that_is_larger_than_its_reservation_waits_for_all_earlier_events() {
    let shared = Arc::new(Semaphore::new(8192));
    let take = |kib| shared.clone().try_acquire_many_owned(kib).unwrap();
    let memory = EventMemory::default();
    let small = memory.reserve(256).await.charge(take(100)).await;
    assert_eq!(small.parts(), [100, 100]);
    let mut large = pin!(async { memory.reserve(256).await.charge(take(3072)).await });
    let mut event = pin!(memory.admit(take(2000).into()));
    let mut next = pin!(memory.reserve(256));
    assert!(futures::poll!(&mut large).is_pending());
    assert!(futures::poll!(&mut event).is_pending());
    assert!(futures::poll!(&mut next).is_pending());
    drop(small);
    // The connection's part of the batch is released with its last events.
    let mut large = large.await;
    let events = [512, 2048, 512].map(|kib| large.split(kib).unwrap());
    let parts = events.each_ref().map(ResponseMemory::parts);
    assert_eq!(parts, [[512, 0], [2048, 512], [512, 512]]);
    assert!(futures::poll!(&mut event).is_pending());
    drop(events);
    assert_eq!(event.await.parts(), [2000, 1024]);
    next.await;
    assert_eq!(shared.available_permits(), 8192);
}

/// The events of one connection have 1 MiB, and one larger event waits until it is alone.
#[tokio::test]
async fn a_client_that_does_not_read_holds_the_memory_of_few_large_events() {
    let memory = Arc::new(Semaphore::new(16 << 10));
    let taken = memory.clone();
    let mut api = Api::default();
    api.insert_subscription("toy", "large", move |_| {
        let sizes = [400, 400, 400, 2_000, 10];
        let taken = taken.clone();
        let events = sizes.map(move |kib| {
            let held = taken.clone().try_acquire_many_owned(kib).unwrap();
            Ok(SubscriptionEvent::large(reply(kib).unwrap(), held))
        });
        Ok(stream::iter(events).chain(stream::pending()).boxed())
    });
    let allowance = Allowance::new(1, 1 << 20, 1 << 20, 1 << 20);
    let (queue, mut messages) = mpsc::channel(32);
    let responder = Responder::new(&api, &allowance, queue);
    let request =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "toy_subscribe", "params": ["large"] });
    let request = ReceivedMessage::new(request.to_string().into_bytes(), RequestMemory::default());
    let client = async {
        messages.recv().await.unwrap();
        let mut queued = Vec::new();
        for waiting in [2, 1, 1] {
            for _ in 0..waiting {
                queued.push(messages.recv().await.unwrap());
            }
            let more = timeout(Duration::from_millis(100), messages.recv()).await;
            assert!(more.is_err(), "{} events wait", queued.len());
            if waiting == 2 {
                queued.remove(0);
            } else {
                queued.clear();
            }
        }
        assert_eq!(
            messages
                .recv()
                .await
                .map(|it| it.text.contains(r#""result":10"#)),
            Some(true)
        );
    };
    tokio::select! {
        _ = responder.serve(stream::iter([request]).chain(stream::pending())) => unreachable!(),
        () = client => {}
    }
    assert_eq!(memory.available_permits(), 16 << 10);
}
