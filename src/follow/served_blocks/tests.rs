//! Tests of blocks served to peers, from memory and from the store.

use super::*;
use crate::chain::tests::{build, datadir, open};
use starling_proto::wire;

/// Headers and transaction lists served for blocks `first` to `last`, at most `most`. `None` if
/// `last` is not canonical.
fn bodies(chain: &Chain, first: u64, last: BlockId, most: usize) -> Option<Vec<[Vec<u8>; 2]>> {
    let mut sent = Vec::new();
    let canonical = chain.bodies(first, last, &mut |header, list| {
        sent.push([header.to_vec(), list.to_vec()]);
        sent.len() < most
    });
    canonical.then_some(sent)
}

/// Headers served from block `from` downwards, at most `most`.
fn headers(chain: &Chain, from: BlockId, most: usize) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    chain.headers(from, &mut |header| {
        sent.push(header.to_vec());
        sent.len() < most
    });
    sent
}

/// Asserts that every range of blocks up to `head` is served, in the encoding of the blocks.
fn check_ranges(chain: &Chain, head: BlockId) {
    let all: Vec<_> = (0..=head.number)
        .map(|number| wire::encode_block(&chain.block(number).unwrap()))
        .collect();
    let id = |number: u64| BlockId {
        number,
        hash: chain.hash(number).unwrap(),
    };
    for first in 0..=head.number {
        for last in first..=head.number {
            assert_eq!(
                bodies(chain, first, id(last), 99).unwrap(),
                all[first as usize..=last as usize]
            );
            assert_eq!(
                bodies(chain, first, id(last), 2).unwrap(),
                all[first as usize..=last.min(first + 1) as usize]
            );
        }
        let below: Vec<_> = all[..=first as usize]
            .iter()
            .rev()
            .map(|[header, _]| header.clone())
            .collect();
        assert_eq!(headers(chain, id(first), 99), below);
        assert_eq!(headers(chain, id(first), 1), below[..1]);
    }
}

/// Asserts that blocks of another branch and blocks above the head are not served.
fn check_foreign(chain: &Chain, head: BlockId) {
    let other_branch = BlockId { number: 2, ..head };
    let above = BlockId {
        number: head.number + 1,
        ..head
    };
    for foreign in [other_branch, above] {
        assert_eq!(bodies(chain, 1, foreign, 99), None);
        assert_eq!(headers(chain, foreign, 99), Vec::<Vec<u8>>::new());
    }
}

/// Adds four blocks and returns the new head.
async fn add_blocks(chain: &Chain) -> BlockId {
    let mut head = chain.view().head();
    for salt in 0..4 {
        head = build(chain, head.hash, salt, []).await.payload.id();
        chain.forkchoice(head.hash, None, None).await.unwrap();
    }
    head
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_sent_as_they_are_whether_stored_or_not() {
    let datadir = datadir();
    let (mut chain, mut threads) = open(datadir.path());
    let head = add_blocks(&chain).await;
    for stored in [false, true] {
        if stored {
            drop(chain);
            threads.stop().unwrap();
            (chain, threads) = open(datadir.path());
            assert_eq!(chain.view().stored(), head);
        }
        check_ranges(&chain, head);
        check_foreign(&chain, head);
        assert_eq!(chain.oldest(), 0);
    }
    drop(chain);
    threads.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_finalized_block_is_the_chains() {
    let datadir = datadir();
    let (chain, threads) = open(datadir.path());
    let head = add_blocks(&chain).await;
    assert_eq!(chain.finalized(), None);
    let middle = chain.view().hash_of(2).unwrap().unwrap();
    chain
        .forkchoice(head.hash, Some(head.hash), Some(middle))
        .await
        .unwrap();
    assert_eq!(
        chain.finalized(),
        Some(BlockId {
            number: 2,
            hash: middle
        })
    );
    drop(chain);
    threads.stop().unwrap();
}
