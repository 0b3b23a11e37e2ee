//! Gossip checks, off the swarm's task: each runs on a blocking thread. The caches of seen blocks
//! and the signers live here.
//!
//! Overload: messages faster than they can be checked. At most [`PER_TOPIC`] light messages of
//! untrusted peers are checked at once for a topic, and at most [`PER_PEER`] messages of any one
//! peer, so untrusted peers cannot crowd out a static peer. Heavy messages come with a permit of
//! the router, which bounds their number. Messages above these limits wait. Peers take turns: the
//! first message of a peer waits for about one message of each other peer, however many they send.
//! The waiting messages are bounded per peer and in bytes. Past the byte bound the largest message
//! is dropped: it is ignored, not rejected, since it may be valid; sync can fetch its block. Blocks
//! of our own pass the same checks.

use crate::{
    clock::unix_now,
    gossip::topics::{self, MessageParts},
    types::{Arrival, Blocks},
};
use alloy_primitives::Address;
use libp2p::{PeerId, gossipsub::MessageId};
use parking_lot::Mutex;
use starling_proto::{
    fork::ForkSchedule,
    gossip::{self, CheckContext, Decompressed, PayloadFlag, Reason, RecoverSigner, Seen, Signers},
    payload::{Payload, PayloadVersion},
    sign,
};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::OwnedSemaphorePermit,
    task::{Id, JoinSet},
};

/// Largest number of checks in flight for one topic, of light messages of untrusted peers.
const PER_TOPIC: usize = 4;
/// Largest number of checks in flight for one peer.
const PER_PEER: usize = 2;
/// Largest number of waiting messages of one peer, and of bytes of all waiting messages.
const WAITING_PER_PEER: usize = 4;
const WAITING_BYTES: usize = 32 << 20;

/// The origin of a message.
#[derive(Clone, Debug)]
pub enum MessageOrigin {
    Peer {
        peer: PeerId,
        /// Whether the peer is static, or protected by an operator.
        protected: bool,
        message: MessageId,
    },
    Own,
}

/// A message to check.
#[derive(Debug)]
pub struct Unchecked {
    pub peer: PeerId,
    /// Whether the peer is static, or protected by an operator.
    pub protected: bool,
    pub message: MessageId,
    pub version: PayloadVersion,
    /// The message in the form of [`MessageParts`].
    pub sealed: Vec<u8>,
    /// Router permit of a heavy or huge message, held until its verdict; `None` for a light one.
    pub permit: Option<OwnedSemaphorePermit>,
}

/// The reason why a message is dropped without a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFull {
    /// The sender has too many messages waiting.
    Peer,
    /// All waiting messages together are too large, and this message is the largest.
    Total,
}

/// A message that is dropped without a check.
#[derive(Debug)]
pub struct RefusedMessage {
    pub peer: PeerId,
    pub message: MessageId,
    pub full: QueueFull,
}

/// A check that ended.
#[derive(Debug)]
pub struct CheckedMessage {
    pub origin: MessageOrigin,
    pub version: PayloadVersion,
    pub outcome: CheckOutcome,
    /// MiB by which the message exceeds any block after unpacking ([`MessageParts::bloat`]).
    pub bloat: u32,
    /// Duration of the check.
    pub elapsed: Duration,
}

#[derive(Debug)]
pub enum CheckOutcome {
    Accepted(Accepted),
    /// The message is not accepted: ignored if [`Reason::is_ignore`], rejected otherwise.
    Refused(Reason),
    /// The check panicked, which is a bug. The message is rejected and the node goes on.
    Panicked,
}

#[derive(Debug)]
pub struct Accepted {
    pub arrival: Arrival,
    pub signer: Address,
    /// The message in the router's form ([`MessageParts`]). Set only for blocks of our own.
    pub sealed: Option<Vec<u8>>,
}

/// Runs checks. Dropping it drops the results of checks in flight.
pub struct Checker {
    rules: Arc<CheckRules>,
    running: JoinSet<(CheckOutcome, Duration)>,
    /// The checks in flight.
    checks: HashMap<Id, RunningCheck>,
    /// Waiting messages in order of arrival, each with its turn: the number by which messages are
    /// chosen, lowest first among those that may begin. A message has a higher turn than its peer's
    /// messages that still wait or are being checked, so that the checks alternate between peers.
    waiting: Vec<(u64, Unchecked)>,
    waiting_bytes: usize,
    /// Highest turn among the messages whose checks have begun.
    turn: u64,
}

struct RunningCheck {
    origin: MessageOrigin,
    version: PayloadVersion,
    turn: u64,
    bloat: u32,
    permit: Option<OwnedSemaphorePermit>,
}

