//! Messages of blocks at a node: the gossip check, its verdicts, and the signer that L1 names.
//! Flooding to all connected peers stands for gossipsub's mesh.

use super::LiveNode;
use crate::sim::{
    chain::SharedChain,
    checks::origin_of,
    context::{CHAIN_ID, SimContext},
    hostile::Hostility,
    keys,
    l1::SimL1,
    planted::PlantedBug,
    queue::{MILLISECOND, SECOND, SimTime},
    wires::SimMessage,
};
use alloy_primitives::{Address, B256, map::HashSet};
use rand::Rng;
use starling_p2p::machines::{
    Accepted, CheckOutcome, CheckRules, CheckSettings, Moment, Offence, RejectionCost,
    UnknownSignerHold,
};
use starling_proto::{
    gossip::{PayloadFlag, Reason},
    payload::Payload,
    sign::{SIGNATURE_LEN, SignError},
};
use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hasher},
    sync::Arc,
};
use tokio::sync::oneshot;

/// Largest age of a gossiped block in seconds, as in production.
const GOSSIP_AGE: u64 = 60;
/// Time for which the ids of messages are remembered, as gossipsub does.
const SEEN_TTL: SimTime = 65 * SECOND;

/// The gossip part of a node.
pub struct GossipSide {
    check: CheckRules,
    hold: UnknownSignerHold,
    waiter: Option<oneshot::Receiver<Address>>,
    /// The times at which L1 is read for its signer.
    reads: VecDeque<SimTime>,
    next_poll: SimTime,
    seen: HashSet<u64>,
    seen_order: VecDeque<(SimTime, u64)>,
    /// Our newest message, if it has reached no peer.
    unsent: Option<(u64, Arc<[u8]>)>,
    /// The last message that arrived, for hostile peers.
    last: Option<Arc<[u8]>>,
}

/// A check that takes every signature for one of the block signer.
fn recover_any(_: &[u8; SIGNATURE_LEN], _: u64, _: &[u8]) -> Result<Address, SignError> {
    Ok(keys::address(0))
}

impl GossipSide {
    pub fn new(
        me: usize,
        signer: Option<Address>,
        view: &SharedChain,
        context: &SimContext,
    ) -> Self {
        let ignored = context.has_bug(PlantedBug::SignatureIgnored);
        let settings = CheckSettings {
            chain_id: CHAIN_ID,
            forks: context.forks(),
            threshold_secs: GOSSIP_AGE,
            recover: if ignored { recover_any } else { keys::recover },
        };
        let mut side = Self {
            check: CheckRules::new(settings, signer, Arc::new(view.clone())),
            hold: UnknownSignerHold::default(),
            waiter: None,
            reads: VecDeque::new(),
            next_poll: context.now + context.plan.nodes[me].signer_poll,
            seen: HashSet::default(),
            seen_order: VecDeque::new(),
            unsent: None,
            last: None,
        };
        side.wait_for_unknown_signer();
        side
    }

    /// Reads the signer from L1 with the next wake-up.
    pub fn read_soon(&mut self) {
        self.reads.push_back(0);
    }

    fn wait_for_unknown_signer(&mut self) {
        let (sender, receiver) = oneshot::channel();
        self.hold.set_waiter(sender);
        self.waiter = Some(receiver);
    }

    pub fn next_wake(&self) -> Option<SimTime> {
        let polls = self.reads.iter().copied();
        polls.chain([self.next_poll]).min()
    }

    /// Remembers the id of a message; `false` if it was seen before.
    fn is_new(&mut self, id: u64, now: SimTime) -> bool {
        while let Some((at, old)) = self.seen_order.front().copied()
            && at + SEEN_TTL < now
        {
            self.seen_order.pop_front();
            self.seen.remove(&old);
        }
        let is_new = self.seen.insert(id);
        if is_new {
            self.seen_order.push_back((now, id));
        }
        is_new
    }
}

