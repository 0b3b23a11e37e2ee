//! A client with two subscriptions that is cut repeatedly, and resumes after the last event it has
//! seen.

use super::{
    LOGGER, World,
    client::Socket,
    cut::{Cut, OVER_REORG},
    from,
    trail::{HeadTrail, LogTrail},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use std::{pin::pin, sync::Arc, time::Duration};

/// Request ids of the two subscription requests.
const HEADS: u64 = 1;
const LOGS: u64 = 2;

/// A message from the node.
#[derive(Deserialize)]
struct Message<'a> {
    id: Option<u64>,
    result: Option<String>,
    #[serde(borrow)]
    params: Option<EventParams<'a>>,
}

#[derive(Deserialize)]
struct EventParams<'a> {
    subscription: &'a str,
    #[serde(borrow)]
    result: &'a RawValue,
}

/// A client, and the events that it has received.
pub struct Subscriber {
    pub number: usize,
    world: Arc<World>,
    rng: StdRng,
    pub heads: HeadTrail,
    pub logs: LogTrail,
    /// Number of subscriptions that resumed after a block that the reorg had abandoned.
    pub displaced: usize,
    /// Ids of the heads subscription and of the logs subscription.
    subscriptions: [String; 2],
    /// Whether the next cut concerns the reorg, and whether the client has reported that it is
    /// ready.
    meets_reorg: bool,
    is_ready: bool,
}

impl Subscriber {
    pub fn new(number: usize, world: Arc<World>, seed: u64) -> Self {
        Self {
            number,
            rng: StdRng::seed_from_u64(seed),
            heads: HeadTrail::new(world.genesis),
            logs: LogTrail::new(world.genesis),
            displaced: 0,
            subscriptions: Default::default(),
            meets_reorg: false,
            is_ready: false,
            world,
        }
    }

    /// Runs the client until it has seen the end of the chain.
    pub async fn run(mut self) -> Self {
        let cuts = Cut::plan(self.number, &self.world, &mut self.rng);
        for (nth, cut) in cuts.into_iter().enumerate() {
            self.meets_reorg = nth == OVER_REORG;
            self.connection(cut).await;
            if let Cut::OverReorg(_) = cut {
                self.get_ready().await;
                let mut reorged = self.world.reorged.clone();
                let waited = reorged.wait_for(|reorged| *reorged).await;
                waited.expect("the run goes on");
            } else if self.rng.random_bool(0.7) {
                let pause = Duration::from_millis(self.rng.random_range(0..200));
                tokio::time::sleep(pause).await;
            }
        }
        self.connection(Cut::End).await;
        self
    }

    /// Runs one connection until its cut.
    async fn connection(&mut self, cut: Cut) {
        let (heads, logs) = (self.heads.top(), self.logs.resume());
        if *self.world.reorged.borrow() {
            let left = [heads, logs].map(|seen| self.world.old.contains(&seen.hash));
            self.displaced += left.into_iter().filter(|left| *left).count();
        }
        let mut socket = Socket::connect(self.world.address, self.rng.random()).await;
        let params = json!(["newHeads", from(heads)]);
        socket.subscribe(HEADS, params).await;
        let params = json!(["logs", { "address": LOGGER }, from(logs)]);
        socket.subscribe(LOGS, params).await;
        let world = self.world.clone();
        let mut moment = pin!(cut.moment(&world));
        loop {
            if self.meets_reorg && self.heads.top() == world.old_tip && self.has_all_logs() {
                self.get_ready().await;
            }
            if self.is_cut(cut) {
                return;
            }
            tokio::select! {
                message = socket.next() => self.on_message(message),
                () = &mut moment => return,
            }
        }
    }

    /// Whether all logs of the client's newest head have arrived.
    fn has_all_logs(&self) -> bool {
        self.logs.top() == self.heads.top() && self.logs.is_whole()
    }

    /// Reports once that this client is ready for the reorg.
    async fn get_ready(&mut self) {
        if !self.is_ready {
            self.is_ready = true;
            self.world.ready.send(()).await.expect("the run goes on");
        }
    }

    fn is_cut(&self, cut: Cut) -> bool {
        let (head, world) = (self.heads.top(), &self.world);
        match cut {
            Cut::Asked => true,
            Cut::Head(number) | Cut::OverReorg(number) => head.number >= number,
            Cut::Reorg(_) => false,
            // A client that received no logs of the abandoned blocks never gets a removal.
            Cut::Removed(count) => {
                self.logs.removed >= count || self.logs.top().number > world.old_tip.number
            }
            Cut::NewHead(number) => head.number >= number && !world.old.contains(&head.hash),
            Cut::End => head == world.tip && self.has_all_logs(),
        }
    }

    fn on_message(&mut self, message: Result<String, String>) {
        let number = self.number;
        let text =
            message.unwrap_or_else(|end| panic!("the connection of {number} has ended: {end}"));
        let message: Message<'_> = serde_json::from_str(&text).expect(&text);
        if let Some(id) = message.id {
            let subscription = message
                .result
                .unwrap_or_else(|| panic!("{number} cannot subscribe: {text}"));
            self.subscriptions[usize::from(id == LOGS)] = subscription;
            return;
        }
        let event = message.params.expect("an event");
        let [heads, logs] = &self.subscriptions;
        if event.subscription == heads {
            self.heads.add(event.result.get(), &self.world);
        } else {
            assert_eq!(event.subscription, logs);
            self.logs.add(event.result.get(), &self.world);
        }
    }
}
