//! The sequencer's schedule: when to start a block, when to seal it, when to wait (op-node's
//! sequencer, timing).
//!
//! Pure: takes the present time and the head, and returns one action. Times are durations since the
//! Unix epoch.

use crate::payload::BlockId;
use std::time::Duration;

/// Pause after a temporary failure.
const RETRY: Duration = Duration::from_secs(1);

/// Options of the sequencer's schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleConfig {
    /// Time between blocks.
    pub block_time: Duration,
    /// Time before a block's timestamp at which the block is sealed
    /// (`--sequencer.sealing-duration`).
    pub sealing: Duration,
    /// Largest number of blocks from the safe head up to the head; 0 means no limit
    /// (`--sequencer.max-safe-lag`).
    pub max_safe_lag: u64,
}

/// The unsafe head, with the number of the safe head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencerHead {
    /// The unsafe head.
    pub id: BlockId,
    /// Timestamp of the unsafe head in Unix seconds.
    pub time: u64,
    /// Number of the safe head.
    pub safe: u64,
}

/// The next action of the sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleAction {
    /// Wait until this time, or until the head changes or a command arrives. `None` waits without a
    /// time limit.
    Wait(Option<Duration>),
    /// Start a block on the head.
    Start,
    /// Seal the open block.
    Seal,
    /// Drop the open block: its parent is no longer the head.
    Drop,
}

/// The kind of failure of a start or a seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepFailure {
    /// L1 or the core failed or did not respond. A later attempt may succeed.
    Temporary,
    /// The block's attributes are impossible at present. Another attempt within the block time
    /// would fail too.
    Attributes,
}

/// The state of the sequencer's schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    config: ScheduleConfig,
    active: bool,
    /// Parent and timestamp of the open block.
    open: Option<(BlockId, u64)>,
    not_before: Duration,
}

impl Schedule {
    /// A schedule that builds blocks at once if `active`, otherwise once it is activated.
    pub fn new(config: ScheduleConfig, active: bool) -> Self {
        Self {
            config,
            active,
            open: None,
            not_before: Duration::ZERO,
        }
    }

    /// Whether blocks are built.
    pub fn active(&self) -> bool {
        self.active
    }

    /// Starts or stops sequencing. An open block is dropped.
    pub fn set_active(&mut self, active: bool) {
        (self.active, self.open, self.not_before) = (active, None, Duration::ZERO);
    }

    /// The action to take at the time `now`.
    pub fn next(&self, now: Duration, head: &SequencerHead) -> ScheduleAction {
        if !self.active {
            return ScheduleAction::Wait(None);
        }
        if let Some((parent, time)) = self.open {
            if parent != head.id {
                return ScheduleAction::Drop;
            }
            // A block that is already late is sealed at once, so a sequencer that catches up builds
            // blocks without a pause.
            return at(
                Duration::from_secs(time).saturating_sub(self.config.sealing),
                now,
                ScheduleAction::Seal,
            );
        }
        if self.is_held(head) {
            return ScheduleAction::Wait(None);
        }
        // Start one block time before the next block's timestamp, to collect transactions for a
        // whole block time.
        at(
            Duration::from_secs(head.time).max(self.not_before),
            now,
            ScheduleAction::Start,
        )
    }

    /// Whether no block is started until the safe head advances ([`ScheduleConfig::max_safe_lag`]).
    pub fn is_held(&self, head: &SequencerHead) -> bool {
        let max_lag = self.config.max_safe_lag;
        let is_far = max_lag > 0 && head.safe.saturating_add(max_lag) <= head.id.number;
        self.active && self.open.is_none() && is_far
    }

    /// Records that a block with the timestamp `time` (Unix seconds) is being built on `parent`.
    pub fn started(&mut self, parent: BlockId, time: u64) {
        self.open = Some((parent, time));
    }

    /// Records that the open block is complete or was dropped.
    pub fn closed(&mut self) {
        self.open = None;
    }

    /// Records a failure of the open block, or of the attempt to start one.
    pub fn failed(&mut self, now: Duration, failure: StepFailure) {
        self.open = None;
        self.not_before = now
            + if failure == StepFailure::Attributes {
                self.config.block_time
            } else {
                RETRY
            };
    }
}

