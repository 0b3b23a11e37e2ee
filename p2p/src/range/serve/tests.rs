use super::*;
use alloy_consensus::Header;
use alloy_primitives::B256;
use starling_proto::payload::Payload;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

const LONG: Duration = Duration::from_secs(60);

/// A few blocks upon genesis, of so many bytes each.
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

fn server(sizes: &[usize]) -> (Arc<Server>, Rest) {
    let block = |(i, size): (usize, &usize)| {
        let header = Header {
            number: i as u64 + 1,
            ..Default::default()
        };
        Payload::sealed(header, vec![vec![7; *size].into()])
    };
    let blocks: Vec<Payload> = sizes.iter().enumerate().map(block).collect();
    let last = blocks.last().map_or(BlockId::default(), Payload::id);
    let rest = Rest::Bodies {
        next: 1,
        last,
        bytes: MAX_CHUNK,
    };
    let seen = Seen {
        peers: watch::channel(Vec::new()).1,
        offences: mpsc::channel(1).0,
    };
    let heads = watch::channel(Heads::default()).1;
    (
        Arc::new(Server::new(
            901,
            BlockId::default(),
            Arc::new(Chain(blocks)),
            heads,
            seen,
            u32::MAX,
        )),
        rest,
    )
}

/// How many blocks a chunk has, and what is left.
fn chunk(packed: Result<Packed, NeedsPlace>) -> Option<(u64, Rest)> {
    match packed {
        Ok(Some((_, rest))) => match rest {
            Rest::Bodies { next, .. } => Some((next - 1, rest)),
            Rest::Headers { .. } => None,
        },
        Ok(None) | Err(NeedsPlace) => None,
    }
}

#[test]
fn a_large_chunk_is_not_made_without_a_place() {
    let (server, rest) = server(&[100, 100, SMALL_CHUNK]);
    let (sent, rest) = chunk(server.pack(rest, false)).unwrap();
    assert_eq!(sent, 2, "up to the large block");
    assert!(matches!(server.pack(rest, false), Err(NeedsPlace)));
    let (sent, rest) = chunk(server.pack(rest, true)).unwrap();
    assert!(sent == 3 && rest.is_empty());
}

#[tokio::test]
async fn what_is_made_with_a_place_holds_it() {
    let (server, rest) = server(&[SMALL_CHUNK, 100]);
    let asker = server.asker(PeerId::random());
    let make = async |rest| {
        tokio::time::timeout(LONG, server.make(&asker, rest))
            .await
            .unwrap()
            .unwrap()
    };
    let (packed, place) = make(rest).await;
    assert_eq!(server.large[0].available_permits(), LARGE - 1);
    drop(place);
    assert_eq!(
        (
            server.large[0].available_permits(),
            asker.peer.large.available_permits()
        ),
        (LARGE, LARGE_PER_PEER)
    );
    // What follows may be small.
    let (_, place) = make(packed.map(|(_, rest)| rest).unwrap()).await;
    assert!(place.is_none());
}

/// A peer that does not read.
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
async fn a_place_is_lost_before_others_have_given_up_waiting_for_it() {
    let (server, mut idle) = (server(&[]).0, Idle);
    let place = server.large(&server.asker(PeerId::random())).await.ok();
    assert_eq!(server.large[0].available_permits(), LARGE - 1);
    // Who comes second in the order of their ends is looked at second, however late that is.
    tokio::select! {
        biased;
        written = write_chunk(&mut idle, &[0; 100], place) => {
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(server.large[0].available_permits(), LARGE);
        }
        () = tokio::time::sleep(WRITE_TIMEOUT / 2) => panic!("others wait"),
    }
}
