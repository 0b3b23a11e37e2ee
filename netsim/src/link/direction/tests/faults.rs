//! Tests of the shares of faults, and of directions that are not open.

use super::*;

const PACKETS: u64 = 20_000;

fn near(share: f64, expected: f64) {
    assert!((share - expected).abs() < 0.01, "{share} for {expected}");
}

fn share(count: u64) -> f64 {
    count as f64 / PACKETS as f64
}

#[test]
fn the_shares_of_lost_overtaken_and_doubled_datagrams_are_those_asked_for() {
    for (seed, asked) in [(1, 0.0), (2, 0.003), (3, 0.05), (4, 0.3), (5, 1.0)] {
        let lossy = DirectionConditions {
            loss: asked,
            ..Default::default()
        };
        let doubling = DirectionConditions {
            duplicate: asked,
            ..Default::default()
        };
        for conditions in [lossy, doubling] {
            let mut world = World::new(seed, conditions);
            let mut arrived = 0;
            for number in 0..PACKETS {
                world.datagram(100, number);
                arrived += world.pass(Duration::from_micros(10)).len() as u64;
            }
            near(share(arrived), 1.0 - conditions.loss + conditions.duplicate);
            let counts = world.direction.counts();
            assert_eq!(counts.packets + counts.duplicated, arrived + counts.lost);
            assert_eq!(world.weight(), 0);
        }
    }
}

#[test]
fn jitter_makes_a_dense_flow_no_later_on_average() {
    let conditions = DirectionConditions {
        delay: ms(50),
        jitter: ms(20),
        ..Default::default()
    };
    let mut world = World::new(9, conditions);
    let mut arrivals = Vec::new();
    for number in 0..PACKETS {
        world.datagram(100, number);
        arrivals.extend(world.pass(ms(1)));
    }
    arrivals.extend(world.rest());
    let sent = (0..PACKETS).map(ms);
    let times: Vec<Duration> = arrivals
        .iter()
        .zip(sent)
        .map(|(it, at)| it.0 - at)
        .collect();
    let mean = times.iter().sum::<Duration>() / PACKETS as u32;
    assert!((ms(48)..ms(52)).contains(&mean), "{mean:?}");
    assert!(times.iter().any(|it| *it < ms(33)));
    assert!(times.iter().any(|it| *it > ms(67)));
}

#[test]
fn overtaken_datagrams_arrive_late_and_the_others_in_order() {
    let conditions = DirectionConditions {
        delay: ms(40),
        reorder: 0.1,
        ..Default::default()
    };
    let mut world = World::new(7, conditions);
    let mut arrivals = Vec::new();
    for number in 0..PACKETS {
        world.datagram(100, number);
        arrivals.extend(world.pass(ms(1)));
    }
    arrivals.extend(world.rest());
    let (mut late, mut newest) = (0, 0);
    for (at, arrival) in &arrivals {
        let LinkArrival::Delivered(number) = arrival else {
            panic!("{arrival:?}");
        };
        if *at == ms(number + 40) {
            assert!(*number >= newest);
            newest = *number;
        } else {
            assert_eq!(*at, ms(number + 50), "a quarter of the delay");
            late += 1;
        }
    }
    near(share(late), 0.1);
    assert_eq!(world.direction.counts().reordered, late);
    assert_eq!(arrivals.len() as u64, PACKETS);
}

/// Sends 20,000 segments, each time as many bytes as there is capacity for, but at most `largest`.
/// Returns the number of stalls and of segments that were retransmitted.
fn stream(largest: usize, conditions: DirectionConditions) -> [u64; 2] {
    let mut world = World::new(11, conditions);
    let (mut left, mut stalls) = (PACKETS as usize * SEGMENT, 0);
    while left > 0 {
        let len = match world.direction.capacity(world.flow) {
            StreamCapacity::Bytes(room) => room.min(left).min(largest),
            full => panic!("{full:?}"),
        };
        world.chunk(len, 0);
        left -= len;
        let waiting = world.direction.capacity(world.flow) == StreamCapacity::WindowFull;
        let (sent, arrivals) = (world.now - world.start, world.rest());
        assert_eq!(arrivals.len(), 1);
        if waiting {
            assert!(arrivals[0].0 >= sent + RETRANSMISSION);
            stalls += 1;
        } else {
            assert_eq!(arrivals[0].0, sent);
        }
        world.direction.written(world.flow, len);
    }
    [stalls, world.direction.counts().retransmitted]
}

