//! Scheduler of heavy calls: chooses the waiting call that runs next, and decides when a running
//! call pauses. Pure: events and `now` go in, decisions come out.
//!
//! Clients are served fairly: the next call is that of the client that has used the least processor
//! time. The time for which a call waits for a core or for the disk is not charged, since the
//! client of a call that the kernel preempts would otherwise wait behind all others.
//!
//! A new call runs for [`FIRST_SLICE`]. A call that needs more becomes a long call and runs in slices
//! of [`SLICE`], each of which ends only if another call waits. New calls run before long ones, but
//! long calls keep a quarter of the time.
//!
//! A paused call keeps its thread and its memory, so the number of started long calls is bounded.
//! Beyond that bound, a call that has used its first slice is deferred: it is aborted and restarted
//! later. If a client without any started call has waited for [`PATIENCE`], the call that was
//! started first is ended in its favour.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, Ipv6Addr},
    time::{Duration, Instant},
};

/// Slice of a new call. Most calls end within it. In a burst of new calls, each delays the others
/// by only a few milliseconds.
pub const FIRST_SLICE: Duration = Duration::from_millis(3);
/// Slice of a long call.
pub const SLICE: Duration = Duration::from_millis(50);
/// Time that new calls run for each unit of time of long calls, while both kinds wait.
const NEW_SHARE: u32 = 3;
/// Maximum lead of a client's used time over that of other clients. A client that used permits
/// while no other client wanted them is at most this far behind.
const MAX_LEAD: Duration = Duration::from_secs(1);
/// Time for which a started call cannot be displaced. Also the time that a client without a started
/// call waits before it displaces the call of another client.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum accounts that are kept for clients without calls.
const IDLE_ACCOUNTS: usize = 4096;

/// A client, the unit of fair sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Client {
    /// An IP address, or the /64 network of an IPv6 address.
    Address(IpAddr),
    /// A connection from this machine or a private network. It counts as a client of its own,
    /// because all clients behind a reverse proxy have the proxy's address.
    Connection(u64),
    /// A connection of the local socket.
    Local(u64),
    /// A connection of the Engine API port.
    RollupNode(u64),
}

/// An IPv4 address, or the /64 network of an IPv6 address, since one owner has at least such a
/// network. `None` for loopback, private and link-local addresses: there may be a reverse proxy or
/// a container network, with many clients behind one address.
pub fn network(address: IpAddr) -> Option<IpAddr> {
    match address.to_canonical() {
        IpAddr::V4(address)
            if address.is_loopback() || address.is_private() || address.is_link_local() =>
        {
            None
        }
        IpAddr::V6(address)
            if address.is_loopback()
                || address.is_unique_local()
                || address.is_unicast_link_local() =>
        {
            None
        }
        IpAddr::V6(address) => Some(IpAddr::V6(Ipv6Addr::from_bits(
            address.to_bits() >> 64 << 64,
        ))),
        address => Some(address),
    }
}

impl Client {
    /// The client of connection `number`, which comes from `address`.
    pub fn of(address: IpAddr, number: u64) -> Self {
        network(address).map_or(Self::Connection(number), Self::Address)
    }
}

/// Number of a call, in order of arrival.
pub type CallId = u64;

/// Maximum calls that run or are paused at once.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Maximum calls that run at once.
    pub permits: usize,
    /// Maximum long calls that keep a thread, running or paused. One client has at most an eighth
    /// of them. Calls in their first slice do not count.
    pub started: usize,
}

impl Capacity {
    /// Maximum threads that run or hold calls at once.
    pub fn threads(&self) -> usize {
        self.permits + self.started
    }

    /// Maximum permits of one client.
    fn permits_each(&self) -> usize {
        (self.permits / 2).max(1)
    }

    /// Maximum started long calls of one client.
    fn started_each(&self) -> usize {
        (self.started / 8).max(1)
    }
}

/// The decision at the end of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceVerdict {
    /// The call continues for this duration.
    Continue(Duration),
    /// The call keeps its thread and waits until it is granted a permit.
    Pause,
    /// The call is aborted and waits to be restarted.
    Defer,
    /// The call is aborted in favour of another client.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    New,
    /// A call that has used its first slice and is started.
    Long,
    /// A call that used its first slice when too many long calls were started.
    Deferred,
}

const CLASSES: [Class; 3] = [Class::New, Class::Long, Class::Deferred];

#[derive(Debug)]
struct Call {
    client: Client,
    class: Class,
    is_running: bool,
    /// Time at which the call was first deferred.
    deferred_at: Option<Instant>,
    /// Time at which the call became one of the started long calls.
    started_at: Option<Instant>,
}

/// The processor time that a client has used, and its calls.
#[derive(Debug, Default)]
struct ClientAccount {
    used: Duration,
    running: usize,
    /// Number of long calls that run or are paused.
    started: usize,
    waiting: [BTreeSet<CallId>; 3],
}

/// Order of clients: the least used time first, then the earliest call.
type Rank = (Duration, CallId, Client);

