use super::*;
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);
const ENDLESS: Duration = Duration::from_secs(1_000_000);
const LIMIT: Duration = Duration::from_secs(5);

fn address(n: u8) -> Client {
    Client::Address(IpAddr::from([203, 0, 113, n]))
}

/// A call on the simulated machine.
struct Work {
    client: Client,
    needs: Duration,
    left: Duration,
    /// Time run that the client was not charged for yet.
    uncharged: Duration,
    entered: Instant,
    deadline: Instant,
}

/// A simulated machine with its own clock, which runs the calls that the scheduler grants.
struct Machine {
    scheduler: Scheduler,
    now: Instant,
    calls: HashMap<CallId, Work>,
    /// Running calls, with the ends of their slices.
    running: HashMap<CallId, Instant>,
    /// Calls that have ended: the client, the time from entry to end, and the time run.
    ended: Vec<(Client, Duration, Duration)>,
}

impl Machine {
    fn new(permits: usize, started: usize) -> Self {
        let scheduler = Scheduler::new(Capacity { permits, started });
        Self {
            scheduler,
            now: Instant::now(),
            calls: HashMap::new(),
            running: HashMap::new(),
            ended: vec![],
        }
    }

    fn enter(&mut self, client: Client, needs: Duration) -> CallId {
        let id = self.scheduler.enter(client);
        let deadline = self.now + LIMIT;
        self.calls.insert(
            id,
            Work {
                client,
                needs,
                left: needs,
                uncharged: Duration::ZERO,
                entered: self.now,
                deadline,
            },
        );
        self.grant();
        id
    }

    fn leave(&mut self, id: CallId) {
        let Some(work) = self.calls.remove(&id) else {
            return;
        };
        self.running.remove(&id);
        self.scheduler.leave(id, work.uncharged);
        self.ended
            .push((work.client, self.now - work.entered, work.needs - work.left));
        self.grant();
    }

    fn grant(&mut self) {
        while let Some((id, slice)) = self.scheduler.grant(self.now) {
            assert!(
                self.running.insert(id, self.now + slice).is_none(),
                "a running call is granted nothing"
            );
        }
        self.check();
    }

    /// Checks the invariants of the scheduler.
    fn check(&self) {
        let Capacity { permits, started } = self.scheduler.capacity;
        assert!(self.running.len() <= permits && self.scheduler.started <= started);
        assert_eq!(self.scheduler.free(), permits - self.running.len());
        let mut each: HashMap<Client, usize> = HashMap::new();
        for id in self.running.keys() {
            *each.entry(self.calls[id].client).or_default() += 1;
        }
        let most = (permits / 2).max(1);
        assert!(
            each.values().all(|running| *running <= most),
            "one client has at most half of the permits"
        );
        if self.running.len() < permits {
            let waits = |(id, work): (&CallId, &Work)| {
                !self.running.contains_key(id)
                    && each.get(&work.client).is_none_or(|running| *running < most)
                    && self.scheduler.calls[id].class != Class::Deferred
            };
            assert!(
                !self.calls.iter().any(waits),
                "no permit is idle while a call may run"
            );
        }
    }

    /// Runs until the next slice or call ends, but not beyond `end`.
    fn step(&mut self, end: Instant) {
        let stop = |id: &CallId, slice: Instant| {
            slice
                .min(self.now + self.calls[id].left)
                .min(self.calls[id].deadline)
        };
        let waiting = self.calls.values().map(|work| work.deadline);
        let next = self
            .running
            .iter()
            .map(|(id, slice)| stop(id, *slice))
            .chain(waiting)
            .min()
            .unwrap_or(end)
            .min(end);
        for id in self.running.keys() {
            let work = self.calls.get_mut(id).unwrap();
            work.left = work.left.saturating_sub(next - self.now);
            work.uncharged += next - self.now;
        }
        self.now = next;
        let over = |work: &Work| work.left.is_zero() || work.deadline <= next;
        let mut ended: Vec<_> = self
            .calls
            .iter()
            .filter(|(_, work)| over(work))
            .map(|(id, _)| *id)
            .collect();
        ended.sort_unstable();
        ended.into_iter().for_each(|id| self.leave(id));
        let mut slices: Vec<_> = self
            .running
            .iter()
            .filter(|(_, slice)| **slice <= next)
            .map(|(id, _)| *id)
            .collect();
        slices.sort_unstable();
        for id in slices {
            let used = std::mem::take(&mut self.calls.get_mut(&id).unwrap().uncharged);
            match self.scheduler.end_slice(id, used, next) {
                SliceVerdict::Continue(slice) => drop(self.running.insert(id, next + slice)),
                SliceVerdict::Pause => drop(self.running.remove(&id)),
                SliceVerdict::Defer => {
                    self.running.remove(&id);
                    let work = self.calls.get_mut(&id).unwrap();
                    work.left = work.needs;
                }
                SliceVerdict::End => self.leave(id),
            }
            self.grant();
        }
    }

