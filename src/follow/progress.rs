//! Log lines of a node that is behind: how fast it catches up, or why it waits. At the head of the
//! network a follower logs nothing here, since each block has a log line of its own there. The
//! node's state is sampled every [`INTERVAL`]. `ProgressLog`, which decides on the lines, is pure.

use crate::{clock::unix_now, rollup::engine::Engine};
use starling_p2p::{Network, SwarmReport, SyncReport};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Time between two samples, and the minimum time between two log lines.
const INTERVAL: Duration = Duration::from_secs(8);
/// Age of the head in seconds from which the node is behind.
const OLD: u64 = 60;
/// Age of the head in seconds from which a node without peers is behind, since no newer block can
/// arrive.
const OLD_ALONE: u64 = 16;
/// Number of missing blocks from which the node is behind, whatever the age of its head.
const MISSING: u64 = 64;
/// Maximum time between two log lines with the same reason.
const LONGEST_PAUSE: Duration = Duration::from_secs(512);

/// The state of the node at one moment.
struct ProgressSample {
    now: Instant,
    head: u64,
    /// Age of the head in seconds.
    age: u64,
    /// Number of connected peers, and the gap that the swarm fills. `None` if a rollup node in
    /// another process sends the blocks.
    swarm: Option<(usize, SyncReport)>,
}

impl ProgressSample {
    fn is_behind(&self) -> bool {
        let old = if matches!(self.swarm, Some((0, _))) {
            OLD_ALONE
        } else {
            OLD
        };
        self.age > old
            || self
                .swarm
                .as_ref()
                .is_some_and(|(_, sync)| sync.missing > MISSING)
    }
}

/// The contents of a log line.
#[derive(Debug, PartialEq)]
enum ProgressLine {
    Imported { blocks: u64, rate: f64 },
    Waiting { reason: String },
}

/// The last sample, and the last log line about waiting.
struct ProgressLog {
    at: Instant,
    head: u64,
    behind: bool,
    waiting: Option<LoggedWait>,
}

/// The logged reason why the node waits, and the time at which it is logged again.
struct LoggedWait {
    reason: String,
    pause: Duration,
    again: Instant,
}

impl ProgressLog {
    fn new(at: Instant, head: u64) -> Self {
        Self {
            at,
            head,
            behind: false,
            waiting: None,
        }
    }

    fn look(&mut self, sample: &ProgressSample) -> Option<ProgressLine> {
        let blocks = sample.head.saturating_sub(self.head);
        let seconds = sample.now.saturating_duration_since(self.at).as_secs_f64();
        let behind = sample.is_behind();
        // Log the last blocks of a gap as well. Without a follower, blocks have no other log line.
        let logged =
            std::mem::replace(&mut self.behind, behind) || behind || sample.swarm.is_none();
        (self.at, self.head) = (sample.now, sample.head);
        if blocks > 0 || !behind {
            self.waiting = None;
            let rate = (blocks as f64 / seconds.max(0.001) * 10.0).round() / 10.0;
            return (logged && blocks > 0).then_some(ProgressLine::Imported { blocks, rate });
        }
        self.wait(sample)
    }

    /// Handles a sample without new blocks. The same reason is logged at growing intervals.
    fn wait(&mut self, sample: &ProgressSample) -> Option<ProgressLine> {
        let reason = reason(sample);
        let pause = match &self.waiting {
            Some(logged) if is_same(&logged.reason, &reason) && sample.now < logged.again => {
                return None;
            }
            Some(logged) if is_same(&logged.reason, &reason) => LONGEST_PAUSE.min(logged.pause * 2),
            _ => INTERVAL,
        };
        self.waiting = Some(LoggedWait {
            reason: reason.clone(),
            pause,
            again: sample.now + pause,
        });
        Some(ProgressLine::Waiting { reason })
    }
}

