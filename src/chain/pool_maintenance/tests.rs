//! Tests of the pool on a real chain with reorgs.

use super::*;
use crate::chain::{
    Provenance, Threads,
    evm::tests::{address_of, sign, transfer},
    pool::{Admission, PoolStats},
    tests::{GAS_LIMIT, build, datadir, open},
};
use alloy_consensus::TxEip1559;
use alloy_primitives::{B256, Bytes};
use starling_proto::payload::BlockId;
use std::time::Duration;

/// Adds a raw transaction to the pool as JSON-RPC does, with the state at the head.
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

/// Waits until the pool's executable transactions are those in `wanted`.
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

/// A chain whose pool is maintained, and two transactions of one sender in the pool.
struct MaintainedPool {
    chain: Chain,
    genesis: B256,
    first: Bytes,
    second: Bytes,
    maintenance: tokio::task::JoinHandle<anyhow::Result<()>>,
    token: CancellationToken,
    _threads: Threads,
    _dir: tempfile::TempDir,
}

impl MaintainedPool {
    fn new() -> Self {
        let dir = datadir();
        let (chain, threads) = open(dir.path());
        let token = CancellationToken::new();
        let maintenance = tokio::spawn(run(chain.clone(), token.clone()));
        let [first, second] = [0, 1].map(|nonce| sign(1, transfer(nonce)).1);
        for raw in [&first, &second] {
            submit(&chain, raw);
        }
        Self {
            genesis: chain.view().head().hash,
            chain,
            first,
            second,
            maintenance,
            token,
            _threads: threads,
            _dir: dir,
        }
    }

    /// Makes a block with these transactions on genesis the head. Waits until the pool has
    /// processed it, because the pool does not see heads that are replaced before a walk.
    async fn follow(&self, salt: u64, transactions: &[&Bytes]) {
        let transactions = transactions.iter().copied().cloned();
        let block = build(&self.chain, self.genesis, salt, transactions).await;
        let before = self.chain.pool().version();
        self.chain
            .insert(block.payload.clone(), Provenance::Engine)
            .await
            .unwrap();
        self.chain
            .forkchoice(block.payload.hash, None, None)
            .await
            .unwrap();
        let followed = async {
            while self.chain.pool().version() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), followed)
            .await
            .expect("the pool follows the head");
    }

    async fn holds(&self, wanted: &[&Bytes]) {
        holds(&self.chain, wanted).await;
    }

    async fn stop(self) {
        self.token.cancel();
        self.maintenance.await.unwrap().unwrap();
    }
}

/// A transfer with the sender's first nonce and this value.
fn transfer_of(value: U256) -> Bytes {
    sign(
        1,
        TxEip1559 {
            value,
            ..transfer(0)
        },
    )
    .1
}

#[tokio::test(flavor = "multi_thread")]
async fn mined_transactions_leave_and_come_back_when_they_are_reorged_out() {
    let pool = MaintainedPool::new();
    let behind = sign(1, transfer(3)).1;
    submit(&pool.chain, &behind);
    assert_eq!(
        pool.chain.pool().stats(),
        PoolStats {
            pending: 2,
            queued: 1,
            senders: 1
        }
    );
    // The block mines both transactions, so the pool drops them.
    pool.follow(1, &[&pool.first, &pool.second]).await;
    pool.holds(&[]).await;
    assert_eq!(pool.chain.pool().next_nonce(&address_of(1), 2), 2);

    // An empty block replaces theirs: both are back in the pool and count for the next nonce.
    pool.follow(2, &[]).await;
    pool.holds(&[&pool.first, &pool.second]).await;
    assert_eq!(pool.chain.pool().next_nonce(&address_of(1), 0), 2);
    pool.stop().await;
}

/// One branch with the first transaction, and one with another transaction of the same nonce.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_branchs_transaction_of_a_nonce_comes_back() {
    let pool = MaintainedPool::new();
    pool.follow(3, &[&pool.first]).await;
    pool.holds(&[&pool.second]).await;
    let other = transfer_of(U256::from(77));
    pool.follow(4, &[&other]).await;
    pool.holds(&[&pool.second]).await;
    pool.follow(2, &[]).await;
    pool.holds(&[&other, &pool.second]).await;
    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_can_be_paid_stays_when_its_sender_spends_the_rest() {
    let pool = MaintainedPool::new();
    let balance = account(&pool.chain.view(), address_of(1)).unwrap().1;
    let spent = transfer_of(balance - U256::from(10).pow(U256::from(16)));
    pool.follow(5, &[&spent]).await;
    pool.holds(&[&pool.second]).await;
    pool.stop().await;
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
    // The mined transaction is dropped because its nonce is below the sender's.
    holds(&chain, &[]).await;
}
