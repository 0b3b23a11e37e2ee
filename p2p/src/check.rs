//! Gossip checks, off the swarm's task: each runs on a blocking thread, the caches of seen blocks and the signers live here.
//!
//! What can overload it: messages faster than they can be checked. Of those that are light at most [`PER_TOPIC`] of strangers run at
//! once for a topic, of any [`PER_PEER`] for a peer, so strangers cannot crowd out a static peer; what is not light comes with a place
//! of the router's, which bounds it. What comes above waits, and peers take turns: a message waits for at most one of every other peer,
//! however many they send. A few of each peer wait, and so many bytes altogether, of which the largest message is given up first; that
//! is ignored (not rejected: it says nothing about the message), and the block is fetched by number if it is missed. Blocks of our own
//! go through the same ladder.

use crate::{
    handle::Blocks,
    sync::Arrival,
    topics::{self, Parts},
};
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
use tokio::{
    sync::OwnedSemaphorePermit,
    task::{Id, JoinSet},
};

/// Checks of strangers' light messages in flight for one topic.
const PER_TOPIC: usize = 4;
/// Checks in flight for one peer.
const PER_PEER: usize = 2;
/// Messages of one peer that wait, and bytes of all that do.
const WAITING_PER_PEER: usize = 4;
const WAITING_BYTES: usize = 32 << 20;

/// The wall clock in Unix seconds.
pub fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
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

/// A message to check.
#[derive(Debug)]
pub struct Unchecked {
    pub peer: PeerId,
    /// Of a static peer.
    pub protected: bool,
    pub message: MessageId,
    pub version: PayloadVersion,
    /// See [`Parts`].
    pub sealed: Vec<u8>,
    /// Of a message that is not light, in the router; taken until the verdict is there.
    pub place: Option<OwnedSemaphorePermit>,
}

/// Why a message is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// As many of its sender wait as may.
    OfPeer,
    /// All together are too large, and it is the largest.
    OfAll,
}

/// A message that is not checked.
#[derive(Debug)]
pub struct GivenUp {
    pub peer: PeerId,
    pub message: MessageId,
    pub excess: Excess,
}

/// A check that ended.
#[derive(Debug)]
pub struct Checked {
    pub origin: Origin,
    pub version: PayloadVersion,
    pub outcome: Outcome,
    /// See [`Parts::bloat`].
    pub bloat: u32,
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
    pub sealed: Option<Vec<u8>>,
}

/// Runs checks. Dropping it forgets those in flight.
pub struct Checker {
    rules: Arc<Rules>,
    running: JoinSet<(Outcome, Duration)>,
    /// The checks in flight.
    tickets: HashMap<Id, Ticket>,
    /// In order of arrival, with their turns.
    waiting: Vec<(u64, Unchecked)>,
    waiting_bytes: usize,
    /// Of the message that was begun last.
    turn: u64,
}

struct Ticket {
    origin: Origin,
    version: PayloadVersion,
    turn: u64,
    bloat: u32,
    place: Option<OwnedSemaphorePermit>,
}

impl Ticket {
    fn is_of(&self, peer: &PeerId) -> bool {
        matches!(&self.origin, Origin::Peer { peer: from, .. } if from == peer)
    }

    fn is_of_stranger(&self) -> bool {
        matches!(
            self.origin,
            Origin::Peer {
                protected: false,
                ..
            }
        )
    }
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
        let rules = Rules {
            chain_id,
            forks,
            threshold_secs,
            signers,
            seen: Default::default(),
            blocks,
        };
        Self {
            rules: Arc::new(rules),
            running: JoinSet::new(),
            tickets: HashMap::new(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            turn: 0,
        }
    }

    /// Without a signer every block is ignored.
    pub fn signer(&self) -> Option<Address> {
        self.rules.signers.lock().current()
    }

    pub fn has_signer(&self) -> bool {
        self.signer().is_some()
    }

    /// The signer L1, or an operator, names now. Returns whether it is another one.
    pub fn set_signer(&self, signer: Address) -> bool {
        let changed = self.rules.signers.lock().update(signer, unix_now());
        if changed {
            tracing::info!(%signer, "unsafe block signer set");
        }
        changed
    }