    fn run_until(&mut self, end: Instant) {
        while self.now < end {
            self.step(end);
        }
    }
}

/// Latencies of an honest client's calls. Each call needs 1 ms, and one is made every 50 ms for 30
/// s, while `attack` keeps the machine busy.
fn honest_times(permits: usize, mut attack: impl FnMut(&mut Machine)) -> Vec<Duration> {
    let mut machine = Machine::new(permits, 64);
    let honest = address(200);
    for _ in 0..600 {
        attack(&mut machine);
        machine.enter(honest, MS);
        let end = machine.now + 50 * MS;
        while machine.now < end {
            machine.step(end);
            attack(&mut machine);
        }
    }
    let mut times: Vec<_> = machine
        .ended
        .iter()
        .filter(|(client, ..)| *client == honest)
        .map(|(_, time, _)| *time)
        .collect();
    assert!(times.len() >= 590, "{} honest calls ended", times.len());
    times.sort_unstable();
    times
}

/// Keeps `calls` calls of each client on the machine, waiting or running.
fn keep_busy(
    machine: &mut Machine,
    clients: impl Iterator<Item = Client>,
    calls: usize,
    needs: Duration,
) {
    for client in clients {
        let have = machine
            .calls
            .values()
            .filter(|work| work.client == client)
            .count();
        for _ in have..calls {
            machine.enter(client, needs);
        }
    }
}

#[test]
fn an_honest_call_is_quick_beside_twenty_attackers_and_a_hundred_endless_calls() {
    let connections = |n: u64| (0..n).map(Client::Connection);
    let addresses = |n: u8| (0..n).map(address);
    for permits in [1, 2, 8] {
        for times in [
            honest_times(permits, |machine| {
                keep_busy(machine, connections(20), 1, 150 * MS)
            }),
            honest_times(permits, |machine| {
                keep_busy(machine, connections(20), 1, ENDLESS)
            }),
            honest_times(permits, |machine| {
                keep_busy(machine, connections(100), 1, ENDLESS)
            }),
            honest_times(permits, |machine| {
                keep_busy(machine, addresses(5), 20, ENDLESS)
            }),
            honest_times(permits, |machine| {
                keep_busy(machine, addresses(5), 20, 2 * MS)
            }),
        ] {
            let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
            assert!(
                p50 <= 60 * MS && p99 <= 500 * MS,
                "{permits} permits: median {p50:?}, p99 {p99:?}"
            );
        }
    }
}

#[test]
fn a_client_that_connects_anew_for_each_call_delays_others_by_first_slices_only() {
    let mut number = 0;
    let times = honest_times(2, |machine| {
        let have = machine.calls.len();
        for _ in have..20 {
            number += 1;
            machine.enter(Client::Connection(number), ENDLESS);
        }
    });
    assert!(
        *times.last().unwrap() <= 20 * FIRST_SLICE + 2 * SLICE,
        "{:?}",
        times.last()
    );
}

#[test]
fn long_calls_keep_a_quarter_of_the_time_beside_a_flood_of_new_calls() {
    let mut machine = Machine::new(2, 64);
    let long = machine.enter(address(1), ENDLESS);
    let end = machine.now + LIMIT - MS;
    while machine.now < end {
        keep_busy(&mut machine, (2..22).map(address), 1, 2 * MS);
        machine.step(end);
    }
    let ran = ENDLESS - machine.calls[&long].left;
    assert!(
        ran > LIMIT / 5,
        "of one permit's {LIMIT:?} it ran for {ran:?}"
    );
}

#[test]
fn clients_with_endless_calls_run_equally_long_however_many_calls_each_has() {
    let mut machine = Machine::new(4, 64);
    for client in 0..6 {
        for _ in 0..=client * 3 {
            machine.enter(address(client), ENDLESS);
        }
    }
    machine.run_until(machine.now + LIMIT - MS);
    let mut used: HashMap<Client, Duration> = HashMap::new();
    for work in machine.calls.values() {
        *used.entry(work.client).or_default() += work.needs - work.left;
    }
    let (least, most) = (used.values().min().unwrap(), used.values().max().unwrap());
    assert!(*most - *least <= 4 * SLICE, "{used:?}");
}

#[test]
fn calls_beyond_the_started_ones_are_begun_anew_and_all_end() {
    let mut machine = Machine::new(2, 8);
    for client in 0..40 {
        machine.enter(Client::Connection(client), 60 * MS);
    }
    machine.run_until(machine.now + LIMIT - MS);
    assert_eq!(machine.ended.len(), 40);
    assert!(machine.ended.iter().all(|(_, _, ran)| *ran == 60 * MS));
}

#[test]
fn a_call_that_nobody_waits_for_runs_on() {
    let mut machine = Machine::new(2, 1);
    let (first, second) = (
        machine.enter(address(1), ENDLESS),
        machine.enter(address(2), ENDLESS),
    );
    machine.run_until(machine.now + LIMIT - MS);
    let left = |id| machine.calls[&id].left;
    assert_eq!(
        (ENDLESS - left(first), ENDLESS - left(second)),
        (LIMIT - MS, LIMIT - MS)
    );
}

