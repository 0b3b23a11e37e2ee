use super::*;
use alloy_primitives::Address;
use proptest::prelude::*;

const CONTRACT: Address = Address::repeat_byte(0xde);
const INTERVAL: u64 = 600;
const STUCK: Duration = Duration::from_secs(48);

fn rules(target: ProposalTarget) -> ScheduleRules {
    ScheduleRules {
        target,
        allow_non_finalized: false,
        wait_node_sync: false,
        stuck_after: STUCK,
    }
}

fn oracle() -> ProposalSchedule {
    ProposalSchedule::new(rules(ProposalTarget::Oracle(CONTRACT)))
}

fn factory_rules() -> ScheduleRules {
    rules(ProposalTarget::Factory {
        address: CONTRACT,
        game_type: 1,
        interval: INTERVAL,
    })
}

fn factory() -> ProposalSchedule {
    ProposalSchedule::new(factory_rules())
}

/// A reading of L1 at a height; L1 blocks take 12 seconds.
fn l1(number: u64, contract: ContractReading) -> L1Reading {
    L1Reading {
        head: L1Head {
            number,
            hash: B256::repeat_byte(1),
            time: 12 * number,
        },
        in_flight: false,
        contract,
    }
}

fn block(number: u64) -> BlockId {
    BlockId {
        hash: B256::with_last_byte(number as u8),
        number,
    }
}

/// A rollup node that has derived up to L1 block `l1` and has these L2 heads.
fn node(l1: u64, safe: u64, finalized: u64) -> SourceReading {
    SourceReading {
        current_l1: block(l1),
        head_l1: l1,
        safe,
        finalized,
    }
}

fn proposal_of(sequence: u64, source: &SourceReading) -> Proposal {
    Proposal::of_output(
        sequence,
        B256::repeat_byte(sequence as u8),
        source.current_l1,
    )
}

fn next_block(next_block: u64) -> ContractReading {
    ContractReading::Oracle { next_block }
}

fn newest(newest: Option<u64>) -> ContractReading {
    ContractReading::Factory { newest }
}

#[test]
fn the_oracles_block_waits_for_finality_or_for_safety() {
    let now = Instant::now();
    let (l1, node) = (l1(100, next_block(50)), node(100, 60, 49));
    let waits = ProposerStep::Wait(WaitReason::NotFinal { next: 50, head: 49 });
    assert_eq!(oracle().next(&l1, &node, now), waits);
    let mut safe = ProposalSchedule::new(ScheduleRules {
        allow_non_finalized: true,
        ..rules(ProposalTarget::Oracle(CONTRACT))
    });
    assert_eq!(safe.next(&l1, &node, now), ProposerStep::Read(50));
}

#[test]
fn an_output_is_held_until_l1_is_beyond_the_nodes_head() {
    let (now, mut schedule) = (Instant::now(), oracle());
    let first = node(100, 60, 60);
    let (at_100, at_101, at_102) = (
        l1(100, next_block(50)),
        l1(101, next_block(50)),
        l1(102, next_block(50)),
    );
    assert_eq!(schedule.next(&at_100, &first, now), ProposerStep::Read(50));
    let proposal = proposal_of(50, &first);
    let held = ProposerStep::Wait(WaitReason::L1Head { number: 101 });
    assert_eq!(
        schedule.on_proposal(proposal.clone(), &at_100, &first),
        held
    );
    // The rollup node advances, but the proposal keeps its L1 block.
    assert_eq!(schedule.next(&at_101, &node(101, 61, 61), now), held);
    let proposes = ProposerStep::Propose(proposal);
    assert_eq!(schedule.next(&at_102, &node(102, 62, 62), now), proposes);
    // The output is on L1, so the next block is read.
    schedule.done(Some(102));
    let next = l1(102, next_block(60));
    assert_eq!(
        schedule.next(&next, &node(102, 62, 62), now),
        ProposerStep::Read(60)
    );
}

#[test]
fn a_held_output_is_dropped_if_the_oracle_wants_another_block() {
    let (now, mut schedule) = (Instant::now(), oracle());
    let source = node(100, 60, 60);
    schedule.on_proposal(proposal_of(50, &source), &l1(100, next_block(50)), &source);
    let other = l1(110, next_block(40));
    assert_eq!(schedule.next(&other, &source, now), ProposerStep::Read(40));
}

