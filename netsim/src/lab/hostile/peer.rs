//! The process of a hostile peer: its swarm, its dials, and its messages.
//!
//! gossipsub relays a message only after a verdict on it. Most peers never give one and so relay
//! nothing. Peers that want requests relay at once: a node requests the blocks below a new block
//! first from the peer that delivered it. A peer that is banned keeps dialling, as an attacker would.

use super::{
    attack::{self, garbage},
    behaviour::HostileBehaviour,
    chain::SeenChain,
    log::HostileEvent,
    serve::{ServedProtocol, serve},
};
use anyhow::Context;
use futures::{StreamExt, stream::SelectAll};
use libp2p::{
    Multiaddr, PeerId, StreamProtocol, Swarm, SwarmBuilder, gossipsub, identify,
    identity::Keypair,
    noise,
    swarm::{NetworkBehaviour, SwarmEvent},
    tcp, yamux,
};
use libp2p_stream::IncomingStreams;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use starling_p2p::address::static_peer;
use starling_proto::{
    config::RollupConfig,
    gossip::{self as wire_gossip, MAX_MESSAGE_LEN},
    reqresp,
    sign::SecretKey,
    wire,
};
use std::{fs, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};

/// Interval of messages and of checks of the connections.
const TICK: Duration = Duration::from_millis(50);
/// Pause between two dials of one node.
const REDIAL: Duration = Duration::from_millis(500);
/// Time after which a connection without streams ends: never, for the length of a run.
const IDLE: Duration = Duration::from_secs(86_400);
/// Largest number of requests that are being served or held.
const SERVED: usize = 1_024;

