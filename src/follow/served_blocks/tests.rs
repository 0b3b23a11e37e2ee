//! Blocks served to peers, from memory and from the store.

use super::*;
use crate::chain::tests::{build, datadir, open};
use starling_proto::wire;

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_sent_as_they_are_whether_stored_or_not() {
    let datadir = datadir();
    let (mut chain, mut threads) = open(datadir.path());
    let mut head = chain.view().head();
    for salt in 0..4 {
        head = build(&chain, head.hash, salt, []).await.payload.id();
        chain.forkchoice(head.hash, None, None).await.unwrap();
    }
    for stored in [false, true] {
        if stored {
            drop(chain);
            threads.stop().unwrap();
            (chain, threads) = open(datadir.path());
            assert_eq!(chain.view().stored(), head);
        }
        let all: Vec<_> = (0..=head.number)
            .map(|number| wire::encode_block(&chain.block(number).unwrap()))
            .collect();
        let of = |number: u64| BlockId {
            number,
            hash: chain.hash(number).unwrap(),
        };
        let bodies = |first, last, most| {
            let mut sent = Vec::new();
            let canonical = chain.bodies(first, last, &mut |header, list| {
                sent.push([header.to_vec(), list.to_vec()]);
                sent.len() < most
            });
            canonical.then_some(sent)
        };
        let headers = |from, most| {
            let mut sent = Vec::new();
            chain.headers(from, &mut |header| {
                sent.push(header.to_vec());
                sent.len() < most
            });
            sent
        };
        for first in 0..=head.number {
            for last in first..=head.number {
                assert_eq!(
                    bodies(first, of(last), 99).unwrap(),
                    all[first as usize..=last as usize]
                );
                assert_eq!(
                    bodies(first, of(last), 2).unwrap(),
                    all[first as usize..=last.min(first + 1) as usize]
                );
            }
            let below: Vec<_> = all[..=first as usize]
                .iter()
                .rev()
                .map(|[header, _]| header.clone())
                .collect();
            assert_eq!(headers(of(first), 99), below);
            assert_eq!(headers(of(first), 1), below[..1]);
        }
        // Blocks of another branch, or above the head.
        for stranger in [
            BlockId {
                number: 2,
                hash: head.hash,
            },
            BlockId {
                number: head.number + 1,
                ..head
            },
        ] {
            assert_eq!(bodies(1, stranger, 99), None);
            assert_eq!(headers(stranger, 99), Vec::<Vec<u8>>::new());
        }
        assert_eq!(chain.oldest(), 0);
    }
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