#[test]
fn a_block_whose_hash_l1_has_forgotten_is_not_named() {
    let (now, mut schedule) = (Instant::now(), oracle());
    let source = node(100, 60, 60);
    schedule.on_proposal(proposal_of(50, &source), &l1(100, next_block(50)), &source);
    let late = l1(301, next_block(50));
    let behind = ProposerStep::Wait(WaitReason::NodeBehind { at: 100, head: 301 });
    assert_eq!(schedule.next(&late, &source, now), behind);
    assert_eq!(
        schedule.next(&late, &node(300, 60, 60), now),
        ProposerStep::Read(50)
    );
}

#[test]
fn games_keep_their_interval_by_l1s_clock() {
    let (mut schedule, source) = (factory(), node(100, 80, 70));
    // A jump of the local clock by an hour has no effect.
    let now = Instant::now() + Duration::from_secs(3_600);
    let young = l1(100, newest(Some(12 * 100 - INTERVAL)));
    let waits = ProposerStep::Wait(WaitReason::Interval { until: 1_200 });
    assert_eq!(schedule.next(&young, &source, now), waits);
    let old = l1(100, newest(Some(12 * 100 - INTERVAL - 1)));
    assert_eq!(schedule.next(&old, &source, now), ProposerStep::Read(70));
    let none = l1(100, newest(None));
    assert_eq!(schedule.next(&none, &source, now), ProposerStep::Read(70));
    let proposal = proposal_of(70, &source);
    let proposes = ProposerStep::Propose(proposal.clone());
    assert_eq!(schedule.on_proposal(proposal, &none, &source), proposes);
    let nothing = ProposerStep::Wait(WaitReason::Nothing);
    assert_eq!(schedule.next(&none, &node(100, 80, 0), now), nothing);
    // A creation time near the largest number does not overflow.
    let absurd = l1(100, newest(Some(u64::MAX)));
    assert!(matches!(
        schedule.next(&absurd, &source, now),
        ProposerStep::Wait(WaitReason::Interval { .. })
    ));
}

#[test]
fn an_own_transaction_in_flight_holds_everything_up_until_it_is_stuck() {
    let now = Instant::now();
    for (mut schedule, contract) in [(oracle(), next_block(50)), (factory(), newest(None))] {
        let source = node(100, 60, 60);
        let mut reading = l1(100, contract);
        reading.in_flight = true;
        let waits = ProposerStep::Wait(WaitReason::InFlight);
        assert_eq!(schedule.next(&reading, &source, now), waits);
        let almost = now + STUCK - Duration::from_millis(1);
        assert_eq!(schedule.next(&reading, &source, almost), waits);
        let stuck = schedule.next(&reading, &source, now + STUCK);
        assert_eq!(stuck, ProposerStep::Unblock);
        // The time until a transaction counts as stuck starts again, and is reset when it is mined.
        assert_eq!(schedule.next(&reading, &source, now + STUCK), waits);
        reading.in_flight = false;
        let step = schedule.next(&reading, &source, now + STUCK);
        assert!(matches!(step, ProposerStep::Read(_)), "{step:?}");
    }
}

#[test]
fn an_endpoint_below_our_last_transaction_is_not_believed() {
    let (now, mut schedule, source) = (Instant::now(), factory(), node(100, 60, 60));
    schedule.done(Some(105));
    schedule.done(None);
    for head in [100, 104] {
        let need = 105;
        let waits = ProposerStep::Wait(WaitReason::L1Behind { head, need });
        assert_eq!(schedule.next(&l1(head, newest(None)), &source, now), waits);
    }
    let step = schedule.next(&l1(105, newest(None)), &source, now);
    assert_eq!(step, ProposerStep::Read(60));
}

