//! Conditions of a link: for each direction the faults of its traffic, and for the link the faults
//! of its connections. Conditions are checked before they take effect, so that the rest of the code
//! never gets a share above one or a time that no clock reaches.

use std::{num::NonZeroU64, time::Duration};

/// Payload of a TCP segment in an Ethernet frame, in bytes. Loss and resets of a connection are
/// drawn per segment.
pub const SEGMENT: usize = 1_460;

/// Longest delay, jitter and accept delay. Any connection times out before that.
const LONGEST: Duration = Duration::from_secs(3_600);

/// Smallest addition to the round trip in Linux's retransmission timeout (TCP_RTO_MIN).
const RETRANSMISSION_MARGIN: Duration = Duration::from_millis(200);

/// Smallest MTU that IPv4 allows (RFC 791), in bytes.
const SMALLEST_MTU: u16 = 68;

/// Whether a direction carries traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Passage {
    #[default]
    Open,
    /// A pulled cable. Data of connections wait until the direction opens again, since TCP
    /// retransmits them; datagrams are lost.
    Unplugged,
    /// A peer or a NAT that has lost its state. Everything that is sent disappears, and connections
    /// stay open. A connection that has lost data never carries data in this direction again.
    HalfOpen,
}

/// The rate of a direction, and the size of the queue before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkBandwidth {
    /// Bytes per second.
    pub rate: NonZeroU64,
    /// Largest number of bytes in the queue. Further datagrams are dropped. Connections stop
    /// reading at half of this size, so that datagrams can use the rest.
    pub queue: usize,
}

impl LinkBandwidth {
    /// A limit of `rate` bytes per second, with a queue of `queue` bytes.
    ///
    /// # Panics
    ///
    /// Panics if the rate is zero. Use [`Passage::Unplugged`] for that.
    pub const fn new(rate: u64, queue: usize) -> Self {
        match NonZeroU64::new(rate) {
            Some(rate) => Self { rate, queue },
            None => panic!("a rate of zero: use Passage::Unplugged"),
        }
    }
}

/// The conditions of one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DirectionConditions {
    /// Propagation delay, one way.
    pub delay: Duration,
    /// Largest deviation from `delay`, up or down. The deviation changes over time for each
    /// connection and each client, so that their packets keep their order.
    pub jitter: Duration,
    /// The rate limit; `None` means unlimited.
    pub bandwidth: Option<LinkBandwidth>,
    /// Share of datagrams, and of the segments of a connection, that are lost. A connection stalls
    /// for a retransmission timeout. With a share of one, the data of connections wait as if
    /// unplugged.
    pub loss: f64,
    /// Share of datagrams that are overtaken by later ones.
    pub reorder: f64,
    /// Share of datagrams that arrive twice.
    pub duplicate: f64,
    /// Share of the segments of a connection to which the far end responds with a reset.
    pub reset: f64,
    /// Share of packets in which one bit is flipped. Only the packet backend has it.
    pub corrupt: f64,
    /// Largest packet that passes, in bytes, with its IP header; `None` means that of the sender's
    /// device. Only the packet backend has it.
    pub mtu: Option<u16>,
    pub passage: Passage,
}

impl DirectionConditions {
    /// Conditions without any fault or limit.
    pub const CLEAR: Self = Self {
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        bandwidth: None,
        loss: 0.0,
        reorder: 0.0,
        duplicate: 0.0,
        reset: 0.0,
        corrupt: 0.0,
        mtu: None,
        passage: Passage::Open,
    };

    fn check(&self) -> Result<(), LinkConditionError> {
        let shares = [
            ("loss", self.loss),
            ("reorder", self.reorder),
            ("duplicate", self.duplicate),
            ("reset", self.reset),
            ("corrupt", self.corrupt),
        ];
        for (field, share) in shares {
            if !(0.0..=1.0).contains(&share) {
                return Err(LinkConditionError::Share { field, share });
            }
        }
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu < SMALLEST_MTU) {
            return Err(LinkConditionError::Mtu { mtu });
        }
        LinkConditionError::longest("delay", self.delay)?;
        if self.jitter > self.delay {
            return Err(LinkConditionError::Jitter {
                jitter: self.jitter,
                delay: self.delay,
            });
        }
        Ok(())
    }
}

impl Default for DirectionConditions {
    fn default() -> Self {
        Self::CLEAR
    }
}

