//! Decides when to propose which block. A pure function: the input is a reading of L1, a reading of
//! the rollup node, and the time. The result is the next step.
//!
//! All intervals are measured by the time of L1's head. While a proposal of our account is not
//! mined, no new one is made, whether this process or a killed predecessor sent it. So every
//! decision takes all earlier proposals into account.

#[cfg(test)]
mod tests;

use super::options::{ProposalTarget, ProposerOptions};
use alloy_primitives::{B256, Bytes, U256};
use starling_proto::payload::BlockId;
use std::time::{Duration, Instant};

/// Largest distance, in L1 blocks, from a block whose hash the contract checks to L1's head. The
/// EVM's `blockhash` knows 256 blocks; the difference leaves time for the transaction to be mined.
const MAX_HASH_AGE: u64 = 200;

/// L1's head at the time of a reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct L1Head {
    pub number: u64,
    pub hash: B256,
    /// Timestamp of the block, in Unix seconds.
    pub time: u64,
}

/// The state of the target contract in a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContractReading {
    /// The L2 block that the oracle accepts next.
    Oracle { next_block: u64 },
    /// Creation time, by L1's clock, of our newest game; `None` if it is older than the interval,
    /// or we have none.
    Factory { newest: Option<u64> },
}

/// A reading of L1 at one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L1Reading {
    pub head: L1Head,
    /// Whether transactions of our account are sent but not mined at that block.
    pub in_flight: bool,
    pub contract: ContractReading,
}

/// A reading of the proposal source: the rollup node or the supervisors. `safe` and `finalized` are
/// sequence numbers: L2 block numbers, or timestamps of super roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceReading {
    /// The L1 block that L2 is derived up to.
    pub current_l1: BlockId,
    /// Number of the newest L1 block that the source knows.
    pub head_l1: u64,
    pub safe: u64,
    pub finalized: u64,
}

/// A root to propose: the output root of an L2 block, or a super root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Number of the L2 block, or timestamp of the super root.
    pub sequence: u64,
    pub root: B256,
    /// Extra data of the game that proposes the root.
    pub extra: Bytes,
    /// The L1 block that L2 was derived up to when the root was read.
    pub current_l1: BlockId,
}

impl Proposal {
    /// A proposal of an L2 block's output root.
    pub fn of_output(block: u64, root: B256, current_l1: BlockId) -> Self {
        Self {
            sequence: block,
            root,
            extra: U256::from(block).to_be_bytes::<32>().into(),
            current_l1,
        }
    }
}

/// The reason why nothing is proposed in this poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The endpoint's L1 head is below the block that includes our last transaction.
    L1Behind { head: u64, need: u64 },
    /// A transaction of our account is not mined yet.
    InFlight,
    /// The rollup node has not derived up to the block that was L1's head at start.
    NodeSync { at: u64, target: u64 },
    /// Our newest game is not old enough until L1's clock has passed this time (Unix seconds).
    Interval { until: u64 },
    /// The next block to propose is not finalized yet (or not safe, if that is enough).
    NotFinal { next: u64, head: u64 },
    /// L2 has no block to propose.
    Nothing,
    /// L1's head must exceed block `number`, the successor of the L1 head that the rollup node
    /// knew.
    L1Head { number: u64 },
    /// The rollup node is so far behind that contracts on L1 may not know its L1 block's hash.
    NodeBehind { at: u64, head: u64 },
}

/// The next step of the proposer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProposerStep {
    Wait(WaitReason),
    /// A transaction of our account is stuck: send an empty one, which replaces it or uses the next
    /// nonce. The transaction manager replaces a predecessor's transaction only when it has a
    /// request, and this schedule makes no request while a transaction is in flight.
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
    /// Time after which a predecessor's transaction counts as stuck (`--resubmission-timeout`).
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

/// A proposal for the oracle that waits until L1 is two blocks above the head that the rollup node
/// knew. Pools refuse a transaction that names a block which they may not have yet.
#[derive(Clone, Debug)]
struct HeldProposal {
    proposal: Proposal,
    above: u64,
}

/// The state between two steps. After a restart, a new schedule makes the same decisions.
#[derive(Clone, Debug)]
pub struct ProposalSchedule {
    rules: ScheduleRules,
    held: Option<HeldProposal>,
    /// Number of L1's head at start; `None` before the first reading.
    sync_target: Option<u64>,
    is_synced: bool,
    /// Time since which transactions of our account are in flight that this process did not send.
    in_flight_since: Option<Instant>,
    /// Number of the L1 block that includes our last transaction.
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

    /// Decides the next step. `now` is a monotonic time, used only to detect stuck transactions.
    pub fn next(&mut self, l1: &L1Reading, source: &SourceReading, now: Instant) -> ProposerStep {
        let ready = self
            .check_l1(l1, now)
            .and_then(|()| self.check_sync(l1, source));
        match ready {
            Ok(()) => self.choose(l1, source),
            Err(step) => step,
        }
    }

    /// Decides the step that follows [`ProposerStep::Read`], with the proposal read.
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

    /// A proposal failed or was not sent (`None`), or a transaction was mined in this block; the
    /// next step reads L1 again.
    pub fn done(&mut self, mined_at: Option<u64>) {
        self.held = None;
        self.mined_at = self.mined_at.max(mined_at.unwrap_or_default());
    }

    fn check_l1(&mut self, l1: &L1Reading, now: Instant) -> Result<(), ProposerStep> {
        let (head, need) = (l1.head.number, self.mined_at);
        // Wait after a reorg, too: L1 soon reaches the same height again.
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

/// Whether contracts on L1 will still know the hash of this block when a proposal is mined.
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
