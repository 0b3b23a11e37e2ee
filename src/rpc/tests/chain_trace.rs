//! `debug_subscribe("traceChain", …)`: the memory of its events, its price, and blocks that cannot be
//! traced.

use super::{
    Api,
    chain::Chain,
    debug::{chain, looping},
};
use crate::rpc::{
    access::Access,
    error::reply,
    memory::{Allowance, RequestMemory},
    params::Args,
    responder::{ReceivedMessage, Responder},
    subscription::{EventStream, Subscriber, SubscriptionEvent},
};
use alloy_primitives::B256;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};

async fn subscribe(chain: &Chain, params: Value) -> EventStream {
    subscribe_as(Subscriber::default(), chain, params).await
}

async fn subscribe_as(subscriber: Subscriber, chain: &Chain, params: Value) -> EventStream {
    let params = serde_json::value::to_raw_value(&params).unwrap();
    let args = Args::parse(Some(&params)).unwrap();
    let subscribe = chain.api.subscription("debug", "traceChain").unwrap();
    subscribe(args, subscriber).await.unwrap()
}

fn json_of(event: &SubscriptionEvent) -> Value {
    serde_json::from_str(event.get()).unwrap()
}

#[tokio::test]
async fn the_next_block_is_traced_when_there_is_memory_for_its_event() {
    let memory = Arc::new(Semaphore::new(1024 + 256));
    let bound = memory.clone();
    let mut chain = chain(|context| {
        context.bounds.trace_bytes = 1 << 20;
        context.bounds.chain_traces = bound;
    })
    .await;
    for _ in 0..2 {
        chain.add(&[(looping(B256::ZERO, 1_000), vec![])]);
    }
    let mut events = subscribe(&chain, json!(["0x1", "0x3"])).await;
    let first = events.next().await.unwrap().unwrap();
    assert_eq!(json_of(&first)["block"], "0x2");
    // The event holds memory for its size, and has released the rest of its reservation.
    let free = memory.available_permits();
    assert_eq!(free, 1024 + 256 - first.get().len().div_ceil(1024));
    assert!(free < 1024, "{free}");
    let early = timeout(Duration::from_millis(200), events.next()).await;
    assert!(early.is_err(), "there is no memory for a second event");
    drop(first);
    let second = events.next().await.unwrap().unwrap();
    assert_eq!(json_of(&second)["block"], "0x3");
    drop((second, events));
    assert_eq!(memory.available_permits(), 1024 + 256);
}

#[tokio::test]
async fn each_block_is_paid_for_by_the_budget_of_its_caller() {
    let limits = r#"
        [costs]
        debug_traceBlockByNumber = 10000
        [anonymous]
        per-second = 1
        burst = 20000
    "#;
    let access = Arc::new(Access::parse(limits).unwrap());
    let cost = || access.usage()["anonymous"].cost;
    let client = |address: [u8; 4]| Subscriber {
        caller: Some(access.caller(None, address.into()).unwrap()),
        ..Subscriber::default()
    };
    let mut chain = chain(|_| {}).await;
    for _ in 0..3 {
        chain.add(&[]);
    }
    let mut events = subscribe_as(client([192, 0, 2, 1]), &chain, json!(["0x0", "0x4"])).await;
    for expected in [10_000, 20_000] {
        events.next().await.unwrap().unwrap();
        assert_eq!(cost(), expected);
    }
    let late = timeout(Duration::from_millis(100), events.next()).await;
    assert!(late.is_err(), "the third block waits for its price");
    // Callers without a key share one budget.
    let mut others = subscribe_as(client([192, 0, 2, 2]), &chain, json!(["0x0", "0x1"])).await;
    let late = timeout(Duration::from_millis(100), others.next()).await;
    assert!(late.is_err(), "another address has no budget of its own");
    assert_eq!(cost(), 20_000);
}

#[tokio::test]
async fn an_event_holds_its_memory_until_it_has_been_sent() {
    let memory = Arc::new(Semaphore::new(3));
    let taken = memory.clone();
    let mut api = Api::default();
    api.insert_subscription("toy", "large", move |_| {
        let held = taken.clone().try_acquire_many_owned(3).unwrap();
        let event = SubscriptionEvent::large(reply(7).unwrap(), held);
        Ok(stream::iter([Ok(event)]).chain(stream::pending()).boxed())
    });
    let allowance = Allowance::new(1, 1 << 20, 1 << 20, 1 << 20);
    let (queue, mut messages) = mpsc::channel(4);
    let responder = Responder::new(&api, &allowance, queue);
    let request =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "toy_subscribe", "params": ["large"] });
    let request = ReceivedMessage::new(request.to_string().into_bytes(), RequestMemory::default());
    let client = async {
        assert!(messages.recv().await.unwrap().held.is_none());
        let event = messages.recv().await.unwrap();
        assert!(event.text.contains(r#""result":7"#), "{}", event.text);
        assert_eq!(memory.available_permits(), 0);
        drop(event);
        assert_eq!(memory.available_permits(), 3);
    };
    tokio::select! {
        _ = responder.serve(stream::iter([request]).chain(stream::pending())) => unreachable!(),
        () = client => {}
    }
}

#[tokio::test]
async fn a_block_that_cannot_be_traced_has_an_event_that_says_why() {
    let mut chain = chain(|context| context.bounds.trace_bytes = 1 << 20).await;
    let large = chain.add(&[(looping(B256::ZERO, 2_000), vec![])]);
    chain.add(&[]);
    let mut events = subscribe(&chain, json!(["0x1", "0x3"])).await;
    let event = json_of(&events.next().await.unwrap().unwrap());
    let error = event["error"].as_str().unwrap();
    assert!(
        error.starts_with("the trace is larger than 1 MB"),
        "{error}"
    );
    assert_eq!(event["hash"], json!(large.payload.hash));
    assert_eq!(
        (&event["block"], &event["traces"]),
        (&json!("0x2"), &json!([]))
    );
    let next = json_of(&events.next().await.unwrap().unwrap());
    assert_eq!(next["block"], "0x3");
    assert_eq!(next["traces"][0]["result"]["failed"], false);
    let silent = timeout(Duration::from_millis(100), events.next()).await;
    assert!(silent.is_err(), "the end of the range ends no subscription");
}
