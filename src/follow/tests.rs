//! What the chain answers to peers.

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
        for number in 0..=head.number {
            let payload = chain.block(number).unwrap();
            let [header, list] = wire::encode_block(&payload);
            let (hash, parent) = (payload.hash, payload.parent_hash());
            let whole = Encoded { hash, parent, header: header.into(), transactions: list.into() };
            assert_eq!(chain.encoded(number, true), Some(whole.clone()));
            assert_eq!(chain.encoded(number, false), Some(Encoded { transactions: Default::default(), ..whole }));
        }
        assert_eq!(chain.encoded(head.number + 1, true), None);
        assert_eq!(chain.oldest(), 0);
    }
    assert_eq!(chain.finalized(), None);
    let middle = chain.view().hash_of(2).unwrap().unwrap();
    chain.forkchoice(head.hash, Some(head.hash), Some(middle)).await.unwrap();
    assert_eq!(chain.finalized(), Some(BlockId { number: 2, hash: middle }));
    drop(chain);
    threads.stop().unwrap();
}
