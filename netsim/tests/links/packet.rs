//! Tests of the packet backend with the kernel's own TCP and UDP. They are skipped where namespaces
//! are refused.

use crate::net::*;
use starling_netsim::{
    DirectionConditions, LinkConditions,
    packet::{NatKind, PacketHostPlan},
};
use std::{collections::BTreeSet, io::ErrorKind, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};

/// Longest wait for an event that a test expects. A loaded machine needs seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// An echo of 2,000 datagrams a second.
const ECHO: Echo = Echo {
    count: 10_000,
    len: 200,
    batch: 4,
    pause: ms(2),
    patience: ms(5_000),
};

fn symmetric(change: impl FnOnce(&mut DirectionConditions)) -> LinkConditions {
    let mut direction = DirectionConditions::CLEAR;
    change(&mut direction);
    LinkConditions::symmetric(direction)
}

/// Sends numbered bytes through an echo and asserts that they come back unchanged.
async fn comes_back_whole(stream: TcpStream, len: u32) {
    let data: Vec<u8> = (0..len).flat_map(u32::to_be_bytes).collect();
    let (mut read, mut write) = stream.into_split();
    let sent = data.clone();
    let sending = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write
    });
    let mut back = vec![0; data.len()];
    read.read_exact(&mut back).await.unwrap();
    assert!(back == data, "bytes were lost or changed");
    drop(sending.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_arrives_whole_over_a_bad_link() {
    let conditions = symmetric(|it| {
        it.delay = ms(2);
        it.jitter = ms(1);
        it.loss = 0.01;
        it.reorder = 0.01;
        it.duplicate = 0.01;
        it.corrupt = 0.01;
    });
    let Some(lab) = PacketLab::pair(conditions) else {
        return;
    };
    let stream = lab.dial(0, lab.echo(1)).await;
    comes_back_whole(stream, 500_000).await;
    let [up, down] = lab.network.link_counts(0);
    for it in [up, down] {
        assert!(
            it.lost > 0 && it.duplicated > 0 && it.reordered > 0,
            "{it:?}"
        );
    }
    assert!(lab.network.counts().corrupted > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_echoes_meet_delay_and_loss() {
    let conditions = symmetric(|it| {
        it.delay = ms(25);
        it.loss = 0.05;
    });
    let Some(lab) = PacketLab::pair(conditions) else {
        return;
    };
    let echoed = ECHO.run(lab.udp_to_echo(0, 1).await).await;
    let numbers: BTreeSet<u64> = echoed.iter().map(|it| it.number).collect();
    let share = numbers.len() as f64 / ECHO.count as f64;
    assert!((share - 0.95 * 0.95).abs() < 0.01, "{share} came back");
    assert!(echoed.iter().all(|it| it.time >= ms(50)));
    // The best time shows the link; others wait for the processor. The bench `links` has the bar.
    let time = percentile(echoed.iter().map(|it| it.time).collect(), 0);
    assert!(time <= ms(75), "{time:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_are_overtaken_doubled_and_dropped_if_corrupt() {
    let mut conditions = delayed(ms(20));
    conditions.up.reorder = 0.1;
    conditions.up.duplicate = 0.1;
    conditions.up.corrupt = 0.1;
    let Some(lab) = PacketLab::pair(conditions) else {
        return;
    };
    let echoed = ECHO.run(lab.udp_to_echo(0, 1).await).await;
    let near = |count: usize, share: f64| (count as f64 / ECHO.count as f64 - share).abs() < 0.015;
    // A flipped bit is found by a checksum, except in the few bits that none covers.
    assert!(near(echoed.len(), 1.1 * 0.9), "{}", echoed.len());
    let [up, down] = lab.network.link_counts(0);
    assert!(near(up.reordered as usize, 0.1), "{up:?}");
    assert!(near(up.duplicated as usize, 0.1), "{up:?}");
    assert_eq!(down.reordered + down.duplicated, 0);
    assert!(!echoed.is_sorted_by_key(|it| it.number));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_does_not_exceed_the_rate_of_its_direction() {
    let conditions = LinkConditions {
        up: limited(2_000_000, 200_000),
        down: limited(500_000, 100_000),
        ..LinkConditions::CLEAR
    };
    let Some(lab) = PacketLab::pair(conditions) else {
        return;
    };
    for (from, to, rate, total) in [(0, 1, 2e6, 4_000_000), (1, 0, 5e5, 1_000_000)] {
        let (address, mut received) = lab.sink(to);
        let stream = lab.dial(from, address).await;
        let (start, mut arrived) = (Instant::now(), 0);
        let pouring = tokio::spawn(pour_into(stream, total));
        while arrived < total {
            arrived += received.recv().await.expect("more data").bytes;
        }
        let measured = total as f64 / start.elapsed().as_secs_f64();
        pouring.abort();
        // Headers take three percent of each packet. A kernel whose acknowledgements wait for a busy
        // machine sends less than the rate, never more. The time includes the wait for the first
        // data, so that a reader which runs late does not measure a burst.
        assert!(
            (0.05..1.02).contains(&(measured / rate)),
            "{measured} of {rate}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_change_and_a_detour_adds_its_links_in_one_direction() {
    let hosts = [PacketHostPlan::default(); 3];
    let Some(lab) = PacketLab::new(&hosts, delayed(ms(5))) else {
        return;
    };
    let mut stream = lab.dial(0, lab.echo(1)).await;
    let mut fastest = async || {
        let mut times = Vec::new();
        for _ in 0..20 {
            times.push(ping(&mut stream).await);
        }
        percentile(times, 0)
    };
    // Links: 0 to 1, 0 to 2, 1 to 2.
    let packets = |link| lab.network.link_counts(link).map(|it| it.packets);
    let direct = fastest().await;
    assert!(direct >= ms(10), "{direct:?}");
    assert_eq!([packets(1), packets(2)], [[0, 0]; 2]);
    lab.network.detour(0, 1, Some(2)).unwrap();
    let before = packets(0);
    let detour = fastest().await;
    assert!(detour >= ms(15), "{detour:?}");
    let (detoured, [up, down]) = ([packets(1), packets(2)], packets(0));
    assert!(detoured[0][0] >= 20 && detoured[1][1] >= 20, "{detoured:?}");
    assert_eq!([detoured[0][1], detoured[1][0]], [0, 0]);
    assert_eq!(up, before[0], "no packet to 1 on the direct link");
    assert!(down >= before[1] + 20, "packets from 1 on the direct link");
    lab.network.detour(0, 1, None).unwrap();
    lab.network.update(0, |it| it.down.delay = ms(45)).unwrap();
    let slow = fastest().await;
    assert!(slow >= ms(50), "{slow:?}");
    let refused = lab.network.update(0, |it| it.up.loss = 2.0).unwrap_err();
    assert!(refused.to_string().contains("loss of 2"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_mtu_is_discovered_by_the_kernel() {
    let Some(lab) = PacketLab::pair(symmetric(|it| it.mtu = Some(1_000))) else {
        return;
    };
    let stream = lab.dial(0, lab.echo(1)).await;
    comes_back_whole(stream, 50_000).await;
    let counts = lab.network.counts();
    // Each side learns the MTU from an error of the router, and then sends smaller packets.
    assert!((2..100).contains(&counts.too_large), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_link_resets_and_an_unplugged_one_waits() {
    let Some(lab) = PacketLab::pair(delayed(ms(1))) else {
        return;
    };
    let address = lab.echo(1);
    let mut stream = lab.dial(0, address).await;
    lab.network.update(0, |it| it.up.loss = 1.0).unwrap();
    let waiting = timeout(ms(300), ping(&mut stream)).await;
    assert!(waiting.is_err(), "TCP retransmits");
    lab.network.update(0, |it| it.up.loss = 0.0).unwrap();
    let mut byte = [0];
    let read = timeout(PATIENCE, stream.read_exact(&mut byte)).await;
    read.expect("a retransmission").unwrap();
    lab.network.update(0, |it| it.refuse = true).unwrap();
    let refused = timeout(PATIENCE, lab.host(0).dial(address)).await;
    let refused = refused.expect("a reset").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    stream.write_all(&[1]).await.unwrap();
    let end = timeout(PATIENCE, stream.read_exact(&mut byte)).await;
    assert_eq!(end.unwrap().unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_behind_a_nat_dial_out_and_only_a_full_cone_accepts_other_senders() {
    for kind in [NatKind::FullCone, NatKind::Symmetric] {
        let natted = PacketHostPlan {
            nat: Some(kind),
            ..PacketHostPlan::default()
        };
        let open = PacketHostPlan::default();
        let Some(lab) = PacketLab::new(&[natted, open, open], delayed(ms(1))) else {
            return;
        };
        comes_back_whole(lab.dial(0, lab.echo(1)).await, 20_000).await;
        let inside = lab.echo(0);
        let dialled = timeout(ms(500), lab.host(1).dial(inside)).await;
        assert!(dialled.is_err(), "{kind:?} accepted a dial");

        let (host, first, other) = (
            lab.host(0).udp(0).unwrap(),
            lab.host(1).udp(0).unwrap(),
            lab.host(2).udp(0).unwrap(),
        );
        let remote = lab.at(1, first.local_addr().unwrap());
        host.send_to(&[1], remote).await.unwrap();
        let mut buffer = [0; 8];
        let (_, from) = timeout(PATIENCE, first.recv_from(&mut buffer))
            .await
            .expect("the NAT lets it out")
            .unwrap();
        assert_eq!(from.ip(), lab.host(0).address);
        other.send_to(&[2], from).await.unwrap();
        // The answer is sent when the other datagram has arrived or was dropped.
        let settled = Instant::now() + ms(200);
        tokio::time::sleep_until(settled).await;
        first.send_to(&[3], from).await.unwrap();
        let mut seen = Vec::new();
        while seen.last() != Some(&3) {
            let received = timeout(PATIENCE, host.recv(&mut buffer)).await;
            received.expect("the answer").unwrap();
            seen.push(buffer[0]);
        }
        let expected: &[u8] = match kind {
            NatKind::FullCone => &[2, 3],
            NatKind::Symmetric => &[3],
        };
        assert_eq!(seen, expected, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_port_leads_past_the_links_and_nothing_is_left_of_a_network() {
    let Some(lab) = PacketLab::pair(symmetric(|it| it.loss = 1.0)) else {
        return;
    };
    let server = lab.echo(1);
    let forwarded = lab.network.forward_port(1, server.port()).await.unwrap();
    ping(&mut dial(forwarded).await).await;
    let devices = std::fs::read_to_string("/proc/net/dev").unwrap();
    assert!(!devices.contains("link0"), "no device outside: {devices}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains("nsfs"), "no named namespace: {mounts}");
    let namespace = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let own = namespace();
    let hosts = [0, 1].map(|host| lab.host(host).within(namespace).unwrap());
    assert!(!hosts.contains(&own));
    drop(lab);
    // Threads of other tests are in other namespaces. A thread is seen for a moment after its end.
    let has_thread = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let mut found = tasks.flat_map(|task| std::fs::read_link(task.path().join("ns/net")));
        found.any(|it| hosts.contains(&it))
    };
    let begun = Instant::now();
    while has_thread() {
        assert!(begun.elapsed() < PATIENCE, "a thread is left");
        tokio::time::sleep(ms(10)).await;
    }
}
