//! Tests of the packet backend with the kernel's own TCP and UDP. They are skipped where namespaces
//! are refused.

use crate::net::*;
use starling_netsim::{
    DirectionConditions, LinkConditions,
    packet::{NatKind, PacketHostPlan},
};
use std::{collections::BTreeSet, io::ErrorKind, path::PathBuf, process::Command, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
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
    // A late acknowledgement is answered with a reset too, which then fails the write.
    let end = timeout(PATIENCE, async {
        stream.write_all(&[1]).await?;
        stream.read_exact(&mut byte).await
    });
    let end = end.await.expect("a reset").unwrap_err();
    assert_eq!(end.kind(), ErrorKind::ConnectionReset);
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
        let refused = || lab.network.counts().refused_by_nat;
        let before = refused();
        let dialled = tokio::select! {
            dialled = lab.host(1).dial(inside) => Some(dialled),
            () = until(|| refused() > before) => None,
        };
        assert!(dialled.is_none(), "{kind:?} accepted a dial: {dialled:?}");

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
        let before = refused();
        other.send_to(&[2], from).await.unwrap();
        let mut receive = async || {
            let received = timeout(PATIENCE, host.recv(&mut buffer)).await;
            received.expect("a datagram").unwrap();
            buffer[0]
        };
        match kind {
            NatKind::FullCone => assert_eq!(receive().await, 2),
            NatKind::Symmetric => until(|| refused() > before).await,
        }
        first.send_to(&[3], from).await.unwrap();
        assert_eq!(receive().await, 3, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_port_leads_past_the_links_into_a_namespace_without_a_name() {
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
    let other = lab.host(1).within(namespace).unwrap();
    assert_ne!(own, other);
}

/// Variable of the process in which no other test has namespaces.
const ALONE: &str = "STARLING_TEST_ALONE";

/// Other tests of this process have namespaces too, so the test runs again in a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_a_network() {
    if std::env::var_os(ALONE).is_none() {
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "packet::nothing_is_left_of_a_network"]);
        let output = alone.env(ALONE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    let Some(lab) = PacketLab::pair(LinkConditions::CLEAR) else {
        return;
    };
    comes_back_whole(lab.dial(0, lab.echo(1)).await, 1_000).await;
    let held = descriptors();
    assert_eq!(
        held.len(),
        4,
        "a namespace and a device of each host: {held:?}"
    );
    let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    drop(lab);
    until(|| descriptors().is_empty()).await;
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    for task in tasks {
        // A thread that has just ended has no namespace.
        let found = std::fs::read_link(task.path().join("ns/net"));
        assert!(found.map_or(true, |it| it == own), "a thread is left");
    }
}

/// Files of this process that keep a network namespace or a device.
fn descriptors() -> Vec<PathBuf> {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    // A file that was closed meanwhile has no target.
    let targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    let is_held = |target: &PathBuf| {
        let target = target.to_string_lossy();
        target.starts_with("net:[") || target == "/dev/net/tun"
    };
    targets.filter(is_held).collect()
}

/// Waits until something is so; the test fails if that never happens.
async fn until(mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(ms(5)).await;
        }
    };
    timeout(PATIENCE, wait).await.expect("it happens");
}
