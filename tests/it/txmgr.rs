//! The transaction manager on our own L1, a process that makes a block every second: calldata and
//! blobs are mined in order, across restarts of the manager and `kill -9` of L1.

use crate::l1_blobs::L1;
use alloy_eips::eip4844::Blob;
use alloy_primitives::{Address, U256};
use starling::{
    devnet::accounts,
    rollup::l1::{L1Client, L1Config},
    secret::Secret,
    txmgr::{
        machine::MinedTx,
        options::TxOptions,
        shell::{TxCandidate, TxManagerHandle, TxManagerParts, TxOutcome, manager},
        sign::TxSigner,
    },
};
use std::time::Duration;
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_util::sync::CancellationToken;

const CHAIN: u64 = 900;
const INBOX: Address = Address::repeat_byte(0xff);
const PATIENCE: Duration = Duration::from_secs(120);

/// A running transaction manager.
struct Manager {
    handle: TxManagerHandle,
    ending: CancellationToken,
    task: JoinHandle<()>,
}

impl Manager {
    async fn start(url: &str) -> Self {
        let options = TxOptions {
            num_confirmations: 2,
            receipt_query_interval: Duration::from_millis(250),
            rebroadcast_interval: Duration::from_secs(2),
            retry_interval: Duration::from_millis(250),
            resubmission_timeout: Duration::from_secs(10),
            ..TxOptions::default()
        };
        let key = accounts::all().remove(0).private_key;
        let parts = TxManagerParts {
            options,
            l1: L1Client::new(&L1Config::new(url)).expect("a client"),
            signer: TxSigner::from_hex(&Secret::new(key)).expect("a key"),
            metrics: "test_txmgr_",
        };
        let (handle, task) = manager(parts).await.expect("a manager");
        let ending = CancellationToken::new();
        let run = task.run(CancellationToken::new(), ending.clone());
        let task = tokio::spawn(async move { run.await.expect("no stop") });
        Self {
            handle,
            ending,
            task,
        }
    }

    async fn calldata(&self, count: u8) -> Vec<oneshot::Receiver<TxOutcome>> {
        let mut outcomes = Vec::new();
        for byte in 0..count {
            let candidate = TxCandidate {
                to: Some(INBOX),
                data: vec![0, byte].into(),
                blobs: vec![],
                gas_limit: 21_050,
                value: U256::ZERO,
            };
            outcomes.push(self.handle.send(candidate).await);
        }
        outcomes
    }

    async fn blobs(&self, count: u8) -> oneshot::Receiver<TxOutcome> {
        let candidate = TxCandidate {
            to: Some(INBOX),
            data: vec![].into(),
            blobs: (0..count).map(|_| Blob::ZERO).collect(),
            gas_limit: 21_000,
            value: U256::ZERO,
        };
        self.handle.send(candidate).await
    }

    /// Stops the manager without waiting for transactions, like a kill.
    async fn kill(self) {
        self.ending.cancel();
        self.task.await.expect("an end");
    }
}

async fn mined(outcomes: Vec<oneshot::Receiver<TxOutcome>>) -> Vec<MinedTx> {
    let mut all = Vec::new();
    for outcome in outcomes {
        let outcome = tokio::time::timeout(PATIENCE, outcome).await;
        all.push(
            outcome
                .expect("in time")
                .expect("an answer")
                .expect("a receipt"),
        );
    }
    all
}

fn is_in_order(mined: &[MinedTx]) -> bool {
    mined.windows(2).all(|pair| pair[0].block <= pair[1].block)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_reach_our_l1_in_order_over_restarts_of_both_sides() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut l1 = L1::start(dir.path(), CHAIN, &accounts::owner().to_string());
    let first = Manager::start(&l1.url).await;
    let mut outcomes = first.calldata(4).await;
    outcomes.push(first.blobs(3).await);
    outcomes.extend(first.calldata(2).await);
    let all = mined(outcomes).await;
    assert!(is_in_order(&all) && all.iter().all(|mined| mined.success));
    assert_eq!(all[4].blob_gas_used, 3 * 131_072);

    // The manager is killed with transactions in the pool; the next manager continues after them.
    let lost = first.calldata(3).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    first.kill().await;
    drop(lost);
    let second = Manager::start(&l1.url).await;
    assert_eq!(mined(second.calldata(2).await).await.len(), 2);

    // L1 is killed, and the transactions in its pool are lost.
    let outcomes = second.calldata(3).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    l1.kill9();
    tokio::time::sleep(Duration::from_secs(1)).await;
    l1.run();
    let all = mined(outcomes).await;
    assert!(is_in_order(&all), "{all:?}");
    second.kill().await;
}
