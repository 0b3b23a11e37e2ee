//! The state of one flow in one direction: a connection, or the datagrams of one client. Each flow
//! has a random generator of its own, so that its history depends only on its own traffic.

use super::conditions::{DirectionConditions, SEGMENT};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::time::{Duration, Instant};

/// Largest number of losses of one segment in a row. The last wait is then 32 retransmission
/// timeouts.
const MAX_LOSSES: u32 = 6;

/// Extra delay of an overtaken datagram: the delay divided by this number, and at least
/// [`SHORTEST_HOLD`].
const HOLD_SHARE: u32 = 4;
const SHORTEST_HOLD: Duration = Duration::from_millis(1);

/// The number of segments until the next one with a given fault.
#[derive(Clone, Copy, Debug, Default)]
struct SegmentDistance {
    /// The share of faults for which `left` was drawn.
    share: f64,
    /// Number of segments left; `None` if the fault never occurs.
    left: Option<u64>,
}

impl SegmentDistance {
    /// Draws again if the share has changed. This does not bias the draw, since the distribution of
    /// the distance is memoryless.
    fn adopt(&mut self, share: f64, rng: &mut StdRng) {
        if self.share != share {
            self.draw(share, rng);
        }
    }

    fn draw(&mut self, share: f64, rng: &mut StdRng) {
        self.share = share;
        self.left = if share <= 0.0 {
            None
        } else if share >= 1.0 {
            Some(1)
        } else {
            let uniform = 1.0 - rng.random::<f64>();
            Some((uniform.ln() / (-share).ln_1p()).ceil().max(1.0) as u64)
        };
    }

    /// Whether the fault occurs in one of the next `segments`.
    fn passes(&mut self, segments: u64, rng: &mut StdRng) -> bool {
        match &mut self.left {
            None => false,
            Some(left) if *left > segments => {
                *left -= segments;
                false
            }
            Some(_) => {
                self.draw(self.share, rng);
                true
            }
        }
    }
}

/// The deviation of the delay over time, as a fraction of the jitter: straight lines between points
/// drawn from -1 to 1. Points are twice the jitter apart, so the deviation never falls faster than
/// time passes. Packets therefore do not overtake each other, and dense packets are on average as
/// late as single ones.
struct JitterWalk {
    rng: StdRng,
    line: Option<JitterLine>,
}

#[derive(Clone, Copy)]
struct JitterLine {
    start: Instant,
    length: Duration,
    from: f64,
    to: f64,
}

impl JitterWalk {
    fn at(&mut self, now: Instant, jitter: Duration) -> f64 {
        if jitter.is_zero() {
            return 0.0;
        }
        let length = 2 * jitter;
        let line = match self.line {
            Some(line) if now < line.start + line.length => line,
            Some(line) if now < line.start + line.length + length => JitterLine {
                start: line.start + line.length,
                length,
                from: line.to,
                to: self.draw(),
            },
            _ => JitterLine {
                start: now,
                length,
                from: self.draw(),
                to: self.draw(),
            },
        };
        self.line = Some(line);
        let passed = now.saturating_duration_since(line.start);
        let part = passed.as_secs_f64() / line.length.as_secs_f64();
        line.from + (line.to - line.from) * part
    }

    fn draw(&mut self) -> f64 {
        self.rng.random_range(-1.0..1.0)
    }
}

/// The random outcome for one chunk of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChunkFate {
    /// Number of losses in a row of the chunk's first lost segment.
    pub losses: u32,
    pub reset: bool,
}

/// The random outcome for one datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramFate {
    pub lost: bool,
    pub twice: bool,
    pub overtaken: bool,
}

