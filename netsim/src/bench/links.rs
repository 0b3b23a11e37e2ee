//! Copies over loopback, bare and through a link. Client, server and link share this process and its
//! cores, so a link uses processor time that the copy through it then lacks. Rounds with and without
//! a link alternate.
//!
//! `STARLING_BENCH_MB` (512) is the size of a copy, `STARLING_BENCH_ROUNDS` (5) the number of
//! rounds.

use super::{BenchFigures, BenchLine, process::process_time};
use crate::{DirectionConditions, FaultyLink, LinkConditions, LinkEnd};
use anyhow::Context;
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Lowest rates in MB/s: of a link without conditions, and of a link with only a delay of 50 ms.
const BARS: [f64; 2] = [200.0, 100.0];
const DELAY: Duration = Duration::from_millis(50);
const CHUNK: usize = 256 << 10;
/// Seed of the links, which have no faults.
const SEED: u64 = 0;

/// The rate of a copy in MB per second, and the processor time of this process in ms per MB.
#[derive(Clone, Copy)]
struct Copied {
    rate: f64,
    processor: f64,
}

/// A number that the environment may set.
pub fn size(name: &str, default: usize) -> anyhow::Result<usize> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(default),
    }
}

/// Copies `bytes` through a link with these conditions, or without a link if `None`. The time begins
/// with the first bytes that arrive.
async fn copy(conditions: Option<LinkConditions>, bytes: usize) -> anyhow::Result<Copied> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let target = listener.local_addr()?;
    let link = match conditions {
        Some(conditions) => Some(FaultyLink::new(SEED, conditions)?),
        None => None,
    };
    let address = match &link {
        Some(link) => link.tcp(LinkEnd::Far, target).await?,
        None => target,
    };
    let before = process_time();
    let sending = tokio::spawn(send(address, bytes));
    let (mut stream, _) = listener.accept().await?;
    let mut buffer = vec![0; CHUNK];
    let first = stream.read(&mut buffer).await?;
    let (begun, mut received) = (Instant::now(), first);
    while received < bytes {
        match stream.read(&mut buffer).await? {
            0 => anyhow::bail!("the copy ended after {received} of {bytes} bytes"),
            more => received += more,
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    // The sender waits for the end of the connection.
    drop(stream);
    sending.await??;
    let megabytes = (received - first) as f64 / 1e6;
    Ok(Copied {
        rate: megabytes / seconds,
        processor: (process_time() - before).as_secs_f64() * 1e3 / megabytes,
    })
}

async fn send(address: SocketAddr, bytes: usize) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let chunk = vec![7; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let len = left.min(chunk.len());
        stream.write_all(&chunk[..len]).await?;
        left -= len;
    }
    // The receiver closes the connection once it has everything.
    stream.read(&mut [0]).await.map(drop)
}

/// The round with the median rate.
fn middle(mut rounds: Vec<Copied>) -> Copied {
    rounds.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    rounds[rounds.len() / 2]
}

/// Measures the median of all rounds: bare, through a link, and through a link with a delay.
pub async fn copies(figures: &mut BenchFigures) -> anyhow::Result<()> {
    let bytes = size("STARLING_BENCH_MB", 512)?.max(1) * 1_000_000;
    let delayed = LinkConditions::symmetric(DirectionConditions {
        delay: DELAY,
        ..DirectionConditions::CLEAR
    });
    let kinds = [None, Some(LinkConditions::CLEAR), Some(delayed)];
    let mut rounds = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..size("STARLING_BENCH_ROUNDS", 5)?.max(1) {
        for (conditions, rounds) in kinds.into_iter().zip(&mut rounds) {
            rounds.push(copy(conditions, bytes).await?);
        }
    }
    let [bare, clear, slow] = rounds.map(middle);
    figures.add(BenchLine::new("bare loopback copy", bare.rate, "MB/s"));
    let lines = [
        ("loopback link", clear),
        ("link with a delay of 50 ms", slow),
    ];
    for ((name, copied), bar) in lines.into_iter().zip(BARS) {
        figures.add(BenchLine::new(name, copied.rate, "MB/s").at_least(bar));
        let ratio = copied.rate / bare.rate;
        figures.add(BenchLine::new(format!("{name}: rate of bare"), ratio, ""));
        let cost = copied.processor - bare.processor;
        figures.add(BenchLine::new(format!("{name}: processor"), cost, "ms/MB"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_copy_is_whole_with_and_without_a_link() {
        for conditions in [None, Some(LinkConditions::CLEAR)] {
            let copied = copy(conditions, 4_000_000).await.unwrap();
            assert!(copied.rate > 0.0 && copied.processor.is_finite());
        }
    }

    #[test]
    fn the_middle_is_the_median_of_the_rates() {
        let round = |rate| Copied {
            rate,
            processor: 0.0,
        };
        assert_eq!(middle([3.0, 1.0, 2.0].map(round).to_vec()).rate, 2.0);
    }
}
