//! The sequencer's clockwork (op-node's sequencer, timing): when to begin a block, when to seal it, when to hold still.
//!
//! Pure: the moment and the head come in, one action comes out. Moments are durations since the Unix epoch.

use starling_proto::payload::BlockId;
use std::time::Duration;

/// After a failure that may pass by itself.
const RETRY: Duration = Duration::from_secs(1);

/// How to sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleConfig {
    /// Between blocks.
    pub block_time: Duration,
    /// How long before its time a block is sealed (`--sequencer.sealing-duration`).
    pub sealing: Duration,
    /// Blocks the head may be above the safe head; 0 is no limit (`--sequencer.max-safe-lag`).
    pub max_safe_lag: u64,
}

/// Where the chain stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub id: BlockId,
    /// Unix seconds.
    pub time: u64,
    /// Number of the safe head.
    pub safe: u64,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing before this moment, or before the head or the orders change. `None`: nothing until one of those changes.
    Wait(Option<Duration>),
    /// Begin a block on the head.
    Start,
    /// End the open block.
    Seal,
    /// Forget the open block: its parent is not the head any more.
    Drop,
}

/// How a start or a seal failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// L1 or the chain did not answer as they will do later.
    Temporary,
    /// The block itself is impossible at this moment; another one will not be better before its time.
    Attributes,
}

/// When what happens.
#[derive(Clone, Debug)]
pub struct Schedule {
    config: ScheduleConfig,
    active: bool,
    /// Parent and time of the open block.
    open: Option<(BlockId, u64)>,
    not_before: Duration,
}

impl Schedule {
    pub fn new(config: ScheduleConfig, active: bool) -> Self {
        Self {
            config,
            active,
            open: None,
            not_before: Duration::ZERO,
        }
    }

    pub fn active(&self) -> bool {
        self.active
    }

    /// Starts or stops sequencing. An open block is forgotten.
    pub fn set_active(&mut self, active: bool) {
        (self.active, self.open, self.not_before) = (active, None, Duration::ZERO);
    }

    /// What to do at this moment.
    pub fn next(&self, now: Duration, head: &Head) -> Action {
        if !self.active {
            return Action::Wait(None);
        }
        if let Some((parent, time)) = self.open {
            if parent != head.id {
                return Action::Drop;
            }
            // A block that is late already is sealed at once: behind the clock, blocks follow each other without a pause.
            return at(
                Duration::from_secs(time).saturating_sub(self.config.sealing),
                now,
                Action::Seal,
            );
        }
        if self.config.max_safe_lag > 0
            && head.safe.saturating_add(self.config.max_safe_lag) <= head.id.number
        {
            return Action::Wait(None);
        }
        // The next block's time minus the block time: its transactions are collected for a whole block time.
        at(
            Duration::from_secs(head.time).max(self.not_before),
            now,
            Action::Start,
        )
    }

    /// A block at `time` (Unix seconds) is being built on `parent`.
    pub fn started(&mut self, parent: BlockId, time: u64) {
        self.open = Some((parent, time));
    }

    /// The open block is done, or forgotten.
    pub fn closed(&mut self) {
        self.open = None;
    }

    /// The open block, or the attempt to open one, has failed.
    pub fn failed(&mut self, now: Duration, failure: Failure) {
        self.open = None;
        self.not_before = now
            + if failure == Failure::Attributes {
                self.config.block_time
            } else {
                RETRY
            };
    }
}