/// Run one peer that breaks one rule, as a part of a lab
#[derive(clap::Args)]
pub struct HostileArgs {
    behaviour: HostileBehaviour,
    /// The network key in hex
    #[arg(long)]
    key: String,
    /// The rollup config of the network
    #[arg(long)]
    rollup_config: PathBuf,
    /// Nodes to dial, as multiaddrs that end in /p2p/PEER_ID
    #[arg(long, required = true)]
    target: Vec<Multiaddr>,
    /// Seed of the garbage, and of the key of a wrong signer
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl HostileArgs {
    /// Runs until SIGINT or SIGTERM.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build()?;
        runtime.block_on(async {
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut terminate = signal(SignalKind::terminate())?;
            let mut peer = HostilePeer::new(&self)?;
            tokio::select! {
                () = peer.run() => {}
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            println!(
                "sent {} messages, served {} requests",
                peer.sent, peer.served
            );
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// The protocols of a hostile peer.
#[derive(NetworkBehaviour)]
struct HostileProtocols {
    gossip: gossipsub::Behaviour,
    streams: libp2p_stream::Behaviour,
    identify: identify::Behaviour,
}

/// A node that the peer dials.
struct HostileTarget {
    peer: PeerId,
    address: Multiaddr,
    next_dial: Instant,
}

struct HostilePeer {
    behaviour: HostileBehaviour,
    swarm: Swarm<HostileProtocols>,
    targets: Vec<HostileTarget>,
    chain: Arc<Mutex<SeenChain>>,
    range: SelectAll<IncomingStreams>,
    number: SelectAll<IncomingStreams>,
    /// Requests that are being served, and attacks that need no tick.
    tasks: JoinSet<()>,
    wrong_key: SecretKey,
    dice: StdRng,
    sent: u64,
    served: u64,
}

impl HostilePeer {
    fn new(args: &HostileArgs) -> anyhow::Result<Self> {
        let path = args.rollup_config.display();
        let rollup = fs::read_to_string(&args.rollup_config).context(format!("{path}"))?;
        let rollup = RollupConfig::from_json(&rollup).context(format!("{path}"))?;
        let key = starling_p2p::identity::from_hex(&args.key).context("no network key")?;
        let mut targets = Vec::new();
        for address in &args.target {
            let named = static_peer(address);
            let (_, peer) = named.with_context(|| format!("{address} names no peer"))?;
            targets.push(HostileTarget {
                peer,
                address: address.clone(),
                next_dial: Instant::now(),
            });
        }
        let chain = SeenChain::new(rollup);
        let mut dice = StdRng::seed_from_u64(args.seed);
        let mut peer = Self {
            behaviour: args.behaviour,
            swarm: swarm(key, &chain)?,
            targets,
            chain: Arc::new(Mutex::new(chain)),
            range: SelectAll::new(),
            number: SelectAll::new(),
            tasks: JoinSet::new(),
            wrong_key: wrong_key(&mut dice),
            dice,
            sent: 0,
            served: 0,
        };
        peer.accept_requests()?;
        peer.spawn_attacks();
        Ok(peer)
    }

    fn accept_requests(&mut self) -> anyhow::Result<()> {
        if !self.behaviour.serves() {
            return Ok(());
        }
        let chain = self.chain.lock().rollup.l2_chain_id;
        let mut control = self.swarm.behaviour().streams.new_control();
        let range = StreamProtocol::try_from_owned(wire::protocol_id(chain))?;
        self.range.push(control.accept(range)?);
        for protocol in reqresp::protocol_ids(chain) {
            let protocol = StreamProtocol::try_from_owned(protocol)?;
            self.number.push(control.accept(protocol)?);
        }
        Ok(())
    }

    /// Starts the attacks that consist of streams, one task for each target.
    fn spawn_attacks(&mut self) {
        let chain = self.chain.lock().rollup.l2_chain_id;
        for target in &self.targets {
            let control = self.swarm.behaviour().streams.new_control();
            match self.behaviour {
                HostileBehaviour::Flood => {
                    self.tasks.spawn(attack::flood(control, target.peer, chain));
                }
                HostileBehaviour::HalfFrames => {
                    self.tasks.spawn(attack::half_frames(control, target.peer));
                }
                _ => {}
            }
        }
    }

    /// Runs for ever. Cancel safe.
    async fn run(&mut self) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_event(event),
                Some((node, stream)) = self.range.next() => {
                    self.serve(ServedProtocol::Range, node, stream);
                }
                Some((node, stream)) = self.number.next() => {
                    self.serve(ServedProtocol::Number, node, stream);
                }
                Some(_) = self.tasks.join_next() => {}
                _ = tick.tick() => self.tick(),
            }
        }
    }

    fn on_event(&mut self, event: SwarmEvent<HostileProtocolsEvent>) {
        match event {
            SwarmEvent::Behaviour(HostileProtocolsEvent::Gossip(gossipsub::Event::Message {
                propagation_source,
                message_id,
                message,
            })) => {
                let topic = message.topic.as_str();
                self.chain.lock().add(topic, &message.data);
                if self.behaviour.relays() {
                    let gossip = &mut self.swarm.behaviour_mut().gossip;
                    gossip.report_message_validation_result(
                        &message_id,
                        &propagation_source,
                        gossipsub::MessageAcceptance::Accept,
                    );
                }
            }
            SwarmEvent::ConnectionEstablished { peer_id, .. } => {
                println!("{}", HostileEvent::Connected.line(&peer_id));
            }
            SwarmEvent::ConnectionClosed { peer_id, cause, .. } => {
                let line = HostileEvent::Disconnected.line(&peer_id);
                println!("{line} cause={cause:?}");
            }
            _ => {}
        }
    }

    fn serve(&mut self, protocol: ServedProtocol, node: PeerId, stream: libp2p::Stream) {
        // A node that requests more than this is refused: the stream is reset.
        if self.tasks.len() < SERVED {
            self.served += 1;
            let (behaviour, chain) = (self.behaviour, self.chain.clone());
            self.tasks.spawn(async move {
                // A requester that has given up is no error.
                let _ = serve(protocol, node, stream, behaviour, chain).await;
            });
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        for target in &mut self.targets {
            if target.next_dial <= now && !self.swarm.is_connected(&target.peer) {
                target.next_dial = now + REDIAL;
                // A dial of this node may be in progress.
                let _ = self.swarm.dial(target.address.clone());
            }
        }
        match self.behaviour {
            HostileBehaviour::Garbage => {
                let data = garbage(self.sent, &mut self.dice);
                let version = self.chain.lock().newest().map(|block| block.version());
                self.publish(version, data);
            }
            HostileBehaviour::WrongSigner => {
                let forged = self.chain.lock().signed_by(&self.wrong_key);
                if let Some(forged) = forged {
                    self.publish(Some(forged.version), forged.data);
                }
            }
            _ => {}
        }
    }

    /// Publishes a message on the topic of a version; without a version, on that of the newest.
    fn publish(&mut self, version: Option<starling_proto::payload::PayloadVersion>, data: Vec<u8>) {
        let version = version.unwrap_or(starling_proto::payload::PayloadVersion::V4);
        let topic = wire_gossip::topic(self.chain.lock().rollup.l2_chain_id, version);
        let topic = gossipsub::TopicHash::from_raw(topic);
        let gossip = &mut self.swarm.behaviour_mut().gossip;
        self.sent += u64::from(gossip.publish(topic, data).is_ok());
    }
}

/// The key of blocks of a wrong signer.
fn wrong_key(dice: &mut StdRng) -> SecretKey {
    loop {
        // Nearly all numbers of 256 bits are keys.
        if let Ok(key) = SecretKey::from_slice(&dice.random::<[u8; 32]>()) {
            return key;
        }
    }
}

/// A swarm that dials only, and has joined the topics of the chain.
fn swarm(key: Keypair, chain: &SeenChain) -> anyhow::Result<Swarm<HostileProtocols>> {
    let topics = chain.topics();
    let config = gossipsub::ConfigBuilder::default()
        .max_transmit_size(MAX_MESSAGE_LEN)
        .validation_mode(gossipsub::ValidationMode::None)
        .validate_messages()
        .message_id_fn(|message| {
            let unpacked = wire_gossip::decompress(&message.data);
            let topic = message.topic.as_str();
            let id = wire_gossip::message_id(topic, unpacked.flag, &unpacked.bytes);
            gossipsub::MessageId::new(&id)
        })
        .build()?;
    let author = gossipsub::MessageAuthenticity::Anonymous;
    let mut gossip = gossipsub::Behaviour::new(author, config).map_err(anyhow::Error::msg)?;
    for topic in topics {
        gossip.subscribe(&gossipsub::IdentTopic::new(topic))?;
    }
    let builder = SwarmBuilder::with_existing_identity(key)
        .with_tokio()
        .with_tcp(
            tcp::Config::new().nodelay(true),
            noise::Config::new,
            yamux::Config::default,
        )?;
    let builder = builder.with_behaviour(|key| HostileProtocols {
        gossip,
        streams: libp2p_stream::Behaviour::new(),
        identify: identify::Behaviour::new(identify::Config::new(String::new(), key.public())),
    })?;
    let builder = builder.with_swarm_config(|config| config.with_idle_connection_timeout(IDLE));
    Ok(builder.build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_of_different_seeds_sign_with_different_keys() {
        let key = |seed| wrong_key(&mut StdRng::seed_from_u64(seed));
        assert_eq!(key(7), key(7));
        assert_ne!(key(7), key(8));
    }
}