/// The conditions of a link between two ends, near and far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkConditions {
    /// Conditions from the near end to the far end.
    pub up: DirectionConditions,
    /// Conditions from the far end to the near end.
    pub down: DirectionConditions,
    /// Time before a new connection is accepted, as with an overloaded listener.
    pub accept_delay: Duration,
    /// Whether the link refuses all traffic: it refuses and resets connections, and drops datagrams.
    pub refuse: bool,
}

impl LinkConditions {
    /// Conditions without any fault or limit.
    pub const CLEAR: Self = Self::symmetric(DirectionConditions::CLEAR);

    /// The same conditions in both directions.
    pub const fn symmetric(direction: DirectionConditions) -> Self {
        Self {
            up: direction,
            down: direction,
            accept_delay: Duration::ZERO,
            refuse: false,
        }
    }

    /// These conditions with near and far end exchanged.
    pub const fn reversed(self) -> Self {
        Self {
            up: self.down,
            down: self.up,
            ..self
        }
    }

    /// Checks all values; the error names the first invalid one.
    pub fn check(&self) -> Result<(), LinkConditionError> {
        self.up.check()?;
        self.down.check()?;
        LinkConditionError::longest("accept_delay", self.accept_delay)
    }

    /// Time after which a sender retransmits a lost segment: the timeout of RFC 6298 on an idle
    /// link, with Linux's lower bound.
    pub fn retransmission(&self) -> Duration {
        let jitter = 4 * (self.up.jitter + self.down.jitter);
        self.up.delay + self.down.delay + jitter.max(RETRANSMISSION_MARGIN)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum LinkConditionError {
    #[error("{field} of {share} is no share: write a number from 0 to 1")]
    Share { field: &'static str, share: f64 },
    #[error(
        "jitter of {jitter:?} exceeds the delay of {delay:?}, so that packets would arrive before \
         they are sent: lower the jitter or raise the delay"
    )]
    Jitter { jitter: Duration, delay: Duration },
    #[error("mtu of {mtu} is too small for IPv4: write at least {SMALLEST_MTU}")]
    Mtu { mtu: u16 },
    #[error(
        "{field} of {time:?} exceeds {longest:?}: use Passage::Unplugged to stop traffic",
        longest = LONGEST
    )]
    Long { field: &'static str, time: Duration },
}

impl LinkConditionError {
    fn longest(field: &'static str, time: Duration) -> Result<(), Self> {
        if time > LONGEST {
            return Err(Self::Long { field, time });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut LinkConditions)) -> String {
        let mut conditions = LinkConditions::CLEAR;
        change(&mut conditions);
        conditions.check().unwrap_err().to_string()
    }

    #[test]
    fn conditions_that_make_no_sense_are_refused() {
        assert_eq!(LinkConditions::CLEAR.check(), Ok(()));
        let share = "loss of 1.5 is no share: write a number from 0 to 1";
        assert_eq!(refused(|it| it.up.loss = 1.5), share);
        assert!(refused(|it| it.down.reorder = -0.1).starts_with("reorder of -0.1"));
        assert!(refused(|it| it.down.duplicate = f64::NAN).starts_with("duplicate of NaN"));
        assert!(refused(|it| it.up.reset = f64::INFINITY).starts_with("reset of inf"));
        assert!(refused(|it| it.up.corrupt = 2.0).starts_with("corrupt of 2"));
        let mtu = refused(|it| it.down.mtu = Some(67));
        assert_eq!(mtu, "mtu of 67 is too small for IPv4: write at least 68");
        let jitter = refused(|it| it.up.jitter = Duration::from_millis(1));
        assert!(jitter.starts_with("jitter of 1ms exceeds the delay of 0ns"));
        let long = refused(|it| it.down.delay = Duration::MAX);
        assert!(long.starts_with("delay of "), "{long}");
        let long = refused(|it| it.accept_delay = Duration::from_secs(3_601));
        assert!(long.starts_with("accept_delay of 3601s exceeds 3600s"));
    }

    #[test]
    fn a_retransmission_takes_the_round_trip_and_a_margin() {
        let mut conditions = LinkConditions::CLEAR;
        conditions.up.delay = Duration::from_millis(30);
        conditions.down.delay = Duration::from_millis(20);
        assert_eq!(conditions.retransmission(), Duration::from_millis(250));
        conditions.down.jitter = Duration::from_millis(75);
        assert_eq!(conditions.retransmission(), Duration::from_millis(350));
        assert_eq!(conditions.reversed().up, conditions.down);
    }
}