impl ClientAccount {
    fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting.iter().all(BTreeSet::is_empty)
    }

    /// The client's next call of a class, if the client may run one more call.
    fn next(&self, class: Class, capacity: &Capacity) -> Option<CallId> {
        let full = self.running >= capacity.permits_each()
            || (class == Class::Deferred && self.started >= capacity.started_each());
        if full {
            None
        } else {
            self.waiting[class as usize].first().copied()
        }
    }
}

/// Calls and used time of all clients.
#[derive(Debug)]
pub struct Scheduler {
    capacity: Capacity,
    next_id: CallId,
    calls: HashMap<CallId, Call>,
    accounts: HashMap<Client, ClientAccount>,
    running: usize,
    started: usize,
    /// Clients whose next call can run, for each class.
    ready: [BTreeSet<Rank>; 3],
    /// Clients that have calls, by used time.
    active: BTreeSet<(Duration, Client)>,
    /// The least time used by an active client. A client that becomes active is raised to this
    /// floor, so that unused time does not accumulate.
    floor: Duration,
    /// Time that is owed to long calls, because new calls ran while long calls waited.
    due: Duration,
}

impl Scheduler {
    pub fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            next_id: 0,
            calls: HashMap::new(),
            accounts: HashMap::new(),
            running: 0,
            started: 0,
            ready: Default::default(),
            active: BTreeSet::new(),
            floor: Duration::ZERO,
            due: Duration::ZERO,
        }
    }

    /// Number of free permits.
    pub fn free(&self) -> usize {
        self.capacity.permits - self.running
    }

    /// Whether this call is a started long call.
    pub fn is_started(&self, id: CallId) -> bool {
        let started = |call: &Call| call.class == Class::Long;
        self.calls.get(&id).is_some_and(started)
    }

    /// Processor time that this client was charged for.
    #[cfg(test)]
    pub fn used(&self, client: Client) -> Duration {
        self.accounts
            .get(&client)
            .map_or(Duration::ZERO, |account| account.used)
    }

    /// Number of started long calls, running or paused.
    #[cfg(test)]
    pub fn started(&self) -> usize {
        self.started
    }

    /// Registers a new call, which waits until [`Scheduler::grant`] returns it.
    pub fn enter(&mut self, client: Client) -> CallId {
        let id = self.next_id;
        self.next_id += 1;
        self.calls.insert(
            id,
            Call {
                client,
                class: Class::New,
                is_running: false,
                deferred_at: None,
                started_at: None,
            },
        );
        let floor = self.floor;
        self.change(client, |account| {
            account.used = account.used.max(floor);
            account.waiting[Class::New as usize].insert(id);
        });
        id
    }

    /// Removes a call that has ended, whether it was running or waiting. `used` is its processor
    /// time since the end of its last slice.
    pub fn leave(&mut self, id: CallId, used: Duration) {
        self.charge(id, used);
        let Some(call) = self.calls.remove(&id) else {
            return;
        };
        let ran = usize::from(call.is_running);
        let started = usize::from(call.class == Class::Long);
        self.running -= ran;
        self.started -= started;
        self.change(call.client, |account| {
            account.running -= ran;
            account.started -= started;
            account.waiting[call.class as usize].remove(&id);
        });
        self.forget_idle_accounts();
    }

    /// Grants a free permit to the next call. Returns the call and its slice. Call this until it
    /// returns `None`.
    pub fn grant(&mut self, now: Instant) -> Option<(CallId, Duration)> {
        if self.running >= self.capacity.permits {
            return None;
        }
        let (id, class) = self.next()?;
        let call = self.calls.get_mut(&id)?;
        let started = class == Class::Deferred;
        call.is_running = true;
        if started {
            (call.class, call.started_at) = (Class::Long, Some(now));
        }
        let client = call.client;
        self.running += 1;
        self.started += usize::from(started);
        self.change(client, |account| {
            account.running += 1;
            account.started += usize::from(started);
            account.waiting[class as usize].remove(&id);
        });
        Some((
            id,
            if class == Class::New {
                FIRST_SLICE
            } else {
                SLICE
            },
        ))
    }

    /// Ends the slice of a running call, which used this processor time in it. Permits may be free
    /// afterwards: see [`Scheduler::grant`].
    pub fn end_slice(&mut self, id: CallId, used: Duration, now: Instant) -> SliceVerdict {
        self.charge(id, used);
        if self.is_displaced(id, now) {
            return SliceVerdict::End;
        }
        let Some(call) = self.calls.get_mut(&id).filter(|call| call.is_running) else {
            return SliceVerdict::Continue(SLICE);
        };
        let (client, was) = (call.client, call.class);
        let room = self.started < self.capacity.started
            && self
                .accounts
                .get(&client)
                .is_some_and(|account| account.started < self.capacity.started_each());
        let class = if was == Class::Long || room {
            Class::Long
        } else {
            Class::Deferred
        };
        (call.class, call.is_running) = (class, false);
        if class == Class::Long {
            call.started_at.get_or_insert(now);
        } else {
            call.deferred_at.get_or_insert(now);
        }
        let started = usize::from(class == Class::Long && was == Class::New);
        self.running -= 1;
        self.started += started;
        self.change(client, |account| {
            account.running -= 1;
            account.started += started;
            account.waiting[class as usize].insert(id);
        });
        match self.next() {
            Some((next, _)) if next != id => {
                if class == Class::Long {
                    SliceVerdict::Pause
                } else {
                    SliceVerdict::Defer
                }
            }
            _ => self.resume(id),
        }
    }

    /// Whether this call is ended in favour of another client: it is the call that was started
    /// first, and a client without a started call has waited for too long.
    fn is_displaced(&self, id: CallId, now: Instant) -> bool {
        let is_long = |at: &Instant| now.saturating_duration_since(*at) >= PATIENCE;
        let started = |id: &CallId| self.calls.get(id)?.started_at;
        if self.started < self.capacity.started || !started(&id).is_some_and(|at| is_long(&at)) {
            return false;
        }
        let has_none = |client: &Client| {
            let account = self.accounts.get(client);
            account.is_some_and(|account| account.started == 0)
        };
        let starves = |(_, waiting, client): &Rank| {
            let call = self.calls.get(waiting);
            has_none(client) && call.is_some_and(|it| it.deferred_at.as_ref().is_some_and(is_long))
        };
        let all = self.calls.iter();
        let first = all.filter_map(|(id, call)| Some((call.started_at?, *id)));
        self.ready[Class::Deferred as usize].iter().any(starves)
            && first.min().is_some_and(|(_, first)| first == id)
    }

    /// Continues a call whose slice has ended, because no other call comes before it.
    fn resume(&mut self, id: CallId) -> SliceVerdict {
        let Some(call) = self.calls.get_mut(&id) else {
            return SliceVerdict::Continue(SLICE);
        };
        let waits = call.class;
        // A call that has to give way is aborted and run again later. No other call can run now,
        // so this one continues instead, as a new call with another first slice.
        if waits == Class::Deferred {
            call.class = Class::New;
        }
        call.is_running = true;
        let client = call.client;
        self.running += 1;
        self.change(client, |account| {
            account.running += 1;
            account.waiting[waits as usize].remove(&id);
        });
        SliceVerdict::Continue(if waits == Class::Deferred {
            FIRST_SLICE
        } else {
            SLICE
        })
    }

    /// The call that runs next, with its class.
    fn next(&self) -> Option<(CallId, Class)> {
        let first = |class: Class| {
            self.ready[class as usize]
                .first()
                .map(|rank| (*rank, class))
        };
        let deferred = first(Class::Deferred).filter(|_| self.started < self.capacity.started);
        let long = first(Class::Long)
            .into_iter()
            .chain(deferred)
            .min_by_key(|(rank, _)| *rank);
        let new = first(Class::New);
        let due = if self.due >= SLICE {
            long.or(new)
        } else {
            new.or(long)
        };
        due.map(|((_, id, _), class)| (id, class))
    }

    /// Charges the client of a call for processor time.
    fn charge(&mut self, id: CallId, time: Duration) {
        let Some(call) = self.calls.get(&id) else {
            return;
        };
        let (client, class) = (call.client, call.class);
        let long_waits = [Class::Long, Class::Deferred]
            .iter()
            .any(|class| !self.ready[*class as usize].is_empty());
        self.due = match class {
            _ if !long_waits => Duration::ZERO,
            Class::New => self.due + time / NEW_SHARE,
            Class::Long | Class::Deferred => self.due.saturating_sub(time),
        };
        let most = self.floor + MAX_LEAD;
        self.change(client, |account| {
            account.used = (account.used + time).min(most).max(account.used)
        });
    }

    /// Changes a client's account, and updates the sets that order clients.
    fn change(&mut self, client: Client, change: impl FnOnce(&mut ClientAccount)) {
        let account = self.accounts.entry(client).or_default();
        for class in CLASSES {
            if let Some(id) = account.next(class, &self.capacity) {
                self.ready[class as usize].remove(&(account.used, id, client));
            }
        }
        self.active.remove(&(account.used, client));
        change(account);
        for class in CLASSES {
            if let Some(id) = account.next(class, &self.capacity) {
                self.ready[class as usize].insert((account.used, id, client));
            }
        }
        if !account.is_idle() {
            self.active.insert((account.used, client));
        }
        if let Some((least, _)) = self.active.first() {
            self.floor = self.floor.max(*least);
        }
    }

    /// Drops idle accounts at or below the floor, which are equal to new ones. If too many are
    /// left, drops all idle accounts.
    fn forget_idle_accounts(&mut self) {
        if self.accounts.len() <= self.active.len() + IDLE_ACCOUNTS {
            return;
        }
        let floor = self.floor;
        self.accounts
            .retain(|_, account| !account.is_idle() || account.used > floor);
        if self.accounts.len() > self.active.len() + IDLE_ACCOUNTS / 2 {
            self.accounts.retain(|_, account| !account.is_idle());
        }
    }
}

#[cfg(test)]
mod tests;
