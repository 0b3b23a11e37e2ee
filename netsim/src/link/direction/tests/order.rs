//! Tests of connections: order is kept, no data are lost for good, memory is bounded.

use super::*;

/// Conditions that change while traffic runs: loss, jitter, rate, and whether the direction is open.
fn changing() -> impl Strategy<Value = DirectionConditions> {
    let rate = prop::option::of(10_000_u64..10_000_000);
    (0_u64..50, 0.0..1.0, rate, 0.0..0.5, any::<bool>()).prop_map(
        |(delay, part, rate, loss, unplugged)| DirectionConditions {
            delay: ms(delay),
            jitter: ms(delay).mul_f64(part),
            bandwidth: rate.map(|rate| LinkBandwidth::new(rate, 100_000)),
            loss: if unplugged && loss > 0.4 { 1.0 } else { loss },
            passage: if unplugged {
                Passage::Unplugged
            } else {
                Passage::Open
            },
            ..DirectionConditions::CLEAR
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Pass(u64),
    Change(DirectionConditions),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0_usize..5_000).prop_map(Step::Send),
        3 => (0_u64..40).prop_map(Step::Pass),
        1 => changing().prop_map(Step::Change),
    ];
    prop::collection::vec(step, 1..150)
}

proptest! {
    #[test]
    fn two_connections_keep_their_order_and_lose_nothing_whatever_changes(
        seed in any::<u64>(), steps in steps()
    ) {
        let mut world = World::new(seed, DirectionConditions::CLEAR);
        let flows = [world.flow, world.direction.open_flow()];
        let (mut arrivals, mut sent, mut lens) = (Vec::new(), 0_u64, Vec::new());
        for step in steps {
            match step {
                Step::Send(len) => {
                    world.flow = flows[(sent % 2) as usize];
                    world.chunk(len, sent);
                    lens.push(len);
                    sent += 1;
                }
                Step::Pass(time) => arrivals.extend(world.pass(ms(time))),
                Step::Change(conditions) => world.set(conditions),
            }
        }
        world.set(DirectionConditions::CLEAR);
        arrivals.extend(world.rest());
        let arrived = delivered(arrivals);
        for (flow, id) in flows.into_iter().enumerate() {
            let of_flow = |it: &u64| it % 2 == flow as u64;
            let expected: Vec<u64> = (0..sent).filter(of_flow).collect();
            let numbers: Vec<u64> = arrived.iter().copied().filter(of_flow).collect();
            prop_assert_eq!(&numbers, &expected);
            for number in numbers {
                world.direction.written(id, lens[number as usize]);
            }
        }
        prop_assert_eq!(world.weight(), 0);
    }

    #[test]
    fn a_closed_flow_leaves_nothing_behind(seed in any::<u64>(), steps in steps()) {
        let mut world = World::new(seed, DirectionConditions::CLEAR);
        let datagrams = world.direction.open_flow();
        let mut number = 0;
        for step in steps {
            match step {
                Step::Send(len) => {
                    world.chunk(len, number);
                    world.direction.datagram(datagrams, len, world.now, number);
                    number += 1;
                }
                Step::Pass(time) => drop(world.pass(ms(time))),
                Step::Change(conditions) => world.set(conditions),
            }
        }
        for flow in [datagrams, world.flow] {
            world.direction.close_flow(flow);
            world.direction.close_flow(flow);
        }
        prop_assert_eq!(world.weight(), 0);
        prop_assert_eq!(world.rest(), vec![]);
        prop_assert_eq!(world.direction.capacity(world.flow), StreamCapacity::WindowFull);
    }
}

/// Reads while there is capacity; returns the number of bytes.
fn fill(world: &mut World) -> usize {
    let mut read = 0;
    while let StreamCapacity::Bytes(room) = world.direction.capacity(world.flow) {
        world.chunk(room, 0);
        read += room;
        assert!(read <= 2 * WINDOW, "no end");
    }
    read
}

#[test]
fn a_connection_whose_peer_does_not_read_stops_at_its_window() {
    let mut world = World::new(1, DirectionConditions::CLEAR);
    let read = fill(&mut world);
    assert!((WINDOW - CHUNK..=WINDOW).contains(&read), "{read}");
    assert_eq!(
        world.direction.capacity(world.flow),
        StreamCapacity::WindowFull
    );
    world.rest();
    assert_eq!(
        world.direction.capacity(world.flow),
        StreamCapacity::WindowFull,
        "arrived is not written"
    );
    world.direction.written(world.flow, CHUNK);
    assert_eq!(
        world.direction.capacity(world.flow),
        StreamCapacity::Bytes(CHUNK)
    );
}

#[test]
fn a_thousand_such_connections_stay_within_the_budget_and_leave_room_for_one_more() {
    let mut world = World::new(1, DirectionConditions::CLEAR);
    for _ in 0..1_000 {
        world.flow = world.direction.open_flow();
        fill(&mut world);
    }
    let most = BUDGET + 1_000 * (SMALLEST_WINDOW + SEGMENT + 2 * PACKET);
    assert!(world.weight() <= most, "{}", world.weight());
    world.flow = world.direction.open_flow();
    assert!(fill(&mut world) >= SMALLEST_WINDOW);
    world.datagram(1_000, 0);
    assert_eq!(world.direction.counts().dropped, 0);
}

#[test]
fn chunks_of_one_byte_count_with_their_memory() {
    let mut world = World::new(1, DirectionConditions::CLEAR);
    let mut chunks = 0;
    while world.direction.capacity(world.flow) != StreamCapacity::WindowFull {
        world.chunk(1, 0);
        chunks += 1;
    }
    assert!(chunks * PACKET <= WINDOW + PACKET, "{chunks}");
}

#[test]
fn datagrams_on_a_long_way_are_bounded() {
    let conditions = DirectionConditions {
        delay: Duration::from_secs(60),
        ..DirectionConditions::CLEAR
    };
    let mut world = World::new(1, conditions);
    for number in 0..2_000 {
        world.datagram(60_000, number);
    }
    assert!(world.weight() <= BUDGET);
    let counts = world.direction.counts();
    assert_eq!(counts.dropped, 2_000 - (BUDGET / (60_000 + PACKET)) as u64);
}
