//! Decides what is proposed, and when. Pure: one reading of L1, one of the rollup node, and the
//! time in; a step out.
//!
//! The clock of all intervals is the time of L1's head. A proposal of ours that is not mined yet
//! holds everything up, whoever sent it: this process, or a predecessor that was killed. So each
//! decision sees every earlier one.

#[cfg(test)]
mod tests;

use super::options::{ProposalTarget, ProposerOptions};
use alloy_primitives::{B256, Bytes, U256};
use starling_proto::payload::BlockId;
use std::time::{Duration, Instant};

/// L1 blocks between L1's head and a block whose hash a contract checks. `blockhash` knows 256; the
/// difference is time for the transaction to be mined.
const MAX_HASH_AGE: u64 = 200;

/// The head of L1 that a reading belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct L1Head {
    pub number: u64,
    pub hash: B256,
    /// Unix seconds.
    pub time: u64,
}

/// The contract's part of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContractReading {
    /// The L2 block that the oracle takes next.
    Oracle { next_block: u64 },
    /// L1's time at the creation of our newest game; `None` if it is older than the interval.
    Factory { newest: Option<u64> },
}

/// L1 after one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L1Reading {
    pub head: L1Head,
    /// Transactions of our account that are sent and not mined in that block.
    pub in_flight: bool,
    pub contract: ContractReading,
}

/// A reading of the proposal source: the rollup node or the supervisors. `safe` and `finalized` are
/// sequence numbers: L2 block numbers, or timestamps of super roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceReading {
    /// The L1 block up to which L2 is derived.
    pub current_l1: BlockId,
    /// Number of the newest L1 block that the node knows.
    pub head_l1: u64,
    pub safe: u64,
    pub finalized: u64,
}

/// A root to propose: the output root of an L2 block, or a super root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Number of the L2 block, or time of the super root.
    pub sequence: u64,
    pub root: B256,
    /// Extra data of a game.
    pub extra: Bytes,
    /// The L1 block that L2 was derived up to when the root was read.
    pub current_l1: BlockId,
}

impl Proposal {
    /// The proposal of a block's output root.
    pub fn of_output(block: u64, root: B256, current_l1: BlockId) -> Self {
        Self {
            sequence: block,
            root,
            extra: U256::from(block).to_be_bytes::<32>().into(),
            current_l1,
        }
    }
}

/// The reason why nothing is proposed now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The endpoint's head is below the block that has our last transaction.
    L1Behind { head: u64, need: u64 },
    /// A transaction of ours is not mined.
    InFlight,
    /// The rollup node has not derived up to the head that L1 had at start.
    NodeSync { at: u64, target: u64 },
    /// L1's clock has not passed this time, Unix seconds, by which our newest game is old enough.
    Interval { until: u64 },
    /// The block is not final, or not safe, yet.
    NotFinal { next: u64, head: u64 },
    /// L2 has no block to propose.
    Nothing,
    /// L1's head is not above block `number`, the one after the head that the rollup node knew.
    L1Head { number: u64 },
    /// The rollup node is so far behind L1 that L1 does not know the hash of its block any more.
    NodeBehind { at: u64, head: u64 },
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProposerStep {
    Wait(WaitReason),
    /// A transaction of our account is stuck: send an empty one, which takes its place or follows it. The
    /// transaction manager only replaces a predecessor's transaction when it has a request, and this schedule
    /// makes none while one is in flight.
    Unblock,
    /// Read the root of this sequence number, then call [`ProposalSchedule::on_proposal`].
    Read(u64),
    Propose(Proposal),
}

/// Settings of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleRules {
    pub target: ProposalTarget,
    /// `--allow-non-finalized`.
    pub allow_non_finalized: bool,
    /// `--wait-node-sync`.
    pub wait_node_sync: bool,
    /// Time after which a transaction that a predecessor sent is stuck (`--resubmission-timeout`).
    pub stuck_after: Duration,
}

impl ScheduleRules {
    pub fn new(options: &ProposerOptions, target: ProposalTarget) -> Self {
        Self {
            target,
            allow_non_finalized: options.allow_non_finalized,
            wait_node_sync: options.wait_node_sync,
            stuck_after: options.tx.resubmission_timeout,
        }
    }
}

/// A proposal for the oracle, held until L1 is two blocks above the head that the rollup node knew: pools refuse
/// a transaction that names a block which they may not have.
#[derive(Clone, Debug)]
struct HeldProposal {
    proposal: Proposal,
    above: u64,
}

/// The state between two steps. A new one after a restart decides the same.
#[derive(Clone, Debug)]
pub struct ProposalSchedule {
    rules: ScheduleRules,
    held: Option<HeldProposal>,
    /// L1's head at start; `None` before the first reading.
    sync_target: Option<u64>,
    is_synced: bool,
    /// Time since which transactions of our account have been in flight that this process did not send.
    in_flight_since: Option<Instant>,
    /// The block that has our last transaction.
    mined_at: u64,
}

