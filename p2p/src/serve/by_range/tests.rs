use super::*;
use alloy_consensus::Header;
use alloy_primitives::B256;
use libp2p::PeerId;
use starling_proto::payload::Payload;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

const LONG: Duration = Duration::from_secs(60);

/// A chain of blocks on genesis, each with a given size.
struct Chain(Vec<Payload>);

impl Blocks for Chain {
    fn knows(&self, _: B256) -> bool {
        false
    }

    fn block(&self, number: u64) -> Option<Payload> {
        self.0
            .get(usize::try_from(number).ok()?.checked_sub(1)?)
            .cloned()
    }
}

fn server(sizes: &[usize]) -> (Arc<RangeServer>, Unsent) {
    let mut parent_hash = B256::ZERO;
    let block = |(i, size): (usize, &usize)| {
        let header = Header {
            number: i as u64 + 1,
            parent_hash,
            ..Default::default()
        };
        let block = Payload::sealed(header, vec![vec![7; *size].into()]);
        parent_hash = block.hash;
        block
    };
    let blocks: Vec<Payload> = sizes.iter().enumerate().map(block).collect();
    let last = blocks.last().map_or(BlockId::default(), Payload::id);
    let unsent = Unsent::Bodies {
        next: 1,
        last,
        bytes: MAX_CHUNK,
    };
    let swarm = SwarmView {
        peers: watch::channel(Vec::new()).1,
        offences: mpsc::channel(1).0,
    };
    let heads = watch::channel(ChainHeads::default()).1;
    (
        Arc::new(RangeServer::new(
            901,
            BlockId::default(),
            Arc::new(Chain(blocks)),
            heads,
            swarm,
            u32::MAX,
        )),
        unsent,
    )
}

/// The number of the last block in a chunk, and the part of the response after the chunk.
fn chunk(packed: Result<PackedChunk, NeedsLargePermit>) -> Option<(u64, Unsent)> {
    match packed {
        Ok(Some((_, unsent))) => match unsent {
            Unsent::Bodies { next, .. } => Some((next - 1, unsent)),
            Unsent::Headers { .. } => None,
        },
        Ok(None) | Err(NeedsLargePermit) => None,
    }
}

#[test]
fn a_large_chunk_is_not_made_without_a_permit() {
    let (server, unsent) = server(&[100, 100, SMALL_CHUNK]);
    let (sent, unsent) = chunk(server.rules.pack(unsent, false)).unwrap();
    assert_eq!(sent, 2, "up to the large block");
    assert!(matches!(
        server.rules.pack(unsent, false),
        Err(NeedsLargePermit)
    ));
    let (sent, unsent) = chunk(server.rules.pack(unsent, true)).unwrap();
    assert!(sent == 3 && unsent.is_empty());
}

#[tokio::test]
async fn a_large_chunk_holds_its_permits() {
    let (server, unsent) = server(&[SMALL_CHUNK, 100]);
    let requester = server.quota.requester(PeerId::random());
    let make = async |unsent| {
        tokio::time::timeout(LONG, server.make(&requester, unsent))
            .await
            .unwrap()
            .unwrap()
    };
    let (packed, permits) = make(unsent).await;
    assert_eq!(server.quota.untrusted_responses(), LARGE.total - 1);
    drop(permits);
    assert_eq!(
        (
            server.quota.untrusted_responses(),
            requester.own_responses()
        ),
        (LARGE.total, LARGE.peer)
    );
    // A small chunk after a large one needs no permit.
    let (_, permits) = make(packed.map(|(_, unsent)| unsent).unwrap()).await;
    assert!(permits.is_none());
}

/// The stream of a peer that does not read.
struct Idle;