#[test]
fn a_client_that_waits_too_long_takes_the_place_of_the_call_that_was_started_first() {
    let mut machine = Machine::new(1, 2);
    let begin = machine.now;
    let enter = |machine: &mut Machine, client| {
        let id = machine.enter(client, ENDLESS);
        machine.calls.get_mut(&id).unwrap().deadline = begin + 20 * PATIENCE;
        machine.run_until(machine.now + SLICE);
        id
    };
    let [first, second] = [1, 2].map(|n| enter(&mut machine, address(n)));
    // A further call of a client that has a started call displaces no other call, however long it
    // waits.
    enter(&mut machine, address(2));
    machine.run_until(begin + 3 * PATIENCE);
    assert!(machine.ended.is_empty());
    let third = enter(&mut machine, address(3));
    machine.run_until(machine.now + PATIENCE - 2 * SLICE);
    assert!(machine.ended.is_empty());
    machine.run_until(machine.now + 10 * SLICE);
    assert!(!machine.calls.contains_key(&first));
    assert_eq!(machine.ended.len(), 1);
    assert!(machine.scheduler.is_started(second) && machine.scheduler.is_started(third));
    // A started call gets its minimum time even while other clients wait.
    enter(&mut machine, address(4));
    enter(&mut machine, address(5));
    machine.run_until(machine.now + PATIENCE + 20 * SLICE);
    assert_eq!(machine.ended.len(), 3);
    let ran: Vec<_> = machine.ended.iter().map(|(client, ..)| *client).collect();
    assert_eq!(ran, [1, 2, 3].map(address));
}

#[test]
fn an_address_is_one_client_and_a_loopback_or_private_connection_is_one() {
    let of = |text: &str, number| Client::of(text.parse().unwrap(), number);
    assert_eq!(of("203.0.113.1", 1), of("::ffff:203.0.113.1", 2));
    assert_eq!(of("2001:db8::1", 1), of("2001:db8::2", 2));
    assert_ne!(of("2001:db8::1", 1), of("2001:db8:0:1::1", 1));
    assert_ne!(of("203.0.113.1", 1), of("203.0.113.2", 1));
    assert_ne!(of("127.0.0.1", 1), of("127.0.0.1", 2));
    assert_eq!(of("::1", 3), Client::Connection(3));
    for private in [
        "10.0.0.1",
        "172.17.0.1",
        "192.168.1.1",
        "169.254.0.1",
        "::ffff:10.0.0.1",
        "fd00::1",
        "fe80::1",
    ] {
        assert_eq!(of(private, 4), Client::Connection(4), "{private}");
    }
    assert_eq!(of("172.32.0.1", 1), of("172.32.0.1", 2));
}

#[test]
fn accounts_of_clients_that_are_gone_are_bounded() {
    let mut machine = Machine::new(2, 64);
    for number in 0..3 * IDLE_ACCOUNTS as u64 {
        machine.enter(Client::Connection(number), MS);
        machine.run_until(machine.now + 2 * MS);
    }
    assert!(machine.calls.is_empty() && machine.scheduler.calls.is_empty());
    assert!(machine.scheduler.accounts.len() <= IDLE_ACCOUNTS + 1);
    assert!(
        machine.scheduler.active.is_empty()
            && machine.scheduler.ready.iter().all(BTreeSet::is_empty)
    );
}

#[derive(Clone, Debug)]
enum Event {
    Enter(u8, u64),
    Leave(usize),
    Run(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (0u8..6, 1u64..400).prop_map(|(client, needs)| Event::Enter(client, needs)),
        1 => any::<usize>().prop_map(Event::Leave),
        2 => (1u64..300).prop_map(Event::Run),
    ];
    prop::collection::vec(event, 1..120)
}

proptest! {
    /// The machine checks the bounds at every step.
    #[test]
    fn whatever_happens_bounds_hold_and_every_call_ends(permits in 1usize..6, started in 1usize..20, events in events()) {
        let mut machine = Machine::new(permits, started);
        let mut entered = 0;
        for event in events {
            match event {
                Event::Enter(client, needs) => {
                    entered += 1;
                    machine.enter(address(client), MS * needs as u32);
                }
                Event::Leave(n) => {
                    let mut ids: Vec<_> = machine.calls.keys().copied().collect();
                    ids.sort_unstable();
                    if let Some(id) = n.checked_rem(ids.len()).map(|n| ids[n]) {
                        machine.leave(id);
                    }
                }
                Event::Run(time) => machine.run_until(machine.now + MS * time as u32),
            }
        }
        machine.run_until(machine.now + LIMIT);
        prop_assert_eq!(machine.ended.len(), entered);
        prop_assert_eq!((machine.scheduler.running, machine.scheduler.started), (0, 0));
        prop_assert!(machine.ended.iter().all(|(_, time, _)| *time <= LIMIT));
    }
}