/// Whether two reasons differ only in their numbers, such as the seconds since a request.
fn is_same(one: &str, other: &str) -> bool {
    fn words(reason: &str) -> impl Iterator<Item = &str> {
        reason
            .split(' ')
            .filter(|word| word.parse::<u64>().is_err())
    }
    words(one).eq(words(other))
}

fn reason(sample: &ProgressSample) -> String {
    let Some((peers, sync)) = &sample.swarm else {
        return "the rollup node has sent no newer block".into();
    };
    match sync {
        _ if *peers == 0 => "no peer is connected".into(),
        SyncReport {
            stalled: Some(stalled),
            ..
        } => stalled.clone(),
        SyncReport { target: None, .. } => "no peer has sent or announced a newer block".into(),
        SyncReport { starved: true, .. } => {
            "every peer that was asked for the missing blocks has failed lately".into()
        }
        SyncReport {
            peers: 0,
            source: None,
            ..
        } => "no peer serves blocks".into(),
        SyncReport { linked: false, .. } => {
            "the hashes from the newest block down to a known one are being fetched".into()
        }
        _ => "the missing blocks are being fetched".into(),
    }
}

/// Logs progress until the token is cancelled. `network` is set on a follower.
pub async fn run(
    engine: Engine,
    network: Option<Network>,
    token: CancellationToken,
) -> anyhow::Result<()> {
    // Take the first sample later, since peers need time to connect.
    let mut looks = tokio::time::interval_at(tokio::time::Instant::now() + INTERVAL, INTERVAL);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut progress = ProgressLog::new(Instant::now(), engine.heads().borrow().head.number);
    loop {
        let report = async {
            looks.tick().await;
            match &network {
                Some(network) => network.report().await.map(Some),
                None => Ok(None),
            }
        };
        let Some(report) = token.run_until_cancelled(report).await else {
            return Ok(());
        };
        let report = match report {
            Ok(report) => report,
            Err(_) if token.is_cancelled() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        log_progress(&mut progress, &engine, report);
    }
}

/// Samples the node's state, and logs a line if one is due.
fn log_progress(progress: &mut ProgressLog, engine: &Engine, report: Option<SwarmReport>) {
    let swarm = report.map(|report| {
        let connected = report.peers.iter().filter(|peer| peer.connected).count();
        (connected, report.sync)
    });
    let heads = *engine.heads().borrow();
    let (head, age) = (heads.head, unix_now().saturating_sub(heads.timestamp));
    let peers = swarm.as_ref().map(|(peers, _)| *peers);
    let missing = swarm
        .as_ref()
        .map(|(_, sync)| sync.missing)
        .filter(|missing| *missing > 0);
    // While a rollup node owns the head, it determines how fast the head moves, except while a gap
    // is filled from peers.
    let driven = engine.head_owner().borrow().is_rollup_node();
    let swarm = swarm.filter(|(_, sync)| !driven || sync.target.is_some());
    match progress.look(&ProgressSample {
        now: Instant::now(),
        head: head.number,
        age,
        swarm,
    }) {
        Some(ProgressLine::Imported { blocks, rate }) => {
            tracing::info!(blocks, number = head.number, hash = %head.hash, age, rate, missing, peers, "imported blocks");
        }
        Some(ProgressLine::Waiting { reason }) => {
            tracing::info!(
                reason,
                number = head.number,
                age,
                missing,
                peers,
                "waiting for blocks"
            );
        }
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A replica whose state is sampled every eight seconds.
    struct Replica {
        progress: ProgressLog,
        sample: ProgressSample,
    }

    impl Replica {
        fn new() -> Self {
            let now = Instant::now();
            let sync = SyncReport {
                target: None,
                missing: 0,
                linked: true,
                waiting: 0,
                requests: 0,
                peers: 2,
                source: None,
                starved: false,
                stalled: None,
            };
            Self {
                progress: ProgressLog::new(now, 0),
                sample: ProgressSample {
                    now,
                    head: 0,
                    age: 0,
                    swarm: Some((2, sync)),
                },
            }
        }

        fn peers(&mut self) -> &mut usize {
            &mut self.sample.swarm.as_mut().unwrap().0
        }

        fn sync(&mut self) -> &mut SyncReport {
            &mut self.sample.swarm.as_mut().unwrap().1
        }

        fn after(&mut self, blocks: u64) -> Option<ProgressLine> {
            self.sample.now += INTERVAL;
            self.sample.head += blocks;
            self.progress.look(&self.sample)
        }

        fn said_in(&mut self, looks: usize) -> usize {
            (0..looks).filter(|_| self.after(0).is_some()).count()
        }
    }

    fn waiting(reason: &str) -> Option<ProgressLine> {
        Some(ProgressLine::Waiting {
            reason: reason.into(),
        })
    }

    #[test]
    fn nothing_is_said_at_the_head() {
        let mut replica = Replica::new();
        for blocks in [4, 4, 0, 5, 3, 80, 0] {
            assert_eq!(replica.after(blocks), None);
        }
        replica.sync().missing = 3;
        assert_eq!(replica.after(4), None, "a small gap is filled at once");
    }

    #[test]
    fn a_gap_is_followed_to_its_end() {
        let mut replica = Replica::new();
        replica.sample.age = 9_000;
        (replica.sync().target, replica.sync().missing) = (Some(4_500), 4_500);
        assert_eq!(
            replica.after(0),
            waiting("the missing blocks are being fetched")
        );
        replica.sync().missing = 500;
        assert_eq!(
            replica.after(4_000),
            Some(ProgressLine::Imported {
                blocks: 4_000,
                rate: 500.0
            })
        );
        replica.sample.age = 1;
        (replica.sync().target, replica.sync().missing) = (None, 0);
        assert_eq!(
            replica.after(501),
            Some(ProgressLine::Imported {
                blocks: 501,
                rate: 62.6
            }),
            "its last blocks"
        );
        assert_eq!(replica.after(4), None);
    }

    #[test]
    fn the_same_reason_is_said_less_and_less_often_and_another_at_once() {
        let mut replica = Replica::new();
        (replica.sample.age, *replica.peers()) = (20, 0);
        assert_eq!(replica.after(0), waiting("no peer is connected"));
        // During one day, the reason is logged after 8, 16, 32 … 512 s more, then every 512 s.
        assert_eq!(replica.said_in(10_800), 173);
        *replica.peers() = 1;
        assert_eq!(replica.after(0), None, "with peers such a head is not old");
        replica.sample.age = 100;
        assert_eq!(
            replica.after(0),
            waiting("no peer has sent or announced a newer block")
        );
        (
            replica.sync().target,
            replica.sync().missing,
            replica.sync().starved,
        ) = (Some(9), 9, true);
        assert_eq!(
            replica.after(0),
            waiting("every peer that was asked for the missing blocks has failed lately")
        );
        replica.sync().stalled = Some("block 9 from nobody".into());
        assert_eq!(replica.after(0), waiting("block 9 from nobody"));
        assert_eq!(replica.said_in(2), 1);
        for seconds in [15, 23, 31, 39] {
            replica.sync().stalled = Some(format!(
                "block 9 has not come for {seconds} s: no peer that serves blocks is connected"
            ));
            assert_eq!(
                replica.after(0).is_some(),
                [15, 23, 39].contains(&seconds),
                "{seconds}"
            );
        }
        assert!(matches!(
            replica.after(1),
            Some(ProgressLine::Imported { blocks: 1, .. })
        ));
    }

    #[test]
    fn without_a_follower_every_block_counts() {
        let mut core = Replica::new();
        core.sample.swarm = None;
        assert_eq!(
            core.after(4),
            Some(ProgressLine::Imported {
                blocks: 4,
                rate: 0.5
            })
        );
        assert_eq!(core.after(0), None);
        core.sample.age = 61;
        assert_eq!(
            core.after(0),
            waiting("the rollup node has sent no newer block")
        );
    }
}
