//! The pool over a real chain and its reorgs.

use super::*;
use crate::chain::{
    Provenance,
    evm::tests::{address_of, sign, transfer},
    pool::{Admission, PoolStats},
    tests::{GAS_LIMIT, build, datadir, open},
};
use alloy_consensus::TxEip1559;
use alloy_primitives::{B256, Bytes};
use starling_proto::payload::BlockId;
use std::time::Duration;

/// As JSON-RPC does, with the state at the head.
fn submit(chain: &Chain, raw: &Bytes) {
    let tx = PoolTx::decode(raw.clone()).unwrap();
    let (nonce, balance) = account(&chain.view(), tx.sender()).unwrap();
    let at = Admission {
        nonce,
        balance,
        delegated: false,
        base_fee: 1_000,
        block_gas_limit: GAS_LIMIT,
        l1_cost: U256::ZERO,
        now: crate::clock::unix_now(),
    };
    chain.pool().add(tx, &at).unwrap();
}

/// Waits until the pool's executable transactions are these.
async fn holds(chain: &Chain, wanted: &[&Bytes]) {
    let mut wanted: Vec<B256> = wanted.iter().map(alloy_primitives::keccak256).collect();
    wanted.sort();
    let held = || {
        let mut held: Vec<B256> = chain.pool().best(0).iter().map(|tx| tx.hash).collect();
        held.sort();
        held
    };
    for _ in 0..6_000 {
        if held() == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the pool holds {:?} and not {wanted:?}", held());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pool_follows_the_chain_over_reorgs() {
    let datadir = datadir();
    let (chain, _threads) = open(datadir.path());
    let token = CancellationToken::new();
    let maintenance = tokio::spawn(run(chain.clone(), token.clone()));
    let genesis = chain.view().head().hash;
    let [first, second] = [0, 1].map(|nonce| sign(1, transfer(nonce)).1);
    let behind = sign(1, transfer(3)).1;
    for raw in [&first, &second, &behind] {
        submit(&chain, raw);
    }
    assert_eq!(
        chain.pool().stats(),
        PoolStats {
            pending: 2,
            queued: 1,
            senders: 1
        }
    );
    // Each head is followed before the next one comes: over those that it passes by the pool learns
    // of nothing.
    let go = async |block: &crate::chain::ExecutedBlock| {
        let before = chain.pool().version();
        chain
            .insert(block.payload.clone(), Provenance::Engine)
            .await
            .unwrap();
        chain
            .forkchoice(block.payload.hash, None, None)
            .await
            .unwrap();
        let followed = async {
            while chain.pool().version() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), followed)
            .await
            .expect("the pool follows the head");
    };

    // Mined: they leave, and what waits behind the gap goes on waiting.
    let with_both = build(&chain, genesis, 1, [first.clone(), second.clone()]).await;
    go(&with_both).await;
    holds(&chain, &[]).await;
    assert_eq!(chain.pool().next_nonce(&address_of(1), 2), 2);

    // Reorged out by an empty block: they are back, and count again.
    let empty = build(&chain, genesis, 2, []).await;
    go(&empty).await;
    holds(&chain, &[&first, &second]).await;
    assert_eq!(chain.pool().next_nonce(&address_of(1), 0), 2);

    // A branch that has the first of them, and one that has something else in its place.
    let with_first = build(&chain, genesis, 3, [first.clone()]).await;
    go(&with_first).await;
    holds(&chain, &[&second]).await;
    let other = sign(
        1,
        TxEip1559 {
            value: U256::from(77),
            ..transfer(0)
        },
    )
    .1;
    let with_other = build(&chain, genesis, 4, [other.clone()]).await;
    go(&with_other).await;
    holds(&chain, &[&second]).await;
    go(&empty).await;
    holds(&chain, &[&other, &second]).await;

    // The sender's money goes elsewhere: nothing of the sender's stays.
    let all = account(&chain.view(), address_of(1)).unwrap().1 - U256::from(10).pow(U256::from(16));
    let spent = sign(
        1,
        TxEip1559 {
            value: all,
            ..transfer(0)
        },
    )
    .1;
    let broke = build(&chain, genesis, 5, [spent]).await;
    go(&broke).await;
    holds(&chain, &[&second]).await;
    token.cancel();
    maintenance.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_whose_first_head_after_a_restart_is_a_reorg_of_three_takes_all_transactions_back() {
    let datadir = datadir();
    let (chain, threads) = open(datadir.path());
    let genesis = chain.view().head().hash;
    let raw = [0, 1, 2].map(|nonce| sign(1, transfer(nonce)).1);
    let mut parent = genesis;
    for raw in &raw {
        let block = build(&chain, parent, 1, [raw.clone()]).await;
        chain
            .insert(block.payload.clone(), Provenance::Engine)
            .await
            .unwrap();
        chain
            .forkchoice(block.payload.hash, None, None)
            .await
            .unwrap();
        parent = block.payload.hash;
    }
    drop(chain);
    threads.stop().unwrap();

    let (chain, _threads) = open(datadir.path());
    assert_eq!(chain.view().head().hash, parent);
    let mut cursor = Cursor::new(chain.view().head());
    let mut theirs = genesis;
    for _ in 0..4 {
        theirs = build(&chain, theirs, 2, []).await.payload.hash;
    }
    chain.forkchoice(theirs, None, None).await.unwrap();
    follow(&chain, &mut cursor).unwrap();
    holds(&chain, &[&raw[0], &raw[1], &raw[2]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_has_lost_its_position_goes_on_from_the_head() {
    let datadir = datadir();
    let (chain, _threads) = open(datadir.path());
    let raw = sign(1, transfer(0)).1;
    submit(&chain, &raw);
    let mut cursor = Cursor::new(BlockId {
        number: 3,
        hash: B256::repeat_byte(9),
    });
    let block = build(&chain, chain.view().head().hash, 1, [raw]).await;
    chain
        .forkchoice(block.payload.hash, None, None)
        .await
        .unwrap();
    follow(&chain, &mut cursor).unwrap();
    assert_eq!(cursor, Cursor::new(block.payload.id()));
    // By the sender's nonce.
    holds(&chain, &[]).await;
}