#[test]
fn a_lost_segment_stalls_its_connection_however_the_data_are_cut() {
    for loss in [0.0, 0.005, 0.05, 0.3] {
        let conditions = DirectionConditions {
            loss,
            ..Default::default()
        };
        for largest in [SEGMENT, 2 * SEGMENT, CHUNK] {
            let [stalls, retransmitted] = stream(largest, conditions);
            near(share(stalls), loss);
            let again = retransmitted as f64 / stalls.max(1) as f64;
            let expected = if loss > 0.0 { 1.0 / (1.0 - loss) } else { 0.0 };
            assert!((again - expected).abs() < 0.1, "{again} for {expected}");
        }
    }
}

#[test]
fn resets_meet_their_share_of_segments() {
    let conditions = DirectionConditions {
        reset: 0.01,
        ..Default::default()
    };
    let mut world = World::new(13, conditions);
    let mut resets = 0;
    for number in 0..PACKETS {
        world.chunk(SEGMENT, number);
        for (_, arrival) in world.rest() {
            resets += u64::from(arrival == LinkArrival::Reset(number));
        }
        world.direction.written(world.flow, SEGMENT);
    }
    assert!((100..300).contains(&resets), "{resets}");
    assert_eq!(world.direction.counts().resets, resets);
}

#[test]
fn an_unplugged_direction_keeps_chunks_and_loses_datagrams() {
    let open = DirectionConditions {
        delay: ms(10),
        ..Default::default()
    };
    let mut world = World::new(1, open);
    world.chunk(10, 0);
    world.datagram(10, 1);
    world.set(DirectionConditions {
        passage: Passage::Unplugged,
        ..open
    });
    world.chunk(10, 2);
    world.datagram(10, 3);
    assert_eq!(world.pass(ms(60_000)), vec![]);
    assert_eq!(world.direction.counts().lost, 2);
    world.set(open);
    let expected = [0, 2].map(|number| (ms(60_000), LinkArrival::Delivered(number)));
    assert_eq!(world.pass(Duration::ZERO), expected);
}

#[test]
fn with_a_loss_of_one_chunks_wait_as_if_unplugged() {
    let lossy = DirectionConditions {
        loss: 1.0,
        ..Default::default()
    };
    let mut world = World::new(1, lossy);
    world.chunk(10, 0);
    assert_eq!(world.rest(), vec![]);
    world.set(DirectionConditions::CLEAR);
    assert_eq!(delivered(world.pass(Duration::ZERO)), [0]);
}

#[test]
fn a_connection_that_lost_data_in_a_half_open_direction_stays_dead() {
    let mut world = World::new(1, DirectionConditions::CLEAR);
    let idle = world.direction.open_flow();
    world.set(DirectionConditions {
        passage: Passage::HalfOpen,
        ..Default::default()
    });
    world.chunk(10, 0);
    world.chunk(10, 1);
    world.datagram(10, 2);
    let once = [(Duration::ZERO, LinkArrival::Swallowed(0))];
    assert_eq!(world.pass(ms(1)), once);
    world.set(DirectionConditions::CLEAR);
    world.chunk(10, 3);
    assert_eq!(
        world.direction.capacity(world.flow),
        StreamCapacity::Bytes(CHUNK)
    );
    assert_eq!(world.rest(), vec![]);
    assert_eq!(world.direction.counts().swallowed, 4);
    assert_eq!(world.weight(), 0);
    // A connection that sent nothing while the direction was half-open still works.
    world.flow = idle;
    world.chunk(10, 4);
    assert_eq!(delivered(world.rest()), [4]);
}