/// The data of a message as gossipsub carries it, and its id.
fn message(signer: Address, payload: &Payload) -> (u64, Arc<[u8]>) {
    let signed = payload.to_wire(payload.version());
    let signature = keys::sign(signer, CHAIN_ID, &signed);
    let flag = [PayloadFlag::Decompressed as u8];
    with_id([&flag[..], &signature, &signed].concat())
}

fn with_id(tagged: Vec<u8>) -> (u64, Arc<[u8]>) {
    let mut hasher = DefaultHasher::new();
    hasher.write(&tagged);
    (hasher.finish(), tagged.into())
}

impl LiveNode {
    pub(super) fn on_gossip(
        &mut self,
        from: usize,
        id: u64,
        tagged: Arc<[u8]>,
        context: &mut SimContext,
    ) {
        if !self.gossip.is_new(id, context.now) {
            return;
        }
        let (moment, peer) = (context.moment(self.me), context.directory.peers[from]);
        let version = context.payload_version();
        let outcome = self
            .gossip
            .check
            .check(version, &tagged, Some(peer), moment.unix);
        match outcome {
            CheckOutcome::Accepted(accepted) => {
                self.gossip.last = Some(tagged.clone());
                self.on_accepted_block(from, (id, tagged), accepted, context);
            }
            CheckOutcome::Refused(reason) => self.on_refused(from, &reason, moment, context),
            CheckOutcome::Panicked => {
                let detail = "the check of a message panicked".to_owned();
                context.checks.fail(context.now, self.me, "panic", detail);
            }
        }
    }

    fn on_accepted_block(
        &mut self,
        from: usize,
        (id, tagged): (u64, Arc<[u8]>),
        accepted: Accepted,
        context: &mut SimContext,
    ) {
        let Accepted {
            mut arrival,
            signer,
            ..
        } = accepted;
        if context.plan.nodes[self.me].hostile.is_none() {
            let payload = &arrival.payload;
            context
                .checks
                .on_accepted(context.now, self.me, payload, signer);
        }
        for to in context.ordered(self.connections.peers()) {
            if to != from {
                let tagged = tagged.clone();
                context.send(self.me, to, SimMessage::Gossip { id, tagged });
            }
        }
        arrival.parent_known |= context.has_bug(PlantedBug::ParentCheckForgotten);
        self.sync.on_gossip(arrival, signer, context.instant());
    }

    fn on_refused(
        &mut self,
        from: usize,
        reason: &Reason,
        moment: Moment,
        context: &mut SimContext,
    ) {
        let peer = context.directory.peers[from];
        context.history.note(
            context.now,
            self.me,
            format_args!("refuses a message of n{from}: {}", reason.label()),
        );
        if reason.is_ignore() {
            return;
        }
        let offence = Offence::Gossip(reason.label());
        match self.gossip.hold.cost_of(reason, peer, 0) {
            RejectionCost::Nothing => {}
            RejectionCost::Note => {
                self.peers
                    .note(peer, reason.label(), reason.to_string(), moment);
            }
            RejectionCost::Offence { .. } => {
                self.peers
                    .on_offence(peer, offence, &reason.to_string(), moment);
            }
        }
        let unknown = self.gossip.waiter.as_mut().map(oneshot::Receiver::try_recv);
        if let Some(Ok(_)) = unknown {
            self.gossip.waiter = None;
            let wait = context.dice.random_range(100..3_000) * MILLISECOND;
            self.gossip.reads.push_back(context.now + wait);
        }
    }