fn at(moment: Duration, now: Duration, action: ScheduleAction) -> ScheduleAction {
    if now >= moment {
        action
    } else {
        ScheduleAction::Wait(Some(moment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::B256;

    fn config() -> ScheduleConfig {
        ScheduleConfig {
            block_time: Duration::from_secs(2),
            sealing: Duration::from_millis(50),
            max_safe_lag: 0,
        }
    }

    fn head(number: u64, time: u64) -> SequencerHead {
        SequencerHead {
            id: BlockId {
                hash: B256::with_last_byte(number as u8),
                number,
            },
            time,
            safe: 0,
        }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_block_is_open_for_its_block_time_and_sealed_just_before_its_time() {
        let mut schedule = Schedule::new(config(), true);
        // No block is started before the head's timestamp.
        assert_eq!(
            schedule.next(ms(99_000), &head(1, 100)),
            ScheduleAction::Wait(Some(ms(100_000)))
        );
        assert_eq!(
            schedule.next(ms(100_000), &head(1, 100)),
            ScheduleAction::Start
        );
        schedule.started(head(1, 100).id, 102);
        assert_eq!(
            schedule.next(ms(100_010), &head(1, 100)),
            ScheduleAction::Wait(Some(ms(101_950)))
        );
        assert_eq!(
            schedule.next(ms(101_950), &head(1, 100)),
            ScheduleAction::Seal
        );
        schedule.closed();
        // The block was sealed 50 ms early; the next block is started at this block's timestamp.
        assert_eq!(
            schedule.next(ms(101_960), &head(2, 102)),
            ScheduleAction::Wait(Some(ms(102_000)))
        );
    }

    /// Simulates a chain that was stopped for a while: the clock moves only while the schedule
    /// waits or a block is built. Returns timestamp and completion time of each block.
    fn run(
        schedule: &mut Schedule,
        now: &mut Duration,
        head: &mut SequencerHead,
        until: Duration,
    ) -> Vec<(u64, Duration)> {
        let mut blocks = vec![];
        while *now < until {
            match schedule.next(*now, head) {
                ScheduleAction::Wait(Some(moment)) => *now = moment,
                ScheduleAction::Wait(None) => break,
                ScheduleAction::Start => {
                    *now += ms(20);
                    schedule.started(head.id, head.time + 2);
                }
                ScheduleAction::Seal => {
                    *now += ms(30);
                    schedule.closed();
                    let number = head.id.number + 1;
                    *head = SequencerHead {
                        id: BlockId {
                            hash: B256::with_last_byte(number as u8),
                            number,
                        },
                        time: head.time + 2,
                        safe: head.safe,
                    };
                    blocks.push((head.time, *now));
                }
                ScheduleAction::Drop => schedule.closed(),
            }
        }
        blocks
    }

    #[test]
    fn behind_the_clock_blocks_follow_each_other_until_it_is_caught_up() {
        let mut schedule = Schedule::new(config(), true);
        let (mut now, mut at) = (ms(1_100_000), head(1, 1_000));
        let blocks = run(&mut schedule, &mut now, &mut at, ms(1_110_000));
        // Every timestamp has a block.
        assert!(
            blocks
                .iter()
                .zip(0..)
                .all(|((time, _), i)| *time == 1_002 + 2 * i)
        );
        // The 51 late blocks take 50 ms each. After them a block is complete every two seconds,
        // close to its timestamp.
        let on_time = blocks
            .iter()
            .position(|(time, made)| *made <= Duration::from_secs(*time))
            .unwrap();
        let (late, punctual) = blocks.split_at(on_time);
        assert_eq!(late.len(), 51);
        assert!(punctual.len() >= 4);
        assert!(
            punctual
                .windows(2)
                .skip(1)
                .all(|pair| pair[1].1 - pair[0].1 == Duration::from_secs(2)),
            "{punctual:?}"
        );
    }

    #[test]
    fn an_open_block_is_dropped_when_the_head_moves_under_it() {
        let mut schedule = Schedule::new(config(), true);
        schedule.started(head(1, 100).id, 102);
        assert_eq!(
            schedule.next(ms(100_100), &head(2, 102)),
            ScheduleAction::Drop
        );
        schedule.closed();
        assert_eq!(
            schedule.next(ms(102_100), &head(2, 102)),
            ScheduleAction::Start
        );
    }

    #[test]
    fn the_safe_lag_holds_the_head() {
        let mut schedule = Schedule::new(
            ScheduleConfig {
                max_safe_lag: 3,
                ..config()
            },
            true,
        );
        let (mut now, mut at) = (
            ms(100_000),
            SequencerHead {
                safe: 5,
                ..head(5, 90)
            },
        );
        run(&mut schedule, &mut now, &mut at, ms(200_000));
        assert_eq!(at.id.number, 8);
        assert!(schedule.is_held(&at));
        assert!(!schedule.is_held(&SequencerHead { safe: 6, ..at }));
        assert_eq!(schedule.next(ms(200_000), &at), ScheduleAction::Wait(None));
        assert_eq!(
            schedule.next(ms(200_000), &SequencerHead { safe: 6, ..at }),
            ScheduleAction::Start
        );
    }

    #[test]
    fn failures_wait_a_second_or_a_block() {
        let mut schedule = Schedule::new(config(), true);
        schedule.failed(ms(100_000), StepFailure::Temporary);
        assert_eq!(
            schedule.next(ms(100_000), &head(1, 90)),
            ScheduleAction::Wait(Some(ms(101_000)))
        );
        assert_eq!(
            schedule.next(ms(101_000), &head(1, 90)),
            ScheduleAction::Start
        );
        schedule.started(head(1, 90).id, 92);
        schedule.failed(ms(101_000), StepFailure::Attributes);
        assert_eq!(
            schedule.next(ms(101_000), &head(1, 90)),
            ScheduleAction::Wait(Some(ms(103_000)))
        );
    }

    #[test]
    fn a_stopped_sequencer_does_nothing() {
        let mut schedule = Schedule::new(config(), false);
        assert_eq!(
            schedule.next(ms(100_000), &head(1, 90)),
            ScheduleAction::Wait(None)
        );
        schedule.set_active(true);
        assert_eq!(
            schedule.next(ms(100_000), &head(1, 90)),
            ScheduleAction::Start
        );
        schedule.started(head(1, 90).id, 92);
        schedule.set_active(false);
        assert_eq!(
            schedule.next(ms(100_000), &head(1, 90)),
            ScheduleAction::Wait(None)
        );
        schedule.set_active(true);
        assert_eq!(
            schedule.next(ms(100_000), &head(1, 90)),
            ScheduleAction::Start,
            "the open block is forgotten"
        );
    }
}
