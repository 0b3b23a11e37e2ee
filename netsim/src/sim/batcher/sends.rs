//! The transaction manager of the batcher: the production machine of the account, whose actions are
//! carried out on the L1 of the world. An outage of L1 fails them, and a response may be lost.

use crate::sim::{context::SimContext, l1::account::AccountTx, planted::PlantedBug};
use alloy_primitives::{Address, B256, Bytes};
use starling::machines::{
    MinedTx, PublishResult, SendAction, SendEvent, SendFailure, SendId, SendMachine, SendRules,
    SendSettings, SendWork, SignedTx, TxClass, TxOptions,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

/// Time in the pool until fees are raised: two L1 blocks, so that worlds of a few minutes have
/// replacements.
const RESUBMISSION: Duration = Duration::from_secs(24);

/// A request that is not finished.
struct PostRequest {
    /// Number of the transaction for the channel manager.
    number: u64,
    data: Bytes,
}

/// The machine of the account, and what its shell keeps.
pub struct BatcherSends {
    machine: SendMachine,
    last_id: SendId,
    requests: BTreeMap<SendId, PostRequest>,
    signed: BTreeMap<B256, AccountTx>,
    /// Nonces of transactions that were in a block.
    included: BTreeSet<u64>,
    finished: Vec<(SendId, Result<MinedTx, SendFailure>)>,
    stopped: Option<String>,
}

fn settings() -> SendSettings {
    let defaults = TxOptions::default().settings();
    let defaults = defaults.expect("the default options are valid");
    SendSettings {
        rules: SendRules {
            resubmission_timeout: RESUBMISSION,
            ..defaults.rules
        },
        fees: defaults.fees,
    }
}

impl BatcherSends {
    pub fn new(now: Instant) -> Self {
        Self {
            machine: SendMachine::new(Address::repeat_byte(0xba), settings(), now),
            last_id: 0,
            requests: BTreeMap::new(),
            signed: BTreeMap::new(),
            included: BTreeSet::new(),
            finished: Vec::new(),
            stopped: None,
        }
    }

    /// Number of requests that are not finished.
    pub fn pending(&self) -> usize {
        self.machine.pending()
    }

    /// Requests a transaction with this data.
    pub fn submit(&mut self, number: u64, data: Bytes, context: &mut SimContext) {
        self.last_id += 1;
        let id = self.last_id;
        self.requests.insert(id, PostRequest { number, data });
        let class = TxClass::Calldata;
        self.handle(SendEvent::Submit { id, class }, context);
    }

    pub fn tick(&mut self, context: &mut SimContext) {
        self.handle(SendEvent::Tick, context);
    }

    /// The finished requests by the channel manager's numbers, with the L1 block that has the
    /// transaction, or `None` if the request failed.
    pub fn take_outcomes(
        &mut self,
        node: usize,
        context: &mut SimContext,
    ) -> Vec<(u64, Option<u64>)> {
        let now = context.now;
        if let Some(sentence) = self.stopped.take() {
            let detail = format!("the transaction manager stops: {sentence}");
            context.checks.fail(now, node, "batcher", detail);
        }
        let mut outcomes = Vec::new();
        for (id, result) in std::mem::take(&mut self.finished) {
            let Some(request) = self.requests.remove(&id) else {
                let detail = format!("request {id} is finished twice");
                context.checks.fail(now, node, "batcher", detail);
                continue;
            };
            match &result {
                Ok(mined) => check_mined(&request, mined, node, context),
                Err(error) => {
                    let text = format_args!("fails to post: {error}");
                    context.history.note(now, node, text);
                }
            }
            outcomes.push((request.number, result.ok().map(|mined| mined.block)));
        }
        outcomes
    }

    /// Delivers an event, and the events that follow from the machine's actions.
    fn handle(&mut self, event: SendEvent, context: &mut SimContext) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.machine.handle(event, context.instant()) {
                events.extend(self.act(action, context));
            }
        }
    }

    /// Carries out an action. Returns the event that it results in.
    fn act(&mut self, action: SendAction, context: &mut SimContext) -> Option<SendEvent> {
        let now = context.now;
        match action {
            SendAction::ReadFees { op } => {
                let fees = context.l1.fees(now);
                return Some(SendEvent::Fees { op, fees });
            }
            SendAction::Sign {
                op,
                nonce,
                work,
                caps,
                ..
            } => {
                let tx = AccountTx::new(nonce, caps, self.data_of(work, context));
                let signed = Ok(SignedTx {
                    hash: tx.hash,
                    raw: tx.data.clone(),
                    gas: 21_000,
                });
                self.signed.insert(tx.hash, tx);
                return Some(SendEvent::Signed { op, signed });
            }
            SendAction::Publish { op, tx, .. } => {
                let answer = self.publish(&tx.hash, context);
                return Some(SendEvent::Published { op, answer });
            }
            SendAction::Poll {
                op,
                deep_block,
                with_age,
                hashes,
            } => {
                let reading = context.l1.reading(deep_block, with_age, &hashes, now);
                if let Ok(reading) = &reading {
                    let receipts = reading.receipts.iter();
                    let mined = receipts.filter(|(_, mined)| mined.is_some());
                    let nonces = mined.filter_map(|(hash, _)| self.signed.get(hash));
                    self.included.extend(nonces.map(|tx| tx.nonce));
                }
                return Some(SendEvent::Polled { op, reading });
            }
            SendAction::Finished { id, result } => self.finished.push((id, result)),
            SendAction::Stopped(sentence) => self.stopped = Some(sentence),
            // These are for the log.
            SendAction::Included { .. }
            | SendAction::NotBumped { .. }
            | SendAction::Filling { .. }
            | SendAction::Adopted { .. }
            | SendAction::ReorgedOut { .. } => {
                let text = format_args!("transaction manager: {action:?}");
                context.history.note(now, 0, text);
            }
        }
        None
    }

    /// The data of a transaction; empty for a filler.
    fn data_of(&self, work: SendWork, context: &SimContext) -> Bytes {
        let SendWork::Request(mut id) = work else {
            return Bytes::new();
        };
        if context.has_bug(PlantedBug::DataSwapped) && self.requests.contains_key(&(id - 1)) {
            id -= 1;
        }
        let request = self.requests.get(&id);
        request.map_or_else(Bytes::new, |request| request.data.clone())
    }

    fn publish(&mut self, hash: &B256, context: &mut SimContext) -> PublishResult {
        let Some(tx) = self.signed.get(hash).cloned() else {
            return PublishResult::Refused("the transaction is not signed".to_owned());
        };
        let is_forgotten = context.has_bug(PlantedBug::RepostForgotten);
        if is_forgotten && self.included.contains(&tx.nonce) {
            return PublishResult::Accepted;
        }
        let (now, nonce, fee) = (context.now, tx.nonce, tx.caps.fee);
        let answer = context.l1.publish(tx, now, &mut context.dice);
        let text =
            format_args!("publishes nonce {nonce} for at most {fee} wei per gas: {answer:?}");
        context.history.note(now, 0, text);
        answer
    }
}

/// A finished request has its own data in the block of L1 that the machine names.
fn check_mined(request: &PostRequest, mined: &MinedTx, node: usize, context: &mut SimContext) {
    let tx = context.l1.in_block(mined.block, &mined.hash);
    if tx.is_none_or(|tx| tx.data != request.data) {
        let detail = format!(
            "transaction {} of L1 block {} is reported, with other data than the batcher's",
            mined.hash, mined.block
        );
        context.checks.fail(context.now, node, "posted", detail);
    }
}
