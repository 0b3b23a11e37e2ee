//! A client of the server under test that reads and discards blocks, and a bare stream without a
//! block server for comparison.

use alloy_primitives::B256;
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::{
    Multiaddr, PeerId, Stream, StreamProtocol, Swarm, SwarmBuilder,
    multiaddr::Protocol,
    noise, ping,
    swarm::{NetworkBehaviour, SwarmEvent},
    tcp, yamux,
};
use libp2p_stream::Control;
use starling_proto::wire::{self, LENGTH, RequestBody, ResponseBody};
use std::time::{Duration, Instant};

const BARE: StreamProtocol = StreamProtocol::new("/bench/bare/1");
/// Sizes of requests, as in range sync.
const AT_ONCE: usize = 2;
const WINDOW: usize = 256;

/// Libp2p behaviour of the reader. It includes ping, since peers disconnect a node without ping.
#[derive(NetworkBehaviour)]
struct Behaviour {
    streams: libp2p_stream::Behaviour,
    ping: ping::Behaviour,
}

fn swarm() -> Swarm<Behaviour> {
    SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(
            tcp::Config::new().nodelay(true),
            noise::Config::new,
            yamux::Config::default,
        )
        .expect("noise")
        .with_behaviour(|_| Behaviour {
            streams: libp2p_stream::Behaviour::new(),
            ping: ping::Behaviour::default(),
        })
        .expect("a behaviour")
        .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(600)))
        .build()
}

/// Connects to the node at the address.
async fn connect(address: &str) -> (PeerId, Control) {
    let address: Multiaddr = address.parse().expect("an address");
    let Some(Protocol::P2p(peer)) = address.iter().last() else {
        panic!("{address} names no peer")
    };
    let mut swarm = swarm();
    swarm.dial(address).expect("it can be dialled");
    let control = swarm.behaviour().streams.new_control();
    while !matches!(
        swarm.select_next_some().await,
        SwarmEvent::ConnectionEstablished { .. }
    ) {}
    tokio::spawn(async move {
        loop {
            if let SwarmEvent::ConnectionClosed { cause, .. } = swarm.select_next_some().await {
                eprintln!("    the connection was closed: {cause:?}");
            }
        }
    });
    (peer, control)
}

/// Serves an endless stream of bytes.
pub async fn serve_bare() {
    let mut swarm = swarm();
    swarm
        .listen_on("/ip4/127.0.0.1/tcp/0".parse().expect("an address"))
        .expect("a port");
    let mut incoming = swarm
        .behaviour()
        .streams
        .new_control()
        .accept(BARE)
        .expect("it is new");
    let local = *swarm.local_peer_id();
    tokio::spawn(async move {
        loop {
            if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                println!("{}", address.with(Protocol::P2p(local)));
            }
        }
    });
    let serving = tokio::spawn(async move {
        let bytes: Vec<u8> = (0..256u32 << 10)
            .map(|i| (i.wrapping_mul(i) >> 3) as u8)
            .collect();
        while let Some((_, mut stream)) = incoming.next().await {
            while stream.write_all(&bytes).await.is_ok() {}
        }
    });
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    let _ = ended.await;
    serving.abort();
}

/// Reads `bytes` bytes from a bare stream, and prints the seconds that this took.
pub async fn read_bare(address: &str, bytes: u64) {
    let (peer, mut control) = connect(address).await;
    let mut stream = control.open_stream(peer, BARE).await.expect("a stream");
    let begun = Instant::now();
    let mut buffer = vec![0; 64 << 10];
    let mut read = 0;
    while read < bytes {
        read += stream.read(&mut buffer).await.expect("bytes") as u64;
    }
    println!("{}", begun.elapsed().as_secs_f64());
}

/// Reads every block up to block `number`, and prints the seconds and the bytes.
pub async fn read(address: &str, chain_id: u64, number: u64, hash: B256) {
    let (peer, mut control) = connect(address).await;
    let protocol = StreamProtocol::try_from_owned(wire::protocol_id(chain_id)).expect("an id");
    // Hashes of the blocks `number`, `number - 1`, and so on.
    let mut hashes = vec![hash];
    while (hashes.len() as u64) < number {
        let at = number + 1 - hashes.len() as u64;
        let ask = wire::HeadersRequest {
            number: at,
            hash: hashes[hashes.len() - 1].to_vec(),
            count: 4096,
        };
        let mut stream = open(&mut control, peer, &protocol, RequestBody::Headers(ask)).await;
        while let Some(bytes) = frame(&mut stream).await {
            let Ok(ResponseBody::Headers(chunk)) = wire::decode_response(bytes) else {
                panic!("no headers")
            };
            let headers = chunk.items().expect("items");
            let decode = |item| wire::decode_header(item).expect("a header");
            hashes.extend(headers.iter().map(|item| decode(item).1.parent_hash));
        }
    }
    hashes.truncate(number as usize);
    hashes.reverse();
    let begun = Instant::now();
    let windows =
        futures::stream::iter(hashes.chunks(WINDOW).enumerate().map(|(index, window)| {
            let (mut control, protocol) = (control.clone(), protocol.clone());
            let first = 1 + (index * WINDOW) as u64;
            let last_hash = window[window.len() - 1].to_vec();
            let ask = wire::BodiesRequest {
                first,
                last: first + window.len() as u64 - 1,
                last_hash,
                max_bytes: 8 << 20,
            };
            async move {
                let mut stream =
                    open(&mut control, peer, &protocol, RequestBody::Bodies(ask)).await;
                let (mut read, mut blocks) = (0, 0);
                while let Some(bytes) = frame(&mut stream).await {
                    read += bytes.len() + LENGTH;
                    let Ok(ResponseBody::Bodies(chunk)) = wire::decode_response(bytes) else {
                        panic!("no blocks")
                    };
                    blocks += chunk.count as usize;
                }
                assert_eq!(blocks, window.len(), "from block {first}");
                read
            }
        }));
    let read: Vec<usize> = windows.buffered(AT_ONCE).collect().await;
    println!(
        "{} {}",
        begun.elapsed().as_secs_f64(),
        read.iter().sum::<usize>()
    );
}

async fn open(
    control: &mut Control,
    peer: PeerId,
    protocol: &StreamProtocol,
    ask: RequestBody,
) -> Stream {
    let mut stream = control
        .open_stream(peer, protocol.clone())
        .await
        .expect("a stream");
    stream
        .write_all(&wire::frame(&wire::Request { body: Some(ask) }))
        .await
        .expect("it is sent");
    stream.close().await.expect("it is sent");
    stream
}

async fn frame(stream: &mut Stream) -> Option<Vec<u8>> {
    let mut length = [0; LENGTH];
    stream.read_exact(&mut length).await.ok()?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut bytes).await.ok()?;
    Some(bytes)
}