pub(super) struct LinkFlow {
    rng: StdRng,
    /// The jitter has a random generator of its own: it draws as time passes, while faults draw per
    /// packet.
    jitter: JitterWalk,
    losses: SegmentDistance,
    resets: SegmentDistance,
    /// Latest arrival in order so far, without the holds of overtaken datagrams.
    floor: Option<Instant>,
    /// Number of chunks on the way with segments that have to be retransmitted.
    pub stalls: u32,
    /// Whether the connection has lost data that are never retransmitted.
    pub dead: bool,
    /// Number of bytes of the connection that were read and not yet written.
    pub unwritten: usize,
}

impl LinkFlow {
    pub fn new(mut rng: StdRng) -> Self {
        Self {
            jitter: JitterWalk {
                rng: StdRng::from_rng(&mut rng),
                line: None,
            },
            rng,
            losses: SegmentDistance::default(),
            resets: SegmentDistance::default(),
            floor: None,
            stalls: 0,
            dead: false,
            unwritten: 0,
        }
    }

    /// Number of bytes up to the end of the next segment that is lost or reset. If a chunk ends
    /// there, the share of faults does not depend on how the data are cut into chunks.
    pub fn clean(&mut self, conditions: &DirectionConditions) -> usize {
        self.losses.adopt(lossy(conditions), &mut self.rng);
        self.resets.adopt(conditions.reset, &mut self.rng);
        let distances = [self.losses.left, self.resets.left];
        let segments = distances.into_iter().flatten().min();
        let segments = segments.and_then(|it| usize::try_from(it).ok());
        segments.map_or(usize::MAX, |it| it.saturating_mul(SEGMENT))
    }

    pub fn chunk(&mut self, conditions: &DirectionConditions, len: usize) -> ChunkFate {
        let loss = lossy(conditions);
        self.losses.adopt(loss, &mut self.rng);
        self.resets.adopt(conditions.reset, &mut self.rng);
        let segments = len.div_ceil(SEGMENT).max(1) as u64;
        let mut losses = u32::from(self.losses.passes(segments, &mut self.rng));
        while losses > 0 && losses < MAX_LOSSES && self.meets(loss) {
            losses += 1;
        }
        ChunkFate {
            losses,
            reset: self.resets.passes(segments, &mut self.rng),
        }
    }

    /// The outcome for one datagram. It always takes three draws, so that changing one condition
    /// does not shift the draws of the others.
    pub fn datagram(&mut self, conditions: &DirectionConditions) -> DatagramFate {
        DatagramFate {
            lost: self.meets(conditions.loss),
            twice: self.meets(conditions.duplicate),
            overtaken: self.meets(conditions.reorder),
        }
    }

    fn meets(&mut self, share: f64) -> bool {
        self.rng.random::<f64>() < share
    }

    /// Delay of a packet that departs now.
    pub fn delay(&mut self, conditions: &DirectionConditions, now: Instant) -> Duration {
        let jitter = conditions.jitter;
        let late = jitter.mul_f64(1.0 + self.jitter.at(now, jitter));
        (conditions.delay + late).saturating_sub(jitter)
    }

    /// The arrival of a packet that, alone in the direction, would arrive at `due`. A packet does
    /// not overtake earlier ones, except those held back by a `hold`.
    pub fn order(&mut self, due: Instant, hold: Duration) -> Instant {
        let due = self.floor.map_or(due, |floor| floor.max(due));
        self.floor = Some(due);
        due + hold
    }
}

/// Share of lost segments. If all are lost, a connection waits, and no draw is needed.
fn lossy(conditions: &DirectionConditions) -> f64 {
    if conditions.loss < 1.0 {
        conditions.loss
    } else {
        0.0
    }
}

/// Wait for a segment that is lost `losses` times in a row: the timeout doubles with each loss.
pub(super) fn stall(retransmission: Duration, losses: u32) -> Duration {
    retransmission * (2_u32.pow(losses.min(MAX_LOSSES)) - 1)
}

/// Extra delay of an overtaken datagram.
pub(super) fn hold(conditions: &DirectionConditions) -> Duration {
    (conditions.delay / HOLD_SHARE).max(SHORTEST_HOLD)
}
