use super::*;
use crate::LinkBandwidth;
use proptest::prelude::*;

mod faults;
mod order;

const RETRANSMISSION: Duration = Duration::from_millis(200);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A direction with a clock that the test advances. Items are numbers.
struct World {
    direction: LinkDirection<u64>,
    start: Instant,
    now: Instant,
    flow: FlowId,
}

impl World {
    fn new(seed: u64, conditions: DirectionConditions) -> Self {
        let start = Instant::now();
        let rng = StdRng::seed_from_u64(seed);
        let mut direction = LinkDirection::new(conditions, RETRANSMISSION, rng, start);
        Self {
            flow: direction.open_flow(),
            direction,
            start,
            now: start,
        }
    }

    fn set(&mut self, conditions: DirectionConditions) {
        self.direction.set(conditions, RETRANSMISSION, self.now);
    }

    fn weight(&self) -> usize {
        self.direction.datagrams + self.direction.unwritten
    }

    fn datagram(&mut self, len: usize, number: u64) {
        self.direction.datagram(self.flow, len, self.now, number);
    }

    fn chunk(&mut self, len: usize, number: u64) {
        self.direction.chunk(self.flow, len, self.now, number);
    }

    /// Advances the clock by `time`. Returns the arrivals, each with the time that the direction
    /// reports.
    fn pass(&mut self, time: Duration) -> Vec<(Duration, LinkArrival<u64>)> {
        let end = self.now + time;
        let mut arrivals = Vec::new();
        loop {
            while let Some(arrival) = self.direction.poll(self.now) {
                arrivals.push((self.now - self.start, arrival));
            }
            match self.direction.due().filter(|due| *due <= end) {
                Some(due) => self.now = self.now.max(due),
                None => break,
            }
        }
        self.now = end;
        arrivals
    }

    /// Advances the clock like [`Self::pass`], until no packet is on the way.
    fn rest(&mut self) -> Vec<(Duration, LinkArrival<u64>)> {
        self.pass(Duration::from_secs(100_000))
    }
}

fn delivered(arrivals: Vec<(Duration, LinkArrival<u64>)>) -> Vec<u64> {
    let numbers = arrivals.into_iter().map(|(_, arrival)| match arrival {
        LinkArrival::Delivered(number) => number,
        other => panic!("{other:?}"),
    });
    numbers.collect()
}

fn limited(rate: u64, queue: usize) -> DirectionConditions {
    DirectionConditions {
        bandwidth: Some(LinkBandwidth::new(rate, queue)),
        ..DirectionConditions::CLEAR
    }
}

/// A sequence of packets: the pause before each in microseconds, its length, and its kind.
fn traffic() -> impl Strategy<Value = Vec<(u64, usize, bool)>> {
    let packet = (0_u64..5_000, 1_usize..20_000, any::<bool>());
    prop::collection::vec(packet, 1..80)
}