    /// Reads the signer from L1 when it is time.
    pub(super) fn read_signer(&mut self, context: &mut SimContext) {
        let now = context.now;
        let waiting = self.gossip.reads.len();
        self.gossip.reads.retain(|at| *at > now);
        let due = self.gossip.reads.len() < waiting;
        if now < self.gossip.next_poll && !due {
            return;
        }
        self.gossip.next_poll = now + context.plan.nodes[self.me].signer_poll;
        let Some(signer) = context.l1.signer() else {
            if due {
                self.gossip.reads.push_back(now + SECOND);
            }
            return;
        };
        let moment = context.moment(self.me);
        if !context.has_bug(PlantedBug::SignerChangeForgotten) {
            self.gossip.check.set_signer(signer, moment.unix);
        }
        if let Some((unknown, held)) = self.gossip.hold.resolve(signer) {
            let reason = Reason::WrongSigner(unknown);
            for (peer, _) in held {
                let offence = Offence::Gossip(reason.label());
                self.peers
                    .on_offence(peer, offence, &reason.to_string(), moment);
            }
        }
        if self.gossip.waiter.is_none() {
            self.gossip.wait_for_unknown_signer();
        }
    }

    /// Publishes a block of our own.
    pub(super) fn publish(&mut self, signer: Address, payload: &Payload, context: &mut SimContext) {
        let (id, tagged) = message(signer, payload);
        let unix = context.moment(self.me).unix;
        let outcome = self
            .gossip
            .check
            .check(payload.version(), &tagged, None, unix);
        self.gossip.is_new(id, context.now);
        if let CheckOutcome::Refused(reason) = &outcome {
            context.history.note(
                context.now,
                self.me,
                format_args!("does not publish {}: {}", payload.id(), reason.label()),
            );
        }
        if matches!(outcome, CheckOutcome::Accepted(_)) {
            self.send_to_all(id, &tagged, context);
            if self.connections.peers().is_empty() {
                self.gossip.unsent = Some((id, tagged));
            }
        }
        self.sync.on_own(payload.hash, context.instant());
    }

    fn send_to_all(&mut self, id: u64, tagged: &Arc<[u8]>, context: &mut SimContext) {
        for to in context.ordered(self.connections.peers()) {
            let tagged = tagged.clone();
            context.send(self.me, to, SimMessage::Gossip { id, tagged });
        }
    }

    /// Sends a block again that has reached no peer.
    pub(super) fn gossip_on_peer(&mut self, other: usize, context: &mut SimContext) {
        if let Some((id, tagged)) = self.gossip.unsent.take() {
            context.send(self.me, other, SimMessage::Gossip { id, tagged });
        }
    }

    /// Lets a hostile peer gossip.
    pub(super) fn gossip_on_second(&mut self, context: &mut SimContext) {
        let hostile = context.plan.nodes[self.me].hostile;
        let count = match hostile {
            Some(Hostility::Floods) => 40,
            Some(
                Hostility::WrongSigner
                | Hostility::GarbageGossip
                | Hostility::Replays
                | Hostility::Tampers,
            ) => 1,
            _ => return,
        };
        for _ in 0..count {
            if let Some((id, tagged)) = self.hostile_message(hostile, context) {
                self.send_to_all(id, &tagged, context);
            }
        }
    }

    fn hostile_message(
        &self,
        hostile: Option<Hostility>,
        context: &mut SimContext,
    ) -> Option<(u64, Arc<[u8]>)> {
        let head = self.head_block()?;
        match hostile? {
            Hostility::WrongSigner => {
                let salt: B256 = context.dice.random::<[u8; 32]>().into();
                let origin = origin_of(&head);
                let origin = context.l1.block(SimL1::number(&origin));
                let block = context.build(&head, &origin, salt)?;
                Some(message(keys::address(100), &block))
            }
            // The same bytes with another id, as gossipsub would forget them after a while.
            Hostility::Replays => {
                let last = self.gossip.last.clone()?;
                Some((context.dice.random(), last))
            }
            Hostility::Tampers => {
                let mut tagged = self.gossip.last.as_deref()?.to_vec();
                let index = context.dice.random_range(70..tagged.len());
                tagged[index] ^= 1;
                Some(with_id(tagged))
            }
            _ => {
                let length = context.dice.random_range(1..400);
                let mut tagged: Vec<u8> = (0..length).map(|_| context.dice.random()).collect();
                tagged[0] = PayloadFlag::Decompressed as u8;
                Some(with_id(tagged))
            }
        }
    }
}
