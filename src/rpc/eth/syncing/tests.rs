//! The events of the subscription `syncing`, with checks that the test triggers.

use super::*;
use futures::{FutureExt, channel::mpsc, stream::BoxStream};
use serde_json::value::RawValue;
use std::sync::atomic::{AtomicU64, Ordering};

/// An event of op-geth v1.101609.2 in the middle of a synchronisation.
const EVENT: &str = r#"{"syncing":true,"status":{"StartingBlock":10,"CurrentBlock":200,"HighestBlock":500,"PulledStates":0,"KnownStates":0,"SyncedAccounts":0,"SyncedAccountBytes":0,"SyncedBytecodes":0,"SyncedBytecodeBytes":0,"SyncedStorage":0,"SyncedStorageBytes":0,"HealedTrienodes":0,"HealedTrienodeBytes":0,"HealedBytecodes":0,"HealedBytecodeBytes":0,"HealingTrienodes":0,"HealingBytecode":0,"TxIndexFinishedBlocks":0,"TxIndexRemainingBlocks":0,"StateIndexRemaining":0}}"#;

const GAP: SyncStatus = SyncStatus {
    starting: 10,
    highest: 500,
};

struct Node {
    status: watch::Sender<Option<SyncStatus>>,
    /// The node's receiver of [`RpcContext::syncing`], which has seen no value.
    unseen: watch::Receiver<Option<SyncStatus>>,
    head: Arc<AtomicU64>,
}

impl Node {
    fn new(head: u64) -> Self {
        let status = watch::Sender::new(None);
        let unseen = status.subscribe();
        Self {
            status,
            unseen,
            head: Arc::new(AtomicU64::new(head)),
        }
    }

    fn set(&self, head: u64, status: Option<SyncStatus>) {
        self.head.store(head, Ordering::Relaxed);
        self.status.send_replace(status);
    }

    fn subscribe(&self) -> Subscriber {
        let (checks, receiver) = mpsc::unbounded();
        let head = self.head.clone();
        let current = move || head.load(Ordering::Relaxed);
        Subscriber {
            checks,
            events: events(self.unseen.clone(), current, receiver).boxed(),
        }
    }
}

struct Subscriber {
    checks: mpsc::UnboundedSender<()>,
    events: BoxStream<'static, Box<RawValue>>,
}

impl Subscriber {
    fn pending(&mut self) -> Option<Box<RawValue>> {
        self.events.next().now_or_never().map(Option::unwrap)
    }

    fn check(&mut self) -> Option<String> {
        self.checks.unbounded_send(()).unwrap();
        self.pending().map(|event| event.get().to_owned())
    }
}

#[test]
fn a_subscriber_gets_an_object_at_each_check_and_once_false() {
    let node = Node::new(10);
    let mut early = node.subscribe();
    assert_eq!(early.check(), None, "no synchronisation has begun");
    node.set(200, Some(GAP));
    assert!(early.pending().is_none(), "not before the next check");
    assert_eq!(early.check().as_deref(), Some(EVENT));
    let mut late = node.subscribe();
    assert!(late.pending().is_none(), "nor at the subscription");
    assert_eq!(late.check().as_deref(), Some(EVENT));
    assert_eq!(early.check().as_deref(), Some(EVENT), "also without change");

    // The head reaches the highest block before the status is cleared.
    node.set(500, Some(GAP));
    assert_eq!(early.check().as_deref(), Some("false"));
    node.set(500, None);
    assert_eq!(late.check().as_deref(), Some("false"));
    assert_eq!((early.check(), late.check()), (None, None), "once");
    let mut last = node.subscribe();
    assert_eq!(last.pending().unwrap().get(), "false", "at once");
    assert_eq!(last.check(), None);

    // Unlike in geth, a later synchronisation is reported, too.
    node.set(200, Some(GAP));
    assert_eq!(last.check().as_deref(), Some(EVENT));
    node.set(500, None);
    assert_eq!(last.check().as_deref(), Some("false"));
}

#[test]
fn a_synchronisation_between_two_checks_has_an_end() {
    let node = Node::new(10);
    let mut subscriber = node.subscribe();
    assert_eq!(subscriber.check(), None);
    node.set(200, Some(GAP));
    node.set(500, None);
    assert_eq!(subscriber.check().as_deref(), Some("false"));
}