    /// Starts the check of a message, or lets it wait for its turn; the message that is given up for it, which may be itself.
    pub fn submit(&mut self, unchecked: Unchecked) -> Option<GivenUp> {
        let peer = unchecked.peer;
        let waiting = self
            .waiting
            .iter()
            .filter(|(_, other)| other.peer == peer)
            .map(|(turn, _)| *turn);
        let running = self
            .tickets
            .values()
            .filter(|ticket| ticket.is_of(&peer))
            .map(|ticket| ticket.turn);
        // After those that it has sent before, and not before those that others have waited with.
        let turn = waiting
            .clone()
            .chain(running)
            .max()
            .map_or(self.turn, |last| self.turn.max(last + 1));
        let waits = waiting.count();
        if waits == 0 && self.has_room(&unchecked) {
            self.begin(turn, unchecked);
            return None;
        }
        if waits >= WAITING_PER_PEER {
            return Some(GivenUp {
                peer,
                message: unchecked.message,
                excess: Excess::OfPeer,
            });
        }
        self.waiting_bytes += unchecked.sealed.len();
        self.waiting.push((turn, unchecked));
        if self.waiting_bytes <= WAITING_BYTES {
            return None;
        }
        let largest = (0..self.waiting.len()).max_by_key(|i| self.waiting[*i].1.sealed.len())?;
        let Unchecked { peer, message, .. } = self.take_waiting(largest).1;
        Some(GivenUp {
            peer,
            message,
            excess: Excess::OfAll,
        })
    }

    fn has_room(&self, unchecked: &Unchecked) -> bool {
        let count = |counts: &dyn Fn(&Ticket) -> bool| {
            self.tickets
                .values()
                .filter(|ticket| counts(ticket))
                .count()
        };
        let is_counted = |ticket: &Ticket| {
            ticket.version == unchecked.version && ticket.is_of_stranger() && ticket.place.is_none()
        };
        let is_free = unchecked.protected || unchecked.place.is_some();
        count(&|ticket| ticket.is_of(&unchecked.peer)) < PER_PEER
            && (is_free || count(&is_counted) < PER_TOPIC)
    }

    fn begin(&mut self, turn: u64, unchecked: Unchecked) {
        // One that waited longer than others, for an earlier one of its peer, does not put everybody before them.
        self.turn = self.turn.max(turn);
        let (rules, bloat) = (self.rules.clone(), Parts::of(&unchecked.sealed).bloat());
        let Unchecked {
            peer,
            protected,
            message,
            version,
            sealed,
            place,
        } = unchecked;
        let origin = Origin::Peer {
            peer,
            protected,
            message,
        };
        let ticket = Ticket {
            origin,
            version,
            turn,
            bloat,
            place,
        };
        self.start(ticket, move || {
            rules.check(version, Parts::of(&sealed).tagged, Some(peer))
        });
    }

    /// A check has ended: those go on whose turn it is.
    fn begin_waiting(&mut self) {
        while let Some(next) = (0..self.waiting.len())
            .filter(|i| self.has_room(&self.waiting[*i].1))
            .min_by_key(|i| self.waiting[*i].0)
        {
            let (turn, unchecked) = self.take_waiting(next);
            self.begin(turn, unchecked);
        }
    }

    fn take_waiting(&mut self, index: usize) -> (u64, Unchecked) {
        let taken = self.waiting.remove(index);
        self.waiting_bytes -= taken.1.sealed.len();
        taken
    }