impl AsyncWrite for Idle {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Pending
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

#[tokio::test]
async fn a_permit_is_released_before_other_requests_time_out() {
    let (server, mut idle) = (server(&[]).0, Idle);
    let requester = server.quota.requester(PeerId::random());
    let permits = requester.response_permits().await.ok();
    assert_eq!(server.quota.untrusted_responses(), LARGE.total - 1);
    // `biased` polls the write first, so the write wins even if both are ready.
    tokio::select! {
        biased;
        written = write_chunk(&mut idle, &[0; 100], permits) => {
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(server.quota.untrusted_responses(), LARGE.total);
        }
        () = tokio::time::sleep(WRITE_TIMEOUT / 2) => panic!("other requests wait"),
    }
}

/// Two branches of linked blocks on genesis. After some reads the chain moves to the second branch.
struct Reorganised {
    branches: [Vec<Payload>; 2],
    reads_left: std::sync::atomic::AtomicUsize,
}

impl Reorganised {
    fn new(blocks: u64, reads: usize) -> Self {
        let branch = |timestamp| {
            let mut parent_hash = B256::ZERO;
            let block = |number| {
                let header = Header {
                    number,
                    parent_hash,
                    timestamp,
                    ..Default::default()
                };
                let block = Payload::sealed(header, vec![]);
                parent_hash = block.hash;
                block
            };
            (0..blocks).map(block).collect()
        };
        Self {
            branches: [branch(1), branch(2)],
            reads_left: reads.into(),
        }
    }
}

/// A chain that is on its second branch between two given reads, and on its first otherwise.
struct FlipFlop {
    branches: [Vec<Payload>; 2],
    reads: std::sync::atomic::AtomicUsize,
    second: std::ops::Range<usize>,
}

impl Blocks for FlipFlop {
    fn knows(&self, _: B256) -> bool {
        false
    }

    fn block(&self, number: u64) -> Option<Payload> {
        let read = self
            .reads
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let branch = &self.branches[usize::from(self.second.contains(&read))];
        branch.get(usize::try_from(number).ok()?).cloned()
    }
}

#[test]
fn blocks_of_a_branch_that_came_and_went_during_the_read_are_not_canonical() {
    // The first and the last read check whether `last` is canonical; the nine between them read
    // blocks.
    for (first, end) in (1..10).flat_map(|first| (first + 1..=10).map(move |end| (first, end))) {
        let branches = Reorganised::new(10, 0).branches;
        let last = branches[0][9].id();
        let chain = FlipFlop {
            branches,
            reads: 0.into(),
            second: first..end,
        };
        let canonical = chain.bodies(1, last, &mut |_, _| true);
        assert!(!canonical, "reads {first} to {end}");
    }
}

impl Blocks for Reorganised {
    fn knows(&self, _: B256) -> bool {
        false
    }

    fn block(&self, number: u64) -> Option<Payload> {
        use std::sync::atomic::Ordering::Relaxed;
        let step = |left: usize| left.checked_sub(1);
        let is_first = self.reads_left.fetch_update(Relaxed, Relaxed, step).is_ok();
        let branch = &self.branches[usize::from(!is_first)];
        branch.get(usize::try_from(number).ok()?).cloned()
    }
}

#[test]
fn a_reorg_during_the_read_never_mixes_branches() {
    for reads in 0..12 {
        let chain = Reorganised::new(10, reads);
        let last = chain.branches[0][9].id();
        let mut headers = Vec::new();
        chain.headers(last, &mut |header| {
            headers.push(alloy_primitives::keccak256(header));
            true
        });
        let first_branch = chain.branches[0].iter().rev().map(|block| block.hash);
        let expected: Vec<B256> = first_branch.take(reads).collect();
        assert_eq!(
            headers, expected,
            "headers with the reorg after {reads} reads"
        );

        let chain = Reorganised::new(10, reads);
        let mut number = 0;
        let canonical = chain.bodies(1, last, &mut |_, _| {
            number += 1;
            true
        });
        // One read for each check, before and after, and one for each block.
        assert_eq!(
            canonical,
            reads >= 11,
            "bodies with the reorg after {reads} reads"
        );
        assert!(!canonical || number == 9);
    }
}