#[test]
fn wait_node_sync_waits_for_the_l1_head_at_start() {
    let now = Instant::now();
    let mut schedule = ProposalSchedule::new(ScheduleRules {
        wait_node_sync: true,
        ..factory_rules()
    });
    let waits = |at| ProposerStep::Wait(WaitReason::NodeSync { at, target: 100 });
    let none = newest(None);
    assert_eq!(
        schedule.next(&l1(100, none), &node(90, 9, 9), now),
        waits(90)
    );
    assert_eq!(
        schedule.next(&l1(110, none), &node(99, 9, 9), now),
        waits(99)
    );
    let synced = schedule.next(&l1(120, none), &node(100, 9, 9), now);
    assert_eq!(synced, ProposerStep::Read(9));
    // Once synced, the proposer continues even if the node falls behind.
    let later = schedule.next(&l1(900, none), &node(100, 9, 9), now);
    assert_eq!(later, ProposerStep::Read(9));
}

/// A model of L1 with one contract, for a proposer that can be killed at any time.
#[derive(Clone, Debug)]
struct Model {
    is_oracle: bool,
    head: u64,
    finalized: u64,
    /// The transaction that is sent but not mined.
    pool: Option<Proposal>,
    /// Sequence numbers of the mined proposals, each with its time by L1's clock.
    mined: Vec<(u64, u64)>,
    now: Instant,
}

/// L2 blocks between two outputs of the oracle.
const STEP: u64 = 5;

impl Model {
    fn reading(&self) -> L1Reading {
        let time = 12 * self.head;
        let contract = if self.is_oracle {
            next_block(STEP * (self.mined.len() as u64 + 1))
        } else {
            let last = self.mined.last().map(|(_, time)| *time);
            newest(last.filter(|last| *last >= time.saturating_sub(INTERVAL)))
        };
        L1Reading {
            in_flight: self.pool.is_some(),
            ..l1(self.head, contract)
        }
    }

    fn schedule(&self) -> ProposalSchedule {
        if self.is_oracle { oracle() } else { factory() }
    }

    /// Polls once, up to sending the transaction.
    fn poll(&mut self, schedule: &mut ProposalSchedule) {
        let (reading, source) = (
            self.reading(),
            node(self.head, self.finalized, self.finalized),
        );
        let step = match schedule.next(&reading, &source, self.now) {
            ProposerStep::Read(sequence) => {
                schedule.on_proposal(proposal_of(sequence, &source), &reading, &source)
            }
            step => step,
        };
        match step {
            ProposerStep::Propose(proposal) => {
                assert!(self.pool.is_none(), "two transactions at once");
                assert!(proposal.sequence <= self.finalized);
                self.pool = Some(proposal);
            }
            // The empty transaction replaces the pending proposal.
            ProposerStep::Unblock => self.pool = None,
            _ => {}
        }
    }

    fn mine(&mut self) {
        self.head += 1;
        if let Some(proposal) = self.pool.take() {
            self.mined.push((proposal.sequence, 12 * self.head));
        }
    }
}

proptest! {
    /// For any sequence of events on L1, L2, the clock and kills: outputs are proposed in order and
    /// each once, and games keep their interval.
    #[test]
    fn no_output_is_proposed_twice(
        is_oracle: bool,
        actions in proptest::collection::vec((0u8..6, 1u64..60), 1..300),
    ) {
        let mut model = Model {
            is_oracle, head: 1_000, finalized: 0, pool: None, mined: vec![], now: Instant::now(),
        };
        let mut schedule = model.schedule();
        for (action, amount) in actions {
            match action {
                0 | 1 => model.poll(&mut schedule),
                2 => model.mine(),
                // L1 mines empty blocks: the transaction stays in the pool.
                3 => model.head += amount,
                4 => model.finalized += amount,
                _ => {
                    // A kill, and some time until the next start.
                    model.now += Duration::from_secs(amount);
                    schedule = model.schedule();
                }
            }
        }
        if is_oracle {
            let expected: Vec<u64> = (1..=model.mined.len() as u64).map(|n| n * STEP).collect();
            let sequences: Vec<u64> = model.mined.iter().map(|(sequence, _)| *sequence).collect();
            prop_assert_eq!(sequences, expected);
        } else {
            for pair in model.mined.windows(2) {
                prop_assert!(pair[1].1 > pair[0].1 + INTERVAL, "{:?}", pair);
            }
        }
    }
}