    /// Encodes a block of our own and checks it as any other; false when too many of ours are in flight.
    pub fn submit_own(&mut self, payload: Arc<Payload>, signature: [u8; 65]) -> bool {
        if self
            .tickets
            .values()
            .filter(|ticket| matches!(ticket.origin, Origin::Own))
            .count()
            >= PER_TOPIC
        {
            return false;
        }
        let rules = self.rules.clone();
        let version = rules.forks.payload_version(payload.timestamp());
        let ticket = Ticket {
            origin: Origin::Own,
            version,
            turn: self.turn,
            bloat: 0,
            place: None,
        };
        self.start(ticket, move || {
            let bytes = [&signature[..], &payload.to_wire(version)].concat();
            let tagged = Decompressed {
                flag: Flag::Decompressed,
                bytes,
            }
            .into_tagged();
            let mut outcome = rules.check(version, &tagged, None);
            if let Outcome::Accepted(accepted) = &mut outcome {
                let packed = tagged.len();
                accepted.sealed = Some(topics::seal(
                    &gossip::topic(rules.chain_id, version),
                    tagged,
                    packed,
                ));
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
            if let Some(Ticket {
                origin,
                version,
                bloat,
                ..
            }) = self.tickets.remove(&id)
            {
                self.begin_waiting();
                return Checked {
                    origin,
                    version,
                    outcome,
                    bloat,
                    elapsed,
                };
            }
        }
    }

    fn start(&mut self, ticket: Ticket, check: impl FnOnce() -> Outcome + Send + 'static) {
        let timed = move || {
            let begun = Instant::now();
            let outcome = check();
            (outcome, begun.elapsed())
        };
        let id = self.running.spawn_blocking(timed).id();
        self.tickets.insert(id, ticket);
    }
}

impl Rules {
    fn check(&self, version: PayloadVersion, tagged: &[u8], from: Option<PeerId>) -> Outcome {
        let (flag, bytes) = Decompressed::untag(tagged);
        let signers = self.signers.lock().clone();
        let context = CheckContext {
            chain_id: self.chain_id,
            signers: &signers,
            threshold_secs: self.threshold_secs,
            forks: &self.forks,
        };
        // The lock is held only for the look-up, not while hashing.
        let checked = gossip::check_signed(version, flag, bytes, unix_now(), &context).and_then(
            |(payload, signer)| {
                self.seen[version as usize]
                    .lock()
                    .record(payload.number(), payload.hash)
                    .map(|()| (payload, signer))
            },
        );
        match checked {
            Ok((payload, signer)) => {
                self.signers.lock().verified(signer, unix_now());
                let arrival = Arrival::of(payload, from, &*self.blocks);
                Outcome::Accepted(Accepted {
                    arrival,
                    signer,
                    sealed: None,
                })
            }
            Err(reason) => Outcome::Refused(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_proto::fork::Fork;
    use tokio::sync::Semaphore;

    struct Empty;

    impl Blocks for Empty {
        fn knows(&self, _: alloy_primitives::B256) -> bool {
            false
        }
        fn block(&self, _: u64) -> Option<Payload> {
            None
        }
    }

    fn checker() -> Checker {
        Checker::new(
            901,
            ForkSchedule::from_genesis(Fork::Jovian),
            60,
            None,
            Arc::new(Empty),
        )
    }

    fn junk(peer: PeerId, bytes: usize) -> Unchecked {
        let (message, sealed) = (MessageId::new(b"id"), vec![0; bytes]);
        Unchecked {
            peer,
            protected: false,
            message,
            version: PayloadVersion::V4,
            sealed,
            place: None,
        }
    }

    fn peers(count: usize) -> Vec<PeerId> {
        (0..count).map(|_| PeerId::random()).collect()
    }

    #[tokio::test]
    async fn strangers_do_not_crowd_out_a_static_peer() {
        let mut checker = checker();
        for stranger in peers(4).into_iter().flat_map(|peer| [peer; 3]) {
            assert!(checker.submit(junk(stranger, 1)).is_none());
        }
        assert_eq!(
            (checker.tickets.len(), checker.waiting.len()),
            (PER_TOPIC, 12 - PER_TOPIC)
        );
        let friend = PeerId::random();
        for _ in 0..PER_PEER + 1 {
            assert!(
                checker
                    .submit(Unchecked {
                        protected: true,
                        ..junk(friend, 1)
                    })
                    .is_none()
            );
        }
        let of_friend = checker
            .tickets
            .values()
            .filter(|ticket| ticket.is_of(&friend))
            .count();
        assert_eq!(of_friend, PER_PEER, "its own share is bounded too");
        // Every check ends, and nobody waits for ever.
        for _ in 0..12 + PER_PEER + 1 {
            checker.next().await;
        }
        assert_eq!(
            (
                checker.tickets.len(),
                checker.waiting.len(),
                checker.waiting_bytes
            ),
            (0, 0, 0)
        );
    }

    #[tokio::test]
    async fn a_block_waits_for_one_message_of_every_other_peer_however_many_they_send() {
        let mut checker = checker();
        let (flooders, honest) = (peers(5), PeerId::random());
        for flooder in &flooders {
            let taken = (0..50)
                .filter(|_| checker.submit(junk(*flooder, 1)).is_none())
                .count();
            assert!(taken <= PER_PEER + WAITING_PER_PEER);
        }
        assert!(checker.submit(junk(honest, 1)).is_none());
        let mut before = 0;
        while !matches!(checker.next().await.origin, Origin::Peer { peer, .. } if peer == honest) {
            before += 1;
            // Those that are done with come again at once.
            flooders
                .iter()
                .for_each(|flooder| drop(checker.submit(junk(*flooder, 1))));
        }
        assert!(
            before <= PER_TOPIC + flooders.len() + PER_TOPIC,
            "{before} messages were checked first"
        );
    }

    #[tokio::test]
    async fn what_has_a_place_waits_for_nothing_without_one_nor_that_for_it() {
        let mut checker = checker();
        let with_place = |peer| Unchecked {
            place: Arc::new(Semaphore::new(1)).try_acquire_owned().ok(),
            ..junk(peer, 1)
        };
        let of = |checker: &Checker, peer| {
            checker
                .tickets
                .values()
                .filter(|ticket| ticket.is_of(peer))
                .count()
        };
        for bomber in peers(2 * PER_TOPIC) {
            assert!(checker.submit(with_place(bomber)).is_none());
        }
        for stranger in peers(PER_TOPIC) {
            assert!(checker.submit(junk(stranger, 1)).is_none());
        }
        assert!(checker.waiting.is_empty());
        let (light, heavy) = (PeerId::random(), PeerId::random());
        assert!(checker.submit(junk(light, 1)).is_none());
        for _ in 0..PER_PEER + 1 {
            assert!(checker.submit(with_place(heavy)).is_none());
        }
        assert_eq!(
            (
                of(&checker, &light),
                of(&checker, &heavy),
                checker.waiting.len()
            ),
            (0, PER_PEER, 2)
        );
        for _ in 0..3 * PER_TOPIC + 2 + PER_PEER {
            checker.next().await;
        }
        assert!(checker.tickets.is_empty() && checker.waiting.is_empty());
    }

    #[tokio::test]
    async fn a_message_that_waited_long_for_its_own_peer_puts_nobody_before_those_who_wait() {
        let mut checker = checker();
        let (late, honest) = (PeerId::random(), PeerId::random());
        for _ in 0..PER_PEER + 1 {
            assert!(checker.submit(junk(late, 1)).is_none());
        }
        // Meanwhile a hundred of others were checked.
        checker.turn = 100;
        for flooder in peers(PER_TOPIC - PER_PEER) {
            assert!(checker.submit(junk(flooder, 1)).is_none());
        }
        assert!(checker.submit(junk(honest, 1)).is_none());
        while checker
            .waiting
            .iter()
            .any(|(_, unchecked)| unchecked.peer == late)
        {
            checker.next().await;
        }
        assert_eq!(
            checker.turn, 100,
            "whoever comes now comes after those who wait"
        );
    }

    #[tokio::test]
    async fn of_what_waits_the_largest_is_given_up_and_a_peer_that_sends_too_much_is_told() {
        let mut checker = checker();
        let (flooders, honest) = (peers(9), PeerId::random());
        for peer in peers(PER_TOPIC) {
            assert!(
                checker.submit(junk(peer, 1)).is_none(),
                "those that are checked meanwhile"
            );
        }
        let large = WAITING_BYTES / 4;
        for peer in &flooders[..2] {
            (0..PER_PEER).for_each(|_| assert!(checker.submit(junk(*peer, large)).is_none()));
        }
        let given_up: Vec<GivenUp> = flooders[2..]
            .iter()
            .filter_map(|peer| checker.submit(junk(*peer, large)))
            .collect();
        assert!(
            given_up.len() >= 3
                && given_up
                    .iter()
                    .all(|given_up| given_up.excess == Excess::OfAll)
        );
        let given_up = checker
            .submit(junk(honest, 100_000))
            .expect("there are too many bytes");
        assert!(
            given_up.peer != honest,
            "a block of usual size is not in the way"
        );
        let excess: Vec<Option<Excess>> = (0..WAITING_PER_PEER)
            .map(|_| {
                checker
                    .submit(junk(honest, 1))
                    .map(|given_up| given_up.excess)
            })
            .collect();
        assert_eq!(
            excess
                .iter()
                .filter(|excess| **excess == Some(Excess::OfPeer))
                .count(),
            1,
            "{excess:?}"
        );
    }
}
