//! Tests of links that refuse traffic, are unplugged or half-open, and of connections that are reset.

use crate::net::*;
use starling_netsim::{FaultyLink, LinkConditions, LinkEnd, Passage};
use std::{
    io::ErrorKind,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Notify,
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Time in which an event that must not happen is waited for.
const SILENCE: Duration = ms(300);

fn passage(link: &FaultyLink, passage: Passage) {
    let both = |it: &mut LinkConditions| (it.up.passage, it.down.passage) = (passage, passage);
    link.update(both).unwrap();
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    timeout(SILENCE, stream.read(&mut [0; 16])).await.is_err()
}

async fn is_reset(stream: &mut TcpStream) -> bool {
    let read = timeout(PATIENCE, stream.read(&mut [0; 16])).await.unwrap();
    read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

/// Dials until the listener has followed its link's conditions, so that the dial is accepted or
/// refused as expected.
async fn dial_until(address: SocketAddr, accepted: bool) -> Option<TcpStream> {
    let start = Instant::now();
    loop {
        let dial = TcpStream::connect(address).await;
        let refused = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
        if dial.is_ok() == accepted && dial.as_ref().err().is_none_or(refused) {
            return dial.ok();
        }
        assert!(start.elapsed() < PATIENCE, "{dial:?}");
        tokio::time::sleep(ms(10)).await;
    }
}

#[tokio::test]
async fn an_unplugged_link_is_silent_and_loses_nothing() {
    let (link, address) = to_echo(LinkConditions::CLEAR).await;
    let mut stream = dial(address).await;
    ping(&mut stream).await;
    passage(&link, Passage::Unplugged);
    stream.write_all(b"pong").await.unwrap();
    assert!(is_silent(&mut stream).await);
    passage(&link, Passage::Open);
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"pong");

    // The end of a connection has to pass the unplugged link, too.
    passage(&link, Passage::Unplugged);
    stream.shutdown().await.unwrap();
    assert!(is_silent(&mut stream).await);
    passage(&link, Passage::Open);
    assert_eq!(stream.read(&mut answer).await.unwrap(), 0);
}

#[tokio::test]
async fn a_dial_waits_while_the_link_is_unplugged_and_is_forgotten_with_its_dialler() {
    let link = link(LinkConditions::CLEAR);
    let (target, mut received) = sink().await;
    let address = link.tcp(LinkEnd::Far, target).await.unwrap();
    passage(&link, Passage::Unplugged);
    let mut gone = dial(address).await;
    gone.write_all(b"gone").await.unwrap();
    drop(gone);
    let mut patient = dial(address).await;
    patient.write_all(b"patient").await.unwrap();
    // A dialler that has gone is noticed after three seconds, or later on a busy machine.
    tokio::time::sleep(ms(6_000)).await;
    passage(&link, Passage::Open);
    let received = timeout(PATIENCE, received.recv()).await.unwrap().unwrap();
    assert_eq!(received.bytes, "patient".len());
    let [up, _] = link.counts();
    assert_eq!(up.delivered, 2, "one dial and its data: {up:?}");
}

#[tokio::test]
async fn a_half_open_link_swallows_traffic_and_connections_stay() {
    let (link, address) = to_echo(LinkConditions::CLEAR).await;
    let (mut active, mut idle) = (dial(address).await, dial(address).await);
    ping(&mut active).await;
    ping(&mut idle).await;
    passage(&link, Passage::HalfOpen);
    active.write_all(b"lost").await.unwrap();
    let mut late = dial(address).await;
    late.write_all(b"lost").await.unwrap();
    assert!(is_silent(&mut active).await);
    assert!(is_silent(&mut late).await);

    passage(&link, Passage::Open);
    active.write_all(b"lost too").await.unwrap();
    assert!(is_silent(&mut active).await, "its state is gone");
    assert!(is_silent(&mut late).await);
    ping(&mut idle).await;
    ping(&mut dial(address).await).await;
}

#[tokio::test]
async fn one_direction_may_be_half_open() {
    let link = link(LinkConditions::CLEAR);
    let (target, mut received) = sink().await;
    let address = link.tcp(LinkEnd::Far, target).await.unwrap();
    let mut stream = dial(address).await;
    stream.write_all(b"before").await.unwrap();
    timeout(PATIENCE, received.recv()).await.unwrap();
    link.update(|it| it.down.passage = Passage::HalfOpen)
        .unwrap();
    stream.write_all(b"still there").await.unwrap();
    let received = timeout(PATIENCE, received.recv()).await.unwrap().unwrap();
    assert_eq!(received.bytes, "still there".len());
}

#[tokio::test]
async fn a_refusing_link_resets_connections_and_heals_at_the_same_address() {
    let (link, address) = to_echo(LinkConditions::CLEAR).await;
    for _ in 0..3 {
        let mut stream = dial_until(address, true).await.unwrap();
        ping(&mut stream).await;
        link.update(|it| it.refuse = true).unwrap();
        assert!(is_reset(&mut stream).await);
        assert!(dial_until(address, false).await.is_none());
        tokio::time::sleep(ms(20)).await;
        assert!(dial_until(address, false).await.is_none(), "still refused");
        link.update(|it| it.refuse = false).unwrap();
    }
    let mut stream = dial_until(address, true).await.unwrap();
    ping(&mut stream).await;
    let resets = link.counts().map(|counts| counts.resets);
    assert!(resets.iter().sum::<u64>() >= 3, "{resets:?}");
}

#[tokio::test]
async fn a_reset_meets_the_connections_of_now() {
    let (link, address) = to_echo(LinkConditions::CLEAR).await;
    let mut streams = Vec::new();
    for _ in 0..10 {
        let mut stream = dial(address).await;
        ping(&mut stream).await;
        streams.push(stream);
    }
    link.reset();
    for stream in &mut streams {
        assert!(is_reset(stream).await);
    }
    ping(&mut dial(address).await).await;
    // A reset by chance, with a share of one.
    link.update(|it| it.up.reset = 1.0).unwrap();
    let mut stream = dial(address).await;
    let _ = stream.write_all(b"met").await;
    assert!(is_reset(&mut stream).await);
}

#[tokio::test]
async fn a_target_that_is_down_resets_its_diallers() {
    let link = link(LinkConditions::CLEAR);
    let closed = SocketAddr::from(ANY);
    let address = link.tcp(LinkEnd::Far, closed).await.unwrap();
    assert!(is_reset(&mut dial(address).await).await);
}

#[tokio::test]
async fn the_end_of_a_killed_peer_does_not_pass_an_unplugged_link() {
    let link = link(LinkConditions::CLEAR);
    let kill = Arc::new(Notify::new());
    let killed = kill.clone();
    let target = server(move |stream| {
        let killed = killed.clone();
        async move {
            killed.notified().await;
            stream.set_zero_linger().unwrap();
        }
    })
    .await;
    let address = link.tcp(LinkEnd::Far, target).await.unwrap();
    let mut stream = dial(address).await;
    tokio::time::sleep(ms(50)).await;
    passage(&link, Passage::Unplugged);
    kill.notify_one();
    assert!(is_silent(&mut stream).await);
    passage(&link, Passage::Open);
    assert!(is_reset(&mut stream).await);
}

#[tokio::test]
async fn a_dropped_link_ends_its_connections_and_addresses() {
    let (link, address) = to_echo(LinkConditions::CLEAR).await;
    let mut stream = dial(address).await;
    ping(&mut stream).await;
    drop(link);
    let end = timeout(PATIENCE, stream.read(&mut [0; 16])).await.unwrap();
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    assert!(dial_until(address, false).await.is_none());
}

/// A host that moves: the old address is refused, and the same port serves at the new one.
#[tokio::test]
async fn an_address_ends_with_its_connections_and_its_port_opens_elsewhere() {
    let link = link(LinkConditions::CLEAR);
    let target = echo().await;
    let first = SocketAddr::from(([127, 77, 0, 1], 0));
    let old = link.tcp_at(LinkEnd::Far, target, first).await.unwrap();
    let gone = old.address;
    let mut stream = dial(gone).await;
    ping(&mut stream).await;
    drop(old);
    let read = timeout(PATIENCE, stream.read(&mut [0; 16])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    assert!(dial_until(gone, false).await.is_none());
    let second = SocketAddr::from(([127, 77, 0, 2], gone.port()));
    let new = link.tcp_at(LinkEnd::Far, target, second).await.unwrap();
    assert_eq!(new.address, second);
    ping(&mut dial(second).await).await;
}
