//! Gossip checks, off the swarm's task: each runs on a blocking thread, the caches of seen blocks and the signers live here.
//!
//! What can overload it: messages faster than they can be checked. At most [`PER_TOPIC`] of strangers run at once for a topic and
//! [`PER_PEER`] for any peer, so strangers cannot crowd out a static peer; what comes above is ignored (not rejected: it says nothing
//! about the message), and the block is fetched by number if it is missed. Blocks of our own go through the same ladder.

use crate::{handle::Blocks, sync::Arrival};
use alloy_primitives::Address;
use libp2p::{PeerId, gossipsub::MessageId};
use parking_lot::Mutex;
use starling_proto::{
    fork::ForkSchedule,
    gossip::{self, CheckContext, Decompressed, Flag, Reason, Seen, Signers},
    payload::{Payload, PayloadVersion},
};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::task::{Id, JoinSet};

/// Checks of strangers' messages in flight for one topic.
const PER_TOPIC: usize = 4;
/// Checks in flight for one peer.
const PER_PEER: usize = 2;

/// The wall clock in Unix seconds.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Where a message came from.
#[derive(Clone, Debug)]
pub enum Origin {
    Peer {
        peer: PeerId,
        /// A static peer.
        protected: bool,
        message: MessageId,
    },
    Own,
}

/// Why a message is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// Its sender has as many in flight as it may.
    OfPeer,
    /// Strangers together have.
    OfAll,
}

/// A check that ended.
#[derive(Debug)]
pub struct Checked {
    pub origin: Origin,
    pub version: PayloadVersion,
    pub outcome: Outcome,
    /// How long it took.
    pub elapsed: Duration,
}

#[derive(Debug)]
pub enum Outcome {
    Accepted(Accepted),
    /// Not accepted, and why; [`Reason::is_ignore`] tells the two kinds apart.
    Refused(Reason),
    /// The check panicked. Never expected; the message is rejected and the node goes on.
    Panicked,
}

#[derive(Debug)]
pub struct Accepted {
    pub arrival: Arrival,
    pub signer: Address,
    /// The message as the router takes it, for blocks of our own.
    pub tagged: Option<Vec<u8>>,
}

/// Runs checks. Dropping it forgets those in flight.
pub struct Checker {
    rules: Arc<Rules>,
    running: JoinSet<(Outcome, Duration)>,
    /// The checks in flight.
    tickets: HashMap<Id, (Origin, PayloadVersion)>,
}

/// What a check needs; shared with the threads.
struct Rules {
    chain_id: u64,
    forks: ForkSchedule,
    threshold_secs: u64,
    signers: Mutex<Signers>,
    /// One cache per topic.
    seen: [Mutex<Seen>; PayloadVersion::ALL.len()],
    blocks: Arc<dyn Blocks>,
}

impl Checker {
    pub fn new(
        chain_id: u64,
        forks: ForkSchedule,
        threshold_secs: u64,
        signer: Option<Address>,
        blocks: Arc<dyn Blocks>,
    ) -> Self {
        let signers = Mutex::new(signer.map(Signers::new).unwrap_or_default());
        let rules = Rules { chain_id, forks, threshold_secs, signers, seen: Default::default(), blocks };
        Self { rules: Arc::new(rules), running: JoinSet::new(), tickets: HashMap::new() }
    }

    /// The signer L1 names now.
    pub fn set_signer(&self, signer: Address) {
        if self.rules.signers.lock().update(signer, unix_now()) {
            tracing::info!(%signer, "unsafe block signer set");
        }
    }

    /// Starts the check of a message (flag byte and bytes), unless too many are in flight.
    pub fn submit(
        &mut self,
        peer: PeerId,
        protected: bool,
        message: MessageId,
        version: PayloadVersion,
        tagged: Vec<u8>,
    ) -> Result<(), Excess> {
        let (mut of_topic, mut of_peer) = (0, 0);
        for (origin, other) in self.tickets.values() {
            if let Origin::Peer { peer: from, protected, .. } = origin {
                of_topic += usize::from(*other == version && !protected);
                of_peer += usize::from(*from == peer);
            }
        }
        if of_peer >= PER_PEER {
            return Err(Excess::OfPeer);
        }
        if !protected && of_topic >= PER_TOPIC {
            return Err(Excess::OfAll);
        }
        let rules = self.rules.clone();
        self.start(Origin::Peer { peer, protected, message }, version, move || rules.check(version, &tagged, Some(peer)));
        Ok(())
    }