fn at(moment: Duration, now: Duration, action: Action) -> Action {
    if now >= moment {
        action
    } else {
        Action::Wait(Some(moment))
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

    fn head(number: u64, time: u64) -> Head {
        Head {
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
        // The head's time is still to come: nothing begins before it.
        assert_eq!(
            schedule.next(ms(99_000), &head(1, 100)),
            Action::Wait(Some(ms(100_000)))
        );
        assert_eq!(schedule.next(ms(100_000), &head(1, 100)), Action::Start);
        schedule.started(head(1, 100).id, 102);
        assert_eq!(
            schedule.next(ms(100_010), &head(1, 100)),
            Action::Wait(Some(ms(101_950)))
        );
        assert_eq!(schedule.next(ms(101_950), &head(1, 100)), Action::Seal);
        schedule.closed();
        // Sealed 50 ms early: the next one begins when this one's time has come.
        assert_eq!(
            schedule.next(ms(101_960), &head(2, 102)),
            Action::Wait(Some(ms(102_000)))
        );
    }

    /// A clock that only moves when the schedule waits: what happens to a chain that was stopped for a while.
    fn run(
        schedule: &mut Schedule,
        now: &mut Duration,
        head: &mut Head,
        until: Duration,
    ) -> Vec<(u64, Duration)> {
        let mut blocks = vec![];
        while *now < until {
            match schedule.next(*now, head) {
                Action::Wait(Some(moment)) => *now = moment,
                Action::Wait(None) => break,
                Action::Start => {
                    *now += ms(20);
                    schedule.started(head.id, head.time + 2);
                }
                Action::Seal => {
                    *now += ms(30);
                    schedule.closed();
                    let number = head.id.number + 1;
                    *head = Head {
                        id: BlockId {
                            hash: B256::with_last_byte(number as u8),
                            number,
                        },
                        time: head.time + 2,
                        safe: head.safe,
                    };
                    blocks.push((head.time, *now));
                }
                Action::Drop => schedule.closed(),
            }
        }
        blocks
    }

    #[test]
    fn behind_the_clock_blocks_follow_each_other_until_it_is_caught_up() {
        let mut schedule = Schedule::new(config(), true);
        let (mut now, mut at) = (ms(1_100_000), head(1, 1_000));
        let blocks = run(&mut schedule, &mut now, &mut at, ms(1_110_000));
        // Every timestamp, none left out.
        assert!(
            blocks
                .iter()
                .zip(0..)
                .all(|((time, _), i)| *time == 1_002 + 2 * i)
        );
        // 50 late blocks take 50 ms each; from then on one appears every two seconds, around its own time.
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
        assert_eq!(schedule.next(ms(100_100), &head(2, 102)), Action::Drop);
        schedule.closed();
        assert_eq!(schedule.next(ms(102_100), &head(2, 102)), Action::Start);
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
            Head {
                safe: 5,
                ..head(5, 90)
            },
        );
        run(&mut schedule, &mut now, &mut at, ms(200_000));
        assert_eq!(at.id.number, 8);
        assert_eq!(schedule.next(ms(200_000), &at), Action::Wait(None));
        assert_eq!(
            schedule.next(ms(200_000), &Head { safe: 6, ..at }),
            Action::Start
        );
    }

    #[test]
    fn failures_wait_a_second_or_a_block() {
        let mut schedule = Schedule::new(config(), true);
        schedule.failed(ms(100_000), Failure::Temporary);
        assert_eq!(
            schedule.next(ms(100_000), &head(1, 90)),
            Action::Wait(Some(ms(101_000)))
        );
        assert_eq!(schedule.next(ms(101_000), &head(1, 90)), Action::Start);
        schedule.started(head(1, 90).id, 92);
        schedule.failed(ms(101_000), Failure::Attributes);
        assert_eq!(
            schedule.next(ms(101_000), &head(1, 90)),
            Action::Wait(Some(ms(103_000)))
        );
    }

    #[test]
    fn a_stopped_sequencer_does_nothing() {
        let mut schedule = Schedule::new(config(), false);
        assert_eq!(schedule.next(ms(100_000), &head(1, 90)), Action::Wait(None));
        schedule.set_active(true);
        assert_eq!(schedule.next(ms(100_000), &head(1, 90)), Action::Start);
        schedule.started(head(1, 90).id, 92);
        schedule.set_active(false);
        assert_eq!(schedule.next(ms(100_000), &head(1, 90)), Action::Wait(None));
        schedule.set_active(true);
        assert_eq!(
            schedule.next(ms(100_000), &head(1, 90)),
            Action::Start,
            "the open block is forgotten"
        );
    }
}