impl RunningCheck {
    fn is_of(&self, peer: &PeerId) -> bool {
        matches!(&self.origin, MessageOrigin::Peer { peer: from, .. } if from == peer)
    }

    fn is_of_untrusted(&self) -> bool {
        matches!(
            self.origin,
            MessageOrigin::Peer {
                protected: false,
                ..
            }
        )
    }
}

/// The settings of a check.
pub struct CheckSettings {
    pub chain_id: u64,
    pub forks: ForkSchedule,
    /// Largest age of a block in seconds.
    pub threshold_secs: u64,
    pub recover: RecoverSigner,
}

/// The rules and caches of a check, shared with the threads that run checks.
pub struct CheckRules {
    settings: CheckSettings,
    signers: Mutex<Signers>,
    /// One cache of seen blocks per topic.
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
        let settings = CheckSettings {
            chain_id,
            forks,
            threshold_secs,
            recover: sign::recover,
        };
        Self {
            rules: Arc::new(CheckRules::new(settings, signer, blocks)),
            running: JoinSet::new(),
            checks: HashMap::new(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            turn: 0,
        }
    }

    /// The block signer that L1 or an operator named last. While it is `None`, every block is
    /// ignored.
    pub fn signer(&self) -> Option<Address> {
        self.rules.signer()
    }

    pub fn has_signer(&self) -> bool {
        self.signer().is_some()
    }

    /// Sets the signer that L1 or an operator names now. Returns whether the signer has changed.
    pub fn set_signer(&self, signer: Address) -> bool {
        let changed = self.rules.set_signer(signer, unix_now());
        if changed {
            tracing::info!(%signer, "unsafe block signer set");
        }
        changed
    }

    /// Starts the check of a message, or queues the message. Returns a message that had to be
    /// dropped, which may be this message itself.
    pub fn submit(&mut self, unchecked: Unchecked) -> Option<RefusedMessage> {
        let peer = unchecked.peer;
        let waiting = self
            .waiting
            .iter()
            .filter(|(_, other)| other.peer == peer)
            .map(|(turn, _)| *turn);
        let running = self
            .checks
            .values()
            .filter(|check| check.is_of(&peer))
            .map(|check| check.turn);
        // The turn follows those of the peer's own messages, and is at least the highest turn begun
        // so far.
        let turn = waiting
            .clone()
            .chain(running)
            .max()
            .map_or(self.turn, |last| self.turn.max(last + 1));
        let waits = waiting.count();
        if waits == 0 && self.has_capacity(&unchecked) {
            self.begin(turn, unchecked);
            return None;
        }
        if waits >= WAITING_PER_PEER {
            return Some(RefusedMessage {
                peer,
                message: unchecked.message,
                full: QueueFull::Peer,
            });
        }
        self.waiting_bytes += unchecked.sealed.len();
        self.waiting.push((turn, unchecked));
        if self.waiting_bytes <= WAITING_BYTES {
            return None;
        }
        let largest = (0..self.waiting.len()).max_by_key(|i| self.waiting[*i].1.sealed.len())?;
        let Unchecked { peer, message, .. } = self.take_waiting(largest).1;
        Some(RefusedMessage {
            peer,
            message,
            full: QueueFull::Total,
        })
    }

    fn has_capacity(&self, unchecked: &Unchecked) -> bool {
        let count = |counts: &dyn Fn(&RunningCheck) -> bool| {
            self.checks.values().filter(|check| counts(check)).count()
        };
        let is_counted = |check: &RunningCheck| {
            check.version == unchecked.version && check.is_of_untrusted() && check.permit.is_none()
        };
        let is_free = unchecked.protected || unchecked.permit.is_some();
        count(&|check| check.is_of(&unchecked.peer)) < PER_PEER
            && (is_free || count(&is_counted) < PER_TOPIC)
    }

    fn begin(&mut self, turn: u64, unchecked: Unchecked) {
        // Never lower `turn`: a message delayed behind its own peer's backlog must not reset the
        // round-robin.
        self.turn = self.turn.max(turn);
        let (rules, bloat) = (
            self.rules.clone(),
            MessageParts::of(&unchecked.sealed).bloat(),
        );
        let Unchecked {
            peer,
            protected,
            message,
            version,
            sealed,
            permit,
        } = unchecked;
        let origin = MessageOrigin::Peer {
            peer,
            protected,
            message,
        };
        let check = RunningCheck {
            origin,
            version,
            turn,
            bloat,
            permit,
        };
        self.start(check, move || {
            let tagged = MessageParts::of(&sealed).tagged;
            rules.check(version, tagged, Some(peer), unix_now())
        });
    }

