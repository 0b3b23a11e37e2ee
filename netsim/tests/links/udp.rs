//! Tests of delay, rate, loss, order and duplication of datagrams.

use crate::net::*;
use starling_netsim::{DirectionConditions, LinkConditions, LinkEnd, Passage};
use std::{collections::BTreeSet, time::Duration};
use tokio::net::UdpSocket;

/// An echo of 2,000 datagrams a second, which uses a tenth of a core, including the link.
const ECHO: Echo = Echo {
    count: 10_000,
    len: 200,
    batch: 4,
    pause: ms(2),
    patience: ms(3_000),
};

fn times(echoed: &[Echoed]) -> Vec<Duration> {
    echoed.iter().map(|it| it.time).collect()
}

/// Share of the datagrams with at least one reply.
fn answered(echoed: &[Echoed]) -> f64 {
    let numbers: BTreeSet<u64> = echoed.iter().map(|it| it.number).collect();
    numbers.len() as f64 / ECHO.count as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_echoes_meet_delay_jitter_and_loss() {
    let conditions = LinkConditions::symmetric(DirectionConditions {
        delay: ms(25),
        jitter: ms(3),
        loss: 0.05,
        ..DirectionConditions::CLEAR
    });
    let (link, socket) = to_udp_echo(conditions).await;
    let echoed = ECHO.run(socket).await;
    let share = answered(&echoed);
    assert!((share - 0.95 * 0.95).abs() < 0.01, "{share} came back");
    assert!(echoed.is_sorted_by_key(|it| it.number), "order is kept");
    assert!(echoed.iter().all(|it| it.time >= ms(44)));
    let time = times(&echoed).into_iter().min().unwrap();
    assert!(time <= ms(53), "{time:?}");
    let [up, _] = link.counts();
    assert_eq!(up.packets, ECHO.count);
    let lost = up.lost as f64 / ECHO.count as f64;
    assert!((lost - 0.05).abs() < 0.01, "{lost} lost on the way up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_echoes_meet_the_delay_alone() {
    let (_link, socket) = to_udp_echo(delayed(ms(25))).await;
    let echoed = ECHO.run(socket).await;
    assert!(answered(&echoed) > 0.99, "{}", answered(&echoed));
    assert!(echoed.iter().all(|it| it.time >= ms(50)));
    let time = times(&echoed).into_iter().min().unwrap();
    assert!(time <= ms(55), "{time:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_are_overtaken_and_doubled_by_their_shares() {
    let mut conditions = delayed(ms(20));
    conditions.up.reorder = 0.1;
    conditions.up.duplicate = 0.1;
    let (link, socket) = to_udp_echo(conditions).await;
    let echoed = ECHO.run(socket).await;
    let copies = echoed.len() as f64 / ECHO.count as f64;
    assert!((copies - 1.1).abs() < 0.01, "{copies}");
    let mut newest = 0;
    let late = echoed.iter().filter(|it| {
        newest = newest.max(it.number);
        it.number < newest
    });
    let late = late.count() as f64 / ECHO.count as f64;
    // A datagram that is sent before a pause of the machine is not overtaken.
    assert!((0.02..0.12).contains(&late), "{late}");
    let [up, down] = link.counts();
    let reordered = up.reordered as f64 / ECHO.count as f64;
    assert!((reordered - 0.1).abs() < 0.01, "{reordered}");
    assert_eq!(down.reordered + down.duplicated, 0);
    assert_eq!(up.duplicated + ECHO.count, up.delivered);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_passes_its_share_and_a_full_queue_drops_the_rest() {
    // Datagrams are sent at 400 KB/s for five seconds. Half of them pass, and in addition those
    // that fit into the queue.
    let mut conditions = LinkConditions::CLEAR;
    conditions.up = limited(200_000, 100_000);
    let (link, socket) = to_udp_echo(conditions).await;
    let echoed = ECHO.run(socket).await;
    let share = answered(&echoed);
    assert!(within_a_tenth(share, 0.55), "{share}");
    let [up, _] = link.counts();
    let dropped = up.dropped as f64 / ECHO.count as f64;
    assert!(within_a_tenth(dropped, 0.45), "{up:?}");
    // Datagrams that entered a full queue waited for the whole queue, which takes half a second.
    let full: Vec<Echoed> = echoed.into_iter().filter(|it| it.number > 5_000).collect();
    assert!(percentile(times(&full), 50) > ms(450));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_change_while_datagrams_pass() {
    let (link, socket) = to_udp_echo(delayed(ms(5))).await;
    let running = tokio::spawn(ECHO.run(socket));
    tokio::time::sleep(ms(1_000)).await;
    link.update(|it| it.down.passage = Passage::Unplugged)
        .unwrap();
    tokio::time::sleep(ms(1_000)).await;
    link.set(delayed(ms(30))).unwrap();
    let echoed = running.await.unwrap();
    // The direction is closed for a fifth of five seconds.
    let share = answered(&echoed);
    assert!((0.6..0.9).contains(&share), "{share}");
    let [before, after] = [0..1_000, 9_000..10_000].map(|range| {
        let times = echoed.iter().filter(|it| range.contains(&it.number));
        times.map(|it| it.time).min().unwrap()
    });
    assert!((ms(10)..ms(20)).contains(&before), "{before:?}");
    assert!((ms(60)..ms(75)).contains(&after), "{after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_datagram_of_a_client_is_not_lost() {
    let (_link, first) = to_udp_echo(LinkConditions::CLEAR).await;
    for number in 0..100_u8 {
        let client = udp_socket().await;
        client.connect(first.peer_addr().unwrap()).await.unwrap();
        client.send(&[number]).await.unwrap();
        let mut answer = [0; 1];
        let received = tokio::time::timeout(Duration::from_secs(10), client.recv(&mut answer));
        received.await.expect("an answer").unwrap();
        assert_eq!(answer, [number]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_client_gets_its_own_answers_also_after_the_target_was_down() {
    let link = link(delayed(ms(1)));
    // A port that no socket has, at an address that no other test uses. The kernel reports refused
    // datagrams to the link's socket.
    let free = UdpSocket::bind(("127.0.0.22", 0)).await.unwrap();
    let closed = free.local_addr().unwrap();
    drop(free);
    let address = link.udp(LinkEnd::Near, closed).await.unwrap();
    let mut clients = Vec::new();
    for number in 0..20_u8 {
        let client = udp_socket().await;
        client.connect(address).await.unwrap();
        client.send(&[number]).await.unwrap();
        clients.push(client);
    }
    tokio::time::sleep(ms(50)).await;
    let target = UdpSocket::bind(closed).await.unwrap();
    let serving = tokio::spawn(async move {
        let mut buffer = [0; 16];
        while let Ok((len, from)) = target.recv_from(&mut buffer).await {
            target.send_to(&buffer[..len], from).await.unwrap();
        }
    });
    for (number, client) in (0..).zip(&clients) {
        client.send(&[number, 1]).await.unwrap();
    }
    for (number, client) in (0..).zip(&clients) {
        let mut buffer = [0; 16];
        let answer = tokio::time::timeout(Duration::from_secs(10), client.recv(&mut buffer));
        assert_eq!(answer.await.unwrap().unwrap(), 2);
        assert_eq!(buffer[..2], [number, 1]);
    }
    serving.abort();
}