proptest! {
    #[test]
    fn without_a_limit_each_packet_arrives_after_the_delay(
        packets in traffic(), delay in 0_u64..400_000
    ) {
        let delay = Duration::from_micros(delay);
        let mut world = World::new(1, DirectionConditions { delay, ..Default::default() });
        let mut arrivals = Vec::new();
        let mut expected = Vec::new();
        for (number, (pause, len, stream)) in (0..).zip(packets) {
            arrivals.extend(world.pass(Duration::from_micros(pause)));
            expected.push((world.now - world.start + delay, LinkArrival::Delivered(number)));
            if stream {
                world.chunk(len, number);
            } else {
                world.datagram(len, number);
            }
        }
        arrivals.extend(world.rest());
        prop_assert_eq!(arrivals, expected);
    }

    #[test]
    fn jitter_stays_within_its_bounds_and_keeps_the_order(
        seed in any::<u64>(), packets in traffic(), delay in 0_u64..100_000, part in 0.0..1.0
    ) {
        let delay = Duration::from_micros(delay);
        let jitter = delay.mul_f64(part);
        let mut world = World::new(seed, DirectionConditions { delay, jitter, ..Default::default() });
        let (mut arrivals, mut sent) = (Vec::new(), Vec::new());
        for (number, (pause, len, _)) in (0..).zip(packets) {
            arrivals.extend(world.pass(Duration::from_micros(pause)));
            sent.push(world.now - world.start);
            world.datagram(len, number);
        }
        arrivals.extend(world.rest());
        prop_assert_eq!(arrivals.len(), sent.len());
        for (number, (at, arrival)) in (0..).zip(arrivals) {
            prop_assert_eq!(arrival, LinkArrival::Delivered(number as u64));
            let sent: Duration = sent[number];
            prop_assert!(at >= sent + delay - jitter, "{:?} {:?}", at, sent);
            prop_assert!(at <= sent + delay + jitter, "{:?} {:?}", at, sent);
        }
    }

    #[test]
    fn no_interval_carries_more_than_the_rate_and_a_burst(
        packets in traffic(), rate in 10_000_u64..100_000_000
    ) {
        let mut world = World::new(1, limited(rate, 1 << 30));
        let (mut arrivals, mut lens) = (Vec::new(), Vec::new());
        for (number, (pause, len, stream)) in (0..).zip(packets) {
            arrivals.extend(world.pass(Duration::from_micros(pause)));
            lens.push(len);
            if stream {
                world.chunk(len, number);
            } else {
                world.datagram(len, number);
            }
        }
        arrivals.extend(world.rest());
        prop_assert_eq!(arrivals.len(), lens.len());
        let burst = (rate / 1_000).max(1_514) as f64;
        for first in 0..arrivals.len() {
            // The packet that ends the previous interval is counted in that interval.
            let mut bytes = 0;
            for last in first + 1..arrivals.len() {
                bytes += lens[last];
                let time = (arrivals[last].0 - arrivals[first].0).as_secs_f64();
                let most = time * rate as f64 + burst + 1.0;
                prop_assert!(bytes as f64 <= most, "{} bytes in {} s", bytes, time);
            }
        }
    }

    #[test]
    fn a_full_queue_leaves_at_the_rate(rate in 10_000_u64..100_000_000, len in 100_usize..10_000) {
        let mut world = World::new(1, limited(rate, 1 << 30));
        for number in 0..200 {
            world.datagram(len, number);
        }
        let (end, _) = world.rest().pop().unwrap();
        let exact = 200.0 * len as f64 / rate as f64;
        prop_assert!((end.as_secs_f64() / exact - 1.0).abs() < 1e-3, "{:?} and not {} s", end, exact);
    }

    #[test]
    fn a_seed_and_the_same_traffic_give_the_same_history(
        seed in any::<u64>(), packets in traffic()
    ) {
        let conditions = DirectionConditions {
            delay: ms(20),
            jitter: ms(10),
            loss: 0.2,
            reorder: 0.2,
            duplicate: 0.2,
            reset: 0.01,
            ..limited(1_000_000, 30_000)
        };
        let history = |seed| {
            let mut world = World::new(seed, conditions);
            let mut arrivals = Vec::new();
            for (number, (pause, len, stream)) in (0..).zip(&packets) {
                arrivals.extend(world.pass(Duration::from_micros(*pause)));
                if *stream {
                    world.chunk(*len, number);
                } else {
                    world.datagram(*len, number);
                }
            }
            arrivals.extend(world.rest());
            (arrivals, world.direction.counts())
        };
        prop_assert_eq!(history(seed), history(seed));
        // Jitter alone makes the histories of two seeds differ, unless no packet arrives.
        if !history(seed).0.is_empty() {
            prop_assert_ne!(history(seed), history(seed ^ 1));
        }
    }
}

#[test]
fn a_datagram_that_finds_the_queue_full_is_dropped() {
    let mut world = World::new(1, limited(1_000, 5_000));
    for number in 0..8 {
        world.datagram(1_000, number);
    }
    assert_eq!(world.direction.counts().dropped, 3);
    // One packet has departed, so the queue has capacity for one.
    let early = world.pass(ms(1_000));
    assert_eq!(early, [(ms(1_000), LinkArrival::Delivered(0))]);
    world.datagram(1_000, 8);
    world.datagram(1_000, 9);
    assert_eq!(delivered(world.rest()), [1, 2, 3, 4, 8]);
    assert_eq!(world.direction.counts().dropped, 4);
    // A datagram larger than the queue passes an empty queue; otherwise it could never pass.
    world.datagram(60_000, 10);
    assert_eq!(delivered(world.rest()), [10]);
    assert_eq!(world.weight(), 0);
}

#[test]
fn connections_stop_reading_at_half_of_the_queue() {
    let mut world = World::new(1, limited(1_000_000, 100_000));
    let mut read = 0;
    while let StreamCapacity::Bytes(room) = world.direction.capacity(world.flow) {
        world.chunk(room, 0);
        read += room;
        assert!(read < 100_000, "no end");
    }
    assert_eq!(
        world.direction.capacity(world.flow),
        StreamCapacity::QueueFull
    );
    assert!((50_000..50_000 + SEGMENT).contains(&read), "{read}");
    // The other half of the queue is for datagrams.
    let datagrams = world.direction.open_flow();
    world.direction.datagram(datagrams, 45_000, world.now, 1);
    assert_eq!(world.direction.counts().dropped, 0);
    world.pass(ms(60));
    assert_eq!(
        world.direction.capacity(world.flow),
        StreamCapacity::Bytes(SEGMENT),
        "the chunks have left"
    );
}

#[test]
fn a_new_rate_and_a_new_delay_hold_for_what_is_queued() {
    let mut world = World::new(1, limited(1_000, 1 << 20));
    for number in 0..10 {
        world.datagram(1_000, number);
    }
    assert_eq!(world.pass(ms(1_500)).len(), 1);
    world.set(DirectionConditions {
        delay: ms(40),
        ..limited(1_000_000, 1 << 20)
    });
    let arrivals = world.rest();
    assert_eq!(arrivals[0].0, Duration::from_micros(1_540_500));
    assert_eq!(arrivals[8].0, Duration::from_micros(1_548_500));
    world.set(DirectionConditions::CLEAR);
    world.datagram(1_000_000, 10);
    assert_eq!(world.direction.due(), Some(world.now));
}