    /// Encodes a block of our own and checks it as any other; false when too many of ours are in flight.
    pub fn submit_own(&mut self, payload: Arc<Payload>, signature: [u8; 65]) -> bool {
        if self.tickets.values().filter(|(origin, _)| matches!(origin, Origin::Own)).count() >= PER_TOPIC {
            return false;
        }
        let rules = self.rules.clone();
        let version = rules.forks.payload_version(payload.timestamp());
        self.start(Origin::Own, version, move || {
            let bytes = [&signature[..], &payload.to_wire(version)].concat();
            let tagged = Decompressed { flag: Flag::Decompressed, bytes }.into_tagged();
            let mut outcome = rules.check(version, &tagged, None);
            if let Outcome::Accepted(accepted) = &mut outcome {
                accepted.tagged = Some(tagged);
            }
            outcome
        });
        true
    }

    /// The next check that ends; pends while none is in flight.
    pub async fn next(&mut self) -> Checked {
        loop {
            let (id, (outcome, elapsed)) = match self.running.join_next_with_id().await {
                Some(Ok((id, outcome))) => (id, outcome),
                Some(Err(error)) => (error.id(), (Outcome::Panicked, Duration::ZERO)),
                None => std::future::pending().await,
            };
            if let Some((origin, version)) = self.tickets.remove(&id) {
                return Checked { origin, version, outcome, elapsed };
            }
        }
    }

    fn start(&mut self, origin: Origin, version: PayloadVersion, check: impl FnOnce() -> Outcome + Send + 'static) {
        let timed = move || {
            let begun = Instant::now();
            let outcome = check();
            (outcome, begun.elapsed())
        };
        let id = self.running.spawn_blocking(timed).id();
        self.tickets.insert(id, (origin, version));
    }
}

impl Rules {
    fn check(&self, version: PayloadVersion, tagged: &[u8], from: Option<PeerId>) -> Outcome {
        let (flag, bytes) = Decompressed::untag(tagged);
        let signers = self.signers.lock().clone();
        let context =
            CheckContext { chain_id: self.chain_id, signers: &signers, threshold_secs: self.threshold_secs, forks: &self.forks };
        // The lock is held only for the look-up, not while hashing.
        let checked = gossip::check_signed(version, flag, bytes, unix_now(), &context).and_then(|(payload, signer)| {
            self.seen[version as usize].lock().record(payload.number(), payload.hash).map(|()| (payload, signer))
        });
        match checked {
            Ok((payload, signer)) => {
                self.signers.lock().verified(signer, unix_now());
                let arrival = Arrival::of(payload, from, &*self.blocks);
                Outcome::Accepted(Accepted { arrival, signer, tagged: None })
            }
            Err(reason) => Outcome::Refused(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_proto::fork::Fork;

    struct Empty;

    impl Blocks for Empty {
        fn knows(&self, _: alloy_primitives::B256) -> bool {
            false
        }
        fn block(&self, _: u64) -> Option<Payload> {
            None
        }
    }

    #[tokio::test]
    async fn strangers_do_not_crowd_out_a_static_peer() {
        let mut checker = Checker::new(901, ForkSchedule::from_genesis(Fork::Jovian), 60, None, Arc::new(Empty));
        let mut submit =
            |peer, protected| checker.submit(peer, protected, MessageId::new(b"id"), PayloadVersion::V4, vec![0]).is_ok();
        let strangers: Vec<PeerId> = (0..4).map(|_| PeerId::random()).collect();
        let taken = strangers.iter().flat_map(|peer| [*peer; 3]).filter(|peer| submit(*peer, false)).count();
        assert_eq!(taken, PER_TOPIC);
        let friend = PeerId::random();
        assert!(submit(friend, true) && submit(friend, true));
        assert!(!submit(friend, true), "its own share is bounded too");
        // Every check ends, and its place is free again.
        for _ in 0..PER_TOPIC + PER_PEER {
            checker.next().await;
        }
        assert!(checker.submit(strangers[3], false, MessageId::new(b"id"), PayloadVersion::V4, vec![0]).is_ok());
    }
}