impl ProposalSchedule {
    pub fn new(rules: ScheduleRules) -> Self {
        Self {
            rules,
            held: None,
            sync_target: None,
            is_synced: !rules.wait_node_sync,
            in_flight_since: None,
            mined_at: 0,
        }
    }

    pub fn rules(&self) -> &ScheduleRules {
        &self.rules
    }

    /// The next step. `now` is a monotonic time of this process; only stuck transactions use it.
    pub fn next(&mut self, l1: &L1Reading, source: &SourceReading, now: Instant) -> ProposerStep {
        let ready = self
            .check_l1(l1, now)
            .and_then(|()| self.check_sync(l1, source));
        match ready {
            Ok(()) => self.choose(l1, source),
            Err(step) => step,
        }
    }

    /// The step after [`ProposerStep::Read`], with what was read.
    pub fn on_proposal(
        &mut self,
        proposal: Proposal,
        l1: &L1Reading,
        source: &SourceReading,
    ) -> ProposerStep {
        if let ProposalTarget::Factory { .. } = self.rules.target {
            return ProposerStep::Propose(proposal);
        }
        let held = HeldProposal {
            proposal,
            above: source.head_l1.saturating_add(1),
        };
        let step = release(&held, l1);
        self.held = Some(held);
        step
    }

    /// A transaction of ours was mined in this block, or failed; the next step reads anew.
    pub fn done(&mut self, mined_at: Option<u64>) {
        self.held = None;
        self.mined_at = self.mined_at.max(mined_at.unwrap_or_default());
    }

    fn check_l1(&mut self, l1: &L1Reading, now: Instant) -> Result<(), ProposerStep> {
        let (head, need) = (l1.head.number, self.mined_at);
        // After a reorg too, L1 is soon as high as before.
        if head < need {
            return Err(ProposerStep::Wait(WaitReason::L1Behind { head, need }));
        }
        if !l1.in_flight {
            self.in_flight_since = None;
            return Ok(());
        }
        let since = *self.in_flight_since.get_or_insert(now);
        if now.saturating_duration_since(since) < self.rules.stuck_after {
            return Err(ProposerStep::Wait(WaitReason::InFlight));
        }
        self.in_flight_since = None;
        Err(ProposerStep::Unblock)
    }

    fn check_sync(&mut self, l1: &L1Reading, source: &SourceReading) -> Result<(), ProposerStep> {
        if self.is_synced {
            return Ok(());
        }
        let target = *self.sync_target.get_or_insert(l1.head.number);
        let at = source.current_l1.number;
        if at < target {
            return Err(ProposerStep::Wait(WaitReason::NodeSync { at, target }));
        }
        self.is_synced = true;
        Ok(())
    }

    fn choose(&mut self, l1: &L1Reading, source: &SourceReading) -> ProposerStep {
        let head = if self.rules.allow_non_finalized {
            source.safe
        } else {
            source.finalized
        };
        match (l1.contract, self.rules.target) {
            (ContractReading::Oracle { next_block }, _) => {
                self.choose_output(next_block, head, l1, source)
            }
            (ContractReading::Factory { newest }, ProposalTarget::Factory { interval, .. }) => {
                let until = newest.map(|created| created.saturating_add(interval));
                match until {
                    Some(until) if l1.head.time <= until => {
                        ProposerStep::Wait(WaitReason::Interval { until })
                    }
                    _ if head == 0 => ProposerStep::Wait(WaitReason::Nothing),
                    _ => ProposerStep::Read(head),
                }
            }
            (ContractReading::Factory { .. }, ProposalTarget::Oracle(_)) => {
                ProposerStep::Wait(WaitReason::Nothing)
            }
        }
    }

    fn choose_output(
        &mut self,
        next: u64,
        head: u64,
        l1: &L1Reading,
        source: &SourceReading,
    ) -> ProposerStep {
        if next > head {
            self.held = None;
            return ProposerStep::Wait(WaitReason::NotFinal { next, head });
        }
        let usable = |held: &&HeldProposal| {
            held.proposal.sequence == next && is_recent(held.proposal.current_l1, l1)
        };
        if let Some(held) = self.held.as_ref().filter(usable) {
            return release(held, l1);
        }
        self.held = None;
        if is_recent(source.current_l1, l1) {
            return ProposerStep::Read(next);
        }
        ProposerStep::Wait(WaitReason::NodeBehind {
            at: source.current_l1.number,
            head: l1.head.number,
        })
    }
}

/// Whether contracts know the hash of the block.
fn is_recent(block: BlockId, l1: &L1Reading) -> bool {
    l1.head.number.saturating_sub(block.number) <= MAX_HASH_AGE
}

fn release(held: &HeldProposal, l1: &L1Reading) -> ProposerStep {
    if l1.head.number > held.above {
        ProposerStep::Propose(held.proposal.clone())
    } else {
        ProposerStep::Wait(WaitReason::L1Head { number: held.above })
    }
}
