//! Tests of delay, rate, loss and order of connections.

use crate::net::*;
use starling_netsim::{DirectionConditions, LinkConditions, LinkEnd, SEGMENT};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};

/// Bytes per second of a transfer to `address`, which must lead to a [`sink`]. The time includes the
/// dial, so that a reader which runs late does not measure a burst: a busy machine only lowers it.
async fn rate_with_dial(
    address: SocketAddr,
    received: &mut mpsc::Receiver<Received>,
    total: usize,
) -> f64 {
    let start = Instant::now();
    let pouring = tokio::spawn(pour(address, total));
    let mut bytes = 0;
    while bytes < total {
        bytes += received.recv().await.expect("more data").bytes;
    }
    let time = start.elapsed();
    drop(pouring.await.unwrap());
    bytes as f64 / time.as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_trip_takes_both_delays() {
    let mut conditions = delayed(ms(30));
    conditions.down.delay = ms(20);
    let (link, address) = to_echo(conditions).await;
    let start = Instant::now();
    let mut stream = dial(address).await;
    ping(&mut stream).await;
    // Four one-way delays: the dial, its reply, the byte and its echo.
    assert!(start.elapsed() >= ms(100), "{:?}", start.elapsed());
    let mut times = Vec::new();
    for _ in 0..30 {
        times.push(ping(&mut stream).await);
    }
    assert!(times.iter().all(|time| *time >= ms(50)), "{times:?}");
    assert!(percentile(times.clone(), 10) <= ms(55), "{times:?}");

    link.set(delayed(ms(5))).unwrap();
    let mut times = Vec::new();
    for _ in 0..10 {
        times.push(ping(&mut stream).await);
    }
    let time = percentile(times, 0);
    assert!((ms(10)..ms(30)).contains(&time), "{time:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delay_below_a_millisecond_is_met() {
    let (_link, address) = to_echo(delayed(Duration::from_micros(500))).await;
    let mut stream = dial(address).await;
    // tokio's own timer would make each round trip three milliseconds and more. The best time shows
    // the link; others wait for the processor.
    let start = Instant::now();
    loop {
        let time = ping(&mut stream).await;
        assert!(time >= ms(1), "{time:?}");
        if time < ms(3) {
            return;
        }
        assert!(start.elapsed() < ms(60_000), "{time:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_does_not_exceed_the_rate_of_its_direction() {
    let conditions = LinkConditions {
        up: limited(2_000_000, 200_000),
        down: limited(500_000, 100_000),
        ..LinkConditions::CLEAR
    };
    let (link, up, mut from_near) = to_sink(conditions).await;
    let (target, mut from_far) = sink().await;
    let down = link.tcp(LinkEnd::Near, target).await.unwrap();
    let (up, down) = tokio::join!(
        rate_with_dial(up, &mut from_near, 4_000_000),
        rate_with_dial(down, &mut from_far, 1_000_000)
    );
    // A busy machine has less than the rate. The bench `links` has the bar.
    assert!((0.02..1.1).contains(&(up / 2e6)), "{up} bytes/s up");
    assert!((0.02..1.1).contains(&(down / 5e5)), "{down} bytes/s down");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_share_a_rate_evenly() {
    let conditions = LinkConditions::symmetric(limited(2_000_000, 100_000));
    let (link, first, mut of_first) = to_sink(conditions).await;
    let (target, mut of_second) = sink().await;
    let second = link.tcp(LinkEnd::Far, target).await.unwrap();
    let (first, second) = tokio::join!(
        rate_with_dial(first, &mut of_first, 2_000_000),
        rate_with_dial(second, &mut of_second, 2_000_000)
    );
    // The connection that ends first leaves the whole rate to the other for its last part. A
    // connection that goes before the other has the whole rate from the start.
    assert!((0.04e6..1.5e6).contains(&first), "{first}");
    assert!((0.04e6..1.5e6).contains(&second), "{second}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latency_alone_does_not_limit_throughput() {
    let (_link, address, mut received) = to_sink(delayed(ms(50))).await;
    // A link that waits for each delivery before it reads on carries one buffer of 64 KiB in 50 ms:
    // 1.3 MB/s.
    let rate = throughput(address, &mut received, 64 << 20).await;
    println!("{:.0} MB/s at 50 ms", rate / 1e6);
    assert!(rate > 20e6, "{rate} bytes/s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_change_while_a_transfer_runs() {
    let conditions = LinkConditions::symmetric(limited(1_000_000, 100_000));
    let (link, address, mut received) = to_sink(conditions).await;
    let pouring = tokio::spawn(pour(address, 16_000_000));
    let slow = best_rate(&mut received, 500_000).await;
    link.set(LinkConditions::symmetric(limited(4_000_000, 400_000)))
        .unwrap();
    let set_at = Instant::now();
    while received.recv().await.unwrap().at < set_at {}
    let fast = best_rate(&mut received, 2_000_000).await;
    pouring.abort();
    assert!(within_a_tenth(slow, 1e6), "{slow}");
    assert!(within_a_tenth(fast, 4e6), "{fast}");
    let refused = link.update(|it| it.up.loss = 2.0).unwrap_err();
    assert!(refused.to_string().contains("loss of 2"), "{refused}");
    assert_eq!(link.conditions().up, limited(4_000_000, 400_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_stalls_a_connection_and_jitter_keeps_its_bytes_in_order() {
    let conditions = LinkConditions::symmetric(DirectionConditions {
        delay: ms(2),
        jitter: ms(2),
        loss: 0.02,
        ..DirectionConditions::CLEAR
    });
    let (link, address) = to_echo(conditions).await;
    let stream = dial(address).await;
    let start = Instant::now();
    comes_back_whole(stream, 300_000).await;
    let (mut again, mut segments) = (0, 0.0);
    for counts in link.counts() {
        again += counts.retransmitted;
        segments += counts.bytes as f64 / SEGMENT as f64;
    }
    let share = again as f64 / segments;
    assert!((share - 0.02).abs() < 0.01, "{share} of {segments}");
    // Each direction loses about 16 segments, one after the other.
    assert!(start.elapsed() > ms(1_000), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_closed_connection_carries_the_other_direction() {
    let link = link(delayed(ms(20)));
    let target = server(|mut stream| async move {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).await.unwrap();
        stream.write_all(&request).await.unwrap();
        stream.write_all(b" after the end").await.unwrap();
    })
    .await;
    let address = link.tcp(LinkEnd::Far, target).await.unwrap();
    let mut stream = dial(address).await;
    stream.write_all(b"request").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "request after the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_accept_delays_the_connection_and_not_its_data() {
    let mut conditions = LinkConditions::CLEAR;
    let delay = ms(2_000);
    conditions.accept_delay = delay;
    let (_link, address) = to_echo(conditions).await;
    let start = Instant::now();
    let mut streams: Vec<TcpStream> = Vec::new();
    for _ in 0..5 {
        streams.push(dial(address).await);
    }
    for stream in &mut streams {
        ping(stream).await;
        assert!(start.elapsed() >= delay);
    }
    assert!(start.elapsed() < 4 * delay, "all at once");
    assert!(ping(&mut streams[0]).await < delay);
}
