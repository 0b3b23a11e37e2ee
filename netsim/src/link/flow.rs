//! State of one flow in one direction: a connection, or the datagrams of one client. Each flow has
//! dice of its own, so that its history depends on its own traffic only.

use super::conditions::{DirectionConditions, SEGMENT};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::time::{Duration, Instant};

/// Times that one segment is lost in a row. The last wait is then 32 retransmission timeouts.
const MOST_LOSSES: u32 = 6;

/// Hold of an overtaken datagram: this share of the delay, and at least [`SHORTEST_HOLD`].
const HOLD_SHARE: u32 = 4;
const SHORTEST_HOLD: Duration = Duration::from_millis(1);

/// Segments up to the next one that a fault meets.
#[derive(Clone, Copy, Debug, Default)]
struct SegmentDistance {
    /// The share that `left` was drawn for.
    share: f64,
    /// `None` is never.
    left: Option<u64>,
}

impl SegmentDistance {
    /// Draws anew when the share has changed, which does not bias the draw: the distance has no
    /// memory.
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

    /// Whether the fault meets one of the next `segments`.
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

/// Deviation of the delay in parts of the jitter, over time: straight lines between points drawn from
/// -1 to 1. Points are twice the jitter apart, so that no line falls faster than time passes: packets
/// do not overtake each other, and dense ones are on average as late as single ones.
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

/// Draws for one chunk of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChunkFate {
    /// Losses of its first lost segment in a row.
    pub losses: u32,
    pub reset: bool,
}

/// Draws for one datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramFate {
    pub lost: bool,
    pub twice: bool,
    pub overtaken: bool,
}

pub(super) struct LinkFlow {
    rng: StdRng,
    /// Has dice of its own: they are thrown by time, those of the faults by packets.
    jitter: JitterWalk,
    losses: SegmentDistance,
    resets: SegmentDistance,
    /// Arrival of the newest packet that kept the order.
    floor: Option<Instant>,
    /// Chunks on the way whose segments have to be sent again.
    pub stalls: u32,
    /// The connection has lost data that are not sent again.
    pub dead: bool,
    /// Bytes of a connection that were read and not yet written.
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

    /// Bytes up to the end of the next segment that is lost or reset. A chunk that ends there makes
    /// the share independent of how the data are cut into chunks.
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
        while losses > 0 && losses < MOST_LOSSES && self.meets(loss) {
            losses += 1;
        }
        ChunkFate {
            losses,
            reset: self.resets.passes(segments, &mut self.rng),
        }
    }

    /// Three draws whatever the conditions, so that one of them does not move the others.
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

    /// The arrival of a packet that would be there at `due` if it had the direction for itself.
    pub fn order(&mut self, due: Instant, hold: Duration) -> Instant {
        let due = self.floor.map_or(due, |floor| floor.max(due));
        self.floor = Some(due);
        due + hold
    }
}

/// Share of lost segments. With all of them lost a connection waits, and no draw is needed.
fn lossy(conditions: &DirectionConditions) -> f64 {
    if conditions.loss < 1.0 {
        conditions.loss
    } else {
        0.0
    }
}

/// Wait for a segment that is lost `losses` times in a row: the timeout doubles each time.
pub(super) fn stall(retransmission: Duration, losses: u32) -> Duration {
    retransmission * (2_u32.pow(losses.min(MOST_LOSSES)) - 1)
}

/// Time by which an overtaken datagram is late.
pub(super) fn hold(conditions: &DirectionConditions) -> Duration {
    (conditions.delay / HOLD_SHARE).max(SHORTEST_HOLD)
}