    /// Called when a check has ended: starts the checks of waiting messages, the lowest turn first.
    fn begin_waiting(&mut self) {
        while let Some(next) = (0..self.waiting.len())
            .filter(|i| self.has_capacity(&self.waiting[*i].1))
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

    /// Encodes a block of our own and checks it like any other; `false` if too many checks of our
    /// own blocks are in flight.
    pub fn submit_own(&mut self, payload: Arc<Payload>, signature: [u8; 65]) -> bool {
        if self
            .checks
            .values()
            .filter(|check| matches!(check.origin, MessageOrigin::Own))
            .count()
            >= PER_TOPIC
        {
            return false;
        }
        let rules = self.rules.clone();
        let version = rules.settings.forks.payload_version(payload.timestamp());
        let check = RunningCheck {
            origin: MessageOrigin::Own,
            version,
            turn: self.turn,
            bloat: 0,
            permit: None,
        };
        self.start(check, move || {
            let bytes = [&signature[..], &payload.to_wire(version)].concat();
            let tagged = Decompressed {
                flag: PayloadFlag::Decompressed,
                bytes,
            }
            .into_tagged();
            let mut outcome = rules.check(version, &tagged, None, unix_now());
            if let CheckOutcome::Accepted(accepted) = &mut outcome {
                let packed = tagged.len();
                accepted.sealed = Some(topics::seal(
                    &gossip::topic(rules.settings.chain_id, version),
                    tagged,
                    packed,
                ));
            }
            outcome
        });
        true
    }

    /// The next check that ends; pends while no check is in flight.
    pub async fn next(&mut self) -> CheckedMessage {
        loop {
            let (id, (outcome, elapsed)) = match self.running.join_next_with_id().await {
                Some(Ok((id, outcome))) => (id, outcome),
                Some(Err(error)) => (error.id(), (CheckOutcome::Panicked, Duration::ZERO)),
                None => std::future::pending().await,
            };
            if let Some(RunningCheck {
                origin,
                version,
                bloat,
                ..
            }) = self.checks.remove(&id)
            {
                self.begin_waiting();
                return CheckedMessage {
                    origin,
                    version,
                    outcome,
                    bloat,
                    elapsed,
                };
            }
        }
    }

    fn start(
        &mut self,
        running: RunningCheck,
        check: impl FnOnce() -> CheckOutcome + Send + 'static,
    ) {
        let timed = move || {
            let begun = Instant::now();
            let outcome = check();
            (outcome, begun.elapsed())
        };
        let id = self.running.spawn_blocking(timed).id();
        self.checks.insert(id, running);
    }
}

impl CheckRules {
    pub fn new(settings: CheckSettings, signer: Option<Address>, blocks: Arc<dyn Blocks>) -> Self {
        Self {
            settings,
            signers: Mutex::new(signer.map(Signers::new).unwrap_or_default()),
            seen: Default::default(),
            blocks,
        }
    }

    /// The signer that L1 or an operator named last.
    pub fn signer(&self) -> Option<Address> {
        self.signers.lock().current()
    }

    /// Sets the signer that L1 or an operator names at the Unix time `unix`. Returns whether the
    /// signer has changed.
    pub fn set_signer(&self, signer: Address, unix: u64) -> bool {
        self.signers.lock().update(signer, unix)
    }

    /// Checks a message from the peer `from`, or one of our own, at the Unix time `unix`.
    pub fn check(
        &self,
        version: PayloadVersion,
        tagged: &[u8],
        from: Option<PeerId>,
        unix: u64,
    ) -> CheckOutcome {
        let (flag, bytes) = Decompressed::untag(tagged);
        let signers = self.signers.lock().clone();
        let settings = &self.settings;
        let context = CheckContext {
            chain_id: settings.chain_id,
            signers: &signers,
            threshold_secs: settings.threshold_secs,
            forks: &settings.forks,
        };
        let recover = settings.recover;
        // Take the lock only for the look-up, not while the message is hashed.
        let checked = gossip::check_recovered(version, flag, bytes, unix, &context, recover)
            .and_then(|(payload, signer)| {
                self.seen[version as usize]
                    .lock()
                    .record(payload.number(), payload.hash)
                    .map(|()| (payload, signer))
            });
        match checked {
            Ok((payload, signer)) => {
                self.signers.lock().verified(signer, unix);
                let arrival = Arrival::of(payload, from, &*self.blocks);
                CheckOutcome::Accepted(Accepted {
                    arrival,
                    signer,
                    sealed: None,
                })
            }
            Err(reason) => CheckOutcome::Refused(reason),
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
            permit: None,
        }
    }

