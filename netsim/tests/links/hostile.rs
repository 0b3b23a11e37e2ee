//! Tests with clients that would overload a relay without limits.

use crate::net::*;
use starling_netsim::{LinkConditions, LinkEnd};
use std::time::{Duration, Instant};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(180);

/// A server that sends data without end.
async fn fountain() -> std::net::SocketAddr {
    server(|mut stream| async move {
        let chunk = vec![1; 256 << 10];
        while stream.write_all(&chunk).await.is_ok() {}
    })
    .await
}

/// Waits until the link reads nothing more from the far end; returns the number of bytes read.
async fn stalled(link: &starling_netsim::FaultyLink) -> u64 {
    let start = Instant::now();
    let mut before = 0;
    loop {
        tokio::time::sleep(ms(300)).await;
        let [_, down] = link.counts();
        if down.bytes == before && before > 0 {
            return before;
        }
        before = down.bytes;
        assert!(start.elapsed() < PATIENCE, "{before} bytes and no end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_hold_up_nobody_else() {
    let (link, address) = to_echo(LinkConditions::CLEAR).await;
    let endless = link.tcp(LinkEnd::Far, fountain().await).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(dial(endless).await);
    }
    let taken = stalled(&link).await;
    // At most the budget of a direction, and the kernel's buffers for eight clients.
    assert!(taken < (64 << 20) + 8 * (24 << 20), "{taken}");
    let mut stream = dial(address).await;
    for _ in 0..20 {
        assert!(ping(&mut stream).await < ms(500));
    }
    // A client that starts to read late gets more than the data that were waiting.
    let mut left = 64_usize << 20;
    let mut buffer = vec![0; 256 << 10];
    while left > 0 {
        let read = timeout(PATIENCE, silent[0].read(&mut buffer));
        left = left.saturating_sub(read.await.unwrap().unwrap());
    }
    drop(silent);
    ping(&mut stream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_is_held_back_by_a_slow_direction() {
    let mut conditions = LinkConditions::CLEAR;
    conditions.up = limited(100_000, 20_000);
    let (link, address, _received) = to_sink(conditions).await;
    let start = Instant::now();
    let pouring = tokio::spawn(pour(address, 64 << 20));
    tokio::time::sleep(ms(1_000)).await;
    let [up, _] = link.counts();
    let most = 10_000 + 2_000 + (start.elapsed().as_secs_f64() * 100_000.0) as u64;
    assert!((50_000..most).contains(&up.bytes), "{} of {most}", up.bytes);
    pouring.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_at_once() {
    // Each connection needs four sockets in this process.
    open_many_files();
    let (link, address) = to_echo(delayed(ms(10))).await;
    let start = Instant::now();
    let connections: Vec<_> = (0..1_000_u32)
        .map(|number| tokio::spawn(exchange(address, number)))
        .collect();
    for connection in connections {
        timeout(PATIENCE, connection).await.unwrap().unwrap();
    }
    println!("1,000 connections: {:?}", start.elapsed());
    let [up, down] = link.counts();
    assert_eq!(up.bytes, 1_000 * 20_000);
    assert_eq!(down.bytes, up.bytes);
}

/// Sends 20,000 bytes in pieces, reads them back, and ends the connection.
async fn exchange(address: std::net::SocketAddr, number: u32) {
    let (mut read, mut write) = dial(address).await.into_split();
    let data: Vec<u8> = (0..5_000_u32)
        .flat_map(|word| (word ^ number).to_be_bytes())
        .collect();
    let sent = data.clone();
    let sending = async {
        for piece in sent.chunks(3_000) {
            write.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        write.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let (read, ()) = tokio::join!(read.read_to_end(&mut back), sending);
    read.unwrap();
    assert!(back == data, "connection {number}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_dies_before_its_peer_reads_leaves_nothing_behind() {
    let link = link(LinkConditions::CLEAR);
    // The server never reads, and reports when its connection is reset.
    let (report, mut reset) = tokio::sync::mpsc::channel(16);
    let target = server(move |stream: TcpStream| {
        let report = report.clone();
        async move {
            while stream.take_error().unwrap().is_none() {
                tokio::time::sleep(ms(20)).await;
            }
            report.send(()).await.unwrap();
        }
    })
    .await;
    let address = link.tcp(LinkEnd::Far, target).await.unwrap();
    for _ in 0..4 {
        let mut stream = dial(address).await;
        let chunk = vec![0; 256 << 10];
        while let Ok(Ok(())) = timeout(ms(500), stream.write_all(&chunk)).await {}
        stream.set_zero_linger().unwrap();
    }
    for _ in 0..4 {
        timeout(PATIENCE, reset.recv()).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_clients_does_not_end_the_relay() {
    // The relay opens a socket for each client, up to its limit of clients.
    open_many_files();
    let (link, socket) = to_udp_echo(LinkConditions::CLEAR).await;
    let address = socket.peer_addr().unwrap();
    for number in 0..3_000_u32 {
        let client = tokio::net::UdpSocket::bind(ANY).await.unwrap();
        client
            .send_to(&number.to_be_bytes(), address)
            .await
            .unwrap();
        if number % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let mut answer = [0; 8];
    let start = Instant::now();
    loop {
        socket.send(b"honest").await.unwrap();
        if let Ok(read) = timeout(ms(200), socket.recv(&mut answer)).await {
            assert_eq!(&answer[..read.unwrap()], b"honest");
            break;
        }
        assert!(start.elapsed() < PATIENCE, "no answer");
    }
    let [up, _] = link.counts();
    assert!(up.packets > 100, "{up:?}");
}
