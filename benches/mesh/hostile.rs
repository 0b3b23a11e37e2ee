//! A peer that sends many kinds of garbage, and dials again whenever its connection is closed.

use crate::node::{CHAIN, Source, VERSION, noise, signed};
use futures::StreamExt;
use libp2p::{
    Multiaddr, Swarm, SwarmBuilder,
    gossipsub::{self, MessageAuthenticity, MessageId, TopicHash, ValidationMode},
    noise as noise_handshake,
    swarm::SwarmEvent,
    tcp, yamux,
};
use starling_proto::{gossip, sign};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};
use tokio::time::{MissedTickBehavior, interval};

const STRANGER: &str = "00000000000000000000000000000000000000000000000000000000000000bb";
/// Pause between two dials.
const REDIAL: Duration = Duration::from_millis(100);

/// Kinds of garbage messages, sent in rotation.
pub const KINDS: [&str; 9] = [
    "no snappy",
    "snappy that lies about its length",
    "snappy of noise",
    "a bomb",
    "no signature",
    "a stranger's signature",
    "another chain's signature",
    "an old block",
    "the same message again",
];

/// Makes garbage messages of about the size of a block.
pub struct Garbage {
    source: Source,
    bytes: usize,
    count: usize,
    same: Vec<u8>,
}

impl Garbage {
    pub fn new(bytes: usize) -> Self {
        Self {
            source: Source::new(bytes),
            bytes,
            count: 0,
            same: noise(bytes),
        }
    }

    pub fn next(&mut self) -> Vec<u8> {
        let kind = self.count % KINDS.len();
        self.count += 1;
        let now = crate::support::unix_now();
        let envelope = |signature: &[u8; 65], wire: &[u8]| {
            gossip::encode_message(signature, wire).expect("it can be packed")
        };
        // The first 65 bytes are used as the signature.
        let pack = |bytes: &[u8]| envelope(bytes.first_chunk().expect("enough"), &bytes[65..]);
        let wire = |time| self.source.block(time).to_wire(VERSION);
        match kind {
            0 => [vec![0xff; 12], noise(self.bytes)].concat(),
            // The snappy header claims 10 MiB.
            1 => [vec![0x80, 0x80, 0x80, 0x05], noise(self.bytes)].concat(),
            2 => pack(&noise(self.bytes)),
            // Zeros compress about 20:1, so that the message still has about `self.bytes` bytes.
            3 => pack(&[noise(100), vec![0; self.bytes * 20]].concat()),
            4 => envelope(&[0xff; 65], &wire(now)),
            5 => {
                let wire = wire(now);
                envelope(
                    &sign::sign(
                        &sign::secret_from_hex(STRANGER).expect("a key"),
                        CHAIN,
                        &wire,
                    ),
                    &wire,
                )
            }
            6 => {
                let wire = wire(now);
                envelope(
                    &sign::sign(&crate::support::sequencer(), CHAIN + 1, &wire),
                    &wire,
                )
            }
            7 => {
                let old = self.source.block(now - 1000);
                envelope(&signed(&old), &old.to_wire(VERSION))
            }
            _ => self.same.clone(),
        }
    }
}

/// Result of an attack.
#[derive(Debug, Default)]
pub struct Flood {
    pub sent: u64,
    /// Time from the first message to the first disconnect.
    pub banned_after: Option<Duration>,
    pub redials: u64,
}

/// Sends garbage at `a_second` messages a second for `time`, and redials after each disconnect.
pub async fn flood(victim: Multiaddr, bytes: usize, a_second: u32, time: Duration) -> Flood {
    let mut swarm = swarm();
    let topic = TopicHash::from_raw(gossip::topic(CHAIN, VERSION));
    swarm.dial(victim.clone()).expect("it can be dialled");
    loop {
        match swarm.select_next_some().await {
            SwarmEvent::Behaviour(gossipsub::Event::Subscribed { topic: told, .. })
                if told == topic =>
            {
                break;
            }
            _ => {}
        }
    }
    let (mut garbage, mut flood, begun) = (Garbage::new(bytes), Flood::default(), Instant::now());
    let mut ticks = interval(Duration::from_secs(1) / a_second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut redials = interval(REDIAL);
    redials.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while begun.elapsed() < time {
        tokio::select! {
            _ = ticks.tick() => {
                let sent = swarm.behaviour_mut().publish(topic.clone(), garbage.next());
                flood.sent += u64::from(sent.is_ok());
            }
            _ = redials.tick(), if !swarm.is_connected(victim_id(&victim).as_ref().expect("it names its peer")) => {
                flood.banned_after.get_or_insert(begun.elapsed());
                flood.redials += 1;
                let _ = swarm.dial(victim.clone());
            }
            _ = swarm.select_next_some() => {}
        }
    }
    flood
}

fn victim_id(address: &Multiaddr) -> Option<libp2p::PeerId> {
    starling_p2p::address::static_peer(address).map(|(_, peer)| peer)
}

/// A gossipsub peer that gives each message a new id, so that it can send the same bytes twice.
fn swarm() -> Swarm<gossipsub::Behaviour> {
    static IDS: AtomicU64 = AtomicU64::new(0);
    SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(
            tcp::Config::new().nodelay(true),
            noise_handshake::Config::new,
            yamux::Config::default,
        )
        .expect("noise")
        .with_behaviour(|_| {
            let config = gossipsub::ConfigBuilder::default()
                .max_transmit_size(gossip::MAX_MESSAGE_LEN)
                .validation_mode(ValidationMode::None)
                .message_id_fn(|_| {
                    MessageId::new(&IDS.fetch_add(1, Ordering::Relaxed).to_be_bytes())
                })
                .build()
                .expect("parameters");
            Ok(gossipsub::Behaviour::new(
                MessageAuthenticity::Anonymous,
                config,
            )?)
        })
        .expect("a behaviour")
        .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(600)))
        .build()
}