    fn peers(count: usize) -> Vec<PeerId> {
        (0..count).map(|_| PeerId::random()).collect()
    }

    #[tokio::test]
    async fn untrusted_peers_do_not_crowd_out_a_static_peer() {
        let mut checker = checker();
        for untrusted in peers(4).into_iter().flat_map(|peer| [peer; 3]) {
            assert!(checker.submit(junk(untrusted, 1)).is_none());
        }
        assert_eq!(
            (checker.checks.len(), checker.waiting.len()),
            (PER_TOPIC, 12 - PER_TOPIC)
        );
        let trusted = PeerId::random();
        for _ in 0..PER_PEER + 1 {
            assert!(
                checker
                    .submit(Unchecked {
                        protected: true,
                        ..junk(trusted, 1)
                    })
                    .is_none()
            );
        }
        let of_trusted = checker
            .checks
            .values()
            .filter(|check| check.is_of(&trusted))
            .count();
        assert_eq!(of_trusted, PER_PEER, "its own messages are bounded too");
        // Every check ends, and every waiting message is checked in the end.
        for _ in 0..12 + PER_PEER + 1 {
            checker.next().await;
        }
        assert_eq!(
            (
                checker.checks.len(),
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
        while !matches!(checker.next().await.origin, MessageOrigin::Peer { peer, .. } if peer == honest)
        {
            before += 1;
            // Flooders whose messages have been checked send further messages at once.
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
    async fn a_heavy_message_and_a_light_one_do_not_wait_for_each_other() {
        let mut checker = checker();
        let with_permit = |peer| Unchecked {
            permit: Arc::new(Semaphore::new(1)).try_acquire_owned().ok(),
            ..junk(peer, 1)
        };
        let of = |checker: &Checker, peer| {
            checker
                .checks
                .values()
                .filter(|check| check.is_of(peer))
                .count()
        };
        for bomber in peers(2 * PER_TOPIC) {
            assert!(checker.submit(with_permit(bomber)).is_none());
        }
        for untrusted in peers(PER_TOPIC) {
            assert!(checker.submit(junk(untrusted, 1)).is_none());
        }
        assert!(checker.waiting.is_empty());
        let (light, heavy) = (PeerId::random(), PeerId::random());
        assert!(checker.submit(junk(light, 1)).is_none());
        for _ in 0..PER_PEER + 1 {
            assert!(checker.submit(with_permit(heavy)).is_none());
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
        assert!(checker.checks.is_empty() && checker.waiting.is_empty());
    }

    #[tokio::test]
    async fn a_message_delayed_by_its_own_peer_does_not_reset_the_turns() {
        let mut checker = checker();
        let (late, honest) = (PeerId::random(), PeerId::random());
        for _ in 0..PER_PEER + 1 {
            assert!(checker.submit(junk(late, 1)).is_none());
        }
        // Set the turn as if a hundred messages of other peers had been checked.
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
            "a new message comes after the waiting ones"
        );
    }

    #[tokio::test]
    async fn the_largest_waiting_message_is_dropped_and_a_peer_that_sends_too_much_is_reported() {
        let mut checker = checker();
        let (flooders, honest) = (peers(9), PeerId::random());
        for peer in peers(PER_TOPIC) {
            assert!(
                checker.submit(junk(peer, 1)).is_none(),
                "messages that are checked meanwhile"
            );
        }
        let large = WAITING_BYTES / 4;
        for peer in &flooders[..2] {
            (0..PER_PEER).for_each(|_| assert!(checker.submit(junk(*peer, large)).is_none()));
        }
        let refused: Vec<RefusedMessage> = flooders[2..]
            .iter()
            .filter_map(|peer| checker.submit(junk(*peer, large)))
            .collect();
        assert!(
            refused.len() >= 3
                && refused
                    .iter()
                    .all(|refused| refused.full == QueueFull::Total)
        );
        let refused = checker
            .submit(junk(honest, 100_000))
            .expect("there are too many bytes");
        assert!(refused.peer != honest, "a block of usual size is kept");
        let full: Vec<Option<QueueFull>> = (0..WAITING_PER_PEER)
            .map(|_| checker.submit(junk(honest, 1)).map(|refused| refused.full))
            .collect();
        assert_eq!(
            full.iter()
                .filter(|full| **full == Some(QueueFull::Peer))
                .count(),
            1,
            "{full:?}"
        );
    }
}
